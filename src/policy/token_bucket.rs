//! Token buckets, one for each key: a burst at once, then one token an interval.
//!
//! A bucket is stored as the instant at which it will be full again (the generic cell rate algorithm), so full buckets are not
//! stored and there are no fractions. Time is an argument. Invariant: in any span of time, a key gets at most the burst and one
//! token for each interval of the span. The rate is an argument too: if it changes, missing tokens stay missing, but no more than the new
//! burst.

use std::collections::HashMap;
use std::hash::Hash;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

/// Nanoseconds of a second.
const NANOSECONDS: u64 = 1_000_000_000;
/// The least time between two searches for full buckets when room is needed: each one scans all buckets.
const SWEEP_PAUSE: Duration = Duration::from_secs(1);

/// How a bucket fills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Tokens of a full bucket, at least 1.
    pub burst: u32,
    /// The time after which a token is added.
    pub interval: Duration,
}

impl Rate {
    /// A full bucket of `burst`, refilled at `tokens` a second.
    pub fn per_second(tokens: NonZeroU32, burst: NonZeroU32) -> Rate {
        // Rounded up, so that no second yields more.
        let nanoseconds = NANOSECONDS.div_ceil(u64::from(tokens.get()));
        Rate {
            burst: burst.get(),
            interval: Duration::from_nanos(nanoseconds),
        }
    }

    /// Tokens a second, to the nearest whole number.
    pub fn tokens_per_second(self) -> u128 {
        let interval = self.interval.as_nanos().max(1);
        (u128::from(NANOSECONDS) + interval / 2) / interval
    }
}

/// Why there is no token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Empty {
    /// The key's bucket is empty.
    Bucket {
        /// The time until the next token.
        wait: Duration,
    },
    /// The maximum number of buckets are less than full, and this key's is not among them.
    Room {
        /// The time until another attempt may succeed.
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
    keys_max: usize,
    /// The buckets that are less than full.
    buckets: HashMap<K, Bucket>,
    /// The earliest time of the next search for full buckets.
    sweep_after: Option<Instant>,
}

/// A bucket that is less than full.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    full_at: Instant,
    /// The time to add a token when one was last asked for.
    interval: Duration,
}

impl Bucket {
    /// The time until it is full if a token is added every `rate.interval` from now on.
    fn missing(self, rate: Rate, now: Instant) -> Duration {
        let mut missing = self.full_at.saturating_duration_since(now);
        if self.interval != rate.interval {
            let tokens_by_interval = missing.as_nanos() * rate.interval.as_nanos();
            let nanoseconds = tokens_by_interval.div_ceil(self.interval.as_nanos().max(1));
            missing = Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX));
        }
        missing.min(rate.interval * rate.burst)
    }
}

impl<K: Eq + Hash> TokenBuckets<K> {
    /// Full buckets. At most `keys_max` are stored once they are less than full.
    pub fn new(keys_max: usize) -> TokenBuckets<K> {
        TokenBuckets {
            keys_max,
            buckets: HashMap::new(),
            sweep_after: None,
        }
    }

    /// Takes a token of `key`, whose bucket fills at `rate`, at `now`, which never decreases.
    pub fn take(&mut self, key: K, rate: Rate, now: Instant) -> Result<(), Empty> {
        let Rate { burst, interval } = rate;
        let known = self.buckets.get(&key).copied();
        if known.is_none() && !self.has_room(now) {
            return Err(Empty::Room { wait: SWEEP_PAUSE });
        }
        let missing = known.map_or(Duration::ZERO, |bucket| bucket.missing(rate, now));
        let (taken, missing) = match (missing + interval).checked_sub(interval * burst) {
            None | Some(Duration::ZERO) => (Ok(()), missing + interval),
            Some(wait) => (Err(Empty::Bucket { wait }), missing),
        };
        // Also without a token: from now on the bucket fills at this rate.
        let full_at = now + missing;
        self.buckets.insert(key, Bucket { full_at, interval });
        taken
    }

