//! `touchline check --against-running`: what a file would change in the running gateway, reported beforehand.

use std::path::{Path, PathBuf};
use std::process::Command;

use harness::{Protocol, Scene, Store, eventually};
use serde_json::Value;

use super::{MARKETS, RANKINGS, Ran, STORES, TOUCHLINE, closed_pipe, run_into, run_on};

/// A next file beside the one that runs.
fn next(scene: &Scene, text: &str) -> PathBuf {
    let file = scene.directory().join("next.yaml");
    std::fs::write(&file, text).unwrap();
    file
}

fn text_of(scene: &Scene) -> String {
    std::fs::read_to_string(&scene.gateways[0].config).unwrap()
}

fn asked(scene: &Scene) -> String {
    format!("--against-running={}", scene.gateways[0].admin)
}

/// `about name fact: from → to` of every difference.
fn reported(report: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let differences = report["differences"].as_array().unwrap();
    differences
        .iter()
        .map(|one| {
            let [about, name, fact, from, to] =
                ["about", "name", "fact", "from", "to"].map(|member| text(&one[member]));
            format!("{about} {name} {fact}: {from} → {to}")
        })
        .collect()
}

#[tokio::test]
async fn a_file_that_changes_nothing_in_effect_is_reported_as_such() {
    let scene = Scene::builder(TOUCHLINE).start().await;
    let text = format!("# A comment.\n{}", text_of(&scene)).replace("1s", "1000ms");
    let file = next(&scene, &text);
    let message = run_on(&file, &["check", &asked(&scene)]).await.done();
    assert!(message.contains("nothing changes in effect"), "{message}");
}

#[tokio::test]
async fn what_changes_is_reported_with_the_keys_that_are_above_already_and_is_what_happens() {
    for store in STORES {
        let mut scene = Scene::builder(TOUCHLINE).store(store).start().await;
        let [busy, spared, idle] = [
            scene.issue("starter").await,
            scene.issue("starter").await,
            scene.issue("starter").await,
        ];
        scene
            .cli(&[
                "keys", "grant", &spared.id, "--extra", "5", "--reason", "cup",
            ])
            .await;
        let client = scene.client(Protocol::Http1);
        for key in [&busy, &spared] {
            for _ in 0..2 {
                assert_eq!(client.get(key, MARKETS).await.status, 200);
            }
        }
        assert_eq!(client.get(&idle, MARKETS).await.status, 200);
        scene.expect_used(&busy, 2).await;
        scene.expect_used(&spared, 2).await;
        let mut spec = scene.spec.clone();
        spec.tiers[0].daily = 2;
        spec.endpoints[5].tiers.push("starter".into());
        spec.endpoints[3].tiers.retain(|tier| tier != "pro");
        spec.retries = 0;
        spec.upstream_extra = "compression: { min_bytes: 2KiB }".into();
        let file = next(&scene, &spec.yaml(&scene.gateways[0].access_log));
        let arguments = ["check", &asked(&scene), "--output", "json"];
        let message = run_on(&file, &arguments).await.done();
        let report: Value = serde_json::from_str(&message).unwrap();
        assert_eq!(
            reported(&report),
            [
                "tier pro endpoint /api/v1/data/insights: included → -",
                "tier starter daily: 1000 → 2",
                "tier starter endpoint /api/v1/data/rankings: - → included",
                "upstream prediction-data compression.codings: - → zstd, gzip",
                "upstream prediction-data compression.min_bytes: - → 2KiB",
                "upstream prediction-data retries: 1 → 0",
            ]
        );
        assert_eq!(report["applies"], true);
        let keys = serde_json::json!([{ "tier": "starter", "daily": 2, "keys": 1 }]);
        assert_eq!(report["keys"], keys);
        let people = run_on(&file, &["check", &asked(&scene)]).await.done();
        assert!(
            people.contains("used 2 units or more today") && people.contains(": 1\n"),
            "{people}"
        );
        // Asking has changed nothing.
        assert_eq!(client.get(&idle, RANKINGS).await.status, 403);

        scene.spec = spec;
        scene.gateways[0].configure(&scene.spec);
        eventually("the file is applied", async || {
            (client.get(&idle, RANKINGS).await.status == 200).then_some(())
        })
        .await;
        assert_eq!(client.get(&busy, MARKETS).await.status, 429);
        assert_eq!(client.get(&spared, MARKETS).await.status, 200);
    }
}

#[tokio::test]
async fn what_the_gateway_would_refuse_is_reported_and_exits_1() {
    let scene = Scene::builder(TOUCHLINE).start().await;
    scene.issue("pro").await;
    let text = text_of(&scene).replace("threads: 1", "threads: 2");
    let file = next(&scene, &text);
    let ran = run_on(&file, &["check", &asked(&scene)]).await;
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stdout.contains("runtime.threads"), "{ran:?}");
    assert!(ran.stderr.contains("needs a restart"), "{ran:?}");
    let unread = run_into(&file, closed_pipe(), &["check", &asked(&scene)]).failed(1);
    assert!(unread.contains("needs a restart"), "{unread}");

    let mut spec = scene.spec.clone();
    spec.tiers.remove(1);
    for endpoint in &mut spec.endpoints {
        endpoint.tiers.retain(|tier| tier != "pro");
    }
    let file = next(&scene, &spec.yaml(&scene.gateways[0].access_log));
    let ran = run_on(&file, &["check", &asked(&scene)]).await;
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(
        ran.stdout.contains("keys of the removed tier pro: 1"),
        "{ran:?}"
    );
    assert!(ran.stderr.contains("it removes a tier"), "{ran:?}");

    let file = next(&scene, &text_of(&scene).replace("daily", "dayly"));
    let message = run_on(&file, &["check", &asked(&scene)]).await.failed(78);
    assert!(message.contains("dayly"), "{message}");
}

