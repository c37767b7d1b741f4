//! A gateway process on a configuration of its own, and the command line beside it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output};
use std::time::Duration;

use crate::{Faketime, eventually, process::Process};

/// How long a gateway may take to end after SIGTERM.
const TERMINATE_DEADLINE: Duration = Duration::from_secs(20);
/// How long one command may take.
const COMMAND_DEADLINE: Duration = Duration::from_secs(240);

/// A program in `directory` that runs `binary` with these variables of the environment, as a shell writes them.
///
/// # Panics
/// If it cannot be written.
pub fn with_variables(binary: &Path, variables: &str, directory: &Path) -> PathBuf {
    let program = directory.join("touchline-with-variables");
    let script = format!(
        "#!/bin/sh\n{variables} exec '{}' \"$@\"\n",
        binary.display()
    );
    std::fs::write(&program, script).expect("the program is written");
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).expect("it can be run");
    program
}

/// The store of a gateway.
#[derive(Debug, Clone)]
pub enum StoreSpec {
    /// SQLite at this path.
    Embedded(PathBuf),
    /// A Redis at this URL, with keys under this prefix.
    Redis {
        /// `redis://…`.
        url: String,
        /// The first part of every key.
        key_prefix: String,
    },
    /// The master that sentinels name.
    Sentinel {
        /// The sentinels.
        sentinels: Vec<String>,
        /// The master's name.
        master: String,
    },
    /// A Redis cluster.
    Cluster {
        /// Some of its nodes.
        nodes: Vec<String>,
    },
}

impl StoreSpec {
    fn yaml(&self, redis_extra: &str) -> String {
        let redis = match self {
            StoreSpec::Embedded(path) => {
                return format!("  embedded: {{ path: \"{}\" }}", path.display());
            }
            StoreSpec::Redis { url, key_prefix } => {
                format!("url: \"{url}\", key_prefix: \"{key_prefix}\"")
            }
            StoreSpec::Sentinel { sentinels, master } => {
                format!("sentinels: {sentinels:?}, master: {master}")
            }
            StoreSpec::Cluster { nodes } => format!("cluster: {nodes:?}"),
        };
        let comma = if redis_extra.is_empty() { "" } else { ", " };
        format!("  redis: {{ {redis}{comma}{redis_extra} }}")
    }
}

/// A tier.
#[derive(Debug, Clone)]
pub struct TierSpec {
    /// Its name.
    pub name: String,
    /// Units a day.
    pub daily: u64,
    /// US dollars a month.
    pub price: u64,
}

/// An endpoint.
#[derive(Debug, Clone)]
pub struct EndpointSpec {
    /// The pattern.
    pub path: String,
    /// Its methods.
    pub methods: Vec<String>,
    /// The tiers that include it.
    pub tiers: Vec<String>,
    /// Units per request.
    pub cost: u64,
}

impl EndpointSpec {
    /// A GET endpoint with the cost 1.
    pub fn get(path: &str, tiers: &[&str]) -> EndpointSpec {
        EndpointSpec {
            path: path.to_owned(),
            methods: vec!["GET".into()],
            tiers: tiers.iter().map(|tier| (*tier).to_owned()).collect(),
            cost: 1,
        }
    }

    /// Whether a path (without query) matches this endpoint.
    pub fn matches(&self, path: &str) -> bool {
        if let Some((prefix, _)) = self.path.split_once("{rest...}") {
            return path
                .strip_prefix(prefix)
                .is_some_and(|rest| !rest.is_empty());
        }
        let pattern: Vec<&str> = self.path.split('/').collect();
        let segments: Vec<&str> = path.split('/').collect();
        pattern.len() == segments.len()
            && pattern
                .iter()
                .zip(&segments)
                .all(|(one, other)| one == other || (one.starts_with('{') && !other.is_empty()))
    }
}

/// The destination of an access log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessLogSpec {
    /// A file of its own.
    File,
    /// Standard output, after the line with the gateway's addresses.
    Stdout,
}

