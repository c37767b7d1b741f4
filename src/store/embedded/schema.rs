//! The database file: its creation, its tables, and the setup of its connections.
//!
//! Most tables are `WITHOUT ROWID`, so that a row is found by its name in one search. Dates are text (`2026-11-21`), so that operators
//! can read the file with the `sqlite3` shell. A file of another program, another zone or another version is refused and left
//! unchanged.

use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::{appended, closing};
use crate::policy::calendar::is_same_zone;
use crate::policy::store_settings::Durability;
use crate::store::StoreError;
use crate::store::disk::full_disk;
use crate::store::sqlite::{self, SqliteFormat};

/// A file of the gateway ("TCLN") with this schema.
const FORMAT: SqliteFormat = SqliteFormat {
    application_id: 0x54_43_4C_4E,
    version: 5,
};
/// How long a connection waits for a lock that another process holds, before the store is unavailable.
pub(super) const LOCK_WAIT_MAX: Duration = Duration::from_secs(5);
/// The size of the write-ahead log (64 MiB) from which the writer itself checkpoints it, because the checkpointer cannot keep up.
const LOG_PAGES_MAX: i64 = 65_536;
/// Bytes per page of a new file. A group of charges has some hundred bytes, and on a day with many keys each changed row is in a page
/// of its own. A quarter of SQLite's default makes the log, and the stalls of its checkpoints, that much smaller.
const PAGE_BYTES: i64 = 1_024;
/// Statements that a connection keeps prepared.
const STATEMENTS_KEPT: usize = 64;
/// The page cache of a connection in KiB: the ledger of a day of 100,000 keys.
const CACHE_KIB: i64 = 16_384;
/// The page cache of a command's writing connection in KiB: the digests of a million keys, which an import writes in no order.
const COMMAND_CACHE_KIB: i64 = 98_304;

