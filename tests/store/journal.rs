//! The journal as the next process finds it: of each key's day, counts and ledger of one moment.
//!
//! A rule of SQLite's that refuses the rows of one table stands for a death, or a full disk, between two writes.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use rusqlite::Connection;
use touchline::clock::Clock;
use touchline::policy::calendar::{Calendar, Day};
use touchline::store::redis::{OutageSettings, RedisSettings, RedisStore, Servers, open};
use touchline::store::{KeyEntry, NodeName, RefusalReason, Role, Store, WithoutStore};

use crate::redis_server::RedisServer;
use crate::suite::{WholeLedger, ZONE, charge, charge_for, eventually, granted, issue};
use crate::topologies::patient;

const LIMIT: u64 = 1_000;
const JOURNAL: &str = "journal.db";
/// Intervals of the journal.
const OFTEN: Duration = Duration::from_millis(50);
const NEVER: Duration = Duration::from_secs(3_600);
/// The tables with the counts, and with the ledger.
const TABLES: [&str; 2] = ["counts", "sheets"];

async fn gateway(server: &RedisServer, directory: &Path, interval: Duration) -> Arc<RedisStore> {
    let outage = OutageSettings {
        journal_interval: interval,
        ..OutageSettings::of_journal(directory.join(JOURNAL))
    };
    let settings = RedisSettings {
        outage: Some(outage),
        ..patient(Servers::Url(server.url()))
    };
    let role = Role::Gateway(NodeName("gateway".into()));
    open(settings, role, ZONE, Clock::system()).await.unwrap()
}

async fn command(server: &RedisServer) -> Arc<dyn Store> {
    let settings = patient(Servers::Url(server.url()));
    open(settings, Role::Command, ZONE, Clock::system())
        .await
        .unwrap()
}

async fn issued(server: &RedisServer) -> Arc<KeyEntry> {
    issue(&command(server).await).await
}

/// The day that it is.
fn this_day() -> Day {
    Calendar::of_zone(ZONE)
        .unwrap()
        .day_at(Timestamp::now())
        .unwrap()
}

fn journal(directory: &Path) -> Connection {
    let journal = Connection::open(directory.join(JOURNAL)).unwrap();
    journal.busy_timeout(Duration::from_secs(5)).unwrap();
    journal
}

/// From now on no row can be put into a table of the journal; a condition may follow its name.
fn refuse(directory: &Path, table: &str) {
    let rule = format!(
        "CREATE TRIGGER refuse BEFORE INSERT ON {table} BEGIN SELECT RAISE(ABORT, 'refused'); END"
    );
    journal(directory).execute_batch(&rule).unwrap();
}

fn allow(directory: &Path) {
    let allow = "DROP TRIGGER refuse";
    journal(directory).execute_batch(allow).unwrap();
}

/// Units counted, and units in the ledger, by what the journal holds.
fn written(directory: &Path) -> (i64, i64) {
    let sums = "SELECT (SELECT coalesce(sum(ack), 0) FROM counts), (SELECT coalesce(sum(charged), 0) FROM sheets)";
    let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
    journal(directory).query_row(sums, [], read).unwrap()
}

/// Waits for the end of an interval of the journal that began after `since`: the last that is written is that the process lives.
async fn journaled_since(directory: &Path, since: Timestamp) {
    eventually("the journal's interval is over", async || {
        let seen = "SELECT max(seen) FROM processes";
        let seen: i64 = journal(directory)
            .query_row(seen, [], |row| row.get(0))
            .unwrap();
        (seen > since.as_second() + 1).then_some(())
    })
    .await;
}

/// What is used, what of it the ledger lacks, and what does not hold.
async fn proof(store: &RedisStore, key: &KeyEntry, day: Day) -> Option<(u64, i64, Vec<String>)> {
    let id = Some(key.record.id);
    let proofs = store.prove(day.date, day.date, id).await.ok()?;
    let proof = proofs.into_iter().next()?;
    Some((proof.usage.used, proof.usage.unattributed, proof.faults))
}

