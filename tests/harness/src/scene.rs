//! A running environment for a test: a store, gateways, an upstream, clients and their ledger.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tempfile::TempDir;

use crate::PATIENCE;
use crate::client::{Call, Client, ClientLedger, Protocol};
use crate::faketime::Faketime;
use crate::gateway::{Gateway, GatewaySpec, StoreSpec};
use crate::ledger::{AccessLine, Allowances, Ledgers, UsageRow, date_of, read_usage};
use crate::redis::RedisServer;
use crate::upstream::RecordingUpstream;

pub use crate::ledger::IssuedKey;

/// Pause between two gatherings of the ledgers, each of which runs a command.
const GATHER_PAUSE: Duration = Duration::from_millis(100);
/// Days around today that are read from the store.
const USAGE_DAYS: u64 = 2;
const DAY_SECONDS: u64 = 86_400;
/// Longer than most tests take.
const MIDNIGHT_MARGIN: Duration = Duration::from_secs(60);

/// Waits for the next day of UTC if this one ends before a test may.
pub(crate) async fn pass_midnight() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let left = Duration::from_secs(DAY_SECONDS - now.as_secs() % DAY_SECONDS);
    if left < MIDNIGHT_MARGIN {
        tokio::time::sleep(left).await;
    }
}

/// The store of a scene.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Store {
    /// SQLite, shared by all gateways of the scene.
    Embedded,
    /// A `redis-server` of the scene's own.
    Redis,
}

type Change = Box<dyn FnOnce(&mut GatewaySpec) + Send>;

/// A [`Scene`] to be started.
pub struct SceneBuilder {
    binary: PathBuf,
    store: Store,
    gateways: usize,
    more_servers: usize,
    durable_redis: bool,
    faketime: bool,
    changes: Vec<Change>,
}

impl SceneBuilder {
    /// Uses that store; embedded by default.
    pub fn store(mut self, store: Store) -> SceneBuilder {
        self.store = store;
        self
    }

    /// The count of gateway processes on one store; one by default.
    pub fn gateways(mut self, gateways: usize) -> SceneBuilder {
        self.gateways = gateways;
        self
    }

    /// The count of servers behind the gateways, beside the first.
    pub fn more_servers(mut self, more_servers: usize) -> SceneBuilder {
        self.more_servers = more_servers;
        self
    }

    /// A Redis that loses nothing when it is killed (append-only file).
    pub fn durable_redis(mut self) -> SceneBuilder {
        self.durable_redis = true;
        self
    }

    /// Another daily quota of a tier.
    pub fn daily(self, tier: &'static str, daily: u64) -> SceneBuilder {
        self.spec(move |spec| {
            for one in &mut spec.tiers {
                if one.name == tier {
                    one.daily = daily;
                }
            }
        })
    }

    /// More entries of a tier, such as `concurrent: 1`.
    pub fn tier(self, name: &'static str, extra: &'static str) -> SceneBuilder {
        self.spec(move |spec| {
            spec.tier_extra.insert(name.into(), extra.into());
        })
    }

    /// Another timeout of the upstream, such as `("read", "300ms")`.
    pub fn timeout(self, name: &'static str, value: &'static str) -> SceneBuilder {
        self.spec(move |spec| {
            spec.timeouts.insert(name.into(), value.into());
        })
    }

    /// Any change to the configuration.
    pub fn spec(mut self, change: impl FnOnce(&mut GatewaySpec) + Send + 'static) -> SceneBuilder {
        self.changes.push(Box::new(change));
        self
    }

    /// Puts gateways, commands and Redis under a clock that [`Scene::clock`] sets.
    pub fn faketime(mut self) -> SceneBuilder {
        self.faketime = true;
        self
    }

    /// Starts everything. Shortly before midnight of UTC it waits until after it, because tests count the units of one day.
    pub async fn start(self) -> Scene {
        if !self.faketime {
            pass_midnight().await;
        }
        let directory = TempDir::new().expect("a temporary directory");
        let clock = self.faketime.then(|| Faketime::new(directory.path()));
        let upstream = RecordingUpstream::start().await;
        let mut more_upstreams = Vec::new();
        for _ in 0..self.more_servers {
            more_upstreams.push(RecordingUpstream::start().await);
        }
        let (store, redis) = match self.store {
            Store::Embedded => {
                let path = directory.path().join("touchline.db");
                (StoreSpec::Embedded(path), None)
            }
            Store::Redis => {
                let server =
                    RedisServer::start(directory.path(), self.durable_redis, clock.clone()).await;
                let store = StoreSpec::Redis {
                    url: server.url(),
                    key_prefix: "touchline".into(),
                };
                (store, Some(server))
            }
        };
        let mut spec = GatewaySpec::new(store, upstream.address());
        spec.clock = clock;
        spec.more_servers = more_upstreams
            .iter()
            .map(RecordingUpstream::address)
            .collect();
        for change in self.changes {
            change(&mut spec);
        }
        let mut gateways = Vec::new();
        for number in 0..self.gateways {
            let name = format!("gateway-{number}");
            // A directory for each: files that are private to a node (its journal) must not be shared by two.
            let own = directory.path().join(&name);
            std::fs::create_dir(&own).expect("the gateway's directory");
            gateways.push(Gateway::start(&self.binary, &own, &name, &spec).await);
        }
        Scene {
            spec,
            upstream,
            more_upstreams,
            gateways,
            redis,
            ledger: Arc::default(),
            keys: Mutex::default(),
            outside: TempDir::new().expect("a temporary directory"),
            directory,
        }
    }
}

