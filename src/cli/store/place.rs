//! A store as an argument: a configuration file, the URL of a Redis, or a database file.

use std::path::{Path, PathBuf};

use crate::cli::session::UsageError;
use crate::config::{Config, Purpose, RedisPlace, StoreConfig};
use crate::store::redis::settings::without_password;

/// A store and the configuration that defines its days.
pub(super) struct StorePlace {
    /// The store.
    pub(super) store: StoreConfig,
    /// The rest of the configuration: zone, settle window, retention.
    pub(super) config: Config,
}

impl StorePlace {
    /// The store of the configuration file.
    pub(super) fn configured(path: &Path) -> anyhow::Result<StorePlace> {
        let config = Config::load_for(path, Purpose::Commands)?;
        Ok(StorePlace {
            store: config.store.clone(),
            config,
        })
    }

    /// The store that an argument names; `configuration` is the file that defines the days of a store named without a file.
    pub(super) fn of(text: &str, configuration: &Path) -> anyhow::Result<StorePlace> {
        let ending = Path::new(text)
            .extension()
            .and_then(|ending| ending.to_str());
        if text.starts_with("redis://") || text.starts_with("rediss://") {
            return Ok(StorePlace {
                store: StoreConfig::of_url(text)?,
                config: Config::load_for(configuration, Purpose::Commands)?,
            });
        }
        match ending {
            Some("yaml" | "yml") => StorePlace::configured(Path::new(text)),
            Some("db" | "sqlite" | "sqlite3") => Ok(StorePlace {
                store: StoreConfig::of_file(text)?,
                config: Config::load_for(configuration, Purpose::Commands)?,
            }),
            Some(_) | None => Err(UsageError(format!(
                "{:?} names no store: write a configuration file (.yaml), redis://HOST:PORT/DATABASE, or a database file (.db)",
                without_password(text)
            ))
            .into()),
        }
    }

    /// The kind of store.
    pub(super) fn kind(&self) -> &'static str {
        match &self.store {
            StoreConfig::Embedded(_) => "embedded",
            StoreConfig::Redis(_) => "redis",
        }
    }

    /// The store's database file, if it is missing.
    pub(super) fn missing_file(&self) -> Option<PathBuf> {
        match &self.store {
            StoreConfig::Embedded(file) if !file.path.exists() => Some(file.path.clone()),
            StoreConfig::Embedded(_) | StoreConfig::Redis(_) => None,
        }
    }

    /// The store's name in messages, without password.
    pub(super) fn shown(&self) -> String {
        match &self.store {
            StoreConfig::Embedded(file) => file.path.display().to_string(),
            StoreConfig::Redis(redis) => {
                let place = match &redis.place {
                    RedisPlace::Url(url) => without_password(url.reveal()),
                    RedisPlace::Sentinels { sentinels, master } => {
                        format!("{master} of sentinels {}", sentinels.join(", "))
                    }
                    RedisPlace::Cluster(nodes) => format!("cluster of {}", nodes.join(", ")),
                };
                format!("{place}, names under {}:", redis.key_prefix)
            }
        }
    }
}
