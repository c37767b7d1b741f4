//! Opening the store: the file is checked, the key table read, and the threads are started that keep both going.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use rusqlite::Connection;
use tokio::sync::watch;

use super::feed;
use super::handle::EmbeddedStore;
use super::inbox::Inbox;
use super::keys::Follower;
use super::learnt::Learnt;
use super::schema;
use super::stop::Stop;
use super::writer::{self, Desk};
use crate::clock::timer::Timers;
use crate::clock::{Clock, lasting};
use crate::policy::store_settings::Durability;
use crate::store::clock_watch::ClockWatch;
use crate::store::current::Current;
use crate::store::held_file::{FileIdentity, FilePurpose, HeldConnection, HeldFile};
use crate::store::{Keeping, NodeName, Role, StoreError, on_thread};

/// How often the log is folded into the database where every commit is synced anyway.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(1);
/// The shortest interval that syncing keeps to; for less, there is [`Durability::Commit`].
const INTERVAL_MIN: Duration = Duration::from_millis(10);

/// The location and behaviour of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The database file, on a local disk. The file and its directory are created if they are missing.
    pub path: PathBuf,
    /// When a commit is forced to disk.
    pub durability: Durability,
    /// How long a caller waits for a reply. Default: 5 s.
    pub timeout: Duration,
    /// When days of the ledger are closed and dropped.
    pub keeping: Keeping,
}

impl Settings {
    /// The defaults for a file.
    pub fn new(path: impl Into<PathBuf>) -> Settings {
        Settings {
            path: path.into(),
            durability: Durability::default(),
            timeout: Duration::from_secs(5),
            keeping: Keeping::default(),
        }
    }
}

/// Opens the store. `zone` is the time zone of the quota days; the first opening stores it.
///
/// # Errors
/// [`StoreError::OtherCalendar`] if the file was used with another zone; [`StoreError::Failed`] if it cannot be opened, is not a
/// database, or is another program's, damaged or of a newer version, each with the path and the remedy;
/// [`StoreError::Unavailable`] if another process keeps it locked.
pub async fn open(
    settings: Settings,
    role: Role,
    zone: &str,
    clock: Clock,
) -> Result<Arc<EmbeddedStore>, StoreError> {
    let zone = zone.to_owned();
    let work = move || open_blocking(settings, role, &zone, clock);
    on_thread("opening the store", work).await?.map(Arc::new)
}

/// Whether there is no database at `path`, or an empty file. One that this user may not look for is not missing: opening it names the
/// reason.
pub fn is_missing(path: &Path) -> bool {
    match path.metadata() {
        Ok(file) => file.len() == 0,
        Err(error) => error.kind() == ErrorKind::NotFound,
    }
}

/// Opens the store, which takes a gateway the time of reading all keys.
fn open_blocking(
    settings: Settings,
    role: Role,
    zone: &str,
    clock: Clock,
) -> Result<EmbeddedStore, StoreError> {
    let Settings {
        path,
        durability,
        timeout,
        keeping,
    } = settings;
    let is_new = is_missing(&path);
    let gateway = match role {
        Role::Gateway(name) => Some(name),
        Role::Command => None,
    };
    let (connections, file) = connect(&path, durability, zone, gateway.as_ref())?;
    let [writing, following, syncing, reading] = connections;
    let keys = Follower::new(gateway.is_some());
    if gateway.is_none() {
        schema::enlarge_cache(&writing).map_err(|error| schema::failure(&path, &error))?;
    }
    load(&writing, &keys, gateway.as_ref()).map_err(|error| schema::failure(&path, &error))?;
    if is_new {
        // Of a gateway: commands write no log.
        tracing::warn!(
            path = %path.display(),
            "created the database: it has no keys; if there were some, check store.embedded.path and that its disk is mounted"
        );
    }

    let connections = [writing, following, syncing];
    let (at_work, writing) = watch::channel(());
    let current = Current::never();
    current.note_current(Duration::ZERO);
    let store = EmbeddedStore {
        desk: Arc::new(Desk {
            path,
            clock_watch: ClockWatch::new(keeping.agreement, clock.now_and_since_boot()),
            clock,
            inbox: Arc::new(Inbox::default()),
            keys,
            learnt: Learnt::default(),
            keeping,
            closing: Mutex::default(),
            file,
            file_logged: Mutex::new(None),
            failed: ArcSwapOption::empty(),
            failure_log: Mutex::default(),
            dirty: AtomicBool::new(true),
            forcing: Mutex::default(),
            forced_log: Mutex::default(),
            gateway,
            current,
            heartbeat_queued: AtomicBool::new(false),
            heard: AtomicBool::new(true),
            stop: Stop::default(),
            goodbye: AtomicBool::new(false),
        }),
        durability,
        timeout,
        timers: Timers::default(),
        reader: Arc::new(Mutex::new(reading)),
        writing,
    };
    let interval = match durability {
        Durability::Commit => CHECKPOINT_INTERVAL,
        Durability::Interval(interval) => interval.max(INTERVAL_MIN),
    };
    store.start_threads(connections, interval, at_work)?;
    Ok(store)
}

