//! When a failure that lasts or recurs is logged: at its beginning and then once a minute, so that a full disk does not fill the log
//! with one sentence.
//!
//! Pure: the caller passes the time and writes the lines.

use std::time::{Duration, Instant};

/// The pause between two lines of one kind of failure: often enough for a log that is searched by the hour.
const PAUSE: Duration = Duration::from_secs(60);

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

#[cfg(test)]
mod tests {
    use super::*;

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
