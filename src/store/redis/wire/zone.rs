//! The time zone of the quota days in the store: checked before the store is used, and set in an empty one.
//!
//! The first charge of a key's day stores the boundaries of that day, so no gateway of another zone may make it. In a cluster the
//! zone is copied to the slots of the sets of ids: it can then be checked while the master that has it is away. Invariant: a copy
//! is written only where the zone or another copy was read.

use redis::{Cmd, Pipeline, Value};

use super::request::{LinkError, parsed, pipeline};
use crate::policy::calendar::is_same_zone;
use crate::store::StoreError;
use crate::store::redis::names::Names;

/// What becomes of a store without a zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EmptyStore {
    /// It gets the configured zone.
    Claimed,
    /// It remains empty.
    Left,
}

/// The result of a check that found no other zone.
#[derive(Debug)]
pub enum ZoneCheck {
    /// The store has the configured zone, or is empty.
    Same,
    /// No zone was found, and a server that may have it cannot be reached.
    Unread(StoreError),
}

/// The names under which the zone is stored: in a cluster, copies follow the first.
pub fn zone_names(names: &Names, is_cluster: bool) -> Vec<String> {
    let mut all = vec![names.zone()];
    if is_cluster {
        all.extend(names.zone_copies());
    }
    all
}

/// Checks the zone of a store by whichever of its names can be read, and completes them. `send` sends commands to the masters that can be
/// reached, and returns the result of each, in their order.
///
/// # Errors
/// [`StoreError::OtherCalendar`] if the store has another zone, and those of a server that refuses to read or set it.
pub async fn check<F: Future<Output = Vec<Result<Value, LinkError>>>>(
    names: &[String],
    zone: &str,
    empty: EmptyStore,
    send: impl Fn(Pipeline) -> F,
) -> Result<ZoneCheck, StoreError> {
    let get = pipeline(names.iter().map(Cmd::get));
    let (mut is_known, mut lacking, mut first_unread) = (false, Vec::new(), None);
    for (name, result) in names.iter().zip(send(get).await) {
        match result {
            Ok(stored) => match is_same(stored, zone)? {
                true => is_known = true,
                false => lacking.push(name),
            },
            // The store may have a zone there.
            Err(error @ (LinkError::NoConnection(_) | LinkError::Lost(_))) => {
                first_unread.get_or_insert(error);
            }
            Err(
                error @ (LinkError::Refused(_)
                | LinkError::RefusedWrites(_)
                | LinkError::Unreadable(_)),
            ) => return Err(error.into()),
        }
    }
    if !is_known {
        if let Some(error) = first_unread {
            return Ok(ZoneCheck::Unread(error.into()));
        }
        if empty == EmptyStore::Left {
            return Ok(ZoneCheck::Same);
        }
        // Of several gateways that find the store empty, the first one sets its zone.
        let first = names.first();
        let mut claim = set_zones(first, zone);
        claim.cmd("GET").arg(first);
        let results = send(claim).await.into_iter();
        let mut replies: Vec<Value> = results.collect::<Result<_, _>>()?;
        is_same(replies.pop().unwrap_or(Value::Nil), zone)?;
    }
    if empty == EmptyStore::Claimed && !lacking.is_empty() {
        // A copy that cannot be set now is set by a later check.
        send(set_zones(lacking, zone)).await;
    }
    Ok(ZoneCheck::Same)
}

/// The commands that set the zone where there is none.
pub fn set_zones<'n>(names: impl IntoIterator<Item = &'n String>, zone: &str) -> Pipeline {
    let mut set = Pipeline::new();
    for name in names {
        set.cmd("SET").arg((name, zone, "NX"));
    }
    set
}

/// Whether the reply has a zone, which must be this one.
pub fn is_same(reply: Value, zone: &str) -> Result<bool, StoreError> {
    match parsed::<Option<String>>(reply)? {
        Some(stored) if !is_same_zone(&stored, zone) => Err(StoreError::OtherCalendar(format!(
            "the store counts days of the time zone {stored}, but the configuration has {zone}: set quota.timezone to {stored}, or use another store.redis.key_prefix"
        ))),
        stored => Ok(stored.is_some()),
    }
}
