//! Carrying what the database holds away, and taking in what was carried here.
//!
//! Told is one instant, read in one transaction on a connection of its own: the writer goes on meanwhile. Taken in is a
//! batch in one transaction of the writer's connection.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use jiff::civil::Date;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, TransactionBehavior};
use tokio::sync::mpsc;

use super::appended::{self, Additions};
use super::copied::{Copied, DayRows, UNATTRIBUTED};
use super::folding::fold_all;
use super::group::{other_calendar, signed, unsigned};
use super::{Durability, closing, keys, schema};
use crate::policy::api_key::KeyId;
use crate::policy::calendar::Day;
use crate::store::carried::{
    Carried, CarriedEvent, CarriedKey, HeldClaim, KeyDay, Taken, Taking, WaitingEvent,
};
use crate::store::ledger::Ceiling;
use crate::store::{StoreError, Totals};

/// Keys of a page: what is held in memory of a day at once.
const PAGE_KEYS: i64 = 1_000;

const OWN_NAME: &str = "SELECT value FROM meta WHERE name = 'producer'";
const DAYS: &str = "SELECT date, first, next FROM days ORDER BY date";
const DAY: &str = "SELECT first, next FROM days WHERE date = ?1";
const ADD_DAY: &str = "INSERT INTO days (date, first, next) VALUES (?1, ?2, ?3)";
const KEYS_OF_DAY: &str = "SELECT key FROM ledger WHERE date = ?1 AND key > ?2
    UNION SELECT key FROM adjustments WHERE date = ?1 AND key > ?2
    UNION SELECT key FROM copied WHERE date = ?1 AND key > ?2
    ORDER BY key LIMIT ?3";
const ROWS: &str =
    "SELECT endpoint, requests, charged, refunded, refused_tier, refused_quota, refused_burst,
        refused_concurrent, refused_not_found, refused_method, day_limit, granted
    FROM ledger WHERE date = ?1 AND key = ?2";
const LATE: &str = "SELECT came, units FROM adjustments WHERE date = ?1 AND key = ?2";
const COPIED: &str = "SELECT body FROM copied WHERE date = ?1 AND key = ?2";
const PUT_ROW: &str = "
    INSERT INTO ledger (date, key, endpoint, requests, charged, refunded, refused_tier, refused_quota, refused_burst,
        refused_concurrent, refused_not_found, refused_method, day_limit, granted)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)
    ON CONFLICT (date, key, endpoint) DO UPDATE SET
        requests = excluded.requests,
        charged = excluded.charged,
        refunded = excluded.refunded,
        refused_tier = excluded.refused_tier,
        refused_quota = excluded.refused_quota,
        refused_burst = excluded.refused_burst,
        refused_concurrent = excluded.refused_concurrent,
        refused_not_found = excluded.refused_not_found,
        refused_method = excluded.refused_method,
        day_limit = excluded.day_limit,
        granted = excluded.granted";
const DROP_ROW: &str = "DELETE FROM ledger WHERE date = ?1 AND key = ?2 AND endpoint = ?3";
const PUT_LATE: &str = "INSERT INTO adjustments (date, key, came, units) VALUES (?1, ?2, ?3, ?4)
    ON CONFLICT (date, key, came) DO UPDATE SET units = excluded.units";
const PUT_COPIED: &str = "INSERT INTO copied (date, key, body) VALUES (?1, ?2, ?3)
    ON CONFLICT (date, key) DO UPDATE SET body = excluded.body";
const EVENTS: &str = "SELECT claims.event, claims.node, claims.until, events.since, events.body
        FROM claims LEFT JOIN events ON events.event = claims.event
    UNION ALL
    SELECT events.event, NULL, NULL, events.since, events.body
        FROM events WHERE NOT EXISTS (SELECT 1 FROM claims WHERE claims.event = events.event)";
const CLAIM: &str =
    "INSERT INTO claims (event, node, until) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING";
const WAITS: &str = "SELECT count(*) FROM events WHERE event = ?1";
const KEEP: &str =
    "INSERT INTO events (since, event, body) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING";

