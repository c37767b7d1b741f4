//! Redis answers, but not as it should: full, read-only, back with less than it had. And the journal's disk is full.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use harness::problem::assert_problem;
use harness::{Call, IssuedKey, Protocol, Scene, Store, StoreSpec, eventually};

use super::{MARKETS, TOUCHLINE};

const CALLS: usize = 40;

async fn readiness(scene: &Scene) -> (u16, serde_json::Value) {
    let (status, body) = scene.admin(0, "/readyz").await;
    (status, serde_json::from_str(&body).unwrap())
}

async fn becomes(scene: &Scene, status: &str) {
    eventually(&format!("it reports {status}"), async || {
        (readiness(scene).await.1["status"] == status).then_some(())
    })
    .await;
}

/// Calls that must all be served.
async fn served(scene: &Scene, gateway: usize, key: &IssuedKey, calls: usize) {
    let client = scene.client_of(gateway, Protocol::Http1);
    for _ in 0..calls {
        let answer = client.get(key, MARKETS).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert!(answer.number("x-ratelimit-remaining").is_some());
    }
}

async fn report(scene: &Scene, words: &[&str]) {
    let reply = scene.redis.as_ref().unwrap().command(words).await.unwrap();
    assert!(!reply.starts_with('-'), "{words:?}: {reply}");
}

