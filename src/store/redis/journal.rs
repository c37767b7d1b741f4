//! The journal: what this node has counted, on its own disk.
//!
//! Absolute values per key, day and producer, so that writing, reading and telling them twice does no harm. Two things
//! are written: while Redis answers, every interval, the accounts and ledger sheets that changed; while it does not, each
//! unit before it is served. One thread owns the file and writes all that waits in one transaction, forced to disk
//! (`synchronous=FULL`) before anybody is answered. No keys, digests or customers are in it.
//!
//! Several processes of one machine may share it (two gateways during an upgrade): what the others served without Redis
//! and have not settled is taken off this process's allowance inside the same transaction that counts its own.
//! Each enters its name, which stays where it is killed: its successor reads its last counts from Redis (`inheritance`).
//!
//! Invariants: a count is never lowered; counts and sheets of a process on a key's day are written, told and dropped together,
//! the sheets no newer than the counts, so that whoever reads the journal after a death finds no unit in the ledger that was not
//! counted; and they are dropped only when the day is over and Redis is known to hold them as they are written here, or when
//! Redis would not keep them any more.

use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use super::home::Home;
use super::turns::Turns;
use crate::store::StoreError;
use crate::store::held_file::{HeldConnection, HeldFile, Purpose};

mod file;
mod processes;
mod rows;

use file::Unusable;
pub use file::facts;
pub use processes::{Lacking, Process};
pub use rows::{CountRow, Place, Rows, SheetRow, Written};

/// Errands that may wait; above, the journal has failed for whoever comes.
const WAITING_MAX: usize = 65_536;
/// Rows of one transaction, about: it may not last as long as another process of this journal waits for it (`file`).
const GROUP_ROWS: usize = 512;
/// Rows written without a pause, each in some 10 µs.
const ROWS_PER_TURN: u32 = 16;

type Done = Result<(), StoreError>;
type Told<T> = oneshot::Sender<Result<T, StoreError>>;

#[expect(
    clippy::large_enum_variant,
    reason = "the large one is the frequent one: boxing would cost each unit an allocation"
)]
enum Errand {
    Serve {
        count: CountRow,
        sheet: SheetRow,
        /// `None` without bound.
        allowance: Option<u64>,
        told: Told<Written>,
    },
    Note {
        rows: Rows,
        told: Told<()>,
    },
    Work(Box<dyn Work>),
}

impl Errand {
    fn rows(&self) -> usize {
        match self {
            Errand::Serve { .. } | Errand::Work(_) => 1,
            Errand::Note { rows, .. } => rows.counts.len() + rows.sheets.len(),
        }
    }
}

/// Something else to do in a transaction.
trait Work: Send {
    fn run(&mut self, connection: &Connection) -> rusqlite::Result<()>;
    fn told(self: Box<Self>, result: Result<(), StoreError>);
}

struct Asked<T, F> {
    work: F,
    result: Option<T>,
    told: Told<T>,
}

impl<T: Send, F: FnMut(&Connection) -> rusqlite::Result<T> + Send> Work for Asked<T, F> {
    fn run(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        self.result = Some((self.work)(connection)?);
        Ok(())
    }

    fn told(self: Box<Self>, result: Result<(), StoreError>) {
        let missing = || StoreError::Failed("the journal's thread did not answer".into());
        let Asked {
            result: done, told, ..
        } = *self;
        let _ = told.send(result.and_then(|()| done.ok_or_else(missing)));
    }
}

/// The journal of a gateway. Dropping it ends its thread when all is written.
pub struct Journal {
    errands: mpsc::Sender<Errand>,
    /// All producers of this process begin with this.
    process: String,
    trouble: Arc<Trouble>,
}

/// Why the last thing could not be written; none where it was.
type Trouble = ArcSwapOption<String>;

