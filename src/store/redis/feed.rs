//! A gateway's replica of the key table, and its sign of life.
//!
//! The table is loaded whole, then followed through the feed (a Redis stream) on a connection of its own. Invariant: the
//! place told as applied is never ahead of the table: a full scan begins only after the place it stands for was read.
//! Loaded again every ten minutes, and when the stream was trimmed past our place, emptied or replaced; records that the
//! store then lacks or holds older are written back.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, Pipeline, Value};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};

use super::link::{Link, ScanPlace, jittered};
use super::names::Names;
use super::records::{mend, parse_place, scan_page, stream_id, unpacked, unreadable};
use crate::policy::api_key::KeyId;
use crate::store::{ChangeMark, KeyTable, NodeName, StoreError};

/// How long one read of the feed blocks, and by how much its reply may be late.
const READ_BLOCKS: Duration = Duration::from_secs(1);
const READ_LATE: Duration = Duration::from_secs(1);
/// Changes taken in one read.
const READ_MAX: usize = 1_000;
/// How often the whole table is read again.
const SCAN_EVERY: Duration = Duration::from_secs(600);
/// How long a lost feed waits before it connects again, before jitter.
const RECONNECT: Duration = Duration::from_millis(500);
/// How often a gateway says that it lives, and how long that holds.
const BEAT_EVERY: Duration = Duration::from_secs(1);
const BEAT_HOLDS: Duration = Duration::from_secs(5);
/// How often it is looked whether gateways have applied a change.
const AWAIT_EVERY: Duration = Duration::from_millis(10);

/// The follower of the feed.
pub struct Feed {
    link: Arc<Link>,
    names: Names,
    keys: Arc<KeyTable>,
    node: NodeName,
    /// The place of the last change applied; `None` before the table was loaded.
    applied: watch::Sender<Option<u128>>,
    current_at: Mutex<Option<Instant>>,
    advanced: Notify,
    /// Told when the store may have lost what it held.
    pub store_lost: Notify,
}

/// What the stream says of itself.
struct StreamState {
    /// The last entry ever added, 0 without a stream.
    last: u128,
    /// The first entry still there.
    first: Option<u128>,
}

impl Feed {
    /// A feed that has not begun.
    pub fn new(link: Arc<Link>, names: Names, keys: Arc<KeyTable>, node: NodeName) -> Feed {
        Feed {
            link,
            names,
            keys,
            node,
            applied: watch::Sender::new(None),
            current_at: Mutex::new(None),
            advanced: Notify::new(),
            store_lost: Notify::new(),
        }
    }

    /// Whether the table was loaded whole.
    pub fn is_loaded(&self) -> bool {
        self.applied.borrow().is_some()
    }

    /// Waits until the table was loaded whole.
    pub async fn loaded(&self) {
        let _ = self.applied.subscribe().wait_for(Option::is_some).await;
    }

    /// How long ago the table was known to be current.
    pub fn age(&self) -> Duration {
        let at = *self.current_at.lock();
        at.map_or(Duration::MAX, |at| at.elapsed())
    }

    /// Follows the feed for ever.
    pub async fn follow(&self) {
        let mut logged = String::new();
        let mut scanned = None;
        loop {
            let Err(error) = self.follow_one_connection(&mut logged, &mut scanned).await;
            let text = error.to_string();
            if text != logged {
                tracing::warn!(error = %text, "the feed of key changes is interrupted");
                logged = text;
            }
            tokio::time::sleep(jittered(RECONNECT)).await;
        }
    }

    async fn follow_one_connection(
        &self,
        logged: &mut String,
        scanned: &mut Option<Instant>,
    ) -> Result<std::convert::Infallible, StoreError> {
        // Only a server that the link has accepted (zone, readiness) is followed.
        self.link.require()?;
        let made = self.link.made();
        let mut connection = self.link.connect_apart(&self.names.feed()).await?;
        loop {
            if self.link.made() != made {
                // A server that was demoted goes on answering, and may be behind the one that is master now.
                return Err(StoreError::Unavailable(
                    "another connection was made".into(),
                ));
            }
            let state = self.stream_state(&mut connection).await?;
            let applied = *self.applied.borrow();
            let lost = applied.is_some_and(|applied| is_lost(&state, applied));
            let due = scanned.is_none_or(|at| at.elapsed() >= SCAN_EVERY);
            if lost {
                tracing::warn!("the feed of key changes lost our place: loading all keys again");
                self.store_lost.notify_one();
            }
            if lost || due {
                self.load(state.last).await?;
                *scanned = Some(Instant::now());
            }
            logged.clear();
            self.read_changes(&mut connection).await?;
            *self.current_at.lock() = Some(Instant::now());
        }
    }

