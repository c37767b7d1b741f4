//! The queue of the writer thread: charges, refunds, readings, refusals and writer jobs.
//!
//! Callers never wait to enqueue; the writer takes the whole queue. Each kind has its own bound:
//! - charges and readings: [`WAITING_MAX`] together, then callers get an error at once;
//! - refunds: none is ever rejected; there are at most as many as receipts, which only grants create;
//! - refusals: summed by key, day and endpoint, [`REFUSALS_MAX`] such sums, then further ones are not counted, which is logged;
//! - writer jobs (changes of keys, heartbeats): [`JOBS_MAX`].

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rusqlite::Connection;
use tokio::sync::oneshot;

use crate::policy::api_key::KeyId;
use crate::policy::calendar::Day;
use crate::policy::key_record::{KeyRecord, TierName};
use crate::store::{Charge, Decision, Receipt, RefusalReason, StoreError, Totals};

/// About half a second of charges at full load: a caller behind them would wait too long.
const WAITING_MAX: usize = 16_384;
/// Keys times endpoints that can be refused within a second before the ledger misses some: 16 MB at most.
const REFUSALS_MAX: usize = 100_000;
/// Commands change keys one at a time; a gateway has one heartbeat under way.
const JOBS_MAX: usize = 256;
/// Refusals are written this long after the first of them, or with the next group.
const REFUSALS_KEPT: Duration = Duration::from_millis(500);

/// A charge or a reading that waits for the database.
pub(super) enum WaitingCall {
    /// A charge, the ruling on it once it is made, and the sender of its result.
    Charge(
        Charge,
        Option<Ruling<Decision>>,
        oneshot::Sender<Result<UnclaimedDecision, StoreError>>,
    ),
    /// A reading of a count, the ruling on it once it is made, and the sender of its result.
    Used(
        KeyId,
        Day,
        Option<Ruling<u64>>,
        oneshot::Sender<Result<u64, StoreError>>,
    ),
}

/// A group's result of a call, before it is committed; an error with the other boundaries of the stored day.
pub(super) type Ruling<T> = Result<T, Day>;

/// A committed decision for a caller that has not received it yet. If it is dropped because the caller is gone, it puts the refund of
/// its units into the inbox.
pub(super) struct UnclaimedDecision {
    decision: Decision,
    inbox: Arc<Inbox>,
}

impl UnclaimedDecision {
    /// A decision that is committed.
    pub(super) fn new(decision: Decision, inbox: Arc<Inbox>) -> UnclaimedDecision {
        UnclaimedDecision { decision, inbox }
    }

    /// Hands the decision to the caller.
    pub(super) fn accept(mut self) -> Decision {
        self.take()
    }

    /// Takes the decision; one without units is left.
    fn take(&mut self) -> Decision {
        mem::replace(&mut self.decision, Decision::KeyChanged)
    }
}

impl Drop for UnclaimedDecision {
    fn drop(&mut self) {
        if let Decision::Granted { receipt, .. } = self.take() {
            self.inbox.put_refund(receipt, None);
        }
    }
}

/// Units to refund, and the receiver of the count afterwards.
pub(super) struct Refund {
    pub(super) receipt: Receipt,
    pub(super) answer: Option<oneshot::Sender<u64>>,
}

/// The key of a sum of refused requests.
type RefusalPlace = (KeyId, Day, TierName, Arc<str>);

/// Refused requests by key, day, tier and endpoint: nothing else is in the totals.
pub(super) type Refusals = HashMap<RefusalPlace, Totals>;

/// A piece of work on the writer's connection, in a transaction of its own making.
pub(super) type WriterJob = Box<dyn FnOnce(&Connection) + Send>;

/// The contents of the queue at one moment.
#[derive(Default)]
pub(super) struct QueueBatch {
    pub(super) waiting: Vec<WaitingCall>,
    pub(super) refunds: Vec<Refund>,
    pub(super) refusals: Refusals,
    /// Refused requests beyond [`REFUSALS_MAX`], which the ledger will lack.
    pub(super) uncounted_refusals: u64,
    pub(super) jobs: Vec<WriterJob>,
}

