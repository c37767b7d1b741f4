//! Contract step 1: whether the request is well-formed and within the limits.
//!
//! A head that the HTTP/1 reader refuses never reaches this check, nor one over HTTP/2 for which the library resets the stream.

use http::header::{CONTENT_LENGTH, HOST};
use http::{HeaderName, HeaderValue, Method};

use super::forward::{X_API_KEY, X_REQUEST_ID};
use crate::config::Limits;
use crate::policy::api_key::KEY_CHARS_MAX;
use crate::policy::http1::fields::FieldList;
use crate::policy::http1::framing::Framing;
use crate::policy::http1::request::{RequestHead, RequestReader};
use crate::policy::http1::{self, HeadBounds, Version, is_host};
use crate::policy::rejection::{Malformed, Rejection};
use crate::policy::request_id;
use crate::policy::target::Target;

/// Options of `Connection`; the reader accepts 16 besides `close` and `keep-alive`.
const CONNECTION_OPTIONS_MAX: usize = 8;

/// The configured limits of a head.
pub fn bounds_of(limits: &Limits) -> HeadBounds {
    HeadBounds {
        target_bytes_max: limits.target_bytes,
        header_bytes_max: limits.header_bytes,
        header_count_max: limits.header_count,
    }
}

/// Step 1 for an HTTP/1.1 request of which only method and target are known; the rest counts as valid. Returns the path.
///
/// # Errors
/// With the first violation, in the order of the checks.
pub fn judge(method: &Method, target: &str, limits: &Limits) -> Result<String, Rejection> {
    let head = format!("{method} {target} HTTP/1.1\r\nHost: touchline\r\n\r\n");
    let head = RequestReader::whole_head(&head, &bounds_of(limits))?;
    Ok(check(&head, limits)?.path.to_owned())
}

/// Checks a request's head. Over HTTP/1 the reader has made sure that it can be read in one way only.
///
/// # Errors
/// With the first violation, in the order of the checks.
pub fn check<'a>(head: &'a RequestHead, limits: &Limits) -> Result<Target<'a>, Rejection> {
    if head.method == Method::CONNECT {
        return Err(http1::connect_refused());
    }
    if head.raw_target().len() > limits.target_bytes {
        return Err(Rejection::UriTooLong);
    }
    let target = head.target();
    let target = target.map_err(|error| malformed(Malformed::Target(error)))?;
    if head.is_oversized || is_too_large(&head.fields, header_bytes(&head.fields), limits) {
        return Err(Rejection::HeadersTooLarge);
    }
    if head.version == Version::Http2 {
        check_http2(head)?;
    }
    check_connection(&head.fields)?;
    check_body(head, limits)?;
    Ok(target)
}

fn header_bytes(fields: &FieldList) -> usize {
    fields.bytes() + 4 * fields.count()
}

fn is_too_large(fields: &FieldList, header_bytes: usize, limits: &Limits) -> bool {
    fields.count() > limits.header_count || header_bytes > limits.header_bytes
}

/// Drops the fields of an HTTP/2 head that will be refused for its size, except its request id, and its key, which its record must not
/// contain: a field takes one byte on the wire, and a hundred in memory for as long as the client delays reading the refusal. Returns
/// the size that is left.
pub fn lighten(head: &mut RequestHead, limits: &Limits) -> usize {
    let fields = &head.fields;
    let bytes = header_bytes(fields);
    if !is_too_large(fields, bytes, limits) {
        return bytes;
    }
    let mut kept = FieldList::default();
    let id = fields.first(&X_REQUEST_ID);
    let id = id.filter(|id| request_id::is_acceptable(id));
    let key = fields.first(&X_API_KEY);
    let key = key.filter(|key| key.len() <= KEY_CHARS_MAX);
    for (name, value) in [(X_REQUEST_ID, id), (X_API_KEY, key)] {
        if let Some(value) = value.and_then(|value| HeaderValue::from_bytes(value).ok()) {
            kept.append(name, value);
        }
    }
    let bytes = header_bytes(&kept);
    (head.fields, head.is_oversized) = (kept, true);
    bytes
}

fn malformed(reason: Malformed) -> Rejection {
    Rejection::BadRequest(reason)
}

