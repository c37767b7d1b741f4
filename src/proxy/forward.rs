//! What crosses the gateway: the request as the upstream receives it, and the answer's header as the client receives it.
//!
//! The request is rebuilt, not relayed: key, hop-by-hop and forged identity headers are removed, the gateway's own added. Header
//! names are compared with all but letters and digits taken as `-`, because some servers do not distinguish them. The target is
//! forwarded byte for byte.

use std::net::IpAddr;

use http::header::{CACHE_CONTROL, CONTENT_LOCATION, EXPECT, HOST, LOCATION, VARY};
use http::{HeaderName, HeaderValue, StatusCode};

use crate::policy::header_pattern::HeaderNames;
use crate::policy::http1::fields::{EndToEnd, FieldList, NoField};
use crate::policy::http1::framing::Framing;
use crate::policy::http1::request::RequestHead;
use crate::policy::trace_context::TraceContext;
use crate::policy::{caching, own_header, rate_limit};

/// The header that carries the API key.
pub const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// The request id, in both directions.
pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Set on every answer: clients must not guess the media type.
pub const NOSNIFF: HeaderValue = HeaderValue::from_static("nosniff");
/// The caller's trace (W3C Trace Context).
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
const X_CONSUMER_ID: HeaderName = HeaderName::from_static("x-consumer-id");
const X_CONSUMER_TIER: HeaderName = HeaderName::from_static("x-consumer-tier");
/// The client's address, as stated by proxies.
pub const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// Whether the request was received over TLS.
pub const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
/// The requested host.
pub const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
/// A client's fields that the gateway replaces or handles itself.
static REPLACED: [HeaderName; 4] = [HOST, EXPECT, TRACEPARENT, X_REQUEST_ID];

/// Whether a client's header is not forwarded: by the gateway itself, or by the names that the configuration denies.
fn is_denied(denied: &HeaderNames, name: &[u8]) -> bool {
    // In another spelling, a header that is read or set here would pass as the client's own.
    own_header::identifies_caller(name)
        || (own_header::has_variants(name) && own_header::is_read_or_set(name))
        || denied.fits(name)
}

/// A request as a server of its upstream receives it.
#[derive(Debug)]
pub struct Outgoing<'a> {
    /// The client's head.
    pub head: &'a RequestHead,
    /// The server's own name or address.
    pub host: &'a HeaderValue,
    /// The framing of its body.
    pub framing: Framing,
    /// The request id.
    pub request_id: &'a HeaderValue,
    /// The client's address.
    pub client: &'a HeaderValue,
    /// `https` or `http`.
    pub scheme: &'static str,
    /// The requested host.
    pub asked_host: Option<&'a [u8]>,
    /// The public id of the key.
    pub key_id: &'a [u8],
    /// The key's tier.
    pub tier: &'a str,
    /// The trace that the request is recorded in, and the id of this attempt's span.
    pub recorded: Option<(TraceContext, u64)>,
    /// The client's fields that are not forwarded.
    pub denied: &'a HeaderNames,
    /// The field that authenticates the gateway to the upstream.
    pub secret: Option<&'a (HeaderName, HeaderValue)>,
}

impl Outgoing<'_> {
    /// Calls `write` with each field except `Host` and those for framing: the client's forwarded fields in their order, then the
    /// gateway's.
    ///
    /// # Errors
    /// If a field of the gateway is invalid, which checked configurations exclude.
    pub fn fields(&self, mut write: impl FnMut(EndToEnd<'_>)) -> Result<(), NoField> {
        let received = self.head.fields.first(&TRACEPARENT);
        let (traceparent, goes_on) = traceparent(received, self.recorded);
        let secret = self.secret.map(|(name, _)| name);
        for field in self.head.fields.end_to_end() {
            let is = |name: &HeaderName| field.is(name);
            let ours = REPLACED.iter().any(is);
            let stale = !goes_on && is(&TRACESTATE);
            if !(ours || stale || secret.is_some_and(is) || is_denied(self.denied, field.name())) {
                write(field);
            }
        }
        let own = [
            (&TRACEPARENT, Some(&*traceparent)),
            (&X_REQUEST_ID, Some(self.request_id.as_bytes())),
            (&X_CONSUMER_ID, Some(self.key_id)),
            (&X_CONSUMER_TIER, Some(self.tier.as_bytes())),
            (&X_FORWARDED_PROTO, Some(self.scheme.as_bytes())),
            (&X_FORWARDED_FOR, Some(self.client.as_bytes())),
            (&X_FORWARDED_HOST, self.asked_host),
        ];
        let secret = self
            .secret
            .map(|(name, value)| (name, Some(value.as_bytes())));
        for (name, text) in own.into_iter().chain(secret) {
            if let Some(text) = text {
                write(EndToEnd::of_text(name, text)?);
            }
        }
        Ok(())
    }
}

/// A client's address, as sent to upstreams.
pub fn address(client: IpAddr) -> HeaderValue {
    // An address contains only characters that are valid in a header's value.
    HeaderValue::try_from(client.to_string()).unwrap_or(HeaderValue::from_static("unknown"))
}

