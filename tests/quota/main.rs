//! The promises about quotas, against the real binary: exact on any number of gateways, fair when something fails,
//! nothing lost in a crash, revocation from the next request, one day at a time.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)] // Clippy's exception for tests does not reach their functions.

mod crash;
mod events;
mod exactness;
mod fairness;
mod free_rides;
mod midnight;
mod outage;
mod register;
mod revocation;
mod shadow;
mod short_days;
mod troubles;

/// The binary under test.
const TOUCHLINE: &str = env!("CARGO_BIN_EXE_touchline");
/// An endpoint of every tier.
const MARKETS: &str = "/api/v1/data/markets";
