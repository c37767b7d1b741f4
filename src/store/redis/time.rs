//! The store's clock, as far as it is known without asking.

use std::sync::atomic::{AtomicI64, Ordering};

use jiff::{SignedDuration, Timestamp};

use crate::clock::Clock;

const SECOND_MICROS: i64 = 1_000_000;

/// The local clock corrected by what the store's replies said. Invariant: after a reply, it reads an instant that the
/// store's clock may have shown when it replied.
#[derive(Debug)]
pub struct StoreClock {
    clock: Clock,
    /// Store minus local (microseconds).
    offset_micros: AtomicI64,
}

impl StoreClock {
    /// A clock that knows of no difference yet.
    pub fn new(clock: Clock) -> StoreClock {
        StoreClock {
            clock,
            offset_micros: AtomicI64::new(0),
        }
    }

    /// The store's time.
    pub fn now(&self) -> Timestamp {
        let local = self.clock.now();
        local.checked_add(self.difference()).unwrap_or(local)
    }

    /// The store's clock minus the local one, as far as it is known.
    pub fn difference(&self) -> SignedDuration {
        SignedDuration::from_micros(self.offset_micros.load(Ordering::Relaxed))
    }

    /// Learns from a reply that says in which second (Unix) it was made; `asked` is what this clock read before.
    pub fn learn_second(&self, asked: Timestamp, second: i64) {
        let earliest = second.saturating_mul(SECOND_MICROS);
        let latest = earliest.saturating_add(SECOND_MICROS - 1);
        let answered = self.now();
        if answered.as_microsecond() < earliest {
            self.shift(earliest - answered.as_microsecond());
        } else if asked.as_microsecond() > latest {
            self.shift(latest - asked.as_microsecond());
        }
    }

    /// Learns from a reply that says the time exactly; `asked` is what this clock read before.
    pub fn learn(&self, asked: Timestamp, theirs: Timestamp) {
        let (asked, answered) = (asked.as_microsecond(), self.now().as_microsecond());
        if !(asked..=answered).contains(&theirs.as_microsecond()) {
            self.shift(theirs.as_microsecond() - (asked + (answered - asked) / 2));
        }
    }

    fn shift(&self, micros: i64) {
        self.offset_micros.fetch_add(micros, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_local_clock_is_corrected_by_one_reply() {
        let local: Timestamp = "2026-11-21T00:00:00.5Z".parse().unwrap();
        let clock = StoreClock::new(Clock::from_fn(move || local));
        for second in [local.as_second() + 86_400, local.as_second() - 86_400] {
            clock.learn_second(clock.now(), second);
            assert_eq!(clock.now().as_second(), second);
        }
        let exact: Timestamp = "2026-11-23T01:02:03.004005Z".parse().unwrap();
        clock.learn(clock.now(), exact);
        assert_eq!(clock.now(), exact);
    }

    #[test]
    fn a_reply_that_fits_changes_nothing() {
        let local: Timestamp = "2026-11-21T00:00:00.5Z".parse().unwrap();
        let clock = StoreClock::new(Clock::from_fn(move || local));
        clock.learn_second(clock.now(), local.as_second());
        assert_eq!(clock.now(), local);
    }
}
