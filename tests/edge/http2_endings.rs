//! HTTP/2 requests that end before their answer does. Each unit that stays charged had a request sent to an upstream; the upstream is
//! asked: it keeps the id of every head that came.

use std::time::Duration;

use harness::client::next_request_id;
use harness::upstream::Release;
use harness::{Behaviour, IssuedKey, Scene, Store, eventually};
use serde_json::Value;
use socket2::{Domain, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::frames::{END_HEADERS, END_STREAM, Frame, HEADERS, RST_STREAM, Wire, block};
use super::{MARKETS, TOUCHLINE, charged_were_sent, limit_hits};

const CANCEL: u32 = 8;
/// Streams opened at once: with a reset each, fewer than the library lets wait to be looked at.
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
    for (store, upstream) in SURROUNDINGS {
        let stage = Stage::new(store, upstream).await;
        let mut wire = Wire::open(&stage.scene).await;
        let mut requests = 0;
        for first in (1..200).step_by(2 * AT_ONCE as usize) {
            let mut bytes = Vec::new();
            for stream in (first..first + 2 * AT_ONCE).step_by(2) {
                bytes.extend(stage.get(stream).1.bytes());
                bytes.extend(reset(stream, CANCEL).bytes());
                requests += 1;
            }
            wire.socket.write_all(&bytes).await.unwrap();
            stage.scene.gateways[0].logged(requests).await;
        }
        let lines = stage.judge(requests).await;
        for line in lines {
            assert_eq!(line["outcome"], "client_closed", "{line}");
            assert_eq!(
                (&line["units"], &line["refunded"]),
                (&1.into(), &true.into())
            );
        }
        assert_eq!(stage.scene.upstream.begun(), [""; 0], "{upstream}");
        let refunds = "touchline_refunds_total{reason=\"unsent\"}";
        assert_eq!(stage.scene.metric(refunds).await, requests as f64);
        // And the connection serves.
        let (_, get) = stage.get(1_001);
        wire.send(&get).await;
        assert!(!wire.body(1_001).await.is_empty());
        stage.scene.expect_used(&stage.key, 1).await;
    }
}

#[tokio::test]
async fn requests_whose_connection_is_dropped_are_charged_only_if_they_were_sent() {
    for (store, upstream) in SURROUNDINGS {
        let stage = Stage::new(store, upstream).await;
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
        let lines = stage.scene.gateways[0].access_lines().len();
        assert!(lines >= 10, "{lines}");
        charged_were_sent(&stage.scene, &stage.key.id).await;
    }
}

#[tokio::test]
async fn a_request_that_is_reset_while_it_waits_for_its_turn_is_not_sent() {
    let stage = Stage::new(Store::Embedded, "protocol: http1").await;
    let release = Release::default();
    let held = Behaviour::Until(release.clone(), Box::new(Behaviour::Echo));
    stage.scene.upstream.always(held);
    let mut wire = Wire::open(&stage.scene).await;
    // A new connection's share of the memory lets six be worked on.
    let streams: Vec<u32> = (1..40).step_by(2).collect();
    for stream in &streams {
        wire.send(&stage.get(*stream).1).await;
    }
    eventually("requests wait for their turn", async || {
        let waiting = limit_hits(&stage.scene, "h2_memory").await;
        (waiting >= 14.0 && stage.scene.upstream.begun().len() == 6).then_some(())
    })
    .await;
    for stream in &streams {
        wire.send(&reset(*stream, CANCEL)).await;
    }
    stage.judge(streams.len()).await;
    let sent = stage.scene.upstream.begun().len();
    assert_eq!(sent, 6);
    stage.scene.expect_used(&stage.key, 6).await;
    release.give();
}

/// A listener whose queue is full, so that nobody connects to it for now, and what fills it.
async fn full_listener() -> (TcpListener, Vec<TcpStream>) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let address: std::net::SocketAddr = "127.0.0.1:0".parse().unwrap();
    socket.bind(&address.into()).unwrap();
    socket.listen(0).unwrap();
    socket.set_nonblocking(true).unwrap();
    let listener = TcpListener::from_std(socket.into()).unwrap();
    let address = listener.local_addr().unwrap();
    let mut filling = Vec::new();
    let patience = Duration::from_millis(300);
    while let Ok(filler) = tokio::time::timeout(patience, TcpStream::connect(address)).await {
        filling.push(filler.unwrap());
    }
    (listener, filling)
}

#[tokio::test]
async fn a_client_that_hangs_up_before_its_upstream_is_reached_is_refunded() {
    for over_http2 in [true, false] {
        let (listener, filling) = full_listener().await;
        let address = listener.local_addr().unwrap();
        let mut scene = Scene::builder(TOUCHLINE)
            .timeout("connect", "20s")
            .spec(move |spec| spec.upstream = address)
            .start()
            .await;
        let key = scene.issue("pro").await;
        if over_http2 {
            let mut wire = Wire::open(&scene).await;
            wire.get(1, MARKETS, &key.key).await;
            scene.expect_used(&key, 1).await;
            wire.send(&reset(1, CANCEL)).await;
            wire.socket.shutdown().await.unwrap();
            // Read by the gateway with all before it.
            wire.end().await;
        } else {
            let mut socket = TcpStream::connect(scene.gateways[0].http).await.unwrap();
            let head = format!(
                "GET {MARKETS} HTTP/1.1\r\nHost: h\r\nX-API-Key: {}\r\n\r\n",
                key.key
            );
            socket.write_all(head.as_bytes()).await.unwrap();
            scene.expect_used(&key, 1).await;
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
