//! Step 1 beside the target: Host, framing, sizes, bodies.

use harness::client::{HOST, Until};
use harness::{Call, Protocol, SLACK, Scene};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{MARKETS, TOUCHLINE, assert_problem, raw_get};

#[tokio::test]
async fn a_request_needs_exactly_one_plain_host() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    for hosts in [
        "",
        "Host:\r\n",
        "Host: \r\n",
        "Host: a b\r\n",
        "Host: a/b\r\n",
        "Host: a,b\r\n",
    ] {
        let request = format!(
            "GET {MARKETS} HTTP/1.1\r\n{hosts}X-API-Key: {}\r\n\r\n",
            key.key
        );
        let exchange = client.raw(request, Until::Answers(1)).await;
        let answer = exchange.answers.first();
        let answer = answer.unwrap_or_else(|| panic!("no answer to {hosts:?}"));
        assert_eq!(answer.status, 400, "{hosts:?}");
        assert_problem(answer, 400, "BAD_REQUEST");
    }
    let exchange = raw_get(&client, MARKETS.as_bytes(), &key.key, "Host: other\r\n").await;
    assert_problem(&exchange.answers[0], 400, "BAD_REQUEST");
    assert_eq!(scene.upstream.count(), 0);
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn a_body_on_a_method_that_takes_none_is_refused() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    for protocol in Protocol::ALL {
        let call = Call::get(MARKETS).key(&key).body("surprise");
        let answer = scene.client(protocol).call(call).await;
        assert_problem(&answer, 400, "BAD_REQUEST");
    }
    let client = scene.client(Protocol::Http1);
    let chunked = "Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n";
    let exchange = raw_get(&client, MARKETS.as_bytes(), &key.key, chunked).await;
    assert_problem(&exchange.answers[0], 400, "BAD_REQUEST");
    assert_eq!(scene.upstream.count(), 0);
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn contradicting_framing_is_refused() {
    let mut scene = Scene::builder(TOUCHLINE)
        .spec(|spec| spec.endpoints[0].methods.push("POST".into()))
        .start()
        .await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    for framing in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
        "Content-Length: +5\r\n\r\nabcde",
        "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ] {
        let request = format!(
            "POST {MARKETS} HTTP/1.1\r\nHost: {HOST}\r\nX-API-Key: {}\r\n{framing}",
            key.key
        );
        let exchange = client.raw(request, Until::Answers(1)).await;
        assert_problem(&exchange.answers[0], 400, "BAD_REQUEST");
    }
    assert_eq!(scene.upstream.count(), 0);
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn a_target_above_8_kib_is_too_long_and_one_of_8_kib_is_not() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    let padded = |length: usize| {
        let start = format!("{MARKETS}?a=");
        format!("{start}{}", "x".repeat(length - start.len()))
    };
    for protocol in Protocol::ALL {
        let client = scene.client(protocol);
        assert_eq!(client.get(&key, &padded(8_192)).await.status, 200);
        assert_problem(&client.get(&key, &padded(8_193)).await, 414, "URI_TOO_LONG");
    }
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn headers_above_16_kib_or_more_than_64_are_too_large() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    for protocol in Protocol::ALL {
        let client = scene.client(protocol);
        // `Host`, which HTTP/2 has outside its fields, as HTTP/1 counts it.
        let (host_count, host_bytes) = match protocol.is_http2() {
            true => (0, 0),
            false => (1, "host".len() + HOST.len() + 4),
        };
        let call = || {
            let id = harness::client::next_request_id();
            Call::get(MARKETS).key(&key).header("x-request-id", id)
        };
        let large = |length: usize| {
            let call = call();
            let sizes = call.headers.iter();
            let sizes = sizes.map(|(name, value)| name.as_str().len() + value.len() + 4);
            let used = sizes.sum::<usize>() + host_bytes + "x-large".len() + 4;
            call.header("x-large", "x".repeat(length - used))
        };
        assert_eq!(client.call(large(16_384)).await.status, 200);
        assert_problem(&client.call(large(16_385)).await, 431, "HEADERS_TOO_LARGE");
        let many = |count: usize| {
            let call = call();
            (call.headers.len() + host_count..count).fold(call, |call, number| {
                call.header(&format!("x-{number}"), "1")
            })
        };
        assert_eq!(client.call(many(64)).await.status, 200);
        assert_problem(&client.call(many(65)).await, 431, "HEADERS_TOO_LARGE");
    }
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn a_body_above_the_limit_is_too_large() {
    let mut scene = Scene::builder(TOUCHLINE)
        .spec(|spec| {
            spec.endpoints[0].methods.push("POST".into());
            spec.extra_yaml = "limits: { body_bytes: 1KiB }".into();
        })
        .start()
        .await;
    let key = scene.issue("starter").await;
    for protocol in Protocol::ALL {
        let client = scene.client(protocol);
        let call = |length: usize| {
            Call::new("POST", MARKETS)
                .key(&key)
                .body("x".repeat(length))
        };
        assert_eq!(client.call(call(1_024)).await.status, 200);
        assert_eq!(scene.upstream.recorded().last().unwrap().body.len(), 1_024);
        assert_problem(&client.call(call(1_025)).await, 413, "PAYLOAD_TOO_LARGE");
    }
    assert_eq!(scene.upstream.count(), 3);
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn a_client_that_waits_to_be_asked_for_its_body_is_asked_or_refused_at_once() {
    let scene = Scene::builder(TOUCHLINE)
        .spec(|spec| spec.endpoints[0].methods.push("POST".into()))
        .start()
        .await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    let expecting = |key: &str| {
        format!(
            "POST {MARKETS} HTTP/1.1\r\nHost: {HOST}\r\nX-API-Key: {key}\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"
        )
    };
    let asked = std::time::Instant::now();
    let exchange = client.raw(expecting("wrong"), Until::Answers(1)).await;
    assert_problem(&exchange.answers[0], 401, "INVALID_API_KEY");
    assert_eq!(exchange.answers[0].header("connection"), Some("close"));
    assert!(asked.elapsed() < SLACK, "waited for the body");

    let mut socket = TcpStream::connect(scene.gateways[0].http).await.unwrap();
    let head = expecting(&key.key);
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        assert!(socket.read_buf(&mut bytes).await.unwrap() > 0);
    }
    assert!(bytes.starts_with(b"HTTP/1.1 100 "), "{bytes:?}");
    bytes.clear();
    socket.write_all(b"hello").await.unwrap();
    while !bytes.ends_with(b"}") {
        assert!(socket.read_buf(&mut bytes).await.unwrap() > 0);
    }
    assert!(bytes.starts_with(b"HTTP/1.1 200 "), "{bytes:?}");
    let forwarded = scene.upstream.recorded().pop().unwrap();
    assert_eq!(forwarded.body, b"hello");
    assert!(forwarded.values("expect").is_empty());
    scene.expect_used(&key, 1).await;
}