impl Journal {
    /// A journal at `path` for the store that `home` names. Where it cannot be opened its thread tries again and again;
    /// [`Journal::has_failed`] says so.
    ///
    /// # Errors
    /// [`StoreError::Failed`] where the file is another store's or another program's, with what to do.
    pub async fn start(path: PathBuf, home: Home, process: &str) -> Result<Journal, StoreError> {
        // Room is taken as it is needed: that of std's channel of this length is 20 MiB from the start.
        let (errands, taken) = mpsc::channel(WAITING_MAX);
        let trouble = Arc::new(Trouble::empty());
        let opened = {
            let (path, home) = (path.clone(), home.clone());
            tokio::task::spawn_blocking(move || file::open(&path, &home)).await
        };
        let connection = match opened {
            Ok(Ok(connection)) => Some(connection),
            Ok(Err(Unusable::Failed(_))) => None,
            Ok(Err(foreign @ Unusable::Foreign(_))) => return Err(foreign.into()),
            Err(error) => return Err(StoreError::Failed(format!("the journal: {error}"))),
        };
        let mut desk = Desk {
            path,
            home,
            connection: None,
            file: None,
            trouble: trouble.clone(),
        };
        if let Some(connection) = connection {
            // What keeps it from being held is found again with the first write, and told then.
            let _ = desk.hold(connection);
        }
        std::thread::Builder::new()
            .name("journal".into())
            .spawn(move || desk.run(taken))
            .map_err(|error| StoreError::Failed(format!("the journal's thread: {error}")))?;
        Ok(Journal {
            errands,
            process: process.to_owned(),
            trouble,
        })
    }

    /// Whether the last thing could not be written.
    pub fn has_failed(&self) -> bool {
        self.trouble.load().is_some()
    }

    /// Why it could not.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.load().as_deref().cloned()
    }

    fn send(&self, errand: Errand) {
        // The sender in an errand that is not taken is dropped, which tells whoever waits.
        if self.errands.try_send(errand).is_err() {
            let why = "the queue of the journal is full";
            self.trouble.store(Some(Arc::new(why.to_owned())));
        }
    }

    /// Writes a unit down that is to be served, if it fits the allowance. Does not wait: the answer comes when the group
    /// is on disk. Rows of one producer must be sent in the order of their values.
    pub fn serve(
        &self,
        count: CountRow,
        sheet: SheetRow,
        allowance: Option<u64>,
    ) -> oneshot::Receiver<Result<Written, StoreError>> {
        let (told, answer) = oneshot::channel();
        self.send(Errand::Serve {
            count,
            sheet,
            allowance,
            told,
        });
        answer
    }

    /// Writes down how the rows of a key's day are now, all of them or none. Does not wait: the answer comes when they are on disk.
    /// Rows of one producer must be sent in the order of their values.
    pub fn note(&self, rows: Rows) -> oneshot::Receiver<Done> {
        let (told, answer) = oneshot::channel();
        self.send(Errand::Note { rows, told });
        answer
    }

    /// Has the work done, also where nobody waits for what this answers.
    fn work<T, F>(&self, work: F) -> impl Future<Output = Result<T, StoreError>> + use<T, F>
    where
        T: Send + 'static,
        F: FnMut(&Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        let (told, answer) = oneshot::channel();
        let result = None;
        let work = Box::new(Asked { work, result, told });
        self.send(Errand::Work(work));
        async {
            let nobody = |_| Err(StoreError::Failed("the journal is closed or its queue is full".into()));
            answer.await.unwrap_or_else(nobody)
        }
    }

    /// Enters this process, at `now` (Unix seconds): whoever finds the name later knows that it lives, or was killed.
    pub async fn see(&self, now: i64) -> Result<(), StoreError> {
        let process = self.process.clone();
        self.work(move |connection| processes::see(connection, &process, now))
            .await
    }

    /// Takes this process off: everything is written.
    pub async fn leave(&self) -> Result<(), StoreError> {
        let process = self.process.clone();
        self.work(move |connection| processes::leave(connection, &process))
            .await
    }

    /// The other processes that write here, or did and were killed.
    pub async fn other_processes(&self) -> Result<Vec<Process>, StoreError> {
        let own = self.process.clone();
        self.work(move |connection| processes::others(connection, &own))
            .await
    }

    /// Takes processes off whose counts were read, but for those that have written since they were listed.
    pub async fn forget(&self, processes: Vec<Process>) -> Result<(), StoreError> {
        self.work(move |connection| processes::forget(connection, &processes))
            .await
    }

    /// What the journal lacks of counts of other processes that Redis holds.
    pub async fn lacking(&self, held: Vec<CountRow>) -> Result<Lacking, StoreError> {
        self.work(move |connection| processes::lacking(connection, &held))
            .await
    }

    /// Writes rows of other processes that Redis holds, all of them or none; no number is lowered. Whether the journal holds
    /// something of them that Redis does not.
    pub async fn inherit(&self, held: Rows) -> Result<bool, StoreError> {
        self.work(move |connection| processes::inherit(connection, &held))
            .await
    }

    /// Writes that this process lives at `now` (Unix seconds) and how many gateways do; drops what is no longer needed at
    /// `settled`, the same of a clock that can be relied on.
    pub async fn keep(&self, nodes: u64, now: i64, settled: Option<i64>) -> Done {
        let process = self.process.clone();
        self.work(move |connection| {
            rows::remember_nodes(connection, nodes)?;
            processes::see(connection, &process, now)?;
            let Some(settled) = settled else {
                return Ok(());
            };
            processes::drop_old(connection, settled)?;
            rows::drop_old(connection, settled)
        })
        .await
    }

    /// Has the file looked at, as each transaction does.
    pub async fn look(&self) -> Done {
        self.work(|_| Ok(())).await
    }

    /// The gateways that lived when this node last knew.
    pub async fn nodes(&self) -> Result<Option<u64>, StoreError> {
        self.work(rows::nodes).await
    }

    /// Units that earlier or other processes served without Redis and that it may not know.
    pub async fn untold_by_others(&self) -> Result<u64, StoreError> {
        let own = self.own();
        self.work(move |connection| rows::untold_by_others(connection, &own))
            .await
    }

    fn own(&self) -> String {
        format!("{}.*", self.process)
    }

    /// Some days of keys of which earlier and other processes have written, in order, after `last`, with all that they wrote.
    pub async fn days_of_others(
        &self,
        last: Option<Place>,
        most: usize,
    ) -> Result<Vec<(Place, Rows)>, StoreError> {
        let own = self.own();
        self.work(move |connection| rows::days_of_others(connection, &own, last, most))
            .await
    }

    /// Notes that Redis holds these rows; one that changed meanwhile stays as it is.
    pub async fn settled(&self, rows: Rows) -> Result<(), StoreError> {
        self.work(move |connection| {
            each(&rows.counts, |row| rows::settle_count(connection, row))?;
            each(&rows.sheets, |row| rows::settle_sheet(connection, row))
        })
        .await
    }
}