impl QueueBatch {
    /// The sum of the refused requests of a place, or `None` if there is none and no further one may begin.
    fn refusals_at(&mut self, place: RefusalPlace) -> Option<&mut Totals> {
        let is_full = self.refusals.len() >= REFUSALS_MAX;
        match self.refusals.entry(place) {
            Entry::Vacant(_) if is_full => None,
            entry => Some(entry.or_default()),
        }
    }
}

#[derive(Default)]
struct QueueContents {
    batch: QueueBatch,
    /// The number of refunds that were taken and are not known to be written, and their units.
    unwritten: (usize, u64),
    first_refusal: Option<Instant>,
    closed: bool,
}

/// The queue.
#[derive(Default)]
pub(super) struct Inbox {
    contents: Mutex<QueueContents>,
    filled: Condvar,
}

impl Inbox {
    /// Enqueues a charge or a reading, or returns an error if too many wait or the store is closed.
    pub(super) fn put(&self, waiting: WaitingCall) -> Result<(), StoreError> {
        let mut contents = self.contents.lock();
        if contents.closed {
            return Err(StoreError::Unavailable("the store was closed".into()));
        }
        if contents.batch.waiting.len() >= WAITING_MAX {
            return Err(StoreError::Unavailable(format!(
                "{WAITING_MAX} charges wait for the database already"
            )));
        }
        contents.batch.waiting.push(waiting);
        drop(contents);
        self.filled.notify_one();
        Ok(())
    }

    /// Whether a charge or a reading has not been taken yet.
    pub(super) fn has_waiting(&self) -> bool {
        !self.contents.lock().batch.waiting.is_empty()
    }

    /// Whether a writer job has not been taken yet.
    #[cfg(test)]
    pub(super) fn has_jobs(&self) -> bool {
        !self.contents.lock().batch.jobs.is_empty()
    }

    /// Enqueues a refund.
    pub(super) fn put_refund(&self, receipt: Receipt, answer: Option<oneshot::Sender<u64>>) {
        let refund = Refund { receipt, answer };
        self.contents.lock().batch.refunds.push(refund);
        self.filled.notify_one();
    }

    /// Puts back what could not be written, to be tried again with the next group.
    pub(super) fn put_back(&self, refunds: Vec<Refund>, refusals: Refusals) {
        let mut contents = self.contents.lock();
        contents.unwritten = (0, 0);
        let batch = &mut contents.batch;
        batch.refunds.extend(refunds);
        for (place, refused) in refusals {
            match batch.refusals_at(place) {
                Some(sum) => sum.add(&refused),
                None => batch.uncounted_refusals += refused.refused(),
            }
        }
        if !batch.refusals.is_empty() {
            contents.first_refusal = Some(Instant::now());
        }
    }

    /// Notes that the batch that was taken last is written.
    pub(super) fn note_written(&self) {
        self.contents.lock().unwritten = (0, 0);
    }

    /// The number of refunds that are not known to be written, and their units.
    pub(super) fn pending_refunds(&self) -> (usize, u64) {
        let contents = self.contents.lock();
        let (refunds, units) = sum(&contents.batch.refunds);
        (refunds + contents.unwritten.0, units + contents.unwritten.1)
    }

    /// Counts a refused request.
    pub(super) fn put_refusal(
        &self,
        record: &KeyRecord,
        day: Day,
        endpoint: &Arc<str>,
        refusal: RefusalReason,
    ) {
        let mut contents = self.contents.lock();
        let place = (record.id, day, record.tier.clone(), endpoint.clone());
        match contents.batch.refusals_at(place) {
            Some(sum) => sum.refuse(refusal, 1),
            None => contents.batch.uncounted_refusals += 1,
        }
        if contents.first_refusal.is_none() {
            contents.first_refusal = Some(Instant::now());
            drop(contents);
            self.filled.notify_one();
        }
    }

