//! What the store has lost of keys, and what a gateway writes back.
//!
//! Records that the store lacks or has in older versions are written back, even revoked ones, and a revocation also if the store has a
//! later version that is not revoked. A walk over every name, every ten minutes, repairs the omissions of a dead command and the losses of
//! a failover.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::{Feed, Lookups};
use crate::policy::api_key::KeyId;
use crate::policy::key_record::{KeyRecord, KeyState};
use crate::store::redis::keys::codec::feed_entry;
use crate::store::redis::keys::index::KeyPages;
use crate::store::redis::keys::records::{WrittenBack, write_back};
use crate::store::redis::wire::request::jittered;
use crate::store::redis::wire::zone::{EmptyStore, ZoneCheck};
use crate::store::{KeyEntry, StoreError};

/// How often every name of the store is walked over, before jitter.
const REPAIR_EVERY: Duration = Duration::from_secs(600);

impl Feed {
    /// Adds all records of a walk to the table and returns their versions.
    pub(super) async fn walk(
        &self,
        mut pages: KeyPages,
    ) -> Result<HashMap<KeyId, u64>, StoreError> {
        let mut walked = HashMap::new();
        while let Some(records) = pages.next(&self.link).await? {
            for record in records {
                walked.insert(record.id, record.version);
                self.apply(record);
            }
        }
        Ok(walked)
    }

    /// Adds a record of the store to the table. If the table has the key as revoked, in no later version, the store lost the revocation
    /// before the key was changed again: the table then has the revocation in a version after the stored one, as that of each gateway that
    /// knew of it. Returns it, to be written back.
    pub(super) fn apply(&self, record: KeyRecord) -> Option<Arc<KeyEntry>> {
        let (id, stored, state) = (record.id, record.version, record.state);
        if self.keys.apply(record) || state == KeyState::Revoked {
            return None;
        }
        let own = self.keys.get(id)?;
        // A command may have given its change the very version of a revocation made again.
        if own.record.state != KeyState::Revoked || own.record.version > stored {
            return None;
        }
        tracing::warn!(key = %id, "Redis lost the revocation of a key that was changed since: it is revoked again");
        self.keys.apply(KeyRecord {
            version: stored + 1,
            ..own.record.clone()
        });
        self.keys.get(id)
    }

    /// Writes back the records that the store lacks or has in older versions, and the ids, texts and digests that may be lost.
    pub(super) async fn write_back(
        &self,
        stored: &HashMap<KeyId, u64>,
        lookups: Lookups,
    ) -> Result<(), StoreError> {
        let link = &self.link;
        let is_lacking = |entry: &Arc<KeyEntry>| {
            let version = stored.get(&entry.record.id);
            version.is_none_or(|version| *version < entry.record.version)
        };
        let entries = self.keys.entries();
        let (lacking, others): (Vec<_>, Vec<_>) = entries.into_iter().partition(is_lacking);
        if lookups == Lookups::Lost {
            write_back(link, &others, WrittenBack::Lookups).await?;
        }
        if lacking.is_empty() {
            return Ok(());
        }
        tracing::warn!(
            keys = lacking.len(),
            stored = stored.len(),
            "Redis lacks keys of this gateway's replica or has older versions: writing them back"
        );
        write_back(link, &lacking, WrittenBack::Whole).await?;
        // A gateway that has started since may have such a key as it was.
        let is_known = |entry: &&Arc<KeyEntry>| stored.contains_key(&entry.record.id);
        let lost = lacking.iter().filter(is_known);
        let revoked = lost.filter(|entry| entry.record.state == KeyState::Revoked);
        self.publish(revoked).await
    }

    /// Adds revocations to the feed, for gateways that do not know them; the others ignore them.
    pub(super) async fn publish(
        &self,
        revoked: impl Iterator<Item = &Arc<KeyEntry>>,
    ) -> Result<(), StoreError> {
        let names = &self.link.names;
        let entries = revoked.map(|entry| feed_entry(names, &entry.record));
        let entries = Vec::from_iter(entries);
        match entries.is_empty() {
            true => Ok(()),
            false => self.link.send(entries).await,
        }
    }

    /// Walks over every name of the store again and again.
    pub async fn repair(self: Arc<Self>) {
        loop {
            tokio::time::sleep(jittered(REPAIR_EVERY)).await;
            if let Err(error) = self.repair_once().await {
                tracing::warn!(%error, "the key table could not be checked; trying again later");
            }
        }
    }

    /// Completes the index, and writes back the records that the store lacks.
    pub async fn repair_once(&self) -> Result<(), StoreError> {
        self.remember_zone().await?;
        // The walk does not use the index, which is what it checks.
        let walked = self.walk(KeyPages::everywhere()).await?;
        self.write_back(&walked, Lookups::Lost).await
    }

    /// Sets the zone of an emptied store again.
    ///
    /// # Errors
    /// [`StoreError::OtherCalendar`] if the store has another zone by now, and those of Redis.
    pub(super) async fn remember_zone(&self) -> Result<(), StoreError> {
        let (link, zone) = (&self.link, &self.zone);
        match link.check_zone(zone, EmptyStore::Claimed).await? {
            ZoneCheck::Same => Ok(()),
            // Masters of the cluster are unavailable: a later walk sets it there.
            ZoneCheck::Unread(_) if link.is_cluster() => Ok(()),
            ZoneCheck::Unread(error) => Err(error),
        }
    }
}
