//! No upstream, however it reads a path, sees another endpoint in it than the gateway did.
//!
//! `make paths` judges ten million paths in the same way.

use harness::paths::{NORMALISERS, generated};
use touchline::config::Config;
use touchline::policy::target::Target;

const PATHS: usize = 100_000;
/// Siblings, parents and parameters with tiers of their own, so that a wrong turn shows.
const FILE: &str = include_str!("normalisers.yaml");

#[test]
fn no_normaliser_of_an_upstream_makes_another_endpoint_of_an_admitted_path() {
    let config = Config::parse("normalisers.yaml", FILE, &|_| None).unwrap();
    let mut random = fastrand::Rng::with_seed(0x70_61_74_68);
    let (mut refused, mut unknown, mut found) = (0, 0, 0);
    for _ in 0..PATHS {
        let sent = generated(&mut random);
        let Ok(target) = Target::parse(sent.as_bytes()) else {
            refused += 1;
            continue;
        };
        let Some(endpoint) = config.endpoints.find(target.path) else {
            unknown += 1;
            continue;
        };
        found += 1;
        // What was matched is what goes on, byte for byte.
        assert!(sent.starts_with(target.path), "{sent}");
        for (name, normalise) in NORMALISERS {
            let read = normalise(target.path);
            if let Some(other) = config.endpoints.find(&read) {
                assert_eq!(endpoint.pattern, other.pattern, "{sent} is {read}: {name}");
            }
        }
    }
    // The generator hits all three.
    for number in [refused, unknown, found] {
        assert!(number > PATHS / 50, "{refused} {unknown} {found}");
    }
}
