//! The load generators, on the second core, and what they say: wrk for as much as goes over clear connections with many keys,
//! h2load for TLS, HTTP/2 and fixed rates, whose log has the time of each request.

use std::process::Command;
use std::time::Duration;

use harness::Protocol;

use super::contender::{Contender, PATH, Stage, beside};
use super::{CONNECTIONS, STEADY_CONNECTIONS, STEADY_RATE};

/// What a run at saturation gave.
pub struct Saturated {
    /// Answered requests.
    pub requests: f64,
    /// In this time.
    pub seconds: f64,
    /// The 99th percentile of their latency.
    pub p99: Duration,
}

/// Latencies at the fixed rate.
#[derive(Debug, Clone, Copy)]
pub struct Steady {
    /// Half are faster.
    pub p50: Duration,
    /// 99 % are faster.
    pub p99: Duration,
    /// 99.9 % are faster.
    pub p999: Duration,
}

/// As many requests as it takes, for so long.
///
/// # Panics
/// If an answer is not what this contender gives, or the generator cannot run.
pub fn saturate(contender: &Contender, stage: &Stage, seconds: Duration) -> Saturated {
    match contender.kind().protocol() {
        Protocol::Http1 => with_wrk(contender, stage, seconds),
        Protocol::Http1Tls | Protocol::Http2Tls | Protocol::Http2Clear => {
            let mut times = with_h2load(contender, stage, seconds, Rate::Unbounded);
            Saturated {
                requests: times.len() as f64,
                seconds: seconds.as_secs_f64(),
                p99: percentile(&mut times, 0.99),
            }
        }
    }
}

/// The fixed rate, for so long.
///
/// # Panics
/// As [`saturate`].
pub fn hold(contender: &Contender, stage: &Stage, seconds: Duration) -> Steady {
    let mut times = with_h2load(contender, stage, seconds, Rate::Steady);
    Steady {
        p50: percentile(&mut times, 0.50),
        p99: percentile(&mut times, 0.99),
        p999: percentile(&mut times, 0.999),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rate {
    Unbounded,
    Steady,
}

fn with_wrk(contender: &Contender, stage: &Stage, seconds: Duration) -> Saturated {
    let script = stage.directory().join("keys.lua");
    let keys: Vec<String> = contender
        .keys()
        .iter()
        .map(|key| format!("\"{key}\""))
        .collect();
    let text = format!(
        "local keys, at, requests = {{{}}}, 0, {{}}\n\
         function init() for i, key in ipairs(keys) do requests[i] = wrk.format('GET', '{PATH}', {{ ['X-API-Key'] = key }}) end end\n\
         function request() at = at % #keys + 1; return requests[at] end\n\
         function done(summary, latency) io.write('\\nTOTAL ', summary.requests, ' ', summary.duration, ' ', \
         latency:percentile(99), ' ', summary.errors.status, ' ', summary.errors.connect + summary.errors.read \
         + summary.errors.write + summary.errors.timeout, '\\n') end\n",
        keys.join(",")
    );
    std::fs::write(&script, text).unwrap();
    let said = run(beside("wrk")
        .args([
            "-t1",
            &format!("-c{CONNECTIONS}"),
            &format!("-d{}s", seconds.as_secs()),
        ])
        .arg("-s")
        .arg(&script)
        .arg(format!("http://{}{PATH}", contender.address())));
    let line = said
        .lines()
        .find_map(|line| line.strip_prefix("TOTAL "))
        .unwrap();
    let numbers: Vec<f64> = line.split(' ').map(|text| text.parse().unwrap()).collect();
    let [requests, microseconds, p99, other_status, broken] = numbers[..] else {
        panic!("{line}");
    };
    let refused = if contender.kind().status() == 200 {
        0.0
    } else {
        requests
    };
    assert_eq!(
        (other_status, broken),
        (refused, 0.0),
        "{:?}: {said}",
        contender.kind()
    );
    Saturated {
        requests,
        seconds: microseconds / 1e6,
        p99: Duration::from_secs_f64(p99 / 1e6),
    }
}

/// How long each request took.
fn with_h2load(contender: &Contender, stage: &Stage, seconds: Duration, rate: Rate) -> Vec<u64> {
    let log = stage.directory().join("h2load.log");
    let _ = std::fs::remove_file(&log);
    let protocol = contender.kind().protocol();
    let scheme = if protocol.is_tls() { "https" } else { "http" };
    let mut command = beside("h2load");
    if protocol != Protocol::Http2Tls {
        command.arg("--h1");
    }
    match rate {
        Rate::Unbounded => command.arg(format!("--clients={CONNECTIONS}")),
        Rate::Steady => command
            .arg(format!("--clients={STEADY_CONNECTIONS}"))
            .arg(format!("--rps={}", STEADY_RATE / STEADY_CONNECTIONS)),
    };
    let said = run(command
        .args(["--threads=1", "--warm-up-time=1"])
        .arg(format!("--duration={}", seconds.as_secs()))
        .arg(format!("--header=x-api-key: {}", contender.keys()[0]))
        .arg(format!("--log-file={}", log.display()))
        .arg(format!("{scheme}://{}{PATH}", contender.address())));
    let status = contender.kind().status().to_string();
    let mut times = Vec::new();
    for line in std::fs::read_to_string(&log).unwrap().lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        assert_eq!(fields[1], status, "{:?}: {said}", contender.kind());
        times.push(fields[2].parse().unwrap());
    }
    assert!(!times.is_empty(), "{said}");
    times
}

fn run(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error} (make bench installs what it needs)"));
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "{command:?}\n{said}");
    said
}

fn percentile(microseconds: &mut [u64], share: f64) -> Duration {
    microseconds.sort_unstable();
    let place = (microseconds.len() as f64 * share) as usize;
    Duration::from_micros(microseconds[place.min(microseconds.len() - 1)])
}
