//! The key table in Redis: reading, creating and changing records.
//!
//! A change is four steps, each atomic in its own slot: claim the digests, enter a new id in the index, compare-and-set
//! the record with its entry in the audit trail, add the change to the feed. Invariants: a record is in the index (an id there without a
//! record does no harm); a record is replaced only by one with a higher version; a digest belongs to one key. A claim
//! without a record (a command that died between the steps) expires by itself. A record that is missing from the feed is
//! found by the charge script at once and by every gateway's next full scan.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use redis::{Cmd, InfoDict, Value};

use super::index::{self, KeyPages};
use super::{audit, codec, import};
use crate::policy::api_key::{KeyDigest, KeyId};
use crate::policy::audit::{Entry, Wanted};
use crate::policy::key_record::KeyRecord;
use crate::store::key_table::version_at;
use crate::store::redis::wire::link::{Master, RedisLink};
use crate::store::redis::wire::request::IS_REPLICA;
use crate::store::status::Replicas;
use crate::store::{ChangeError, ChangeMark, Imported, KeyEntry, StoreError};

/// Records read in one round trip.
const READ_BATCH: usize = 1_000;
/// Records written back in one round trip.
const WRITE_BACK_BATCH: usize = 128;

/// The key table as commands see it.
pub struct RecordTable {
    link: Arc<RedisLink>,
    /// The number of the connection that the last change was made on.
    written_on: AtomicU64,
}

impl RecordTable {
    /// The table behind a link.
    pub fn new(link: Arc<RedisLink>) -> RecordTable {
        RecordTable {
            link,
            written_on: AtomicU64::new(0),
        }
    }

    /// The record of one key.
    pub async fn get(&self, id: KeyId) -> Result<Option<KeyRecord>, StoreError> {
        let mut stored = index::stored(&self.link, &[id]).await?;
        Ok(stored.pop().flatten())
    }

    /// The number of replicas that have the last change. Blocks the link meanwhile, so use a command's own.
    pub async fn await_replicas(&self, patience: Duration) -> Result<Replicas, StoreError> {
        let masters = self.link.masters();
        // A change may span several masters of a cluster. A master without a part of it replies at once that its replicas have
        // everything.
        let asked = masters
            .iter()
            .map(|master| self.await_replicas_of(master, patience));
        let all = join_all(asked).await.into_iter();
        let all: Vec<Replicas> = all.collect::<Result<_, _>>()?;
        let mirrored = all.into_iter().filter(|replicas| replicas.connected > 0);
        let worst = mirrored.min_by_key(|replicas| replicas.confirmed);
        let mut replicas = worst.unwrap_or_default();
        // The server confirms only what was sent over the same connection; nothing was sent over a new one.
        if self.link.made() != self.written_on.load(Ordering::Acquire) {
            replicas.confirmed = 0;
        }
        Ok(replicas)
    }

    async fn await_replicas_of(
        &self,
        master: &Master,
        patience: Duration,
    ) -> Result<Replicas, StoreError> {
        let ask = redis::cmd("INFO").arg("replication").take();
        let deadline = self.link.deadline();
        let info: InfoDict = self.link.ask_master(master, &ask, deadline).await?;
        let connected = info.get("connected_slaves").unwrap_or_default();
        if connected == 0 {
            return Ok(Replicas::default());
        }
        let mut wait = redis::cmd("WAIT");
        wait.arg((1, patience.as_millis() as u64));
        let deadline = self.link.deadline() + patience;
        Ok(Replicas {
            connected,
            confirmed: self.link.ask_master(master, &wait, deadline).await?,
        })
    }

    /// Reads all records, each once. `take` gets each page.
    pub async fn walk(
        &self,
        take: &mut (dyn FnMut(Vec<KeyRecord>) + Send),
    ) -> Result<(), StoreError> {
        let mut seen = HashSet::new();
        let mut pages = KeyPages::of(&index::state(&self.link).await?);
        while let Some(mut page) = pages.next(&self.link).await? {
            page.retain(|record| seen.insert(record.id));
            take(page);
        }
        Ok(())
    }

