//! Finds records: all, or those with a text, through sets of ids and of search texts, or by a scan over every name.
//!
//! The sets are trusted only if the mark of completeness of each one names the store's incarnation. All of these are lost when the
//! store is emptied; an emptied master of a cluster loses those of its sets; a store from before the sets has none. Invariant: a mark is
//! set after a scan over every name that entered what it found, and an id or a new text is entered before its record is written,
//! except by a charge that restores a lost record: every gateway enters the ids and texts of all keys again after a loss. Texts are never
//! removed, so that no search misses one: it compares the record of each key that it finds. An outdated text takes less than the
//! audit entry of the change that replaced it.

use std::collections::{BTreeMap, BTreeSet};

use redis::Cmd;

use super::codec::unpacked;
use crate::policy::api_key::{KeyDigest, KeyId};
use crate::policy::key_record::KeyRecord;
use crate::store::StoreError;
use crate::store::redis::names::{ID_SETS, Names, drawn, escaped};
use crate::store::redis::wire::link::{RedisLink, ScanPlace};

/// The names of one step of a walk over every name, and the members of one over the index.
const STEP: u32 = 1_000;
/// The texts of a set that one step of a search compares: those of all sets take Redis one to two milliseconds, in which no charge
/// is decided.
const COMPARED_PER_SET: u32 = 125;

/// The state of the store's key table as a whole.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IndexState {
    /// The incarnation of the store's data, or `None` if the store is empty or older than incarnations.
    pub incarnation: Option<String>,
    /// Whether the sets contain all ids.
    pub is_complete: bool,
}

/// Reads the state.
pub async fn state(link: &RedisLink) -> Result<IndexState, StoreError> {
    let complete = (0..ID_SETS).map(|set| link.names.complete(set));
    let names = std::iter::once(link.names.incarnation()).chain(complete);
    let incarnations: Vec<Option<String>> = link.replies(names.map(Cmd::get)).await?;
    let mut incarnations = incarnations.into_iter();
    let incarnation = incarnations.next().flatten();
    Ok(IndexState {
        is_complete: incarnation.is_some() && incarnations.all(|complete| complete == incarnation),
        incarnation,
    })
}

/// Gives the store an incarnation unless it has one. Returns its incarnation.
pub async fn begin_incarnation(link: &RedisLink) -> Result<Option<String>, StoreError> {
    let mut set = redis::cmd("SET");
    set.arg((link.names.incarnation(), drawn(), "NX"));
    link.ask(&set).await?;
    Ok(state(link).await?.incarnation)
}

/// Records that the sets contain all ids of an incarnation.
pub async fn completed(link: &RedisLink, incarnation: &str) -> Result<(), StoreError> {
    let set = (0..ID_SETS).map(|set| Cmd::set(link.names.complete(set), incarnation));
    link.send(set).await
}

/// Enters the ids and search texts of records in the sets.
pub async fn enter(
    link: &RedisLink,
    records: impl IntoIterator<Item = &KeyRecord>,
) -> Result<(), StoreError> {
    let mut sets: BTreeMap<u32, (Vec<String>, Vec<String>)> = BTreeMap::new();
    for record in records {
        let (ids, texts) = sets.entry(Names::id_set(record.id)).or_default();
        ids.push(record.id.to_string());
        // Search texts are in lower case, ids are not.
        texts.push(format!("{}\n{}", record.id, record.search_text()));
    }
    let add = sets.into_iter().flat_map(|(set, (ids, texts))| {
        let ids = Cmd::sadd(link.names.ids(set), ids);
        [ids, Cmd::sadd(link.names.search_texts(set), texts)]
    });
    link.send(add).await
}

/// The keys that have or had a text, in lower case, in their search text. The sets must be complete.
pub async fn with_text(link: &RedisLink, text: &str) -> Result<BTreeSet<KeyId>, StoreError> {
    let pattern = format!("*{}*", escaped(text));
    let mut found = BTreeSet::new();
    // A step of all sets at once: a round trip for each step of each would take longer than the comparisons.
    let mut places: Vec<(u32, u64)> = (0..ID_SETS).map(|set| (set, 0)).collect();
    while !places.is_empty() {
        let scan = places.iter().map(|(set, cursor)| {
            let texts = link.names.search_texts(*set);
            let mut scan = redis::cmd("SSCAN");
            scan.arg((texts, cursor, "MATCH", &pattern, "COUNT", COMPARED_PER_SET));
            scan
        });
        let pages: Vec<(u64, Vec<String>)> = link.replies(scan).await?;
        let sets: Vec<u32> = places.drain(..).map(|(set, _)| set).collect();
        for (set, (cursor, texts)) in sets.into_iter().zip(pages) {
            let ids = texts.iter().filter_map(|text| text.lines().next());
            found.extend(ids.filter_map(|id| id.parse::<KeyId>().ok()));
            if cursor != 0 {
                places.push((set, cursor));
            }
        }
    }
    Ok(found)
}

