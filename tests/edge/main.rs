//! The public edge under attack: hand-written bytes over HTTP/1 and HTTP/2 against the real binary, each with its
//! expected answer, and what the recording upstream must never see.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)] // Clippy's exception for tests does not reach their functions.

mod authentication;
mod certificates;
mod connections;
mod deadlines;
mod frames;
mod heads;
mod http2_floods;
mod pipelines;
mod smuggling;

use harness::{Answer, Scene};

/// The binary under test.
const TOUCHLINE: &str = env!("CARGO_BIN_EXE_touchline");
/// An endpoint of every tier.
const MARKETS: &str = "/api/v1/data/markets";

/// An error answer in the gateway's own words.
#[track_caller]
fn assert_problem(answer: &Answer, status: u16, code: &str) {
    assert_eq!(answer.status, status, "{answer:?}");
    assert!(answer.complete, "{answer:?}");
    assert_eq!(
        answer.header("content-type"),
        Some("application/problem+json")
    );
    assert_eq!(answer.json()["code"], code, "{answer:?}");
    assert_eq!(answer.header("server"), None);
    let id = answer.header("x-request-id").expect("a request id");
    assert_eq!(answer.json()["request_id"], id);
}

/// A metric's value, 0 where it is not there.
async fn metric(scene: &Scene, series: &str) -> f64 {
    let (_, text) = scene.admin(0, "/metrics").await;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(series)?.trim().parse().ok());
    line.unwrap_or_default()
}

/// How often a limit was hit.
async fn limit_hits(scene: &Scene, limit: &str) -> f64 {
    metric(
        scene,
        &format!("touchline_limit_hits_total{{limit=\"{limit}\"}}"),
    )
    .await
}