/// A `gateway.yaml` to be written.
#[derive(Debug, Clone)]
pub struct GatewaySpec {
    /// The store of keys and counts.
    pub store: StoreSpec,
    /// The tiers; the three of the contract unless changed.
    pub tiers: Vec<TierSpec>,
    /// The endpoints; those of the shipped file unless changed.
    pub endpoints: Vec<EndpointSpec>,
    /// More YAML of a tier, such as `enforce: false`, by its name.
    pub tier_extra: BTreeMap<String, String>,
    /// More YAML of an endpoint, such as `sunset: 2027-06-30`, by its path.
    pub endpoint_extra: BTreeMap<String, String>,
    /// The prediction-data service.
    pub upstream: SocketAddr,
    /// More servers of the same service.
    pub more_servers: Vec<SocketAddr>,
    /// The name of the first server, `host:port`, if it is not its address.
    pub upstream_name: Option<String>,
    /// The weights of all servers, the first one's first; 1 each unless given.
    pub weights: Vec<u32>,
    /// More entries of the upstream, such as `choice: by_key`.
    pub upstream_extra: String,
    /// Certificate and private key of the TLS listener; self-signed unless given.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// A list of certificates and private keys that replaces it, unless empty.
    pub certificates: Vec<(PathBuf, PathBuf)>,
    /// The destination of the access log.
    pub access_log: AccessLogSpec,
    /// More entries of `logging`, such as `access_log_sample: 10%`.
    pub logging_extra: String,
    /// `listen.upgrade`.
    pub upgrade: Option<String>,
    /// `timeouts` of the upstream, each a duration such as `500ms`.
    pub timeouts: BTreeMap<String, String>,
    /// `retries` of the upstream.
    pub retries: u32,
    /// The zone of the quota day.
    pub timezone: String,
    /// Worker threads.
    pub threads: u32,
    /// More YAML of `listen` in a line of its own, such as `trusted_proxies: [10.0.0.0/8]`.
    pub listen_extra: String,
    /// More entries of `listen.http`, such as `proxy_protocol: true`.
    pub http_extra: String,
    /// More entries of `listen.https`, such as `hsts: 365d`.
    pub https_extra: String,
    /// More entries of `listen.admin`, such as `token_file: F`.
    pub admin_extra: String,
    /// More entries of `store.redis`, such as `timeout: 1s`.
    pub redis_extra: String,
    /// More top-level YAML, such as `limits: { header_count: 64 }`.
    pub extra_yaml: String,
    /// The clock of the process.
    pub clock: Option<Faketime>,
}

impl GatewaySpec {
    /// The shipped tiers and endpoints in front of `upstream`.
    pub fn new(store: StoreSpec, upstream: SocketAddr) -> GatewaySpec {
        let tier = |name: &str, daily, price| TierSpec {
            name: name.into(),
            daily,
            price,
        };
        let all = ["starter", "pro", "enterprise"];
        GatewaySpec {
            store,
            tiers: vec![
                tier("starter", 1_000, 99),
                tier("pro", 3_000, 299),
                tier("enterprise", 10_000, 799),
            ],
            endpoints: vec![
                EndpointSpec::get("/api/v1/data/markets", &all),
                EndpointSpec::get("/api/v1/data/predictions", &all),
                EndpointSpec::get("/api/v1/data/predictions/{fixture_id}", &all),
                EndpointSpec::get("/api/v1/data/insights", &["pro", "enterprise"]),
                EndpointSpec::get("/api/v1/data/sentiment", &["pro", "enterprise"]),
                EndpointSpec::get("/api/v1/data/rankings", &["enterprise"]),
            ],
            tier_extra: BTreeMap::new(),
            endpoint_extra: BTreeMap::new(),
            upstream,
            more_servers: Vec::new(),
            upstream_name: None,
            weights: Vec::new(),
            upstream_extra: String::new(),
            certificate: None,
            certificates: Vec::new(),
            access_log: AccessLogSpec::File,
            logging_extra: String::new(),
            upgrade: None,
            timeouts: BTreeMap::from([
                ("connect".into(), "1s".into()),
                ("read".into(), "10s".into()),
            ]),
            retries: 1,
            timezone: "UTC".into(),
            threads: 1,
            listen_extra: String::new(),
            http_extra: String::new(),
            https_extra: String::new(),
            admin_extra: String::new(),
            // For machines so loaded that Redis or the gateway does not run for seconds; tests of outages set a short one.
            redis_extra: "timeout: 5s".into(),
            extra_yaml: String::new(),
            clock: None,
        }
    }

