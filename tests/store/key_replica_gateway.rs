//! The replica of the key table as clients meet it: the real binary, a real Redis.

use std::collections::BTreeMap;

use harness::{Call, IssuedKey, Protocol, Scene, Store, eventually};
use touchline::policy::api_key::{ApiKey, KeyPrefix, os_entropy};

const TOUCHLINE: &str = env!("CARGO_BIN_EXE_touchline");
const MARKETS: &str = "/api/v1/data/markets";

/// Unknown keys that are tried: far more than a gateway calls Redis meanwhile for its own life (link, feed, register).
const UNKNOWN: u64 = 1_000;

async fn scene() -> Scene {
    Scene::builder(TOUCHLINE).store(Store::Redis).start().await
}

/// A key that no store has.
const UNUSED: &str = "made-elsewhere-and-never-imported-0123456789";

/// Waits until Redis has been away for so long that an unknown key may be one that it has.
async fn unknown_keys_are_a_500(scene: &Scene) {
    eventually("the key table is not current", async || {
        let client = scene.client(Protocol::Http1);
        let answer = client.call(Call::get(MARKETS).key(UNUSED)).await;
        (answer.status == 500).then_some(())
    })
    .await;
}

async fn status_of(scene: &Scene, key: &IssuedKey) -> u16 {
    let client = scene.client(Protocol::Http1);
    client.call(Call::get(MARKETS).key(key)).await.status
}

/// How often Redis was called, by command.
async fn calls(scene: &Scene) -> BTreeMap<String, u64> {
    let redis = scene.redis.as_ref().unwrap();
    let text = redis.command(&["INFO", "commandstats"]).await.unwrap();
    let lines = text.lines().filter_map(|line| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        Some((name.to_owned(), rest.split(',').next()?.parse().ok()?))
    });
    lines.collect()
}

#[tokio::test]
async fn a_thousand_unknown_keys_cost_redis_no_call() {
    let scene = scene().await;
    let known = scene.issue("starter").await;
    assert_eq!(status_of(&scene, &known).await, 200);
    // What the one charge still has to write is written within the second.
    let redis = scene.redis.as_ref().unwrap();
    eventually("the ledger is written", async || {
        let names = redis.command(&["KEYS", "touchline:e:*"]).await.ok()?;
        names.contains("touchline:e:").then_some(())
    })
    .await;
    let before = calls(&scene).await;
    redis.record_commands().await;
    let client = scene.client(Protocol::Http1);
    for _ in 0..UNKNOWN {
        let unknown = ApiKey::generate(&KeyPrefix::default(), &mut os_entropy);
        let answer = client.call(Call::get(MARKETS).key(unknown.reveal())).await;
        assert_eq!(answer.status, 401);
    }
    let ran = redis.recorded_commands().await;
    assert!(!ran.contains("touchline:k:"), "a record is read: {ran}");
    assert!(!ran.contains("touchline:d:"), "a digest is read: {ran}");
    for (command, calls) in calls(&scene).await {
        let more = calls - before.get(&command).copied().unwrap_or(0);
        assert!(more < UNKNOWN / 2, "{command}: {more}");
    }
}

/// After a FLUSHALL: the active key is served, the revoked one is not, and Redis knows both again.
async fn assert_nothing_is_forgotten(scene: &Scene, active: &IssuedKey, revoked: &IssuedKey) {
    assert_eq!(status_of(scene, active).await, 200);
    assert_eq!(status_of(scene, revoked).await, 401);
    eventually("Redis knows both keys again", async || {
        let listed = scene.cli(&["keys", "list", "--output", "json"]).await;
        let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
        let state = |key: &IssuedKey| {
            let mut keys = listed.as_array()?.iter();
            keys.find(|one| one["id"] == key.id.as_str())?["state"].as_str()
        };
        (state(active) == Some("active") && state(revoked) == Some("revoked")).then_some(())
    })
    .await;
}

