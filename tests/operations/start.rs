//! `touchline serve`: what it reports when it starts, and why it does not start.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use harness::{GatewaySpec, Protocol, Scene, StoreSpec, eventually};
use serde_json::Value;

use super::{MARKETS, Ran, STORES, TOUCHLINE, run_on};

/// "At once", on a busy machine.
const AT_ONCE: Duration = Duration::from_secs(5);

fn spec(directory: &Path) -> GatewaySpec {
    let store = StoreSpec::Embedded(directory.join("touchline.db"));
    GatewaySpec::new(store, "127.0.0.1:9".parse().unwrap())
}

fn write(directory: &Path, text: &str) -> PathBuf {
    let file = directory.join("gateway.yaml");
    std::fs::write(&file, text).unwrap();
    file
}

#[tokio::test]
async fn an_address_in_use_ends_the_start_at_once_and_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for name in ["http", "https", "admin"] {
        let directory = tempfile::tempdir().unwrap();
        let yaml = spec(directory.path()).yaml(&directory.path().join("access.log"));
        let (free, used) = (
            format!("  {name}: {{ address: \"127.0.0.1:0\""),
            format!("  {name}: {{ address: \"{address}\""),
        );
        assert!(yaml.contains(&free), "{yaml}");
        let config = write(directory.path(), &yaml.replace(&free, &used));
        let began = Instant::now();
        let reply = run_on(&config, &["serve"]).await.failed(1);
        assert!(began.elapsed() < AT_ONCE);
        assert!(
            reply.contains(&address) && reply.contains(&format!("listen.{name}.address")),
            "{reply}"
        );
        assert!(!directory.path().join("touchline.db").exists());
    }
}

#[tokio::test]
async fn a_store_of_another_time_zone_is_refused_and_both_zones_are_named() {
    for store in STORES {
        let mut scene = Scene::builder(TOUCHLINE).store(store).start().await;
        let key = scene.issue("starter").await;
        let mut other = scene.spec.clone();
        other.timezone = "America/New_York".into();
        let yaml = other.yaml(&scene.directory().join("other.log"));
        let config = write(scene.directory(), &yaml);
        for command in ["serve", "keys list", "usage"] {
            let words: Vec<&str> = command.split(' ').collect();
            let reply = run_on(&config, &words).await.failed(1);
            assert!(
                reply.contains("UTC") && reply.contains("America/New_York"),
                "{store:?} {command}: {reply}"
            );
        }
        let client = scene.client(Protocol::Http1);
        assert_eq!(client.get(&key, MARKETS).await.status, 200);
        scene.assert_ledgers_agree().await;
    }
}

#[tokio::test]
async fn a_store_file_that_is_no_database_is_named_and_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("touchline.db");
    let text = "dear diary, this is no database, but a text that is long enough for a header of one hundred bytes\n";
    std::fs::write(&file, text).unwrap();
    let yaml = spec(directory.path()).yaml(&directory.path().join("access.log"));
    let config = write(directory.path(), &yaml);
    for command in ["serve", "usage"] {
        let reply = run_on(&config, &[command]).await.failed(1);
        assert!(reply.contains(file.to_str().unwrap()), "{reply}");
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
}

#[tokio::test]
async fn an_access_log_that_cannot_be_written_ends_the_start() {
    let directory = tempfile::tempdir().unwrap();
    // Longer than a file's name may be.
    let log = directory.path().join("x".repeat(300));
    let config = write(directory.path(), &spec(directory.path()).yaml(&log));
    let reply = run_on(&config, &["serve"]).await.failed(1);
    assert!(
        reply.contains(log.to_str().unwrap()) && reply.contains("logging.access_log"),
        "{reply}"
    );
}

