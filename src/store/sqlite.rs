//! What the SQLite files of both stores share: how one is created and recognised, and how values are stored in columns: counts as
//! SQLite's signed integers, records as JSON, dates and ids as texts.

use std::fs::{DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use rusqlite::types::FromSql;
use rusqlite::{
    Connection, ErrorCode, OpenFlags, OptionalExtension, Params, Row, TransactionBehavior,
};
use tokio::sync::mpsc;

const WRITE_META: &str = "REPLACE INTO meta (name, value) VALUES (?1, ?2)";

/// The program and the schema that a file belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SqliteFormat {
    /// `PRAGMA application_id`.
    pub application_id: i64,
    /// `PRAGMA user_version`.
    pub version: i64,
}

impl SqliteFormat {
    /// The format of a file.
    pub fn of(connection: &Connection) -> rusqlite::Result<SqliteFormat> {
        Ok(SqliteFormat {
            application_id: value(connection, "PRAGMA application_id", [])?,
            version: value(connection, "PRAGMA user_version", [])?,
        })
    }

    /// Why a file cannot be used as a `what` of this format, with the remedy: `setting` must name another file if it is another program's,
    /// and `remedy` is for one of another version. `None` if it can be used.
    pub fn refusal(
        self,
        connection: &Connection,
        path: &Path,
        [what, setting, remedy]: [&str; 3],
    ) -> rusqlite::Result<Option<String>> {
        let (found, path) = (SqliteFormat::of(connection)?, path.display());
        if found.application_id != self.application_id {
            return Ok(Some(format!(
                "{path} is the {what} of another program: point {setting} at a file of its own"
            )));
        }
        let (version, known) = (found.version, self.version);
        Ok((version != known).then(|| {
            format!("{path} is a {what} of schema {version} and this touchline reads schema {known}: {remedy}")
        }))
    }

    /// Gives a new file this format.
    pub fn write(self, connection: &Connection) -> rusqlite::Result<()> {
        let SqliteFormat {
            application_id,
            version,
        } = self;
        connection.execute_batch(&format!(
            "PRAGMA application_id = {application_id}; PRAGMA user_version = {version};"
        ))
    }
}

/// Creates an empty file for this user alone, and its directory, if they are missing.
pub fn create_file(path: &Path) -> io::Result<()> {
    if let Some(directory) = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
    {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)?;
    }
    // The file is only created here, never opened beside SQLite: closing any descriptor of a file releases all locks that this
    // process holds on it (POSIX), on which another handle may rely.
    match OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
    {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Opens a database with a write-ahead log, each of whose transactions is forced to disk. A new file gets its format and tables; the
/// format of another is the caller's to check.
pub fn open(
    path: &Path,
    lock_wait_max: Duration,
    format: SqliteFormat,
    tables: &str,
) -> rusqlite::Result<Connection> {
    create_file(path).map_err(refused)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(lock_wait_max)?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    if is_new(&connection)? {
        use_write_ahead_log(&connection)?;
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        // Another process may have created them meanwhile.
        if is_new(&transaction)? {
            transaction.execute_batch(tables)?;
            format.write(&transaction)?;
        }
        transaction.commit()?;
    } else if SqliteFormat::of(&connection)? == format {
        // Its log may have been impossible when the file was created. A file of another program stays unchanged.
        use_write_ahead_log(&connection)?;
    }
    Ok(connection)
}

/// Switches to the write-ahead log, unless the file has one.
///
/// # Errors
/// Also if SQLite reports another mode instead of an error, as on a full disk.
pub fn use_write_ahead_log(connection: &Connection) -> rusqlite::Result<()> {
    let mode: String = value(connection, "PRAGMA journal_mode = WAL", [])?;
    if mode == "wal" {
        return Ok(());
    }
    Err(rusqlite::Error::SqliteFailure(
        rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_IOERR),
        Some("no write-ahead log could be created beside it".into()),
    ))
}

