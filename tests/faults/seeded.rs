//! Random schedules: a few by fixed seeds; `make soak` plays many.

use super::*;

async fn play_seed(topology: Topology, seed: u64) {
    let mut stage = stage(topology, Timeout::Short, Clocks::Real).await;
    hold(&mut stage, &Schedule::seeded(topology, seed, 3)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_faults_of_a_redis_that_keeps_its_data_stay_within_the_bounds() {
    play_seed(Topology::Durable, 11).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_faults_of_a_redis_that_forgets_stay_within_the_bounds() {
    play_seed(Topology::Forgetful, 12).await;
}
