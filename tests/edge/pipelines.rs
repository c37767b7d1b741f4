//! Requests sent ahead of their answers (RFC 9112 section 9.3.2): served in turn, each authenticated and charged.

use std::time::Duration;

use harness::client::{HOST, Until};
use harness::{Behaviour, Protocol, Scene, eventually};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::frames::Stream;
use super::{MARKETS, TOUCHLINE, assert_problem};

fn get(key: &str, more: &str) -> String {
    format!("GET {MARKETS} HTTP/1.1\r\nHost: {HOST}\r\nX-API-Key: {key}\r\n{more}\r\n")
}

#[tokio::test]
async fn requests_sent_ahead_are_answered_in_turn_and_charged_one_by_one() {
    let scene = Scene::builder(TOUCHLINE).start().await;
    let (one, other) = (scene.issue("starter").await, scene.issue("pro").await);
    scene.upstream.always(Behaviour::Delay(
        Duration::from_millis(50),
        Box::new(Behaviour::Echo),
    ));
    for protocol in [Protocol::Http1, Protocol::Http1Tls] {
        let request = [
            get(&one.key, ""),
            get("wrong", ""),
            get(&other.key, ""),
            get(&one.key, ""),
        ]
        .concat();
        let exchange = scene.client(protocol).raw(request, Until::Answers(4)).await;
        let statuses: Vec<u16> = exchange.answers.iter().map(|one| one.status).collect();
        assert_eq!(statuses, [200, 401, 200, 200]);
        let limits: Vec<Option<u64>> = exchange
            .answers
            .iter()
            .map(|one| one.number("x-ratelimit-limit"))
            .collect();
        assert_eq!(limits, [Some(1_000), None, Some(3_000), Some(1_000)]);
    }
    scene.expect_used(&one, 4).await;
    scene.expect_used(&other, 2).await;
    assert_eq!(scene.upstream.count(), 6);
}

#[tokio::test]
async fn a_bad_head_behind_a_good_one_is_refused_after_its_answer() {
    let scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    scene.upstream.always(Behaviour::Delay(
        Duration::from_millis(50),
        Box::new(Behaviour::Echo),
    ));
    let request = format!(
        "{}GET /a b HTTP/1.1\r\nHost: h\r\n\r\n{}",
        get(&key.key, ""),
        get(&key.key, "")
    );
    let exchange = scene
        .client(Protocol::Http1)
        .raw(request, Until::Closed)
        .await;
    assert!(exchange.closed);
    assert_eq!(exchange.answers.len(), 2, "{exchange:?}");
    assert_eq!(exchange.answers[0].status, 200);
    assert_problem(&exchange.answers[1], 400, "BAD_REQUEST");
    scene.expect_used(&key, 1).await;
}

#[tokio::test]
async fn nothing_behind_connection_close_is_served() {
    let scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    let request = [get(&key.key, "Connection: close\r\n"), get(&key.key, "")].concat();
    let exchange = scene
        .client(Protocol::Http1)
        .raw(request, Until::Closed)
        .await;
    assert!(exchange.closed);
    assert_eq!(exchange.answers.len(), 1, "{exchange:?}");
    scene.expect_used(&key, 1).await;
    assert_eq!(scene.upstream.count(), 1);
}

/// The gateway leaves unread what is far ahead.
#[tokio::test]
async fn a_client_that_hangs_up_on_many_requests_sent_ahead_has_only_the_first_forwarded() {
    for protocol in [Protocol::Http1, Protocol::Http1Tls] {
        let scene = Scene::builder(TOUCHLINE).start().await;
        let key = scene.issue("starter").await;
        scene.upstream.always(Behaviour::Stall);
        let requests = get(&key.key, &format!("X-Long: {}\r\n", "x".repeat(1_000))).repeat(30);
        let mut socket: Box<dyn Stream> = match protocol.is_tls() {
            true => Box::new(scene.client(protocol).tls_stream().await),
            false => Box::new(TcpStream::connect(scene.gateways[0].http).await.unwrap()),
        };
        socket.write_all(requests.as_bytes()).await.unwrap();
        socket.flush().await.unwrap();
        eventually("the first is forwarded", async || {
            (!scene.upstream.begun().is_empty()).then_some(())
        })
        .await;
        drop(socket);
        let line = scene.gateways[0].logged(1).await.remove(0);
        assert_eq!(line["outcome"], "client_closed", "{line}");
        eventually("the connection has ended", async || {
            (scene.metric("touchline_connections").await == 0.0).then_some(())
        })
        .await;
        assert_eq!(scene.upstream.begun().len(), 1);
        scene.expect_used(&key, 1).await;
    }
}