/// The error for a file that the system does not create, rename or remove.
pub fn refused(error: io::Error) -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(
        rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CANTOPEN),
        Some(error.to_string()),
    )
}

/// Sends something that was read; fails if its receiver is gone. Blocks while the channel is full.
pub fn send<T>(sender: &mpsc::Sender<T>, item: T) -> rusqlite::Result<()> {
    sender.blocking_send(item).map_err(|_| {
        let aborted = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_ABORT);
        rusqlite::Error::SqliteFailure(aborted, Some("its receiver is gone".into()))
    })
}

/// Whether the error is that of a file with damaged contents. SQLite also reports this if a read fails with EIO.
pub fn is_damage(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt)
    )
}

/// Whether a file has no tables yet.
pub fn is_new(connection: &Connection) -> rusqlite::Result<bool> {
    Ok(value::<i64>(connection, "SELECT count(*) FROM sqlite_schema", [])? == 0)
}

/// Syncs the log and folds it into the file as far as no reader needs it.
pub fn checkpoint(connection: &Connection) -> rusqlite::Result<()> {
    connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))
}

/// Executes a statement, which the connection keeps prepared. Returns the number of changed rows.
pub fn execute(connection: &Connection, sql: &str, values: impl Params) -> rusqlite::Result<usize> {
    connection.prepare_cached(sql)?.execute(values)
}

/// The rows of a query, which the connection keeps prepared.
pub fn rows<T, C: FromIterator<T>>(
    connection: &Connection,
    sql: &str,
    values: impl Params,
    read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<C> {
    connection
        .prepare_cached(sql)?
        .query_map(values, read)?
        .collect()
}

/// The first row of a query, which the connection keeps prepared, if there is one.
pub fn first<T>(
    connection: &Connection,
    sql: &str,
    values: impl Params,
    read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<Option<T>> {
    let mut query = connection.prepare_cached(sql)?;
    query.query_row(values, read).optional()
}

/// The first column of the one row of a query, which the connection keeps prepared.
pub fn value<T: FromSql>(
    connection: &Connection,
    sql: &str,
    values: impl Params,
) -> rusqlite::Result<T> {
    let mut query = connection.prepare_cached(sql)?;
    query.query_row(values, |row| row.get(0))
}

/// A value of a file's table `meta`.
pub fn meta(connection: &Connection, name: &str) -> rusqlite::Result<Option<String>> {
    let sql = "SELECT value FROM meta WHERE name = ?1";
    first(connection, sql, [name], |row| row.get(0))
}

/// Writes a value of a file's table `meta`.
pub fn write_meta(connection: &Connection, name: &str, value: &str) -> rusqlite::Result<()> {
    execute(connection, WRITE_META, [name, value]).map(drop)
}

/// A number as SQLite stores it: one from 2^63, such as [`UNBOUNDED`](super::UNBOUNDED), becomes `i64::MAX`.
pub fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A stored integer as a count. No negative count is ever written.
pub fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// A value that a column has as JSON.
pub fn unpacked<T: serde::de::DeserializeOwned>(
    row: &Row<'_>,
    column: usize,
) -> rusqlite::Result<T> {
    let text: String = row.get(column)?;
    serde_json::from_str(&text).map_err(unreadable)
}

/// The error for a column that cannot be read.
pub fn unreadable(error: impl std::error::Error + Send + Sync + 'static) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Text, Box::new(error))
}

/// A value as JSON, for a column.
pub fn packed(value: &impl serde::Serialize) -> rusqlite::Result<String> {
    serde_json::to_string(value)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))
}

/// A value that a column has as text.
pub fn parsed<T: std::str::FromStr>(row: &Row<'_>, column: usize) -> rusqlite::Result<T>
where
    T::Err: std::error::Error + Send + Sync + 'static,
{
    row.get_ref(column)?.as_str()?.parse().map_err(unreadable)
}