/// The number of ids.
pub async fn count(link: &RedisLink) -> Result<u64, StoreError> {
    let ask = (0..ID_SETS).map(|set| Cmd::scard(link.names.ids(set)));
    let counts: Vec<u64> = link.replies(ask).await?;
    Ok(counts.iter().sum())
}

/// A walk over all keys, page by page. A key may be found twice.
#[derive(Debug)]
pub struct KeyPages {
    next: Option<WalkPosition>,
}

#[derive(Debug)]
enum WalkPosition {
    /// The sets of ids that are not at their end, each with its cursor.
    Index(Vec<(u32, u64)>),
    Everywhere(ScanPlace),
}

impl KeyPages {
    /// A walk through the index if it is complete, else through every name.
    pub fn of(state: &IndexState) -> KeyPages {
        if state.is_complete {
            KeyPages {
                next: Some(WalkPosition::Index(
                    (0..ID_SETS).map(|set| (set, 0)).collect(),
                )),
            }
        } else {
            KeyPages::everywhere()
        }
    }

    /// A walk through every name of all servers, counts and ledger included.
    pub fn everywhere() -> KeyPages {
        KeyPages {
            next: Some(WalkPosition::Everywhere(ScanPlace::default())),
        }
    }

    /// The records of the next page, which may be empty, or `None` after the last.
    pub async fn next(&mut self, link: &RedisLink) -> Result<Option<Vec<KeyRecord>>, StoreError> {
        match self.next_ids(link).await? {
            Some(ids) => records(link, &ids).await.map(Some),
            None => Ok(None),
        }
    }

    /// The keys of the next page, which may be empty, or `None` after the last.
    pub async fn next_ids(&mut self, link: &RedisLink) -> Result<Option<Vec<KeyId>>, StoreError> {
        match self.next.take() {
            None => Ok(None),
            Some(WalkPosition::Index(places)) => {
                // A step of all sets at once: a round trip for each would make a walk over few keys a long one.
                let count = STEP.div_ceil(ID_SETS);
                let scan = places.iter().map(|(set, cursor)| {
                    let mut scan = redis::cmd("SSCAN");
                    scan.arg((link.names.ids(*set), cursor, "COUNT", count));
                    scan
                });
                let pages: Vec<(u64, Vec<String>)> = link.replies(scan).await?;
                let (mut found, mut rest) = (Vec::new(), Vec::new());
                for ((set, _), (cursor, ids)) in places.into_iter().zip(pages) {
                    found.extend(ids.iter().filter_map(|id| id.parse::<KeyId>().ok()));
                    if cursor != 0 {
                        rest.push((set, cursor));
                    }
                }
                self.next = (!rest.is_empty()).then_some(WalkPosition::Index(rest));
                Ok(Some(found))
            }
            Some(WalkPosition::Everywhere(place)) => {
                let (next, found) = link.scan(place, &link.names.records(), STEP).await?;
                self.next = next.map(WalkPosition::Everywhere);
                let ids = found
                    .iter()
                    .filter_map(|name| link.names.key_of_record(name));
                Ok(Some(ids.collect()))
            }
        }
    }
}

/// The records of these keys; missing and unreadable ones are omitted.
pub async fn records(link: &RedisLink, ids: &[KeyId]) -> Result<Vec<KeyRecord>, StoreError> {
    let mut records = Vec::new();
    for (id, packed) in ids.iter().zip(packed(link, ids).await?) {
        match packed.as_deref().map(unpacked) {
            Some(Ok(record)) => records.push(record),
            Some(Err(error)) => tracing::error!(key = %id, %error, "a key's record is skipped"),
            None => {}
        }
    }
    Ok(records)
}

/// The record of each of these keys, or `None` if there is none.
///
/// # Errors
/// Those of Redis, and unreadable records.
pub async fn stored(link: &RedisLink, ids: &[KeyId]) -> Result<Vec<Option<KeyRecord>>, StoreError> {
    let packed = packed(link, ids).await?;
    let records = packed.iter();
    records
        .map(|packed| packed.as_deref().map(unpacked).transpose())
        .collect()
}

/// The digests of some records: the key of each, and the id that Redis has for it.
pub async fn holders<'r>(
    link: &RedisLink,
    records: impl Iterator<Item = &'r KeyRecord>,
) -> Result<Vec<(KeyId, KeyDigest, Option<String>)>, StoreError> {
    let wanted = records.flat_map(|record| record.digests().map(|digest| (record.id, digest)));
    let wanted: Vec<(KeyId, KeyDigest)> = wanted.collect();
    let ask = wanted
        .iter()
        .map(|(_, digest)| Cmd::get(link.names.digest(digest)));
    let holders: Vec<_> = link.replies(ask).await?;
    let held = wanted.into_iter().zip(holders);
    Ok(held
        .map(|((id, digest), holder)| (id, digest, holder))
        .collect())
}

async fn packed(link: &RedisLink, ids: &[KeyId]) -> Result<Vec<Option<String>>, StoreError> {
    let ask = ids
        .iter()
        .map(|id| Cmd::hget(link.names.record(*id), "rec"));
    link.replies(ask).await
}
