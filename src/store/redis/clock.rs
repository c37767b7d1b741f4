//! The store's clock, estimated from its replies, and whether it can be trusted.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::clock::Clock;
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
    /// Whether the store's time can be relied on.
    pub watch: ClockWatch,
}

/// The start of a call by a [`StoreClock`], with which the reply is compared.
#[derive(Debug, Clone, Copy)]
pub struct CallStart {
    at_micros: i64,
    offset_micros: i64,
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

    /// The store's time, or `None` from a leap of the clock until it is trusted again: a day that looks past may be the present one.
    pub fn now_unless_leapt(&self) -> Option<Timestamp> {
        self.watch.leap().is_none().then(|| self.now())
    }

    /// The store's clock minus the local one; 0 before the first reply.
    pub fn difference(&self) -> SignedDuration {
        SignedDuration::from_micros(self.offset_micros.load(Ordering::Relaxed))
    }

    /// The reading before a call whose reply has the store's time.
    pub fn ask(&self) -> CallStart {
        let offset_micros = self.offset_micros.load(Ordering::Relaxed);
        CallStart {
            at_micros: self.read_with(offset_micros),
            offset_micros,
        }
    }

    /// Learns from a reply with the second (Unix) in which it was made.
    pub fn learn_second(&self, asked: CallStart, second: i64) {
        let earliest = second.saturating_mul(SECOND_MICROS);
        let latest = earliest.saturating_add(SECOND_MICROS - 1);
        let answered = self.read_with(asked.offset_micros);
        let micros = if answered < earliest {
            earliest - answered
        } else if asked.at_micros > latest {
            latest - asked.at_micros
        } else {
            0
        };
        self.shift(asked, micros);
    }

    /// Learns from a reply with the exact time.
    pub fn learn(&self, asked: CallStart, theirs: Timestamp) {
        let (earliest, latest) = (asked.at_micros, self.read_with(asked.offset_micros));
        let theirs = theirs.as_microsecond();
        let micros = if (earliest..=latest).contains(&theirs) {
            0
        } else {
            theirs - (earliest + (latest - earliest) / 2)
        };
        self.shift(asked, micros);
    }

    /// Compares the store's time with the boot-time clock of this machine.
    pub fn look(&self) {
        self.watch.look(self.reading());
    }

    fn reading(&self) -> (Timestamp, Duration) {
        let (local, boot) = self.clock.now_and_since_boot();
        let now = local.checked_add(self.difference()).unwrap_or(local);
        (now, boot)
    }

    /// The local clock with this difference (microseconds).
    fn read_with(&self, offset_micros: i64) -> i64 {
        self.clock
            .now()
            .as_microsecond()
            .saturating_add(offset_micros)
    }

    /// Corrects the difference with which a call was made. If the reply of another call has corrected it meanwhile, this one
    /// would correct the same error again.
    fn shift(&self, asked: CallStart, micros: i64) {
        if micros != 0 {
            let (wrong, right) = (asked.offset_micros, asked.offset_micros + micros);
            let relaxed = Ordering::Relaxed;
            let _ = self
                .offset_micros
                .compare_exchange(wrong, right, relaxed, relaxed);
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
            clock.learn_second(clock.ask(), second);
            assert_eq!(clock.now().as_second(), second);
        }
        let exact: Timestamp = "2026-11-23T01:02:03.004005Z".parse().unwrap();
        clock.learn(clock.ask(), exact);
        assert_eq!(clock.now(), exact);
    }

    #[test]
    fn the_first_reply_is_no_leap_and_a_later_one_of_another_time_is() {
        let local: Timestamp = "2026-11-21T00:00:00Z".parse().unwrap();
        for first in [0, 7 * 60] {
            let clock = StoreClock::new(Clock::from_fn(move || local), Duration::ZERO);
            clock.learn_second(clock.ask(), local.as_second() + first);
            clock.look();
            assert_eq!(clock.watch.leap(), None, "{first}");
            assert_eq!(clock.watch.settled_at(), Some(clock.now()), "{first}");
            clock.learn_second(clock.ask(), local.as_second() + first + 86_400);
            clock.look();
            let by = clock.watch.leap().map(|leap| leap.by.as_secs());
            assert!(
                by.is_some_and(|by| (86_399..=86_400).contains(&by)),
                "{by:?}"
            );
            assert_eq!(clock.watch.settled_at(), None, "{first}");
        }
    }

    #[test]
    fn replies_to_calls_at_the_same_time_correct_a_difference_once() {
        let local: Timestamp = "2026-11-21T00:00:00.5Z".parse().unwrap();
        let clock = StoreClock::new(Clock::from_fn(move || local), Duration::ZERO);
        let stepped = local + SignedDuration::from_secs(600);
        let asked = [(); 4].map(|()| clock.ask());
        for asked in asked {
            clock.learn(asked, stepped);
            assert_eq!(clock.now(), stepped);
        }
        let asked = [(); 4].map(|()| clock.ask());
        for asked in asked {
            clock.learn_second(asked, local.as_second());
            assert_eq!(clock.now().as_second(), local.as_second());
        }
        // Replies to calls of before the step arrive last.
        let asked = [(); 2].map(|()| clock.ask());
        clock.learn(asked[0], stepped);
        clock.learn(asked[1], local);
        assert_eq!(clock.now(), stepped);
    }

    #[test]
    fn a_reply_that_fits_changes_nothing() {
        let local: Timestamp = "2026-11-21T00:00:00.5Z".parse().unwrap();
        let clock = StoreClock::new(Clock::from_fn(move || local), Duration::ZERO);
        clock.learn_second(clock.ask(), local.as_second());
        assert_eq!(clock.now(), local);
    }
}
