//! The command line as an operator types it: short flags, what is refused and how, and that no message repeats an API key.

use std::fs::File;
use std::process::{Command, Stdio};

use harness::{PATIENCE, Scene, Store};

use super::{Ran, TOUCHLINE, closed_pipe, run_beside};

async fn scene() -> Scene {
    Scene::builder(TOUCHLINE)
        .store(Store::Embedded)
        .start()
        .await
}

/// All commands that take the id of a key; `ID` is its place.
const OF_A_KEY: [&str; 13] = [
    "keys show ID",
    "keys rotate ID --overlap 24h",
    "keys suspend ID --yes",
    "keys resume ID",
    "keys set-tier ID enterprise",
    "keys set-expiry ID never",
    "keys set-label ID live",
    "keys set-customer ID Acme",
    "keys grant ID --extra 5 --reason test",
    "usage --key ID",
    "usage verify --key ID",
    "audit --key ID",
    "explain --path /api/v1/data/markets --key-id ID",
];

async fn run(scene: &Scene, line: &str, id: &str) -> Ran {
    let words: Vec<&str> = line
        .split(' ')
        .map(|word| if word == "ID" { id } else { word })
        .collect();
    run_beside(&scene.gateways[0], &words).await
}

#[tokio::test]
async fn a_key_is_accepted_where_its_id_is_and_no_message_repeats_it() {
    let scene = scene().await;
    let key = scene.issue("pro").await;
    let (_, secret) = key.key.rsplit_once('_').unwrap();
    let mistyped = format!("{}x", key.key);
    let foreign = "acme-live-0123456789abcdef";
    for line in OF_A_KEY.into_iter().chain(["keys revoke ID --yes"]) {
        let ran = run(&scene, line, &mistyped).await;
        assert_eq!(ran.code, Some(2), "{line}: {ran:?}");
        assert!(ran.stderr.contains("checksum"), "{line}: {ran:?}");
        assert!(!format!("{ran:?}").contains(secret), "{line}: {ran:?}");
        let ran = run(&scene, line, foreign).await;
        assert_eq!(ran.code, Some(1), "{line}: {ran:?}");
        assert!(ran.stderr.contains("keys list"), "{line}: {ran:?}");
        assert!(!format!("{ran:?}").contains(foreign), "{line}: {ran:?}");
        let ran = run(&scene, line, &key.key).await;
        assert_eq!(ran.code, Some(0), "{line}: {ran:?}");
        assert!(!format!("{ran:?}").contains(secret), "{line}: {ran:?}");
    }
    let text = run(&scene, "keys show ID", &key.id).await.done();
    assert!(text.contains("revoked"), "{text}");
    for line in [
        "ID",
        "keys ID",
        "keys show 4fZk09QwXy2B ID",
        "keys list --output ID",
        "keys list --tier ID",
        "usage --month ID",
        "store forget ID",
    ] {
        let ran = run(&scene, line, &key.key).await;
        assert_ne!(ran.code, Some(0), "{line}: {ran:?}");
        assert!(!format!("{ran:?}").contains(secret), "{line}: {ran:?}");
    }
}

#[tokio::test]
async fn a_key_that_was_made_elsewhere_is_found_by_its_digest_and_an_old_one_by_its_id() {
    let scene = scene().await;
    let gateway = &scene.gateways[0];
    let foreign = "acme-live-0123456789abcdef";
    let alike = format!("acme_0123456789ab_{}", "c".repeat(38));
    let file = scene.outside().join("keys.csv");
    let rows = format!("key,customer,tier\n{foreign},Acme,pro\n{alike},Alike,pro\n");
    std::fs::write(&file, rows).unwrap();
    let import = ["keys", "import", file.to_str().unwrap()];
    run_beside(gateway, &import).await.done();
    for (key, customer) in [(foreign, "Acme"), (alike.as_str(), "Alike")] {
        let list = ["keys", "list", "--customer", customer, "-o", "json"];
        let listed: serde_json::Value =
            serde_json::from_str(&run_beside(gateway, &list).await.done()).unwrap();
        let id = listed[0]["id"].as_str().unwrap();
        for line in OF_A_KEY.into_iter().chain(["keys revoke ID --yes"]) {
            let ran = run(&scene, line, key).await;
            assert_eq!(ran.code, Some(0), "{line}: {ran:?}");
            let reported = format!("{ran:?}");
            assert!(!reported.contains(key), "{line}: {ran:?}");
        }
        let text = run(&scene, "keys show ID", id).await.done();
        assert!(text.contains("revoked"), "{text}");
    }
    let key = scene.issue("pro").await;
    for _ in 0..2 {
        run(&scene, "keys rotate ID --overlap 24h --yes", &key.id)
            .await
            .done();
    }
    let text = run(&scene, "keys show ID", &key.key).await.done();
    assert!(text.contains(&key.id), "{text}");
}

