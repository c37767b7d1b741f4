//! Service without Redis, and its settlement once Redis is available again.
//!
//! It decides the charges that Redis did not decide, because the breaker is open or because the call was lost or refused. Each
//! unit is counted in its account, written to the journal and forced to disk, then served; no charge here waits for Redis. A
//! node may serve its share of the units that were left on a key's day (`policy::quota::allowance`, with the bound); `open` has
//! no bound, `deny` serves nothing. Accounts settle as usual: the next successful call states their totals. The journaled counts
//! of earlier processes are merged under their own names and never grant units.
//!
//! Not here: whether a key may be used (the replica of the key table), and the headers, which give the remainder of the share.

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::timeout;

use super::clock::StoreClock;
use super::identity::StoreIdentity;
use super::journal::{CountRow, Journal, JournalRows, ServeOutcome};
use crate::clock::{Periodic, next_tick};
use crate::policy::api_key::KeyId;
use crate::policy::calendar::Day;
use crate::policy::key_record::TierName;
use crate::policy::quota::NodeShare;
use crate::policy::store_settings::{OutagePolicy, OutageSettings};
use crate::store::redis::counts::accounts::Accounts;
use crate::store::redis::counts::accounts::offline::{
    Changed, OutageBound, OutageRule, Reservation,
};
use crate::store::redis::counts::ledger::{KeyAndDate, ProcessLedger};
use crate::store::redis::wire::guard::{BreakerChange, BreakerGuard};
use crate::store::status::ServiceFacts;
use crate::store::{Charge, Decision, Receipt, StoreError, UNBOUNDED, WithoutStore};

mod restoration;

use restoration::Restoration;

/// How often the path of the journal is checked to be the open file.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The longest that a request waits for the disk.
const JOURNAL_WAIT_MAX: Duration = Duration::from_secs(2);
/// A journal that has not answered for this long counts as failed: longer than a request waits, so that a short pause, such as for a
/// snapshot of the disk, is no failure.
const JOURNAL_HANGS_AFTER: Duration = Duration::from_secs(3);
/// How often old counts are re-read, and the most at a time.
const READ_EVERY: Duration = Duration::from_secs(1);
const READ_MAX: usize = 1_000;
/// With a short `count_staleness`, they are re-read this often in it instead.
const READS_PER_STALENESS: u32 = 16;
/// All known counts are looked at this often in `count_staleness`, and re-read once half of it has passed, so that a count is read again
/// well before it counts as unknown.
const ROUNDS_PER_STALENESS: u32 = 4;
/// How often journaled counts are sent while some must be.
const RESTORE_EVERY: Duration = Duration::from_millis(200);
/// How often the journal is searched for rows that are no longer needed, which reads all of them.
const DROP_EVERY: Duration = Duration::from_secs(10);
/// Days of keys sent to the journal before their replies are awaited, outside of requests: about one transaction.
const NOTED_TOGETHER: usize = 256;
/// Of how many counts of live gateways, one each second, the largest is used: an emptied Redis lacks them for a moment.
const NODES_COUNTS: usize = 15;
/// How long the first settlement waits for the last counts of killed processes, for which the start waits too.
const READ_FIRST_MAX: Duration = Duration::from_secs(2);

/// The last counts of live gateways, however long ago: none is taken while this gateway cannot report itself.
#[derive(Debug, Default)]
struct Nodes(VecDeque<u64>);

impl Nodes {
    fn note(&mut self, count: u64) {
        self.0.truncate(NODES_COUNTS - 1);
        self.0.push_front(count);
    }

    fn last_known(&self) -> u64 {
        self.0.iter().copied().max().unwrap_or(0)
    }
}

/// A gateway's service without Redis.
pub struct OutageService {
    settings: OutageSettings,
    guard: Arc<BreakerGuard>,
    accounts: Arc<Accounts>,
    ledger: Arc<ProcessLedger>,
    clock: Arc<StoreClock>,
    /// The journal of units served without Redis.
    pub journal: Arc<Journal>,
    nodes: Mutex<Nodes>,
    /// Journaled units of other processes that may be missing from Redis.
    unsettled_of_others: AtomicU64,
    /// Whether journaled counts must be sent to Redis.
    restore_due: AtomicBool,
    /// Notified when that becomes due.
    restore_demanded: Notify,
    /// Whether the last counts of the killed processes that were found at the start have been read from Redis.
    is_recovered: watch::Sender<bool>,
    /// Held while rows are written, so that older ones never follow newer ones; when old rows are dropped again.
    noting: tokio::sync::Mutex<Periodic>,
    served: AtomicU64,
    refused: AtomicU64,
}

