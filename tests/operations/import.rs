//! Keys moved in and out beside a running gateway, on both stores.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use harness::{IssuedKey, PATIENCE, Protocol, Scene, Store, eventually};
use serde_json::{Value, json};

use super::{MARKETS, Ran, STORES, TOUCHLINE, run_beside};

/// Keys of a large file: several pages of either store, which read 5,000 records at most at a time, and eighty batches.
const MANY: usize = 20_000;
/// Keys of a file whose import takes long enough to be killed in the middle.
const SOME: usize = 10_000;

/// Between two charges while keys are imported.
const PACE: Duration = Duration::from_millis(20);

async fn scene(store: Store) -> Scene {
    Scene::builder(TOUCHLINE).store(store).start().await
}

/// Writes a file beside the scene's directory, in which no secret may be found.
fn file(scene: &Scene, name: &str, text: &str) -> PathBuf {
    let path = scene.outside().join(name);
    std::fs::write(&path, text).unwrap();
    path
}

async fn import(scene: &Scene, file: &Path, options: &[&str]) -> Ran {
    let words = [&["keys", "import", file.to_str().unwrap()], options].concat();
    run_beside(&scene.gateways[0], &words).await
}

async fn imported(scene: &Scene, file: &Path) -> Value {
    let text = import(scene, file, &["--output", "json"]).await.done();
    serde_json::from_str(&text).unwrap()
}

#[tokio::test]
async fn an_import_that_fails_reports_how_many_keys_of_its_file_may_have_been_added() {
    let scene = scene(Store::Redis).await;
    let rows = "customer,tier,key\nAcme,pro,acme-live-0123456789abcdef\n";
    let file = file(&scene, "one.csv", rows);
    let redis = scene.redis.as_ref().unwrap();
    let add = |word| ["ACL", "SETUSER", "default", word];
    for (refuse, more) in [
        (["CONFIG", "SET", "maxmemory", "1"], "no more"),
        (["CONFIG", "SET", "maxmemory", "0"], "possibly up to 1 more"),
    ] {
        redis.command(&refuse).await.unwrap();
        redis.command(&add("-xadd")).await.unwrap();
        let message = import(&scene, &file, &[]).await.failed(1);
        let expected = format!("0 keys were imported, and {more}: import the file again");
        assert!(message.contains(&expected), "{message}");
    }
    redis.command(&add("+xadd")).await.unwrap();
    import(&scene, &file, &[]).await.done();
    assert_eq!(keys_of(&scene).await, 1);
}

async fn export(scene: &Scene) -> String {
    scene.cli(&["keys", "export", "--with-digests"]).await
}

async fn listed(scene: &Scene) -> usize {
    let text = scene.cli(&["keys", "list", "--output", "json"]).await;
    let keys: Vec<Value> = serde_json::from_str(&text).unwrap();
    keys.len()
}

/// How many keys the gateway's table holds.
async fn keys_of(scene: &Scene) -> usize {
    let (_, metrics) = scene.admin(0, "/metrics").await;
    let reported = metrics
        .lines()
        .find_map(|line| line.strip_prefix("touchline_keys "));
    reported.unwrap().parse().unwrap()
}

/// The secret of a key made elsewhere.
fn foreign(number: usize) -> String {
    format!("acme.live/{number:06}+{:024x}", number * 7_919)
}

/// A file of keys made elsewhere, half of them by digest.
fn many(keys: usize) -> String {
    let mut text = "key,digest,customer,label,tier,expires,created\n".to_owned();
    for number in 0..keys {
        let (key, digest) = match number % 2 {
            0 => (foreign(number), String::new()),
            _ => (String::new(), sha256(&foreign(number))),
        };
        text.push_str(&format!(
            "{key},{digest},Customer {},site {number},starter,2099-12-31,2020-02-29T12:00:00Z\n",
            number % 97
        ));
    }
    text
}

fn sha256(key: &str) -> String {
    touchline::policy::api_key::KeyDigest::of(key.as_bytes()).to_string()
}

