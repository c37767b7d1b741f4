//! The writer: the thread that owns the writing connection.
//!
//! It takes the whole queue, decides and writes it in one transaction, and replies after the commit. If a group cannot be
//! committed, each of its charges gets the error and no units are charged; its refunds and refusals are tried again. Units of
//! callers that have left are refunded (see [`UnclaimedDecision`]).

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use rusqlite::Connection;

use super::closing::Closer;
use super::days::other_calendar;
use super::folding::Folder;
use super::group::{Group, Statements};
use super::inbox::{Inbox, QueueBatch, Refund, UnclaimedDecision, WaitingCall};
use super::keys::Follower;
use super::learnt::Learnt;
use super::schema::failure;
use super::stop::Stop;
use crate::clock::Clock;
use crate::policy::failure_log::FailureLog;
use crate::store::clock_watch::ClockWatch;
use crate::store::current::Current;
use crate::store::held_file::{HeldFile, Trouble};
use crate::store::{Keeping, NodeName, StoreError};

/// The largest group: some 2 ms of work, which bounds how long other processes wait for the lock.
const GROUP_MAX: usize = 512;
/// After a group of at least this many charges and readings the writer rests, so that others gather: under load a few commits of many
/// cost less than many of a few, and a lone charge never waits.
const GATHER_FROM: usize = 4;
/// How long it rests for each of them: above 5,000 a second groups grow until the rest is [`GATHER_MAX`], below they shrink.
const GATHER_EACH: Duration = Duration::from_micros(200);
/// The longest rest.
const GATHER_MAX: Duration = Duration::from_millis(2);
/// The pause after a group that failed, so that refunds which are tried again do not keep a broken disk busy.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(50);

/// The state that the writer shares with the rest of the store.
pub(super) struct Desk {
    pub(super) path: PathBuf,
    pub(super) clock: Clock,
    /// Whether that clock is trusted.
    pub(super) clock_watch: ClockWatch,
    pub(super) inbox: Arc<Inbox>,
    pub(super) keys: Follower,
    pub(super) learnt: Learnt,
    pub(super) keeping: Keeping,
    /// The day that is being closed.
    pub(super) closing: Mutex<Closer>,
    /// The file of a gateway, which has it open for long.
    pub(super) file: Option<Arc<HeldFile>>,
    /// The last logged state of the file.
    pub(super) file_logged: Mutex<Option<Arc<Trouble>>>,
    /// Why the last transaction was not committed, if it was not.
    pub(super) failed: ArcSwapOption<StoreError>,
    /// Which failures were logged.
    pub(super) failure_log: Mutex<FailureLog>,
    /// Whether anything was committed since the last time that the log was forced to disk.
    pub(super) dirty: AtomicBool,
    /// Since when the log is being forced to disk, while it is.
    pub(super) forcing: Mutex<Option<Instant>>,
    /// What the diagnostic log has of failures to do so.
    pub(super) forced_log: Mutex<FailureLog>,
    /// The gateway of the store; none of a command.
    pub(super) gateway: Option<NodeName>,
    /// When its key table was last current.
    pub(super) current: Current,
    /// Whether a heartbeat of it waits in the inbox.
    pub(super) heartbeat_queued: AtomicBool,
    /// Whether, since the watch last looked, a group was written or the follower completed a round while no heartbeat was waiting.
    pub(super) heard: AtomicBool,
    /// Ends the helper threads.
    pub(super) stop: Stop,
    /// Whether the writer signs the gateway off when it ends.
    pub(super) goodbye: AtomicBool,
}

impl Desk {
    /// Why the file cannot be used, as it was last found.
    pub(super) fn file_trouble(&self) -> Option<Arc<Trouble>> {
        self.file.as_ref()?.trouble()
    }

    /// Records whether a transaction was committed, and logs when that changes.
    pub(super) fn note_outcome(&self, failed: Option<StoreError>) {
        if failed.is_none() && self.failed.load().is_none() {
            return;
        }
        let mut log = self.failure_log.lock();
        match &failed {
            Some(error) if log.failed(Instant::now()) => tracing::error!(
                %error, "the database cannot be written: no request is charged or served until it can"
            ),
            None if log.succeeded() => {
                tracing::info!(path = %self.path.display(), "the database is written again");
            }
            Some(_) | None => {}
        }
        self.failed.store(failed.map(Arc::new));
    }

    /// Fails if the file cannot be used.
    pub(super) fn require_file(&self) -> Result<(), StoreError> {
        self.file.as_ref().map_or(Ok(()), |file| file.require())
    }
}

/// The body of the writer thread: ends when the inbox is closed and all of it is written. If it ends otherwise, by a failure or a
/// panic, no caller is left waiting.
pub(super) fn run_to_the_end(connection: &Connection, desk: &Desk) {
    let _closing = Closing(desk);
    if let Err(error) = run(connection, desk) {
        tracing::error!(%error, "the store cannot write");
    }
}