/// A charge in the ledger that is refunded unless it is kept. Its numbers are not lowered, unless the journal wrote nothing of it: Redis
/// or another process may have received them, and of two totals the larger one counts wherever they are merged.
struct LedgerEntry<'o> {
    ledger: &'o ProcessLedger,
    charge: &'o Charge,
    kept: bool,
}

impl LedgerEntry<'_> {
    fn keep(mut self) {
        self.kept = true;
    }

    /// Lowers its numbers: the journal wrote nothing of it.
    fn withdraw(mut self) {
        self.ledger.withdrawn(self.charge);
        self.kept = true;
    }
}

impl Drop for LedgerEntry<'_> {
    fn drop(&mut self) {
        if !self.kept {
            self.ledger.refunded(&Receipt::of(self.charge));
        }
    }
}

impl OutageService {
    /// Opens the journal for the process `process` on the store `identity`.
    ///
    /// # Errors
    /// If the journal belongs to another store. A journal that cannot be opened is no error: the thread retries, and nothing is
    /// served without Redis until it succeeds.
    pub async fn open(
        settings: OutageSettings,
        process: &str,
        guard: Arc<BreakerGuard>,
        (accounts, ledger, clock): (Arc<Accounts>, Arc<ProcessLedger>, Arc<StoreClock>),
        identity: StoreIdentity,
    ) -> Result<Arc<OutageService>, StoreError> {
        let journal = Journal::start(settings.journal.clone(), identity, process).await?;
        // Before anything is counted, so that the successor of a killed process finds its name; a failed write is repeated
        // with the first note.
        let _ = journal.enter(clock.now().as_second()).await;
        let mut nodes = Nodes::default();
        // The journal itself logs read errors.
        if let Ok(Some(count)) = journal.nodes().await {
            nodes.note(count);
        }
        let unsettled_of_others = journal.unsettled_of_others().await.unwrap_or(0);
        Ok(Arc::new(OutageService {
            settings,
            guard,
            accounts,
            ledger,
            clock,
            journal: Arc::new(journal),
            nodes: Mutex::new(nodes),
            unsettled_of_others: AtomicU64::new(unsettled_of_others),
            restore_due: AtomicBool::new(true),
            restore_demanded: Notify::new(),
            is_recovered: watch::Sender::new(false),
            noting: tokio::sync::Mutex::new(Periodic::due_now(DROP_EVERY)),
            served: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }))
    }

    /// Decides a charge that Redis did not decide because of `error`. Waits for the disk for up to [`JOURNAL_WAIT_MAX`].
    ///
    /// # Errors
    /// `error` itself if nothing is served now; [`StoreError::Unavailable`] if this node's share is used up or the disk is too slow;
    /// [`StoreError::Failed`] if the journal cannot be written. No unit is charged then.
    pub async fn serve(&self, charge: Charge, error: StoreError) -> Result<Decision, StoreError> {
        self.guard.look_soon();
        let bound = match self.settings.policy {
            _ if charge.limit == UNBOUNDED => OutageBound::Open,
            OutagePolicy::Bounded => OutageBound::Share,
            OutagePolicy::Open => OutageBound::Open,
            OutagePolicy::Deny => return Err(error),
        };
        if self.guard.is_foreign() || self.journal.has_failed() {
            return Err(error);
        }
        let rule = self.rule(bound, charge.key.record.id);
        let units = charge.cost;
        let offer = self.accounts.reserve(&charge, &rule, |count, allowance| {
            self.ledger
                .charged(&charge, |row| self.journal.serve(count, row(), allowance))
        });
        match offer {
            Reservation::Exhausted { used } => Ok(Decision::Exhausted { used }),
            Reservation::Beyond => Err(self.beyond(&error)),
            Reservation::Reserved {
                units: reserved,
                allowance,
                unsettled_units,
                counted,
                written,
            } => {
                let entry = LedgerEntry {
                    ledger: &self.ledger,
                    charge: &charge,
                    kept: false,
                };
                let others = self.journaled(written, entry, &error).await?;
                reserved.keep();
                self.served.fetch_add(units.into(), Ordering::Relaxed);
                let left = allowance.saturating_sub(unsettled_units + others);
                let counted = counted + others;
                let used = match charge.limit {
                    UNBOUNDED => counted,
                    limit => limit.saturating_sub(left),
                };
                Ok(Decision::Granted {
                    used,
                    counted,
                    receipt: Receipt::of(&charge),
                })
            }
        }
    }

