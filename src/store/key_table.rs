//! A gateway's replica of the key table in memory.
//!
//! Found by digest, read without a lock. An entry is replaced only by a newer version, and a revoked one only by a revoked one, so
//! that changes may arrive late, doubled or out of order. It owns no connection: stores feed it.

use std::borrow::Borrow;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ahash::RandomState;
use jiff::Timestamp;

use crate::policy::api_key::{KeyDigest, KeyId};
use crate::policy::key_record::{KeyRecord, KeyState, LastChange, TierName, Unusable};

/// A record in the form for the request path.
#[derive(Debug)]
pub struct KeyEntry {
    /// The record.
    pub record: KeyRecord,
    /// The number of the change that added it to its table ([`KeyTable::changes`]); 0 outside one.
    pub change: u64,
}

/// Compares the records.
impl PartialEq for KeyEntry {
    fn eq(&self, other: &KeyEntry) -> bool {
        self.record == other.record
    }
}

impl Eq for KeyEntry {}

impl Borrow<KeyRecord> for Arc<KeyEntry> {
    fn borrow(&self) -> &KeyRecord {
        &self.record
    }
}

impl KeyEntry {
    /// An entry for `record` outside a table.
    pub fn new(record: KeyRecord) -> Arc<KeyEntry> {
        Arc::new(KeyEntry { record, change: 0 })
    }
}

/// The JSON form of a record, as stores keep it. Not kept in memory: it is as large as the record, and is needed about once a day.
pub fn packed(record: &KeyRecord) -> String {
    serde_json::to_string(record).unwrap_or_default()
}

/// Keys by digest and by id.
#[derive(Debug, Default)]
struct Index {
    by_digest: papaya::HashMap<KeyDigest, KeyId, RandomState>,
    by_id: papaya::HashMap<KeyId, Arc<KeyEntry>, RandomState>,
}

impl Index {
    fn id(&self, digest: &KeyDigest) -> Option<KeyId> {
        self.by_digest.pin().get(digest).copied()
    }

    fn entry(&self, id: KeyId) -> Option<Arc<KeyEntry>> {
        self.by_id.pin().get(&id).cloned()
    }
}

/// Parts of records that many keys have alike, such as those issued by one author: such records share them in memory.
#[derive(Debug, Default)]
struct CommonParts {
    tiers: Recent<TierName>,
    changes: Recent<Arc<LastChange>>,
}

impl CommonParts {
    fn replace_parts(&mut self, record: &mut KeyRecord) {
        self.tiers.replace(&mut record.tier);
        self.changes.replace(&mut record.last_change);
    }
}

/// The values that were found last, of at most [`RECENT_MAX`].
#[derive(Debug)]
struct Recent<T>(VecDeque<T>);

const RECENT_MAX: usize = 16;

impl<T> Default for Recent<T> {
    fn default() -> Recent<T> {
        Recent(VecDeque::with_capacity(RECENT_MAX + 1))
    }
}

impl<T: Clone + PartialEq> Recent<T> {
    /// Replaces a value by an equal one found before.
    fn replace(&mut self, value: &mut T) {
        let found = self.0.iter().position(|recent| recent == value);
        let found = found.and_then(|place| self.0.remove(place));
        let kept = found.unwrap_or_else(|| value.clone());
        *value = kept.clone();
        self.0.push_front(kept);
        self.0.truncate(RECENT_MAX);
    }
}

/// The state of the writers, who take turns.
#[derive(Debug, Default)]
struct WriterState {
    common: CommonParts,
    /// The keys of each tier that are not revoked, for tiers with such keys.
    by_tier: BTreeMap<TierName, u64>,
}

