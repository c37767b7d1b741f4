//! The state of a caller's quota in headers: `X-RateLimit-*`, `RateLimit-Policy`, `RateLimit`.
//!
//! The two last follow draft-ietf-httpapi-ratelimit-headers-11: a quoted policy name, `q` the quota, `w` the window and `t` the
//! time to the next reset, both in seconds, `r` the remaining units. The names of the headers that are sent
//! are defined here; `openapi/responses.rs` documents them.

use std::ops::Range;

use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use jiff::Timestamp;

use super::calendar::Day;

/// The day's limit in units.
const X_RATE_LIMIT_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
/// Units left today.
pub const X_RATE_LIMIT_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
/// Unix seconds of the next day's start.
const X_RATE_LIMIT_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
/// The policies that apply.
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
/// The state of those policies.
pub const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
/// The name of the daily quota in both `RateLimit` headers and in `violated-policies`.
pub const DAILY_POLICY: &str = "daily";

/// The names of all headers above; those of an upstream are removed.
pub const ALL: [&str; 5] = [
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "ratelimit-policy",
    "ratelimit",
];

/// Room for the longest texts of a policy, its status and its reset.
const TEXT_BYTES: usize = 128;

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

    /// The headers for an answer at `now`. Without a known count, `X-RateLimit-Remaining` and `RateLimit` are left out. Cost: two
    /// allocations, because all values are parts of one text.
    pub fn headers(&self, now: Timestamp) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
        let mut text = Vec::with_capacity(TEXT_BYTES);
        let (policy, limit) = push_item(
            &mut text,
            (";q=", self.limit),
            (";w=", self.day.length_seconds()),
        );
        let status = self.remaining().map(|remaining| {
            let left = (";t=", self.day.seconds_left(now));
            push_item(&mut text, (";r=", remaining), left)
        });
        let reset = push_number(&mut text, self.day.end);
        let (rate_limit, remaining) = status.unzip();
        let text = Bytes::from(text);
        [
            (X_RATE_LIMIT_LIMIT, Some(limit)),
            (X_RATE_LIMIT_REMAINING, remaining),
            (X_RATE_LIMIT_RESET, Some(reset)),
            (RATE_LIMIT_POLICY, Some(policy)),
            (RATE_LIMIT, rate_limit),
        ]
        .into_iter()
        .filter_map(move |(name, place)| {
            let value = HeaderValue::from_maybe_shared(text.slice(place?)).ok()?;
            Some((name, value))
        })
    }
}

/// Appends the daily policy with two parameters, as a structured field (RFC 9651 section 3.1). Returns its place and that of the
/// first number.
fn push_item(
    text: &mut Vec<u8>,
    (name, number): (&str, impl itoa::Integer),
    (other_name, other_number): (&str, impl itoa::Integer),
) -> (Range<usize>, Range<usize>) {
    let start = text.len();
    for part in ["\"", DAILY_POLICY, "\"", name] {
        text.extend_from_slice(part.as_bytes());
    }
    let first = push_number(text, number);
    text.extend_from_slice(other_name.as_bytes());
    push_number(text, other_number);
    (start..text.len(), first)
}

/// Appends a number. Returns its place.
fn push_number(text: &mut Vec<u8>, number: impl itoa::Integer) -> Range<usize> {
    let start = text.len();
    text.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    start..text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(used: Option<u64>) -> Vec<String> {
        headers_on_a_day_of(24, used)
    }

    fn headers_on_a_day_of(hours: i64, used: Option<u64>) -> Vec<String> {
        let start = 1_795_219_200;
        let day = Day {
            date: "2026-11-21".parse().unwrap(),
            start,
            end: start + hours * 3_600,
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
        let names = headers(Some(1));
        let names = names.iter().filter_map(|field| field.split(':').next());
        assert!(names.eq(ALL));
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

    #[test]
    fn the_window_is_an_hour_shorter_or_longer_on_a_day_on_which_clocks_change() {
        for (hours, window) in [(23, "82800"), (25, "90000")] {
            let policy = format!("ratelimit-policy: \"daily\";q=1000;w={window}");
            let headers = headers_on_a_day_of(hours, Some(1));
            assert!(headers.contains(&policy), "{headers:?}");
        }
    }
}
