//! The register of gateways: the live ones, the last key change that each applied, and the silent ones.
//!
//! A gateway signs in with its first heartbeat and signs off when it ends in order. One without a recent heartbeat is silent: it may
//! be dead, or disconnected from Redis and serving from its replica. It remains in the register, and is named by every command
//! that changes a key, until a process signs in with its id again or an operator strikes it off. The register is one hash, in one
//! slot of a cluster; its times are those of the server that holds it.
//!
//! Invariant: no entry is removed because of its age.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use redis::Cmd;

use super::heartbeat::{BEAT_HOLDS, Heartbeat};
use crate::policy::audit::{self, Author};
use crate::store::redis::keys::codec::parse_place;
use crate::store::redis::wire::link::RedisLink;
use crate::store::redis::wire::request::LinkError;
use crate::store::redis::wire::script::{REGISTER, SIGN_IN, STRIKE_OFF};
use crate::store::{ChangeMark, Forgotten, NodeName, StoreError, Unconfirmed};

/// How often the removal of a gateway is repeated if its entry changed meanwhile.
const STRIKE_TRIES: usize = 5;

/// A gateway in the register.
#[derive(Debug, Clone, PartialEq)]
pub struct RegisterEntry {
    /// Its gateway id.
    pub gateway_id: String,
    /// The process with this id, or the last one that had it.
    pub name: NodeName,
    /// The time of its last heartbeat.
    pub heard: Timestamp,
    /// The difference between that time and the server's clock, in either direction.
    pub age: Duration,
    /// Its last heartbeat; `None` if that cannot be read.
    pub heartbeat: Option<Heartbeat>,
    /// The entry as it is stored.
    pub packed: String,
}

impl RegisterEntry {
    /// An unreadable entry becomes a gateway without heartbeats that has its id as its name.
    fn of(gateway_id: String, packed: String, now_ms: i64) -> RegisterEntry {
        let mut parts = packed.splitn(3, ' ');
        let heard_ms: i64 = parts.next().and_then(|ms| ms.parse().ok()).unwrap_or(0);
        let name = parts.next().unwrap_or(&gateway_id).to_owned();
        RegisterEntry {
            name: NodeName(name),
            heard: Timestamp::from_millisecond(heard_ms).unwrap_or_default(),
            age: Duration::from_millis(now_ms.abs_diff(heard_ms)),
            heartbeat: parts
                .next()
                .and_then(|text| serde_json::from_str(text).ok()),
            gateway_id,
            packed,
        }
    }

    /// Whether its last heartbeat is recent.
    pub fn is_live(&self) -> bool {
        self.age <= BEAT_HOLDS
    }

    /// The last change that it is known to have applied.
    fn applied(&self) -> Option<u128> {
        parse_place(&self.heartbeat.as_ref()?.applied)
    }
}

/// Enters a gateway, or renews its entry. Returns the process whose entry the id had before, if any.
pub async fn sign_in(
    link: &RedisLink,
    gateway_id: &str,
    node: &NodeName,
    heartbeat: &Heartbeat,
) -> Result<Option<NodeName>, LinkError> {
    let text = serde_json::to_string(heartbeat).unwrap_or_default();
    let arguments = (gateway_id, &node.0, text);
    let keys = [link.names.register()];
    let before: String = link
        .run(&SIGN_IN, &keys, &arguments, link.deadline())
        .await?;
    Ok((!before.is_empty()).then_some(NodeName(before)))
}

/// Removes a gateway that ends in order.
pub async fn sign_off(link: &RedisLink, gateway_id: &str) -> Result<(), StoreError> {
    let delete = Cmd::hdel(link.names.register(), gateway_id);
    link.send([delete]).await
}

/// Restores entries that the store lost, but none that an operator struck off. An audit entry that cannot be read counts as none.
pub async fn put_back(link: &RedisLink, entries: &[RegisterEntry]) -> Result<(), StoreError> {
    let register = link.names.register();
    let ask = Cmd::hvals(link.names.gateway_audit_trail());
    let packed: Vec<String> = link.read(&ask).await?;
    let trail = packed.iter().map(|packed| serde_json::from_str(packed));
    let trail: Vec<audit::Entry> = trail.filter_map(Result::ok).collect();
    let is_struck = |entry: &RegisterEntry| {
        let mut trail = trail.iter();
        trail.any(|audited| audited.forgets(&entry.name.0, entry.heard))
    };
    let put = entries.iter().filter(|entry| !is_struck(entry));
    let put = put.map(|entry| Cmd::hset_nx(&register, &entry.gateway_id, &entry.packed));
    link.send(put).await
}

