//! Schedules of faults on every topology, judged by the oracle of `harness::faults`: three gateways, many clients, an
//! upstream that records what it served. The long runs of the same are `make soak`.
// Clippy's exceptions for tests do not reach their functions.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::print_stdout)]

use std::time::Duration;

use harness::faults::director::{Load, Report, play};
use harness::faults::schedule::{Fault, Schedule, Topology};
use harness::faults::stage::{Clocks, Stage, StageSpec};
use harness::tcp_proxy::Wire;

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
    Stage::start(StageSpec {
        binary: TOUCHLINE.into(),
        topology,
        scarce: SCARCE,
        timeout: match timeout {
            Timeout::Long => 10_000 * MS,
            Timeout::Short => 400 * MS,
        },
        clocks,
    })
    .await
}

/// Plays schedules on a stage; panics with what was broken, and with all that was said.
async fn hold(stage: &mut Stage, schedules: &[Schedule]) -> Report {
    let load = Load {
        clients: 4,
        pause: 4 * MS,
        calls: 1_500,
    };
    let mut last = Report::default();
    for schedule in schedules {
        last = match play(stage, schedule, load).await {
            Ok(report) => report,
            Err(broken) => panic!("{schedule}\n  {broken}\n{}", stage.outputs()),
        };
        assert!(last.used_up >= 1, "no key was used up: {last:?}");
        println!("{schedule}\n{last:?}");
    }
    last
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_was_killed_or_hung_costs_no_more_than_the_shares() {
    let mut stage = stage(Topology::Durable, Timeout::Short, Clocks::Real).await;
    let time = 700 * MS;
    let schedule = Schedule::of_all(
        Topology::Durable,
        [
            Fault::RedisKilled { down: time },
            Fault::RedisHangs { time: 2 * time },
        ],
    );
    hold(&mut stage, &[schedule]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forgotten_scripts_slow_wires_and_killed_gateways_cost_nothing() {
    let mut stage = stage(Topology::Durable, Timeout::Long, Clocks::Real).await;
    let slow = Fault::Wires {
        gateways: vec![0, 1, 2],
        wire: Wire::Delays(30 * MS),
        time: 800 * MS,
    };
    let faults = [
        Fault::ScriptsForgotten,
        Fault::GatewayKilled { gateway: 1 },
        slow,
        Fault::GatewayKilled { gateway: 2 },
    ];
    let report = hold(&mut stage, &[Schedule::of_all(Topology::Durable, faults)]).await;
    assert_eq!((report.figures.above, report.figures.lost), (0, 0));
    assert_eq!(report.figures.kills, 2);
}
