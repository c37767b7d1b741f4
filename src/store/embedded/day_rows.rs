//! The rows of one key and day, as the export and the import read them.

use rusqlite::{Connection, Row};

use super::imported_counts::DayRows;
use crate::policy::api_key::KeyId;
use crate::store::ledger_row::{read_numbers, read_row};
use crate::store::sqlite::{first, rows, unpacked, value};

const OWN_NAME: &str = "SELECT value FROM meta WHERE name = 'producer'";
const ROWS: &str =
    "SELECT endpoint, requests, charged, refunded, refused_tier, refused_quota, refused_burst,
        refused_concurrent, refused_not_found, refused_method, day_limit, granted
    FROM ledger WHERE date = ?1 AND key = ?2";
const LATE: &str = "SELECT came, units FROM adjustments WHERE date = ?1 AND key = ?2";
const COPIED: &str = "SELECT body FROM copied WHERE date = ?1 AND key = ?2";

/// The name under which this database's counts are exported.
pub(super) fn own_name(connection: &Connection) -> rusqlite::Result<String> {
    value(connection, OWN_NAME, [])
}

/// Reads the rows of a key and day.
pub(super) fn read(connection: &Connection, date: &str, key: KeyId) -> rusqlite::Result<DayRows> {
    let place = (date, key.as_str());
    let row = |row: &Row<'_>| Ok((row.get(0)?, read_row(read_numbers(row, 1)?)));
    let late = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?));
    let imported = first(connection, COPIED, place, |row| unpacked(row, 0))?;
    Ok(DayRows {
        rows: rows(connection, ROWS, place, row)?,
        late: rows(connection, LATE, place, late)?,
        imported: imported.unwrap_or_default(),
    })
}
