//! `gateway.yaml`: from its text to the checked [`Config`], or all its problems at once.
//!
//! serde_yaml reads the text into types that keep every leaf as written; the check gives each leaf its type, bounds and
//! default, and notes a problem instead of stopping. Positions come from an index of YAML path → line and column that an
//! event parser makes of the same text. A `Config` that exists is valid: names that endpoints refer to exist, patterns
//! do not overlap, every number is within its bounds. It does not know what is made of it.

use std::io::Read;
use std::net::{SocketAddr, ToSocketAddrs};
use std::num::{NonZeroU32, NonZeroU64};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::policy::address::Network;
use crate::policy::api_key::KeyPrefix;
use crate::policy::billing::Rules;
use crate::policy::calendar::Calendar;
use crate::policy::crossing::{Shares, SigningSecret};
use crate::policy::endpoint::EndpointTable;
use crate::policy::enforcement::Enforcement;
use crate::policy::header_pattern::HeaderPattern;
use crate::policy::key_record::TierName;
use crate::policy::token_bucket::Rate;

mod check;
mod effective;
mod listen;
mod outline;
mod places;
mod problem;
mod scalar;
mod schema;
mod secret;
mod sections;
mod store;
mod succession;
mod text;
mod upstreams;

pub use effective::{About, Difference, Effective};
pub use listen::{
    Certificate, Cleartext, ClientCertificates, ClientMode, Http, Https, Listen, ProxyProtocol,
    Redirect,
};
pub use places::{Place, Places};
pub use problem::{ConfigErrors, Problem};
pub use secret::Secret;
pub use store::{
    Durability, EmbeddedStore, Outage, OutagePolicy, RedisPlace, RedisStore, RedisTls, StoreConfig,
};
pub use succession::Running;
pub use upstreams::{
    HealthCheck, Identity, PrivateKey, Protocol, SecretHeader, Server, Timeouts, Upstream,
    UpstreamTls,
};

/// The largest file that is read: some 10,000 endpoints.
const FILE_BYTES_MAX: usize = 1024 * 1024;

/// A checked configuration.
#[derive(Debug)]
pub struct Config {
    /// The first 12 hexadecimal characters of the SHA-256 of the text: which configuration a node runs.
    pub hash: String,
    /// What it comes to, to be told and compared.
    pub effective: Arc<Effective>,
    /// Where each setting stands in the file.
    pub places: Places,
    /// Where clients and operators connect.
    pub listen: Listen,
    /// Where keys and counts live.
    pub store: StoreConfig,
    /// The division of time into quota days (`quota.timezone`).
    pub calendar: Calendar,
    /// How long the ledger waits for late settlements, and is kept.
    pub ledger: Ledger,
    /// What issued keys look like, and what a 401 says.
    pub keys: Keys,
    /// The tiers in the order of the file; at least one, no name twice.
    pub tiers: Vec<(TierName, Tier)>,
    /// How a month is billed.
    pub billing: Rules,
    /// What is told of keys near their limits.
    pub events: Events,
    /// The endpoints; every tier and upstream they name exists.
    pub endpoints: EndpointTable,
    /// The upstreams in the order of the file; at least one, no name twice.
    pub upstreams: Vec<Upstream>,
    /// What is passed on to upstreams.
    pub forward: Forward,
    /// Threads.
    pub runtime: Runtime,
    /// Bounds on what one client can take.
    pub limits: Limits,
    /// Logs.
    pub logging: Logging,
    /// Traces.
    pub tracing: Tracing,
}

/// Keys as issued and as asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keys {
    /// What issued keys begin with.
    pub prefix: KeyPrefix,
    /// The realm of `WWW-Authenticate`: printable ASCII without quote and backslash.
    pub realm: String,
}

/// A subscription tier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tier {
    /// Units a quota day.
    pub daily: NonZeroU64,
    /// What a month of it costs, in cents of US dollars; `None` where the file does not say.
    pub price_cents: Option<u64>,
    /// How fast one key may send requests, on each gateway.
    pub burst: Option<Rate>,
    /// Requests that one key may have under way, on each gateway.
    pub concurrent: Option<NonZeroU32>,
    /// Whether its limits refuse (`enforce`).
    pub enforcement: Enforcement,
}

/// What is told of keys near their limits, and to whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Events {
    /// The shares of a key's limit that are told of.
    pub shares: Shares,
    /// Who is told, beside log and metrics.
    pub webhook: Option<Webhook>,
}

/// Where events are delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Webhook {
    /// An `http` or `https` URL; what it leads to is often a secret.
    pub url: Secret,
    /// What events are signed with.
    pub secret: SigningSecret,
    /// How long one attempt may take.
    pub timeout: Duration,
    /// An event that is older is not tried again.
    pub give_up: Duration,
}

/// The ledger's days.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ledger {
    /// How long after its end a day is closed.
    pub settle_window: Duration,
    /// How long after its end a day is kept; always longer than `settle_window`.
    pub retention: Duration,
}

