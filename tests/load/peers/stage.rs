//! The base of all contenders, on the second core: the upstream and Redis, each started once, and a directory for all files.

use std::path::{Path, PathBuf};
use std::process::Command;

use harness::process::Process;
use harness::{EndpointSpec, Gateway, GatewaySpec, RedisServer, StoreSpec};
use tempfile::TempDir;

use super::machine::{FIRST_CORE, SECOND_CORE, TOUCHLINE, free_port, loopback, on_cores, pin};

/// As long as a page of markets.
pub const BODY_BYTES: usize = 1_800;
/// More than any run charges.
const BOUNDLESS: u64 = 4_000_000_000;

/// Upstream and Redis.
pub struct Stage {
    directory: TempDir,
    upstream: Process,
    /// The upstream's port.
    pub upstream_port: u16,
    /// The only Redis; contenders are separated by the prefixes of their names.
    pub redis: RedisServer,
    /// The process id of Redis.
    pub redis_pid: u32,
}

impl Stage {
    /// Starts both.
    pub async fn set() -> Stage {
        let directory = TempDir::new().unwrap();
        let upstream_port = free_port();
        let body = "x".repeat(BODY_BYTES);
        let words = [("BODY", body), ("PORT", upstream_port.to_string())];
        let text = include_str!("upstream.conf");
        let config = filled(text, directory.path(), &words, "upstream.conf");
        let upstream = nginx(&config, directory.path(), "upstream", SECOND_CORE);
        let redis = RedisServer::start(directory.path(), false, None).await;
        let info = redis.command(&["INFO", "server"]).await.unwrap();
        let pid = info
            .lines()
            .find_map(|line| line.strip_prefix("process_id:"));
        let redis_pid = pid.unwrap().trim().parse().unwrap();
        pin(redis_pid, SECOND_CORE);
        Stage {
            directory,
            upstream,
            upstream_port,
            redis,
            redis_pid,
        }
    }

    /// The upstream's process.
    pub fn upstream_pid(&self) -> u32 {
        self.upstream.pid()
    }

    /// The files of one contender.
    pub fn directory(&self, name: &str) -> PathBuf {
        let directory = self.directory.path().join(name);
        std::fs::create_dir_all(&directory).unwrap();
        directory
    }

    /// A store of this name's own on the one Redis.
    pub fn redis_store(&self, name: &str) -> StoreSpec {
        StoreSpec::Redis {
            url: self.redis.url(),
            key_prefix: name.to_owned(),
        }
    }

    /// A store of this name's own in a file.
    pub fn embedded_store(&self, name: &str) -> StoreSpec {
        StoreSpec::Embedded(self.directory(name).join("touchline.db"))
    }

    /// The shipped configuration with quotas that are never used up, one worker, and room for all connections of the measurement.
    pub fn spec(&self, store: StoreSpec) -> GatewaySpec {
        let mut spec = GatewaySpec::new(store, loopback(self.upstream_port));
        for tier in &mut spec.tiers {
            tier.daily = BOUNDLESS;
        }
        spec.redis_extra = "timeout: 1s".into();
        spec.extra_yaml = "limits: { connections_per_address: 20000 }".into();
        spec
    }

    /// A gateway on the first core.
    pub async fn gateway(&self, name: &str, spec: &GatewaySpec) -> Gateway {
        self.gateway_of(Path::new(TOUCHLINE), name, spec).await
    }

    /// The same of another build.
    pub async fn gateway_of(&self, binary: &Path, name: &str, spec: &GatewaySpec) -> Gateway {
        let directory = self.directory(name);
        let mut gateway = Gateway::start(binary, &directory, name, spec).await;
        pin(gateway.process().pid(), FIRST_CORE);
        gateway
    }
}

/// More endpoints, up to this count.
pub fn with_endpoints(spec: &mut GatewaySpec, count: usize) {
    while spec.endpoints.len() < count {
        let path = format!("/api/v1/data/more/{}/items", spec.endpoints.len());
        spec.endpoints
            .push(EndpointSpec::get(&path, &["enterprise"]));
    }
}

/// One key, made by the command line beside a gateway.
pub async fn issue(gateway: &Gateway, tier: &str) -> String {
    let arguments = ["keys", "issue", "--tier", tier, "--customer", "Bench"];
    let arguments = [&arguments[..], &["--output", "json"]].concat();
    let output = harness::gateway::cli(Path::new(TOUCHLINE), &gateway.config, None, &arguments);
    let output = output.await;
    assert!(output.status.success(), "{output:?}");
    let issued: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    issued["key"].as_str().unwrap().to_owned()
}

/// Keys made elsewhere, as a company imports them when it adopts Touchline, and the file to import.
pub fn foreign_keys(count: usize, directory: &Path) -> (Vec<String>, PathBuf) {
    let keys: Vec<String> = (0..count)
        .map(|number| format!("bench/{number:08}+{:032x}", fastrand::u128(..)))
        .collect();
    let rows: String = keys
        .iter()
        .map(|key| format!("{key},Bench,enterprise\n"))
        .collect();
    let file = directory.join("import.csv");
    std::fs::write(&file, format!("key,customer,tier\n{rows}")).unwrap();
    (keys, file)
}

/// A template with its words filled in.
pub fn filled(text: &str, directory: &Path, words: &[(&str, String)], name: &str) -> PathBuf {
    let mut text = text.replace("DIR/", &format!("{}/", directory.display()));
    for (word, value) in words {
        text = text.replace(word, value);
    }
    let path = directory.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

/// An nginx on one core.
pub fn nginx(config: &Path, directory: &Path, name: &str, core: &str) -> Process {
    let mut command = on_cores(core, "nginx");
    command.arg("-c").arg(config);
    spawn(command, directory, name)
}

/// A process that ends with its guard.
pub fn spawn(mut command: Command, directory: &Path, name: &str) -> Process {
    Process::spawn(&mut command, directory, name)
        .unwrap_or_else(|error| panic!("{name}: {error} (make bench installs what it needs)"))
}
