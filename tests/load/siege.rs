//! Attacks while honest clients call, one after the other and then all together: `make siege`.
//!
//! `IDLE` (10000) TLS connections that send nothing, `SLOW` (2000) heads of a byte a second, `GUESSING` (32) clients that try
//! out keys and `RESETTING` (8) that open and reset HTTP/2 streams, as fast as they can; from other addresses than the
//! `CLIENTS` (200) honest ones, each of which calls `CALLS` (8) times in each part. `TOUCHLINE` names another binary. Exits with
//! 1 if an honest client was not served, the ledgers do not agree or memory exceeds its bound.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a measurement fails by panicking and prints what it found"
)]

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use harness::siege::{Forces, Siege, honest};
use harness::{Allowances, Scene};

/// The default binary.
const BUILT: &str = env!("CARGO_BIN_EXE_touchline");
const PAUSE: Duration = Duration::from_millis(500);
const MIB: usize = 1024 * 1024;
/// The memory that an ordinary connection may cost, and a hostile one over HTTP/2.
const CONNECTION_BYTES_MAX: usize = 64 * 1024;
/// The memory beside connections: data that grows with their number, such as the counts of addresses, and pending log lines.
const OWN_BYTES_MAX: usize = 8 * MIB;
const HOSTILE_BYTES_MAX: usize = 4 * MIB;

fn main() -> ExitCode {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    match runtime.block_on(run()) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

fn number(name: &str, default: usize) -> usize {
    let text = std::env::var(name).unwrap_or_default();
    match text.is_empty() {
        true => default,
        false => text.parse().unwrap(),
    }
}

async fn run() -> bool {
    let all = Forces {
        idle: number("IDLE", 10_000),
        slow: number("SLOW", 2_000),
        guessing: number("GUESSING", 32),
        resetting: number("RESETTING", 8),
    };
    let (clients, calls) = (number("CLIENTS", 200), number("CALLS", 8));
    let binary = std::env::var("TOUCHLINE").unwrap_or_else(|_| BUILT.into());
    let mut scene = Scene::builder(binary)
        .daily("enterprise", 10_000_000)
        .spec(|spec| {
            // The honest ones share an address.
            spec.extra_yaml =
                "limits: { exempt_addresses: [127.0.0.1/32], keepalive_idle: 10m }".into();
        })
        .start()
        .await;
    let key = scene.issue("enterprise").await;
    let nobody = Forces::default();
    let parts = [
        ("nobody", nobody),
        (
            "idle TLS connections",
            Forces {
                idle: all.idle,
                ..nobody
            },
        ),
        (
            "slow heads",
            Forces {
                slow: all.slow,
                ..nobody
            },
        ),
        (
            "unknown keys",
            Forces {
                guessing: all.guessing,
                ..nobody
            },
        ),
        (
            "HTTP/2 resets",
            Forces {
                resetting: all.resetting,
                ..nobody
            },
        ),
        ("all of them", all),
    ];
    println!("{all:?}, {clients} honest clients");
    println!(
        "{:<22} {:>9} {:>8} {:>7} {:>9} {:>9} {:>11} {:>10}",
        "attack", "blows", "honest", "errors", "p50 ms", "p99 ms", "memory MiB", "bound MiB"
    );
    let (mut own, mut seen, mut held) = (None, nobody, true);
    for (name, forces) in parts {
        let peak = Peak::watch(scene.gateways[0].process().pid());
        let siege = Siege::lay(&scene, forces).await;
        let mut report = honest(&scene, &key, clients, calls, PAUSE).await;
        let blows = siege.blows.load(Ordering::Relaxed);
        siege.lift().await;
        let memory = peak.end().await;
        // Memory that was needed once is not released at once.
        seen = seen.with(forces);
        let own = *own.get_or_insert(memory + OWN_BYTES_MAX);
        let plain = seen.idle + seen.slow + seen.guessing + clients;
        let bound = own + plain * CONNECTION_BYTES_MAX + seen.resetting * HOSTILE_BYTES_MAX;
        held &= report.errors.is_empty() && memory <= bound;
        println!(
            "{name:<22} {blows:>9} {:>8} {:>7} {:>9.1} {:>9.1} {:>11} {:>10}",
            report.times.len() + report.errors.len(),
            report.errors.len(),
            report.quantile(0.5).as_secs_f64() * 1e3,
            report.quantile(0.99).as_secs_f64() * 1e3,
            memory / MIB,
            bound / MIB,
        );
        for error in report.errors.iter().take(3) {
            println!("  {error}");
        }
    }
    let allowed = Allowances {
        strangers: true,
        ..Allowances::default()
    };
    scene.assert_ledgers_agree_with(&allowed).await;
    println!("the ledgers agree");
    held
}

/// The largest memory of a process while it is watched.
struct Peak {
    most: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    watching: tokio::task::JoinHandle<()>,
}

impl Peak {
    fn watch(pid: u32) -> Peak {
        let (most, stop) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let watching = tokio::spawn({
            let (most, stop) = (most.clone(), stop.clone());
            async move {
                while !stop.load(Ordering::Relaxed) {
                    most.fetch_max(harness::process::anonymous_bytes(pid), Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        });
        Peak {
            most,
            stop,
            watching,
        }
    }

    async fn end(self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        self.watching.await.unwrap();
        self.most.load(Ordering::Relaxed)
    }
}
