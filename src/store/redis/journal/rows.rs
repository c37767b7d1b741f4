//! The rows of the journal: their tables, and how each is written and read.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::civil::Date;
use rusqlite::{Connection, Row, params};

use crate::policy::api_key::KeyId;
use crate::policy::calendar::Day;
use crate::policy::key_record::TierName;
use crate::store::Totals;
use crate::store::disk::ROOM_BYTES;
use crate::store::ledger::Ceiling;
use crate::store::ledger_row::{execute_with_row, read_numbers, read_row};
use crate::store::sqlite::{
    self, execute, first, meta, parsed, signed, unsigned, value, write_meta,
};

/// How long settled rows are kept after their day.
const SETTLED_KEPT_AFTER_DAY_SECONDS: i64 = 120;

/// The tables of a file. A later version adds columns with a default, so that a process that does not know them can still write.
pub const TABLES: &str = "
    CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
    -- process: what the names of its producers begin with; seen: when it last wrote (Unix seconds).
    CREATE TABLE processes (process TEXT PRIMARY KEY, seen INTEGER NOT NULL) STRICT, WITHOUT ROWID;
    -- ack, rack: units consumed and refunded by the producer; untold: units served without Redis that it may not know;
    -- settled: whether Redis holds the row as it is; first, next: Unix seconds of the day and of the next one.
    CREATE TABLE counts (
        date TEXT NOT NULL, key TEXT NOT NULL, producer TEXT NOT NULL,
        first INTEGER NOT NULL, next INTEGER NOT NULL,
        ack INTEGER NOT NULL, rack INTEGER NOT NULL, untold INTEGER NOT NULL, settled INTEGER NOT NULL,
        PRIMARY KEY (date, key, producer)
    ) STRICT, WITHOUT ROWID;
    -- day_limit, granted: the ceiling of the charges; tier: '' if it is unknown.
    CREATE TABLE sheets (
        date TEXT NOT NULL, key TEXT NOT NULL, producer TEXT NOT NULL, endpoint TEXT NOT NULL,
        first INTEGER NOT NULL, next INTEGER NOT NULL, tier TEXT NOT NULL,
        requests INTEGER NOT NULL, charged INTEGER NOT NULL, refunded INTEGER NOT NULL,
        refused_tier INTEGER NOT NULL, refused_quota INTEGER NOT NULL, refused_burst INTEGER NOT NULL,
        refused_concurrent INTEGER NOT NULL, refused_not_found INTEGER NOT NULL, refused_method INTEGER NOT NULL,
        day_limit INTEGER NOT NULL, granted INTEGER NOT NULL, settled INTEGER NOT NULL,
        PRIMARY KEY (date, key, producer, endpoint)
    ) STRICT, WITHOUT ROWID;";

macro_rules! totals_columns {
    () => {
        "SELECT date, key, producer, first, next, endpoint, tier, requests, charged, refunded, refused_tier, refused_quota,
            refused_burst, refused_concurrent, refused_not_found, refused_method, day_limit, granted
        FROM sheets"
    };
}

const WRITE_COUNT: &str = "
    INSERT INTO counts (date, key, producer, first, next, ack, rack, untold, settled)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
    ON CONFLICT DO UPDATE SET
        ack = max(ack, excluded.ack), rack = max(rack, excluded.rack),
        untold = CASE WHEN excluded.ack >= ack THEN excluded.untold ELSE untold END,
        settled = excluded.settled AND excluded.ack >= ack AND excluded.rack >= rack";
const WRITE_TOTALS: &str = "
    INSERT INTO sheets (date, key, producer, endpoint, first, next, settled, tier, requests, charged, refunded,
        refused_tier, refused_quota, refused_burst, refused_concurrent, refused_not_found, refused_method, day_limit,
        granted)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)
    ON CONFLICT DO UPDATE SET
        requests = excluded.requests, charged = excluded.charged, refunded = excluded.refunded,
        refused_tier = excluded.refused_tier, refused_quota = excluded.refused_quota,
        refused_burst = excluded.refused_burst, refused_concurrent = excluded.refused_concurrent,
        refused_not_found = excluded.refused_not_found, refused_method = excluded.refused_method,
        day_limit = excluded.day_limit, granted = excluded.granted, settled = excluded.settled";
const UNSETTLED_OF_OTHERS: &str = "
    SELECT coalesce(sum(untold), 0) FROM counts WHERE date = ?1 AND key = ?2 AND producer <> ?3";
const COUNTS_BUT: &str = "
    SELECT date, key, producer, first, next, ack, rack, untold FROM counts
    WHERE date = ?1 AND key = ?2 AND producer NOT GLOB ?3";
