//! Rules and board ask for families that exist, and leave none unused.

use std::collections::BTreeSet;

use super::text_of;

/// Families that need no panel: always 1, or read by the board as a variable.
const WITHOUT_PANEL: [&str; 1] = ["touchline_build_info"];

/// Every `touchline_…` word of a text, without the suffixes of a histogram's series.
fn families(text: &str) -> BTreeSet<String> {
    let word = |letter: char| letter.is_ascii_lowercase() || letter == '_';
    text.split(|letter: char| !word(letter))
        .filter(|name| name.starts_with("touchline_"))
        .map(|name| {
            let base = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|suffix| name.strip_suffix(suffix));
            base.unwrap_or(name).to_owned()
        })
        .collect()
}

fn existing() -> BTreeSet<String> {
    families(concat!(
        include_str!("../../src/telemetry/metrics.rs"),
        include_str!("../../src/telemetry/diagnostics.rs"),
    ))
}

#[test]
fn rules_and_board_name_only_families_that_exist() {
    let existing = existing();
    for file in [
        "prometheus/alerts.yml",
        "prometheus/alerts_test.yml",
        "grafana/touchline.json",
    ] {
        let used = families(&text_of(file));
        assert!(!used.is_empty(), "{file}");
        let unknown: Vec<_> = used.difference(&existing).collect();
        assert!(unknown.is_empty(), "{file} names {unknown:?}");
    }
}

#[test]
fn every_family_is_on_the_board_or_in_a_rule() {
    let mut shown = families(&text_of("grafana/touchline.json"));
    shown.extend(families(&text_of("prometheus/alerts.yml")));
    shown.extend(WITHOUT_PANEL.map(str::to_owned));
    let existing = existing();
    let forgotten: Vec<_> = existing.difference(&shown).collect();
    assert!(forgotten.is_empty(), "nobody looks at {forgotten:?}");
}
