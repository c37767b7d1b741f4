//! The first attempts to connect, on which it depends whether a store opens, and the zone of an empty store.

use std::time::{Duration, Instant};

use crate::store::redis::wire::link::RedisLink;
use crate::store::redis::wire::zone::{EmptyStore, ZoneCheck};
use crate::store::{Role, StoreError};

/// How often a command tries to connect, because no task does so for it later: enough for a server that is busy for half a
/// second.
const COMMAND_ATTEMPTS: u32 = 4;
/// A command does not try again after this time: attempts at a server that hangs take ten seconds each.
const COMMAND_PATIENCE: Duration = Duration::from_secs(5);
/// The pause between two attempts.
const COMMAND_PAUSE: Duration = Duration::from_millis(100);

/// Connects: once for a gateway, a few times for a command. An unavailable server is an error for a command only; another time
/// zone is one for both.
pub async fn first_attempt(link: &RedisLink, role: &Role) -> Result<(), StoreError> {
    let begun = Instant::now();
    let mut attempt = link.connect().await;
    if let Role::Command = role {
        for _ in 1..COMMAND_ATTEMPTS {
            let is_worth_another = matches!(attempt, Err(StoreError::Unavailable(_)));
            if !is_worth_another || begun.elapsed() >= COMMAND_PATIENCE {
                break;
            }
            tokio::time::sleep(COMMAND_PAUSE).await;
            attempt = link.connect().await;
        }
    }
    match (role, attempt) {
        (Role::Gateway(_), Err(StoreError::Unavailable(_) | StoreError::Failed(_))) => Ok(()),
        (_, attempt) => attempt,
    }
}

/// Checks the zone, and deals with an empty store. For commands, before they go by dates, because a cluster may have opened without the
/// zone; or before they write into a store that may be empty.
///
/// # Errors
/// [`StoreError::OtherCalendar`] if the store has another zone, and those of Redis.
pub async fn check_zone(link: &RedisLink, zone: &str, empty: EmptyStore) -> Result<(), StoreError> {
    match link.check_zone(zone, empty).await? {
        ZoneCheck::Same => Ok(()),
        ZoneCheck::Unread(error) => Err(StoreError::Unavailable(format!(
            "the time zone of the store cannot be read: {error}"
        ))),
    }
}
