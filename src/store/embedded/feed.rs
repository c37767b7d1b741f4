//! Following the key table, sending heartbeats, forcing the log to disk, and watching for a disk that hangs: the store's helper threads.
//!
//! Every [`POLL`] or [`POLL_WHEN_QUIET`] the follower reads the last change on a connection of its own. For a gateway it sends a
//! heartbeat with the last applied change, at once when that moves on and each [`HEARTBEAT`] otherwise, through the writer, so that
//! a heartbeat also proves that the store writes; with each, a few rows are dropped that were kept long enough, and a few of a day
//! that is to be closed are digested. The checkpointer forces the write-ahead log to disk and folds it into the database, without
//! holding up the writer. The watch of a gateway uses no file, so it goes on while the others wait for a disk that does not return.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rusqlite::{Connection, Row};

use super::closing;
use super::retention::drop_old;
use super::schema::{failure, unanswered};
use super::writer::Desk;
use crate::store::clock_watch::LOOK_EVERY;
use crate::store::held_file::{Trouble, sync_log};
use crate::store::sqlite::{checkpoint, execute, refused, rows, unsigned};
use crate::store::status::GatewayFacts;
use crate::store::{NodeName, Unconfirmed};

/// How often the follower looks for changes, which the commands that make them wait for; charges check for themselves. A look
/// without a change takes one short read of the database.
const POLL: Duration = Duration::from_millis(50);
/// How often it looks if there was no change for [`QUIET_AFTER`].
const POLL_WHEN_QUIET: Duration = Duration::from_millis(200);
/// Commands often come in groups.
const QUIET_AFTER: Duration = Duration::from_secs(10);
/// How often a gateway sends a heartbeat.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// A gateway that was not heard of for this long (milliseconds) is dead: five heartbeats.
const DEAD_AFTER_MS: i64 = 5_000;
/// Dead gateways are forgotten after an hour, so that restarts do not fill the table.
const FORGOTTEN_AFTER_MS: i64 = 3_600_000;

const HEARTBEAT_ROW: &str = "REPLACE INTO gateways (name, applied, seen) VALUES (?1, ?2, ?3)";
const FORGET: &str = "DELETE FROM gateways WHERE abs(seen - ?1) > ?2";
const LEAVE: &str = "DELETE FROM gateways WHERE name = ?1";
const LAGGING: &str = "SELECT name FROM gateways WHERE applied < ?1 AND abs(seen - ?2) <= ?3
    ORDER BY name";
const LIVE: &str = "SELECT name, applied, seen FROM gateways WHERE abs(seen - ?1) <= ?2
    ORDER BY name";

/// The body of the follower thread.
pub(super) fn follow(connection: &Connection, desk: &Arc<Desk>) {
    let mut written = (desk.keys.applied(), Instant::now());
    let mut looked = Instant::now();
    let mut changed = Instant::now();
    while !desk.stop.sleep(match changed.elapsed() < QUIET_AFTER {
        true => POLL,
        false => POLL_WHEN_QUIET,
    }) {
        if !desk.heartbeat_queued.load(Ordering::Acquire) {
            desk.heard.store(true, Ordering::Release);
        }
        if desk.gateway.is_some() && looked.elapsed() >= LOOK_EVERY {
            looked = Instant::now();
            desk.clock_watch.look(desk.clock.now_and_since_boot());
            look_at_file(connection, desk);
        }
        if desk.file_trouble().is_some() {
            continue;
        }
        match desk.keys.catch_up(connection) {
            Ok(any) => {
                desk.current.note_current(Duration::ZERO);
                if any {
                    changed = Instant::now();
                }
            }
            Err(error) => {
                tracing::warn!(%error, "the changes of the key table could not be read");
                continue;
            }
        }
        let applied = desk.keys.applied();
        let due = applied != written.0 || written.1.elapsed() >= HEARTBEAT;
        if desk.gateway.is_some() && due && !desk.heartbeat_queued.load(Ordering::Acquire) {
            written = (applied, Instant::now());
            match closing::due(connection, desk.keeping, desk.clock.now()) {
                Ok(day) => desk.closing.lock().expect(day.is_some()),
                Err(error) => tracing::warn!(%error, "the days of the ledger could not be read"),
            }
            send_heartbeat(desk, applied);
        }
    }
}

