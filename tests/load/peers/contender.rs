//! What is measured, started on the first core; and the stage it stands on: upstream, Redis, keys, certificate.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use harness::process::Process;
use harness::{Call, Client, Gateway, GatewaySpec, Protocol, RedisServer, StoreSpec, eventually};
use tempfile::TempDir;
use touchline::policy::api_key::{ApiKey, KeyPrefix, os_entropy};

/// What clients ask for.
pub const PATH: &str = "/api/v1/data/markets";
/// Keys in turn.
const KEYS: usize = 100;
/// As long as a page of markets.
const BODY_BYTES: usize = 1_800;
/// The contender's core, and that of everything else.
pub const CORES: [&str; 2] = ["0", "1"];
/// Of the kernel's process times: USER_HZ, 100 on every Linux.
const TICK: Duration = Duration::from_millis(10);
const PAGE_BYTES: u64 = 4_096;

/// A contender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The upstream itself.
    Direct,
    /// HAProxy with a stick table.
    Haproxy,
    /// nginx, proxying only.
    Nginx,
    /// Pingora, proxying only.
    Pingora,
    /// nginx, Lua and Redis.
    NginxLua,
    /// Touchline on SQLite.
    Embedded,
    /// Touchline on Redis.
    Redis,
    /// A Touchline that refuses an unknown key.
    Refused,
    /// nginx over TLS, HTTP/1.1.
    NginxTls,
    /// Touchline on Redis over TLS, HTTP/1.1.
    RedisTls,
    /// nginx over TLS, HTTP/2.
    NginxTls2,
    /// Touchline on Redis over TLS, HTTP/2.
    RedisTls2,
}

impl Kind {
    /// In the order of the table.
    pub const ALL: [Kind; 12] = [
        Kind::Direct,
        Kind::Haproxy,
        Kind::Nginx,
        Kind::Pingora,
        Kind::NginxLua,
        Kind::Embedded,
        Kind::Redis,
        Kind::Refused,
        Kind::NginxTls,
        Kind::RedisTls,
        Kind::NginxTls2,
        Kind::RedisTls2,
    ];

    /// As the table calls it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Direct => "upstream, direct",
            Kind::Haproxy => "HAProxy, stick table",
            Kind::Nginx => "nginx, proxy only",
            Kind::Pingora => "pingora, proxy only",
            Kind::NginxLua => "nginx + Lua + Redis",
            Kind::Embedded => "Touchline, embedded",
            Kind::Redis => "Touchline + Redis",
            Kind::Refused => "Touchline + Redis, 401",
            Kind::NginxTls => "nginx, proxy only, TLS HTTP/1.1",
            Kind::RedisTls => "Touchline + Redis, TLS HTTP/1.1",
            Kind::NginxTls2 => "nginx, proxy only, TLS HTTP/2",
            Kind::RedisTls2 => "Touchline + Redis, TLS HTTP/2",
        }
    }

    /// What its clients speak.
    pub fn protocol(self) -> Protocol {
        match self {
            Kind::NginxTls | Kind::RedisTls => Protocol::Http1Tls,
            Kind::NginxTls2 | Kind::RedisTls2 => Protocol::Http2Tls,
            Kind::Direct
            | Kind::Haproxy
            | Kind::Nginx
            | Kind::Pingora
            | Kind::NginxLua
            | Kind::Embedded
            | Kind::Redis
            | Kind::Refused => Protocol::Http1,
        }
    }

    /// What every answer to it is.
    pub fn status(self) -> u16 {
        if self == Kind::Refused { 401 } else { 200 }
    }
}

/// Where tables and plots go.
pub fn output_directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("target/bench")
}

/// What every contender stands on, made anew for each so that none finds another's keys.
pub struct Stage {
    directory: TempDir,
    upstream: Process,
    upstream_port: u16,
    redis: RedisServer,
    redis_pid: u32,
}

