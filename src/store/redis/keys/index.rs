//! Finds all records: through the sets of ids, or by a scan over every name.
//!
//! The sets are trusted only if the `indexed` of each one names the store's incarnation. All of these are lost when the store
//! is emptied; an emptied master of a cluster loses those of its sets; a store from before the sets has none. Invariant:
//! `indexed` is set after a scan over every name that entered the ids it found, and a new id is entered before its record is
//! written.

use std::collections::BTreeMap;

use redis::{FromRedisValue, Pipeline, Value};

use super::codec::{unpacked, unreadable};
use crate::policy::api_key::{KeyId, os_entropy};
use crate::policy::key_record::KeyRecord;
use crate::store::StoreError;
use crate::store::redis::names::{ID_SETS, Names};
use crate::store::redis::wire::link::{RedisLink, ScanPlace};
use crate::store::redis::wire::request::LinkError;

/// The members or names of one step of a walk.
const STEP: u32 = 1_000;

/// The state of the store's key table as a whole.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IndexState {
    /// The incarnation of the store's data, or `None` if the store is empty or older than incarnations.
    pub incarnation: Option<String>,
    /// Whether the sets contain all ids.
    pub is_complete: bool,
}

/// Reads the state.
pub async fn state(link: &RedisLink, names: &Names) -> Result<IndexState, StoreError> {
    let mut pipeline = Pipeline::new();
    pipeline.cmd("GET").arg(names.incarnation());
    for set in 0..ID_SETS {
        pipeline.cmd("GET").arg(names.indexed(set));
    }
    let value = link.ask(&pipeline).await?;
    let mut incarnations = Vec::<Option<String>>::from_redis_value(value)
        .map_err(unreadable)?
        .into_iter();
    let incarnation = incarnations.next().flatten();
    Ok(IndexState {
        is_complete: incarnation.is_some() && incarnations.all(|indexed| indexed == incarnation),
        incarnation,
    })
}

/// Gives the store an incarnation unless it has one. Returns its incarnation.
pub async fn begin_incarnation(
    link: &RedisLink,
    names: &Names,
) -> Result<Option<String>, StoreError> {
    let mut random = [0; 12];
    os_entropy(&mut random);
    let fresh: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut set = redis::cmd("SET");
    set.arg(names.incarnation()).arg(fresh).arg("NX");
    link.ask(&set).await?;
    Ok(state(link, names).await?.incarnation)
}

/// Records that the sets contain all ids of an incarnation.
pub async fn completed(
    link: &RedisLink,
    names: &Names,
    incarnation: &str,
) -> Result<(), StoreError> {
    let mut pipeline = Pipeline::new();
    for set in 0..ID_SETS {
        pipeline.cmd("SET").arg(names.indexed(set)).arg(incarnation);
    }
    link.ask(&pipeline).await?;
    Ok(())
}

/// Enters ids in the sets.
pub async fn enter(link: &RedisLink, names: &Names, ids: &[KeyId]) -> Result<(), LinkError> {
    let mut sets: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for id in ids {
        sets.entry(names.ids_with(*id))
            .or_default()
            .push(id.as_str());
    }
    if sets.is_empty() {
        return Ok(());
    }
    let mut pipeline = Pipeline::new();
    for (set, ids) in sets {
        pipeline.cmd("SADD").arg(set).arg(ids);
    }
    link.ask(&pipeline).await?;
    Ok(())
}

/// The number of ids.
pub async fn count(link: &RedisLink, names: &Names) -> Result<u64, StoreError> {
    let mut pipeline = Pipeline::new();
    for set in 0..ID_SETS {
        pipeline.cmd("SCARD").arg(names.ids(set));
    }
    let value = link.ask(&pipeline).await?;
    let counts = Vec::<u64>::from_redis_value(value).map_err(unreadable)?;
    Ok(counts.iter().sum())
}

/// A walk over all records, page by page. A record may be found twice.
#[derive(Debug)]
pub struct RecordPages {
    next: Option<WalkPosition>,
}

#[derive(Debug)]
enum WalkPosition {
    Index { set: u32, cursor: u64 },
    Everywhere(ScanPlace),
}

impl RecordPages {
    /// A walk through the index if it is complete, else through every name.
    pub fn of(state: &IndexState) -> RecordPages {
        if state.is_complete {
            RecordPages {
                next: Some(WalkPosition::Index { set: 0, cursor: 0 }),
            }
        } else {
            RecordPages::everywhere()
        }
    }

    /// A walk through every name of all servers, counts and ledger included.
    pub fn everywhere() -> RecordPages {
        RecordPages {
            next: Some(WalkPosition::Everywhere(ScanPlace::default())),
        }
    }

    /// The records of the next page, which may be empty, or `None` after the last.
    pub async fn next(
        &mut self,
        link: &RedisLink,
        names: &Names,
    ) -> Result<Option<Vec<KeyRecord>>, StoreError> {
        let found = match self.next.take() {
            None => return Ok(None),
            Some(WalkPosition::Index { set, cursor }) => {
                let mut scan = redis::cmd("SSCAN");
                scan.arg(names.ids(set)).arg(cursor).arg("COUNT").arg(STEP);
                let (cursor, ids) = page(link.ask(&scan).await?)?;
                self.next = match cursor {
                    0 if set + 1 == ID_SETS => None,
                    0 => Some(WalkPosition::Index {
                        set: set + 1,
                        cursor: 0,
                    }),
                    cursor => Some(WalkPosition::Index { set, cursor }),
                };
                let ids = ids.iter().filter_map(|id| id.parse::<KeyId>().ok());
                ids.map(|id| names.record(id)).collect()
            }
            Some(WalkPosition::Everywhere(place)) => {
                let (next, found) = link.scan(place, &names.records(), STEP).await?;
                self.next = next.map(WalkPosition::Everywhere);
                found
            }
        };
        records(link, &found).await.map(Some)
    }
}

fn page(value: Value) -> Result<(u64, Vec<String>), StoreError> {
    <(u64, Vec<String>)>::from_redis_value(value).map_err(unreadable)
}

/// The records with these names; missing and unreadable ones are omitted.
pub async fn records(link: &RedisLink, names: &[String]) -> Result<Vec<KeyRecord>, StoreError> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let mut pipeline = Pipeline::new();
    for name in names {
        pipeline.cmd("HGET").arg(name).arg("rec");
    }
    let value = link.ask(&pipeline).await?;
    let packed = Vec::<Option<String>>::from_redis_value(value).map_err(unreadable)?;
    let mut records = Vec::new();
    for (name, packed) in names.iter().zip(packed) {
        match packed.as_deref().map(unpacked) {
            Some(Ok(record)) => records.push(record),
            Some(Err(error)) => tracing::error!(name, %error, "a key's record is skipped"),
            None => {}
        }
    }
    Ok(records)
}
