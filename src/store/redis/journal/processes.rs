//! The processes that write to the journal, and the counts that Redis has of them after they ended.
//!
//! A process enters its name before it counts, and removes it at an orderly shutdown, after everything is sent and written. A
//! remaining name belongs to a process that is running, or was killed, whose last counts may be in Redis only, or could not send all
//! to Redis, which may have less than the journal.

use std::collections::BTreeSet;

use rusqlite::Connection;

use super::rows::{self as row, CountRow, JournalRows, TotalsRow};
use crate::policy::api_key::KeyId;
use crate::policy::calendar::Day;
use crate::store::export::process_of;
use crate::store::ledger::{numbers_of, row_of};
use crate::store::sqlite::{execute, rows};

/// How long the name of a process is kept if its last counts were never read (seconds). They remain in Redis, and reading them
/// takes all keys of each day since.
pub const KEPT_SECONDS: i64 = 35 * 86_400;

/// A process that wrote to the journal and did not remove its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// The common prefix of its producers' names.
    pub name: String,
    /// When it last wrote (Unix seconds).
    pub seen: i64,
}

/// Records that a process writes at `now` (Unix seconds). An earlier instant replaces a later one, which a clock that was ahead wrote.
pub fn see(connection: &Connection, process: &str, now: i64) -> rusqlite::Result<()> {
    let sql = "INSERT INTO processes (process, seen) VALUES (?1, ?2)
        ON CONFLICT DO UPDATE SET seen = excluded.seen";
    execute(connection, sql, (process, now)).map(drop)
}

/// Drops the names that are no longer needed at `now` (Unix seconds).
pub fn drop_old(connection: &Connection, now: i64) -> rusqlite::Result<()> {
    let sql = "DELETE FROM processes WHERE seen < ?1";
    execute(connection, sql, [now - KEPT_SECONDS]).map(drop)
}

/// Removes the name of a process that has written everything.
pub fn leave(connection: &Connection, process: &str) -> rusqlite::Result<()> {
    let sql = "DELETE FROM processes WHERE process = ?1";
    execute(connection, sql, [process]).map(drop)
}

/// All processes but this one.
pub fn others(connection: &Connection, own: &str) -> rusqlite::Result<Vec<Process>> {
    let sql = "SELECT process, seen FROM processes WHERE process <> ?1";
    let read = |row: &rusqlite::Row<'_>| {
        Ok(Process {
            name: row.get(0)?,
            seen: row.get(1)?,
        })
    };
    rows(connection, sql, [own], read)
}

/// Removes the names of processes that have not written since they were listed.
pub fn forget(connection: &Connection, processes: &[Process]) -> rusqlite::Result<()> {
    let sql = "DELETE FROM processes WHERE process = ?1 AND seen = ?2";
    for process in processes {
        execute(connection, sql, (&process.name, process.seen))?;
    }
    Ok(())
}

/// The days of keys with counts in Redis that the journal lacks, or has without their ledger rows.
pub fn lacking(
    connection: &Connection,
    held: &[CountRow],
) -> rusqlite::Result<BTreeSet<(KeyId, Day)>> {
    let mut days = BTreeSet::new();
    for row in held {
        let process = process_of(&row.producer);
        if is_behind(connection, row)? || !row::is_attributed(connection, process, row)? {
            days.insert((row.key, row.day));
        }
    }
    Ok(days)
}

/// Whether the journal has less of the producer than this row.
fn is_behind(connection: &Connection, held: &CountRow) -> rusqlite::Result<bool> {
    let (ack, rack) = row::marks(connection, held)?.unwrap_or_default();
    Ok(ack < held.ack || rack < held.rack)
}

/// Writes rows from Redis; no number is lowered.
pub fn recover(connection: &Connection, held: &JournalRows) -> rusqlite::Result<()> {
    for row in &held.counts {
        if is_behind(connection, row)? {
            row::write_count(connection, row)?;
        }
    }
    recover_totals(connection, &held.totals)
}

fn recover_totals(connection: &Connection, held: &[TotalsRow]) -> rusqlite::Result<()> {
    for row in held {
        let Some(own) = row::totals(connection, row)? else {
            row::write_totals(connection, row)?;
            continue;
        };
        let [numbers, theirs] = [&own, row].map(|row| numbers_of((row.totals, row.ceiling)));
        let mut larger = numbers;
        for (number, other) in larger.iter_mut().zip(theirs) {
            *number = (*number).max(other);
        }
        if larger != numbers {
            let (totals, ceiling) = row_of(larger);
            let merged = TotalsRow {
                totals,
                ceiling,
                settled: larger == theirs,
                ..row.clone()
            };
            row::write_totals(connection, &merged)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_seen_at_the_present_again_after_its_clock_was_ahead() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(row::TABLES).unwrap();
        for now in [100, 100 + 800 * 86_400, 102] {
            see(&connection, "a", now).unwrap();
        }
        let seen = others(&connection, "b").unwrap();
        assert_eq!(seen.first().map(|process| process.seen), Some(102));
    }
}
