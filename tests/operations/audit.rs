//! The audit trail beside a running gateway, on both stores.

use std::process::{Command, Stdio};

use harness::{IssuedKey, Protocol, Scene, Store};
use serde_json::{Value, json};

use super::{MARKETS, Ran, STORES, TOUCHLINE, run_beside};

async fn scene(store: Store) -> Scene {
    Scene::builder(TOUCHLINE).store(store).start().await
}

/// The trail as a program reads it.
async fn trail(scene: &Scene, filter: &[&str]) -> Vec<Value> {
    let words = [&["audit", "--output", "json"], filter].concat();
    let text = scene.cli(&words).await;
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"))
}

/// Who did what and why.
fn reported(entry: &Value) -> (&str, &str, Option<&str>) {
    (
        entry["who"].as_str().unwrap(),
        entry["what"].as_str().unwrap(),
        entry["reason"].as_str(),
    )
}

/// Runs a command with one of `TOUCHLINE_ACTOR` and `SUDO_USER` set, or without both.
fn run_as(scene: &Scene, actor: Option<(&str, &str)>, arguments: &[&str]) -> Ran {
    let mut command = Command::new(TOUCHLINE);
    command
        .args(arguments)
        .arg("--config")
        .arg(&scene.gateways[0].config)
        .env_remove("TOUCHLINE_ACTOR")
        .env_remove("SUDO_USER")
        .envs(actor)
        .stdin(Stdio::null());
    command.output().unwrap().into()
}

/// A day in some days.
fn day_in(days: i32) -> String {
    let later = jiff::SignedDuration::from_hours(24 * i64::from(days));
    (jiff::Timestamp::now() + later).to_string()[..10].to_owned()
}

/// Every command that changes a key, with its entry in the trail.
fn life<'a>(key: &'a IssuedKey, day: &'a str) -> Vec<(Vec<&'a str>, Value, Value)> {
    let id = &*key.id;
    let grants = format!("grants.{day}");
    vec![
        (
            vec!["suspend", id, "--yes"],
            json!({"state": "active"}),
            json!({"state": "suspended"}),
        ),
        (
            vec!["resume", id],
            json!({"state": "suspended"}),
            json!({"state": "active"}),
        ),
        (
            vec!["set-tier", id, "pro"],
            json!({"tier": "starter"}),
            json!({"tier": "pro"}),
        ),
        (
            vec!["set-expiry", id, "2099-12-31"],
            json!({"expires": null}),
            json!({"expires": "2100-01-01T00:00:00Z"}),
        ),
        (
            vec!["set-label", id, "live"],
            json!({"label": null}),
            json!({"label": "live"}),
        ),
        (
            vec!["set-customer", id, "Umbra"],
            json!({"customer": "Acme"}),
            json!({"customer": "Umbra"}),
        ),
        (
            vec!["grant", id, "--extra", "5", "--day", day],
            json!({&*grants: null}),
            json!({&*grants: "5"}),
        ),
        (
            vec!["rotate", id, "--overlap", "0s", "--yes"],
            json!({}),
            json!({}),
        ),
        (
            vec!["revoke", id, "--yes"],
            json!({"state": "active"}),
            json!({"state": "revoked"}),
        ),
    ]
}

