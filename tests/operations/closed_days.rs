//! Closed days of the embedded store: a change by hand is found, also by a stranger with an export.

use std::process::Command;
use std::time::Duration;

use harness::{IssuedKey, Scene, eventually};
use jiff::civil::Date;
use jiff::{SignedDuration, Timestamp};
use rusqlite::Connection;
use serde_json::Value;
use touchline::clock::Clock;
use touchline::policy::calendar::Calendar;
use touchline::store::embedded::{Settings, open};
use touchline::store::{Charge, Decision, NodeName, RefusalReason, Role, Store};

use super::{MARKETS, Ran, TOUCHLINE, closed_pipe, run_beside, run_into};
use harness::Store as StoreKind;

/// Days ago; a day is closed seven days after its end.
const DAYS_AGO: [i64; 3] = [12, 11, 9];
const INSIGHTS: &str = "/api/v1/data/insights";

fn database(scene: &Scene) -> Connection {
    let file = Connection::open(scene.directory().join("touchline.db")).unwrap();
    file.busy_timeout(Duration::from_secs(5)).unwrap();
    file
}

/// Charges keys on days past, as a gateway did then; the days.
async fn charged_in_the_past(scene: &Scene, keys: &[&IssuedKey]) -> Vec<Date> {
    let calendar = Calendar::of_zone("UTC").unwrap();
    let mut dates = Vec::new();
    for days in DAYS_AGO {
        let then = Timestamp::now() - SignedDuration::from_hours(24 * days);
        let day = calendar.day_at(then).unwrap();
        let settings = Settings::new(scene.directory().join("touchline.db"));
        let role = Role::Gateway(NodeName(format!("{days} days ago")));
        let clock = Clock::from_fn(move || then);
        let store = open(settings, role, "UTC", clock).await.unwrap();
        for key in keys {
            let key = store.keys().get(key.id.parse().unwrap()).unwrap();
            for (endpoint, cost) in [(MARKETS, 1), (MARKETS, 2), (INSIGHTS, 3)] {
                let charge = Charge {
                    key: key.clone(),
                    day,
                    limit: 1_000,
                    cost,
                    endpoint: endpoint.into(),
                };
                let decision = store.charge(charge).await.unwrap();
                let Decision::Granted { receipt, .. } = decision else {
                    panic!("{decision:?}");
                };
                if cost == 2 {
                    store.refund(receipt).await.unwrap();
                }
            }
            store.refused(&key, day, &INSIGHTS.into(), RefusalReason::Tier);
        }
        store.close(harness::PATIENCE).await;
        dates.push(day.date);
    }
    dates
}

/// Waits until the gateway has closed all of these days.
async fn closed(scene: &Scene, dates: &[Date]) -> Value {
    eventually("the days are closed", async || {
        let reported = verify(scene, dates, &["--output", "json"]).await.done();
        let reported: Value = serde_json::from_str(&reported).unwrap();
        (reported["chain"]["closed_days"] == dates.len()).then_some(reported)
    })
    .await
}

async fn verify(scene: &Scene, dates: &[Date], more: &[&str]) -> Ran {
    let (from, to) = (dates[0].to_string(), dates[dates.len() - 1].to_string());
    let asked = ["usage", "verify", "--from", &from, "--to", &to];
    run_beside(&scene.gateways[0], &[&asked[..], more].concat()).await
}

/// A change of the database by hand: its name, the statements that make it, and those that revert it.
struct ByHand {
    what: &'static str,
    done: &'static str,
    undone: &'static str,
}

/// On the second day, of one key.
const BY_HAND: [ByHand; 4] = [
    ByHand {
        what: "a deleted row",
        done: "CREATE TABLE kept AS SELECT * FROM ledger WHERE date = ?1 AND key = ?2 AND endpoint LIKE '%markets';
               DELETE FROM ledger WHERE date = ?1 AND key = ?2 AND endpoint LIKE '%markets'",
        undone: "INSERT INTO ledger SELECT * FROM kept; DROP TABLE kept",
    },
    ByHand {
        what: "charged and requests changed alike",
        done: "UPDATE ledger SET charged = charged + 7, requests = requests + 7 WHERE date = ?1 AND key = ?2",
        undone: "UPDATE ledger SET charged = charged - 7, requests = requests - 7 WHERE date = ?1 AND key = ?2",
    },
    ByHand {
        what: "another endpoint",
        done: "UPDATE ledger SET endpoint = 'pro /other' WHERE date = ?1 AND key = ?2 AND endpoint LIKE '%markets'",
        undone: "UPDATE ledger SET endpoint = 'pro /api/v1/data/markets' WHERE endpoint = 'pro /other'",
    },
    ByHand {
        what: "an invented adjustment",
        done: "INSERT INTO adjustments (date, key, came, units) VALUES (?1, ?2, 900, 1)",
        undone: "DELETE FROM adjustments WHERE date = ?1 AND key = ?2",
    },
];

