//! How CPU and latency grow: with keys, endpoints, gateways and how calls spread over keys. `make growth`.
//!
//! As in the comparison with peers all gateways are up at once on the first core, each case with names of its own in Redis, and
//! slices take turns; each case is compared with 1,000 keys on one gateway in the same round. At the end each key is called at six
//! endpoints, and the memory is measured.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use harness::{Call, Client, Gateway, Protocol, eventually};

use super::calls::Calls;
use super::closed::{Connections, Slice};
use super::figures::Spread;
use super::kind::PATH;
use super::open::{self, Latency};
use super::plot::{Bar, Plot, Whose};
use super::stage::{Stage, foreign_keys, with_endpoints};
use super::{CONNECTIONS, LATENCY_SLICE, Plan, SELDOM, machine, report, there_and_back};

/// The most endpoints that calls spread over: the effect of their place among the others is measured.
const CALLED_ENDPOINTS: usize = 100;
/// The endpoints of the shipped file.
const FEW_ENDPOINTS: usize = 6;

/// The cases.
#[derive(Debug, Clone, Copy)]
struct Case {
    name: &'static str,
    keys: usize,
    called_keys: usize,
    endpoints: usize,
    gateways: usize,
}

const fn case(name: &'static str, keys: usize, endpoints: usize, gateways: usize) -> Case {
    Case {
        name,
        keys,
        called_keys: keys,
        endpoints,
        gateways,
    }
}

const CASES: [Case; 10] = [
    case("10 keys", 10, FEW_ENDPOINTS, 1),
    case("1,000 keys", 1_000, FEW_ENDPOINTS, 1),
    case("100,000 keys", 100_000, FEW_ENDPOINTS, 1),
    Case {
        called_keys: 1,
        ..case("1,000 keys, one called", 1_000, FEW_ENDPOINTS, 1)
    },
    case("100 endpoints", 1_000, 100, 1),
    case("300 endpoints", 1_000, 300, 1),
    case("1,000 endpoints", 1_000, 1_000, 1),
    case("2 gateways", 1_000, FEW_ENDPOINTS, 2),
    case("3 gateways", 1_000, FEW_ENDPOINTS, 3),
    case("4 gateways", 1_000, FEW_ENDPOINTS, 4),
];
/// The case with which the others are compared.
const BASE: usize = 1;

/// A case with its gateways running and its keys loaded.
struct Deployment {
    gateways: Vec<Gateway>,
    pids: Vec<u32>,
    calls: Vec<Arc<Calls>>,
    keys: Vec<String>,
    /// The endpoints of the shipped file.
    few: Vec<String>,
}

impl Deployment {
    /// Calls each key at each of the few endpoints, as on a day on which all are used.
    async fn call_everywhere(&self, stage: &Stage, plan: Plan) {
        for path in &self.few {
            let calls = |gateway: &Gateway| {
                let path = std::slice::from_ref(path);
                Arc::new(Calls::new(gateway.http, 200, &self.keys, path))
            };
            let calls: Vec<_> = self.gateways.iter().map(calls).collect();
            let mut connections = Connections::open(&calls, CONNECTIONS).await;
            while !calls.iter().all(|calls| calls.are_all_sent()) {
                let pids = &self.pids;
                connections.measure(pids, stage.redis_pid, plan.slice).await;
            }
        }
    }
}

#[derive(Default)]
struct Found {
    slices: BTreeMap<u64, Slice>,
    latencies: Vec<(u64, Latency)>,
    resident_mib: f64,
}

