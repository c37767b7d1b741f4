//! Header rewriting. Laws, whatever a client sends: the upstream gets no API key and no hop-by-hop header, exactly one of each
//! header that is ours with our value, none of them in another spelling, the target byte for byte, and every other header as it
//! came; the client gets nothing of the upstream's that is ours to say, and an answer that nobody may keep for others.
#![no_main]

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use libfuzzer_sys::fuzz_target;
use pingora::http::{RequestHeader, ResponseHeader};
use touchline::policy::header_pattern::HeaderNames;
use touchline::proxy::forward::{
    DeniedHeaders, Identity, clean_response, confine_response, rebuild_request,
};

const TARGET: &[u8] = b"/api/v1/data/markets?a=b";
/// What the gateway tells the upstream.
const OURS: [(&str, &str); 7] = [
    ("x-consumer-id", "0123456789ab"),
    ("x-consumer-tier", "pro"),
    ("x-forwarded-for", "192.0.2.1"),
    ("x-forwarded-proto", "https"),
    ("x-forwarded-host", "api.example"),
    ("x-request-id", "id-1"),
    ("host", "127.0.0.1:9000"),
];
/// What goes in every spelling: the key, and what the configuration denies.
const GONE: [&str; 3] = ["x-api-key", "cookie", "x-real-ip"];
/// What is between the client and the gateway.
const HOP_BY_HOP: [&str; 6] = [
    "te",
    "trailer",
    "upgrade",
    "keep-alive",
    "proxy-connection",
    "expect",
];
/// What an upstream may not say in the gateway's place.
const NOT_THE_UPSTREAMS: [&str; 10] = [
    "server",
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "ratelimit",
    "ratelimit-policy",
    "retry-after",
    "x-request-id",
    "cdn-cache-control",
    "surrogate-control",
];

/// The header fields of a text, a line each.
fn fields(text: &[u8]) -> Vec<(HeaderName, HeaderValue)> {
    let field = |line: &[u8]| {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let (name, value) = line.split_at(colon);
        Some((
            HeaderName::from_bytes(name).ok()?,
            HeaderValue::from_bytes(&value[1..]).ok()?,
        ))
    };
    text.split(|byte| *byte == b'\n')
        .filter_map(field)
        .collect()
}

fn values<'a>(headers: &'a HeaderMap, name: &str) -> Vec<&'a [u8]> {
    let all = headers.get_all(name).iter();
    all.map(HeaderValue::as_bytes).collect()
}

fn assert_request(sent: &[(HeaderName, HeaderValue)]) {
    let mut request = RequestHeader::build(Method::GET, TARGET, None).unwrap();
    for (name, value) in sent {
        request.append_header(name.clone(), value.clone()).unwrap();
    }
    let before = request.headers.clone();
    let id = HeaderValue::from_static("id-1");
    let identity = Identity {
        request_id: &id,
        client: Some(HeaderValue::from_static("192.0.2.1")),
        scheme: "https",
        host: Some(HeaderValue::from_static("api.example")),
        key_id: "0123456789ab",
        tier: "pro",
        upstream_host: "127.0.0.1:9000",
        recorded: None,
    };
    let denied = ["cookie", "x-real-ip"].map(|name| name.parse().unwrap());
    let denied = DeniedHeaders::new(&denied);
    rebuild_request(&mut request, &identity, &denied).unwrap();

    assert_eq!(request.raw_path(), TARGET);
    for (name, expected) in OURS {
        let told = values(&request.headers, name);
        assert_eq!(told, [expected.as_bytes()], "{name}");
    }
    assert_eq!(values(&request.headers, "traceparent").len(), 1);
    for name in request.headers.keys() {
        let name = name.as_str();
        let folded = name.replace('_', "-");
        assert!(!GONE.contains(&folded.as_str()), "{name}");
        assert!(!HOP_BY_HOP.contains(&folded.as_str()), "{name}");
        let ours = folded.starts_with("x-consumer-")
            || folded.starts_with("x-forwarded-")
            || OURS.iter().any(|(one, _)| *one == folded)
            || ["traceparent", "tracestate"].contains(&folded.as_str());
        // Only in its own spelling, and only what is listed.
        let listed = OURS.iter().any(|(one, _)| *one == name)
            || ["traceparent", "tracestate"].contains(&name);
        assert!(!ours || listed, "{name}");
        if !ours {
            let name = name.to_owned();
            assert_eq!(values(&request.headers, &name), values(&before, &name));
        }
    }
    // A plain name that is neither ours nor denied is never lost.
    for name in before.keys() {
        let name = name.as_str();
        let passes = !name.contains('_')
            && !GONE.contains(&name)
            && !HOP_BY_HOP.contains(&name)
            && !name.starts_with("x-consumer-")
            && !name.starts_with("x-forwarded-")
            && name != "tracestate";
        assert!(!passes || request.headers.contains_key(name), "{name}");
    }
}

/// The names of the directives of `Cache-Control`; what stands in quotes is not read, and a `private` that is for some fields only is
/// none.
fn directives(headers: &HeaderMap) -> Vec<String> {
    let mut all = Vec::new();
    for value in values(headers, "cache-control") {
        let (mut plain, mut quoted, mut escaped) = (Vec::new(), false, false);
        for byte in value {
            match byte {
                _ if escaped => escaped = false,
                b'\\' if quoted => escaped = true,
                // What is quoted leaves a quote, so that nothing grows together.
                b'"' => {
                    quoted = !quoted;
                    plain.push(b'"');
                }
                _ if quoted => {}
                _ => plain.push(byte.to_ascii_lowercase()),
            }
        }
        let plain = String::from_utf8_lossy(&plain).into_owned();
        for directive in plain.split(',') {
            let (name, argument) = match directive.split_once('=') {
                Some((name, argument)) => (name.trim(), Some(argument)),
                None => (directive.trim(), None),
            };
            if name != "private" || argument.is_none() {
                all.push(name.to_owned());
            }
        }
    }
    all
}

fn assert_response(sent: &[(HeaderName, HeaderValue)]) {
    let mut response = ResponseHeader::build(200, None).unwrap();
    for (name, value) in sent {
        response.append_header(name.clone(), value.clone()).unwrap();
    }
    let before = response.headers.clone();
    clean_response(&mut response, &HeaderNames::default(), confine_response);
    for name in NOT_THE_UPSTREAMS {
        assert!(!response.headers.contains_key(name), "{name}");
    }
    let confined = |headers: &HeaderMap| {
        let directives = directives(headers);
        let says = |one: &str| directives.iter().any(|directive| directive == one);
        let to_others = ["public", "s-maxage"].into_iter().any(says);
        (says("private") || says("no-store"), to_others)
    };
    let (already, _) = confined(&before);
    let (confined, to_others) = confined(&response.headers);
    assert!(confined, "{:?}", response.headers);
    assert!(already || !to_others, "{:?}", response.headers);
    let varies = values(&response.headers, "vary");
    let named = |value: &[u8]| {
        let value = String::from_utf8_lossy(value).to_ascii_lowercase();
        value
            .split(',')
            .any(|name| ["x-api-key", "*"].contains(&name.trim()))
    };
    assert!(varies.into_iter().any(named));
}

fuzz_target!(|text: &[u8]| {
    let sent = fields(text);
    assert_request(&sent);
    assert_response(&sent);
});
