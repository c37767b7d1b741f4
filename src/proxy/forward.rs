//! What crosses the gateway: the request as the upstream gets it, the answer's header as the client gets it.
//!
//! The request is rebuilt, not relayed: key, hop-by-hop and forged identity headers go, ours come. Header names are
//! compared with `_` taken as `-`, because some servers read both alike. The target goes through byte for byte.

use std::collections::HashSet;
use std::net::IpAddr;

use http::header::{
    CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, EXPECT, HOST, RETRY_AFTER, SERVER, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE, VARY, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use pingora::http::{RequestHeader, ResponseHeader};

use crate::policy::trace_context::TraceContext;
use crate::policy::{caching, own_header, rate_limit};

/// The header that carries the API key.
pub const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// The request id, in both directions.
pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Of every answer: a body is what its type says.
pub const NOSNIFF: HeaderValue = HeaderValue::from_static("nosniff");
/// What caches in front of a service are told past `Cache-Control` (RFC 9213).
const CDN_CACHE_CONTROL: HeaderName = HeaderName::from_static("cdn-cache-control");
const SURROGATE_CONTROL: HeaderName = HeaderName::from_static("surrogate-control");
/// The caller's trace (W3C Trace Context).
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
const X_CONSUMER_ID: HeaderName = HeaderName::from_static("x-consumer-id");
const X_CONSUMER_TIER: HeaderName = HeaderName::from_static("x-consumer-tier");
/// Whom a request is from, as proxies tell.
pub const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// Whether it came over TLS.
pub const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
/// What host it was for.
pub const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const PROXY_AUTHENTICATE: HeaderName = HeaderName::from_static("proxy-authenticate");

/// What the upstream is told of a request.
#[derive(Debug)]
pub struct Identity<'a> {
    /// The request id.
    pub request_id: &'a HeaderValue,
    /// The client's address.
    pub client: Option<IpAddr>,
    /// `https` or `http`.
    pub scheme: &'static str,
    /// The host that the client asked for.
    pub host: Option<HeaderValue>,
    /// The public id of the key.
    pub key_id: &'a str,
    /// The key's tier.
    pub tier: &'a str,
    /// The upstream server's own name or address.
    pub upstream_host: &'a str,
    /// The trace that the request is recorded in, and the id of this attempt's span.
    pub recorded: Option<(TraceContext, u64)>,
}

/// Request headers that never reach an upstream, beside those that are always removed. Made once for a configuration.
#[derive(Debug, Default)]
pub struct DeniedHeaders(HashSet<HeaderName>);

impl DeniedHeaders {
    /// Denies `names`.
    pub fn new(names: impl IntoIterator<Item = HeaderName>) -> DeniedHeaders {
        DeniedHeaders(names.into_iter().collect())
    }

    fn contains(&self, name: &HeaderName) -> bool {
        let text = name.as_str();
        let folded = if text.contains('_') {
            HeaderName::try_from(text.replace('_', "-")).ok()
        } else {
            None
        };
        let name = folded.as_ref().unwrap_or(name);
        let text = name.as_str();
        // In another spelling those that are read or set here would pass as the client's own.
        own_header::tells_who_calls(text)
            || (folded.is_some() && own_header::is_read_or_set(text))
            || self.0.contains(name)
    }
}

/// Turns the client's header, cleared of hop-by-hop fields by pingora, into the upstream's.
///
/// # Errors
/// If a value of ours is no header value, which checked configurations exclude.
pub fn rebuild_request(
    header: &mut RequestHeader,
    identity: &Identity<'_>,
    denied: &DeniedHeaders,
) -> pingora::Result<()> {
    let unwanted: Vec<HeaderName> = header
        .headers
        .keys()
        .filter(|name| denied.contains(name))
        .cloned()
        .collect();
    for name in &unwanted {
        header.remove_header(name);
    }
    // The gateway has answered `Expect` itself.
    for name in [TE, TRAILER, KEEP_ALIVE, PROXY_CONNECTION, UPGRADE, EXPECT] {
        header.remove_header(&name);
    }
    let (traceparent, goes_on) = traceparent(header.headers.get(TRACEPARENT), identity.recorded);
    if !goes_on {
        header.remove_header(&TRACESTATE);
    }
    header.insert_header(TRACEPARENT, traceparent)?;
    header.insert_header(X_REQUEST_ID, identity.request_id.clone())?;
    header.insert_header(X_CONSUMER_ID, identity.key_id)?;
    header.insert_header(X_CONSUMER_TIER, identity.tier)?;
    header.insert_header(X_FORWARDED_PROTO, identity.scheme)?;
    if let Some(client) = identity.client {
        header.insert_header(X_FORWARDED_FOR, client.to_string())?;
    }
    if let Some(host) = &identity.host {
        header.insert_header(X_FORWARDED_HOST, host.clone())?;
    }
    header.insert_header(HOST, identity.upstream_host)?;
    // Over HTTP/2 the client's authority is part of the URI, and would be taken for the host again.
    let target = header.raw_path().to_vec();
    header.set_raw_path(&target)
}