/// All cases, slice by slice; the report is printed and stored as that of the peers is.
pub async fn measure(plan: Plan) {
    let stage = Stage::set().await;
    let mut deployments = Vec::new();
    for case in &CASES {
        eprintln!("starting: {}", case.name);
        deployments.push(stand(case, &stage).await);
    }
    let places: Vec<usize> = (0..CASES.len()).collect();
    let mut found: Vec<Found> = CASES.iter().map(|_| Found::default()).collect();
    for round in 1..=plan.rounds {
        eprintln!("round {round} of {}", plan.rounds);
        for place in there_and_back(&places, round) {
            let Deployment { pids, calls, .. } = &deployments[place];
            let mut connections = Connections::open(calls, CONNECTIONS).await;
            let slice = connections.measure(pids, stage.redis_pid, plan.slice).await;
            found[place].slices.insert(round, slice);
            if round % SELDOM == 1 {
                let latency = open::hold(calls, pids, LATENCY_SLICE, round);
                found[place].latencies.push((round, latency));
            }
        }
    }
    for (found, deployment) in found.iter_mut().zip(&deployments) {
        deployment.call_everywhere(&stage, plan).await;
        let Deployment { gateways, pids, .. } = deployment;
        let resident: f64 = pids.iter().map(|pid| machine::resident_mib(*pid)).sum();
        found.resident_mib = resident / gateways.len() as f64;
    }
    let markdown = output(plan, &found);
    println!("{markdown}");
    let files = [
        ("growth.csv", rows(&found)),
        ("growth.svg", cpu_plot(&found)),
        ("growth_latency.svg", latency_plot(&found)),
    ];
    report::keep("growth", &markdown, &files);
}

async fn stand(case: &Case, stage: &Stage) -> Deployment {
    let name = case.name.replace([' ', ','], "-");
    let mut spec = stage.spec(stage.redis_store(&name));
    with_endpoints(&mut spec, case.endpoints);
    let mut gateways = Vec::new();
    for number in 1..=case.gateways {
        gateways.push(stage.gateway(&format!("{name}-{number}"), &spec).await);
    }
    let (keys, file) = foreign_keys(case.keys, &stage.directory(&name));
    let arguments = ["keys", "import", file.to_str().unwrap()];
    let imported = gateways[0].cli(&arguments).await;
    // The gateways may take longer to load the keys than the command waits, so the wait is below.
    let message = String::from_utf8_lossy(&imported.stdout);
    assert!(message.contains("keys imported"), "{imported:?}");
    for gateway in &gateways {
        eventually("the gateway has all keys", async || {
            let client = Client::new(Protocol::Http1, gateway.admin, Arc::default());
            let metrics = client.call(Call::get("/metrics")).await.body;
            String::from_utf8_lossy(&metrics)
                .lines()
                .find_map(|line| line.strip_prefix("touchline_keys "))
                .and_then(|count| count.parse::<usize>().ok())
                .filter(|count| *count >= case.keys)
        })
        .await;
    }
    let mut paths = vec![PATH.to_owned()];
    if case.endpoints > FEW_ENDPOINTS {
        let step = (case.endpoints / CALLED_ENDPOINTS).max(1);
        let more = spec.endpoints.iter().skip(FEW_ENDPOINTS).step_by(step);
        paths.extend(more.map(|endpoint| endpoint.path.clone()));
    }
    let few = spec.endpoints.iter().take(FEW_ENDPOINTS);
    let few = few.map(|endpoint| called(&endpoint.path)).collect();
    let mut keys = keys;
    keys.truncate(case.called_keys);
    let calls = gateways
        .iter()
        .map(|gateway| Arc::new(Calls::new(gateway.http, 200, &keys, &paths)));
    Deployment {
        calls: calls.collect(),
        pids: gateways
            .iter_mut()
            .map(|gateway| gateway.process().pid())
            .collect(),
        gateways,
        keys,
        few,
    }
}

/// A path that fits the pattern of an endpoint.
fn called(pattern: &str) -> String {
    let segment = |segment: &str| match segment.starts_with(['{', '*']) {
        true => "1".to_owned(),
        false => segment.to_owned(),
    };
    pattern
        .split('/')
        .map(segment)
        .collect::<Vec<_>>()
        .join("/")
}

impl Found {
    fn spread(&self, value: fn(&Slice) -> f64) -> Spread {
        Spread::of(self.slices.values().map(value))
    }

    fn latency(&self, value: fn(&Latency) -> f64) -> Spread {
        Spread::of(self.latencies.iter().map(|(_, found)| value(found)))
    }

