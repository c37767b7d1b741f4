//! Instructions a request, counted by callgrind: `make profile`. They repeat to a few in a hundred where times do not, so that a
//! regression shows on any machine. User instructions of the whole process, background included, while a counted number
//! of requests goes over 16 connections.
//!
//! The gateway is slow under it: groups of charges are smaller than at full speed.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use harness::eventually;
use harness::process::Process;

use super::calls::Calls;
use super::closed::Connections;
use super::kind::{Kind, PATH};
use super::machine::{FIRST_CORE, TOUCHLINE, example, free_port, loopback, on_cores};
use super::stage::{Stage, spawn};
use super::start::{Settled, answers};

const KEYS: usize = 20;
const CONNECTIONS: usize = 16;
const WARMING: Duration = Duration::from_secs(3);
const COUNTED: Duration = Duration::from_secs(10);

/// Bare pingora, then Touchline on either store.
pub async fn measure() {
    let stage = Stage::set().await;
    let directory = stage.directory("counts");
    let port = free_port();
    let mut bare = vec![example("bare_pingora").display().to_string()];
    bare.push(format!("127.0.0.1:{port}"));
    bare.push(format!("127.0.0.1:{}", stage.upstream_port));
    let calls = Calls::new(loopback(port), 200, &["none".into()], &[PATH.into()]);
    let mut floor = None;
    let mut table = "| | Instructions a request | beyond pingora |\n|---|---:|---:|\n".to_owned();
    let mut found = vec![(Kind::Pingora, bare, calls)];
    for (kind, store) in [
        (Kind::Embedded, stage.embedded_store("counts")),
        (Kind::Redis, stage.redis_store("counts")),
    ] {
        let settled = Settled::new(&stage, store, &directory, &format!("{kind:?}"), KEYS).await;
        let address = loopback(settled.port);
        let config = settled.config.display().to_string();
        let command = [TOUCHLINE, "serve", "--config", &config].map(str::to_owned);
        let calls = Calls::new(address, 200, &settled.keys, &[PATH.into()]);
        found.push((kind, command.to_vec(), calls));
    }
    for (kind, command, calls) in found {
        eprintln!("counting: {}", kind.name());
        let count = count(&command, Arc::new(calls), &directory).await;
        let floor = *floor.get_or_insert(count);
        let beyond = count - floor;
        table.push_str(&format!("| {} | {count:.0} | {beyond:.0} |\n", kind.name()));
    }
    println!("{table}");
}

/// Instructions a request of this command.
async fn count(command: &[String], calls: Arc<Calls>, directory: &Path) -> f64 {
    let out = directory.join("callgrind.out");
    let mut under = on_cores(FIRST_CORE, "valgrind");
    under.args(["--tool=callgrind", "--instr-atstart=no"]);
    under.arg(format!("--callgrind-out-file={}", out.display()));
    under.args(command).current_dir(directory);
    let mut process = spawn(under, directory, "counted");
    eventually("it answers", async || {
        assert!(process.ended().is_none(), "{}", process.output());
        answers(&calls).then_some(())
    })
    .await;
    let mut connections = Connections::open(&[calls], CONNECTIONS).await;
    connections.saturate(WARMING).await;
    control(&process, &["-i", "on"]);
    let (answered, _) = connections.saturate(COUNTED).await;
    control(&process, &["-i", "off"]);
    control(&process, &["-d"]);
    // The dump is the first of the process and has the number 1.
    let dump = eventually("callgrind writes what it counted", async || {
        let text = std::fs::read_to_string(out.with_extension("out.1")).ok()?;
        let total = text.lines().find_map(|line| line.strip_prefix("totals: "));
        total.and_then(|total| total.trim().parse::<u64>().ok())
    });
    let total = dump.await;
    process.kill9();
    std::fs::remove_file(out.with_extension("out.1")).unwrap();
    total as f64 / answered.len() as f64
}

fn control(process: &Process, arguments: &[&str]) {
    let mut command = Command::new("callgrind_control");
    command.args(arguments).arg(process.pid().to_string());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
}
