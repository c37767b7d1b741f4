//! The public edge under attack: hand-written bytes over HTTP/1 and HTTP/2 against the real binary, each with its
//! expected answer, and what the recording upstream must never see.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)] // Clippy's exception for tests does not reach their functions.

mod authentication;
mod body_ends;
mod certificates;
mod connections;
mod deadlines;
mod early_answers;
mod frames;
mod heads;
mod http2_conformance;
mod http2_endings;
mod http2_floods;
mod http2_heads;
mod http2_memory;
mod normalisers;
mod pipelines;
mod proxies;
mod recorded;
mod redirect;
mod siege;
mod smuggling;
mod unread_answers;
mod upstream_connections;

use harness::problem::assert_problem;
use harness::{Scene, eventually};

/// The binary under test.
const TOUCHLINE: &str = env!("CARGO_BIN_EXE_touchline");
/// An endpoint of every tier.
const MARKETS: &str = "/api/v1/data/markets";

/// How often a limit was hit.
async fn limit_hits(scene: &Scene, limit: &str) -> f64 {
    let series = format!("touchline_limit_hits_total{{limit=\"{limit}\"}}");
    scene.metric(&series).await
}

/// Waits until no request is under way, and holds access log and store against the upstream: for each request of a key that stays
/// charged at least a head has come.
async fn charged_were_sent(scene: &Scene, key_id: &str) {
    eventually("no request is under way", async || {
        let requests = scene.metric("touchline_in_flight_requests").await;
        (requests == 0.0).then_some(())
    })
    .await;
    eventually("what the store counts is what was sent", async || {
        // Lines are written behind the answers.
        let lines = scene.gateways[0].access_lines();
        let charged: Vec<&str> = lines
            .iter()
            .filter(|line| line["key_id"] == key_id)
            .filter(|line| line["units"] != 0 && line["refunded"] == false)
            .filter_map(|line| line["request_id"].as_str())
            .collect();
        let rows = scene.usage().await;
        let own = rows.iter().filter(|row| row.key == key_id);
        let used: u64 = own.map(|row| row.used).sum();
        let begun = scene.upstream.begun();
        let was_sent = |id: &&str| begun.iter().any(|one| one == id);
        let agree = used == charged.len() as u64 && charged.iter().all(was_sent);
        agree.then_some(())
    })
    .await;
}
