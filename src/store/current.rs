//! The age of the key table of a gateway. It is read for every request, hence without a lock.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// The table was never known to be current.
const NEVER: i64 = i64::MIN;

/// Whether the table is loaded, and when it was last known to be current.
#[derive(Debug)]
pub struct Current {
    loaded: AtomicBool,
    origin: Instant,
    /// Milliseconds after `origin`; negative if an earlier process saved the table.
    at_ms: AtomicI64,
}

impl Current {
    /// The state of a table that is not loaded.
    pub fn never() -> Current {
        Current {
            loaded: AtomicBool::new(false),
            origin: Instant::now(),
            at_ms: AtomicI64::new(NEVER),
        }
    }

    /// Records that the table is loaded.
    pub fn note_loaded(&self) {
        self.loaded.store(true, Ordering::Release);
    }

    /// Records that the table was known to be current this long ago.
    pub fn note_current(&self, ago: Duration) {
        let ago_ms = i64::try_from(ago.as_millis());
        let at_ms = ago_ms.map_or(NEVER, |ago_ms| self.now_ms() - ago_ms);
        self.at_ms.store(at_ms, Ordering::Release);
    }

    /// Whether the table was loaded completely.
    pub fn is_loaded(&self) -> bool {
        self.loaded.load(Ordering::Acquire)
    }

    /// The time since the table was known to be current; [`Duration::MAX`] if it never was.
    pub fn age(&self) -> Duration {
        match self.at_ms.load(Ordering::Acquire) {
            NEVER => Duration::MAX,
            at_ms => {
                let age_ms = self.now_ms().saturating_sub(at_ms);
                Duration::from_millis(u64::try_from(age_ms).unwrap_or(0))
            }
        }
    }

    fn now_ms(&self) -> i64 {
        i64::try_from(self.origin.elapsed().as_millis()).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_begins_with_what_was_saved_and_grows() {
        let current = Current::never();
        assert!(!current.is_loaded());
        assert_eq!(current.age(), Duration::MAX);
        let day = Duration::from_secs(86_400);
        current.note_current(day);
        assert!(current.age() >= day && current.age() < day + Duration::from_secs(60));
        current.note_current(Duration::ZERO);
        assert!(current.age() < Duration::from_secs(60));
        current.note_current(Duration::MAX);
        assert_eq!(current.age(), Duration::MAX);
    }
}