#[tokio::test]
async fn a_gateway_that_starts_without_a_tier_that_keys_have_reports_it_and_serves_the_others() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let (lost, other) = (scene.issue("starter").await, scene.issue("pro").await);
    let gateway = &mut scene.gateways[0];
    let good = std::fs::read_to_string(&gateway.config).unwrap();
    gateway.terminate();
    gateway.put_file(&good.replace("starter", "beginner"));
    gateway.restart().await;
    let client = scene.client(Protocol::Http1);
    assert_eq!(client.get(&other, MARKETS).await.status, 200);
    assert_eq!(client.get(&lost, MARKETS).await.status, 500);
    let degraded = async |scene: &mut Scene, tier: &str| {
        let reason = format!("the configuration has no tier {tier}, which 1 key has");
        eventually("readiness and log name the tier", async || {
            let (status, body) = scene.admin(0, "/readyz").await;
            let output = scene.gateways[0].output();
            let lines = output.lines();
            let logged = lines.filter(|line| line.contains("ERROR") && line.contains(&reason));
            let is_named = body.contains("degraded") && body.contains(&reason);
            (status == 200 && is_named && logged.count() == 1).then_some(())
        })
        .await;
    };
    degraded(&mut scene, "starter").await;
    assert_eq!(scene.metric("touchline_ready").await, 1.0);
    assert_eq!(scene.metric("touchline_readiness_reasons").await, 1.0);
    let set_tier = ["keys", "set-tier", &lost.id, "enterprise"];
    scene.cli(&set_tier).await;
    eventually("the moved key degrades nothing", async || {
        let (_, body) = scene.admin(0, "/readyz").await;
        body.contains(r#""status":"ready""#).then_some(())
    })
    .await;
    assert_eq!(scene.metric("touchline_readiness_reasons").await, 0.0);
    assert_eq!(client.get(&lost, MARKETS).await.status, 200);
    // A command that reads a file which the gateway does not run.
    let other = scene.directory().join("other.yaml");
    let admin = format!("admin: {{ address: \"{}\"", scene.gateways[0].admin);
    let good = good.replace("admin: { address: \"127.0.0.1:0\"", &admin);
    std::fs::write(&other, good.replace("starter", "gold")).unwrap();
    let set_tier = ["keys", "set-tier", &lost.id, "gold", "--yes"];
    let moved = run_on(&other, &set_tier).await;
    let warning = "warning: the running gateway has no tier gold: requests of its keys get 500";
    assert!(moved.stderr.contains(warning), "{moved:?}");
    moved.done();
    let explain = ["explain", "--key-id", &lost.id, "--path", MARKETS];
    let explained = run_on(&other, &explain).await;
    assert!(explained.stderr.contains(warning), "{explained:?}");
    degraded(&mut scene, "gold").await;
    assert_eq!(client.get(&lost, MARKETS).await.status, 500);
    let line =
        scene.gateways[0].logged_where(|line| line["status"] == 500 && line["tier"] == "gold");
    let line = line.await;
    let named = serde_json::json!([line["key_id"], line["tier"]]);
    assert_eq!(named, serde_json::json!([lost.id, "gold"]));
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn a_machine_without_certificate_authorities_is_reported_before_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let yaml = spec(directory.path()).yaml(&directory.path().join("access.log"));
    let config = write(directory.path(), &yaml);
    let missing = directory.path().join("no-such-file");
    let running = tokio::process::Command::new(TOUCHLINE)
        .args(["serve", "--config"])
        .arg(&config)
        .env("SSL_CERT_FILE", &missing)
        .env("SSL_CERT_DIR", &missing)
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(harness::PATIENCE, running).await;
    let reply = Ran::from(output.unwrap().unwrap()).failed(1);
    assert!(
        reply.contains("SSL_CERT_FILE") && !reply.contains("panicked"),
        "{reply}"
    );
}

#[tokio::test]
async fn the_first_line_states_where_it_listens() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let stdout = scene.gateways[0].process().stdout.clone();
    let text = std::fs::read_to_string(stdout).unwrap();
    let line: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    let gateway = &scene.gateways[0];
    let expected = serde_json::json!({
        "event": "listening",
        "http": gateway.http.to_string(),
        "https": gateway.https.to_string(),
        "admin": gateway.admin.to_string(),
    });
    assert_eq!(line, expected);
}

#[tokio::test]
async fn a_start_that_creates_an_empty_database_logs_it_once() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let file = scene.gateways[0].process().stderr.clone();
    let created = || {
        let text = std::fs::read_to_string(&file).unwrap();
        let lines = text.lines().filter(|line| line.contains("WARN"));
        lines
            .filter(|line| line.contains("created the database: it has no keys"))
            .count()
    };
    assert_eq!(created(), 1);
    scene.gateways[0].restart().await;
    assert_eq!(created(), 1);
    scene.gateways[0].terminate();
    let StoreSpec::Embedded(database) = &scene.spec.store else {
        panic!("an embedded store");
    };
    std::fs::write(database, "").unwrap();
    scene.gateways[0].restart().await;
    assert_eq!(created(), 2);
}

#[tokio::test]
async fn the_log_names_the_addresses_in_fields_of_their_own() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let file = scene.gateways[0].process().stderr.clone();
    let line = eventually("the start is logged", async || {
        let text = std::fs::read_to_string(&file).unwrap();
        text.lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .find(|line| line["message"] == "listening")
    })
    .await;
    let gateway = &scene.gateways[0];
    for (field, address) in [
        ("http", gateway.http),
        ("https", gateway.https),
        ("admin", gateway.admin),
    ] {
        assert_eq!(line[field], address.to_string(), "{line}");
    }
    for absent in ["addresses", "redirect"] {
        assert_eq!(line.get(absent), None, "{line}");
    }
}
