//! Sends Redis the journaled rows of earlier and other processes, and this process's counts if accounts of it were dropped: then only
//! the journal has them. Its totals are all in memory.
//!
//! Rows that Redis does not take, because the master of their key is away, delay no others. They alone are sent again, after
//! growing pauses.
//!
//! Invariant: the counts of a key's day are sent first, so that Redis's ledger never contains units that were not counted; except for
//! dropped accounts after Redis lost data, whose totals the ledger writes again at once.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;

use crate::policy::failure_log::LoggedReasons;
use crate::store::StoreError;
use crate::store::redis::counts::accounts::Accounts;
use crate::store::redis::counts::ledger::ProcessLedger;
use crate::store::redis::journal::{DateAndKey, Journal, JournalRows, RowsOf};
use crate::store::redis::wire::guard::BreakerGuard;

/// Days of keys read from the journal at a time, and rows of it that are merged into Redis concurrently.
const BATCH: usize = 64;
/// The first and the longest pause before rows are sent again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
const AGAIN_AFTER_MAX: Duration = Duration::from_secs(10);

/// The rows that are to be sent.
#[derive(Debug, Default)]
enum Due {
    /// All.
    All,
    /// Those of the days that could not be merged.
    Days(BTreeSet<DateAndKey>),
    /// None.
    #[default]
    Nothing,
}

/// When journaled rows are sent, and which.
pub struct Restoration {
    guard: Arc<BreakerGuard>,
    journal: Arc<Journal>,
    counted: (Arc<Accounts>, Arc<ProcessLedger>),
    due: Due,
    at: Instant,
    pause: Duration,
    logged: LoggedReasons,
}

/// The outcome of sending rows.
#[derive(Default)]
struct Sent {
    merged: JournalRows,
    /// The days that could not be merged.
    left: BTreeSet<DateAndKey>,
    /// Why the first of them could not.
    error: Option<StoreError>,
}

impl Sent {
    /// Records a row's result, and returns whether Redis has the row.
    fn note(&mut self, day: DateAndKey, result: Result<(), StoreError>) -> bool {
        let Err(error) = result else { return true };
        self.left.insert(day);
        self.error.get_or_insert(error);
        false
    }
}

impl Restoration {
    /// Nothing is to be sent yet.
    pub fn new(
        guard: Arc<BreakerGuard>,
        journal: Arc<Journal>,
        counted: (Arc<Accounts>, Arc<ProcessLedger>),
    ) -> Restoration {
        Restoration {
            guard,
            journal,
            counted,
            due: Due::Nothing,
            at: Instant::now(),
            pause: AGAIN_AFTER,
            logged: LoggedReasons::default(),
        }
    }

    /// Has all rows sent at once.
    pub fn demand(&mut self) {
        self.due = Due::All;
        self.at = Instant::now();
        self.pause = AGAIN_AFTER;
    }

    /// Sends the rows that are due. Returns whether there were any.
    pub async fn step(&mut self) -> bool {
        if matches!(self.due, Due::Nothing) || Instant::now() < self.at {
            return false;
        }
        match self.send().await {
            Ok(()) => self.logged.ended(),
            Err(error) => {
                self.at = Instant::now() + self.pause;
                self.pause = (2 * self.pause).min(AGAIN_AFTER_MAX);
                if self.logged.is_new(&error.to_string()) {
                    tracing::warn!(%error, "journaled counts are not settled; trying again");
                }
            }
        }
        true
    }

    /// Sends the rows that are due, a batch at a time, and marks them as settled.
    ///
    /// # Errors
    /// The first of all; what could not be sent remains due.
    async fn send(&mut self) -> Result<(), StoreError> {
        let mut left = BTreeSet::new();
        let (mut settled, mut first_error) = (0, None);
        let mut last = None;
        loop {
            let days = self.next_days(last).await?;
            let Some((end, _)) = days.last() else { break };
            last = Some(*end);
            self.guard.require()?;
            let sent = self.send_rows(days).await;
            settled += sent.merged.counts.len();
            self.journal.settled(sent.merged).await?;
            left.extend(sent.left);
            first_error = first_error.or(sent.error);
        }
        self.due = match left.is_empty() {
            true => Due::Nothing,
            false => Due::Days(left),
        };
        if settled > 0 {
            tracing::info!(rows = settled, "journaled counts are settled");
        }
        first_error.map_or(Ok(()), Err)
    }

    /// The next days of keys after `last`, with their rows.
    async fn next_days(
        &self,
        last: Option<DateAndKey>,
    ) -> Result<Vec<(DateAndKey, JournalRows)>, StoreError> {
        let (accounts, _) = &self.counted;
        let rows = match accounts.has_dropped() {
            true => RowsOf::OthersAndOwnCounts,
            false => RowsOf::Others,
        };
        match &self.due {
            Due::All => self.journal.days_with(rows, last, BATCH).await,
            Due::Days(days) => {
                let after = last.map_or(Bound::Unbounded, Bound::Excluded);
                let rest = days.range((after, Bound::Unbounded));
                let next = rest.take(BATCH).copied().collect();
                self.journal.rows_on(rows, next).await
            }
            Due::Nothing => Ok(Vec::new()),
        }
    }

    /// Sends rows, each by itself.
    async fn send_rows(&self, days: Vec<(DateAndKey, JournalRows)>) -> Sent {
        let (accounts, ledger) = &self.counted;
        let mut sent = Sent::default();
        let dates = days.iter().map(|((date, _), _)| *date).collect();
        ledger.list(&dates).await;
        let (mut counts, mut totals) = (Vec::new(), Vec::new());
        for (day, rows) in days {
            counts.extend(rows.counts.into_iter().map(|row| (day, row)));
            totals.extend(rows.totals.into_iter().map(|row| (day, row)));
        }
        for batch in counts.chunks(BATCH) {
            let merging = batch.iter().map(|(_, row)| accounts.merge(row));
            for ((day, row), result) in batch.iter().zip(join_all(merging).await) {
                if sent.note(*day, result.map_err(StoreError::from)) {
                    sent.merged.counts.push(row.clone());
                }
            }
        }
        totals.retain(|(day, _)| !sent.left.contains(day));
        for batch in totals.chunks(BATCH) {
            let merging = batch.iter().map(|(_, row)| ledger.merge(row));
            for ((day, row), result) in batch.iter().zip(join_all(merging).await) {
                if sent.note(*day, result) {
                    sent.merged.totals.push(row.clone());
                }
            }
        }
        sent
    }
}