/// A store, gateways on it, an upstream behind them, and the ledgers of all that happens.
pub struct Scene {
    /// The configuration of the gateways.
    pub spec: GatewaySpec,
    /// The upstream behind them.
    pub upstream: RecordingUpstream,
    /// More servers of the same service.
    pub more_upstreams: Vec<RecordingUpstream>,
    /// The gateways.
    pub gateways: Vec<Gateway>,
    /// The Redis of the gateways, if the store is one.
    pub redis: Option<RedisServer>,
    ledger: Arc<ClientLedger>,
    keys: Mutex<Vec<IssuedKey>>,
    outside: TempDir,
    // Dropped last: the processes above write to it.
    directory: TempDir,
}

impl Scene {
    /// Begins a scene with the binary under test, `env!("CARGO_BIN_EXE_touchline")`.
    pub fn builder(binary: impl AsRef<Path>) -> SceneBuilder {
        SceneBuilder {
            binary: binary.as_ref().to_owned(),
            store: Store::Embedded,
            gateways: 1,
            more_servers: 0,
            durable_redis: false,
            faketime: false,
            changes: Vec::new(),
        }
    }

    /// A client of the first gateway, with a connection of its own.
    pub fn client(&self, protocol: Protocol) -> Client {
        self.client_of(0, protocol)
    }

    /// A client of one of the gateways.
    pub fn client_of(&self, gateway: usize, protocol: Protocol) -> Client {
        let gateway = &self.gateways[gateway];
        let address = if protocol.is_tls() {
            gateway.https
        } else {
            gateway.http
        };
        Client::new(protocol, address, Arc::clone(&self.ledger))
    }

    /// The calls of the clients so far.
    pub fn client_ledger(&self) -> &ClientLedger {
        &self.ledger
    }

    /// The clock of the processes.
    ///
    /// # Panics
    /// If the scene was not begun with `faketime`.
    pub fn clock(&self) -> &Faketime {
        self.spec.clock.as_ref().expect("a scene with faketime")
    }

    /// The directory of this scene.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Issues a key that never expires.
    pub async fn issue(&self, tier: &str) -> IssuedKey {
        self.issue_with(tier, &[]).await
    }

    /// Issues a key with more options, such as `["--expires", "2027-01-31"]`.
    pub async fn issue_with(&self, tier: &str, options: &[&str]) -> IssuedKey {
        let mut arguments = vec!["keys", "issue", "--tier", tier, "--customer", "Acme"];
        arguments.extend(options);
        self.key_made_by(&arguments, tier).await
    }

    /// Rotates a key, with options such as `["--overlap", "24h"]`; the key with its new secret. Calls with either count as the key's.
    pub async fn rotate(&self, key: &IssuedKey, options: &[&str]) -> IssuedKey {
        let mut arguments = vec!["keys", "rotate", &key.id];
        arguments.extend(options);
        self.key_made_by(&arguments, &key.tier).await
    }

    async fn key_made_by(&self, arguments: &[&str], tier: &str) -> IssuedKey {
        let arguments = [arguments, &["--output", "json"]].concat();
        let text = self.cli(&arguments).await;
        let value: serde_json::Value =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"));
        let member = |name: &str| match value.get(name).and_then(serde_json::Value::as_str) {
            Some(text) => text.to_owned(),
            None => panic!("no {name:?} in {text}"),
        };
        let key = IssuedKey {
            id: member("id"),
            key: member("key"),
            tier: tier.to_owned(),
        };
        self.keys().push(key.clone());
        key
    }

    /// Makes a key known that was not issued here, such as an imported one: its calls are judged as its own, and its secret must
    /// appear nowhere.
    pub fn know(&self, key: &IssuedKey) {
        self.keys().push(key.clone());
    }

    /// A directory for files that the gateways do not write and that may contain secrets, such as a file of keys.
    pub fn outside(&self) -> &Path {
        self.outside.path()
    }

    /// Revokes a key.
    pub async fn revoke(&self, key: &IssuedKey) {
        self.cli(&["keys", "revoke", &key.id, "--yes"]).await;
    }