/// Nobody listens any more.
struct Unheard;

/// Tells all that the file holds; blocks while it does.
pub(super) fn carry_out(
    path: &Path,
    durability: Durability,
    told: &mpsc::Sender<Carried>,
) -> Result<(), StoreError> {
    let connection = schema::connect(path, durability)?;
    let work = || -> rusqlite::Result<Result<(), Unheard>> {
        let instant = connection.unchecked_transaction()?;
        let own = own_name(&instant)?;
        if tell_keys(&instant, told)?.is_err() {
            return Ok(Err(Unheard));
        }
        for entry in keys::trail_of_none(&instant)? {
            if say(told, Carried::Audit(Box::new(entry))).is_err() {
                return Ok(Err(Unheard));
            }
        }
        if tell_days(&instant, &own, told)?.is_err() {
            return Ok(Err(Unheard));
        }
        tell_events(&instant, told)
    };
    match work() {
        Ok(Ok(()) | Err(Unheard)) => Ok(()),
        Err(error) => Err(schema::failure(path, &error)),
    }
}

fn say(told: &mpsc::Sender<Carried>, piece: Carried) -> Result<(), Unheard> {
    told.blocking_send(piece).map_err(|_| Unheard)
}

fn own_name(connection: &Connection) -> rusqlite::Result<String> {
    connection.query_row(OWN_NAME, [], |row| row.get(0))
}

fn tell_keys(
    connection: &Connection,
    told: &mpsc::Sender<Carried>,
) -> rusqlite::Result<Result<(), Unheard>> {
    let mut reached = 0;
    loop {
        let page = keys::page(connection, reached)?;
        let Some((last, _, _)) = page.last() else {
            return Ok(Ok(()));
        };
        reached = *last;
        for (_, _, record) in page {
            let trail = keys::trail_of(connection, record.id)?;
            let key = CarriedKey { record, trail };
            if say(told, Carried::Key(Box::new(key))).is_err() {
                return Ok(Err(Unheard));
            }
        }
    }
}

fn tell_days(
    connection: &Connection,
    own: &str,
    told: &mpsc::Sender<Carried>,
) -> rusqlite::Result<Result<(), Unheard>> {
    let mut days = connection.prepare(DAYS)?;
    let mut days = days.query([])?;
    let mut keys = connection.prepare(KEYS_OF_DAY)?;
    let mut lacking = appended::lacking(connection, |_, _| true)?.by_day();
    while let Some(row) = days.next()? {
        let date: String = row.get(0)?;
        let day = Day {
            date: parsed(&date)?,
            start: row.get(1)?,
            end: row.get(2)?,
        };
        let mut reached = String::new();
        loop {
            let page: Vec<String> = keys
                .query_map((&date, &reached, PAGE_KEYS), |row| row.get(0))?
                .collect::<rusqlite::Result<_>>()?;
            let Some(last) = page.last() else { break };
            reached.clone_from(last);
            for key in page {
                let key: KeyId = parsed(&key)?;
                let appended = lacking.remove(&(day.date, key)).unwrap_or_default();
                if tell_key_day(connection, (own, told), (key, day), appended)?.is_err() {
                    return Ok(Err(Unheard));
                }
            }
        }
        // The keys that the ledger has nothing of yet.
        let of_day = |(date, _): &(Date, KeyId), _: &mut _| *date == day.date;
        for ((_, key), appended) in lacking.extract_if(.., of_day) {
            if tell_key_day(connection, (own, told), (key, day), appended)?.is_err() {
                return Ok(Err(Unheard));
            }
        }
    }
    Ok(Ok(()))
}

fn tell_key_day(
    connection: &Connection,
    (own, told): (&str, &mpsc::Sender<Carried>),
    (key, day): (KeyId, Day),
    appended: Additions,
) -> rusqlite::Result<Result<(), Unheard>> {
    let mut rows = read(connection, &day.date.to_string(), key)?;
    rows.add(appended);
    let piece = Carried::KeyDay(Box::new(rows.told(own, key, day)));
    Ok(say(told, piece))
}

