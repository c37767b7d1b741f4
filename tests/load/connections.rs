//! What connections cost the gateway in memory: `make memory`, or `CONNECTIONS=10000 cargo bench --bench connections`.
//!
//! Idle ones have had one answer each and wait for the next request. Hostile ones are over HTTP/2: each asks for large answers on
//! all streams that it may open and reads nothing of them. Prints figures; needs twice as many open files (`ulimit -n`).
#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::indexing_slicing)]

use std::sync::Arc;
use std::time::Duration;

use harness::client::{HOST, any_certificate};
use harness::upstream::Script;
use harness::{Behaviour, Scene};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

const TOUCHLINE: &str = env!("CARGO_BIN_EXE_touchline");
const MARKETS: &str = "/api/v1/data/markets";
/// Hostile connections, which cost more.
const HOSTILE: usize = 50;
/// Streams of each: as many as `limits.h2_streams` lets in.
const STREAMS: u32 = 100;
const ANSWER_BYTES: usize = 1024 * 1024;

fn connector(alpn: &[u8]) -> tokio_rustls::TlsConnector {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(any_certificate())
        .with_no_client_auth();
    config.alpn_protocols = vec![alpn.to_vec()];
    Arc::new(config).into()
}

async fn connect(scene: &Scene, tls: &tokio_rustls::TlsConnector) -> TlsStream<TcpStream> {
    let socket = TcpStream::connect(scene.gateways[0].https).await.unwrap();
    let name = ServerName::try_from(HOST).unwrap();
    tls.connect(name, socket).await.unwrap()
}

/// What of the gateway is in memory, in KiB.
fn resident(scene: &mut Scene) -> u64 {
    let id = scene.gateways[0].process().pid();
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.unwrap().trim().trim_end_matches(" kB");
    number.parse().unwrap()
}

/// What is in memory once it does not change any more.
async fn settled(scene: &mut Scene) -> u64 {
    let mut before = resident(scene);
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let now = resident(scene);
        if now.abs_diff(before) < 64 {
            break;
        }
        before = now;
    }
    resident(scene)
}

async fn scene() -> Scene {
    Scene::builder(TOUCHLINE)
        .spec(|spec| {
            spec.threads = 2;
            spec.extra_yaml =
                "limits: { keepalive_idle: 1h, connections: 100000, response_write: 10m }".into();
        })
        .start()
        .await
}

async fn idle(number: usize) {
    let mut scene = scene().await;
    let key = scene.issue("enterprise").await;
    let tls = connector(b"http/1.1");
    let request = format!(
        "GET {MARKETS} HTTP/1.1\r\nHost: {HOST}\r\nX-API-Key: {}\r\n\r\n",
        key.key
    );
    let mut held = Vec::with_capacity(number);
    // Warm: what the first connections leave behind is not the others'.
    for _ in 0..100 {
        let mut stream = connect(&scene, &tls).await;
        stream.write_all(request.as_bytes()).await.unwrap();
        stream.read_exact(&mut [0; 12]).await.unwrap();
    }
    let before = settled(&mut scene).await;
    for index in 0..number {
        let mut stream = connect(&scene, &tls).await;
        // The day's quota is a tier's: the others are refused, with an answer all the same.
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut first = [0; 9];
        stream.read_exact(&mut first).await.unwrap();
        assert_eq!(&first, b"HTTP/1.1 ", "connection {index}");
        held.push(stream);
    }
    let open = scene.metric("touchline_connections").await;
    assert!(open >= number as f64, "{open} are open");
    let after = settled(&mut scene).await;
    let each = (after - before) as f64 / number as f64;
    println!(
        "{number} idle TLS connections: {before} KiB before, {after} KiB with them: {each:.1} KiB each"
    );
}

/// HTTP/2 frames by hand: the preface with a window of nothing, then a request on every stream.
fn hostile_bytes(key: &str) -> Vec<u8> {
    let frame = |kind: u8, flags: u8, stream: u32, payload: &[u8]| {
        let mut frame = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        frame
    };
    let literal = |index: u8, value: &str| {
        let mut field = vec![index, u8::try_from(value.len()).unwrap()];
        field.extend(value.bytes());
        field
    };
    let named = |name: &str, value: &str| {
        let mut field = vec![0, u8::try_from(name.len()).unwrap()];
        field.extend(name.bytes());
        field.push(u8::try_from(value.len()).unwrap());
        field.extend(value.bytes());
        field
    };
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    // SETTINGS_INITIAL_WINDOW_SIZE 0.
    bytes.extend(frame(4, 0, 0, &[0, 4, 0, 0, 0, 0]));
    for number in 0..STREAMS {
        // :method GET and :scheme https of the static table, then :path and :authority without indexing.
        let block = [
            vec![0x82, 0x87],
            literal(0x04, MARKETS),
            literal(0x01, HOST),
            named("x-api-key", key),
        ]
        .concat();
        bytes.extend(frame(1, 0x05, number * 2 + 1, &block));
    }
    bytes
}

async fn hostile(number: usize) {
    let mut scene = scene().await;
    let large = Script::json(200, &"a".repeat(ANSWER_BYTES));
    scene.upstream.always(Behaviour::Answer(large));
    let key = scene.issue("enterprise").await;
    let tls = connector(b"h2");
    let bytes = hostile_bytes(&key.key);
    let before = settled(&mut scene).await;
    let mut held = Vec::new();
    for _ in 0..number {
        let mut stream = connect(&scene, &tls).await;
        stream.write_all(&bytes).await.unwrap();
        stream.flush().await.unwrap();
        held.push(stream);
    }
    let after = settled(&mut scene).await;
    let in_flight = scene.metric("touchline_in_flight_requests").await;
    let each = (after - before) as f64 / number as f64 / 1024.0;
    let factor = (after - before) as f64 * 1024.0 / (bytes.len() * number) as f64;
    println!(
        "{number} hostile HTTP/2 connections with {in_flight} requests under way: {before} KiB before, {after} KiB with them: \
         {each:.2} MiB each, {factor:.0} times the {} bytes that each had sent",
        bytes.len()
    );
}

#[tokio::main]
async fn main() {
    let given = std::env::var("CONNECTIONS")
        .ok()
        .filter(|text| !text.is_empty());
    let number = given.map_or(10_000, |text| text.parse().unwrap());
    idle(number).await;
    hostile(HOSTILE).await;
}
