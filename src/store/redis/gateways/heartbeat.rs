//! The heartbeat that a gateway sends to the [register](super::register): at once when it applied a change, else each second.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::store::status::{BreakerFacts, ServiceFacts};

/// How often a gateway sends a heartbeat, and how long one holds.
pub const BEAT_EVERY: Duration = Duration::from_secs(1);
/// See above.
pub const BEAT_HOLDS: Duration = Duration::from_secs(5);

/// What a gateway says of itself, as JSON. Fields may be added: readers leave out what they do not know.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// The stream id of the last change applied.
    pub applied: String,
    /// How long ago its key table was known to be current (milliseconds); `None`: never.
    #[serde(default)]
    pub keys_age_ms: Option<u64>,
    /// The keys in its table.
    #[serde(default)]
    pub keys: usize,
    /// The version of the program.
    #[serde(default)]
    pub version: String,
    /// How it stands to Redis.
    #[serde(default, flatten)]
    pub condition: Condition,
}

/// How a gateway stands to Redis, as it says itself; `None` of one that says nothing of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Condition {
    /// Whether it asks Redis.
    #[serde(default)]
    pub breaker: Option<BreakerFacts>,
    /// What it does without.
    #[serde(default)]
    pub service: Option<ServiceFacts>,
    /// Redis's clock minus its own.
    #[serde(default)]
    pub clock_difference_seconds: Option<f64>,
}
