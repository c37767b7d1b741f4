//! The load generators, on the second core, and what they say: wrk for as much as goes over clear connections with many keys,
//! h2load for TLS, HTTP/2 and fixed rates, whose log has the time of each request.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use harness::Protocol;

use super::contender::{Contender, PATH, Stage, beside};
use super::{CONNECTIONS, STEADY_CONNECTIONS, STEADY_RATE};

/// What a run at saturation gave.
#[derive(Default)]
pub struct Saturated {
    /// Answered requests.
    pub requests: f64,
    /// In this time.
    pub seconds: f64,
    /// The 99th percentile of their latency.
    pub p99: Duration,
    /// Of the requests, those that were not served.
    pub refused: f64,
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
                refused: 0.0,
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

/// What wrk asks for: keys and paths, each in turn.
pub struct Script(PathBuf);

impl Script {
    /// A script in `directory`.
    pub fn new(directory: &Path, keys: &[String], paths: &[String]) -> Script {
        let write = |name: &str, text: String| {
            let path = directory.join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let keys = write("keys.txt", keys.join("\n"));
        let paths = write("paths.txt", paths.join("\n"));
        let text = format!(
            "local requests, at = {{}}, 0\n\
             local function lines(file) local all = {{}}; for line in io.lines(file) do all[#all + 1] = line end; return all end\n\
             function init()\n\
             local keys, paths = lines('{}'), lines('{}')\n\
             for i = 1, math.max(#keys, #paths) do requests[i] = wrk.format('GET', paths[(i - 1) % #paths + 1], \
             {{ ['X-API-Key'] = keys[(i - 1) % #keys + 1] }}) end end\n\
             function request() at = at % #requests + 1; return requests[at] end\n\
             function done(summary, latency) io.write('\\nTOTAL ', summary.requests, ' ', summary.duration, ' ', \
             latency:percentile(99), ' ', summary.errors.status, ' ', summary.errors.connect + summary.errors.read \
             + summary.errors.write + summary.errors.timeout, '\\n') end\n",
            keys.display(),
            paths.display(),
        );
        Script(write("wrk.lua", text))
    }
}

fn with_wrk(contender: &Contender, stage: &Stage, seconds: Duration) -> Saturated {
    let script = Script::new(stage.directory(), contender.keys(), &[PATH.to_owned()]);
    let saturated = saturate_all(&[contender.address()], &script, seconds);
    let refused = if contender.kind().status() == 200 {
        0.0
    } else {
        saturated.requests
    };
    assert_eq!(saturated.refused, refused, "{:?}", contender.kind());
    saturated
}

/// As many requests as it takes to all of these at the same time, over [`CONNECTIONS`] connections together.
///
/// # Panics
/// If a connection breaks, or wrk cannot run.
pub fn saturate_all(addresses: &[SocketAddr], script: &Script, seconds: Duration) -> Saturated {
    let connections = CONNECTIONS as usize / addresses.len();
    let running: Vec<_> = addresses
        .iter()
        .map(|address| {
            let mut command = beside("wrk");
            command
                .args(["-t1", &format!("-c{connections}")])
                .arg(format!("-d{}s", seconds.as_secs()))
                .arg("-s")
                .arg(&script.0)
                .arg(format!("http://{address}{PATH}"))
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            let started = command.spawn();
            started.unwrap_or_else(|error| {
                panic!("{command:?}: {error} (make bench installs what it needs)")
            })
        })
        .collect();
    let mut all = Saturated::default();
    for one in running {
        let output = one.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let line = said.lines().find_map(|line| line.strip_prefix("TOTAL "));
        let line = line.unwrap_or_else(|| panic!("{output:?}"));
        let numbers: Vec<f64> = line.split(' ').map(|text| text.parse().unwrap()).collect();
        let [requests, microseconds, p99, refused, broken] = numbers[..] else {
            panic!("{line}");
        };
        assert_eq!(broken, 0.0, "{said}");
        all.requests += requests;
        all.refused += refused;
        all.seconds = all.seconds.max(microseconds / 1e6);
        all.p99 = all.p99.max(Duration::from_secs_f64(p99 / 1e6));
    }
    all
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
