//! Contract step 1: is the request well-formed and within the limits.
//!
//! Over HTTP/1 a head that the reader refuses never gets here, over HTTP/2 one for which the library resets the stream.

use http::header::{CONNECTION, CONTENT_LENGTH, EXPECT, HOST, TRANSFER_ENCODING};
use http::{HeaderName, HeaderValue, Method, Version};
use pingora::http::RequestHeader;

use super::forward::X_REQUEST_ID;
use crate::config::Limits;
use crate::policy::http1::request::RequestReader;
use crate::policy::http1::{self, HeadBounds, is_host};
use crate::policy::rejection::{Malformed, Rejection};
use crate::policy::request_id;
use crate::policy::target::Target;

/// Options of `Connection`; the reader takes 16.
const CONNECTION_OPTIONS_MAX: usize = 8;

/// What a request may measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadLimits {
    /// Bytes of the target.
    pub target_bytes_max: usize,
    /// Bytes of all header names and values, four more for each.
    pub header_bytes_max: usize,
    /// Header lines.
    pub header_count_max: usize,
    /// Bytes of a body.
    pub body_bytes_max: usize,
}

impl HeadLimits {
    /// The configured ones.
    pub fn of(limits: &Limits) -> HeadLimits {
        HeadLimits {
            target_bytes_max: limits.target_bytes,
            header_bytes_max: limits.header_bytes,
            header_count_max: limits.header_count,
            body_bytes_max: usize::try_from(limits.body_bytes).unwrap_or(usize::MAX),
        }
    }
}

/// Step 1 on a request over HTTP/1.1 of which nothing is known but method and target; the rest of it is as it should be.
pub fn judge<'a>(
    method: &Method,
    target: &'a str,
    limits: &HeadLimits,
) -> Result<Target<'a>, Rejection> {
    let host = HeaderValue::from_static("touchline");
    let head = format!("{method} {target} HTTP/1.1\r\nHost: touchline\r\n\r\n");
    let bounds = HeadBounds {
        target_bytes_max: limits.target_bytes_max,
        header_bytes_max: limits.header_bytes_max,
        header_count_max: limits.header_count_max,
    };
    match RequestReader::default().read(head.as_bytes(), &bounds)? {
        Some(read) if read.end() == head.len() => {}
        Some(_) | None => return Err(malformed(Malformed::Head)),
    }
    let unreadable = |_| malformed(Malformed::Head);
    let mut header =
        RequestHeader::build(method.clone(), target.as_bytes(), None).map_err(unreadable)?;
    header.set_version(Version::HTTP_11);
    header.insert_header(HOST, host).map_err(unreadable)?;
    check(&header, limits)?;
    Target::parse(target.as_bytes()).map_err(|error| malformed(Malformed::Target(error)))
}

/// Checks a request's head.
pub fn check<'a>(header: &'a RequestHeader, limits: &HeadLimits) -> Result<Target<'a>, Rejection> {
    if header.method == Method::CONNECT {
        return Err(http1::connect_refused());
    }
    let target = header.raw_path();
    if target.len() > limits.target_bytes_max {
        return Err(Rejection::UriTooLong);
    }
    if is_too_large(header, header_bytes(header), limits) {
        return Err(Rejection::HeadersTooLarge);
    }
    let target = Target::parse(target).map_err(|error| malformed(Malformed::Target(error)))?;
    check_host(header)?;
    check_connection(header)?;
    check_body(header, limits)?;
    Ok(target)
}

fn header_bytes(header: &RequestHeader) -> usize {
    let fields = header.headers.iter();
    fields
        .map(|(name, value)| name.as_str().len() + value.len() + 4)
        .sum()
}

fn is_too_large(header: &RequestHeader, header_bytes: usize, limits: &HeadLimits) -> bool {
    header.headers.len() > limits.header_count_max || header_bytes > limits.header_bytes_max
}

/// Exchanges a head over HTTP/2 that will be refused for its size for a small one that will be refused just so: a field is one
/// byte on the wire, and a hundred in memory for as long as the client takes its time with the refusal. The head's size then.
pub fn lighten(header: &mut RequestHeader, limits: &HeadLimits) -> usize {
    let bytes = header_bytes(header);
    if !is_too_large(header, bytes, limits) {
        return bytes;
    }
    let Ok(mut light) = RequestHeader::build_no_case(header.method.clone(), b"/", None) else {
        return bytes;
    };
    light.set_version(header.version);
    light.set_uri(header.uri.clone());
    let id = header.headers.get(X_REQUEST_ID);
    if let Some(id) = id.filter(|id| request_id::is_acceptable(id.as_bytes())) {
        let _ = light.insert_header(X_REQUEST_ID, id.clone());
    }
    for _ in 0..=limits.header_count_max {
        let _ = light.append_header(HeaderName::from_static("x"), HeaderValue::from_static(""));
    }
    *header = light;
    header_bytes(header)
}

fn malformed(reason: Malformed) -> Rejection {
    Rejection::BadRequest(reason)
}

