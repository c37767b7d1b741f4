//! The size of keys and their days in Redis, and of a journal on disk: `cargo bench --bench redis_memory`. Figures, not a
//! verdict.
//!
//! Makes keys as `touchline keys issue` does and charges each on three endpoints, by one gateway and then by two more, and
//! asks Redis for its memory after each step. Charges and ledger are the real ones; a day is one key's data of a
//! day, which does not depend on the number of its calls.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a measurement fails by panicking and prints what it found"
)]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use harness::RedisServer;
use touchline::clock::Clock;
use touchline::policy::api_key::{ApiKey, KeyPrefix, os_entropy};
use touchline::policy::calendar::{Calendar, Day};
use touchline::policy::key_record::{Action, KeyRecord, LastChange};
use touchline::store::redis::{OutageSettings, RedisSettings, RedisStore, open};
use touchline::store::{Charge, Decision, KeyEntry, NodeName, Role, Store};

const KEYS: usize = 10_000;
const GATEWAYS: usize = 3;
const ENDPOINTS: [&str; 3] = [
    "/api/v1/data/markets",
    "/api/v1/data/predictions",
    "/api/v1/data/insights",
];
const AT_ONCE: usize = 64;
const PATIENCE: Duration = Duration::from_secs(60);

fn main() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(measure());
}

async fn measure() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let server = RedisServer::start(directory.path(), false, None).await;
    let client = redis::Client::open(server.url()).unwrap();
    let mut redis = client.get_multiplexed_async_connection().await.unwrap();
    let settings = RedisSettings {
        timeout: Duration::from_secs(5),
        ..RedisSettings::of_url(server.url())
    };
    let command = open(settings.clone(), Role::Command, "UTC", Clock::system());
    let command = command.await.unwrap();
    let empty = used_memory(&mut redis).await;
    let mut keys = Vec::new();
    for _ in 0..KEYS {
        let (record, _) = command.create_key(record()).await.unwrap();
        keys.push(KeyEntry::new(record));
    }
    let mut before = used_memory(&mut redis).await;
    let feed = memory_of(&mut redis, "touchline:feed").await;
    println!(
        "{KEYS} keys: {} bytes of Redis each, {} of them its entry in the feed",
        (before - empty) / KEYS as u64,
        feed / KEYS as u64
    );
    for number in 1..=GATEWAYS {
        let own = directory.path().join(number.to_string());
        charge_all(&settings, &own, &keys).await;
        let after = used_memory(&mut redis).await;
        println!(
            "  a key-day, gateway {number}, {} endpoints: {} bytes more",
            ENDPOINTS.len(),
            after.saturating_sub(before) / KEYS as u64
        );
        before = after;
    }
}

/// The data of one gateway for a day on which every key called it.
async fn charge_all(settings: &RedisSettings, directory: &Path, keys: &[Arc<KeyEntry>]) {
    let journal = directory.join("journal.db");
    let settings = RedisSettings {
        outage: Some(OutageSettings::of_journal(&journal)),
        ..settings.clone()
    };
    let role = Role::Gateway(NodeName(directory.display().to_string()));
    let store = open(settings, role, "UTC", Clock::system()).await.unwrap();
    for some in keys.chunks(AT_ONCE) {
        let mut charging = tokio::task::JoinSet::new();
        for key in some {
            for endpoint in ENDPOINTS {
                charging.spawn(charged(store.clone(), key.clone(), endpoint));
            }
        }
        charging.join_all().await;
    }
    store.close(PATIENCE).await;
    let bytes: u64 = ["journal.db", "journal.db-wal"]
        .map(|name| std::fs::metadata(directory.join(name)).map_or(0, |file| file.len()))
        .iter()
        .sum();
    println!(
        "  the journal of a gateway that saw {} keys on {} endpoints: {bytes} bytes, {} a key-day",
        keys.len(),
        ENDPOINTS.len(),
        bytes / keys.len() as u64
    );
}

async fn charged(store: Arc<RedisStore>, key: Arc<KeyEntry>, endpoint: &'static str) {
    let charge = Charge {
        key,
        day: today(),
        limit: 1_000,
        cost: 1,
        endpoint: endpoint.into(),
    };
    let decision = store.charge(charge).await;
    assert!(
        matches!(decision, Ok(Decision::Granted { .. })),
        "{decision:?}"
    );
}

async fn used_memory(redis: &mut redis::aio::MultiplexedConnection) -> u64 {
    let text: String = redis::cmd("INFO")
        .arg("memory")
        .query_async(redis)
        .await
        .unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("used_memory:"));
    line.unwrap().trim().parse().unwrap()
}

async fn memory_of(redis: &mut redis::aio::MultiplexedConnection, name: &str) -> u64 {
    redis::cmd("MEMORY")
        .arg("USAGE")
        .arg(name)
        .arg("SAMPLES")
        .arg(0)
        .query_async(redis)
        .await
        .unwrap()
}

fn today() -> Day {
    let calendar = Calendar::of_zone("UTC").unwrap();
    calendar.day_at(jiff::Timestamp::now()).unwrap()
}

fn record() -> KeyRecord {
    let key = ApiKey::generate(&KeyPrefix::default(), &mut os_entropy);
    let (tier, now) = ("pro".parse().unwrap(), jiff::Timestamp::now());
    let issued = LastChange::first(Action::Issue, "tester@here");
    KeyRecord {
        label: Some("backend".into()),
        ..KeyRecord::new(&key, "A customer with a name", tier, now, issued)
    }
}
