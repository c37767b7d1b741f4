//! The JSON Schema of `gateway.yaml`: what editors accept is what the gateway reads.

use std::path::Path;
use std::process::Command;

use harness::{GatewaySpec, StoreSpec};
use jsonschema::Validator;
use serde_json::Value;

use super::{TOUCHLINE, text_of};

const KEPT: &str = "gateway.schema.json";

fn shipped() -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("gateway.yaml");
    std::fs::read_to_string(file).unwrap()
}

fn schema() -> Value {
    serde_json::from_str(&text_of(KEPT)).unwrap()
}

pub(super) fn validator() -> Validator {
    let schema = schema();
    assert!(jsonschema::meta::is_valid(&schema));
    jsonschema::draft202012::new(&schema).unwrap()
}

/// Where an editor would underline something, and why.
pub(super) fn complaints(validator: &Validator, yaml: &str) -> Vec<String> {
    let value: Value = serde_yaml::from_str(yaml).unwrap();
    validator
        .iter_errors(&value)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect()
}

/// Whether `touchline check` takes a file.
fn is_taken(yaml: &str) -> bool {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("gateway.yaml");
    std::fs::write(&file, yaml).unwrap();
    let mut command = Command::new(TOUCHLINE);
    let output = command.arg("check").arg("--config").arg(file).output();
    output.unwrap().status.success()
}

#[test]
fn the_kept_schema_is_what_the_command_prints() {
    let output = Command::new(TOUCHLINE).arg("schema").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        printed,
        text_of(KEPT),
        "deploy/gateway.schema.json is behind: KEEP=yes cargo test --workspace --locked --test house reference"
    );
}

#[test]
fn the_shipped_file_and_those_of_the_tests_meet_the_schema() {
    let validator = validator();
    assert_eq!(complaints(&validator, &shipped()), [""; 0]);
    let upstream = "127.0.0.1:9".parse().unwrap();
    for store in [
        StoreSpec::Embedded("var/a.db".into()),
        StoreSpec::Redis {
            url: "redis://127.0.0.1".into(),
            key_prefix: "p".into(),
        },
        StoreSpec::Cluster {
            nodes: vec!["a:1".into()],
        },
    ] {
        let yaml = GatewaySpec::new(store, upstream).yaml(Path::new("/tmp/a.log"));
        assert_eq!(complaints(&validator, &yaml), [""; 0], "{yaml}");
    }
}

#[test]
fn what_is_commented_out_in_the_shipped_file_meets_the_schema_too() {
    let validator = validator();
    let text = shipped();
    let store = text.find("store:\n").unwrap();
    let end = text.find("\nquota:").unwrap();
    // Each of the commented keys of Redis, one place of it at a time.
    let redis: Vec<&str> = text[store..end]
        .lines()
        .filter_map(|line| line.strip_prefix("  # "))
        .collect();
    let redis = redis.join("\n");
    assert!(redis.starts_with("redis:"), "{redis}");
    let yaml = format!(
        "{}store:\n{}\n{}",
        &text[..store],
        redis
            .lines()
            .map(|line| format!("  {line}\n"))
            .collect::<String>(),
        &text[end..]
    );
    let parsed: Value = serde_yaml::from_str(&yaml).unwrap();
    assert!(
        parsed["store"]["redis"]["tls"]["ca_file"].is_string(),
        "{yaml}"
    );
    assert_eq!(complaints(&validator, &yaml), [""; 0]);
}