const TOTALS: &str = concat!(
    totals_columns!(),
    " WHERE date = ?1 AND key = ?2 AND producer = ?3 AND endpoint = ?4"
);
const TOTALS_BUT: &str = concat!(
    totals_columns!(),
    " WHERE date = ?1 AND key = ?2 AND producer NOT GLOB ?3"
);
// The tables are in this order; a day whose rows are all left out is passed over.
const DAYS_OF_COUNTS: &str = "
    SELECT DISTINCT date, key FROM counts WHERE producer NOT GLOB ?1 AND (date, key) > (?2, ?3)
        ORDER BY date, key LIMIT ?4";
const DAYS_OF_TOTALS: &str = "
    SELECT DISTINCT date, key FROM sheets WHERE producer NOT GLOB ?1 AND (date, key) > (?2, ?3)
        ORDER BY date, key LIMIT ?4";
const IS_ATTRIBUTED: &str = "
    SELECT counted.ack = attributed.charged AND counted.rack = attributed.refunded FROM
    (SELECT coalesce(sum(ack), 0) AS ack, coalesce(sum(rack), 0) AS rack FROM counts
        WHERE date = ?1 AND key = ?2 AND producer GLOB ?3) AS counted,
    (SELECT coalesce(sum(charged), 0) AS charged, coalesce(sum(refunded), 0) AS refunded FROM sheets
        WHERE date = ?1 AND key = ?2 AND producer GLOB ?3) AS attributed";
// Of the past days, those with rows that Redis is not known to have.
const UNSETTLED: &str = "SELECT date, key FROM counts WHERE settled = 0 AND next < ?1
    UNION SELECT date, key FROM sheets WHERE settled = 0 AND next < ?1";
const SETTLE_COUNT: &str = "
    UPDATE counts SET settled = 1, untold = 0
    WHERE date = ?1 AND key = ?2 AND producer = ?3 AND ack = ?4 AND rack = ?5";
const SETTLE_TOTALS: &str = "
    UPDATE sheets SET settled = 1 WHERE date = ?1 AND key = ?2 AND producer = ?3 AND endpoint = ?4
    AND (requests, charged, refunded, refused_tier, refused_quota, refused_burst, refused_concurrent, refused_not_found,
        refused_method, day_limit, granted) = (?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)";

/// The count of one producer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CountRow {
    /// The key.
    pub key: KeyId,
    /// The day.
    pub day: Day,
    /// The producer's name.
    pub producer: String,
    /// Units consumed.
    pub ack: u64,
    /// Units refunded.
    pub rack: u64,
    /// Units served without Redis that it may not have.
    pub unsettled_units: u64,
    /// Whether Redis has these values.
    pub settled: bool,
}

/// The ledger of one producer and endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TotalsRow {
    /// The key.
    pub key: KeyId,
    /// The day.
    pub day: Day,
    /// The producer's name.
    pub producer: String,
    /// The tier; `None` if an older version wrote the row.
    pub tier: Option<TierName>,
    /// The ceiling of the day's charges.
    pub ceiling: Ceiling,
    /// The endpoint.
    pub endpoint: Arc<str>,
    /// Its totals.
    pub totals: Totals,
    /// Whether Redis has these totals.
    pub settled: bool,
}

/// A key's day, in the order of the tables.
pub type DateAndKey = (Date, KeyId);

/// Counts and totals that are written together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JournalRows {
    /// Counts.
    pub counts: Vec<CountRow>,
    /// Totals, none of them newer than the counts of their process.
    pub totals: Vec<TotalsRow>,
}

/// The outcome of journaling units to be served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServeOutcome {
    /// The units are on disk. The other processes of the journal have served `others` units of the key's day.
    Durable {
        /// Units of the other processes.
        others: u64,
    },
    /// Together with the units of others, it would exceed the allowance: it is not written.
    Beyond,
}

/// Fails if the disk has no room for more than units to be served: a few bytes may fit into what is left of the log.
pub fn prove_room(connection: &Connection) -> rusqlite::Result<()> {
    // Not the text of the last time, of which SQLite would write nothing.
    let text = format!("{:016x}", fastrand::u64(..));
    write_meta(connection, "room", &text.repeat(ROOM_BYTES / text.len()))
}

/// Writes the number of live gateways.
pub fn remember_nodes(connection: &Connection, nodes: u64) -> rusqlite::Result<()> {
    write_meta(connection, "nodes", &nodes.to_string())
}

/// The last written number of live gateways.
pub fn nodes(connection: &Connection) -> rusqlite::Result<Option<u64>> {
    Ok(meta(connection, "nodes")?.and_then(|value| value.parse().ok()))
}

/// The rows that were dropped although Redis is not known to have them.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct DroppedUnsettled {
    /// Their number.
    pub rows: u64,
    /// Units served without Redis that it may not have.
    pub units: u64,
}

