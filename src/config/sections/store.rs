//! The store of keys and counts: exactly one of two kinds.

use std::path::PathBuf;

use super::redis::redis;
use super::values::{MINUTE, MS, SECOND};
use crate::config::check::Check;
use crate::config::outline::Path;
use crate::config::rows::{leaf, optional, plain, rows, section, within};
use crate::policy::store_settings::{Durability, RedisSettings};

rows! {
    pub(super) struct StoreRows {
        /// SQLite on this machine.
        embedded: Option<EmbeddedStoreConfig> = optional();
        /// Redis 7 or newer, or Valkey: one server, Sentinel or Cluster.
        redis: Option<RedisSettings> = section(redis);
    }

    /// The embedded store.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct EmbeddedStoreConfig {
        /// The database file.
        path: PathBuf = leaf().or("var/touchline.db".into());
        /// What a power failure may lose: nothing with `commit`; with a duration, at most the counts of that duration. A crash of the
        /// gateway alone loses nothing.
        durability: Durability = within(
            Durability::Interval(SECOND),
            Durability::Interval(MS * 10)..=Durability::Interval(MINUTE),
        );
    }
}

/// The store of keys and counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreConfig {
    /// SQLite on this machine.
    Embedded(EmbeddedStoreConfig),
    /// Redis or Valkey, shared by any number of gateways.
    Redis(Box<RedisSettings>),
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
            check.note_foundation(at, "redis".to_owned());
            StoreConfig::Redis(Box::new(redis))
        }
        None => {
            check.note_foundation(at, "embedded".to_owned());
            let default = |check| plain().read(check, &embedded_at, None);
            StoreConfig::Embedded(rows.embedded.unwrap_or_else(|| default(check)))
        }
    }
}