/// The trace that the request goes on in: the recorded one, else the client's with a span of ours, else a new one that nobody
/// records. Answers the header, and whether the trace is the client's.
fn traceparent(
    client_sent: Option<&HeaderValue>,
    recorded: Option<(TraceContext, u64)>,
) -> (String, bool) {
    let (context, span) = recorded.unwrap_or_else(|| {
        let kept = client_sent.and_then(TraceContext::of_header);
        let context = kept.unwrap_or_else(|| TraceContext::begin(fastrand::u128(..), 0));
        (context, fastrand::u64(1..))
    });
    (context.header(span), context.parent.is_some())
}

/// Whether an upstream's status says that we failed, so that the client gets the contract's 500 instead.
pub fn is_our_failure(status: StatusCode) -> bool {
    // Above 599 there is no status; a client would have to take it for a 5xx (RFC 9110 section 15).
    status.as_u16() >= 500
        || matches!(status.as_u16(), 401 | 403 | 407 | 408 | 421 | 429)
        // A switch of protocols that nobody asked for.
        || status == StatusCode::SWITCHING_PROTOCOLS
}

/// Whether an upstream's status says that this server cannot serve now, and another one may.
pub fn is_away(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT
    )
}

/// Lets nobody keep the caller's answer for others, and no browser guess what it is.
///
/// # Errors
/// Never in fact: the values are constants and parts of what the upstream said.
pub fn confine_response(header: &mut ResponseHeader) -> pingora::Result<()> {
    for name in [CDN_CACHE_CONTROL, SURROGATE_CONTROL] {
        header.remove_header(&name);
    }
    let said = header.headers.get_all(CACHE_CONTROL).iter();
    if let Some(private) = caching::cache_control(said.map(HeaderValue::as_bytes)) {
        header.insert_header(CACHE_CONTROL, private)?;
    }
    let varies = header.headers.get_all(VARY).iter();
    if !caching::varies_by(varies.map(HeaderValue::as_bytes), X_API_KEY.as_str()) {
        header.append_header(VARY, X_API_KEY.as_str())?;
    }
    header.insert_header(X_CONTENT_TYPE_OPTIONS, NOSNIFF)
}

/// Removes from the upstream's answer what is between it and us, or ours to say.
pub fn clean_response(header: &mut ResponseHeader) {
    for name in nominated(&header.headers) {
        header.remove_header(&name);
    }
    for name in [
        CONNECTION,
        KEEP_ALIVE,
        PROXY_CONNECTION,
        PROXY_AUTHENTICATE,
        TRAILER,
        UPGRADE,
        SERVER,
        RETRY_AFTER,
        X_REQUEST_ID,
    ] {
        header.remove_header(&name);
    }
    for name in rate_limit::ALL {
        header.remove_header(&name);
    }
    let length = header.headers.get(CONTENT_LENGTH).cloned();
    if header.status == StatusCode::NO_CONTENT {
        header.remove_header(&CONTENT_LENGTH);
        header.remove_header(&TRANSFER_ENCODING);
    } else if let Some(length) = length {
        // One that was repeated comes back as one; pingora has refused different ones.
        let _ = header.insert_header(CONTENT_LENGTH, length);
    }
}

