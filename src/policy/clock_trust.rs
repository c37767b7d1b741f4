//! Whether the wall clock can be relied on for an irreversible action: dropping days of the ledger.
//!
//! A wall clock is set by people, by NTP and by a machine's battery, and any of them can be wrong. The boot-time clock
//! (`CLOCK_BOOTTIME`) cannot be set and continues while the machine sleeps. If the two drift apart by more than [`TOLERANCE`],
//! the wall clock leapt. It is settled once both have agreed for an hour; this includes the first hour of a process, because
//! nothing is known about the time before.
//!
//! Invariant: while a wall clock is called settled, all readings of the last `agreement` are within three times [`TOLERANCE`].
//! So small steps add up to at most one tolerance an hour before they count as a leap.
//!
//! Not here: the current day. Charges always use the wall clock.

use std::fmt;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// How long both clocks must have agreed. Longer than it takes to notice and correct a clock that NTP or a person has set wrong.
pub const AGREEMENT: Duration = Duration::from_secs(3_600);
/// By how much they may drift apart in that time: far more than NTP slews in an hour (1.8 s), far less than a day.
pub const TOLERANCE: SignedDuration = SignedDuration::from_secs(60);
/// The difference between the clocks of two machines up to which nothing is reported: far more than NTP leaves.
pub const DIFFERENCE_MAX: SignedDuration = SignedDuration::from_secs(2);

/// Both clocks, read at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockReading {
    /// The wall clock.
    pub wall: Timestamp,
    /// The time since the machine was started, including sleep.
    pub boot: Duration,
}

impl ClockReading {
    /// By how much the wall clock advanced more than the boot-time clock since `earlier`.
    fn ahead_since(&self, earlier: &ClockReading) -> SignedDuration {
        let wall = self.wall.duration_since(earlier.wall);
        let signed = |boot| SignedDuration::try_from(boot).unwrap_or(SignedDuration::MAX);
        let boot = signed(self.boot).saturating_sub(signed(earlier.boot));
        wall.saturating_sub(boot)
    }
}

/// A leap of the wall clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leap {
    /// The distance; positive means ahead.
    pub by: SignedDuration,
    /// The wall clock after the leap.
    pub to: Timestamp,
}

impl fmt::Display for Leap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.by.is_negative() { '-' } else { '+' };
        let seconds = (self.by.as_millis().unsigned_abs() + 500) / 1_000;
        let (days, of_day) = (seconds / 86_400, seconds % 86_400);
        let (hours, minutes, seconds) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
        write!(f, "the clock leapt by {sign}")?;
        if days > 0 {
            write!(f, "{days} d ")?;
        }
        write!(
            f,
            "{hours:02}:{minutes:02}:{seconds:02} to {:.0}: no day of the ledger is dropped until it has agreed with the \
             boot-time clock for an hour",
            self.to
        )
    }
}

/// What a reading changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClockChange {
    /// The wall clock leapt.
    Leapt(Leap),
    /// The wall clock has run evenly for long enough since its last leap.
    Settled,
}

/// The state of trust in the wall clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockTrust {
    agreement: Duration,
    /// The reading that later ones are compared with: the first since a leap, or one that is at most `agreement` old.
    anchor: ClockReading,
    last: ClockReading,
    is_settled: bool,
    leap: Option<Leap>,
}

impl ClockTrust {
    /// A clock with its first reading. It is settled after `agreement`, [`AGREEMENT`] by default.
    pub fn new(agreement: Duration, first: ClockReading) -> ClockTrust {
        ClockTrust {
            agreement,
            anchor: first,
            last: first,
            is_settled: false,
            leap: None,
        }
    }

    /// Adds a reading.
    pub fn observe(&mut self, now: ClockReading) -> Option<ClockChange> {
        self.last = now;
        let by = now.ahead_since(&self.anchor);
        if by.abs() > TOLERANCE {
            let leap = Leap { by, to: now.wall };
            self.anchor = now;
            self.is_settled = false;
            self.leap = Some(leap);
            return Some(ClockChange::Leapt(leap));
        }
        if now.boot.saturating_sub(self.anchor.boot) < self.agreement {
            return None;
        }
        self.anchor = now;
        self.is_settled = true;
        self.leap.take().map(|_| ClockChange::Settled)
    }

    /// The last reading of a settled wall clock, or `None` if it is not settled.
    pub fn settled_at(&self) -> Option<Timestamp> {
        self.is_settled.then_some(self.last.wall)
    }