    /// Enqueues a writer job.
    pub(super) fn put_job(&self, job: WriterJob) -> Result<(), StoreError> {
        let mut contents = self.contents.lock();
        if contents.closed || contents.batch.jobs.len() >= JOBS_MAX {
            return Err(StoreError::Unavailable(
                "the store is closed or overloaded".into(),
            ));
        }
        contents.batch.jobs.push(job);
        drop(contents);
        self.filled.notify_one();
        Ok(())
    }

    /// Accepts only refunds from now on, and ends the writer when it has written everything.
    pub(super) fn close(&self) {
        self.contents.lock().closed = true;
        self.filled.notify_all();
    }

    /// Drops what waits, which ends the wait of every caller. Refunds remain pending, for the report of the close.
    pub(super) fn abandon(&self) {
        let mut abandoned = mem::take(&mut self.contents.lock().batch);
        for refund in abandoned.refunds.drain(..) {
            self.put_refund(refund.receipt, None);
        }
    }

    /// Waits until there is something to do and takes all of it, charges and readings up to `group_max`; after
    /// `patience`, if there is a bound to it, what there is, be it nothing. `None` once the inbox is closed and empty.
    pub(super) fn take(&self, group_max: usize, patience: Option<Duration>) -> Option<QueueBatch> {
        let back = patience.map(|patience| Instant::now() + patience);
        let mut contents = self.contents.lock();
        loop {
            let due = contents.first_refusal.map(|first| first + REFUSALS_KEPT);
            let batch = &contents.batch;
            let idle =
                batch.waiting.is_empty() && batch.refunds.is_empty() && batch.jobs.is_empty();
            let refusals_due = due.is_some_and(|due| Instant::now() >= due || contents.closed);
            if !idle || refusals_due {
                break;
            }
            if contents.closed {
                return None;
            }
            if back.is_some_and(|back| Instant::now() >= back) {
                return Some(QueueBatch::default());
            }
            match due.into_iter().chain(back).min() {
                Some(instant) => {
                    self.filled.wait_until(&mut contents, instant);
                }
                None => self.filled.wait(&mut contents),
            }
        }
        contents.first_refusal = None;
        let mut taken = mem::take(&mut contents.batch);
        contents.unwritten = sum(&taken.refunds);
        if taken.waiting.len() > group_max {
            contents.batch.waiting = taken.waiting.split_off(group_max);
        }
        Some(taken)
    }
}

