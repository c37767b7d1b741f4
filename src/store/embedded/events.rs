//! Events of keys near their limits: claimed once, stored until they are delivered.

use std::time::Duration;

use jiff::Timestamp;
use rusqlite::{Connection, Row, TransactionBehavior};

use crate::policy::threshold_event::{Event, ThresholdEvent};
use crate::store::sqlite::{execute, first, rows, signed, unsigned, value};
use crate::store::status::EventFacts;
use crate::store::{
    CLAIMS_KEPT_SECONDS, COURIER_LEASE_MAX, Claim, Delivery, EVENTS_KEPT_SECONDS, EVENTS_MAX,
    EVENTS_READ_MAX, NodeName,
};

/// The most expired rows that one claim deletes.
const SWEPT_MAX: i64 = 100;

/// Claims an event for a node.
pub(super) const CLAIM: &str =
    "INSERT INTO claims (event, node, until) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING";
const HOLDER: &str = "SELECT node FROM claims WHERE event = ?1";
const KEPT: &str = "SELECT count(*) FROM events";
/// Keeps an event until it is delivered.
pub(super) const KEEP: &str =
    "INSERT INTO events (since, event, body) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING";
const SWEEP_CLAIMS: &str = "DELETE FROM claims WHERE event IN
    (SELECT event FROM claims WHERE until < ?1 ORDER BY until LIMIT ?2)";
const SWEEP_EVENTS: &str = "DELETE FROM events WHERE (since, event) IN
    (SELECT since, event FROM events WHERE since < ?1 ORDER BY since LIMIT ?2)";
const COURIER: &str = "INSERT INTO courier (only, node, until) VALUES (1, ?1, ?2)
    ON CONFLICT DO UPDATE SET node = excluded.node, until = excluded.until
    WHERE node = excluded.node OR until < ?3 OR until > ?4";
/// How much of a lease may be over at a reading.
const LEASE_RENEWAL_MS: i64 = 5_000;
const LEASE: &str = "SELECT until FROM courier WHERE node = ?1";
const OLDEST: &str =
    "SELECT since, event, body FROM events ORDER BY since, event LIMIT ?1 OFFSET ?2";
const WAITING: &str = "SELECT count(*), min(since) FROM events";
const PRESENT_COURIER: &str = "SELECT node FROM courier WHERE until >= ?1";
const RESIGN: &str = "DELETE FROM courier WHERE node = ?1";
const DROP: &str = "DELETE FROM events WHERE since = ?1 AND event = ?2";

/// Claims an event for a node and stores it, in one transaction. Deletes some rows that have expired at `settled`, the present
/// instant of a reliable clock.
pub(super) fn claim(
    connection: &Connection,
    threshold_event: &ThresholdEvent,
    node: &NodeName,
    delivery: Delivery,
    settled: Option<Timestamp>,
) -> rusqlite::Result<Claim> {
    let transaction =
        rusqlite::Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
    let event = threshold_event.event();
    let until = threshold_event.quota_status.day.end + CLAIMS_KEPT_SECONDS;
    if transaction.execute(CLAIM, (&event.id, &node.0, until))? == 0 {
        let holder: Option<String> = first(&transaction, HOLDER, [&event.id], |row| row.get(0))?;
        return Ok(match holder.is_some_and(|holder| holder == node.0) {
            true => Claim::Repeated,
            false => Claim::Held,
        });
    }
    if let Some(now) = settled {
        transaction.execute(SWEEP_CLAIMS, (now.as_second(), SWEPT_MAX))?;
        let forgotten = now.as_millisecond() - EVENTS_KEPT_SECONDS * 1_000;
        transaction.execute(SWEEP_EVENTS, (forgotten, SWEPT_MAX))?;
    }
    let claim = match delivery {
        Delivery::Unwanted => Claim::Made,
        Delivery::Wanted => keep(&transaction, &event)?,
    };
    transaction.commit()?;
    Ok(claim)
}

fn keep(connection: &Connection, event: &Event) -> rusqlite::Result<Claim> {
    if unsigned(value(connection, KEPT, [])?) >= EVENTS_MAX {
        return Ok(Claim::Undeliverable);
    }
    let since = event.since.as_millisecond();
    connection.execute(KEEP, (since, &event.id, &event.body))?;
    Ok(Claim::Made)
}