impl Stage {
    /// Starts upstream and Redis on the second core.
    pub async fn set() -> Stage {
        let directory = TempDir::new().unwrap();
        let upstream_port = free_port();
        let body = "x".repeat(BODY_BYTES);
        let text = include_str!("upstream.conf");
        let config = filled(
            text,
            directory.path(),
            &[("BODY", &body), ("PORT", &upstream_port.to_string())],
            "upstream.conf",
        );
        let upstream = nginx(&config, directory.path(), "upstream", CORES[1]);
        let redis = RedisServer::start(directory.path(), false, None).await;
        let info = redis.command(&["INFO", "server"]).await.unwrap();
        let redis_pid = field(&info, "process_id:").parse().unwrap();
        pin(redis_pid, CORES[1]);
        let certified = rcgen::generate_simple_self_signed(vec!["127.0.0.1".into()]).unwrap();
        let write = |name: &str, text: String| {
            std::fs::write(directory.path().join(name), text).unwrap();
        };
        write("tls.pem", certified.cert.pem());
        write("tls.key", certified.signing_key.serialize_pem());
        Stage {
            directory,
            upstream,
            upstream_port,
            redis,
            redis_pid,
        }
    }

    /// Everything's files.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Where Redis is.
    pub fn redis_url(&self) -> String {
        self.redis.url()
    }

    /// Where the upstream is.
    pub fn upstream_port(&self) -> u16 {
        self.upstream_port
    }

    /// What Redis has used so far.
    pub fn redis_cpu(&self) -> Duration {
        cpu_of(self.redis_pid)
    }
}

/// A running contender.
pub struct Contender {
    kind: Kind,
    address: SocketAddr,
    keys: Vec<String>,
    running: Running,
}

enum Running {
    Upstream(u32),
    Peer(Process),
    Gateway(Box<Gateway>),
}

impl Contender {
    /// Starts it on the first core.
    pub async fn start(kind: Kind, stage: &Stage) -> Contender {
        match kind {
            Kind::Direct => Contender {
                kind,
                address: loopback(stage.upstream_port),
                keys: made_up_keys(),
                running: Running::Upstream(stage.upstream.pid()),
            },
            Kind::Haproxy | Kind::Nginx | Kind::Pingora | Kind::NginxLua => {
                Contender::start_peer(kind, stage, free_port()).await
            }
            Kind::NginxTls | Kind::NginxTls2 => {
                Contender::start_peer(kind, stage, free_port()).await
            }
            Kind::Embedded | Kind::Redis | Kind::Refused | Kind::RedisTls | Kind::RedisTls2 => {
                Contender::start_gateway(kind, stage).await
            }
        }
    }

    async fn start_peer(kind: Kind, stage: &Stage, port: u16) -> Contender {
        let keys = made_up_keys();
        let (directory, tls_port) = (stage.directory(), free_port());
        let (upstream, redis) = (
            stage.upstream_port.to_string(),
            stage.redis.port().to_string(),
        );
        let (port_text, tls_text) = (port.to_string(), tls_port.to_string());
        let words: [(&str, &str); 4] = [
            ("UPSTREAM", &upstream),
            ("REDIS", &redis),
            ("TLS_PORT", &tls_text),
            ("PORT", &port_text),
        ];
        let process = match kind {
            Kind::Haproxy => {
                let map: String = keys.iter().map(|key| format!("{key} 1\n")).collect();
                std::fs::write(directory.join("keys.map"), map).unwrap();
                let config = filled(
                    include_str!("haproxy.cfg"),
                    directory,
                    &words,
                    "haproxy.cfg",
                );
                let mut command = pinned("haproxy", CORES[0]);
                command.args(["-db", "-f"]).arg(config);
                spawn(command, directory, "haproxy")
            }
            Kind::Pingora => {
                let program = example("bare_pingora");
                let mut command = pinned(program.to_str().unwrap(), CORES[0]);
                command.arg(format!("127.0.0.1:{port}"));
                command.arg(format!("127.0.0.1:{upstream}"));
                spawn(command, directory, "pingora")
            }
            Kind::NginxLua => {
                std::fs::write(directory.join("charge.lua"), include_str!("charge.lua")).unwrap();
                for (number, key) in keys.iter().enumerate() {
                    let (name, id) = (format!("key:{key}"), format!("k{number}"));
                    let words = [
                        "HSET",
                        &name,
                        "id",
                        &id,
                        "tier",
                        "enterprise",
                        "state",
                        "active",
                    ];
                    stage.redis.command(&words).await.unwrap();
                }
                let config = filled(
                    include_str!("nginx_lua.conf"),
                    directory,
                    &words,
                    "lua.conf",
                );
                nginx(&config, directory, "nginx-lua", CORES[0])
            }
            Kind::Nginx | Kind::NginxTls | Kind::NginxTls2 => {
                let config = filled(include_str!("nginx.conf"), directory, &words, "nginx.conf");
                nginx(&config, directory, "nginx", CORES[0])
            }
            Kind::Direct
            | Kind::Embedded
            | Kind::Redis
            | Kind::Refused
            | Kind::RedisTls
            | Kind::RedisTls2 => unreachable!("{kind:?} is no peer"),
        };
        let port = if kind.protocol().is_tls() {
            tls_port
        } else {
            port
        };
        let mut contender = Contender {
            kind,
            address: loopback(port),
            keys,
            running: Running::Peer(process),
        };
        contender.await_listening().await;
        contender
    }

