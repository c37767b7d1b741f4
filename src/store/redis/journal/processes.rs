//! The processes that write to the journal, and the counts that Redis has of them after they ended.
//!
//! A process enters its name before it counts, and removes it at an orderly shutdown, after everything is sent and written. A
//! remaining name belongs to a process that is running, or was killed, whose last counts may be in Redis only, or could not send all
//! to Redis, which may have less than the journal. Such a one is marked as ended when all that it counted is written: what Redis granted
//! it beyond that, by a call that was abandoned, no request has, and it is returned (rule 3 of `policy::quota`).

use std::collections::BTreeSet;

use rusqlite::{Connection, Row};

use super::Journal;
use super::rows::{self as row, CountRow, DroppedUnsettled, JournalRows, TotalsRow};
use crate::policy::api_key::KeyId;
use crate::policy::calendar::Day;
use crate::store::StoreError;
use crate::store::export::process_of;
use crate::store::sqlite::{execute, meta, rows, write_meta};

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
    /// Whether it ended with everything written that it had counted.
    pub has_ended: bool,
}

impl Journal {
    /// Enters this process's name, at `now` (Unix seconds): while the name is there, the process is alive or was killed.
    pub async fn enter(&self, now: i64) -> Result<(), StoreError> {
        let process = self.process.clone();
        self.work(move |connection| enter(connection, &process, now))
            .await
    }

    /// Records that this process is alive at `now` (Unix seconds) and the number of live gateways; drops rows that are no longer
    /// needed at `settled`, the time of a trusted clock, and rows of days that ended `retention` seconds before.
    pub async fn keep(
        &self,
        nodes: u64,
        now: i64,
        settled: Option<i64>,
        retention: i64,
    ) -> Result<(), StoreError> {
        let process = self.process.clone();
        let kept = self.work(move |connection| {
            row::remember_nodes(connection, nodes)?;
            enter(connection, &process, now)?;
            let Some(settled) = settled else {
                return Ok(DroppedUnsettled::default());
            };
            drop_old(connection, settled)?;
            row::drop_old(connection, settled, retention)
        });
        let dropped = kept.await?;
        if dropped.rows > 0 {
            tracing::warn!(
                rows = dropped.rows,
                units = dropped.units,
                "journaled counts that were never settled are dropped: their retention is over"
            );
        }
        Ok(())
    }

    /// Removes this process's name: everything is written.
    pub async fn leave(&self) -> Result<(), StoreError> {
        let sql = "DELETE FROM processes WHERE process = ?1";
        let own = self.process.clone();
        self.work(move |connection| execute(connection, sql, [&own]).map(drop))
            .await
    }

    /// Marks this process as ended: everything that it counted is written, and not all of it is known to be in Redis.
    pub async fn end(&self) -> Result<(), StoreError> {
        let mark = mark_of(&self.process);
        self.work(move |connection| write_meta(connection, &mark, "1"))
            .await
    }

    /// The other processes that write to this journal, or did and were killed.
    pub async fn other_processes(&self) -> Result<Vec<Process>, StoreError> {
        let own = self.process.clone();
        self.work(move |connection| others(connection, &own)).await
    }

    /// Removes the names of processes whose counts were read, unless they have written since they were listed.
    pub async fn forget(&self, processes: Vec<Process>) -> Result<(), StoreError> {
        let sql = "DELETE FROM processes WHERE process = ?1 AND seen = ?2";
        self.work(move |connection| {
            for process in &processes {
                execute(connection, sql, (&process.name, process.seen))?;
            }
            drop_marks(connection)
        })
        .await
    }

    /// The days of keys with counts of other processes in Redis, `held`, that the journal lacks or has without their ledger rows.
    pub async fn lacking(&self, held: Vec<CountRow>) -> Result<BTreeSet<(KeyId, Day)>, StoreError> {
        self.work(move |connection| {
            let mut days = BTreeSet::new();
            for row in &held {
                let process = process_of(&row.producer);
                if is_behind(connection, row)? || !row::is_attributed(connection, process, row)? {
                    days.insert((row.key, row.day));
                }
            }
            Ok(days)
        })
        .await
    }

