//! How CPU and latency grow: with keys, endpoints, gateways and how calls spread over keys. `make growth`.
//!
//! Each case runs Touchline alone on the first core, all its gateways if there are several; upstream, Redis and load
//! generators on the second. Rounds are interleaved as in the comparison with peers.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use harness::{Call, Client, EndpointSpec, Gateway, GatewaySpec, Protocol, StoreSpec, eventually};

use super::contender::{CORES, PATH, Stage, cpu_of, loopback, pin, resident_of};
use super::load::{Saturated, Script, saturate_all};
use super::report::median;

/// Endpoints that calls spread over, at most: their place among the others is what is measured.
const CALLED_ENDPOINTS: usize = 100;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Case {
    series: &'static str,
    keys: usize,
    called_keys: usize,
    endpoints: usize,
    gateways: usize,
}

const fn case(series: &'static str, keys: usize, endpoints: usize, gateways: usize) -> Case {
    Case {
        series,
        keys,
        called_keys: keys,
        endpoints,
        gateways,
    }
}

const HOT: Case = Case {
    called_keys: 1,
    ..case("one hot key", 1_000, 6, 1)
};
const CASES: [Case; 11] = [
    case("keys", 10, 6, 1),
    case("keys", 1_000, 6, 1),
    case("keys", 100_000, 6, 1),
    HOT,
    case("endpoints", 100, 100, 1),
    case("endpoints", 100, 300, 1),
    case("endpoints", 100, 1_000, 1),
    case("gateways", 1_000, 6, 1),
    case("gateways", 1_000, 6, 2),
    case("gateways", 1_000, 6, 3),
    case("gateways", 1_000, 6, 4),
];

struct Found {
    cpu_us: f64,
    redis_cpu_us: f64,
    p99_ms: f64,
    requests_per_second: f64,
    resident_mib: f64,
}

/// All cases, a few times each; the table goes to standard output and with a CSV file to `directory`.
pub async fn measure(seconds: Duration, rounds: u64, directory: &Path) {
    let mut found: BTreeMap<usize, Vec<Found>> = BTreeMap::new();
    for round in 1..=rounds {
        for (number, case) in CASES.iter().enumerate() {
            eprintln!("round {round} of {rounds}: {case:?}");
            let one = run(case, seconds).await;
            found.entry(number).or_default().push(one);
        }
    }
    let (table, rows) = told(&found, seconds, rounds);
    println!("{table}");
    std::fs::create_dir_all(directory).unwrap();
    std::fs::write(directory.join("growth.md"), table).unwrap();
    std::fs::write(directory.join("growth.csv"), rows).unwrap();
}

