//! Charges by callers in flight, as the benches of both stores make them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use touchline::policy::api_key::{ApiKey, KeyPrefix, os_entropy};
use touchline::policy::calendar::Day;
use touchline::policy::key_record::{Action, KeyRecord, LastChange};
use touchline::store::{Charge, Decision, KeyEntry, Store};

const ENDPOINTS: [&str; 6] = [
    "/api/v1/data/markets",
    "/api/v1/data/predictions",
    "/api/v1/data/predictions/{fixture_id}",
    "/api/v1/data/insights",
    "/api/v1/data/sentiment",
    "/api/v1/data/rankings",
];

/// The numbers of a variable of the environment, separated by commas, or `otherwise`.
pub fn list(name: &str, otherwise: &[usize]) -> Vec<usize> {
    match std::env::var(name) {
        Ok(text) => text.split(',').map(|one| one.parse().unwrap()).collect(),
        Err(_) => otherwise.to_vec(),
    }
}

/// A runtime of one worker thread, as in the gateway.
pub fn runtime() -> tokio::runtime::Runtime {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(1).enable_all().build().unwrap()
}

/// Charges random keys; returns the duration of each charge.
pub async fn run(
    store: &Arc<dyn Store>,
    entries: &Arc<Vec<Arc<KeyEntry>>>,
    day: Day,
    in_flight: usize,
    charges: usize,
) -> Vec<Duration> {
    let endpoints = ENDPOINTS.map(Arc::<str>::from);
    let left = Arc::new(AtomicUsize::new(charges));
    let callers = (0..in_flight).map(|number| {
        let (store, entries, left) = (store.clone(), entries.clone(), left.clone());
        let endpoints = endpoints.clone();
        let mut random = fastrand::Rng::with_seed(number as u64 + 1);
        tokio::spawn(async move {
            let mut took = Vec::new();
            let take = |left: usize| left.checked_sub(1);
            while left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
                .is_ok()
            {
                let charge = Charge {
                    key: entries[random.usize(..entries.len())].clone(),
                    day,
                    limit: 1_000_000_000,
                    cost: 1,
                    endpoint: endpoints[random.usize(..endpoints.len())].clone(),
                };
                let started = Instant::now();
                let decision = store.charge(charge).await.unwrap();
                took.push(started.elapsed());
                assert!(matches!(decision, Decision::Granted { .. }), "{decision:?}");
            }
            took
        })
    });
    let mut took = Vec::new();
    for caller in callers.collect::<Vec<_>>() {
        took.extend(caller.await.unwrap());
    }
    took
}

/// A new key.
pub fn record() -> KeyRecord {
    let key = ApiKey::generate(&KeyPrefix::default(), &mut os_entropy);
    let (tier, now) = ("pro".parse().unwrap(), jiff::Timestamp::now());
    let issued = LastChange::first(Action::Issue, "tester@here");
    KeyRecord {
        version: 1,
        ..KeyRecord::new(&key, "Customer".to_owned(), tier, now, issued)
    }
}

/// User and system time of this process.
pub fn cpu() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}