#[test]
fn mistakes_that_the_gateway_refuses_are_underlined_at_their_places() {
    let validator = validator();
    let text = shipped();
    assert!(is_taken(&text));
    for (old, new, place) in [
        ("daily: 3000", "dayly: 3000", "/tiers/pro"),
        ("daily: 3000", "daily: 0", "/tiers/pro/daily"),
        ("daily: 3000", "daily: \"3000\"", "/tiers/pro/daily"),
        (
            "daily: 3000",
            "daily: 3000\n    concurrent: 0",
            "/tiers/pro/concurrent",
        ),
        (
            "daily: 3000",
            "daily: 3000\n    burst: { rate: 5 }",
            "/tiers/pro/burst",
        ),
        (
            "connect: 1s",
            "connect: 1 s",
            "/upstreams/prediction-data/timeouts/connect",
        ),
        (
            "connect: 1s",
            "connect: 1",
            "/upstreams/prediction-data/timeouts/connect",
        ),
        (
            "retries: 1",
            "retries: 4",
            "/upstreams/prediction-data/retries",
        ),
        (
            "header_bytes: 16KiB",
            "header_bytes: 16kb",
            "/limits/header_bytes",
        ),
        ("level: info", "level: loud", "/logging/level"),
        ("format: json", "formt: json", "/logging"),
        (
            "durability: 1s",
            "durability: never",
            "/store/embedded/durability",
        ),
        (
            "cleartext: loopback",
            "cleartext: yes",
            "/listen/http/cleartext",
        ),
        (
            "    servers: [127.0.0.1:9000]\n",
            "",
            "/upstreams/prediction-data",
        ),
        (
            "    methods: [GET]\n    tiers: [enterprise]\n",
            "",
            "/endpoints/5",
        ),
        ("timezone: UTC", "timezone: 5", "/quota/timezone"),
        (
            "servers: [127.0.0.1:9000]",
            "servers: []",
            "/upstreams/prediction-data/servers",
        ),
        ("methods: [GET]", "methods: []", "/endpoints/0/methods"),
        ("methods: [GET]", "methods: [get]", "/endpoints/0/methods/0"),
        (
            "path: /api/v1/data/markets",
            "path: api/v1/data/markets",
            "/endpoints/0/path",
        ),
        (
            "servers: [127.0.0.1:9000]",
            "servers: [http://127.0.0.1]",
            "/upstreams/prediction-data/servers/0",
        ),
        (
            "tiers: [starter, pro, enterprise]",
            "tiers: [starter, pro, pro]",
            "/endpoints/0/tiers",
        ),
        (
            "shares: [80%, 95%, 100%]",
            "shares: [80%, 80%]",
            "/events/shares",
        ),
    ] {
        assert!(text.contains(old), "{old}");
        let wrong = text.replacen(old, new, 1);
        assert!(!is_taken(&wrong), "{new}");
        let complaints = complaints(&validator, &wrong);
        assert!(
            complaints
                .iter()
                .any(|complaint| complaint.starts_with(&format!("{place}: "))),
            "{new}: {complaints:?}"
        );
    }
    let variable = text
        .replacen("daily: 3000", "daily: \"${DAILY}\"", 1)
        .replacen("level: info", "level: \"${LEVEL}\"", 1)
        .replacen("connect: 1s", "connect: \"${MS}ms\"", 1);
    assert_eq!(complaints(&validator, &variable), [""; 0]);
}

#[test]
fn every_key_has_a_description_and_where_it_can_have_one_a_default() {
    fn walk(path: &str, shape: &Value, seen: &mut Vec<String>) {
        for (name, inner) in shape["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}.{name}");
            let description = inner["description"].as_str().unwrap_or_default();
            assert!(description.ends_with('.'), "{path}: {description:?}");
            if inner.get("default").is_some() {
                seen.push(path.clone());
            }
            walk(&path, inner, seen);
        }
        for inner in ["items", "additionalProperties"] {
            if shape[inner].is_object() {
                walk(path, &shape[inner], seen);
            }
        }
    }
    let mut defaults = Vec::new();
    walk("", &schema(), &mut defaults);
    for path in [
        ".listen.https.certificate",
        ".store.redis.outage",
        ".quota.timezone",
        ".endpoints.cost",
        ".endpoints.methods",
        ".upstreams.timeouts.read",
        ".forward.headers_denied",
        ".forward.answer_headers_denied",
        ".limits.connections",
        ".logging.access_log",
    ] {
        assert!(
            defaults.iter().any(|one| one == path),
            "{path}: {defaults:?}"
        );
    }
    assert!(!defaults.iter().any(|one| one == ".tiers.daily"));
}
