//! Many reloads while requests are served: none fails, none is counted wrongly, none sees half a configuration.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use harness::{Call, Client, IssuedKey, Protocol, Scene, Store, eventually};
use tokio::task::JoinSet;

/// An endpoint of every tier.
const MARKETS: &str = "/api/v1/data/markets";
/// Between two changes of the file.
const PAUSE: Duration = Duration::from_millis(100);
/// Changes in a test.
const CHANGES: u32 = 40;
/// What decides a test's changes.
const SEED: u64 = 1;
/// The limits of starter keys before and after each change, and what an endpoint that is not called costs with each.
const LIMITS: [(u64, u64); 2] = [(1_000_000, 1), (2_000_000, 2)];

/// Calls until it is stopped; returns how often.
async fn call_on(client: Arc<Client>, key: IssuedKey, stop: Arc<AtomicBool>) -> u64 {
    let mut calls = 0;
    while !stop.load(Ordering::Relaxed) {
        let answer = client.get(&key, MARKETS).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert!(answer.complete, "{answer:?}");
        let limit = answer.header("x-ratelimit-limit").unwrap();
        assert!(["1000000", "2000000"].contains(&limit), "{limit}");
        calls += 1;
    }
    calls
}

/// Reads the usage until it is stopped: limit and costs in it are of one configuration.
async fn look_on(client: Arc<Client>, key: IssuedKey, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        let call = Call::get("/api/v1/usage").key(&key);
        let answer = client.call(call).await;
        if answer.status == 429 {
            tokio::time::sleep(PAUSE).await;
            continue;
        }
        assert_eq!(answer.status, 200, "{answer:?}");
        let body = answer.json();
        let endpoints = body["endpoints"].as_array().unwrap();
        let priced = endpoints
            .iter()
            .find(|endpoint| endpoint["path"] == "/api/v1/data/sentiment")
            .unwrap();
        let seen = (
            body["limit"].as_u64().unwrap(),
            priced["cost"].as_u64().unwrap(),
        );
        assert!(LIMITS.contains(&seen), "half of each: {seen:?}");
    }
}

async fn applied(scene: &Scene) -> u32 {
    let (_, metrics) = scene.admin(0, "/metrics").await;
    let name = "touchline_config_reloads_total{outcome=\"applied\"} ";
    let line = metrics.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap().parse().unwrap()
}

/// So many changes, one each 50 to 150 ms, under load; how many calls were served and how many configurations
/// applied meanwhile. `seed` decides the pauses, and which changes are announced by a signal and waited for.
///
/// # Panics
/// If a request fails, a count is lost or half a configuration is seen.
pub async fn reload_under_load(binary: &str, store: Store, changes: u32, seed: u64) -> (u64, u32) {
    let mut scene = Scene::builder(binary)
        .store(store)
        .spec(|spec| {
            spec.tiers[0].daily = LIMITS[0].0;
            spec.endpoints[4].tiers.push("starter".into());
        })
        .start()
        .await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut callers = JoinSet::new();
    let mut lookers = JoinSet::new();
    for protocol in Protocol::ALL {
        let key = scene.issue("starter").await;
        let client = Arc::new(scene.client(protocol));
        for _ in 0..2 {
            callers.spawn(call_on(client.clone(), key.clone(), stop.clone()));
        }
        lookers.spawn(look_on(client, key, stop.clone()));
    }
    let mut random = fastrand::Rng::with_seed(seed);
    let mut signals = 0;
    let mut spec = scene.spec.clone();
    for change in 1..=changes {
        let (limit, cost) = LIMITS[usize::from(change % 2 == 1)];
        spec.tiers[0].daily = limit;
        spec.endpoints[4].cost = cost;
        scene.gateways[0].configure(&spec);
        let before = applied(&scene).await;
        if random.bool() {
            signals += 1;
            scene.gateways[0].process().hang_up();
            eventually("the change is applied", async || {
                (applied(&scene).await > before).then_some(())
            })
            .await;
        }
        tokio::time::sleep(PAUSE.mul_f64(0.5 + random.f64())).await;
    }
    let reloads = applied(&scene).await;
    assert!(reloads >= signals, "{reloads} of {signals}");
    stop.store(true, Ordering::Relaxed);
    lookers.join_all().await;
    let calls: u64 = callers.join_all().await.into_iter().sum();
    assert!(calls > u64::from(changes), "{calls} calls are no load");
    let (_, metrics) = scene.admin(0, "/metrics").await;
    let refused = "touchline_config_reloads_total{outcome=\"refused\"} 0";
    assert!(metrics.contains(refused), "{metrics}");
    scene.assert_ledgers_agree().await;
    (calls, reloads)
}

#[tokio::test]
async fn reloads_under_load_fail_no_request_lose_no_count_and_are_seen_whole() {
    for store in [Store::Embedded, Store::Redis] {
        reload_under_load(env!("CARGO_BIN_EXE_touchline"), store, CHANGES, SEED).await;
    }
}
