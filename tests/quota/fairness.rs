//! Calls that failed on our side are not charged; calls that the client gave up are.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use harness::{Allowances, Answer, Behaviour, Call, IssuedKey, Protocol, Scene, Store, eventually};

use super::{MARKETS, TOUCHLINE};

async fn scene(store: Store) -> (Scene, IssuedKey) {
    let scene = Scene::builder(TOUCHLINE)
        .store(store)
        .timeout("read", "500ms")
        .start()
        .await;
    let key = scene.issue("starter").await;
    (scene, key)
}

fn assert_is_refunded(answer: &Answer, remaining: u64) {
    assert_eq!(answer.status, 500, "{answer:?}");
    assert_eq!(answer.code().as_deref(), Some("INTERNAL_ERROR"));
    assert_eq!(
        answer.number("x-ratelimit-remaining"),
        Some(remaining),
        "after the refund"
    );
    assert!(answer.number("retry-after").is_some());
}

#[tokio::test]
async fn an_upstream_that_is_down_slow_broken_or_failing_costs_nothing() {
    for store in [Store::Embedded, Store::Redis] {
        let (mut scene, key) = scene(store).await;
        for (protocol, remaining) in [(Protocol::Http1, 999), (Protocol::Http2Tls, 998)] {
            let client = scene.client(protocol);
            scene.upstream.always(Behaviour::Echo);
            assert_eq!(client.get(&key, MARKETS).await.status, 200);
            for failure in [
                Behaviour::Status(503),
                Behaviour::ResetBeforeHeader,
                Behaviour::Stall,
                Behaviour::Raw(b"no HTTP\r\n\r\n".to_vec()),
            ] {
                scene.upstream.always(failure);
                assert_is_refunded(&client.get(&key, MARKETS).await, remaining);
            }
            scene.upstream.stop().await;
            assert_is_refunded(&client.get(&key, MARKETS).await, remaining);
            scene.upstream.restart().await;
        }
        scene.upstream.always(Behaviour::Echo);
        assert_eq!(
            scene
                .client(Protocol::Http1)
                .get(&key, MARKETS)
                .await
                .status,
            200
        );
        scene.expect_used(&key, 3).await;
        // A connection kept from the call before may die under the next one.
        let retries = Allowances {
            retries: true,
            ..Allowances::default()
        };
        scene.assert_ledgers_agree_with(&retries).await;
    }
}

#[tokio::test]
async fn an_answer_that_the_upstream_breaks_off_is_visibly_cut_and_refunded() {
    for store in [Store::Embedded, Store::Redis] {
        let (mut scene, key) = scene(store).await;
        for protocol in Protocol::ALL {
            let client = scene.client(protocol);
            for failure in [
                Behaviour::ResetMidBody { after: 2_000 },
                Behaviour::CloseMidBody { after: 2_000 },
                Behaviour::StallAfterHeader,
            ] {
                scene.upstream.always(failure.clone());
                let answer = client.get(&key, MARKETS).await;
                assert!(
                    answer.status == 200 && !answer.complete,
                    "{protocol:?} {failure:?}: {answer:?}"
                );
            }
        }
        scene.expect_used(&key, 0).await;
        scene.assert_ledgers_agree().await;
    }
}

#[tokio::test]
async fn a_retry_on_a_stale_pooled_connection_is_charged_once() {
    for store in [Store::Embedded, Store::Redis] {
        let (mut scene, key) = scene(store).await;
        scene.upstream.behave(|request| match request.place {
            1 => Behaviour::Delay(Duration::from_millis(100), Box::new(Behaviour::Echo)),
            _ => Behaviour::ResetBeforeHeader,
        });
        let client = scene.client(Protocol::Http1);
        let other = scene.client(Protocol::Http1);
        // Two kept connections: the second attempt is on neither.
        let both = tokio::join!(client.get(&key, MARKETS), other.get(&key, MARKETS));
        assert_eq!((both.0.status, both.1.status), (200, 200));
        for _ in 0..3 {
            assert_eq!(client.get(&key, MARKETS).await.status, 200);
        }
        assert!(scene.upstream.count() > 5, "no connection was reused");
        assert_eq!(scene.used(&key).await, 5);
        let retries = Allowances {
            retries: true,
            ..Allowances::default()
        };
        scene.assert_ledgers_agree_with(&retries).await;
    }
}

#[tokio::test]
async fn a_request_whose_kept_connection_ends_is_sent_again_if_its_method_is_idempotent() {
    let mut scene = Scene::builder(TOUCHLINE)
        .spec(|spec| {
            let methods = ["OPTIONS", "PUT", "DELETE", "POST", "PATCH"];
            spec.endpoints[0].methods.extend(methods.map(String::from));
        })
        .start()
        .await;
    let key = scene.issue("starter").await;
    scene.upstream.behave(|request| match request.place {
        1 => Behaviour::Echo,
        _ => Behaviour::ResetBeforeHeader,
    });
    let client = scene.client(Protocol::Http1);
    for (method, status) in [
        ("GET", 200),
        ("HEAD", 200),
        ("OPTIONS", 200),
        ("PUT", 200),
        ("DELETE", 200),
        ("POST", 500),
        ("PATCH", 500),
    ] {
        eventually("a kept connection is used", async || {
            assert_eq!(client.get(&key, MARKETS).await.status, 200);
            let answer = client.call(Call::new(method, MARKETS).key(&key)).await;
            let id = answer.header("x-request-id").unwrap();
            let attempts = scene.upstream.recorded_as(id);
            if attempts[0].place == 1 {
                return None;
            }
            assert_eq!(answer.status, status, "{method}: {answer:?}");
            let expected = if status == 200 { 2 } else { 1 };
            assert_eq!(attempts.len(), expected, "{method}");
            Some(())
        })
        .await;
    }
    let retries = Allowances {
        retries: true,
        ..Allowances::default()
    };
    scene.assert_ledgers_agree_with(&retries).await;
}

