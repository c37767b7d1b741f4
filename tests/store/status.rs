//! `touchline store status`, `WAIT`, and what operators learn.

use harness::{Protocol, Scene, Store as SceneStore, eventually};
use serde_json::Value;
use touchline::clock::Clock;
use touchline::store::redis::{RedisSettings, Servers, open};
use touchline::store::{NodeName, Role, Store};

use crate::redis_nodes::ClusterSet;
use crate::redis_server::RedisServer;
use crate::suite::ZONE;
use crate::topologies::patient;

const TOUCHLINE: &str = env!("CARGO_BIN_EXE_touchline");
const MARKETS: &str = "/api/v1/data/markets";

async fn status(scene: &Scene) -> Value {
    let text = scene.cli(&["store", "status", "--output", "json"]).await;
    serde_json::from_str(&text).unwrap()
}

fn warns_of(status: &Value, part: &str) -> bool {
    let warnings = status["warnings"].as_array().unwrap();
    warnings
        .iter()
        .any(|warning| warning.as_str().unwrap().contains(part))
}

#[tokio::test]
async fn the_status_of_a_redis_reports_its_server_gateways_and_broken_promises() {
    let scene = Scene::builder(TOUCHLINE)
        .store(SceneStore::Redis)
        .gateways(2)
        .start()
        .await;
    let key = scene.issue("pro").await;
    let redis = scene.redis.as_ref().unwrap();
    let reported = eventually("both gateways are current", async || {
        let reported = status(&scene).await;
        let gateways = reported["gateways"].as_array()?;
        let current = gateways
            .iter()
            .all(|one| one["lag_seconds"] == 0.0 && one["keys"] == 1);
        (gateways.len() == 2 && current).then_some(reported)
    })
    .await;
    let store = &reported["store"];
    assert_eq!(store["kind"], "redis");
    assert_eq!(store["topology"], "single");
    assert_eq!(store["index_complete"], true);
    assert_eq!(store["feed"]["length"], 1);
    let server = &store["servers"][0];
    assert_eq!(server["address"], redis.url());
    assert_eq!(server["role"], "master");
    assert_eq!(server["run_id"].as_str().unwrap().len(), 40);
    assert_eq!(reported["keys"], 1);
    assert_eq!(
        reported["gateways"][0]["version"],
        env!("CARGO_PKG_VERSION")
    );
    assert!(reported["clock_difference_seconds"].as_f64().unwrap().abs() < 1.0);
    assert!(
        warns_of(&reported, "appendonly") && !warns_of(&reported, "noeviction"),
        "{reported}"
    );

    redis
        .command(&["CONFIG", "SET", "appendonly", "yes"])
        .await
        .unwrap();
    redis
        .command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"])
        .await
        .unwrap();
    let reported = status(&scene).await;
    assert!(
        !warns_of(&reported, "appendonly") && warns_of(&reported, "noeviction"),
        "{reported}"
    );

    let table = scene.cli(&["store", "status"]).await;
    for part in [
        "run id",
        "allkeys-lru",
        "GATEWAY",
        "warning",
        "0 pending for the webhook",
    ] {
        assert!(table.contains(part), "{part}: {table}");
    }
    assert!(!table.contains(key.key.as_str()));
}