    /// Reads all records; `place` was read before.
    async fn load(&self, place: u128) -> Result<(), StoreError> {
        let mut seen: HashMap<KeyId, u64> = HashMap::new();
        let mut cursor = Some(ScanPlace::default());
        while let Some(at) = cursor {
            let (next, records) = scan_page(&self.link, &self.names, at).await?;
            for record in records {
                seen.insert(record.id, record.version);
                self.keys.apply(record);
            }
            cursor = next;
        }
        let lacking: Vec<_> = self
            .keys
            .entries()
            .into_iter()
            .filter(|entry| {
                let stored = seen.get(&entry.record.id);
                stored.is_none_or(|version| *version < entry.record.version)
            })
            .collect();
        if !lacking.is_empty() {
            tracing::warn!(keys = lacking.len(), "writing back keys that Redis lacks");
            mend(&self.link, &self.names, &lacking).await?;
        }
        *self.current_at.lock() = Some(Instant::now());
        self.advance(place);
        Ok(())
    }

    fn advance(&self, place: u128) {
        self.applied.send_replace(Some(place));
        self.advanced.notify_one();
    }

    async fn read_changes(&self, connection: &mut MultiplexedConnection) -> Result<(), StoreError> {
        let place = self.applied.borrow().unwrap_or(0);
        let mut read = redis::cmd("XREAD");
        read.arg("COUNT")
            .arg(READ_MAX)
            .arg("BLOCK")
            .arg(READ_BLOCKS.as_millis() as u64)
            .arg("STREAMS")
            .arg(self.names.feed())
            .arg(stream_id(place));
        let value = patient(READ_BLOCKS + READ_LATE, read.query_async(connection)).await?;
        type Entries = Vec<(String, HashMap<String, String>)>;
        let streams =
            Option::<Vec<(String, Entries)>>::from_redis_value(value).map_err(unreadable)?;
        let entries = streams
            .unwrap_or_default()
            .into_iter()
            .flat_map(|(_, entries)| entries);
        let mut last = None;
        for (id, fields) in entries {
            match fields.get("rec").map(|packed| unpacked(packed)) {
                Some(Ok(record)) => {
                    self.keys.apply(record);
                }
                Some(Err(error)) => tracing::error!(id, %error, "a change is left out"),
                None => tracing::error!(id, "a change without a record is left out"),
            }
            last = parse_place(&id).or(last);
        }
        if let Some(place) = last {
            self.advance(place);
        }
        Ok(())
    }