/// A key as clients present it, with the id that the store gave it.
async fn found(scene: &Scene, label: &str, key: &str) -> IssuedKey {
    let list = ["keys", "list", "--search", label, "--output", "json"];
    let keys: Vec<Value> = serde_json::from_str(&scene.cli(&list).await).unwrap();
    let is_it = |record: &&Value| record["label"] == label;
    let record = keys.iter().find(is_it).unwrap();
    let key = IssuedKey {
        id: record["id"].as_str().unwrap().to_owned(),
        key: key.to_owned(),
        tier: record["tier"].as_str().unwrap().to_owned(),
    };
    scene.know(&key);
    key
}

#[tokio::test]
async fn keys_of_any_format_are_imported_by_value_and_by_digest_and_charged() {
    for store in STORES {
        let mut scene = scene(store).await;
        let (by_value, by_digest) = (foreign(1), foreign(2));
        let rows = [
            json!({"key": by_value, "customer": "Acme", "tier": "starter", "label": "by value"}),
            json!({"digest": sha256(&by_digest), "customer": "Acme", "tier": "pro", "label": "by digest",
                "id": "4fZk09QwXy2B"}),
            json!({"key": foreign(3), "customer": "Acme", "tier": "pro", "label": "ended",
                "expires": "2020-01-31"}),
        ];
        let text: String = rows.map(|row| format!("{row}\n")).concat();
        let path = file(&scene, "keys.jsonl", &text);
        let outcome = imported(&scene, &path).await;
        assert_eq!(
            outcome,
            json!({"imported": 3, "present": 0, "dry_run": false})
        );
        let client = scene.client(Protocol::Http1);
        for (label, key, status) in [
            ("by value", by_value, 200),
            ("by digest", by_digest, 200),
            ("ended", foreign(3), 401),
        ] {
            let key = found(&scene, label, &key).await;
            let answer = client.get(&key, MARKETS).await;
            assert_eq!(answer.status, status, "{label}");
            let used = u64::from(status == 200);
            assert_eq!(scene.used(&key).await, used, "{label}");
        }
        let show = ["keys", "show", "4fZk09QwXy2B", "--output", "json"];
        assert!(scene.cli(&show).await.contains("\"by digest\""));
        let answer = client.get(&*foreign(4), MARKETS).await;
        assert_eq!(answer.status, 401);
        let reported: Vec<Value> = serde_json::from_str(
            &scene
                .cli(&["audit", "--what", "import", "--output", "json"])
                .await,
        )
        .unwrap();
        assert_eq!(reported.len(), 3);
        scene.assert_ledgers_agree().await;
    }
}

#[tokio::test]
async fn all_mistakes_of_a_file_are_reported_and_nothing_is_imported() {
    for store in STORES {
        let scene = scene(store).await;
        let stored = scene.issue("starter").await;
        let text = format!(
            "id,key,customer,tier\n\
             ,{good},Acme,pro\n\
             ,short,Acme,pro\n\
             ,{other},Acme,gold\n\
             ,{good},Acme,pro\n\
             {id},{third},Acme,pro\n\
             ,{},,pro\n",
            foreign(9),
            good = foreign(1),
            other = foreign(2),
            third = foreign(3),
            id = stored.id,
        );
        let path = file(&scene, "keys.csv", &text);
        let name = path.display();
        for options in [[].as_slice(), &["--dry-run"]] {
            let message = import(&scene, &path, options).await.failed(1);
            for expected in [
                "nothing was imported: 5 mistakes".to_owned(),
                format!("{name}:3: key: the key is shorter than 24 characters"),
                format!("{name}:4: tier: the tier is not configured"),
                format!("{name}:5: the row has the same key as line 2"),
                format!("{name}:6: the id {} belongs to another key", stored.id),
                format!("{name}:7: customer: the field is missing"),
            ] {
                assert!(
                    message.contains(&expected),
                    "{expected} is not in {message}"
                );
            }
            assert!(!message.contains("acme.live"), "{message}");
        }
        assert_eq!(listed(&scene).await, 1);

        let path = file(&scene, "keys", "key,customer,tier\n");
        let message = import(&scene, &path, &[]).await.failed(2);
        assert!(message.contains("add --format csv"), "{message}");
        let missing = scene.outside().join("missing.csv");
        let message = import(&scene, &missing, &[]).await.failed(1);
        assert!(message.contains("cannot open"), "{message}");
    }
}

