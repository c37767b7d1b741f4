//! The configurations that `deploy/` carries are taken by the gateway itself, with what their secrets would hold.

use std::path::Path;
use std::process::{Command, Output};

use serde::Deserialize;
use serde_yaml::Value;

use super::schema::{complaints, validator};
use super::{TOUCHLINE, text_of};

/// Files that deployments mount, and what stands in for them here.
const MOUNTED: [(&str, &str); 5] = [
    ("/etc/touchline/admin-token", "a-word-that-nobody-guesses"),
    (
        "/run/secrets/touchline/admin-token",
        "a-word-that-nobody-guesses",
    ),
    ("/run/secrets/touchline/redis-url", "redis://redis:6379/0"),
    ("/etc/touchline/tls", "tls"),
    ("/run/secrets/tls/tls", "tls"),
];

/// The documents of a YAML file.
fn documents(name: &str) -> Vec<Value> {
    let text = text_of(name);
    let documents = serde_yaml::Deserializer::from_str(&text);
    documents
        .map(|document| Value::deserialize(document).unwrap())
        .collect()
}

/// The configuration in the Kubernetes manifests.
fn of_kubernetes() -> String {
    let all = documents("kubernetes/touchline.yaml");
    let map = all.iter().find(|one| one["kind"] == "ConfigMap").unwrap();
    map["data"]["gateway.yaml"].as_str().unwrap().to_owned()
}

/// The output of `touchline check` for it, where everything that it mounts is there.
fn check(yaml: &str, directory: &Path) -> Output {
    let certificate = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    std::fs::write(directory.join("tls.crt"), certificate.cert.pem()).unwrap();
    std::fs::write(
        directory.join("tls.key"),
        certificate.signing_key.serialize_pem(),
    )
    .unwrap();
    // A name that only their networks know.
    let mut yaml = yaml.replace("\"prediction-data:9000\"", "\"127.0.0.1:9000\"");
    for (place, content) in MOUNTED {
        let here = directory.join(Path::new(place).file_name().unwrap());
        if content != "tls" {
            std::fs::write(&here, content).unwrap();
        }
        yaml = yaml.replace(place, &here.display().to_string());
    }
    let file = directory.join("gateway.yaml");
    std::fs::write(&file, yaml).unwrap();
    let mut command = Command::new(TOUCHLINE);
    command.arg("check").arg("--config").arg(&file);
    command.output().unwrap()
}

#[test]
fn the_gateway_takes_the_configurations_of_compose_and_kubernetes() {
    for yaml in [text_of("compose/gateway.yaml"), of_kubernetes()] {
        let directory = tempfile::tempdir().unwrap();
        let output = check(&yaml, directory.path());
        assert!(output.status.success(), "{output:?}");
        let broken = check(
            &yaml.replace("daily: 1000", "daily: never"),
            directory.path(),
        );
        assert_eq!(broken.status.code(), Some(78), "{broken:?}");
    }
}

#[test]
fn the_configurations_of_compose_and_kubernetes_meet_the_schema() {
    let validator = validator();
    for yaml in [text_of("compose/gateway.yaml"), of_kubernetes()] {
        assert_eq!(complaints(&validator, &yaml), [""; 0], "{yaml}");
        let broken = yaml.replace("min_nodes:", "min_nodse:");
        let complaints = complaints(&validator, &broken);
        assert!(
            complaints.iter().any(|one| one.starts_with("/store")),
            "{complaints:?}"
        );
    }
}

#[test]
fn compose_mounts_only_what_is_there_or_its_head_states_how_to_make() {
    let compose = text_of("compose.yaml");
    let document = documents("compose.yaml").remove(0);
    let mut seen = 0;
    for (name, service) in document["services"].as_mapping().unwrap() {
        for volume in service["volumes"].as_sequence().into_iter().flatten() {
            let source = match volume {
                Value::String(text) => text.split(':').next().unwrap(),
                bind => bind["source"].as_str().unwrap(),
            };
            let Some(own) = source.strip_prefix("./") else {
                assert!(
                    document["volumes"].get(source).is_some(),
                    "{name:?}: {source}"
                );
                continue;
            };
            let there = super::deployed(own).exists();
            assert!(
                there || compose.contains(&format!("> deploy/{own}")),
                "{own}"
            );
            seen += 1;
        }
    }
    assert!(seen >= 6, "{seen}");
}

#[test]
fn every_pod_of_kubernetes_finds_what_its_configuration_names() {
    let all = documents("kubernetes/touchline.yaml");
    let set = all.iter().find(|one| one["kind"] == "StatefulSet").unwrap();
    let container = &set["spec"]["template"]["spec"]["containers"][0];
    let mounts: Vec<&str> = container["volumeMounts"]
        .as_sequence()
        .unwrap()
        .iter()
        .map(|mount| mount["mountPath"].as_str().unwrap())
        .collect();
    let config: Value = serde_yaml::from_str(&of_kubernetes()).unwrap();
    let redis = &config["store"]["redis"];
    let https = &config["listen"]["https"];
    for file in [
        &redis["url_file"],
        &redis["journal"],
        &redis["replica"],
        &https["certificate"],
        &https["private_key"],
        &config["listen"]["admin"]["token_file"],
    ] {
        let file = Path::new(file.as_str().unwrap());
        let parent = file.parent().unwrap().to_str().unwrap();
        assert!(mounts.contains(&parent), "{file:?}: {mounts:?}");
    }
    // Beside an autoscaler, a number in the set would be put back by each apply.
    assert!(set["spec"].get("replicas").is_none());
    let autoscaler = all
        .iter()
        .find(|one| one["kind"] == "HorizontalPodAutoscaler")
        .unwrap();
    assert_eq!(redis["min_nodes"], autoscaler["spec"]["minReplicas"]);
    assert_eq!(container["startupProbe"]["httpGet"]["path"], "/livez");
}

#[test]
fn every_deployment_is_scraped_as_the_job_that_rules_and_board_select() {
    let monitor = documents("kubernetes/podmonitor.yaml").remove(0);
    let all = documents("kubernetes/touchline.yaml");
    let set = all.iter().find(|one| one["kind"] == "StatefulSet").unwrap();
    // Without it, the operator names the job after the monitor and its namespace.
    let label = monitor["spec"]["jobLabel"].as_str().unwrap();
    let pods = &set["spec"]["template"]["metadata"]["labels"][label];
    let mut jobs = vec![pods.as_str().unwrap().to_owned()];
    for file in ["prometheus/prometheus.yml", "compose/prometheus.yml"] {
        let scrapes = documents(file).remove(0)["scrape_configs"].clone();
        let scrapes = scrapes.as_sequence().unwrap().iter();
        let own = scrapes.map(|one| one["job_name"].as_str().unwrap().to_owned());
        jobs.extend(own);
    }
    for file in ["prometheus/alerts.yml", "grafana/touchline.json"] {
        let text = text_of(file).replace('\\', "");
        let selected = text.split("{job=\"").skip(1);
        let mut selected = selected
            .map(|rest| rest.split('"').next().unwrap())
            .peekable();
        assert!(selected.peek().is_some(), "{file}");
        for job in selected {
            assert!(jobs.iter().all(|one| one == job), "{file}: {job}, {jobs:?}");
        }
    }
}
