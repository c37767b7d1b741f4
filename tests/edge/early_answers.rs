//! Requests that turn out malformed or too large after the upstream has begun to answer them: the answer is cut, and refunded unless
//! a part of its body was sent or the upstream had ended it.

use std::time::Duration;

use harness::client::HOST;
use harness::upstream::Script;
use harness::{Behaviour, Call, IssuedKey, PATIENCE, Protocol, Scene};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::frames::{DATA, END_STREAM, Frame, HEADERS, RST_STREAM, Wire};
use super::{MARKETS, TOUCHLINE};

/// An answer of which no more comes.
const HEAD: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
/// One whose end does not come.
const BEGUN: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nearly\r\n";
/// A whole one.
const WHOLE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nearly";
/// `body_bytes`.
const BODY_BYTES_MAX: usize = 64 * 1024;

/// A gateway in front of an upstream that gives this answer to each head, and reads on.
async fn answered_early(answer: &'static str) -> (Scene, IssuedKey) {
    answered_early_within(answer, "10s").await
}

/// The same with this `timeouts.read`.
async fn answered_early_within(answer: &'static str, read: &'static str) -> (Scene, IssuedKey) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
                    if socket.read_buf(&mut head).await.unwrap_or(0) == 0 {
                        return;
                    }
                }
                let _ = socket.write_all(answer.as_bytes()).await;
                while let Ok(1..) = socket.read(&mut [0; 1024]).await {}
            });
        }
    });
    let scene = Scene::builder(TOUCHLINE)
        .timeout("read", read)
        .spec(move |spec| {
            spec.upstream = upstream;
            spec.upstream_extra = "protocol: http1".into();
            spec.extra_yaml = "limits: { body_bytes: 64KiB, request_read: 2s }".into();
            spec.endpoints[0].methods.push("POST".into());
        })
        .start()
        .await;
    let key = scene.issue("starter").await;
    (scene, key)
}

/// Sends `rest` once `begun` of the answer has arrived; everything received.
async fn send_after(scene: &Scene, key: &IssuedKey, begun: &[u8], rest: &[u8]) -> Vec<u8> {
    let mut socket = TcpStream::connect(scene.gateways[0].http).await.unwrap();
    let head = format!(
        "POST {MARKETS} HTTP/1.1\r\nHost: {HOST}\r\nX-API-Key: {}\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n",
        key.key
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut received = Vec::new();
    while !received.windows(begun.len()).any(|bytes| bytes == begun) {
        assert!(socket.read_buf(&mut received).await.unwrap() > 0);
    }
    // The gateway may close before it has read all.
    let _ = socket.write_all(rest).await;
    let end = async { while let Ok(1..) = socket.read_buf(&mut received).await {} };
    tokio::time::timeout(PATIENCE, end).await.expect("the end");
    received
}

/// The line of a request in the access log.
async fn line(scene: &Scene, number: usize) -> Value {
    scene.gateways[0].logged(number).await.remove(number - 1)
}

/// What breaks the body of a request, with the outcome.
fn broken_bodies() -> [(Vec<u8>, &'static str); 3] {
    let large = format!("{BODY_BYTES_MAX:x}\r\n{}", "x".repeat(BODY_BYTES_MAX));
    [
        (b"zz\r\n".to_vec(), "BAD_REQUEST"),
        (large.into_bytes(), "PAYLOAD_TOO_LARGE"),
        // Never ends.
        (Vec::new(), "BAD_REQUEST"),
    ]
}

/// Breaks the announced length of a body over HTTP/2 once the frame of the answer that is `awaited` has come.
async fn break_length(wire: &mut Wire, key: &IssuedKey, awaited: u8) {
    let length = [("content-length", "5")];
    wire.post(1, MARKETS, &key.key, &length).await;
    while wire.next().await.expect("a part of the answer").kind != awaited {}
    wire.send(&Frame::new(DATA, END_STREAM, 1, *b"abcdefg"))
        .await;
    while wire.next().await.expect("the connection stays").kind != RST_STREAM {}
}

#[tokio::test]
async fn a_connection_over_http2_whose_server_left_an_upload_unread_gets_no_further_requests() {
    let scene = Scene::builder(TOUCHLINE)
        .spec(|spec| {
            spec.upstream_extra = "protocol: http2".into();
            spec.endpoints[0].methods.push("POST".into());
        })
        .start()
        .await;
    let key = scene.issue("enterprise").await;
    let client = scene.client(Protocol::Http1);
    // Passed on, and failures of the gateway's or the upstream's.
    let cases = [
        (413, 413, 1_000, 1),
        (413, 413, 1_000_000, 2),
        (401, 500, 1_000, 2),
        (401, 500, 1_000_000, 3),
        (503, 500, 1_000_000, 4),
    ];
    for (status, passed_on, body_bytes, connections) in cases {
        let answer = Script::json(status, "{}");
        scene.upstream.refuse_early(500, Behaviour::Answer(answer));
        let upload = Call::new("POST", MARKETS).body(vec![b'x'; body_bytes]);
        assert_eq!(client.call(upload.key(&key)).await.status, passed_on);
        assert_eq!(client.get(&key, MARKETS).await.status, 200);
        assert_eq!(scene.upstream.connections(), connections, "{status}");
    }
    scene.expect_used(&key, 7).await;
}

/// The size of an upload that its server does not read: more than the buffers on its way hold.
const UNREAD_BYTES: usize = 4 * 1024 * 1024;

/// A gateway in front of a server that gives this answer to the first bytes of each request and closes the connection, which resets it:
/// there are unread bytes.
async fn answered_unread(answer: &'static str) -> (Scene, IssuedKey) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let mut begun = [0; 16];
            let _ = socket.read(&mut begun).await;
            let _ = socket.write_all(answer.as_bytes()).await;
        }
    });
    let scene = Scene::builder(TOUCHLINE)
        .spec(move |spec| {
            spec.upstream = upstream;
            spec.upstream_extra = "protocol: http1, ejection: { failures: 0 }".into();
            spec.extra_yaml = "limits: { body_bytes: 8MiB }".into();
            spec.endpoints[0].methods.push("POST".into());
        })
        .start()
        .await;
    let key = scene.issue("starter").await;
    (scene, key)
}

