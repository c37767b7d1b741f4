//! The cost of a decision while Redis is unavailable, journal included: `cargo bench --bench outage_decisions`. Figures, not a
//! verdict.
//!
//! 64 clients at once, first at the store itself, then through a gateway with HTTP/1.1 keep-alive connections. Redis is
//! killed first, so every charge is decided with the breaker open: counted, written to the journal, forced to disk, then
//! served. The journal is in the target directory: run it on the disk to be measured.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a measurement fails by panicking and prints what it found"
)]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use harness::client::Client;
use harness::redis::RedisServer;
use harness::{Protocol, Scene, Store as SceneStore};
use touchline::clock::Clock;
use touchline::policy::api_key::{ApiKey, KeyPrefix, os_entropy};
use touchline::policy::calendar::Day;
use touchline::policy::key_record::{Action, KeyRecord, LastChange};
use touchline::store::redis::{OutageSettings, RedisSettings, RedisStore, open};
use touchline::store::{Charge, Decision, KeyEntry, NodeName, Role, Store};

const CLIENTS: usize = 64;
const KEYS: usize = 100;
const LASTS: Duration = Duration::from_secs(5);
const LIMIT: u64 = 100_000_000;
const MARKETS: &str = "/api/v1/data/markets";

fn main() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(at_the_store(directory.path()));
    runtime.block_on(through_a_gateway());
}

async fn at_the_store(directory: &Path) {
    let mut server = RedisServer::start(directory, false, None).await;
    let settings = RedisSettings {
        timeout: Duration::from_secs(2),
        outage: Some(OutageSettings::of_journal(directory.join("journal.db"))),
        ..RedisSettings::of_url(server.url())
    };
    let role = Role::Gateway(NodeName("bench".into()));
    let store = open(settings, role, "UTC", Clock::system()).await.unwrap();
    let day = today();
    let keys: Vec<Arc<KeyEntry>> = (0..KEYS).map(|_| KeyEntry::new(record())).collect();
    for key in &keys {
        decided(&store, key, day).await;
    }
    server.kill9();
    while store.health().up {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let until = Instant::now() + LASTS;
    let mut clients = Vec::new();
    for client in 0..CLIENTS {
        let (store, keys) = (store.clone(), keys.clone());
        clients.push(tokio::spawn(async move {
            let mut took = Vec::new();
            for key in keys.iter().cycle().skip(client) {
                let asked = Instant::now();
                if asked >= until {
                    break;
                }
                decided(&store, key, day).await;
                took.push(asked.elapsed());
            }
            took
        }));
    }
    let mut took = Vec::new();
    for client in clients {
        took.extend(client.await.unwrap());
    }
    show("at the store", took);
}

async fn decided(store: &RedisStore, key: &Arc<KeyEntry>, day: Day) {
    let charge = Charge {
        key: key.clone(),
        day,
        limit: LIMIT,
        cost: 1,
        endpoint: "markets".into(),
    };
    let decision = store.charge(charge).await;
    assert!(
        matches!(decision, Ok(Decision::Granted { .. })),
        "{decision:?}"
    );
}

async fn through_a_gateway() {
    let mut scene = Scene::builder(env!("CARGO_BIN_EXE_touchline"))
        .store(SceneStore::Redis)
        .daily("starter", LIMIT)
        .start()
        .await;
    let mut keys = Vec::new();
    for _ in 0..10 {
        keys.push(scene.issue("starter").await);
    }
    let first = scene.client(Protocol::Http1);
    for key in &keys {
        assert_eq!(first.get(key, MARKETS).await.status, 200);
    }
    for away in [false, true] {
        if away {
            scene.redis.as_mut().unwrap().kill9();
            while scene.admin(0, "/readyz").await.1.contains("\"ready\"") {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        let until = Instant::now() + LASTS;
        let mut clients = Vec::new();
        for number in 0..CLIENTS {
            let client: Client = scene.client(Protocol::Http1);
            let keys = keys.clone();
            clients.push(tokio::spawn(async move {
                let mut took = Vec::new();
                for key in keys.iter().cycle().skip(number % keys.len()) {
                    let asked = Instant::now();
                    if asked >= until {
                        break;
                    }
                    assert_eq!(client.get(key, MARKETS).await.status, 200);
                    took.push(asked.elapsed());
                }
                took
            }));
        }
        let mut took = Vec::new();
        for client in clients {
            took.extend(client.await.unwrap());
        }
        let what = match away {
            false => "through a gateway, Redis there",
            true => "through a gateway, Redis away",
        };
        show(what, took);
    }
}

fn show(what: &str, mut took: Vec<Duration>) {
    took.sort_unstable();
    let at = |part: f64| {
        let place = (took.len() as f64 * part) as usize;
        took.get(place.min(took.len() - 1)).unwrap().as_secs_f64() * 1_000.0
    };
    println!(
        "{what}: {CLIENTS} clients, {} a second; p50 {:.2} ms, p99 {:.2} ms, p99.9 {:.2} ms, longest {:.2} ms",
        took.len() as u64 / LASTS.as_secs(),
        at(0.5),
        at(0.99),
        at(0.999),
        at(1.0)
    );
}

fn today() -> Day {
    let now = jiff::Timestamp::now().as_second();
    Day {
        date: "2026-11-21".parse().unwrap(),
        start: now - 3_600,
        end: now + 3_600,
    }
}

fn record() -> KeyRecord {
    let key = ApiKey::generate(&KeyPrefix::default(), &mut os_entropy);
    let (tier, now) = ("pro".parse().unwrap(), jiff::Timestamp::now());
    let issued = LastChange::first(Action::Issue, "tester@here");
    KeyRecord {
        version: 1,
        ..KeyRecord::new(&key, "Customer", tier, now, issued)
    }
}
