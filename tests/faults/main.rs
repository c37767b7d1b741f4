//! Schedules of faults on every topology, judged by the oracle of `harness::faults`: three gateways, many clients, an
//! upstream that records what it served. The long runs of the same are `make soak`.
//!
//! What every schedule here shows, beside its name: no unit above a limit but within the bound, none lost or invented,
//! no 401 and no 429 because of a fault, no wait for the store beyond its timeout.
// Clippy's exceptions for tests do not reach their functions.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::print_stdout)]

use std::time::Duration;

use harness::faults::director::{Load, Report, play};
use harness::faults::schedule::{Fault, Schedule, Topology};
use harness::faults::stage::{Clocks, Stage, StageSpec};

mod clocks;
mod one_server;
mod seeded;
mod topologies;
mod wires;

/// The binary under test.
const TOUCHLINE: &str = env!("CARGO_BIN_EXE_touchline");
/// Units a day of the keys that are to be used up.
const SCARCE: u64 = 150;
const MS: Duration = Duration::from_millis(1);

/// How much a store that is well may be late without being given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Timeout {
    /// Far beyond what a busy machine needs: nothing is served without the store.
    Long,
    /// So that faults show.
    Short,
}

async fn stage(topology: Topology, timeout: Timeout, clocks: Clocks) -> Stage {
    Stage::start(spec(topology, timeout, clocks)).await
}

fn spec(topology: Topology, timeout: Timeout, clocks: Clocks) -> StageSpec {
    StageSpec {
        binary: TOUCHLINE.into(),
        topology,
        scarce: SCARCE,
        timeout: match timeout {
            Timeout::Long => 10_000 * MS,
            Timeout::Short => 400 * MS,
        },
        clocks,
    }
}

/// Plays a schedule on a stage; panics with what was broken, and with all output.
async fn hold(stage: &mut Stage, schedule: &Schedule) -> Report {
    let load = Load {
        clients: 4,
        pause: 4 * MS,
        calls: 1_500,
    };
    let report = match play(stage, schedule, load).await {
        Ok(report) => report,
        Err(broken) => panic!("{schedule}\n  {broken}\n{}", stage.outputs()),
    };
    println!("{schedule}\n{report:?}");
    assert!(report.used_up_later >= 1, "no key was used up: {report:?}");
    // Calls that the store left waiting without a fault relax the judgement.
    let (stalls, calls) = (report.figures.stalls, report.figures.calls);
    assert!(
        stalls * 20 <= calls,
        "the machine is too slow to judge by: {report:?}"
    );
    report
}

/// The same on a stage of its own with the machine's clock.
async fn hold_faults(
    topology: Topology,
    timeout: Timeout,
    faults: impl IntoIterator<Item = Fault>,
) -> Report {
    let mut stage = stage(topology, timeout, Clocks::Real).await;
    hold(&mut stage, &Schedule::of_all(topology, faults)).await
}

/// Nothing above a limit, nothing lost, and not one refusal but what upstream and limits ask for.
fn assert_unharmed(report: &Report) {
    let figures = &report.figures;
    assert_eq!(
        (figures.above, figures.lost, figures.unserved),
        (0, 0, 0),
        "{report:?}"
    );
}
