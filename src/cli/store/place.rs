//! A store as an argument: a configuration file, the URL of a Redis, or a database file; and what belongs to it on this machine.

use std::path::Path;

use anyhow::bail;

use crate::cli::session::UsageError;
use crate::config::{Config, Purpose, StoreConfig};
use crate::policy::store_settings::without_password;
use crate::store::redis::journal_facts;
use crate::store::status::JournalFacts;

/// The configuration of the store that an argument names; `configuration` is the file that defines the days of a store named without
/// a file.
pub(super) fn named(text: &str, configuration: &Path) -> anyhow::Result<Config> {
    let ending = Path::new(text)
        .extension()
        .and_then(|ending| ending.to_str());
    let store = match ending {
        _ if text.starts_with("redis://") || text.starts_with("rediss://") => {
            StoreConfig::of_url(text)?
        }
        Some("yaml" | "yml") => {
            return Ok(Config::load_for(Path::new(text), Purpose::Commands)?);
        }
        Some("db" | "sqlite" | "sqlite3") => StoreConfig::of_file(text)?,
        Some(_) | None => bail!(UsageError(format!(
            "{:?} names no store: write a configuration file (.yaml), redis://HOST:PORT/DATABASE, or a database file (.db)",
            without_password(text)
        ))),
    };
    let mut config = Config::load_for(configuration, Purpose::Commands)?;
    config.store = store;
    Ok(config)
}

/// The kind of a store.
pub(super) fn kind(store: &StoreConfig) -> &'static str {
    match store {
        StoreConfig::Embedded(_) => "embedded",
        StoreConfig::Redis(_) => "redis",
    }
}

/// The store's name in messages, without password.
pub(super) fn shown(store: &StoreConfig) -> String {
    match store {
        StoreConfig::Embedded(file) => file.path.display().to_string(),
        StoreConfig::Redis(redis) => {
            format!("{}, names under {}:", redis.servers, redis.key_prefix)
        }
    }
}

/// The journal of this machine's gateways, if there is one.
pub(super) fn journal_of(store: &StoreConfig) -> Option<JournalFacts> {
    match store {
        StoreConfig::Embedded(_) => None,
        StoreConfig::Redis(redis) => journal_facts(&redis.outage.as_ref()?.journal),
    }
}