#[tokio::test]
async fn after_flushall_no_client_is_refused_and_no_revocation_forgotten() {
    let scene = scene().await;
    let (active, revoked) = (scene.issue("starter").await, scene.issue("starter").await);
    scene.revoke(&revoked).await;
    let redis = scene.redis.as_ref().unwrap();
    redis.command(&["FLUSHALL"]).await.unwrap();
    assert_nothing_is_forgotten(&scene, &active, &revoked).await;
}

#[tokio::test]
async fn after_flushall_and_a_gateway_restart_no_client_is_refused_and_no_revocation_forgotten() {
    let mut scene = scene().await;
    let (active, revoked) = (scene.issue("starter").await, scene.issue("starter").await);
    scene.revoke(&revoked).await;
    scene.gateways[0].terminate();
    let redis = scene.redis.as_ref().unwrap();
    redis.command(&["FLUSHALL"]).await.unwrap();
    scene.gateways[0].restart().await;
    assert_nothing_is_forgotten(&scene, &active, &revoked).await;
    assert!(scene.gateways[0].output().contains("writing them back"));
}

#[tokio::test]
async fn a_gateway_without_redis_and_without_a_replica_is_not_ready_and_refuses_no_client_with_a_401()
 {
    let mut scene = scene().await;
    let key = scene.issue("starter").await;
    scene.gateways[0].terminate();
    scene.redis.as_mut().unwrap().kill9();
    let replica = scene.directory().join("gateway-0/var/keys.db");
    std::fs::remove_file(replica).unwrap();
    scene.gateways[0].restart().await;
    assert_eq!(status_of(&scene, &key).await, 500);
    let (status, body) = scene.admin(0, "/readyz").await;
    assert_eq!(status, 503, "{body}");
    assert!(body.contains(r#""keys_usable":false"#), "{body}");
}

#[tokio::test]
async fn without_redis_a_saved_replica_serves_up_to_max_staleness_and_then_forwards_nothing() {
    let mut scene = Scene::builder(TOUCHLINE)
        .store(Store::Redis)
        .faketime()
        .start()
        .await;
    let key = scene.issue("starter").await;
    assert_eq!(status_of(&scene, &key).await, 200);
    scene.gateways[0].terminate();
    scene.redis.as_mut().unwrap().kill9();
    for (hours, status) in [(23.9, 200), (24.1, 500)] {
        scene.clock().set_offset(hours * 3_600.0);
        scene.gateways[0].restart().await;
        assert_eq!(status_of(&scene, &key).await, status, "{hours} h");
    }
    assert_eq!(scene.upstream.count(), 2);
}

#[tokio::test]
async fn while_redis_is_away_a_secret_that_a_rotation_ended_is_a_401_and_an_unknown_one_a_500() {
    let mut scene = scene().await;
    let old = scene.issue("starter").await;
    let new = scene.rotate(&old, &["--overlap", "1s"]).await;
    eventually("the overlap is over", async || {
        (status_of(&scene, &old).await == 401).then_some(())
    })
    .await;
    scene.redis.as_mut().unwrap().kill9();
    unknown_keys_are_a_500(&scene).await;
    assert_eq!(status_of(&scene, &old).await, 401);
    assert_eq!(status_of(&scene, &new).await, 200);
}

#[tokio::test]
async fn while_redis_is_away_free_answers_show_the_share_of_a_key_that_was_not_charged_yet() {
    let mut scene = Scene::builder(TOUCHLINE)
        .store(Store::Redis)
        .daily("starter", 50)
        .spec(|spec| spec.redis_extra = "timeout: 300ms, min_nodes: 2".into())
        .start()
        .await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    let remaining = async |path| {
        let answer = client.get(&key, path).await;
        answer.number("x-ratelimit-remaining")
    };
    eventually("Redis is asked", async || {
        (remaining("/nowhere").await == Some(50)).then_some(())
    })
    .await;
    scene.redis.as_mut().unwrap().kill9();
    eventually("the count of the last second is too old", async || {
        (remaining("/nowhere").await == Some(25)).then_some(())
    })
    .await;
    assert_eq!(remaining(MARKETS).await, Some(24));
    assert_eq!(remaining("/nowhere").await, Some(24));
}
