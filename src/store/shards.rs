//! A map of keys, divided into parts with a lock each.
//!
//! A walk over all keys locks one part at a time and yields in between: with 100,000 keys, a walk under one lock would delay
//! every request by milliseconds.

use ahash::RandomState;
use parking_lot::{Mutex, MutexGuard};

use crate::policy::api_key::KeyId;

/// Parts beside the first: in all more than the threads of a machine that serve requests at the same instant.
const OTHERS: usize = 63;

/// The parts; everything of one key is in one part.
#[derive(Debug)]
pub struct Shards<T> {
    hasher: RandomState,
    first: Mutex<T>,
    others: Vec<Mutex<T>>,
}

impl<T: Default> Default for Shards<T> {
    fn default() -> Shards<T> {
        Shards {
            hasher: RandomState::new(),
            first: Mutex::default(),
            others: (0..OTHERS).map(|_| Mutex::default()).collect(),
        }
    }
}

impl<T> Shards<T> {
    /// The part of a key, locked.
    pub fn of(&self, key: KeyId) -> MutexGuard<'_, T> {
        let place = self.hasher.hash_one(key) as usize % (OTHERS + 1);
        self.others.get(place).unwrap_or(&self.first).lock()
    }

    /// All parts.
    pub fn parts(&self) -> impl Iterator<Item = &Mutex<T>> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// Visits each part, and yields after each.
    pub async fn walk(&self, mut visit: impl FnMut(&mut T)) {
        for part in self.parts() {
            visit(&mut part.lock());
            tokio::task::yield_now().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[tokio::test]
    async fn a_key_has_one_part_and_a_walk_sees_all() {
        let shards = Shards::<HashSet<KeyId>>::default();
        let keys: Vec<KeyId> = (0..1_000_u64)
            .map(|seed| {
                let mut random = fastrand::Rng::with_seed(seed);
                KeyId::generate(&mut |bytes| random.fill(bytes))
            })
            .collect();
        for key in &keys {
            assert!(shards.of(*key).insert(*key));
            assert!(!shards.of(*key).insert(*key));
        }
        let (mut seen, mut largest) = (HashSet::new(), 0);
        shards
            .walk(|part| {
                seen.extend(part.iter().copied());
                largest = largest.max(part.len());
            })
            .await;
        assert_eq!(seen, keys.into_iter().collect());
        assert_eq!(
            shards.parts().map(|part| part.lock().len()).sum::<usize>(),
            1_000
        );
        // Some 16 each; never a tenth of all.
        assert!(largest < 100, "{largest}");
    }
}