    /// CPU a request as a multiple of another case's, within each round.
    fn ratio(&self, other: &Found) -> Spread {
        let pairs = self.slices.iter().zip(&other.slices);
        Spread::of(pairs.map(|((_, one), (_, other))| one.cpu_us / other.cpu_us))
    }
}

fn output(plan: Plan, found: &[Found]) -> String {
    let mut text = format!(
        "{}\n{} rounds of slices of {} ms, Touchline + Redis, six endpoints and one gateway unless the row names others, {CONNECTIONS} connections, keys in \
         turn; all gateways share one core; median (first to third quartile). Memory: after each of these keys was called at six \
         endpoints.\n\n![CPU a request as things grow]\
         (../tests/load/plots/growth.svg)\n\n![Latency as things grow](../tests/load/plots/growth_latency.svg)\n\n\
         | What grows | CPU µs/request | × {} | of Redis, µs | charges/s a Redis core carries | requests/s | p50 ms at 2,000/s | p99 ms | \
         MiB a gateway |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|\n",
        machine::described(&[("redis-server", "-v")]),
        plan.rounds,
        plan.slice.as_millis(),
        CASES[BASE].name,
    );
    for (case, one) in CASES.iter().zip(found) {
        let redis = one.spread(|slice| slice.redis_cpu_us).median;
        let _ = writeln!(
            text,
            "| {} | {:.1} | {:.2} | {redis:.1} | {:.0} | {:.0} | {:.2} | {:.2} | {:.1} |",
            case.name,
            one.spread(|slice| slice.cpu_us),
            one.ratio(&found[BASE]),
            1e6 / redis,
            one.spread(|slice| slice.per_second).median,
            one.latency(|found| found.p50_ms).median,
            one.latency(|found| found.p99_ms),
            one.resident_mib,
        );
    }
    text
}

fn rows(found: &[Found]) -> String {
    let mut rows = "case,round,cpu_us,redis_cpu_us,requests_per_second,p99_ms,steady_p50_ms,steady_p99_ms,steady_p999_ms\n".to_owned();
    for (case, one) in CASES.iter().zip(found) {
        let steady: BTreeMap<u64, &Latency> = one
            .latencies
            .iter()
            .map(|(round, found)| (*round, found))
            .collect();
        for (round, slice) in &one.slices {
            let _ = write!(
                rows,
                "\"{}\",{round},{:.3},{:.3},{:.0},{:.3}",
                case.name, slice.cpu_us, slice.redis_cpu_us, slice.per_second, slice.p99_ms
            );
            let _ = match steady.get(round) {
                Some(found) => writeln!(
                    rows,
                    ",{:.3},{:.3},{:.3}",
                    found.p50_ms, found.p99_ms, found.p999_ms
                ),
                None => writeln!(rows, ",,,"),
            };
        }
    }
    rows
}

fn cpu_plot(found: &[Found]) -> String {
    let bars = CASES.iter().zip(found).map(|(case, one)| Bar {
        name: case.name.to_owned(),
        whose: Whose::Ours,
        first: one.spread(|slice| slice.cpu_us).median,
        whole: one.spread(|slice| slice.cpu_us + slice.redis_cpu_us),
    });
    let plot = Plot {
        title: "CPU a request at saturation as things grow: Touchline + Redis",
        axis: "µs of CPU a request",
        parts: ["the gateways", "Redis for it"],
        decimals: 1,
        bars: bars.collect(),
    };
    plot.svg()
}

fn latency_plot(found: &[Found]) -> String {
    let bars = CASES.iter().zip(found).map(|(case, one)| Bar {
        name: case.name.to_owned(),
        whose: Whose::Ours,
        first: one.latency(|found| found.p50_ms).median,
        whole: one.latency(|found| found.p99_ms),
    });
    let plot = Plot {
        title: "Latency at 2,000 requests a second as things grow: Touchline + Redis",
        axis: "ms from when a request was due to its answer",
        parts: ["p50", "up to p99"],
        decimals: 2,
        bars: bars.collect(),
    };
    plot.svg()
}
