//! From the configured store to an open one.

use std::sync::Arc;

use crate::clock::Clock;
use crate::config::{Config, StoreConfig};
use crate::store::{Role, Store, StoreError, embedded, redis};

/// Opens the configured store for `role`.
///
/// # Errors
/// The store's errors. If Redis is unreachable, a gateway opens the store all the same and connects later.
pub async fn open_store(
    config: &Config,
    role: Role,
    clock: Clock,
) -> Result<Arc<dyn Store>, StoreError> {
    let (zone, keeping) = (config.calendar.name(), config.keeping);
    match &config.store {
        StoreConfig::Embedded(settings) => {
            let settings = embedded::Settings {
                durability: settings.durability,
                keeping,
                ..embedded::Settings::new(&settings.path)
            };
            Ok(embedded::open(settings, role, zone, clock).await?)
        }
        StoreConfig::Redis(settings) => {
            let settings = redis::RedisSettings {
                keeping,
                ..redis::RedisSettings::clone(settings)
            };
            Ok(redis::open(settings, role, zone, clock).await?)
        }
    }
}