    async fn start_gateway(kind: Kind, stage: &Stage) -> Contender {
        let store = if kind == Kind::Embedded {
            StoreSpec::Embedded(stage.directory().join("touchline.db"))
        } else {
            StoreSpec::Redis {
                url: stage.redis.url(),
                key_prefix: "touchline".into(),
            }
        };
        let mut spec = GatewaySpec::new(store, loopback(stage.upstream_port));
        for tier in &mut spec.tiers {
            tier.daily = 4_000_000_000;
        }
        spec.redis_extra = "timeout: 100ms".into();
        let binary = env!("CARGO_BIN_EXE_touchline");
        let mut gateway =
            Gateway::start(Path::new(binary), stage.directory(), "touchline", &spec).await;
        pin(gateway.process().pid(), CORES[0]);
        let mut keys = Vec::new();
        if kind == Kind::Refused {
            keys = made_up_keys();
        } else {
            for _ in 0..KEYS {
                keys.push(issue(&gateway).await);
            }
        }
        let address = if kind.protocol().is_tls() {
            gateway.https
        } else {
            gateway.http
        };
        Contender {
            kind,
            address,
            keys,
            running: Running::Gateway(Box::new(gateway)),
        }
    }

    async fn await_listening(&mut self) {
        let address = self.address;
        let Running::Peer(process) = &mut self.running else {
            return;
        };
        eventually("the contender listens", async || {
            assert!(process.ended().is_none(), "{}", process.output());
            tokio::net::TcpStream::connect(address).await.ok()
        })
        .await;
    }

    /// That it does its job, before it is measured: the right status for a key, and 401 for none where it has keys.
    pub async fn assert_answers(&mut self, stage: &Stage) {
        let client = Client::new(self.kind.protocol(), self.address, Arc::default());
        let answer = client
            .call(Call::get(PATH).header("x-api-key", &self.keys[0]))
            .await;
        assert_eq!(
            answer.status,
            self.kind.status(),
            "{:?}: {answer:?}",
            self.kind
        );
        if self.kind.status() == 200 {
            assert_eq!(answer.body.len(), BODY_BYTES);
        }
        match self.kind {
            Kind::Haproxy | Kind::NginxLua | Kind::Embedded | Kind::Redis => {
                let answer = client.call(Call::get(PATH)).await;
                assert_eq!(answer.status, 401, "{:?} without a key", self.kind);
                let answer = client
                    .call(Call::get(PATH).header("x-api-key", &self.keys[1]))
                    .await;
                let limit = answer.header("x-ratelimit-limit");
                assert!(limit.is_some(), "{:?}: {answer:?}", stage.directory());
            }
            Kind::Direct
            | Kind::Nginx
            | Kind::Pingora
            | Kind::Refused
            | Kind::NginxTls
            | Kind::RedisTls
            | Kind::NginxTls2
            | Kind::RedisTls2 => {}
        }
    }

