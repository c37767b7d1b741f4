//! Endpoints under maintenance: requests are neither forwarded nor charged, and clients learn when to try again.

use std::sync::Arc;

use jiff::Timestamp;

/// The `Retry-After` if no end is announced: clients notice the end within a minute.
const RETRY_AFTER_SECONDS: u64 = 60;
/// The longest `Retry-After`: maintenance planned for a day may be over in an hour.
const RETRY_AFTER_SECONDS_MAX: u64 = 3_600;
/// The default sentence for clients.
const DETAIL: &str =
    "This endpoint is under maintenance. The request was not charged; please try again later.";

/// The announced maintenance of an endpoint (`endpoints[].maintenance`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Maintenance {
    /// When it ends by itself, or `None` to end with the configuration.
    pub until: Option<Timestamp>,
    /// The sentence for clients.
    pub message: Option<Arc<str>>,
}

impl Maintenance {
    /// Whether the maintenance is on at `now`; `until` is the first instant at which it is not.
    pub fn holds(&self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| now < until)
    }

    /// The sentence for clients.
    pub fn detail(&self) -> &str {
        self.message.as_deref().unwrap_or(DETAIL)
    }

    /// The `Retry-After` in seconds, 1 to 3,600.
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
