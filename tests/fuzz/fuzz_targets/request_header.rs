//! Header rewriting. Laws, whatever a client sends: the upstream gets no API key and no hop-by-hop header, exactly one of each
//! header that is ours with our value, none of them in another spelling, the target byte for byte, and every other header as it
//! came; the client gets nothing of the upstream's that only the gateway may state, and an answer that no cache may keep for others.
#![no_main]

use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode};
use libfuzzer_sys::fuzz_target;
use touchline::policy::header_pattern::HeaderNames;
use touchline::policy::http1::fields::FieldList;
use touchline::policy::http1::framing::Framing;
use touchline::policy::http1::request::RequestHead;
use touchline::proxy::forward::{Outgoing, clean_answer, confine_answer};

const TARGET: &str = "/api/v1/data/markets?a=b";
/// The fields that the gateway sets for the upstream.
const OURS: [(&str, &str); 6] = [
    ("x-consumer-id", "0123456789ab"),
    ("x-consumer-tier", "pro"),
    ("x-forwarded-for", "192.0.2.1"),
    ("x-forwarded-proto", "https"),
    ("x-forwarded-host", "api.example"),
    ("x-request-id", "id-1"),
];
/// What goes in every spelling: the key, and what the configuration denies.
const GONE: [&str; 3] = ["x-api-key", "cookie", "x-real-ip"];
/// What is between the client and the gateway, or frames the message.
const HOP_BY_HOP: [&str; 12] = [
    "te",
    "trailer",
    "upgrade",
    "keep-alive",
    "proxy-connection",
    "proxy-authenticate",
    "http2-settings",
    "connection",
    "transfer-encoding",
    "content-length",
    "host",
    "expect",
];
/// What an upstream may not state in the gateway's place.
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

/// A name with all but letters and digits as hyphens, as some servers read it.
fn folded(name: &str) -> String {
    name.replace(|character: char| !character.is_ascii_alphanumeric(), "-")
}

fn assert_request(sent: &[(HeaderName, HeaderValue)]) {
    let (mut parts, ()) = Request::get(TARGET).body(()).unwrap().into_parts();
    for (name, value) in sent {
        parts.headers.append(name.clone(), value.clone());
    }
    let before = parts.headers.clone();
    let head = RequestHead::of_http2(parts);
    assert_eq!(head.raw_target(), TARGET.as_bytes());
    let denied = ["cookie", "x-real-ip"].map(|name| name.parse().unwrap());
    let outgoing = Outgoing {
        head: &head,
        host: &HeaderValue::from_static("127.0.0.1:9000"),
        framing: Framing::Empty,
        request_id: &HeaderValue::from_static("id-1"),
        client: &HeaderValue::from_static("192.0.2.1"),
        scheme: "https",
        asked_host: Some(b"api.example"),
        key_id: b"0123456789ab",
        tier: "pro",
        recorded: None,
        denied: &HeaderNames::new(&denied),
        secret: None,
    };
    let mut after = HeaderMap::new();
    let written = outgoing.fields(|field| {
        let name = HeaderName::from_bytes(field.name()).unwrap();
        after.append(name, HeaderValue::from_bytes(field.value()).unwrap());
    });
    written.unwrap();
    let nominated: Vec<String> = values(&before, "connection")
        .into_iter()
        .flat_map(|value| value.split(|byte| *byte == b','))
        .map(|option| String::from_utf8_lossy(option.trim_ascii()).to_ascii_lowercase())
        .collect();

    for (name, expected) in OURS {
        assert_eq!(values(&after, name), [expected.as_bytes()], "{name}");
    }
    assert_eq!(values(&after, "traceparent").len(), 1);
    for name in after.keys() {
        let name = name.as_str();
        let folded = folded(name);
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
            // White space around a value is not part of it.
            let sent = values(&before, &name).into_iter().map(<[u8]>::trim_ascii);
            assert_eq!(values(&after, &name), sent.collect::<Vec<_>>());
        }
    }
    // A plain name that is neither ours nor denied is never lost.
    for name in before.keys() {
        let name = name.as_str();
        let passes = folded(name) == name
            && !GONE.contains(&name)
            && !HOP_BY_HOP.contains(&name)
            && !name.starts_with("x-consumer-")
            && !name.starts_with("x-forwarded-")
            && !nominated.iter().any(|one| one == name)
            && name != "tracestate";
        assert!(!passes || after.contains_key(name), "{name}");
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
    let mut fields = FieldList::default();
    for (name, value) in sent {
        fields.append(name.clone(), value.clone());
    }
    let before = fields.clone().into_map();
    clean_answer(StatusCode::OK, &mut fields, &HeaderNames::default());
    confine_answer(&mut fields);
    let after = fields.into_map();
    for name in NOT_THE_UPSTREAMS {
        assert!(!after.contains_key(name), "{name}");
    }
    assert!(after.keys().all(|name| {
        let added = ["cache-control", "vary"].contains(&name.as_str());
        added || before.contains_key(name)
    }));
    let directives = directives(&after);
    let has = |one: &str| directives.iter().any(|directive| directive == one);
    let is_for_others = ["public", "s-maxage", "proxy-revalidate"]
        .into_iter()
        .any(has);
    assert!(
        has("no-store") || (has("private") && !is_for_others),
        "{after:?}"
    );
    let varies = values(&after, "vary");
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