/// The trace of the forwarded request: the recorded one, else the client's with a span of ours, else a new one that is not
/// recorded. Returns the header, and whether the trace is the client's.
fn traceparent(
    client_sent: Option<&[u8]>,
    recorded: Option<(TraceContext, u64)>,
) -> (Vec<u8>, bool) {
    let (context, span) = recorded.unwrap_or_else(|| {
        let kept = client_sent.and_then(TraceContext::of_header);
        let context = kept.unwrap_or_else(|| TraceContext::begin(fastrand::u128(..), 0));
        (context, fastrand::u64(1..))
    });
    (context.header(span), context.parent.is_some())
}

/// Whether an upstream's status means that we failed, so that the client gets the contract's 500 instead.
pub fn is_our_failure(status: StatusCode) -> bool {
    // No status is defined above 599; a client would have to treat it as a 5xx (RFC 9110 section 15).
    status.as_u16() >= 500
        || matches!(status.as_u16(), 401 | 403 | 407 | 408 | 421 | 429)
        // A switch of protocols that was not requested.
        || status == StatusCode::SWITCHING_PROTOCOLS
}

/// Whether an upstream's status means that this server is temporarily unavailable, and another one may not be.
pub fn is_away(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT
    )
}

/// Keeps shared caches from storing the caller's answer for others.
pub fn confine_answer(fields: &mut FieldList) {
    if let Some(private) = caching::cache_control(fields.all(&CACHE_CONTROL)) {
        fields.insert(CACHE_CONTROL, private);
    }
    if !caching::varies_by(fields.all(&VARY), X_API_KEY.as_str()) {
        fields.append(VARY, HeaderValue::from_name(X_API_KEY));
    }
}

/// Makes links of an answer to the server's own address relative, if this is the `Host` that it was sent (RFC 9110 section 10.2.2):
/// clients cannot reach it, and those that follow redirects would send their key there.
pub fn relate_links(fields: &mut FieldList, host: &HeaderValue) {
    for name in [LOCATION, CONTENT_LOCATION] {
        let link = fields.first(&name);
        if let Some(path) = link.and_then(|link| path_at(link, host.as_bytes())) {
            fields.insert(name, path);
        }
    }
}

/// The path and what follows it of a URL of HTTP at this `host:port`, which may lack the scheme's own port, or the scheme (RFC 3986
/// section 4.2).
fn path_at(url: &[u8], host: &[u8]) -> Option<HeaderValue> {
    let (url, host) = (
        std::str::from_utf8(url).ok()?,
        std::str::from_utf8(host).ok()?,
    );
    let (scheme, rest) = match url.strip_prefix("//") {
        Some(rest) => ("", rest),
        None => url.split_once("://")?,
    };
    let ports: &[&str] = match scheme.to_ascii_lowercase().as_str() {
        "" => &[":80", ":443"],
        "http" => &[":80"],
        "https" => &[":443"],
        _ => return None,
    };
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let is_host = |host: &str| authority.eq_ignore_ascii_case(host);
    let is_without = |port: &&str| host.strip_suffix(port).is_some_and(is_host);
    if !is_host(host) && !ports.iter().any(is_without) {
        return None;
    }
    let before = match path.as_bytes() {
        [b'/'] => "",
        // Browsers take a second slash, and a backslash or tab that becomes one, for the beginning of another host (RFC 3986 section 4.2).
        [b'/', second, ..] if second.is_ascii_alphanumeric() || b"-._~%?#".contains(second) => "",
        [b'/', ..] => "/.",
        _ => "/",
    };
    HeaderValue::try_from(format!("{before}{path}")).ok()
}

/// Headers between an upstream and the gateway, or set by the gateway.
const NOT_PASSED_ON: [&str; 8] = [
    "proxy-authenticate",
    "server",
    "date",
    "retry-after",
    "x-request-id",
    "x-content-type-options",
    // Instructions for caches in front of a service that override Cache-Control, beside those of RFC 9213.
    "edge-control",
    "surrogate-control",
];
/// The end of the names of such instructions, after the name of a cache (RFC 9213), such as `CDN-Cache-Control`.
const TARGETED: &[u8; 14] = b"-cache-control";

