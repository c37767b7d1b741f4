//! The content of a store, transferred into a file, into the other kind of store and back, while gateways charge.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use harness::redis_nodes::ClusterSet;
use harness::upstream::Script;
use harness::{Behaviour, IssuedKey, Protocol, RedisServer, Scene, Store, StoreSpec, eventually};
use serde_json::Value;

use super::{MARKETS, RANKINGS, TOUCHLINE, run_beside, run_on};

const INSIGHTS: &str = "/api/v1/data/insights";
/// Units a day of the starter tier.
const DAILY: u64 = 12;

/// A configuration like that of the gateways, of another store.
fn configuration(scene: &Scene, name: &str, store: StoreSpec) -> PathBuf {
    let mut spec = scene.spec.clone();
    spec.store = store;
    let (outage, replica) = (format!("{name}.journal.db"), format!("{name}.keys.db"));
    let of = |file: &str| scene.outside().join(file).display().to_string();
    spec.redis_extra = format!(
        "timeout: 2s, journal: \"{}\", replica: \"{}\"",
        of(&outage),
        of(&replica)
    );
    let file = scene.outside().join(format!("{name}.yaml"));
    std::fs::write(&file, spec.yaml(&scene.outside().join("access.log"))).unwrap();
    file
}

fn redis_spec(server: &RedisServer) -> StoreSpec {
    StoreSpec::Redis {
        url: server.url(),
        key_prefix: "transferred".into(),
    }
}

fn file_spec(scene: &Scene, name: &str) -> StoreSpec {
    StoreSpec::Embedded(scene.outside().join(name))
}

