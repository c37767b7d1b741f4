//! The cost of the pure core and the free checks, operation by operation: `cargo bench --bench core`. Figures, not a verdict.
//!
//! - `cargo bench --bench core` times every operation.
//! - `cargo bench --bench core -- instructions` counts the instructions of each under callgrind (Debian: valgrind). They
//!   repeat to the instruction, unlike times, so the table before and after a change shows its cost.
//! - `cargo bench --bench core -- timing` tests whether refused credentials can be distinguished by the time of their refusal:
//!   200,000 samples of each in random order beside those of an unknown key, Welch's t. Below 4.5 nothing is shown
//!   (the threshold of dudect).
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a measurement fails by panicking and prints what it found"
)]

use std::hint::black_box;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::{Timestamp, ToSpan};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use touchline::clock::Clock;
use touchline::config::Config;
use touchline::policy::api_key::{ApiKey, KeyPrefix, os_entropy, parse_presented};
use touchline::policy::calendar::Day;
use touchline::policy::http1::HeadBounds;
use touchline::policy::http1::request::RequestReader;
use touchline::policy::key_record::{Action, KeyRecord, KeyState, LastChange};
use touchline::policy::rate_limit::QuotaStatus;
use touchline::policy::rejection::{ExceededLimit, Rejection};
use touchline::proxy::admission::{AdmissionTrace, Admitted, admit};
use touchline::proxy::{Gate, Snapshot};
use touchline::server::open_store;
use touchline::store::{NodeName, Role};
use touchline::telemetry::access_log::AccessLog;
use touchline::telemetry::metrics::Metrics;

const SHIPPED: &str = include_str!("../../gateway.yaml");
const MARKETS: &str = "/api/v1/data/markets";
/// Runs of an operation in one count, after the same number of uncounted runs.
const COUNTED: u64 = 1_000;
const SAMPLES: usize = 200_000;

/// Every operation, in the order of the request path.
const OPERATIONS: [&str; 11] = [
    "parse and digest a key",
    "find an endpoint",
    "quota headers",
    "problem body",
    "refuse no key",
    "refuse a key that is unknown",
    "refuse a key with a wrong secret",
    "refuse a key that is suspended",
    "refuse a key that is revoked",
    "refuse a key that is expired",
    "refuse an endpoint of another tier",
];
/// The refusals that no client may distinguish; the others are compared with the first.
const ALIKE: std::ops::Range<usize> = 5..10;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["instructions", ..] => instructions(),
        ["timing", ..] => timing(),
        ["count", number, ..] => count(number.parse().unwrap()),
        _ => divan::main(),
    }
}

#[divan::bench(args = OPERATIONS)]
fn core(bencher: divan::Bencher, name: &str) {
    let bench = Bench::new();
    let number = OPERATIONS.iter().position(|one| *one == name).unwrap();
    bencher.bench_local(bench.operation(number));
}

/// A gate on a store of its own with a key in every state.
struct Bench {
    _directory: TempDir,
    runtime: Runtime,
    gate: Gate,
    snapshot: Arc<Snapshot>,
    key: ApiKey,
    presented: [Option<String>; 6],
}

impl Bench {
    fn new() -> Bench {
        let directory = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let path = directory.path().join("touchline.db");
        let text = SHIPPED.replace(
            "path: var/touchline.db",
            &format!("path: {}", path.display()),
        );
        let mut config = Config::parse("gateway.yaml", &text, &|_| None).unwrap();
        config.keys.prefix = KeyPrefix::default();
        let role = Role::Gateway(NodeName("bench".into()));
        let opened = runtime
            .block_on(open_store(&config, role, Clock::system()))
            .unwrap();
        let metrics = Arc::new(Metrics::new().unwrap());
        let (spans, _) = tokio::sync::mpsc::channel(1);
        let gate = Gate::new(
            Snapshot::new(config, None),
            opened,
            metrics,
            AccessLog::new(None),
            spans,
        );
        let issue = |change: &dyn Fn(&mut KeyRecord)| {
            let key = ApiKey::generate(&KeyPrefix::default(), &mut os_entropy);
            let now = Timestamp::now();
            let issued = LastChange::first(Action::Issue, "bench@here");
            let tier = "starter".parse().unwrap();
            let mut record = KeyRecord::new(&key, "Acme", tier, now, issued);
            change(&mut record);
            let applied = async {
                let (_, mark) = gate.store.create_key(record).await.unwrap();
                gate.store
                    .await_applied(&mark, Duration::from_secs(60))
                    .await
            };
            assert_eq!(runtime.block_on(applied).unwrap(), []);
            key
        };
        let active = issue(&|_| ());
        let unknown = ApiKey::generate(&KeyPrefix::default(), &mut os_entropy);
        let wrong = ApiKey::for_id(&KeyPrefix::default(), active.id(), &mut os_entropy);
        let presented = [
            None,
            Some(unknown),
            Some(wrong),
            Some(issue(&|record| record.state = KeyState::Suspended)),
            Some(issue(&|record| record.state = KeyState::Revoked)),
            Some(issue(&|record| {
                record.expires = Some(Timestamp::now() - 1.hour());
            })),
        ]
        .map(|key| key.map(|key| key.reveal().to_owned()));
        Bench {
            _directory: directory,
            snapshot: gate.snapshot(),
            runtime,
            gate,
            key: active,
            presented,
        }
    }