/// The body of the watch, a thread of gateways: if the store was not heard of for longer than callers wait (`timeout`), it counts as
/// failed until a write succeeds. It counts looks, so a process that was stopped for a while has missed nothing.
/// It also logs that the checkpointer, which works each `interval`, does not return from the disk.
pub(super) fn watch(desk: &Desk, timeout: Duration, interval: Duration) {
    let forcing_max = timeout.max(interval.saturating_mul(2));
    let mut silent = Duration::ZERO;
    while !desk.stop.sleep(HEARTBEAT) {
        silent = match desk.heard.swap(false, Ordering::AcqRel) {
            true => Duration::ZERO,
            false => silent.saturating_add(HEARTBEAT),
        };
        if silent > timeout && desk.failed.load().is_none() {
            desk.note_outcome(Some(unanswered(&desk.path, timeout)));
        }
        let forcing = *desk.forcing.lock();
        if forcing.is_some_and(|since| since.elapsed() > forcing_max)
            && desk.forced_log.lock().failed(Instant::now())
        {
            tracing::warn!(
                path = %desk.path.display(),
                "the database could not be forced to disk within {forcing_max:?}; check the disk"
            );
        }
    }
}

/// Looks whether the file is still the one that is open, and logs what changed; why it is not.
fn look_at_file(connection: &Connection, desk: &Desk) -> Option<Arc<Trouble>> {
    let file = desk.file.as_ref()?;
    // Two threads look, and each change has one line.
    let mut logged = desk.file_logged.lock();
    let now = file.look();
    match &now {
        Some(trouble) if logged.as_ref() != Some(trouble) => {
            // A copy of the open file then has everything in it.
            if !trouble.is_damage
                && let Err(error) = checkpoint(connection)
            {
                tracing::warn!(%error, "the database could not be forced to disk");
            }
            tracing::error!("{}", trouble.text);
        }
        None if logged.is_some() => tracing::info!(
            path = %desk.path.display(),
            "the file is again the one that this gateway has open: charges go on"
        ),
        Some(_) | None => {}
    }
    logged.clone_from(&now);
    now
}

/// One heartbeat through the writer, unless the store is stopped before it is its turn.
fn send_heartbeat(desk: &Arc<Desk>, applied: i64) {
    desk.heartbeat_queued.store(true, Ordering::Release);
    let writer = desk.clone();
    let job = move |connection: &Connection| {
        if let Some(name) = &writer.gateway
            && !writer.stop.is_signalled()
            && writer.file_trouble().is_none()
        {
            // Where nothing can be written, each turn would only log once more that it failed.
            if writer.failed.load().is_none() {
                keep_days(connection, &writer);
            }
            let written = write_heartbeat(connection, name, applied);
            let failed = written.err().map(|error| failure(&writer.path, &error));
            writer.note_outcome(failed);
        }
        writer.heartbeat_queued.store(false, Ordering::Release);
    };
    if desk.inbox.put_job(Box::new(job)).is_err() {
        desk.heartbeat_queued.store(false, Ordering::Release);
    }
}

/// Drops a few rows that were kept long enough, and digests a few of a day that is to be closed.
fn keep_days(connection: &Connection, desk: &Desk) {
    if let Some(now) = desk.clock_watch.settled_at()
        && let Err(error) = drop_old(connection, desk.keeping, now)
    {
        tracing::warn!(%error, "old days of the ledger could not be dropped");
    }
    let now = desk.clock.now();
    let turn = desk.closing.lock().turn(connection, desk.keeping, now);
    if let Err(error) = turn {
        tracing::warn!(%error, "a day of the ledger could not be closed; trying again");
    }
}

/// Writes that a gateway lives and has applied the changes up to a place.
pub(super) fn write_heartbeat(
    connection: &Connection,
    name: &NodeName,
    applied: i64,
) -> rusqlite::Result<()> {
    execute(connection, HEARTBEAT_ROW, (&name.0, applied, now_ms())).map(drop)
}

/// Forgets gateways that have been dead for long.
pub(super) fn forget_the_dead(connection: &Connection) -> rusqlite::Result<()> {
    execute(connection, FORGET, (now_ms(), FORGOTTEN_AFTER_MS)).map(drop)
}

/// Takes a gateway off the list.
pub(super) fn leave(connection: &Connection, name: &NodeName) -> rusqlite::Result<()> {
    execute(connection, LEAVE, [&name.0]).map(drop)
}

/// The live gateways that have not applied the change at a place.
pub(super) fn lagging(connection: &Connection, place: i64) -> rusqlite::Result<Vec<Unconfirmed>> {
    let unconfirmed = |row: &Row<'_>| {
        Ok(Unconfirmed {
            name: NodeName(row.get(0)?),
            silent_since: None,
        })
    };
    let behind = (place, now_ms(), DEAD_AFTER_MS);
    rows(connection, LAGGING, behind, unconfirmed)
}