#[tokio::test]
async fn every_command_that_changes_a_key_is_reported_with_who_what_before_after_and_why() {
    for store in STORES {
        let (scene, day) = (scene(store).await, day_in(30));
        let key = scene
            .issue_with("starter", &["--by", "ann", "--reason", "ticket 1"])
            .await;
        for (command, _, _) in life(&key, &day) {
            let signed = [
                &["keys"],
                &*command,
                &["--by", "ann", "--reason", "ticket 1"],
            ]
            .concat();
            run_beside(&scene.gateways[0], &signed).await.done();
        }
        let entries = trail(&scene, &[]).await;
        assert_eq!(entries.len(), 1 + life(&key, &day).len());
        for entry in &entries {
            assert_eq!(entry["key"], key.id.as_str());
            let (who, _, reason) = reported(entry);
            assert_eq!((who, reason), ("ann", Some("ticket 1")));
        }
        assert!(entries.is_sorted_by_key(|entry| entry["version"].as_u64()));
        assert_eq!(entries[0]["what"], "issue");
        assert_eq!(entries[0]["before"], json!({}));
        let issued = json!({
            "customer": "Acme", "label": null, "tier": "starter", "state": "active", "expires": null,
            "previous_until": null,
        });
        assert_eq!(entries[0]["after"], issued);
        for (entry, (command, before, after)) in entries[1..].iter().zip(life(&key, &day)) {
            assert_eq!(entry["what"], command[0], "{entry}");
            assert_eq!(
                (&entry["before"], &entry["after"]),
                (&before, &after),
                "{entry}"
            );
        }
    }
}

#[tokio::test]
async fn the_trail_records_who_it_was_by_argument_environment_sudo_or_operating_system() {
    for store in STORES {
        let scene = scene(store).await;
        let key = scene.issue("starter").await;
        let label = |text| vec!["keys", "set-label", &key.id, text];
        let actor = |name| Some(("TOUCHLINE_ACTOR", name));
        run_as(&scene, None, &label("a")).done();
        run_as(&scene, actor("cron job"), &label("b")).done();
        let by = [&*label("c"), &["--by", "ann"]].concat();
        run_as(&scene, actor("cron job"), &by).done();
        run_as(&scene, Some(("SUDO_USER", "bob")), &label("d")).done();
        let entries = trail(&scene, &["--what", "set-label"]).await;
        let names: Vec<&str> = entries.iter().map(|entry| reported(entry).0).collect();
        let (user, host) = names[0].split_once('@').unwrap();
        assert!(!user.is_empty() && !host.is_empty(), "{names:?}");
        assert!(user != "unknown" && host != "unknown", "{names:?}");
        assert_eq!(names[1..3], ["cron job", "ann"]);
        assert_eq!(names[3..], [format!("bob@{host}")]);
        run_as(&scene, actor("a\u{1b}b"), &label("e")).failed(2);
        run_as(&scene, actor(""), &label("e")).done();
        let entries = trail(&scene, &["--what", "set-label"]).await;
        assert_eq!(reported(&entries[4]).0, names[0]);
    }
}

#[tokio::test]
async fn what_changed_nothing_is_not_in_the_trail() {
    for store in STORES {
        let scene = scene(store).await;
        let key = scene.issue("starter").await;
        let id = &*key.id;
        for (command, code) in [
            (["keys", "resume", id].as_slice(), 0),
            (&["keys", "set-tier", id, "starter"], 0),
            (&["keys", "set-label", id, "--none"], 0),
            (&["keys", "revoke", id], 2),
            (&["keys", "grant", id, "--extra", "5"], 2),
            (&["keys", "suspend", id, "--yes", "--reason", ""], 2),
            (&["keys", "set-tier", id, "gold"], 1),
            (&["keys", "suspend", "4fZk09QwXy2B", "--yes"], 1),
        ] {
            let ran = run_beside(&scene.gateways[0], command).await;
            assert_eq!(ran.code, Some(code), "{command:?}: {ran:?}");
        }
        let entries = trail(&scene, &[]).await;
        let reported: Vec<&str> = entries.iter().map(|entry| reported(entry).1).collect();
        assert_eq!(reported, ["issue"]);
    }
}