    fn has_room(&mut self, now: Instant) -> bool {
        if self.buckets.len() < self.keys_max {
            return true;
        }
        if self.sweep_after.is_none_or(|after| after <= now) {
            self.sweep_after = Some(now + SWEEP_PAUSE);
            self.buckets.retain(|_, bucket| bucket.full_at > now);
        }
        self.buckets.len() < self.keys_max
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    const FIVE_AND_ONE_A_SECOND: Rate = Rate {
        burst: 5,
        interval: SECOND,
    };

    /// Buckets of one rate.
    struct Fixed(TokenBuckets<u8>);

    impl Fixed {
        fn take(&mut self, key: u8, now: Instant) -> Result<(), Empty> {
            self.0.take(key, FIVE_AND_ONE_A_SECOND, now)
        }
    }

    fn five_and_one_a_second(keys_max: usize) -> Fixed {
        Fixed(TokenBuckets::new(keys_max))
    }

    fn rate(tokens: u32, burst: u32) -> Rate {
        let number = |number| NonZeroU32::new(number).unwrap();
        Rate::per_second(number(tokens), number(burst))
    }

    #[test]
    fn a_rate_never_yields_more_tokens_a_second_than_configured() {
        for tokens in [1, 2, 3, 7, 1_000, 9_999, 10_000] {
            assert_eq!(rate(tokens, 1).tokens_per_second(), u128::from(tokens));
            let interval = rate(tokens, 1).interval;
            assert!(interval * tokens >= SECOND, "{tokens}");
            assert!((interval - Duration::from_nanos(1)) * tokens < SECOND);
        }
    }

    #[test]
    fn what_is_missing_stays_missing_where_the_rate_changes() {
        let (start, slow, fast) = (Instant::now(), rate(1, 4), rate(10, 4));
        let mut buckets = TokenBuckets::new(1);
        for _ in 0..3 {
            assert_eq!(buckets.take((), slow, start), Ok(()));
        }
        assert_eq!(buckets.take((), fast, start), Ok(()), "the fourth");
        let wait = Duration::from_millis(100);
        assert_eq!(buckets.take((), fast, start), Err(Empty::Bucket { wait }));
        // At the slow rate again, the next token takes a second; a smaller bucket is empty, not in debt.
        let wait = SECOND;
        assert_eq!(buckets.take((), slow, start), Err(Empty::Bucket { wait }));
        let small = rate(1, 2);
        assert_eq!(buckets.take((), small, start), Err(Empty::Bucket { wait }));
        assert_eq!(buckets.take((), small, start + SECOND), Ok(()));
    }

    #[test]
    fn after_a_change_a_key_gets_its_next_token_after_one_interval() {
        let (start, before) = (Instant::now(), rate(10, 500));
        for after in [rate(10, 5), rate(5, 10), rate(1, 1)] {
            let mut buckets = TokenBuckets::new(1);
            for _ in 0..400 {
                assert_eq!(buckets.take((), before, start), Ok(()));
            }
            let wait = after.interval;
            assert_eq!(buckets.take((), after, start), Err(Empty::Bucket { wait }));
            assert_eq!(buckets.take((), after, start + wait), Ok(()), "{after:?}");
        }
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
        assert_eq!(buckets.0.buckets.len(), 2);
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_bucket_that_counts_and_no_span_gives_too_much(
            pauses in proptest::collection::vec(0u64..2_500, 1..60),
            burst in 1u32..7,
        ) {
            let rate = Rate { burst, interval: SECOND };
            let mut buckets = TokenBuckets::new(1);
            let start = Instant::now();
            let full = u64::from(burst) * 1_000;
            let (mut at, mut thousandths, mut given) = (0, full, Vec::new());
            for pause in pauses {
                at += pause;
                thousandths = (thousandths + pause).min(full);
                let taken = buckets.take((), rate, start + Duration::from_millis(at)).is_ok();
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