#[tokio::test]
async fn short_flags_and_a_month_are_understood_and_an_unknown_tier_is_an_error() {
    let scene = scene().await;
    scene.issue("pro").await;
    let config = scene.gateways[0].config.to_str().unwrap().to_owned();
    let listed = Command::new(TOUCHLINE)
        .args(["keys", "list", "-o", "json", "-c", &config])
        .output()
        .unwrap();
    assert!(listed.status.success(), "{listed:?}");
    let keys: Vec<serde_json::Value> = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(keys.len(), 1);
    let month = ["usage", "--month", "2026-10", "--by", "day", "-o", "json"];
    let days = ["usage", "--from", "2026-10-01", "--to", "2026-10-31"];
    let days = [&days[..], &["--by", "day", "-o", "json"]].concat();
    let gateway = &scene.gateways[0];
    assert_eq!(
        run_beside(gateway, &month).await.done(),
        run_beside(gateway, &days).await.done()
    );
    let mixed = ["usage", "--month", "2026-10", "verify"];
    let message = run_beside(gateway, &mixed).await.failed(2);
    assert!(message.contains("verify takes no options of the report: write its own after it"));
    let issue = ["keys", "issue", "--tier", "gold", "--customer", "Acme"];
    let refused = run_beside(gateway, &issue).await.failed(1);
    let list = ["keys", "list", "--tier", "gold"];
    assert_eq!(run_beside(gateway, &list).await.failed(1), refused);
    // Keys of a tier that left the configuration are listed.
    let file = scene.outside().join("keys.csv");
    let row = "key,customer,tier\nacme-live-0123456789abcdef,Acme,starter\n";
    std::fs::write(&file, row).unwrap();
    let import = ["keys", "import", file.to_str().unwrap()];
    run_beside(gateway, &import).await.done();
    let text = std::fs::read_to_string(&gateway.config).unwrap();
    std::fs::write(&gateway.config, text.replace("starter", "bronze")).unwrap();
    let list = ["keys", "list", "--tier", "starter"];
    assert!(run_beside(gateway, &list).await.done().contains("Acme"));
}

#[tokio::test]
async fn a_file_that_exists_is_named_with_the_remedy() {
    let scene = scene().await;
    let file = scene.outside().join("there.jsonl");
    std::fs::write(&file, "mine").unwrap();
    let name = file.to_str().unwrap();
    let orders: [&[&str]; 3] = [
        &["store", "backup", name],
        &["keys", "export", name],
        &["man", name],
    ];
    for words in orders {
        let text = run_beside(&scene.gateways[0], words).await.failed(1);
        assert!(
            text.contains(name) && text.contains("remove it") && !text.contains("os error"),
            "{text}"
        );
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
    }
}

/// The characters that a terminal shows of a line, without the sequences that colour it.
fn shown_chars(line: &str) -> usize {
    let parts = line.split('\u{1b}').enumerate();
    let shown = parts.map(|(at, part)| match at {
        0 => part.chars().count(),
        _ => part.split_once('m').unwrap().1.chars().count(),
    });
    shown.sum()
}

#[tokio::test]
async fn nothing_is_wider_than_the_terminal_and_a_pipe_keeps_whole_lines() {
    let scene = scene().await;
    let customer = "A customer with a long name ".repeat(5);
    let issue = ["keys", "issue", "--tier", "pro", "--customer", &customer];
    run_beside(&scene.gateways[0], &issue).await.done();
    let config = scene.gateways[0].config.display();
    for line in [
        "keys list",
        "audit",
        "usage",
        "usage invoice --month 2026-10",
        "store status",
        "explain --key-id 4fZk09QwXy2B --path /api/v1/data/markets",
        "check",
        "keys issue --tier pro",
        "keys list --tier gold",
    ] {
        let command =
            format!("stty cols 60 rows 40; exec '{TOUCHLINE}' {line} --config '{config}'");
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
        let is_refused = line.contains("gold") || line.contains("issue");
        assert_eq!(shown.status.success(), !is_refused, "{text}");
        let widest = text.lines().map(|line| shown_chars(line.trim_end()));
        assert!(widest.max().unwrap() <= 60, "{line}:\n{text}");
    }
    let piped = run_beside(&scene.gateways[0], &["keys", "list"]).await;
    assert!(piped.done().contains(customer.trim()));
    let status = run_beside(&scene.gateways[0], &["store", "status"]).await;
    assert!(!status.done().contains('?'));
}

#[tokio::test]
async fn before_a_revocation_its_effect_is_stated() {
    let scene = scene().await;
    let key = scene.issue("pro").await;
    let refused = run(&scene, "keys revoke ID", &key.id).await.failed(2);
    for part in [
        "every request with this key is refused",
        "cannot be undone",
        "--yes",
    ] {
        assert!(refused.contains(part), "{refused}");
    }
    assert!(!refused.contains("By this"));
}

#[test]
fn help_that_cannot_be_written_is_a_failure_and_help_that_is_not_read_is_none() {
    for line in ["help", "--version", "keys issue --help"] {
        let into = |output: Stdio| {
            let mut command = Command::new(TOUCHLINE);
            let output = command.args(line.split(' ')).stdout(output).output();
            Ran::from(output.unwrap())
        };
        let full = File::options().write(true).open("/dev/full").unwrap();
        let message = into(full.into()).failed(1);
        assert!(message.contains("No space left"), "{line}: {message}");
        assert_eq!(into(closed_pipe().into()).done(), "");
    }
}
