//! Heads that cannot be read in one way only: the contract's answer, a line in the log, a count in the metrics, and
//! nothing upstream.

use std::time::Duration;

use harness::client::{HOST, Until};
use harness::{Behaviour, Call, Protocol, Scene};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{MARKETS, TOUCHLINE, assert_problem, limit_hits};

/// Whole heads, `KEY` quota status for a valid key.
const UNREADABLE: &[&[u8]] = &[
    b"GET /api/v1/data/markets?a b HTTP/1.1\r\nHost: h\r\nX-API-Key: KEY\r\n\r\n",
    b"GET  /api/v1/data/markets HTTP/1.1\r\nHost: h\r\nX-API-Key: KEY\r\n\r\n",
    b"GET\t/api/v1/data/markets HTTP/1.1\r\nHost: h\r\nX-API-Key: KEY\r\n\r\n",
    b"GET /api/v1/data/markets\r\n",
    b"GET /api/v1/data/markets HTTP/1.10\r\nHost: h\r\nX-API-Key: KEY\r\n\r\n",
    b"GET /api/v1/data/markets HTTP/1.x\r\nHost: h\r\nX-API-Key: KEY\r\n\r\n",
    b"GET /api/v1/data/markets HTTP/1.2\r\nX-API-Key: KEY\r\n\r\n",
    b"GET /api/v1/data/markets HTTP/2.0\r\nHost: h\r\nX-API-Key: KEY\r\n\r\n",
    b"GET /api/v1/data/markets http/1.1\r\nHost: h\r\nX-API-Key: KEY\r\n\r\n",
    b"GET /api/v1/data/markets HTTP/1.1\nHost: h\nX-API-Key: KEY\n\n",
    b"GET /api/v1/data/markets HTTP/1.1\r\nHost: h\nX-API-Key: KEY\r\n\r\n",
    b"GET /api/v1/data/markets HTTP/1.1\r\nHost: h\r\nX-API-Key: KEY\r\n\n",
    b"GET /api/v1/data/markets HTTP/1.1\r\nHost: h\r\nX-API-Key:\r\n KEY\r\n\r\n",
    b"GET /api/v1/data/markets HTTP/1.1\r\n Host: h\r\nX-API-Key: KEY\r\n\r\n",
    b"GET /api/v1/data/markets HTTP/1.1\r\nHost: h\r\nX-API-Key : KEY\r\n\r\n",
    b"GET /api/v1/data/markets HTTP/1.1\r\nHost: h\r\nX-API-Key: KEY\r\nA\x00: b\r\n\r\n",
    b"GET /api/v1/data/markets HTTP/1.1\r\nHost: h\r\nX-API-Key: KEY\r\nA: \x00\r\n\r\n",
    b"GET /api/v1/data/markets HTTP/1.1\r\nHost: h\r\nX-API-Key: KEY\r\nA: b\rc\r\n\r\n",
    b"GET /api/v1/data/markets HTTP/1.1\r\nHost: h\r\nX-API-Key: KEY\r\n: b\r\n\r\n",
    b"GET /api/v1/data/markets HTTP/1.1\r\nHost: h\r\nX-API-Key: KEY\r\nA\r\n\r\n",
    b"GET /api/v1/data/markets HTTP/1.1\r\nHost: h\r\nHost: h\r\nX-API-Key: KEY\r\n\r\n",
    b"GET /api/v1/data/markets HTTP/1.1\r\nHost: u@h\r\nX-API-Key: KEY\r\n\r\n",
    b"GET /api/v1/data/markets HTTP/1.1\r\nX-API-Key: KEY\r\n\r\n",
    b"GET http://h/api/v1/data/markets HTTP/1.1\r\nX-API-Key: KEY\r\n\r\n",
    b"GET http://h/api/v1/data/markets HTTP/1.1\r\nHost: h\r\nHost: h\r\nX-API-Key: KEY\r\n\r\n",
    b"GET http://h/api/v1/data/markets HTTP/1.1\r\nHost: u@h\r\nX-API-Key: KEY\r\n\r\n",
    b"GET http://u@h/api/v1/data/markets HTTP/1.1\r\nHost: h\r\nX-API-Key: KEY\r\n\r\n",
    b"GET http://h:x/api/v1/data/markets HTTP/1.1\r\nHost: h\r\nX-API-Key: KEY\r\n\r\n",
    b"GET http:///api/v1/data/markets HTTP/1.1\r\nHost: h\r\nX-API-Key: KEY\r\n\r\n",
    b"GET http:/api/v1/data/markets HTTP/1.1\r\nHost: h\r\nX-API-Key: KEY\r\n\r\n",
    b"GET http:\\\\h/api/v1/data/markets HTTP/1.1\r\nHost: h\r\nX-API-Key: KEY\r\n\r\n",
    b"GET http://h\\evil/api/v1/data/markets HTTP/1.1\r\nHost: h\r\nX-API-Key: KEY\r\n\r\n",
    b"GET http://h/api/v1/data/../data/markets HTTP/1.1\r\nHost: h\r\nX-API-Key: KEY\r\n\r\n",
    b"GET http://h/api//v1/data/markets HTTP/1.1\r\nHost: h\r\nX-API-Key: KEY\r\n\r\n",
    b"GET http://h/api/v1/data/markets#f HTTP/1.1\r\nHost: h\r\nX-API-Key: KEY\r\n\r\n",
    b"GET http://h#/api/v1/data/markets HTTP/1.1\r\nHost: h\r\nX-API-Key: KEY\r\n\r\n",
    b"GET ftp://h/api/v1/data/markets HTTP/1.1\r\nHost: h\r\nX-API-Key: KEY\r\n\r\n",
    b"OPTIONS http://h HTTP/1.1\r\nHost: h\r\nX-API-Key: KEY\r\n\r\n",
    b"GET h:80 HTTP/1.1\r\nHost: h\r\nX-API-Key: KEY\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: h\r\nX-API-Key: KEY\r\n\r\n",
    b"G(T /api/v1/data/markets HTTP/1.1\r\nHost: h\r\nX-API-Key: KEY\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n",
    b"\r\n\r\n\r\nGET /api/v1/data/markets HTTP/1.1\r\nHost: h\r\nX-API-Key: KEY\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"\x80\x00\x00\x00",
];

