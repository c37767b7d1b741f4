//! Step 8 and what callers learn of it.

use harness::{Protocol, Scene, Store};

use super::{DAY_SECONDS, MARKETS, RANKINGS, TOUCHLINE, assert_problem, assert_quota_status};

async fn the_sixth_request_of_five_is_refused(store: Store) {
    for protocol in Protocol::ALL {
        let mut scene = Scene::builder(TOUCHLINE)
            .store(store)
            .daily("starter", 5)
            .start()
            .await;
        let key = scene.issue("starter").await;
        let client = scene.client(protocol);
        for left in (0..5).rev() {
            let answer = client.get(&key, MARKETS).await;
            assert_eq!(answer.status, 200);
            assert_quota_status(&answer, 5, left);
        }
        for _ in 0..2 {
            let answer = client.get(&key, MARKETS).await;
            assert_problem(&answer, 429, "RATE_LIMIT_EXCEEDED");
            assert_quota_status(&answer, 5, 0);
            let body = answer.json();
            assert_eq!((&body["limit"], &body["used"]), (&5.into(), &5.into()));
            assert_eq!(body["violated-policies"], serde_json::json!(["daily"]));
            let reset = answer.number("x-ratelimit-reset").unwrap();
            let date = harness::ledger::date_of(reset);
            assert_eq!(body["reset"], format!("{date}T00:00:00Z"));
            let pause = answer.number("retry-after").unwrap();
            assert!((1..=DAY_SECONDS).contains(&pause));
        }
        // What is free stays free, and reports the key's quota status.
        for (path, status) in [(RANKINGS, 403), ("/none", 404)] {
            let answer = client.get(&key, path).await;
            assert_eq!(answer.status, status);
            assert_quota_status(&answer, 5, 0);
        }
        assert_eq!(scene.upstream.count(), 5);
        scene.assert_ledgers_agree().await;
    }
}

#[tokio::test]
async fn the_sixth_request_of_five_is_refused_on_the_embedded_store() {
    the_sixth_request_of_five_is_refused(Store::Embedded).await;
}

#[tokio::test]
async fn the_sixth_request_of_five_is_refused_on_redis() {
    the_sixth_request_of_five_is_refused(Store::Redis).await;
}

#[tokio::test]
async fn the_1000th_request_of_a_starter_key_is_served_and_the_1001st_is_refused() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    for left in (0..1_000).rev() {
        let answer = client.get(&key, MARKETS).await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.number("x-ratelimit-remaining"), Some(left));
    }
    assert_problem(&client.get(&key, MARKETS).await, 429, "RATE_LIMIT_EXCEEDED");
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn one_keys_quota_is_no_other_keys() {
    let mut scene = Scene::builder(TOUCHLINE).daily("starter", 1).start().await;
    let (one, other) = (scene.issue("starter").await, scene.issue("starter").await);
    let client = scene.client(Protocol::Http1);
    assert_eq!(client.get(&one, MARKETS).await.status, 200);
    assert_eq!(client.get(&one, MARKETS).await.status, 429);
    assert_eq!(client.get(&other, MARKETS).await.status, 200);
    scene.assert_ledgers_agree().await;
}
