//! The store's clock, estimated from its replies, and whether it can be trusted.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::clock::Clock;
use crate::policy::clock_trust::Leap;
use crate::store::clock_watch::ClockWatch;

const SECOND_MICROS: i64 = 1_000_000;

/// The local clock, corrected by the times in the store's replies. Invariant: after a reply, it reads an instant that the
/// store's clock may have shown when it replied.
#[derive(Debug)]
pub struct StoreClock {
    clock: Clock,
    /// Store minus local (microseconds).
    offset_micros: AtomicI64,
    /// Whether a reply has contained the store's time yet.
    is_learnt: AtomicBool,
    watch: ClockWatch,
}

impl StoreClock {
    /// A clock without a known difference, which must run evenly for `agreement` before it is trusted.
    pub fn new(clock: Clock, agreement: Duration) -> StoreClock {
        StoreClock {
            watch: ClockWatch::new(agreement, clock.now_and_since_boot()),
            clock,
            offset_micros: AtomicI64::new(0),
            is_learnt: AtomicBool::new(false),
        }
    }

    /// The store's time.
    pub fn now(&self) -> Timestamp {
        let local = self.clock.now();
        local.checked_add(self.difference()).unwrap_or(local)
    }

    /// The store's clock minus the local one; 0 before the first reply.
    pub fn difference(&self) -> SignedDuration {
        SignedDuration::from_micros(self.offset_micros.load(Ordering::Relaxed))
    }

    /// Learns from a reply with the second (Unix) in which it was made; `asked` is the reading of this clock before the call.
    pub fn learn_second(&self, asked: Timestamp, second: i64) {
        let earliest = second.saturating_mul(SECOND_MICROS);
        let latest = earliest.saturating_add(SECOND_MICROS - 1);
        let answered = self.now();
        self.shift(if answered.as_microsecond() < earliest {
            earliest - answered.as_microsecond()
        } else if asked.as_microsecond() > latest {
            latest - asked.as_microsecond()
        } else {
            0
        });
    }

    /// Learns from a reply with the exact time; `asked` is the reading of this clock before the call.
    pub fn learn(&self, asked: Timestamp, theirs: Timestamp) {
        let (asked, answered) = (asked.as_microsecond(), self.now().as_microsecond());
        self.shift(if (asked..=answered).contains(&theirs.as_microsecond()) {
            0
        } else {
            theirs.as_microsecond() - (asked + (answered - asked) / 2)
        });
    }

    /// Compares the store's time with the boot-time clock of this machine.
    pub fn look(&self) {
        self.watch.look(self.reading());
    }

    /// The store's time at the last comparison, if it is trusted.
    pub fn settled_at(&self) -> Option<Timestamp> {
        self.watch.settled_at()
    }

    /// The last leap of the store's time, until it is trusted again.
    pub fn leap(&self) -> Option<Leap> {
        self.watch.leap()
    }

    fn reading(&self) -> (Timestamp, Duration) {
        let (local, boot) = self.clock.now_and_since_boot();
        let now = local.checked_add(self.difference()).unwrap_or(local);
        (now, boot)
    }

    fn shift(&self, micros: i64) {
        if micros != 0 {
            self.offset_micros.fetch_add(micros, Ordering::Relaxed);
        }
        let is_first =
            !self.is_learnt.load(Ordering::Relaxed) && !self.is_learnt.swap(true, Ordering::AcqRel);
        if is_first {
            // A different clock is read from here on: an error of this machine's clock is no leap of the store's.
            self.watch.begin(self.reading());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_local_clock_is_corrected_by_one_reply() {
        let local: Timestamp = "2026-11-21T00:00:00.5Z".parse().unwrap();
        let clock = StoreClock::new(Clock::from_fn(move || local), Duration::ZERO);
        for second in [local.as_second() + 86_400, local.as_second() - 86_400] {
            clock.learn_second(clock.now(), second);
            assert_eq!(clock.now().as_second(), second);
        }
        let exact: Timestamp = "2026-11-23T01:02:03.004005Z".parse().unwrap();
        clock.learn(clock.now(), exact);
        assert_eq!(clock.now(), exact);
    }

    #[test]
    fn the_first_reply_is_no_leap_and_a_later_one_of_another_time_is() {
        let local: Timestamp = "2026-11-21T00:00:00Z".parse().unwrap();
        for first in [0, 7 * 60] {
            let clock = StoreClock::new(Clock::from_fn(move || local), Duration::ZERO);
            clock.learn_second(clock.now(), local.as_second() + first);
            clock.look();
            assert_eq!(clock.leap(), None, "{first}");
            assert_eq!(clock.settled_at(), Some(clock.now()), "{first}");
            clock.learn_second(clock.now(), local.as_second() + first + 86_400);
            clock.look();
            let by = clock.leap().map(|leap| leap.by.as_secs());
            assert!(
                by.is_some_and(|by| (86_399..=86_400).contains(&by)),
                "{by:?}"
            );
            assert_eq!(clock.settled_at(), None, "{first}");
        }
    }

    #[test]
    fn a_reply_that_fits_changes_nothing() {
        let local: Timestamp = "2026-11-21T00:00:00.5Z".parse().unwrap();
        let clock = StoreClock::new(Clock::from_fn(move || local), Duration::ZERO);
        clock.learn_second(clock.now(), local.as_second());
        assert_eq!(clock.now(), local);
    }
}