    /// The last leap, until the clock is settled again.
    pub fn leap(&self) -> Option<Leap> {
        self.leap
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HOUR: i64 = 3_600_000;
    const TWO_YEARS: i64 = 730 * 24 * HOUR;

    /// Both clocks after these milliseconds.
    fn at(wall_ms: i64, boot_ms: i64) -> ClockReading {
        let start: Timestamp = "2026-11-21T12:00:00Z".parse().unwrap();
        ClockReading {
            wall: start + SignedDuration::from_millis(wall_ms),
            boot: Duration::from_secs(500) + Duration::from_millis(boot_ms as u64),
        }
    }

    fn new() -> ClockTrust {
        ClockTrust::new(AGREEMENT, at(0, 0))
    }

    #[test]
    fn a_clock_is_settled_after_an_hour_and_not_before() {
        let mut trust = new();
        assert_eq!(trust.settled_at(), None);
        assert_eq!(trust.observe(at(HOUR - 1, HOUR - 1)), None);
        assert_eq!(trust.settled_at(), None);
        assert_eq!(trust.observe(at(HOUR, HOUR)), None);
        assert_eq!(trust.settled_at(), Some(at(HOUR, HOUR).wall));
        assert_eq!(trust.leap(), None, "a start is no leap");
    }

    #[test]
    fn what_is_more_than_the_tolerance_is_a_leap_ahead_or_back() {
        for (by, leaps) in [
            (60_000, false),
            (60_001, true),
            (-60_000, false),
            (-60_001, true),
        ] {
            let mut trust = new();
            trust.observe(at(HOUR, HOUR));
            let turn = trust.observe(at(2 * HOUR + by, 2 * HOUR));
            assert_eq!(turn.is_some(), leaps, "{by}");
            assert_eq!(trust.settled_at().is_none(), leaps, "{by}");
            let leapt = trust.leap().map(|leap| leap.by.as_millis());
            assert_eq!(leapt, leaps.then_some(by.into()), "{by}");
        }
    }

    #[test]
    fn a_clock_that_leapt_is_settled_an_hour_later_and_not_before() {
        let mut trust = new();
        trust.observe(at(HOUR, HOUR));
        let turn = trust.observe(at(HOUR + 1_000 + TWO_YEARS, HOUR + 1_000));
        assert!(matches!(turn, Some(ClockChange::Leapt(_))), "{turn:?}");
        assert_eq!(trust.settled_at(), None);
        let just = 2 * HOUR + 1_000;
        assert_eq!(trust.observe(at(just - 1 + TWO_YEARS, just - 1)), None);
        assert_eq!(trust.settled_at(), None);
        assert!(trust.leap().is_some());
        let turn = trust.observe(at(just + TWO_YEARS, just));
        assert_eq!(turn, Some(ClockChange::Settled));
        assert_eq!(trust.settled_at(), Some(at(just + TWO_YEARS, just).wall));
        assert_eq!(trust.leap(), None);
    }

    #[test]
    fn a_clock_that_is_put_back_leapt_again() {
        let mut trust = new();
        trust.observe(at(HOUR, HOUR));
        trust.observe(at(HOUR + 1_000 + TWO_YEARS, HOUR + 1_000));
        let turn = trust.observe(at(HOUR + 31_000, HOUR + 31_000));
        let Some(ClockChange::Leapt(back)) = turn else {
            panic!("{turn:?}");
        };
        assert_eq!(back.by.as_millis(), -i128::from(TWO_YEARS));
        trust.observe(at(2 * HOUR + 30_999, 2 * HOUR + 30_999));
        assert_eq!(trust.settled_at(), None);
        trust.observe(at(2 * HOUR + 31_000, 2 * HOUR + 31_000));
        assert!(trust.settled_at().is_some());
    }

    #[test]
    fn a_machine_that_slept_has_no_leap_and_one_whose_boot_time_clock_stood_has() {
        let mut trust = new();
        assert_eq!(trust.observe(at(9 * HOUR, 9 * HOUR)), None);
        assert!(trust.settled_at().is_some());
        // A virtual machine that was stopped from outside.
        let turn = trust.observe(at(18 * HOUR, 9 * HOUR + 1_000));
        assert!(matches!(turn, Some(ClockChange::Leapt(_))), "{turn:?}");
    }

    #[test]
    fn many_small_steps_are_one_leap_and_slewing_is_none() {
        let steps = |step_ms: i64| {
            let mut trust = new();
            (1..=100_000)
                .filter(|second| {
                    let boot = second * 1_000;
                    trust.observe(at(boot + second * step_ms, boot)).is_some()
                })
                .count()
        };
        // The most that NTP slews, 500 parts in a million: 50 s in 100,000 s, without end.
        assert_eq!(steps(0), 0);
        let mut slewed = new();
        for hour in 1..=10_000 {
            let boot = hour * HOUR;
            assert_eq!(slewed.observe(at(boot + boot / 2_000, boot)), None);
        }
        assert!(slewed.settled_at().is_some());
        // A second every second, each far below the tolerance.
        assert!(steps(1_000) > 1_000);
    }

    #[test]
    fn a_leap_is_shown_with_its_sign_and_its_end() {
        let text = |by: &str| {
            let by: SignedDuration = by.parse().unwrap();
            let to = "2028-01-01T00:00:00.25Z".parse().unwrap();
            Leap { by, to }.to_string()
        };
        let ahead = text("PT9756H3M4S");
        let begins = "the clock leapt by +406 d 12:03:04 to 2028-01-01T00:00:00Z: no day";
        assert!(ahead.starts_with(begins), "{ahead}");
        let back = text("-PT1H1S");
        let begins = "the clock leapt by -01:00:01 to 2028-01-01T00:00:00Z: no day";
        assert!(back.starts_with(begins), "{back}");
    }

    proptest! {
        #[test]
        fn a_settled_clock_agreed_for_an_hour(
            steps in prop::collection::vec((0_i64..1_200_000, -90_000_i64..90_000), 1..200)
        ) {
            let mut trust = new();
            let (mut boot, mut ahead) = (0, 0);
            let mut readings = vec![(0, 0)];
            for (pause, drift) in steps {
                boot += pause;
                // Mostly steps within the tolerance.
                ahead += if drift.abs() > 60_000 { drift } else { drift / 1_000 };
                readings.push((boot, ahead));
                trust.observe(at(boot + ahead, boot));
                if trust.settled_at().is_some() {
                    prop_assert!(boot >= HOUR);
                    let lately = readings.iter().filter(|(then, _)| *then > boot - HOUR);
                    for (_, then_ahead) in lately {
                        prop_assert!((ahead - then_ahead).abs() <= 3 * TOLERANCE.as_millis() as i64);
                    }
                }
            }
        }
    }
}