async fn flush(server: &RedisServer) {
    redis::cmd("FLUSHALL")
        .exec_async(&mut server.connect().await)
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_and_ledger_of_a_key_are_in_the_journal_together_or_not_at_all() {
    for table in TABLES {
        let (server, directory) = (RedisServer::start().await, tempfile::tempdir().unwrap());
        let (key, day) = (issued(&server).await, this_day());
        let store = gateway(&server, directory.path(), OFTEN).await;
        granted(store.charge(charge(&key, day, LIMIT, 4)).await);
        eventually("the journal has the first units", async || {
            (written(directory.path()) == (4, 4)).then_some(())
        })
        .await;
        refuse(directory.path(), table);
        for endpoint in ["markets", "insights"] {
            granted(
                store
                    .charge(charge_for(&key, day, LIMIT, 23, endpoint))
                    .await,
            );
        }
        journaled_since(directory.path(), Timestamp::now()).await;
        assert_eq!(written(directory.path()), (4, 4), "{table} refused");
        // The death of the process, and Redis loses all.
        drop(store);
        allow(directory.path());
        flush(&server).await;
        let next = gateway(&server, directory.path(), OFTEN).await;
        let output = eventually("the next process has settled the journal", async || {
            let output = proof(&next, &key, day).await;
            output.filter(|(used, unattributed, _)| *used > 0 && *unattributed <= 0)
        })
        .await;
        assert_eq!(output, (4, 0, Vec::new()), "{table} refused");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_charge_that_the_journal_rejects_is_refunded_in_the_ledger() {
    let (mut server, directory) = (RedisServer::start().await, tempfile::tempdir().unwrap());
    let (key, day) = (issued(&server).await, this_day());
    let store = gateway(&server, directory.path(), OFTEN).await;
    granted(store.charge(charge(&key, day, LIMIT, 4)).await);
    eventually("the journal has the first units", async || {
        (written(directory.path()) == (4, 4)).then_some(())
    })
    .await;
    refuse(directory.path(), "sheets WHEN new.charged > 4");
    server.kill();
    let rejected = store.charge(charge(&key, day, LIMIT, 3)).await;
    assert!(rejected.is_err(), "{rejected:?}");
    allow(directory.path());
    server.restart().await;
    eventually("Redis and the journal have the refund", async || {
        let usage = store.usage(day.date, day.date, None).await.ok()?;
        let totals = usage.first()?.endpoints.get("markets")?;
        let is_refunded = (totals.requests, totals.charged, totals.refunded) == (2, 7, 3);
        let is_proven = proof(&store, &key, day).await? == (4, 0, Vec::new());
        (is_refunded && is_proven && written(directory.path()) == (7, 7)).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_could_be_inherited_by_halves_only_is_inherited_whole_by_the_next() {
    for table in TABLES {
        let (server, directory) = (RedisServer::start().await, tempfile::tempdir().unwrap());
        let (key, day) = (issued(&server).await, this_day());
        let killed = gateway(&server, directory.path(), NEVER).await;
        granted(killed.charge(charge(&key, day, LIMIT, 25)).await);
        eventually("Redis has all of it", async || {
            let output = proof(&killed, &key, day).await?;
            (output == (25, 0, Vec::new())).then_some(())
        })
        .await;
        drop(killed);
        // The heir dies over it, or its disk is full. To open waits for the first attempts.
        refuse(directory.path(), table);
        let heir = gateway(&server, directory.path(), NEVER).await;
        drop(heir);
        allow(directory.path());
        assert_eq!(written(directory.path()), (0, 0), "{table} refused");
        let mut next = gateway(&server, directory.path(), NEVER).await;
        assert_eq!(written(directory.path()), (25, 25), "{table} refused");
        for half in TABLES {
            drop(next);
            let remove = format!("DELETE FROM {half}");
            journal(directory.path()).execute_batch(&remove).unwrap();
            next = gateway(&server, directory.path(), NEVER).await;
            assert_eq!(written(directory.path()), (25, 25), "{half} lost");
        }
        flush(&server).await;
        eventually("all of it is sent again", async || {
            let output = proof(&next, &key, day).await?;
            (output == (25, 0, Vec::new())).then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_journal_that_was_created_without_its_log_gets_one_when_it_is_opened() {
    let (server, directory) = (RedisServer::start().await, tempfile::tempdir().unwrap());
    let (key, day) = (issued(&server).await, this_day());
    let store = gateway(&server, directory.path(), OFTEN).await;
    store.close(Duration::from_secs(5)).await;
    drop(store);
    // As SQLite leaves a file if the disk is full for a moment while the file is switched to the log.
    eventually("the journal is closed", async || {
        let mode = "PRAGMA journal_mode = DELETE";
        let mode = journal(directory.path()).query_row(mode, [], |row| row.get::<_, String>(0));
        (mode.ok()? == "delete").then_some(())
    })
    .await;
    let store = gateway(&server, directory.path(), OFTEN).await;
    granted(store.charge(charge(&key, day, LIMIT, 4)).await);
    eventually("the journal has the units", async || {
        (written(directory.path()) == (4, 4)).then_some(())
    })
    .await;
    assert_eq!(store.health().without_store, WithoutStore::Serves);
}

/// Transactions in the log of the journal, beside which a connection must be open: the frames that end one have the size of the database in
/// their heads (SQLite's file format, section 4.1).
fn transactions(directory: &Path) -> usize {
    let log = std::fs::read(directory.join(format!("{JOURNAL}-wal"))).unwrap();
    let page: usize = u32::from_be_bytes(log[8..12].try_into().unwrap()) as usize;
    let ends = |frame: &&[u8]| frame.len() >= 8 && frame[4..8] != [0; 4];
    log[32..].chunks(24 + page).filter(ends).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interval_is_few_transactions_however_many_keys_it_is_of() {
    let (server, directory) = (RedisServer::start().await, tempfile::tempdir().unwrap());
    let command = command(&server).await;
    let mut keys = Vec::new();
    for _ in 0..100 {
        keys.push(issue(&command).await);
    }
    let (store, day) = (gateway(&server, directory.path(), NEVER).await, this_day());
    let reader = journal(directory.path());
    let read = || {
        reader.query_row("SELECT count(*) FROM sheets", [], |row| {
            row.get::<_, i64>(0)
        })
    };
    assert_eq!(read().unwrap(), 0);
    // No count changes with a refusal, so the day of each key is found in the ledger.
    for key in &keys {
        store.refused(key, day, &"markets".into(), RefusalReason::Tier);
    }
    let before = transactions(directory.path());
    store.close(Duration::from_secs(10)).await;
    assert_eq!(read().unwrap(), keys.len() as i64);
    let made = transactions(directory.path()) - before;
    assert!(made <= 8, "{made} transactions for {} keys", keys.len());
}