#[tokio::test]
async fn a_dry_run_writes_nothing() {
    for store in STORES {
        let scene = scene(store).await;
        let text = format!("key,customer,tier\n{},Acme,pro\n", foreign(1));
        let path = file(&scene, "keys.csv", &text);
        let message = import(&scene, &path, &["--dry-run"]).await.done();
        assert_eq!(
            message,
            "the file has no mistakes: 1 key to import, 0 already stored\n"
        );
        assert_eq!(listed(&scene).await, 0);
    }
}

#[tokio::test]
async fn a_dry_run_before_there_is_a_database_checks_the_file_and_makes_none() {
    let scene = scene(Store::Embedded).await;
    let directory = scene.outside().join("new");
    std::fs::create_dir(&directory).unwrap();
    let database = directory.join("touchline.db");
    let text = std::fs::read_to_string(&scene.gateways[0].config).unwrap();
    let (before, after) = text.split_once("embedded: { path: \"").unwrap();
    let (_, after) = after.split_once('"').unwrap();
    let text = format!(
        "{before}embedded: {{ path: \"{}\"{after}",
        database.display()
    );
    let config = file(&scene, "new.yaml", &text);
    for (tier, code, shown) in [
        ("pro", 0, "yet: the import would create it"),
        ("other", 1, "the tier is not configured"),
    ] {
        let rows = file(
            &scene,
            "keys.csv",
            &format!("key,customer,tier\n{},Acme,{tier}\n", foreign(1)),
        );
        let order = [
            "keys",
            "import",
            rows.to_str().unwrap(),
            "--dry-run",
            "--config",
            config.to_str().unwrap(),
        ];
        let output = Command::new(TOUCHLINE).args(order).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8(text).unwrap();
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert!(text.contains(shown), "{text}");
    }
    assert!(!database.exists());
}

#[tokio::test]
async fn a_secret_that_a_file_states_as_ended_is_not_imported_beside_a_key_that_has_it() {
    for store in STORES {
        let scene = scene(store).await;
        let digest = |number| sha256(&foreign(number));
        let text = format!("key,customer,tier\n{},Acme,pro\n", foreign(1));
        import(&scene, &file(&scene, "first.csv", &text), &[])
            .await
            .done();
        let header = "key,customer,tier,ended_digests\n";
        for (row, reason) in [
            (
                format!("{header}{},Acme,pro,{}\n", foreign(2), digest(1)),
                "without an overlap or revoke it first",
            ),
            (
                format!("{header}{},Acme,pro,{}\n", foreign(2), digest(2)),
                "of the row's own key",
            ),
        ] {
            let message = import(&scene, &file(&scene, "next.csv", &row), &[])
                .await
                .failed(1);
            assert!(message.contains(reason), "{message}");
        }
        assert_eq!(listed(&scene).await, 1);
    }
}