#[tokio::test]
async fn a_gateway_that_cannot_report_because_redis_refuses_writes_is_not_to_be_forgotten() {
    let scene = Scene::builder(TOUCHLINE)
        .store(SceneStore::Redis)
        .start()
        .await;
    let redis = scene.redis.as_ref().unwrap();
    let full = ["CONFIG", "SET", "maxmemory", "1"];
    redis.command(&full).await.unwrap();
    let reported = eventually("the gateway is listed as silent", async || {
        let reported = status(&scene).await;
        let is_silent = reported["silent"].as_array()?.len() == 1;
        is_silent.then_some(reported)
    })
    .await;
    assert!(
        warns_of(&reported, "it refuses writes, because its memory is full")
            && !warns_of(&reported, "store forget"),
        "{reported}"
    );
    // A server that cannot save refuses PING, too.
    let reply = redis.command(&["CONFIG", "GET", "dir"]).await.unwrap();
    let directory = std::path::Path::new(reply.lines().nth(4).unwrap());
    std::fs::create_dir_all(directory.join("dump.rdb/in-the-way")).unwrap();
    for words in [
        &["CONFIG", "SET", "maxmemory", "0"][..],
        &["CONFIG", "SET", "save", "3600 1000000"],
        &["BGSAVE"],
    ] {
        redis.command(words).await.unwrap();
    }
    eventually("the status reports that it cannot save", async || {
        let reported = status(&scene).await;
        warns_of(&reported, "because it cannot save").then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_gateway_may_be_forgotten_while_a_master_without_the_register_refuses_writes() {
    let (set, directory) = (ClusterSet::start(0).await, tempfile::tempdir().unwrap());
    assert_eq!(set.owner("gateways").await, 2, "it holds the register");
    let settings = || RedisSettings {
        replica: Some(directory.path().join("keys.db")),
        ..patient(Servers::Cluster(set.addresses()))
    };
    let command = open(settings(), Role::Command, ZONE, Clock::system());
    let command = command.await.unwrap();
    let role = Role::Gateway(NodeName("gone".into()));
    drop(open(settings(), role, ZONE, Clock::system()).await.unwrap());
    eventually("the gateway is silent", async || {
        let status = command.status().await.ok()?;
        (status.silent.len() == 1).then_some(())
    })
    .await;
    let refuse = "CONFIG SET min-replicas-to-write 1";
    for (node, forget, effect) in [
        (0, true, "requests with its keys are decided without it"),
        (2, false, "gateways cannot report"),
    ] {
        let () = set.nodes[node].ask(refuse).await;
        let warnings = command.status().await.unwrap().warnings;
        let address = set.nodes[node].address();
        let refusal = format!(
            "{address}: it refuses writes, because it has fewer replicas than min-replicas-to-write: {effect}"
        );
        let warns_of = |part: &str| warnings.iter().any(|warning| warning.contains(part));
        assert!(warns_of(&refusal), "{warnings:?}");
        assert_eq!(warns_of("store forget gone"), forget, "{warnings:?}");
    }
}

#[tokio::test]
async fn the_status_of_an_embedded_store_reports_its_file_and_gateways() {
    let scene = Scene::builder(TOUCHLINE).start().await;
    scene.issue("pro").await;
    let reported = status(&scene).await;
    let store = &reported["store"];
    assert_eq!(store["kind"], "embedded");
    assert_eq!(store["schema_version"], 5);
    assert_eq!(store["durability"], "1s");
    assert!(store["path"].as_str().unwrap().ends_with("touchline.db"));
    assert!(store["bytes"].as_u64().unwrap() > 0);
    assert_eq!(reported["keys"], 1);
    assert_eq!(reported["gateways"].as_array().unwrap().len(), 1);
    let table = scene.cli(&["store", "status"]).await;
    for part in ["touchline.db", "0 pending for the webhook"] {
        assert!(table.contains(part), "{part}: {table}");
    }
}

#[tokio::test]
async fn the_status_of_a_store_that_cannot_be_used_fails_with_what_where_and_how_to_mend() {
    let mut scene = Scene::builder(TOUCHLINE)
        .store(SceneStore::Redis)
        .start()
        .await;
    scene.redis.as_mut().unwrap().kill9();
    let output = scene.gateways[0].cli(&["store", "status"]).await;
    assert_eq!(output.status.code(), Some(1));
    let message = String::from_utf8(output.stderr).unwrap();
    let port = scene.redis.as_ref().unwrap().port().to_string();
    assert!(
        message.contains(&port) && message.contains("store.redis"),
        "{message}"
    );
    let times = message.matches("the store is unavailable").count();
    assert_eq!(times, 1, "{message}");
}

#[tokio::test]
async fn a_command_reports_it_when_no_replica_of_redis_has_confirmed_its_change() {
    let scene = Scene::builder(TOUCHLINE)
        .store(SceneStore::Redis)
        .start()
        .await;
    let issue = ["keys", "issue", "--tier", "pro", "--customer", "Acme"];
    let message_of = async || {
        let output = scene.gateways[0].cli(&issue).await;
        assert!(output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(!message_of().await.contains("replica"), "there is none");

    let master = scene.redis.as_ref().unwrap();
    let replica = RedisServer::start().await;
    redis::cmd("REPLICAOF")
        .arg("127.0.0.1")
        .arg(master.port())
        .exec_async(&mut replica.connect().await)
        .await
        .unwrap();
    eventually("the replica is in step", async || {
        let info = master.command(&["INFO", "replication"]).await.ok()?;
        // A replica is online before it first acknowledges what it received, and Redis then sends it nothing.
        let has_acknowledged = info.contains("state=online") && !info.contains(",offset=0,");
        has_acknowledged.then_some(())
    })
    .await;
    let message = message_of().await;
    assert!(!message.contains("replica"), "{message}");

    replica.hang();
    let message = message_of().await;
    assert!(
        message.contains("none of the 1 replicas of Redis confirmed"),
        "{message}"
    );
    replica.resume();
}

#[tokio::test]
async fn the_status_reports_each_gateways_breaker_journal_and_clock() {
    let mut scene = Scene::builder(TOUCHLINE)
        .store(SceneStore::Redis)
        .gateways(2)
        .start()
        .await;
    scene.issue("pro").await;
    // A journal that cannot be written.
    let journal = scene.directory().join("gateway-1/var/journal.db");
    scene.gateways[1].kill9();
    for suffix in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{}{suffix}", journal.display()));
    }
    std::fs::write(&journal, [b'x'; 4_096]).unwrap();
    scene.gateways[1].restart().await;
    let reported = eventually("both gateways report", async || {
        let reported = status(&scene).await;
        let gateways = reported["gateways"].as_array()?;
        let failed = gateways
            .iter()
            .filter(|one| one["service"]["journal_error"].is_string());
        let sound = gateways
            .iter()
            .filter(|one| one["service"]["journal_error"].is_null());
        // The one that was killed is forgotten after some seconds.
        (failed.count() == 1 && sound.count() == 1).then_some(reported)
    })
    .await;
    for gateway in reported["gateways"].as_array().unwrap() {
        assert_eq!(gateway["breaker"]["state"], "closed", "{reported}");
        assert!(gateway["breaker"]["since_seconds"].as_f64().unwrap() >= 0.0);
        assert_eq!(gateway["service"]["outage"], "bounded");
        assert_eq!(gateway["service"]["journal"], "var/journal.db");
        assert_eq!(gateway["service"]["pending_units"], 0);
        let difference = gateway["clock_difference_seconds"].as_f64().unwrap();
        assert!(difference.abs() < 1.0, "{reported}");
    }
    assert!(
        warns_of(&reported, "cannot write its journal"),
        "{reported}"
    );
    let table = scene.cli(&["store", "status"]).await;
    for part in ["BREAKER", "closed for", "PENDING", "CLOCK", "failed"] {
        assert!(table.contains(part), "{part}: {table}");
    }
}

#[tokio::test]
async fn the_status_without_redis_reports_what_this_machines_journal_holds() {
    let directory = tempfile::tempdir().unwrap();
    let journal = directory.path().join("journal.db");
    let extra = format!("timeout: 300ms, journal: \"{}\"", journal.display());
    let mut scene = Scene::builder(TOUCHLINE)
        .store(SceneStore::Redis)
        .durable_redis()
        .spec(|spec| spec.redis_extra = extra)
        .start()
        .await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    assert_eq!(client.get(&key, MARKETS).await.status, 200);
    let reported = status(&scene).await;
    assert_eq!(
        reported["store"]["journal"]["path"],
        journal.to_str().unwrap()
    );
    scene.redis.as_mut().unwrap().kill9();
    for _ in 0..3 {
        assert_eq!(client.get(&key, MARKETS).await.status, 200);
    }
    for (killed, arguments) in [(false, "json"), (true, "json"), (true, "table")] {
        if killed {
            scene.gateways[0].kill9();
        }
        let asked = ["store", "status", "--output", arguments];
        let output = scene.gateways[0].cli(&asked).await;
        assert_eq!(output.status.code(), Some(1));
        let port = scene.redis.as_ref().unwrap().port().to_string();
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(message.contains(&port), "{message}");
        let shown = String::from_utf8(output.stdout).unwrap();
        match arguments {
            "json" => {
                let reported: Value = serde_json::from_str(&shown).unwrap();
                assert_eq!(reported["journal"]["pending_units"], 3, "{reported}");
                let store = reported["journal"]["store"].as_str().unwrap();
                assert!(store.contains(&port), "{reported}");
                assert!(reported["error"].as_str().unwrap().contains(&port));
            }
            _ => assert!(shown.contains("3 units pending"), "{shown}"),
        }
    }
    scene.gateways[0].restart().await;
    scene.redis.as_mut().unwrap().restart().await;
    scene.expect_used(&key, 4).await;
}
