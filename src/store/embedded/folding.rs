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

/// Groups that are being moved into the ledger: their entries are summed, then the sums added to the ledger, then the groups deleted.
struct Fold {
    /// The groups, and how far the ledger has their entries.
    mark: Mark,
    /// The last group whose entries are in the sums.
    read: i64,
    sums: Sums,
}

/// The work of one process.
pub(super) struct Folder {
    under_way: Option<Fold>,
    /// The number of entries that this process appended since then.
    entries: usize,
    /// When the work last started.
    began: Instant,
}

impl Folder {
    /// A folder without work.
    pub(super) fn new() -> Folder {
        Folder {
            under_way: None,
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
        self.under_way.as_ref().map(|_| PAUSE)
    }

    /// One turn, if there is work: it writes more rows than a group of `size` appends, so that the work ends. Returns whether there was
    /// work.
    pub(super) fn turn(&mut self, connection: &Connection, size: usize) -> rusqlite::Result<bool> {
        let is_due = self.entries >= ENTRIES_MANY || self.began.elapsed() >= ENTRIES_KEPT;
        if self.under_way.is_none() && !is_due {
            return Ok(false);
        }
        self.step(connection, (ROWS_PER_ENTRY * size).max(ROWS_MIN))?;
        Ok(true)
    }

    /// Starts or continues. `rows` is the most rows of the ledger to write, except that those of a key and day are written together.
    fn step(&mut self, connection: &Connection, rows: usize) -> rusqlite::Result<()> {
        let under_way = self.under_way.take();
        let behavior = match under_way.as_ref().is_some_and(Fold::only_reads) {
            true => TransactionBehavior::Deferred,
            false => TransactionBehavior::Immediate,
        };
        let transaction = Transaction::new_unchecked(connection, behavior)?;
        // After a failure the work starts over with the next entries.
        let under_way = match under_way {
            None => {
                self.entries = 0;
                self.began = Instant::now();
                begin(&transaction)?
            }
            Some(fold) => fold.go_on(&transaction, rows)?,
        };
        transaction.commit()?;
        self.under_way = under_way;
        Ok(())
    }
}

/// Moves all groups into the ledger, in the caller's transaction.
pub(super) fn fold_all(transaction: &Connection) -> rusqlite::Result<()> {
    let mut under_way = begin(transaction)?;
    while let Some(fold) = under_way {
        under_way = match fold.go_on(transaction, usize::MAX)? {
            // The groups that another process was moving are done; later ones follow.
            None => begin(transaction)?,
            same => same,
        };
    }
    Ok(())
}

/// Continues the work from the mark, or starts it; `None` if there is no group.
fn begin(connection: &Connection) -> rusqlite::Result<Option<Fold>> {
    let mut mark = Mark::read(connection)?;
    let Some((first, last)) = first_and_last(connection)? else {
        return Ok(None);
    };
    if first > mark.through {
        mark.through = last.min(first.saturating_add(GROUPS_MANY));
        mark.reached = FoldProgress::Nothing;
        put_mark(connection, mark)?;
    }
    Ok(Some(Fold {
        mark,
        read: first - 1,
        sums: Sums::default(),
    }))
}

impl Fold {
    /// Whether the next step only reads.
    fn only_reads(&self) -> bool {
        self.mark.reached != FoldProgress::All && self.read < self.mark.through
    }

    /// The next step; `None` if the groups are gone, or another process is moving them.
    fn go_on(mut self, connection: &Connection, rows: usize) -> rusqlite::Result<Option<Fold>> {
        let found = Mark::read(connection)?;
        if (found.through, found.reached) != (self.mark.through, self.mark.reached) {
            return Ok(None);
        }
        if self.only_reads() {
            self.sum(connection)?;
        } else if self.mark.reached != FoldProgress::All {
            self.add_some(connection, rows)?;
        } else if !self.drop_some(connection)? {
            return Ok(None);
        }
        Ok(Some(self))
    }

    fn sum(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        let Fold { mark, read, sums } = self;
        let (after, mut summed) = (std::mem::replace(read, mark.through), 0);
        appended::groups(connection, (after, mark.through), |group| {
            let number = group.number;
            summed += sums.add(group, |number, entry| !mark.has(number, entry))?;
            if summed < ENTRIES_MAX {
                return Ok(ControlFlow::Continue(()));
            }
            *read = number;
            Ok(ControlFlow::Break(()))
        })
    }

    /// Adds rows to the ledger: for a key and day, all or none.
    fn add_some(&mut self, connection: &Connection, rows: usize) -> rusqlite::Result<()> {
        let Fold { mark, sums, .. } = self;
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
            let place = params![text.1, day.1.as_str(), endpoint];
            execute_with_row(&mut add, place, addition)?;
            added += 1;
        }
        if sums.first().is_none() {
            mark.reached = FoldProgress::All;
        }
        put_mark(connection, *mark)
    }

    /// Deletes some groups. Returns whether any are left.
    fn drop_some(&self, connection: &Connection) -> rusqlite::Result<bool> {
        let Some((first, _)) = first_and_last(connection)? else {
            return Ok(false);
        };
        let through = self.mark.through.min(first.saturating_add(GROUPS_MAX - 1));
        execute(connection, DROP, [through])?;
        Ok(through < self.mark.through)
    }
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
