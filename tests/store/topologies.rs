//! What the shared suite needs of every topology: a store by its settings.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use touchline::clock::Clock;
use touchline::store::redis::{RedisSettings, RedisStore, Servers, open};
use touchline::store::{Keeping, NodeName, Role, Store, StoreError};

use crate::redis_nodes::own_prefix;
use crate::suite::{Fixture, ZONE};

/// Names of its own on servers that other tests use too.
pub struct SharedServers {
    settings: RedisSettings,
}

impl SharedServers {
    /// Servers found by these settings.
    pub fn with(settings: RedisSettings) -> SharedServers {
        SharedServers {
            settings: RedisSettings {
                key_prefix: own_prefix(),
                ..settings
            },
        }
    }
}

#[async_trait]
impl Fixture for SharedServers {
    async fn try_open(
        &self,
        role: Role,
        zone: &str,
        keeping: Keeping,
    ) -> Result<Arc<dyn Store>, StoreError> {
        let settings = RedisSettings {
            keeping,
            ..self.settings.clone()
        };
        Ok(open(settings, role, zone, Clock::system()).await?)
    }
}

/// Tests share two cores with their servers; production's 100 ms would now and then be too short here.
pub fn patient(place: Servers) -> RedisSettings {
    RedisSettings {
        timeout: Duration::from_secs(5),
        ..RedisSettings::of(place)
    }
}

/// A gateway's handle with a short timeout.
pub async fn gateway(place: Servers) -> Arc<RedisStore> {
    let settings = RedisSettings {
        timeout: Duration::from_millis(300),
        ..RedisSettings::of(place)
    };
    let role = Role::Gateway(NodeName("impatient".into()));
    open(settings, role, ZONE, Clock::system()).await.unwrap()
}