/// Drops rows that are no longer needed at `now` (Unix seconds), all rows of a key's day or none: soon after the day if Redis has
/// them, otherwise when `retention` seconds have passed, after which Redis drops the day, too.
pub fn drop_old(
    connection: &Connection,
    now: i64,
    retention: i64,
) -> rusqlite::Result<DroppedUnsettled> {
    let mut dropped = DroppedUnsettled::default();
    for (table, units) in [("counts", "untold"), ("sheets", "0")] {
        let drop = format!(
            "DELETE FROM {table} WHERE next < ?2 OR (next < ?1 AND (date, key) NOT IN ({UNSETTLED}))
             RETURNING settled, {units}"
        );
        let times = (now - SETTLED_KEPT_AFTER_DAY_SECONDS, now - retention);
        let read = |row: &Row<'_>| Ok((row.get(0)?, unsigned(row.get(1)?)));
        let rows: Vec<(bool, u64)> = sqlite::rows(connection, &drop, times, read)?;
        for (is_settled, units) in rows {
            if !is_settled {
                dropped.rows += 1;
                dropped.units += units;
            }
        }
    }
    Ok(dropped)
}

/// Units served without Redis, and not known to be settled, by producers whose names do not match the pattern `left_out`; an empty one
/// leaves out none.
pub fn unsettled_but(connection: &Connection, left_out: &str) -> rusqlite::Result<u64> {
    let sql = "SELECT coalesce(sum(untold), 0) FROM counts WHERE producer NOT GLOB ?1";
    value(connection, sql, [left_out]).map(unsigned)
}

/// The number of counts, and of those that Redis is not known to have.
pub fn how_many(connection: &Connection) -> rusqlite::Result<(u64, u64)> {
    let sql = "SELECT count(*), coalesce(sum(1 - settled), 0) FROM counts";
    connection.query_row(sql, [], read_pair)
}

fn read_pair(row: &Row<'_>) -> rusqlite::Result<(u64, u64)> {
    Ok((unsigned(row.get(0)?), unsigned(row.get(1)?)))
}

/// The producers whose counts and whose totals are left out, as patterns of SQLite's `GLOB`. An empty one leaves out none, because every
/// producer has a name.
pub type LeftOut = [String; 2];

/// The days of keys after `last`, in order, that have other rows than those left out, with these rows.
pub fn days_but(
    connection: &Connection,
    left_out: &LeftOut,
    last: Option<DateAndKey>,
    most: usize,
) -> rusqlite::Result<Vec<(DateAndKey, JournalRows)>> {
    let (date, key) = match &last {
        Some((date, key)) => (date.to_string(), key.as_str()),
        None => Default::default(),
    };
    let mut days = BTreeSet::new();
    for (listing, left_out) in [DAYS_OF_COUNTS, DAYS_OF_TOTALS].into_iter().zip(left_out) {
        let after = (left_out, &date, key, signed(most as u64));
        let listed: Vec<_> = sqlite::rows(connection, listing, after, read_date_and_key)?;
        days.extend(listed);
    }
    rows_but(connection, left_out, days.into_iter().take(most))
}

/// These days of keys with their rows but those left out.
pub fn rows_but(
    connection: &Connection,
    [of_counts, of_totals]: &LeftOut,
    days: impl Iterator<Item = DateAndKey>,
) -> rusqlite::Result<Vec<(DateAndKey, JournalRows)>> {
    let days = days.map(|(date, key)| {
        let of = |left_out| (date.to_string(), key.as_str(), left_out);
        let rows = JournalRows {
            counts: sqlite::rows(connection, COUNTS_BUT, of(of_counts), read_count)?,
            totals: sqlite::rows(connection, TOTALS_BUT, of(of_totals), read_totals)?,
        };
        Ok(((date, key), rows))
    });
    days.collect()
}

/// Whether the ledger rows of a process on a key's day contain all units of its counts.
pub fn is_attributed(
    connection: &Connection,
    process: &str,
    row: &CountRow,
) -> rusqlite::Result<bool> {
    let names = format!("{process}.*");
    let place = (row.day.date.to_string(), row.key.as_str(), names);
    value(connection, IS_ATTRIBUTED, place)
}

/// The written units, consumed and refunded, of the same producer, key and day.
pub fn marks(connection: &Connection, row: &CountRow) -> rusqlite::Result<Option<(u64, u64)>> {
    let sql = "SELECT ack, rack FROM counts WHERE date = ?1 AND key = ?2 AND producer = ?3";
    let place = (row.day.date.to_string(), row.key.as_str(), &row.producer);
    first(connection, sql, place, read_pair)
}

