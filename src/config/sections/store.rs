//! Where keys and counts live: exactly one of two stores.

use std::path::PathBuf;
use std::time::Duration;

use super::redis::{RedisStore, redis};
use super::{MINUTE, MS, SECOND};
use crate::config::check::Check;
use crate::config::outline::Path;
use crate::config::rows::{leaf, optional, plain, rows, section, within};
use crate::config::{Config, ConfigErrors};

rows! {
    pub(super) struct StoreRows {
        /// SQLite on this machine.
        embedded: Option<EmbeddedStore> = optional();
        /// Redis 7 or newer, or Valkey: one server, Sentinel or Cluster.
        redis: Option<RedisStore> = section(redis);
    }

    /// The embedded store.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct EmbeddedStore {
        /// The database file.
        path: PathBuf = leaf().or("var/touchline.db".into());
        /// What a power cut may cost: `commit` nothing, a duration at most what was counted in it. A crash of the gateway alone
        /// never costs anything.
        durability: Durability = within(
            Durability::Interval(SECOND),
            Durability::Interval(MS * 10)..=Durability::Interval(MINUTE),
        );
    }
}

/// Where keys and counts live.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreConfig {
    /// SQLite on this machine.
    Embedded(EmbeddedStore),
    /// Redis or Valkey, shared by any number of gateways.
    Redis(Box<RedisStore>),
}

/// When commits reach the disk for sure. A crash of the process alone never loses one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
pub enum Durability {
    /// Before each answer.
    Commit,
    /// At most this long after it.
    Interval(Duration),
}

pub(super) fn store(check: &mut Check<'_>, at: &Path, rows: StoreRows) -> StoreConfig {
    let (embedded_at, redis_at) = (at.key("embedded"), at.key("redis"));
    match (check.is_given(&embedded_at), check.is_given(&redis_at)) {
        (true, true) => {
            let hint = "keep one of embedded and redis";
            check.wrong_key(&redis_at, "there are two stores", hint);
        }
        (false, false) if check.is_given(at) => {
            check.wrong(at, "there is no store", "write embedded: {} or redis: {}");
        }
        (false, _) | (_, false) => {}
    }
    match rows.redis {
        Some(redis) => {
            check.found(at, "redis".to_owned());
            StoreConfig::Redis(Box::new(redis))
        }
        None => {
            check.found(at, "embedded".to_owned());
            let default = |check| plain().read(check, &embedded_at, None);
            StoreConfig::Embedded(rows.embedded.unwrap_or_else(|| default(check)))
        }
    }
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
