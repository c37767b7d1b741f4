//! From the configured store to an open one.

use std::sync::Arc;

use crate::clock::Clock;
use crate::config::{self, Config, StoreConfig};
use crate::store::{Keeping, Role, Store, StoreError, embedded, redis};

/// Opens the configured store for `role`.
///
/// # Errors
/// The store's errors. If Redis is unreachable, a gateway opens the store all the same and connects later.
pub async fn open_store(
    config: &Config,
    role: Role,
    clock: Clock,
) -> Result<Arc<dyn Store>, StoreError> {
    let zone = config.calendar.name();
    let keeping = Keeping {
        settle_window: config.ledger.settle_window,
        retention: config.ledger.retention,
        ..Keeping::default()
    };
    match &config.store {
        StoreConfig::Embedded(settings) => {
            let durability = match settings.durability {
                config::DurabilitySetting::Commit => embedded::Durability::Commit,
                config::DurabilitySetting::Interval(interval) => {
                    embedded::Durability::Interval(interval)
                }
            };
            let settings = embedded::Settings {
                durability,
                keeping,
                ..embedded::Settings::new(&settings.path)
            };
            Ok(embedded::open(settings, role, zone, clock).await?)
        }
        StoreConfig::Redis(settings) => {
            let settings = redis::Settings {
                keeping,
                ..redis_settings(settings)
            };
            Ok(redis::open(settings, role, zone, clock).await?)
        }
    }
}

fn redis_settings(config: &config::RedisStoreConfig) -> redis::Settings {
    let revealed = |secret: &Option<config::Secret>| {
        let secret = secret.as_ref();
        secret.map(|secret| secret.reveal().to_owned())
    };
    let servers = match &config.place {
        config::RedisPlace::Url(url) => redis::Servers::Url(url.reveal().to_owned()),
        config::RedisPlace::Sentinels { sentinels, master } => redis::Servers::Sentinels {
            sentinels: sentinels.clone(),
            master: master.clone(),
        },
        config::RedisPlace::Cluster(nodes) => redis::Servers::Cluster(nodes.clone()),
    };
    redis::Settings {
        database: config.database,
        username: config.username.clone(),
        password: revealed(&config.password),
        sentinel_password: revealed(&config.sentinel_password),
        tls: config.tls.as_ref().map(|tls| redis::Tls {
            ca_file: tls.ca_file.clone(),
            identity: tls.identity.clone(),
        }),
        key_prefix: config.key_prefix.clone(),
        timeout: config.timeout,
        replica: Some(config.replica.clone()),
        max_staleness: config.max_staleness,
        outage: Some(outage_of(&config.outage)),
        ..redis::Settings::of(servers)
    }
}

fn outage_of(outage: &config::Outage) -> redis::OutageSettings {
    redis::OutageSettings {
        policy: match outage.policy {
            config::OutagePolicy::Bounded => redis::OutagePolicy::Bounded,
            config::OutagePolicy::Deny => redis::OutagePolicy::Deny,
            config::OutagePolicy::Open => redis::OutagePolicy::Open,
        },
        journal: outage.journal.clone(),
        journal_interval: outage.journal_interval,
        min_nodes: outage.min_nodes,
        cold_percent: outage.cold_percent,
        count_staleness: outage.count_staleness,
    }
}