/// What is passed on to upstreams, and of their answers to clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forward {
    /// Request headers of clients that are never passed on, beside those that the contract removes.
    pub headers_denied: Vec<HeaderPattern>,
    /// Headers of answers that are never passed on, beside those that the contract removes.
    pub answer_headers_denied: Vec<HeaderPattern>,
}

/// What becomes of traces.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tracing {
    /// Where spans are exported to; nowhere without it.
    pub otlp: Option<Otlp>,
}

/// A collector that speaks OTLP over HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Otlp {
    /// Where spans are sent: the whole URL.
    pub url: Secret,
    /// What the collector knows us by.
    pub header: Option<SecretHeader>,
    /// How many of a hundred traces that begin here are recorded, 0 to 100.
    pub sample_percent: u8,
    /// How long one export may take.
    pub timeout: Duration,
}

/// Threads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runtime {
    /// Worker threads; 0 is one per core.
    pub threads: usize,
}

/// Bounds on what one client can take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Names and values of all request headers together.
    pub header_bytes: usize,
    /// Request headers.
    pub header_count: usize,
    /// Path and query.
    pub target_bytes: usize,
    /// A request body.
    pub body_bytes: u64,
    /// How long a client may take for the head of a request, from its first byte; for the first one from the
    /// connection's start.
    pub request_head: Duration,
    /// How long a client may take for the TLS handshake.
    pub tls_handshake: Duration,
    /// Connections in all.
    pub connections: usize,
    /// Connections of one client address (of IPv6 a /64).
    pub connections_per_address: usize,
    /// Requests a second of one client address with no key or one that is not valid, after which its connections are closed.
    pub failed_authentications: u32,
    /// Networks whose addresses these two limits leave alone.
    pub exempt_addresses: Vec<Network>,
    /// Requests on one connection, at least 1.
    pub requests_per_connection: u64,
    /// After this time a connection takes no further request.
    pub connection_age: Duration,
    /// Bytes a second that a client must read of an answer that waits for it.
    pub response_rate: u64,
    /// Streams that an HTTP/2 client may have open.
    pub h2_streams: u32,
    /// About what the requests of one HTTP/2 connection may cost in memory, in bytes.
    pub h2_memory: u64,
    /// Streams a second that an HTTP/2 client may reset, or a quarter as many that it may have the gateway reset.
    pub h2_resets: u32,
    /// HTTP/2 frames a second of each kind that costs the client nothing.
    pub h2_control_frames: u32,
    /// How long a connection may be idle between requests.
    pub keepalive_idle: Duration,
    /// How long a client may take to send a request.
    pub request_read: Duration,
    /// How long a client may take to read a part of the answer.
    pub response_write: Duration,
    /// How long requests in flight may take to end when the gateway stops.
    pub shutdown_grace: Duration,
}

/// Logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Logging {
    /// The least important messages that are written.
    pub level: Level,
    /// The form of a line.
    pub format: LogFormat,
    /// Where the access log goes.
    pub access_log: AccessLog,
    /// How many in a hundred of the served requests have a line there, 0 to 100.
    pub access_log_percent: u8,
}

/// The importance of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Something failed.
    Error,
    /// Something may fail soon.
    Warn,
    /// Starts, stops, changes.
    Info,
    /// What a developer asks for.
    Debug,
    /// Everything.
    Trace,
}

impl Level {
    /// The word in the file, which tracing's filters know too.
    pub fn as_str(self) -> &'static str {
        match self {
            Level::Error => "error",
            Level::Warn => "warn",
            Level::Info => "info",
            Level::Debug => "debug",
            Level::Trace => "trace",
        }
    }
}

/// The form of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// One JSON object a line.
    Json,
    /// For people.
    Pretty,
}

/// Where the access log goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AccessLog {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// Nowhere.
    Off,
    /// A file that is appended to.
    File(PathBuf),
}

/// The JSON Schema of `gateway.yaml` (2020-12), for editors.
pub fn schema() -> serde_json::Value {
    schema::document()
}

impl Config {
    /// Reads and checks a file. Variables come from the environment of the process; host names of upstreams are resolved.
    ///
    /// # Errors
    /// All problems of the file at once; one alone where it cannot be read or is not YAML.
    pub fn load(path: &Path) -> Result<Config, ConfigErrors> {
        Config::read(path, None)
    }

    /// The same for a configuration that is to take the place of one that runs.
    ///
    /// # Errors
    /// As [`Config::load`]; where the file alone is good, everything in it that needs a restart, and tiers that are gone
    /// though keys hold them.
    pub fn load_over(path: &Path, running: &Running<'_>) -> Result<Config, ConfigErrors> {
        Config::read(path, Some(running))
    }

