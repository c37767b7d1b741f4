//! HTTP/2 requests that end before their answer does. Each unit that stays charged had a request sent to an upstream; the upstream is
//! asked: it keeps the id of every head that came.

use std::time::Duration;

use harness::client::next_request_id;
use harness::upstream::{Release, Script};
use harness::{Behaviour, Call, IssuedKey, PATIENCE, Protocol, Scene, Store, eventually};
use serde_json::Value;
use socket2::{Domain, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::frames::{
    DATA, END_HEADERS, END_STREAM, Frame, GOAWAY, HEADERS, PING, PREFACE, RST_STREAM, SETTINGS,
    WINDOW_UPDATE, Wire, block,
};
use super::{MARKETS, TOUCHLINE, charged_were_sent, limit_hits};

const REFUSED_STREAM: u32 = 7;
const CANCEL: u32 = 8;
const HTTP_1_1_REQUIRED: u32 = 13;
/// Streams opened at once.
const AT_ONCE: u32 = 10;

/// Both stores, and what the upstream speaks with each.
const SURROUNDINGS: [(Store, &str); 2] = [
    (Store::Embedded, "protocol: http1"),
    (Store::Redis, "protocol: http2"),
];

struct Stage {
    scene: Scene,
    key: IssuedKey,
}

impl Stage {
    async fn new(store: Store, upstream: &'static str) -> Stage {
        let scene = Scene::builder(TOUCHLINE)
            .store(store)
            .spec(move |spec| {
                spec.upstream_extra = upstream.into();
                spec.threads = 2;
                spec.endpoints[0].methods.push("POST".into());
                spec.extra_yaml = "limits: { h2_resets: 10000 }".into();
            })
            .start()
            .await;
        let key = scene.issue("enterprise").await;
        Stage { scene, key }
    }

    /// The head of a request with an id of its own.
    fn head(&self, stream: u32, method: &str, more: &[(&str, &str)], flags: u8) -> (String, Frame) {
        let id = next_request_id();
        let mut fields = block(&[
            (":method", method),
            (":scheme", "http"),
            (":authority", "localhost"),
            (":path", MARKETS),
            ("x-api-key", &self.key.key),
            ("x-request-id", &id),
        ]);
        fields.extend(block(more));
        (id, Frame::new(HEADERS, END_HEADERS | flags, stream, fields))
    }

    fn get(&self, stream: u32) -> (String, Frame) {
        self.head(stream, "GET", &[], END_STREAM)
    }

    fn post(&self, stream: u32, length: &str) -> (String, Frame) {
        self.head(stream, "POST", &[("content-length", length)], 0)
    }

    /// Waits until the upstream has the head of a request.
    async fn begun(&self, id: &str) {
        eventually("the head has come", async || {
            let begun = self.scene.upstream.begun();
            begun.iter().any(|one| one == id).then_some(())
        })
        .await;
    }

    /// The line of a request in the access log.
    async fn line(&self, id: &str) -> Value {
        let gateway = &self.scene.gateways[0];
        gateway.logged_where(|line| line["request_id"] == id).await
    }

    /// Waits until so many requests have ended, and holds the units that stay charged against what the upstream has got.
    async fn judge(&self, requests: usize) -> Vec<Value> {
        let lines = self.scene.gateways[0].logged(requests).await;
        assert_eq!(lines.len(), requests);
        charged_were_sent(&self.scene, &self.key.id).await;
        lines
    }

    /// Waits until no client is connected and no request under way.
    async fn quiet(&self) {
        eventually("nothing is under way", async || {
            let connections = self.scene.metric("touchline_connections").await;
            let requests = self.scene.metric("touchline_in_flight_requests").await;
            (connections + requests == 0.0).then_some(())
        })
        .await;
    }
}

fn reset(stream: u32, code: u32) -> Frame {
    Frame::new(RST_STREAM, 0, stream, code.to_be_bytes())
}

#[tokio::test]
async fn requests_that_are_reset_before_they_are_looked_at_are_neither_sent_nor_charged() {
    const REQUESTS: u32 = 50;
    for (store, upstream) in SURROUNDINGS {
        let stage = Stage::new(store, upstream).await;
        let mut wire = Wire::open(&stage.scene).await;
        for request in 0..REQUESTS {
            let stream = 2 * request + 1;
            let (_, head) = stage.get(stream);
            let bytes = [head.bytes(), reset(stream, CANCEL).bytes()].concat();
            wire.socket.write_all(&bytes).await.unwrap();
            stage.scene.gateways[0].logged(request as usize + 1).await;
        }
        let lines = stage.judge(REQUESTS as usize).await;
        let begun = stage.scene.upstream.begun();
        for line in &lines {
            assert_eq!(line["outcome"], "client_closed", "{line}");
            let sent = begun.iter().any(|id| line["request_id"] == id.as_str());
            assert_eq!(line["refunded"], !sent, "{line}");
        }
        // The two frames may come to the gateway one after the other, now and then.
        let sent = begun.len();
        assert!(sent <= REQUESTS as usize / 10, "{sent}");
        let unsent = "touchline_refunds_total{reason=\"unsent\"}";
        let refunded = stage.scene.metric(unsent).await as usize;
        assert_eq!(refunded, REQUESTS as usize - sent);
        // And the connection serves.
        let (_, get) = stage.get(1_001);
        wire.send(&get).await;
        assert!(!wire.body(1_001).await.is_empty());
        stage.scene.expect_used(&stage.key, sent as u64 + 1).await;
    }
}

#[tokio::test]
async fn requests_whose_connection_is_dropped_are_charged_only_if_they_were_sent() {
    for (store, upstream) in SURROUNDINGS {
        let stage = Stage::new(store, upstream).await;
        let held = Behaviour::Until(Release::default(), Box::new(Behaviour::Echo));
        stage.scene.upstream.always(held);
        let mut wire = Wire::open(&stage.scene).await;
        let (sent, head) = stage.get(1);
        wire.send(&head).await;
        stage.begun(&sent).await;
        drop(wire);
        assert_eq!(stage.line(&sent).await["refunded"], false);
        stage.scene.upstream.always(Behaviour::Echo);
        for connection in 0..20 {
            let mut wire = Wire::open(&stage.scene).await;
            let mut bytes = Vec::new();
            for stream in (1..2 * AT_ONCE).step_by(2) {
                bytes.extend(stage.get(stream).1.bytes());
            }
            wire.socket.write_all(&bytes).await.unwrap();
            if connection % 2 == 0 {
                // Some have been looked at by then.
                wire.next().await;
            }
        }
        stage.quiet().await;
        // Those that the library had not handed out have none.
        stage.scene.gateways[0].logged(10).await;
        charged_were_sent(&stage.scene, &stage.key.id).await;
        assert!(stage.scene.used(&stage.key).await > 0);
    }
}

/// Waits until so many requests are in flight.
async fn in_flight(scene: &Scene, requests: u32) {
    eventually("the requests are in flight", async || {
        let in_flight = scene.metric("touchline_in_flight_requests").await;
        (in_flight == f64::from(requests)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_get_that_ends_before_its_end_has_come_is_recorded_as_closed_by_the_client_or_cut() {
    let scene = Scene::builder(TOUCHLINE)
        .spec(|spec| spec.extra_yaml = "limits: { shutdown_grace: 1s }".into())
        .start()
        .await;
    let key = scene.issue("starter").await;
    let mut stage = Stage { scene, key };
    let mut wire = Wire::open(&stage.scene).await;
    let (was_reset, head) = stage.head(1, "GET", &[], 0);
    wire.send(&head).await;
    in_flight(&stage.scene, 1).await;
    wire.send(&reset(1, CANCEL)).await;
    in_flight(&stage.scene, 0).await;
    let mut others = [
        Wire::open(&stage.scene).await,
        Wire::open(&stage.scene).await,
    ];
    let (was_dropped, head) = stage.head(1, "GET", &[], 0);
    others[0].send(&head).await;
    let (was_cut, head) = stage.head(1, "GET", &[], 0);
    others[1].send(&head).await;
    // A connection that is closed before all of it was read may take with it what was sent.
    in_flight(&stage.scene, 2).await;
    let [dropped, _kept] = others;
    drop(dropped);
    for id in [was_reset, was_dropped] {
        let line = stage.line(&id).await;
        assert_eq!(line["outcome"], "client_closed", "{line}");
    }
    let process = stage.scene.gateways[0].process();
    process.ask_to_end();
    assert_eq!(process.wait_for_end(PATIENCE).unwrap().code(), Some(0));
    let line = stage.line(&was_cut).await;
    assert_eq!(line["outcome"], "cut", "{line}");
    assert!(stage.scene.upstream.begun().is_empty());
}

/// A part of a body, and the flags of its frame.
type BodyPart = (&'static [u8], u8);

/// Lengths, and bodies that are not so long.
const WRONG_BODIES: [(&str, &[BodyPart]); 5] = [
    ("5", &[(b"abc", END_STREAM)]),
    ("5", &[(b"abcdefg", END_STREAM)]),
    ("5", &[(b"abc", 0), (b"defg", 0)]),
    ("5", &[(b"abcde", 0), (b"f", END_STREAM)]),
    ("5", &[(b"", END_STREAM)]),
];

#[tokio::test]
async fn an_http2_body_that_breaks_its_content_length_is_refunded_and_logged() {
    for (store, upstream) in SURROUNDINGS {
        let stage = Stage::new(store, upstream).await;
        let mut wire = Wire::open(&stage.scene).await;
        let (mut stream, mut ids) = (1, Vec::new());
        // At once, before the request is looked at; and when its head has been sent on.
        for waits in [false, true] {
            for (length, parts) in WRONG_BODIES {
                let (id, head) = stage.post(stream, length);
                let mut bytes = head.bytes();
                if waits {
                    wire.socket.write_all(&bytes).await.unwrap();
                    stage.begun(&id).await;
                    bytes.clear();
                }
                for (part, flags) in parts {
                    bytes.extend(Frame::new(DATA, *flags, stream, *part).bytes());
                }
                wire.socket.write_all(&bytes).await.unwrap();
                ids.push(id);
                stream += 2;
            }
        }
        let (id, head) = stage.post(stream, "0");
        let part = Frame::new(DATA, END_STREAM, stream, *b"x");
        let bytes = [head.bytes(), part.bytes()].concat();
        wire.socket.write_all(&bytes).await.unwrap();
        ids.push(id);
        for id in &ids {
            let line = stage.line(id).await;
            assert_eq!(line["refunded"], true, "{line}");
            assert_eq!(line["status"], 0, "{line}");
        }
        // A body announced as empty may still begin later; a GET has none.
        for (method, charged) in [("POST", 1), ("GET", 0)] {
            stream += 2;
            let (id, head) = stage.head(stream, method, &[("content-length", "0")], 0);
            wire.send(&head).await;
            wire.settle().await;
            stage.scene.expect_used(&stage.key, charged).await;
            wire.send(&Frame::new(DATA, END_STREAM, stream, *b"x"))
                .await;
            let line = stage.line(&id).await;
            assert_eq!(line["outcome"], "BAD_REQUEST", "{line}");
            assert_eq!(line["refunded"], charged == 1, "{line}");
            ids.push(id);
        }
        stage.judge(ids.len()).await;
        stage.scene.expect_used(&stage.key, 0).await;
        let malformed = limit_hits(&stage.scene, "h2_malformed").await;
        assert_eq!(malformed, ids.len() as f64, "{upstream}");
        let recorded = stage.scene.upstream.recorded();
        assert!(recorded.is_empty(), "{recorded:?}");
    }
}

#[tokio::test]
async fn a_whole_request_whose_client_then_breaks_the_protocol_stays_charged() {
    for (store, upstream) in SURROUNDINGS {
        let stage = Stage::new(store, upstream).await;
        stage.scene.upstream.always(Behaviour::Stall);
        let mut wire = Wire::open(&stage.scene).await;
        let (id, get) = stage.get(1);
        wire.send(&get).await;
        stage.begun(&id).await;
        let overflow = 0x7fff_ffffu32.to_be_bytes();
        wire.send(&Frame::new(WINDOW_UPDATE, 0, 1, overflow)).await;
        let line = stage.line(&id).await;
        assert_eq!(line["outcome"], "client_closed", "{line}");
        assert_eq!(line["refunded"], false, "{line}");
        // The same where trailers come that do not end the stream.
        let (id, post) = stage.post(3, "5");
        wire.send(&post).await;
        wire.send(&Frame::new(DATA, 0, 3, *b"abcde")).await;
        stage.begun(&id).await;
        let trailers = Frame::new(HEADERS, END_HEADERS, 3, block(&[("a", "b")]));
        wire.send(&trailers).await;
        // That is part of the request: it is broken, and refunded.
        let line = stage.line(&id).await;
        assert_eq!(line["refunded"], true, "{line}");
        assert_eq!(limit_hits(&stage.scene, "h2_malformed").await, 1.0);
        stage.judge(2).await;
        stage.scene.expect_used(&stage.key, 1).await;
    }
}

#[tokio::test]
async fn an_upload_that_its_client_resets_is_not_sent_again_whatever_the_code() {
    for (store, upstream) in SURROUNDINGS {
        let stage = Stage::new(store, upstream).await;
        let mut wire = Wire::open(&stage.scene).await;
        for (number, code) in [0, 1, REFUSED_STREAM, CANCEL].into_iter().enumerate() {
            let stream = 2 * u32::try_from(number).unwrap() + 1;
            let (id, head) = stage.post(stream, "5");
            wire.send(&head).await;
            stage.begun(&id).await;
            wire.send(&reset(stream, code)).await;
            let line = stage.line(&id).await;
            assert_eq!(line["outcome"], "client_closed", "{code}: {line}");
            assert_eq!(line["refunded"], false, "{code}: {line}");
            let begun = stage.scene.upstream.begun();
            assert_eq!(begun.len(), number + 1, "{code}: {begun:?}");
        }
        stage.judge(4).await;
        stage.scene.expect_used(&stage.key, 4).await;
        let retries =
            "touchline_upstream_retries_total{reason=\"refused\",upstream=\"prediction-data\"}";
        assert_eq!(stage.scene.metric(retries).await, 0.0);
    }
}

#[tokio::test]
async fn a_request_that_is_reset_while_it_waits_for_its_turn_is_not_sent() {
    let stage = Stage::new(Store::Embedded, "protocol: http1").await;
    let release = Release::default();
    let held = Behaviour::Until(release.clone(), Box::new(Behaviour::Echo));
    stage.scene.upstream.always(held);
    let mut wire = Wire::open(&stage.scene).await;
    // The connection's share of the memory lets 47 be worked on.
    let mut streams = Vec::new();
    for stream in (1..200).step_by(2) {
        let (id, get) = stage.get(stream);
        wire.send(&get).await;
        streams.push((id, stream));
    }
    eventually("requests wait for their turn", async || {
        let waiting = limit_hits(&stage.scene, "h2_memory").await;
        (waiting >= 53.0 && stage.scene.upstream.begun().len() == 47).then_some(())
    })
    .await;
    // Those that wait first: the end of another would be the turn of one.
    let begun = stage.scene.upstream.begun();
    let (under_way, waiting): (Vec<_>, Vec<_>) =
        streams.iter().partition(|(id, _)| begun.contains(id));
    for (_, stream) in waiting {
        wire.send(&reset(*stream, CANCEL)).await;
    }
    // What comes before a PING has been read when its answer comes.
    wire.send(&Frame::new(PING, 0, 0, [7; 8])).await;
    while wire.next().await.expect("an answer").kind != PING {}
    for (_, stream) in under_way {
        wire.send(&reset(*stream, CANCEL)).await;
    }
    stage.judge(streams.len()).await;
    let sent = stage.scene.upstream.begun().len();
    assert_eq!(sent, 47);
    stage.scene.expect_used(&stage.key, 47).await;
    release.give();
}

#[tokio::test]
async fn requests_whose_turn_comes_when_the_gateway_has_cut_them_off_are_not_charged() {
    const REQUESTS: usize = 100;
    let scene = Scene::builder(TOUCHLINE)
        .spec(|spec| {
            spec.endpoints[0].methods.push("POST".into());
            spec.extra_yaml = "limits: { shutdown_grace: 1s }".into();
        })
        .start()
        .await;
    let key = scene.issue("pro").await;
    scene.upstream.always(Behaviour::Stall);
    let mut stage = Stage { scene, key };
    let mut wire = Wire::open(&stage.scene).await;
    for request in 0..REQUESTS {
        // The head alone: of a request without a body, the end is waited for before it is charged.
        let (_, post) = stage.post(2 * request as u32 + 1, "5");
        wire.send(&post).await;
    }
    // What comes before a PING has been read when its answer comes.
    wire.send(&Frame::new(PING, 0, 0, [7; 8])).await;
    while wire.next().await.expect("an answer").kind != PING {}
    let begun = eventually("all others wait for their turn", async || {
        let in_flight = stage.scene.metric("touchline_in_flight_requests").await as usize;
        let begun = stage.scene.upstream.begun().len();
        (0 < begun && begun < REQUESTS && begun == in_flight).then_some(begun)
    })
    .await;
    let process = stage.scene.gateways[0].process();
    process.ask_to_end();
    assert_eq!(process.wait_for_end(PATIENCE).unwrap().code(), Some(0));
    let lines = stage.scene.gateways[0].access_lines();
    let charged = lines.iter().filter(|line| line["units"] == 1).count();
    assert_eq!(charged, begun, "{lines:?}");
    assert!(lines.iter().all(|line| line["outcome"] == "cut"));
    stage.scene.expect_used(&stage.key, 0).await;
}

/// A listener whose queue is full, so that no client connects to it for now, and what fills it.
pub async fn full_listener() -> (TcpListener, Vec<TcpStream>) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let address: std::net::SocketAddr = "127.0.0.1:0".parse().unwrap();
    socket.bind(&address.into()).unwrap();
    socket.listen(0).unwrap();
    socket.set_nonblocking(true).unwrap();
    let listener = TcpListener::from_std(socket.into()).unwrap();
    let filling = fill(listener.local_addr().unwrap()).await;
    (listener, filling)
}

/// Connects to a listener until its queue is full.
pub async fn fill(address: std::net::SocketAddr) -> Vec<TcpStream> {
    let mut filling = Vec::new();
    let patience = Duration::from_millis(300);
    while let Ok(filler) = tokio::time::timeout(patience, TcpStream::connect(address)).await {
        filling.push(filler.unwrap());
    }
    filling
}

#[tokio::test]
async fn a_request_that_is_cut_off_before_its_upstream_is_reached_is_refunded() {
    for (store, _) in SURROUNDINGS {
        let (listener, _filling) = full_listener().await;
        let address = listener.local_addr().unwrap();
        let mut scene = Scene::builder(TOUCHLINE)
            .store(store)
            .timeout("connect", "20s")
            .spec(move |spec| {
                spec.upstream = address;
                spec.extra_yaml = "limits: { shutdown_grace: 1s }".into();
            })
            .start()
            .await;
        let key = scene.issue("pro").await;
        let mut wire = Wire::open(&scene).await;
        wire.get(1, MARKETS, &key.key).await;
        scene.expect_used(&key, 1).await;
        let process = scene.gateways[0].process();
        process.ask_to_end();
        assert_eq!(process.wait_for_end(PATIENCE).unwrap().code(), Some(0));
        scene.expect_used(&key, 0).await;
        let line = scene.gateways[0].logged(1).await.remove(0);
        assert_eq!(line["outcome"], "cut", "{line}");
        assert_eq!(line["refunded"], true, "{line}");
    }
}

#[tokio::test]
async fn a_client_that_hangs_up_before_its_upstream_is_reached_is_refunded() {
    // The method and the rest of a request over HTTP/1.
    let over_http1 = [
        ("GET", "\r\n"),
        ("POST", "Content-Length: 5\r\n\r\nhello"),
        ("POST", "Content-Length: 50\r\n\r\nhello"),
        ("POST", "Content-Length: 5\r\nExpect: 100-continue\r\n\r\n"),
    ];
    for over_http1 in [None].into_iter().chain(over_http1.map(Some)) {
        let (listener, filling) = full_listener().await;
        let address = listener.local_addr().unwrap();
        let mut scene = Scene::builder(TOUCHLINE)
            .timeout("connect", "20s")
            .spec(move |spec| {
                spec.upstream = address;
                spec.endpoints[0].methods.push("POST".into());
            })
            .start()
            .await;
        let key = scene.issue("pro").await;
        if let Some((method, rest)) = over_http1 {
            let mut socket = TcpStream::connect(scene.gateways[0].http).await.unwrap();
            let request = format!(
                "{method} {MARKETS} HTTP/1.1\r\nHost: h\r\nX-API-Key: {}\r\n{rest}",
                key.key
            );
            socket.write_all(request.as_bytes()).await.unwrap();
            scene.expect_used(&key, 1).await;
        } else {
            let mut wire = Wire::open(&scene).await;
            wire.get(1, MARKETS, &key.key).await;
            scene.expect_used(&key, 1).await;
            wire.send(&reset(1, CANCEL)).await;
            wire.socket.shutdown().await.unwrap();
            // Read by the gateway with all before it.
            wire.end().await;
        }
        for _ in &filling {
            listener.accept().await.unwrap();
        }
        let (mut upstream, _) = listener.accept().await.unwrap();
        let line = scene.gateways[0].logged(1).await.remove(0);
        assert_eq!(line["outcome"], "client_closed", "{line}");
        assert_eq!(line["refunded"], true, "{line}");
        scene.expect_used(&key, 0).await;
        scene.gateways[0].terminate();
        let mut received = Vec::new();
        upstream.read_to_end(&mut received).await.unwrap();
        assert!(received.is_empty(), "{received:?}");
    }
}

#[tokio::test]
async fn a_client_that_hangs_up_after_a_server_has_processed_nothing_is_refunded() {
    // The last stream that a GOAWAY of nothing but zeros reports as processed is none.
    let unprocessed = || (Frame::new(GOAWAY, 0, 0, [0; 8]), "refused");
    // What its server did before it asked for the other version is unknown.
    let stale = || (reset(1, HTTP_1_1_REQUIRED), "stale");
    for (refusals, is_refunded) in [
        (vec![unprocessed()], true),
        (vec![unprocessed(), unprocessed()], true),
        (vec![stale(), unprocessed()], false),
    ] {
        let (listener, mut filling) = full_listener().await;
        let (address, retries) = (listener.local_addr().unwrap(), refusals.len() as u32);
        let scene = Scene::builder(TOUCHLINE)
            .timeout("connect", "20s")
            .spec(move |spec| {
                spec.upstream = address;
                spec.upstream_extra = "protocol: http2".into();
                spec.retries = retries;
            })
            .start()
            .await;
        let key = scene.issue("pro").await;
        let mut wire = Wire::open(&scene).await;
        wire.get(1, MARKETS, &key.key).await;
        scene.expect_used(&key, 1).await;
        for _ in &filling {
            listener.accept().await.unwrap();
        }
        for (number, (refusal, reason)) in (1..).zip(refusals) {
            let (mut upstream, _) = listener.accept().await.unwrap();
            let settings = Frame::new(SETTINGS, 0, 0, []);
            upstream.write_all(&settings.bytes()).await.unwrap();
            let mut skipped = vec![0; PREFACE.len()];
            let mut head = [0; 9];
            while head[3] != HEADERS {
                upstream.read_exact(&mut skipped).await.unwrap();
                upstream.read_exact(&mut head).await.unwrap();
                skipped = vec![0; usize::from(u16::from_be_bytes([head[1], head[2]]))];
            }
            if number == retries {
                filling.extend(fill(address).await);
            }
            let labels = format!("reason=\"{reason}\",upstream=\"prediction-data\"");
            let retried = format!("touchline_upstream_retries_total{{{labels}}}");
            let before = scene.metric(&retried).await;
            upstream.write_all(&refusal.bytes()).await.unwrap();
            eventually("another attempt has begun", async || {
                (scene.metric(&retried).await > before).then_some(())
            })
            .await;
        }
        wire.socket.shutdown().await.unwrap();
        wire.send(&reset(1, CANCEL)).await;
        wire.end().await;
        for _ in &filling {
            listener.accept().await.unwrap();
        }
        let line = scene.gateways[0].logged(1).await.remove(0);
        assert_eq!(line["outcome"], "client_closed", "{line}");
        assert_eq!(line["refunded"], is_refunded, "{line}");
        scene.expect_used(&key, u64::from(!is_refunded)).await;
    }
}

#[tokio::test]
async fn an_upload_that_its_server_does_not_read_ends_when_its_client_resets_it() {
    for protocol in ["http1", "http2"] {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let address: std::net::SocketAddr = "127.0.0.1:0".parse().unwrap();
        socket.bind(&address.into()).unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        socket.listen(8).unwrap();
        socket.set_nonblocking(true).unwrap();
        let listener = TcpListener::from_std(socket.into()).unwrap();
        let address = listener.local_addr().unwrap();
        let scene = Scene::builder(TOUCHLINE)
            .timeout("read", "1h")
            .timeout("total", "1h")
            .spec(move |spec| {
                spec.upstream = address;
                spec.upstream_extra = format!("protocol: {protocol}");
                spec.endpoints[0].methods.push("POST".into());
            })
            .start()
            .await;
        let key = scene.issue("pro").await;
        let client = scene.client(Protocol::Http2Tls);
        for calls in 1..=2 {
            let upload = Call::new("POST", MARKETS).key(&key);
            let upload = client.call(upload.body(vec![b'x'; 1_000_000]));
            let unread = tokio::time::timeout(Duration::from_secs(2), upload).await;
            assert!(unread.is_err(), "the server read the upload: {unread:?}");
            let line = scene.gateways[0].logged(calls).await.remove(calls - 1);
            assert_eq!(line["outcome"], "client_closed", "{line}");
            // Each upload had a connection of its own: that of the first may be dead.
            listener.accept().await.unwrap();
        }
    }
}

/// The settings of a client that takes all answers at once: a window of 2 MiB for each stream.
const OPEN: &[(u16, u32)] = &[(4, 2 * 1024 * 1024)];
/// As many streams as may be open at once.
const STREAMS: u32 = 100;
/// Little enough that the HTTP/2 library takes an answer as a whole.
const ANSWER_BYTES: usize = 15_000;

/// A connection whose client has asked for many answers and reads none, once all of them were served: most of their bytes wait in
/// the gateway for the client's socket.
async fn with_unread_answers(limits: &str) -> (Scene, Wire) {
    let yaml = format!("limits: {{ {limits} }}");
    let scene = Scene::builder(TOUCHLINE)
        .spec(move |spec| spec.extra_yaml = yaml)
        .start()
        .await;
    let key = scene.issue("enterprise").await;
    let answer = Script::json(200, &"x".repeat(ANSWER_BYTES));
    scene.upstream.always(Behaviour::Answer(answer));
    let mut wire = Wire::with_settings(&scene, OPEN).await;
    let more = 0x7fff_0000_u32.to_be_bytes();
    assert!(wire.send(&Frame::new(WINDOW_UPDATE, 0, 0, more)).await);
    for number in 0..STREAMS {
        assert!(wire.get(2 * number + 1, MARKETS, &key.key).await);
    }
    let lines = scene.gateways[0].logged(STREAMS as usize).await;
    assert!(lines.iter().all(|line| line["outcome"] == "served"));
    (scene, wire)
}

async fn expect_all_whole(wire: &mut Wire) {
    let bytes = wire.whole_answers(STREAMS).await;
    assert_eq!(bytes, ANSWER_BYTES * STREAMS as usize);
}

#[tokio::test]
async fn served_answers_reach_a_slow_client_whose_connection_was_retired() {
    let limits = format!("requests_per_connection: {STREAMS}");
    let (_scene, mut wire) = with_unread_answers(&limits).await;
    // Longer than a client may take to act on a GOAWAY.
    tokio::time::sleep(Duration::from_secs(7)).await;
    expect_all_whole(&mut wire).await;
}

#[tokio::test]
async fn served_answers_reach_a_slow_client_although_the_gateway_stops() {
    let (mut scene, mut wire) = with_unread_answers("shutdown_grace: 20s").await;
    scene.gateways[0].process().ask_to_end();
    // Longer than a client without requests is waited for.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(scene.gateways[0].process().ended(), None);
    expect_all_whole(&mut wire).await;
    wire.end().await;
    eventually("the gateway ends", async || {
        scene.gateways[0].process().ended()
    })
    .await;
}

#[tokio::test]
async fn a_request_that_is_cut_off_while_its_client_leaves_its_window_closed_stays_charged() {
    let mut scene = Scene::builder(TOUCHLINE)
        .spec(|spec| spec.extra_yaml = "limits: { shutdown_grace: 1s }".into())
        .start()
        .await;
    let key = scene.issue("starter").await;
    // More than the window that every client opens (RFC 9113 section 6.9.2).
    let answer = Script::json(200, &"x".repeat(1024 * 1024));
    scene.upstream.always(Behaviour::Answer(answer));
    let mut wire = Wire::open(&scene).await;
    assert!(wire.get(1, MARKETS, &key.key).await);
    eventually("the request is at the upstream", async || {
        (scene.upstream.count() == 1).then_some(())
    })
    .await;
    scene.gateways[0].process().ask_to_end();
    let status = scene.gateways[0].process().wait_for_end(PATIENCE);
    assert_eq!(status.unwrap().code(), Some(0));
    let lines = scene.gateways[0].access_lines();
    assert_eq!(
        (&lines[0]["outcome"], &lines[0]["refunded"]),
        (&"cut".into(), &false.into()),
        "{lines:?}"
    );
    scene.expect_used(&key, 1).await;
}
