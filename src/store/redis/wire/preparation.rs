//! The checks of a new connection before its use: the server answers, has the scripts, and counts by the configured calendar.

use std::sync::Arc;

use redis::{Cmd, Pipeline, Value};

use super::connection::RedisConnection;
use super::request::{IS_REPLICA, breaks, is_replica, named, parsed, pipeline, read_time};
use super::script::{CHARGE, NOTHING, REGISTER, SIGN_IN, Script};
use super::slots::names_of;
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
    /// gateway sets the zone of an empty store; a command does so before it writes (`operations::preparing`). Takes two round trips,
    /// for a command one: a server may be far away.
    pub async fn prepare(&self, connection: &RedisConnection) -> Result<(), StoreError> {
        let name = self.names.zone();
        let asked = self.clock.ask();
        // Nothing is written yet: a server that refuses writes can still be read.
        let read = [Cmd::get(&name), redis::cmd("TIME")];
        let [found, time] = begin_with(read, connection).await?;
        let time = read_time(time)?;
        let is_found = is_same(found, &self.zone)?;
        self.clock.learn(asked, time);
        match self.empty_store {
            EmptyStore::Left => {}
            EmptyStore::Claimed if is_found => {
                // A replica can be read, too, but breaks the connection with the first write.
                if let Err(error) = connection.ask(&write_nothing()).await
                    && breaks(&error)
                {
                    return Err(failed(&error, ""));
                }
            }
            EmptyStore::Claimed => {
                // Of several gateways that find the store empty, the first one sets its zone.
                let mut claim = set_zones([&name], &self.zone);
                claim.get(&name);
                let mut replies = all(&claim, connection).await?;
                is_same(replies.pop().unwrap_or(Value::Nil), &self.zone)?;
            }
        }
        Ok(())
    }
}

/// Loads the scripts into the server of a connection, which answers then. One that cannot save refuses PING, but not these.
pub async fn begin(connection: &RedisConnection) -> Result<(), StoreError> {
    let [] = begin_with([], connection).await?;
    Ok(())
}

/// As [`begin`], with further commands in the same round trip. Returns their replies.
async fn begin_with<const N: usize>(
    further: [Cmd; N],
    connection: &RedisConnection,
) -> Result<[Value; N], StoreError> {
    let loading = SCRIPTS.iter().map(|script| script.loading());
    let commands = pipeline(loading.chain(further));
    let mut replies = all(&commands, connection).await?.into_iter();
    for (script, sha) in SCRIPTS.iter().zip(&mut replies) {
        script.loaded(parsed(sha)?);
    }
    let replies = Vec::from_iter(replies);
    replies.try_into().map_err(|replies: Vec<Value>| {
        StoreError::Unavailable(format!("{} replies for {N} commands", replies.len()))
    })
}

/// The scripts that every connection needs; a server that is too old cannot load the first one.
const SCRIPTS: [&Script; 4] = [&NOTHING, &CHARGE, &SIGN_IN, &REGISTER];

/// A write that changes nothing, which a server that accepts no writes refuses.
pub fn write_nothing() -> Cmd {
    let none: [&str; 0] = [];
    NOTHING.by_text(&none, &none.as_slice())
}

/// The replies to commands, or the first error among them.
async fn all(commands: &Pipeline, connection: &RedisConnection) -> Result<Vec<Value>, StoreError> {
    let replies = connection.ask_each(commands).await;
    let replies = replies.map_err(|error| failed(&error, ""))?;
    let answered = replies.into_iter().zip(commands.cmd_iter());
    let checked = answered.map(|(reply, command)| {
        let reply = reply.extract_error();
        reply.map_err(|error| failed(&error, &names_of(command)))
    });
    checked.collect()
}

fn failed(error: &redis::RedisError, names: &str) -> StoreError {
    StoreError::Unavailable(match is_replica(error) {
        true => format!("it {IS_REPLICA}"),
        false => named(error, names),
    })
}