/// Redis takes no writes between two commands: no client notices within the share, and everything is counted once after.
async fn refuses_writes_between(begins: &[&str], ends: &[&str]) {
    let mut scene = Scene::builder(TOUCHLINE)
        .store(Store::Redis)
        .spec(|spec| spec.redis_extra = "timeout: 1s".into())
        .start()
        .await;
    let key = scene.issue("starter").await;
    served(&scene, 0, &key, CALLS).await;
    report(&scene, begins).await;
    served(&scene, 0, &key, CALLS).await;
    becomes(&scene, "degraded").await;
    served(&scene, 0, &key, CALLS).await;
    let (status, reported) = readiness(&scene).await;
    assert_eq!(
        (status, reported["pending_units"].as_u64()),
        (200, Some(2 * CALLS as u64))
    );
    report(&scene, ends).await;
    becomes(&scene, "ready").await;
    served(&scene, 0, &key, CALLS).await;
    scene.expect_used(&key, 4 * CALLS as u64).await;
    scene.assert_ledgers_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_out_of_memory_goes_unnoticed_within_the_share_and_is_settled_exactly() {
    let full = ["CONFIG", "SET", "maxmemory", "1"];
    refuses_writes_between(&full, &["CONFIG", "SET", "maxmemory", "0"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_became_read_only_goes_unnoticed_within_the_share_and_is_settled_exactly() {
    // No server listens on port 1.
    let replica = ["REPLICAOF", "127.0.0.1", "1"];
    refuses_writes_between(&replica, &["REPLICAOF", "NO", "ONE"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_out_of_memory_is_noticed_by_the_first_charge_of_a_quiet_gateway() {
    let mut scene = Scene::builder(TOUCHLINE)
        .store(Store::Redis)
        .spec(|spec| spec.redis_extra = "timeout: 1s, outage: deny".into())
        .start()
        .await;
    let key = scene.issue("starter").await;
    served(&scene, 0, &key, CALLS).await;
    report(&scene, &["CONFIG", "SET", "maxmemory", "1"]).await;
    let client = scene.client(Protocol::Http1);
    assert_eq!(client.get(&key, MARKETS).await.status, 500);
    eventually("it is not ready, and why", async || {
        let (status, body) = readiness(&scene).await;
        (status == 503 && body.to_string().contains("OOM")).then_some(())
    })
    .await;
    eventually("it is logged", async || {
        let output = scene.gateways[0].output();
        output.contains("Redis is unavailable").then_some(())
    })
    .await;
    report(&scene, &["CONFIG", "SET", "maxmemory", "0"]).await;
    becomes(&scene, "ready").await;
    served(&scene, 0, &key, CALLS).await;
    scene.expect_used(&key, 2 * CALLS as u64).await;
    scene.assert_ledgers_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_usage_is_read_from_a_redis_that_only_refuses_writes() {
    let mut scene = Scene::builder(TOUCHLINE)
        .store(Store::Redis)
        .spec(|spec| spec.redis_extra = "timeout: 1s".into())
        .start()
        .await;
    let key = scene.issue("starter").await;
    served(&scene, 0, &key, CALLS).await;
    report(&scene, &["CONFIG", "SET", "maxmemory", "1"]).await;
    served(&scene, 0, &key, CALLS).await;
    becomes(&scene, "degraded").await;
    let client = scene.client(Protocol::Http1);
    let usage = client.get(&key, "/api/v1/usage").await;
    assert_eq!(usage.status, 200, "{usage:?}");
    assert_eq!(usage.json()["used"], 2 * CALLS as u64);
    report(&scene, &["CONFIG", "SET", "maxmemory", "0"]).await;
    becomes(&scene, "ready").await;
    scene.expect_used(&key, 2 * CALLS as u64).await;
    scene.assert_ledgers_agree().await;
}

/// What a Redis wrote down and finds again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Persistence {
    /// A snapshot, older than the last calls.
    Snapshot,
    /// An append-only file that lacks its last commands.
    AppendOnly,
}

async fn restarted_with_a_little_lost(persistence: Persistence) {
    let builder = Scene::builder(TOUCHLINE)
        .store(Store::Redis)
        .daily("starter", 200)
        .gateways(2)
        .spec(|spec| spec.redis_extra = "timeout: 1s".into());
    let mut scene = match persistence {
        Persistence::Snapshot => builder.start().await,
        Persistence::AppendOnly => builder.durable_redis().start().await,
    };
    let key = scene.issue("starter").await;
    for gateway in [0, 1] {
        served(&scene, gateway, &key, CALLS).await;
    }
    match persistence {
        Persistence::Snapshot => report(&scene, &["SAVE"]).await,
        Persistence::AppendOnly => {}
    }
    for gateway in [0, 1] {
        served(&scene, gateway, &key, CALLS / 2).await;
    }
    scene.redis.as_mut().unwrap().kill9();
    match persistence {
        Persistence::Snapshot => {}
        Persistence::AppendOnly => cut_the_end_off(scene.directory()),
    }
    scene.redis.as_mut().unwrap().restart().await;
    for gateway in [0, 1] {
        eventually("both are back", async || {
            let (_, body) = scene.admin(gateway, "/readyz").await;
            body.contains("\"ready\"").then_some(())
        })
        .await;
    }
    scene.expect_used(&key, 3 * CALLS as u64).await;
    // What is left, and not one more.
    let client = scene.client(Protocol::Http1);
    let mut more = 0;
    while client.get(&key, MARKETS).await.status == 200 {
        more += 1;
        assert!(more <= 200, "no end");
    }
    assert_eq!(more, 200 - 3 * CALLS);
    scene.expect_used(&key, 200).await;
    scene.assert_ledgers_agree().await;
}

/// Cuts the last bytes off the append-only file, as a host's crash would.
fn cut_the_end_off(directory: &Path) {
    const LOST_BYTES: u64 = 2_000;
    let files = std::fs::read_dir(directory.join("appendonlydir")).unwrap();
    let path = files
        .map(|entry| entry.unwrap().path())
        .find(|path| path.display().to_string().ends_with(".incr.aof"))
        .unwrap();
    let file = std::fs::File::options().write(true).open(path).unwrap();
    let bytes = file.metadata().unwrap().len();
    assert!(bytes > 2 * LOST_BYTES, "{bytes}");
    file.set_len(bytes - LOST_BYTES).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_restarted_from_an_older_snapshot_gets_its_counts_back() {
    restarted_with_a_little_lost(Persistence::Snapshot).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_restarted_from_a_cut_append_only_file_gets_its_counts_back() {
    restarted_with_a_little_lost(Persistence::AppendOnly).await;
}

/// A disk of its own for the journal, which can be filled.
enum Disk {
    /// A file system of 1 MiB in memory.
    Mounted(PathBuf),
    /// A directory, where only root may mount: the process's files may not grow instead.
    Limited(PathBuf),
}

impl Disk {
    fn at(path: PathBuf) -> Disk {
        std::fs::create_dir(&path).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"])
            .arg(&path)
            .output();
        match mounted {
            Ok(output) if output.status.success() => Disk::Mounted(path),
            Ok(_) | Err(_) => Disk::Limited(path),
        }
    }

    fn path(&self) -> &Path {
        match self {
            Disk::Mounted(path) | Disk::Limited(path) => path,
        }
    }

    fn fill(&self, scene: &mut Scene) {
        match self {
            Disk::Mounted(path) => {
                let nothing_left = std::fs::write(path.join("filler"), vec![0; 2 << 20]);
                assert!(nothing_left.is_err());
            }
            Disk::Limited(_) => scene.gateways[0].process().fill_disk(),
        }
    }

    fn free(&self, scene: &mut Scene) {
        match self {
            Disk::Mounted(path) => std::fs::remove_file(path.join("filler")).unwrap(),
            Disk::Limited(_) => scene.gateways[0].process().free_disk(),
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Disk::Mounted(path) = self {
            // Lazily: the gateway may still have it open.
            let _ = Command::new("umount").arg("-l").arg(path).status();
        }
    }
}

#[tokio::test]
async fn a_full_disk_of_an_embedded_store_ends_requests_in_500_and_is_named_by_its_status() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Disk::at(directory.path().join("disk"));
    let database = disk.path().join("touchline.db");
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let gateway = &mut scene.gateways[0];
    let StoreSpec::Embedded(before) = &scene.spec.store else {
        panic!("it is another store");
    };
    let before = before.to_str().unwrap();
    let config = std::fs::read_to_string(&gateway.config).unwrap();
    assert!(config.contains(before), "{config}");
    gateway.terminate();
    gateway.put_file(&config.replace(before, database.to_str().unwrap()));
    gateway.restart().await;
    let shown = scene.cli(&["store", "status"]).await;
    assert!(!shown.contains("warning"), "{shown}");
    let key = scene.issue("starter").await;
    served(&scene, 0, &key, CALLS).await;
    disk.fill(&mut scene);
    let client = scene.client(Protocol::Http1);
    // Its log has room for some more.
    let refused = eventually("a charge cannot be written", async || {
        let answer = client.get(&key, MARKETS).await;
        (answer.status != 200).then_some(answer)
    })
    .await;
    assert_problem(&refused, 500, "INTERNAL_ERROR");
    let forwarded = scene.upstream.count();
    for _ in 0..CALLS {
        assert_eq!(client.get(&key, MARKETS).await.status, 500);
    }
    assert_eq!(scene.upstream.count(), forwarded);
    match disk {
        Disk::Mounted(_) => {
            let shown = status(&scene).await;
            let warning = "so requests are answered with 500: its disk is full (0 bytes are free)";
            assert!(shown.contains(warning), "{shown}");
        }
        // The limit of the gateway's process is unknown to others.
        Disk::Limited(_) => {}
    }
    disk.free(&mut scene);
    eventually("it is served again", async || {
        (client.get(&key, MARKETS).await.status == 200).then_some(())
    })
    .await;
    scene.expect_used(&key, forwarded as u64 + 1).await;
    scene.assert_ledgers_agree().await;
    disk.fill(&mut scene);
    scene.gateways[0].terminate();
    match disk {
        Disk::Mounted(_) => {
            let shown = status(&scene).await;
            assert!(shown.contains("its disk is full"), "{shown}");
        }
        Disk::Limited(_) => {}
    }
}

/// The output of `touchline store status`, which may fail.
async fn status(scene: &Scene) -> String {
    let ran = scene.gateways[0].cli(&["store", "status"]).await;
    [ran.stdout, ran.stderr]
        .map(|text| String::from_utf8(text).unwrap())
        .concat()
}

/// The journal is looked at each second, and fails each time.
async fn remains_failed(scene: &Scene) {
    for _ in 0..25 {
        let (status, reported) = readiness(scene).await;
        let failed = (503, &"journal_failed".into());
        assert_eq!((status, &reported["without_store"]), failed);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_journal_disk_denies_reports_it_and_recovers_when_there_is_room() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Disk::at(directory.path().join("disk"));
    let journal = disk.path().join("journal.db");
    let extra = format!(
        "timeout: 1s, journal_interval: 100ms, journal: \"{}\"",
        journal.display()
    );
    let mut scene = Scene::builder(TOUCHLINE)
        .store(Store::Redis)
        .spec(|spec| spec.redis_extra = extra)
        .start()
        .await;
    let key = scene.issue("starter").await;
    served(&scene, 0, &key, CALLS).await;
    disk.fill(&mut scene);
    // While Redis answers no client is refused for it.
    served(&scene, 0, &key, CALLS).await;
    eventually("the journal is known to fail", async || {
        let (status, reported) = readiness(&scene).await;
        assert_eq!(status, 200, "{reported}");
        (reported["without_store"] == "journal_failed").then_some(())
    })
    .await;
    scene.redis.as_mut().unwrap().stop();
    eventually("Redis is unavailable", async || {
        let answer = scene
            .client(Protocol::Http1)
            .call(Call::get(MARKETS).key(&key))
            .await;
        assert!(answer.status == 500, "{answer:?}");
        let (status, reported) = readiness(&scene).await;
        (status == 503 && reported["without_store"] == "journal_failed").then_some(())
    })
    .await;
    remains_failed(&scene).await;
    match disk {
        Disk::Mounted(_) => {
            let shown = status(&scene).await;
            let warning = "so nothing is served without Redis: its disk is full (0 bytes are free)";
            assert!(shown.contains(warning), "{shown}");
        }
        // The limit of the gateway's process is unknown to others.
        Disk::Limited(_) => {}
    }
    disk.free(&mut scene);
    becomes(&scene, "degraded").await;
    served(&scene, 0, &key, CALLS).await;
    // The journal has room for some more units.
    disk.fill(&mut scene);
    let mut more = 0;
    eventually("the journal fails again", async || {
        let client = scene.client(Protocol::Http1);
        let is_served = client.get(&key, MARKETS).await.status == 200;
        more += u64::from(is_served);
        (!is_served).then_some(())
    })
    .await;
    remains_failed(&scene).await;
    disk.free(&mut scene);
    becomes(&scene, "degraded").await;
    scene.redis.as_mut().unwrap().resume();
    becomes(&scene, "ready").await;
    scene.expect_used(&key, 3 * CALLS as u64 + more).await;
    match disk {
        Disk::Mounted(_) => scene.assert_ledgers_agree().await,
        // The access log could not be written either.
        Disk::Limited(_) => {}
    }
}
