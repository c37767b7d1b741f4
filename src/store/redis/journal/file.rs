//! The journal's file: created if it is missing, checked to be a journal, and of one store only.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, TransactionBehavior};

use super::rows;
use crate::store::StoreError;
use crate::store::disk::full_disk;
use crate::store::held_file::beside;
use crate::store::redis::identity::StoreIdentity;
use crate::store::sqlite::{self, SqliteFormat};
use crate::store::status::JournalFacts;

/// How long to wait for another process that has locked the file.
const LOCK_WAIT_MAX: Duration = Duration::from_millis(250);
/// The format of these files ("TCLJ").
const FORMAT: SqliteFormat = SqliteFormat {
    application_id: 0x54_43_4C_4A,
    version: 1,
};

/// Opens the file of the store `identity`, readable by its owner only. The inner error, with the remedy, is that of a file of another
/// store or program, which only an operator can correct; the file is not changed.
pub fn open(
    path: &Path,
    identity: &StoreIdentity,
) -> rusqlite::Result<Result<Connection, StoreError>> {
    let mut connection = sqlite::open(path, LOCK_WAIT_MAX, FORMAT, rows::TABLES)?;
    let words = [
        "journal",
        "store.redis.journal",
        "run the version that wrote it",
    ];
    if let Some(refusal) = FORMAT.refusal(&connection, path, words)? {
        return Ok(Err(StoreError::Failed(refusal)));
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    if let Some(theirs) = identity.claim(&transaction)? {
        let unsettled = rows::unsettled_but(&transaction, "")?;
        return Ok(Err(StoreError::Failed(format!(
            "{} is the journal of {theirs}, and the configuration names {identity}; it holds {unsettled} units that were served without Redis and not yet sent to it: point store.redis.journal at another file, or, if what this one holds is of no use any more, remove it",
            path.display()
        ))));
    }
    transaction.commit()?;
    Ok(Ok(connection))
}

/// The contents of the journal at `path` in summary, or `None` if there is no such file. Read without Redis and without changing
/// the file. Blocks meanwhile.
pub fn facts(path: &Path) -> Option<JournalFacts> {
    if !path.exists() {
        return None;
    }
    let sizes = ["", "-wal"]
        .map(|suffix| std::fs::metadata(beside(path, suffix)).map_or(0, |file| file.len()));
    let mut facts = JournalFacts {
        path: path.to_owned(),
        bytes: sizes.iter().sum(),
        disk_error: full_disk(path),
        ..JournalFacts::default()
    };
    if let Err(error) = read_facts(path, &mut facts) {
        facts.error = Some(error.to_string());
    }
    Some(facts)
}

fn read_facts(path: &Path, facts: &mut JournalFacts) -> rusqlite::Result<()> {
    let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    connection.busy_timeout(LOCK_WAIT_MAX)?;
    facts.store = StoreIdentity::of(&connection)?.map(|identity| identity.to_string());
    facts.pending_units = rows::unsettled_but(&connection, "")?;
    (facts.counts, facts.unsettled_counts) = rows::how_many(&connection)?;
    Ok(())
}
