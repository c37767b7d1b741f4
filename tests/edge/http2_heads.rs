//! Heads over HTTP/2 that are refused: with the contract's answer and a line in the log where the gateway refuses them, with a
//! count where the library below it resets their streams.

use std::future::poll_fn;

use bytes::Bytes;
use h2::client::SendRequest;
use harness::client::next_request_id;
use harness::{IssuedKey, PATIENCE, Protocol, Scene};
use http::{Request, StatusCode};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::frames::{END_HEADERS, END_STREAM, Frame, HEADERS, RST_STREAM, Stream, Wire, block};
use super::{MARKETS, TOUCHLINE, limit_hits};

const PROTOCOLS: [Protocol; 2] = [Protocol::Http2Clear, Protocol::Http2Tls];
/// Heads that are refused on one connection before it ends.
const REFUSED_MAX: usize = 32;

type Fields<'a> = &'a [(&'a str, &'a str)];

/// Opens a stream without a host, with more fields.
async fn ask<S: Stream>(
    wire: &mut Wire<S>,
    stream: u32,
    method: &str,
    pseudo: Fields<'_>,
    more: Fields<'_>,
    ends: bool,
) {
    let line = [
        (":method", method),
        (":scheme", "https"),
        (":path", MARKETS),
    ];
    let fields = [&line[..], pseudo, more].concat();
    assert!(wire.headers(stream, &fields, ends).await);
}

#[tokio::test]
async fn a_head_over_http2_without_one_usable_host_has_the_contracts_400_and_a_line_in_the_log() {
    let scene = Scene::builder(TOUCHLINE)
        .spec(|spec| spec.endpoints[0].methods.push("POST".into()))
        .start()
        .await;
    let key = scene.issue("starter").await;
    let unusable: [(Fields<'_>, Fields<'_>); 9] = [
        (&[], &[]),
        (&[(":authority", "localhost")], &[("host", "other")]),
        (&[(":authority", "localhost")], &[("host", "LOCALHOST")]),
        (&[(":authority", "localhost")], &[("host", "")]),
        (&[(":authority", "u@localhost")], &[]),
        (&[(":authority", "u@localhost")], &[("host", "localhost")]),
        (&[(":authority", "localhost")], &[("host", "u@localhost")]),
        (&[], &[("host", "a b")]),
        (&[], &[("host", "localhost"), ("host", "localhost")]),
    ];
    let mut refused = 0;
    for protocol in PROTOCOLS {
        let mut wire = Wire::over(protocol, &scene).await;
        let mut stream = 1;
        for (pseudo, hosts) in unusable {
            for method in ["GET", "HEAD", "POST"] {
                let id = next_request_id();
                let more = [hosts, &[("x-api-key", &*key.key), ("x-request-id", &*id)]].concat();
                ask(&mut wire, stream, method, pseudo, &more, method != "POST").await;
                let what = format!("{method} {pseudo:?} {hosts:?}");
                let body = wire.body(stream).await;
                if method == "HEAD" {
                    assert!(body.is_empty(), "{what}");
                } else {
                    let problem: serde_json::Value = serde_json::from_slice(&body).unwrap();
                    assert_eq!(problem["code"], "BAD_REQUEST", "{what}");
                    assert_eq!(problem["status"], 400, "{what}");
                    assert_eq!(problem["request_id"], id, "{what}");
                }
                let line = scene.gateways[0].logged_where(|line| line["request_id"] == id.as_str());
                let line = line.await;
                assert_eq!(line["outcome"], "BAD_REQUEST", "{what}: {line}");
                assert_eq!(line["status"], 400, "{what}: {line}");
                assert_eq!(line["method"], method, "{what}: {line}");
                assert_eq!(line["protocol"], "HTTP/2", "{what}: {line}");
                stream += 2;
                refused += 1;
            }
        }
        // The streams beside them are served.
        wire = Wire::over(protocol, &scene).await;
        wire.get(1, "//", &key.key).await;
        assert_eq!(wire.problem(1).await["code"], "BAD_REQUEST");
        refused += 1;
        wire.get(3, MARKETS, &key.key).await;
        assert!(!wire.body(3).await.is_empty());
    }
    let series =
        "touchline_requests_total{endpoint=\"none\",outcome=\"BAD_REQUEST\",tier=\"none\"}";
    assert_eq!(scene.metric(series).await, f64::from(refused));
    assert_eq!(scene.upstream.count(), PROTOCOLS.len());
    scene.expect_used(&key, PROTOCOLS.len() as u64).await;
}

