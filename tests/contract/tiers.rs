//! Steps 4 to 6: what there is, how it is asked, and for whom.

use harness::{Call, Protocol, Scene, Store};

use super::{MARKETS, RANKINGS, TOUCHLINE, assert_problem, assert_quota_status};

#[tokio::test]
async fn each_tier_has_exactly_the_endpoints_of_the_shipped_table() {
    for store in [Store::Embedded, Store::Redis] {
        let mut scene = Scene::builder(TOUCHLINE).store(store).start().await;
        for protocol in Protocol::ALL {
            let client = scene.client(protocol);
            for (place, (tier, limit)) in
                [("starter", 1_000), ("pro", 3_000), ("enterprise", 10_000)]
                    .into_iter()
                    .enumerate()
            {
                let key = scene.issue(tier).await;
                let mut remaining = limit;
                for (path, tiers) in [
                    ("markets", &["starter", "pro", "enterprise"][..]),
                    ("predictions", &["starter", "pro", "enterprise"]),
                    ("predictions/fx-1", &["starter", "pro", "enterprise"]),
                    ("insights", &["pro", "enterprise"]),
                    ("sentiment", &["pro", "enterprise"]),
                    ("rankings", &["enterprise"]),
                ] {
                    let answer = client.get(&key, &format!("/api/v1/data/{path}")).await;
                    if tiers.len() + place >= 3 {
                        remaining -= 1;
                        assert_eq!(answer.status, 200, "{tier} {path}");
                    } else {
                        assert_problem(&answer, 403, "TIER_INSUFFICIENT");
                        assert_eq!(answer.json()["tier"], tier);
                        assert_eq!(answer.json()["required_tiers"], serde_json::json!(tiers));
                    }
                    assert_quota_status(&answer, limit, remaining);
                }
            }
        }
        scene.assert_ledgers_agree().await;
    }
}

#[tokio::test]
async fn a_path_that_is_no_endpoint_is_not_found() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("enterprise").await;
    for protocol in Protocol::ALL {
        let client = scene.client(protocol);
        for path in [
            "/",
            "/api/v1/data",
            "/api/v1/data/Markets",
            "/API/v1/data/markets",
            "/api/v1/data/markets/",
            "/api/v1/data/marketsx",
            "/api/v1/data/market",
            "/api/v1/data/predictions/",
            "/api/v1/data/predictions/a/b",
            "/none?x=/api/v1/data/markets",
            "/metrics",
            "/livez",
            "/readyz",
        ] {
            let answer = client.get(&key, path).await;
            assert_problem(&answer, 404, "NOT_FOUND");
            assert_quota_status(&answer, 10_000, 10_000);
        }
    }
    assert_eq!(scene.upstream.count(), 0);
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn a_method_that_the_endpoint_does_not_take_gets_those_it_does() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("pro").await;
    for protocol in Protocol::ALL {
        let client = scene.client(protocol);
        for method in [
            "DELETE", "OPTIONS", "PUT", "POST", "PATCH", "TRACE", "PURGE",
        ] {
            let answer = client.call(Call::new(method, MARKETS).key(&key)).await;
            assert_problem(&answer, 405, "METHOD_NOT_ALLOWED");
            assert_eq!(answer.header("allow"), Some("GET, HEAD"));
            assert_quota_status(&answer, 3_000, 3_000);
        }
    }
    assert_eq!(scene.upstream.count(), 0);
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn an_override_header_changes_neither_method_nor_path() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    for name in ["x-original-url", "x-rewrite-url", "x-forwarded-prefix"] {
        let answer = client
            .call(Call::get(RANKINGS).key(&key).header(name, MARKETS))
            .await;
        assert_problem(&answer, 403, "TIER_INSUFFICIENT");
    }
    let call = Call::new("DELETE", MARKETS).key(&key);
    let answer = client
        .call(call.header("x-http-method-override", "GET"))
        .await;
    assert_problem(&answer, 405, "METHOD_NOT_ALLOWED");
    scene.assert_ledgers_agree().await;
}
