//! Moving appended groups into the ledger, a few rows at a time, so that charges pass between two turns.
//!
//! Of the groups that there are when it begins, the entries are summed up by key, date and place, and the sums are added to
//! the ledger in the order of dates and keys; the transaction that adds some also moves the mark behind them. When all are
//! in the ledger the groups are deleted, some at a time. So a process that dies leaves a mark from which any other goes on,
//! and however many entries a row has had, it is written once.
//!
//! Two processes may fold at the same time: the one that finds the mark elsewhere than it left it leaves the work to the other.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use jiff::civil::Date;
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior};

use super::appended::{self, Addition, Mark, Reached, Sums};
use super::columns::signed;
use crate::policy::api_key::KeyId;

/// So many entries are moved at once: the more, the more of them are of the same rows and pages. Some 4 MB of memory.
const ENTRIES_MANY: usize = 32_768;
/// Fewer are moved after at most this time, those of processes that have ended too.
const ENTRIES_KEPT: Duration = Duration::from_secs(5);
/// So many groups at most, which bounds memory where much was left: the rest is for the next time.
const GROUPS_MANY: i64 = 32_768;
/// Rows that one turn writes at least: some 0.3 ms.
const ROWS_MIN: usize = 64;
/// Entries that one turn sums up, about: some 0.3 ms.
const ENTRIES_MAX: usize = 1_024;
/// Groups that one turn deletes: the same.
const GROUPS_MAX: i64 = 256;
/// The pause between two turns where nothing else is to be done: other processes get the lock.
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

/// How far the work has come.
enum Stage {
    /// There is none.
    Idle,
    /// The groups are read, those through `read` have been.
    Summing { mark: Mark, read: i64, sums: Sums },
    /// The sums are added to the ledger.
    Moving { mark: Mark, sums: Sums },
    /// The groups are deleted.
    Dropping { mark: Mark },
}

/// The work of one process.
pub(super) struct Folder {
    stage: Stage,
    /// Entries that this process appended since it last began.
    entries: usize,
    /// When it last began.
    began: Instant,
}

impl Folder {
    /// Has no work yet.
    pub(super) fn new() -> Folder {
        Folder {
            stage: Stage::Idle,
            entries: 0,
            began: Instant::now(),
        }
    }

    /// Notes that this process has appended entries.
    pub(super) fn note(&mut self, entries: usize) {
        self.entries += entries;
    }

    /// How long to wait for other work until the next turn; `None` where there is none to be had.
    pub(super) fn pause(&self) -> Option<Duration> {
        match self.stage {
            Stage::Idle => None,
            Stage::Summing { .. } | Stage::Moving { .. } | Stage::Dropping { .. } => Some(PAUSE),
        }
    }

    /// One turn, if there is anything to do: at least as many rows as a group of `size` appends, so that the work ends. Returns
    /// whether there was.
    pub(super) fn turn(&mut self, connection: &Connection, size: usize) -> rusqlite::Result<bool> {
        let is_due = self.entries >= ENTRIES_MANY || self.began.elapsed() >= ENTRIES_KEPT;
        if matches!(self.stage, Stage::Idle) && !is_due {
            return Ok(false);
        }
        self.step(connection, size.max(ROWS_MIN))?;
        Ok(true)
    }

