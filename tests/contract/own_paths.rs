//! What the gateway answers itself: the description of the API and a key's own usage. Neither is ever charged.

use harness::client::{HOST, Until};
use harness::{Behaviour, Call, Protocol, Scene, Store, eventually};
use serde_json::json;

use super::{MARKETS, RANKINGS, TOUCHLINE, assert_problem, assert_quota_status, edit_record};

const DOCUMENT: &str = "/openapi.json";
const USAGE: &str = "/api/v1/usage";
/// Reads of its usage that a key has at once.
const BURST: usize = 5;

#[tokio::test]
async fn the_openapi_document_is_public_and_free() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    for protocol in Protocol::ALL {
        let client = scene.client(protocol);
        for call in [
            Call::get(DOCUMENT),
            Call::get("/openapi.json?a=b"),
            Call::get(DOCUMENT).key("nobody's"),
            Call::get(DOCUMENT).key(&key),
        ] {
            let answer = client.call(call).await;
            assert_eq!(answer.status, 200, "{answer:?}");
            assert_eq!(answer.header("content-type"), Some("application/json"));
            let caching = answer.header("cache-control");
            assert_eq!(caching, Some("max-age=300"));
            assert!(answer.header("x-request-id").is_some());
            assert_eq!(answer.header("x-ratelimit-limit"), None);
            let body = answer.json();
            assert_eq!(body["openapi"], "3.1.0");
            for path in [MARKETS, RANKINGS, DOCUMENT, USAGE] {
                assert!(body["paths"][path]["get"].is_object(), "{path}");
                assert!(body["paths"][path]["head"].is_object(), "{path}");
            }
            let rankings = &body["paths"][RANKINGS]["get"];
            assert_eq!(rankings["x-tiers"], json!(["enterprise"]));
            assert_eq!(rankings["x-cost"], 1);
        }
    }
    assert_eq!(scene.upstream.count(), 0);
    assert_eq!(scene.used(&key).await, 0);
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn the_openapi_document_lists_the_quota_status_of_every_answer_of_the_service() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    let document = client.call(Call::get(DOCUMENT)).await.json();
    let responses = &document["paths"][MARKETS]["get"]["responses"];
    for status in [400, 404, 405, 410, 413, 414, 431] {
        scene.upstream.always(Behaviour::Status(status));
        let answer = client.get(&key, MARKETS).await;
        assert_eq!(answer.status, status, "{answer:?}");
        let listed = &responses[status.to_string()];
        let listed = listed.get("$ref").unwrap_or(&responses["default"]["$ref"]);
        let response = document.pointer(&listed.as_str().unwrap()[1..]).unwrap();
        let headers = response["headers"].as_object().unwrap();
        for name in answer.headers.keys().map(|name| name.as_str()) {
            let is_listed = headers.keys().any(|one| one.eq_ignore_ascii_case(name));
            assert!(!name.contains("ratelimit") || is_listed, "{status}: {name}");
        }
        assert!(answer.header("ratelimit").is_some());
    }
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn who_holds_the_openapi_document_gets_a_304_without_a_body() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    for protocol in Protocol::ALL {
        let client = scene.client(protocol);
        let whole = client.call(Call::get(DOCUMENT)).await;
        let tag = whole.header("etag").unwrap();
        for method in ["GET", "HEAD"] {
            let asked = Call::new(method, DOCUMENT).header("if-none-match", tag);
            let answer = client.call(asked).await;
            assert_eq!(answer.status, 304, "{protocol:?}: {answer:?}");
            assert!(answer.body.is_empty() && answer.complete);
            assert_eq!(answer.header("etag"), Some(tag));
            assert!(answer.header("x-request-id").is_some());
        }
        let other = Call::get(DOCUMENT).header("if-none-match", "\"other\"");
        assert_eq!(client.call(other).await.body, whole.body);
    }
    let client = scene.client(Protocol::Http1);
    let request = format!(
        "GET {DOCUMENT} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\nIf-None-Match: *\r\n\r\n"
    );
    let exchange = client.raw(request, Until::Closed).await;
    assert!(exchange.bytes.starts_with(b"HTTP/1.1 304 "));
    assert!(exchange.bytes.ends_with(b"\r\n\r\n"), "no byte follows");
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn own_paths_take_get_and_head_only_and_come_after_their_steps() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    for protocol in Protocol::ALL {
        let client = scene.client(protocol);
        let get = client.call(Call::get(DOCUMENT)).await;
        let head = client.call(Call::new("HEAD", DOCUMENT)).await;
        assert_eq!(head.status, 200);
        assert!(head.body.is_empty());
        let length = Some(get.body.len() as u64);
        assert_eq!(head.number("content-length"), length);
        for method in ["POST", "DELETE", "OPTIONS"] {
            let answer = client.call(Call::new(method, DOCUMENT)).await;
            assert_problem(&answer, 405, "METHOD_NOT_ALLOWED");
            assert_eq!(answer.header("allow"), Some("GET, HEAD"));
            let answer = client.call(Call::new(method, USAGE).key(&key)).await;
            assert_problem(&answer, 405, "METHOD_NOT_ALLOWED");
            assert_eq!(answer.header("allow"), Some("GET, HEAD"));
            assert_quota_status(&answer, 1_000, 1_000);
        }
        let with_body = Call::get(DOCUMENT).body("x");
        assert_problem(&client.call(with_body).await, 400, "BAD_REQUEST");
        let nobody = client.call(Call::get(USAGE)).await;
        assert_problem(&nobody, 401, "MISSING_API_KEY");
        let nobody = client.call(Call::new("POST", USAGE).key("x")).await;
        assert_problem(&nobody, 401, "INVALID_API_KEY");
        let unknown = client.get(&key, "/api/v1/usage/").await;
        assert_problem(&unknown, 404, "NOT_FOUND");
    }
    scene.assert_ledgers_agree().await;
}