impl WriterState {
    /// Counts `new` in the place of `old`.
    fn count(&mut self, old: Option<&KeyRecord>, new: &KeyRecord) {
        if old.is_some_and(|old| counted_tier(old) == counted_tier(new)) {
            return;
        }
        if let Some(tier) = counted_tier(new) {
            match self.by_tier.get_mut(tier) {
                Some(keys) => *keys += 1,
                None => {
                    self.by_tier.insert(tier.clone(), 1);
                }
            }
        }
        if let Some(tier) = old.and_then(counted_tier)
            && let Some(keys) = self.by_tier.get_mut(tier)
        {
            *keys -= 1;
            if *keys == 0 {
                self.by_tier.remove(tier);
            }
        }
    }
}

/// The tier of a key that is or may become usable.
fn counted_tier(record: &KeyRecord) -> Option<&TierName> {
    (record.state != KeyState::Revoked).then_some(&record.tier)
}

/// All keys.
#[derive(Debug)]
pub struct KeyTable {
    keys: Index,
    /// Writers take turns, so that the two maps of the index agree, and the counts with them.
    writing: parking_lot::Mutex<WriterState>,
    changes: AtomicU64,
    /// What is judged in the place of an unknown key: [`KeyRecord::decoy`] and nothing else.
    decoys: Index,
    decoy: KeyDigest,
}

impl Default for KeyTable {
    fn default() -> KeyTable {
        let decoy = KeyRecord::decoy();
        let (id, digest) = (decoy.id, decoy.digest);
        KeyTable {
            keys: Index::default(),
            writing: parking_lot::Mutex::default(),
            changes: AtomicU64::new(0),
            decoys: Index {
                by_digest: [(digest, id)].into_iter().collect(),
                by_id: [(id, KeyEntry::new(decoy))].into_iter().collect(),
            },
            decoy: digest,
        }
    }
}

impl KeyTable {
    /// An empty table.
    pub fn new() -> KeyTable {
        KeyTable::default()
    }

    /// The entry that the holder of this secret may use at `now`. A secret that no key has had is wrong.
    ///
    /// Takes the same steps whatever comes out, so that the time of a refusal reveals nothing about its reason. Three look-ups: one
    /// among the keys and one among the decoys, of which exactly one finds something; and that one's record, which is
    /// judged. No secret opens a decoy.
    pub fn judge(&self, presented: &KeyDigest, now: Timestamp) -> Result<Arc<KeyEntry>, Unusable> {
        let known = self.keys.id(presented);
        let (index, sought) = match known {
            Some(_) => (&self.keys, presented),
            None => (&self.decoys, &self.decoy),
        };
        let decoy = self.decoys.id(sought);
        let entry = known.or(decoy).and_then(|id| index.entry(id));
        let entry = entry.ok_or(Unusable::WrongSecret)?;
        entry.record.usable(presented, now)?;
        Ok(entry)
    }

    /// The entry whose current or previous secret has this digest. The caller still checks
    /// [`KeyRecord::usable`] with the digest: the entry may have moved on.
    pub fn find(&self, digest: &KeyDigest) -> Option<Arc<KeyEntry>> {
        self.get(self.keys.id(digest)?)
    }

    /// The entry with this id.
    pub fn get(&self, id: KeyId) -> Option<Arc<KeyEntry>> {
        self.keys.entry(id)
    }

    /// Adds a record unless one is present that it does not replace ([`KeyRecord::replaces`]). Returns whether it was added.
    pub fn apply(&self, mut record: KeyRecord) -> bool {
        let mut writing = self.writing.lock();
        let by_id = self.keys.by_id.pin();
        let by_digest = self.keys.by_digest.pin();
        let old = by_id.get(&record.id).cloned();
        if old
            .as_ref()
            .is_some_and(|old| !record.replaces(&old.record))
        {
            return false;
        }
        writing.common.replace_parts(&mut record);
        writing.count(old.as_ref().map(|old| &old.record), &record);
        let id = record.id;
        let kept: Vec<KeyDigest> = record.digests().collect();
        let change = self.changes.load(Ordering::Relaxed) + 1;
        by_id.insert(id, Arc::new(KeyEntry { record, change }));
        // A new digest is found only once those that it replaces are gone. One that another key has had since is that key's: of several
        // changes of a record only the last may arrive, and after the other key's.
        if let Some(old) = old {
            let replaced = old.record.digests().filter(|digest| !kept.contains(digest));
            for digest in replaced.filter(|digest| by_digest.get(digest) == Some(&id)) {
                by_digest.remove(&digest);
            }
        }
        for digest in &kept {
            by_digest.insert(*digest, id);
        }
        self.changes.store(change, Ordering::Release);
        true
    }