/// The written row of the same producer, key, day and endpoint.
pub fn totals(connection: &Connection, row: &TotalsRow) -> rusqlite::Result<Option<TotalsRow>> {
    let (date, key) = (row.day.date.to_string(), row.key.as_str());
    let place = (date, key, &row.producer, &*row.endpoint);
    first(connection, TOTALS, place, read_totals)
}

/// Marks that Redis has the row, unless it changed.
pub fn settle_count(connection: &Connection, row: &CountRow) -> rusqlite::Result<()> {
    let (date, key) = (row.day.date.to_string(), row.key.as_str());
    let (ack, rack) = (signed(row.ack), signed(row.rack));
    let values = (date, key, &row.producer, ack, rack);
    execute(connection, SETTLE_COUNT, values).map(drop)
}

/// Marks that Redis has the row, unless it changed.
pub fn settle_totals(connection: &Connection, row: &TotalsRow) -> rusqlite::Result<()> {
    let mut settle = connection.prepare_cached(SETTLE_TOTALS)?;
    let (date, key) = (row.day.date.to_string(), row.key.as_str());
    let place = params![date, key, row.producer, row.endpoint];
    execute_with_row(&mut settle, place, (row.totals, row.ceiling))
}

/// Writes units to be served, if they fit the allowance together with those that others served.
pub fn serve(
    connection: &Connection,
    count: &CountRow,
    totals: &TotalsRow,
    allowance: Option<u64>,
) -> rusqlite::Result<ServeOutcome> {
    let (date, key) = (count.day.date.to_string(), count.key.as_str());
    let of_day = (date, key, &count.producer);
    let others = unsigned(value(connection, UNSETTLED_OF_OTHERS, of_day)?);
    if allowance.is_some_and(|allowance| others + count.unsettled_units > allowance) {
        return Ok(ServeOutcome::Beyond);
    }
    write_count(connection, count)?;
    write_totals(connection, totals)?;
    Ok(ServeOutcome::Durable { others })
}

/// Writes the current values of rows.
pub fn write(connection: &Connection, rows: &JournalRows) -> rusqlite::Result<()> {
    let mut counts = rows.counts.iter();
    counts.try_for_each(|row| write_count(connection, row))?;
    let mut totals = rows.totals.iter();
    totals.try_for_each(|row| write_totals(connection, row))
}

/// Writes a count; it is never lowered.
pub fn write_count(connection: &Connection, row: &CountRow) -> rusqlite::Result<()> {
    let values = (
        row.day.date.to_string(),
        row.key.as_str(),
        &row.producer,
        row.day.start,
        row.day.end,
        signed(row.ack),
        signed(row.rack),
        signed(row.unsettled_units),
        row.settled,
    );
    execute(connection, WRITE_COUNT, values).map(drop)
}

/// Writes a ledger row; it replaces the old values.
pub fn write_totals(connection: &Connection, row: &TotalsRow) -> rusqlite::Result<()> {
    let tier = row.tier.as_ref().map_or("", TierName::as_str);
    let mut write = connection.prepare_cached(WRITE_TOTALS)?;
    let values = params![
        row.day.date.to_string(),
        row.key.as_str(),
        row.producer,
        row.endpoint,
        row.day.start,
        row.day.end,
        row.settled,
        tier,
    ];
    execute_with_row(&mut write, values, (row.totals, row.ceiling))
}

fn read_date_and_key(row: &Row<'_>) -> rusqlite::Result<DateAndKey> {
    Ok((parsed(row, 0)?, parsed(row, 1)?))
}

/// Key, day and producer: the first five columns of both queries.
fn read_place(row: &Row<'_>) -> rusqlite::Result<(KeyId, Day, String)> {
    let (date, key) = read_date_and_key(row)?;
    let day = Day {
        date,
        start: row.get(3)?,
        end: row.get(4)?,
    };
    Ok((key, day, row.get(2)?))
}

fn read_count(row: &Row<'_>) -> rusqlite::Result<CountRow> {
    let (key, day, producer) = read_place(row)?;
    Ok(CountRow {
        key,
        day,
        producer,
        ack: unsigned(row.get(5)?),
        rack: unsigned(row.get(6)?),
        unsettled_units: unsigned(row.get(7)?),
        settled: false,
    })
}

fn read_totals(row: &Row<'_>) -> rusqlite::Result<TotalsRow> {
    let (key, day, producer) = read_place(row)?;
    let (totals, ceiling) = read_row(read_numbers(row, 7)?);
    Ok(TotalsRow {
        key,
        day,
        producer,
        endpoint: row.get::<_, String>(5)?.into(),
        tier: row.get::<_, String>(6)?.parse().ok(),
        totals,
        ceiling,
        settled: false,
    })
}

#[cfg(test)]
mod tests;