    async fn stream_state(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> Result<StreamState, StoreError> {
        let mut ask = redis::cmd("XINFO");
        ask.arg("STREAM").arg(self.names.feed());
        let fields = match patient(READ_LATE, ask.query_async(connection)).await {
            Ok(value) => HashMap::<String, Value>::from_redis_value(value).map_err(unreadable)?,
            // There is no stream.
            Err(StoreError::Failed(_)) => HashMap::new(),
            Err(error) => return Err(error),
        };
        let last = fields
            .get("last-generated-id")
            .and_then(|value| parse_place(&String::from_redis_value_ref(value).ok()?))
            .unwrap_or(0);
        let first = fields.get("first-entry").and_then(|value| {
            let (id, _) = <(String, Value)>::from_redis_value_ref(value).ok()?;
            parse_place(&id)
        });
        Ok(StreamState { last, first })
    }

    /// Says again and again that this gateway lives and what it applied.
    pub async fn beat(&self) {
        loop {
            let place = self.applied.borrow().unwrap_or(0);
            let mut pipeline = Pipeline::new();
            pipeline
                .cmd("SET")
                .arg(self.names.node(&self.node.0))
                .arg(stream_id(place))
                .arg("PX")
                .arg(BEAT_HOLDS.as_millis() as u64)
                .cmd("SADD")
                .arg(self.names.nodes())
                .arg(&self.node.0);
            // Without a connection nobody hears us; the next beat tries again.
            let _ = self.link.ask(&pipeline).await;
            let _ = timeout(BEAT_EVERY, self.advanced.notified()).await;
        }
    }

    /// Says that this gateway is going.
    pub async fn say_goodbye(&self) -> Result<(), StoreError> {
        let mut pipeline = Pipeline::new();
        pipeline
            .cmd("DEL")
            .arg(self.names.node(&self.node.0))
            .cmd("SREM")
            .arg(self.names.nodes())
            .arg(&self.node.0);
        self.link.ask(&pipeline).await?;
        Ok(())
    }
}

/// Whether changes after `applied` may be missing from the stream: it ends before that place, or no longer holds it.
fn is_lost(state: &StreamState, applied: u128) -> bool {
    state.last < applied || (applied > 0 && state.first.is_some_and(|first| first > applied))
}

async fn patient(
    patience: Duration,
    reply: impl Future<Output = Result<Value, redis::RedisError>>,
) -> Result<Value, StoreError> {
    match timeout(patience, reply).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error))
            if error.is_io_error()
                || error.is_unrecoverable_error()
                || error.is_cluster_error() =>
        {
            Err(StoreError::Unavailable(error.to_string()))
        }
        Ok(Err(error)) => Err(StoreError::Failed(error.to_string())),
        Err(_) => Err(StoreError::Unavailable("no answer in time".into())),
    }
}

/// The live gateways that have not applied a change after `patience`.
pub async fn await_applied(
    link: &Link,
    names: &Names,
    mark: &ChangeMark,
    patience: Duration,
) -> Result<Vec<NodeName>, StoreError> {
    let deadline = Instant::now() + patience;
    loop {
        let lagging = lagging(link, names, mark).await?;
        if lagging.is_empty() || Instant::now() + AWAIT_EVERY > deadline {
            return Ok(lagging);
        }
        tokio::time::sleep(AWAIT_EVERY).await;
    }
}

async fn lagging(
    link: &Link,
    names: &Names,
    mark: &ChangeMark,
) -> Result<Vec<NodeName>, StoreError> {
    let value = link.ask(redis::cmd("SMEMBERS").arg(names.nodes())).await?;
    let mut nodes = Vec::<String>::from_redis_value(value).map_err(unreadable)?;
    nodes.sort_unstable();
    if nodes.is_empty() {
        return Ok(Vec::new());
    }
    let mut pipeline = Pipeline::new();
    for node in &nodes {
        pipeline.cmd("GET").arg(names.node(node));
    }
    let value = link.ask(&pipeline).await?;
    let places = Vec::<Option<String>>::from_redis_value(value).map_err(unreadable)?;
    let mut lagging = Vec::new();
    let mut dead = Vec::new();
    for (node, place) in nodes.into_iter().zip(places) {
        match place {
            Some(place) if parse_place(&place).is_some_and(|place| place >= mark.0) => {}
            Some(_) => lagging.push(NodeName(node)),
            None => dead.push(node),
        }
    }
    if !dead.is_empty() {
        // One that comes to life meanwhile is back with its next beat.
        link.ask(redis::cmd("SREM").arg(names.nodes()).arg(dead))
            .await?;
    }
    Ok(lagging)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_lost_if_the_stream_ends_before_it_or_was_trimmed_after_it() {
        let state = |last, first| StreamState { last, first };
        assert!(!is_lost(&state(10, Some(10)), 10));
        assert!(!is_lost(&state(12, Some(1)), 10));
        assert!(!is_lost(&state(12, Some(11)), 0));
        assert!(is_lost(&state(0, None), 10));
        assert!(is_lost(&state(20, Some(11)), 10));
        assert!(!is_lost(&state(20, Some(9)), 10));
    }
}
