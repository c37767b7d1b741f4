//! How many connections there may be, for how long and for how many requests.

use std::time::Duration;

use harness::client::{HOST, Until};
use harness::{Behaviour, Call, PATIENCE, Protocol, Scene, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::frames::{GOAWAY, Wire};
use super::{MARKETS, TOUCHLINE, limit_hits};

async fn limited(limits: &str) -> Scene {
    let yaml = format!("limits: {{ {limits} }}");
    Scene::builder(TOUCHLINE)
        .spec(move |spec| spec.extra_yaml = yaml)
        .start()
        .await
}

#[tokio::test]
async fn one_connection_more_than_there_may_be_is_closed_at_once() {
    let scene = limited("connections: 3").await;
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(TcpStream::connect(scene.gateways[0].http).await.unwrap());
    }
    eventually("three are counted", async || {
        (scene.metric("touchline_connections").await > 2.5).then_some(())
    })
    .await;
    let mut fourth = TcpStream::connect(scene.gateways[0].https).await.unwrap();
    let read = tokio::time::timeout(PATIENCE, fourth.read(&mut [0; 1])).await;
    assert!(matches!(read, Ok(Ok(0) | Err(_))), "{read:?}");
    assert!((limit_hits(&scene, "connections").await - 1.0).abs() < 0.5);
    held.pop();
    let key = scene.issue("starter").await;
    let answer = eventually("there is room again", async || {
        scene
            .client(Protocol::Http1Tls)
            .try_call(Call::get(MARKETS).key(&key))
            .await
            .ok()
    });
    assert_eq!(answer.await.status, 200);
}

#[tokio::test]
async fn a_connection_ends_with_the_last_request_it_may_have() {
    let scene = limited("requests_per_connection: 3").await;
    let key = scene.issue("starter").await;
    let request = format!(
        "GET {MARKETS} HTTP/1.1\r\nHost: {HOST}\r\nX-API-Key: {}\r\n\r\n",
        key.key
    );
    let exchange = scene
        .client(Protocol::Http1)
        .raw(request.repeat(5), Until::Closed)
        .await;
    assert!(exchange.closed);
    let statuses: Vec<u16> = exchange.answers.iter().map(|one| one.status).collect();
    assert_eq!(statuses, [200; 3]);
    assert_eq!(exchange.answers[2].header("connection"), Some("close"));
    let mut wire = Wire::open(&scene).await;
    for stream in [1, 3, 5] {
        wire.get(stream, MARKETS, &key.key).await;
    }
    let (mut ended, mut goaway) = (0, false);
    while let Some(frame) = wire.next().await {
        goaway |= frame.kind == GOAWAY && frame.goaway_code() == Some(0);
        ended += usize::from(frame.stream > 0 && frame.flags & 1 != 0);
    }
    assert!(goaway && ended == 3, "{ended} answers");
    let hits = limit_hits(&scene, "requests_per_connection").await;
    assert!((hits - 2.0).abs() < 0.5, "{hits}");
    scene.expect_used(&key, 6).await;
}

#[tokio::test]
async fn an_old_connection_takes_no_further_request_and_finishes_those_under_way() {
    let scene = limited("connection_age: 1s").await;
    let key = scene.issue("starter").await;
    scene.upstream.always(Behaviour::Delay(
        Duration::from_secs(2),
        Box::new(Behaviour::Echo),
    ));
    let request = format!(
        "GET {MARKETS} HTTP/1.1\r\nHost: {HOST}\r\nX-API-Key: {}\r\n\r\n",
        key.key
    );
    let client = scene.client(Protocol::Http1);
    let raw = client.raw(request, Until::Closed);
    let mut wire = Wire::open(&scene).await;
    wire.get(1, MARKETS, &key.key).await;
    let (exchange, body) = tokio::join!(raw, wire.body(1));
    assert!(
        exchange.closed && exchange.answers[0].status == 200,
        "{exchange:?}"
    );
    assert!(!body.is_empty());
    wire.end().await;
    assert!((limit_hits(&scene, "connection_age").await - 2.0).abs() < 0.5);
}

/// A request that its client sends at that moment must not meet a closed connection.
#[tokio::test]
async fn an_old_connection_over_http1_announces_its_end_with_one_more_answer() {
    let mut scene = limited("connection_age: 3s, shutdown_grace: 1h").await;
    let key = scene.issue("starter").await;
    let request = format!(
        "GET {MARKETS} HTTP/1.1\r\nHost: {HOST}\r\nX-API-Key: {}\r\n\r\n",
        key.key
    );
    let mut sockets = Vec::new();
    for _ in 0..2 {
        let mut socket = TcpStream::connect(scene.gateways[0].http).await.unwrap();
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut first = Vec::new();
        while !first.ends_with(b"}") {
            assert!(socket.read_buf(&mut first).await.unwrap() > 0);
        }
        let first = String::from_utf8(first).unwrap();
        assert!(first.contains("connection: keep-alive"), "{first}");
        sockets.push(socket);
    }
    eventually("they are too old", async || {
        (limit_hits(&scene, "connection_age").await > 1.5).then_some(())
    })
    .await;
    // A connection that is asked to end is closed after 50 ms.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut last = String::new();
    sockets[0].write_all(request.as_bytes()).await.unwrap();
    sockets[0].read_to_string(&mut last).await.unwrap();
    assert!(last.starts_with("HTTP/1.1 200 "), "{last}");
    assert!(last.contains("connection: close"), "{last}");
    // A stop waits no longer for the other one than for any.
    scene.gateways[0].terminate();
    assert_eq!(sockets[1].read_to_string(&mut last).await.unwrap(), 0);
    scene.expect_used(&key, 3).await;
}
