//! One server: killed, hung, emptied, read-only, out of memory; gateways killed beside it.

use super::*;

const TIME: Duration = Duration::from_millis(700);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_was_killed_or_hung_costs_no_more_than_the_shares() {
    let faults = [
        Fault::RedisKilled { down: TIME },
        Fault::RedisHangs { time: 2 * TIME },
    ];
    let report = hold_faults(Topology::Durable, Timeout::Short, faults).await;
    assert_eq!(report.figures.lost, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forgotten_scripts_and_killed_gateways_cost_nothing() {
    let faults = [
        Fault::ScriptsForgotten,
        Fault::GatewayKilled { gateway: 1 },
        Fault::ScriptsForgotten,
        Fault::GatewayKilled { gateway: 2 },
    ];
    let report = hold_faults(Topology::Durable, Timeout::Long, faults).await;
    assert_unharmed(&report);
    assert_eq!(report.figures.kills, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_takes_no_writes_costs_no_more_than_the_shares() {
    let faults = [
        Fault::ReadOnly { time: TIME },
        Fault::OutOfMemory { time: TIME },
    ];
    hold_faults(Topology::Durable, Timeout::Short, faults).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emptied_redis_costs_no_more_than_it_lost_also_where_a_gateway_dies_with_it() {
    let faults = [
        Fault::Flushed,
        Fault::RedisKilled { down: TIME },
        Fault::FlushedWithoutAGateway { gateway: 0 },
    ];
    hold_faults(Topology::Forgetful, Timeout::Short, faults).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_killed_while_redis_is_unavailable_costs_no_more_than_the_shares() {
    let fault = Fault::GatewayKilledInOutage {
        gateway: 2,
        time: TIME,
    };
    let report = hold_faults(Topology::Durable, Timeout::Short, [fault]).await;
    assert_eq!((report.figures.kills, report.figures.lost), (1, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_while_redis_is_unavailable_costs_no_more_than_the_shares() {
    let fault = Fault::DiskFull {
        gateway: 1,
        time: TIME,
    };
    let report = hold_faults(Topology::Durable, Timeout::Short, [fault]).await;
    assert!(
        report.figures.unserved > 0,
        "what cannot be journaled is not served"
    );
}
