//! The public edge under attack: hand-written bytes over HTTP/1 and HTTP/2 against the real binary, each with its
//! expected answer, and what the recording upstream must never see.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)] // Clippy's exception for tests does not reach their functions.

mod authentication;
mod body_ends;
mod certificates;
mod connections;
mod deadlines;
mod frames;
mod heads;
mod http2_conformance;
mod http2_floods;
mod http2_heads;
mod http2_memory;
mod normalisers;
mod pipelines;
mod proxies;
mod redirect;
mod siege;
mod smuggling;

use harness::Scene;
use harness::problem::assert_problem;

/// The binary under test.
const TOUCHLINE: &str = env!("CARGO_BIN_EXE_touchline");
/// An endpoint of every tier.
const MARKETS: &str = "/api/v1/data/markets";

/// How often a limit was hit.
async fn limit_hits(scene: &Scene, limit: &str) -> f64 {
    let series = format!("touchline_limit_hits_total{{limit=\"{limit}\"}}");
    scene.metric(&series).await
}
