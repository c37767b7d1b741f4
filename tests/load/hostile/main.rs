//! The cost of one hostile HTTP/2 connection for the gateway: `make hostile`. `FORM` selects the forms with this text in their
//! names, `TOUCHLINE` names another binary.
//!
//! Each form of attack is made by several connections at once against a gateway of its own that has served honest requests
//! before. It reports the largest growth of the gateway's memory (anonymous, resident) for each of them, and its
//! ratio to the bytes that the attacker sent. Exits with 1 if a form breaks a bound.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a measurement fails by panicking and prints what it found"
)]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use harness::upstream::Script;
use harness::{Behaviour, Call, Protocol, Scene};
use tokio::io::AsyncWriteExt;

use forms::Form;
use frames::{DATA, Frame, WINDOW_UPDATE, Wire};

mod forms;
#[allow(dead_code, reason = "the suite of attacks uses more of it")]
#[path = "../../edge/frames.rs"]
mod frames;

/// The default binary.
const BUILT: &str = env!("CARGO_BIN_EXE_touchline");
const MARKETS: &str = "/api/v1/data/markets";
/// Connections that attack at the same time.
const CONNECTIONS: usize = 8;
/// How long memory is watched once everything is sent.
const LOOKED_AT: Duration = Duration::from_secs(3);
const COST_BYTES_MAX: f64 = 4.0 * 1024.0 * 1024.0;
const AMPLIFICATION_MAX: f64 = 100.0;

fn main() -> ExitCode {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    println!("{CONNECTIONS} connections at a time; of each of them:");
    println!(
        "{:<52} {:>10} {:>12} {:>14}",
        "form", "sent KiB", "memory MiB", "amplification"
    );
    let only = std::env::var("FORM").unwrap_or_default();
    let mut broken = false;
    for form in forms::all() {
        if !form.name.contains(&only) {
            continue;
        }
        let cost = runtime.block_on(measure(&form));
        let amplification = cost.memory_bytes / cost.sent_bytes;
        let fails = cost.memory_bytes > COST_BYTES_MAX || amplification > AMPLIFICATION_MAX;
        broken |= fails;
        println!(
            "{:<52} {:>10.1} {:>12.2} {:>12.0}:1{}",
            form.name,
            cost.sent_bytes / 1024.0,
            cost.memory_bytes / 1024.0 / 1024.0,
            amplification,
            if fails { "  over the bound" } else { "" }
        );
    }
    match broken {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    }
}

struct Cost {
    sent_bytes: f64,
    memory_bytes: f64,
}

async fn measure(form: &Form) -> Cost {
    let mut scene = Scene::builder(std::env::var("TOUCHLINE").unwrap_or(BUILT.into()))
        .daily("enterprise", 1_000_000)
        .spec(|spec| spec.endpoints[0].methods.push("POST".into()))
        .start()
        .await;
    let key = scene.issue("enterprise").await;
    for protocol in Protocol::ALL {
        let client = scene.client(protocol);
        for _ in 0..50 {
            assert_eq!(client.call(Call::get(MARKETS).key(&key)).await.status, 200);
        }
    }
    let answer_bytes = form.answer_bytes;
    scene
        .upstream
        .behave(move |asked| match asked.method.as_str() {
            "POST" => Behaviour::Stall,
            _ if answer_bytes == 0 => Behaviour::Stall,
            _ => Behaviour::Answer(Script::json(200, &"x".repeat(answer_bytes))),
        });
    let before = scene.gateways[0].process().anonymous_bytes();
    let (mut wires, mut sent) = (Vec::new(), 0);
    for _ in 0..CONNECTIONS {
        let mut wire = Wire::with_settings(&scene, form.settings).await;
        let bytes = (form.attack)(&key.key);
        // A connection that was refused is a cheap one.
        let _ = wire.socket.write_all(&bytes).await;
        sent += bytes.len();
        wires.push(wire);
    }
    if form.upload_bytes > 0 {
        for wire in &mut wires {
            sent += upload(wire, form.upload_bytes).await;
        }
    }
    let (start, mut most) = (Instant::now(), before);
    while start.elapsed() < LOOKED_AT {
        most = most.max(scene.gateways[0].process().anonymous_bytes());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(wires);
    scene.gateways[0].kill9();
    let each = |bytes: usize| bytes as f64 / CONNECTIONS as f64;
    Cost {
        sent_bytes: each(sent),
        memory_bytes: each(most - before),
    }
}

/// Sends this part of the body of every stream, as the gateway's windows allow; returns the bytes sent.
async fn upload(wire: &mut Wire, bytes: usize) -> usize {
    let part = 10 * 1024;
    let (mut window, mut sent) = (65_535, 0);
    for _ in 0..bytes / part {
        for stream in forms::streams() {
            while window < part {
                let next = tokio::time::timeout(Duration::from_secs(1), wire.next()).await;
                let Ok(Some(frame)) = next else {
                    return sent;
                };
                if frame.kind == WINDOW_UPDATE && frame.stream == 0 {
                    window += u32::from_be_bytes(frame.payload[..4].try_into().unwrap()) as usize;
                }
            }
            let body = vec![b'x'; part];
            let frame = Frame::new(DATA, 0, stream, body);
            if !wire.send(&frame).await {
                return sent;
            }
            window -= part;
            sent += part + 9;
        }
    }
    sent
}