async fn arrived(scene: &Scene, requests: usize) {
    eventually("the request is at the upstream", async || {
        (scene.upstream.count() == requests).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_client_that_hangs_up_is_charged() {
    for store in [Store::Embedded, Store::Redis] {
        let mut scene = Scene::builder(TOUCHLINE).store(store).start().await;
        let key = scene.issue("starter").await;
        scene.upstream.always(Behaviour::Stall);
        for (calls, protocol) in Protocol::ALL.into_iter().enumerate() {
            let client = scene.client(protocol);
            let call = Call::get(MARKETS).key(&key);
            let id = client
                .call_and_hang_up(call, arrived(&scene, calls + 1))
                .await;
            scene.gateways[0]
                .logged_where(|line| line["request_id"] == id)
                .await;
        }
        scene.expect_used(&key, 3).await;
        scene.assert_ledgers_agree().await;
    }
}

#[tokio::test]
async fn a_client_that_hangs_up_on_a_slow_upstream_is_refunded() {
    for store in [Store::Embedded, Store::Redis] {
        let mut scene = Scene::builder(TOUCHLINE)
            .store(store)
            .timeout("slow", "300ms")
            .start()
            .await;
        let key = scene.issue("starter").await;
        scene.upstream.always(Behaviour::Stall);
        let mut refunded = BTreeSet::new();
        for (calls, protocol) in Protocol::ALL.into_iter().enumerate() {
            let call = Call::get(MARKETS).key(&key);
            let patience = async {
                arrived(&scene, calls + 1).await;
                tokio::time::sleep(Duration::from_secs(1)).await;
            };
            let id = scene
                .client(protocol)
                .call_and_hang_up(call, patience)
                .await;
            scene.gateways[0]
                .logged_where(|line| line["request_id"] == id)
                .await;
            refunded.insert(id);
        }
        scene.expect_used(&key, 0).await;
        // The server has done its part once its answer has begun.
        scene.upstream.always(Behaviour::StallAfterHeader);
        let patience = async {
            arrived(&scene, Protocol::ALL.len() + 1).await;
            tokio::time::sleep(Duration::from_secs(1)).await;
        };
        let client = scene.client(Protocol::Http1);
        let call = Call::get(MARKETS).key(&key);
        client.call_and_hang_up(call, patience).await;
        scene.gateways[0].logged(refunded.len() + 1).await;
        scene.expect_used(&key, 1).await;
        let allowed = Allowances {
            refunded_hang_ups: refunded,
            ..Allowances::default()
        };
        scene.assert_ledgers_agree_with(&allowed).await;
    }
}

#[tokio::test]
async fn a_client_that_hangs_up_on_a_slow_server_is_refunded_although_another_had_answered_503() {
    let mut scene = Scene::builder(TOUCHLINE)
        .more_servers(1)
        .timeout("slow", "200ms")
        .start()
        .await;
    let key = scene.issue("starter").await;
    let mut refunded = BTreeSet::new();
    for protocol in Protocol::ALL {
        let attempts = Arc::new(AtomicUsize::new(0));
        for server in std::iter::once(&scene.upstream).chain(&scene.more_upstreams) {
            let attempts = attempts.clone();
            server.behave(move |_| match attempts.fetch_add(1, Ordering::Relaxed) {
                0 => Behaviour::Status(503),
                _ => Behaviour::Stall,
            });
        }
        let patience = async {
            eventually("the second server has the request", async || {
                (attempts.load(Ordering::Relaxed) == 2).then_some(())
            })
            .await;
            tokio::time::sleep(Duration::from_millis(500)).await;
        };
        let client = scene.client(protocol);
        let call = Call::get(MARKETS).key(&key);
        let id = client.call_and_hang_up(call, patience).await;
        let line = scene.gateways[0].logged_where(|line| line["request_id"] == id);
        let line = line.await;
        assert_eq!(line["refunded"], true, "{line}");
        refunded.insert(id);
    }
    scene.expect_used(&key, 0).await;
    let slow = scene.metric("touchline_refunds_total{reason=\"slow\"}");
    assert_eq!(slow.await, 3.0);
    let allowed = Allowances {
        other_servers: true,
        refunded_hang_ups: refunded,
        ..Allowances::default()
    };
    scene.assert_ledgers_agree_with(&allowed).await;
}

#[tokio::test]
async fn refused_calls_cost_nothing() {
    for store in [Store::Embedded, Store::Redis] {
        let (mut scene, key) = scene(store).await;
        let client = scene.client(Protocol::Http1);
        for (call, status) in [
            (Call::get("/api/v1/data//markets").key(&key), 400),
            (Call::get(MARKETS), 401),
            (Call::get("/none").key(&key), 404),
            (Call::new("DELETE", MARKETS).key(&key), 405),
            (Call::get("/api/v1/data/rankings").key(&key), 403),
        ] {
            assert_eq!(client.call(call).await.status, status);
        }
        assert_eq!(scene.used(&key).await, 0);
        assert_eq!(scene.upstream.count(), 0);
        scene.assert_ledgers_agree().await;
    }
}
