//! The cost of 100,000 keys for a gateway: `cargo bench --bench keys_replica`. Figures, not a verdict.
//!
//! Starts a redis-server of its own, fills it, and measures: loading from Redis (first through every name, then through
//! the index), loading from the saved replica without Redis, the memory of the table, how fast changes of the
//! feed are applied, and how long a start takes that reads the counts of a killed gateway.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a measurement fails by panicking and prints what it found"
)]

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use touchline::clock::Clock;
use touchline::policy::api_key::{ApiKey, KeyPrefix, os_entropy};
use touchline::policy::calendar::Calendar;
use touchline::policy::key_record::{Action, KeyRecord, LastChange};
use touchline::store::redis::{OutageSettings, RedisSettings, RedisStore, open};
use touchline::store::{NodeName, Role, Store};

const KEYS: usize = 100_000;
const BATCH: usize = 1_000;
const PATIENCE: Duration = Duration::from_secs(120);

fn main() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(measure());
}

async fn measure() {
    let directory = tempfile::tempdir().unwrap();
    let probe = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = probe.local_addr().unwrap().port();
    drop(probe);
    let mut server = Command::new("redis-server")
        .args([
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--port",
            &port.to_string(),
        ])
        .arg("--dir")
        .arg(directory.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let url = format!("redis://127.0.0.1:{port}/0");
    let client = redis::Client::open(url.as_str()).unwrap();
    let mut connection = loop {
        match client.get_multiplexed_async_connection().await {
            Ok(connection) => break connection,
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    };
    let records: Vec<KeyRecord> = (0..KEYS).map(record).collect();
    for batch in records.chunks(BATCH) {
        let mut pipeline = redis::pipe();
        for record in batch {
            let name = format!("touchline:k:{{{}}}", record.id);
            let packed = serde_json::to_string(record).unwrap();
            let fields = [("ver", record.version.to_string()), ("rec", packed)];
            pipeline.hset_multiple(name, &fields).ignore();
        }
        pipeline.exec_async(&mut connection).await.unwrap();
    }
    let profile = if cfg!(debug_assertions) {
        "dev"
    } else {
        "optimized"
    };
    println!("{KEYS} keys, profile {profile}");
    let settings = RedisSettings {
        timeout: Duration::from_secs(2),
        replica: Some(directory.path().join("keys.db")),
        ..RedisSettings::of_url(url)
    };

    let before = resident_kib();
    let first = opened(
        &settings,
        "from Redis, through every name, building the index",
    )
    .await;
    println!(
        "  memory: {} KiB more",
        resident_kib().saturating_sub(before)
    );
    let started = Instant::now();
    first.close(PATIENCE).await;
    println!("  saving the replica: {:?}", started.elapsed());
    drop(first);
    let unsaved = RedisSettings {
        replica: None,
        ..settings.clone()
    };
    let indexed = opened(&unsaved, "from Redis, through the index").await;
    apply_changes(&indexed, &records, &mut connection).await;
    drop(indexed);
    drop(
        opened(
            &settings,
            "from the saved replica, then all changes of the feed",
        )
        .await,
    );
    inherit(
        &settings,
        &directory.path().join("journal.db"),
        &records,
        &mut connection,
    )
    .await;
    server.kill().unwrap();
    server.wait().unwrap();
    drop(opened(&settings, "from the saved replica, without Redis").await);
}

/// Starts after a gateway was killed that had counted for every key, on a day on which three others had too.
async fn inherit(
    settings: &RedisSettings,
    journal: &Path,
    records: &[KeyRecord],
    connection: &mut redis::aio::MultiplexedConnection,
) {
    tracing_subscriber::fmt()
        .with_env_filter("touchline::store::redis::recovery=info")
        .with_ansi(false)
        .init();
    let settings = RedisSettings {
        outage: Some(OutageSettings::of_journal(journal)),
        ..settings.clone()
    };
    drop(opened(&settings, "with a journal, nobody was killed").await);
    let file = rusqlite::Connection::open(journal).unwrap();
    let sql = "SELECT process FROM processes";
    let killed: String = file.query_row(sql, [], |row| row.get(0)).unwrap();
    let day = Calendar::of_zone("UTC").unwrap();
    let day = day.day_at(jiff::Timestamp::now()).unwrap();
    for batch in records.chunks(BATCH) {
        let mut pipeline = redis::pipe();
        for (number, record) in batch.iter().enumerate() {
            let name = format!("touchline:q:{{{}}}:{}", record.id, day.date);
            let mut fields = vec![
                (format!("t{}-{}", day.start, day.end), "4".to_owned()),
                (format!("g{killed}.{number:x}"), "1".to_owned()),
            ];
            for other in 1..4 {
                fields.push((format!("g{other:024x}.{number:x}"), "1".to_owned()));
            }
            pipeline.hset_multiple(name, &fields).ignore();
        }
        pipeline.exec_async(connection).await.unwrap();
    }
    let next = opened(
        &settings,
        "after a kill, every count lacking in the journal",
    )
    .await;
    wait_until(|| counts(&file) == KEYS).await;
    drop(next);
    drop(opened(&settings, "after a kill, no count lacking").await);
}

fn counts(journal: &rusqlite::Connection) -> usize {
    let count: u32 = journal
        .query_row("SELECT count(*) FROM counts", [], |row| row.get(0))
        .unwrap();
    count as usize
}

/// Opens a gateway's store and waits until it has all keys.
async fn opened(settings: &RedisSettings, how: &str) -> Arc<RedisStore> {
    let started = Instant::now();
    let role = Role::Gateway(NodeName("bench".into()));
    let store = open(settings.clone(), role, "UTC", Clock::system());
    let store = store.await.unwrap();
    wait_until(|| store.keys().len() == KEYS && store.health().keys.loaded).await;
    println!("  {how}: {:?}", started.elapsed());
    store
}

/// Feeds one change of every key and waits until all are applied.
async fn apply_changes(
    store: &RedisStore,
    records: &[KeyRecord],
    connection: &mut redis::aio::MultiplexedConnection,
) {
    let started = Instant::now();
    for batch in records.chunks(BATCH) {
        let mut pipeline = redis::pipe();
        for record in batch {
            let changed = KeyRecord {
                version: 2,
                ..record.clone()
            };
            let packed = serde_json::to_string(&changed).unwrap();
            pipeline
                .cmd("XADD")
                .arg("touchline:feed")
                .arg("*")
                .arg("rec")
                .arg(packed);
        }
        pipeline.exec_async(connection).await.unwrap();
    }
    let last = records.last().unwrap().id;
    wait_until(|| store.keys().get(last).unwrap().record.version == 2).await;
    let rate = KEYS as f64 / started.elapsed().as_secs_f64();
    println!("  feed: {rate:.0} changes a second, writing them included");
}

async fn wait_until(ready: impl Fn() -> bool) {
    let started = Instant::now();
    while !ready() {
        assert!(started.elapsed() < PATIENCE, "not in {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn record(number: usize) -> KeyRecord {
    let key = ApiKey::generate(&KeyPrefix::default(), &mut os_entropy);
    let (tier, now) = ("pro".parse().unwrap(), jiff::Timestamp::now());
    let issued = LastChange::first(Action::Issue, "tester@here");
    KeyRecord {
        label: Some("backend".into()),
        version: 1,
        ..KeyRecord::new(&key, format!("Customer {number}"), tier, now, issued)
    }
}

/// The memory of this process, as the kernel counts it.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let words = line.unwrap().split_whitespace().next();
    words.unwrap().parse().unwrap()
}
