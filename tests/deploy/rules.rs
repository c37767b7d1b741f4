//! Alert rules, by promtool: well-formed, and each seen firing and silent in `alerts_test.yml`.

use std::process::Command;

use super::{deployed, text_of};

#[track_caller]
fn promtool(arguments: &[&str]) {
    let output = Command::new("promtool")
        .args(arguments)
        .current_dir(deployed("prometheus"))
        .output()
        .unwrap_or_else(|error| panic!("promtool: {error} (apt-get install prometheus)"));
    assert!(
        output.status.success(),
        "promtool {arguments:?}\n{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn prometheus_takes_the_scrape_configuration_and_the_rules() {
    promtool(&["check", "config", "prometheus.yml"]);
}

#[test]
fn every_alert_fires_when_it_should_and_is_silent_a_step_before() {
    promtool(&["test", "rules", "alerts_test.yml"]);
}

#[test]
fn every_alert_is_tested_and_shows_what_to_do() {
    let rules: serde_yaml::Value = serde_yaml::from_str(&text_of("prometheus/alerts.yml")).unwrap();
    let tests = text_of("prometheus/alerts_test.yml");
    let mut seen = 0;
    for group in rules["groups"].as_sequence().unwrap() {
        for rule in group["rules"].as_sequence().unwrap() {
            let name = rule["alert"].as_str().unwrap();
            let runbook = rule["annotations"]["runbook"].as_str().unwrap_or_default();
            assert!(!runbook.is_empty(), "{name} has no runbook line");
            let mut words = tests.split(|one: char| !one.is_alphanumeric());
            assert!(words.any(|word| word == name), "{name} has no test");
            seen += 1;
        }
    }
    assert!(seen > 0);
}
