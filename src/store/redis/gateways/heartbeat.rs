//! The heartbeat that a gateway sends to the [register](super::register): at once when it has applied and saved a change, else each second.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::store::status::{BreakerFacts, ServiceFacts};

/// How often a gateway sends a heartbeat.
pub const BEAT_EVERY: Duration = Duration::from_secs(1);
/// How long a gateway counts as live after a heartbeat.
pub const BEAT_HOLDS: Duration = Duration::from_secs(5);

/// A gateway's report of its state, as JSON. Fields may be added: readers ignore unknown ones, and a field is `None` of a gateway that
/// does not report it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// The stream id of the last change applied, and saved if the gateway has a replica.
    pub applied: String,
    /// The time since its key table was known to be current (milliseconds), or `None` if it never was.
    pub keys_age_ms: Option<u64>,
    /// The keys in its table.
    #[serde(default)]
    pub keys: usize,
    /// The version of the program.
    #[serde(default)]
    pub version: String,
    /// Why it cannot save its replica.
    pub replica_error: Option<String>,
    /// The state of its breaker.
    pub breaker: Option<BreakerFacts>,
    /// Its service without Redis.
    pub service: Option<ServiceFacts>,
    /// Redis's clock minus its own.
    pub clock_difference_seconds: Option<f64>,
}