#[tokio::test]
async fn over_http2_the_host_comes_from_either_field() {
    let scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    for protocol in PROTOCOLS {
        let mut wire = Wire::over(protocol, &scene).await;
        let mut stream = 1;
        let authority = (":authority", "api.example:8443");
        for (pseudo, host) in [
            (&[authority][..], None),
            (&[authority], Some("api.example:8443")),
            (&[], Some("api.example:8443")),
            (&[], Some(" api.example:8443\t")),
        ] {
            let id = next_request_id();
            let mut more = vec![("x-api-key", &*key.key), ("x-request-id", &*id)];
            more.extend(host.map(|host| ("host", host)));
            ask(&mut wire, stream, "GET", pseudo, &more, true).await;
            assert!(!wire.body(stream).await.is_empty());
            let request = scene.upstream.recorded_as(&id).pop().unwrap();
            assert_eq!(request.values("x-forwarded-host"), ["api.example:8443"]);
            assert_eq!(request.values("host").len(), 1);
            stream += 2;
        }
    }
}

#[tokio::test]
async fn requests_over_http2_whose_heads_arrive_in_parts_and_together_are_all_answered() {
    let scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    let fields = [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "localhost"),
        (":path", MARKETS),
        ("x-api-key", &key.key),
    ];
    let head = |stream| Frame::new(HEADERS, END_STREAM | END_HEADERS, stream, block(&fields));
    for protocol in PROTOCOLS {
        let mut wire = Wire::over(protocol, &scene).await;
        let [first, second, third] = [1, 3, 5].map(|stream| head(stream).bytes());
        let (begin, rest) = second.split_at(20);
        for (sent, answers) in [([&first[..], begin], 1), ([rest, &third[..]], 2)] {
            wire.socket.write_all(&sent.concat()).await.unwrap();
            wire.socket.flush().await.unwrap();
            assert!(wire.whole_answers(answers).await > 0, "{protocol:?}");
        }
    }
}

#[tokio::test]
async fn a_connection_ends_after_32_heads_over_http2_that_are_refused() {
    let scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    for protocol in PROTOCOLS {
        let mut wire = Wire::over(protocol, &scene).await;
        let mut stream = 1;
        for _ in 0..REFUSED_MAX {
            let key = ("x-api-key", &*key.key);
            ask(&mut wire, stream, "GET", &[], &[key], true).await;
            assert_eq!(wire.problem(stream).await["code"], "BAD_REQUEST");
            stream += 2;
        }
        let mut code = None;
        while let Some(frame) = wire.next().await {
            code = code.or(frame.goaway_code());
        }
        assert_eq!(code, Some(0));
    }
    assert_eq!(scene.upstream.count(), 0);
}

