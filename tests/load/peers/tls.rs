//! Saturation over TLS by h2load, which speaks HTTP/1.1 and HTTP/2: one key, and its connections' handshakes are in the figures.

use std::path::Path;
use std::time::Duration;

use harness::Protocol;

use super::CONNECTIONS;
use super::calls::Calls;
use super::closed::Slice;
use super::figures::percentile;
use super::machine::{Cpu, SECOND_CORE, on_cores};

/// Requests of a slice: enough that handshakes are a small part.
const REQUESTS: u32 = 10_000;

/// One slice over TLS.
///
/// # Panics
/// If an answer is not the expected one, or h2load cannot run.
pub fn measure(
    protocol: Protocol,
    calls: &Calls,
    (path, key): (&str, &str),
    (measured, redis): (u32, u32),
    directory: &Path,
) -> Slice {
    let log = directory.join("h2load.log");
    let _ = std::fs::remove_file(&log);
    let mut command = on_cores(SECOND_CORE, "h2load");
    if protocol == Protocol::Http1Tls {
        command.arg("--h1");
    }
    command
        .arg("--threads=1")
        .arg(format!("--requests={REQUESTS}"))
        .arg(format!("--clients={CONNECTIONS}"))
        .arg(format!("--header=x-api-key: {key}"))
        .arg(format!("--log-file={}", log.display()))
        .arg(format!("https://{}{path}", calls.address));
    let (before, redis_before) = (Cpu::of(measured), Cpu::of(redis));
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error} (make bench installs what it needs)"));
    assert!(output.status.success(), "{output:?}");
    let used = Cpu::of(measured);
    let cpu = used.since(&before);
    let redis_cpu = Cpu::of(redis).since(&redis_before);
    let status = calls.status.to_string();
    let (mut latencies, mut first, mut last) = (Vec::new(), u64::MAX, 0);
    for line in std::fs::read_to_string(&log).unwrap().lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        assert_eq!(fields[1], status, "{}: {output:?}", calls.address);
        let [start, took] = [fields[0], fields[2]].map(|text| text.parse::<u64>().unwrap());
        latencies.push(Duration::from_micros(took));
        (first, last) = (first.min(start), last.max(start + took));
    }
    let count = f64::from(REQUESTS);
    assert_eq!(latencies.len() as f64, count, "{output:?}");
    let per_request = |time: Duration| time.as_secs_f64() * 1e6 / count;
    Slice {
        cpu_us: per_request(cpu),
        redis_cpu_us: per_request(redis_cpu),
        per_second: count * 1e6 / (last - first) as f64,
        p99_ms: percentile(&mut latencies, 0.99),
    }
}
