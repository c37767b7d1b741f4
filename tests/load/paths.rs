//! Millions of paths as attackers write them, judged by the gateway and by what upstreams of several kinds make of them:
//! `make paths`, or `PATHS=10000000 SEED=1 cargo bench --bench paths`. Prints figures; ends with 1 at the first bypass.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::process::ExitCode;
use std::time::Instant;

use harness::paths::{NORMALISERS, generated};
use touchline::config::Config;
use touchline::policy::target::Target;

const FILE: &str = include_str!("../edge/normalisers.yaml");

fn number(variable: &str, default: u64) -> u64 {
    let given = std::env::var(variable).ok().filter(|text| !text.is_empty());
    given.map_or(default, |text| text.parse().unwrap())
}

fn main() -> ExitCode {
    let (paths, seed) = (number("PATHS", 10_000_000), number("SEED", 1));
    let config = Config::parse("normalisers.yaml", FILE, &|_| None).unwrap();
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut refused, mut unknown, mut found) = (0u64, 0u64, 0u64);
    let start = Instant::now();
    for _ in 0..paths {
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
        for (name, normalise) in NORMALISERS {
            let read = normalise(target.path);
            match config.endpoints.find(&read) {
                Some(other) if other.pattern != endpoint.pattern => {
                    println!(
                        "BYPASS: {sent:?} is {} for us and {read:?} for one that {name}",
                        endpoint.pattern
                    );
                    return ExitCode::FAILURE;
                }
                Some(_) | None => {}
            }
        }
    }
    println!(
        "{paths} paths of seed {seed} in {:.0} s: {refused} refused, {unknown} no endpoint, {found} admitted and read in the \
         same way by {} kinds of upstream; 0 bypasses",
        start.elapsed().as_secs_f64(),
        NORMALISERS.len()
    );
    ExitCode::SUCCESS
}
