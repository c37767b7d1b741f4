//! The journal: this node's counts, on its own disk.
//!
//! Its values are absolute per key, day and producer, so that writing, reading or sending them twice does no harm. While Redis
//! answers, the changed accounts and totals of the ledger are written every interval; while it does not, each unit is written
//! before it is served. One thread owns the file and writes all queued jobs in one transaction, forced to disk
//! (`synchronous=FULL`) before any of them is answered. The file contains no keys, digests or customers.
//!
//! Several processes of one machine may share it (two gateways during an upgrade): the unsettled units that the others served
//! without Redis reduce this process's allowance, in the same transaction that counts its own. Each process enters its name,
//! which remains if it is killed: its successor reads its last counts from Redis (`recovery`).
//!
//! Invariants: a count is never lowered; the counts and totals of a process on a key's day are written, sent and dropped
//! together, the totals no newer than the counts, so that after a crash the journal has no unit in the ledger that was not
//! counted; they are dropped only when the day is over and Redis is known to have the same values, or when Redis would not keep
//! them any more.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use parking_lot::{Mutex, MutexGuard};
use rusqlite::Connection;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

use super::identity::StoreIdentity;
use crate::policy::failure_log::FailureLog;
use crate::store::held_file::{FilePurpose, HeldConnection, HeldFile};
use crate::store::sqlite::{checkpoint, is_damage};
use crate::store::{StoreError, on_thread};

mod file;
pub mod processes;
mod rows;

pub use file::facts;
use rows::LeftOut;
pub use rows::{CountRow, DateAndKey, JournalRows, ServeOutcome, TotalsRow};

/// The most queued jobs; beyond, the journal counts as failed.
const WAITING_MAX: usize = 65_536;
/// The approximate rows of one transaction, which must end before another process of this journal stops waiting (`file`).
const GROUP_ROWS: usize = 512;
/// Rows, each written in some 10 µs, after which the thread yields, once the job that wrote them has ended. Its core may also serve requests:
/// yielding often makes a request wait for a fraction of a millisecond, not for the end of the kernel's time slice (about 4 ms).
const ROWS_PER_TURN: usize = 16;

type JobReply<T> = oneshot::Receiver<Result<T, StoreError>>;

/// Which rows are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowsOf {
    /// Those of earlier and other processes.
    Others,
    /// These, and the counts of this process.
    OthersAndOwnCounts,
}

/// Work on the file in a transaction with others, and its reply.
trait Job: Send {
    /// The approximate number of rows that it writes.
    fn rows(&self) -> usize;
    fn run(&mut self, connection: &Connection) -> rusqlite::Result<()>;
    /// Replies after the transaction.
    fn finish(self: Box<Self>, result: Result<(), StoreError>);
}

struct Query<T, F> {
    rows: usize,
    work: F,
    result: Option<T>,
    reply: oneshot::Sender<Result<T, StoreError>>,
}

impl<T: Send, F: FnMut(&Connection) -> rusqlite::Result<T> + Send> Job for Query<T, F> {
    fn rows(&self) -> usize {
        self.rows
    }

    fn run(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        self.result = Some((self.work)(connection)?);
        Ok(())
    }

    fn finish(self: Box<Self>, result: Result<(), StoreError>) {
        let no_result = || StoreError::Failed("the journal's thread did not answer".into());
        let done = self.result.ok_or_else(no_result);
        let _ = self.reply.send(result.and(done));
    }
}

/// The journal of a gateway. Dropping it ends its thread when all is written.
pub struct Journal {
    jobs: mpsc::Sender<Box<dyn Job>>,
    /// Held while jobs of one transaction are queued.
    gathering: Arc<Mutex<()>>,
    /// The common prefix of this process's producers.
    process: String,
    state: Arc<JournalState>,
}

/// Whether the journal can be written. Its thread notes each outcome; a caller notes that the disk does not answer.
struct JournalState {
    path: PathBuf,
    trouble: ArcSwapOption<String>,
    log: Mutex<FailureLog>,
}

impl JournalState {
    /// Notes why the journal cannot be written, or that it was, and logs when that changes.
    fn note(&self, trouble: Option<String>) {
        let mut log = self.log.lock();
        let path = self.path.display();
        match &trouble {
            None if log.succeeded() => tracing::info!(%path, "the journal is written again"),
            Some(error) if log.failed(Instant::now()) => tracing::error!(
                %path, %error,
                "the journal cannot be written: nothing is served without Redis until it can"
            ),
            None | Some(_) => {}
        }
        self.trouble.store(trouble.map(Arc::new));
    }
}