    /// The operation with this number, ready to be run again and again.
    fn operation(&self, number: usize) -> Box<dyn FnMut() + '_> {
        let quota_status = QuotaStatus {
            limit: 1_000,
            used: Some(1),
            day: Day {
                date: "2026-11-21".parse().unwrap(),
                start: 1_795_219_200,
                end: 1_795_305_600,
            },
        };
        let now = Timestamp::from_second(1_795_300_000).unwrap();
        match number {
            0 => {
                let prefix = KeyPrefix::default();
                Box::new(move || {
                    let digest = parse_presented(black_box(self.key.reveal().as_bytes()), &prefix);
                    black_box(digest.is_ok());
                })
            }
            1 => Box::new(|| {
                let endpoints = &self.snapshot.config.endpoints;
                black_box(endpoints.find(black_box("/api/v1/data/predictions/2501")));
            }),
            2 => Box::new(move || {
                quota_status.headers(now).for_each(|header| {
                    black_box(header);
                });
            }),
            3 => Box::new(move || {
                let rejection = Rejection::RateLimitExceeded(ExceededLimit::Daily, quota_status);
                let problem = rejection.problem(
                    "e51ba849c48b4f49ede311796852d669",
                    &self.snapshot.problems,
                    now,
                );
                black_box(problem.body);
            }),
            4..=9 => self.refused(self.presented[number - 4].clone(), MARKETS),
            10 => {
                let key = self.key.reveal().to_owned();
                self.refused(Some(key), "/api/v1/data/rankings")
            }
            _ => panic!("there is no operation {number}"),
        }
    }

    /// A request that the free checks refuse.
    fn refused(&self, key: Option<String>, path: &str) -> Box<dyn FnMut() + '_> {
        let key = key.map(|key| format!("X-API-Key: {key}\r\n"));
        let key = key.unwrap_or_default();
        let sent = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{key}\r\n");
        let bounds = HeadBounds {
            target_bytes_max: 1024,
            header_bytes_max: 1024,
            header_count_max: 8,
        };
        let head = RequestReader::whole_head(&sent, &bounds).unwrap();
        Box::new(move || {
            let (arrived, mut trace) = (self.gate.store.now(), AdmissionTrace::default());
            let admitted = admit(&self.gate, &self.snapshot, &head, arrived, &mut trace);
            match self.runtime.block_on(admitted) {
                Ok(Admitted::Forward(_) | Admitted::Document | Admitted::Usage(_)) => {
                    panic!("it was to be refused");
                }
                Err(refusal) => drop(black_box(refusal)),
            }
        })
    }
}

/// The function that callgrind counts, by this name.
#[inline(never)]
fn counted_here(operation: &mut dyn FnMut()) {
    for _ in 0..COUNTED {
        operation();
    }
}

/// In a process of its own under callgrind: one operation, warm.
fn count(number: usize) {
    let bench = Bench::new();
    let mut operation = bench.operation(number);
    for _ in 0..COUNTED {
        operation();
    }
    counted_here(&mut operation);
}

fn instructions() {
    println!("instructions  operation");
    for (number, name) in OPERATIONS.iter().enumerate() {
        let run = Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .args(["--collect-atstart=no", "--toggle-collect=*counted_here*"])
            .arg(std::env::current_exe().unwrap())
            .args(["count", &number.to_string()])
            .output()
            .expect("valgrind is installed");
        let message = String::from_utf8_lossy(&run.stderr);
        assert!(run.status.success(), "{message}");
        let collected = message
            .lines()
            .find_map(|line| line.split_once("Collected : "))
            .and_then(|(_, count)| count.trim().parse::<u64>().ok());
        let Some(collected @ 1..) = collected else {
            panic!("callgrind counted nothing: {message}");
        };
        println!("{:12}  {name}", collected / COUNTED);
    }
}

/// Mean and variance, of a stream.
#[derive(Default, Clone, Copy)]
struct Moments {
    count: f64,
    mean: f64,
    squares: f64,
}

impl Moments {
    fn add(&mut self, value: f64) {
        self.count += 1.0;
        let off = value - self.mean;
        self.mean += off / self.count;
        self.squares += off * (value - self.mean);
    }

    fn error_squared(&self) -> f64 {
        self.squares / (self.count - 1.0) / self.count
    }
}

fn timing() {
    let bench = Bench::new();
    let mut operations: Vec<_> = ALIKE.map(|number| bench.operation(number)).collect();
    let mut samples: Vec<Vec<f64>> = vec![Vec::new(); operations.len()];
    while samples.iter().any(|kind| kind.len() < SAMPLES) {
        let kind = fastrand::usize(..operations.len());
        let began = Instant::now();
        operations[kind]();
        samples[kind].push(began.elapsed().as_nanos() as f64);
    }
    // Interruptions are not part of a sample's cost: the slowest tenth of all is left out, of every kind alike.
    let mut all: Vec<f64> = samples.iter().flatten().copied().collect();
    all.sort_by(f64::total_cmp);
    let bound = all[all.len() * 9 / 10];
    let moments: Vec<Moments> = samples
        .iter()
        .map(|kind| {
            let mut moments = Moments::default();
            let kept = kind.iter().filter(|took| **took <= bound);
            kept.for_each(|took| moments.add(*took));
            moments
        })
        .collect();
    println!("mean ns  Welch's t  operation");
    let first = moments[0];
    for (number, one) in ALIKE.zip(&moments) {
        let t = (one.mean - first.mean) / (one.error_squared() + first.error_squared()).sqrt();
        println!("{:7.0}  {t:9.2}  {}", one.mean, OPERATIONS[number]);
    }
}
