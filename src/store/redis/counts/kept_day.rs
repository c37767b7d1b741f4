//! Days that many accounts and totals refer to, which takes less memory than a copy in each.

use std::ops::Deref;

use parking_lot::Mutex;

use crate::policy::calendar::Day;

/// A day, kept until the process ends: there is about one a day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptDay(&'static Day);

static DAYS: Mutex<Vec<KeptDay>> = Mutex::new(Vec::new());

impl KeptDay {
    /// The kept day that is equal to `day`.
    pub fn of(day: Day) -> KeptDay {
        let mut days = DAYS.lock();
        // Most are of the latest day.
        let found = days.iter().rev().find(|kept| ***kept == day).copied();
        found.unwrap_or_else(|| {
            let kept = KeptDay(Box::leak(Box::new(day)));
            days.push(kept);
            kept
        })
    }

    /// As [`KeptDay::of`], but without a lock if `day` is this one.
    pub fn or(self, day: Day) -> KeptDay {
        if *self == day { self } else { KeptDay::of(day) }
    }
}

impl Deref for KeptDay {
    type Target = Day;

    fn deref(&self) -> &Day {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_days_are_kept_once() {
        let day = Day {
            date: jiff::civil::date(2026, 11, 23),
            start: 1_795_392_000,
            end: 1_795_478_400,
        };
        let kept = KeptDay::of(day);
        assert_eq!(*kept, day);
        assert!(std::ptr::eq(kept.0, KeptDay::of(day).0));
        let other = Day {
            end: day.end + 1,
            ..day
        };
        assert_ne!(kept, KeptDay::of(other));
        assert_eq!(*kept.or(other), other);
        assert!(std::ptr::eq(kept.0, kept.or(day).0));
    }
}
