//! The key table in the database: changing it and following its changes.
//!
//! Every change takes the next place in one order of changes; rows are never deleted, so the highest place says
//! whether anything is new, and a follower that has applied up to a place has all that came before.

use std::sync::atomic::{AtomicI64, Ordering};

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, Statement, Transaction, TransactionBehavior};

use super::group::signed;
use crate::policy::api_key::{KeyDigest, KeyId};
use crate::policy::key_record::KeyRecord;
use crate::store::KeyTable;

/// The place of the last change.
pub(super) const MARK: &str = "SELECT coalesce(max(change), 0) FROM keys";
const CHANGES: &str = "SELECT record, change FROM keys WHERE change > ?1 ORDER BY change";
const ALL: &str = "SELECT record FROM keys ORDER BY born";
const ONE: &str = "SELECT record FROM keys WHERE id = ?1";
const ADD: &str =
    "INSERT INTO keys (id, version, born, change, record) VALUES (?1, ?2, ?3, ?3, ?4)";
const REPLACE: &str = "UPDATE keys SET version = ?2, change = ?3, record = ?4 WHERE id = ?1";
const HOLDER: &str = "SELECT id FROM digests WHERE digest = ?1";
const ADD_DIGEST: &str = "INSERT INTO digests (digest, id) VALUES (?1, ?2)
    ON CONFLICT (digest) DO NOTHING";
const DROP_DIGESTS: &str = "DELETE FROM digests WHERE digest IN (?1, ?2)";

/// Keeps the key table in memory up with the database.
#[derive(Default)]
pub(super) struct Follower {
    table: KeyTable,
    applied: AtomicI64,
}

impl Follower {
    /// The table that is kept up.
    pub(super) fn table(&self) -> &KeyTable {
        &self.table
    }

    /// The place of the last change that is in the table, and all before it.
    pub(super) fn applied(&self) -> i64 {
        self.applied.load(Ordering::Acquire)
    }

    /// Applies what is new, and says whether anything was. Threads may do this at the same time: versions only rise.
    pub(super) fn catch_up(
        &self,
        connection: &Connection,
        mark: &mut Statement<'_>,
    ) -> rusqlite::Result<bool> {
        let applied = self.applied();
        let last: i64 = mark.query_row([], |row| row.get(0))?;
        if last <= applied {
            return Ok(false);
        }
        let mut changes = connection.prepare(CHANGES)?;
        let mut rows = changes.query([applied])?;
        let mut reached = applied;
        while let Some(row) = rows.next()? {
            self.table.apply(read(row)?);
            reached = row.get(1)?;
        }
        self.applied.fetch_max(reached, Ordering::AcqRel);
        Ok(true)
    }
}

/// What became of a wish to change the table.
pub(super) enum Changed {
    /// It was made; the record as it is now, and its place.
    Made(Box<KeyRecord>, i64),
    /// There is no such key.
    Unknown,
    /// The key has another version.
    Conflict,
    /// The id or a digest is in use.
    Taken,
}

/// Adds a key.
pub(super) fn create(
    connection: &Connection,
    mut record: KeyRecord,
    now: Timestamp,
) -> rusqlite::Result<Changed> {
    let transaction = Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
    if one(&transaction, record.id)?.is_some() {
        return Ok(Changed::Taken);
    }
    record.created = now;
    record.updated = now;
    record.version = micros(now).max(1);
    if !hold_digests(&transaction, &record)? {
        return Ok(Changed::Taken);
    }
    let change = next_place(&transaction)?;
    transaction.execute(
        ADD,
        (
            record.id.as_str(),
            signed(record.version),
            change,
            packed(&record)?,
        ),
    )?;
    transaction.commit()?;
    Ok(Changed::Made(Box::new(record), change))
}

/// Replaces a key's record if its version is still the one that the caller read.
pub(super) fn update(
    connection: &Connection,
    mut record: KeyRecord,
    now: Timestamp,
) -> rusqlite::Result<Changed> {
    let transaction = Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
    let Some(old) = one(&transaction, record.id)? else {
        return Ok(Changed::Unknown);
    };
    if old.version != record.version {
        return Ok(Changed::Conflict);
    }
    record.created = old.created;
    record.updated = now;
    record.version = micros(now).max(old.version.saturating_add(1));
    let previous = old.previous.as_ref().map(|previous| previous.digest);
    transaction.execute(
        DROP_DIGESTS,
        (
            old.digest.as_bytes(),
            previous.as_ref().map(KeyDigest::as_bytes),
        ),
    )?;
    if !hold_digests(&transaction, &record)? {
        return Ok(Changed::Taken);
    }
    let change = next_place(&transaction)?;
    transaction.execute(
        REPLACE,
        (
            record.id.as_str(),
            signed(record.version),
            change,
            packed(&record)?,
        ),
    )?;
    transaction.commit()?;
    Ok(Changed::Made(Box::new(record), change))
}

/// The record of one key.
pub(super) fn one(connection: &Connection, id: KeyId) -> rusqlite::Result<Option<KeyRecord>> {
    connection.query_row(ONE, [id.as_str()], read).optional()
}

/// All records in the order of their creation.
pub(super) fn all(connection: &Connection) -> rusqlite::Result<Vec<KeyRecord>> {
    connection.prepare(ALL)?.query_map([], read)?.collect()
}

/// Enters the digests of a record under its id; says no if another key holds one of them.
fn hold_digests(connection: &Connection, record: &KeyRecord) -> rusqlite::Result<bool> {
    let previous = record.previous.as_ref().map(|previous| previous.digest);
    for digest in std::iter::once(record.digest).chain(previous) {
        connection.execute(ADD_DIGEST, (digest.as_bytes(), record.id.as_str()))?;
        let holder: String = connection.query_row(HOLDER, [digest.as_bytes()], |row| row.get(0))?;
        if holder != record.id.as_str() {
            return Ok(false);
        }
    }
    Ok(true)
}

fn next_place(connection: &Connection) -> rusqlite::Result<i64> {
    let last: i64 = connection.query_row(MARK, [], |row| row.get(0))?;
    Ok(last.saturating_add(1))
}

fn read(row: &Row<'_>) -> rusqlite::Result<KeyRecord> {
    let text: String = row.get(0)?;
    serde_json::from_str(&text).map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Text, Box::new(error))
    })
}

fn packed(record: &KeyRecord) -> rusqlite::Result<String> {
    serde_json::to_string(record)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))
}

fn micros(now: Timestamp) -> u64 {
    u64::try_from(now.as_microsecond()).unwrap_or(0)
}
