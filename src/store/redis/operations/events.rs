//! The events of keys near their limits: claimed once, stored until they are delivered.
//!
//! All of them are in one slot, so that a claim and its event are written in one step in a cluster too. A key has at most three
//! a day, unless more shares of the limit are configured.

use std::time::Duration;

use jiff::Timestamp;
use redis::{Cmd, Value};
use tokio::time::Instant;

use crate::policy::threshold_event::{Event, ThresholdEvent};
use crate::store::redis::wire::link::RedisLink;
use crate::store::redis::wire::request::parsed;
use crate::store::redis::wire::script::{CLAIM, COURIER};
use crate::store::status::EventFacts;
use crate::store::{
    CLAIMS_KEPT_SECONDS, COURIER_LEASE_MAX, Claim, Delivery, EVENTS_KEPT_SECONDS, EVENTS_MAX,
    EVENTS_READ_MAX, NodeName, StoreError,
};

/// How long a call may take.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Claims an event for a node.
pub async fn claim(
    link: &RedisLink,
    reached: &ThresholdEvent,
    node: &NodeName,
    delivery: Delivery,
) -> Result<Claim, StoreError> {
    let event = reached.event();
    let day = reached.quota_status.day;
    let kept = match delivery {
        Delivery::Wanted => packed(&event.id, &event.body),
        Delivery::Unwanted => String::new(),
    };
    let (until, since) = (day.end + CLAIMS_KEPT_SECONDS, event.since.as_millisecond());
    let arguments = (event.id, &node.0, until, kept, since, EVENTS_MAX);
    let keys = [link.names.claims(day.date), link.names.events()];
    let answer = link.run(&CLAIM, &keys, &arguments, Instant::now() + TIMEOUT);
    match answer.await? {
        0 => Ok(Claim::Held),
        1 => Ok(Claim::Made),
        2 => Ok(Claim::Undeliverable),
        3 => Ok(Claim::Repeated),
        other => Err(StoreError::Failed(format!(
            "the claim script returned {other}"
        ))),
    }
}

/// The events that the courier is to deliver after those `skipped`, or `None` if another node delivers them.
pub async fn undelivered(
    link: &RedisLink,
    courier: &NodeName,
    lease: Duration,
    skipped: u64,
) -> Result<Option<Vec<Event>>, StoreError> {
    let lease = lease.clamp(Duration::from_millis(1), COURIER_LEASE_MAX);
    let answer = right(link, courier, lease, skipped).await?;
    if answer == Value::Nil {
        return Ok(None);
    }
    let rows = parsed::<Vec<(String, f64)>>(answer)?.into_iter();
    let events = rows.filter_map(|(kept, since)| unpacked(&kept, since));
    Ok(Some(events.collect()))
}

/// Gives up the right to deliver, if this node has it, so that another node delivers at once.
pub async fn resign(link: &RedisLink, courier: &NodeName) -> Result<(), StoreError> {
    right(link, courier, Duration::ZERO, 0).await?;
    Ok(())
}

/// Takes the right to deliver for this time, or gives it up for none. Returns the events after those `skipped`.
async fn right(
    link: &RedisLink,
    courier: &NodeName,
    lease: Duration,
    skipped: u64,
) -> Result<Value, StoreError> {
    let [lease, lease_max] = [lease, COURIER_LEASE_MAX].map(|lease| lease.as_millis() as u64);
    let arguments = (&courier.0, lease, EVENTS_READ_MAX, lease_max, skipped);
    let keys = [link.names.courier(), link.names.events()];
    let answer = link.run(&COURIER, &keys, &arguments, Instant::now() + TIMEOUT);
    Ok(answer.await?)
}

/// The state of the events that await delivery, at `now`, the store's time.
pub async fn waiting(link: &RedisLink, now: Timestamp) -> Result<EventFacts, StoreError> {
    let events = link.names.events();
    let ask = [
        Cmd::zcard(&events),
        Cmd::zrange_withscores(&events, 0, 0),
        Cmd::get(link.names.courier()),
    ];
    type Row = (u64, Vec<(String, f64)>, Option<String>);
    let (waiting, oldest, courier): Row = link.replies(ask).await?;
    let oldest = oldest.first().map(|(_, since)| *since as i64);
    Ok(EventFacts::of(waiting, oldest, courier, now))
}

/// Drops the events that were not delivered in time, at `now` (Unix seconds).
pub async fn drop_old(link: &RedisLink, now: i64) -> Result<(), StoreError> {
    let until = now
        .saturating_sub(EVENTS_KEPT_SECONDS)
        .saturating_mul(1_000);
    let drop = Cmd::zrembyscore(link.names.events(), "-inf", until);
    link.send([drop]).await
}

/// Drops a delivered event.
pub async fn delivered(link: &RedisLink, event: &Event) -> Result<(), StoreError> {
    let drop = Cmd::zrem(link.names.events(), packed(&event.id, &event.body));
    link.send([drop]).await
}

/// An event as it is kept.
pub fn packed(id: &str, body: &str) -> String {
    format!("{id} {body}")
}

/// The event that is kept as this text, which happened at `since` (Unix milliseconds); `None` if the text is none.
pub fn unpacked(kept: &str, since: f64) -> Option<Event> {
    let (id, body) = kept.split_once(' ')?;
    Some(Event {
        // Exact: milliseconds are far below 2^53.
        since: Timestamp::from_millisecond(since as i64).ok()?,
        id: id.to_owned(),
        body: body.to_owned(),
    })
}
