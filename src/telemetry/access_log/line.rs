//! A request's line as text: one JSON object, written member by member.
//!
//! Invariant: every text is written by [`push_text`], which escapes it where necessary; the rest of a line is constants and
//! numbers.

use std::cell::Cell;
use std::time::Duration;

use jiff::Timestamp;

use super::Line;
use crate::policy::json::{push_number, push_text};

/// `2026-11-22T05:10:00`
const SECOND_BYTES: usize = 19;

thread_local! {
    /// The last written second, and its text.
    static SECOND: Cell<(i64, [u8; SECOND_BYTES])> = const { Cell::new((i64::MIN, [0; SECOND_BYTES])) };
}

impl Line<'_> {
    /// Adds the line's object to `out`, without a line's end.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"time\":\"");
        time(out, self.time);
        out.push(b'"');
        text(out, ",\"request_id\":", Some(self.request_id));
        text(out, ",\"client\":", self.client);
        text(out, ",\"protocol\":", Some(self.protocol));
        text(out, ",\"method\":", Some(self.method));
        text(out, ",\"path\":", Some(self.path));
        text(out, ",\"endpoint\":", self.endpoint);
        text(out, ",\"key_id\":", self.key_id);
        text(out, ",\"tier\":", self.tier);
        push_number(out, ",\"status\":", self.status);
        text(out, ",\"outcome\":", Some(self.outcome));
        for (name, value) in [
            (",\"policy\":", self.policy),
            (",\"would_refuse\":", self.would_refuse),
        ] {
            if value.is_some() {
                text(out, name, value);
            }
        }
        if let Some(percent) = self.sample_percent {
            push_number(out, ",\"sample_percent\":", percent);
        }
        push_number(out, ",\"units\":", self.units);
        out.extend_from_slice(b",\"refunded\":");
        out.extend_from_slice(if self.refunded { b"true" } else { b"false" });
        milliseconds(out, ",\"duration_ms\":", Some(self.duration_ms));
        milliseconds(out, ",\"store_ms\":", Some(self.store_ms));
        milliseconds(out, ",\"upstream_ms\":", self.upstream_ms);
        push_number(out, ",\"bytes_sent\":", self.bytes_sent);
        if self.cause.is_some() {
            text(out, ",\"cause\":", self.cause);
        }
        out.push(b'}');
    }
}

/// A member whose value is a text, or null.
fn text(out: &mut Vec<u8>, name: &str, value: Option<&str>) {
    match value {
        Some(value) => push_text(out, name, value),
        None => null(out, name),
    }
}

fn null(out: &mut Vec<u8>, name: &str) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"null");
}

/// A member in milliseconds, rounded to thousandths; or null.
fn milliseconds(out: &mut Vec<u8>, name: &str, duration: Option<Duration>) {
    let Some(duration) = duration else {
        null(out, name);
        return;
    };
    // Rounding may carry into the next second.
    let micros = (duration.subsec_nanos() + 500) / 1_000;
    let millis = duration.as_secs().saturating_mul(1_000);
    let millis = millis.saturating_add(u64::from(micros / 1_000));
    push_number(out, name, millis);
    fraction::<3>(out, micros % 1_000);
}

/// RFC 3339 in UTC with six digits of the second.
fn time(out: &mut Vec<u8>, time: Timestamp) {
    // Before 1970 the parts of a second count backwards.
    let micros = time.as_microsecond();
    let (second, rest) = (micros.div_euclid(1_000_000), micros.rem_euclid(1_000_000));
    let (kept, mut digits) = SECOND.get();
    if kept != second {
        let whole = Timestamp::from_second(second).unwrap_or(Timestamp::MIN);
        let shown = whole.strftime("%Y-%m-%dT%H:%M:%S").to_string();
        if let Ok(shown) = shown.as_bytes().try_into() {
            digits = shown;
            SECOND.set((second, digits));
        }
    }
    out.extend_from_slice(&digits);
    fraction::<6>(out, u32::try_from(rest).unwrap_or_default());
    out.push(b'Z');
}