async fn redis(scene: &Scene) -> RedisServer {
    RedisServer::start(scene.outside(), false, None).await
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// `touchline store copy` with the result as JSON.
async fn copied(from: &Path, to: &Path, more: &[&str]) -> Value {
    let words = ["store", "copy", "--to", text(to), "--output", "json"];
    let reported = run_on(from, &[&words, more].concat()).await.done();
    serde_json::from_str(&reported).unwrap()
}

/// All that operators can see of a store: keys with digests, counts and ledger, its proof, audit trail.
async fn holdings(config: &Path) -> Vec<Value> {
    let mut reported = Vec::new();
    for words in [
        &["usage", "--from", "2020-01-01", "--output", "json"][..],
        &[
            "usage",
            "verify",
            "--from",
            "2020-01-01",
            "--output",
            "json",
        ],
        &["audit", "--output", "json"],
    ] {
        let text = run_on(config, words).await.done();
        let mut value: Value = serde_json::from_str(&text).unwrap();
        // Each database begins its own, and Redis keeps none.
        if let Some(report) = value.as_object_mut() {
            report.remove("chain");
        }
        reported.push(value);
    }
    let export = ["keys", "export", "-", "--format", "jsonl", "--with-digests"];
    let rows = run_on(config, &export).await.done();
    // Keys of one instant, such as those of one import, have no order that both kinds of store report.
    let mut rows: Vec<&str> = rows.lines().collect();
    rows.sort_unstable();
    reported.push(rows.into_iter().collect());
    reported
}

/// Calls, one after the other; their statuses.
async fn calls(scene: &Scene, key: &IssuedKey, target: &str, times: usize) -> Vec<u16> {
    let client = scene.client(Protocol::Http1);
    let mut statuses = Vec::new();
    for _ in 0..times {
        statuses.push(client.get(key, target).await.status);
    }
    statuses
}

/// A gateway's store with a day behind it: charges, refunds, every kind of change, refusals.
async fn lived_in(store: Store) -> Scene {
    let scene = Scene::builder(TOUCHLINE)
        .store(store)
        .daily("starter", DAILY)
        .start()
        .await;
    let (starter, pro) = (scene.issue("starter").await, scene.issue("pro").await);
    let other = scene.issue("pro").await;
    scene.upstream.behave(|request| {
        let failing = request.target_text().starts_with(INSIGHTS);
        Behaviour::Answer(Script::json(if failing { 503 } else { 200 }, "{}"))
    });
    calls(&scene, &starter, MARKETS, DAILY as usize + 2).await;
    calls(&scene, &starter, RANKINGS, 2).await;
    let rotated = scene.rotate(&pro, &["--overlap", "24h"]).await;
    calls(&scene, &pro, MARKETS, 3).await;
    calls(&scene, &rotated, MARKETS, 4).await;
    calls(&scene, &rotated, INSIGHTS, 5).await;
    let grant = [
        "keys",
        "grant",
        &starter.id,
        "--extra",
        "3",
        "--reason",
        "cup",
    ];
    scene.cli(&grant).await;
    scene.cli(&["keys", "suspend", &other.id, "--yes"]).await;
    scene.cli(&["keys", "resume", &other.id]).await;
    scene.revoke(&other).await;
    eventually("all is written", async || {
        let verdict = scene.cli(&["usage", "verify", "--output", "json"]).await;
        let verdict: Value = serde_json::from_str(&verdict).unwrap();
        let usage = scene.cli(&["usage", "--output", "json"]).await;
        let usage: Value = serde_json::from_str(&usage).unwrap();
        let whole = usage["total"]["refused_tier"] == 2 && usage["total"]["refunded"] == 5;
        (whole && verdict["unattributed"] == 0).then_some(())
    })
    .await;
    scene
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_that_a_store_holds_is_the_same_in_the_other_kind_of_store_and_back() {
    for store in [Store::Embedded, Store::Redis] {
        let scene = lived_in(store).await;
        let server = redis(&scene).await;
        let here = scene.gateways[0].config.clone();
        let first = configuration(&scene, "first", file_spec(&scene, "first.db"));
        let second = configuration(&scene, "second", redis_spec(&server));
        let third = configuration(&scene, "third", file_spec(&scene, "third.db"));
        let before = holdings(&here).await;
        assert_eq!(before[0]["total"]["used"], DAILY + 7, "{before:?}");
        for (from, to) in [(&here, &first), (&first, &second), (&second, &third)] {
            let reported = copied(from, to, &[]).await;
            for (read, taken, count) in [
                ("keys", "keys_added", 3),
                ("audit_entries", "audit_entries_added", 8),
                ("key_days", "key_days_added", 2),
            ] {
                assert_eq!(reported["read"][read], count, "{reported}");
                assert_eq!(reported["taken"][taken], count, "{reported}");
            }
            assert_eq!(holdings(to).await, before, "{}", to.display());
        }
        // What comes back to where it came from, or comes twice, is known there.
        for (from, to) in [(&third, &here), (&second, &here), (&here, &second)] {
            let reported = copied(from, to, &["--merge"]).await;
            for new in [
                "keys_added",
                "keys_replaced",
                "audit_entries_added",
                "key_days_added",
            ] {
                assert_eq!(reported["taken"][new], 0, "{reported}");
            }
            assert_eq!(holdings(to).await, before, "{}", to.display());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_outgrown_under_load_is_left_for_redis_without_a_charge_lost_or_doubled() {
    let mut scene = Scene::builder(TOUCHLINE)
        .spec(|spec| spec.upgrade = Some("upgrade.sock".into()))
        .start()
        .await;
    let server = redis(&scene).await;
    let old = configuration(&scene, "old", scene.spec.store.clone());
    let new = configuration(&scene, "new", redis_spec(&server));
    let keys = [scene.issue("enterprise").await, scene.issue("pro").await];
    // One call in five fails at the upstream and is given back.
    scene.upstream.behave(|request| {
        let seed = request.id.bytes().map(u32::from).sum::<u32>();
        let status = if seed % 5 == 0 { 503 } else { 200 };
        Behaviour::Answer(Script::json(status, "{}"))
    });
    let (stop, made) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let mut swarm = Vec::new();
    for key in keys.iter().cycle().take(4) {
        let (client, key) = (scene.client(Protocol::Http1), key.clone());
        let (stop, made) = (stop.clone(), made.clone());
        swarm.push(tokio::spawn(async move {
            while !stop.load(Ordering::Acquire) {
                let status = client.get(&key, MARKETS).await.status;
                assert!(status == 200 || status == 500, "{status}");
                made.fetch_add(1, Ordering::AcqRel);
            }
        }));
    }
    let at_least = async |more: u64| {
        let goal = made.load(Ordering::Acquire) + more;
        eventually("calls are made", async || {
            (made.load(Ordering::Acquire) >= goal).then_some(())
        })
        .await;
    };
    at_least(50).await;
    copied(&old, &new, &[]).await;
    at_least(50).await;
    copied(&old, &new, &["--merge"]).await;
    at_least(50).await;
    scene.spec.store = redis_spec(&server);
    let gateway = &mut scene.gateways[0];
    gateway.configure(&scene.spec);
    gateway.upgrade().await;
    at_least(50).await;
    let rest = copied(&old, &new, &["--merge"]).await;
    assert_eq!(rest["taken"]["key_days_added"], 2, "{rest}");
    at_least(50).await;
    let again = copied(&old, &new, &["--merge"]).await;
    assert_eq!(again["taken"]["key_days_added"], 0, "{again}");
    stop.store(true, Ordering::Release);
    for one in swarm {
        one.await.unwrap();
    }
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn the_quota_of_a_day_goes_on_in_the_other_store_where_it_stood() {
    let mut scene = Scene::builder(TOUCHLINE)
        .daily("starter", DAILY)
        .start()
        .await;
    let server = redis(&scene).await;
    let key = scene.issue("starter").await;
    let used = DAILY as usize - 3;
    assert_eq!(calls(&scene, &key, MARKETS, used).await, vec![200; used]);
    let old = configuration(&scene, "old", scene.spec.store.clone());
    let new = configuration(&scene, "new", redis_spec(&server));
    assert!(scene.gateways[0].terminate().success());
    copied(&old, &new, &[]).await;
    scene.spec.store = redis_spec(&server);
    scene.gateways[0].configure(&scene.spec);
    scene.gateways[0].restart().await;
    assert_eq!(calls(&scene, &key, MARKETS, 4).await, [200, 200, 200, 429]);
    scene.assert_ledgers_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_is_read_by_its_owner_only_and_restored_into_either_kind_of_store() {
    let scene = lived_in(Store::Embedded).await;
    let server = redis(&scene).await;
    let file = scene.outside().join("backup.jsonl");
    let backup = ["store", "backup", text(&file)];
    let message = run_beside(&scene.gateways[0], &backup).await;
    assert!(
        message
            .stderr
            .contains("3 keys, 8 audit entries, 2 days of keys"),
        "{message:?}"
    );
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let refused = run_beside(&scene.gateways[0], &backup).await.failed(1);
    assert!(refused.contains("already exists"), "{refused}");
    let here = scene.gateways[0].config.clone();
    let before = holdings(&here).await;
    for (name, store) in [
        ("in-redis", redis_spec(&server)),
        ("in-a-file", file_spec(&scene, "restored.db")),
    ] {
        let to = configuration(&scene, name, store);
        run_on(&to, &["store", "restore", text(&file)]).await.done();
        assert_eq!(holdings(&to).await, before, "{name}");
    }
    // Standard output is a backup too: all lines but those that bear its time and sums are the same.
    let piped = run_on(&here, &["store", "backup", "-"]).await.done();
    let of_file = std::fs::read_to_string(&file).unwrap();
    assert_eq!(piped.lines().count(), of_file.lines().count(), "{piped}");
    // What cannot be read twice is named as that.
    for pipe in ["-", "/dev/stdin"] {
        let refused = run_on(&here, &["store", "restore", pipe]).await.failed(1);
        assert!(refused.contains("a backup is read twice"), "{refused}");
    }
}

#[tokio::test]
async fn a_damaged_cut_off_or_later_backup_is_refused_with_its_line_and_nothing_is_written() {
    let scene = lived_in(Store::Embedded).await;
    let file = scene.outside().join("backup.jsonl");
    run_beside(&scene.gateways[0], &["store", "backup", text(&file)])
        .await
        .done();
    let whole = std::fs::read_to_string(&file).unwrap();
    let lines: Vec<&str> = whole.lines().collect();
    let damaged = whole.replacen("\"customer\":", "\"Customer\":", 2);
    let line_of_damage = damaged
        .lines()
        .position(|line| line.contains("\"Customer\""));
    let later = whole.replacen("\"format\":3", "\"format\":4", 1);
    let cut = lines[..4].join("\n") + "\n";
    let in_the_middle = &whole[..whole.len() - 40];
    let to = configuration(&scene, "to", file_spec(&scene, "to.db"));
    for (text_of_file, line, word) in [
        (damaged.as_str(), line_of_damage.unwrap() + 1, "damaged"),
        (later.as_str(), 1, "format 4"),
        (cut.as_str(), 5, "cut off"),
        (in_the_middle, lines.len(), "cut off"),
        ("id,key\n", 1, "not a backup"),
    ] {
        std::fs::write(&file, text_of_file).unwrap();
        let message = run_on(&to, &["store", "restore", text(&file)])
            .await
            .failed(1);
        assert!(message.contains(&format!("line {line}:")), "{message}");
        assert!(
            message.contains(word) && message.contains("backup.jsonl"),
            "{message}"
        );
        let list = ["keys", "list", "--output", "json"];
        let message = run_on(&to, &list).await.failed(1);
        assert!(message.contains("there is no database"), "{message}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_holds_something_is_not_filled_unless_asked_and_a_rehearsal_writes_nothing() {
    let scene = lived_in(Store::Embedded).await;
    let server = redis(&scene).await;
    let here = scene.gateways[0].config.clone();
    for (name, store) in [
        ("redis", redis_spec(&server)),
        ("file", file_spec(&scene, "other.db")),
    ] {
        let to = configuration(&scene, name, store);
        let rehearsed = copied(&here, &to, &["--dry-run"]).await;
        assert_eq!(rehearsed["taken"]["keys_added"], 3, "{rehearsed}");
        assert_eq!(rehearsed["taken"]["key_days_added"], 2, "{rehearsed}");
        assert!(!scene.outside().join("other.db").exists());
        assert!(
            !server
                .command(&["KEYS", "transferred:*"])
                .await
                .unwrap()
                .contains("transferred")
        );
        copied(&here, &to, &[]).await;
        let before = holdings(&to).await;
        let words = ["store", "copy", "--to", text(&to)];
        let refused = run_on(&here, &words).await.failed(1);
        assert!(
            refused.contains("already has 3 keys") && refused.contains("--merge"),
            "{refused}"
        );
        let again = copied(&here, &to, &["--merge", "--dry-run"]).await;
        assert_eq!(again["taken"]["keys_held"], 3, "{again}");
        assert_eq!(again["taken"]["key_days_added"], 0, "{again}");
        assert_eq!(holdings(&to).await, before, "{name}");
        // A later change elsewhere does not undo a revocation.
        let list = ["keys", "list", "--output", "json"];
        let keys: Value = serde_json::from_str(&run_on(&to, &list).await.done()).unwrap();
        let id = keys[0]["id"].as_str().unwrap();
        run_on(&to, &["keys", "revoke", id, "--yes"]).await.done();
        run_on(&here, &["keys", "set-label", id, name]).await.done();
        let merged = copied(&here, &to, &["--merge"]).await;
        assert_eq!(merged["taken"]["keys_held"], 3, "{merged}");
        let show = ["keys", "show", id, "--output", "json"];
        let key: Value = serde_json::from_str(&run_on(&to, &show).await.done()).unwrap();
        assert_eq!(key["state"], "revoked", "{name}: {key}");
        server.command(&["FLUSHALL"]).await.unwrap();
    }
    let words = ["store", "copy", "--to", "elsewhere"];
    let wrong = run_on(&here, &words).await.failed(2);
    assert!(wrong.contains("names no store"), "{wrong}");
    let words = ["store", "copy", "--from", "none.db", "--to", text(&here)];
    let missing = run_on(&here, &words).await.failed(1);
    assert!(missing.contains("no database none.db"), "{missing}");
    // A path that cannot be looked for, as in a directory that this user may not enter.
    let shut = here.join("none.db");
    let words = ["store", "copy", "--from", text(&shut), "--to", text(&here)];
    let refused = run_on(&here, &words).await.failed(1);
    assert!(refused.contains("none.db cannot be opened"), "{refused}");
    let zone = scene.outside().join("zone.yaml");
    let text_of_file = std::fs::read_to_string(&here).unwrap();
    std::fs::write(
        &zone,
        text_of_file.replace("timezone: UTC", "timezone: Asia/Tokyo"),
    )
    .unwrap();
    let words = ["store", "copy", "--to", text(&zone)];
    let other = run_on(&here, &words).await.failed(1);
    assert!(other.contains("Asia/Tokyo"), "{other}");
}

/// Redis keeps a day's counts only as long as they may change, and its ledger longer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_day_whose_counts_are_gone_is_copied_with_its_ledger_to_the_url_of_a_redis() {
    let mut scene = lived_in(Store::Redis).await;
    let server = redis(&scene).await;
    let here = scene.gateways[0].config.clone();
    assert!(scene.gateways[0].terminate().success());
    let old = scene.redis.as_ref().unwrap();
    let reply = old.command(&["KEYS", "touchline:q:*"]).await.unwrap();
    let counts: Vec<&str> = reply
        .split("\r\n")
        .filter(|name| name.starts_with("touchline:q:"))
        .collect();
    assert_eq!(counts.len(), 2, "{reply}");
    old.command(&[&["DEL"], &*counts].concat()).await.unwrap();
    let before = holdings(&here).await;
    assert_eq!(before[0]["total"]["refunded"], 5, "{}", before[0]);
    let words = ["store", "copy", "--to", &server.url(), "--output", "json"];
    let reported = run_on(&here, &words).await.done();
    let reported: Value = serde_json::from_str(&reported).unwrap();
    assert_eq!(reported["taken"]["key_days_added"], 2, "{reported}");
    let there = StoreSpec::Redis {
        url: server.url(),
        key_prefix: "touchline".into(),
    };
    let there = configuration(&scene, "there", there);
    assert_eq!(holdings(&there).await, before);
    let restored = server.command(&["KEYS", "touchline:q:*"]).await.unwrap();
    assert!(restored.starts_with("*2\r\n"), "{restored}");
}

#[tokio::test]
async fn a_copy_that_was_interrupted_is_completed_by_running_it_again() {
    const KEYS: usize = 2_000;
    let scene = Scene::builder(TOUCHLINE).start().await;
    let server = redis(&scene).await;
    let file = scene.outside().join("keys.csv");
    let mut rows = "key,customer,tier\n".to_owned();
    for number in 0..KEYS {
        rows.push_str(&format!("imported-key-of-customer-{number:06},Acme,pro\n"));
    }
    std::fs::write(&file, rows).unwrap();
    scene.cli(&["keys", "import", text(&file)]).await;
    let here = scene.gateways[0].config.clone();
    let to = configuration(&scene, "to", redis_spec(&server));
    // Redis takes some batches, and then no more.
    let memory = server.command(&["INFO", "memory"]).await.unwrap();
    let used = memory
        .lines()
        .find_map(|line| line.strip_prefix("used_memory:"));
    let used: u64 = used.unwrap().trim().parse().unwrap();
    let most = (used + 2_500_000).to_string();
    server
        .command(&["CONFIG", "SET", "maxmemory", &most])
        .await
        .unwrap();
    let message = run_on(&here, &["store", "copy", "--to", text(&to)])
        .await
        .failed(1);
    assert!(
        message.contains("run it again with --merge") && message.contains("OOM"),
        "{message}"
    );
    server
        .command(&["CONFIG", "SET", "maxmemory", "0"])
        .await
        .unwrap();
    let reported = copied(&here, &to, &["--merge"]).await;
    let number = |name: &str| reported["taken"][name].as_u64().unwrap();
    assert!(
        number("keys_added") > 0 && number("keys_held") > 0,
        "{reported}"
    );
    assert_eq!(
        number("keys_added") + number("keys_held"),
        KEYS as u64,
        "{reported}"
    );
    assert_eq!(holdings(&to).await, holdings(&here).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_is_copied_into_a_cluster_and_back() {
    let scene = lived_in(Store::Redis).await;
    let nodes = ClusterSet::start(0).await;
    let here = scene.gateways[0].config.clone();
    let cluster = StoreSpec::Cluster {
        nodes: nodes.addresses(),
    };
    let cluster = configuration(&scene, "cluster", cluster);
    let back = configuration(&scene, "back", file_spec(&scene, "back.db"));
    let before = holdings(&here).await;
    copied(&here, &cluster, &[]).await;
    assert_eq!(holdings(&cluster).await, before);
    copied(&cluster, &back, &[]).await;
    assert_eq!(holdings(&back).await, before);
}

#[tokio::test]
async fn keys_that_are_copied_into_the_store_of_a_running_gateway_are_served_and_those_rotated_away_are_not()
 {
    for store in [Store::Embedded, Store::Redis] {
        let scene = Scene::builder(TOUCHLINE).store(store).start().await;
        let source = configuration(&scene, "source", file_spec(&scene, "source.db"));
        let of_source = async |words: &[&str]| -> Value {
            let reported = run_on(&source, &[words, &["--output", "json"]].concat()).await;
            serde_json::from_str(&reported.done()).unwrap()
        };
        let issue = ["keys", "issue", "--tier", "pro", "--customer", "Acme"];
        let issued = of_source(&issue).await;
        let id = issued["id"].as_str().unwrap();
        let key = issued["key"].as_str().unwrap();
        let client = scene.client(Protocol::Http1);
        assert_eq!(client.get(key, MARKETS).await.status, 401);
        let here = scene.gateways[0].config.clone();
        copied(&source, &here, &[]).await;
        let answers = async |key: &str, status: u16| {
            eventually("the gateway knows the change", async || {
                (client.get(key, MARKETS).await.status == status).then_some(())
            })
            .await;
        };
        answers(key, 200).await;
        let rotated = of_source(&["keys", "rotate", id, "--overlap", "0s", "--yes"]).await;
        copied(&source, &here, &["--merge"]).await;
        answers(rotated["key"].as_str().unwrap(), 200).await;
        answers(key, 401).await;
        if let Some(redis) = &scene.redis {
            let names = redis.command(&["KEYS", "touchline:d:*"]).await.unwrap();
            assert_eq!(names.matches("touchline:d:").count(), 1, "{names}");
        }
    }
}

#[tokio::test]
async fn a_backup_that_fails_leaves_nothing_in_the_way_of_the_next_one() {
    let scene = Scene::builder(TOUCHLINE).start().await;
    let mut server = redis(&scene).await;
    let config = configuration(&scene, "away", redis_spec(&server));
    let file = scene.outside().join("backup.jsonl");
    server.kill9();
    let words = ["store", "backup", text(&file)];
    let message = run_on(&config, &words).await.failed(1);
    assert!(message.contains("Redis"), "{message}");
    assert!(!file.exists());
    server.restart().await;
    let issue = ["keys", "issue", "--tier", "pro", "--customer", "Acme"];
    run_on(&config, &issue).await.done();
    run_on(&config, &words).await.done();
    assert!(file.exists());
}

#[tokio::test]
async fn a_store_that_counts_days_elsewhere_is_not_copied_into() {
    let scene = Scene::builder(TOUCHLINE).start().await;
    let here = scene.gateways[0].config.clone();
    let there = configuration(&scene, "there", file_spec(&scene, "there.db"));
    let same = std::fs::read_to_string(&there).unwrap();
    let other = same.replace("timezone: UTC", "timezone: Asia/Tokyo");
    std::fs::write(&there, other).unwrap();
    let words = ["store", "copy", "--to", text(&there)];
    let message = run_on(&here, &words).await.failed(1);
    for word in ["UTC", "Asia/Tokyo", "quota.timezone"] {
        assert!(message.contains(word), "{message}");
    }
    assert!(!scene.outside().join("there.db").exists());
}
