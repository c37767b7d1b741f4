//! A tier that is not enforced: everything is counted and reported, and nothing of steps 6 to 8 refused.

use harness::ledger::Allowances;
use harness::{Answer, Call, IssuedKey, Protocol, Scene, SceneBuilder, Store, eventually};

use super::{MARKETS, TOUCHLINE};

/// An endpoint that the starter tier does not include.
const RANKINGS: &str = "/api/v1/data/rankings";
const LIMIT: u64 = 5;

/// Two gateways that do not enforce the starter tier, nor its 5 units a day.
fn shadow_scene(store: Store) -> SceneBuilder {
    let builder = Scene::builder(TOUCHLINE).store(store).gateways(2);
    builder.daily("starter", LIMIT).spec(|spec| {
        spec.tier_extra
            .insert("starter".into(), "enforce: false".into());
    })
}

#[track_caller]
fn assert_reported(answer: &Answer, status: u16, remaining: u64) {
    assert_eq!(answer.status, status, "{answer:?}");
    let output = answer.number("x-ratelimit-remaining");
    assert_eq!(output, Some(remaining), "{answer:?}");
    assert_eq!(answer.number("x-ratelimit-limit"), Some(LIMIT));
}

/// The access log's words on what would have been refused, in the order of the file.
fn would_refuse(scene: &Scene, gateway: usize) -> Vec<String> {
    let log = std::fs::read_to_string(&scene.gateways[gateway].access_log).unwrap();
    let lines = log
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let words = lines.map(|line| {
        line["would_refuse"]
            .as_str()
            .unwrap_or("nothing")
            .to_owned()
    });
    words.collect()
}

async fn shadow_refusals(scene: &Scene, gateway: usize, refusal: &str) -> u64 {
    let (_, text) = scene.admin(gateway, "/metrics").await;
    let name =
        format!("touchline_shadow_refusals_total{{refusal=\"{refusal}\",tier=\"starter\"}} ");
    let value = text.lines().find_map(|line| line.strip_prefix(&name));
    value.map_or(0, |value| value.parse().unwrap())
}

async fn agree_at(scene: &mut Scene, key: &IssuedKey, used: u64) {
    let mut allowed = Allowances::default();
    allowed.limits.insert(key.id.clone(), used);
    allowed.shadow_tiers.insert("starter".into());
    scene.expect_used(key, used).await;
    scene.assert_ledgers_agree_with(&allowed).await;
}

#[tokio::test]
async fn a_tier_that_is_not_enforced_is_counted_past_its_limit_and_refused_nothing() {
    for store in [Store::Embedded, Store::Redis] {
        let mut scene = shadow_scene(store).start().await;
        let key = scene.issue("starter").await;
        for call in 1..=12_u64 {
            let client = scene.client_of(usize::from(call % 2 == 0), Protocol::Http1);
            let answer = client.get(&key, MARKETS).await;
            assert_reported(&answer, 200, LIMIT.saturating_sub(call));
        }
        let client = scene.client_of(0, Protocol::Http2Tls);
        assert_reported(&client.get(&key, RANKINGS).await, 200, 0);
        // Who one is and what there is is judged as ever.
        assert_reported(&client.get(&key, "/none").await, 404, 0);
        let deleted = client.call(Call::new("DELETE", MARKETS).key(&key)).await;
        assert_reported(&deleted, 405, 0);
        assert_eq!(client.call(Call::get(MARKETS)).await.status, 401);
        let usage = client.get(&key, "/api/v1/usage").await.json();
        assert_eq!(
            (&usage["limit"], &usage["used"], &usage["remaining"]),
            (&LIMIT.into(), &13.into(), &0.into())
        );
        // Another tier of the same file is enforced.
        let pro = scene.issue("pro").await;
        assert_eq!(client.get(&pro, RANKINGS).await.status, 403);
        agree_at(&mut scene, &key, 13).await;
        eventually("the refusals that were not made are counted", async || {
            let daily = shadow_refusals(&scene, 0, "daily").await
                + shadow_refusals(&scene, 1, "daily").await;
            let tier = shadow_refusals(&scene, 0, "tier").await;
            ((daily, tier) == (7, 1)).then_some(())
        })
        .await;
        let words = [would_refuse(&scene, 0), would_refuse(&scene, 1)].concat();
        let count = |word: &str| words.iter().filter(|one| *one == word).count();
        assert_eq!((count("daily"), count("tier")), (7, 1), "{words:?}");
    }
}

#[tokio::test]
async fn a_failed_call_of_a_shadow_tier_above_its_limit_is_refunded() {
    for store in [Store::Embedded, Store::Redis] {
        let mut scene = shadow_scene(store).start().await;
        let key = scene.issue("starter").await;
        let client = scene.client(Protocol::Http1);
        for _ in 0..7 {
            assert_eq!(client.get(&key, MARKETS).await.status, 200);
        }
        scene.upstream.always(harness::Behaviour::Status(503));
        assert_reported(&client.get(&key, MARKETS).await, 500, 0);
        agree_at(&mut scene, &key, 7).await;
    }
}

#[tokio::test]
async fn a_shadow_tier_is_served_without_redis_whatever_the_policy_and_settled_exactly() {
    for policy in ["bounded", "deny"] {
        let mut scene = shadow_scene(Store::Redis)
            .durable_redis()
            .spec(move |spec| spec.redis_extra = format!("timeout: 100ms, outage: {policy}"))
            .start()
            .await;
        let (key, pro) = (scene.issue("starter").await, scene.issue("pro").await);
        for gateway in [0, 1] {
            let client = scene.client_of(gateway, Protocol::Http1);
            assert_eq!(client.get(&key, MARKETS).await.status, 200);
            assert_eq!(client.get(&pro, MARKETS).await.status, 200);
        }
        scene.redis.as_mut().unwrap().kill9();
        for call in 0..20 {
            let client = scene.client_of(call % 2, Protocol::Http1);
            let answer = client.get(&key, MARKETS).await;
            assert_eq!(answer.status, 200, "{policy}, call {call}: {answer:?}");
            let remaining = answer.number("x-ratelimit-remaining").unwrap();
            assert!(remaining < LIMIT, "never more than is left: {answer:?}");
        }
        if policy == "deny" {
            let client = scene.client(Protocol::Http1);
            assert_eq!(
                client.get(&pro, MARKETS).await.status,
                500,
                "an enforced tier"
            );
        }
        scene.redis.as_mut().unwrap().restart().await;
        agree_at(&mut scene, &key, 22).await;
    }
}

#[tokio::test]
async fn each_request_that_would_be_refused_has_a_line_in_a_sampled_log() {
    let builder = shadow_scene(Store::Embedded).gateways(1);
    let builder = builder.spec(|spec| spec.logging_extra = "access_log_sample: 1%".into());
    let scene = builder.start().await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    for _ in 0..20 {
        assert_eq!(client.get(&key, RANKINGS).await.status, 200);
    }
    for line in scene.gateways[0].logged(20).await {
        assert_eq!(line["would_refuse"], "tier", "{line}");
    }
}
