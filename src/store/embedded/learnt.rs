//! What this process learnt of the counts within the last second.
//!
//! Two uses: free answers show it, and a charge that it leaves no room for is refused without asking the database.
//! Never a reason to grant. Only the writer thread puts counts in, in the order of its commits, so that what is here
//! never goes back in time; other processes may have moved on for as long as [`FRESH`].

use std::time::{Duration, Instant};

use ahash::RandomState;

use crate::policy::api_key::KeyId;
use crate::policy::calendar::Day;

/// How long a count is used without another read.
const FRESH: Duration = Duration::from_secs(1);
/// Keys and days remembered: about 10 MB. Beyond it the stale are forgotten, and all if that is not enough.
const ENTRIES_MAX: usize = 65_536;

/// Counts by key and day.
#[derive(Default)]
pub(super) struct Learnt {
    counts: papaya::HashMap<(KeyId, Day), (u64, Instant), RandomState>,
}

impl Learnt {
    /// The units used, if they were learnt within the last second.
    pub(super) fn used(&self, key: KeyId, day: Day) -> Option<u64> {
        let (used, at) = *self.counts.pin().get(&(key, day))?;
        (at.elapsed() < FRESH).then_some(used)
    }

    /// Remembers counts. For the writer thread only.
    pub(super) fn put(&self, learnt: impl IntoIterator<Item = (KeyId, Day, u64)>, now: Instant) {
        let counts = self.counts.pin();
        for (key, day, used) in learnt {
            if counts.len() >= ENTRIES_MAX {
                counts.retain(|_, (_, at)| now.duration_since(*at) < FRESH);
                if counts.len() >= ENTRIES_MAX {
                    counts.clear();
                }
            }
            counts.insert((key, day), (used, now));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::api_key::os_entropy;

    #[test]
    fn what_is_remembered_is_bounded() {
        let learnt = Learnt::default();
        let day = Day {
            date: "2026-11-21".parse().unwrap(),
            start: 0,
            end: 1,
        };
        let now = Instant::now();
        for _ in 0..ENTRIES_MAX + 10 {
            learnt.put([(KeyId::generate(&mut os_entropy), day, 1)], now);
            assert!(learnt.counts.len() <= ENTRIES_MAX);
        }
    }
}
