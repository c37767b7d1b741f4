//! The cost of a charge in the embedded store: `cargo bench --locked --bench charges`. Figures, not a verdict.
//!
//! A gateway's store on a file of its own, on a runtime of one worker thread, as in the gateway. Each row: a number of callers in
//! flight at once, each of which charges a random key again as soon as it has its answer. CPU is user and system time of
//! the whole process; of it, the store's writer thread and its checkpointer. The last column is a reading of the whole day right
//! afterwards. `CHARGES`, `KEYS` and `IN_FLIGHT` set the rows (lists separated by commas).
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a measurement fails by panicking and prints what it found"
)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use touchline::clock::Clock;
use touchline::policy::calendar::Calendar;
use touchline::policy::key_record::KeyRecord;
use touchline::store::embedded::{Settings, open};
use touchline::store::{KeyEntry, NodeName, Role, Store, keys_at_once};

mod charging;

use charging::{cpu, list, record, run, runtime};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const PATIENCE: Duration = Duration::from_secs(120);
const BATCH: usize = 1_000;
fn main() {
    let charges = list("CHARGES", &[400_000])[0];
    println!(
        "keys  in flight  charges/s  CPU each  writer  sync  p50  p99  max (µs)  reading the day (ms)"
    );
    for keys in list("KEYS", &[100, 10_000, 100_000]) {
        for in_flight in list("IN_FLIGHT", &[1, 14, 64, 256]) {
            // Waiting for one answer at a time takes some hundred microseconds each.
            let charges = if in_flight == 1 {
                charges / 10
            } else {
                charges
            };
            runtime().block_on(measure(keys, in_flight, charges));
        }
    }
}

async fn measure(keys: usize, in_flight: usize, charges: usize) {
    let directory = tempfile::tempdir().unwrap();
    let settings = Settings {
        // An import beside other work on a slow disk takes its time.
        timeout: PATIENCE,
        ..Settings::new(directory.path().join("touchline.db"))
    };
    let role = Role::Gateway(NodeName("bench".into()));
    let store: Arc<dyn Store> = open(settings, role, "UTC", Clock::system()).await.unwrap();
    let entries = Arc::new(import(&store, keys).await);
    let day = Calendar::of_zone("UTC").unwrap();
    let day = day.day_at(store.now()).unwrap();
    // Each key once, so that a short run does not measure first times.
    let _ = run(&store, &entries, day, 256, keys).await;

    let (before, threads) = (cpu(), cpu_of_threads());
    let started = Instant::now();
    let mut took = run(&store, &entries, day, in_flight, charges).await;
    let elapsed = started.elapsed();
    let (after, threads_after) = (cpu(), cpu_of_threads());

    let each = |nanos: u64| nanos as f64 / 1_000.0 / charges as f64;
    let of_thread = |name: &str| {
        let [after, before] = [&threads_after, &threads].map(|all| all.get(name).copied());
        // A thread that has not run yet has no earlier time.
        each(after.unwrap_or(0).saturating_sub(before.unwrap_or(0)))
    };
    took.sort_unstable();
    let quantile = |share: f64| took[(took.len() as f64 * share) as usize].as_micros();
    let reading = Instant::now();
    let mut used = 0;
    let ids = store.ledger_keys(day.date, day.date).await.unwrap();
    for batch in ids.chunks(keys_at_once(day.date, day.date)) {
        let rows = store.usage_of(day.date, day.date, batch).await.unwrap();
        used += rows.iter().map(|row| row.used).sum::<u64>();
    }
    let reading = reading.elapsed();
    assert_eq!(used, (keys + charges) as u64, "each charge is counted once");
    println!(
        "{keys:>6}  {in_flight:>4}  {:>8.0}  {:>6.2}  {:>6.2}  {:>6.2}  {:>6} {:>6} {:>6}  {:>6.1}",
        charges as f64 / elapsed.as_secs_f64(),
        each(u64::try_from((after - before).as_nanos()).unwrap()),
        of_thread("store-writer"),
        of_thread("store-sync"),
        quantile(0.5),
        quantile(0.99),
        took.last().unwrap().as_micros(),
        reading.as_secs_f64() * 1_000.0,
    );
    store.close(PATIENCE).await;
}

async fn import(store: &Arc<dyn Store>, keys: usize) -> Vec<Arc<KeyEntry>> {
    let records: Vec<KeyRecord> = std::iter::repeat_with(record).take(keys).collect();
    for batch in records.chunks(BATCH) {
        store.import_keys(batch.to_vec()).await.unwrap();
    }
    let deadline = Instant::now() + PATIENCE;
    while store.keys().len() < keys {
        assert!(Instant::now() < deadline, "the key table is not read");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let ids = records.iter().map(|record| record.id);
    ids.map(|id| store.keys().get(id).unwrap()).collect()
}

/// The scheduler's run time of all threads of a name, in nanoseconds.
fn cpu_of_threads() -> BTreeMap<String, u64> {
    let mut threads = BTreeMap::new();
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let path = task.unwrap().path();
        let read = |name: &str| std::fs::read_to_string(path.join(name));
        // The thread has just ended.
        let (Ok(name), Ok(ran)) = (read("comm"), read("schedstat")) else {
            continue;
        };
        let ran: u64 = ran.split(' ').next().unwrap().parse().unwrap();
        *threads.entry(name.trim().to_owned()).or_default() += ran;
    }
    threads
}
