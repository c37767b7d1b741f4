//! What crosses the gateway: the request as the upstream gets it, the answer's header as the client gets it.
//!
//! The request is rebuilt, not relayed: key, hop-by-hop and forged identity headers go, ours come. Header names are
//! compared with `_` taken as `-`, because some servers read both alike. The target goes through byte for byte.
//!
//! Fields are changed in the maps of the `http` crate, not through pingora, which would keep beside each name how it was
//! spelt: names have no case (RFC 9110 section 5.1), and that costs as much as all the rest of forwarding.

use std::mem;
use std::net::IpAddr;

use http::header::{
    CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, EXPECT, HOST, RETRY_AFTER, SERVER, SET_COOKIE, TE,
    TRAILER, TRANSFER_ENCODING, UPGRADE, VARY,
};
use http::uri::Uri;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, request, response};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::{ErrorType, OrErr};

use crate::policy::header_pattern::{self, HeaderNames, HeaderPattern};
use crate::policy::trace_context::TraceContext;
use crate::policy::{caching, http1, own_header, rate_limit};

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
    pub client: Option<HeaderValue>,
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
pub struct DeniedHeaders(HeaderNames);

impl DeniedHeaders {
    /// Denies what `patterns` name.
    pub fn new<'a>(patterns: impl IntoIterator<Item = &'a HeaderPattern>) -> DeniedHeaders {
        DeniedHeaders(HeaderNames::new(patterns))
    }

    fn contains(&self, name: &HeaderName) -> bool {
        let folded = header_pattern::folded(name);
        let text = folded.as_str();
        // In another spelling those that are read or set here would pass as the client's own.
        own_header::tells_who_calls(text)
            || (*folded != *name && own_header::is_read_or_set(text))
            || self.0.contains(&folded)
    }
}