impl Journal {
    /// A journal at `path` for the store `identity`. If it cannot be opened, its thread retries and [`Journal::has_failed`] is true.
    ///
    /// # Errors
    /// [`StoreError::Failed`], with the remedy, if the file belongs to another store or program.
    pub async fn start(
        path: PathBuf,
        identity: StoreIdentity,
        process: &str,
    ) -> Result<Journal, StoreError> {
        // This channel allocates as needed; std's channel of this length takes 20 MiB at once.
        let (jobs, taken) = mpsc::channel(WAITING_MAX);
        let gathering = Arc::new(Mutex::new(()));
        let (of_path, of_store) = (path.clone(), identity.clone());
        let state = Arc::new(JournalState {
            path,
            trouble: ArcSwapOption::empty(),
            log: Mutex::default(),
        });
        let open = move || file::open(&of_path, &of_store);
        let opened = on_thread("opening the journal", open).await?;
        let mut writer = JournalWriter {
            identity,
            connection: None,
            file: None,
            gathering: gathering.clone(),
            state: state.clone(),
        };
        if let Ok(connection) = opened {
            let connection = connection?;
            // A failure here recurs with the first write, which reports it.
            let _ = writer.hold(connection);
        }
        std::thread::Builder::new()
            .name("journal".into())
            .spawn(move || writer.run(taken))
            .map_err(|error| StoreError::Failed(format!("the journal's thread: {error}")))?;
        Ok(Journal {
            jobs,
            gathering,
            process: process.to_owned(),
            state,
        })
    }

    /// Whether the last write failed, or hangs.
    pub fn has_failed(&self) -> bool {
        self.state.trouble.load().is_some()
    }

    /// Why the last write failed, or `None` if it succeeded.
    pub fn trouble(&self) -> Option<String> {
        self.state.trouble.load().as_deref().cloned()
    }

    /// Notes that the thread has not answered for `waited`: until it does, the journal counts as failed.
    pub fn note_hang(&self, waited: Duration) {
        let path = self.state.path.display();
        let why = format!("the journal {path} did not answer within {waited:?}; check its disk");
        self.state.note(Some(why));
    }

    /// Journals units that are to be served, if they fit the allowance. Does not wait: the receiver gets the result when the group
    /// is on disk. Rows of one producer must be sent in the order of their values.
    pub fn serve(
        &self,
        count: CountRow,
        totals: TotalsRow,
        allowance: Option<u64>,
    ) -> JobReply<ServeOutcome> {
        self.queue(1, move |connection| {
            rows::serve(connection, &count, &totals, allowance)
        })
    }

    /// Until the guard is dropped, no transaction begins: what is queued meanwhile is written in as few as possible. It must not be
    /// held for long, since charges without Redis wait for it too.
    pub fn gather(&self) -> MutexGuard<'_, ()> {
        self.gathering.lock()
    }

    /// Writes the current rows of a key's day, all or none. Does not wait: the receiver gets the result when they are on disk.
    /// Rows of one producer must be sent in the order of their values.
    pub fn note(&self, rows: JournalRows) -> JobReply<()> {
        let count = rows.counts.len() + rows.totals.len();
        self.queue(count, move |connection| rows::write(connection, &rows))
    }

    fn queue<T, F>(&self, rows: usize, work: F) -> JobReply<T>
    where
        T: Send + 'static,
        F: FnMut(&Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let result = None;
        let job = Box::new(Query {
            rows,
            work,
            result,
            reply,
        });
        // A rejected job drops its sender, which ends the caller's wait.
        if let Err(rejected) = self.jobs.try_send(job) {
            let why = match rejected {
                TrySendError::Full(_) => "the queue of the journal is full",
                TrySendError::Closed(_) => "the journal's thread has ended",
            };
            self.state.note(Some(why.to_owned()));
        }
        answer
    }

    /// Queues the work, which is done even if the returned future is dropped.
    fn work<T, F>(&self, work: F) -> impl Future<Output = Result<T, StoreError>> + use<T, F>
    where
        T: Send + 'static,
        F: FnMut(&Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        let answer = self.queue(1, work);
        async {
            let no_reply = |_| {
                Err(StoreError::Failed(
                    "the journal is closed or its queue is full".into(),
                ))
            };
            answer.await.unwrap_or_else(no_reply)
        }
    }

    /// Checks the file, as each transaction does.
    pub async fn look(&self) -> Result<(), StoreError> {
        self.work(|_| Ok(())).await
    }

    /// The last known number of live gateways.
    pub async fn nodes(&self) -> Result<Option<u64>, StoreError> {
        self.work(rows::nodes).await
    }

    /// Units that earlier or other processes served without Redis and that may be missing from it.
    pub async fn unsettled_of_others(&self) -> Result<u64, StoreError> {
        let own = self.own();
        self.work(move |connection| rows::unsettled_but(connection, &own))
            .await
    }

    fn own(&self) -> String {
        format!("{}.*", self.process)
    }

    fn left_out(&self, rows: RowsOf) -> LeftOut {
        let counts = match rows {
            RowsOf::Others => self.own(),
            RowsOf::OthersAndOwnCounts => String::new(),
        };
        [counts, self.own()]
    }

    /// The next days of keys after `last`, `most` at most, that have such rows, with those rows.
    pub async fn days_with(
        &self,
        rows: RowsOf,
        last: Option<DateAndKey>,
        most: usize,
    ) -> Result<Vec<(DateAndKey, JournalRows)>, StoreError> {
        let left_out = self.left_out(rows);
        self.work(move |connection| rows::days_but(connection, &left_out, last, most))
            .await
    }

    /// These days of keys with such rows of theirs.
    pub async fn rows_on(
        &self,
        rows: RowsOf,
        days: Vec<DateAndKey>,
    ) -> Result<Vec<(DateAndKey, JournalRows)>, StoreError> {
        let left_out = self.left_out(rows);
        self.work(move |connection| rows::rows_but(connection, &left_out, days.iter().copied()))
            .await
    }

    /// Marks rows that Redis has; a row that changed meanwhile is not marked.
    pub async fn settled(&self, rows: JournalRows) -> Result<(), StoreError> {
        self.work(move |connection| {
            each(&rows.counts, |row| rows::settle_count(connection, row))?;
            each(&rows.totals, |row| rows::settle_totals(connection, row))
        })
        .await
    }
}

