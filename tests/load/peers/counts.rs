//! Instructions a request, counted by callgrind: `make profile`. User instructions of the whole process, background included, while a
//! counted number of requests is sent over 16 connections. Also the cache misses of a core as callgrind simulates it, since builds
//! of the same code differ in them.
//!
//! The gateway is slow under it: groups of charges are smaller than at full speed, and how large they are depends on the machine's other
//! load. Counts on the embedded store differ by up to a fifth for that; [`super::budget`] counts what repeats.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::callgrind::Counted;
use super::calls::Calls;
use super::closed::Connections;
use super::kind::{Kind, PATH};
use super::machine::{FIRST_CORE, TOUCHLINE, example, free_port, loopback, optimised};
use super::stage::Stage;
use super::start::Settled;

const KEYS: usize = 20;
const CONNECTIONS: usize = 16;
const WARMING: Duration = Duration::from_secs(3);
const COUNTED: Duration = Duration::from_secs(10);

/// The caches of a core: 32 KiB for code, 48 KiB for data, and 1 MiB behind them, which callgrind calls the last.
const CACHES: [&str; 4] = [
    "--cache-sim=yes",
    "--I1=32768,8,64",
    "--D1=49152,12,64",
    "--LL=1048576,8,64",
];

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
        let settled = Settled::new(&stage.spec(store), &directory, &name, KEYS).await;
        let address = loopback(settled.port);
        let config = settled.config.display().to_string();
        let binary = binary.display().to_string();
        let command = [&binary, "serve", "--config", &config].map(str::to_owned);
        let calls = Calls::new(address, 200, &settled.keys, &[PATH.into()]);
        found.push((kind, command.to_vec(), calls, directory));
    }
    for (kind, command, calls, directory) in found {
        eprintln!("counting: {}", kind.name());
        let mut counted = Counted::start(FIRST_CORE, &CACHES, &command, &calls, &directory).await;
        let mut connections = Connections::open(&[Arc::new(calls)], CONNECTIONS).await;
        connections.saturate(WARMING).await;
        counted.count("on");
        let (answered, _) = connections.saturate(COUNTED).await;
        counted.count("off");
        let counts = counted.dump().await;
        let each = |events: &[&str]| counts.sum(events) / answered.len() as f64;
        let instructions = each(&["Ir"]);
        let beyond = instructions - *floor.get_or_insert(instructions);
        let code = each(&["I1mr"]);
        let data = each(&["D1mr", "D1mw"]);
        let second = each(&["ILmr", "DLmr", "DLmw"]);
        table.push_str(&format!(
            "| {} | {instructions:.0} | {beyond:.0} | {code:.0} | {data:.0} | {second:.0} |\n",
            kind.name()
        ));
    }
    println!("{table}");
}