    fn read(path: &Path, running: Option<&Running<'_>>) -> Result<Config, ConfigErrors> {
        let name = path.display().to_string();
        let fail = |line, column, message: String, hint: &str| ConfigErrors {
            file: name.clone(),
            problems: vec![Problem {
                line,
                column,
                path: String::new(),
                message,
                hint: Some(hint.to_owned()),
            }],
        };
        let bytes = read_at_most(path, FILE_BYTES_MAX + 1).map_err(|error| {
            fail(
                1,
                1,
                format!("cannot read the file: {error}"),
                "name it with --config FILE or TOUCHLINE_CONFIG",
            )
        })?;
        if bytes.len() > FILE_BYTES_MAX {
            return Err(fail(
                1,
                1,
                "the file is too large".to_owned(),
                "at most 1MiB",
            ));
        }
        let text = std::str::from_utf8(&bytes).map_err(|error| {
            let valid = bytes.get(..error.valid_up_to()).unwrap_or_default();
            let (line, column) = end_of(&String::from_utf8_lossy(valid));
            fail(
                line,
                column,
                "the file is not UTF-8".to_owned(),
                "save it as UTF-8",
            )
        })?;
        Config::parse_over(
            &name,
            text,
            &|variable| std::env::var(variable).ok(),
            running,
        )
    }

    /// Checks a text. `file_name` is what problems show; `env` answers `${VARIABLE}`. Reads the files that `…_file` keys
    /// name, and resolves host names of upstreams.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse(
        file_name: &str,
        text: &str,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Config, ConfigErrors> {
        Config::parse_over(file_name, text, env, None)
    }

    /// As [`Config::parse`], with the addresses of a `host:port` from `resolve`.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse_resolving(
        file_name: &str,
        text: &str,
        env: &dyn Fn(&str) -> Option<String>,
        resolve: &dyn Fn(&str) -> std::io::Result<Vec<SocketAddr>>,
    ) -> Result<Config, ConfigErrors> {
        let surroundings = check::Surroundings { env, resolve };
        parse_in(file_name, text, &surroundings, None)
            .map_err(|problems| ConfigErrors::new(file_name, problems))
    }

    fn parse_over(
        file_name: &str,
        text: &str,
        env: &dyn Fn(&str) -> Option<String>,
        running: Option<&Running<'_>>,
    ) -> Result<Config, ConfigErrors> {
        let resolve = |server: &str| server.to_socket_addrs().map(Iterator::collect);
        let surroundings = check::Surroundings {
            env,
            resolve: &resolve,
        };
        parse_in(file_name, text, &surroundings, running)
            .map_err(|problems| ConfigErrors::new(file_name, problems))
    }

    /// The tier with this name.
    pub fn tier(&self, name: &TierName) -> Option<&Tier> {
        self.tiers
            .iter()
            .find(|(tier, _)| tier == name)
            .map(|(_, tier)| tier)
    }

    /// The tiers whose limits refuse nothing.
    pub fn shadow_tiers(&self) -> impl Iterator<Item = &(TierName, Tier)> {
        let shadow = |(_, tier): &&(TierName, Tier)| tier.enforcement == Enforcement::Shadow;
        self.tiers.iter().filter(shadow)
    }

    /// The upstream with this name.
    pub fn upstream(&self, name: &str) -> Option<&Upstream> {
        self.upstreams
            .iter()
            .find(|upstream| &*upstream.name == name)
    }
}

fn parse_in(
    file_name: &str,
    text: &str,
    surroundings: &check::Surroundings<'_>,
    running: Option<&Running<'_>>,
) -> Result<Config, Vec<Problem>> {
    let start = outline::Position::START;
    let root = outline::Path::default();
    if text.len() > FILE_BYTES_MAX {
        return Err(vec![start.problem(
            &root,
            "the file is too large",
            Some("at most 1MiB"),
        )]);
    }
    let outline = Arc::new(outline::Outline::of(text)?);
    if outline.is_empty() {
        return Err(vec![start.problem(
            &root,
            "the file is empty",
            Some("begin with the shipped gateway.yaml"),
        )]);
    }
    let section = serde_yaml::from_str(text).map_err(|error| {
        let position = error
            .location()
            .map_or(start, |location| outline::Position {
                line: location.line(),
                column: location.column(),
            });
        vec![outline::syntax_problem(text, position, &error.to_string())]
    })?;
    let mut check = check::Check::new(&outline, surroundings);
    let places = Places::new(file_name, outline.clone());
    let config = sections::config(&mut check, section, hash_of(text), places);
    if let (Some(config), Some(running), []) = (&config, running, check.problems()) {
        succession::check(&mut check, running, config);
    }
    match config {
        Some(config) if check.problems().is_empty() => Ok(config),
        Some(_) | None => Err(check.into_problems()),
    }
}

fn read_at_most(path: &Path, bytes_max: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?
        .take(bytes_max as u64)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The line and column just after `text`.
fn end_of(text: &str) -> (usize, usize) {
    let line = text.matches('\n').count() + 1;
    let column = text.chars().rev().take_while(|c| *c != '\n').count() + 1;
    (line, column)
}

fn hash_of(text: &str) -> String {
    Sha256::digest(text)
        .iter()
        .take(6)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[cfg(test)]
mod tests;
