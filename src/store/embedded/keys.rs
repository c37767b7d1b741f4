//! The key table in the database: changing it and following its changes.
//!
//! Changes are numbered in one order, and rows are never deleted. So the highest number shows whether there are new changes, and a
//! follower that has applied a number has all changes before it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI64, Ordering};

use jiff::Timestamp;
use rusqlite::{Connection, Row, Transaction, TransactionBehavior};

use crate::policy::api_key::{KeyDigest, KeyId};
use crate::policy::audit::Entry;
use crate::policy::key_record::KeyRecord;
use crate::store::export::{ExportedKey, ImportCounts, secret_in_use};
use crate::store::key_table::version_at;
use crate::store::sqlite::{execute, first, packed, parsed, rows, signed, unpacked, value};
use crate::store::{ChangeError, Imported, KeyTable, StoreError};

/// The number of the last change.
pub(super) const MARK: &str = "SELECT coalesce(max(change), 0) FROM keys";
const CHANGES: &str = "SELECT record, change FROM keys WHERE change > ?1 ORDER BY change";
/// All records, in the order of storage, which costs no search for each.
const ALL: &str = "SELECT record, change FROM keys NOT INDEXED";
const PAGE: &str = "SELECT record FROM keys WHERE id > ?1 ORDER BY id LIMIT ?2";
// Reads the index alone, a tenth of the table.
const SEARCH_TEXTS: &str = "SELECT id, search_text FROM keys INDEXED BY keys_by_search_text";
const TRAIL: &str = "SELECT place, entry FROM audit WHERE place > ?1 ORDER BY place LIMIT ?2";
const TRAIL_OF_KEY: &str =
    "SELECT place, entry FROM audit WHERE place > ?1 AND key = ?3 ORDER BY place LIMIT ?2";
/// The key id of an entry that belongs to no key.
pub(super) const NO_KEY: &str = "";
const WHOLE_TRAIL: &str = "SELECT entry FROM audit WHERE key = ?1";
const ADD_EARLIER_AUDIT_ENTRY: &str = "INSERT INTO audit (place, key, entry)
    VALUES ((SELECT min(0, coalesce(min(place), 0)) - 1 FROM audit), ?1, ?2)";
/// Records or entries read at once, so that reading 100,000 of them blocks no other caller.
const PAGE_RECORDS: i64 = 5_000;
/// The records of some keys that are read in one call.
pub(super) const READ_BATCH: usize = 5_000;
const ONE: &str = "SELECT record FROM keys WHERE id = ?1";
const PUT: &str = "INSERT INTO keys (id, version, change, record, search_text)
    VALUES (?1, ?2, ?3, ?4, ?5)
    ON CONFLICT (id) DO UPDATE SET version = ?2, change = ?3, record = ?4, search_text = ?5";
const ADD_AUDIT_ENTRY: &str = "INSERT INTO audit (place, key, entry) VALUES (?1, ?2, ?3)";
const HOLDER: &str = "SELECT id FROM digests WHERE digest = ?1";
const ADD_DIGEST: &str = "INSERT INTO digests (digest, id) VALUES (?1, ?2)
    ON CONFLICT (digest) DO NOTHING";
const DROP_DIGESTS: &str = "DELETE FROM digests WHERE digest IN (?1, ?2)";

/// Applies changes of the database to the key table in memory.
pub(super) struct Follower {
    /// A gateway has all records in memory, 1 kB a key; a command reads them from the database.
    is_of_gateway: bool,
    /// The table in memory.
    pub(super) table: KeyTable,
    applied: AtomicI64,
}

impl Follower {
    /// A follower that has read no change yet.
    pub(super) fn new(is_of_gateway: bool) -> Follower {
        Follower {
            is_of_gateway,
            table: KeyTable::default(),
            applied: AtomicI64::new(0),
        }
    }

    /// The number of the last change in the table. All changes before it are in the table too.
    pub(super) fn applied(&self) -> i64 {
        self.applied.load(Ordering::Acquire)
    }

    /// Applies new changes; returns whether there were any. Threads may do this at the same time: versions only rise.
    pub(super) fn catch_up(&self, connection: &Connection) -> rusqlite::Result<bool> {
        if !self.is_of_gateway {
            return Ok(false);
        }
        let applied = self.applied();
        let last: i64 = value(connection, MARK, [])?;
        if last <= applied {
            return Ok(false);
        }
        let mut changes = connection.prepare(if applied == 0 { ALL } else { CHANGES })?;
        let mut rows = match applied {
            0 => changes.query([])?,
            _ => changes.query([applied])?,
        };
        let mut reached = applied;
        while let Some(row) = rows.next()? {
            self.table.apply(read(row)?);
            reached = reached.max(row.get(1)?);
        }
        self.applied.fetch_max(reached, Ordering::AcqRel);
        Ok(true)
    }
}

