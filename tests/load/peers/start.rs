//! From the start of a process to its first answer, with both cores: a gateway with 10,000 keys in its store, and bare pingora.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use harness::process::Process;
use harness::{GatewaySpec, StoreSpec};

use super::calls::{ANSWER_BYTES, Calls};
use super::figures::Spread;
use super::kind::{Kind, PATH};
use super::machine::{FIRST_CORE, SECOND_CORE, TOUCHLINE, example, free_port, loopback, on_cores};
use super::stage::{Stage, foreign_keys};

/// Keys in the store.
pub const KEYS: usize = 10_000;
const STARTS: usize = 9;
/// The pause between two attempts to call.
const PAUSE: Duration = Duration::from_micros(500);
const PATIENCE: Duration = Duration::from_secs(60);
const END_PATIENCE: Duration = Duration::from_secs(20);

/// A program to start: the command, and the expected answer.
struct Candidate {
    kind: Kind,
    command: Command,
    calls: Calls,
    found: Vec<f64>,
}

/// Milliseconds of some starts each, taking turns.
pub async fn measure(stage: &Stage) -> Vec<(Kind, Spread)> {
    let mut candidates = vec![
        bare(stage),
        gateway(Kind::Embedded, stage, stage.embedded_store("start")).await,
        gateway(Kind::Redis, stage, stage.redis_store("start")).await,
    ];
    for turn in 1..=STARTS {
        eprintln!("start {turn} of {STARTS}");
        for one in &mut candidates {
            let took = start(one, &stage.directory("start"));
            one.found.push(took.as_secs_f64() * 1e3);
        }
    }
    let found = candidates
        .into_iter()
        .map(|one| (one.kind, Spread::of(one.found)));
    found.collect()
}

fn bare(stage: &Stage) -> Candidate {
    let port = free_port();
    let mut command = on_both(&example("bare_pingora"));
    command.arg(format!("127.0.0.1:{port}"));
    command.arg(format!("127.0.0.1:{}", stage.upstream_port));
    Candidate {
        kind: Kind::Pingora,
        command,
        calls: calls(port, "none"),
        found: Vec::new(),
    }
}

async fn gateway(kind: Kind, stage: &Stage, store: StoreSpec) -> Candidate {
    let (directory, name) = (stage.directory("start"), format!("{kind:?}"));
    let settled = Settled::new(&stage.spec(store), &directory, &name, KEYS).await;
    let mut command = on_both(Path::new(TOUCHLINE));
    command.args(["serve", "--config"]).arg(&settled.config);
    command.current_dir(&directory);
    Candidate {
        kind,
        command,
        calls: calls(settled.port, &settled.keys[KEYS / 2]),
        found: Vec::new(),
    }
}

/// A gateway that is not started yet, whose port and keys are known.
pub struct Settled {
    /// The path of its configuration.
    pub config: PathBuf,
    /// The port of its clear listener.
    pub port: u16,
    /// The port of its TLS listener.
    pub tls_port: u16,
    /// The keys in its store.
    pub keys: Vec<String>,
}

impl Settled {
    /// Writes the configuration and imports this number of keys.
    pub async fn new(spec: &GatewaySpec, directory: &Path, name: &str, count: usize) -> Settled {
        let config = directory.join(format!("{name}.yaml"));
        let ports @ [port, tls_port] = [free_port(), free_port()];
        let log = directory.join(format!("{name}.log"));
        let mut yaml = spec.yaml(&log);
        // In the order of the file.
        for port in ports {
            yaml = yaml.replacen("127.0.0.1:0", &format!("127.0.0.1:{port}"), 1);
        }
        std::fs::write(&config, yaml).unwrap();
        let (keys, file) = foreign_keys(count, directory);
        let arguments = ["keys", "import", file.to_str().unwrap()];
        let imported = harness::gateway::cli(Path::new(TOUCHLINE), &config, None, &arguments).await;
        assert!(imported.status.success(), "{imported:?}");
        Settled {
            config,
            port,
            tls_port,
            keys,
        }
    }
}

fn on_both(program: &Path) -> Command {
    on_cores(&format!("{FIRST_CORE},{SECOND_CORE}"), program)
}

fn calls(port: u16, key: &str) -> Calls {
    Calls::new(loopback(port), 200, &[key.to_owned()], &[PATH.to_owned()])
}

fn start(candidate: &mut Candidate, directory: &Path) -> Duration {
    let begin = Instant::now();
    let mut process = Process::spawn(&mut candidate.command, directory, "started").unwrap();
    while !answers(&candidate.calls) {
        assert!(process.ended().is_none(), "{}", process.output());
        assert!(begin.elapsed() < PATIENCE, "{}", process.output());
        std::thread::sleep(PAUSE);
    }
    let took = begin.elapsed();
    if candidate.kind != Kind::Pingora {
        let status = process.terminate(END_PATIENCE);
        assert!(status.is_some_and(|status| status.success()), "{status:?}");
    }
    took
}

/// Whether the program answers yet; once it accepts, a wrong answer is an error.
pub fn answers(calls: &Calls) -> bool {
    let Ok(mut stream) = TcpStream::connect(calls.address) else {
        return false;
    };
    let mut buffer = [0; ANSWER_BYTES];
    let mut filled = 0;
    if stream.write_all(calls.next()).is_err() {
        return false;
    }
    while let Ok(read @ 1..) = stream.read(&mut buffer[filled..]) {
        filled += read;
        if calls.answered(&buffer[..filled]) {
            return true;
        }
    }
    false
}
