//! Clocks that are wrong, and a day that ends.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_whose_clock_is_minutes_off_costs_nothing() {
    let mut stage = stage(Topology::Durable, Timeout::Long, Clocks::Apart).await;
    let faults = [7, -7, 0].map(|minutes| Fault::ClockOff { minutes });
    let schedule = Schedule::of_all(Topology::Durable, faults);
    assert_unharmed(&hold(&mut stage, &schedule).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_day_that_ends_while_redis_is_away_costs_no_more_than_the_shares_of_both_days() {
    // Few enough to be used up in the second that is left of the first day.
    let spec = StageSpec {
        scarce: 40,
        ..spec(Topology::Durable, Timeout::Short, Clocks::Shared)
    };
    let mut stage = Stage::start(spec).await;
    let schedule = Schedule::of(Topology::Durable, Fault::DayEndsInOutage);
    let report = hold(&mut stage, &schedule).await;
    assert!(report.used_up >= 2, "keys of both days: {report:?}");
}