    /// The ids of all keys, in their order.
    pub async fn ids(&self) -> Result<Vec<KeyId>, StoreError> {
        let mut ids = BTreeSet::new();
        let mut pages = KeyPages::of(&index::state(&self.link).await?);
        while let Some(page) = pages.next_ids(&self.link).await? {
            ids.extend(page);
        }
        Ok(ids.into_iter().collect())
    }

    /// The records with a text in their search text, ignoring case.
    pub async fn search(&self, text: &str) -> Result<Vec<KeyRecord>, StoreError> {
        let text = text.to_lowercase();
        let mut found = Vec::new();
        let mut take = |page: Vec<KeyRecord>| {
            let page = page.into_iter();
            found.extend(page.filter(|record| record.search_text().contains(&text)));
        };
        let state = index::state(&self.link).await?;
        if !state.is_complete {
            self.walk(&mut take).await?;
            return Ok(found);
        }
        let ids = index::with_text(&self.link, &text).await?;
        take(self.of(&Vec::from_iter(ids)).await?);
        Ok(found)
    }

    /// The records of some keys; a key without one is omitted.
    pub async fn of(&self, ids: &[KeyId]) -> Result<Vec<KeyRecord>, StoreError> {
        let mut records = Vec::with_capacity(ids.len());
        for ids in ids.chunks(READ_BATCH) {
            records.extend(index::records(&self.link, ids).await?);
        }
        Ok(records)
    }

    /// Adds a record.
    pub async fn create(&self, record: KeyRecord) -> Result<(KeyRecord, ChangeMark), ChangeError> {
        let now = self.link.time().await.map_err(ChangeError::Unwritten)?;
        let record = KeyRecord {
            created: now,
            updated: now,
            version: version_at(now),
            ..record
        };
        self.write(record, None).await
    }

    /// Replaces a record of the same version as `record`.
    pub async fn update(&self, record: KeyRecord) -> Result<(KeyRecord, ChangeMark), ChangeError> {
        let id = record.id;
        let old = self.get(id).await.map_err(ChangeError::Unwritten)?;
        let old = old.ok_or(ChangeError::UnknownKey(id))?;
        if old.version != record.version {
            return Err(ChangeError::Conflict(id));
        }
        let now = self.link.time().await.map_err(ChangeError::Unwritten)?;
        let record = KeyRecord {
            created: old.created,
            updated: now,
            version: version_at(now).max(old.version + 1),
            ..record
        };
        self.write(record, Some(&old)).await
    }

    /// Imports keys; see [`super::import`].
    pub async fn import(
        &self,
        records: Vec<KeyRecord>,
    ) -> Result<(Vec<Imported>, Option<ChangeMark>), ChangeError> {
        let now = self.link.time().await.map_err(ChangeError::Unwritten)?;
        self.written_on.store(self.link.made(), Ordering::Release);
        let stamped = records.into_iter().map(|record| KeyRecord {
            updated: now,
            version: version_at(now),
            ..record
        });
        import::import(&self.link, stamped.collect()).await
    }

    /// The audit trail; see [`super::audit`].
    pub async fn audit_trail(&self, wanted: &Wanted) -> Result<Vec<Entry>, StoreError> {
        let records = match wanted.key {
            Some(id) => self.get(id).await?.into_iter().collect(),
            None => {
                let mut all = Vec::new();
                self.walk(&mut |page| all.extend(page)).await?;
                all
            }
        };
        audit::read(&self.link, &records, wanted).await
    }

    /// Adds a stored record to the feed once more, in case its last change was not published. Gateways that have it ignore it.
    pub async fn publish(&self, record: &KeyRecord) -> Result<ChangeMark, StoreError> {
        self.written_on.store(self.link.made(), Ordering::Release);
        self.publish_after(Vec::new(), record).await
    }

