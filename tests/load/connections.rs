//! The gateway's memory for idle TLS connections: `make memory`, or `CONNECTIONS=10000 cargo bench --bench connections`.
//!
//! Each has had one whole answer and waits for the next request, over HTTP/1.1 and over HTTP/2, after a request of everyday size and
//! after one whose head is nearly as large as `limits` allow. Prints figures; exits with 1 above a bound. Client and gateway each need a
//! file for every connection (`ulimit -n`). `GATEWAY` names another binary to measure than the one that is built.
#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::indexing_slicing)]

// Frames by hand, as the tests of the edge write them.
#[allow(dead_code)]
#[path = "../edge/frames.rs"]
mod frames;

use std::process::ExitCode;
use std::time::Duration;

use frames::{DATA, END_HEADERS, END_STREAM, Frame, HEADERS, SETTINGS, block};
use harness::client::HOST;
use harness::{Protocol, Scene};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

const TOUCHLINE: &str = env!("CARGO_BIN_EXE_touchline");
const MARKETS: &str = "/api/v1/data/markets";
/// The memory that an idle TLS connection may cost.
const BOUND_KIB: f64 = 40.0;
/// The same after the largest head: h2 keeps the buffer that it read the largest frame into.
const BOUND_AFTER_LARGE_KIB: f64 = 72.0;
/// Below `limits.header_bytes`, 16 KiB, with the rest of the head.
const LARGE_BYTES: usize = 15 * 1024;
/// The first connections, whose one-time memory is not counted as a cost of the others.
const WARMING: usize = 100;

/// The memory of the gateway, in KiB.
fn resident(scene: &mut Scene) -> u64 {
    let id = scene.gateways[0].process().pid();
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.unwrap().trim().trim_end_matches(" kB");
    number.parse().unwrap()
}

/// The memory once it no longer changes.
async fn settled(scene: &mut Scene) -> u64 {
    let mut before = resident(scene);
    for _ in 0..30 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let now = resident(scene);
        if now.abs_diff(before) < 64 {
            return now;
        }
        before = now;
    }
    before
}

/// The bytes of one request, and how its answer is read.
struct Visit {
    protocol: Protocol,
    bytes: Vec<u8>,
}

impl Visit {
    fn new(protocol: Protocol, key: &str, large: usize) -> Visit {
        let filler = "f".repeat(large);
        let bytes = if protocol.is_http2() {
            let fields = [
                (":method", "GET"),
                (":scheme", "https"),
                (":authority", HOST),
                (":path", MARKETS),
                ("x-api-key", key),
                ("x-filler", &filler),
            ];
            let flags = END_HEADERS | END_STREAM;
            [
                frames::PREFACE.to_vec(),
                Frame::new(SETTINGS, 0, 0, []).bytes(),
                Frame::new(HEADERS, flags, 1, block(&fields)).bytes(),
            ]
            .concat()
        } else {
            let head = format!(
                "GET {MARKETS} HTTP/1.1\r\nHost: {HOST}\r\nX-API-Key: {key}\r\nX-Filler: {filler}\r\n\r\n"
            );
            head.into_bytes()
        };
        Visit { protocol, bytes }
    }

    /// A connection that has had one answer.
    async fn pay(&self, scene: &Scene) -> TlsStream<TcpStream> {
        let mut stream = scene.client(self.protocol).tls_stream().await;
        stream.write_all(&self.bytes).await.unwrap();
        if self.protocol.is_http2() {
            read_frames(&mut stream).await;
        } else {
            read_answer(&mut stream).await;
        }
        stream
    }
}

/// Reads an HTTP/1.1 answer with a `Content-Length`.
async fn read_answer(stream: &mut TlsStream<TcpStream>) {
    let mut read = Vec::new();
    loop {
        assert!(
            stream.read_buf(&mut read).await.unwrap() > 0,
            "it was closed"
        );
        let text = String::from_utf8_lossy(&read);
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        let head = head.to_ascii_lowercase();
        let length = head.split("content-length: ").nth(1).unwrap();
        if body.len() >= length.lines().next().unwrap().parse().unwrap() {
            return;
        }
    }
}

/// Reads HTTP/2 frames to the end of the first stream, and acknowledges the settings.
async fn read_frames(stream: &mut TlsStream<TcpStream>) {
    let acknowledged = Frame::new(SETTINGS, 1, 0, []);
    stream.write_all(&acknowledged.bytes()).await.unwrap();
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.unwrap();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        stream.read_exact(&mut payload).await.unwrap();
        // Of the header block the first byte is `:status: 200` of the static table.
        assert!(head[3] != HEADERS || payload[0] == 0x88, "{payload:?}");
        if matches!(head[3], HEADERS | DATA) && head[4] & END_STREAM != 0 {
            return;
        }
    }
}

/// The memory of each idle connection, in KiB.
async fn idle(number: usize, protocol: Protocol, large: usize) -> f64 {
    let gateway = std::env::var("GATEWAY").unwrap_or_else(|_| TOUCHLINE.to_owned());
    let mut scene = Scene::builder(gateway)
        .daily("enterprise", 100_000_000)
        .spec(|spec| {
            spec.threads = 2;
            spec.extra_yaml = "limits: { keepalive_idle: 1h, connections: 1000000 }".into();
        })
        .start()
        .await;
    let key = scene.issue("enterprise").await;
    let visit = Visit::new(protocol, &key.key, large);
    for _ in 0..WARMING {
        visit.pay(&scene).await;
    }
    let before = settled(&mut scene).await;
    let mut held = Vec::with_capacity(number);
    for _ in 0..number {
        held.push(visit.pay(&scene).await);
    }
    let after = settled(&mut scene).await;
    let open = scene.metric("touchline_connections").await;
    assert!(open >= number as f64, "only {open} are open");
    let each = (after as f64 - before as f64) / number as f64;
    println!(
        "{number} idle {protocol:?} connections after a request of {} bytes: {before} KiB before, {after} KiB with them: {each:.1} \
         KiB each",
        visit.bytes.len()
    );
    each
}

#[tokio::main]
async fn main() -> ExitCode {
    let given = std::env::var("CONNECTIONS").ok();
    let given = given.filter(|text| !text.is_empty());
    let number = given.map_or(10_000, |text| text.parse().unwrap());
    let mut above = false;
    for protocol in [Protocol::Http1Tls, Protocol::Http2Tls] {
        for (large, bound) in [(0, BOUND_KIB), (LARGE_BYTES, BOUND_AFTER_LARGE_KIB)] {
            if idle(number, protocol, large).await > bound {
                println!("above the bound of {bound} KiB");
                above = true;
            }
        }
    }
    if above {
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
