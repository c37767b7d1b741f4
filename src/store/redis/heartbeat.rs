//! Which gateways live, and how far each has followed the key table.
//!
//! A gateway writes its [`Heartbeat`] under a name that expires, at once when it applied a change and each second
//! otherwise. Commands read it to know when a change is everywhere.

use std::time::Duration;

use redis::{FromRedisValue, Pipeline};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::link::Link;
use super::names::Names;
use super::records::{parse_place, unreadable};
use crate::store::status::{BreakerFacts, ServiceFacts};
use crate::store::{ChangeMark, NodeName, StoreError};

/// How often a gateway says that it lives, and how long that holds.
pub const BEAT_EVERY: Duration = Duration::from_secs(1);
const BEAT_HOLDS: Duration = Duration::from_secs(5);
/// How often it is looked whether gateways have applied a change.
const AWAIT_EVERY: Duration = Duration::from_millis(10);

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

/// A live gateway.
#[derive(Debug, Clone, PartialEq)]
pub struct LiveNode {
    /// Its name.
    pub name: NodeName,
    /// How long ago it said so.
    pub age: Duration,
    /// What it said; `None` where that cannot be read.
    pub heartbeat: Option<Heartbeat>,
}

impl LiveNode {
    fn has_applied(&self, mark: &ChangeMark) -> bool {
        self.heartbeat
            .as_ref()
            .and_then(|heartbeat| parse_place(&heartbeat.applied))
            .is_some_and(|place| place >= mark.0)
    }
}

/// Says that a gateway lives.
pub async fn say(
    link: &Link,
    names: &Names,
    node: &NodeName,
    heartbeat: &Heartbeat,
) -> Result<(), StoreError> {
    let text = serde_json::to_string(heartbeat)
        .map_err(|error| StoreError::Failed(format!("a heartbeat cannot be written: {error}")))?;
    let mut pipeline = Pipeline::new();
    pipeline
        .cmd("SET")
        .arg(names.node(&node.0))
        .arg(text)
        .arg("PX")
        .arg(BEAT_HOLDS.as_millis() as u64)
        .cmd("SADD")
        .arg(names.nodes())
        .arg(&node.0);
    link.ask(&pipeline).await?;
    Ok(())
}

/// Says that a gateway is going.
pub async fn say_goodbye(link: &Link, names: &Names, node: &NodeName) -> Result<(), StoreError> {
    let mut pipeline = Pipeline::new();
    pipeline
        .cmd("DEL")
        .arg(names.node(&node.0))
        .cmd("SREM")
        .arg(names.nodes())
        .arg(&node.0);
    link.ask(&pipeline).await?;
    Ok(())
}

/// The gateways that live, by name. Forgets those that no longer do.
pub async fn live(link: &Link, names: &Names) -> Result<Vec<LiveNode>, StoreError> {
    let value = link.ask(redis::cmd("SMEMBERS").arg(names.nodes())).await?;
    let mut listed = Vec::<String>::from_redis_value(value).map_err(unreadable)?;
    listed.sort_unstable();
    if listed.is_empty() {
        return Ok(Vec::new());
    }
    let mut pipeline = Pipeline::new();
    for node in &listed {
        let name = names.node(node);
        pipeline.cmd("GET").arg(&name).cmd("PTTL").arg(&name);
    }
    let value = link.ask(&pipeline).await?;
    let replies = Vec::<redis::Value>::from_redis_value(value).map_err(unreadable)?;
    let mut live = Vec::new();
    let mut dead = Vec::new();
    for (node, pair) in listed.into_iter().zip(replies.chunks_exact(2)) {
        let [text, holds] = pair else { continue };
        let text = Option::<String>::from_redis_value_ref(text).map_err(unreadable)?;
        let holds = i64::from_redis_value_ref(holds).map_err(unreadable)?;
        match text {
            None => dead.push(node),
            Some(text) => live.push(LiveNode {
                name: NodeName(node),
                age: BEAT_HOLDS
                    .saturating_sub(Duration::from_millis(u64::try_from(holds).unwrap_or(0))),
                heartbeat: serde_json::from_str(&text).ok(),
            }),
        }
    }
    if !dead.is_empty() {
        // One that comes to life meanwhile is back with its next beat.
        link.ask(redis::cmd("SREM").arg(names.nodes()).arg(dead))
            .await?;
    }
    Ok(live)
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
        let mut lagging = live(link, names).await?;
        lagging.retain(|node| !node.has_applied(mark));
        if lagging.is_empty() || Instant::now() + AWAIT_EVERY > deadline {
            return Ok(lagging.into_iter().map(|node| node.name).collect());
        }
        tokio::time::sleep(AWAIT_EVERY).await;
    }
}