/// Removes from the upstream's answer the headers that are hop-by-hop, frame its body, are set by the gateway or are `denied`.
pub fn clean_answer(status: StatusCode, fields: &mut FieldList, denied: &HeaderNames) {
    // Caches and other clients may see an interim answer; only the final answer may set a cookie.
    let interim = status.is_informational();
    fields.retain_end_to_end(|name| {
        let is = |own: &&str| name.eq_ignore_ascii_case(own.as_bytes());
        let ours = NOT_PASSED_ON.iter().any(is) || rate_limit::ALL.iter().any(is);
        let is_end = |end: &[u8; TARGETED.len()]| end.eq_ignore_ascii_case(TARGETED);
        let targeted = name.last_chunk().is_some_and(is_end);
        !(ours || targeted || (interim && is(&"set-cookie")) || denied.fits(name))
    });
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;

    use super::*;
    use crate::policy::http1::HeadBounds;
    use crate::policy::http1::request::RequestReader;

    fn rebuilt(headers: &[(&'static str, &str)]) -> HeaderMap {
        let lines = headers
            .iter()
            .map(|(name, value)| format!("{name}: {value}\r\n"));
        let lines: String = lines.collect();
        let text = format!("POST /a?b=%20c HTTP/1.1\r\nHost: api.example\r\n{lines}\r\n");
        let bounds = HeadBounds {
            target_bytes_max: 64,
            header_bytes_max: 4096,
            header_count_max: 64,
        };
        let head = RequestReader::whole_head(&text, &bounds).unwrap();
        let denied = ["cookie", "x-real-ip"].map(|name| name.parse().unwrap());
        let outgoing = Outgoing {
            head: &head,
            host: &HeaderValue::from_static("127.0.0.1:9000"),
            framing: Framing::Empty,
            request_id: &HeaderValue::from_static("r-1"),
            client: &HeaderValue::from_static("192.0.2.1"),
            scheme: "https",
            asked_host: head.host(),
            key_id: b"abcdefghijkl",
            tier: "pro",
            recorded: None,
            denied: &HeaderNames::new(&denied),
            secret: None,
        };
        let mut map = HeaderMap::new();
        let written = outgoing.fields(|field| {
            let name = HeaderName::from_bytes(field.name()).unwrap();
            map.append(name, HeaderValue::from_bytes(field.value()).unwrap());
        });
        written.unwrap();
        map
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
            ("content-length", "7"),
            ("te", "trailers"),
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
    }

    #[test]
    fn a_valid_trace_goes_on_with_a_span_of_ours_and_a_broken_one_is_replaced() {
        let sent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let headers = rebuilt(&[("traceparent", sent), ("tracestate", "a=b")]);
        let passed_on = TraceContext::of_header(headers["traceparent"].as_bytes()).unwrap();
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
            let begun = TraceContext::of_header(headers["traceparent"].as_bytes()).unwrap();
            assert!(!begun.is_recorded(), "{broken}");
            assert!(!headers.contains_key("tracestate"));
        }
    }

    #[test]
    fn an_answer_loses_hop_by_hop_headers_and_those_that_the_gateway_sets() {
        let mut fields = FieldList::default();
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
            fields.append(name.parse().unwrap(), HeaderValue::from_static(value));
        }
        clean_answer(StatusCode::OK, &mut fields, &HeaderNames::default());
        let names: Vec<&[u8]> = fields.iter().map(|field| field.name).collect();
        assert_eq!(names, [b"etag"]);
    }

    #[test]
    fn links_to_the_servers_own_address_become_relative_and_no_others() {
        let host = HeaderValue::from_static("10.0.0.1:9000");
        let plain = HeaderValue::from_static("data.internal:80");
        for (host, link, expected) in [
            (&host, "http://10.0.0.1:9000/v1/a?b#c", "/v1/a?b#c"),
            (&host, "HTTPS://10.0.0.1:9000", "/"),
            (&host, "http://10.0.0.1:9000?b", "/?b"),
            (
                &host,
                "http://10.0.0.1:9000/\\evil.example/",
                "/./\\evil.example/",
            ),
            (
                &host,
                "http://10.0.0.1:9000/\t/evil.example/",
                "/./\t/evil.example/",
            ),
            (
                &host,
                "http://10.0.0.1:9000//evil.example/",
                "/.//evil.example/",
            ),
            (&host, "http://10.0.0.1:90001/a", "http://10.0.0.1:90001/a"),
            (&host, "http://10.0.0.1/a", "http://10.0.0.1/a"),
            (
                &host,
                "http://u@10.0.0.1:9000/a",
                "http://u@10.0.0.1:9000/a",
            ),
            (&host, "ftp://10.0.0.1:9000/a", "ftp://10.0.0.1:9000/a"),
            (&host, "/v1/a", "/v1/a"),
            (&host, "//10.0.0.1:9000/v1/a", "/v1/a"),
            (&host, "//10.0.0.1:9000", "/"),
            (&host, "//10.0.0.1:9000//evil.example/", "/.//evil.example/"),
            (&host, "//10.0.0.1/v1/a", "//10.0.0.1/v1/a"),
            (&plain, "//data.internal/v1/a", "/v1/a"),
            (&plain, "http://Data.Internal/v1/a", "/v1/a"),
            (
                &plain,
                "https://data.internal/v1/a",
                "https://data.internal/v1/a",
            ),
        ] {
            for name in [LOCATION, CONTENT_LOCATION] {
                let mut fields = FieldList::default();
                fields.append(name.clone(), HeaderValue::from_static(link));
                relate_links(&mut fields, host);
                assert_eq!(fields.first(&name), Some(expected.as_bytes()), "{link}");
            }
        }
    }

    #[test]
    fn statuses_that_mean_that_we_failed() {
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