/// Over HTTP/2 `:authority` may replace `Host`, and both must be equal (RFC 9113 section 8.3.1); at most one
/// `Content-Length` is allowed, which must be a number.
fn check_http2(head: &RequestHead) -> Result<(), Rejection> {
    let mut hosts = head.fields.all(&HOST);
    let (host, second) = (hosts.next(), hosts.next());
    let agree = match (host, head.authority()) {
        (Some(host), Some(authority)) => host == authority,
        (_, _) => true,
    };
    if second.is_some() || !agree || !head.host().is_some_and(is_host) {
        return Err(malformed(Malformed::Host));
    }
    let mut lengths = head.fields.all(&CONTENT_LENGTH);
    let (length, second) = (lengths.next(), lengths.next());
    if second.is_some() || length.is_some_and(|length| http1::length(length).is_none()) {
        return Err(malformed(Malformed::Framing));
    }
    // As over HTTP/1.
    if head.method.as_str().len() > http1::METHOD_BYTES_MAX {
        return Err(malformed(Malformed::Head));
    }
    Ok(())
}

/// `Connection` must not nominate what the gateway reads or sets (RFC 9110 section 7.6.1): an intermediary would remove it, or a
/// careless one would remove the gateway's.
fn check_connection(fields: &FieldList) -> Result<(), Rejection> {
    for (count, option) in fields.connection_options().enumerate() {
        let name = HeaderName::from_bytes(option).map_err(|_| malformed(Malformed::Connection))?;
        let name = name.as_str();
        let ours = matches!(
            name,
            "host" | "x-api-key" | "x-request-id" | "traceparent" | "content-length"
        ) || name.starts_with("x-forwarded-")
            || name.starts_with("x-consumer-");
        if ours || count >= CONNECTION_OPTIONS_MAX {
            return Err(malformed(Malformed::Connection));
        }
    }
    Ok(())
}

fn check_body(head: &RequestHead, limits: &Limits) -> Result<(), Rejection> {
    let (length, is_announced) = match head.framing {
        Framing::Empty => (0, false),
        Framing::Length(length) => (length, length > 0),
        // Over HTTP/2 it is unknown whether a body follows.
        Framing::Chunked => (0, head.version != Version::Http2),
    };
    if is_announced && !takes_body(&head.method) {
        return Err(malformed(Malformed::UnexpectedBody));
    }
    if length > limits.body_bytes {
        return Err(Rejection::PayloadTooLarge);
    }
    Ok(())
}

