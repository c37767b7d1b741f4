//! The base of the integration tests: the real binary, real sockets, a real `redis-server`, an upstream that records what
//! it received and can misbehave, clients that record their calls, and one assertion over all four ledgers.
//!
//! A test begins a [`Scene`], issues keys, calls, and ends with [`Scene::assert_ledgers_agree`]. Nothing here knows the
//! crate under test: the path of its binary is an argument (`env!("CARGO_BIN_EXE_touchline")`). Everything is in a
//! directory of its own and on ports that the operating system chose, so tests run in parallel. There are no sleeps
//! that a test relies on: every wait polls with a deadline.

pub mod client;
pub mod collector;
pub mod faketime;
pub mod faults;
pub mod gateway;
pub mod ledger;
pub mod paths;
pub mod problem;
pub mod process;
pub mod redis;
pub mod redis_nodes;
pub mod scene;
pub mod siege;
pub mod tcp_proxy;
pub mod upstream;

use std::time::{Duration, Instant};

pub use client::{Answer, Call, Client, Protocol};
pub use faketime::Faketime;
pub use gateway::{
    AccessLogSpec, EndpointSpec, Gateway, GatewaySpec, StoreSpec, TierSpec, with_variables,
};
pub use ledger::{Allowances, Ledgers};
pub use redis::RedisServer;
pub use scene::{IssuedKey, Scene, SceneBuilder, Store};
pub use tcp_proxy::{TcpProxy, Wire};
pub use upstream::{Behaviour, RecordingUpstream};

/// The pause between two polls of a condition.
const POLL_PAUSE: Duration = Duration::from_millis(10);

/// How long a condition may take to become true: far more than it should, for busy machines. Only a failing
/// test waits for this time.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The time that a loaded machine may take beyond a promised time.
pub const SLACK: Duration = Duration::from_secs(10);

/// Polls `probe` until it returns a value.
///
/// # Panics
/// With `what` after [`PATIENCE`].
pub async fn eventually<T>(what: &str, mut probe: impl AsyncFnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = probe().await {
            return value;
        }
        assert!(Instant::now() < end, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(POLL_PAUSE).await;
    }
}
