//! The Grafana board, without Grafana: its queries, asked of a Prometheus that scrapes loaded gateways.

use harness::{Behaviour, Call, Protocol, Scene, Store, TierSpec, eventually};

use super::prometheus::Prometheus;
use super::{TOUCHLINE, text_of};

const MARKETS: &str = "/api/v1/data/markets";
const RANKINGS: &str = "/api/v1/data/rankings";

/// Every query of the board with its panel's title, its variables filled in.
fn queries() -> Vec<(String, String)> {
    let board: serde_json::Value =
        serde_json::from_str(&text_of("grafana/touchline.json")).unwrap();
    let mut queries = Vec::new();
    for panel in board["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let query = target["expr"].as_str().unwrap();
            let filled = query
                .replace("$__rate_interval", "5m")
                .replace("$instance", ".*");
            assert!(
                !filled.contains('$'),
                "{query} has a variable we do not fill in"
            );
            queries.push((panel["title"].as_str().unwrap().to_owned(), filled));
        }
    }
    queries
}

/// Everything that can happen to a request.
async fn load(scene: &mut Scene) {
    let starter = scene.issue("starter").await;
    for gateway in 0..scene.gateways.len() {
        let client = scene.client_of(gateway, Protocol::Http1);
        for _ in 0..4 {
            client.get(&starter, MARKETS).await;
            client.get(&starter, RANKINGS).await;
        }
        client.get(&starter, "/none").await;
        client.call(Call::get(MARKETS)).await;
        let long = format!("/{}", "a".repeat(9_000));
        client.call(Call::get(&long).key(&starter)).await;
    }
    let trial = scene.issue("trial").await;
    let client = scene.client(Protocol::Http1);
    assert_eq!(client.get(&trial, RANKINGS).await.status, 200);
    let pro = scene.issue("pro").await;
    scene.upstream.always(Behaviour::Status(503));
    let client = scene.client(Protocol::Http1);
    assert_eq!(client.get(&pro, MARKETS).await.status, 500);
    scene.upstream.always(Behaviour::Echo);
}

/// Calls that the store cannot decide; under `deny` they fail and are counted so.
async fn lose_the_store(scene: &mut Scene) {
    let pro = scene.issue("pro").await;
    scene.redis.as_mut().unwrap().kill9();
    let client = scene.client(Protocol::Http1);
    assert_eq!(client.get(&pro, MARKETS).await.status, 500);
    scene.redis.as_mut().unwrap().restart().await;
}

#[tokio::test]
async fn every_query_of_the_board_finds_series_of_loaded_gateways() {
    let mut scene = Scene::builder(TOUCHLINE)
        .store(Store::Redis)
        .gateways(2)
        .durable_redis()
        .daily("starter", 5)
        .spec(|spec| {
            spec.redis_extra = "timeout: 2s, outage: deny".into();
            spec.tiers.push(TierSpec {
                name: "trial".into(),
                daily: 5,
                price: 1,
            });
            let unenforced = "enforce: false".into();
            spec.tier_extra.insert("trial".into(), unenforced);
        })
        .start()
        .await;
    let prometheus = Prometheus::scraping(&scene).await;
    load(&mut scene).await;
    lose_the_store(&mut scene).await;
    let mut asked = 0;
    let key = scene.issue("enterprise").await;
    let client = scene.client(Protocol::Http1);
    for (panel, query) in queries() {
        eventually(&format!("{panel}: {query}"), async || {
            // Rates and their quotients need something that goes on.
            client.get(&key, MARKETS).await;
            (prometheus.series_of(&query).await > 0).then_some(())
        })
        .await;
        asked += 1;
    }
    assert!(asked > 0);
    assert_eq!(prometheus.series_of("touchline_nothing").await, 0);
}

#[test]
fn the_board_has_every_panel_in_its_place() {
    let board: serde_json::Value =
        serde_json::from_str(&text_of("grafana/touchline.json")).unwrap();
    let mut taken = std::collections::HashSet::new();
    let mut ids = std::collections::HashSet::new();
    for panel in board["panels"].as_array().unwrap() {
        let place = |name: &str| panel["gridPos"][name].as_u64().unwrap();
        assert!(place("x") + place("w") <= 24, "{panel}");
        for x in place("x")..place("x") + place("w") {
            for y in place("y")..place("y") + place("h") {
                assert!(
                    taken.insert((x, y)),
                    "two panels at {x},{y}: {}",
                    panel["title"]
                );
            }
        }
        assert!(ids.insert(panel["id"].as_u64().unwrap()));
    }
}