#[tokio::test]
async fn a_head_over_http2_that_the_library_cannot_read_is_counted() {
    let scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    let (method, scheme, authority) = (
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "localhost"),
    );
    let path = (":path", MARKETS);
    let unreadable: [Fields<'_>; 11] = [
        &[method, scheme, authority, (":path", "/a b")],
        &[method, scheme, authority, (":path", "")],
        &[method, scheme, authority, (":path", "http://localhost/a")],
        &[method, scheme, authority],
        &[method, scheme, (":authority", ""), path],
        &[method, scheme, (":authority", "a b"), path],
        &[scheme, authority, path],
        &[method, authority, path],
        &[method, scheme, authority, path, ("connection", "close")],
        &[method, scheme, authority, path, ("te", "gzip")],
        &[method, scheme, authority, path, ("content-length", "+5")],
    ];
    let mut counted = 0.0;
    for protocol in PROTOCOLS {
        let mut wire = Wire::over(protocol, &scene).await;
        let mut stream = 1;
        for fields in unreadable {
            let fields = [fields, &[("x-api-key", &*key.key)]].concat();
            assert!(wire.headers(stream, &fields, true).await);
            let reset = loop {
                let frame = wire
                    .next()
                    .await
                    .unwrap_or_else(|| panic!("no reset for {fields:?}"));
                if frame.stream == stream {
                    break frame;
                }
            };
            assert_eq!(
                (reset.kind, &*reset.payload),
                (RST_STREAM, &[0, 0, 0, 1][..])
            );
            counted += 1.0;
            let hits = limit_hits(&scene, "h2_malformed").await;
            assert_eq!(hits, counted, "{fields:?}");
            stream += 2;
        }
        // What the gateway refuses itself is no such stream.
        wire.get(stream, "//", &key.key).await;
        assert_eq!(wire.problem(stream).await["code"], "BAD_REQUEST");
        wire.get(stream + 2, MARKETS, &key.key).await;
        assert!(!wire.body(stream + 2).await.is_empty());
        assert_eq!(limit_hits(&scene, "h2_malformed").await, counted);
    }
    scene.expect_used(&key, PROTOCOLS.len() as u64).await;
}

#[tokio::test]
async fn a_long_method_is_refused_and_a_key_in_a_method_is_not_logged() {
    let scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    let mut wire = Wire::open(&scene).await;
    let (host, more) = ([(":authority", "localhost")], [("x-api-key", &*key.key)]);
    for (stream, method) in [(1, &*key.key), (3, &"x".repeat(33))] {
        ask(&mut wire, stream, method, &host, &more, true).await;
        assert_eq!(wire.problem(stream).await["code"], "BAD_REQUEST");
    }
    for line in scene.gateways[0].logged(2).await {
        assert!(!line.to_string().contains(&key.key[17..]), "{line}");
    }
    scene.expect_used(&key, 0).await;
}

/// Sends the head of a request that waits to be asked for its body, and `hello` when it is; the statuses of its answers.
async fn expect_continue(
    client: &mut SendRequest<Bytes>,
    method: &str,
    key: &str,
) -> Vec<StatusCode> {
    let request = Request::builder()
        .method(method)
        .uri(format!("http://localhost{MARKETS}"))
        .header("x-api-key", key)
        .header("expect", "100-continue");
    let request = request.body(()).unwrap();
    let (mut answer, mut body) = client.send_request(request, false).unwrap();
    let mut statuses = Vec::new();
    let exchange = async {
        while let Some(interim) = poll_fn(|context| answer.poll_informational(context)).await {
            statuses.push(interim.unwrap().status());
            body.send_data(Bytes::from_static(b"hello"), true).unwrap();
        }
        statuses.push(answer.await.unwrap().status());
    };
    let exchange = tokio::time::timeout(PATIENCE, exchange);
    exchange.await.expect("an answer");
    statuses
}

#[tokio::test]
async fn a_client_over_http2_that_waits_to_be_asked_for_its_body_is_asked_or_refused_at_once() {
    let scene = Scene::builder(TOUCHLINE)
        .spec(|spec| {
            spec.endpoints[0].methods.push("POST".into());
            // Longer than the test waits.
            spec.extra_yaml = "limits: { request_read: 5m }".into();
        })
        .start()
        .await;
    let key: IssuedKey = scene.issue("starter").await;
    let socket = TcpStream::connect(scene.gateways[0].http).await.unwrap();
    let (mut client, connection) = h2::client::handshake(socket).await.unwrap();
    tokio::spawn(connection);
    for (method, key, statuses) in [
        ("POST", &*key.key, &[100, 200][..]),
        ("POST", "wrong", &[401]),
        ("GET", &*key.key, &[400]),
    ] {
        assert_eq!(
            expect_continue(&mut client, method, key).await,
            statuses,
            "{method}"
        );
    }
    let forwarded = scene.upstream.recorded().pop().unwrap();
    assert_eq!(forwarded.body, b"hello");
    assert!(forwarded.values("expect").is_empty());
    scene.expect_used(&key, 1).await;
}