/// Calls `write` for each row, with pauses.
fn each<R>(rows: &[R], write: impl Fn(&R) -> rusqlite::Result<()>) -> rusqlite::Result<()> {
    for rows in rows.chunks(ROWS_PER_TURN) {
        rows.iter().try_for_each(&write)?;
        std::thread::yield_now();
    }
    Ok(())
}

/// The state of the journal's thread.
struct JournalWriter {
    identity: StoreIdentity,
    connection: Option<HeldConnection>,
    /// The file of the first opening.
    file: Option<Arc<HeldFile>>,
    /// See [`Journal::gather`].
    gathering: Arc<Mutex<()>>,
    state: Arc<JournalState>,
}

impl JournalWriter {
    fn run(mut self, mut taken: mpsc::Receiver<Box<dyn Job>>) {
        loop {
            let Some(first) = taken.blocking_recv() else {
                return;
            };
            drop(self.gathering.lock());
            let mut rows = first.rows();
            let mut group = vec![first];
            while rows < GROUP_ROWS
                && let Ok(next) = taken.try_recv()
            {
                rows += next.rows();
                group.push(next);
            }
            let outcome = self.write(&mut group);
            self.state
                .note(outcome.as_ref().err().map(StoreError::to_string));
            for job in group {
                job.finish(outcome.clone());
            }
        }
    }

    /// Runs one transaction, which leaves its outcome in each job. Nothing is written, hence no unit served, unless the path leads to
    /// the open file.
    fn write(&mut self, group: &mut [Box<dyn Job>]) -> Result<(), StoreError> {
        self.look()?;
        let Some(connection) = &mut self.connection else {
            return Ok(());
        };
        let is_doubted = self.state.trouble.load().is_some();
        let result = write_group(connection, group, is_doubted);
        if let Err(error) = &result {
            if let Some(file) = self.file.as_ref().filter(|_| is_damage(error)) {
                file.note_damage(error.to_string());
            }
            // The file itself may be the cause.
            self.check_file()?;
            // A new connection shows whether the file is usable again.
            self.close();
        }
        result.map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &rusqlite::Error) -> StoreError {
        StoreError::Failed(format!(
            "the journal {}: {error}",
            self.state.path.display()
        ))
    }

    /// Checks the file and opens it if it is closed. Another file is never accepted: it would lack this process's counts.
    fn look(&mut self) -> Result<(), StoreError> {
        self.check_file()?;
        if self.connection.is_none() {
            let opened = file::open(&self.state.path, &self.identity);
            self.hold(opened.map_err(|error| self.failed(&error))??)?;
        }
        Ok(())
    }

    /// Fails if the path does not lead to the open file, or if the file is damaged.
    fn check_file(&self) -> Result<(), StoreError> {
        let trouble = self.file.as_ref().and_then(|file| file.look());
        trouble.map_or(Ok(()), |trouble| {
            if !trouble.is_damage && self.state.trouble.load().is_none() {
                self.fold_log();
            }
            Err(StoreError::Failed(trouble.text.clone()))
        })
    }

    fn hold(&mut self, connection: Connection) -> Result<(), StoreError> {
        let held = match &self.file {
            Some(file) => file.reopened().map(|()| file.clone()),
            None => HeldFile::hold(&self.state.path, FilePurpose::Journal).map(Arc::new),
        };
        let file = held.map_err(|error| {
            let path = self.state.path.display();
            StoreError::Failed(format!(
                "the journal {path} was removed or replaced: {error}"
            ))
        })?;
        self.file = Some(file.clone());
        self.connection = Some(HeldConnection::new(connection, Some(file)));
        Ok(())
    }