fn tell_events(
    connection: &Connection,
    told: &mpsc::Sender<Carried>,
) -> rusqlite::Result<Result<(), Unheard>> {
    let mut events = connection.prepare(EVENTS)?;
    let mut rows = events.query([])?;
    while let Some(row) = rows.next()? {
        let (node, until): (Option<String>, Option<i64>) = (row.get(1)?, row.get(2)?);
        let (since, body): (Option<i64>, Option<String>) = (row.get(3)?, row.get(4)?);
        let event = CarriedEvent {
            id: row.get(0)?,
            claim: node
                .zip(until)
                .map(|(node, until)| HeldClaim { node, until }),
            waiting: since
                .zip(body)
                .map(|(since, body)| WaitingEvent { since, body }),
        };
        if say(told, Carried::Event(event)).is_err() {
            return Ok(Err(Unheard));
        }
    }
    Ok(Ok(()))
}

/// What stands in the database of a key's day.
fn read(connection: &Connection, date: &str, key: KeyId) -> rusqlite::Result<DayRows> {
    let place = (date, key.as_str());
    let row = |row: &Row<'_>| {
        let mut numbers = [0; Totals::NUMBERS];
        for (number, column) in numbers.iter_mut().zip(1..) {
            *number = unsigned(row.get(column)?);
        }
        let ceiling = Ceiling {
            limit: unsigned(row.get(1 + Totals::NUMBERS)?),
            granted: unsigned(row.get(2 + Totals::NUMBERS)?),
        };
        Ok((row.get(0)?, (Totals::of_numbers(numbers), ceiling)))
    };
    let rows = connection
        .prepare_cached(ROWS)?
        .query_map(place, row)?
        .collect::<rusqlite::Result<BTreeMap<String, _>>>()?;
    let late = connection
        .prepare_cached(LATE)?
        .query_map(place, |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<BTreeMap<i64, i64>>>()?;
    let copied: Option<String> = connection
        .prepare_cached(COPIED)?
        .query_row(place, |row| row.get(0))
        .optional()?;
    Ok(DayRows {
        rows,
        late,
        copied: match copied {
            Some(body) => serde_json::from_str(&body).map_err(keys::unreadable)?,
            None => Copied::default(),
        },
    })
}

fn parsed<T: std::str::FromStr>(text: &str) -> rusqlite::Result<T>
where
    T::Err: std::error::Error + Send + Sync + 'static,
{
    text.parse().map_err(keys::unreadable)
}

/// Takes in a batch at `now` (Unix seconds), or only says what would come of it.
pub(super) fn take_in(
    connection: &Connection,
    (path, now): (&Path, i64),
    pieces: &[Carried],
    taking: Taking,
) -> rusqlite::Result<Result<Taken, StoreError>> {
    let transaction = Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
    // What is taken in is held against all that was counted here.
    fold_all(&transaction)?;
    let own = own_name(&transaction)?;
    let mut put = keys::Put::prepare(&transaction)?;
    let mut taken = Taken::default();
    for piece in pieces {
        let outcome = match piece {
            Carried::Key(key) => keys::take_in(&transaction, &mut put, key, &mut taken)?,
            Carried::KeyDay(told) => take_day(&transaction, path, (&own, now), told, &mut taken)?,
            Carried::Event(event) => {
                take_event(&transaction, event, &mut taken)?;
                Ok(())
            }
            Carried::Audit(entry) => {
                keys::take_in_entry(&transaction, entry, &mut taken)?;
                Ok(())
            }
        };
        if let Err(error) = outcome {
            return Ok(Err(error));
        }
    }
    drop(put);
    match taking {
        Taking::Write => transaction.commit()?,
        Taking::Rehearse => transaction.rollback()?,
    }
    Ok(Ok(taken))
}