/// The gateway's next write fails, with the answer still to be read.
#[tokio::test]
async fn the_answer_of_a_server_that_closes_without_reading_the_upload_is_passed_on() {
    let (scene, key) = answered_unread(
        "HTTP/1.1 413 Content Too Large\r\nContent-Length: 5\r\nConnection: close\r\n\r\nlarge",
    )
    .await;
    for protocol in [Protocol::Http1, Protocol::Http2Tls] {
        for _ in 0..20 {
            let upload = Call::new("POST", MARKETS).body(vec![b'x'; UNREAD_BYTES]);
            let answer = scene.client(protocol).call(upload.key(&key)).await;
            assert_eq!(
                (answer.status, &*answer.body),
                (413, &b"large"[..]),
                "{protocol:?}"
            );
        }
    }
    scene.expect_used(&key, 40).await;
}

#[tokio::test]
async fn an_answer_of_unknown_length_that_ends_with_a_reset_during_the_upload_is_cut_and_refunded()
{
    let (scene, key) = answered_unread("HTTP/1.1 200 OK\r\n\r\n{\"half\":").await;
    for protocol in [Protocol::Http1, Protocol::Http2Tls] {
        for _ in 0..20 {
            let upload = Call::new("POST", MARKETS).body(vec![b'x'; UNREAD_BYTES]);
            let answer = scene.client(protocol).call(upload.key(&key)).await;
            assert_eq!(
                (answer.status, answer.complete),
                (200, false),
                "{protocol:?}"
            );
        }
    }
    scene.expect_used(&key, 0).await;
}

#[tokio::test]
async fn a_request_that_breaks_its_body_after_its_answer_began_is_cut_and_refunded() {
    let (scene, key) = answered_early(HEAD).await;
    let mut lines = 0;
    for (rest, outcome) in broken_bodies() {
        let received = send_after(&scene, &key, b"\r\n\r\n", &rest).await;
        let text = received.escape_ascii().to_string();
        assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
        assert!(text.ends_with("\\r\\n\\r\\n"), "{text}");
        lines += 1;
        let line = line(&scene, lines).await;
        assert_eq!(line["outcome"], outcome, "{line}");
        assert_eq!(line["status"], 200, "{line}");
        assert_eq!(line["refunded"], true, "{line}");
    }
    break_length(&mut Wire::open(&scene).await, &key, HEADERS).await;
    let line = line(&scene, lines + 1).await;
    assert_eq!(line["outcome"], "BAD_REQUEST", "{line}");
    assert_eq!(line["refunded"], true, "{line}");
    scene.expect_used(&key, 0).await;
}

