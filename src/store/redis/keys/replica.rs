//! The saved replica of the key table: an SQLite file on this machine.
//!
//! The file contains records (digests, never secrets), their position in the feed, the instant at which they were known to be
//! current, and the identity of their store. Only its owner can read it. Invariant: the position is never ahead of the records:
//! both are written in one transaction, and a record is replaced only by a newer version, so that two processes (an upgrade)
//! may share the file.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use rusqlite::Connection;

use super::codec::{parse_place, stream_id, unpacked};
use crate::policy::key_record::KeyRecord;
use crate::store::held_file::{FileIdentity, beside};
use crate::store::key_table::packed;
use crate::store::redis::identity::{StoreIdentity, joined, split};
use crate::store::sqlite::{self, SqliteFormat, is_damage, meta, signed, write_meta};
use crate::store::{KeyTable, StoreError};

/// The format of these files ("TCLR").
const FORMAT: SqliteFormat = SqliteFormat {
    application_id: 0x54_43_4C_52,
    version: 1,
};
/// How long to wait for another process of this machine that has locked the file.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(2);
/// Keys examined, and rows written, before the thread yields, for the reason of the journal's.
const KEYS_PER_TURN: u32 = 512;
const ROWS_PER_TURN: usize = 16;

const TABLES: &str = "
    CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
    CREATE TABLE records (
        id TEXT PRIMARY KEY,
        version INTEGER NOT NULL,
        record TEXT NOT NULL
    ) STRICT, WITHOUT ROWID;";
const KEEP: &str = "INSERT INTO records (id, version, record) VALUES (?1, ?2, ?3)
    ON CONFLICT (id) DO UPDATE SET version = excluded.version, record = excluded.record
    WHERE (instr(excluded.record, '\"state\":\"revoked\"') > 0, excluded.version)
        > (instr(record, '\"state\":\"revoked\"') > 0, version)";

/// The source of the changes that a position counts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReplicaOrigin {
    /// The incarnation of the store's data.
    pub incarnation: String,
    /// The server processes: one, or the masters of a cluster.
    pub run_ids: BTreeSet<String>,
}

/// The position of a table in the feed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedPosition {
    /// The last change applied.
    pub place: u128,
    /// When the table was known to be current, by this machine's clock.
    pub current_at: Timestamp,
    /// The source of these changes.
    pub origin: ReplicaOrigin,
}

/// The contents of a saved replica: the records, and their position in the feed.
pub type Saved = (Vec<KeyRecord>, FeedPosition);

/// The file.
pub struct Replica {
    path: PathBuf,
    /// Which file is open, whatever the path leads to.
    identity: Option<FileIdentity>,
    connection: Mutex<Connection>,
    /// The number of the table's changes ([`KeyTable::changes`]) that are in the file.
    written: Mutex<u64>,
}

impl Replica {
    /// Opens the file of the store `identity`, creates it if it is missing, and reads its contents. A damaged file is moved
    /// aside.
    ///
    /// # Errors
    /// [`StoreError::Failed`] with the remedy, if the file cannot be opened or belongs to another store.
    pub fn open(
        path: &Path,
        identity: &StoreIdentity,
    ) -> Result<(Replica, Option<Saved>), StoreError> {
        let opened = match load(path, identity) {
            Err(error) if is_damage(&error) => {
                let aside = path.with_extension("damaged");
                tracing::error!(%error, path = %path.display(), aside = %aside.display(), "the saved replica of the key table is damaged: it is renamed and a new one is started");
                set_aside(path, &aside).map_err(|error| unusable(path, &error))?;
                load(path, identity)
            }
            opened => opened,
        };
        let (connection, saved) = opened.map_err(|error| unusable(path, &error))??;
        let replica = Replica {
            path: path.to_owned(),
            identity: FileIdentity::at(path).ok(),
            connection: Mutex::new(connection),
            written: Mutex::new(0),
        };
        Ok((replica, saved))
    }

    /// Notes that the file has all records of the table.
    pub fn note_saved(&self, keys: &KeyTable) {
        *self.written.lock() = keys.changes();
    }