    /// What it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The keys that it knows, or for [`Kind::Refused`] does not.
    pub fn keys(&self) -> &[String] {
        &self.keys
    }

    /// User and system time that its process has used so far.
    pub fn cpu(&mut self) -> Duration {
        cpu_of(self.pid())
    }

    /// Its resident memory.
    pub fn resident_bytes(&mut self) -> u64 {
        resident_of(self.pid())
    }

    /// Ends it.
    pub fn stop(self) {
        drop(self.running);
    }

    fn pid(&mut self) -> u32 {
        match &mut self.running {
            Running::Upstream(pid) => *pid,
            Running::Peer(process) => process.pid(),
            Running::Gateway(gateway) => gateway.process().pid(),
        }
    }
}

async fn issue(gateway: &Gateway) -> String {
    let arguments = [
        "keys",
        "issue",
        "--tier",
        "enterprise",
        "--customer",
        "Bench",
        "--output",
        "json",
    ];
    let output: Output = gateway.cli(&arguments).await;
    assert!(output.status.success(), "{output:?}");
    let issued: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    issued["key"].as_str().unwrap().to_owned()
}

/// Keys with a valid checksum that nobody issued.
fn made_up_keys() -> Vec<String> {
    let prefix = KeyPrefix::default();
    (0..KEYS)
        .map(|_| {
            ApiKey::generate(&prefix, &mut os_entropy)
                .reveal()
                .to_owned()
        })
        .collect()
}

/// A template with its words filled in.
fn filled(text: &str, directory: &Path, words: &[(&str, &str)], name: &str) -> PathBuf {
    let mut text = text.replace("DIR/", &format!("{}/", directory.display()));
    for (word, value) in words {
        text = text.replace(word, value);
    }
    let path = directory.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

fn nginx(config: &Path, directory: &Path, name: &str, core: &str) -> Process {
    let mut command = pinned("nginx", core);
    command.arg("-c").arg(config);
    spawn(command, directory, name)
}

fn pinned(program: &str, core: &str) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", core, program]);
    command
}

fn spawn(mut command: Command, directory: &Path, name: &str) -> Process {
    Process::spawn(&mut command, directory, name)
        .unwrap_or_else(|error| panic!("{name}: {error} (make bench installs what it needs)"))
}

/// Moves every thread of a process to a core.
pub fn pin(pid: u32, core: &str) {
    let done = Command::new("taskset")
        .args(["-acp", core, &pid.to_string()])
        .output()
        .unwrap();
    assert!(done.status.success(), "{done:?}");
}

/// A program that runs on the second core.
pub fn beside(program: &str) -> Command {
    pinned(program, CORES[1])
}

fn example(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_touchline"))
        .with_file_name("examples")
        .join(name);
    assert!(
        path.exists(),
        "{}: cargo build --release --examples",
        path.display()
    );
    path
}

/// The resident memory of a process, in bytes.
pub fn resident_of(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
    let pages: u64 = text.split(' ').nth(1).unwrap().parse().unwrap();
    pages * PAGE_BYTES
}

/// User and system time that a process has used so far.
pub fn cpu_of(pid: u32) -> Duration {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let after_name = text.rsplit(')').next().unwrap();
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    // Fields 14 and 15 of proc(5), of which two stand before the name's end.
    let ticks: u32 = fields[11..13]
        .iter()
        .map(|text| text.parse::<u32>().unwrap())
        .sum();
    TICK * ticks
}

fn field<'a>(info: &'a str, name: &str) -> &'a str {
    let line = info.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_else(|| panic!("no {name} in {info}")).trim()
}

fn free_port() -> u16 {
    let probe = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    probe.local_addr().unwrap().port()
}

/// A port here.
pub fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}
