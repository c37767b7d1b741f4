//! Where keys and counts live, checked.

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use super::{Config, ConfigErrors, Secret};

/// Where keys and counts live.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreConfig {
    /// SQLite on this machine.
    Embedded(EmbeddedStore),
    /// Redis or Valkey, shared by any number of gateways.
    Redis(Box<RedisStore>),
}

/// The rest of a configuration of which only the store is wanted.
const NEEDED: &str = "tiers: {any: {daily: 1}}
endpoints: [{path: /, tiers: [any], upstream: any}]
upstreams: {any: {servers: [127.0.0.1:1]}}
";

impl StoreConfig {
    /// The Redis at a URL, with the defaults for all else. `${VARIABLE}` stands for the variable's value, as in the file.
    ///
    /// # Errors
    /// Where it is no URL of a Redis.
    pub fn of_url(url: &str) -> Result<StoreConfig, ConfigErrors> {
        // What JSON writes, YAML reads.
        let url = serde_json::Value::from(url);
        StoreConfig::of_text(&format!("store: {{redis: {{url: {url}}}}}"))
    }

    /// The embedded store in a file, with the defaults for all else.
    ///
    /// # Errors
    /// Where it is no path.
    pub fn of_file(path: &str) -> Result<StoreConfig, ConfigErrors> {
        let path = serde_json::Value::from(path);
        StoreConfig::of_text(&format!("store: {{embedded: {{path: {path}}}}}"))
    }

    fn of_text(text: &str) -> Result<StoreConfig, ConfigErrors> {
        let env = |name: &str| std::env::var(name).ok();
        let config = Config::parse("STORE", &format!("{text}\n{NEEDED}"), &env)?;
        Ok(config.store)
    }
}

/// The embedded store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbeddedStore {
    /// The database file.
    pub path: PathBuf,
    /// When what was written is safe from a power cut.
    pub durability: Durability,
}

/// When commits reach the disk for sure. A crash of the process alone never loses one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// Before each answer.
    Commit,
    /// At most this long after it.
    Interval(Duration),
}

/// The Redis store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisStore {
    /// Where Redis is.
    pub place: RedisPlace,
    /// The database; goes before the one in the URL. Never with a cluster.
    pub database: Option<u32>,
    /// The ACL user; goes before the one in the URL.
    pub username: Option<String>,
    /// The password of `password_file`, which goes before the one in the URL.
    pub password: Option<Secret>,
    /// The password of the sentinels.
    pub sentinel_password: Option<Secret>,
    /// How TLS is spoken, where it is.
    pub tls: Option<RedisTls>,
    /// What every name in Redis begins with.
    pub key_prefix: String,
    /// How long one call may take.
    pub timeout: Duration,
    /// Where a gateway saves its replica of the key table.
    pub replica: PathBuf,
    /// How long known keys are served by a replica that could not be brought up to date.
    pub max_staleness: Duration,
    /// What happens to charges while Redis is away.
    pub outage: Outage,
}

/// What a gateway does while Redis is away, and what it writes down for that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outage {
    /// What happens to charges.
    pub policy: OutagePolicy,
    /// The file in which this node writes down what it counts.
    pub journal: PathBuf,
    /// How often it does so while Redis answers.
    pub journal_interval: Duration,
    /// The gateways that share what is left of a quota while Redis is away, at least.
    pub min_nodes: NonZeroU64,
    /// The part of a limit that is served without knowing the count, in hundredths.
    pub cold_percent: u64,
    /// A count that was older than this when Redis went away is unknown.
    pub count_staleness: Duration,
}

/// What happens to charges while Redis is away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutagePolicy {
    /// Each gateway serves its share of what was left.
    Bounded,
    /// Nothing is served.
    Deny,
    /// Everything is served.
    Open,
}

/// Where Redis is; addresses are `host:port`, resolved for every connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RedisPlace {
    /// `redis[s]://[user[:password]@]host[:port][/database]`.
    Url(Secret),
    /// The master that sentinels name.
    Sentinels {
        /// At least one, none twice.
        sentinels: Vec<String>,
        /// Their name for the master.
        master: String,
    },
    /// Nodes of a cluster, at least one, none twice.
    Cluster(Vec<String>),
}

/// TLS to Redis. The files were readable when the configuration was checked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RedisTls {
    /// PEM file of the authorities that sign servers; without one those of the operating system.
    pub ca_file: Option<PathBuf>,
    /// PEM files of the gateway's certificate and its private key, where Redis asks for one.
    pub identity: Option<(PathBuf, PathBuf)>,
}