    /// Writes the changed records and their position in one transaction. Blocks for an fsync.
    ///
    /// # Errors
    /// [`StoreError::Failed`] with the remedy, if it cannot be written, or if the next start would read another file.
    pub fn save(&self, keys: &KeyTable, position: &FeedPosition) -> Result<(), StoreError> {
        if FileIdentity::at(&self.path).ok() != self.identity {
            return Err(StoreError::Failed(format!(
                "the replica of the key table {} was moved, removed or replaced: move it back, or restart the gateway",
                self.path.display()
            )));
        }
        let mut written = self.written.lock();
        // Before the entries are read: a change that arrives meanwhile is found again the next time.
        let changes = keys.changes();
        let mut changed = match *written == changes {
            true => Vec::new(),
            false => keys.entries(),
        };
        let mut examined = 0_u32;
        changed.retain(|entry| {
            examined += 1;
            if examined.is_multiple_of(KEYS_PER_TURN) {
                std::thread::yield_now();
            }
            entry.change > *written
        });
        let mut connection = self.connection.lock();
        let write = |connection: &mut Connection| -> rusqlite::Result<()> {
            let transaction =
                connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
            {
                let mut keep = transaction.prepare(KEEP)?;
                for entries in changed.chunks(ROWS_PER_TURN) {
                    for entry in entries {
                        let (id, version) = (entry.record.id, signed(entry.record.version));
                        keep.execute((id.as_str(), version, packed(&entry.record)))?;
                    }
                    std::thread::yield_now();
                }
            }
            let (place, origin) = (stream_id(position.place), &position.origin);
            write_meta(&transaction, "place", &place)?;
            write_meta(&transaction, "current_at", &position.current_at.to_string())?;
            write_meta(&transaction, "incarnation", &origin.incarnation)?;
            write_meta(&transaction, "run_ids", &joined(&origin.run_ids))?;
            transaction.commit()
        };
        write(&mut connection).map_err(|error| unusable(&self.path, &error))?;
        *written = changes;
        Ok(())
    }
}

/// Renames a damaged file, and removes its log and the index of the log.
fn set_aside(path: &Path, aside: &Path) -> Result<(), rusqlite::Error> {
    std::fs::rename(path, aside).map_err(sqlite::refused)?;
    for suffix in ["-wal", "-shm"] {
        match std::fs::remove_file(beside(path, suffix)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(sqlite::refused(error));
            }
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

/// Opens the file and reads its contents; damage may show in either. The inner error, with the remedy, is that of a file of another
/// program, version or store: its keys must not be accepted here, nor written to this Redis.
fn load(
    path: &Path,
    identity: &StoreIdentity,
) -> rusqlite::Result<Result<(Connection, Option<Saved>), StoreError>> {
    let connection = sqlite::open(path, LOCK_WAIT_MAX, FORMAT, TABLES)?;
    let remedy =
        "remove it, since the keys are read from Redis again, or run the version that wrote it";
    if let Some(refusal) = FORMAT.refusal(
        &connection,
        path,
        ["replica", "store.redis.replica", remedy],
    )? {
        return Ok(Err(StoreError::Failed(refusal)));
    }
    if let Some(theirs) = identity.claim(&connection)? {
        return Ok(Err(StoreError::Failed(format!(
            "{} is the replica of {theirs}, and the configuration names {identity}: if that is the same store under another name, or the old one is not needed, remove the file; else point store.redis.replica at another",
            path.display()
        ))));
    }
    let saved = read(&connection)?;
    Ok(Ok((connection, saved)))
}

/// The saved contents, or `None` for a new file.
fn read(connection: &Connection) -> rusqlite::Result<Option<Saved>> {
    let place = meta(connection, "place")?.and_then(|id| parse_place(&id));
    let current_at = meta(connection, "current_at")?.and_then(|text| text.parse().ok());
    let (Some(place), Some(current_at)) = (place, current_at) else {
        return Ok(None);
    };
    let origin = ReplicaOrigin {
        incarnation: meta(connection, "incarnation")?.unwrap_or_default(),
        run_ids: split(&meta(connection, "run_ids")?.unwrap_or_default()),
    };
    let mut records = Vec::new();
    let mut select = connection.prepare("SELECT record FROM records")?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        match unpacked(row.get_ref(0)?.as_str()?) {
            Ok(record) => records.push(record),
            Err(error) => tracing::error!(%error, "a saved key is skipped"),
        }
    }
    let position = FeedPosition {
        place,
        current_at,
        origin,
    };
    Ok(Some((records, position)))
}

fn unusable(path: &Path, error: &rusqlite::Error) -> StoreError {
    StoreError::Failed(format!(
        "the replica of the key table {} cannot be used: {error}; check store.redis.replica, the free space on its disk, and that this user may write the file and its directory",
        path.display()
    ))
}
