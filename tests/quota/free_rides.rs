//! What a client does itself never gives it an answer that is not charged, nor takes a refund away from it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use harness::upstream::Script;
use harness::{Behaviour, IssuedKey, Protocol, Scene};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;

use super::{MARKETS, TOUCHLINE};

/// More than the buffers between upstream and client hold.
const LARGE_BODY_BYTES: usize = 8 * 1024 * 1024;

fn head(method: &str, key: &IssuedKey, more: &str) -> Vec<u8> {
    let key = &key.key;
    format!("{method} {MARKETS} HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {key}\r\n{more}\r\n")
        .into()
}

/// Reads until the bytes end with `end`; everything read.
async fn read_to(socket: &mut TcpStream, end: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    while !bytes.ends_with(end) {
        let read = socket.read_buf(&mut bytes).await.unwrap();
        assert!(read > 0, "closed after {}", String::from_utf8_lossy(&bytes));
    }
    bytes
}

/// A connection that takes little at a time.
async fn narrow(address: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(64 * 1024).unwrap();
    socket.connect(address).await.unwrap()
}

/// The one request ended so, and is not refunded.
async fn assert_charged(scene: &Scene, key: &IssuedKey, outcome: &str) {
    let line = &scene.gateways[0].logged(1).await[0];
    assert_eq!(
        (&line["outcome"], &line["refunded"]),
        (&outcome.into(), &false.into()),
        "{line}"
    );
    scene.expect_used(key, 1).await;
}

/// Answers every request as soon as its header is there, and reads its body afterwards.
async fn answers_early() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            read_to(&mut socket, b"first\r\n").await;
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nearly";
            socket.write_all(answer).await.unwrap();
            tokio::spawn(async move { tokio::io::copy(&mut socket, &mut tokio::io::sink()).await });
        }
    });
    address
}

#[tokio::test]
async fn a_body_that_grows_too_large_after_the_answer_came_is_charged() {
    let upstream = answers_early().await;
    let scene = Scene::builder(TOUCHLINE)
        .spec(move |spec| {
            spec.upstream = upstream;
            spec.endpoints[0].methods.push("POST".into());
            spec.extra_yaml = "limits: { body_bytes: 1KiB }".into();
        })
        .start()
        .await;
    let key = scene.issue("starter").await;
    let mut socket = TcpStream::connect(scene.gateways[0].http).await.unwrap();
    let mut request = head("POST", &key, "Transfer-Encoding: chunked\r\n");
    request.extend(b"5\r\nfirst\r\n");
    socket.write_all(&request).await.unwrap();
    read_to(&mut socket, b"early").await;
    let more = format!("800\r\n{}\r\n", "x".repeat(0x800));
    socket.write_all(more.as_bytes()).await.unwrap();
    // The gateway closes the connection once it has settled.
    let _ = socket.read_to_end(&mut Vec::new()).await;
    assert_charged(&scene, &key, "served").await;
}

#[tokio::test]
async fn a_client_that_reads_slower_than_the_whole_answer_may_take_is_charged() {
    let scene = Scene::builder(TOUCHLINE)
        .timeout("total", "500ms")
        .start()
        .await;
    let key = scene.issue("starter").await;
    let large = "x".repeat(LARGE_BODY_BYTES);
    scene
        .upstream
        .always(Behaviour::Answer(Script::json(200, &large)));
    let mut socket = narrow(scene.gateways[0].http).await;
    let request = head("GET", &key, "Connection: close\r\n");
    socket.write_all(&request).await.unwrap();
    let mut part = vec![0; 256 * 1024];
    while socket.read(&mut part).await.is_ok_and(|read| read > 0) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_charged(&scene, &key, "cut").await;
}

#[tokio::test]
async fn a_slowly_read_answer_does_not_cost_the_next_one_its_refund() {
    let scene = Scene::builder(TOUCHLINE)
        .timeout("read", "500ms")
        .start()
        .await;
    let key = scene.issue("starter").await;
    let large = "x".repeat(LARGE_BODY_BYTES) + "end";
    scene
        .upstream
        .behave(move |request| match request.values("x-stall").is_empty() {
            true => Behaviour::Answer(Script::json(200, &large)),
            false => Behaviour::StallAfterHeader,
        });
    let mut socket = narrow(scene.gateways[0].http).await;
    socket.write_all(&head("GET", &key, "")).await.unwrap();
    tokio::time::sleep(Duration::from_millis(400)).await;
    read_to(&mut socket, b"xend").await;
    scene.expect_used(&key, 1).await;
    socket
        .write_all(&head("GET", &key, "X-Stall: 1\r\n"))
        .await
        .unwrap();
    let _ = socket.read_to_end(&mut Vec::new()).await;
    scene.expect_used(&key, 1).await;
    let lines = scene.gateways[0].logged(2).await;
    assert_eq!(lines.last().unwrap()["outcome"], "cut");
}

#[tokio::test]
async fn a_wait_for_the_client_long_before_the_upstream_falls_silent_takes_no_refund() {
    let scene = Scene::builder(TOUCHLINE)
        .timeout("read", "6s")
        .start()
        .await;
    let key = scene.issue("starter").await;
    scene.upstream.always(Behaviour::Parts {
        kind: "text/plain",
        parts: vec!["x".repeat(LARGE_BODY_BYTES).leak(), "end", "never"],
        allowed: Arc::new(Semaphore::new(2)),
    });
    let mut socket = narrow(scene.gateways[0].http).await;
    socket.write_all(&head("GET", &key, "")).await.unwrap();
    tokio::time::sleep(Duration::from_millis(400)).await;
    read_to(&mut socket, b"end\r\n").await;
    let _ = socket.read_to_end(&mut Vec::new()).await;
    let line = &scene.gateways[0].logged(1).await[0];
    assert_eq!(line["outcome"], "cut", "{line}");
    assert_eq!(line["refunded"], true, "{line}");
    scene.expect_used(&key, 0).await;
}

#[tokio::test]
async fn a_body_with_broken_chunks_is_a_bad_request_and_costs_nothing() {
    let scene = Scene::builder(TOUCHLINE)
        .spec(|spec| spec.endpoints[0].methods.push("POST".into()))
        .start()
        .await;
    let key = scene.issue("starter").await;
    for protocol in [Protocol::Http1, Protocol::Http1Tls] {
        for body in ["zz\r\nabc\r\n0\r\n\r\n", "3\r\nabcXX\r\n0\r\n\r\n"] {
            let mut request = head("POST", &key, "Transfer-Encoding: chunked\r\n");
            request.extend(body.bytes());
            let client = scene.client(protocol);
            let exchange = client.raw(request, harness::client::Until::Closed).await;
            let codes: Vec<_> = exchange
                .answers
                .iter()
                .map(|answer| answer.code())
                .collect();
            assert_eq!(codes, [Some("BAD_REQUEST".into())], "{body:?}");
        }
    }
    scene.expect_used(&key, 0).await;
}
