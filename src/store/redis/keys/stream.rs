//! The stream of key changes in Redis, read on a connection of its own.

use std::collections::HashMap;
use std::time::Duration;

use redis::{Cmd, FromRedisValue, InfoDict, RedisResult, Value};
use tokio::time::timeout;

use super::codec::{parse_place, stream_id};
use crate::store::StoreError;
use crate::store::redis::wire::connection::RedisConnection;
use crate::store::redis::wire::remedies::with_remedy;
use crate::store::redis::wire::request::{is_absent, named, parsed, pipeline};

/// How long one read of the stream blocks, and how late a reply may be.
const READ_BLOCKS: Duration = Duration::from_secs(1);
const READ_LATE: Duration = Duration::from_secs(1);
/// The most changes of one read.
pub const READ_MAX: usize = 1_000;

/// A connection to the server that has the stream.
pub struct ChangeStream {
    connection: RedisConnection,
    /// Whether its slot is being moved to this server, which then answers only what follows `ASKING`.
    asks: bool,
    /// The stream's name.
    name: String,
}

/// The state of the stream.
#[derive(Debug, Default)]
pub struct StreamState {
    /// The last entry ever added, 0 without a stream.
    pub last: u128,
    /// Whether added entries are missing by now.
    trimmed: bool,
}

/// The changes of one read, in their order: ids and fields.
pub type StreamEntries = Vec<(String, HashMap<String, String>)>;

impl ChangeStream {
    /// The stream of this name behind a connection; with `asks`, each command follows `ASKING`.
    pub fn new(connection: RedisConnection, asks: bool, name: String) -> ChangeStream {
        ChangeStream {
            connection,
            asks,
            name,
        }
    }

    /// The reply to a command with the stream's name.
    async fn ask(&self, command: &Cmd) -> RedisResult<Value> {
        if !self.asks {
            return self.connection.ask(command).await;
        }
        let asking = pipeline([redis::cmd("ASKING"), command.clone()]);
        let mut replies = self.connection.ask_each(&asking).await?;
        replies.pop().unwrap_or(Value::Nil).extract_error()
    }

    /// The server's name for its own process.
    pub async fn run_id(&self) -> Result<String, StoreError> {
        let ask = redis::cmd("INFO").arg("server").take();
        let value = self.patient(READ_LATE, self.connection.ask(&ask)).await?;
        let info: InfoDict = parsed(value)?;
        Ok(info.get("run_id").unwrap_or_default())
    }

    /// The present state.
    pub async fn state(&self) -> Result<StreamState, StoreError> {
        let ask = Cmd::xinfo_stream(&self.name);
        let reply = async {
            match self.ask(&ask).await {
                Err(error) if is_absent(&error) => Ok(Value::Nil),
                reply => reply,
            }
        };
        let fields = match self.patient(READ_LATE, reply).await? {
            Value::Nil => return Ok(StreamState::default()),
            value => parsed::<HashMap<String, Value>>(value)?,
        };
        let number = |field: &str| {
            let value = fields.get(field)?;
            u64::from_redis_value_ref(value).ok()
        };
        let last = fields.get("last-generated-id").and_then(|value| {
            let id = String::from_redis_value_ref(value).ok()?;
            parse_place(&id)
        });
        Ok(StreamState {
            last: last.unwrap_or(0),
            trimmed: number("entries-added") > number("length"),
        })
    }

    /// Why changes after `place` may be missing from the stream in this state; `None` if they are not.
    pub async fn lost(
        &self,
        state: &StreamState,
        place: u128,
    ) -> Result<Option<&'static str>, StoreError> {
        if let Some(why) = state.lost(place) {
            return Ok(Some(why));
        }
        if place > 0 && state.last > place && !self.holds(place).await? {
            return Ok(Some("the feed no longer contains this gateway's position"));
        }
        Ok(None)
    }

    async fn holds(&self, place: u128) -> Result<bool, StoreError> {
        let range = Cmd::xrange(&self.name, stream_id(place), stream_id(place));
        let value = self.patient(READ_LATE, self.ask(&range)).await?;
        Ok(!parsed::<Vec<Value>>(value)?.is_empty())
    }

    /// Waits up to a second for changes after `place`, and returns up to [`READ_MAX`].
    pub async fn read(&self, place: u128) -> Result<StreamEntries, StoreError> {
        let mut read = redis::cmd("XREAD");
        read.arg(("COUNT", READ_MAX));
        read.arg(("BLOCK", READ_BLOCKS.as_millis() as u64));
        read.arg(("STREAMS", &self.name, stream_id(place)));
        let reply = self.ask(&read);
        let value = self.patient(READ_BLOCKS + READ_LATE, reply).await?;
        let streams = parsed::<Option<Vec<(String, StreamEntries)>>>(value)?;
        let streams = streams.unwrap_or_default().into_iter();
        Ok(streams.flat_map(|(_, entries)| entries).collect())
    }

    async fn patient(
        &self,
        patience: Duration,
        reply: impl Future<Output = Result<Value, redis::RedisError>>,
    ) -> Result<Value, StoreError> {
        let Ok(reply) = timeout(patience, reply).await else {
            return Err(StoreError::Unavailable("no answer in time".into()));
        };
        reply.map_err(|error| {
            let ends_by_itself = error.is_io_error()
                || error.is_unrecoverable_error()
                || error.is_cluster_error()
                // The server became a replica while a read was blocked, or another client's script runs for too long.
                || matches!(error.code(), Some("UNBLOCKED" | "BUSY"));
            let error = with_remedy(named(&error, &self.name));
            match ends_by_itself {
                true => StoreError::Unavailable(error),
                false => StoreError::Failed(error),
            }
        })
    }
}

impl StreamState {
    /// Why changes after `place` may be missing, judged by the state alone.
    fn lost(&self, place: u128) -> Option<&'static str> {
        if self.last < place {
            Some("the feed ends before this gateway's position")
        } else if place == 0 && self.last > 0 && self.trimmed {
            Some("the feed has lost its first entries")
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_lost_if_the_stream_ends_before_it_or_has_lost_its_beginning() {
        let lost = |last, trimmed, place| StreamState { last, trimmed }.lost(place).is_some();
        assert!(!lost(10, false, 10) && !lost(10, true, 10));
        assert!(!lost(12, true, 10) && !lost(12, false, 0));
        assert!(lost(0, false, 10) && lost(9, false, 10));
        assert!(lost(12, true, 0));
        assert!(!lost(0, true, 0));
    }
}