    /// Waits until the journal has the units of a charge. Returns those of other processes that it has on the key's day.
    async fn journaled(
        &self,
        written: oneshot::Receiver<Result<ServeOutcome, StoreError>>,
        entry: LedgerEntry<'_>,
        error: &StoreError,
    ) -> Result<u64, StoreError> {
        match timeout(JOURNAL_WAIT_MAX, written).await {
            Ok(Ok(Ok(ServeOutcome::Durable { others }))) => {
                entry.keep();
                Ok(others)
            }
            Ok(Ok(Ok(ServeOutcome::Beyond))) => {
                entry.withdraw();
                Err(self.beyond(error))
            }
            Ok(Ok(Err(failure))) => Err(failure),
            Ok(Err(_)) | Err(_) => {
                let why = format!("{error}; and the journal is too slow");
                Err(StoreError::Unavailable(why))
            }
        }
    }

    fn beyond(&self, error: &StoreError) -> StoreError {
        self.refused.fetch_add(1, Ordering::Relaxed);
        StoreError::Unavailable(format!(
            "{error}; and this node has served its share of the key's day"
        ))
    }

    /// Whether the last reply of Redis is not the count of a key now: charges are decided here, or refused, without Redis, or were and
    /// Redis does not know of all of them.
    pub fn decides(&self, key: KeyId, day: Day) -> bool {
        let link = &self.guard.link;
        let is_here = self.settings.policy != OutagePolicy::Deny
            && (!link.serves(&link.names.record(key)) || self.accounts.is_ahead(key, day));
        is_here || !self.guard.is_closed()
    }

    /// Units used, as reported while Redis is unavailable to a caller with this limit, or with that of the last charge; `None` if no
    /// count of the day is known and no charge was decided here, or nothing is served.
    pub fn used(&self, key: KeyId, day: Day, limit: Option<u64>) -> Option<u64> {
        if self.settings.policy == OutagePolicy::Deny {
            return None;
        }
        self.accounts
            .used_at_most(key, day, limit, &self.rule(OutageBound::Share, key))
    }

    /// The rule for a key, whose master of a cluster may be away while the breaker is closed.
    fn rule(&self, bound: OutageBound, key: KeyId) -> OutageRule {
        let link = &self.guard.link;
        let away_since = link.away_since(&link.names.record(key));
        let away_since = away_since.into_iter().chain(self.guard.opened()).min();
        let away_since = away_since.unwrap_or_else(Instant::now);
        OutageRule {
            share: NodeShare {
                nodes: self.share_nodes(),
                cold_percent: self.settings.cold_percent,
            },
            bound,
            away_since,
            count_staleness: self.settings.count_staleness,
        }
    }

    fn share_nodes(&self) -> NonZeroU64 {
        let live = NonZeroU64::new(self.nodes.lock().last_known());
        live.map_or(self.settings.min_nodes, |live| {
            live.max(self.settings.min_nodes)
        })
    }

    /// How charges are decided while Redis is unavailable.
    pub fn service(&self) -> WithoutStore {
        match self.settings.policy {
            OutagePolicy::Deny => WithoutStore::Denies,
            OutagePolicy::Bounded | OutagePolicy::Open if self.guard.is_foreign() => {
                WithoutStore::Denies
            }
            OutagePolicy::Bounded | OutagePolicy::Open if self.journal.has_failed() => {
                WithoutStore::JournalFailed
            }
            OutagePolicy::Bounded | OutagePolicy::Open => WithoutStore::Serves,
        }
    }

    /// The state of service without Redis, for operators.
    pub fn facts(&self) -> ServiceFacts {
        ServiceFacts {
            outage: self.settings.policy.to_string(),
            journal: self.settings.journal.clone(),
            journal_error: self.journal.trouble(),
            pending_units: self.pending_units(),
        }
    }