/// Does something with each row, not all in one turn.
fn each<R>(rows: &[R], write: impl Fn(&R) -> rusqlite::Result<()>) -> rusqlite::Result<()> {
    let mut turns = Turns::of(ROWS_PER_TURN);
    for row in rows {
        write(row)?;
        turns.step();
    }
    Ok(())
}

/// What the journal's thread owns.
struct Desk {
    path: PathBuf,
    home: Home,
    connection: Option<HeldConnection>,
    /// The file that was opened first.
    file: Option<Arc<HeldFile>>,
    trouble: Arc<Trouble>,
}

impl Desk {
    fn run(mut self, mut taken: mpsc::Receiver<Errand>) {
        loop {
            let Some(first) = taken.blocking_recv() else {
                return;
            };
            let mut rows = first.rows();
            let mut group = vec![first];
            while rows < GROUP_ROWS
                && let Ok(next) = taken.try_recv()
            {
                rows += next.rows();
                group.push(next);
            }
            let outcome = self.write(&mut group);
            let trouble = outcome.as_ref().err().map(StoreError::to_string);
            let failed = trouble.is_some();
            if self.trouble.swap(trouble.map(Arc::new)).is_some() != failed {
                match &outcome {
                    Ok(_) => {
                        tracing::info!(path = %self.path.display(), "the journal is written again")
                    }
                    Err(error) => tracing::error!(
                        path = %self.path.display(), %error,
                        "the journal cannot be written: nothing is served without Redis until it can"
                    ),
                }
            }
            tell(group, outcome);
        }
    }

