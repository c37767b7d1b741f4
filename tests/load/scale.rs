//! The gateway and its commands with very many keys, and what an idle gateway costs: `make scale`. Figures, not a verdict.
//!
//! On each store: imports `KEYS` (1,000,000) keys of a third as many customers, restarts the gateway, calls each key once, runs the
//! commands that read them, and measures the gateway without requests for `IDLE_SECONDS` (120). Times are wall time; memory is the
//! largest resident set that was seen, by polling.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr
)]

#[allow(dead_code)]
#[path = "peers/machine.rs"]
mod machine;

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use harness::scene::Store;
use harness::{Scene, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use machine::{Cpu, resident_mib};

const TOUCHLINE: &str = env!("CARGO_BIN_EXE_touchline");
/// Client connections, and the requests on their way on each.
const CONNECTIONS: usize = 32;
const PIPELINED: usize = 16;
/// Between two readings of a process's memory.
const POLL: Duration = Duration::from_millis(5);
/// How long a gateway gets to become quiet after its last request.
const SETTLING: Duration = Duration::from_secs(30);

fn main() {
    let number = |name: &str, default| {
        let given = std::env::var(name).ok().filter(|text| !text.is_empty());
        given.map_or(default, |text| text.parse::<usize>().unwrap())
    };
    let keys = number("KEYS", 1_000_000);
    let idle = Duration::from_secs(number("IDLE_SECONDS", 120) as u64);
    println!("{keys} keys, idle for {} s\n", idle.as_secs());
    println!("| Store | What | Seconds | MiB at most |\n|---|---|---:|---:|");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for store in [Store::Embedded, Store::Redis] {
        runtime.block_on(measure(store, keys, idle));
    }
}

async fn measure(store: Store, keys: usize, idle: Duration) {
    let row = |what: &str, seconds: f64, mib: f64| {
        println!("| {store:?} | {what} | {seconds:.1} | {mib:.0} |");
    };
    let mut scene = Scene::builder(TOUCHLINE)
        .store(store)
        .spec(|spec| spec.threads = 2)
        .start()
        .await;
    let config = scene.gateways[0].config.clone();
    let command = |name: &str, arguments: &[&str]| {
        let mut command = Command::new(TOUCHLINE);
        command.args(arguments).arg("--config").arg(&config);
        let (seconds, mib) = run(command);
        row(name, seconds, mib);
    };
    let file = scene.outside().join("keys.csv");
    write_keys(&file, keys);
    let path = file.to_str().unwrap();
    let customer = customer_of(keys / 2);
    let today = today();
    let month = &today[..7];
    command("`keys import`", &["keys", "import", path]);

    let begun = Instant::now();
    scene.gateways[0].restart().await;
    eventually("the gateway is ready", async || {
        (scene.admin(0, "/readyz").await.0 == 200).then_some(())
    })
    .await;
    let pid = scene.gateways[0].process().pid();
    row(
        "start, until ready",
        begun.elapsed().as_secs_f64(),
        resident_mib(pid),
    );

    let begun = Instant::now();
    call_each(scene.gateways[0].http, keys).await;
    row(
        "each key called once",
        begun.elapsed().as_secs_f64(),
        resident_mib(pid),
    );

    if let Some(redis) = &scene.redis {
        let mib = used_mib(&redis.command(&["INFO", "memory"]).await.unwrap());
        row("Redis itself, with a day of each key", 0.0, mib);
    }

    command(
        "`keys list --search`",
        &["keys", "list", "--search", &customer],
    );
    command("`keys list`", &["keys", "list"]);
    command("`keys export`", &["keys", "export"]);
    command(
        "`usage --by key`",
        &["usage", "--by", "key", "--from", &today],
    );
    command("`usage verify`", &["usage", "verify", "--from", &today]);
    command("`usage invoice`", &["usage", "invoice", "--month", month]);

    tokio::time::sleep(SETTLING).await;
    let (before, begun) = (Cpu::of(pid), Instant::now());
    tokio::time::sleep(idle).await;
    let used = Cpu::of(pid).since(&before).as_secs_f64();
    let percent = 100.0 * used / begun.elapsed().as_secs_f64();
    row(
        &format!("idle, {percent:.2} % of a core"),
        used,
        resident_mib(pid),
    );
}

/// The memory that Redis uses, from its `INFO memory`, in MiB.
fn used_mib(info: &str) -> f64 {
    let mut lines = info.lines();
    let bytes = lines.find_map(|line| line.strip_prefix("used_memory:"));
    bytes.unwrap().trim().parse::<f64>().unwrap() / f64::from(1 << 20)
}

fn key_of(number: usize) -> String {
    format!("scale-{number:034}")
}

fn customer_of(number: usize) -> String {
    format!("Customer {}", number / 3)
}

fn write_keys(file: &Path, keys: usize) {
    let mut text = String::from("customer,tier,key\n");
    for number in 0..keys {
        writeln!(text, "{},starter,{}", customer_of(number), key_of(number)).unwrap();
    }
    std::fs::write(file, text).unwrap();
}

/// Today's date in UTC, the zone of the scene's quota day.
fn today() -> String {
    let output = Command::new("date").args(["-u", "+%F"]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Runs a command with its output discarded; its seconds, and the most memory that it had in MiB.
fn run(mut command: Command) -> (f64, f64) {
    let begun = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut most = 0;
    let status = loop {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id()));
        let peak = status.ok().and_then(|text| {
            let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
            line.trim().trim_end_matches(" kB").parse::<u64>().ok()
        });
        most = most.max(peak.unwrap_or_default());
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        std::thread::sleep(POLL);
    };
    assert!(status.success(), "{command:?}: {status}");
    (begun.elapsed().as_secs_f64(), most as f64 / 1024.0)
}

/// One GET with each key, over a few connections.
async fn call_each(gateway: SocketAddr, keys: usize) {
    let clients = (0..CONNECTIONS).map(|client| {
        tokio::spawn(async move {
            let mut socket = TcpStream::connect(gateway).await.unwrap();
            let mine: Vec<usize> = (client..keys).step_by(CONNECTIONS).collect();
            for some in mine.chunks(PIPELINED) {
                let mut requests = Vec::new();
                for number in some {
                    write!(
                        requests,
                        "GET /api/v1/data/markets HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {}\r\n\r\n",
                        key_of(*number)
                    )
                    .unwrap();
                }
                socket.write_all(&requests).await.unwrap();
                let mut received = Vec::new();
                while count(&received, b"HTTP/1.1 200") < some.len() || !received.ends_with(b"}") {
                    assert!(socket.read_buf(&mut received).await.unwrap() > 0);
                    assert_eq!(count(&received, b"HTTP/1.1 4"), 0, "a key was refused");
                }
            }
        })
    });
    for client in clients.collect::<Vec<_>>() {
        client.await.unwrap();
    }
}

fn count(text: &[u8], part: &[u8]) -> usize {
    text.windows(part.len()).filter(|one| one == &part).count()
}
