//! The checks of a new connection before its use: the server answers, has the scripts, and counts by the configured calendar.

use std::sync::Arc;

use redis::Cmd;
use redis::aio::ConnectionLike;

use super::request::read_time;
use super::script::{CHARGE, RECORD, REGISTER, SIGN_IN, Script};
use crate::store::redis::clock::StoreClock;
use crate::store::redis::names::Names;
use crate::store::{Role, StoreError};

/// What every connection of a store is prepared with.
pub struct Preparation {
    /// Who connects.
    pub role: Role,
    /// The names of the store.
    pub names: Names,
    /// The zone of the quota days.
    pub zone: String,
    /// The clock that learns the server's time.
    pub clock: Arc<StoreClock>,
}

impl Preparation {
    /// Checks that the server answers and counts by this calendar, loads the scripts, and learns its time. A gateway
    /// sets the zone of an empty store; a command does so before it writes (`operations::preparing`).
    pub async fn prepare(&self, connection: &mut impl ConnectionLike) -> Result<(), StoreError> {
        redis::cmd("PING")
            .exec_async(connection)
            .await
            .map_err(failed)?;
        load(&[&CHARGE, &RECORD, &SIGN_IN, &REGISTER], connection).await?;
        let (names, zone) = (&self.names, &self.zone);
        let mut pipeline = redis::pipe();
        if let Role::Gateway(_) = self.role {
            pipeline.add_command(set_zone(names, zone)).ignore();
        }
        pipeline.cmd("GET").arg(names.zone());
        let (stored,): (Option<String>,) =
            pipeline.query_async(connection).await.map_err(failed)?;
        same_zone(stored.as_deref(), zone)?;
        let asked = self.clock.now();
        let time = redis::cmd("TIME")
            .query_async(connection)
            .await
            .map_err(failed)?;
        self.clock.learn(asked, read_time(time)?);
        Ok(())
    }
}

/// Loads scripts into the server of a connection.
pub async fn load(
    scripts: &[&Script],
    connection: &mut impl ConnectionLike,
) -> Result<(), StoreError> {
    for script in scripts {
        script.load(connection).await.map_err(failed)?;
    }
    Ok(())
}

/// Sets a zone unless there is one.
pub fn set_zone(names: &Names, zone: &str) -> Cmd {
    let mut set = redis::cmd("SET");
    set.arg(names.zone()).arg(zone).arg("NX");
    set
}

/// Checks the zone of a store, or `None` of an empty one.
pub fn same_zone(stored: Option<&str>, zone: &str) -> Result<(), StoreError> {
    match stored {
        Some(stored) if stored != zone => Err(StoreError::OtherCalendar(format!(
            "the store counts days of the time zone {stored}, but the configuration has {zone}: set quota.timezone to {stored}, or use another store.redis.key_prefix"
        ))),
        Some(_) | None => Ok(()),
    }
}

fn failed(error: redis::RedisError) -> StoreError {
    StoreError::Unavailable(error.to_string())
}
