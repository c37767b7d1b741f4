//! Saturation of a contender: each connection sends its next request when it has the answer to the last one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::calls::{ANSWER_BYTES, Calls};
use super::figures::percentile;
use super::machine::Cpu;

/// Load before a slice, over its connections: threads are awake, and other contenders' data has left the caches.
const WARMING: Duration = Duration::from_millis(100);
/// The time after a slice in which a contender completes its background work: charges, journal, log.
const SETTLING: Duration = Duration::from_millis(30);

/// The figures of a slice.
#[derive(Debug, Clone, Copy)]
pub struct Slice {
    /// User and system time of the measured processes for a request, in microseconds.
    pub cpu_us: f64,
    /// The same of Redis.
    pub redis_cpu_us: f64,
    /// Answered requests a second.
    pub per_second: f64,
    /// The 99th percentile of their latency.
    pub p99_ms: f64,
}

/// Connections of one contender.
pub struct Connections {
    open: Vec<(Connection, Arc<Calls>)>,
}

struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connections {
    /// Opens this number of connections, spread over the contenders (several gateways, say); each has had one answer.
    pub async fn open(calls: &[Arc<Calls>], count: usize) -> Connections {
        let mut open = Vec::with_capacity(count);
        for number in 0..count {
            let calls = Arc::clone(&calls[number % calls.len()]);
            let stream = TcpStream::connect(calls.address).await.unwrap();
            stream.set_nodelay(true).unwrap();
            let buffer = vec![0; ANSWER_BYTES];
            let mut connection = Connection { stream, buffer };
            connection.call(&calls).await;
            open.push((connection, calls));
        }
        Connections { open }
    }

    /// Keeps all connections busy for this duration; returns the latencies of all answers, and the time in which they arrived.
    pub async fn saturate(&mut self, time: Duration) -> (Vec<Duration>, Duration) {
        let start = Instant::now();
        let running: Vec<_> = self
            .open
            .drain(..)
            .map(|(mut connection, calls)| {
                tokio::spawn(async move {
                    let mut latencies = Vec::with_capacity(1_024);
                    let mut before = Instant::now();
                    while before - start < time {
                        connection.call(&calls).await;
                        let now = Instant::now();
                        latencies.push(now - before);
                        before = now;
                    }
                    (connection, calls, latencies)
                })
            })
            .collect();
        let mut all = Vec::new();
        for one in running {
            let (connection, calls, latencies) = one.await.unwrap();
            self.open.push((connection, calls));
            all.extend(latencies);
        }
        (all, start.elapsed())
    }

    /// Sends this number of requests one after the other, each when the one before has its answer.
    pub async fn in_turn(&mut self, requests: usize) {
        for number in 0..requests {
            let turn = number % self.open.len();
            let (connection, calls) = &mut self.open[turn];
            connection.call(calls).await;
        }
    }

    /// Runs a slice: warm-up, then measurement of the CPU time of `measured` and Redis.
    pub async fn measure(&mut self, measured: &[u32], redis: u32, time: Duration) -> Slice {
        let used = || measured.iter().map(|pid| Cpu::of(*pid)).collect::<Vec<_>>();
        self.saturate(WARMING).await;
        tokio::time::sleep(SETTLING).await;
        let (before, redis_before) = (used(), Cpu::of(redis));
        let (mut latencies, elapsed) = self.saturate(time).await;
        tokio::time::sleep(SETTLING).await;
        let after = used();
        let pairs = after.iter().zip(&before);
        let cpu: Duration = pairs.map(|(after, before)| after.since(before)).sum();
        let per_request = |time: Duration| time.as_secs_f64() * 1e6 / latencies.len() as f64;
        Slice {
            cpu_us: per_request(cpu),
            redis_cpu_us: per_request(Cpu::of(redis).since(&redis_before)),
            per_second: latencies.len() as f64 / elapsed.as_secs_f64(),
            p99_ms: percentile(&mut latencies, 0.99),
        }
    }
}

impl Connection {
    async fn call(&mut self, calls: &Calls) {
        self.stream.write_all(calls.next()).await.unwrap();
        let mut filled = 0;
        loop {
            let read = self.stream.read(&mut self.buffer[filled..]).await.unwrap();
            assert!(read > 0, "{} closed the connection", calls.address);
            filled += read;
            if calls.answered(&self.buffer[..filled]) {
                return;
            }
        }
    }
}
