//! Latency at a fixed rate: an open loop. Arrivals are drawn beforehand, as for many independent clients (Poisson),
//! and each request is sent over a free connection; its latency counts from when it was due, so that a contender that stalls
//! is charged for all requests that had to wait meanwhile. One thread for each connection, which sleeps until its arrival is due.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::calls::{ANSWER_BYTES, Calls};
use super::figures::percentile;
use super::machine::{Cpu, sleep_precisely};

/// Requests a second, over all connections.
pub const RATE: u32 = 2_000;
/// More connections than are ever busy at once unless a contender stalls for 30 ms.
const CONNECTIONS: usize = 64;
/// The beginning of a slice, whose latencies are not counted: in it, contenders still write what the saturated slice before left them.
const WARM_UP: Duration = Duration::from_millis(250);
/// The time before the first arrival: threads started, connections open and used once.
const LEAD: Duration = Duration::from_millis(20);

/// Latencies of a slice, in milliseconds, and what its requests cost.
#[derive(Debug, Clone, Copy)]
pub struct Latency {
    /// The median.
    pub p50_ms: f64,
    /// The 99th percentile.
    pub p99_ms: f64,
    /// The 99.9th percentile.
    pub p999_ms: f64,
    /// CPU time of the contender a request, in microseconds.
    pub cpu_us: f64,
}

/// A slice of this duration after [`WARM_UP`], spread over the contenders (several gateways, say), whose processes are `measured`; the same seed gives
/// the same arrivals.
///
/// # Panics
/// If an answer is not the expected one of this contender.
pub fn hold(calls: &[Arc<Calls>], measured: &[u32], time: Duration, seed: u64) -> Latency {
    let arrivals = arrivals(WARM_UP + time, seed);
    let next = AtomicUsize::new(0);
    let connections: Vec<_> = calls
        .iter()
        .cycle()
        .take(CONNECTIONS)
        .map(connect)
        .collect();
    let used = || measured.iter().map(|pid| Cpu::of(*pid)).collect::<Vec<_>>();
    let before = used();
    let start = Instant::now() + LEAD;
    let mut latencies: Vec<Duration> = std::thread::scope(|scope| {
        let running: Vec<_> = connections
            .into_iter()
            .map(|connection| scope.spawn(|| serve(connection, start, &arrivals, &next)))
            .collect();
        let found = running.into_iter().map(|one| one.join().unwrap());
        found.flatten().collect()
    });
    let cpu: Duration = used().iter().zip(&before).map(|(a, b)| a.since(b)).sum();
    Latency {
        cpu_us: cpu.as_secs_f64() * 1e6 / arrivals.len() as f64,
        p50_ms: percentile(&mut latencies, 0.5),
        p99_ms: percentile(&mut latencies, 0.99),
        p999_ms: percentile(&mut latencies, 0.999),
    }
}

/// When requests are due, from the start of the slice.
fn arrivals(time: Duration, seed: u64) -> Vec<Duration> {
    let mut random = fastrand::Rng::with_seed(seed);
    let gaps = std::iter::repeat_with(|| -(1.0 - random.f64()).ln() / f64::from(RATE));
    let times = gaps.scan(0.0, |at, gap| {
        *at += gap;
        Some(Duration::from_secs_f64(*at))
    });
    times.take_while(|at| *at < time).collect()
}

type Connection = (TcpStream, Arc<Calls>);

fn connect(calls: &Arc<Calls>) -> Connection {
    let mut stream = TcpStream::connect(calls.address).unwrap();
    stream.set_nodelay(true).unwrap();
    call(&mut stream, calls, &mut [0; ANSWER_BYTES]);
    (stream, Arc::clone(calls))
}

/// Sends one request after the other as they are due, until none is left.
fn serve(
    (mut stream, calls): Connection,
    start: Instant,
    arrivals: &[Duration],
    next: &AtomicUsize,
) -> Vec<Duration> {
    sleep_precisely();
    let mut latencies = Vec::with_capacity(1_024);
    let mut buffer = [0; ANSWER_BYTES];
    while let Some(arrival) = arrivals.get(next.fetch_add(1, Ordering::Relaxed)) {
        let due = start + *arrival;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        call(&mut stream, &calls, &mut buffer);
        if *arrival >= WARM_UP {
            latencies.push(due.elapsed());
        }
    }
    latencies
}

fn call(stream: &mut TcpStream, calls: &Calls, buffer: &mut [u8]) {
    stream.write_all(calls.next()).unwrap();
    let mut filled = 0;
    loop {
        let read = stream.read(&mut buffer[filled..]).unwrap();
        assert!(read > 0, "{} closed the connection", calls.address);
        filled += read;
        if calls.answered(&buffer[..filled]) {
            return;
        }
    }
}