const TABLES: &str = "
    CREATE TABLE meta (
        name TEXT PRIMARY KEY,
        value TEXT NOT NULL
    ) STRICT, WITHOUT ROWID;
    -- change: the number of the last change; record: the key's JSON form; search_text: KeyRecord::search_text.
    CREATE TABLE keys (
        id TEXT PRIMARY KEY,
        version INTEGER NOT NULL,
        change INTEGER NOT NULL,
        record TEXT NOT NULL,
        search_text TEXT NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE UNIQUE INDEX keys_by_change ON keys (change);
    CREATE INDEX keys_by_search_text ON keys (search_text);
    CREATE TABLE digests (
        digest BLOB PRIMARY KEY,
        id TEXT NOT NULL
    ) STRICT, WITHOUT ROWID;
    -- first, next: the first second of the day and of the next day (Unix seconds).
    CREATE TABLE days (
        date TEXT PRIMARY KEY,
        first INTEGER NOT NULL,
        next INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    -- The count of the quota is charged - refunded, summed over the endpoints of a key and day, plus appended entries that are not
    -- here yet. There is no second count that could differ.
    CREATE TABLE ledger (
        date TEXT NOT NULL,
        key TEXT NOT NULL,
        -- The tier, a space, the endpoint; the endpoint alone if an imported row has no tier.
        endpoint TEXT NOT NULL,
        requests INTEGER NOT NULL,
        charged INTEGER NOT NULL,
        refunded INTEGER NOT NULL,
        refused_tier INTEGER NOT NULL,
        refused_quota INTEGER NOT NULL,
        refused_burst INTEGER NOT NULL,
        refused_concurrent INTEGER NOT NULL,
        refused_not_found INTEGER NOT NULL,
        refused_method INTEGER NOT NULL,
        -- The largest limit of a charge of the row, and the granted units in it.
        day_limit INTEGER NOT NULL,
        granted INTEGER NOT NULL,
        PRIMARY KEY (date, key, endpoint)
    ) STRICT, WITHOUT ROWID;
    -- applied: the last change in the gateway's key table; seen: Unix milliseconds of its last heartbeat.
    CREATE TABLE gateways (
        name TEXT PRIMARY KEY,
        applied INTEGER NOT NULL,
        seen INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    -- place: the number of the change; entry: the JSON form of an entry of policy::audit.
    CREATE TABLE audit (
        place INTEGER PRIMARY KEY,
        key TEXT NOT NULL,
        entry TEXT NOT NULL
    ) STRICT;
    CREATE INDEX audit_by_key ON audit (key, place);
    -- Units settled after the day was closed. came: Unix seconds; units: charged minus refunded.
    CREATE TABLE adjustments (
        date TEXT NOT NULL,
        key TEXT NOT NULL,
        came INTEGER NOT NULL,
        units INTEGER NOT NULL,
        PRIMARY KEY (date, key, came)
    ) STRICT, WITHOUT ROWID;
    -- The node that reports an event. until: Unix seconds after which the claim is no longer needed.
    CREATE TABLE claims (
        event TEXT PRIMARY KEY,
        node TEXT NOT NULL,
        until INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX claims_by_end ON claims (until);
    -- Events to be delivered. since: Unix milliseconds.
    CREATE TABLE events (
        since INTEGER NOT NULL,
        event TEXT NOT NULL,
        body TEXT NOT NULL,
        PRIMARY KEY (since, event)
    ) STRICT, WITHOUT ROWID;
    -- The node that delivers the events. until: Unix milliseconds. At most one row.
    CREATE TABLE courier (
        only INTEGER PRIMARY KEY CHECK (only = 1),
        node TEXT NOT NULL,
        until INTEGER NOT NULL
    ) STRICT;
    -- Imported counts of a key and day (JSON). They are also in the ledger.
    CREATE TABLE copied (
        date TEXT NOT NULL,
        key TEXT NOT NULL,
        body TEXT NOT NULL,
        PRIMARY KEY (date, key)
    ) STRICT, WITHOUT ROWID;
    -- The name under which this database's counts are exported. No other database has it.
    INSERT INTO meta (name, value) VALUES ('producer', lower(hex(randomblob(12))));";

/// Creates the file and its directory if they are missing, readable by their owner only: the file has key digests.
pub(super) fn create_file(path: &Path) -> Result<(), StoreError> {
    sqlite::create_file(path).map_err(|error| {
        StoreError::Failed(format!(
            "{} cannot be opened: {error}. Check store.embedded.path, and that this user may write the file and its \
             directory",
            path.display()
        ))
    })
}

/// A connection to the existing file, set up. The content is not checked.
pub(super) fn connect(path: &Path, durability: Durability) -> Result<Connection, StoreError> {
    set_up(path, durability).map_err(|error| failure(path, &error))
}

fn set_up(path: &Path, durability: Durability) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags)?;
    connection.busy_handler(Some(wait_for_lock()))?;
    // Without effect on a file that already has pages.
    connection.execute_batch(&format!("PRAGMA page_size = {PAGE_BYTES}"))?;
    // A file of another program stays unchanged.
    let is_ours = |found: SqliteFormat| found.application_id == FORMAT.application_id;
    if sqlite::is_new(&connection)? || is_ours(SqliteFormat::of(&connection)?) {
        switch_to_log(&connection)?;
    }
    connection.set_prepared_statement_cache_capacity(STATEMENTS_KEPT);
    let synchronous = match durability {
        Durability::Commit => "FULL",
        Durability::Interval(_) => "NORMAL",
    };
    connection.execute_batch(&format!(
        "PRAGMA synchronous = {synchronous};
         PRAGMA wal_autocheckpoint = {LOG_PAGES_MAX};
         PRAGMA cache_size = -{CACHE_KIB};
         PRAGMA temp_store = MEMORY;"
    ))?;
    Ok(connection)
}

/// Gives a command's connection a larger page cache.
pub(super) fn enlarge_cache(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(&format!("PRAGMA cache_size = -{COMMAND_CACHE_KIB}"))
}

/// Switching to the log is the one step for which SQLite does not call the busy handler, so it is retried here.
fn switch_to_log(connection: &Connection) -> rusqlite::Result<()> {
    let mut wait = wait_for_lock();
    let mut tried = 0;
    loop {
        match sqlite::use_write_ahead_log(connection) {
            Ok(()) => return Ok(()),
            Err(error) if is_contention(&error) && wait(tried) => tried += 1,
            Err(error) => return Err(error),
        }
    }
}

/// Sleeps 50 to 400 µs per try: another process holds the lock for one group of charges, and SQLite's own back-off
/// of up to 100 ms would starve a process that loses twice. Jittered, so that two processes do not stay synchronized.
fn wait_for_lock() -> impl FnMut(i32) -> bool + Send + 'static {
    let mut since = Instant::now();
    move |tried| {
        if tried == 0 {
            since = Instant::now();
        }
        std::thread::sleep(Duration::from_micros(fastrand::u64(50..400)));
        since.elapsed() < LOCK_WAIT_MAX
    }
}

/// Creates the tables in an empty file, or checks that the file is a gateway's, of this version and of this zone.
pub(super) fn prepare(
    connection: &mut Connection,
    path: &Path,
    zone: &str,
) -> Result<(), StoreError> {
    let failed = |error| failure(path, &error);
    let transaction = connection
        .transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)
        .map_err(failed)?;
    if sqlite::is_new(&transaction).map_err(failed)? {
        for tables in [TABLES, appended::TABLES, closing::TABLE] {
            transaction.execute_batch(tables).map_err(failed)?;
        }
        sqlite::write_meta(&transaction, "zone", zone).map_err(failed)?;
        FORMAT.write(&transaction).map_err(failed)?;
        return transaction.commit().map_err(failed);
    }
    let remedy = "make a backup with the version that wrote it (touchline store backup) and restore it into a new file, or run that version \
                  or a later one";
    let words = ["database", "store.embedded.path", remedy];
    if let Some(refusal) = FORMAT.refusal(&transaction, path, words).map_err(failed)? {
        return Err(StoreError::Failed(refusal));
    }
    let theirs = sqlite::meta(&transaction, "zone").map_err(failed)?;
    let theirs = theirs.ok_or_else(|| failed(rusqlite::Error::QueryReturnedNoRows))?;
    if !is_same_zone(&theirs, zone) {
        return Err(StoreError::OtherCalendar(format!(
            "{} counts days in the zone {theirs}, and the configuration has {zone}: set quota.timezone to {theirs}, or \
             start a new database for {zone}",
            path.display()
        )));
    }
    Ok(())
}