fn take_day(
    connection: &Connection,
    path: &Path,
    (own, now): (&str, i64),
    told: &KeyDay,
    taken: &mut Taken,
) -> rusqlite::Result<Result<(), StoreError>> {
    let (date, day) = (told.date.to_string(), told.day());
    match stored_day(connection, &date, told.date)? {
        Some(stored) if stored != day => return Ok(Err(other_calendar(path, day, stored))),
        Some(_) => {}
        None => {
            let mut add = connection.prepare_cached(ADD_DAY)?;
            add.execute((&date, day.start, day.end))?;
        }
    }
    let before = read(connection, &date, told.key)?;
    let mut after = before.clone();
    after.take(own, told);
    if after == before {
        taken.key_days_held += 1;
    } else {
        closing::reopen(connection, &date, now)?;
        appended::note_rewritten(connection)?;
        write(connection, (&date, told.key), &before, &after)?;
        taken.key_days_added += 1;
    }
    Ok(Ok(()))
}

fn stored_day(connection: &Connection, text: &str, date: Date) -> rusqlite::Result<Option<Day>> {
    let mut day = connection.prepare_cached(DAY)?;
    let read = |row: &Row<'_>| {
        Ok(Day {
            date,
            start: row.get(0)?,
            end: row.get(1)?,
        })
    };
    day.query_row([text], read).optional()
}

fn write(
    connection: &Connection,
    (date, key): (&str, KeyId),
    before: &DayRows,
    after: &DayRows,
) -> rusqlite::Result<()> {
    let key = key.as_str();
    let mut put = connection.prepare_cached(PUT_ROW)?;
    for (place, (totals, ceiling)) in &after.rows {
        if before.rows.get(place) == Some(&(*totals, *ceiling)) {
            continue;
        }
        put.raw_bind_parameter(1, date)?;
        put.raw_bind_parameter(2, key)?;
        put.raw_bind_parameter(3, place.as_str())?;
        let numbers = totals.numbers().into_iter();
        let numbers = numbers.chain([ceiling.limit, ceiling.granted]);
        for (parameter, number) in (4..).zip(numbers) {
            put.raw_bind_parameter(parameter, signed(number))?;
        }
        put.raw_execute()?;
    }
    // Only what nobody had attributed can be gone: it has been by now.
    if !after.rows.contains_key(UNATTRIBUTED) {
        connection
            .prepare_cached(DROP_ROW)?
            .execute((date, key, UNATTRIBUTED))?;
    }
    for (came, units) in &after.late {
        if before.late.get(came) != Some(units) {
            connection
                .prepare_cached(PUT_LATE)?
                .execute((date, key, came, units))?;
        }
    }
    if before.copied != after.copied {
        let body = serde_json::to_string(&after.copied)
            .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))?;
        connection
            .prepare_cached(PUT_COPIED)?
            .execute((date, key, body))?;
    }
    Ok(())
}

/// An event whose claim is here was told by a gateway of this store or came earlier: it is not to be delivered again.
fn take_event(
    connection: &Connection,
    event: &CarriedEvent,
    taken: &mut Taken,
) -> rusqlite::Result<()> {
    let is_new = match &event.claim {
        Some(claim) => {
            let mut put = connection.prepare_cached(CLAIM)?;
            put.execute((&event.id, &claim.node, claim.until))? == 1
        }
        None => {
            let mut waits = connection.prepare_cached(WAITS)?;
            waits.query_row([&event.id], |row| row.get::<_, i64>(0))? == 0
        }
    };
    if !is_new {
        taken.events_held += 1;
        return Ok(());
    }
    taken.events_added += 1;
    if let Some(waiting) = &event.waiting {
        let mut keep = connection.prepare_cached(KEEP)?;
        keep.execute((waiting.since, &event.id, &waiting.body))?;
    }
    Ok(())
}

/// The places of a day's rows to which others have told something.
pub(super) fn copied_places(
    connection: &Connection,
    from: &str,
    to: &str,
) -> rusqlite::Result<BTreeSet<(String, String)>> {
    let mut places =
        connection.prepare_cached("SELECT date, key FROM copied WHERE date BETWEEN ?1 AND ?2")?;
    places
        .query_map((from, to), |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect()
}
