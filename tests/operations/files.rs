//! The files of a running gateway, moved, removed, replaced or damaged from outside: it finds out, reports what to do, and serves
//! nothing that would not be counted.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use harness::{IssuedKey, Protocol, Scene, Store, eventually};
use serde_json::Value;

use super::{MARKETS, TOUCHLINE, run_beside};

/// What may become of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It lies elsewhere.
    Moved,
    /// It is gone, with its log.
    Removed,
    /// A copy of it lies in its place, without its log.
    Replaced,
    /// Nothing is left in it.
    Emptied,
    /// Its first page is left.
    Truncated,
    /// Its first bytes are others.
    Overwritten,
    /// Its log is gone.
    WithoutLog,
}

const FATES: [Fate; 7] = [
    Fate::Moved,
    Fate::Removed,
    Fate::Replaced,
    Fate::Emptied,
    Fate::Truncated,
    Fate::Overwritten,
    Fate::WithoutLog,
];

fn beside(file: &Path, name: &str) -> PathBuf {
    PathBuf::from(format!("{}{name}", file.display()))
}

fn meet(file: &Path, fate: Fate) {
    let open = || OpenOptions::new().write(true).open(file).unwrap();
    match fate {
        Fate::Moved => fs::rename(file, beside(file, ".away")).unwrap(),
        Fate::Removed => {
            for name in ["", "-wal", "-shm"] {
                fs::remove_file(beside(file, name)).unwrap();
            }
        }
        Fate::Replaced => {
            let other = beside(file, ".copy");
            fs::copy(file, &other).unwrap();
            meet(file, Fate::Removed);
            fs::rename(other, file).unwrap();
        }
        Fate::Emptied => open().set_len(0).unwrap(),
        Fate::Truncated => open().set_len(4_096).unwrap(),
        Fate::Overwritten => open().write_all_at(&[0; 100], 0).unwrap(),
        Fate::WithoutLog => fs::remove_file(beside(file, "-wal")).unwrap(),
    }
}

async fn readiness(scene: &Scene) -> (u16, Value) {
    let (status, body) = scene.admin(0, "/readyz").await;
    (status, serde_json::from_str(&body).unwrap())
}

/// The reason that `/readyz` gives once it gives one, and what else it reports then.
async fn reason(scene: &Scene) -> (String, u16, Value) {
    eventually("the gateway has found out", async || {
        let (status, body) = readiness(scene).await;
        let reason = body["reasons"][0].as_str()?.to_owned();
        Some((reason, status, body))
    })
    .await
}

/// The file that the gateway has open, as a reason names it.
fn held(reason: &str) -> &str {
    let from = reason.find("/proc/").unwrap();
    reason[from..].split(',').next().unwrap()
}

async fn status_of(scene: &Scene, key: &IssuedKey) -> u16 {
    let answer = scene.client(Protocol::Http1).get(key, MARKETS).await;
    if answer.status == 500 {
        assert_eq!(answer.code().as_deref(), Some("INTERNAL_ERROR"));
        assert!(answer.number("retry-after").is_some_and(|after| after > 0));
        assert!(!String::from_utf8_lossy(&answer.body).contains(".db"));
    }
    answer.status
}

/// A gateway that has served a few calls of two keys, all folded into the file.
async fn begun(store: Store, database: impl Fn(&Scene) -> PathBuf) -> (Scene, IssuedKey, PathBuf) {
    let mut scene = Scene::builder(TOUCHLINE)
        .store(store)
        .spec(|spec| spec.redis_extra = "timeout: 1s".into())
        .start()
        .await;
    let key = scene.issue("starter").await;
    for _ in 0..3 {
        assert_eq!(status_of(&scene, &key).await, 200);
    }
    assert!(scene.gateways[0].terminate().success());
    let file = database(&scene);
    let log = "PRAGMA wal_checkpoint(TRUNCATE)";
    let folded = rusqlite::Connection::open(&file).unwrap();
    folded.query_row(log, [], |_| Ok(())).unwrap();
    drop(folded);
    scene.gateways[0].restart().await;
    assert!(fs::metadata(&file).unwrap().len() > 8_192);
    (scene, key, file)
}