#[tokio::test]
async fn a_client_that_breaks_its_body_to_get_an_answer_for_nothing_pays_for_it() {
    let (scene, key) = answered_early(BEGUN).await;
    let mut lines = 0;
    for (rest, _) in broken_bodies() {
        let received = send_after(&scene, &key, b"early", &rest).await;
        let text = received.escape_ascii().to_string();
        assert!(text.ends_with("early\\r\\n"), "cut: {text}");
        lines += 1;
        let line = line(&scene, lines).await;
        assert_eq!(line["outcome"], "client_closed", "{line}");
        assert_eq!(line["refunded"], false, "{line}");
    }
    break_length(&mut Wire::open(&scene).await, &key, DATA).await;
    assert_eq!(line(&scene, lines + 1).await["refunded"], false);
    scene.expect_used(&key, lines as u64 + 1).await;
}

#[tokio::test]
async fn a_client_that_stalls_its_body_after_a_part_of_the_answer_pays_for_it() {
    let (scene, key) = answered_early_within(BEGUN, "1s").await;
    let received = send_after(&scene, &key, b"early", b"").await;
    let text = received.escape_ascii().to_string();
    assert!(text.ends_with("early\\r\\n"), "cut: {text}");
    let mut wire = Wire::open(&scene).await;
    wire.post(1, MARKETS, &key.key, &[]).await;
    while wire.next().await.expect("the connection stays").kind != RST_STREAM {}
    for number in [1, 2] {
        let line = line(&scene, number).await;
        assert_eq!(line["outcome"], "client_closed", "{line}");
        assert_eq!(line["refunded"], false, "{line}");
    }
    scene.expect_used(&key, 2).await;
}

#[tokio::test]
async fn a_client_that_breaks_its_body_pays_for_an_answer_that_the_upstream_had_ended() {
    let (scene, key) = answered_early(WHOLE).await;
    send_after(&scene, &key, b"early", b"zz\r\n").await;
    let first = line(&scene, 1).await;
    assert_eq!(first["outcome"], "served", "{first}");
    // Its window has no room for the answer's body.
    let mut wire = Wire::with_settings(&scene, &[(4, 0)]).await;
    break_length(&mut wire, &key, HEADERS).await;
    let second = line(&scene, 2).await;
    assert_eq!(second["outcome"], "client_closed", "{second}");
    assert_eq!(second["refunded"], false, "{second}");
    scene.expect_used(&key, 2).await;
}

/// Clients exist that discard an answer whose stream the server resets, even without an error.
#[tokio::test]
async fn the_rest_of_an_upload_is_taken_after_its_answer_over_http2() {
    const NO_ERROR: [u8; 4] = [0; 4];
    let (scene, key) = answered_early(WHOLE).await;
    let mut wire = Wire::open(&scene).await;
    for (stream, value) in [(1, key.key.as_str()), (3, "wrong"), (5, key.key.as_str())] {
        wire.post(stream, MARKETS, value, &[]).await;
        wire.body(stream).await;
        for flags in [0, 0, 0, END_STREAM] {
            wire.send(&Frame::new(DATA, flags, stream, [b'a'; 5_000]))
                .await;
        }
    }
    wire.settle().await;
    // One that is never whole is given up.
    wire.post(7, MARKETS, "wrong", &[]).await;
    wire.body(7).await;
    let reset = loop {
        let frame = wire.next().await.expect("the connection stays");
        if frame.kind == RST_STREAM {
            break frame;
        }
    };
    assert_eq!((reset.stream, &reset.payload[..]), (7, &NO_ERROR[..]));
    scene.expect_used(&key, 2).await;
}

/// Clients exist that read no answer if they cannot send their whole body.
#[tokio::test]
async fn the_rest_of_an_upload_is_taken_after_an_answer_that_closes_the_connection() {
    const UPLOAD_BYTES: usize = 800_000;
    const REST_BYTES: usize = 200_000;
    let length = format!("Content-Length: {UPLOAD_BYTES}");
    let chunked = "Transfer-Encoding: chunked";
    let one = vec![b'a'; UPLOAD_BYTES];
    let chunks = [b"2000000\r\n".to_vec(), vec![b'a'; 2 * UPLOAD_BYTES]].concat();
    let doubled = MARKETS.replace("/api", "//api");
    let mut scene = Scene::builder(TOUCHLINE)
        .spec(|spec| spec.endpoints[0].methods.push("POST".into()))
        .start()
        .await;
    let key = scene.issue("starter").await;
    for (path, framing, body, status) in [
        (MARKETS, chunked, &chunks, "413"),
        (&doubled, &length, &one, "400"),
        (MARKETS, &length, &one, "500"),
    ] {
        if status == "500" {
            scene.upstream.stop().await;
        }
        let mut socket = TcpStream::connect(scene.gateways[0].http).await.unwrap();
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: {HOST}\r\nX-API-Key: {}\r\n{framing}\r\n\r\n",
            key.key
        );
        let mut received = Vec::new();
        socket.write_all(head.as_bytes()).await.unwrap();
        // A connection that was reset reports it with a later write.
        let (most, rest) = body.split_at(body.len() - REST_BYTES);
        socket.write_all(most).await.unwrap();
        socket.readable().await.unwrap();
        for part in [rest, b"."] {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let written = socket.write_all(part).await;
            written.expect("the gateway reads on");
        }
        socket.read_to_end(&mut received).await.unwrap();
        let text = received.escape_ascii().to_string();
        let begin = format!("HTTP/1.1 {status} ");
        assert!(text.starts_with(&begin), "{status}: {text}");
    }
    scene.expect_used(&key, 0).await;
}

