//! The state of a store, for operators: facts that can be written as JSON, and warnings about broken guarantees.

use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::policy::words::words;

/// The report of `touchline store status`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StoreStatus {
    /// The store itself.
    pub store: StoreFacts,
    /// The gateways that live, by name.
    pub gateways: Vec<GatewayFacts>,
    /// The gateways that did not sign off and are not heard of any more, by name.
    pub silent: Vec<SilentFacts>,
    /// Keys in the key table.
    pub keys: u64,
    /// Days with a ledger.
    pub days: u64,
    /// The events of keys near their limits.
    pub events: EventFacts,
    /// The store's clock minus this machine's.
    pub clock_difference_seconds: f64,
    /// The broken guarantees, each with the remedy.
    pub warnings: Vec<String>,
}

/// The events that are kept for the webhook.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EventFacts {
    /// How many wait to be delivered.
    pub waiting: u64,
    /// The age of the oldest of them; `None` if none waits.
    pub oldest_seconds: Option<f64>,
    /// The gateway that delivers them; `None` if none does now.
    pub courier: Option<String>,
}

impl EventFacts {
    /// Facts of `waiting` events, the oldest of which is of the instant `oldest` (Unix milliseconds), at `now`; one that lies ahead counts
    /// as now.
    pub fn of(
        waiting: u64,
        oldest: Option<i64>,
        courier: Option<String>,
        now: Timestamp,
    ) -> EventFacts {
        let age = |since: i64| now.as_millisecond().saturating_sub(since).max(0);
        EventFacts {
            waiting,
            oldest_seconds: oldest.map(|since| age(since) as f64 / 1e3),
            courier,
        }
    }
}

/// The facts that only one kind of store has.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum StoreFacts {
    /// SQLite on this machine.
    Embedded(EmbeddedFacts),
    /// Redis or Valkey.
    Redis(RedisFacts),
}

/// A database file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EmbeddedFacts {
    /// Where it is.
    pub path: PathBuf,
    /// Its size with its log.
    pub bytes: u64,
    /// When a commit is on the disk.
    pub durability: String,
    /// The version of its tables.
    pub schema_version: i64,
}

/// A Redis.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RedisFacts {
    /// `single`, `sentinel` or `cluster`.
    pub topology: String,
    /// Whether its connections are encrypted (TLS).
    pub tls: bool,
    /// Where it is found, without password.
    pub place: String,
    /// The masters.
    pub servers: Vec<ServerFacts>,
    /// The life of the data: another after the store was emptied.
    pub incarnation: Option<String>,
    /// Whether keys are found without walking past counts.
    pub index_complete: bool,
    /// The changes of keys.
    pub feed: FeedFacts,
    /// The journal of this machine's gateways; `None` if the configured file does not exist.
    pub journal: Option<JournalFacts>,
}

/// The journal's file on this machine, read without Redis and without changing it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct JournalFacts {
    /// The file.
    pub path: PathBuf,
    /// Its size with its log.
    pub bytes: u64,
    /// The store that it is of.
    pub store: Option<String>,
    /// Units served without Redis that it may not know.
    pub pending_units: u64,
    /// The number of counts: one for each key, day and process.
    pub counts: u64,
    /// The number of these that Redis is not known to have.
    pub unsettled_counts: u64,
    /// Why it cannot be read; the numbers are 0 then.
    pub error: Option<String>,
    /// Why it cannot be written, if its disk is full.
    pub disk_error: Option<String>,
}

words! {
    /// Whether a gateway asks Redis.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum BreakerState {
        /// It does.
        Closed = "closed",
        /// It does not.
        Open = "open",
        /// It does not, and is finding out whether it could.
        HalfOpen = "half-open",
    }
}

/// A gateway's breaker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BreakerFacts {
    /// Its state.
    pub state: BreakerState,
    /// How long it has been closed, or not closed.
    pub since_seconds: f64,
    /// The error of the last charge that Redis did not decide.
    pub last_failure: Option<String>,
    /// How long ago that was.
    pub last_failure_age_seconds: Option<f64>,
}

/// A gateway's service without Redis.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceFacts {
    /// `bounded`, `deny` or `open`.
    pub outage: String,
    /// Its journal, on its own machine.
    pub journal: PathBuf,
    /// Why that cannot be written, where it cannot.
    pub journal_error: Option<String>,
    /// Units served without Redis that it may not know.
    pub pending_units: u64,
}

/// One server process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ServerFacts {
    /// Its address without password.
    pub address: String,
    /// Its version.
    pub version: String,
    /// Its name for its own process.
    pub run_id: String,
    /// `master` or `slave`, as the server reports it.
    pub role: String,
    /// How long it runs.
    pub uptime_seconds: u64,
    /// Connected replicas.
    pub replicas: u64,
    /// Whether it writes an append-only file; `None`, as of the next two, if that is not reported.
    pub append_only: Option<bool>,
    /// When that is on the disk, and when snapshots are made.
    pub append_fsync: Option<String>,
    /// See above; empty: never.
    pub snapshots: Option<String>,
    /// Its behaviour when memory is full.
    pub maxmemory_policy: String,
    /// When memory is full; 0: never.
    pub maxmemory_bytes: u64,
    /// Memory in use.
    pub used_memory_bytes: u64,
}

/// The stream of changes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct FeedFacts {
    /// Its entries.
    pub length: u64,
    /// The id of the last change.
    pub last: String,
}

/// A live gateway.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct GatewayFacts {
    /// Its name.
    pub name: String,
    /// The version of its program; `None` if it is not reported.
    pub version: Option<String>,
    /// The age of its last heartbeat.
    pub heartbeat_age_seconds: f64,
    /// The last change it applied, and saved if it has a replica.
    pub applied: Option<String>,
    /// By how much that is older than the last change.
    pub lag_seconds: Option<f64>,
    /// The keys in its table.
    pub keys: Option<u64>,
    /// The time since its table was known to be current, by its last heartbeat.
    pub keys_age_seconds: Option<f64>,
    /// Why it cannot save its replica of the key table.
    pub replica_error: Option<String>,
    /// Whether it calls Redis; `None` if it is not reported.
    pub breaker: Option<BreakerFacts>,
    /// Its service without Redis; `None` if it is not reported.
    pub service: Option<ServiceFacts>,
    /// The store's clock minus its own; `None` if it is not reported.
    pub clock_difference_seconds: Option<f64>,
}

/// A gateway that did not sign off and is not heard of any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SilentFacts {
    /// Its name.
    pub name: String,
    /// When it was last heard of.
    pub since: Timestamp,
    /// The version of its program; `None` if its last heartbeat cannot be read.
    pub version: Option<String>,
    /// The last change that it is known to have applied.
    pub applied: Option<String>,
}

/// A difference of clocks in seconds, in words before the other clock.
pub fn ahead_of(seconds: f64) -> String {
    match seconds < 0.0 {
        true => format!("{:.3} s behind", -seconds),
        // Not "-0.000".
        false => format!("{:.3} s ahead of", seconds.abs()),
    }
}

/// How far a change has come beyond the server that took it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Replicas {
    /// Replicas that the server has.
    pub connected: u64,
    /// Those that have confirmed the change.
    pub confirmed: u64,
}
