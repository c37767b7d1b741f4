//! The checks of a new connection before its use: the server answers, has the scripts, and counts by the configured calendar.

use std::sync::Arc;

use redis::aio::ConnectionLike;
use redis::{Cmd, Value};

use super::request::{breaks, read_time};
use super::script::{CHARGE, REGISTER, SIGN_IN};
use super::zone::{EmptyStore, is_same, set_zones};
use crate::store::StoreError;
use crate::store::redis::clock::StoreClock;
use crate::store::redis::names::Names;

/// What every connection of a store is prepared with.
pub struct Preparation {
    /// What becomes of a store without a zone.
    pub empty_store: EmptyStore,
    /// The names of the store.
    pub names: Names,
    /// The zone of the quota days.
    pub zone: String,
    /// The clock that learns the server's time.
    pub clock: Arc<StoreClock>,
}

impl Preparation {
    /// Checks that the one server of the store answers and counts by this calendar, loads the scripts, and learns its time. A
    /// gateway sets the zone of an empty store; a command does so before it writes (`operations::preparing`).
    pub async fn prepare(&self, connection: &mut impl ConnectionLike) -> Result<(), StoreError> {
        begin(connection).await?;
        let name = self.names.zone();
        // Read first: a server that refuses writes can still be read.
        let found = Cmd::get(&name).query_async(connection).await;
        let is_found = is_same(found.map_err(failed)?, &self.zone)?;
        match self.empty_store {
            EmptyStore::Left => {}
            EmptyStore::Claimed if is_found => {
                // A replica can be read, too, but breaks the connection with the first write.
                if let Err(error) = write_nothing().exec_async(connection).await
                    && breaks(&error)
                {
                    return Err(failed(error));
                }
            }
            EmptyStore::Claimed => {
                // Of several gateways that find the store empty, the first one sets its zone.
                let mut claim = set_zones([&name], &self.zone);
                claim.get(&name);
                let mut replies: Vec<Value> =
                    claim.query_async(connection).await.map_err(failed)?;
                is_same(replies.pop().unwrap_or(Value::Nil), &self.zone)?;
            }
        }
        let asked = self.clock.ask();
        let time = redis::cmd("TIME").query_async(connection).await;
        self.clock.learn(asked, read_time(time.map_err(failed)?)?);
        Ok(())
    }
}

/// Loads the scripts into the server of a connection, which answers then. One that cannot save refuses PING, but not these.
pub async fn begin(connection: &mut impl ConnectionLike) -> Result<(), StoreError> {
    for script in [&CHARGE, &SIGN_IN, &REGISTER] {
        script.load(connection).await.map_err(failed)?;
    }
    Ok(())
}

/// A write that changes nothing, which a server that accepts no writes refuses: a script that does not declare itself as free of
/// writes.
pub fn write_nothing() -> Cmd {
    redis::cmd("EVAL").arg(("#!lua\nreturn 1", 0)).take()
}

fn failed(error: redis::RedisError) -> StoreError {
    StoreError::Unavailable(error.to_string())
}