struct Closing<'d>(&'d Desk);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        let ended = "the store was closed, or its writer failed: see the log";
        let ended = StoreError::Failed(ended.into());
        self.0.failed.store(Some(Arc::new(ended)));
        self.0.inbox.close();
        self.0.inbox.abandon();
    }
}

fn run(connection: &Connection, desk: &Desk) -> rusqlite::Result<()> {
    let mut statements = Statements::prepare(connection)?;
    // A failure is that of the first group too, which reports it.
    let _ = statements.prepare_counts();
    let (mut folder, mut uncounted) = (Folder::new(), UncountedRefusals::default());
    while let Some(mut taken) = desk.inbox.take(GROUP_MAX, folder.pause()) {
        let jobs = std::mem::take(&mut taken.jobs);
        uncounted.add(taken.uncounted_refusals);
        let size = taken.waiting.len();
        if size > 0 || !taken.refunds.is_empty() || !taken.refusals.is_empty() {
            match settle(&mut statements, desk, taken) {
                Ok(entries) => {
                    folder.note(entries);
                    desk.heard.store(true, Ordering::Release);
                    desk.note_outcome(None);
                    desk.dirty.store(true, Ordering::Release);
                }
                Err(error) => {
                    desk.note_outcome(Some(error));
                    std::thread::sleep(PAUSE_AFTER_FAILURE);
                }
            }
        }
        for job in jobs {
            job(connection);
            statements.look_again();
            desk.dirty.store(true, Ordering::Release);
        }
        let gathering = Instant::now();
        if desk.file_trouble().is_none() {
            fold(connection, desk, &mut folder, size);
        }
        if size >= GATHER_FROM {
            let rest = u32::try_from(size).map_or(GATHER_MAX, |size| GATHER_EACH * size);
            std::thread::sleep(rest.min(GATHER_MAX).saturating_sub(gathering.elapsed()));
        }
    }
    uncounted.log();
    Ok(())
}

/// Refused requests that the ledger lacks and that were not logged yet.
#[derive(Default)]
struct UncountedRefusals {
    requests: u64,
    failures: FailureLog,
}

impl UncountedRefusals {
    fn add(&mut self, requests: u64) {
        self.requests += requests;
        if self.requests > 0 && self.failures.failed(Instant::now()) {
            self.log();
        }
    }

    fn log(&mut self) {
        let requests = std::mem::take(&mut self.requests);
        if requests > 0 {
            tracing::warn!(
                requests,
                "the ledger lacks refused requests: refusals of too many keys and endpoints waited to be written"
            );
        }
    }
}

/// Moves some appended entries into the ledger while the writer would rest.
fn fold(connection: &Connection, desk: &Desk, folder: &mut Folder, size: usize) {
    match folder.turn(connection, size) {
        Ok(true) => desk.dirty.store(true, Ordering::Release),
        Ok(false) => {}
        Err(error) => {
            let error = failure(&desk.path, &error);
            tracing::error!(%error, "charges were not moved into the ledger; trying again");
        }
    }
}

/// Decides, writes and answers one group, and returns how many entries it has; an error has been sent to its waiting callers.
fn settle(
    statements: &mut Statements<'_>,
    desk: &Desk,
    taken: QueueBatch,
) -> Result<usize, StoreError> {
    let QueueBatch {
        mut waiting,
        refunds,
        refusals,
        uncounted_refusals: _,
        jobs: _,
    } = taken;
    let mut work = || {
        let now = || desk.clock.now();
        let mut group = Group::begin(statements, &desk.keys, desk.keeping, now)?;
        let done = refunds
            .iter()
            .try_for_each(|refund| group.refund(refund))
            .and_then(|()| {
                waiting
                    .iter_mut()
                    .try_for_each(|call| decide(&mut group, call))
            })
            .and_then(|()| group.refused(&refusals));
        match done {
            Ok(()) => group.commit(),
            Err(error) => {
                group.roll_back();
                Err(error)
            }
        }
    };
    let result = work();
    match result {
        Ok(committed) => {
            desk.inbox.note_written();
            desk.learnt.put(committed.counts, Instant::now());
            waiting.into_iter().for_each(|call| send_answer(call, desk));
            refunds
                .into_iter()
                .for_each(|refund| acknowledge_refund(refund, desk));
            Ok(committed.entries)
        }
        Err(error) => {
            let error = failure(&desk.path, &error);
            for call in waiting {
                match call {
                    WaitingCall::Charge(.., caller) => drop(caller.send(Err(error.clone()))),
                    WaitingCall::Used(.., caller) => drop(caller.send(Err(error.clone()))),
                }
            }
            desk.inbox.put_back(refunds, refusals);
            Err(error)
        }
    }
}