#[tokio::test]
async fn an_export_without_digests_shows_nothing_of_secrets_and_cannot_be_imported() {
    for store in STORES {
        let scene = scene(store).await;
        let key = scene.issue("starter").await;
        let csv = scene.cli(&["keys", "export"]).await;
        assert!(
            csv.starts_with("id,customer,label,tier,state,expires,grants,created\n"),
            "{csv}"
        );
        let jsonl = scene.cli(&["keys", "export", "--format", "jsonl"]).await;
        for text in [&csv, &jsonl] {
            assert!(text.contains(&key.id));
            assert!(!text.contains(&sha256(&key.key)) && !text.contains("digest"));
        }
        let with = export(&scene).await;
        assert!(with.contains(&sha256(&key.key)) && !with.contains(&key.key));
        let path = file(&scene, "keys.csv", &csv);
        let message = import(&scene, &path, &[]).await.failed(1);
        assert!(message.contains("neither a key nor a digest"), "{message}");

        let path = scene.outside().join("out.jsonl");
        let words = ["keys", "export", path.to_str().unwrap()];
        scene.cli(&words).await;
        assert_eq!(std::fs::read_to_string(&path).unwrap(), jsonl);
        let mode = std::os::unix::fs::PermissionsExt::mode(
            &std::fs::metadata(&path).unwrap().permissions(),
        );
        assert_eq!(mode & 0o777, 0o600);
        let message = run_beside(&scene.gateways[0], &words).await.failed(1);
        assert!(message.contains("already exists"), "{message}");
    }
}

/// Exports to a file, from a shell in which `limit` was set.
fn export_after(scene: &Scene, limit: &str, path: &Path) -> std::process::Output {
    let script = format!("{limit}; exec {TOUCHLINE} keys export \"$0\" --config \"$1\"");
    Command::new("sh")
        .args(["-c", &script])
        .args([path, &scene.gateways[0].config])
        .output()
        .unwrap()
}

#[tokio::test]
async fn an_export_that_fails_or_is_killed_leaves_no_file_that_looks_whole() {
    let scene = scene(Store::Embedded).await;
    let keys = file(&scene, "keys.csv", &many(2_000));
    imported(&scene, &keys).await;
    let (path, part) = (
        scene.outside().join("out.csv"),
        scene.outside().join("out.csv.part"),
    );
    // Files of 32 KiB: less than the export, as on a disk that becomes full.
    let failed = export_after(&scene, "trap '' XFSZ; ulimit -f 64", &path);
    let message = Ran::from(failed).failed(1);
    assert!(message.contains("out.csv cannot be written"), "{message}");
    assert!(!path.exists() && !part.exists());
    let killed = export_after(&scene, "ulimit -f 64", &path);
    assert_eq!(killed.status.code(), None, "{killed:?}");
    assert!(!path.exists() && part.exists());
    let again = export_after(&scene, ":", &path);
    let message = Ran::from(again).failed(1);
    assert!(message.contains("out.csv.part already exists"), "{message}");
    std::fs::remove_file(part).unwrap();
    Ran::from(export_after(&scene, ":", &path)).done();
    let rows = std::fs::read_to_string(&path).unwrap().lines().count();
    assert_eq!(rows, 1 + 2_000);
}

#[tokio::test]
async fn a_table_is_moved_from_one_store_to_the_other_and_back() {
    let (from, to) = (scene(Store::Redis).await, scene(Store::Embedded).await);
    let plain = from.issue_with("pro", &["--label", "a, \"b\""]).await;
    let old = from
        .issue_with("starter", &["--expires", "2099-12-31"])
        .await;
    let new = from.rotate(&old, &["--overlap", "24h"]).await;
    let grant = ["keys", "grant", &plain.id, "--extra", "5", "--reason", "x"];
    from.cli(&grant).await;
    let suspended = from.issue("pro").await;
    from.cli(&["keys", "suspend", &suspended.id, "--yes"]).await;
    for format in ["csv", "jsonl"] {
        let words = ["keys", "export", "--with-digests", "--format", format];
        let text = from.cli(&words).await;
        let path = file(&to, &format!("keys.{format}"), &text);
        let fresh = if format == "csv" { 3 } else { 0 };
        let outcome = imported(&to, &path).await;
        assert_eq!(outcome["imported"], fresh, "{format}");
        assert_eq!(to.cli(&words).await, text);
        // And back, where all is there.
        let path = file(&from, &format!("back.{format}"), &text);
        assert_eq!(imported(&from, &path).await["present"], 3);
    }
    let client = to.client(Protocol::Http1);
    for (key, status, limit) in [
        (&plain, 200, Some(3_005)),
        (&old, 200, Some(1_000)),
        (&new, 200, Some(1_000)),
        (&suspended, 401, None),
    ] {
        let answer = client.get(key, MARKETS).await;
        assert_eq!(answer.status, status);
        assert_eq!(answer.number("x-ratelimit-limit"), limit);
    }
}

