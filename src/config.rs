//! `gateway.yaml`: from its text to the checked [`Config`], or all its problems at once.
//!
//! serde_yaml reads the text into a tree of values. The check reads them by the rows of each section, applies types, bounds and
//! defaults, and notes problems instead of stopping. Positions come from an index of YAML path → line and column, made by an event
//! parser from the same text. A `Config` that exists is valid: names that endpoints refer to exist, patterns do not overlap, every
//! number is within its bounds. This module does not know how a configuration is used.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::net::ToSocketAddrs;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

mod check;
mod choices;
mod effective;
mod outline;
mod outside;
mod places;
mod problem;
mod reference;
mod reload_compatibility;
mod rows;
mod scalar;
mod schema;
mod sections;

use outline::{Outline, Position};
use outside::Surroundings;

pub use choices::{Cleartext, ClientMode, Level, Protocol, ProxyProtocol};
pub use effective::{About, Difference, Effective};
pub use outside::{LookedUp, Purpose, open_regular};
pub use places::{SourcePosition, SourcePositions};
pub use problem::{ConfigErrors, Problem};
pub use reload_compatibility::Running;
pub use sections::events::{Events, Webhook};
pub use sections::https::{Certificate, ClientCertificates, Https};
pub use sections::limits::Limits;
pub use sections::listen::{Admin, Http, Listen, RedirectListener};
pub use sections::store::{EmbeddedStoreConfig, StoreConfig};
pub use sections::tracing::{Otlp, Tracing};
pub use sections::traffic::Tier;
pub use sections::upstream_tls::{
    ClientIdentity, UpstreamTls, certificates_in, days_if_soon, dns_names_of, end_of,
    private_key_in,
};
pub use sections::upstreams::{
    HealthCheck, SecretHeader, Timeouts, UpstreamConfig, UpstreamServer,
};
pub use sections::{Config, Forward, Keys, Logging, Runtime};

/// The octets of the file's digest in [`Config::hash`].
const HASH_OCTETS: usize = 6;
/// The largest configuration file: room for some 10,000 endpoints.
const FILE_BYTES_MAX: usize = 1024 * 1024;
/// The rest of a configuration that is made only for its store.
const NEEDED: &str = "tiers: {any: {daily: 1}}
endpoints: [{path: /, tiers: [any], upstream: any}]
upstreams: {any: {servers: [127.0.0.1:1]}}
";
/// The timeout for resolving all names. After it, a gateway starts or applies the file all the same and tries again later.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);
/// The most names that are resolved at the same time.
const LOOK_UPS_MAX: usize = 256;

/// The JSON Schema of `gateway.yaml` (2020-12), for editors.
pub fn schema() -> serde_json::Value {
    schema::document(&sections::form())
}

/// A reference of `gateway.yaml` in Markdown: its keys with values, defaults and help.
pub fn reference() -> String {
    reference::document(&sections::form())
}

impl StoreConfig {
    /// A Redis store at a URL, with defaults for all else. `${VARIABLE}` is replaced, as in the file.
    ///
    /// # Errors
    /// If the text is not the URL of a Redis.
    pub fn of_url(url: &str) -> Result<StoreConfig, ConfigErrors> {
        StoreConfig::of("redis", "url", url)
    }

    /// An embedded store in a file, with defaults for all else.
    ///
    /// # Errors
    /// If the text is not a path.
    pub fn of_file(path: &str) -> Result<StoreConfig, ConfigErrors> {
        StoreConfig::of("embedded", "path", path)
    }

    fn of(kind: &str, key: &str, value: &str) -> Result<StoreConfig, ConfigErrors> {
        // JSON is valid YAML.
        let value = serde_json::Value::from(value);
        let text = format!("store: {{{kind}: {{{key}: {value}}}}}\n{NEEDED}");
        Ok(Config::parse("STORE", &text, &variable)?.store)
    }
}

impl Config {
    /// Reads and checks a file for a gateway. Variables come from the environment of the process; host names of upstreams are
    /// resolved.
    ///
    /// # Errors
    /// All problems of the file at once; one alone where it cannot be read or is not YAML.
    pub fn load(path: &Path) -> Result<Config, ConfigErrors> {
        Config::load_for(path, Purpose::Serve)
    }

    /// Reads and checks a file for another purpose than serving.
    ///
    /// # Errors
    /// As [`Config::load`], but only problems of values that the purpose needs.
    pub fn load_for(path: &Path, purpose: Purpose) -> Result<Config, ConfigErrors> {
        Config::read(path, purpose, None)
    }

    /// Reads and checks a file that is to replace a running configuration.
    ///
    /// # Errors
    /// As [`Config::load`]; if the file itself is valid, every change that needs a restart, and every removed tier that keys still
    /// have.
    pub fn load_over(path: &Path, running: &Running<'_>) -> Result<Config, ConfigErrors> {
        Config::read(path, Purpose::Serve, Some(running))
    }