/// The new record and the number of the change, or why it was not made.
pub(super) type ChangeResult = Result<(KeyRecord, i64), ChangeError>;

/// Adds a key.
pub(super) fn create(
    connection: &Connection,
    mut record: KeyRecord,
    now: Timestamp,
) -> rusqlite::Result<ChangeResult> {
    let transaction = Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
    if one(&transaction, record.id)?.is_some() {
        return Ok(Err(ChangeError::Exists(record.id)));
    }
    record.created = now;
    record.updated = now;
    record.version = version_at(now);
    made(transaction, record, None)
}

/// Replaces a key's record if its version is still the one that the caller read.
pub(super) fn update(
    connection: &Connection,
    mut record: KeyRecord,
    now: Timestamp,
) -> rusqlite::Result<ChangeResult> {
    let transaction = Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
    let Some(old) = one(&transaction, record.id)? else {
        return Ok(Err(ChangeError::UnknownKey(record.id)));
    };
    if old.version != record.version {
        return Ok(Err(ChangeError::Conflict(record.id)));
    }
    record.created = old.created;
    record.updated = now;
    record.version = version_at(now).max(old.version.saturating_add(1));
    made(transaction, record, Some(&old))
}

/// Writes and commits a record; nothing if a digest is in use.
fn made(
    transaction: Transaction<'_>,
    record: KeyRecord,
    old: Option<&KeyRecord>,
) -> rusqlite::Result<ChangeResult> {
    let Ok(place) = put(&transaction, &record, old)? else {
        return Ok(Err(ChangeError::Exists(record.id)));
    };
    transaction.commit()?;
    Ok(Ok((record, place)))
}

/// Adds, in one transaction, the keys whose ids and digests are not in use. Returns the result for each key and the number of the last
/// change.
pub(super) fn import(
    connection: &Connection,
    records: Vec<KeyRecord>,
    now: Timestamp,
) -> rusqlite::Result<(Vec<Imported>, Option<i64>)> {
    let transaction = Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
    let (mut outcomes, mut last) = (Vec::with_capacity(records.len()), None);
    for mut record in records {
        record.updated = now;
        record.version = version_at(now);
        let holders = record.digests().map(|digest| holder(&transaction, &digest));
        let outcome = match holders.filter_map(Result::transpose).next().transpose()? {
            Some(holder) => Imported::Held(holder),
            None => match one(&transaction, record.id)? {
                Some(stored) if stored.has_had(&record.digest) => Imported::Held(record.id),
                Some(_) => Imported::IdTaken,
                None => {
                    last = put(&transaction, &record, None)?.ok().or(last);
                    Imported::Added
                }
            },
        };
        outcomes.push(outcome);
    }
    transaction.commit()?;
    Ok((outcomes, last))
}

/// Writes a record, its digests in place of the old ones, and its audit entry. Returns the number of the change, or the other key
/// that has one of the digests: then the transaction must not be committed.
fn put(
    connection: &Connection,
    record: &KeyRecord,
    old: Option<&KeyRecord>,
) -> rusqlite::Result<Result<i64, KeyId>> {
    if let Some(old) = old {
        let previous = old.previous.as_ref().map(|previous| previous.digest);
        let previous = previous.as_ref().map(KeyDigest::as_bytes);
        execute(connection, DROP_DIGESTS, (old.digest.as_bytes(), previous))?;
    }
    let id = record.id.as_str();
    for digest in record.digests() {
        if execute(connection, ADD_DIGEST, (digest.as_bytes(), id))? == 0
            && let Some(holder) = holder(connection, &digest)?
            && holder != record.id
        {
            return Ok(Err(holder));
        }
    }
    let place = value::<i64>(connection, MARK, [])?.saturating_add(1);
    let (version, text) = (signed(record.version), record.search_text());
    let row = (id, version, place, packed(record)?, text);
    execute(connection, PUT, row)?;
    let entry = (place, id, packed(&Entry::of(record))?);
    execute(connection, ADD_AUDIT_ENTRY, entry)?;
    Ok(Ok(place))
}

fn holder(connection: &Connection, digest: &KeyDigest) -> rusqlite::Result<Option<KeyId>> {
    first(connection, HOLDER, [digest.as_bytes()], |row| {
        parsed(row, 0)
    })
}

/// The record of one key.
pub(super) fn one(connection: &Connection, id: KeyId) -> rusqlite::Result<Option<KeyRecord>> {
    first(connection, ONE, [id.as_str()], read)
}