    /// Writes rows of other processes from Redis, all or none, at `now` (Unix seconds); no number is lowered.
    pub async fn recover(&self, held: JournalRows, now: i64) -> Result<(), StoreError> {
        self.work(move |connection| {
            for row in &held.counts {
                if is_behind(connection, row)? {
                    row::write_count(connection, &with_returned(connection, row, now)?)?;
                }
            }
            let mut totals = held.totals.iter();
            totals.try_for_each(|row| recover_totals(connection, row))
        })
        .await
    }
}

/// Records that a process writes at `now` (Unix seconds). An earlier instant replaces a later one, which a clock that was ahead wrote.
fn enter(connection: &Connection, process: &str, now: i64) -> rusqlite::Result<()> {
    let sql = "INSERT INTO processes (process, seen) VALUES (?1, ?2)
        ON CONFLICT DO UPDATE SET seen = excluded.seen";
    execute(connection, sql, (process, now)).map(drop)
}

/// Drops the names that are no longer needed at `now` (Unix seconds).
fn drop_old(connection: &Connection, now: i64) -> rusqlite::Result<()> {
    let sql = "DELETE FROM processes WHERE seen < ?1";
    execute(connection, sql, [now - KEPT_SECONDS])?;
    drop_marks(connection)
}

/// Where it is noted that a process has ended.
fn mark_of(process: &str) -> String {
    format!("ended {process}")
}

/// Drops the marks of processes whose names are gone.
fn drop_marks(connection: &Connection) -> rusqlite::Result<()> {
    let sql = "DELETE FROM meta WHERE name GLOB 'ended *'
        AND name NOT IN (SELECT 'ended ' || process FROM processes)";
    execute(connection, sql, []).map(drop)
}

/// All processes but this one.
fn others(connection: &Connection, own: &str) -> rusqlite::Result<Vec<Process>> {
    let sql = "SELECT process, seen, EXISTS (SELECT 1 FROM meta WHERE name = 'ended ' || process)
        FROM processes WHERE process <> ?1";
    let read = |row: &Row<'_>| {
        Ok(Process {
            name: row.get(0)?,
            seen: row.get(1)?,
            has_ended: row.get(2)?,
        })
    };
    rows(connection, sql, [own], read)
}

/// Whether the journal has less of the producer than this row.
fn is_behind(connection: &Connection, held: &CountRow) -> rusqlite::Result<bool> {
    let (ack, rack) = row::marks(connection, held)?.unwrap_or_default();
    Ok(ack < held.ack || rack < held.rack)
}

/// The count that Redis holds at `now` of a producer which the journal lacks, with what is to be returned of it.
fn with_returned(connection: &Connection, held: &CountRow, now: i64) -> rusqlite::Result<CountRow> {
    // A row that is missing was never written, or was dropped after its day.
    let may_be_unwritten = held.day.end > now;
    let marks = row::marks(connection, held)?.or(may_be_unwritten.then_some((0, 0)));
    let Some((ack, rack)) = marks else {
        return Ok(held.clone());
    };
    let unclaimed = held.ack.saturating_sub(ack);
    let mut row = held.clone();
    if unclaimed > 0 && meta(connection, &mark_of(process_of(&held.producer)))?.is_some() {
        // It may have returned some of it itself.
        row.rack = held.rack.max(rack + unclaimed);
        row.settled = false;
    }
    Ok(row)
}

