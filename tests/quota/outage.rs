//! Redis dies under load: paying customers go on within the bound, and every unit is counted once when it returns.

use harness::client::Ending;
use harness::{Call, Protocol, Scene, Store, eventually};

use super::{MARKETS, TOUCHLINE};

const CALLS: usize = 60;

async fn readiness(scene: &Scene, gateway: usize) -> (u16, String) {
    let (status, body) = scene.admin(gateway, "/readyz").await;
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    (status, body["status"].as_str().unwrap().to_owned())
}

async fn metric(scene: &Scene, name: &str) -> String {
    let (_, text) = scene.admin(0, "/metrics").await;
    let line = text
        .lines()
        .find(|line| line.starts_with(&format!("{name} ")));
    line.unwrap().rsplit(' ').next().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_killed_under_load_goes_unnoticed_within_the_share_and_is_settled_exactly() {
    let mut scene = Scene::builder(TOUCHLINE)
        .store(Store::Redis)
        .spec(|spec| spec.redis_extra = "timeout: 300ms, journal_interval: 100ms".into())
        .start()
        .await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    for _ in 0..CALLS {
        assert_eq!(client.get(&key, MARKETS).await.status, 200);
    }
    assert_eq!(readiness(&scene, 0).await, (200, "ready".into()));
    scene.redis.as_mut().unwrap().kill9();
    for _ in 0..CALLS {
        let answer = client.get(&key, MARKETS).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert!(answer.number("x-ratelimit-remaining").is_some());
    }
    eventually("the gateway says so", async || {
        (readiness(&scene, 0).await == (200, "degraded".into())).then_some(())
    })
    .await;
    assert_eq!(metric(&scene, "touchline_store_up").await, "0");
    assert_eq!(metric(&scene, "touchline_store_degraded").await, "1");
    assert_eq!(
        metric(&scene, "touchline_journal_pending_units").await,
        CALLS.to_string()
    );

    scene.redis.as_mut().unwrap().restart().await;
    eventually("the gateway is whole again", async || {
        (readiness(&scene, 0).await == (200, "ready".into())).then_some(())
    })
    .await;
    assert_eq!(client.get(&key, MARKETS).await.status, 200);
    scene.expect_used(&key, 2 * CALLS as u64 + 1).await;
    scene.assert_ledgers_agree().await;
    assert_eq!(metric(&scene, "touchline_journal_pending_units").await, "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_share_ends_in_a_500_and_never_in_a_401_or_429() {
    let mut scene = Scene::builder(TOUCHLINE)
        .store(Store::Redis)
        .daily("starter", 50)
        .spec(|spec| spec.redis_extra = "timeout: 300ms, min_nodes: 2".into())
        .start()
        .await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    for _ in 0..10 {
        assert_eq!(client.get(&key, MARKETS).await.status, 200);
    }
    scene.redis.as_mut().unwrap().kill9();
    let mut served = 0;
    for _ in 0..30 {
        let answer = client.try_call(Call::get(MARKETS).key(&key)).await.unwrap();
        match answer.status {
            200 => served += 1,
            500 => assert!(answer.number("retry-after").is_some()),
            other => panic!("{other}"),
        }
    }
    assert_eq!(served, 20, "half of the 40 that were left");
    scene.redis.as_mut().unwrap().restart().await;
    scene.expect_used(&key, 30).await;
    let entries = scene.client_ledger().entries();
    assert!(entries.iter().all(|entry| entry.ending == Ending::Whole));
    scene.assert_ledgers_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deny_answers_500_and_is_not_ready_while_redis_is_away() {
    let mut scene = Scene::builder(TOUCHLINE)
        .store(Store::Redis)
        .spec(|spec| spec.redis_extra = "timeout: 300ms, outage: deny".into())
        .start()
        .await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    assert_eq!(client.get(&key, MARKETS).await.status, 200);
    scene.redis.as_mut().unwrap().kill9();
    assert_eq!(client.get(&key, MARKETS).await.status, 500);
    eventually("it is not ready", async || {
        (readiness(&scene, 0).await == (503, "unready".into())).then_some(())
    })
    .await;
    scene.redis.as_mut().unwrap().restart().await;
    scene.expect_used(&key, 1).await;
    scene.assert_ledgers_agree().await;
}
