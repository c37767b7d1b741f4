//! Moving appended groups into the ledger, a few rows at a time, so that charges are served between two turns.
//!
//! The entries of the present groups are summed by date, key and row, and the sums are added to the ledger in the order of dates and
//! keys. The transaction that adds some sums also moves the mark past them. When all sums are in the ledger, the groups are deleted,
//! some at a time. So another process continues from the mark of a process that has ended, and a row is written once for all its
//! entries.
//!
//! Two processes may fold at the same time: a process whose mark was moved by another one leaves the work to it.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use rusqlite::{Connection, Row, Transaction, TransactionBehavior, params};

use super::appended::{self, FoldProgress, Mark, Sums};
use crate::store::ledger_row::execute_with_row;
use crate::store::sqlite::{execute, first};

/// The number of entries after which folding starts. The more entries, the more of them share rows and pages. They are kept in
/// memory while they are folded; before, a reader of the ledger needs up to 0.3 s longer.
const ENTRIES_MANY: usize = 131_072;
/// The time after which fewer entries are folded, including those of processes that have ended.
const ENTRIES_KEPT: Duration = Duration::from_secs(5);
/// The most groups folded at once, which bounds the memory in use. The rest is folded the next time.
const GROUPS_MANY: i64 = 32_768;
/// The least number of rows that one turn writes: some 0.3 ms.
const ROWS_MIN: usize = 64;
/// The rows that a turn writes for each entry of the group before it: the fewer turns, the fewer pages are written more than once.
const ROWS_PER_ENTRY: usize = 4;
/// The number of entries that one turn sums, approximately: some 0.3 ms.
const ENTRIES_MAX: usize = 1_024;
/// The number of groups that one turn deletes: some 0.3 ms.
const GROUPS_MAX: i64 = 256;
/// The pause between two turns of an idle writer, in which other processes get the lock.
const PAUSE: Duration = Duration::from_millis(1);

// Two searches; both in one would read every group.
const FIRST_AND_LAST: &str =
    "SELECT (SELECT min(number) FROM appended), (SELECT max(number) FROM appended)";
const PUT_MARK: &str = "UPDATE folding SET through = ?1, reached = ?2";
const DROP: &str = "DELETE FROM appended WHERE number <= ?1";
const ADD_TO_LEDGER: &str = "
    INSERT INTO ledger (date, key, endpoint, requests, charged, refunded, refused_tier, refused_quota, refused_burst,
        refused_concurrent, refused_not_found, refused_method, day_limit, granted)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)
    ON CONFLICT (date, key, endpoint) DO UPDATE SET
        requests = requests + excluded.requests,
        charged = charged + excluded.charged,
        refunded = refunded + excluded.refunded,
        refused_tier = refused_tier + excluded.refused_tier,
        refused_quota = refused_quota + excluded.refused_quota,
        refused_burst = refused_burst + excluded.refused_burst,
        refused_concurrent = refused_concurrent + excluded.refused_concurrent,
        refused_not_found = refused_not_found + excluded.refused_not_found,
        refused_method = refused_method + excluded.refused_method,
        day_limit = max(day_limit, excluded.day_limit),
        granted = max(granted, excluded.granted)";

/// The stage of the work.
enum FoldStage {
    /// There is no work.
    Idle,
    /// The groups are read; those through `read` have been.
    Summing { mark: Mark, read: i64, sums: Sums },
    /// The sums are added to the ledger.
    Moving { mark: Mark, sums: Sums },
    /// The groups are deleted.
    Dropping { mark: Mark },
}

/// The work of one process.
pub(super) struct Folder {
    stage: FoldStage,
    /// The number of entries that this process appended since then.
    entries: usize,
    /// When the work last started.
    began: Instant,
}

impl Folder {
    /// A folder without work.
    pub(super) fn new() -> Folder {
        Folder {
            stage: FoldStage::Idle,
            entries: 0,
            began: Instant::now(),
        }
    }

    /// Notes that this process has appended entries.
    pub(super) fn note(&mut self, entries: usize) {
        self.entries += entries;
    }

    /// How long to wait for other work before the next turn; `None` if there is no turn to take.
    pub(super) fn pause(&self) -> Option<Duration> {
        (!matches!(self.stage, FoldStage::Idle)).then_some(PAUSE)
    }

    /// One turn, if there is work: it writes more rows than a group of `size` appends, so that the work ends. Returns whether there was
    /// work.
    pub(super) fn turn(&mut self, connection: &Connection, size: usize) -> rusqlite::Result<bool> {
        let is_due = self.entries >= ENTRIES_MANY || self.began.elapsed() >= ENTRIES_KEPT;
        if matches!(self.stage, FoldStage::Idle) && !is_due {
            return Ok(false);
        }
        self.step(connection, (ROWS_PER_ENTRY * size).max(ROWS_MIN))?;
        Ok(true)
    }

    /// Starts or continues. `rows` is the most rows of the ledger to write, except that those of a key and day are written together.
    fn step(&mut self, connection: &Connection, rows: usize) -> rusqlite::Result<()> {
        let stage = std::mem::replace(&mut self.stage, FoldStage::Idle);
        let behavior = match stage {
            // Only reads.
            FoldStage::Summing { .. } => TransactionBehavior::Deferred,
            FoldStage::Idle | FoldStage::Moving { .. } | FoldStage::Dropping { .. } => {
                TransactionBehavior::Immediate
            }
        };
        let transaction = Transaction::new_unchecked(connection, behavior)?;
        // After a failure the work starts over with the next entries.
        let stage = match stage {
            FoldStage::Idle => {
                self.entries = 0;
                self.began = Instant::now();
                begin(&transaction)?
            }
            other => go_on(&transaction, other, rows)?,
        };
        transaction.commit()?;
        self.stage = stage;
        Ok(())
    }
}

