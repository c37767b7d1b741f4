//! Reads the audit trail.
//!
//! The entry of a record's last change can be derived from the record itself, so it is returned even if Redis lost the trail
//! and a gateway wrote the record back.

use std::collections::BTreeMap;

use redis::Cmd;

use crate::policy::api_key::KeyId;
use crate::policy::audit::{Entry, Wanted};
use crate::policy::key_record::KeyRecord;
use crate::store::StoreError;
use crate::store::redis::wire::link::RedisLink;

/// Trails read in one round trip.
const BATCH: usize = 500;

/// The wanted entries of these keys, and of the register of gateways, in the order of time.
pub async fn read(
    link: &RedisLink,
    records: &[KeyRecord],
    wanted: &Wanted,
) -> Result<Vec<Entry>, StoreError> {
    let mut entries = Vec::new();
    for batch in records.chunks(BATCH) {
        let trails = trails(link, batch.iter().map(|record| record.id)).await?;
        for (record, mut trail) in batch.iter().zip(trails) {
            trail
                .entry(record.version)
                .or_insert_with(|| Entry::of(record));
            entries.extend(trail.into_values().filter(|entry| wanted.holds(entry)));
        }
    }
    if wanted.key.is_none() {
        let of_gateways = of_gateways(link).await?.into_iter();
        entries.extend(of_gateways.filter(|entry| wanted.holds(entry)));
    }
    entries.sort_by_key(Entry::place);
    Ok(entries)
}

/// The trails of some keys, by version.
pub async fn trails(
    link: &RedisLink,
    keys: impl Iterator<Item = KeyId>,
) -> Result<Vec<BTreeMap<u64, Entry>>, StoreError> {
    let ask = keys.map(|key| Cmd::hvals(link.names.audit_trail(key)));
    let packed: Vec<Vec<String>> = link.replies(ask).await?;
    let trails = packed.iter().map(|entries| {
        let entries = entries.iter().map(|packed| {
            let entry = unpacked(packed)?;
            Ok((entry.version, entry))
        });
        entries.collect::<Result<_, StoreError>>()
    });
    trails.collect()
}

/// The entries of the register of gateways.
pub async fn of_gateways(link: &RedisLink) -> Result<Vec<Entry>, StoreError> {
    let ask = Cmd::hvals(link.names.gateway_audit_trail());
    let packed: Vec<String> = link.read(&ask).await?;
    packed.iter().map(|packed| unpacked(packed)).collect()
}

/// An entry as it is stored.
fn unpacked(packed: &str) -> Result<Entry, StoreError> {
    serde_json::from_str(packed)
        .map_err(|error| StoreError::Failed(format!("an entry of the audit trail: {error}")))
}