    /// The number of records added so far, all of which [`KeyTable::entries`] has then: those numbered higher than at the last save
    /// are not saved.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.keys.by_id.len()
    }

    /// Whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The keys of each tier that are not revoked, for tiers with such keys. Waits for a writer at most for one record.
    pub fn by_tier(&self) -> Vec<(TierName, u64)> {
        let writing = self.writing.lock();
        let counts = writing.by_tier.iter();
        counts.map(|(tier, keys)| (tier.clone(), *keys)).collect()
    }

    /// All entries, in no order.
    pub fn entries(&self) -> Vec<Arc<KeyEntry>> {
        self.keys.by_id.pin().values().cloned().collect()
    }
}

/// The version of a new record that is written at this instant; one that replaces another is larger than that, too.
pub(super) fn version_at(now: Timestamp) -> u64 {
    u64::try_from(now.as_microsecond()).unwrap_or(1).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::api_key::{ApiKey, KeyPrefix, os_entropy};
    use crate::policy::key_record::tests::key_of;
    use crate::policy::key_record::{Action, KeyState, PreviousDigest};

    #[test]
    fn an_entry_stays_small() {
        let bytes = size_of::<KeyEntry>();
        assert!(
            bytes <= 208,
            "{bytes} bytes for each of up to millions of keys: box what most keys lack"
        );
    }

    #[test]
    fn records_share_what_they_have_alike() {
        let table = KeyTable::new();
        let issue = |tier: &str, who: &str| {
            let (_, record) = key_of(tier);
            let id = record.id;
            table.apply(KeyRecord {
                last_change: LastChange::first(Action::Issue, who).into(),
                ..record
            });
            table.get(id).unwrap()
        };
        let first = issue("pro", "ann");
        let other = issue("starter", "ben");
        for who in 0..RECENT_MAX - 2 {
            issue("pro", &who.to_string());
        }
        let again = issue("pro", "ann");
        assert!(Arc::ptr_eq(
            &first.record.last_change,
            &again.record.last_change
        ));
        assert!(std::ptr::eq(
            first.record.tier.as_str(),
            again.record.tier.as_str()
        ));
        assert_ne!(first.record.last_change, other.record.last_change);
        // Used less recently than the others.
        issue("pro", "eve");
        assert!(!Arc::ptr_eq(
            &other.record.last_change,
            &issue("starter", "ben").record.last_change
        ));
    }

    #[test]
    fn a_secret_opens_its_own_key_while_that_may_be_used() {
        let table = KeyTable::new();
        let (key, record) = key_of("pro");
        let now = Timestamp::UNIX_EPOCH;
        let judged = || table.judge(&key.digest(), now).map(|entry| entry.record.id);
        assert_eq!(judged(), Err(Unusable::WrongSecret));
        table.apply(record.clone());
        assert_eq!(judged(), Ok(record.id));
        table.apply(KeyRecord {
            state: KeyState::Suspended,
            version: 2,
            ..record.clone()
        });
        assert_eq!(judged(), Err(Unusable::Suspended));
        table.apply(KeyRecord {
            expires: Some(now),
            version: 3,
            ..record
        });
        assert_eq!(judged(), Err(Unusable::Expired));
    }

    #[test]
    fn nothing_opens_the_decoy_and_no_listing_shows_it() {
        let table = KeyTable::new();
        let decoy = KeyRecord::decoy();
        for digest in [decoy.digest, KeyDigest::of(b""), KeyDigest::of(b"fpd_")] {
            assert!(table.judge(&digest, Timestamp::UNIX_EPOCH).is_err());
        }
        assert!(table.get(decoy.id).is_none());
        assert!(table.is_empty() && table.entries().is_empty());
    }

    #[test]
    fn a_key_is_found_by_its_digest_until_a_newer_record_drops_it() {
        let table = KeyTable::new();
        let (key, record) = key_of("pro");
        assert!(table.find(&key.digest()).is_none());
        assert!(table.apply(record.clone()));
        assert_eq!(table.find(&key.digest()).unwrap().record, record);

        let next = ApiKey::for_id(&KeyPrefix::default(), key.id(), &mut os_entropy);
        let previous = PreviousDigest {
            digest: key.digest(),
            until: jiff::Timestamp::MAX,
        };
        let rotated = KeyRecord {
            digest: next.digest(),
            previous: Some(Box::new(previous)),
            version: 2,
            ..record.clone()
        };
        assert!(table.apply(rotated.clone()));
        assert_eq!(table.find(&key.digest()).unwrap().record.version, 2);
        assert_eq!(table.find(&next.digest()).unwrap().record.version, 2);

        assert!(table.apply(KeyRecord {
            previous: None,
            version: 3,
            ..rotated
        }));
        assert!(table.find(&key.digest()).is_none());
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn a_digest_that_another_key_has_had_since_stays_that_keys() {
        let table = KeyTable::new();
        let (_, before) = key_of("pro");
        table.apply(before.clone());
        // The first key drops its digest, another one gets it, and the first one changes again: its first change never arrives.
        let (_, other) = key_of("pro");
        let other = KeyRecord {
            digest: before.digest,
            ..other
        };
        table.apply(other.clone());
        let (_, next) = key_of("pro");
        table.apply(KeyRecord {
            digest: next.digest,
            version: before.version + 2,
            ..before.clone()
        });
        assert_eq!(table.find(&before.digest).unwrap().record, other);
        assert_eq!(table.find(&next.digest).unwrap().record.id, before.id);
    }

    #[test]
    fn the_keys_of_a_tier_are_counted_until_they_leave_it_or_are_revoked() {
        let table = KeyTable::new();
        let counted = || {
            let counts = table.by_tier().into_iter();
            let counts = counts.map(|(tier, keys)| format!("{tier} {keys}"));
            counts.collect::<Vec<_>>().join(", ")
        };
        let [(_, first), (_, second)] = [key_of("pro"), key_of("pro")];
        table.apply(first.clone());
        table.apply(second.clone());
        table.apply(second);
        assert_eq!(counted(), "pro 2");
        let change = |version, tier: &str, state| {
            table.apply(KeyRecord {
                version,
                tier: tier.parse().unwrap(),
                state,
                ..first.clone()
            });
            counted()
        };
        assert_eq!(change(2, "pro", KeyState::Suspended), "pro 2");
        assert_eq!(change(3, "gold", KeyState::Active), "gold 1, pro 1");
        assert_eq!(change(4, "gold", KeyState::Revoked), "pro 1");
        // Nothing replaces a revocation, whatever its version.
        assert_eq!(change(5, "pro", KeyState::Active), "pro 1");
    }

    #[test]
    fn an_older_or_equal_version_changes_nothing() {
        let table = KeyTable::new();
        let (_, record) = key_of("pro");
        assert!(table.apply(KeyRecord {
            version: 5,
            ..record.clone()
        }));
        assert!(!table.apply(KeyRecord {
            version: 5,
            customer: "late".into(),
            ..record.clone()
        }));
        assert!(!table.apply(KeyRecord {
            version: 4,
            ..record.clone()
        }));
        let kept = table.get(record.id).unwrap();
        assert_eq!(&*kept.record.customer, "Acme");
    }
}
