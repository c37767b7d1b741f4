//! The checks of a new connection before its use: the server answers, has the scripts, and counts by the configured calendar.

use std::sync::Arc;
use std::time::Duration;

use redis::Cmd;

use crate::store::redis::clock::StoreClock;
use crate::store::redis::keys::codec::read_time;
use crate::store::redis::names::Names;
use crate::store::redis::wire::link::{NewConnection, RedisLink};
use crate::store::redis::wire::script;
use crate::store::{Role, StoreError};

/// How often a command tries to connect, because no task does so for it later: enough for a server that is busy for half a
/// second.
const COMMAND_ATTEMPTS: u32 = 4;
/// The pause between two attempts.
const COMMAND_PAUSE: Duration = Duration::from_millis(100);

/// Connects: once for a gateway, a few times for a command. An unavailable server is an error for a command only; another time
/// zone is one for both.
pub async fn first_attempt<P, F>(
    link: &RedisLink,
    role: &Role,
    prepare: &P,
) -> Result<(), StoreError>
where
    P: Fn(NewConnection) -> F,
    F: Future<Output = Result<(), StoreError>>,
{
    let mut attempt = link.connect(prepare).await;
    if let Role::Command = role {
        for _ in 1..COMMAND_ATTEMPTS {
            let Err(StoreError::Unavailable(_)) = attempt.as_ref().map_err(|error| &**error) else {
                break;
            };
            tokio::time::sleep(COMMAND_PAUSE).await;
            attempt = link.connect(prepare).await;
        }
    }
    let Err(error) = attempt else {
        return Ok(());
    };
    match (role, &*error) {
        (_, StoreError::OtherCalendar(text)) => Err(StoreError::OtherCalendar(text.clone())),
        (Role::Command, error) => Err(StoreError::Unavailable(format!(
            "{error}; check that Redis runs there and that store.redis in the configuration names it"
        ))),
        (Role::Gateway(_), _) => Ok(()),
    }
}

/// Prepares a new connection: checks that the server answers and counts by this calendar, loads the scripts, and learns its
/// time. A gateway sets the zone of an empty store; a command does so before it writes ([`claim_zone`]).
pub async fn prepared(
    mut connection: NewConnection,
    role: Role,
    names: Names,
    zone: String,
    clock: Arc<StoreClock>,
) -> Result<(), StoreError> {
    let failed = |error: redis::RedisError| StoreError::Unavailable(error.to_string());
    redis::cmd("PING")
        .exec_async(&mut connection)
        .await
        .map_err(failed)?;
    script::CHARGE.load(&mut connection).await.map_err(failed)?;
    script::RECORD.load(&mut connection).await.map_err(failed)?;
    script::SIGN_IN
        .load(&mut connection)
        .await
        .map_err(failed)?;
    script::REGISTER
        .load(&mut connection)
        .await
        .map_err(failed)?;
    let mut pipeline = redis::pipe();
    if let Role::Gateway(_) = role {
        pipeline.add_command(set_zone(&names, &zone)).ignore();
    }
    pipeline.cmd("GET").arg(names.zone());
    let (stored,): (Option<String>,) = pipeline
        .query_async(&mut connection)
        .await
        .map_err(failed)?;
    same_zone(stored.as_deref(), &zone)?;
    let asked = clock.now();
    let time = redis::cmd("TIME")
        .query_async(&mut connection)
        .await
        .map_err(failed)?;
    clock.learn(asked, read_time(time)?);
    Ok(())
}

/// Sets the zone of an empty store. For commands, before they write into a store that may be empty.
///
/// # Errors
/// [`StoreError::OtherCalendar`] if the store has another zone, and those of Redis.
pub async fn claim_zone(link: &RedisLink, zone: &str) -> Result<(), StoreError> {
    let mut get = redis::cmd("GET");
    get.arg(link.names.zone());
    if let Some(stored) = link.read::<Option<String>>(&get).await? {
        return same_zone(Some(&stored), zone);
    }
    link.ask(&set_zone(&link.names, zone)).await?;
    same_zone(link.read::<Option<String>>(&get).await?.as_deref(), zone)
}

fn set_zone(names: &Names, zone: &str) -> Cmd {
    let mut set = redis::cmd("SET");
    set.arg(names.zone()).arg(zone).arg("NX");
    set
}

/// Checks the zone of a store, or `None` of an empty one.
fn same_zone(stored: Option<&str>, zone: &str) -> Result<(), StoreError> {
    match stored {
        Some(stored) if stored != zone => Err(StoreError::OtherCalendar(format!(
            "the store counts days of the time zone {stored}, but the configuration has {zone}: set quota.timezone to {stored}, or use another store.redis.key_prefix"
        ))),
        Some(_) | None => Ok(()),
    }
}
