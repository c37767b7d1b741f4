//! Millions of paths as attackers write them, judged by the gateway and by several kinds of upstreams:
//! `make paths`, or `PATHS=10000000 SEED=1 cargo bench --bench paths`. Prints figures; exits with 1 at the first bypass.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::process::ExitCode;
use std::time::Instant;

use harness::paths::{NORMALISERS, judge};
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
    let start = Instant::now();
    let judged = judge(
        &mut random,
        paths,
        |sent| Some(Target::parse(sent.as_bytes()).ok()?.path),
        |path| Some(config.endpoints.find(path)?.pattern.clone()),
    );
    match judged {
        Ok(judged) => {
            println!(
                "{paths} paths of seed {seed} in {:.0} s: {} refused, {} no endpoint, {} admitted and read in the same way by {} \
                 kinds of upstream; 0 bypasses",
                start.elapsed().as_secs_f64(),
                judged.refused,
                judged.unknown,
                judged.found,
                NORMALISERS.len()
            );
            ExitCode::SUCCESS
        }
        Err(bypass) => {
            println!("BYPASS: {bypass}");
            ExitCode::FAILURE
        }
    }
}