    /// Folds the log into the file, so that an operator's copy of the file is complete.
    fn fold_log(&self) {
        if let Some(Err(error)) = self.connection.as_deref().map(checkpoint) {
            tracing::warn!(%error, "the log of the journal could not be folded into it");
        }
    }

    fn close(&mut self) {
        self.connection = None;
        if let Some(file) = &self.file {
            file.closed();
        }
    }
}

/// Runs the jobs in one transaction, which proves that there is room if that `is_doubted`: a group that only reads would show nothing.
fn write_group(
    connection: &mut Connection,
    group: &mut [Box<dyn Job>],
    is_doubted: bool,
) -> rusqlite::Result<()> {
    let transaction =
        connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    let mut rows = 0;
    for job in group {
        job.run(&transaction)?;
        rows += job.rows();
        if rows >= ROWS_PER_TURN {
            rows = 0;
            std::thread::yield_now();
        }
    }
    if is_doubted {
        rows::prove_room(&transaction)?;
    }
    transaction.commit()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// SQLite's number for `synchronous=FULL`: each commit is forced to disk.
    const FULL: i64 = 2;

    fn identity() -> StoreIdentity {
        StoreIdentity {
            name: "cache:6379/0".into(),
            nodes: BTreeSet::new(),
        }
    }

    #[tokio::test]
    async fn every_connection_of_the_journal_forces_each_commit_to_disk() {
        let (directory, identity) = (tempfile::tempdir().unwrap(), identity());
        let start = || {
            Journal::start(
                directory.path().join("journal.db"),
                identity.clone(),
                "node",
            )
        };
        let synchronous = async |journal: &Journal| {
            let ask = |connection: &Connection| {
                connection.pragma_query_value(None, "synchronous", |row| row.get::<_, i64>(0))
            };
            journal.work(ask).await.unwrap()
        };
        let made = start().await.unwrap();
        assert_eq!(synchronous(&made).await, FULL, "of a new file");
        let found = start().await.unwrap();
        assert_eq!(synchronous(&found).await, FULL, "of one that was there");
        let fails = |_: &Connection| Err::<(), _>(rusqlite::Error::InvalidQuery);
        found.work(fails).await.unwrap_err();
        assert_eq!(synchronous(&found).await, FULL, "after an error");
    }

    #[tokio::test]
    async fn a_journal_whose_queue_is_full_or_whose_thread_has_ended_has_its_line_in_the_log() {
        let (directory, identity) = (tempfile::tempdir().unwrap(), identity());
        let path = directory.path().join("journal.db");
        let journal = Journal::start(path, identity, "node").await.unwrap();
        let is_logged = || journal.state.log.lock().succeeded();
        let gathering = journal.gather();
        while journal.trouble().is_none() {
            drop(journal.note(JournalRows::default()));
        }
        assert_eq!(
            journal.trouble().unwrap(),
            "the queue of the journal is full"
        );
        assert!(is_logged());
        drop(gathering);
        let ended = "the journal's thread has ended";
        while journal.trouble().is_none_or(|trouble| trouble != ended) {
            let panics = |_: &Connection| -> rusqlite::Result<()> { panic!("a job that panics") };
            journal.work(panics).await.unwrap_err();
        }
    }

    #[test]
    fn a_journal_of_another_format_is_left_to_the_version_that_wrote_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal.db");
        let open = || file::open(&path, &identity()).unwrap().map(drop);
        open().unwrap();
        for (change, remedy) in [
            ("PRAGMA user_version = 9", "run the version that wrote it"),
            ("PRAGMA application_id = 9", "at a file of its own"),
        ] {
            let journal = Connection::open(&path).unwrap();
            journal.execute_batch(change).unwrap();
            let error = open().unwrap_err().to_string();
            assert!(error.contains(remedy), "{error}");
        }
    }

    #[tokio::test]
    async fn a_damaged_page_fails_the_journal_until_the_gateway_is_restarted() {
        let (directory, identity) = (tempfile::tempdir().unwrap(), identity());
        let path = directory.path().join("journal.db");
        let start = || Journal::start(path.clone(), identity.clone(), "node");
        let journal = start().await.unwrap();
        let damaged = |_: &Connection| {
            let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT);
            Err::<(), _>(rusqlite::Error::SqliteFailure(code, None))
        };
        journal.work(damaged).await.unwrap_err();
        // This one does not need the page.
        journal.look().await.unwrap_err();
        let trouble = journal.trouble().unwrap();
        for part in [path.to_str().unwrap(), "malformed", "remove the file"] {
            assert!(trouble.contains(part), "{part}: {trouble}");
        }
        start().await.unwrap().look().await.unwrap();
    }
}