    async fn publish_after(
        &self,
        mut commands: Vec<Cmd>,
        record: &KeyRecord,
    ) -> Result<ChangeMark, StoreError> {
        commands.push(codec::feed_entry(&self.link.names, record));
        let replies: Vec<Value> = self.link.replies(commands).await?;
        codec::change_mark(replies.last())
    }

    async fn write(
        &self,
        record: KeyRecord,
        old: Option<&KeyRecord>,
    ) -> Result<(KeyRecord, ChangeMark), ChangeError> {
        self.written_on.store(self.link.made(), Ordering::Release);
        self.put(&record, old).await.map_err(|error| match error {
            // A replica has refused the step, so no step has written the record.
            ChangeError::Store(StoreError::Unavailable(why)) if why.contains(IS_REPLICA) => {
                ChangeError::Unwritten(StoreError::Unavailable(why))
            }
            other => other,
        })?;
        let digests = codec::put_digests(&self.link.names, &record, old);
        match self.publish_after(digests, &record).await {
            Ok(mark) => Ok((record, mark)),
            Err(error) => Err(ChangeError::Unpublished(Box::new(record), error)),
        }
    }

    /// Writes a record, if its digests are free and the stored record is `old`.
    async fn put(&self, record: &KeyRecord, old: Option<&KeyRecord>) -> Result<(), ChangeError> {
        let id = record.id;
        let expected = old.map_or(0, |old| i64::try_from(old.version).unwrap_or(i64::MAX));
        let held: Vec<_> = old.into_iter().flat_map(KeyRecord::digests).collect();
        let mut claimed = Vec::new();
        for digest in record.digests().filter(|digest| !held.contains(digest)) {
            let claim = codec::claim(&self.link.names, &digest, id);
            match self.link.read::<Option<String>>(&claim).await? {
                None => claimed.push(digest),
                // An earlier change of the key could not drop it.
                Some(holder) if holder == id.as_str() => {}
                Some(_) => {
                    self.release(&claimed).await?;
                    return Err(ChangeError::Exists(id));
                }
            }
        }
        if old.is_none_or(|old| old.search_text() != record.search_text()) {
            index::enter(&self.link, [record]).await?;
        }
        let put = codec::put(&self.link.names, record, expected, old);
        let written: i64 = self.link.read(&put).await?;
        if written != 1 {
            self.release(&claimed).await?;
            return Err(match (written, expected) {
                (_, 0) => ChangeError::Exists(id),
                (0, _) => ChangeError::Conflict(id),
                _ => ChangeError::UnknownKey(id),
            });
        }
        Ok(())
    }

    /// Releases digests that this command claimed.
    async fn release(&self, digests: &[KeyDigest]) -> Result<(), StoreError> {
        let names = digests.iter().map(|digest| self.link.names.digest(digest));
        self.link.send(names.map(Cmd::del)).await
    }
}

/// The part of records that is written back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WrittenBack {
    /// The ways to find them: ids, search texts and digests. The records themselves are stored.
    Lookups,
    /// All: the store lacks them or has older versions. Even revoked ones are written.
    Whole,
}

/// Writes back what the store may have lost of records.
pub async fn write_back(
    link: &RedisLink,
    entries: &[Arc<KeyEntry>],
    part: WrittenBack,
) -> Result<(), StoreError> {
    for batch in entries.chunks(WRITE_BACK_BATCH) {
        let records = batch.iter().map(|entry| &entry.record);
        index::enter(link, records.clone()).await?;
        let mut write = Vec::new();
        for record in records {
            if part == WrittenBack::Whole {
                write.push(codec::put(&link.names, record, -1, None));
            }
            write.extend(record.digests().map(|digest| {
                let mut hold = redis::cmd("SET");
                hold.arg((link.names.digest(&digest), record.id.as_str(), "NX"));
                hold
            }));
        }
        link.send(write).await?;
    }
    Ok(())
}
