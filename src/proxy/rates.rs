//! Step 7 of the contract: how fast a key may send requests, and how many of them may be in flight, on this gateway.
//!
//! Owned by the process, not by a configuration: used tokens stay used when the configuration changes. Quotas are not handled
//! here; requests refused here were not charged. Invariant: a key has as many [`Slot`]s as counted requests in flight, and each
//! is released on drop, however its request ends.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Instant;

use crate::policy::api_key::KeyId;
use crate::policy::token_bucket::{Empty, Rate, TokenBuckets};
use crate::store::shards::Shards;

/// Buckets of one shard that may be less than full: a million keys over all shards, about 100 MiB.
const BUCKETS_PER_SHARD_MAX: usize = 16_384;

/// The rates of all keys.
#[derive(Debug, Default)]
pub struct Rates {
    shards: Shards<Shard>,
}

#[derive(Debug)]
struct Shard {
    buckets: TokenBuckets<KeyId>,
    /// Keys with requests in flight, and their number.
    in_flight: HashMap<KeyId, u32>,
}

impl Default for Shard {
    fn default() -> Shard {
        Shard {
            buckets: TokenBuckets::new(BUCKETS_PER_SHARD_MAX),
            in_flight: HashMap::new(),
        }
    }
}

impl Rates {
    /// Takes a token of `key`, whose bucket fills at `rate`, at `now`.
    ///
    /// # Errors
    /// If there is none.
    pub fn take(&self, key: KeyId, rate: Rate, now: Instant) -> Result<(), Empty> {
        self.shards.of(key).buckets.take(key, rate, now)
    }

    /// Counts a request of `key` as in flight until the slot is dropped; `None` if `allowed` are already.
    pub fn enter(self: &Arc<Rates>, key: KeyId, allowed: NonZeroU32) -> Option<Slot> {
        let mut shard = self.shards.of(key);
        let in_flight = shard.in_flight.entry(key).or_insert(0);
        if *in_flight >= allowed.get() {
            return None;
        }
        *in_flight += 1;
        Some(Slot {
            rates: Arc::clone(self),
            key,
        })
    }

    fn leave(&self, key: KeyId) {
        let mut shard = self.shards.of(key);
        if let Entry::Occupied(mut in_flight) = shard.in_flight.entry(key) {
            match in_flight.get().saturating_sub(1) {
                0 => drop(in_flight.remove()),
                left => *in_flight.get_mut() = left,
            }
        }
    }
}

/// One request in flight; dropping it makes room for another.
#[derive(Debug)]
pub struct Slot {
    rates: Arc<Rates>,
    key: KeyId,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.rates.leave(self.key);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use super::*;

    /// Takes a token of other keys until there is no room for the bucket of `key`.
    pub(crate) fn fill_up(rates: &Rates, key: KeyId) {
        let rate = Rate {
            burst: 1,
            interval: Duration::from_secs(3_600),
        };
        let (mut random, now) = (fastrand::Rng::with_seed(1), Instant::now());
        let mut shard = rates.shards.of(key);
        let mut other = || KeyId::generate(&mut |bytes| random.fill(bytes));
        while shard.buckets.take(other(), rate, now).is_ok() {}
    }

    const ONE: NonZeroU32 = NonZeroU32::MIN;
    const TWO: NonZeroU32 = NonZeroU32::MIN.saturating_add(1);

    fn key(text: &str) -> KeyId {
        text.parse().unwrap()
    }

    fn kept(rates: &Rates) -> usize {
        let shards = rates.shards.parts();
        shards.map(|shard| shard.lock().in_flight.len()).sum()
    }

    #[test]
    fn a_key_has_as_many_slots_as_it_may_and_gets_them_back() {
        let rates = Arc::<Rates>::default();
        let (one, other) = (key("AAAAAAAAAAAA"), key("AAAAAAAAAAAB"));
        let first = rates.enter(one, TWO).unwrap();
        let second = rates.enter(one, TWO).unwrap();
        assert!(rates.enter(one, TWO).is_none());
        assert!(rates.enter(other, ONE).is_some(), "another key's");
        drop(first);
        let third = rates.enter(one, TWO).unwrap();
        assert!(rates.enter(one, TWO).is_none());
        drop((second, third));
        assert_eq!(kept(&rates), 0, "nothing is kept of keys at rest");
    }

    #[test]
    fn fewer_allowed_than_are_in_flight_lets_none_in_until_enough_have_ended() {
        let rates = Arc::<Rates>::default();
        let one = key("AAAAAAAAAAAA");
        let slots = [rates.enter(one, TWO), rates.enter(one, TWO)];
        let [first, second] = slots.map(Option::unwrap);
        assert!(rates.enter(one, ONE).is_none());
        drop(first);
        assert!(rates.enter(one, ONE).is_none());
        drop(second);
        assert!(rates.enter(one, ONE).is_some());
    }

    #[tokio::test]
    async fn a_request_that_panics_or_is_cancelled_gives_its_slot_back() {
        let rates = Arc::<Rates>::default();
        let one = key("AAAAAAAAAAAA");
        let slot = rates.enter(one, ONE).unwrap();
        let panics = tokio::spawn(async move {
            let _slot = slot;
            panic!("in the middle of a request");
        });
        assert!(panics.await.unwrap_err().is_panic());
        let slot = rates.enter(one, ONE).unwrap();
        let cancelled = tokio::spawn(async move {
            let _slot = slot;
            std::future::pending::<()>().await;
        });
        assert!(rates.enter(one, ONE).is_none());
        cancelled.abort();
        assert!(cancelled.await.unwrap_err().is_cancelled());
        assert!(rates.enter(one, ONE).is_some());
    }

    #[test]
    fn a_bucket_is_a_keys_own() {
        let rates = Arc::<Rates>::default();
        let (one, other) = (key("AAAAAAAAAAAA"), key("AAAAAAAAAAAB"));
        let (rate, now) = (Rate::per_second(ONE, TWO), Instant::now());
        assert_eq!(rates.take(one, rate, now), Ok(()));
        assert_eq!(rates.take(one, rate, now), Ok(()));
        assert!(rates.take(one, rate, now).is_err());
        assert_eq!(rates.take(other, rate, now), Ok(()));
    }
}
