//! Header rewriting. Laws, whatever a client sends: the upstream gets no API key and no hop-by-hop header, exactly one of each
//! header that is ours with our value, none of them in another spelling, and the target byte for byte; the client gets nothing of the
//! upstream's that is ours to say.
#![no_main]

use http::{HeaderName, HeaderValue, Method};
use libfuzzer_sys::fuzz_target;
use pingora::http::{RequestHeader, ResponseHeader};
use touchline::proxy::forward::{
    DeniedHeaders, Identity, clean_response, confine_response, rebuild_request,
};

const TARGET: &[u8] = b"/api/v1/data/markets?a=b";
const OURS: [(&str, &str); 7] = [
    ("x-consumer-id", "0123456789ab"),
    ("x-consumer-tier", "pro"),
    ("x-forwarded-for", "192.0.2.1"),
    ("x-forwarded-proto", "https"),
    ("x-forwarded-host", "api.example"),
    ("x-request-id", "id-1"),
    ("host", "127.0.0.1:9000"),
];

fuzz_target!(|text: &[u8]| {
    let mut request = RequestHeader::build(Method::GET, TARGET, None).unwrap();
    let mut response = ResponseHeader::build(200, None).unwrap();
    for line in text.split(|byte| *byte == b'\n') {
        let mut parts = line.splitn(2, |byte| *byte == b':');
        let name = HeaderName::from_bytes(parts.next().unwrap_or_default());
        let value = HeaderValue::from_bytes(parts.next().unwrap_or_default());
        if let (Ok(name), Ok(value)) = (name, value) {
            let _ = request.append_header(name.clone(), value.clone());
            let _ = response.append_header(name, value);
        }
    }
    let id = HeaderValue::from_static("id-1");
    let identity = Identity {
        request_id: &id,
        client: Some([192, 0, 2, 1].into()),
        scheme: "https",
        host: Some(HeaderValue::from_static("api.example")),
        key_id: "0123456789ab",
        tier: "pro",
        upstream_host: "127.0.0.1:9000",
        trace: (1, 2),
    };
    let denied = DeniedHeaders::new([http::header::COOKIE, HeaderName::from_static("x-real-ip")]);
    rebuild_request(&mut request, &identity, &denied).unwrap();
    assert_eq!(request.raw_path(), TARGET);
    for (name, expected) in OURS {
        let values: Vec<&[u8]> = request
            .headers
            .get_all(name)
            .iter()
            .map(HeaderValue::as_bytes)
            .collect();
        assert_eq!(values, [expected.as_bytes()], "{name}");
    }
    assert_eq!(request.headers.get_all("traceparent").iter().count(), 1);
    for name in request.headers.keys() {
        let folded = name.as_str().replace('_', "-");
        let gone = [
            "x-api-key",
            "cookie",
            "x-real-ip",
            "te",
            "trailer",
            "upgrade",
            "keep-alive",
            "proxy-connection",
            "expect",
        ];
        assert!(!gone.contains(&folded.as_str()), "{name}");
        let ours = folded.starts_with("x-consumer-")
            || folded.starts_with("x-forwarded-")
            || ["x-request-id", "host", "traceparent", "tracestate"].contains(&folded.as_str());
        // Only in its own spelling, and only what is listed.
        let listed = OURS.iter().any(|(one, _)| *one == name.as_str())
            || ["traceparent", "tracestate"].contains(&name.as_str());
        assert!(!ours || listed, "{name}");
    }
    clean_response(&mut response);
    confine_response(&mut response).unwrap();
    for name in [
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
    ] {
        assert!(!response.headers.contains_key(name), "{name}");
    }
    let caching: Vec<&[u8]> = response
        .headers
        .get_all("cache-control")
        .iter()
        .map(HeaderValue::as_bytes)
        .collect();
    let kept = |value: &[u8]| {
        let text = String::from_utf8_lossy(value).to_ascii_lowercase();
        text.contains("private") || text.contains("no-store")
    };
    assert!(caching.iter().any(|value| kept(value)), "{caching:?}");
    assert_eq!(
        response
            .headers
            .get_all("x-content-type-options")
            .iter()
            .count(),
        1
    );
});
