//! A request to a server: why it may have no result, and the pause before a further attempt.

use std::time::Duration;

use jiff::Timestamp;
use redis::{Cmd, ErrorKind, FromRedisValue, Pipeline, ServerErrorKind, Value};

use super::remedies::with_remedy;
use super::topology::Topology;
use crate::policy::words::words;
use crate::store::StoreError;

/// Why a command has no result.
#[derive(Debug, Clone)]
pub enum LinkError {
    /// There was no connection: the command was not sent.
    NoConnection(String),
    /// No result in time or the connection broke: whether the command ran is unknown.
    Lost(String),
    /// The server refused it.
    Refused(Refusal),
    /// The server answers but accepts no writes.
    RefusedWrites(WriteRefusal),
    /// The reply does not have the expected form.
    Unreadable(String),
}

impl LinkError {
    /// The error without a connection to `server`, whose last attempt failed for this reason.
    pub fn no_connection(server: &Topology, trouble: Option<&StoreError>) -> LinkError {
        let why = trouble.map_or("not connected yet", StoreError::reason);
        LinkError::NoConnection(format!("no connection to {server}: {why}"))
    }
}

impl From<LinkError> for StoreError {
    fn from(error: LinkError) -> StoreError {
        match error {
            LinkError::NoConnection(why) | LinkError::Lost(why) => {
                StoreError::Unavailable(with_remedy(why))
            }
            LinkError::Refused(refusal) => StoreError::Failed(with_remedy(refusal.to_string())),
            LinkError::RefusedWrites(refusal) => StoreError::Failed(refusal.to_string()),
            LinkError::Unreadable(what) => StoreError::Failed(what),
        }
    }
}

/// A server's refusal of a command; for operators.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{text}")]
pub struct Refusal {
    /// The error, with the server as its operator knows it.
    text: String,
    /// The error.
    pub error: redis::RedisError,
}

/// The text of an error of a server, with these names in Redis if a value under one of them is of another type.
pub fn named(error: &redis::RedisError, names: &str) -> String {
    match error.code() {
        Some("WRONGTYPE") if !names.is_empty() => format!("{names}: {error}"),
        Some(_) | None => error.to_string(),
    }
}

/// A server's refusal of all writes, with the remedy; for operators.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{server} refuses writes, because {}: {} ({reply})", .why.as_str(), .why.remedy())]
pub struct WriteRefusal {
    /// The server, as its operator knows it.
    server: String,
    why: RefusedWritesFor,
    /// Its words.
    reply: String,
}

words! {
    /// Why a server accepts no writes.
    pub enum RefusedWritesFor {
        /// `OOM`.
        Memory = "its memory is full",
        /// `NOREPLICAS`.
        Replicas = "it has fewer replicas than min-replicas-to-write",
        /// `MISCONF`.
        Saving = "it cannot save",
    }
}

impl RefusedWritesFor {
    fn of(code: &str) -> Option<RefusedWritesFor> {
        match code {
            "OOM" => Some(RefusedWritesFor::Memory),
            "NOREPLICAS" => Some(RefusedWritesFor::Replicas),
            "MISCONF" => Some(RefusedWritesFor::Saving),
            _ => None,
        }
    }

    fn remedy(self) -> &'static str {
        match self {
            RefusedWritesFor::Memory => "raise its maxmemory",
            RefusedWritesFor::Replicas => "see why its replicas are away",
            RefusedWritesFor::Saving => "see its log and its disk",
        }
    }
}

/// The error for a command, which has these names, that `server` refused.
pub fn refused(server: String, names: &str, error: redis::RedisError) -> LinkError {
    let code = error.code().unwrap_or_default();
    match RefusedWritesFor::of(code) {
        Some(why) => LinkError::RefusedWrites(WriteRefusal {
            server,
            why,
            reply: [code, error.detail().unwrap_or_default()].join(" "),
        }),
        None => LinkError::Refused(Refusal {
            text: format!("{server}: {}", named(&error, names)),
            error,
        }),
    }
}

/// Reads a reply as a value of the expected type.
pub fn parsed<T: FromRedisValue>(reply: Value) -> Result<T, LinkError> {
    T::from_redis_value(reply)
        .map_err(|error| LinkError::Unreadable(format!("a reply of Redis cannot be read: {error}")))
}

/// Why a replica is not used, after its name.
pub const IS_REPLICA: &str = "refuses writes, because it is a replica: name the master in store.redis, or wait for the end of a failover (READONLY)";

/// Whether a server refused a write because it is a replica.
pub fn is_replica(error: &redis::RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly)
}

/// Whether Redis refused a command that needs a key because there is none of its name.
pub fn is_absent(error: &redis::RedisError) -> bool {
    error.detail() == Some("no such key")
}

/// Whether the connection is unusable after this error.
pub fn breaks(error: &redis::RedisError) -> bool {
    error.is_unrecoverable_error()
        || error.is_io_error()
        || matches!(
            error.kind(),
            ErrorKind::Server(
                ServerErrorKind::ReadOnly
                    | ServerErrorKind::BusyLoading
                    | ServerErrorKind::MasterDown
            )
        )
}

/// The reply of `TIME`.
pub fn read_time(value: Value) -> Result<Timestamp, StoreError> {
    let (seconds, micros) = parsed::<(i64, i64)>(value)?;
    let micros = seconds.saturating_mul(1_000_000).saturating_add(micros);
    Timestamp::from_microsecond(micros)
        .map_err(|error| StoreError::Failed(format!("Redis returned an impossible time: {error}")))
}

/// Commands that are sent in one write.
pub fn pipeline(commands: impl IntoIterator<Item = Cmd>) -> Pipeline {
    let mut pipeline = Pipeline::new();
    for command in commands {
        pipeline.add_command(command);
    }
    pipeline
}

/// Between half of `wait` and the whole, so that gateways do not come back all at once.
pub fn jittered(wait: Duration) -> Duration {
    wait.mul_f64(0.5 + fastrand::f64() / 2.0)
}
