//! The state of a caller's quota in headers: `X-RateLimit-*`, `RateLimit-Policy`, `RateLimit`.
//!
//! The two last follow draft-ietf-httpapi-ratelimit-headers-11: a quoted policy name, `q` the quota, `w` the window and `t` the
//! time to the next reset, both in seconds, `r` the remaining units. The names of headers and policies are defined only here.

use http::{HeaderName, HeaderValue};
use jiff::Timestamp;

use super::calendar::Day;

/// The day's limit in units.
pub const X_RATE_LIMIT_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
/// Units left today.
pub const X_RATE_LIMIT_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
/// Unix seconds of the next day's start.
pub const X_RATE_LIMIT_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
/// The policies that apply.
pub const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
/// The state of those policies.
pub const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
/// The name of the daily quota in both `RateLimit` headers and in `violated-policies`.
pub const DAILY_POLICY: &str = "daily";
/// The name in `violated-policies` of the limit on reading `/api/v1/usage`.
pub const USAGE_POLICY: &str = "usage";
/// The name in `violated-policies` of a tier's `burst`.
pub const BURST_POLICY: &str = "burst";
/// The name in `violated-policies` of a tier's `concurrent`.
pub const CONCURRENT_POLICY: &str = "concurrent";

/// Every header above; those of an upstream are removed.
pub const ALL: [HeaderName; 5] = [
    X_RATE_LIMIT_LIMIT,
    X_RATE_LIMIT_REMAINING,
    X_RATE_LIMIT_RESET,
    RATE_LIMIT_POLICY,
    RATE_LIMIT,
];

/// The longest policy with its two numbers.
const ITEM_BYTES: usize = 64;

/// The quota status of a key on a day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaStatus {
    /// Units allowed on the day.
    pub limit: u64,
    /// Units used so far, or `None` if the store could not be reached.
    pub used: Option<u64>,
    /// The day.
    pub day: Day,
}

impl QuotaStatus {
    /// Units left, never negative; `None` if the store could not be reached.
    pub fn remaining(&self) -> Option<u64> {
        self.used.map(|used| self.limit.saturating_sub(used))
    }

    /// The headers for an answer at `now`. Without a known count, `X-RateLimit-Remaining` and `RateLimit` are left out.
    pub fn headers(&self, now: Timestamp) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
        let policy = item([
            (";q=", itoa::Buffer::new().format(self.limit)),
            (";w=", itoa::Buffer::new().format(self.day.length_seconds())),
        ]);
        let rate_limit = self.remaining().and_then(|remaining| {
            let seconds_left = self.day.seconds_left(now);
            item([
                (";r=", itoa::Buffer::new().format(remaining)),
                (";t=", itoa::Buffer::new().format(seconds_left)),
            ])
        });
        [
            (X_RATE_LIMIT_LIMIT, Some(HeaderValue::from(self.limit))),
            (
                X_RATE_LIMIT_REMAINING,
                self.remaining().map(HeaderValue::from),
            ),
            (X_RATE_LIMIT_RESET, Some(HeaderValue::from(self.day.end))),
            (RATE_LIMIT_POLICY, policy),
            (RATE_LIMIT, rate_limit),
        ]
        .into_iter()
        .filter_map(|(name, value)| value.map(|value| (name, value)))
    }
}

/// The daily policy with these parameters, as a structured field (RFC 9651 section 3.1).
fn item(parameters: [(&str, &str); 2]) -> Option<HeaderValue> {
    let mut text = String::with_capacity(ITEM_BYTES);
    for part in ["\"", DAILY_POLICY, "\""] {
        text.push_str(part);
    }
    for (name, value) in parameters {
        text.push_str(name);
        text.push_str(value);
    }
    HeaderValue::from_str(&text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(used: Option<u64>) -> Vec<String> {
        let start = 1_795_219_200;
        let day = Day {
            date: "2026-11-21".parse().unwrap(),
            start,
            end: start + 86_400,
        };
        QuotaStatus {
            limit: 1_000,
            used,
            day,
        }
        .headers(Timestamp::from_second(start + 400).unwrap())
        .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
        .collect()
    }

    #[test]
    fn a_known_count_gives_all_five_headers() {
        assert_eq!(
            headers(Some(1)),
            [
                "x-ratelimit-limit: 1000",
                "x-ratelimit-remaining: 999",
                "x-ratelimit-reset: 1795305600",
                "ratelimit-policy: \"daily\";q=1000;w=86400",
                "ratelimit: \"daily\";r=999;t=86000",
            ]
        );
    }

    #[test]
    fn an_unknown_count_leaves_out_the_remainder_and_invents_nothing() {
        assert_eq!(
            headers(None),
            [
                "x-ratelimit-limit: 1000",
                "x-ratelimit-reset: 1795305600",
                "ratelimit-policy: \"daily\";q=1000;w=86400"
            ]
        );
    }

    #[test]
    fn a_count_above_the_limit_shows_zero() {
        assert!(headers(Some(1_001)).contains(&"x-ratelimit-remaining: 0".to_owned()));
    }
}
