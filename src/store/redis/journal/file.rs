//! The journal's file: made where it is missing, known as ours, and of one store only.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, TransactionBehavior};

use super::{processes, rows};
use crate::store::StoreError;
use crate::store::redis::identity::StoreIdentity;
use crate::store::status::JournalFacts;

/// How long another process may hold the file.
const LOCK_WAIT_MAX: Duration = Duration::from_millis(250);
/// What `PRAGMA user_version` says of a file that this code understands.
const SCHEMA_VERSION: i64 = 1;
/// What `PRAGMA application_id` says of our files: "TCLJ".
const APPLICATION_ID: i64 = 0x54_43_4C_4A;

/// Why there is no journal.
#[derive(Debug)]
pub enum Unusable {
    /// It is another store's or another program's: only an operator can mend that.
    Foreign(String),
    /// It cannot be opened now, with the path and the reason.
    Failed(String),
}

impl From<Unusable> for StoreError {
    fn from(unusable: Unusable) -> StoreError {
        match unusable {
            Unusable::Foreign(text) | Unusable::Failed(text) => StoreError::Failed(text),
        }
    }
}

/// Opens the file for the store that `identity` names, readable by its owner only. A file of another store or program is not
/// changed.
pub fn open(path: &Path, identity: &StoreIdentity) -> Result<Connection, Unusable> {
    create(path);
    let failed = |error: rusqlite::Error| Unusable::Failed(told(path, &error));
    let mut connection = Connection::open(path).map_err(failed)?;
    connection.busy_timeout(LOCK_WAIT_MAX).map_err(failed)?;
    let is_new = tables(&connection).map_err(failed)? == 0;
    if !is_new && !is_ours(&connection).map_err(failed)? {
        return Err(Unusable::Foreign(format!(
            "{} is not a journal of this version of touchline: point store.redis.journal at a file of its own",
            path.display()
        )));
    }
    match claim(&mut connection, identity).map_err(failed)? {
        None => Ok(connection),
        Some((theirs, untold)) => Err(Unusable::Foreign(format!(
            "{} is the journal of {theirs}, and the configuration says {identity}; it holds {untold} units that were served without Redis and not yet sent to it: point store.redis.journal at another file, or, if what this one holds is of no use any more, remove it",
            path.display()
        ))),
    }
}

/// Makes the file ours and this store's. Else: whose it is, and the units in it that its Redis may not know.
fn claim(
    connection: &mut Connection,
    identity: &StoreIdentity,
) -> rusqlite::Result<Option<(StoreIdentity, u64)>> {
    if tables(connection)? == 0 {
        connection.pragma_update(None, "journal_mode", "WAL")?;
    }
    connection.pragma_update(None, "synchronous", "FULL")?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Another process may have been faster.
    if tables(&transaction)? == 0 {
        transaction.execute_batch(rows::TABLES)?;
        transaction.execute_batch(&format!(
            "PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA_VERSION};"
        ))?;
    }
    rows::add_what_is_missing(&transaction)?;
    transaction.execute_batch(processes::TABLE)?;
    if let Some(theirs) = identity.claim(&transaction)? {
        let untold = rows::untold_by_others(&transaction, "")?;
        return Ok(Some((theirs, untold)));
    }
    transaction.commit()?;
    Ok(None)
}

/// What the file says, without changing it; `None` where there is none.
pub fn facts(path: &Path) -> Option<JournalFacts> {
    if !path.exists() {
        return None;
    }
    let sizes = ["", "-wal"].map(|suffix| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        std::fs::metadata(name).map_or(0, |file| file.len())
    });
    let mut facts = JournalFacts {
        path: path.to_owned(),
        bytes: sizes.iter().sum(),
        store: None,
        pending_units: 0,
        counts: 0,
        unsettled_counts: 0,
        error: None,
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
    facts.pending_units = rows::untold_by_others(&connection, "")?;
    (facts.counts, facts.unsettled_counts) = rows::how_many(&connection)?;
    Ok(())
}

/// An SQLite error with the file it is of.
pub fn told(path: &Path, error: &rusqlite::Error) -> String {
    format!("the journal {}: {error}", path.display())
}

fn create(path: &Path) {
    use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};

    // Where these fail, opening the file says why.
    if let Some(directory) = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
    {
        let _ = std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory);
    }
    let _ = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path);
}

fn tables(connection: &Connection) -> rusqlite::Result<i64> {
    connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
}

fn is_ours(connection: &Connection) -> rusqlite::Result<bool> {
    let number = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0));
    let application = number("PRAGMA application_id")?;
    Ok((application, number("PRAGMA user_version")?) == (APPLICATION_ID, SCHEMA_VERSION))
}
