//! The long runs of the fault suite: `make soak`. Figures, and a verdict: if a rule was broken, it exits with another status than 0 and
//! prints the seed and the command that repeats the same schedule; the timing of the processes within a schedule may still differ.
//! Midnights need no seed: they are always the same.
//!
//! | Variable | Default | Meaning |
//! |---|---|---|
//! | `SEED` | 1 | the first schedule's seed; the next one's is one more |
//! | `MINUTES` | 60 | no round of schedules begins after this time; the report covers the rounds until then |
//! | `PARTS` | all | a selection of `model requests topologies kills midnights reloads upgrades`, separated by spaces |
//! | `DECISIONS` | 10,000,000 | decisions of the model |
//! | `REQUESTS` | 1,000,000 | requests end to end on one Redis with mixed faults |
//! | `ROUNDS` | 12 | schedules on Sentinel and Cluster |
//! | `KILLS` | 1,000 | gateways killed under load, one each half second |
//! | `MIDNIGHTS` | 200 | midnights of two-second days, on Redis and on the embedded store at the same time |
//! | `RELOADS` | 600 | changes of `gateway.yaml` under load, one each 50 to 150 ms |
//! | `UPGRADES` | 100 | upgrades under load, each after ten reloads and with a renewed certificate |
//! | `BINARY` | the one built with this | the gateway's program; use a copy if the tree is rebuilt meanwhile |
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a measurement fails by panicking and prints what it found"
)]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use harness::Store;
use harness::faults::director::{Load, Report, play};
use harness::faults::schedule::{Fault, Schedule, Topology};
use harness::faults::stage::{Clocks, Stage, StageSpec};

mod midnights;
mod model;
mod reloads;
mod upgrades;

const MS: Duration = Duration::from_millis(1);
/// Requests of one round of `requests`, at least.
const ROUND_REQUESTS: u64 = 30_000;
const ROUND_FAULTS: usize = 4;
/// Kills between two comparisons of the ledgers.
const ROUND_KILLS: u64 = 50;

struct Setting {
    seed: u64,
    end: Instant,
    parts: Vec<String>,
}

/// A row of the table at the end.
struct Row {
    part: &'static str,
    what: String,
    took: Duration,
}

fn main() -> ExitCode {
    let setting = Setting {
        seed: number("SEED", 1),
        end: Instant::now() + Duration::from_secs(60 * number("MINUTES", 60)),
        parts: std::env::var("PARTS")
            .ok()
            .filter(|parts| !parts.trim().is_empty())
            .unwrap_or_else(|| "model requests topologies kills midnights reloads upgrades".into())
            .split_whitespace()
            .map(str::to_owned)
            .collect(),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let mut rows = Vec::new();
    for part in &setting.parts {
        let began = Instant::now();
        let outcome = match part.as_str() {
            "model" => Ok(model::run(
                setting.seed,
                number("DECISIONS", 10_000_000),
                setting.end,
            )),
            "requests" => runtime.block_on(requests(&setting)),
            "topologies" => runtime.block_on(topologies(&setting)),
            "kills" => runtime.block_on(kills(&setting)),
            "midnights" => Ok(runtime.block_on(midnights::run(number("MIDNIGHTS", 200)))),
            "reloads" => {
                let changes = u32::try_from(number("RELOADS", 600)).unwrap_or(u32::MAX);
                Ok(runtime.block_on(reloads::run(&binary(), changes, setting.seed)))
            }
            "upgrades" => {
                let upgrades = u32::try_from(number("UPGRADES", 100)).unwrap_or(u32::MAX);
                Ok(runtime.block_on(upgrades::run(&binary(), upgrades, setting.seed)))
            }
            other => Err(format!("there is no part {other}")),
        };
        match outcome {
            Ok((part, what)) => rows.push(Row {
                part,
                what,
                took: began.elapsed(),
            }),
            Err(broken) => {
                println!("BROKEN in {part}: {broken}");
                print(&rows);
                return ExitCode::FAILURE;
            }
        }
    }
    print(&rows);
    ExitCode::SUCCESS
}

/// The store of a round whose faults do not select one.
fn store_of(seed: u64) -> Store {
    match seed % 2 {
        0 => Store::Redis,
        _ => Store::Embedded,
    }
}

/// The binary under test.
fn binary() -> String {
    std::env::var("BINARY")
        .ok()
        .filter(|binary| !binary.is_empty())
        .unwrap_or_else(|| env!("CARGO_BIN_EXE_touchline").into())
}

fn number(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) if !text.is_empty() => text
            .replace([',', '_'], "")
            .parse()
            .unwrap_or_else(|_| panic!("{name}={text} is not a number")),
        Ok(_) | Err(_) => default,
    }
}

fn print(rows: &[Row]) {
    println!("\n| Part | What came of it | Took |\n|---|---|---|");
    for row in rows {
        println!(
            "| {} | {} | {:.0} s |",
            row.part,
            row.what,
            row.took.as_secs_f64()
        );
    }
}

/// One round on a stage of its own: its result, or the broken rule and how to reproduce it.
async fn round(
    topology: Topology,
    timeout: Duration,
    scarce: u64,
    schedule: &Schedule,
    load: Load,
) -> Result<Report, String> {
    let mut stage = begin(topology, timeout, scarce).await;
    play(&mut stage, schedule, load)
        .await
        .map_err(|broken| format!("{schedule}\n  {broken}"))
}