/// Whether a body has a meaning with this method (RFC 9110 section 9.3); with unknown methods it may.
pub fn takes_body(method: &Method) -> bool {
    !matches!(
        *method,
        Method::GET | Method::HEAD | Method::DELETE | Method::OPTIONS | Method::TRACE
    )
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;
    use crate::config::Config;

    static LIMITS: LazyLock<Limits> = LazyLock::new(|| {
        let file = include_str!("../../gateway.yaml");
        let limits = Config::parse("g", file, &|_| None).unwrap().limits;
        Limits {
            target_bytes: 64,
            header_bytes: 256,
            header_count: 4,
            body_bytes: 10,
            ..limits
        }
    });

    /// Reads a request over HTTP/1.1 and checks it.
    fn outcome(
        method: &str,
        target: &str,
        headers: &[(&'static str, &str)],
    ) -> Result<(), &'static str> {
        let lines = headers
            .iter()
            .map(|(name, value)| format!("{name}: {value}\r\n"));
        let lines: String = lines.collect();
        let text = format!("{method} {target} HTTP/1.1\r\n{lines}\r\n");
        let bounds = HeadBounds {
            target_bytes_max: 1024,
            header_bytes_max: 1024,
            header_count_max: 64,
        };
        let read = RequestReader::whole_head(&text, &bounds);
        let checked = read.and_then(|head| check(&head, &LIMITS).map(|_| ()));
        checked.map_err(|rejection| rejection.code())
    }

    #[test]
    fn a_target_alone_is_judged_as_a_whole_request_is() {
        let judge = |target: &str| {
            judge(&Method::GET, target, &LIMITS).map_err(|rejection| rejection.code())
        };
        for (target, path) in [
            ("/a/b?c", Ok("/a/b")),
            ("http://h/a/b?c", Ok("/a/b")),
            ("https://h", Ok("/")),
            ("http://a@b/c", Err("BAD_REQUEST")),
            ("/a/../b", Err("BAD_REQUEST")),
        ] {
            assert_eq!(judge(target), path.map(str::to_owned), "{target}");
        }
    }

    #[test]
    fn both_sides_of_each_limit() {
        let host = ("host", "h");
        let target = |length: usize| format!("/{}", "a".repeat(length - 1));
        assert_eq!(outcome("GET", &target(64), &[host]), Ok(()));
        assert_eq!(outcome("GET", &target(65), &[host]), Err("URI_TOO_LONG"));
        assert_eq!(
            outcome("GET", "/", &[host, ("a", "1"), ("b", "1"), ("c", "1")]),
            Ok(())
        );
        assert_eq!(
            outcome(
                "GET",
                "/",
                &[host, ("a", "1"), ("b", "1"), ("c", "1"), ("d", "1")]
            ),
            Err("HEADERS_TOO_LARGE")
        );
        let value = |length: usize| "v".repeat(length);
        assert_eq!(outcome("GET", "/", &[host, ("a", &value(242))]), Ok(()));
        assert_eq!(
            outcome("GET", "/", &[host, ("a", &value(243))]),
            Err("HEADERS_TOO_LARGE")
        );
        assert_eq!(
            outcome("POST", "/", &[host, ("content-length", "10")]),
            Ok(())
        );
        assert_eq!(
            outcome("POST", "/", &[host, ("content-length", "11")]),
            Err("PAYLOAD_TOO_LARGE")
        );
    }

    #[test]
    fn exactly_one_valid_host_is_needed() {
        for good in [
            "h",
            "a-b.example:8443",
            "127.0.0.1:80",
            "[::1]:8080",
            "[::1]",
            "h:",
            "h:65535",
            "h:00080",
        ] {
            assert_eq!(outcome("GET", "/", &[("host", good)]), Ok(()), "{good}");
        }
        for bad in [
            "",
            "a b",
            "a,b",
            "a/b",
            "u@h",
            "h:x",
            "h:123456",
            "h:65536",
            "[::1]:99999",
            "[::1",
            "::1",
            "[x]",
            "h:1:2",
        ] {
            assert_eq!(
                outcome("GET", "/", &[("host", bad)]),
                Err("BAD_REQUEST"),
                "{bad}"
            );
        }
        assert_eq!(outcome("GET", "/", &[]), Err("BAD_REQUEST"));
        assert_eq!(
            outcome("GET", "/", &[("host", "h"), ("host", "h")]),
            Err("BAD_REQUEST")
        );
    }

    #[test]
    fn connection_may_not_nominate_what_the_gateway_reads_or_sets() {
        let with = |value: &str| outcome("GET", "/", &[("host", "h"), ("connection", value)]);
        for good in ["close", "keep-alive, x-own", "", ", ,", "TE"] {
            assert_eq!(with(good), Ok(()), "{good}");
        }
        for bad in [
            "X-API-Key",
            "close, host",
            "x-forwarded-for",
            "X-Consumer-Id",
            "x-request-id",
            "a b",
            ":authority",
            "a,b,c,d,e,f,g,h,i",
        ] {
            assert_eq!(with(bad), Err("BAD_REQUEST"), "{bad}");
        }
    }

    #[test]
    fn a_body_needs_a_method_that_takes_one_and_clear_framing() {
        let host = ("host", "h");
        assert_eq!(
            outcome("GET", "/", &[host, ("content-length", "0")]),
            Ok(())
        );
        for method in ["GET", "HEAD", "DELETE", "OPTIONS", "TRACE"] {
            assert_eq!(
                outcome(method, "/", &[host, ("content-length", "1")]),
                Err("BAD_REQUEST")
            );
            assert_eq!(
                outcome(method, "/", &[host, ("transfer-encoding", "chunked")]),
                Err("BAD_REQUEST")
            );
        }
        assert_eq!(
            outcome("POST", "/", &[host, ("transfer-encoding", "chunked")]),
            Ok(())
        );
        for bad in ["gzip, chunked", "chunked, chunked", "identity", ""] {
            assert_eq!(
                outcome("POST", "/", &[host, ("transfer-encoding", bad)]),
                Err("BAD_REQUEST"),
                "{bad}"
            );
        }
        for bad in ["+5", "5 5", "-1", "0x5", "", "5, 5", "99999999999999999999"] {
            assert_eq!(
                outcome("POST", "/", &[host, ("content-length", bad)]),
                Err("BAD_REQUEST"),
                "{bad}"
            );
        }
        assert_eq!(
            outcome(
                "POST",
                "/",
                &[host, ("content-length", "5"), ("content-length", "5")]
            ),
            Err("BAD_REQUEST")
        );
    }
}