fn with_key(head: &[u8], key: &str) -> Vec<u8> {
    let at = head.windows(3).position(|window| window == b"KEY");
    match at {
        Some(at) => [&head[..at], key.as_bytes(), &head[at + 3..]].concat(),
        None => head.to_vec(),
    }
}

#[tokio::test]
async fn what_cannot_be_read_in_one_way_only_gets_the_contracts_400_and_the_connection_closes() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    for protocol in [Protocol::Http1, Protocol::Http1Tls] {
        let client = scene.client(protocol);
        for head in UNREADABLE {
            let exchange = client.raw(with_key(head, &key.key), Until::Closed).await;
            let what = head.escape_ascii();
            assert!(exchange.closed, "{what}");
            assert_eq!(exchange.answers.len(), 1, "{what}: {exchange:?}");
            assert_problem(&exchange.answers[0], 400, "BAD_REQUEST");
            assert_eq!(exchange.answers[0].header("connection"), Some("close"));
        }
    }
    let expected = 2 * UNREADABLE.len();
    let lines = scene.gateways[0].logged(expected).await;
    assert_eq!(lines.len(), expected);
    for line in &lines {
        assert_eq!(line["outcome"], "BAD_REQUEST", "{line}");
        assert_eq!(line["status"], 400, "{line}");
    }
    let series =
        "touchline_requests_total{endpoint=\"none\",outcome=\"BAD_REQUEST\",tier=\"none\"}";
    assert!((scene.metric(series).await - expected as f64).abs() < 0.5);
    assert_eq!(scene.upstream.count(), 0);
    assert_eq!(scene.used(&key).await, 0);
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn connect_is_a_405_over_both_protocols() {
    let scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    for target in ["upstream:80", MARKETS, "127.0.0.1:22"] {
        let request = format!(
            "CONNECT {target} HTTP/1.1\r\nHost: {HOST}\r\nX-API-Key: {}\r\n\r\n",
            key.key
        );
        let exchange = scene
            .client(Protocol::Http1)
            .raw(request, Until::Closed)
            .await;
        assert!(exchange.closed);
        assert_problem(&exchange.answers[0], 405, "METHOD_NOT_ALLOWED");
        assert!(exchange.answers[0].header("allow").is_some());
    }
    let mut wire = super::frames::Wire::open(&scene).await;
    wire.headers(
        1,
        &[
            (":method", "CONNECT"),
            (":authority", "upstream:80"),
            ("x-api-key", &key.key),
        ],
        true,
    )
    .await;
    let problem = wire.problem(1).await;
    assert_eq!(
        (&problem["status"], &problem["code"]),
        (&405.into(), &"METHOD_NOT_ALLOWED".into())
    );
    assert_eq!(scene.upstream.count(), 0);
}

