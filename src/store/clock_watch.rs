//! The wall clock of a store, held against the boot-time clock of this machine.
//!
//! Owns what is known of it, and logs each leap once; [`clock_trust`](crate::policy::clock_trust) decides what a leap is.
//! A store looks each second. What it drops for its age it drops by [`ClockWatch::settled_at`] only.

use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;

use crate::policy::clock_trust::{ClockChange, ClockReading, ClockTrust, Leap};

/// How often a store looks at its clock.
pub const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A clock that is watched.
#[derive(Debug)]
pub struct ClockWatch {
    agreement: Duration,
    trust: Mutex<ClockTrust>,
}

impl ClockWatch {
    /// A clock that reads so now, and must go evenly for `agreement` before it is settled.
    pub fn new(agreement: Duration, (wall, boot): (Timestamp, Duration)) -> ClockWatch {
        ClockWatch {
            agreement,
            trust: Mutex::new(ClockTrust::new(agreement, ClockReading { wall, boot })),
        }
    }

    /// Begins anew with another clock.
    pub fn begin(&self, (wall, boot): (Timestamp, Duration)) {
        *self.trust.lock() = ClockTrust::new(self.agreement, ClockReading { wall, boot });
    }

    /// Takes in what both clocks read now.
    pub fn look(&self, (wall, boot): (Timestamp, Duration)) {
        let turn = self.trust.lock().observe(ClockReading { wall, boot });
        match turn {
            None => {}
            Some(ClockChange::Leapt(leap)) => {
                tracing::warn!(by_seconds = leap.by.as_secs_f64(), "{leap}")
            }
            Some(ClockChange::Settled) => tracing::info!(
                "the clock agrees with the boot-time clock again: old days of the ledger may be dropped"
            ),
        }
    }

    /// What the clock read when it was last looked at, if it can be relied on.
    pub fn settled_at(&self) -> Option<Timestamp> {
        self.trust.lock().settled_at()
    }

    /// The last leap, until the clock can be relied on again.
    pub fn leap(&self) -> Option<Leap> {
        self.trust.lock().leap()
    }
}