/// Rules on a call; one whose caller has left is passed over.
fn decide(group: &mut Group<'_, '_>, call: &mut WaitingCall) -> rusqlite::Result<()> {
    match call {
        WaitingCall::Charge(charge, ruling, caller) if !caller.is_closed() => {
            *ruling = Some(group.charge(charge)?);
        }
        WaitingCall::Used(key, day, used, caller) if !caller.is_closed() => {
            *used = Some(group.used(*key, *day)?);
        }
        WaitingCall::Charge(..) | WaitingCall::Used(..) => {}
    }
    Ok(())
}

/// Sends the result of a call of a committed group.
fn send_answer(call: WaitingCall, desk: &Desk) {
    match call {
        WaitingCall::Charge(charge, Some(ruling), caller) => {
            let decided = ruling
                .map(|decision| UnclaimedDecision::new(decision, desk.inbox.clone()))
                .map_err(|stored| other_calendar(&desk.path, charge.day, stored));
            // If the caller is gone, the decision is dropped, and a grant in it becomes a refund.
            let _ = caller.send(decided);
        }
        WaitingCall::Used(_, day, Some(used), caller) => {
            let _ = caller.send(used.map_err(|stored| other_calendar(&desk.path, day, stored)));
        }
        WaitingCall::Charge(_, None, _) | WaitingCall::Used(_, _, None, _) => {}
    }
}

fn acknowledge_refund(refund: Refund, desk: &Desk) {
    if let Some(caller) = refund.answer {
        let receipt = refund.receipt;
        if let Some(used) = desk.learnt.used(receipt.key, receipt.day) {
            let _ = caller.send(used);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::api_key::{KeyId, os_entropy};
    use crate::policy::calendar::{Calendar, Day};
    use crate::policy::key_record::tests::key_of;
    use crate::store::embedded::{Settings, open};
    use crate::store::{Charge, Decision, KeyEntry, NodeName, Receipt, Role, Store};
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn charges_and_changes_of_keys_are_to_be_forced_to_disk_in_the_next_interval() {
        let directory = tempfile::tempdir().unwrap();
        let settings = Settings::new(directory.path().join("touchline.db"));
        let role = Role::Gateway(NodeName("g".into()));
        let store = open(settings, role, "UTC", Clock::system()).await;
        let store = store.unwrap();
        let desk = &store.desk;
        // Ends the threads that force the log to disk and send heartbeats.
        desk.stop.signal();
        // Looks, as a job, at what the writer left after the work before it.
        let was_left_dirty = async || {
            let (caller, answer) = oneshot::channel();
            let writer = desk.clone();
            let look = move |_: &Connection| {
                let _ = caller.send(writer.dirty.swap(false, Ordering::AcqRel));
            };
            desk.inbox.put_job(Box::new(look)).unwrap();
            answer.await.unwrap()
        };
        was_left_dirty().await;
        let (_, record) = key_of("pro");
        let (record, _) = store.create_key(record).await.unwrap();
        assert!(was_left_dirty().await, "a change of a key");
        // The look itself was a job.
        while !desk.dirty.swap(false, Ordering::AcqRel) {
            std::thread::yield_now();
        }
        let calendar = Calendar::of_zone("UTC").unwrap();
        let charge = Charge {
            key: KeyEntry::new(record),
            day: calendar.day_at(store.now()).unwrap(),
            limit: 10,
            cost: 1,
            endpoint: "markets".into(),
        };
        let decided = store.charge(charge).await;
        let is_granted = matches!(decided, Ok(Decision::Granted { .. }));
        assert!(is_granted, "{decided:?}");
        assert!(was_left_dirty().await, "a charge");
    }

    #[tokio::test]
    async fn refunds_that_a_writer_which_panicked_left_are_still_counted_at_the_close() {
        let directory = tempfile::tempdir().unwrap();
        let settings = Settings::new(directory.path().join("touchline.db"));
        let store = open(settings, Role::Command, "UTC", Clock::system()).await;
        let store = store.unwrap();
        let (proceed, proceeds) = std::sync::mpsc::channel::<()>();
        let panics = move |_: &Connection| {
            let _ = proceeds.recv();
            panic!("a job that panics");
        };
        store.desk.inbox.put_job(Box::new(panics)).unwrap();
        while store.desk.inbox.has_jobs() {
            std::thread::yield_now();
        }
        let receipt = Receipt {
            key: KeyId::generate(&mut os_entropy),
            tier: "pro".parse().unwrap(),
            day: Day {
                date: "2026-11-21".parse().unwrap(),
                start: 0,
                end: 1,
            },
            endpoint: "markets".into(),
            units: 3,
        };
        store.give_back(receipt);
        proceed.send(()).unwrap();
        store.close(Duration::from_secs(10)).await;
        assert_eq!(store.desk.inbox.pending_refunds(), (1, 3));
    }
}
