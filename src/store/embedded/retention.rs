//! Deletion of days of the ledger after their retention, a few rows at a time.
//!
//! Charges are served between two turns: a turn deletes at most [`ROWS_MAX`] rows, about a millisecond of the writer. The oldest day is
//! deleted first, and its row in the table of days last, so that a started deletion is continued.
//!
//! A deletion cannot be undone, so `now` must be an instant of a settled clock (`clock_watch`), and the two days that were charged last
//! are kept at any time: a process that starts with a wrong clock deletes nothing before its second wrong day.

use jiff::Timestamp;
use rusqlite::Connection;

use super::{appended, closing};
use crate::store::Keeping;
use crate::store::sqlite::{first, unreadable};

/// The most rows that one turn deletes. A day of 100,000 keys with five endpoints each is deleted in some eight minutes.
const ROWS_MAX: i64 = 1_000;

const OLDEST: &str = "SELECT date FROM days WHERE next <= ?1
    AND date < (SELECT date FROM days ORDER BY date DESC LIMIT 1 OFFSET 1) ORDER BY date LIMIT 1";
const DROP_LEDGER: &str = "DELETE FROM ledger WHERE (date, key, endpoint) IN
    (SELECT date, key, endpoint FROM ledger WHERE date <= ?1 LIMIT ?2)";
const DROP_ADJUSTMENTS: &str = "DELETE FROM adjustments WHERE (date, key, came) IN
    (SELECT date, key, came FROM adjustments WHERE date <= ?1 LIMIT ?2)";
const DROP_COPIED: &str = "DELETE FROM copied WHERE (date, key) IN
    (SELECT date, key FROM copied WHERE date <= ?1 LIMIT ?2)";
const DROP_DAY: &str = "DELETE FROM days WHERE date = ?1";

/// One turn; returns the number of deleted rows.
pub(super) fn drop_old(
    connection: &Connection,
    keeping: Keeping,
    now: Timestamp,
) -> rusqlite::Result<usize> {
    let before = now.as_second().saturating_sub(keeping.retention_seconds());
    let oldest: Option<String> = first(connection, OLDEST, [before], |row| row.get(0))?;
    let Some(date) = oldest else {
        return Ok(0);
    };
    // Entries that reach the ledger after the deletion of their day would stay forever.
    if appended::lacks(connection, date.parse().map_err(unreadable)?)? {
        return Ok(0);
    }
    closing::let_go(connection, &date, now.as_second())?;
    for statement in [DROP_LEDGER, DROP_ADJUSTMENTS, DROP_COPIED] {
        let gone = connection.execute(statement, (&date, ROWS_MAX))?;
        if gone > 0 {
            return Ok(gone);
        }
    }
    let gone = connection.execute(DROP_DAY, [&date])?;
    if gone > 0 {
        tracing::info!(
            date,
            "a day of the ledger was dropped: its retention is over"
        );
    }
    Ok(gone)
}