    /// The units a day of a tier.
    pub fn daily(&self, tier: &str) -> Option<u64> {
        let tier = self.tiers.iter().find(|one| one.name == tier)?;
        Some(tier.daily)
    }

    /// The endpoint that a target matches.
    pub fn endpoint(&self, target: &str) -> Option<&EndpointSpec> {
        let path = target.split('?').next().unwrap_or_default();
        self.endpoints.iter().find(|one| one.matches(path))
    }

    /// The text of the file.
    pub fn yaml(&self, access_log: &Path) -> String {
        let store = self.store.yaml(&self.redis_extra);
        let more = |extra: Option<&String>| match extra {
            Some(extra) => format!(", {extra}"),
            None => String::new(),
        };
        let tiers: String = self
            .tiers
            .iter()
            .map(|tier| {
                let TierSpec { name, daily, price } = tier;
                let more = more(self.tier_extra.get(name));
                format!("  {name}: {{ daily: {daily}, price: {price}{more} }}\n")
            })
            .collect();
        let endpoints: String = self
            .endpoints
            .iter()
            .map(|one| {
                format!(
                    "  - {{ path: \"{}\", methods: [{}], tiers: [{}], cost: {}, upstream: prediction-data{} }}\n",
                    one.path,
                    one.methods.join(", "),
                    one.tiers.join(", "),
                    one.cost,
                    more(self.endpoint_extra.get(&one.path)),
                )
            })
            .collect();
        let timeouts: Vec<String> = self
            .timeouts
            .iter()
            .map(|(name, value)| format!("{name}: {value}"))
            .collect();
        let pair = |(certificate, key): &(PathBuf, PathBuf)| {
            let (certificate, key) = (certificate.display(), key.display());
            format!("certificate: \"{certificate}\", private_key: \"{key}\"")
        };
        let listed: Vec<String> = self
            .certificates
            .iter()
            .map(|one| format!("{{ {} }}", pair(one)))
            .collect();
        let certificate = match &self.certificate {
            _ if !listed.is_empty() => format!("certificates: [{}]", listed.join(", ")),
            None => "certificate: self-signed".to_owned(),
            Some(one) => pair(one),
        };
        let servers: Vec<String> = std::iter::once(&self.upstream)
            .chain(&self.more_servers)
            .map(SocketAddr::to_string)
            .collect();
        let first = self.upstream_name.iter().chain(&servers).take(1);
        let servers: Vec<String> = first
            .chain(servers.iter().skip(1))
            .zip(self.weights.iter().chain(std::iter::repeat(&1)))
            .map(|(server, weight)| match weight {
                1 => format!("\"{server}\""),
                weight => format!("{{ address: \"{server}\", weight: {weight} }}"),
            })
            .collect();
        let upgrade = self.upgrade.as_ref();
        let upgrade = upgrade.map_or(String::new(), |path| format!("  upgrade: {path}\n"));
        let access_log = match self.access_log {
            AccessLogSpec::File => format!("\"{}\"", access_log.display()),
            AccessLogSpec::Stdout => "stdout".to_owned(),
        };
        let after_comma = |extra: &str| match extra {
            "" => String::new(),
            extra => format!(", {extra}"),
        };
        let http = after_comma(&self.http_extra);
        let logging = after_comma(&self.logging_extra);
        let (https, admin) = (
            after_comma(&self.https_extra),
            after_comma(&self.admin_extra),
        );
        let listen = &self.listen_extra;
        format!(
            "listen:
  http: {{ address: \"127.0.0.1:0\"{http} }}
  https: {{ address: \"127.0.0.1:0\", {certificate}{https} }}
  admin: {{ address: \"127.0.0.1:0\"{admin} }}
  {listen}
{upgrade}store:
{store}
quota: {{ timezone: {} }}
tiers:
{tiers}endpoints:
{endpoints}upstreams:
  prediction-data: {{ servers: [{}], timeouts: {{ {} }}, retries: {}{} }}
runtime: {{ threads: {} }}
logging: {{ level: info, format: json, access_log: {access_log}{logging} }}
{}
",
            self.timezone,
            servers.join(", "),
            timeouts.join(", "),
            self.retries,
            after_comma(&self.upstream_extra),
            self.threads,
            self.extra_yaml,
        )
    }
}

/// A running gateway; dropping it kills the process.
#[derive(Debug)]
pub struct Gateway {
    binary: PathBuf,
    name: String,
    directory: PathBuf,
    process: Process,
    clock: Option<Faketime>,
    /// `gateway.yaml`.
    pub config: PathBuf,
    /// Its access log.
    pub access_log: PathBuf,
    /// The clear listener.
    pub http: SocketAddr,
    /// The TLS listener.
    pub https: SocketAddr,
    /// The listener that redirects to HTTPS, if there is one.
    pub redirect: Option<SocketAddr>,
    /// The admin listener.
    pub admin: SocketAddr,
}

impl Gateway {
    /// Writes `NAME.yaml` to `directory`, starts the binary on it and waits until it listens.
    ///
    /// # Panics
    /// With its output, if it ends or does not listen in time.
    pub async fn start(binary: &Path, directory: &Path, name: &str, spec: &GatewaySpec) -> Gateway {
        let config = directory.join(format!("{name}.yaml"));
        let log_file = directory.join(format!("{name}.access.log"));
        std::fs::write(&config, spec.yaml(&log_file)).expect("gateway.yaml");
        let (process, listening) =
            spawn(binary, directory, name, &config, spec.clock.as_ref(), &[]).await;
        Gateway {
            binary: binary.to_owned(),
            name: name.to_owned(),
            directory: directory.to_owned(),
            process,
            clock: spec.clock.clone(),
            config,
            access_log: match spec.access_log {
                AccessLogSpec::File => log_file,
                AccessLogSpec::Stdout => stdout_file(directory, name),
            },
            http: listening.http,
            https: listening.https,
            redirect: listening.redirect,
            admin: listening.admin,
        }
    }

    /// The process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Replaces its file by another configuration at once, as an editor does; the access log stays the same.
    pub fn configure(&self, spec: &GatewaySpec) {
        self.put_file(&spec.yaml(&self.access_log));
    }

    /// Replaces its file by a text at once.
    pub fn put_file(&self, text: &str) {
        let next = self.config.with_extension("next");
        std::fs::write(&next, text).expect("gateway.yaml");
        std::fs::rename(&next, &self.config).expect("gateway.yaml");
    }

    /// Ends it without warning.
    pub fn kill9(&mut self) {
        self.process.kill9();
    }

    /// Asks it to end and waits.
    ///
    /// # Panics
    /// If it does not end in time.
    pub fn terminate(&mut self) -> ExitStatus {
        match self.process.terminate(TERMINATE_DEADLINE) {
            Some(status) => status,
            None => panic!("still running after SIGTERM\n{}", self.process.output()),
        }
    }

    /// Starts it again on the same configuration; ports change.
    pub async fn restart(&mut self) {
        self.process.kill9();
        let (process, listening) = spawn(
            &self.binary,
            &self.directory,
            &self.name,
            &self.config,
            self.clock.as_ref(),
            &[],
        )
        .await;
        self.process = process;
        self.http = listening.http;
        self.https = listening.https;
        self.redirect = listening.redirect;
        self.admin = listening.admin;
    }

    /// Lets another process take its place (`serve --upgrade`) and waits until the old one has ended well.
    ///
    /// # Panics
    /// If it does not.
    pub async fn upgrade(&mut self) {
        let (process, listening) = spawn(
            &self.binary,
            &self.directory,
            &self.name,
            &self.config,
            self.clock.as_ref(),
            &["--upgrade"],
        )
        .await;
        let mut old = std::mem::replace(&mut self.process, process);
        let status = eventually("the old process ends", async || old.ended()).await;
        assert!(status.success(), "{status}\n{}", old.output());
        self.http = listening.http;
        self.https = listening.https;
        self.admin = listening.admin;
    }

    /// Starts a successor (`serve --upgrade`) and does not wait for it; its output is in
    /// `NAME.stdout` and `NAME.stderr`.
    pub fn begin_upgrade(&self, name: &str) -> Process {
        launch(
            &self.binary,
            &self.directory,
            name,
            &self.config,
            self.clock.as_ref(),
            &["--upgrade"],
        )
    }

    /// Waits until one process is left of its own and `successors`; that one is the gateway from now on.
    ///
    /// # Panics
    /// If more are left, or one ended otherwise than a gateway that was succeeded, or a successor that failed, does.
    pub async fn upgraded_by(&mut self, successors: impl IntoIterator<Item = Process>) {
        let mut all: Vec<Process> = successors.into_iter().collect();
        let pid = eventually("one process is left", async || {
            let mut left = Vec::new();
            for process in all.iter_mut().chain([&mut self.process]) {
                match process.ended() {
                    None => left.push(process.pid()),
                    Some(status) => {
                        let expected = matches!(status.code(), Some(0 | 1));
                        assert!(expected, "{status}\n{}", process.output());
                    }
                }
            }
            (left.len() == 1).then(|| left.remove(0))
        })
        .await;
        if let Some(winner) = all.iter().position(|one| one.pid() == pid) {
            self.process = all.swap_remove(winner);
        }
    }

    /// Lets a successor with this configuration try to take its place; returns the output of its failure.
    ///
    /// # Panics
    /// If it ends well.
    pub async fn fail_to_upgrade(&self, text: &str) -> String {
        let config = self.directory.join(format!("{}.bad.yaml", self.name));
        std::fs::write(&config, text).expect("a file");
        let mut command = Command::new(&self.binary);
        command.args(["serve", "--upgrade", "--config"]).arg(config);
        command.current_dir(&self.directory);
        let running = tokio::process::Command::from(command)
            .kill_on_drop(true)
            .output();
        let output = match tokio::time::timeout(COMMAND_DEADLINE, running).await {
            Ok(output) => output.expect("the binary runs"),
            Err(_) => panic!("it still runs after {COMMAND_DEADLINE:?}"),
        };
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{message}");
        message
    }

    /// Runs a command of the binary on the same configuration.
    pub async fn cli(&self, arguments: &[&str]) -> Output {
        cli(&self.binary, &self.config, self.clock.as_ref(), arguments).await
    }

    /// The access log so far, one JSON value a line.
    pub fn access_lines(&self) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(&self.access_log).unwrap_or_default();
        // The last line may still be on its way.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole
            .lines()
            .filter(|line| read_listening(line).is_none())
            .map(|line| serde_json::from_str(line).unwrap_or_else(|_| line.into()))
            .collect()
    }

    /// The access log once it has this number of lines.
    ///
    /// # Panics
    /// If it has fewer after [`PATIENCE`](crate::PATIENCE).
    pub async fn logged(&self, count: usize) -> Vec<serde_json::Value> {
        eventually("the lines are written", async || {
            let lines = self.access_lines();
            (lines.len() >= count).then_some(lines)
        })
        .await
    }

    /// The first line of the access log that is wanted, once it is there.
    ///
    /// # Panics
    /// If it is not after [`PATIENCE`](crate::PATIENCE).
    pub async fn logged_where(
        &self,
        wanted: impl Fn(&serde_json::Value) -> bool,
    ) -> serde_json::Value {
        eventually("the line is written", async || {
            self.access_lines().into_iter().find(|line| wanted(line))
        })
        .await
    }

    /// Its standard output and error so far.
    pub fn output(&self) -> String {
        self.process.output()
    }
}

/// Runs a command of the binary with `--config`.
pub async fn cli(
    binary: &Path,
    config: &Path,
    clock: Option<&Faketime>,
    arguments: &[&str],
) -> Output {
    let mut command = Command::new(binary);
    command.args(arguments).arg("--config").arg(config);
    if let Some(clock) = clock {
        clock.wrap(&mut command);
    }
    let running = tokio::process::Command::from(command)
        .kill_on_drop(true)
        .output();
    match tokio::time::timeout(COMMAND_DEADLINE, running).await {
        Ok(output) => output.expect("the binary runs"),
        Err(_) => panic!("{arguments:?} still runs after {COMMAND_DEADLINE:?}"),
    }
}

fn stdout_file(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{name}.stdout"))
}

struct Listening {
    http: SocketAddr,
    https: SocketAddr,
    redirect: Option<SocketAddr>,
    admin: SocketAddr,
}

fn launch(
    binary: &Path,
    directory: &Path,
    name: &str,
    config: &Path,
    clock: Option<&Faketime>,
    more_arguments: &[&str],
) -> Process {
    let mut command = Command::new(binary);
    command.args(["serve", "--config"]).arg(config);
    command.args(more_arguments);
    command.current_dir(directory);
    if let Some(clock) = clock {
        clock.wrap(&mut command);
    }
    Process::spawn(&mut command, directory, name).expect("the binary runs")
}

async fn spawn(
    binary: &Path,
    directory: &Path,
    name: &str,
    config: &Path,
    clock: Option<&Faketime>,
    more_arguments: &[&str],
) -> (Process, Listening) {
    // Output is appended over restarts: only the output of this process counts.
    let stdout = stdout_file(directory, name);
    let before = std::fs::metadata(&stdout).map_or(0, |file| file.len());
    let mut process = launch(binary, directory, name, config, clock, more_arguments);
    let listening = eventually("the gateway listens or ends", async || {
        if let Some(status) = process.ended() {
            panic!(
                "the gateway ended with {status}\n{}\n--- {}\n{}",
                process.output(),
                config.display(),
                std::fs::read_to_string(config).unwrap_or_default()
            );
        }
        let message = std::fs::read(&stdout).ok()?;
        let message = message.get(usize::try_from(before).ok()?..)?;
        let whole = message.iter().rposition(|byte| *byte == b'\n')?;
        String::from_utf8_lossy(&message[..whole])
            .lines()
            .find_map(read_listening)
    });
    // The deadline's own message would not contain the output of the process.
    let listening = listening.await;
    (process, listening)
}

fn read_listening(line: &str) -> Option<Listening> {
    let value: serde_json::Value = serde_json::from_str(line).ok()?;
    if value.get("event")?.as_str()? != "listening" {
        return None;
    }
    let address = |name: &str| value.get(name)?.as_str()?.parse().ok();
    Some(Listening {
        http: address("http")?,
        https: address("https")?,
        redirect: address("redirect"),
        admin: address("admin")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_whole_segments_only() {
        let endpoint = EndpointSpec::get("/d/predictions/{id}", &["pro"]);
        assert!(endpoint.matches("/d/predictions/fx-1"));
        for other in ["/d/predictions", "/d/predictions/", "/d/predictions/a/b"] {
            assert!(!endpoint.matches(other), "{other}");
        }
    }

    #[test]
    fn the_listening_line_gives_all_ports() {
        let line = r#"{"event":"listening","http":"127.0.0.1:1","https":"127.0.0.1:2","admin":"127.0.0.1:3"}"#;
        assert_eq!(read_listening(line).unwrap().https.port(), 2);
        assert!(read_listening(r#"{"event":"other"}"#).is_none());
        assert!(read_listening("text").is_none());
    }
}
