//! What commands need of the world outside the configuration file: names, files and variables.

use std::path::{Path, PathBuf};

use super::{Ran, run_on};

/// Everything outside is missing, but what the store needs.
const FILE: &str = r#"listen:
  https: { address: "0.0.0.0:8443", certificate: DIRECTORY/none.pem, private_key: DIRECTORY/none.key }
  admin: { token: "${TOUCHLINE_TEST_UNSET}" }
store:
  embedded: { path: DIRECTORY/touchline.db }
tiers:
  starter: { daily: 10 }
endpoints:
  - { path: /a, tiers: [starter], upstream: u }
events:
  webhook: { url_file: DIRECTORY/none.url, secret: "${TOUCHLINE_TEST_UNSET}" }
upstreams:
  u:
    servers: ["data.invalid:9000"]
    tls: { ca_file: DIRECTORY/none.pem, certificate: DIRECTORY/none.pem, private_key: DIRECTORY/none.key }
    header: { name: X-Gateway-Secret, value_file: DIRECTORY/none.secret }
    retries: "${TOUCHLINE_TEST_UNSET}"
logging: { access_log: DIRECTORY/none/access.log }
"#;
/// What of it is a problem to a gateway that starts: the places of what cannot be read or is not set.
const MISSING: [&str; 11] = [
    "listen.https.certificate",
    "listen.https.private_key",
    "listen.admin.token",
    "events.webhook.url_file",
    "events.webhook.secret",
    "upstreams.u.tls.ca_file",
    "upstreams.u.tls.certificate",
    "upstreams.u.tls.private_key",
    "upstreams.u.header.value_file",
    "upstreams.u.retries",
    "logging.access_log",
];

fn write(directory: &Path, name: &str, text: &str) -> PathBuf {
    let file = directory.join(name);
    let text = text.replace("DIRECTORY", directory.to_str().unwrap());
    std::fs::write(&file, text).unwrap();
    file
}

/// Runs a command; arguments are separated by spaces.
async fn run(file: &Path, command: &str) -> Ran {
    let words: Vec<&str> = command.split(' ').collect();
    run_on(file, &words).await
}

#[tokio::test]
async fn commands_on_the_store_need_no_name_file_or_variable_of_the_rest() {
    let directory = tempfile::tempdir().unwrap();
    let file = write(directory.path(), "gateway.yaml", FILE);
    let issued = run(
        &file,
        "keys issue --tier starter --customer Acme --output json",
    )
    .await;
    let issued: serde_json::Value = serde_json::from_str(&issued.done()).unwrap();
    let id = issued["id"].as_str().unwrap();
    let backup = directory.path().join("backup.jsonl");
    for command in [
        "keys list".to_owned(),
        format!("keys show {id}"),
        format!("keys revoke {id} --yes"),
        "keys export".to_owned(),
        "usage".to_owned(),
        "usage verify".to_owned(),
        "audit".to_owned(),
        format!("explain --key-id {id} --method GET --path /a"),
        "openapi".to_owned(),
        "store status".to_owned(),
        format!("store backup {}", backup.display()),
    ] {
        let ran = run(&file, &command).await;
        assert_eq!(ran.code, Some(0), "{command}: {ran:?}");
        assert!(
            !ran.stderr.contains(".invalid") && !ran.stderr.contains("UNSET"),
            "{command}: {ran:?}"
        );
    }
}

#[tokio::test]
async fn a_command_on_the_store_needs_what_the_store_needs_and_a_file_without_mistakes() {
    let directory = tempfile::tempdir().unwrap();
    let embedded = "embedded: { path: DIRECTORY/touchline.db }";
    for (wrong, path) in [
        (
            FILE.replace(embedded, "redis: { url: \"${TOUCHLINE_TEST_UNSET}\" }"),
            "store.redis.url",
        ),
        (
            FILE.replace(embedded, "redis: { password_file: DIRECTORY/none }"),
            "store.redis.password_file",
        ),
        (
            FILE.replace("daily: 10", "daily: \"${TOUCHLINE_TEST_UNSET}\""),
            "tiers.starter.daily",
        ),
        (
            FILE.replace("retries: \"${TOUCHLINE_TEST_UNSET}\"", "retries: 9"),
            "upstreams.u.retries",
        ),
        (
            FILE.replace("0.0.0.0:8443", "nonsense"),
            "listen.https.address",
        ),
    ] {
        let file = write(directory.path(), "gateway.yaml", &wrong);
        let message = run(&file, "keys list").await.failed(78);
        assert_eq!(message.lines().count(), 1, "{message}");
        assert!(message.contains(&format!(": {path}: ")), "{message}");
    }
}

#[tokio::test]
async fn check_and_serve_name_every_file_that_cannot_be_read_and_every_variable_that_is_not_set() {
    let directory = tempfile::tempdir().unwrap();
    let file = write(directory.path(), "gateway.yaml", FILE);
    for command in ["check", "serve"] {
        let message = run(&file, command).await.failed(78);
        let paths: Vec<&str> = message
            .lines()
            .map(|line| line.split(": ").nth(1).unwrap())
            .collect();
        assert_eq!(paths, MISSING, "{command}: {message}");
    }
    let ran = run(&file, "check --output json").await;
    assert_eq!(ran.code, Some(78), "{ran:?}");
    let report: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    let problems = report["problems"].as_array().unwrap();
    let paths: Vec<&str> = problems
        .iter()
        .map(|problem| problem["path"].as_str().unwrap())
        .collect();
    assert_eq!(paths, MISSING, "{report}");
    assert!(report["hash"].is_null(), "{report}");
    let lines = ran.stderr.lines().zip(problems);
    for (line, problem) in lines {
        let place = format!(":{}:{}: ", problem["line"], problem["column"]);
        assert!(line.contains(&place), "{line} {problem}");
        for part in ["message", "hint"] {
            assert!(line.contains(problem[part].as_str().unwrap()), "{line}");
        }
    }
}

