//! The wire between gateways and one server.

use harness::tcp_proxy::Wire;

use super::*;

const TIME: Duration = Duration::from_millis(900);

fn wires(gateways: &[usize], wire: Wire) -> Fault {
    Fault::Wires {
        gateways: gateways.to_vec(),
        wire,
        time: TIME,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_wire_costs_nothing() {
    let faults = [
        wires(&[0, 1, 2], Wire::Delays(30 * MS)),
        wires(&[1], Wire::Delays(100 * MS)),
    ];
    let report = hold_faults(Topology::Durable, Timeout::Long, faults).await;
    assert_unharmed(&report);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_three_gateways_cut_off_costs_no_more_than_its_share() {
    let faults = [
        wires(&[0], Wire::BlackHole),
        wires(&[1], Wire::HalfOpen),
        wires(&[2], Wire::Refuses),
    ];
    hold_faults(Topology::Durable, Timeout::Short, faults).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_replies_and_cut_connections_cost_no_more_than_the_shares() {
    let faults = [
        wires(&[0, 1, 2], Wire::DropsReplies),
        wires(&[0, 1, 2], Wire::CutsAfter(700)),
        wires(&[1], Wire::Delays(300 * MS)),
    ];
    hold_faults(Topology::Durable, Timeout::Short, faults).await;
}
