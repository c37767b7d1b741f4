//! The units that one node may serve of a key's day while the store is unreachable.
//!
//! With `t` the last count from the store and `N` the gateways alive at that time, the node may serve `floor(max(0, limit − t) /
//! N)` units. If `t` is not known, it may serve the smaller of `floor(limit / N)` and a small part of the limit. Bound, shown by
//! the property below and by `outage_simulation`: if all nodes lose the store together, at most `max over nodes (U − t)` units
//! above the limit are served, `U` being the true count at that moment, plus the cold part for each node that knew no count; if
//! `k` of `N` are cut off and the others are not, at most the sum of what those `k` may serve.

use std::num::NonZeroU64;

/// A node's share of the remaining units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeShare {
    /// The gateways that share, this one included.
    pub nodes: NonZeroU64,
    /// The part of a limit that may be served without knowing a count, in hundredths.
    pub cold_percent: u64,
}

impl NodeShare {
    /// Units that the node may serve of a day with this limit; `known` is the last count from the store.
    pub fn allowance(&self, limit: u64, known: Option<u64>) -> u64 {
        match known {
            Some(used) => limit.saturating_sub(used) / self.nodes,
            None => (limit / self.nodes).min(hundredths(limit, self.cold_percent)),
        }
    }
}

/// `percent` hundredths of `units`, rounded down.
fn hundredths(units: u64, percent: u64) -> u64 {
    let part = u128::from(units) * u128::from(percent) / 100;
    u64::try_from(part).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn share(nodes: u64) -> NodeShare {
        NodeShare {
            nodes: NonZeroU64::new(nodes).unwrap(),
            cold_percent: 2,
        }
    }

    #[test]
    fn a_known_count_leaves_each_node_its_part_rounded_down() {
        for (nodes, limit, used, allowance) in [
            (1, 1_000, 0, 1_000),
            (3, 1_000, 0, 333),
            (3, 1_000, 998, 0),
            (2, 1_000, 999, 0),
            (1, 1_000, 999, 1),
            (1, 1_000, 1_000, 0),
            (1, 1_000, 1_500, 0),
        ] {
            assert_eq!(share(nodes).allowance(limit, Some(used)), allowance);
        }
    }

    #[test]
    fn an_unknown_count_leaves_two_hundredths_of_the_limit_and_never_more_than_the_nodes_part() {
        for (nodes, limit, allowance) in [
            (1, 1_000, 20),
            (50, 1_000, 20),
            (51, 1_000, 19),
            (1, 49, 0),
            (1, 50, 1),
        ] {
            assert_eq!(share(nodes).allowance(limit, None), allowance);
        }
        assert_eq!(share(1).allowance(u64::MAX, None), u64::MAX / 50);
    }

    proptest! {
        #[test]
        fn all_shares_together_pass_the_limit_by_no_more_than_the_oldest_count_is_behind(
            limit in 0u64..100_000, truth in 0u64..100_000, behind in prop::collection::vec(0u64..1_000, 1..8),
        ) {
            let truth = truth.min(limit);
            let share = share(behind.len() as u64);
            let served: u64 = behind
                .iter()
                .map(|behind| share.allowance(limit, Some(truth.saturating_sub(*behind))))
                .sum();
            let oldest = behind.iter().max().copied().unwrap_or(0);
            prop_assert!(truth + served <= limit + oldest);
        }
    }
}
