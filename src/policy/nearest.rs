//! The keys that have used the largest shares of their limits.

use std::cmp::Ordering;

use super::api_key::KeyId;

/// The use of a day's limit by a key. The greater of two is the one nearer to its limit: by share, then by units, and if equal by
/// the smaller id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nearness {
    /// The key.
    pub key: KeyId,
    /// Units used.
    pub used: u64,
    /// Units allowed.
    pub limit: u64,
}

impl Nearness {
    /// Whether at least `percent` of the limit is used. A limit of 0 counts as used up.
    pub fn has_reached(&self, percent: u8) -> bool {
        u128::from(self.used) * 100 >= u128::from(self.limit) * u128::from(percent)
    }
}

impl Ord for Nearness {
    fn cmp(&self, other: &Nearness) -> Ordering {
        let share = |one: &Nearness, of: &Nearness| u128::from(one.used) * u128::from(of.limit);
        share(self, other)
            .cmp(&share(other, self))
            .then(self.used.cmp(&other.used))
            .then(other.key.cmp(&self.key))
            .then(self.limit.cmp(&other.limit))
    }
}

impl PartialOrd for Nearness {
    fn partial_cmp(&self, other: &Nearness) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Adds a key to the `most` nearest ones, of which the nearest is the first, unless enough others are nearer.
pub fn put(one: Nearness, most: usize, nearest: &mut Vec<Nearness>) {
    let place = nearest.partition_point(|held| *held > one);
    nearest.insert(place, one);
    nearest.truncate(most);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn near(id: u32, used: u64, limit: u64) -> Nearness {
        Nearness {
            key: format!("{id:012}").parse().unwrap(),
            used,
            limit,
        }
    }

    #[test]
    fn a_share_counts_for_more_than_units_and_no_limit_is_too_large() {
        let half = near(1, u64::MAX / 2, u64::MAX);
        let most = near(2, 9, 10);
        let over = near(3, 11, 10);
        assert!(over > most && most > half);
        assert!(near(1, 90, 100) > near(2, 9, 10));
        assert!(near(1, 9, 10) > near(2, 9, 10));
        assert!(most.has_reached(90) && !most.has_reached(91));
        assert!(over.has_reached(110) && !half.has_reached(50));
    }

    proptest! {
        #[test]
        fn what_is_kept_is_what_sorting_everything_would_leave(
            all in proptest::collection::vec((0_u32..20, 0_u64..12, 1_u64..10), 0..60),
            most in 0_usize..8,
        ) {
            let mut all: Vec<Nearness> = all.into_iter().map(|(id, used, limit)| near(id, used, limit)).collect();
            let mut nearest = Vec::new();
            all.iter().for_each(|one| put(*one, most, &mut nearest));
            all.sort_unstable_by(|one, other| other.cmp(one));
            all.truncate(most);
            prop_assert_eq!(nearest, all);
        }
    }
}
