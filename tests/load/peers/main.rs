//! Touchline beside its peers, in one run on one machine: `make bench`. Figures, not a verdict.
//!
//! Each contender runs alone on the first core, with one worker; the upstream and the load generator on the second, Redis on the
//! second too. A round takes every contender once: warm-up, then as much as it can over 64 connections (wrk over 100 keys
//! in turn; h2load with one key over TLS), then 2,000 requests a second (h2load), whose latencies are told. Rounds are
//! interleaved, so that what else the machine does falls on all; medians and spread are told. CPU is user and system
//! time of the contender's process from the kernel; that of Redis is told apart.
//!
//! `DURATION` (seconds) and `ROUNDS` in the environment say how long (5 and 3); the table goes to standard output, and with a CSV and
//! an SVG file to `target/bench`. With the argument `growth` it is told instead how Touchline's cost grows: `make growth`.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a measurement fails by panicking and prints what it found"
)]

mod contender;
mod growth;
mod load;
mod report;

use std::time::Duration;

use contender::{Contender, Kind, Stage};
use report::{Figures, Report};

/// Connections at saturation.
const CONNECTIONS: u32 = 64;
/// Requests a second, over all connections, at which latency is told.
const STEADY_RATE: u32 = 2_000;
const STEADY_CONNECTIONS: u32 = 20;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn number(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) if !text.is_empty() => text
            .parse()
            .unwrap_or_else(|error| panic!("{name}={text}: {error}")),
        Ok(_) | Err(_) => default,
    }
}

fn main() {
    let seconds = Duration::from_secs(number("DURATION", 5));
    let rounds = number("ROUNDS", 3);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    if std::env::args().any(|argument| argument == "growth") {
        let directory = contender::output_directory();
        return runtime.block_on(growth::measure(seconds, rounds, &directory));
    }
    let report = runtime.block_on(async {
        let mut report = Report::new(seconds, rounds);
        for round in 1..=rounds {
            for kind in Kind::ALL {
                eprintln!("round {round} of {rounds}: {}", kind.name());
                let figures = measure(kind, seconds).await;
                report.add(kind, figures);
            }
        }
        report
    });
    println!("{}", report.table());
    report.write(&contender::output_directory());
}

/// One contender, once.
async fn measure(kind: Kind, seconds: Duration) -> Figures {
    let stage = Stage::set().await;
    let mut contender = Contender::start(kind, &stage).await;
    contender.assert_answers(&stage).await;
    load::saturate(&contender, &stage, Duration::from_secs(1));
    let (cpu, redis_cpu) = (contender.cpu(), stage.redis_cpu());
    let saturated = load::saturate(&contender, &stage, seconds);
    let used = contender.cpu() - cpu;
    let redis_used = stage.redis_cpu() - redis_cpu;
    let resident_bytes = contender.resident_bytes();
    let steady = load::hold(&contender, &stage, seconds);
    let per_request = |time: Duration| time.as_secs_f64() * 1e6 / saturated.requests;
    let figures = Figures {
        requests_per_second: saturated.requests / saturated.seconds,
        saturated_p99: saturated.p99,
        cpu_us: per_request(used),
        redis_cpu_us: per_request(redis_used),
        resident_bytes,
        steady,
    };
    contender.stop();
    figures
}