/// Moves all groups into the ledger, in the caller's transaction.
pub(super) fn fold_all(transaction: &Connection) -> rusqlite::Result<()> {
    let mut stage = begin(transaction)?;
    while !matches!(stage, FoldStage::Idle) {
        stage = match go_on(transaction, stage, usize::MAX)? {
            // The groups that another process was moving are done; later ones follow.
            FoldStage::Idle => begin(transaction)?,
            stage => stage,
        };
    }
    Ok(())
}

/// Continues the work from the mark, or starts it.
fn begin(connection: &Connection) -> rusqlite::Result<FoldStage> {
    let mut mark = Mark::read(connection)?;
    let Some((first, last)) = first_and_last(connection)? else {
        return Ok(FoldStage::Idle);
    };
    if first > mark.through {
        mark.through = last.min(first.saturating_add(GROUPS_MANY));
        mark.reached = FoldProgress::Nothing;
        put_mark(connection, mark)?;
    }
    Ok(match mark.reached {
        FoldProgress::All => FoldStage::Dropping { mark },
        FoldProgress::Nothing | FoldProgress::Key(..) => FoldStage::Summing {
            mark,
            read: first - 1,
            sums: Sums::default(),
        },
    })
}

fn go_on(connection: &Connection, stage: FoldStage, rows: usize) -> rusqlite::Result<FoldStage> {
    let (FoldStage::Summing { mark, .. }
    | FoldStage::Moving { mark, .. }
    | FoldStage::Dropping { mark }) = &stage
    else {
        return Ok(FoldStage::Idle);
    };
    let found = Mark::read(connection)?;
    if (found.through, found.reached) != (mark.through, mark.reached) {
        // Another process is moving the same groups.
        return Ok(FoldStage::Idle);
    }
    match stage {
        FoldStage::Idle => Ok(FoldStage::Idle),
        FoldStage::Summing { mark, read, sums } => sum(connection, mark, read, sums),
        FoldStage::Moving { mark, sums } => add_some(connection, mark, sums, rows),
        FoldStage::Dropping { mark } => drop_some(connection, mark),
    }
}

fn sum(
    connection: &Connection,
    mark: Mark,
    read: i64,
    mut sums: Sums,
) -> rusqlite::Result<FoldStage> {
    let (mut reached, mut summed) = (read, 0);
    appended::groups(connection, (read, mark.through), |group| {
        reached = group.number;
        summed += sums.add(group, |number, entry| !mark.has(number, entry))?;
        Ok(match summed < ENTRIES_MAX {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        })
    })?;
    Ok(match summed < ENTRIES_MAX {
        true => FoldStage::Moving { mark, sums },
        false => FoldStage::Summing {
            mark,
            read: reached,
            sums,
        },
    })
}

/// Adds rows to the ledger: for a key and day, all or none.
fn add_some(
    connection: &Connection,
    mut mark: Mark,
    mut sums: Sums,
    rows: usize,
) -> rusqlite::Result<FoldStage> {
    let mut add = connection.prepare_cached(ADD_TO_LEDGER)?;
    let (mut added, mut text) = (0, (None, String::new()));
    while let Some(place) = sums.first() {
        let is_another = mark.reached != FoldProgress::Key(place.0, place.1);
        if is_another && added >= rows {
            break;
        }
        mark.reached = FoldProgress::Key(place.0, place.1);
        let Some((day, endpoint, addition)) = sums.pop_first() else {
            break;
        };
        if text.0 != Some(day.0) {
            text = (Some(day.0), day.0.to_string());
        }
        execute_with_row(
            &mut add,
            params![text.1, day.1.as_str(), endpoint],
            addition,
        )?;
        added += 1;
    }
    let is_done = sums.first().is_none();
    if is_done {
        mark.reached = FoldProgress::All;
    }
    put_mark(connection, mark)?;
    Ok(match is_done {
        true => FoldStage::Dropping { mark },
        false => FoldStage::Moving { mark, sums },
    })
}

fn drop_some(connection: &Connection, mark: Mark) -> rusqlite::Result<FoldStage> {
    let Some((first, _)) = first_and_last(connection)? else {
        return Ok(FoldStage::Idle);
    };
    let through = mark.through.min(first.saturating_add(GROUPS_MAX - 1));
    execute(connection, DROP, [through])?;
    Ok(match through < mark.through {
        true => FoldStage::Dropping { mark },
        false => FoldStage::Idle,
    })
}

/// The numbers of the first and the last group, if there are any.
pub(super) fn first_and_last(connection: &Connection) -> rusqlite::Result<Option<(i64, i64)>> {
    let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?));
    let ends: Option<(Option<i64>, Option<i64>)> = first(connection, FIRST_AND_LAST, [], read)?;
    Ok(ends.and_then(|(first, last)| first.zip(last)))
}

fn put_mark(connection: &Connection, mark: Mark) -> rusqlite::Result<()> {
    let row = (mark.through, mark.reached_text());
    execute(connection, PUT_MARK, row).map(drop)
}

#[cfg(test)]
mod tests;
