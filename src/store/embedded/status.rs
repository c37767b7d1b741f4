//! The status of the database.

use std::path::PathBuf;

use jiff::Timestamp;
use rusqlite::Connection;

use super::{events, feed};
use crate::policy::store_settings::Durability;
use crate::store::disk::full_disk;
use crate::store::held_file::beside;
use crate::store::sqlite::{SqliteFormat, unsigned, value};
use crate::store::status::{EmbeddedFacts, StoreFacts, StoreStatus};

/// Reads everything that `touchline store status` reports.
pub(super) fn read(
    connection: &Connection,
    path: PathBuf,
    durability: Durability,
    now: Timestamp,
) -> rusqlite::Result<StoreStatus> {
    let count = |sql: &str| value(connection, sql, []).map(unsigned);
    // Asked for by name: opening the file beside SQLite would give up its locks.
    let log_bytes = std::fs::metadata(beside(&path, "-wal")).map_or(0, |file| file.len());
    let full_disk = full_disk(&path).map(|error| {
        format!("the database cannot be written now or soon, and if so requests are answered with 500: {error}")
    });
    let pages = count("PRAGMA page_count")?.saturating_mul(count("PRAGMA page_size")?);
    let last = count(super::keys::MARK)?;
    Ok(StoreStatus {
        store: StoreFacts::Embedded(EmbeddedFacts {
            bytes: pages.saturating_add(log_bytes),
            durability: match durability {
                Durability::Commit => "commit".to_owned(),
                Durability::Interval(interval) => format!("{interval:?}"),
            },
            schema_version: SqliteFormat::of(connection)?.version,
            path,
        }),
        gateways: feed::live(connection, last)?,
        // No register is kept here: a gateway that cannot read this file serves no request.
        silent: Vec::new(),
        keys: count("SELECT count(*) FROM keys")?,
        days: count("SELECT count(*) FROM days")?,
        events: events::waiting(connection, now)?,
        clock_difference_seconds: 0.0,
        warnings: full_disk.into_iter().collect(),
    })
}