/// The names that `Connection` nominates as hop-by-hop (RFC 9110 section 7.6.1), but for those that frame the body.
fn nominated(headers: &HeaderMap) -> Vec<HeaderName> {
    headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|token| HeaderName::try_from(token.trim()).ok())
        .filter(|name| *name != TRANSFER_ENCODING && *name != CONTENT_LENGTH)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rebuilt(headers: &[(&'static str, &str)]) -> HeaderMap {
        let mut header = RequestHeader::build("GET", b"/a?b=%20c", None).unwrap();
        for (name, value) in headers {
            header.append_header(*name, *value).unwrap();
        }
        let identity = Identity {
            request_id: &HeaderValue::from_static("r-1"),
            client: Some("192.0.2.1".parse().unwrap()),
            scheme: "https",
            host: Some(HeaderValue::from_static("api.example")),
            key_id: "abcdefghijkl",
            tier: "pro",
            upstream_host: "127.0.0.1:9000",
            recorded: None,
        };
        let denied = DeniedHeaders::new([
            HeaderName::from_static("cookie"),
            HeaderName::from_static("x-real-ip"),
        ]);
        rebuild_request(&mut header, &identity, &denied).unwrap();
        assert_eq!(header.raw_path(), b"/a?b=%20c");
        header.headers.clone()
    }

    #[test]
    fn the_key_and_forged_identity_never_pass_in_any_spelling() {
        let headers = rebuilt(&[
            ("x-api-key", "secret"),
            ("x_api_key", "secret"),
            ("x-consumer-id", "forged"),
            ("x_consumer_id", "forged"),
            ("x-consumer-role", "admin"),
            ("x-forwarded-for", "203.0.113.9"),
            ("x_forwarded_for", "203.0.113.9"),
            ("x-forwarded-prefix", "/x"),
            ("x_request_id", "forged"),
            ("transfer_encoding", "chunked"),
            ("content_length", "7"),
            ("expect", "100-continue"),
            ("cookie", "a=b"),
            ("x_real_ip", "203.0.113.9"),
            ("accept", "application/json"),
            ("x-custom", "kept"),
        ]);
        let mut names: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(
            names,
            [
                "accept",
                "host",
                "traceparent",
                "x-consumer-id",
                "x-consumer-tier",
                "x-custom",
                "x-forwarded-for",
                "x-forwarded-host",
                "x-forwarded-proto",
                "x-request-id",
            ]
        );
        assert_eq!(headers["x-consumer-id"], "abcdefghijkl");
        assert_eq!(headers["x-consumer-tier"], "pro");
        assert_eq!(headers["x-forwarded-for"], "192.0.2.1");
        assert_eq!(headers["x-forwarded-proto"], "https");
        assert_eq!(headers["x-forwarded-host"], "api.example");
        assert_eq!(headers["host"], "127.0.0.1:9000");
    }

    #[test]
    fn a_valid_trace_goes_on_with_a_span_of_ours_and_a_broken_one_is_replaced() {
        let sent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let headers = rebuilt(&[("traceparent", sent), ("tracestate", "a=b")]);
        let passed_on = TraceContext::of_header(&headers["traceparent"]).unwrap();
        assert_eq!(
            passed_on.trace_id,
            0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736
        );
        assert!(passed_on.is_recorded());
        assert_ne!(passed_on.parent, Some(0x00f0_67aa_0ba9_02b7));
        assert_eq!(headers["tracestate"], "a=b");
        for broken in [
            "",
            "x",
            "00-0-0-0",
            "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            let headers = rebuilt(&[("traceparent", broken), ("tracestate", "a=b")]);
            let begun = TraceContext::of_header(&headers["traceparent"]).unwrap();
            assert!(!begun.is_recorded(), "{broken}");
            assert!(!headers.contains_key("tracestate"));
        }
    }

    #[test]
    fn an_answer_loses_hop_by_hop_headers_and_what_is_ours_to_say() {
        let mut header = ResponseHeader::build(200, None).unwrap();
        for (name, value) in [
            ("connection", "x-hop, close"),
            ("x-hop", "1"),
            ("keep-alive", "timeout=5"),
            ("server", "upstream/1.0"),
            ("x-ratelimit-limit", "1"),
            ("ratelimit", "x"),
            ("retry-after", "9"),
            ("x-request-id", "theirs"),
            ("etag", "\"e\""),
            ("content-length", "0"),
            ("content-length", "0"),
        ] {
            header.append_header(name, value).unwrap();
        }
        clean_response(&mut header);
        let mut names: Vec<&str> = header.headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["content-length", "etag"]);
        assert_eq!(header.headers.get_all("content-length").iter().count(), 1);
    }

    #[test]
    fn statuses_that_say_we_failed() {
        for status in [
            101, 401, 403, 407, 408, 421, 429, 500, 502, 503, 504, 599, 600, 999,
        ] {
            assert!(
                is_our_failure(StatusCode::from_u16(status).unwrap()),
                "{status}"
            );
        }
        for status in [
            200, 204, 206, 304, 400, 402, 404, 405, 406, 409, 410, 412, 416, 422, 451,
        ] {
            assert!(
                !is_our_failure(StatusCode::from_u16(status).unwrap()),
                "{status}"
            );
        }
    }
}