#[tokio::test]
async fn check_warns_of_a_name_that_does_not_resolve() {
    let directory = tempfile::tempdir().unwrap();
    let text = "tiers: { starter: { daily: 10 } }
endpoints: [{ path: /a, tiers: [starter], upstream: u }]
upstreams: { u: { servers: [\"data.invalid:9000\", \"127.0.0.1:9000\"] } }
";
    let redis =
        "store: { redis: { sentinels: [\"127.0.0.1:1\", \"redis.invalid:26379\"], master: m } }\n";
    let file = write(directory.path(), "gateway.yaml", &format!("{text}{redis}"));
    let ran = run(&file, "check").await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(
        ran.stdout.starts_with(&format!("{}: ok\n", file.display())),
        "{ran:?}"
    );
    let warnings: Vec<&str> = ran.stderr.lines().collect();
    let [upstream, redis] = warnings[..] else {
        panic!("{ran:?}")
    };
    let start = format!(
        "{}:3:29: warning: upstreams.u.servers[0]: \"data.invalid:9000\" cannot be resolved: ",
        file.display()
    );
    assert!(upstream.starts_with(&start), "{ran:?}");
    let start = format!(
        "{}:4:46: warning: store.redis.sentinels[1]: \"redis.invalid:26379\" cannot be resolved: ",
        file.display()
    );
    assert!(redis.starts_with(&start), "{ran:?}");
    let ran = run(&file, "check --output json").await;
    assert_eq!((ran.code, &*ran.stderr), (Some(0), ""), "{ran:?}");
    let report: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(report["warnings"][1]["path"], "store.redis.sentinels[1]");
    assert_eq!(report["problems"].as_array().unwrap().len(), 0, "{report}");
    assert!(report["hash"].is_string(), "{report}");
    let redis = "store: { redis: { url: \"redis://:hunter2@redis.invalid\" } }\n";
    let file = write(directory.path(), "gateway.yaml", &format!("{text}{redis}"));
    let ran = run(&file, "check").await;
    let warning = ran.stderr.lines().last().unwrap();
    assert!(
        warning.contains("warning: store.redis.url: its host cannot be resolved: "),
        "{ran:?}"
    );
    assert!(
        ran.code == Some(0) && !ran.stderr.contains("hunter2"),
        "{ran:?}"
    );
}

#[tokio::test]
async fn check_offline_asks_for_no_name_file_or_variable_and_finds_the_mistakes_of_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let redis = "redis: { url: \"${TOUCHLINE_TEST_UNSET}\", password_file: DIRECTORY/none, tls: { ca_file: DIRECTORY/none } }";
    let embedded = "embedded: { path: DIRECTORY/touchline.db }";
    // A value that is not known is not held against the rest.
    let certificate = FILE.replace(
        "certificate: DIRECTORY/none.pem, private_key: DIRECTORY/none.key }\n  admin",
        "certificate: \"${C}\", private_key: \"${K}\" }\n  admin",
    );
    for text in [FILE, &FILE.replace(embedded, redis), &certificate] {
        let file = write(directory.path(), "gateway.yaml", text);
        let ran = run(&file, "check --offline").await;
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
        assert!(
            ran.stdout.starts_with(&format!("{}: ok", file.display())),
            "{ran:?}"
        );
    }
    let unused = FILE
        .replace("tiers:\n", "tiers:\n  unused: { daily: 10 }\n")
        .replace("retries: \"${TOUCHLINE_TEST_UNSET}\"", "retries: 1");
    let file = write(directory.path(), "gateway.yaml", &unused);
    let ran = run(&file, "check --offline").await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stderr.contains("warning: tiers.unused: "), "{ran:?}");
    let unknown = unused.replace("path: /a", "path: \"${P}\"");
    let file = write(directory.path(), "gateway.yaml", &unknown);
    let ran = run(&file, "check --offline").await;
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    let wrong = FILE
        .replace("tiers: [starter]", "tiers: [gold]")
        .replace("daily: 10", "dayly: 10, daily: 1")
        .replace("value_file: DIRECTORY/none.secret", "value: \"${\"")
        .replace(
            ", private_key: DIRECTORY/none.key }\n  admin",
            " }\n  admin",
        );
    let file = write(directory.path(), "gateway.yaml", &wrong);
    let message = run(&file, "check --offline").await.failed(78);
    let paths: Vec<&str> = message
        .lines()
        .map(|line| line.split(": ").nth(1).unwrap())
        .collect();
    let expected = [
        "listen.https.private_key",
        "tiers.starter.dayly",
        "endpoints[0].tiers[0]",
        "upstreams.u.header.value",
    ];
    assert_eq!(paths, expected, "{message}");
}