async fn run(case: &Case, seconds: Duration) -> Found {
    let stage = Stage::set().await;
    let mut gateways = Vec::new();
    for number in 0..case.gateways {
        let store = StoreSpec::Redis {
            url: stage.redis_url(),
            key_prefix: "touchline".into(),
        };
        let mut spec = GatewaySpec::new(store, loopback(stage.upstream_port()));
        for tier in &mut spec.tiers {
            tier.daily = 4_000_000_000;
        }
        spec.endpoints.truncate(case.endpoints);
        while spec.endpoints.len() < case.endpoints {
            let path = format!("/api/v1/data/more/{}/items", spec.endpoints.len());
            spec.endpoints
                .push(EndpointSpec::get(&path, &["enterprise"]));
        }
        let name = format!("touchline-{number}");
        let binary = Path::new(env!("CARGO_BIN_EXE_touchline"));
        let mut gateway = Gateway::start(binary, stage.directory(), &name, &spec).await;
        pin(gateway.process().pid(), CORES[0]);
        gateways.push((gateway, spec));
    }
    let keys = import(&gateways[0].0, &stage, case.keys).await;
    for (gateway, _) in &gateways {
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
    let endpoints = &gateways[0].1.endpoints;
    let mut paths = vec![PATH.to_owned()];
    if case.series == "endpoints" {
        let step = (endpoints.len() / CALLED_ENDPOINTS).max(1);
        let more = endpoints.iter().skip(6).step_by(step);
        paths.extend(more.map(|endpoint| endpoint.path.clone()));
    }
    let script = Script::new(stage.directory(), &keys[..case.called_keys], &paths);
    let addresses: Vec<_> = gateways.iter().map(|(gateway, _)| gateway.http).collect();
    let load = |seconds| saturate_all(&addresses, &script, seconds);
    load(Duration::from_secs(1));
    let mut cpu = || -> Duration {
        let pids = gateways.iter_mut();
        pids.map(|(gateway, _)| cpu_of(gateway.process().pid()))
            .sum()
    };
    let (before, redis_before) = (cpu(), stage.redis_cpu());
    let Saturated {
        requests,
        seconds,
        p99,
        refused,
    } = load(seconds);
    assert_eq!(refused, 0.0, "{case:?}");
    let (used, redis_used) = (cpu() - before, stage.redis_cpu() - redis_before);
    let resident: u64 = gateways
        .iter_mut()
        .map(|(gateway, _)| resident_of(gateway.process().pid()))
        .sum();
    Found {
        cpu_us: used.as_secs_f64() * 1e6 / requests,
        redis_cpu_us: redis_used.as_secs_f64() * 1e6 / requests,
        p99_ms: p99.as_secs_f64() * 1e3,
        requests_per_second: requests / seconds,
        resident_mib: resident as f64 / f64::from(1 << 20) / case.gateways as f64,
    }
}

/// Keys made elsewhere, as a company that moves here brings them.
async fn import(gateway: &Gateway, stage: &Stage, count: usize) -> Vec<String> {
    let keys: Vec<String> = (0..count)
        .map(|number| format!("bench/{number:08}+{:032x}", fastrand::u128(..)))
        .collect();
    let rows: String = keys
        .iter()
        .map(|key| format!("{key},Bench,enterprise\n"))
        .collect();
    let file = stage.directory().join("import.csv");
    std::fs::write(&file, format!("key,customer,tier\n{rows}")).unwrap();
    let imported = gateway
        .cli(&["keys", "import", file.to_str().unwrap()])
        .await;
    assert!(imported.status.success(), "{imported:?}");
    keys
}

fn told(found: &BTreeMap<usize, Vec<Found>>, seconds: Duration, rounds: u64) -> (String, String) {
    let mut table = format!(
        "Medians of {rounds} rounds of {} s, Touchline + Redis at saturation; all gateways of a case share one core.\n\n\
         | What grows | Keys | Called | Endpoints | Gateways | CPU µs/request | of Redis | charges/s a Redis core carries | p99 ms | requests/s | RSS MiB a gateway |\n\
         |---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n",
        seconds.as_secs()
    );
    let mut rows = "series,keys,called_keys,endpoints,gateways,round,cpu_us,redis_cpu_us,p99_ms,requests_per_second,rss_mib\n"
        .to_owned();
    for (number, rounds) in found {
        let Case {
            series,
            keys,
            called_keys,
            endpoints,
            gateways,
        } = CASES[*number];
        let middle =
            |value: fn(&Found) -> f64| median(rounds.iter().map(value).collect::<Vec<f64>>());
        let redis = middle(|one| one.redis_cpu_us);
        let _ = writeln!(
            table,
            "| {series} | {keys} | {called_keys} | {endpoints} | {gateways} | {:.1} | {redis:.1} | {:.0} | {:.2} | {:.0} | {:.1} |",
            middle(|one| one.cpu_us),
            1e6 / redis,
            middle(|one| one.p99_ms),
            middle(|one| one.requests_per_second),
            middle(|one| one.resident_mib),
        );
        for (round, one) in rounds.iter().enumerate() {
            let _ = writeln!(
                rows,
                "{series},{keys},{called_keys},{endpoints},{gateways},{},{:.2},{:.2},{:.3},{:.0},{:.1}",
                round + 1,
                one.cpu_us,
                one.redis_cpu_us,
                one.p99_ms,
                one.requests_per_second,
                one.resident_mib
            );
        }
    }
    (table, rows)
}