/// The connections to the file, which is made if it is missing and prepared if it is new. A gateway holds the file.
fn connect(
    path: &Path,
    durability: Durability,
    zone: &str,
    gateway: Option<&NodeName>,
) -> Result<([HeldConnection; 4], Option<Arc<HeldFile>>), StoreError> {
    schema::create_file(path)?;
    let connect = || schema::connect(path, durability);
    let mut first = connect()?;
    schema::prepare(&mut first, path, zone)?;
    let opened = FileIdentity::at(path);
    let connections = [first, connect()?, connect()?, connect()?];
    let file = match gateway {
        Some(_) => Some(Arc::new(hold(path, opened)?)),
        None => None,
    };
    let held = |connection| HeldConnection::new(connection, file.clone());
    Ok((connections.map(held), file))
}

/// Holds the file that was opened first; it must be the one that the path leads to still.
fn hold(path: &Path, opened: io::Result<FileIdentity>) -> Result<HeldFile, StoreError> {
    let held = HeldFile::hold(path, FilePurpose::Database);
    match (held, opened) {
        (Ok(held), Ok(opened)) if held.is(opened) => Ok(held),
        (Ok(_), Ok(_)) => Err(StoreError::Unavailable(format!(
            "{} was replaced while it was being opened: start again",
            path.display()
        ))),
        (Err(error), _) | (_, Err(error)) => Err(StoreError::Unavailable(format!(
            "{} was removed while it was being opened: {error}",
            path.display()
        ))),
    }
}

/// Reads the key table. A gateway is on the list before it reads, so that no change slips in between unseen.
fn load(
    connection: &Connection,
    keys: &Follower,
    gateway: Option<&NodeName>,
) -> rusqlite::Result<()> {
    if let Some(name) = gateway {
        feed::forget_the_dead(connection)?;
        feed::write_heartbeat(connection, name, 0)?;
    }
    keys.catch_up(connection)?;
    if let Some(name) = gateway {
        feed::write_heartbeat(connection, name, keys.applied())?;
    }
    Ok(())
}

fn leave(connection: &Connection, desk: &Desk) {
    let trouble = desk.file_trouble();
    if trouble.as_ref().is_some_and(|trouble| trouble.is_damage) {
        return;
    }
    let left = match &desk.gateway {
        Some(name) => feed::leave(connection, name),
        None => Ok(()),
    };
    let forced = || feed::force_to_disk(connection, &desk.path, trouble.is_none());
    if let Err(error) = left.and_then(|()| forced()) {
        tracing::warn!(%error, "the store was closed without signing off or folding its log into the file");
    }
}

fn start(path: &Path, name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), StoreError> {
    std::thread::Builder::new()
        .name(name.into())
        .spawn(body)
        .map(|_| ())
        .map_err(|error| {
            StoreError::Failed(format!(
                "{}: no thread could be started: {error}",
                path.display()
            ))
        })
}

impl EmbeddedStore {
    /// Starts the writer, the follower of the key table and the checkpointer, each with its connection, and the watch of a gateway; they
    /// end when the store is stopped.
    fn start_threads(
        &self,
        [writing, following, syncing]: [HeldConnection; 3],
        interval: Duration,
        at_work: watch::Sender<()>,
    ) -> Result<(), StoreError> {
        let desk = self.desk.clone();
        start(&self.desk.path, "store-writer", move || {
            let _at_work = at_work;
            writer::run_to_the_end(&writing, &desk);
            if desk.goodbye.load(Ordering::Acquire) {
                leave(&writing, &desk);
            }
        })?;
        let desk = self.desk.clone();
        start(&self.desk.path, "store-feed", move || {
            lasting::thread("store-feed", || feed::follow(&following, &desk));
        })?;
        if self.desk.gateway.is_some() {
            let (desk, timeout) = (self.desk.clone(), self.timeout);
            start(&self.desk.path, "store-watch", move || {
                lasting::thread("store-watch", || feed::watch(&desk, timeout, interval));
            })?;
        }
        let desk = self.desk.clone();
        start(&self.desk.path, "store-sync", move || {
            lasting::thread("store-sync", || {
                feed::checkpoint_regularly(&syncing, &desk, interval);
            });
        })
    }
}