async fn usage_reports_the_quota_status_and_is_never_charged(store: Store) {
    let mut scene = Scene::builder(TOUCHLINE)
        .store(store)
        .daily("starter", 2)
        .start()
        .await;
    for protocol in Protocol::ALL {
        let expires = ["--expires", "2099-01-31"];
        let key = scene.issue_with("starter", &expires).await;
        let client = scene.client(protocol);
        let fresh = client.get(&key, USAGE).await.json();
        assert_eq!((&fresh["used"], &fresh["days"]), (&json!(0), &json!([])));
        assert_eq!(client.get(&key, MARKETS).await.status, 200);
        assert_eq!(client.get(&key, MARKETS).await.status, 200);
        assert_eq!(client.get(&key, MARKETS).await.status, 429);
        assert_eq!(client.get(&key, RANKINGS).await.status, 403);
        // The quota is exhausted. The ledger by endpoint may lag behind by a second.
        let answer = eventually("the ledger is written", async || {
            let answer = client.get(&key, USAGE).await;
            if answer.status == 429 {
                return None;
            }
            assert_eq!(answer.status, 200, "{answer:?}");
            let refused = &answer.json()["days"][0]["endpoints"][RANKINGS]["refused_tier"];
            (*refused == 1).then_some(answer)
        })
        .await;
        assert_quota_status(&answer, 2, 0);
        assert_eq!(answer.header("content-type"), Some("application/json"));
        let caching = answer.header("cache-control");
        assert_eq!(caching, Some("no-store"));
        let body = answer.json();
        assert_eq!(body["tier"], "starter");
        for (member, value) in [("limit", 2), ("used", 2), ("remaining", 0)] {
            assert_eq!(body[member], value, "{body}");
        }
        let reset = answer.number("x-ratelimit-reset").unwrap();
        let midnight = format!("{}T00:00:00Z", harness::ledger::date_of(reset));
        assert_eq!(body["reset"], midnight);
        assert_eq!(body["subscription_expires"], "2099-02-01T00:00:00Z");
        let included = body["endpoints"].as_array().unwrap();
        assert_eq!(included.len(), 3, "{body}");
        let markets = json!({"path": MARKETS, "methods": ["GET", "HEAD"], "cost": 1});
        assert!(included.contains(&markets), "{body}");
        let today = harness::ledger::date_of(reset - 1);
        let day = &body["days"][0];
        assert_eq!((&day["date"], &day["used"]), (&json!(today), &json!(2)));
        let totals = &day["endpoints"][MARKETS];
        assert_eq!(
            (&totals["charged"], &totals["refused_quota"]),
            (&json!(2), &json!(1))
        );
        assert_eq!(scene.used(&key).await, 2);
    }
    assert_eq!(scene.upstream.count(), 2 * Protocol::ALL.len());
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn usage_reports_the_quota_status_and_is_never_charged_on_the_embedded_store() {
    usage_reports_the_quota_status_and_is_never_charged(Store::Embedded).await;
}

#[tokio::test]
async fn usage_reports_the_quota_status_and_is_never_charged_on_redis() {
    usage_reports_the_quota_status_and_is_never_charged(Store::Redis).await;
}

#[tokio::test]
async fn usage_has_a_small_limit_of_its_own_for_each_key() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let other = scene.issue("starter").await;
    for protocol in Protocol::ALL {
        let key = scene.issue("starter").await;
        let client = scene.client(protocol);
        assert_eq!(client.get(&key, MARKETS).await.status, 200);
        let refused = eventually("the burst is used up", async || {
            let answer = client.get(&key, USAGE).await;
            (answer.status != 200).then_some(answer)
        })
        .await;
        assert_problem(&refused, 429, "RATE_LIMIT_EXCEEDED");
        assert_quota_status(&refused, 1_000, 999);
        assert_eq!(refused.number("retry-after"), Some(1));
        let body = refused.json();
        assert_eq!(body["violated-policies"], json!(["usage"]));
        assert_eq!((&body["limit"], &body["used"]), (&json!(1_000), &json!(1)));
        // Neither other keys nor the key's other calls are held up, and a second later the key reads again.
        assert_eq!(client.get(&other, USAGE).await.status, 200);
        assert_eq!(client.get(&key, MARKETS).await.status, 200);
        eventually("a token came", async || {
            (client.get(&key, USAGE).await.status == 200).then_some(())
        })
        .await;
    }
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn a_burst_of_usage_reads_is_answered() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http2Tls);
    for _ in 0..BURST {
        assert_eq!(client.get(&key, USAGE).await.status, 200);
    }
    let head = scene.issue("starter").await;
    let head = client.call(Call::new("HEAD", USAGE).key(&head)).await;
    assert_eq!((head.status, head.body.len()), (200, 0));
    assert_quota_status(&head, 1_000, 1_000);
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn usage_follows_a_changed_record_and_ends_with_the_key() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    assert_eq!(client.get(&key, USAGE).await.json()["tier"], "starter");
    edit_record(&scene, &key, |record| record.tier = "pro".parse().unwrap()).await;
    let body = client.get(&key, USAGE).await.json();
    assert_eq!(
        (&body["tier"], &body["limit"]),
        (&json!("pro"), &json!(3_000))
    );
    assert_eq!(body["subscription_expires"], json!(null));
    scene.revoke(&key).await;
    assert_problem(&client.get(&key, USAGE).await, 401, "INVALID_API_KEY");
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn usage_that_the_store_cannot_read_is_a_500() {
    let mut scene = Scene::builder(TOUCHLINE)
        .store(Store::Redis)
        .spec(|spec| spec.redis_extra = "timeout: 300ms".into())
        .start()
        .await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    scene.redis.as_mut().unwrap().stop();
    let answer = client.get(&key, USAGE).await;
    scene.redis.as_mut().unwrap().resume();
    assert_problem(&answer, 500, "INTERNAL_ERROR");
    assert_eq!(answer.number("x-ratelimit-limit"), Some(1_000));
    assert!(answer.number("retry-after").is_some());
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn own_paths_are_named_in_the_access_log_and_the_metrics() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    client.get(&key, USAGE).await;
    client.call(Call::get(DOCUMENT)).await;
    client.call(Call::new("DELETE", DOCUMENT)).await;
    let lines = scene.gateways[0].logged(3).await;
    assert_eq!(lines.len(), 3);
    for (line, endpoint, key_id, outcome) in [
        (&lines[0], USAGE, json!(key.id), "served"),
        (&lines[1], DOCUMENT, json!(null), "served"),
        (&lines[2], DOCUMENT, json!(null), "METHOD_NOT_ALLOWED"),
    ] {
        assert_eq!(line["endpoint"], endpoint, "{line}");
        assert_eq!(line["key_id"], key_id, "{line}");
        assert_eq!(line["outcome"], outcome, "{line}");
        assert_eq!(line["units"], 0, "{line}");
    }
    let (_, metrics) = scene.admin(0, "/metrics").await;
    for (endpoint, tier) in [(USAGE, "starter"), (DOCUMENT, "none")] {
        let series = format!("{{endpoint=\"{endpoint}\",outcome=\"served\",tier=\"{tier}\"}} 1");
        assert!(metrics.contains(&series), "{series} in {metrics}");
    }
    scene.assert_ledgers_agree().await;
}