/// The number of these refunds, and their units.
fn sum(refunds: &[Refund]) -> (usize, u64) {
    let units = refunds.iter().map(|refund| u64::from(refund.receipt.units));
    (refunds.len(), units.sum())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::api_key::os_entropy;
    use crate::policy::key_record::tests::key_of;

    fn day() -> Day {
        Day {
            date: "2026-11-21".parse().unwrap(),
            start: 0,
            end: 1,
        }
    }

    fn reading() -> (WaitingCall, oneshot::Receiver<Result<u64, StoreError>>) {
        let (caller, answer) = oneshot::channel();
        let key = KeyId::generate(&mut os_entropy);
        (WaitingCall::Used(key, day(), None, caller), answer)
    }

    #[test]
    fn a_job_that_comes_to_a_full_inbox_is_refused_at_once() {
        let inbox = Inbox::default();
        for _ in 0..WAITING_MAX {
            inbox.put(reading().0).unwrap();
        }
        let refused = inbox.put(reading().0);
        assert!(matches!(refused, Err(StoreError::Unavailable(_))));
        assert_eq!(inbox.take(100, None).unwrap().waiting.len(), 100);
        inbox.put(reading().0).unwrap();
    }

    #[test]
    fn a_closed_inbox_is_emptied_and_then_takes_no_more() {
        let inbox = Inbox::default();
        inbox.put(reading().0).unwrap();
        inbox.put_refusal(
            &key_of("pro").1,
            day(),
            &"markets".into(),
            RefusalReason::Tier,
        );
        inbox.close();
        assert!(inbox.put(reading().0).is_err());
        let taken = inbox.take(100, None).unwrap();
        assert_eq!((taken.waiting.len(), taken.refusals.len()), (1, 1));
        assert!(inbox.take(100, None).is_none());
    }

    #[test]
    fn refusals_are_summed_and_bounded() {
        let inbox = Inbox::default();
        let endpoint: Arc<str> = "markets".into();
        let (_, record) = key_of("pro");
        for _ in 0..REFUSALS_MAX + 5 {
            let other = KeyRecord {
                id: KeyId::generate(&mut os_entropy),
                ..record.clone()
            };
            inbox.put_refusal(&other, day(), &endpoint, RefusalReason::Tier);
            inbox.put_refusal(&record, day(), &endpoint, RefusalReason::DailyQuota);
        }
        inbox.close();
        let taken = inbox.take(100, None).unwrap();
        assert_eq!(taken.uncounted_refusals, 6);
        let refusals = taken.refusals;
        assert_eq!(refusals.len(), REFUSALS_MAX);
        let sum = refusals[&(record.id, day(), record.tier, endpoint)];
        assert_eq!(sum.refused_quota, REFUSALS_MAX as u64 + 5);
    }

    #[test]
    fn refusals_that_could_not_be_written_are_bounded_with_those_that_came_meanwhile() {
        let inbox = Inbox::default();
        let (_, record) = key_of("pro");
        let refuse = |_| {
            let other = KeyRecord {
                id: KeyId::generate(&mut os_entropy),
                ..record.clone()
            };
            inbox.put_refusal(&other, day(), &"markets".into(), RefusalReason::Tier);
        };
        inbox.put_refusal(&record, day(), &"markets".into(), RefusalReason::Tier);
        (1..REFUSALS_MAX).for_each(refuse);
        let taken = inbox.take(100, None).unwrap().refusals;
        inbox.put_refusal(&record, day(), &"markets".into(), RefusalReason::Tier);
        (1..REFUSALS_MAX).for_each(refuse);
        inbox.put_back(Vec::new(), taken);
        let taken = inbox.take(100, None).unwrap();
        assert_eq!(taken.uncounted_refusals, REFUSALS_MAX as u64 - 1);
        let taken = taken.refusals;
        assert_eq!(taken.len(), REFUSALS_MAX);
        let place = (record.id, day(), record.tier, "markets".into());
        assert_eq!(taken[&place].refused_tier, 2);
    }

    fn receipt(units: u32) -> Receipt {
        Receipt {
            key: KeyId::generate(&mut os_entropy),
            tier: "pro".parse().unwrap(),
            day: day(),
            endpoint: "markets".into(),
            units,
        }
    }

    #[test]
    fn refunds_that_the_writer_has_taken_are_pending_until_they_are_written() {
        let inbox = Inbox::default();
        inbox.put_refund(receipt(3), None);
        inbox.put_refund(receipt(4), None);
        assert_eq!(inbox.take(100, None).unwrap().refunds.len(), 2);
        inbox.put_refund(receipt(5), None);
        assert_eq!(inbox.pending_refunds(), (3, 12));
        inbox.note_written();
        assert_eq!(inbox.pending_refunds(), (1, 5));
    }

    #[test]
    fn a_grant_that_no_request_accepts_turns_into_a_refund() {
        let inbox = Arc::new(Inbox::default());
        let grant = || {
            let decision = Decision::Granted {
                used: 3,
                counted: 3,
                receipt: receipt(3),
            };
            UnclaimedDecision::new(decision, inbox.clone())
        };
        assert!(matches!(grant().accept(), Decision::Granted { .. }));
        let (caller, answer) = oneshot::channel();
        assert!(caller.send(grant()).is_ok());
        drop(answer);
        let (caller, answer) = oneshot::channel();
        drop(answer);
        drop(caller.send(grant()));
        let refunds = inbox.take(100, None).unwrap().refunds;
        assert_eq!(refunds.len(), 2);
        assert!(refunds.iter().all(|refund| refund.receipt.units == 3));
    }
}