async fn embedded() -> (Scene, IssuedKey, PathBuf) {
    begun(Store::Embedded, |scene| {
        scene.directory().join("touchline.db")
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_is_moved_removed_replaced_or_damaged_is_a_store_that_is_down() {
    for fate in FATES {
        let (scene, key, file) = embedded().await;
        let (status, body) = readiness(&scene).await;
        assert_eq!((status, &body["status"]), (200, &"ready".into()));
        meet(&file, fate);
        let (reason, status, body) = reason(&scene).await;
        assert_eq!(
            (status, &body["status"]),
            (503, &"unready".into()),
            "{fate:?}"
        );
        assert_eq!(body["store_up"], false);
        let name = file.to_str().unwrap();
        assert!(
            reason.contains(name)
                && reason.contains("restart") | reason.contains("start the gateway"),
            "{reason}"
        );
        let served = scene.upstream.count();
        for _ in 0..3 {
            assert_eq!(status_of(&scene, &key).await, 500, "{fate:?}");
        }
        assert_eq!(scene.upstream.count(), served, "{fate:?}");
        assert_eq!(scene.metric("touchline_store_up").await, 0.0);
        let quoted = serde_json::to_string(&reason).unwrap();
        eventually("it has its line, and one", async || {
            let times = scene.gateways[0].output().matches(&quoted).count();
            assert!(times <= 1, "{fate:?}");
            (times == 1).then_some(())
        })
        .await;
        // A stranger is a stranger still.
        let nonsense = harness::Call::get(MARKETS).key("nonsense");
        let answer = scene.client(Protocol::Http1).call(nonsense).await;
        assert_eq!(answer.status, 401, "{fate:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_is_put_back_is_charged_again_and_whole() {
    let (mut scene, key, file) = embedded().await;
    meet(&file, Fate::Moved);
    reason(&scene).await;
    assert_eq!(status_of(&scene, &key).await, 500);
    fs::rename(beside(&file, ".away"), &file).unwrap();
    eventually("it is ready again", async || {
        let (status, body) = readiness(&scene).await;
        (status == 200 && body["status"] == "ready").then_some(())
    })
    .await;
    assert_eq!(status_of(&scene, &key).await, 200);
    scene.expect_used(&key, 4).await;
    let output = scene.gateways[0].output();
    assert!(output.contains("charges go on"), "{output}");
    scene.assert_ledgers_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revocation_in_the_place_of_the_database_leaves_no_key_served() {
    let (scene, key, file) = embedded().await;
    meet(&file, Fate::Replaced);
    run_beside(&scene.gateways[0], &["keys", "revoke", &key.id, "--yes"])
        .await
        .done();
    eventually("nothing is served", async || {
        (status_of(&scene, &key).await != 200).then_some(())
    })
    .await;
    assert_eq!(status_of(&scene, &key).await, 500);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_database_is_saved_from_the_gateway_that_has_it_open() {
    let (mut scene, key, file) = embedded().await;
    meet(&file, Fate::Removed);
    let (reason, ..) = reason(&scene).await;
    fs::copy(held(&reason), &file).unwrap();
    assert!(scene.gateways[0].terminate().success());
    scene.gateways[0].restart().await;
    assert_eq!(status_of(&scene, &key).await, 200);
    scene.expect_used(&key, 4).await;
    scene.assert_ledgers_agree().await;
}

async fn journaled() -> (Scene, IssuedKey, PathBuf) {
    begun(Store::Redis, |scene| {
        scene.directory().join("gateway-0/var/journal.db")
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_or_journal_behind_a_symbolic_link_is_used_as_any_other() {
    for (mut scene, key, file) in [embedded().await, journaled().await] {
        assert!(scene.gateways[0].terminate().success());
        let target = scene.outside().join("target.db");
        fs::rename(&file, &target).unwrap();
        std::os::unix::fs::symlink(&target, &file).unwrap();
        scene.gateways[0].restart().await;
        assert_eq!(status_of(&scene, &key).await, 200);
        let (status, body) = readiness(&scene).await;
        assert_eq!((status, &body["status"]), (200, &"ready".into()), "{body}");
        fs::remove_file(beside(&target, "-wal")).unwrap();
        let (reason, ..) = reason(&scene).await;
        assert!(reason.contains("target.db-wal was removed"), "{reason}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_journal_that_is_moved_removed_replaced_or_damaged_serves_nothing_without_redis() {
    for fate in FATES {
        let (mut scene, key, file) = journaled().await;
        meet(&file, fate);
        let (reason, status, body) = reason(&scene).await;
        // Redis answers, and has every count: no client is refused.
        assert_eq!(
            (status, &body["status"]),
            (200, &"degraded".into()),
            "{fate:?}"
        );
        assert_eq!(body["without_store"], "journal_failed");
        assert!(reason.contains(file.to_str().unwrap()), "{reason}");
        assert_eq!(scene.metric("touchline_journal_failed").await, 1.0);
        assert_eq!(status_of(&scene, &key).await, 200, "{fate:?}");
        scene.redis.as_mut().unwrap().kill9();
        eventually("Redis is unavailable", async || {
            let (status, body) = readiness(&scene).await;
            (body["store_up"] == false).then(|| {
                assert_eq!(
                    status,
                    503,
                    "{fate:?} {body} {}",
                    scene.gateways[0].output()
                )
            })
        })
        .await;
        let served = scene.upstream.count();
        for _ in 0..3 {
            assert_eq!(status_of(&scene, &key).await, 500, "{fate:?}");
        }
        assert_eq!(scene.upstream.count(), served, "{fate:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn not_one_unit_is_served_into_a_journal_that_is_gone() {
    let (mut scene, key, file) = journaled().await;
    scene.redis.as_mut().unwrap().kill9();
    eventually("it serves without Redis", async || {
        let (_, body) = readiness(&scene).await;
        (body["store_up"] == false && body["without_store"] == "serves").then_some(())
    })
    .await;
    assert_eq!(status_of(&scene, &key).await, 200);
    meet(&file, Fate::Moved);
    // At once: the file is looked at with each unit.
    assert_eq!(status_of(&scene, &key).await, 500);
    fs::rename(beside(&file, ".away"), &file).unwrap();
    eventually("it is served again", async || {
        (status_of(&scene, &key).await == 200).then_some(())
    })
    .await;
    meet(&file, Fate::Removed);
    assert_eq!(status_of(&scene, &key).await, 500);
    let (reason, ..) = reason(&scene).await;
    // What was served without Redis is in the file that the gateway has open, and in no other.
    fs::copy(held(&reason), &file).unwrap();
    scene.gateways[0].kill9();
    scene.redis.as_mut().unwrap().restart().await;
    scene.gateways[0].restart().await;
    scene.expect_used(&key, 5).await;
}