/// All gateways in the register, by name.
pub async fn read(link: &RedisLink) -> Result<Vec<RegisterEntry>, StoreError> {
    let (keys, none) = ([link.names.register()], Vec::<String>::new());
    let (now_ms, all): (i64, HashMap<String, String>) =
        link.run(&REGISTER, &keys, &none, link.deadline()).await?;
    let all = all.into_iter();
    let mut entries: Vec<RegisterEntry> = all
        .map(|(gateway_id, packed)| RegisterEntry::of(gateway_id, packed, now_ms))
        .collect();
    entries.sort_unstable_by(|one, other| {
        (&one.name, &one.gateway_id).cmp(&(&other.name, &other.gateway_id))
    });
    Ok(entries)
}

/// The gateways that have not confirmed a change, the silent ones among them.
pub async fn unconfirmed(
    link: &RedisLink,
    mark: &ChangeMark,
) -> Result<Vec<Unconfirmed>, StoreError> {
    let mut entries = read(link).await?;
    entries
        .retain(|entry| !entry.is_live() || entry.applied().is_none_or(|applied| applied < mark.0));
    let unconfirmed = entries.into_iter().map(|entry| Unconfirmed {
        silent_since: (!entry.is_live()).then_some(entry.heard),
        name: entry.name,
    });
    Ok(unconfirmed.collect())
}

/// Removes a silent entry without an audit entry; `false` if it changed meanwhile.
pub async fn remove(link: &RedisLink, entry: &RegisterEntry) -> Result<bool, StoreError> {
    strike(link, entry, None).await
}

/// Removes a silent gateway, with an entry in the audit trail in the same step.
pub async fn strike_off(
    link: &RedisLink,
    node: &NodeName,
    author: &Author,
) -> Result<Forgotten, StoreError> {
    for _ in 0..STRIKE_TRIES {
        let entries = read(link).await?;
        let Some(entry) = entries.iter().find(|entry| entry.name == *node) else {
            return Ok(Forgotten::Unknown);
        };
        if entry.is_live() {
            return Ok(Forgotten::Lives);
        }
        let now = link.time().await?;
        let audited = audit::Entry::of_forgotten(&node.0, entry.heard, now, author);
        if strike(link, entry, Some(&audited)).await? {
            return Ok(Forgotten::Struck { heard: entry.heard });
        }
    }
    Ok(Forgotten::Lives)
}

async fn strike(
    link: &RedisLink,
    entry: &RegisterEntry,
    audited: Option<&audit::Entry>,
) -> Result<bool, StoreError> {
    let version = audited.map_or_else(String::new, |audited| audited.version.to_string());
    let audited = audited.and_then(|audited| serde_json::to_string(audited).ok());
    let audited = audited.unwrap_or_default();
    let arguments = (&entry.gateway_id, &entry.packed, version, audited);
    let keys = [link.names.register(), link.names.gateway_audit_trail()];
    let struck: i64 = link
        .run(&STRIKE_OFF, &keys, &arguments, link.deadline())
        .await?;
    Ok(struck == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_live_for_as_long_as_a_heartbeat_holds_whichever_way_the_clock_was_set() {
        let packed = r#"10000 a-1-00 {"applied":"7-1"}"#.to_owned();
        let hold = i64::try_from(BEAT_HOLDS.as_millis()).unwrap();
        for (now_ms, live) in [
            (10_000, true),
            (10_000 + hold, true),
            (10_000 + hold + 1, false),
            (10_000 - hold - 1, false),
        ] {
            let entry = RegisterEntry::of("s".into(), packed.clone(), now_ms);
            assert_eq!(entry.is_live(), live, "{now_ms}");
            assert_eq!(entry.heard.as_millisecond(), 10_000);
            assert_eq!(entry.name, NodeName("a-1-00".into()));
            assert_eq!(entry.applied(), parse_place("7-1"));
        }
        let later = r#"10000 a-1-00 of a later version"#.to_owned();
        assert_eq!(RegisterEntry::of("s".into(), later, 10_000).heartbeat, None);
        let unreadable = RegisterEntry::of("s".into(), "nothing".into(), 10_000);
        assert_eq!(unreadable.name, NodeName("s".into()));
        assert!(!unreadable.is_live());
    }
}
