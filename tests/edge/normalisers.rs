//! No upstream, however it reads a path, sees another endpoint in it than the gateway did.
//!
//! `make paths` judges ten million paths in the same way.

use harness::paths::{compatibility_form, judge};
use touchline::config::Config;
use touchline::policy::target::Target;

const PATHS: u64 = 100_000;
/// Siblings, parents and parameters with tiers of their own, so that a wrong turn shows.
const FILE: &str = include_str!("normalisers.yaml");

#[test]
fn no_normaliser_of_an_upstream_makes_another_endpoint_of_an_admitted_path() {
    let config = Config::parse("normalisers.yaml", FILE, &|_| None).unwrap();
    let mut random = fastrand::Rng::with_seed(0x70_61_74_68);
    let judged = judge(
        &mut random,
        PATHS,
        |sent| Some(Target::parse(sent.as_bytes()).ok()?.path),
        |path| Some(config.endpoints.find(path)?.pattern.clone()),
    )
    .unwrap();
    // The generator hits all three.
    for number in [judged.refused, judged.unknown, judged.found] {
        assert!(number > PATHS / 50, "{judged:?}");
    }
}

#[test]
fn no_admitted_character_is_a_separator_a_dot_segment_or_a_control_in_its_compatibility_form() {
    for character in ('\u{80}'..='\u{1ffff}').map(String::from) {
        let escaped = character.bytes().map(|byte| format!("%{byte:02x}"));
        let path = format!("/{}", escaped.collect::<String>());
        let form = compatibility_form(&character);
        let is_separator = form.contains(['/', '\\', ';', '%', '?', '#']);
        let is_dot_segment = form == "." || form == "..";
        let is_harmless = !is_separator && !is_dot_segment && !form.contains(char::is_control);
        let is_admitted = Target::parse(path.as_bytes()).is_ok();
        assert_eq!(is_admitted, is_harmless, "{path} is {form:?}");
    }
}