/// HTTP/1.1 needs exactly one `Host` (RFC 9112 section 3.2); over HTTP/2 `:authority` may replace it, and both must be equal
/// (RFC 9113 section 8.3.1).
fn check_host(header: &RequestHeader) -> Result<(), Rejection> {
    let mut hosts = header.headers.get_all(HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (host, None) => host.map(HeaderValue::as_bytes),
        (_, Some(_)) => return Err(malformed(Malformed::Host)),
    };
    let authority = header.uri.authority();
    let authority = authority.map(|authority| authority.as_str().as_bytes());
    match (host.or(authority), authority) {
        (Some(host), None) if is_host(host) => Ok(()),
        (Some(host), Some(authority)) if is_host(host) && host == authority => Ok(()),
        (None, None) if header.version == Version::HTTP_10 => Ok(()),
        _ => Err(malformed(Malformed::Host)),
    }
}

/// `Connection` may not nominate what the gateway reads or sets (RFC 9110 section 7.6.1): an intermediary would take it
/// away, or a careless one would take ours away.
fn check_connection(header: &RequestHeader) -> Result<(), Rejection> {
    let options = header
        .headers
        .get_all(CONNECTION)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    let mut count = 0;
    for option in options
        .map(<[u8]>::trim_ascii)
        .filter(|option| !option.is_empty())
    {
        count += 1;
        let name = HeaderName::from_bytes(option).map_err(|_| malformed(Malformed::Connection))?;
        let name = name.as_str();
        let ours = matches!(
            name,
            "host" | "x-api-key" | "x-request-id" | "traceparent" | "content-length"
        ) || name.starts_with("x-forwarded-")
            || name.starts_with("x-consumer-");
        if ours || count > CONNECTION_OPTIONS_MAX {
            return Err(malformed(Malformed::Connection));
        }
    }
    Ok(())
}

/// The host that the client asked for, as it wrote it.
pub fn host(header: &RequestHeader) -> Option<HeaderValue> {
    match header.headers.get(HOST) {
        Some(host) => Some(host.clone()),
        None => header
            .uri
            .authority()
            .and_then(|authority| HeaderValue::from_str(authority.as_str()).ok()),
    }
}

fn check_body(header: &RequestHeader, limits: &HeadLimits) -> Result<(), Rejection> {
    let mut codings = header.headers.get_all(TRANSFER_ENCODING).iter();
    let chunked = match (codings.next(), codings.next()) {
        (None, _) => false,
        // Any other coding would be the gateway's to undo (RFC 9112 section 6.1).
        (Some(coding), None) if coding.as_bytes().eq_ignore_ascii_case(b"chunked") => true,
        (Some(_), _) => return Err(malformed(Malformed::Framing)),
    };
    let mut lengths = header.headers.get_all(CONTENT_LENGTH).iter();
    let length = match (lengths.next(), lengths.next()) {
        (None, _) => 0,
        (Some(length), None) => {
            http1::length(length.as_bytes()).ok_or_else(|| malformed(Malformed::Framing))?
        }
        (Some(_), Some(_)) => return Err(malformed(Malformed::Framing)),
    };
    if (length > 0 || chunked) && !takes_body(&header.method) {
        return Err(malformed(Malformed::UnexpectedBody));
    }
    if usize::try_from(length).map_or(true, |length| length > limits.body_bytes_max) {
        return Err(Rejection::PayloadTooLarge);
    }
    Ok(())
}

/// Whether the client waits to be asked for its body (RFC 9110 section 10.1.1).
pub fn expects_continue(header: &RequestHeader) -> bool {
    header.version == Version::HTTP_11
        && header
            .headers
            .get(EXPECT)
            .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

/// Whether a body has a meaning with this method (RFC 9110 section 9.3); for unknown methods it may have one.
pub fn takes_body(method: &Method) -> bool {
    !matches!(
        *method,
        Method::GET | Method::HEAD | Method::DELETE | Method::OPTIONS | Method::TRACE
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: HeadLimits = HeadLimits {
        target_bytes_max: 64,
        header_bytes_max: 256,
        header_count_max: 4,
        body_bytes_max: 10,
    };

    fn request(method: &str, target: &str, headers: &[(&'static str, &str)]) -> RequestHeader {
        let mut header = RequestHeader::build(method, target.as_bytes(), None).unwrap();
        header.set_version(Version::HTTP_11);
        for (name, value) in headers {
            header.append_header(*name, *value).unwrap();
        }
        header
    }

    fn outcome(
        method: &str,
        target: &str,
        headers: &[(&'static str, &str)],
    ) -> Result<(), &'static str> {
        check(&request(method, target, headers), &LIMITS)
            .map(|_| ())
            .map_err(|rejection| rejection.code())
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
        ] {
            assert_eq!(outcome("GET", "/", &[("host", good)]), Ok(()), "{good}");
        }
        for bad in [
            "", "a b", "a,b", "a/b", "u@h", "h:x", "h:123456", "[::1", "::1", "[x]", "h:1:2",
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
