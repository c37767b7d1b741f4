//! Token buckets, one for each key: a burst at once, then one token an interval.
//!
//! A bucket is kept as the instant at which it will be full again (the generic cell rate algorithm), so a full one need
//! not be kept at all and nothing is counted in fractions. Time is an argument. Invariant: in any span of time, a key is
//! given at most the burst and one token for each interval of the span.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// How a bucket fills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Tokens of a full bucket, at least 1.
    pub burst: u32,
    /// The time in which one token comes.
    pub interval: Duration,
}

/// Why a token was not given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Empty {
    /// The key's bucket is empty.
    Bucket {
        /// When the next token comes.
        wait: Duration,
    },
    /// As many buckets as may be kept are less than full, and this key's is not among them.
    Room {
        /// After this time it is worth asking again.
        wait: Duration,
    },
}

impl Empty {
    /// The time to wait.
    pub fn wait(self) -> Duration {
        match self {
            Empty::Bucket { wait } | Empty::Room { wait } => wait,
        }
    }
}

/// The buckets of all keys.
#[derive(Debug)]
pub struct TokenBuckets<K> {
    rate: Rate,
    keys_max: usize,
    /// When each bucket that is less than full will be full again.
    full_at: HashMap<K, Instant>,
    /// Full buckets are thrown away when room is needed, at most once an interval.
    sweep_after: Option<Instant>,
}

impl<K: Eq + Hash> TokenBuckets<K> {
    /// Full buckets, of which at most `keys_max` are kept in memory once they are less than full.
    pub fn new(rate: Rate, keys_max: usize) -> TokenBuckets<K> {
        TokenBuckets {
            rate,
            keys_max,
            full_at: HashMap::new(),
            sweep_after: None,
        }
    }

    /// Takes a token of `key` at `now`, which never goes back.
    pub fn take(&mut self, key: K, now: Instant) -> Result<(), Empty> {
        let Rate { burst, interval } = self.rate;
        let known = self.full_at.get(&key).copied();
        if known.is_none() && !self.has_room(now) {
            return Err(Empty::Room { wait: interval });
        }
        let full_at = known.map_or(now, |full_at| full_at.max(now)) + interval;
        let missing = full_at.saturating_duration_since(now);
        match missing.checked_sub(interval * burst) {
            None | Some(Duration::ZERO) => {
                self.full_at.insert(key, full_at);
                Ok(())
            }
            Some(wait) => Err(Empty::Bucket { wait }),
        }
    }

    fn has_room(&mut self, now: Instant) -> bool {
        if self.full_at.len() < self.keys_max {
            return true;
        }
        if self.sweep_after.is_none_or(|after| after <= now) {
            self.sweep_after = Some(now + self.rate.interval);
            self.full_at.retain(|_, full_at| *full_at > now);
        }
        self.full_at.len() < self.keys_max
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn five_and_one_a_second(keys_max: usize) -> TokenBuckets<u8> {
        let rate = Rate {
            burst: 5,
            interval: SECOND,
        };
        TokenBuckets::new(rate, keys_max)
    }

    #[test]
    fn a_burst_is_given_at_once_and_then_one_token_an_interval() {
        let mut buckets = five_and_one_a_second(10);
        let start = Instant::now();
        for _ in 0..5 {
            assert_eq!(buckets.take(1, start), Ok(()));
        }
        let wait = SECOND;
        assert_eq!(buckets.take(1, start), Err(Empty::Bucket { wait }));
        let almost = start + Duration::from_millis(999);
        let wait = Duration::from_millis(1);
        assert_eq!(buckets.take(1, almost), Err(Empty::Bucket { wait }));
        assert_eq!(buckets.take(1, start + SECOND), Ok(()));
        assert!(buckets.take(1, start + SECOND).is_err());
        assert_eq!(buckets.take(2, start), Ok(()), "another key's bucket");
    }

    #[test]
    fn no_more_buckets_are_kept_than_may_be_and_full_ones_make_room() {
        let mut buckets = five_and_one_a_second(2);
        let start = Instant::now();
        assert_eq!(buckets.take(1, start), Ok(()));
        assert_eq!(buckets.take(2, start), Ok(()));
        let wait = SECOND;
        assert_eq!(buckets.take(3, start), Err(Empty::Room { wait }));
        assert_eq!(buckets.take(1, start), Ok(()), "a known key is served");
        assert_eq!(buckets.take(3, start + SECOND), Ok(()));
        assert_eq!(buckets.full_at.len(), 2);
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_bucket_that_counts_and_no_span_gives_too_much(
            pauses in proptest::collection::vec(0u64..2_500, 1..60),
            burst in 1u32..7,
        ) {
            let rate = Rate { burst, interval: SECOND };
            let mut buckets = TokenBuckets::new(rate, 1);
            let start = Instant::now();
            let full = u64::from(burst) * 1_000;
            let (mut at, mut thousandths, mut given) = (0, full, Vec::new());
            for pause in pauses {
                at += pause;
                thousandths = (thousandths + pause).min(full);
                let taken = buckets.take((), start + Duration::from_millis(at)).is_ok();
                prop_assert_eq!(taken, thousandths >= 1_000);
                if taken {
                    thousandths -= 1_000;
                    given.push(at);
                }
            }
            for (first, from) in given.iter().enumerate() {
                for (more, to) in given[first..].iter().enumerate() {
                    prop_assert!((more as u64) < u64::from(burst) + (to - from) / 1_000);
                }
            }
        }
    }
}
