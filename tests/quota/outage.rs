//! Redis dies under load: paying customers go on within the bound, and every unit is counted once when it returns.

use std::time::Duration;

use harness::client::Ending;
use harness::{Behaviour, Call, IssuedKey, Protocol, Scene, SceneBuilder, Store, eventually};
use rusqlite::{Connection, OpenFlags};

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
    eventually("the gateway reports it", async || {
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
async fn failed_calls_take_nothing_from_the_share() {
    let mut scene = Scene::builder(TOUCHLINE)
        .store(Store::Redis)
        .daily("starter", 50)
        .spec(|spec| spec.redis_extra = "timeout: 300ms, min_nodes: 2".into())
        .start()
        .await;
    let (key, unknown) = (scene.issue("starter").await, scene.issue("starter").await);
    let idle = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    for _ in 0..10 {
        assert_eq!(client.get(&key, MARKETS).await.status, 200);
    }
    scene.redis.as_mut().unwrap().kill9();
    scene.upstream.always(Behaviour::Status(503));
    for _ in 0..30 {
        for (key, left) in [(&key, 20), (&unknown, 1)] {
            let answer = client.get(key, MARKETS).await;
            assert_eq!(answer.status, 500, "{answer:?}");
            assert_eq!(answer.number("x-ratelimit-remaining"), Some(left));
        }
    }
    for (key, left) in [(&key, Some(20)), (&unknown, Some(1)), (&idle, None)] {
        let answer = client.get(key, "/none").await;
        assert_eq!(answer.number("x-ratelimit-remaining"), left, "{answer:?}");
    }
    scene.upstream.always(Behaviour::Echo);
    for left in (0..20).rev() {
        let answer = client.get(&key, MARKETS).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.number("x-ratelimit-remaining"), Some(left));
    }
    let beyond = client.get(&key, MARKETS).await;
    assert_eq!(beyond.status, 500);
    assert_eq!(beyond.number("x-ratelimit-remaining"), Some(0));
    assert!(beyond.number("retry-after").is_some(), "{beyond:?}");
    let status = beyond.header("ratelimit").unwrap();
    assert!(status.starts_with("\"daily\";r=0;"), "{status}");
    // Two per cent of the limit, as its count is not known.
    assert_eq!(client.get(&unknown, MARKETS).await.status, 200);
    scene.redis.as_mut().unwrap().restart().await;
    scene.expect_used(&key, 30).await;
    scene.expect_used(&unknown, 1).await;
    scene.assert_ledgers_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deny_answers_500_and_is_not_ready_while_redis_is_unavailable() {
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
    // The log has the words of the configuration and of `/readyz`.
    let line = eventually("it is logged", async || {
        let output = scene.gateways[0].output();
        let mut lines = output.lines();
        let line = lines.find(|line| line.contains(r#""Redis is unavailable""#))?;
        Some(serde_json::from_str::<serde_json::Value>(line).unwrap())
    })
    .await;
    assert_eq!(
        (&line["policy"], &line["service"]),
        (&"deny".into(), &"denies".into())
    );
    scene.redis.as_mut().unwrap().restart().await;
    scene.expect_used(&key, 1).await;
    scene.assert_ledgers_agree().await;
}

/// Gateways on a Redis, with 100 calls a day for the tier starter.
fn on_redis(redis_extra: &'static str) -> SceneBuilder {
    Scene::builder(TOUCHLINE)
        .store(Store::Redis)
        .daily("starter", 100)
        .spec(move |spec| spec.redis_extra = redis_extra.into())
}

/// Waits until the first gateway has counted so many that live, as its journal has it.
async fn counted(scene: &Scene, gateways: u64) {
    let directory = scene.gateways[0].config.parent().unwrap();
    let journal = directory.join("var/journal.db");
    eventually("the gateways are counted", async || {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY;
        let journal = Connection::open_with_flags(&journal, flags).ok()?;
        let sql = "SELECT value FROM meta WHERE name = 'nodes'";
        let number: String = journal.query_row(sql, [], |row| row.get(0)).ok()?;
        (number == gateways.to_string()).then_some(())
    })
    .await;
}

/// A key of which 20 of 100 are used.
async fn key_used_by_20(scene: &Scene) -> IssuedKey {
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    for _ in 0..20 {
        assert_eq!(client.get(&key, MARKETS).await.status, 200);
    }
    key
}

/// Calls through the first gateway until one is refused; how many were served.
async fn served_until_refused(scene: &Scene, key: &IssuedKey) -> u64 {
    let client = scene.client(Protocol::Http1);
    let mut served = 0;
    loop {
        match client.get(key, MARKETS).await.status {
            200 => served += 1,
            500 => return served,
            other => panic!("{other}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_is_alone_serves_the_share_of_one_of_min_nodes() {
    let mut scene = on_redis("timeout: 300ms, min_nodes: 4").start().await;
    let key = key_used_by_20(&scene).await;
    counted(&scene, 1).await;
    scene.redis.as_mut().unwrap().kill9();
    let served = served_until_refused(&scene, &key).await;
    assert_eq!(served, 20, "a quarter of the 80 that were left");
    scene.redis.as_mut().unwrap().restart().await;
    scene.expect_used(&key, 40).await;
    scene.assert_ledgers_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_pauses_is_left_its_share() {
    let mut scene = on_redis("timeout: 300ms").gateways(2).start().await;
    let key = key_used_by_20(&scene).await;
    counted(&scene, 2).await;
    scene.gateways[1].process().stop();
    // The first one counts again and again meanwhile.
    tokio::time::sleep(Duration::from_secs(2)).await;
    scene.redis.as_mut().unwrap().kill9();
    let served = served_until_refused(&scene, &key).await;
    assert_eq!(served, 40, "half of the 80 that were left");
    scene.gateways[1].process().resume();
    scene.redis.as_mut().unwrap().restart().await;
    scene.expect_used(&key, 60).await;
    scene.assert_ledgers_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_an_emptied_redis_does_not_know_is_left_its_share() {
    let mut scene = on_redis("timeout: 300ms").gateways(2).start().await;
    let key = key_used_by_20(&scene).await;
    counted(&scene, 2).await;
    // It cannot make itself known again.
    scene.gateways[1].process().stop();
    let redis = scene.redis.as_mut().unwrap();
    redis.command(&["FLUSHALL"]).await.unwrap();
    // The first one counts again and again meanwhile, and finds itself alone.
    tokio::time::sleep(Duration::from_secs(3)).await;
    redis.kill9();
    let served = served_until_refused(&scene, &key).await;
    assert_eq!(served, 40, "half of the 80 that were left");
    scene.gateways[1].process().resume();
    scene.redis.as_mut().unwrap().restart().await;
    scene.expect_used(&key, 60).await;
    scene.assert_ledgers_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_count_that_is_older_than_count_staleness_is_unknown() {
    // It takes Redis 2 s to be away, and the last count is older than 1 s then.
    let mut scene = on_redis("timeout: 2s, count_staleness: 1s").start().await;
    let key = key_used_by_20(&scene).await;
    scene.redis.as_mut().unwrap().stop();
    let served = served_until_refused(&scene, &key).await;
    assert_eq!(served, 2, "2 % of the limit");
    scene.redis.as_mut().unwrap().resume();
    scene.expect_used(&key, 22).await;
    scene.assert_ledgers_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_count_of_a_key_that_is_not_called_is_read_again_before_it_is_unknown() {
    let mut scene = on_redis("timeout: 300ms, count_staleness: 4s")
        .start()
        .await;
    let key = key_used_by_20(&scene).await;
    // Long enough that the count would be unknown.
    tokio::time::sleep(Duration::from_secs(6)).await;
    scene.redis.as_mut().unwrap().kill9();
    assert_eq!(served_until_refused(&scene, &key).await, 80);
    scene.redis.as_mut().unwrap().restart().await;
    scene.expect_used(&key, 100).await;
    scene.assert_ledgers_agree().await;
}