/// A point and a number of digits.
fn fraction<const DIGITS: usize>(out: &mut Vec<u8>, mut value: u32) {
    let mut digits = [b'0'; DIGITS];
    for digit in digits.iter_mut().rev() {
        *digit += u8::try_from(value % 10).unwrap_or_default();
        value /= 10;
    }
    out.push(b'.');
    out.extend_from_slice(&digits);
}

#[cfg(test)]
mod tests {
    use super::super::tests::line;
    use super::*;

    fn written(line: &Line<'_>) -> serde_json::Value {
        let mut out = Vec::new();
        line.write(&mut out);
        serde_json::from_slice(&out)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&out)))
    }

    #[test]
    fn a_line_has_all_known_facts() {
        let all = Line {
            time: "2026-11-22T05:10:00.120034567Z".parse().unwrap(),
            client: Some("[2001:db8::1]:443"),
            endpoint: Some("/e/{id}"),
            key_id: Some("k"),
            tier: Some("pro"),
            policy: Some("daily"),
            would_refuse: Some("burst"),
            sample_percent: Some(7),
            units: u32::MAX,
            refunded: true,
            duration_ms: Duration::from_nanos(12_345_678_500),
            store_ms: Duration::from_micros(90),
            upstream_ms: Some(Duration::from_millis(1)),
            bytes_sent: usize::MAX,
            cause: Some("why \"so\""),
            ..line("/a")
        };
        let expected = serde_json::json!({
            "time": "2026-11-22T05:10:00.120034Z", "request_id": "r", "client": "[2001:db8::1]:443", "protocol": "HTTP/1.1",
            "method": "GET", "path": "/a", "endpoint": "/e/{id}", "key_id": "k", "tier": "pro", "status": 401,
            "outcome": "INVALID_API_KEY", "policy": "daily", "would_refuse": "burst", "sample_percent": 7,
            "units": u32::MAX, "refunded": true, "duration_ms": 12345.679, "store_ms": 0.09, "upstream_ms": 1.0,
            "bytes_sent": usize::MAX, "cause": "why \"so\"",
        });
        assert_eq!(written(&all), expected);
    }

    #[test]
    fn durations_are_rounded_to_thousandths_of_a_millisecond() {
        for (nanoseconds, expected) in [
            (0, "0.000"),
            (499, "0.000"),
            (500, "0.001"),
            (999_499, "0.999"),
            (999_500, "1.000"),
            (999_999_499, "999.999"),
            (999_999_500, "1000.000"),
            (61_000_000_001, "61000.000"),
        ] {
            let mut out = Vec::new();
            milliseconds(&mut out, "", Some(Duration::from_nanos(nanoseconds)));
            assert_eq!(String::from_utf8(out).unwrap(), expected, "{nanoseconds}");
        }
    }

    #[test]
    fn what_is_not_known_is_null_or_left_out() {
        let found = written(&line("/a"));
        for name in ["client", "endpoint", "key_id", "tier", "upstream_ms"] {
            assert!(found[name].is_null() && found.get(name).is_some(), "{name}");
        }
        for name in ["policy", "would_refuse", "sample_percent", "cause"] {
            assert!(found.get(name).is_none(), "{name}");
        }
    }

    #[test]
    fn times_are_those_of_rfc_3339() {
        for text in [
            "1970-01-01T00:00:00Z",
            "1969-12-31T23:59:59.999999Z",
            "2026-11-22T05:10:00.000001Z",
            "2026-11-22T05:10:00.9Z",
            "2028-02-29T23:59:59.999999Z",
            "9999-12-30T22:00:00.5Z",
        ] {
            let expected: Timestamp = text.parse().unwrap();
            let line = Line {
                time: expected,
                ..line("/")
            };
            let found = written(&line)["time"].as_str().unwrap().to_owned();
            assert_eq!(found.parse::<Timestamp>().unwrap(), expected, "{found}");
            assert_eq!(found.len(), "2026-11-22T05:10:00.000000Z".len());
        }
    }
}
