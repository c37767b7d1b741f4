//! Saturation over TLS by h2load, which speaks HTTP/1.1 and HTTP/2: one key, and its connections' handshakes are in the figures.

use std::path::Path;
use std::time::Duration;

use harness::Protocol;

use super::CONNECTIONS;
use super::calls::Calls;
use super::closed::Slice;
use super::figures::percentile;
use super::machine::{Cpu, SECOND_CORE, on_cores};

/// One slice over TLS; h2load counts in whole seconds.
///
/// # Panics
/// If an answer is not what was expected, or h2load cannot run.
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
        .args(["--threads=1", "--duration=1"])
        .arg(format!("--clients={CONNECTIONS}"))
        .arg(format!("--header=x-api-key: {key}"))
        .arg(format!("--log-file={}", log.display()))
        .arg(format!("https://{}{path}", calls.address));
    let (before, redis_before) = (Cpu::of(measured), Cpu::of(redis));
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error} (make bench installs what it needs)"));
    assert!(output.status.success(), "{output:?}");
    let (used, redis_used) = (
        Cpu::of(measured).since(&before),
        Cpu::of(redis).since(&redis_before),
    );
    let status = calls.status.to_string();
    let mut latencies = Vec::new();
    for line in std::fs::read_to_string(&log).unwrap().lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        assert_eq!(fields[1], status, "{}: {output:?}", calls.address);
        latencies.push(Duration::from_micros(fields[2].parse().unwrap()));
    }
    let count = latencies.len() as f64;
    Slice {
        cpu_us: used.as_secs_f64() * 1e6 / count,
        redis_cpu_us: redis_used.as_secs_f64() * 1e6 / count,
        per_second: count,
        p99_ms: percentile(&mut latencies, 0.99),
    }
}