    /// Units served without Redis that it may not have.
    pub fn pending_units(&self) -> u64 {
        self.accounts.unsettled_units() + self.unsettled_of_others.load(Ordering::Relaxed)
    }

    /// Logs a turn of the breaker.
    pub fn breaker_changed(&self, turn: BreakerChange) {
        let (policy, pending_units) = (self.settings.policy, self.pending_units());
        match turn {
            BreakerChange::Opened => {
                let (nodes, service) = (self.share_nodes(), self.service());
                let why = self.guard.reason();
                self.served.store(0, Ordering::Relaxed);
                self.refused.store(0, Ordering::Relaxed);
                tracing::warn!(
                    %policy,
                    %service,
                    nodes,
                    pending_units,
                    why,
                    "Redis is unavailable"
                );
            }
            BreakerChange::Closed(away) => {
                self.repeat_all();
                tracing::warn!(
                    %policy,
                    away_seconds = away.as_secs_f64(),
                    units_served = self.served.load(Ordering::Relaxed),
                    refused = self.refused.load(Ordering::Relaxed),
                    pending_units,
                    "Redis is available again: settling the counts"
                );
            }
        }
    }

    /// Requests that journaled counts are sent again: Redis may have lost them.
    pub fn repeat_all(&self) {
        self.restore_due.store(true, Ordering::Release);
        self.restore_demanded.notify_one();
    }

    /// Keeps the journal and the known counts current, and sends Redis journaled counts. Never returns.
    pub async fn keep(self: Arc<Self>) {
        // A long restoration must not delay the journal.
        tokio::join!(
            self.keep_current(),
            self.keep_restored(),
            self.keep_watched()
        );
    }

    /// Looks at the journal, which may have come back, and notes if it hangs.
    async fn keep_watched(&self) {
        loop {
            next_tick(LOOK_EVERY).await;
            let mut looked = pin!(self.journal.look());
            if timeout(JOURNAL_HANGS_AFTER, &mut looked).await.is_err() {
                self.journal.note_hang(JOURNAL_HANGS_AFTER);
                // The journal itself logs why it could not be written.
                let _ = looked.await;
            }
        }
    }

    async fn keep_current(&self) {
        let mut note = Periodic::new(self.settings.journal_interval);
        let staleness = self.settings.count_staleness;
        let read_every = READ_EVERY.min(staleness / READS_PER_STALENESS);
        let mut read = Periodic::new(read_every);
        let turns = (staleness / ROUNDS_PER_STALENESS).as_millis() / read_every.as_millis();
        let turns = usize::try_from(turns).unwrap_or(usize::MAX);
        let tick = read_every.min(self.settings.journal_interval);
        loop {
            next_tick(tick).await;
            if note.is_due() {
                self.note_changes().await;
            }
            if self.guard.is_closed()
                && read.is_due()
                && let Some(old) = Instant::now().checked_sub(staleness / 2)
            {
                self.accounts.list_to_read(old, READ_MAX, turns);
            }
        }
    }

    async fn keep_restored(&self) {
        let counted = (self.accounts.clone(), self.ledger.clone());
        let mut restoration = Restoration::new(self.guard.clone(), self.journal.clone(), counted);
        // Those that were being sent when a panic ended this are due again.
        self.restore_due.store(true, Ordering::Release);
        let mut answering = None::<Instant>;
        loop {
            let period = match self.restore_due.load(Ordering::Acquire) {
                true => RESTORE_EVERY,
                false => LOOK_EVERY,
            };
            tokio::select! {
                () = next_tick(period) => {}
                () = self.restore_demanded.notified() => {}
            }
            if !self.guard.is_closed() {
                continue;
            }
            let answers_for = answering.get_or_insert_with(Instant::now).elapsed();
            let reads_first = !self.is_recovered() && answers_for < READ_FIRST_MAX;
            if reads_first {
                continue;
            }
            if self.restore_due.swap(false, Ordering::AcqRel) {
                restoration.demand();
            }
            // On an error, which the journal itself logs, the last number remains in use.
            if restoration.step().await
                && let Ok(units) = self.journal.unsettled_of_others().await
            {
                self.unsettled_of_others.store(units, Ordering::Relaxed);
            }
        }
    }

    /// Records how many gateways are live, this one included: to be called each second while it is known.
    pub fn note_nodes(&self, live: u64) {
        self.nodes.lock().note(live);
    }