/// The events that the courier must deliver after those `skipped`; `None` if another node is the courier.
pub(super) fn undelivered(
    connection: &Connection,
    courier: &NodeName,
    lease: Duration,
    skipped: u64,
    now: Timestamp,
) -> rusqlite::Result<Option<Vec<Event>>> {
    let now = now.as_millisecond();
    let after =
        |lease: Duration| now.saturating_add(i64::try_from(lease.as_millis()).unwrap_or(i64::MAX));
    let latest = after(COURIER_LEASE_MAX);
    let until = after(lease).min(latest);
    // Renewed only from time to time, so that polling does not write twice a second.
    let held: Option<i64> = first(connection, LEASE, [&courier.0], |row| row.get(0))?;
    let (left, whole) = (held.unwrap_or(0) - now, until - now);
    let lasts = left > (whole - LEASE_RENEWAL_MS).max(whole / 2) && left <= whole;
    if !lasts && connection.execute(COURIER, (&courier.0, until, now, latest))? == 0 {
        return Ok(None);
    }
    let read = |row: &Row<'_>| {
        Ok(Event {
            since: Timestamp::from_millisecond(row.get(0)?).unwrap_or(Timestamp::UNIX_EPOCH),
            id: row.get(1)?,
            body: row.get(2)?,
        })
    };
    let page = [EVENTS_READ_MAX, skipped].map(signed);
    rows(connection, OLDEST, page, read).map(Some)
}

/// Lets another node deliver at once, if this one is the courier.
pub(super) fn resign(connection: &Connection, courier: &NodeName) -> rusqlite::Result<()> {
    execute(connection, RESIGN, [&courier.0]).map(drop)
}

/// The pending events.
pub(super) fn waiting(connection: &Connection, now: Timestamp) -> rusqlite::Result<EventFacts> {
    let read = |row: &Row<'_>| Ok((unsigned(row.get(0)?), row.get(1)?));
    let (waiting, oldest) = connection.query_row(WAITING, [], read)?;
    let at = [now.as_millisecond()];
    let courier = first(connection, PRESENT_COURIER, at, |row| row.get(0))?;
    Ok(EventFacts::of(waiting, oldest, courier, now))
}

/// Drops a delivered event.
pub(super) fn delivered(connection: &Connection, event: &Event) -> rusqlite::Result<()> {
    let row = (event.since.as_millisecond(), &event.id);
    execute(connection, DROP, row).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::calendar::Calendar;
    use crate::policy::rate_limit::QuotaStatus;
    use crate::policy::store_settings::Durability;
    use crate::policy::threshold_event::Share;
    use crate::store::embedded::schema;

    /// The event of a key that has used 80 % of its limit of the day that contains `at`.
    fn reached(key: &str, at: Timestamp) -> ThresholdEvent {
        ThresholdEvent {
            key: key.parse().unwrap(),
            tier: "starter".parse().unwrap(),
            quota_status: QuotaStatus {
                limit: 1_000,
                used: Some(800),
                day: Calendar::of_zone("UTC").unwrap().day_at(at).unwrap(),
            },
            share: Share::of_percent(80).unwrap(),
            at,
        }
    }

    #[test]
    fn a_claim_deletes_claims_and_events_whose_time_is_over_by_a_trusted_clock() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keys.db");
        schema::create_file(&path).unwrap();
        let mut connection = schema::connect(&path, Durability::Commit).unwrap();
        schema::prepare(&mut connection, &path, "UTC").unwrap();
        let first: Timestamp = "2026-11-21T12:00:00Z".parse().unwrap();
        let node = NodeName("here".into());
        let make = |key: &str, at: Timestamp, settled: Option<Timestamp>| {
            let made = claim(
                &connection,
                &reached(key, at),
                &node,
                Delivery::Wanted,
                settled,
            );
            assert_eq!(made.unwrap(), Claim::Made, "{key}");
        };
        let left = || {
            let count = |table: &str| -> i64 {
                value(&connection, &format!("SELECT count(*) FROM {table}"), []).unwrap()
            };
            (count("claims"), count("events"))
        };
        let later = |seconds: i64| first + jiff::Span::new().seconds(seconds);
        let after_its_claim = reached("aaaaaaaaaaaa", first).quota_status.day.end
            + CLAIMS_KEPT_SECONDS
            - first.as_second();
        make("aaaaaaaaaaaa", first, Some(first));
        make("bbbbbbbbbbbb", first, Some(later(after_its_claim)));
        assert_eq!(left(), (2, 2), "the claim's time ends now");
        make("cccccccccccc", later(1), None);
        make("dddddddddddd", later(1), Some(later(after_its_claim + 1)));
        assert_eq!(left(), (0, 4), "all claims of that day are deleted");
        make("eeeeeeeeeeee", later(1), Some(later(EVENTS_KEPT_SECONDS)));
        assert_eq!(left().1, 5);
        make(
            "ffffffffffff",
            later(1),
            Some(later(EVENTS_KEPT_SECONDS + 1)),
        );
        assert_eq!(left().1, 4, "the first two events are deleted");
    }
}
