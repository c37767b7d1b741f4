//! Export of all that the database stores.
//!
//! The content of one instant is read, while the writer continues.

use jiff::civil::Date;
use rusqlite::Connection;
use tokio::sync::mpsc;

use super::appended::{self, Additions};
use super::day_rows::{own_name, read};
use super::keys;
use crate::policy::api_key::KeyId;
use crate::policy::calendar::Day;
use crate::store::export::{Exported, ExportedEvent, ExportedKey, HeldClaim, WaitingEvent};
use crate::store::sqlite::{self, parsed, rows, unreadable};

/// The keys of a day that are in memory at once.
const PAGE_KEYS: i64 = 1_000;

const DAYS: &str = "SELECT date, first, next FROM days ORDER BY date";
const KEYS_OF_DAY: &str = "SELECT key FROM ledger WHERE date = ?1 AND key > ?2
    UNION SELECT key FROM adjustments WHERE date = ?1 AND key > ?2
    UNION SELECT key FROM copied WHERE date = ?1 AND key > ?2
    ORDER BY key LIMIT ?3";
const EVENTS: &str = "SELECT claims.event, claims.node, claims.until, events.since, events.body
        FROM claims LEFT JOIN events ON events.event = claims.event
    UNION ALL
    SELECT events.event, NULL, NULL, events.since, events.body
        FROM events WHERE NOT EXISTS (SELECT 1 FROM claims WHERE claims.event = events.event)";

/// Sends all content of an instant. Blocks the thread until the end.
pub(super) fn export(
    instant: &Connection,
    exported: &mpsc::Sender<Exported>,
) -> rusqlite::Result<()> {
    let own = own_name(instant)?;
    export_keys(instant, exported)?;
    for entry in keys::trail_of(instant, keys::NO_KEY)? {
        sqlite::send(exported, Exported::Audit(Box::new(entry)))?;
    }
    export_days(instant, &own, exported)?;
    export_events(instant, exported)
}

fn export_keys(connection: &Connection, exported: &mpsc::Sender<Exported>) -> rusqlite::Result<()> {
    let mut reached = None;
    loop {
        let page = keys::page(connection, reached)?;
        reached = page.last().map(|record| record.id);
        if reached.is_none() {
            return Ok(());
        }
        for record in page {
            let trail = keys::trail_of(connection, record.id.as_str())?;
            let key = ExportedKey { record, trail };
            sqlite::send(exported, Exported::Key(Box::new(key)))?;
        }
    }
}

/// A page of the ids in the ledger of a day after an id, in their order.
pub(super) fn keys_of_day(
    connection: &Connection,
    date: &str,
    after: &str,
) -> rusqlite::Result<Vec<String>> {
    let page = (date, after, PAGE_KEYS);
    rows(connection, KEYS_OF_DAY, page, |row| row.get(0))
}

fn export_days(
    connection: &Connection,
    own: &str,
    exported: &mpsc::Sender<Exported>,
) -> rusqlite::Result<()> {
    let mut days = connection.prepare(DAYS)?;
    let mut days = days.query([])?;
    let mut lacking = appended::lacking(connection, |_, _| true)?.by_day();
    while let Some(row) = days.next()? {
        let date: String = row.get(0)?;
        let day = Day {
            date: parsed(row, 0)?,
            start: row.get(1)?,
            end: row.get(2)?,
        };
        let mut reached = String::new();
        loop {
            let page = keys_of_day(connection, &date, &reached)?;
            let Some(last) = page.last() else { break };
            reached.clone_from(last);
            for key in page {
                let key: KeyId = key.parse().map_err(unreadable)?;
                let appended = lacking.remove(&(day.date, key)).unwrap_or_default();
                export_key_day(connection, (own, exported), (key, day), appended)?;
            }
        }
        // Keys without a row in the ledger.
        let of_day = |(date, _): &(Date, KeyId), _: &mut _| *date == day.date;
        for ((_, key), appended) in lacking.extract_if(.., of_day) {
            export_key_day(connection, (own, exported), (key, day), appended)?;
        }
    }
    Ok(())
}

fn export_key_day(
    connection: &Connection,
    (own, exported): (&str, &mpsc::Sender<Exported>),
    (key, day): (KeyId, Day),
    appended: Additions,
) -> rusqlite::Result<()> {
    let mut rows = read(connection, &day.date.to_string(), key)?;
    rows.add(appended);
    let item = Exported::KeyDay(Box::new(rows.exported(own, key, day)));
    sqlite::send(exported, item)
}

fn export_events(
    connection: &Connection,
    exported: &mpsc::Sender<Exported>,
) -> rusqlite::Result<()> {
    let mut events = connection.prepare(EVENTS)?;
    let mut rows = events.query([])?;
    while let Some(row) = rows.next()? {
        let (node, until): (Option<String>, Option<i64>) = (row.get(1)?, row.get(2)?);
        let (since, body): (Option<i64>, Option<String>) = (row.get(3)?, row.get(4)?);
        let event = ExportedEvent {
            id: row.get(0)?,
            claim: node
                .zip(until)
                .map(|(node, until)| HeldClaim { node, until }),
            waiting: since
                .zip(body)
                .map(|(since, body)| WaitingEvent { since, body }),
        };
        sqlite::send(exported, Exported::Event(event))?;
    }
    Ok(())
}