    fn read(
        path: &Path,
        purpose: Purpose,
        running: Option<&Running<'_>>,
    ) -> Result<Config, ConfigErrors> {
        let name = path.display().to_string();
        let file = match running {
            // The reload would wait for the writer of a pipe. A command waits for it too, as that is what its operator wants.
            Some(_) => open_regular(path),
            None => File::open(path),
        };
        let bytes = file.and_then(|file| read_at_most(file, FILE_BYTES_MAX + 1));
        let bytes = bytes.map_err(|error| {
            let message = format!("cannot read the file: {error}");
            let hint = match (running, error.kind()) {
                (Some(_), ErrorKind::PermissionDenied) => {
                    "make it readable for the gateway's user; it is tried again every five seconds"
                }
                (Some(_), _) => "restore the file, which is tried again every five seconds",
                (None, ErrorKind::PermissionDenied) => "make it readable for this user",
                (None, _) => "name it with --config FILE or TOUCHLINE_CONFIG",
            };
            ConfigErrors::new(&name, vec![Position::START.of_file(&message, hint)])
        })?;
        let listener = running.and_then(|running| running.config.listen.https.as_ref());
        let surroundings = Surroundings {
            file: Some(path),
            env: &variable,
            resolve: &resolve,
            purpose,
            in_use: listener
                .iter()
                .flat_map(|https| https.files())
                .cloned()
                .collect(),
        };
        parse_in(&name, &bytes, &surroundings, running)
            .map_err(|problems| ConfigErrors::new(&name, problems))
    }

    /// Checks a text. `file_name` is shown in problems; `env` returns the values of variables. Reads the files that `…_file` keys
    /// name, and resolves host names of upstreams.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse(
        file_name: &str,
        text: &str,
        env: &dyn Fn(&str) -> Option<OsString>,
    ) -> Result<Config, ConfigErrors> {
        Config::parse_resolving(file_name, text, env, &resolve)
    }

    /// As [`Config::parse`], with the addresses of some `host:port`, in their order, from `resolve`.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse_resolving(
        file_name: &str,
        text: &str,
        env: &dyn Fn(&str) -> Option<OsString>,
        resolve: &dyn Fn(&[&str]) -> Vec<LookedUp>,
    ) -> Result<Config, ConfigErrors> {
        let surroundings = Surroundings {
            file: None,
            env,
            resolve,
            purpose: Purpose::Serve,
            in_use: Vec::new(),
        };
        parse_in(file_name, text.as_bytes(), &surroundings, None)
            .map_err(|problems| ConfigErrors::new(file_name, problems))
    }
}

fn parse_in(
    file_name: &str,
    bytes: &[u8],
    surroundings: &Surroundings<'_>,
    running: Option<&Running<'_>>,
) -> Result<Config, Vec<Problem>> {
    let start = Position::START;
    if bytes.len() > FILE_BYTES_MAX {
        return Err(vec![start.of_file("the file is too large", "at most 1MiB")]);
    }
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let valid = bytes.get(..error.valid_up_to()).unwrap_or_default();
        let end = Position::after(&String::from_utf8_lossy(valid));
        vec![end.of_file("the file is not UTF-8", "save it as UTF-8")]
    })?;
    // Some editors put a byte order mark before the text.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let outline = Arc::new(Outline::of(text)?);
    if outline.is_empty() {
        let hint = "begin with the shipped gateway.yaml";
        return Err(vec![start.of_file("the file is empty", hint)]);
    }
    let section = serde_yaml::from_str(text).map_err(|error| {
        let position = error.location().map_or(start, |location| Position {
            line: location.line(),
            column: location.column(),
        });
        vec![outline::syntax_problem(text, position, &error.to_string())]
    })?;
    let mut check = check::Check::new(&outline, surroundings);
    let places = SourcePositions::new(file_name, outline.clone());
    let hash = check::short_digest(text, HASH_OCTETS);
    let config = sections::config(&mut check, section, hash, places);
    if let (Some(config), Some(running), []) = (&config, running, &*check.problems) {
        reload_compatibility::check(&mut check, running, config);
    }
    match config {
        Some(config) if check.problems.is_empty() => Ok(config),
        Some(_) | None => Err(check.problems),
    }
}

/// An environment variable of the process.
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

/// Resolves some `host:port` with the system's resolver, many at the same time. Those that have no result after [`RESOLVE_TIMEOUT`] fail,
/// and the threads that wait for them are left behind.
fn resolve(servers: &[&str]) -> Vec<LookedUp> {
    let until = Instant::now() + RESOLVE_TIMEOUT;
    let waiting = servers.iter().map(|server| (*server).to_owned());
    let waiting = Arc::new(Mutex::new(waiting.enumerate().collect::<Vec<_>>()));
    let (sender, receiver) = mpsc::channel();
    let mut found: Vec<LookedUp> = Vec::new();
    found.resize_with(servers.len(), || Err(ErrorKind::TimedOut.into()));
    for _ in 0..servers.len().min(LOOK_UPS_MAX) {
        let (waiting, sender) = (waiting.clone(), sender.clone());
        let look_up = move || {
            let next = || waiting.lock().pop();
            while let Some((place, server)) = next() {
                let found = server.to_socket_addrs().map(Iterator::collect);
                // After the timeout there is no receiver.
                if sender.send((place, found)).is_err() {
                    return;
                }
            }
        };
        // The threads that could be started go on; without any, no name resolves.
        if std::thread::Builder::new().spawn(look_up).is_err() {
            break;
        }
    }
    drop(sender);
    let left = || until.saturating_duration_since(Instant::now());
    while let Ok((place, result)) = receiver.recv_timeout(left()) {
        if let Some(place) = found.get_mut(place) {
            *place = result;
        }
    }
    found
}

fn read_at_most(file: File, bytes_max: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(bytes_max as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests;
