//! The processes that write into the journal, and what Redis still holds of them when they are gone.
//!
//! A process enters its name before it counts and takes it off when it ends in order, with everything written. A name
//! that stays is of a process that lives or was killed: what it had counted last, Redis alone may know.

use std::collections::BTreeSet;

use rusqlite::{Connection, params};

use super::rows::{self, CountRow, Rows, TotalsRow};
use crate::policy::api_key::KeyId;
use crate::policy::calendar::Day;
use crate::store::Totals;
use crate::store::export::process_of;

/// How long a name is kept that was never read after: as long as counts are (seconds).
const KEPT_SECONDS: i64 = 35 * 86_400;

/// The table; a file of an older version gets it when it is opened.
pub const TABLE: &str = "
    -- process: what the names of its producers begin with; seen: when it last wrote (Unix seconds).
    CREATE TABLE IF NOT EXISTS processes (process TEXT PRIMARY KEY, seen INTEGER NOT NULL) STRICT, WITHOUT ROWID;";

/// A process that wrote into the journal and did not take its name off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// What the names of its producers begin with.
    pub name: String,
    /// When it last wrote (Unix seconds).
    pub seen: i64,
}

/// How the journal compares with counts that Redis holds.
#[derive(Debug, Default)]
pub struct Lacking {
    /// The days of keys of which it lacks counts, or has counts without their sheets.
    pub days: BTreeSet<(KeyId, Day)>,
    /// Whether it holds something that Redis does not.
    pub is_ahead: bool,
}

/// Says that a process writes at `now` (Unix seconds).
pub fn see(connection: &Connection, process: &str, now: i64) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO processes (process, seen) VALUES (?1, ?2)
             ON CONFLICT DO UPDATE SET seen = max(seen, excluded.seen)",
        )?
        .execute(params![process, now])?;
    Ok(())
}

/// Drops the names that are not needed any more at `now` (Unix seconds).
pub fn drop_old(connection: &Connection, now: i64) -> rusqlite::Result<()> {
    connection
        .prepare_cached("DELETE FROM processes WHERE seen < ?1")?
        .execute([now - KEPT_SECONDS])?;
    Ok(())
}

/// Takes the name of a process off that has written everything.
pub fn leave(connection: &Connection, process: &str) -> rusqlite::Result<()> {
    connection.execute("DELETE FROM processes WHERE process = ?1", [process])?;
    Ok(())
}

/// All processes but this one.
pub fn others(connection: &Connection, own: &str) -> rusqlite::Result<Vec<Process>> {
    let mut ask =
        connection.prepare_cached("SELECT process, seen FROM processes WHERE process <> ?1")?;
    let read = |row: &rusqlite::Row<'_>| {
        Ok(Process {
            name: row.get(0)?,
            seen: row.get(1)?,
        })
    };
    ask.query_map([own], read)?.collect()
}

/// Takes the names of processes off that have not written since they were listed.
pub fn forget(connection: &Connection, processes: &[Process]) -> rusqlite::Result<()> {
    let mut forget =
        connection.prepare_cached("DELETE FROM processes WHERE process = ?1 AND seen = ?2")?;
    for process in processes {
        forget.execute(params![process.name, process.seen])?;
    }
    Ok(())
}

/// What the journal lacks of counts that Redis holds.
pub fn lacking(connection: &Connection, held: &[CountRow]) -> rusqlite::Result<Lacking> {
    let mut found = Lacking::default();
    for row in held {
        let (ack, rack) = rows::marks(connection, row)?.unwrap_or_default();
        found.is_ahead |= ack > row.ack || rack > row.rack;
        let process = process_of(&row.producer);
        if ack < row.ack || rack < row.rack || !rows::is_attributed(connection, process, row)? {
            found.days.insert((row.key, row.day));
        }
    }
    Ok(found)
}

/// Writes rows that Redis holds; no number is lowered. Whether the journal holds something that Redis does not.
pub fn inherit(connection: &Connection, held: &Rows) -> rusqlite::Result<bool> {
    let mut is_ahead = false;
    for row in &held.counts {
        let (ack, rack) = rows::marks(connection, row)?.unwrap_or_default();
        is_ahead |= ack > row.ack || rack > row.rack;
        if ack < row.ack || rack < row.rack {
            rows::write_count(connection, row)?;
        }
    }
    Ok(is_ahead | inherit_sheets(connection, &held.sheets)?)
}

fn inherit_sheets(connection: &Connection, held: &[TotalsRow]) -> rusqlite::Result<bool> {
    let mut is_ahead = false;
    for row in held {
        let Some(own) = rows::sheet(connection, row)? else {
            rows::write_sheet(connection, row)?;
            continue;
        };
        let (numbers, theirs) = (own.totals.numbers(), row.totals.numbers());
        let mut larger = numbers;
        for (number, other) in larger.iter_mut().zip(theirs) {
            *number = (*number).max(other);
        }
        let ceiling = own.ceiling.max(row.ceiling);
        let is_theirs = larger == theirs && ceiling == row.ceiling;
        is_ahead |= !is_theirs;
        if larger != numbers || ceiling != own.ceiling {
            let merged = TotalsRow {
                totals: Totals::of_numbers(larger),
                ceiling,
                settled: is_theirs,
                ..row.clone()
            };
            rows::write_sheet(connection, &merged)?;
        }
    }
    Ok(is_ahead)
}
