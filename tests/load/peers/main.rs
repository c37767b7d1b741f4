//! Touchline beside its peers, in one run on one machine: `make bench`. Figures, not a verdict.
//!
//! All contenders are up at once, on the first core, with one worker each; the upstream, Redis and the load on the second. The speed
//! of a machine changes from one second to the next, which would distort the figures of a contender measured in a slow one: so slices
//! are short and take turns, forwards and backwards, over many rounds; contenders are compared within a round, and the median and
//! the quartiles of these ratios are reported.
//!
//! - **CPU a request**: user and system time of the contender's threads, in nanoseconds of the scheduler, over a slice in which
//!   each of 64 connections sends its next request when it has its answer, 100 keys in turn; work that the contender does after
//!   its answers counts. The CPU time of Redis is reported separately. Over TLS h2load makes 10,000 requests with one key, handshakes
//!   included.
//! - **Latency** at 2,000 requests a second: arrivals are drawn beforehand (Poisson) and a latency counts from when its request was
//!   due, not from when a busy generator sent it. Each slice is paired with one of the upstream itself, with the same
//!   arrivals; the latency that a contender adds is the difference of the two. The time in which the generator and the upstream
//!   wake up is in both. The CPU of a request is reported for this rate too.
//! - **Memory** of the process after all this: with 1,000 connections that each have a request in flight again and again, and with
//!   10,000 (or as many as open files allow) that wait for their next request.
//! - **Start** to the first answer with 10,000 keys, on both cores, compared with bare pingora.
//!
//! `SLICE` (milliseconds, 500) and `ROUNDS` (22) in the environment set the duration. The report is written to standard output and, with CSV files and
//! plots, to `target/bench`; `KEEP=yes` writes tables and plots into docs/benchmarks.md and `tests/load/plots` too. With the
//! argument `growth` it reports instead how Touchline's cost grows (`make growth`), with `counts` the instructions of a
//! request (`make profile`), with `budget` whether these are within their budget (`make instructions`); with `training` it measures
//! nothing and keeps the gateway `BINARY` busy (`make pgo`), whose build is measured beside the plain one from then on.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a measurement fails by panicking and prints what it found"
)]

mod aims;
mod budget;
mod callgrind;
mod calls;
mod closed;
mod contender;
mod counts;
mod figures;
mod growth;
mod kind;
mod machine;
mod memory;
mod open;
mod plot;
mod report;
mod stage;
mod start;
mod tls;
mod training;

use std::collections::BTreeMap;
use std::time::Duration;

use closed::{Connections, Slice};
use contender::{Cast, Contender};
use harness::Protocol;
use kind::Kind;
use open::Latency;
use report::Report;
use stage::Stage;

/// Connections at saturation.
const CONNECTIONS: usize = 64;
/// A slice of latency: 2,000 requests, of which 20 are slower than its p99.
const LATENCY_SLICE: Duration = Duration::from_secs(1);
/// Slices over TLS and of latency are longer: they are run in every third round.
const SELDOM: u64 = 3;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The durations of the measurement.
#[derive(Debug, Clone, Copy)]
struct Plan {
    slice: Duration,
    rounds: u64,
}

fn number(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) if !text.is_empty() => text
            .parse()
            .unwrap_or_else(|error| panic!("{name}={text}: {error}")),
        Ok(_) | Err(_) => default,
    }
}

fn main() {
    let plan = Plan {
        slice: Duration::from_millis(number("SLICE", 500)),
        rounds: number("ROUNDS", 22).max(1),
    };
    // This process makes the load: it, and every process that it starts without naming cores, stay off the first core.
    machine::pin(std::process::id(), machine::SECOND_CORE);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let wanted = |name: &str| std::env::args().any(|argument| argument == name);
    if wanted("growth") {
        runtime.block_on(growth::measure(plan));
    } else if wanted("counts") {
        runtime.block_on(counts::measure());
    } else if wanted("budget") {
        runtime.block_on(budget::hold());
    } else if wanted("training") {
        runtime.block_on(training::train());
    } else {
        runtime.block_on(compare(plan)).report();
    }
}

async fn compare(plan: Plan) -> Report {
    let mut report = Report::new(plan);
    let stage = Stage::set().await;
    let cast = Cast::start(&stage).await;
    for round in 1..=plan.rounds {
        eprintln!("round {round} of {}", plan.rounds);
        for one in there_and_back(&cast.those(&Kind::CLEAR), round) {
            let slice = saturate(one, &stage, plan.slice).await;
            report.saturated(round, one.kind, slice);
        }
        if round % SELDOM != 1 {
            continue;
        }
        for one in there_and_back(&cast.those(&Kind::TLS), round) {
            report.saturated(round, one.kind, over_tls(one, &stage));
        }
        for one in there_and_back(&cast.those(&Kind::TIMED), round) {
            let pair = cast.those(&[Kind::Direct, one.kind]);
            let found: BTreeMap<Kind, Latency> = there_and_back(&pair, round)
                .into_iter()
                .map(|each| (each.kind, hold(each, round)))
                .collect();
            report.timed(round, one.kind, found[&Kind::Direct], found[&one.kind]);
        }
    }
    report.memory = memory::measure(&cast).await;
    drop(cast);
    report.starts = start::measure(&stage).await;
    report
}

/// Every other round takes the contenders backwards, so that none always follows the same one.
fn there_and_back<T: Clone>(all: &[T], round: u64) -> Vec<T> {
    let mut all = all.to_vec();
    if round.is_multiple_of(2) {
        all.reverse();
    }
    all
}

async fn saturate(contender: &Contender, stage: &Stage, time: Duration) -> Slice {
    let mut connections =
        Connections::open(std::slice::from_ref(&contender.calls), CONNECTIONS).await;
    let measured = [contender.pid];
    connections.measure(&measured, stage.redis_pid, time).await
}

/// The number of the round draws the arrivals: they are the same for all that it compares.
fn hold(contender: &Contender, round: u64) -> Latency {
    let calls = std::slice::from_ref(&contender.calls);
    open::hold(calls, &[contender.pid], LATENCY_SLICE, round)
}

fn over_tls(contender: &Contender, stage: &Stage) -> Slice {
    let protocol: Protocol = contender.kind.protocol();
    let asked = (contender.kind.path(), contender.key.as_str());
    let processes = (contender.pid, stage.redis_pid);
    let directory = stage.directory("load");
    tls::measure(protocol, &contender.calls, asked, processes, &directory)
}