async fn begin(topology: Topology, timeout: Duration, scarce: u64) -> Stage {
    Stage::start(StageSpec {
        binary: binary().into(),
        topology,
        scarce,
        timeout,
        clocks: Clocks::Real,
    })
    .await
}

/// Adds a round's figures and prints them.
fn add(total: &mut Report, report: &Report, seed: u64, took: Instant) {
    total.figures.add(&report.figures);
    total.used_up += report.used_up;
    total.longest_recovery = total.longest_recovery.max(report.longest_recovery);
    let figures = &report.figures;
    println!(
        "seed {seed}: {} calls in {:.0} s, {} served, {} kills, {} units above limits (bound {}), {} lost",
        figures.calls,
        took.elapsed().as_secs_f64(),
        figures.served,
        figures.kills,
        figures.above,
        figures.allowed_above,
        figures.lost
    );
}

fn output(rounds: u64, total: &Report) -> String {
    let figures = &total.figures;
    format!(
        "{} requests in {rounds} rounds: {} served, {} refused with 429, {} answered 500 without a fault of the upstream, {} \
         without an answer from a killed gateway; {} keys used up; {} faults that may cost something, {} kills; {} units \
         above limits where the bounds allowed {}: 0 beyond; {} units lost, {} of killed gateways counted and not served; \
         waits for the store: p99 {} ms, longest {} ms; ready after a fault within {:.1} s",
        figures.calls,
        figures.served,
        figures.exhausted,
        figures.unserved,
        figures.unanswered,
        total.used_up,
        figures.costly_faults,
        figures.kills,
        figures.above,
        figures.allowed_above,
        figures.lost,
        figures.counted_more,
        figures.wait_at(990),
        figures.longest_wait.as_millis(),
        total.longest_recovery.as_secs_f64()
    )
}

/// Mixed faults on one Redis, which keeps its data in every other round.
async fn requests(setting: &Setting) -> Result<(&'static str, String), String> {
    let wanted = number("REQUESTS", 1_000_000);
    let (mut total, mut rounds) = (Report::default(), 0);
    while total.figures.calls < wanted && Instant::now() < setting.end {
        let (seed, began) = (setting.seed + rounds, Instant::now());
        let topology = match seed % 2 {
            0 => Topology::Forgetful,
            _ => Topology::Durable,
        };
        let schedule = Schedule::seeded(topology, seed, ROUND_FAULTS);
        let load = Load {
            clients: 8,
            pause: 3 * MS,
            calls: ROUND_REQUESTS.min(wanted),
        };
        let report = round(topology, 400 * MS, 2_000, &schedule, load)
            .await
            .map_err(|broken| {
                format!(
                    "seed {seed}; again: make soak PARTS=requests REQUESTS=1 SEED={seed}\n{broken}"
                )
            })?;
        add(&mut total, &report, seed, began);
        rounds += 1;
    }
    Ok(("requests", output(rounds, &total)))
}

/// Sentinel and Cluster in turn.
async fn topologies(setting: &Setting) -> Result<(&'static str, String), String> {
    let wanted = number("ROUNDS", 12);
    let (mut total, mut rounds) = (Report::default(), 0);
    while rounds < wanted && Instant::now() < setting.end {
        let (seed, began) = (setting.seed + rounds, Instant::now());
        let topology = match seed % 2 {
            0 => Topology::Cluster,
            _ => Topology::Sentinel,
        };
        let schedule = Schedule::seeded(topology, seed, 3);
        let load = Load {
            clients: 6,
            pause: 4 * MS,
            calls: 8_000,
        };
        let report = round(topology, 400 * MS, 1_000, &schedule, load)
            .await
            .map_err(|broken| {
                format!(
                    "seed {seed}; again: make soak PARTS=topologies ROUNDS=1 SEED={seed}\n{broken}"
                )
            })?;
        add(&mut total, &report, seed, began);
        rounds += 1;
    }
    Ok(("Sentinel and Cluster", output(rounds, &total)))
}

/// One random gateway is killed each half second, and restarted; the load pauses only while ledgers are compared.
async fn kills(setting: &Setting) -> Result<(&'static str, String), String> {
    let wanted = number("KILLS", 1_000);
    let mut stage = begin(Topology::Durable, 5_000 * MS, 4_000).await;
    let (mut total, mut rounds) = (Report::default(), 0);
    while total.figures.kills < wanted && Instant::now() < setting.end {
        let (seed, began) = (setting.seed + rounds, Instant::now());
        let fault = Fault::GatewaysKilled {
            seed,
            times: ROUND_KILLS.min(wanted - total.figures.kills),
            every: 500 * MS,
        };
        let schedule = Schedule::of(Topology::Durable, fault);
        let load = Load {
            clients: 6,
            pause: 4 * MS,
            calls: 1,
        };
        let report = play(&mut stage, &schedule, load).await.map_err(|broken| {
            format!("seed {seed}; again: make soak PARTS=kills KILLS={ROUND_KILLS} SEED={seed}\n{broken}")
        })?;
        add(&mut total, &report, seed, began);
        rounds += 1;
    }
    Ok(("kills", output(rounds, &total)))
}
