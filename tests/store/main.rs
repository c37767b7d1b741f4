//! Integration tests: store. One suite of facts over the `Store` trait for every store, and what only one of them has.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

#[macro_use]
mod suite;

use harness::{redis_nodes, tcp_proxy};

mod charge_script;
mod embedded;
mod export;
mod inheritance;
mod journal;
mod key_replica;
mod key_replica_gateway;
mod ledger_in_redis;
mod log_lines;
mod outage;
mod outage_topologies;
mod redis_cluster;
mod redis_returns;
mod redis_sentinel;
mod redis_server;
mod redis_store;
mod redis_tls;
mod register;
mod remedies;
mod status;
mod together;
mod topologies;
mod trail;