fn recover_totals(connection: &Connection, held: &TotalsRow) -> rusqlite::Result<()> {
    let Some(own) = row::totals(connection, held)? else {
        return row::write_totals(connection, held);
    };
    let totals = own.totals.with(&held.totals, u64::max);
    let ceiling = own.ceiling.max(held.ceiling);
    if (totals, ceiling) == (own.totals, own.ceiling) {
        return Ok(());
    }
    let merged = TotalsRow {
        totals,
        ceiling,
        settled: (totals, ceiling) == (held.totals, held.ceiling),
        ..held.clone()
    };
    row::write_totals(connection, &merged)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Totals;
    use crate::store::ledger::Ceiling;

    const DAY: Day = Day {
        date: jiff::civil::date(2026, 11, 21),
        start: 1_795_219_200,
        end: 1_795_305_600,
    };

    #[test]
    fn a_process_is_seen_at_the_present_again_after_its_clock_was_ahead() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(row::TABLES).unwrap();
        for now in [100, 100 + 800 * 86_400, 102] {
            enter(&connection, "a", now).unwrap();
        }
        let seen = others(&connection, "b").unwrap();
        assert_eq!(seen.first().map(|process| process.seen), Some(102));
    }

    #[test]
    fn what_redis_granted_an_ended_process_is_returned_once() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(row::TABLES).unwrap();
        let count = |ack, rack| CountRow {
            key: "0123456789Ab".parse().unwrap(),
            day: DAY,
            producer: "one.1".into(),
            ack,
            rack,
            unsettled_units: 0,
            settled: true,
        };
        write_meta(&connection, &mark_of("one"), "1").unwrap();
        let end = DAY.end;
        let recovered_at =
            |now, ack, rack| with_returned(&connection, &count(ack, rack), now).unwrap();
        assert_eq!(recovered_at(end - 1, 47, 15).rack, 47, "never written");
        assert_eq!(recovered_at(end, 47, 15), count(47, 15), "perhaps dropped");
        drop_marks(&connection).unwrap();
        row::write_count(&connection, &count(40, 15)).unwrap();
        let recovered = |ack, rack| recovered_at(end, ack, rack);
        assert_eq!(recovered(47, 15), count(47, 15), "of a killed one");
        write_meta(&connection, &mark_of("one"), "1").unwrap();
        for (ack, rack, expected) in [(47, 15, 22), (47, 18, 22), (47, 22, 22), (47, 25, 25)] {
            let row = recovered(ack, rack);
            assert_eq!((row.ack, row.rack, row.settled), (47, expected, false));
        }
        assert_eq!(recovered(40, 16), count(40, 16));
        drop_marks(&connection).unwrap();
        assert_eq!(recovered(47, 15), count(47, 15));
    }

    #[test]
    fn totals_of_which_redis_has_a_part_only_are_not_settled() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(row::TABLES).unwrap();
        let row = |requests, charged| TotalsRow {
            key: "0123456789Ab".parse().unwrap(),
            day: DAY,
            producer: "one.1".into(),
            tier: Some("pro".parse().unwrap()),
            ceiling: Ceiling::default(),
            endpoint: "/a".into(),
            totals: Totals {
                requests,
                charged,
                ..Totals::default()
            },
            settled: true,
        };
        row::write_totals(&connection, &row(2, 1)).unwrap();
        recover_totals(&connection, &row(1, 2)).unwrap();
        let merged = "SELECT requests, charged, settled FROM sheets";
        let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
        let merged = connection.query_row(merged, [], read);
        assert_eq!(merged, Ok((2_i64, 2_i64, false)));
    }

    #[test]
    fn a_process_that_was_not_seen_for_long_is_dropped() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(row::TABLES).unwrap();
        let now = 1_000 + KEPT_SECONDS;
        for (process, seen) in [("old", 999), ("kept", 1_000), ("alive", now)] {
            enter(&connection, process, seen).unwrap();
        }
        drop_old(&connection, now).unwrap();
        let others = others(&connection, "this").unwrap().into_iter();
        let mut left = Vec::from_iter(others.map(|process| process.name));
        left.sort();
        assert_eq!(left, ["alive", "kept"]);
    }
}