    /// Runs a command on the configuration of the first gateway; its standard output.
    ///
    /// # Panics
    /// With its output, if it fails.
    pub async fn cli(&self, arguments: &[&str]) -> String {
        let output = self.gateways[0].cli(arguments).await;
        assert!(
            output.status.success(),
            "touchline {arguments:?}: {}\n{}\n{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The counts of the store.
    pub async fn usage(&self) -> Vec<UsageRow> {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .expect("a time after 1970")
            .as_secs();
        let from = date_of(now - USAGE_DAYS * 86_400);
        let to = date_of(now + USAGE_DAYS * 86_400);
        let text = self
            .cli(&["usage", "--from", &from, "--to", &to, "--output", "json"])
            .await;
        read_usage(&text).unwrap_or_else(|error| panic!("touchline usage: {error}\n{text}"))
    }

    /// Units that the store counts for a key, over all days.
    pub async fn used(&self, key: &IssuedKey) -> u64 {
        let rows = self.usage().await;
        let own = rows.iter().filter(|row| row.key == key.id);
        own.map(|row| row.used).sum()
    }

    /// Polls until the store counts this number of units for a key; refunds are written after the answer.
    pub async fn expect_used(&self, key: &IssuedKey, units: u64) {
        let end = Instant::now() + PATIENCE;
        loop {
            let used = self.used(key).await;
            if used == units {
                return;
            }
            assert!(
                Instant::now() < end,
                "the store counts {used} units, not {units}"
            );
            tokio::time::sleep(GATHER_PAUSE).await;
        }
    }

    /// GET on the admin listener of a gateway; status and body.
    pub async fn admin(&self, gateway: usize, path: &str) -> (u16, String) {
        let address = self.gateways[gateway].admin;
        let client = Client::new(Protocol::Http1, address, Arc::default());
        let answer = client.call(Call::get(path)).await;
        (
            answer.status,
            String::from_utf8_lossy(&answer.body).into_owned(),
        )
    }

    /// The value of a series of the first gateway, such as `touchline_connections`; 0 if there is none yet of these labels.
    ///
    /// # Panics
    /// If a series without labels does not exist.
    pub async fn metric(&self, series: &str) -> f64 {
        let (_, text) = self.admin(0, "/metrics").await;
        let value = |line: &str| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok();
        let found = text.lines().find_map(value);
        assert!(found.is_some() || series.contains('{'), "no {series}");
        found.unwrap_or_default()
    }

    /// The end of every integration test: all four ledgers agree, by the rules of the contract alone.
    ///
    /// # Panics
    /// With the differences, if they do not agree within a few seconds.
    pub async fn assert_ledgers_agree(&mut self) {
        self.assert_ledgers_agree_with(&Allowances::default()).await;
    }

    /// The same, with the expected exceptions of this test.
    pub async fn assert_ledgers_agree_with(&mut self, allowed: &Allowances) {
        let end = Instant::now() + PATIENCE;
        loop {
            let (ledgers, mut differences) = self.gather(allowed).await;
            differences.extend(ledgers.disagreements(allowed));
            if differences.is_empty() {
                return;
            }
            if Instant::now() >= end {
                panic!(
                    "the ledgers disagree:\n  {}\n{}",
                    differences.join("\n  "),
                    ledgers.summary()
                );
            }
            tokio::time::sleep(GATHER_PAUSE).await;
        }
    }

    async fn gather(&mut self, allowed: &Allowances) -> (Ledgers, Vec<String>) {
        let mut differences = Vec::new();
        let mut artefacts = Vec::new();
        let mut access = Vec::new();
        for number in 0..self.gateways.len() {
            for value in self.gateways[number].access_lines() {
                match AccessLine::read(&value) {
                    Ok(line) => access.push(line),
                    // A killed process may have left half a line.
                    Err(_) if allowed.gateway_killed => {}
                    Err(error) => differences.push(format!("access log: {error} in {value}")),
                }
            }
            if self.gateways[number].process().ended().is_none() {
                let (_, metrics) = self.admin(number, "/metrics").await;
                artefacts.push((
                    format!("/metrics of gateway-{number}"),
                    metrics.into_bytes(),
                ));
            }
        }
        // Logs, outputs and the store's own files: everything that the processes wrote.
        read_files(self.directory.path(), &mut artefacts);
        let ledgers = Ledgers {
            client: self.ledger.entries(),
            access,
            usage: self.usage().await,
            upstream: std::iter::once(&self.upstream)
                .chain(&self.more_upstreams)
                .flat_map(RecordingUpstream::recorded)
                .collect(),
            artefacts,
            keys: self.keys().clone(),
            tiers: self.spec.tiers.clone(),
            endpoints: self.spec.endpoints.clone(),
        };
        (ledgers, differences)
    }

    fn keys(&self) -> MutexGuard<'_, Vec<IssuedKey>> {
        self.keys
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Adds every file under `directory` to `artefacts`.
fn read_files(directory: &Path, artefacts: &mut Vec<(String, Vec<u8>)>) {
    // Files come and go while the processes live.
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            read_files(&path, artefacts);
        } else if let Ok(bytes) = std::fs::read(&path) {
            artefacts.push((path.display().to_string(), bytes));
        }
    }
}