    /// Records that the last counts of killed processes have been read.
    pub fn note_recovered(&self) {
        self.is_recovered.send_replace(true);
    }

    /// Whether the last counts of the killed processes that were found at the start have been read.
    pub fn is_recovered(&self) -> bool {
        *self.is_recovered.borrow()
    }

    /// Waits until they have been read.
    pub async fn until_recovered(&self) {
        let _ = self.is_recovered.subscribe().wait_for(|is| *is).await;
    }

    /// How often changed counts are journaled.
    pub fn journal_interval(&self) -> Duration {
        self.settings.journal_interval
    }

    /// Writes changed counts to the journal, each key's day atomically. Returns whether all were written.
    pub async fn note_changes(&self) -> bool {
        let mut dropping = self.noting.lock().await;
        let mut all_written = true;
        // Later changes are for the next turn.
        for _ in 0..self.accounts.changed_count().div_ceil(NOTED_TOGETHER) {
            let noted = self.note_changed().into_iter();
            all_written &= self
                .written(noted.map(|(changed, noted)| (Some(changed), noted)))
                .await;
        }
        // Refused requests, and the rows of the ledger that Redis now has.
        let mut days = self.ledger.days_to_note();
        loop {
            let noted = self.note_some(&mut days);
            if noted.is_empty() {
                break;
            }
            let noted = noted.into_iter();
            all_written &= self.written(noted.map(|noted| (None, noted))).await;
        }
        let (nodes, now) = (self.nodes.lock().last_known(), self.clock.now().as_second());
        let settled = self.clock.watch.settled_at().map(Timestamp::as_second);
        let settled = settled.filter(|_| dropping.is_due());
        let retention = self.guard.link.names.keeping.retention_seconds();
        let kept = self.journal.keep(nodes, now, settled, retention).await;
        all_written & kept.is_ok()
    }

    /// Queues the days of some changed accounts for the journal.
    fn note_changed(&self) -> Vec<(Changed, QueuedDay)> {
        let _gathering = self.journal.gather();
        self.accounts
            .note_changes_with(NOTED_TOGETHER, |day, count| self.note(day, Some(count)))
    }

    /// Queues the first of these days for the journal.
    fn note_some(&self, days: &mut impl Iterator<Item = KeyAndDate>) -> Vec<QueuedDay> {
        let _gathering = self.journal.gather();
        let noted = days
            .take(NOTED_TOGETHER)
            .map(|day| self.accounts.note_with(day, |count| self.note(day, count)));
        noted.collect()
    }

    /// Queues a key's day for the journal, with the count taken while its account is locked. The totals are read after the
    /// count: all that they contain was counted before.
    fn note(&self, day: KeyAndDate, count: Option<CountRow>) -> QueuedDay {
        let counts = Vec::from_iter(count);
        let note = |totals| self.journal.note(JournalRows { counts, totals });
        let (tiers, written) = self.ledger.note_changes_with(day, note);
        QueuedDay {
            day,
            tiers,
            written,
        }
    }

    /// Returns whether all of it is on disk; the rest is marked to be written again. The journal itself logs why, once.
    async fn written(
        &self,
        noted: impl DoubleEndedIterator<Item = (Option<Changed>, QueuedDay)>,
    ) -> bool {
        tokio::task::yield_now().await;
        let mut all_written = true;
        // The last reply first, after which none is waited for: a wake-up for each would take longer than the writing.
        for (changed, noted) in noted.rev() {
            if matches!(noted.written.await, Ok(Ok(()))) {
                continue;
            }
            all_written = false;
            self.ledger.changed_still(noted.day, &noted.tiers);
            if let Some(changed) = changed {
                self.accounts.changed_still(&changed);
            }
        }
        all_written
    }
}

/// A key's day that is queued for the journal.
struct QueuedDay {
    day: KeyAndDate,
    tiers: Vec<TierName>,
    written: oneshot::Receiver<Result<(), StoreError>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_of_the_last_numbers_of_gateways_counts() {
        let mut nodes = Nodes::default();
        assert_eq!(nodes.last_known(), 0);
        nodes.note(3);
        for _ in 1..NODES_COUNTS {
            nodes.note(1);
        }
        assert_eq!(nodes.last_known(), 3);
        nodes.note(1);
        assert_eq!(nodes.last_known(), 1);
    }
}
