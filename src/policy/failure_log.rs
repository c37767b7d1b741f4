//! When a failure that lasts or recurs is logged: at its beginning and then once a minute, so that a full disk does not fill the log
//! with one sentence. And which of its reasons: each once, until the failure ends.
//!
//! Pure: the caller passes the time and writes the lines.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// The pause between two lines of one kind of failure: often enough for a log that is searched by the hour.
const PAUSE: Duration = Duration::from_secs(60);
/// The reasons of one failure that are logged. Three sentinels, each of which fails in two ways, combine to eight.
const REASONS_MAX: usize = 16;

/// What was logged of one kind of failure.
#[derive(Debug, Clone, Copy, Default)]
pub struct FailureLog {
    /// When the last failure was logged.
    logged: Option<Instant>,
    /// Whether its end was not yet logged.
    is_open: bool,
}

impl FailureLog {
    /// Notes a failure at `now`. Returns whether to log it.
    pub fn failed(&mut self, now: Instant) -> bool {
        let is_due = self
            .logged
            .is_none_or(|logged| now.duration_since(logged) >= PAUSE);
        if is_due {
            (self.logged, self.is_open) = (Some(now), true);
        }
        is_due
    }

    /// Notes a success. Returns whether to log the end of a failure: once, and only of one that was logged.
    pub fn succeeded(&mut self) -> bool {
        std::mem::take(&mut self.is_open)
    }
}

/// The reasons of a lasting failure that were logged. They alternate: a connection to a host that has vanished fails by time, then at
/// once because its neighbours do not find it, and so on.
#[derive(Debug, Default)]
pub struct LoggedReasons(BTreeSet<String>);

impl LoggedReasons {
    /// Notes a reason. Returns whether to log it: once until the failure ends, and no more than `REASONS_MAX` of them.
    pub fn is_new(&mut self, reason: &str) -> bool {
        self.0.len() < REASONS_MAX && self.0.insert(reason.to_owned())
    }

    /// Notes the end of the failure.
    pub fn ended(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_that_alternate_are_logged_once_each_until_the_failure_ends() {
        let mut logged = LoggedReasons::default();
        let rounds = ["timed out", "no route"].repeat(3);
        let new = |reason: &&str| logged.is_new(reason);
        assert_eq!(rounds.into_iter().filter(new).count(), 2);
        logged.ended();
        assert!(logged.is_new("timed out"));
    }

    #[test]
    fn a_failure_of_ever_new_reasons_does_not_fill_the_log() {
        let mut logged = LoggedReasons::default();
        let new = (0..1_000).filter(|port| logged.is_new(&format!("port {port}")));
        assert_eq!(new.count(), REASONS_MAX);
    }

    #[test]
    fn a_failure_is_logged_when_it_begins_and_once_a_minute_and_its_end_once() {
        let start = Instant::now();
        let mut log = FailureLog::default();
        assert!(!log.succeeded(), "nothing has failed");
        assert!(log.failed(start));
        assert!(!log.failed(start + PAUSE - Duration::from_millis(1)));
        assert!(log.failed(start + PAUSE), "it lasts");
        assert!(log.succeeded());
        assert!(!log.succeeded(), "its end is logged once");
        assert!(!log.failed(start + PAUSE * 3 / 2), "it recurs");
        assert!(!log.succeeded(), "the recurrence was not logged");
        assert!(log.failed(start + PAUSE * 2), "it recurs a minute later");
        assert!(log.succeeded());
    }
}