fn change(scene: &Scene, statements: &str, date: Date, key: &IssuedKey) {
    let file = database(scene);
    for statement in statements.split(';') {
        let mut statement = file.prepare(statement).unwrap();
        for (number, value) in [(1, date.to_string()), (2, key.id.clone())] {
            if statement.parameter_count() >= number {
                statement.raw_bind_parameter(number, value).unwrap();
            }
        }
        statement.raw_execute().unwrap();
    }
}

#[tokio::test]
async fn a_closed_day_that_was_changed_by_hand_is_named() {
    let scene = Scene::builder(TOUCHLINE).start().await;
    let (sound, broken) = (scene.issue("pro").await, scene.issue("pro").await);
    let dates = charged_in_the_past(&scene, &[&sound, &broken]).await;
    let reported = closed(&scene, &dates).await;
    let chain = &reported["chain"];
    assert_eq!(
        (
            &chain["entries"],
            &chain["compared_days"],
            &chain["reopenings"]
        ),
        (&3.into(), &3.into(), &0.into())
    );
    assert_eq!(chain["closed_through"], dates[2].to_string());
    for ByHand { what, done, undone } in &BY_HAND {
        change(&scene, done, dates[1], &broken);
        let ran = verify(&scene, &dates, &[]).await;
        assert_eq!(ran.code, Some(1), "{what}: {ran:?}");
        for reported in [&ran.stdout, &ran.stderr] {
            assert!(reported.contains(&dates[1].to_string()), "{what}: {ran:?}");
        }
        let words = ["usage", "verify", "--from", &dates[0].to_string()];
        let ran = run_into(&scene.gateways[0].config, closed_pipe(), &words);
        assert_eq!(ran.code, Some(1), "{what}: {ran:?}");
        // A day's digest covers all its keys: for one of them it is not compared.
        verify(&scene, &dates, &["--key", &sound.id]).await.done();
        change(&scene, undone, dates[1], &broken);
        verify(&scene, &dates, &[]).await.done();
    }
}

#[tokio::test]
async fn a_row_that_is_added_to_a_day_without_usage_is_in_no_report() {
    let scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("pro").await;
    let dates = charged_in_the_past(&scene, &[&key]).await;
    closed(&scene, &dates).await;
    let from = dates[0].to_string();
    let usage = ["usage", "--from", &*from, "--output", "json"];
    let before = scene.cli(&usage).await;
    let added = format!(
        "CREATE TEMP TABLE added AS SELECT * FROM ledger WHERE date = '{}';
         UPDATE added SET date = '{}';
         INSERT INTO ledger SELECT * FROM added;",
        dates[1],
        dates[1].tomorrow().unwrap()
    );
    database(&scene).execute_batch(&added).unwrap();
    assert_eq!(scene.cli(&usage).await, before);
    verify(&scene, &dates, &[]).await.done();
}

#[tokio::test]
async fn a_chain_that_was_written_anew_lacks_the_digest_that_was_kept() {
    let scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("pro").await;
    let verify_at_first = ["usage", "verify", "--output", "json"];
    let at_first = run_beside(&scene.gateways[0], &verify_at_first).await;
    let at_first: Value = serde_json::from_str(&at_first.done()).unwrap();
    let at_first = at_first["chain"]["digest"].as_str().unwrap();
    let digest = ["usage", "verify", "--digest", at_first];
    run_beside(&scene.gateways[0], &digest).await.done();
    let digest = ["usage", "verify", "--digest", "abc"];
    run_beside(&scene.gateways[0], &digest).await.failed(2);
    let dates = charged_in_the_past(&scene, &[&key]).await;
    let kept = closed(&scene, &dates).await["chain"]["digest"].clone();
    let with_digest = ["--digest", kept.as_str().unwrap()];
    verify(&scene, &dates, &with_digest).await.done();
    // The gateway itself closes the days again.
    change(&scene, BY_HAND[1].done, dates[1], &key);
    change(&scene, "DELETE FROM chain", dates[1], &key);
    closed(&scene, &dates).await;
    verify(&scene, &dates, &[]).await.done();
    let ran = verify(&scene, &dates, &with_digest).await;
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains(kept.as_str().unwrap()), "{ran:?}");
    assert!(!ran.stdout.contains("reconciles"), "{ran:?}");
}

