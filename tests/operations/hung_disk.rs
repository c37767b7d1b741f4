//! A disk that neither writes nor fails: what the gateway reports meanwhile, and that a write which returns ends it.

use std::path::PathBuf;
use std::time::Duration;

use harness::{Protocol, Scene, Store, eventually};
use serde_json::Value;

use super::preload::Preload;
use super::{MARKETS, run_beside};

/// Its `fdatasync` hangs.
const LIBRARY: &str = include_str!("durability/fdatasync.c");

/// A disk that hangs when the test wants it.
struct Disk {
    preload: Preload,
    hangs: PathBuf,
}

impl Disk {
    fn new() -> Disk {
        let preload = Preload::new(LIBRARY);
        let hangs = preload.file("synced.hangs");
        Disk { preload, hangs }
    }

    /// The gateway on this disk.
    fn program(&self) -> PathBuf {
        let synced = self.preload.file("synced");
        self.preload.program("SYNCED", &synced)
    }

    /// No file with this end of its path can be forced to disk from now on.
    fn hang(&self, file: &str) {
        let next = self.preload.file("next");
        std::fs::write(&next, file).unwrap();
        std::fs::rename(&next, &self.hangs).unwrap();
    }

    /// What waits returns.
    fn go_on(&self) {
        std::fs::remove_file(&self.hangs).unwrap();
    }
}

async fn readiness(scene: &Scene) -> (u16, Value) {
    let (status, body) = scene.admin(0, "/readyz").await;
    (status, serde_json::from_str(&body).unwrap())
}

/// How many lines of the log have this part.
fn logged(scene: &Scene, part: &str) -> usize {
    scene.gateways[0].output().matches(part).count()
}

#[tokio::test]
async fn a_disk_that_hangs_under_the_embedded_store_is_reported_until_a_write_returns() {
    let disk = Disk::new();
    let mut scene = Scene::builder(disk.program()).start().await;
    let gateway = &mut scene.gateways[0];
    let config = std::fs::read_to_string(&gateway.config).unwrap();
    assert!(gateway.terminate().success());
    gateway.put_file(&config.replace("touchline.db\"", "touchline.db\", durability: commit"));
    gateway.restart().await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    assert_eq!(client.get(&key, MARKETS).await.status, 200);
    let not_ready = async || {
        let trouble = eventually("it is not ready", async || {
            let (status, body) = readiness(&scene).await;
            (status == 503).then(|| body["store_trouble"].as_str().unwrap().to_owned())
        });
        let trouble = trouble.await;
        let silent = "touchline.db did not answer within 5s: its disk hangs";
        assert!(trouble.contains(silent), "{trouble}");
    };
    let ready = async || {
        eventually("it is ready", async || {
            (readiness(&scene).await.0 == 200).then_some(())
        })
        .await;
    };
    // Without a request.
    disk.hang("touchline.db-wal");
    not_ready().await;
    disk.go_on();
    ready().await;
    // With one that waits.
    disk.hang("touchline.db-wal");
    let command = eventually("a command waits for the gateway", async || {
        let ran = run_beside(&scene.gateways[0], &["store", "status"]).await;
        (ran.code != Some(0)).then_some(ran)
    });
    let (answer, (), command) = tokio::join!(client.get(&key, MARKETS), not_ready(), command);
    assert_eq!(answer.status, 500);
    let locked = command.failed(1);
    assert!(
        locked.contains("that process may be waiting for the disk"),
        "{locked}"
    );
    assert_eq!(scene.metric("touchline_store_up").await, 0.0);
    // Once that is known, requests do not wait five seconds each.
    let at_once = tokio::time::timeout(Duration::from_secs(60), async {
        for _ in 0..20 {
            assert_eq!(client.get(&key, MARKETS).await.status, 500);
        }
    });
    at_once.await.unwrap();
    disk.go_on();
    ready().await;
    assert_eq!(client.get(&key, MARKETS).await.status, 200);
    // Once a minute.
    for line in [
        "the database cannot be written",
        "the database is written again",
    ] {
        assert_eq!(logged(&scene, line), 1, "{line}");
    }
    scene.assert_ledgers_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_journal_whose_disk_hangs_denies_without_redis_and_is_reported_until_a_write_returns() {
    let disk = Disk::new();
    let mut scene = Scene::builder(disk.program())
        .store(Store::Redis)
        .start()
        .await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    assert_eq!(client.get(&key, MARKETS).await.status, 200);
    disk.hang("journal.db-wal");
    eventually("it is reported while Redis answers", async || {
        let failed = scene.metric("touchline_journal_failed").await;
        (failed == 1.0).then_some(())
    })
    .await;
    assert_eq!(client.get(&key, MARKETS).await.status, 200);
    assert_eq!(readiness(&scene).await.0, 200);
    scene.redis.as_mut().unwrap().kill9();
    eventually("it is not ready, and why", async || {
        let (status, body) = readiness(&scene).await;
        (status == 503 && body["without_store"] == "journal_failed").then_some(())
    })
    .await;
    assert_eq!(client.get(&key, MARKETS).await.status, 500);
    disk.go_on();
    eventually("it serves without Redis", async || {
        (readiness(&scene).await.0 == 200).then_some(())
    })
    .await;
    assert_eq!(client.get(&key, MARKETS).await.status, 200);
    let silent = "journal.db did not answer within 3s; check its disk";
    for line in [silent, "the journal is written again"] {
        assert_eq!(logged(&scene, line), 1, "{line}");
    }
    scene.redis.as_mut().unwrap().restart().await;
    scene.expect_used(&key, 3).await;
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn counts_that_a_hanging_disk_does_not_save_in_time_are_logged() {
    let disk = Disk::new();
    let scene = Scene::builder(disk.program()).start().await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    // The log is written all the while.
    disk.hang("touchline.db");
    assert_eq!(client.get(&key, MARKETS).await.status, 200);
    let is_logged = async |line| {
        eventually(line, async || (logged(&scene, line) == 1).then_some(())).await;
    };
    is_logged("the database could not be forced to disk within 5s; check the disk").await;
    assert_eq!(client.get(&key, MARKETS).await.status, 200);
    disk.go_on();
    is_logged("the database is forced to disk again").await;
}