#[tokio::test]
async fn a_refused_head_keeps_its_request_id_and_is_logged_with_the_time_it_took() {
    let scene = Scene::builder(TOUCHLINE).start().await;
    let client = scene.client(Protocol::Http1);
    let folded = "GET / HTTP/1.1\r\nHost: h\r\nX-Request-Id: mine-1\r\n folded: x\r\n\r\n";
    let exchange = client.raw(folded, Until::Closed).await;
    assert_problem(&exchange.answers[0], 400, "BAD_REQUEST");
    assert_eq!(exchange.answers[0].header("x-request-id"), Some("mine-1"));
    let bad = "GET / HTTP/1.1\r\nHost: h\r\nX-Request-Id: a b\r\n folded: x\r\n\r\n";
    let exchange = client.raw(bad, Until::Closed).await;
    assert_ne!(exchange.answers[0].header("x-request-id"), Some("a b"));
    // The second half of a head comes when the first has been there for a while.
    let mut socket = TcpStream::connect(scene.gateways[0].http).await.unwrap();
    let (first, second) = folded.split_at(20);
    socket.write_all(first.as_bytes()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    let second = second.replace("mine-1", "mine-2");
    socket.write_all(second.as_bytes()).await.unwrap();
    let _ = socket.read_to_end(&mut Vec::new()).await;
    let line = scene.gateways[0].logged_where(|line| line["request_id"] == "mine-2");
    let took = line.await["duration_ms"].as_f64().unwrap();
    assert!((1.0..20_000.0).contains(&took), "{took} ms");
}

#[tokio::test]
async fn a_head_that_grows_over_its_limits_is_refused_before_it_ends() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    let endless_target = format!("GET /{}", "a".repeat(9_000));
    let exchange = client.raw(endless_target, Until::Closed).await;
    assert_problem(&exchange.answers[0], 414, "URI_TOO_LONG");
    let endless_header = format!("GET / HTTP/1.1\r\nHost: h\r\nA: {}", "b".repeat(20_000));
    let exchange = client.raw(endless_header, Until::Closed).await;
    assert_problem(&exchange.answers[0], 431, "HEADERS_TOO_LARGE");
    let many = format!(
        "GET {MARKETS} HTTP/1.1\r\nHost: h\r\nX-API-Key: {}\r\n{}\r\n",
        key.key,
        "a: b\r\n".repeat(300)
    );
    let exchange = client.raw(many, Until::Closed).await;
    assert_problem(&exchange.answers[0], 431, "HEADERS_TOO_LARGE");
    let megabyte = format!(
        "GET / HTTP/1.1\r\nHost: h\r\nA: {}\r\n\r\n",
        "b".repeat(2_000_000)
    );
    let exchange = client.raw(megabyte, Until::Closed).await;
    assert_problem(&exchange.answers[0], 431, "HEADERS_TOO_LARGE");
    assert!((limit_hits(&scene, "headers").await - 3.0).abs() < 0.5);
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn a_short_http_1_0_request_is_served_and_its_connection_closed() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    // Shorter than what HTTP/2 begins with.
    let exchange = client.raw("GET / HTTP/1.0\r\n\r\n", Until::Closed).await;
    assert!(exchange.closed);
    assert_problem(&exchange.answers[0], 401, "MISSING_API_KEY");
    let request = format!("GET {MARKETS} HTTP/1.0\r\nX-API-Key: {}\r\n\r\n", key.key);
    let exchange = client.raw(request, Until::Closed).await;
    assert!(
        exchange.closed && exchange.answers[0].status == 200,
        "{exchange:?}"
    );
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn an_absolute_target_is_served_and_its_authority_takes_the_place_of_host() {
    let scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    for protocol in [Protocol::Http1, Protocol::Http1Tls] {
        let client = scene.client(protocol);
        for (target, version, host, path, forwarded_host) in [
            (
                "http://api.example",
                "1.1",
                "Host: other\r\n",
                "?a=http://x/",
                "api.example",
            ),
            (
                "HTTPS://API.example:8443",
                "1.1",
                "Host: api.example\r\n",
                "",
                "API.example:8443",
            ),
            ("http://[::1]:80", "1.2", "Host: [::1]\r\n", "?", "[::1]:80"),
            ("http://api.example", "1.0", "", "", "api.example"),
        ] {
            let path = format!("{MARKETS}{path}");
            let request = format!(
                "GET {target}{path} HTTP/{version}\r\nX-Own: 1\r\n{host}X-API-Key: {}\r\n\r\n",
                key.key
            );
            let until = match version {
                "1.0" => Until::Closed,
                _ => Until::Answers(1),
            };
            let exchange = client.raw(request, until).await;
            let answer = &exchange.answers[0];
            assert_eq!(answer.status, 200, "{target}: {exchange:?}");
            assert_eq!(exchange.closed, version == "1.0");
            let id = answer.header("x-request-id").unwrap().to_owned();
            let request = scene.upstream.recorded_as(&id).pop().unwrap();
            assert_eq!(request.target_text(), path);
            assert_eq!(request.values("x-forwarded-host"), [forwarded_host]);
            assert_eq!(request.values("host").len(), 1);
            assert_eq!(request.values("x-own"), ["1"]);
            let line = scene.gateways[0].logged_where(|line| line["request_id"] == id.as_str());
            assert_eq!(line.await["path"], MARKETS);
        }
        // Each of several on one connection, and the root without its slash.
        let one = format!(
            "GET http://h{MARKETS} HTTP/1.1\r\nHost: x\r\nX-API-Key: {}\r\n\r\n",
            key.key
        );
        let root = "GET http://h?a HTTP/1.1\r\nHost: x\r\n\r\n";
        let exchange = client.raw(one.repeat(3) + root, Until::Answers(4)).await;
        let statuses: Vec<u16> = exchange.answers.iter().map(|one| one.status).collect();
        assert_eq!(statuses, [200, 200, 200, 401], "{exchange:?}");
    }
    scene.expect_used(&key, 14).await;
    assert_eq!(scene.upstream.count(), 14);
}

#[tokio::test]
async fn a_head_of_a_later_minor_version_is_read_as_http_1_1() {
    let scene = Scene::builder(TOUCHLINE)
        .spec(|spec| spec.endpoints[0].methods.push("POST".into()))
        .start()
        .await;
    let key = scene.issue("starter").await;
    for protocol in [Protocol::Http1, Protocol::Http1Tls] {
        let client = scene.client(protocol);
        for version in ["1.2", "1.9"] {
            let post = format!(
                "\r\nPOST {MARKETS} HTTP/{version}\r\nHost: {HOST}\r\nX-API-Key: {}\r\nX-Request-Id: later-{version}\r\n\
                 Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
                key.key
            );
            let exchange = client.raw(post.repeat(2), Until::Answers(2)).await;
            let statuses: Vec<u16> = exchange.answers.iter().map(|one| one.status).collect();
            assert_eq!(statuses, [200, 200], "{exchange:?}");
            assert!(!exchange.closed);
            let recorded = scene.upstream.recorded_as(&format!("later-{version}"));
            assert_eq!(recorded[0].body, b"hello");
            assert_eq!(recorded[0].version, http::Version::HTTP_11);
        }
    }
    scene.expect_used(&key, 8).await;
    assert_eq!(scene.upstream.count(), 8);
}

#[tokio::test]
async fn content_length_is_written_anew_towards_both_sides() {
    let mut scene = Scene::builder(TOUCHLINE)
        .spec(|spec| spec.endpoints[0].methods.push("POST".into()))
        .start()
        .await;
    let key = scene.issue("starter").await;
    for protocol in Protocol::ALL {
        let client = scene.client(protocol);
        for (sent, written) in [("5", "5"), ("005", "5"), ("0000000000000000005", "5")] {
            let call = Call::new("POST", MARKETS)
                .key(&key)
                .header("content-length", sent)
                .body("hello");
            let answer = client.call(call).await;
            assert_eq!(answer.status, 200, "{protocol:?} {sent}: {answer:?}");
            let id = answer.header("x-request-id").unwrap();
            let request = scene.upstream.recorded_as(id).pop().unwrap();
            assert_eq!(request.values("content-length"), [written], "{protocol:?}");
            assert_eq!(request.body, b"hello");
        }
        for framing in [
            "Content-Length: 2\r\n",
            "Content-Length: 002\r\n",
            "Content-Length: 2, 2\r\n",
            "Content-Length: 2,2 ,\t2\r\n",
            "Content-Length: 2\r\nContent-Length: 2\r\n",
        ] {
            let bytes = format!("HTTP/1.1 200 OK\r\n{framing}\r\n{{}}").into_bytes();
            scene.upstream.always(Behaviour::Raw(bytes));
            for method in ["GET", "HEAD"] {
                let answer = client.call(Call::new(method, MARKETS).key(&key)).await;
                assert_eq!(answer.status, 200, "{protocol:?} {framing:?}: {answer:?}");
                let lengths: Vec<&str> = answer
                    .headers
                    .iter()
                    .filter(|(name, _)| name.as_str() == "content-length")
                    .map(|(_, value)| value.to_str().unwrap())
                    .collect();
                assert_eq!(lengths, ["2"], "{protocol:?} {framing:?}");
                let body: &[u8] = if method == "GET" { b"{}" } else { b"" };
                assert_eq!(answer.body, body);
            }
        }
        scene.upstream.always(Behaviour::Echo);
    }
    scene.assert_ledgers_agree().await;
}