    /// One transaction; what each unit came to, in order. Nothing is written, hence no unit served, unless the path leads to
    /// the file that is open.
    fn write(&mut self, group: &mut [Errand]) -> Result<Vec<Written>, StoreError> {
        self.look()?;
        let Some(connection) = &mut self.connection else {
            return Ok(Vec::new());
        };
        let result = write_group(connection, group);
        if result.is_err() {
            // It may have failed because of what became of the file.
            self.check_file()?;
            // A new connection finds out whether the file is of use again.
            self.close();
        }
        result.map_err(|error| StoreError::Failed(file::told(&self.path, &error)))
    }

    /// Looks at the file, and opens it where it is not open. Another file is never taken for it: what this process counted
    /// would be missing there.
    fn look(&mut self) -> Result<(), StoreError> {
        self.check_file()?;
        if self.connection.is_none() {
            let connection = file::open(&self.path, &self.home)?;
            self.hold(connection)?;
        }
        Ok(())
    }

    /// Fails where the path does not lead to the file that is open, or that is damaged.
    fn check_file(&self) -> Result<(), StoreError> {
        let trouble = self.file.as_ref().and_then(|file| file.look());
        trouble.map_or(Ok(()), |trouble| {
            if !trouble.is_damage && self.trouble.load().is_none() {
                self.fold_log();
            }
            Err(StoreError::Failed(trouble.text.clone()))
        })
    }

    fn hold(&mut self, connection: Connection) -> Result<(), StoreError> {
        let held = match &self.file {
            Some(file) => file.reopened().map(|()| file.clone()),
            None => HeldFile::hold(&self.path, Purpose::Journal).map(Arc::new),
        };
        let file = held.map_err(|error| {
            let path = self.path.display();
            StoreError::Failed(format!(
                "the journal {path} was removed or replaced: {error}"
            ))
        })?;
        self.file = Some(file.clone());
        self.connection = Some(HeldConnection::new(connection, Some(file)));
        Ok(())
    }

    /// Folds the log into the file, so that an operator who copies that has everything.
    fn fold_log(&self) {
        let fold = |connection: &Connection| {
            connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))
        };
        if let Some(Err(error)) = self.connection.as_deref().map(fold) {
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

fn write_group(
    connection: &mut Connection,
    group: &mut [Errand],
) -> rusqlite::Result<Vec<Written>> {
    let transaction =
        connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    let mut written = Vec::new();
    let mut turns = Turns::of(ROWS_PER_TURN);
    for errand in group {
        match errand {
            Errand::Serve {
                count,
                sheet,
                allowance,
                told: _,
            } => written.push(rows::serve(&transaction, count, sheet, *allowance)?),
            Errand::Note { rows, .. } => rows::write(&transaction, rows, &mut turns)?,
            Errand::Work(work) => work.run(&transaction)?,
        }
    }
    transaction.commit()?;
    Ok(written)
}

fn tell(group: Vec<Errand>, outcome: Result<Vec<Written>, StoreError>) {
    let mut written = outcome.as_ref().map(|written| written.iter());
    for errand in group {
        let failure = || match &outcome {
            Ok(_) => Ok(()),
            Err(error) => Err(StoreError::Failed(error.to_string())),
        };
        match errand {
            Errand::Serve { told, .. } => {
                let next = written.as_mut().ok().and_then(|written| written.next());
                let missing = || StoreError::Failed("the journal's thread did not answer".into());
                let answer = failure().and_then(|()| next.cloned().ok_or_else(missing));
                let _ = told.send(answer);
            }
            Errand::Note { told, .. } => drop(told.send(failure())),
            Errand::Work(work) => work.told(failure()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// What SQLite calls `synchronous=FULL`: each commit is on disk.
    const FULL: i64 = 2;

    #[tokio::test]
    async fn every_connection_of_the_journal_forces_each_commit_to_disk() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home {
            name: "cache:6379/0".into(),
            nodes: BTreeSet::new(),
        };
        let start = || Journal::start(directory.path().join("journal.db"), home.clone(), "node");
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
}
