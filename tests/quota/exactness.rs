//! Many clients and several gateways on one key: the limit is the limit.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use harness::{Answer, Call, Protocol, Scene, Store};
use tokio::task::JoinSet;

use super::{MARKETS, TOUCHLINE};

const CLIENTS: usize = 64;

/// Sends `requests` from 64 clients spread over all gateways of the scene.
async fn race(scene: &Scene, key: &str, requests: usize) -> Vec<Answer> {
    let left = Arc::new(AtomicUsize::new(requests));
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let client = scene.client_of(number % scene.gateways.len(), Protocol::Http1);
        let (left, key) = (Arc::clone(&left), key.to_owned());
        clients.spawn(async move {
            let mut answers = Vec::new();
            let take = |left: usize| left.checked_sub(1);
            while left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
                .is_ok()
            {
                answers.push(client.call(Call::get(MARKETS).key(&key)).await);
            }
            answers
        });
    }
    clients.join_all().await.into_iter().flatten().collect()
}

async fn exactly_1000_of_3000_are_served(store: Store, gateways: usize) {
    let mut scene = Scene::builder(TOUCHLINE)
        .store(store)
        .gateways(gateways)
        .start()
        .await;
    let key = scene.issue("starter").await;
    let answers = race(&scene, &key.key, 3_000).await;
    let of = |status| answers.iter().filter(move |answer| answer.status == status);
    assert_eq!((of(200).count(), of(429).count()), (1_000, 2_000));
    let remaining: BTreeSet<u64> = of(200)
        .map(|answer| answer.number("x-ratelimit-remaining").unwrap())
        .collect();
    assert_eq!(
        remaining,
        (0..1_000).collect(),
        "each grant shows a remainder of its own"
    );
    assert_eq!(scene.upstream.count(), 1_000);
    assert_eq!(scene.used(&key).await, 1_000);
    scene.assert_ledgers_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_starter_key_is_served_exactly_1000_times_by_two_gateways_on_one_embedded_store() {
    exactly_1000_of_3000_are_served(Store::Embedded, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_starter_key_is_served_exactly_1000_times_by_three_gateways_on_one_redis() {
    exactly_1000_of_3000_are_served(Store::Redis, 3).await;
}

#[tokio::test]
async fn the_usage_of_a_key_that_another_gateway_serves_too_is_one_number() {
    for store in [Store::Embedded, Store::Redis] {
        let scene = Scene::builder(TOUCHLINE)
            .store(store)
            .gateways(2)
            .start()
            .await;
        let key = scene.issue("starter").await;
        for gateway in [0, 1, 1, 1, 1, 1] {
            let client = scene.client_of(gateway, Protocol::Http1);
            assert_eq!(client.get(&key, MARKETS).await.status, 200);
        }
        let client = scene.client_of(0, Protocol::Http1);
        let answer = client.get(&key, "/api/v1/usage").await;
        assert_eq!(answer.number("x-ratelimit-remaining"), Some(994));
        let usage = answer.json();
        let days = usage["days"].as_array().unwrap();
        assert_eq!(usage["used"], 6, "{usage}");
        assert_eq!(days.last().unwrap()["used"], 6, "{usage}");
    }
}

#[tokio::test]
async fn a_cost_above_1_is_charged_whole_or_not_at_all() {
    for store in [Store::Embedded, Store::Redis] {
        let mut scene = Scene::builder(TOUCHLINE)
            .store(store)
            .daily("starter", 5)
            .spec(|spec| spec.endpoints[1].cost = 3)
            .start()
            .await;
        let key = scene.issue("starter").await;
        let client = scene.client(Protocol::Http1);
        let dear = "/api/v1/data/predictions";
        let mut seen = Vec::new();
        for path in [dear, dear, MARKETS, MARKETS, MARKETS] {
            let answer = client.get(&key, path).await;
            seen.push((answer.status, answer.number("x-ratelimit-remaining")));
        }
        let expected = [(200, 2), (429, 2), (200, 1), (200, 0), (429, 0)];
        assert_eq!(seen, expected.map(|(status, left)| (status, Some(left))));
        scene.assert_ledgers_agree().await;
    }
}