/// The script that the documentation prints, run on an export.
fn checked_by_a_stranger(scene: &Scene, export: &str) -> Ran {
    let page = include_str!("../../docs/keys-and-billing.md");
    let script = page.split("```python\n").nth(1).expect("the script");
    let script = script.split("```").next().unwrap();
    assert!(script.lines().count() <= 40);
    let (script_file, export_file) = (
        scene.outside().join("check.py"),
        scene.outside().join("export.jsonl"),
    );
    std::fs::write(&script_file, script).unwrap();
    std::fs::write(&export_file, export).unwrap();
    let ran = Command::new("python3")
        .arg(script_file)
        .arg(export_file)
        .output();
    match ran {
        Ok(output) => output.into(),
        Err(error) => panic!("python3: {error}; apt-get install python3"),
    }
}

async fn export(scene: &Scene, dates: &[Date]) -> String {
    let (from, to) = (dates[0].to_string(), dates[dates.len() - 1].to_string());
    scene
        .cli(&["usage", "export", "--from", &from, "--to", &to])
        .await
}

#[tokio::test]
async fn an_export_is_checked_by_the_script_of_the_documentation() {
    let scene = Scene::builder(TOUCHLINE).start().await;
    let (one, other) = (scene.issue("pro").await, scene.issue("pro").await);
    let dates = charged_in_the_past(&scene, &[&one, &other]).await;
    let reported = closed(&scene, &dates).await;
    let whole = export(&scene, &dates).await;
    let ran = checked_by_a_stranger(&scene, &whole);
    let message = ran.done();
    assert!(message.contains("3 closed days"), "{message}");
    assert!(
        message.contains(reported["chain"]["digest"].as_str().unwrap()),
        "{message}"
    );
    // Some of the days, and all there are.
    let part = export(&scene, &dates[1..2]).await;
    let message = checked_by_a_stranger(&scene, &part).done();
    assert!(message.contains("1 closed days"), "{message}");
    let all = scene.cli(&["usage", "export"]).await;
    checked_by_a_stranger(&scene, &all).done();
    // Changes in the export.
    let lines: Vec<&str> = whole.lines().collect();
    let without = |gone: usize| {
        let left = lines.iter().enumerate().filter(|(at, _)| *at != gone);
        left.map(|(_, line)| format!("{line}\n"))
            .collect::<String>()
    };
    for (gone, line) in lines.iter().enumerate().skip(1) {
        // Without the last entry its day counts as open, and all before it holds.
        if gone == 3 {
            continue;
        }
        let ran = checked_by_a_stranger(&scene, &without(gone));
        assert_eq!(ran.code, Some(1), "without {line}: {ran:?}");
    }
    for (written, forged) in [
        (
            "\"requests\":2,\"charged\":3",
            "\"requests\":3,\"charged\":4",
        ),
        ("\"tier\":\"pro\"", "\"tier\":\"starter\""),
        ("\"state\":\"closed\"", "\"state\":\"reopened\""),
        (one.id.as_str(), other.id.as_str()),
    ] {
        assert!(whole.contains(written), "{whole}");
        let ran = checked_by_a_stranger(&scene, &whole.replacen(written, forged, 1));
        assert_eq!(ran.code, Some(1), "{forged}: {ran:?}");
    }
    // Changes in the store.
    for ByHand { what, done, undone } in &BY_HAND {
        change(&scene, done, dates[1], &one);
        let ran = checked_by_a_stranger(&scene, &export(&scene, &dates).await);
        assert_eq!(ran.code, Some(1), "{what}: {ran:?}");
        assert!(
            ran.stderr.contains(&dates[1].to_string()),
            "{what}: {ran:?}"
        );
        change(&scene, undone, dates[1], &one);
    }
}

#[tokio::test]
async fn redis_keeps_no_chain_of_closed_days() {
    let scene = Scene::builder(TOUCHLINE)
        .store(StoreKind::Redis)
        .start()
        .await;
    let export = run_beside(&scene.gateways[0], &["usage", "export"]).await;
    assert!(export.failed(1).contains("chain of closed days"));
    let json = ["usage", "verify", "--output", "json"];
    let reported = run_beside(&scene.gateways[0], &json).await.done();
    let reported: Value = serde_json::from_str(&reported).unwrap();
    assert_eq!(reported["chain"], Value::Null);
    let digest = "0".repeat(64);
    let digest = ["usage", "verify", "--digest", &digest];
    let ran = run_beside(&scene.gateways[0], &digest).await;
    assert!(ran.failed(1).contains("only the embedded store"));
}