    /// Begins or goes on; `rows` are those of the ledger that are written at most, but for all of a key's day.
    fn step(&mut self, connection: &Connection, rows: usize) -> rusqlite::Result<()> {
        let stage = std::mem::replace(&mut self.stage, Stage::Idle);
        let behavior = match stage {
            // Only reads.
            Stage::Summing { .. } => TransactionBehavior::Deferred,
            Stage::Idle | Stage::Moving { .. } | Stage::Dropping { .. } => {
                TransactionBehavior::Immediate
            }
        };
        let transaction = Transaction::new_unchecked(connection, behavior)?;
        // A failure leaves nothing to go on with: the work begins anew with the next entries.
        let stage = match stage {
            Stage::Idle => {
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

/// Moves all that there is into the ledger, in the caller's transaction.
pub(super) fn fold_all(transaction: &Connection) -> rusqlite::Result<()> {
    let mut stage = begin(transaction)?;
    while !matches!(stage, Stage::Idle) {
        stage = match go_on(transaction, stage, usize::MAX)? {
            // After the groups that another process was moving, those that came since.
            Stage::Idle => begin(transaction)?,
            stage => stage,
        };
    }
    Ok(())
}

/// Takes up the work where it was left, or begins it.
fn begin(connection: &Connection) -> rusqlite::Result<Stage> {
    let mut mark = Mark::read(connection)?;
    let Some((first, last)) = first_and_last(connection)? else {
        return Ok(Stage::Idle);
    };
    if first > mark.through {
        mark.through = last.min(first.saturating_add(GROUPS_MANY));
        mark.reached = Reached::Nothing;
        put_mark(connection, mark)?;
    }
    Ok(match mark.reached {
        Reached::All => Stage::Dropping { mark },
        Reached::Nothing | Reached::Key(..) => Stage::Summing {
            mark,
            read: first - 1,
            sums: Sums::default(),
        },
    })
}

fn go_on(connection: &Connection, stage: Stage, rows: usize) -> rusqlite::Result<Stage> {
    let (Stage::Summing { mark, .. } | Stage::Moving { mark, .. } | Stage::Dropping { mark }) =
        &stage
    else {
        return Ok(Stage::Idle);
    };
    let found = Mark::read(connection)?;
    if (found.through, found.reached) != (mark.through, mark.reached) {
        // Another process moves the same groups.
        return Ok(Stage::Idle);
    }
    match stage {
        Stage::Idle => Ok(Stage::Idle),
        Stage::Summing { mark, read, sums } => sum(connection, mark, read, sums),
        Stage::Moving { mark, sums } => add_some(connection, mark, sums, rows),
        Stage::Dropping { mark } => drop_some(connection, mark),
    }
}

fn sum(connection: &Connection, mark: Mark, read: i64, mut sums: Sums) -> rusqlite::Result<Stage> {
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
        true => Stage::Moving { mark, sums },
        false => Stage::Summing {
            mark,
            read: reached,
            sums,
        },
    })
}

/// Adds rows to the ledger, all of a key's day or none.
fn add_some(
    connection: &Connection,
    mut mark: Mark,
    mut sums: Sums,
    rows: usize,
) -> rusqlite::Result<Stage> {
    let mut add = connection.prepare_cached(ADD_TO_LEDGER)?;
    let (mut added, mut text) = (0, (None, String::new()));
    while let Some(place) = sums.first() {
        let is_another = mark.reached != Reached::Key(place.0, place.1);
        if is_another && added >= rows {
            break;
        }
        mark.reached = Reached::Key(place.0, place.1);
        let Some((day, endpoint, addition)) = sums.pop_first() else {
            break;
        };
        if text.0 != Some(day.0) {
            text = (Some(day.0), day.0.to_string());
        }
        add_row(&mut add, (&text.1, day), &endpoint, addition)?;
        added += 1;
    }
    let is_done = sums.first().is_none();
    if is_done {
        mark.reached = Reached::All;
    }
    put_mark(connection, mark)?;
    Ok(match is_done {
        true => Stage::Dropping { mark },
        false => Stage::Moving { mark, sums },
    })
}

fn add_row(
    add: &mut rusqlite::Statement<'_>,
    (date, (_, key)): (&str, (Date, KeyId)),
    endpoint: &str,
    (totals, ceiling): Addition,
) -> rusqlite::Result<()> {
    add.raw_bind_parameter(1, date)?;
    add.raw_bind_parameter(2, key.as_str())?;
    add.raw_bind_parameter(3, endpoint)?;
    let numbers = totals.numbers().into_iter();
    let numbers = numbers.chain([ceiling.limit, ceiling.granted]);
    for (parameter, number) in (4..).zip(numbers) {
        add.raw_bind_parameter(parameter, signed(number))?;
    }
    add.raw_execute()?;
    Ok(())
}

fn drop_some(connection: &Connection, mark: Mark) -> rusqlite::Result<Stage> {
    let Some((first, _)) = first_and_last(connection)? else {
        return Ok(Stage::Idle);
    };
    let through = mark.through.min(first.saturating_add(GROUPS_MAX - 1));
    connection.prepare_cached(DROP)?.execute([through])?;
    Ok(match through < mark.through {
        true => Stage::Dropping { mark },
        false => Stage::Idle,
    })
}

/// The numbers of the first and the last group, if there are any.
pub(super) fn first_and_last(connection: &Connection) -> rusqlite::Result<Option<(i64, i64)>> {
    let mut ends = connection.prepare_cached(FIRST_AND_LAST)?;
    let ends: Option<(Option<i64>, Option<i64>)> = ends
        .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    Ok(ends.and_then(|(first, last)| first.zip(last)))
}

fn put_mark(connection: &Connection, mark: Mark) -> rusqlite::Result<()> {
    let mut put = connection.prepare_cached(PUT_MARK)?;
    put.execute((mark.through, mark.reached_text()))?;
    Ok(())
}

#[cfg(test)]
mod tests;
