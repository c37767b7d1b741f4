//! Several servers: failovers and moving slots.

use harness::faults::schedule::Loss;

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_gateways_pass_a_limit_by_no_more_than_a_failover_of_sentinels_lost() {
    let faults = [
        Fault::Failover(Loss::HangsAlone),
        Fault::GatewayKilled { gateway: 0 },
    ];
    hold_faults(Topology::Sentinel, Timeout::Short, faults).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_by_hand_costs_no_more_than_the_old_master_went_on_to_count() {
    let fault = Fault::Failover(Loss::ByHand);
    hold_faults(Topology::Sentinel, Timeout::Short, [fault]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_that_move_cost_nothing() {
    let faults = [Fault::SlotsMove, Fault::SlotsMove];
    let report = hold_faults(Topology::Cluster, Timeout::Long, faults).await;
    assert_eq!((report.figures.above, report.figures.lost), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_in_a_cluster_concerns_its_own_keys_and_costs_no_more_than_it_lost() {
    let faults = [
        Fault::Failover(Loss::Hangs),
        Fault::GatewayKilled { gateway: 1 },
    ];
    hold_faults(Topology::Cluster, Timeout::Short, faults).await;
}