#[tokio::test]
async fn the_trail_is_filtered_and_exported_and_holds_no_key_material() {
    for store in STORES {
        let (scene, today) = (scene(store).await, day_in(0));
        let key = scene.issue("starter").await;
        let other = scene.issue("pro").await;
        let rotated = scene
            .rotate(
                &key,
                &["--overlap", "1h", "--by", "ann", "--reason", "a, \"b\""],
            )
            .await;
        for (filter, expected) in [
            ([].as_slice(), 3),
            (&["--key", &key.id], 2),
            (&["--key", &other.id], 1),
            (&["--key", "4fZk09QwXy2B"], 0),
            (&["--who", "ann"], 1),
            (&["--who", "bob"], 0),
            (&["--what", "issue"], 2),
            (&["--what", "issue", "--key", &key.id], 1),
            (&["--from", "2020-01-01", "--to", "2020-12-31"], 0),
            (&["--from", &today], 3),
            (&["--from", "2020-01-01", "--to", "2099-12-31"], 3),
        ] {
            assert_eq!(trail(&scene, filter).await.len(), expected, "{filter:?}");
        }
        let csv = scene.cli(&["audit", "--output", "csv"]).await;
        let lines: Vec<&str> = csv.lines().collect();
        assert_eq!(lines[0], "at,key,who,what,before,after,reason");
        assert_eq!(lines.len(), 4);
        assert!(lines[3].ends_with(",\"a, \"\"b\"\"\""), "{csv}");
        let table = scene.cli(&["audit"]).await;
        assert!(table.contains("previous until: none → 20"), "{table}");

        let json = format!("{:?}", trail(&scene, &[]).await);
        let digests = digests(&scene, &key).await;
        assert_eq!(digests.len(), 2);
        let secrets = [&key, &rotated].map(|key| key.key.rsplit('_').next().unwrap());
        for secret in digests.iter().map(|digest| &**digest).chain(secrets) {
            for text in [&csv, &table, &json] {
                assert!(!text.contains(secret));
            }
        }
        let answer = scene.client(Protocol::Http1).get(&rotated, MARKETS).await;
        assert_eq!(answer.status, 200);
    }
}

/// The digests that the store holds of a key, so that a test can look for them elsewhere.
async fn digests(scene: &Scene, key: &IssuedKey) -> Vec<String> {
    let record = match &scene.redis {
        Some(redis) => {
            let name = format!("touchline:k:{{{}}}", key.id);
            redis.command(&["HGET", &name, "rec"]).await.unwrap()
        }
        None => {
            let file = scene.directory().join("touchline.db");
            let one = "SELECT record FROM keys WHERE id = ?1";
            rusqlite::Connection::open(file)
                .and_then(|file| file.query_row(one, [&key.id], |row| row.get(0)))
                .unwrap()
        }
    };
    let marked = record.split("\"digest\":\"").skip(1);
    marked.map(|rest| rest[..64].to_owned()).collect()
}

#[tokio::test]
async fn the_reason_of_a_grant_is_shown_with_the_key() {
    for store in STORES {
        let scene = scene(store).await;
        let key = scene.issue("starter").await;
        let (soon, later) = (day_in(30), day_in(50));
        for (extra, reason, day) in [
            ("5", "Cup final", &soon),
            ("7", "Cup final, again", &soon),
            ("9", "Load test", &later),
        ] {
            let grant = [
                "keys", "grant", &key.id, "--extra", extra, "--reason", reason, "--day", day,
                "--by", "ann",
            ];
            scene.cli(&grant).await;
        }
        let table = scene.cli(&["keys", "show", &key.id]).await;
        assert!(
            table.contains(&format!("12 on {soon} (Cup final; Cup final, again)")),
            "{table}"
        );
        assert!(
            table.contains(&format!("9 on {later} (Load test)")),
            "{table}"
        );
        let show = ["keys", "show", &key.id, "--output", "json"];
        let shown: Value = serde_json::from_str(&scene.cli(&show).await).unwrap();
        assert_eq!(shown["grants"][&soon], 12);
        let second = &shown["granted"][1];
        assert_eq!(
            (
                &second["date"],
                &second["extra"],
                &second["reason"],
                &second["who"]
            ),
            (
                &json!(soon),
                &json!(7),
                &json!("Cup final, again"),
                &json!("ann")
            )
        );
        assert_eq!(shown["granted"].as_array().unwrap().len(), 3);
    }
}
