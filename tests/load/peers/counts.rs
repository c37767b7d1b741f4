//! Instructions a request, counted by callgrind: `make profile`. They repeat to a few in a hundred where times do not, so that a
//! regression shows on any machine. User instructions of the whole process, background included, while a counted number
//! of requests goes over 16 connections. And what misses the caches of a core as callgrind imagines it, since that is where
//! builds of the same code differ.
//!
//! The gateway is slow under it: groups of charges are smaller than at full speed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use harness::eventually;
use harness::process::Process;

use super::calls::Calls;
use super::closed::Connections;
use super::kind::{Kind, PATH};
use super::machine::{FIRST_CORE, TOUCHLINE, example, free_port, loopback, on_cores, optimised};
use super::stage::{Stage, spawn};
use super::start::{Settled, answers};

const KEYS: usize = 20;
const CONNECTIONS: usize = 16;
const WARMING: Duration = Duration::from_secs(3);
const COUNTED: Duration = Duration::from_secs(10);

/// Of a core: 32 KiB for code, 48 KiB for data, and 1 MiB behind them, which callgrind calls the last.
const CACHES: [&str; 4] = [
    "--cache-sim=yes",
    "--I1=32768,8,64",
    "--D1=49152,12,64",
    "--LL=1048576,8,64",
];

/// What callgrind counted, for each request.
struct Counts(BTreeMap<String, f64>);

impl Counts {
    /// Of a dump with its lines `events: Ir Dr …` and `totals: 1 2 …`; none where it is not whole.
    fn of(dump: &str, requests: usize) -> Option<Counts> {
        let line = |name| dump.lines().find_map(|line| line.strip_prefix(name));
        let totals = line("totals: ")?.split_whitespace();
        let each = totals.map(|total| total.parse::<u64>().unwrap() as f64 / requests as f64);
        let names = line("events: ")?.split_whitespace().map(str::to_owned);
        Some(Counts(names.zip(each).collect()))
    }

    fn sum(&self, events: &[&str]) -> f64 {
        events.iter().map(|event| self.0[*event]).sum()
    }
}

/// Bare pingora, then Touchline on either store, of the plain build and of the one by profile.
pub async fn measure() {
    let stage = Stage::set().await;
    let port = free_port();
    let mut bare = vec![example("bare_pingora").display().to_string()];
    bare.push(format!("127.0.0.1:{port}"));
    bare.push(format!("127.0.0.1:{}", stage.upstream_port));
    let calls = Calls::new(loopback(port), 200, &["none".into()], &[PATH.into()]);
    let mut floor = None;
    let mut table = "| A request of | Instructions | beyond pingora | first-level misses, code | data | second-level |\n\
                     |---|---:|---:|---:|---:|---:|\n"
        .to_owned();
    let mut found = vec![(Kind::Pingora, bare, calls, stage.directory("counts"))];
    let plain = [Kind::Embedded, Kind::Redis].map(|kind| (kind, PathBuf::from(TOUCHLINE)));
    let by_profile = optimised()
        .map(|path| [Kind::EmbeddedPgo, Kind::RedisPgo].map(|kind| (kind, path.clone())));
    for (kind, binary) in plain.into_iter().chain(by_profile.into_iter().flatten()) {
        let name = format!("{kind:?}");
        let store = match kind {
            Kind::Embedded | Kind::EmbeddedPgo => stage.embedded_store(&name),
            _ => stage.redis_store(&name),
        };
        // A journal belongs to one store.
        let directory = stage.directory(&format!("counts-{name}"));
        let settled = Settled::new(&stage, store, &directory, &name, KEYS).await;
        let address = loopback(settled.port);
        let config = settled.config.display().to_string();
        let binary = binary.display().to_string();
        let command = [&binary, "serve", "--config", &config].map(str::to_owned);
        let calls = Calls::new(address, 200, &settled.keys, &[PATH.into()]);
        found.push((kind, command.to_vec(), calls, directory));
    }
    for (kind, command, calls, directory) in found {
        eprintln!("counting: {}", kind.name());
        let counts = count(&command, Arc::new(calls), &directory).await;
        let instructions = counts.sum(&["Ir"]);
        let beyond = instructions - *floor.get_or_insert(instructions);
        let code = counts.sum(&["I1mr"]);
        let data = counts.sum(&["D1mr", "D1mw"]);
        let second = counts.sum(&["ILmr", "DLmr", "DLmw"]);
        table.push_str(&format!(
            "| {} | {instructions:.0} | {beyond:.0} | {code:.0} | {data:.0} | {second:.0} |\n",
            kind.name()
        ));
    }
    println!("{table}");
}

/// What a request of this command takes.
async fn count(command: &[String], calls: Arc<Calls>, directory: &Path) -> Counts {
    let out = directory.join("callgrind.out");
    let mut under = on_cores(FIRST_CORE, "valgrind");
    under.args(["--tool=callgrind", "--instr-atstart=no"]);
    under.args(CACHES);
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
        Counts::of(&text, answered.len())
    });
    let counts = dump.await;
    process.kill9();
    std::fs::remove_file(out.with_extension("out.1")).unwrap();
    counts
}

fn control(process: &Process, arguments: &[&str]) {
    let mut command = Command::new("callgrind_control");
    command.args(arguments).arg(process.pid().to_string());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
}