/// Turns the client's header into the upstream's.
///
/// # Errors
/// If a value of ours is no header value, which checked configurations exclude.
pub fn rebuild_request(
    header: &mut RequestHeader,
    identity: &Identity<'_>,
    denied: &DeniedHeaders,
) -> pingora::Result<()> {
    let mut parts = request_parts(header);
    let told = parts.headers.get(TRACEPARENT);
    let (traceparent, goes_on) = traceparent(told, identity.recorded);
    let fields = mem::take(&mut parts.headers);
    let nominated = nominated(&fields);
    let mut fields = kept(fields, ADDED_TO_REQUEST, |name| {
        let ours = [HOST, TRACEPARENT, X_REQUEST_ID].contains(name);
        let stale = !goes_on && *name == TRACESTATE;
        let ends_here = BETWEEN_NEIGHBOURS.contains(name) || nominated.contains(name);
        !(ours || ends_here || stale || denied.contains(name))
    });
    let length = fields.get(CONTENT_LENGTH).map(HeaderValue::as_bytes);
    if let Some(length) = length.and_then(http1::length) {
        fields.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    fields.insert(TRACEPARENT, value(&traceparent)?);
    fields.insert(X_REQUEST_ID, identity.request_id.clone());
    fields.insert(X_CONSUMER_ID, value(identity.key_id)?);
    fields.insert(X_CONSUMER_TIER, value(identity.tier)?);
    fields.insert(X_FORWARDED_PROTO, HeaderValue::from_static(identity.scheme));
    if let Some(client) = &identity.client {
        fields.insert(X_FORWARDED_FOR, client.clone());
    }
    if let Some(host) = &identity.host {
        fields.insert(X_FORWARDED_HOST, host.clone());
    }
    fields.insert(HOST, value(identity.upstream_host)?);
    parts.headers = fields;
    // Over HTTP/2 the client's authority is part of the URI, and would be taken for the host again.
    if let (Some(_), Some(target)) = (parts.uri.authority(), parts.uri.path_and_query()) {
        parts.uri = Uri::from(target.clone());
    }
    *header = parts.into();
    Ok(())
}

/// Of a request, for the gateway alone, which has answered `Expect` itself and frames bodies anew.
const BETWEEN_NEIGHBOURS: [HeaderName; 9] = [
    TE,
    TRAILER,
    KEEP_ALIVE,
    PROXY_CONNECTION,
    UPGRADE,
    EXPECT,
    CONNECTION,
    TRANSFER_ENCODING,
    HeaderName::from_static("http2-settings"),
];

/// What the library's header is about; an empty one stays in its place.
fn request_parts(header: &mut RequestHeader) -> request::Parts {
    let (empty, ()) = http::Request::new(()).into_parts();
    mem::replace(header, empty.into()).into()
}

/// The same of an answer's header. A reason phrase is given up: none has a meaning (RFC 9112 section 4).
fn response_parts(header: &mut ResponseHeader) -> response::Parts {
    let (empty, ()) = http::Response::new(()).into_parts();
    mem::replace(header, empty.into()).into()
}

/// Fields that the gateway adds to a request. Room for more is 1 kB more a request under way: maps double.
const ADDED_TO_REQUEST: usize = 8;
/// And those to an answer.
const ADDED_TO_ANSWER: usize = 12;

/// The fields whose names are to be kept, in their order, with room for `added` more.
fn kept(fields: HeaderMap, added: usize, is_kept: impl Fn(&HeaderName) -> bool) -> HeaderMap {
    let mut all = HeaderMap::with_capacity(fields.len() + added);
    let mut present = None;
    // A field of several values has its name with the first.
    for (name, value) in fields {
        if let Some(name) = name {
            present = Some(name).filter(&is_kept);
        }
        if let Some(name) = &present {
            all.append(name.clone(), value);
        }
    }
    all
}

/// A client's address, as upstreams are told.
pub fn address(client: IpAddr) -> HeaderValue {
    // An address has no other characters than a header's value may have.
    HeaderValue::try_from(client.to_string()).unwrap_or(HeaderValue::from_static("unknown"))
}

fn value(text: &str) -> pingora::Result<HeaderValue> {
    HeaderValue::from_str(text).or_err(ErrorType::InvalidHTTPHeader, "no header value")
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

/// Lets nobody keep the caller's answer for others.
pub fn confine_response(fields: &mut HeaderMap) {
    let said = fields.get_all(CACHE_CONTROL).iter();
    if let Some(private) = caching::cache_control(said.map(HeaderValue::as_bytes)) {
        // Made of parts of what was a header's value.
        let private = HeaderValue::try_from(private).unwrap_or(caching::NO_STORE);
        fields.insert(CACHE_CONTROL, private);
    }
    let varies = fields.get_all(VARY).iter();
    if !caching::varies_by(varies.map(HeaderValue::as_bytes), X_API_KEY.as_str()) {
        fields.append(VARY, HeaderValue::from_name(X_API_KEY));
    }
}

/// Between an upstream and us, or ours to say.
const NOT_PASSED_ON: [HeaderName; 11] = [
    CONNECTION,
    KEEP_ALIVE,
    PROXY_CONNECTION,
    PROXY_AUTHENTICATE,
    TRAILER,
    UPGRADE,
    SERVER,
    RETRY_AFTER,
    X_REQUEST_ID,
    CDN_CACHE_CONTROL,
    SURROGATE_CONTROL,
];

/// Removes from the upstream's answer the hop-by-hop headers, the gateway's own and those `denied`, then lets `add` insert the
/// gateway's own.
pub fn clean_response(
    header: &mut ResponseHeader,
    denied: &HeaderNames,
    add: impl FnOnce(&mut HeaderMap),
) {
    let mut parts = response_parts(header);
    let fields = mem::take(&mut parts.headers);
    let nominated = nominated(&fields);
    let empty = parts.status == StatusCode::NO_CONTENT;
    // Caches and other clients may see an interim answer; a cookie in it would be the final answer's to set.
    let interim = parts.status.is_informational();
    let mut fields = kept(fields, ADDED_TO_ANSWER, |name| {
        if [CONTENT_LENGTH, TRANSFER_ENCODING].contains(name) {
            return !empty;
        }
        let ours = NOT_PASSED_ON.contains(name) || rate_limit::ALL.contains(name);
        let early = interim && *name == SET_COOKIE;
        let denied = denied.contains(&header_pattern::folded(name));
        !(ours || early || denied || nominated.contains(name))
    });
    if fields.contains_key(CONTENT_LENGTH) {
        // Written anew as one number. The reader has refused what frames a body by others; what frames none may name anything.
        let sent = fields.get_all(CONTENT_LENGTH).iter();
        match http1::agreed_length(sent.map(HeaderValue::as_bytes)) {
            Some(length) => fields.insert(CONTENT_LENGTH, HeaderValue::from(length)),
            None => fields.remove(CONTENT_LENGTH),
        };
    }
    add(&mut fields);
    parts.headers = fields;
    *header = parts.into();
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
            client: Some(HeaderValue::from_static("192.0.2.1")),
            scheme: "https",
            host: Some(HeaderValue::from_static("api.example")),
            key_id: "abcdefghijkl",
            tier: "pro",
            upstream_host: "127.0.0.1:9000",
            recorded: None,
        };
        let denied = ["cookie", "x-real-ip"].map(|name| name.parse().unwrap());
        let denied = DeniedHeaders::new(&denied);
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
        clean_response(&mut header, &HeaderNames::default(), |_| ());
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
