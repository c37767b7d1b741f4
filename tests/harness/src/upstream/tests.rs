//! The upstream and the clients against each other: each observes the other's behaviour.

use std::time::Duration;

use super::*;
use crate::client::{Call, Client, Ending, Protocol, Until};

fn client(upstream: &RecordingUpstream, ledger: &Arc<crate::client::ClientLedger>) -> Client {
    Client::new(Protocol::Http1, upstream.address(), Arc::clone(ledger))
}

#[tokio::test]
async fn a_request_is_recorded_byte_for_byte_and_its_id_echoed() {
    let upstream = RecordingUpstream::start().await;
    let ledger = Arc::default();
    let call = Call::new("POST", "/a%2Fb?c=%zz")
        .body("text")
        .header("x-one", "1");
    let answer = client(&upstream, &ledger).call(call).await;
    let recorded = upstream.recorded();
    assert_eq!(recorded[0].target, b"/a%2Fb?c=%zz");
    assert_eq!(recorded[0].body, b"text");
    assert_eq!(recorded[0].values("X-One"), ["1"]);
    assert_eq!(recorded[0].outcome, Outcome::Answered);
    assert_eq!(answer.json()["request_id"], recorded[0].id.as_str());
}

#[tokio::test]
async fn every_misbehaviour_is_visible_to_the_client() {
    let upstream = RecordingUpstream::start().await;
    let ledger = Arc::default();
    let client = client(&upstream, &ledger);
    for behaviour in [
        Behaviour::ResetMidBody { after: 100 },
        Behaviour::CloseMidBody { after: 100 },
    ] {
        upstream.always(behaviour);
        let answer = client.call(Call::get("/")).await;
        assert!(answer.status == 200 && !answer.complete && answer.body.len() == 100);
    }
    upstream.always(Behaviour::ResetBeforeHeader);
    assert!(client.try_call(Call::get("/")).await.is_err());
    upstream.always(Behaviour::Informational(
        103,
        Box::new(Behaviour::Status(503)),
    ));
    assert_eq!(client.call(Call::get("/")).await.status, 503);
    upstream.always(Behaviour::Answer(
        Script::json(200, &"x".repeat(2_500)).chunked(),
    ));
    let answer = client.call(Call::get("/")).await;
    assert!(answer.complete && answer.body.len() == 2_500);
    let raw = client
        .raw("GET / HTTP/1.1\r\nHost: a\r\n\r\n", Until::Answers(1))
        .await;
    assert_eq!(raw.answers[0].body.len(), 2_500);
    let endings: Vec<Ending> = ledger.entries().iter().map(|entry| entry.ending).collect();
    assert_eq!(
        endings,
        [
            Ending::Cut,
            Ending::Cut,
            Ending::Failed,
            Ending::Whole,
            Ending::Whole,
            Ending::Whole
        ]
    );
}

#[tokio::test]
async fn a_connection_closed_in_silence_is_replaced() {
    let upstream = RecordingUpstream::start().await;
    let ledger = Arc::default();
    let client = client(&upstream, &ledger);
    upstream.always(Behaviour::ThenClose(Box::new(Behaviour::Echo)));
    assert_eq!(client.call(Call::get("/")).await.status, 200);
    upstream.always(Behaviour::Echo);
    let _ = client.try_call(Call::get("/")).await;
    assert_eq!(client.call(Call::get("/")).await.status, 200);
    assert_eq!(upstream.recorded().last().unwrap().connection, 2);
}

#[tokio::test]
async fn a_stopped_upstream_refuses_connections_until_it_is_restarted() {
    let mut upstream = RecordingUpstream::start().await;
    let ledger = Arc::default();
    let client = client(&upstream, &ledger);
    assert_eq!(client.call(Call::get("/")).await.status, 200);
    upstream.stop().await;
    assert!(client.try_call(Call::get("/")).await.is_err());
    upstream.restart().await;
    assert_eq!(client.call(Call::get("/")).await.status, 200);
}

#[tokio::test]
async fn a_client_can_hang_up() {
    let upstream = RecordingUpstream::start().await;
    let ledger: Arc<crate::client::ClientLedger> = Arc::default();
    upstream.always(Behaviour::Stall);
    let arrived = async {
        crate::eventually("the request arrives", async || {
            (upstream.count() == 1).then_some(())
        })
        .await;
    };
    let id = client(&upstream, &ledger)
        .call_and_hang_up(Call::get("/"), arrived)
        .await;
    assert_eq!(ledger.entries()[0].ending, Ending::HungUp);
    assert_eq!(upstream.recorded_as(&id).len(), 1);
}

#[tokio::test]
async fn a_redis_server_survives_signals_and_restarts_on_its_port() {
    let directory = tempfile::TempDir::new().unwrap();
    let mut server = crate::RedisServer::start(directory.path(), true, None).await;
    assert_eq!(server.command(&["SET", "a", "1"]).await.unwrap(), "+OK\r\n");
    server.stop();
    server.resume();
    server.restart().await;
    assert_eq!(server.command(&["GET", "a"]).await.unwrap(), "$1\r\n1\r\n");
    server.kill9();
    assert!(server.command(&["PING"]).await.is_err());
}

#[tokio::test]
async fn a_fake_clock_moves_redis() {
    let directory = tempfile::TempDir::new().unwrap();
    let clock = crate::Faketime::new(directory.path());
    let midnight = clock.set_before_midnight(Duration::from_secs(30));
    let server = crate::RedisServer::start(directory.path(), false, Some(clock.clone())).await;
    let time = async || {
        let reply = server.command(&["TIME"]).await.unwrap();
        reply.lines().nth(2).unwrap().parse::<u64>().unwrap()
    };
    assert!((midnight - 30..midnight).contains(&time().await));
    clock.set_before_midnight(Duration::ZERO);
    assert!(time().await >= midnight - 1);
}

#[tokio::test]
async fn a_reader_that_stops_is_broken_off_and_sees_it_when_it_goes_on() {
    let upstream = RecordingUpstream::start().await;
    upstream.always(Behaviour::ResetWhenStuck);
    let ledger = Arc::default();
    let until_cut = crate::eventually("broken off", async || {
        let recorded = upstream.recorded();
        (recorded.first()?.outcome == Outcome::Cut).then_some(())
    });
    let late = client(&upstream, &ledger)
        .read_late("GET / HTTP/1.1\r\nHost: a\r\n\r\n", until_cut)
        .await;
    assert!(late.closed && late.answers.iter().all(|answer| !answer.complete));
}