#[tokio::test]
async fn a_changed_password_of_redis_is_reported_as_the_restart_that_it_needs() {
    let scene = Scene::builder(TOUCHLINE).store(Store::Redis).start().await;
    let text = text_of(&scene);
    let secret = scene.directory().join("redis.password");
    std::fs::write(&secret, "hunter2").unwrap();
    let password = format!("redis: {{ password_file: {},", secret.display());
    let with = text.replacen("redis: {", &password, 1);
    assert_ne!(with, text);
    let file = next(&scene, &with);
    let ran = run_on(&file, &["check", &asked(&scene)]).await;
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(!format!("{ran:?}").contains("hunter2"), "{ran:?}");
    assert!(ran.stderr.contains("needs a restart"), "{ran:?}");
}

#[tokio::test]
async fn a_limit_from_a_variable_is_no_removed_tier_and_a_missing_store_hides_no_change() {
    let scene = Scene::builder(TOUCHLINE)
        .store(Store::Embedded)
        .start()
        .await;
    let key = scene.issue("pro").await;
    let client = scene.client(Protocol::Http1);
    assert_eq!(client.get(&key, MARKETS).await.status, 200);
    scene.expect_used(&key, 1).await;
    let text = text_of(&scene);
    let lowered = text.replacen("daily: 3000", "daily: \"${LESS}\"", 1);
    assert_ne!(lowered, text);
    let file = next(&scene, &lowered);
    let check = |directory: &Path, file: &Path| -> Ran {
        let mut command = Command::new(TOUCHLINE);
        command
            .args(["check", &asked(&scene), "--config"])
            .arg(file);
        command.current_dir(directory).env("LESS", "1");
        command.output().unwrap().into()
    };
    let report = check(scene.directory(), &file).done();
    assert!(
        report.contains("used 1 units or more today") && report.contains(": 1\n"),
        "{report}"
    );
    // Another zone needs a new store: the changes are shown without it.
    let zone = lowered.replace("timezone: UTC", "timezone: Europe/London");
    let ran = check(scene.directory(), &next(&scene, &zone));
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stdout.contains("quota.timezone"), "{ran:?}");
    assert!(ran.stderr.contains("needs a restart"), "{ran:?}");
}

#[tokio::test]
async fn without_a_gateway_to_ask_the_address_is_named() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let config = scene.gateways[0].config.clone();
    let message = run_on(&config, &["check", "--against-running"]).await;
    assert!(message.failed(2).contains("--against-running="));
    scene.gateways[0].terminate();
    let admin = scene.gateways[0].admin.to_string();
    let message = run_on(&config, &["check", &asked(&scene)]).await.failed(1);
    assert!(message.contains(&admin), "{message}");
}

#[tokio::test]
async fn a_gateway_with_a_token_is_asked_with_the_token_of_the_file() {
    let scene = Scene::builder(TOUCHLINE).start().await;
    let admin = "admin: { address: \"127.0.0.1:0\"";
    let with = text_of(&scene).replace(admin, &format!("{admin}, token: 0123456789abcdef"));
    let file = next(&scene, &with);
    // The running one has none yet: the difference is that there is one, not what it is.
    let message = run_on(&file, &["check", &asked(&scene)]).await.done();
    assert!(message.contains("listen.admin.token"), "{message}");
    assert!(!message.contains("0123456789abcdef"), "{message}");
    scene.gateways[0].put_file(&with);
    eventually("the token is needed", async || {
        (scene.admin(0, "/config").await.0 == 401).then_some(())
    })
    .await;
    let message = run_on(&file, &["check", &asked(&scene)]).await.done();
    assert!(message.contains("nothing changes in effect"), "{message}");
    let other = next(
        &scene,
        &with.replace("0123456789abcdef", "another-token-of-16"),
    );
    let message = run_on(&other, &["check", &asked(&scene)]).await.failed(1);
    assert!(message.contains("401"), "{message}");
    let cause = "the gateway has another listen.admin.token than this file";
    assert!(message.contains(cause), "{message}");
}

#[tokio::test]
async fn an_admin_listener_that_does_not_answer_is_reported_as_such() {
    let scene = Scene::builder(TOUCHLINE).start().await;
    let file = next(&scene, &text_of(&scene));
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let asked = format!("--against-running={}", silent.local_addr().unwrap());
    let message = run_on(&file, &["check", &asked]).await.failed(1);
    assert!(message.contains("no whole answer within 5 s"), "{message}");
}
