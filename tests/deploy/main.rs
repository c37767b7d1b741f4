//! What `deploy/` promises: alert rules that fire when they should, a board whose every query finds something, and names that
//! exist. By Prometheus itself, scraping real gateways. And the README's steps and the commands of `docs/`, as they are
//! written.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that cannot go on may stop"
)]

mod board;
mod carried;
mod names;
mod package;
mod pages;
mod prometheus;
mod readme;
mod rules;
mod schema;

use std::path::PathBuf;

/// The binary under test.
const TOUCHLINE: &str = env!("CARGO_BIN_EXE_touchline");

/// A file of `deploy/`.
fn deployed(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("deploy")
        .join(name)
}

/// Its text.
fn text_of(name: &str) -> String {
    let path = deployed(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
