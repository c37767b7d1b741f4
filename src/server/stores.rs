//! From the configured store to an open one.

use std::sync::Arc;

use crate::clock::Clock;
use crate::config::{self, Config, StoreConfig};
use crate::store::{Role, Store, StoreError, embedded, redis};

/// Opens the configured store for `role`.
///
/// # Errors
/// Those of the store; a gateway on a Redis that cannot be reached opens all the same and connects later.
pub async fn open_store(
    config: &Config,
    role: Role,
    clock: Clock,
) -> Result<Arc<dyn Store>, StoreError> {
    let zone = config.calendar.name();
    match &config.store {
        StoreConfig::Embedded(settings) => {
            let durability = match settings.durability {
                config::Durability::Commit => embedded::Durability::Commit,
                config::Durability::Interval(interval) => embedded::Durability::Interval(interval),
            };
            let settings = embedded::Settings {
                durability,
                ..embedded::Settings::new(&settings.path)
            };
            Ok(embedded::open(settings, role, zone, clock).await?)
        }
        StoreConfig::Redis(settings) => {
            let settings = redis::Settings {
                url: settings.url.reveal().to_owned(),
                password: settings
                    .password
                    .as_ref()
                    .map(|password| password.reveal().to_owned()),
                key_prefix: settings.key_prefix.clone(),
                timeout: settings.timeout,
                outage: Some(outage_of(&settings.outage)),
            };
            Ok(redis::open(settings, role, zone, clock).await?)
        }
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