/// The error for a database that did not answer in time.
pub(super) fn unanswered(path: &Path, timeout: Duration) -> StoreError {
    let path = path.display();
    StoreError::Unavailable(format!(
        "{path} did not answer within {timeout:?}: its disk hangs, or another process keeps it locked"
    ))
}

fn is_contention(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
    )
}

/// The store's error for a failure of SQLite, with the file's name and a remedy.
pub(super) fn failure(path: &Path, error: &rusqlite::Error) -> StoreError {
    let (file, path) = (path, path.display());
    if is_contention(error) {
        return StoreError::Unavailable(format!(
            "another process kept {path} locked for more than {LOCK_WAIT_MAX:?}: that process may be waiting for the disk"
        ));
    }
    // Making the file of shared memory beside it fails so, too.
    if error.sqlite_error_code() == Some(ErrorCode::SystemIoFailure)
        && let Some(full) = full_disk(file)
    {
        return StoreError::Failed(format!("{path}: {error}: {full}"));
    }
    let hint = match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => "it is not an SQLite database; check store.embedded.path",
        // SQLite also reports this if a read fails with EIO.
        Some(ErrorCode::DatabaseCorrupt) => {
            "the file or its disk is damaged: check the disk, and restore the file from a backup if this recurs"
        }
        Some(ErrorCode::DiskFull) => "make room on the disk",
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::CannotOpen) => {
            "check store.embedded.path, and that this user may write the file and its directory"
        }
        Some(ErrorCode::SystemIoFailure) => "check the disk",
        _ => "check the file with the sqlite3 shell",
    };
    StoreError::Failed(format!("{path}: {error}; {hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_read_is_not_condemned_at_once() {
        let corrupt = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT);
        let error = rusqlite::Error::SqliteFailure(corrupt, None);
        let text = failure(Path::new("/none/touchline.db"), &error).to_string();
        assert!(text.contains("check the disk"), "{text}");
        assert!(text.contains("if this recurs"), "{text}");
    }
}
