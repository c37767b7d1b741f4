//! What a client may not take its time for.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use harness::client::{HOST, Until};
use harness::upstream::Script;
use harness::{Behaviour, Call, IssuedKey, PATIENCE, Protocol, Scene, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use super::frames::{
    DATA, END_STREAM, Frame, GOAWAY, PING, RST_STREAM, SETTINGS, WINDOW_UPDATE, Wire,
};
use super::http2_endings::{fill, full_listener};
use super::{MARKETS, TOUCHLINE, assert_problem, limit_hits};

/// More than the buffers between upstream and client hold.
const LARGE_BODY_BYTES: usize = 16 * 1024 * 1024;

/// Limits short enough to be waited for.
async fn hasty(limits: &str) -> Scene {
    let yaml = format!("limits: {{ {limits} }}");
    Scene::builder(TOUCHLINE)
        .spec(move |spec| {
            spec.extra_yaml = yaml;
            spec.endpoints[0].methods.push("POST".into());
        })
        .start()
        .await
}

/// Writes a byte each 50 ms and reads at the same time, until the gateway closes. Returns what it sent.
async fn dribble(mut socket: TcpStream, bytes: &[u8]) -> Vec<u8> {
    let mut message = Vec::new();
    let mut bytes = bytes.iter().cycle();
    let end = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < end, "still open");
        let byte = bytes.next().copied().unwrap();
        let _ = socket.write_all(&[byte]).await;
        let read =
            tokio::time::timeout(Duration::from_millis(50), socket.read_buf(&mut message)).await;
        if let Ok(Ok(0) | Err(_)) = read {
            return message;
        }
    }
}

fn get(key: &IssuedKey) -> String {
    let key = &key.key;
    format!("GET {MARKETS} HTTP/1.1\r\nHost: {HOST}\r\nX-API-Key: {key}\r\n\r\n")
}

async fn connect(scene: &Scene) -> TcpStream {
    TcpStream::connect(scene.gateways[0].http).await.unwrap()
}

/// Reads an answer with a JSON object as its body.
async fn read_answer(socket: &mut TcpStream) -> Vec<u8> {
    let mut answer = Vec::new();
    while !answer.ends_with(b"}") {
        assert!(socket.read_buf(&mut answer).await.unwrap() > 0);
    }
    answer
}

/// Reads until the gateway closes.
async fn closed(mut socket: impl tokio::io::AsyncRead + Unpin) -> Vec<u8> {
    let mut message = Vec::new();
    let read = tokio::time::timeout(PATIENCE, async {
        while let Ok(1..) = socket.read_buf(&mut message).await {}
    });
    read.await.expect("the gateway closes");
    message
}

#[tokio::test]
async fn a_head_that_dribbles_in_is_refused_and_a_silent_connection_closed() {
    let scene = hasty("request_head: 500ms").await;
    let key = scene.issue("starter").await;
    let head = format!(
        "GET {MARKETS} HTTP/1.1\r\nHost: {HOST}\r\nX-API-Key: {}\r\n{}",
        key.key,
        "X-a: b\r\n".repeat(60)
    );
    let message = dribble(connect(&scene).await, head.as_bytes()).await;
    let message = String::from_utf8_lossy(&message).into_owned();
    assert!(
        message.starts_with("HTTP/1.1 400 ") && message.contains("\"code\":\"BAD_REQUEST\""),
        "{message}"
    );
    assert!(limit_hits(&scene, "request_head").await >= 1.0);
    assert_eq!(closed(connect(&scene).await).await, b"");
    assert!(limit_hits(&scene, "request_head").await >= 2.0);
    // A head that may begin HTTP/2 has no more time: the soonest of three, because the machine may stall.
    let mut soonest = Duration::MAX;
    for _ in 0..3 {
        let began = Instant::now();
        let mut socket = connect(&scene).await;
        socket.write_all(b"P").await.unwrap();
        assert!(closed(socket).await.starts_with(b"HTTP/1.1 400 "));
        soonest = soonest.min(began.elapsed());
    }
    assert!(soonest < Duration::from_secs(1), "{soonest:?}");
    assert_eq!(scene.upstream.count(), 0);
}