/// The live gateways, in the order of their names. One that has applied the `last` change does not lag.
pub(super) fn live(connection: &Connection, last: u64) -> rusqlite::Result<Vec<GatewayFacts>> {
    let now = now_ms();
    let facts = |row: &Row<'_>| {
        let applied = unsigned(row.get(1)?);
        let age = Duration::from_millis(unsigned(now - row.get::<_, i64>(2)?));
        Ok(GatewayFacts {
            name: row.get(0)?,
            heartbeat_age_seconds: age.as_secs_f64(),
            applied: Some(applied.to_string()),
            lag_seconds: (applied >= last).then_some(0.0),
            ..GatewayFacts::default()
        })
    };
    rows(connection, LIVE, (now, DEAD_AFTER_MS), facts)
}

/// Unix milliseconds of the system's clock: processes on one machine compare them, so no injected clock is used.
fn now_ms() -> i64 {
    Timestamp::now().as_millisecond()
}

/// Forces the commits so far to disk; by the path of the log only if that is known to be the one that is open.
pub(super) fn force_to_disk(
    connection: &Connection,
    path: &Path,
    is_in_place: bool,
) -> rusqlite::Result<()> {
    if is_in_place {
        sync_log(path).map_err(refused)?;
    }
    checkpoint(connection)
}

/// The body of the checkpointer thread.
pub(super) fn checkpoint_regularly(connection: &Connection, desk: &Desk, interval: Duration) {
    // A panic may have ended a round that had not forced everything to disk.
    desk.dirty.store(true, Ordering::Release);
    while !desk.stop.sleep(interval) {
        // A checkpoint would write pages into a file that was truncated, which would look whole again.
        let trouble = look_at_file(connection, desk);
        if trouble.as_ref().is_some_and(|trouble| trouble.is_damage) {
            continue;
        }
        if !desk.dirty.swap(false, Ordering::AcqRel) {
            continue;
        }
        *desk.forcing.lock() = Some(Instant::now());
        let forced = force_to_disk(connection, &desk.path, trouble.is_none());
        *desk.forcing.lock() = None;
        let mut log = desk.forced_log.lock();
        match forced {
            Ok(()) if log.succeeded() => {
                tracing::info!(path = %desk.path.display(), "the database is forced to disk again");
            }
            Ok(()) => {}
            Err(error) => {
                desk.dirty.store(true, Ordering::Release);
                if log.failed(Instant::now()) {
                    tracing::warn!(%error, "the database could not be forced to disk; trying again");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::store::Role;
    use crate::store::embedded::{Durability, Settings, open};
    use crate::store::held_file::beside;

    #[tokio::test]
    async fn what_was_not_forced_to_disk_because_of_a_panic_is_forced_without_another_write() {
        let directory = tempfile::tempdir().unwrap();
        let settings = Settings::new(directory.path().join("touchline.db"));
        let store = open(settings, Role::Command, "UTC", Clock::system()).await;
        let desk = store.unwrap().desk.clone();
        desk.stop.signal();
        // The state in which a panic while the database is forced to disk leaves it.
        desk.dirty.store(false, Ordering::Release);
        let connection = Connection::open_in_memory().unwrap();
        checkpoint_regularly(&connection, &desk, Duration::ZERO);
        assert!(desk.dirty.load(Ordering::Acquire));
    }

    #[tokio::test]
    async fn what_could_not_be_forced_to_disk_is_forced_without_another_write() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("touchline.db");
        let settings = Settings {
            // The store itself does not try while the test runs.
            durability: Durability::Interval(Duration::from_secs(3_600)),
            ..Settings::new(&path)
        };
        let store = open(settings, Role::Command, "UTC", Clock::system()).await;
        let store = store.unwrap();
        std::fs::remove_file(beside(&path, "-wal")).unwrap();
        let desk = store.desk.clone();
        let checkpointer = std::thread::spawn(move || {
            let connection = Connection::open_in_memory().unwrap();
            checkpoint_regularly(&connection, &desk, Duration::ZERO);
        });
        // It takes a failure that was logged.
        while !store.desk.forced_log.lock().succeeded() {
            std::thread::yield_now();
        }
        store.desk.stop.signal();
        checkpointer.join().unwrap();
        assert!(store.desk.dirty.load(Ordering::Acquire));
    }
}