/// The records of some keys; unknown keys are left out.
pub(super) fn some(connection: &Connection, ids: &[KeyId]) -> rusqlite::Result<Vec<KeyRecord>> {
    let records = ids.iter().map(|id| one(connection, *id));
    records.filter_map(Result::transpose).collect()
}

/// The keys with a text, in lower case, in their search text, in the order of the table.
pub(super) fn with_text(connection: &Connection, text: &str) -> rusqlite::Result<Vec<KeyId>> {
    let (mut ids, mut texts) = (Vec::new(), connection.prepare_cached(SEARCH_TEXTS)?);
    let mut rows = texts.query([])?;
    while let Some(row) = rows.next()? {
        // SQLite's own instr() takes three times as long.
        if row.get_ref(1)?.as_str()?.contains(text) {
            ids.push(parsed(row, 0)?);
        }
    }
    ids.sort_unstable();
    Ok(ids)
}

/// A page of records after an id. In the order of the table, so that a page is read in one piece.
pub(super) fn page(
    connection: &Connection,
    after: Option<KeyId>,
) -> rusqlite::Result<Vec<KeyRecord>> {
    let after = after.map_or_else(String::new, |id| id.as_str().to_owned());
    rows(connection, PAGE, (after, PAGE_RECORDS), read)
}

/// A page of audit entries after a change, of all keys or of one, each with the number of its change.
pub(super) fn trail(
    connection: &Connection,
    after: i64,
    key: Option<KeyId>,
) -> rusqlite::Result<Vec<(i64, Entry)>> {
    let entry = |row: &Row<'_>| Ok((row.get(0)?, unpacked(row, 1)?));
    match key {
        None => rows(connection, TRAIL, (after, PAGE_RECORDS), entry),
        Some(key) => {
            let of_key = (after, PAGE_RECORDS, key.as_str());
            rows(connection, TRAIL_OF_KEY, of_key, entry)
        }
    }
}

/// The whole audit trail of one key, or the entries that belong to [none](NO_KEY), in the order of time.
pub(super) fn trail_of(connection: &Connection, key: &str) -> rusqlite::Result<Vec<Entry>> {
    let mut entries: Vec<Entry> = rows(connection, WHOLE_TRAIL, [key], |row| unpacked(row, 0))?;
    entries.sort_by_key(Entry::place);
    Ok(entries)
}

/// Imports an audit entry that belongs to no key.
pub(super) fn import_entry(
    connection: &Connection,
    entry: &Entry,
    counts: &mut ImportCounts,
) -> rusqlite::Result<()> {
    let known = trail_of(connection, NO_KEY)?;
    if known.iter().all(|known| known.version != entry.version) {
        execute(
            connection,
            ADD_EARLIER_AUDIT_ENTRY,
            (NO_KEY, packed(entry)?),
        )?;
        counts.audit_entries_added += 1;
    }
    Ok(())
}

/// Imports an exported key: its record if it is newer than the stored one, and the missing entries of its trail. Entries of changes
/// that were made elsewhere get places before the first one; the record's own entry gets the place of the change.
///
/// # Errors
/// If another key has one of its secrets; then nothing may be committed.
pub(super) fn import_exported(
    connection: &Connection,
    key: &ExportedKey,
    counts: &mut ImportCounts,
) -> rusqlite::Result<Result<(), StoreError>> {
    let ExportedKey { record, trail } = key;
    let stored = one(connection, record.id)?;
    let known: BTreeSet<u64> = trail_of(connection, record.id.as_str())?
        .iter()
        .map(|entry| entry.version)
        .collect();
    let mut versions = known.clone();
    match &stored {
        Some(stored) if stored.version >= record.version || !record.replaces(stored) => {
            counts.keys_held += 1;
        }
        Some(_) | None => {
            if let Err(holder) = put(connection, record, stored.as_ref())? {
                return Ok(Err(secret_in_use(record.id, holder.as_str())));
            }
            versions.insert(record.version);
            match stored {
                Some(_) => counts.keys_replaced += 1,
                None => counts.keys_added += 1,
            }
        }
    }
    for entry in trail {
        if versions.insert(entry.version) {
            let row = (record.id.as_str(), packed(entry)?);
            execute(connection, ADD_EARLIER_AUDIT_ENTRY, row)?;
        }
    }
    let added = versions.difference(&known).count();
    counts.audit_entries_added += u64::try_from(added).unwrap_or(0);
    Ok(Ok(()))
}

fn read(row: &Row<'_>) -> rusqlite::Result<KeyRecord> {
    unpacked(row, 0)
}