#[tokio::test]
async fn a_slow_second_head_is_refused_too_and_an_idle_connection_closed() {
    let scene = hasty("request_head: 500ms, keepalive_idle: 1s").await;
    let key = scene.issue("starter").await;
    let request = format!(
        "GET {MARKETS} HTTP/1.1\r\nHost: {HOST}\r\nX-API-Key: {}\r\n\r\n",
        key.key
    );
    let mut idle = connect(&scene).await;
    let mut slow = connect(&scene).await;
    for socket in [&mut idle, &mut slow] {
        socket.write_all(request.as_bytes()).await.unwrap();
        read_answer(socket).await;
    }
    let message = dribble(slow, request.as_bytes().strip_suffix(b"\r\n\r\n").unwrap()).await;
    assert!(
        message.starts_with(b"HTTP/1.1 400 "),
        "{}",
        message.escape_ascii()
    );
    assert_eq!(closed(idle).await, b"");
    assert!(limit_hits(&scene, "keepalive_idle").await >= 1.0);
    scene.expect_used(&key, 2).await;
}

#[tokio::test]
async fn an_empty_line_behind_a_body_begins_no_request() {
    let scene = hasty("request_head: 500ms").await;
    let key = scene.issue("starter").await;
    let request = format!(
        "POST {MARKETS} HTTP/1.1\r\nHost: {HOST}\r\nX-API-Key: {}\r\nContent-Length: 2\r\n\r\n{{}}\r\n",
        key.key
    );
    let mut socket = connect(&scene).await;
    // The last byte may also come by itself.
    for apart in [0, 1, 0] {
        let (begun, rest) = request.as_bytes().split_at(request.len() - apart);
        socket.write_all(begun).await.unwrap();
        let answer = read_answer(&mut socket).await;
        assert!(
            answer.starts_with(b"HTTP/1.1 200 "),
            "{}",
            answer.escape_ascii()
        );
        socket.write_all(rest).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    scene.expect_used(&key, 3).await;
}

#[tokio::test]
async fn an_idle_connection_over_tls_ends_with_close_notify() {
    let scene = hasty("request_head: 500ms, keepalive_idle: 1s").await;
    let key = scene.issue("starter").await;
    let unused = scene.client(Protocol::Http1Tls).tls_stream().await;
    let mut used = scene.client(Protocol::Http1Tls).tls_stream().await;
    used.write_all(get(&key).as_bytes()).await.unwrap();
    used.flush().await.unwrap();
    for mut socket in [unused, used] {
        let mut read = Vec::new();
        let end = tokio::time::timeout(PATIENCE, socket.read_to_end(&mut read)).await;
        end.unwrap().expect("no end without the alert");
    }
    let mut wire = Wire::over(Protocol::Http2Tls, &scene).await;
    wire.end().await;
    let end = wire.socket.read(&mut [0; 1]).await;
    assert_eq!(end.expect("no end without the alert"), 0);
}

#[tokio::test]
async fn the_answer_of_a_slow_upstream_is_not_cut_by_the_clients_deadlines() {
    let scene = hasty("request_head: 300ms, request_read: 300ms, keepalive_idle: 1s").await;
    let key = scene.issue("starter").await;
    scene.upstream.always(Behaviour::Delay(
        Duration::from_secs(2),
        Box::new(Behaviour::Echo),
    ));
    for protocol in Protocol::ALL {
        let client = scene.client(protocol);
        for _ in 0..2 {
            assert_eq!(client.get(&key, MARKETS).await.status, 200);
        }
    }
    scene.expect_used(&key, 6).await;
}

#[tokio::test]
async fn a_body_that_dribbles_in_or_stalls_is_refused_and_refunded() {
    let scene = hasty("request_read: 700ms").await;
    let key = scene.issue("starter").await;
    let head = format!(
        "POST {MARKETS} HTTP/1.1\r\nHost: {HOST}\r\nX-API-Key: {}\r\n",
        key.key
    );
    let stalls = [
        format!("{head}Content-Length: 10000\r\n\r\nabc"),
        format!("{head}Transfer-Encoding: chunked\r\n\r\n5\r\nab"),
    ];
    for stall in stalls {
        let exchange = scene
            .client(Protocol::Http1)
            .raw(stall, Until::Closed)
            .await;
        assert_problem(&exchange.answers[0], 400, "BAD_REQUEST");
    }
    let mut socket = connect(&scene).await;
    socket
        .write_all(format!("{head}Content-Length: 10000\r\n\r\n").as_bytes())
        .await
        .unwrap();
    let message = dribble(socket, b"x").await;
    assert!(
        message.starts_with(b"HTTP/1.1 400 "),
        "{}",
        message.escape_ascii()
    );
    assert!(limit_hits(&scene, "request_read").await >= 3.0);
    // Over HTTP/2, where each byte is a frame.
    let mut wire = post_over_http2(&scene, &key).await;
    // Far more often than any timeout of the upstream, whose time begins anew with each.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(900) {
        wire.send(&Frame::new(DATA, 0, 1, *b"x")).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let problem = wire.problem(1).await;
    assert_eq!(problem["code"], "BAD_REQUEST");
    assert!(limit_hits(&scene, "request_read").await >= 4.0);
    scene.expect_used(&key, 0).await;
}

#[tokio::test]
async fn a_server_has_its_whole_time_after_a_slow_body() {
    let scene = Scene::builder(TOUCHLINE)
        .timeout("read", "2s")
        .spec(|spec| spec.endpoints[0].methods.push("POST".into()))
        .start()
        .await;
    let key = scene.issue("starter").await;
    let late = Behaviour::Delay(Duration::from_millis(1_500), Box::new(Behaviour::Echo));
    scene.upstream.always(late);
    let mut socket = connect(&scene).await;
    let head = format!(
        "POST {MARKETS} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\nX-API-Key: {}\r\nContent-Length: 4\r\n\r\nab",
        key.key
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    socket.write_all(b"cd").await.unwrap();
    let message = closed(socket).await;
    assert!(
        message.starts_with(b"HTTP/1.1 200 "),
        "{}",
        message.escape_ascii()
    );
    scene.expect_used(&key, 1).await;
}

#[tokio::test]
async fn a_server_that_reads_a_body_late_does_not_make_its_client_late() {
    const BODY_BYTES: usize = 1_000_000;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    // The gateway's buffer grows with the segments.
    socket2::SockRef::from(&socket).set_tcp_mss(1_000).unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(8).unwrap();
    let upstream = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            tokio::time::sleep(Duration::from_secs(2)).await;
            let mut request = Vec::new();
            while !request.ends_with(&[b'x'; BODY_BYTES]) {
                assert!(socket.read_buf(&mut request).await.unwrap() > 0);
            }
            let answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
            socket.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    let scene = Scene::builder(TOUCHLINE)
        .spec(move |spec| {
            spec.upstream = upstream;
            spec.upstream_extra = "protocol: http1".into();
            spec.extra_yaml = "limits: { request_read: 1s }".into();
            spec.endpoints[0].methods.push("POST".into());
        })
        .start()
        .await;
    let key = scene.issue("starter").await;
    for protocol in [Protocol::Http1, Protocol::Http2Tls] {
        let upload = Call::new("POST", MARKETS).body(vec![b'x'; BODY_BYTES]);
        let answer = scene.client(protocol).call(upload.key(&key)).await;
        assert_eq!(answer.status, 200, "{protocol:?}: {answer:?}");
    }
}

/// A connection on whose first stream the head of a POST was sent, and nothing of its body.
async fn post_over_http2(scene: &Scene, key: &IssuedKey) -> Wire {
    let mut wire = Wire::open(scene).await;
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", "localhost"),
        (":path", MARKETS),
        ("x-api-key", &key.key),
    ];
    wire.headers(1, &fields, false).await;
    wire
}

#[tokio::test]
async fn an_upstream_that_waits_for_a_stalled_body_does_not_make_it_our_failure() {
    let scene = Scene::builder(TOUCHLINE)
        .timeout("read", "500ms")
        .spec(|spec| spec.endpoints[0].methods.push("POST".into()))
        .start()
        .await;
    let key = scene.issue("starter").await;
    let stall = format!(
        "POST {MARKETS} HTTP/1.1\r\nHost: {HOST}\r\nX-API-Key: {}\r\nContent-Length: 100\r\n\r\nabc",
        key.key
    );
    let exchange = scene
        .client(Protocol::Http1)
        .raw(stall, Until::Closed)
        .await;
    assert_problem(&exchange.answers[0], 400, "BAD_REQUEST");
    let mut wire = post_over_http2(&scene, &key).await;
    assert_eq!(wire.problem(1).await["code"], "BAD_REQUEST");
    assert_eq!(limit_hits(&scene, "request_read").await, 2.0);
    scene.expect_used(&key, 0).await;
    for line in scene.gateways[0].logged(2).await {
        let cause = line["cause"].as_str().unwrap();
        assert!(cause.starts_with("client: sent nothing"), "{line}");
    }
}

#[tokio::test]
async fn a_request_over_http2_without_a_body_that_does_not_end_is_refused_and_counted() {
    let scene = hasty("request_read: 500ms").await;
    let key = scene.issue("starter").await;
    let mut wire = Wire::open(&scene).await;
    let fields = [
        (":method", "GET"),
        (":scheme", "http"),
        (":authority", "localhost"),
        (":path", MARKETS),
        ("x-api-key", &key.key),
    ];
    wire.headers(1, &fields, false).await;
    assert_eq!(wire.problem(1).await["code"], "BAD_REQUEST");
    assert_eq!(limit_hits(&scene, "request_read").await, 1.0);
    scene.expect_used(&key, 0).await;
}

#[tokio::test]
async fn a_body_over_the_limit_is_counted_also_if_its_length_was_not_announced() {
    let scene = hasty("body_bytes: 1KiB").await;
    let key = scene.issue("starter").await;
    let large = format!("800\r\n{}\r\n0\r\n\r\n", "x".repeat(0x800));
    let head = format!(
        "POST {MARKETS} HTTP/1.1\r\nHost: {HOST}\r\nX-API-Key: {}\r\n",
        key.key
    );
    let bodies = [
        format!("{head}Content-Length: 2048\r\n\r\n"),
        format!("{head}Transfer-Encoding: chunked\r\n\r\n{large}"),
    ];
    for (number, request) in bodies.into_iter().enumerate() {
        let client = scene.client(Protocol::Http1);
        let exchange = client.raw(request, Until::Answers(1)).await;
        assert_problem(&exchange.answers[0], 413, "PAYLOAD_TOO_LARGE");
        let hits = limit_hits(&scene, "body_bytes").await;
        assert_eq!(hits, (number + 1) as f64);
    }
    scene.expect_used(&key, 0).await;
}

#[tokio::test]
async fn a_tls_handshake_that_does_not_end_is_ended() {
    let scene = hasty("tls_handshake: 500ms, request_head: 500ms").await;
    let silent = TcpStream::connect(scene.gateways[0].https).await.unwrap();
    let dribbling = TcpStream::connect(scene.gateways[0].https).await.unwrap();
    assert_eq!(closed(silent).await, b"");
    dribble(dribbling, &[0x16, 0x03, 0x01, 0x02, 0x00]).await;
    assert!((limit_hits(&scene, "tls_handshake").await - 2.0).abs() < 0.5);
}

#[tokio::test]
async fn an_http_2_client_that_sends_nothing_is_closed() {
    let scene = hasty("request_head: 500ms, keepalive_idle: 1s").await;
    let silent = scene.client(Protocol::Http2Tls).tls_stream().await;
    assert_eq!(closed(silent).await, b"");
    assert!((limit_hits(&scene, "h2_preface").await - 1.0).abs() < 0.5);
    // Half a preface.
    let mut wire = Wire::silent(&scene).await;
    wire.socket.write_all(b"PRI * HTTP/2.0\r\n").await.unwrap();
    closed(wire.socket).await;
    // Frames without a request.
    let mut wire = Wire::open(&scene).await;
    wire.send(&Frame::new(PING, 0, 0, [0; 8])).await;
    wire.end().await;
}

#[tokio::test]
async fn an_idle_http2_connection_is_ended_by_a_goaway_that_the_client_can_act_on() {
    let scene = hasty("request_head: 500ms, keepalive_idle: 1s").await;
    let key = scene.issue("starter").await;
    let mut wire = Wire::open(&scene).await;
    wire.get(1, MARKETS, &key.key).await;
    wire.body(1).await;
    wire.acknowledges_pings = false;
    // It reads only when it sends its next request, which the GOAWAY lets it send again elsewhere.
    let goaway = loop {
        let frame = wire.next().await.expect("a GOAWAY");
        if frame.kind == GOAWAY {
            break frame;
        }
    };
    assert_eq!(goaway.payload[..8], [0, 0, 0, 1, 0, 0, 0, 0]);
    // It acknowledges nothing, and is closed all the same.
    assert!(wire.next().await.is_none(), "nothing follows");
    assert!((limit_hits(&scene, "keepalive_idle").await - 1.0).abs() < 0.5);
    scene.expect_used(&key, 1).await;
}

#[tokio::test]
async fn a_client_that_goes_on_behind_a_goaway_gets_no_further_stream_after_a_while() {
    let scene = hasty("requests_per_connection: 1").await;
    let key = scene.issue("enterprise").await;
    let mut wire = Wire::open(&scene).await;
    // The PING behind the GOAWAY is what ends the taking of streams.
    wire.acknowledges_pings = false;
    let mut stream = 1;
    eventually("a stream is refused", async || {
        wire.get(stream, MARKETS, &key.key).await;
        let ended = loop {
            let frame = wire.next().await.expect("the connection stays");
            if frame.stream == stream && (frame.kind == RST_STREAM || frame.flags & END_STREAM != 0)
            {
                break frame;
            }
        };
        stream += 2;
        (ended.kind == RST_STREAM).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_client_that_does_not_read_its_answer_loses_the_connection() {
    for limits in [
        "response_write: 1s, response_rate: 64KiB",
        // Less than a second, and less than a byte of the rate in it.
        "response_write: 100ms",
        "response_write: 100ms, response_rate: 1B",
    ] {
        let scene = hasty(limits).await;
        let key = scene.issue("starter").await;
        let large = "x".repeat(LARGE_BODY_BYTES);
        scene
            .upstream
            .always(Behaviour::Answer(Script::json(200, &large)));
        let mut socket = connect(&scene).await;
        socket.write_all(get(&key).as_bytes()).await.unwrap();
        eventually(&format!("the gateway gives up with {limits}"), async || {
            (limit_hits(&scene, "response_rate").await >= 1.0).then_some(())
        })
        .await;
        // A reset: the system does not keep for the client what it has not read.
        expect_reset(&mut socket).await;
        scene.expect_used(&key, 1).await;
    }
}

/// Reads until the connection is reset, and returns what was read.
async fn expect_reset(socket: &mut TcpStream) -> Vec<u8> {
    let mut got = Vec::new();
    let ended = tokio::time::timeout(PATIENCE, socket.read_to_end(&mut got)).await;
    let ended = ended.expect("it ends").unwrap_err();
    assert_eq!(ended.kind(), std::io::ErrorKind::ConnectionReset);
    got
}

#[tokio::test]
async fn an_http_1_0_client_that_does_not_read_its_answer_does_not_take_what_it_got_for_all() {
    let scene = hasty("response_write: 1s, response_rate: 64KiB").await;
    let key = scene.issue("starter").await;
    let large = Script::json(200, &"x".repeat(LARGE_BODY_BYTES));
    // Its end is the connection's.
    scene.upstream.always(Behaviour::Answer(large.chunked()));
    let mut socket = connect(&scene).await;
    let request = get(&key).replace("HTTP/1.1", "HTTP/1.0");
    socket.write_all(request.as_bytes()).await.unwrap();
    eventually("the gateway gives up", async || {
        (limit_hits(&scene, "response_rate").await >= 1.0).then_some(())
    })
    .await;
    let got = expect_reset(&mut socket).await;
    assert!(got.starts_with(b"HTTP/1.1 200 ") && got.len() < LARGE_BODY_BYTES);
    scene.expect_used(&key, 1).await;
}

/// Reads so much each 50 ms until the end; how much there was.
async fn read_slowly(socket: &mut TcpStream, bytes: usize) -> usize {
    let (mut all, mut part) = (0, vec![0; bytes]);
    while let Ok(read @ 1..) = socket.read(&mut part).await {
        all += read;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    all
}

#[tokio::test]
async fn a_client_that_reads_its_answer_too_slowly_loses_the_connection() {
    let scene = hasty("response_write: 1s, response_rate: 1MiB").await;
    let key = scene.issue("starter").await;
    let large = "x".repeat(LARGE_BODY_BYTES);
    scene
        .upstream
        .always(Behaviour::Answer(Script::json(200, &large)));
    // At most a third of the rate, however fast the machine.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(16 * 1024).unwrap();
    let mut socket = socket.connect(scene.gateways[0].http).await.unwrap();
    socket.write_all(get(&key).as_bytes()).await.unwrap();
    tokio::select! {
        _ = read_slowly(&mut socket, 16 * 1024) => {}
        () = eventually("the gateway gives up", async || {
            (limit_hits(&scene, "response_rate").await >= 1.0).then_some(())
        }) => {}
    }
    assert!(limit_hits(&scene, "response_rate").await >= 1.0);
    scene.expect_used(&key, 1).await;
}

#[tokio::test]
async fn an_http2_client_that_opens_no_window_loses_the_connection() {
    let scene = hasty("response_write: 1s").await;
    let key = scene.issue("starter").await;
    let large = "x".repeat(1024 * 1024);
    scene
        .upstream
        .always(Behaviour::Answer(Script::json(200, &large)));
    let mut wire = Wire::open(&scene).await;
    wire.get(1, MARKETS, &key.key).await;
    eventually("the gateway gives up", async || {
        (limit_hits(&scene, "response_rate").await >= 1.0).then_some(())
    })
    .await;
    scene.expect_used(&key, 1).await;
}

#[tokio::test]
async fn an_http2_client_that_reads_faster_than_required_gets_its_whole_answer() {
    const STEP_BYTES: u32 = 1024;
    let scene = hasty("response_write: 1s, response_rate: 1KiB").await;
    let key = scene.issue("starter").await;
    // More than a second's worth in one part, and fewer bytes than a connection's window.
    let steps = 20;
    let answer = "x".repeat((steps * STEP_BYTES) as usize);
    scene
        .upstream
        .always(Behaviour::Answer(Script::json(200, &answer)));
    let mut wire = Wire::with_settings(&scene, &[(4, 0)]).await;
    wire.get(1, MARKETS, &key.key).await;
    for _ in 0..steps {
        let more = Frame::new(WINDOW_UPDATE, 0, 1, STEP_BYTES.to_be_bytes());
        wire.send(&more).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(wire.body(1).await.len(), answer.len());
    scene.expect_used(&key, 1).await;
}

#[tokio::test]
async fn an_http2_client_that_makes_an_answer_late_pays_for_it() {
    let scene = Scene::builder(TOUCHLINE)
        .timeout("total", "1s")
        .spec(|spec| spec.upstream_extra = "ejection: { failures: 1 }".into())
        .start()
        .await;
    let key = scene.issue("starter").await;
    let large = "x".repeat(1024 * 1024);
    scene
        .upstream
        .always(Behaviour::Answer(Script::json(200, &large)));
    let mut wire = Wire::open(&scene).await;
    wire.get(1, MARKETS, &key.key).await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    // Less than the rest, for the stream and the connection.
    let more = 200_000_u32.to_be_bytes();
    for stream in [0, 1] {
        assert!(wire.send(&Frame::new(WINDOW_UPDATE, 0, stream, more)).await);
    }
    while wire.next().await.expect("the connection stays").kind != RST_STREAM {}
    let lines = scene.gateways[0].logged(1).await;
    assert_eq!(lines[0]["outcome"], "cut", "{}", lines[0]);
    assert_eq!(lines[0]["refunded"], false, "{}", lines[0]);
    scene.expect_used(&key, 1).await;
    let ejections = "touchline_upstream_ejections_total{upstream=\"prediction-data\"}";
    assert_eq!(scene.metric(ejections).await, 0.0);
    let answer = scene.client(Protocol::Http1).get(&key, MARKETS).await;
    assert_eq!(answer.status, 200);
}

#[tokio::test]
async fn an_http2_client_that_takes_nothing_pays_for_an_answer_that_breaks_off_meanwhile() {
    let scene = Scene::builder(TOUCHLINE)
        .spec(|spec| spec.upstream_extra = "ejection: { failures: 1 }".into())
        .start()
        .await;
    let key = scene.issue("starter").await;
    scene
        .upstream
        .always(Behaviour::CloseMidBody { after: 1_000 });
    let mut wire = Wire::with_settings(&scene, &[(4, 0)]).await;
    wire.get(1, MARKETS, &key.key).await;
    // Much longer than the upstream takes to break off.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let open = Frame::new(SETTINGS, 0, 0, [0, 4, 0, 0x10, 0, 0]);
    assert!(wire.send(&open).await);
    while wire.next().await.expect("the connection stays").kind != RST_STREAM {}
    let lines = scene.gateways[0].logged(1).await;
    assert_eq!(lines[0]["outcome"], "cut", "{}", lines[0]);
    assert_eq!(lines[0]["refunded"], false, "{}", lines[0]);
    scene.expect_used(&key, 1).await;
    // The server may have broken off because the gateway read no more.
    let ejections = "touchline_upstream_ejections_total{upstream=\"prediction-data\"}";
    assert_eq!(scene.metric(ejections).await, 0.0);
}

#[tokio::test]
async fn a_client_that_sends_its_body_steadily_is_not_to_blame_for_the_end_of_the_upstreams_time() {
    let scene = Scene::builder(TOUCHLINE)
        .timeout("total", "1s")
        .spec(|spec| {
            spec.extra_yaml = "limits: { request_read: 30s }".into();
            spec.endpoints[0].methods.push("POST".into());
        })
        .start()
        .await;
    let key = scene.issue("starter").await;
    let mut socket = connect(&scene).await;
    let head = format!(
        "POST {MARKETS} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\nX-API-Key: {}\r\nContent-Length: 10000\r\n\r\n",
        key.key
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    let message = dribble(socket, b"x").await;
    let shown = message.escape_ascii();
    assert!(message.starts_with(b"HTTP/1.1 500 "), "{shown}");
    let lines = scene.gateways[0].logged(1).await;
    let cause = lines[0]["cause"].as_str().unwrap_or_default();
    assert!(cause.contains("took longer than timeouts.total"), "{cause}");
    scene.expect_used(&key, 0).await;
}

#[tokio::test]
async fn a_server_that_falls_silent_has_no_more_time_than_any() {
    let scene = Scene::builder(TOUCHLINE)
        .timeout("total", "3s")
        .start()
        .await;
    let key = scene.issue("starter").await;
    let begun_late = Behaviour::Delay(
        Duration::from_millis(600),
        Box::new(Behaviour::StallAfterHeader),
    );
    scene.upstream.always(begun_late);
    let client = scene.client(Protocol::Http1);
    client.call(Call::get(MARKETS).key(&key)).await;
    let lines = scene.gateways[0].logged(1).await;
    assert_eq!(lines[0]["outcome"], "cut", "{}", lines[0]);
    let cause = lines[0]["cause"].as_str().unwrap_or_default();
    assert!(cause.contains("took longer than timeouts.total"), "{cause}");
    scene.expect_used(&key, 0).await;
}

#[tokio::test]
async fn a_retry_waits_for_a_connection_only_to_the_end_of_the_total_and_blames_no_server_for_it() {
    let (listener, mut filling) = full_listener().await;
    let address = listener.local_addr().unwrap();
    let scene = Scene::builder(TOUCHLINE)
        .timeout("total", "3s")
        .timeout("connect", "60s")
        .spec(move |spec| {
            spec.upstream = address;
            spec.upstream_extra = "protocol: http1, ejection: { failures: 1 }".into();
        })
        .start()
        .await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    let serve = async {
        for _ in &filling {
            listener.accept().await.unwrap();
        }
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            assert!(socket.read_buf(&mut head).await.unwrap() > 0);
        }
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
        socket.write_all(answer).await.unwrap();
        socket
    };
    let (answer, mut kept) = tokio::join!(client.get(&key, MARKETS), serve);
    assert_eq!(answer.status, 200);
    filling.extend(fill(address).await);
    // The kept connection ends with the second request, which is sent again.
    let end = async {
        assert!(kept.read(&mut [0; 1024]).await.unwrap() > 0);
        drop(kept);
    };
    let call = tokio::time::timeout(PATIENCE / 2, client.get(&key, MARKETS));
    let (answer, ()) = tokio::join!(call, end);
    assert_problem(&answer.expect("an answer"), 500, "INTERNAL_ERROR");
    let lines = scene.gateways[0].logged(2).await;
    let cause = lines[1]["cause"].as_str().unwrap_or_default();
    assert!(cause.contains("took longer than timeouts.total"), "{cause}");
    let ejected = "touchline_upstream_ejections_total{upstream=\"prediction-data\"}";
    assert_eq!(scene.metric(ejected).await, 0.0);
    scene.expect_used(&key, 1).await;
}

/// A server that buffers little of what it does not read.
fn small_buffered() -> (TcpListener, SocketAddr) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(256 * 1024).unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(8).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

#[tokio::test]
async fn a_server_that_takes_a_body_slowly_has_no_more_time_than_any() {
    /// The server takes eight mebibytes a second at most.
    const BODY_BYTES: usize = 100 * 1024 * 1024;
    let (listener, address) = small_buffered();
    tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut part = [0; 64 * 1024];
        while let Ok(1..) = socket.read(&mut part).await {
            tokio::time::sleep(Duration::from_millis(8)).await;
        }
    });
    let scene = Scene::builder(TOUCHLINE)
        .timeout("total", "2s")
        .spec(move |spec| {
            spec.upstream = address;
            spec.extra_yaml = "limits: { body_bytes: 128MiB }".into();
            spec.endpoints[0].methods.push("POST".into());
        })
        .start()
        .await;
    let key = scene.issue("starter").await;
    let call = Call::new("POST", MARKETS).body(vec![b'x'; BODY_BYTES]);
    let answer = scene.client(Protocol::Http1).call(call.key(&key)).await;
    assert_eq!(answer.status, 500, "{answer:?}");
    let lines = scene.gateways[0].logged(1).await;
    let cause = lines[0]["cause"].as_str().unwrap_or_default();
    assert!(cause.contains("took longer than timeouts.total"), "{cause}");
    scene.expect_used(&key, 0).await;
}

#[tokio::test]
async fn a_server_that_reads_nothing_of_a_body_fails_and_the_request_is_refunded() {
    const BODY_BYTES: usize = 64 * 1024 * 1024;
    for protocol in ["http1", "http2"] {
        let (listener, address) = small_buffered();
        tokio::spawn(async move {
            let (mut socket, _) = listener.accept().await.unwrap();
            if protocol == "http2" {
                // Its SETTINGS, without which nothing is sent; no window is opened further.
                let settings = Frame::new(SETTINGS, 0, 0, []).bytes();
                socket.write_all(&settings).await.unwrap();
            }
            let _ = socket.read(&mut [0; 64]).await;
            std::future::pending::<()>().await;
        });
        let scene = Scene::builder(TOUCHLINE)
            .timeout("read", "500ms")
            .timeout("total", "30s")
            .spec(move |spec| {
                spec.upstream = address;
                spec.upstream_extra = format!("protocol: {protocol}");
                spec.extra_yaml = "limits: { body_bytes: 128MiB }".into();
                spec.endpoints[0].methods.push("POST".into());
            })
            .start()
            .await;
        let key = scene.issue("starter").await;
        let call = Call::new("POST", MARKETS).body(vec![b'x'; BODY_BYTES]);
        let answer = scene.client(Protocol::Http1).call(call.key(&key)).await;
        assert_eq!(answer.status, 500, "{protocol}: {answer:?}");
        let lines = scene.gateways[0].logged(1).await;
        let cause = lines[0]["cause"].as_str().unwrap_or_default();
        let expected = "upstream: read nothing of the request's body for timeouts.read";
        assert!(cause.starts_with(expected), "{protocol}: {cause}");
        scene.expect_used(&key, 0).await;
    }
}

/// The end of a request over HTTP/2 may arrive long after its head: the key must be usable when the request is admitted. Reading
/// the usage charges nothing, so no store would notice that the day has changed.
#[tokio::test]
async fn a_key_that_expires_before_the_end_of_an_http2_request_is_refused() {
    const DAY_SECONDS: f64 = 86_400.0;
    let scene = Scene::builder(TOUCHLINE).faketime().start().await;
    let tomorrow = jiff::Zoned::now().tomorrow().unwrap().date().to_string();
    let key = scene.issue_with("pro", &["--expires", &tomorrow]).await;
    let answer = scene.client(Protocol::Http1).get(&key, MARKETS).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let under_way = async |count: f64| {
        eventually("this number of requests is under way", async || {
            let requests = scene.metric("touchline_in_flight_requests").await;
            (requests == count).then_some(())
        })
        .await;
    };
    under_way(0.0).await;
    let mut wire = Wire::open(&scene).await;
    let fields = [
        (":method", "GET"),
        (":scheme", "http"),
        (":authority", "localhost"),
        (":path", "/api/v1/usage"),
        ("x-api-key", &*key.key),
    ];
    assert!(wire.headers(1, &fields, false).await);
    under_way(1.0).await;
    scene.clock().set_offset(3.0 * DAY_SECONDS);
    assert!(wire.send(&Frame::new(DATA, END_STREAM, 1, "")).await);
    assert_eq!(wire.problem(1).await["code"], "INVALID_API_KEY");
}
