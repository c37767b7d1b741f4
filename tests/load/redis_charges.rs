//! The cost of a charge for Redis: `cargo bench --locked --bench redis_charges`. Figures, not a verdict.
//!
//! A gateway's store with its journal on a `redis-server` of its own on loopback, on a runtime of one worker thread, as in the
//! gateway. Each row: a number of callers in flight at once, each of which charges a random key again as soon as it has its
//! answer. The gateway has two calls in flight at most, and callers share keys, so that a call is for a quarter to a half as many accounts as
//! there are callers: the default rows are calls for about 1, 4 and 14 accounts. The script's time is Redis's own sum for `EVALSHA` (`INFO
//! commandstats`); its CPU is all of the server's (`INFO cpu`): sockets, reading of requests, the ledger's totals and the upkeep
//! of the journal too. Each figure is the median of the rounds, with the first and the third quartile of the script's.
//! `CHARGES`, `KEYS`, `ROUNDS` and `IN_FLIGHT` set the rows (the last a list separated by commas).
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a measurement fails by panicking and prints what it found"
)]

use std::sync::Arc;
use std::time::Duration;

use harness::RedisServer;
use touchline::clock::Clock;
use touchline::policy::calendar::Calendar;
use touchline::store::redis::{OutageSettings, RedisSettings, open};
use touchline::store::{KeyEntry, NodeName, Role, Store};

mod charging;

use charging::{cpu, list, record, run, runtime};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const PATIENCE: Duration = Duration::from_secs(60);
/// The result of one round, for a charge.
#[derive(Clone, Copy)]
struct Round {
    script: f64,
    redis: f64,
    gateway: f64,
    accounts: f64,
}

/// The time that Redis and this process have used so far.
struct Used {
    calls: u64,
    script_micros: u64,
    redis: f64,
    gateway: Duration,
}

fn main() {
    runtime().block_on(measure());
}

async fn measure() {
    let charges = list("CHARGES", &[20_000])[0];
    let rounds = list("ROUNDS", &[12])[0];
    let in_flight = list("IN_FLIGHT", &[1, 9, 56]);
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let server = RedisServer::start(directory.path(), false, None).await;
    let client = redis::Client::open(server.url()).unwrap();
    let mut redis = client.get_multiplexed_async_connection().await.unwrap();
    let settings = RedisSettings {
        timeout: Duration::from_secs(5),
        outage: Some(OutageSettings::of_journal(
            directory.path().join("journal.db"),
        )),
        ..RedisSettings::of_url(server.url())
    };
    let role = Role::Gateway(NodeName("bench".into()));
    let store: Arc<dyn Store> = open(settings, role, "UTC", Clock::system()).await.unwrap();
    let mut entries = Vec::new();
    for _ in 0..list("KEYS", &[100])[0] {
        let (record, _) = store.create_key(record()).await.unwrap();
        entries.push(KeyEntry::new(record));
    }
    let entries = Arc::new(entries);
    let day = Calendar::of_zone("UTC").unwrap();
    let day = day.day_at(store.now()).unwrap();
    // The first charges of a day are not measured.
    run(&store, &entries, day, 16, 20 * entries.len()).await;
    let mut found: Vec<Vec<Round>> = vec![Vec::new(); in_flight.len()];
    for _ in 0..rounds {
        for (place, callers) in in_flight.iter().enumerate() {
            // Waiting for one answer at a time takes some hundred microseconds each.
            let charges = if *callers == 1 { charges / 5 } else { charges };
            let before = used(&mut redis).await;
            run(&store, &entries, day, *callers, charges).await;
            let after = used(&mut redis).await;
            let each = |micros: f64| micros / charges as f64;
            found[place].push(Round {
                script: each((after.script_micros - before.script_micros) as f64),
                redis: each((after.redis - before.redis) * 1e6),
                gateway: each((after.gateway - before.gateway).as_micros() as f64),
                accounts: charges as f64 / (after.calls - before.calls) as f64,
            });
        }
    }
    println!("in flight  accounts a call  script µs  (quartiles)  Redis CPU µs  gateway CPU µs");
    for (callers, rounds) in in_flight.iter().zip(&found) {
        let of = |share: f64, figure: fn(&Round) -> f64| quantile(rounds, share, figure);
        println!(
            "{callers:>9}  {:>15.1}  {:>9.2}  {:>5.2}-{:<5.2}  {:>12.2}  {:>14.2}",
            of(0.5, |round| round.accounts),
            of(0.5, |round| round.script),
            of(0.25, |round| round.script),
            of(0.75, |round| round.script),
            of(0.5, |round| round.redis),
            of(0.5, |round| round.gateway),
        );
    }
    store.close(PATIENCE).await;
}

fn quantile(rounds: &[Round], share: f64, figure: fn(&Round) -> f64) -> f64 {
    let mut figures: Vec<f64> = rounds.iter().map(figure).collect();
    figures.sort_unstable_by(f64::total_cmp);
    figures[((figures.len() - 1) as f64 * share).round() as usize]
}

async fn used(redis: &mut redis::aio::MultiplexedConnection) -> Used {
    let gateway = cpu();
    let text: String = redis::cmd("INFO")
        .arg("cpu")
        .arg("commandstats")
        .query_async(redis)
        .await
        .unwrap();
    let figure = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_default().trim().to_owned()
    };
    let scripts = figure("cmdstat_evalsha:");
    let of_scripts = |name: &str| {
        let figure = scripts.split(',').find_map(|one| one.strip_prefix(name));
        figure.unwrap().parse::<u64>().unwrap()
    };
    let seconds = |name: &str| figure(name).parse::<f64>().unwrap();
    Used {
        calls: of_scripts("calls="),
        script_micros: of_scripts("usec="),
        redis: seconds("used_cpu_user:") + seconds("used_cpu_sys:"),
        gateway,
    }
}