#[tokio::test]
async fn a_secret_that_rotations_have_ended_is_not_imported_again() {
    for (store, other) in [
        (Store::Embedded, Store::Redis),
        (Store::Redis, Store::Embedded),
    ] {
        let (scene, other) = (scene(store).await, scene(other).await);
        let text = format!("key,customer,tier,label\n{},Acme,pro,leaked\n", foreign(1));
        let path = file(&scene, "keys.csv", &text);
        imported(&scene, &path).await;
        let leaked = found(&scene, "leaked", &foreign(1)).await;
        let next = scene.rotate(&leaked, &["--overlap", "0s", "--yes"]).await;
        let next = scene.rotate(&next, &["--overlap", "24h"]).await;
        let exported = file(&other, "exported.csv", &export(&scene).await);
        imported(&other, &exported).await;
        for scene in [&scene, &other] {
            let outcome = imported(scene, &path).await;
            assert_eq!(
                (&outcome["imported"], &outcome["present"]),
                (&json!(0), &json!(1))
            );
            let client = scene.client(Protocol::Http1);
            for (key, status) in [(&leaked, 401), (&next, 200)] {
                assert_eq!(client.get(key, MARKETS).await.status, status);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_keys_are_imported_while_a_gateway_charges_and_come_out_as_they_went_in() {
    let text = many(MANY);
    let mut exports = Vec::new();
    for store in STORES {
        let mut scene = Scene::builder(TOUCHLINE)
            .store(store)
            .daily("starter", 1_000_000)
            .start()
            .await;
        let key = scene.issue("starter").await;
        let path = file(&scene, "keys.csv", &text);
        let (running, served) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU64::new(0)));
        let client = scene.client(Protocol::Http1);
        let load = {
            let (running, served, key) = (running.clone(), served.clone(), key.clone());
            tokio::spawn(async move {
                while running.load(Ordering::Relaxed) {
                    let answer = client.get(&key, MARKETS).await;
                    assert_eq!(answer.status, 200);
                    served.fetch_add(1, Ordering::Relaxed);
                    // Charges all along, and most of the machine for the import.
                    tokio::time::sleep(PACE).await;
                }
            })
        };
        let outcome = imported(&scene, &path).await;
        running.store(false, Ordering::Relaxed);
        load.await.unwrap();
        assert_eq!(
            outcome,
            json!({"imported": MANY, "present": 0, "dry_run": false})
        );
        assert_eq!(imported(&scene, &path).await["present"], MANY);
        eventually("the gateway has all keys", async || {
            (keys_of(&scene).await == MANY + 1).then_some(())
        })
        .await;
        assert_eq!(scene.used(&key).await, served.load(Ordering::Relaxed));
        let exported = export(&scene).await;
        for number in [0, MANY - 1] {
            let key = exported_key(&exported, number);
            scene.know(&key);
            let answer = scene.client(Protocol::Http1).get(&key, MARKETS).await;
            assert_eq!(answer.status, 200, "key {number}");
        }
        exports.push(compared(&exported, &key.id));
        scene.assert_ledgers_agree().await;
    }
    let expected: BTreeSet<String> = (0..MANY)
        .map(|number| {
            format!(
                "{} Customer {} site {number} starter active 2100-01-01T00:00:00Z 2020-02-29T12:00:00Z",
                sha256(&foreign(number)),
                number % 97
            )
        })
        .collect();
    for export in exports {
        assert!(export == expected, "{} keys came out", export.len());
    }
}

/// A key of the large file with the id in the export.
fn exported_key(export: &str, number: usize) -> IssuedKey {
    let key = foreign(number);
    let digest = sha256(&key);
    let row = export.lines().find(|row| row.contains(&digest)).unwrap();
    IssuedKey {
        id: row.split(',').next().unwrap().to_owned(),
        key,
        tier: "starter".to_owned(),
    }
}

/// What an export has of each key but the one with this id, whatever ids the others were given.
fn compared(export: &str, but: &str) -> BTreeSet<String> {
    let mut reader = csv::Reader::from_reader(export.as_bytes());
    let names = reader.headers().unwrap().clone();
    let columns = [
        "digest", "customer", "label", "tier", "state", "expires", "created",
    ]
    .map(|name| names.iter().position(|column| column == name).unwrap());
    let rows = reader.records().map(Result::unwrap);
    rows.filter(|row| &row[0] != but)
        .map(|row| columns.map(|column| &row[column]).join(" "))
        .collect()
}

#[tokio::test]
async fn an_import_on_a_terminal_shows_how_far_it_is_and_another_does_not() {
    let scene = scene(Store::Embedded).await;
    let path = file(&scene, "keys.csv", &many(1_000));
    let config = scene.gateways[0].config.display();
    // `script` (of bsdutils, which every Debian has) gives the command a terminal, and writes what came on it.
    let command = format!(
        "stty cols 120; exec '{TOUCHLINE}' keys import '{}' --config '{config}'",
        path.display()
    );
    let shown = tokio::process::Command::new("script")
        .args(["--quiet", "--return", "--command", &command, "/dev/null"])
        .env("TERM", "xterm")
        .stdin(std::process::Stdio::null())
        .kill_on_drop(true)
        .output();
    let shown = tokio::time::timeout(PATIENCE, shown)
        .await
        .expect("the command ends")
        .expect("script runs: apt-get install bsdutils");
    let text = String::from_utf8_lossy(&shown.stdout);
    assert!(shown.status.success(), "{text}");
    assert!(text.contains(" of 1,000 keys, "), "{text}");
    assert!(text.contains("1000 keys imported"), "{text}");
    let again = import(&scene, &path, &[]).await;
    assert!(!again.stderr.contains(" of 1,000 keys"), "{again:?}");
    assert!(again.done().contains("1000 already stored"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_import_that_was_killed_is_completed_by_importing_again() {
    let text = many(SOME);
    for store in STORES {
        let mut scene = scene(store).await;
        let path = file(&scene, "keys.csv", &text);
        let mut written = 0;
        while written < SOME {
            let mut process = Command::new(TOUCHLINE)
                .args(["keys", "import"])
                .arg(&path)
                .arg("--config")
                .arg(&scene.gateways[0].config)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            let before = written;
            eventually("the import goes on", async || {
                written = keys_of(&scene).await;
                (written > before || process.try_wait().unwrap().is_some()).then_some(())
            })
            .await;
            process.kill().unwrap();
            process.wait().unwrap();
            // Once or twice is enough: the last one goes through.
            if before > 0 {
                break;
            }
        }
        assert!(written > 0);
        let outcome = imported(&scene, &path).await;
        let (fresh, present) = (&outcome["imported"], &outcome["present"]);
        let sum = fresh.as_u64().unwrap() + present.as_u64().unwrap();
        assert_eq!(sum, u64::try_from(SOME).unwrap());
        assert!(
            fresh.as_u64().unwrap() > 0 && present.as_u64().unwrap() > 0,
            "{outcome}"
        );
        assert_eq!(compared(&export(&scene).await, "").len(), SOME);
        eventually("the gateway has all keys", async || {
            (keys_of(&scene).await == SOME).then_some(())
        })
        .await;
        let trail = scene.cli(&["audit", "--output", "csv"]).await;
        assert_eq!(trail.lines().count(), SOME + 1, "one entry for each key");
        scene.assert_ledgers_agree().await;
    }
}
