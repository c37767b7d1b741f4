//! Endpoints that are under maintenance: nothing is forwarded, nothing is charged, and clients are told when to come again.

use std::sync::Arc;

use jiff::Timestamp;

/// Seconds after which clients should try again where no end is announced: they find out within a minute.
const RETRY_AFTER_SECONDS: u64 = 60;
/// The longest that clients are told to wait: what was planned to take a day may be over in an hour.
const RETRY_AFTER_SECONDS_MAX: u64 = 3_600;
/// What clients are told unless the configuration says something else.
const DETAIL: &str =
    "This endpoint is under maintenance. The request was not charged; please try again later.";

/// What is announced of an endpoint (`endpoints[].maintenance`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Maintenance {
    /// When it is over by itself; `None`: when the configuration says nothing of it any more.
    pub until: Option<Timestamp>,
    /// The sentence for clients.
    pub message: Option<Arc<str>>,
}

impl Maintenance {
    /// Whether it goes on at `now`; `until` is the first instant at which it does not.
    pub fn holds(&self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| now < until)
    }

    /// The sentence for clients.
    pub fn detail(&self) -> &str {
        self.message.as_deref().unwrap_or(DETAIL)
    }

    /// After how many seconds clients should try again, 1 to 3,600.
    pub fn retry_after_seconds(&self, now: Timestamp) -> u64 {
        let Some(until) = self.until else {
            return RETRY_AFTER_SECONDS;
        };
        let left = until.duration_since(now).as_millis();
        let seconds = u64::try_from(left).unwrap_or(0).div_ceil(1_000);
        seconds.clamp(1, RETRY_AFTER_SECONDS_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn it_is_over_at_its_end_and_not_before() {
        let planned = Maintenance {
            until: Some(at("2026-11-21T12:00:00Z")),
            message: None,
        };
        for (now, holds, seconds) in [
            ("2026-11-21T11:59:59.5Z", true, 1),
            ("2026-11-21T11:59:58Z", true, 2),
            ("2026-11-21T11:30:00Z", true, 1_800),
            ("2026-11-20T12:00:00Z", true, 3_600),
            ("2026-11-21T12:00:00Z", false, 1),
        ] {
            assert_eq!(planned.holds(at(now)), holds, "{now}");
            assert_eq!(planned.retry_after_seconds(at(now)), seconds, "{now}");
        }
        let open = Maintenance::default();
        assert!(open.holds(at("2036-01-01T00:00:00Z")));
        assert_eq!(open.retry_after_seconds(at("2036-01-01T00:00:00Z")), 60);
    }
}