/// How often a slow upload sends a part after its answer, and for how long: longer than the gateway waits for a part.
const PART_EVERY: Duration = Duration::from_millis(250);
const PARTS: usize = 12;

/// Sends a request without a key whose body of this length comes slowly, and returns what is received after it was sent.
async fn uploaded_slowly(scene: &Scene, length: usize) -> (TcpStream, String) {
    let mut socket = TcpStream::connect(scene.gateways[0].http).await.unwrap();
    let head =
        format!("POST {MARKETS} HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {length}\r\n\r\n");
    socket.write_all(head.as_bytes()).await.unwrap();
    for _ in 0..PARTS {
        tokio::time::sleep(PART_EVERY).await;
        let written = socket.write_all(&vec![b'a'; length / PARTS]).await;
        written.expect("the gateway reads on");
    }
    let mut received = [0; 4096];
    let bytes = socket.read(&mut received).await.unwrap();
    let text = received[..bytes].escape_ascii().to_string();
    (socket, text.to_lowercase())
}

/// Clients exist that read no answer before their whole body is sent.
#[tokio::test]
async fn an_upload_that_goes_on_after_its_refusal_does_not_lose_it() {
    let scene = Scene::builder(TOUCHLINE)
        .spec(|spec| {
            spec.extra_yaml = "limits: { body_bytes: 64KiB }".into();
            spec.endpoints[0].methods.push("POST".into());
        })
        .start()
        .await;
    let key = scene.issue("starter").await;
    let mut wire = Wire::open(&scene).await;
    wire.post(1, MARKETS, "wrong", &[]).await;
    wire.body(1).await;
    let over_http2 = async {
        for part in 1..=PARTS {
            tokio::time::sleep(PART_EVERY).await;
            let flags = if part == PARTS { END_STREAM } else { 0 };
            let frame = Frame::new(DATA, flags, 1, [b'a'; 1_000]);
            wire.send(&frame).await;
        }
        // A stream that had been reset would have come before its answer.
        wire.post(3, MARKETS, "wrong", &[]).await;
        wire.body(3).await;
    };
    let (kept, closed, ()) = tokio::join!(
        uploaded_slowly(&scene, PARTS * 1_000),
        uploaded_slowly(&scene, BODY_BYTES_MAX * 2),
        over_http2,
    );
    let (mut socket, text) = kept;
    assert!(text.starts_with("http/1.1 401 "), "{text}");
    assert!(text.contains("connection: keep-alive"), "{text}");
    let next = format!(
        "GET {MARKETS} HTTP/1.1\r\nHost: {HOST}\r\nX-API-Key: {}\r\nConnection: close\r\n\r\n",
        key.key
    );
    socket.write_all(next.as_bytes()).await.unwrap();
    let mut received = Vec::new();
    socket.read_to_end(&mut received).await.unwrap();
    assert!(received.starts_with(b"HTTP/1.1 200 "), "{received:?}");
    // One that is announced as longer than any body may be is not waited for.
    let (_, text) = closed;
    assert!(text.starts_with("http/1.1 413 "), "{text}");
    assert!(text.contains("connection: close"), "{text}");
}

#[tokio::test]
async fn the_rest_of_an_upload_is_not_read_for_longer_than_the_body_may_take() {
    let (scene, _) = answered_early(WHOLE).await;
    for length in [BODY_BYTES_MAX, 2 * BODY_BYTES_MAX] {
        let mut socket = TcpStream::connect(scene.gateways[0].http).await.unwrap();
        let head =
            format!("POST {MARKETS} HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {length}\r\n\r\n");
        socket.write_all(head.as_bytes()).await.unwrap();
        let ended = async {
            while socket.write_all(b"a").await.is_ok() {
                tokio::time::sleep(PART_EVERY).await;
            }
        };
        let ended = tokio::time::timeout(PATIENCE, ended).await;
        ended.expect("the connection is closed");
    }
}
