//! Closing days: the entries of the chain (`store::chain`) for the days of this database.
//!
//! A day is closed when its settle window is over. Its rows are digested a few at a time, so that charges are served between two
//! turns. Each gateway on the file does this, and the first to finish writes the entry. The rows must not change meanwhile: the first
//! gateway writes a mark into the database, and each group with entries of a closed or marked day removes the mark and reopens the
//! day, in the same transaction. Closing starts only when the ledger has all entries of the day, so that folding groups into the
//! ledger changes no row of a closed or marked day. A reopened day is closed again in the next turn.
//!
//! The wall clock decides, even after a leap: closing deletes nothing, and a day that was closed too early is reopened by its next
//! charge.

use std::collections::BTreeMap;

use jiff::Timestamp;
use jiff::civil::Date;
use rusqlite::{Connection, Row, Transaction, TransactionBehavior};
use tokio::sync::mpsc;

use super::appended;
use crate::policy::api_key::os_entropy;
use crate::store::Keeping;
use crate::store::chain::{
    ChainEntry, ChainItem, DayState, LateRow, LedgerRow, RowsDigest, RowsSummary,
};
use crate::store::ledger::RowTotals;
use crate::store::ledger_row::{RowNumbers, add_numbers, read_numbers, stored, tier_and_endpoint};
use crate::store::sqlite::{
    self, execute, first, meta, parsed, signed, unreadable, unsigned, value, write_meta,
};

/// The number of rows that one turn digests, approximately: one or two milliseconds of the writer. A day of 100,000 keys with five
/// endpoints each is closed in some eight minutes.
const ROWS_MAX: u16 = 1_000;

/// The table; the columns are the fields of `store::chain::ChainEntry`.
pub(super) const TABLE: &str = "
    -- at: Unix seconds. No row is ever changed or deleted.
    CREATE TABLE chain (
        number INTEGER PRIMARY KEY,
        date TEXT NOT NULL,
        state TEXT NOT NULL,
        at INTEGER NOT NULL,
        row_count INTEGER NOT NULL,
        rows_sha256 TEXT NOT NULL,
        previous TEXT NOT NULL,
        digest TEXT NOT NULL
    ) STRICT;
    CREATE INDEX chain_by_date ON chain (date, number, state);";

// A day whose retention is over is no longer closed.
const DUE: &str = "SELECT date FROM days WHERE next <= ?1 AND next > ?2 AND coalesce(
        (SELECT state FROM chain WHERE chain.date = days.date ORDER BY number DESC LIMIT 1), '') NOT IN ('closed', 'dropped')
    ORDER BY date LIMIT 1";
/// The name in `meta` of the mark, whose value is a date, a space and a random word.
const MARK: &str = "closing";
const DROP_MARK: &str = "DELETE FROM meta WHERE name = 'closing' AND value LIKE ?1 || ' %'";
const STATE: &str = "SELECT state FROM chain WHERE date = ?1 ORDER BY number DESC LIMIT 1";
const LAST: &str = "SELECT number, digest FROM chain ORDER BY number DESC LIMIT 1";
const APPEND: &str =
    "INSERT INTO chain (number, date, state, at, row_count, rows_sha256, previous, digest)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
/// The last date that a write may have to reopen; empty if there is none.
pub(super) const GUARDED: &str = "SELECT max(coalesce((SELECT max(date) FROM chain), ''),
    coalesce((SELECT substr(value, 1, 10) FROM meta WHERE name = 'closing'), ''))";
const ENTRIES: &str = "SELECT number, date, state, at, row_count, rows_sha256, previous, digest FROM chain ORDER BY number";
const NEXT_DATE: &str =
    "SELECT min(date) FROM (SELECT min(date) AS date FROM ledger WHERE date > ?1
    UNION ALL SELECT min(date) FROM adjustments WHERE date > ?1)";
const LEDGER: &str =
    "SELECT key, endpoint, requests, charged, refunded, refused_tier, refused_quota, refused_burst,
        refused_concurrent, refused_not_found, refused_method, day_limit, granted
    FROM ledger WHERE date = ?1 AND (key, endpoint) > (?2, ?3) ORDER BY key, endpoint LIMIT ?4";
const LATE: &str = "SELECT key, came, units FROM adjustments
    WHERE date = ?1 AND (key, came) > (?2, ?3) ORDER BY key, came LIMIT ?4";

/// The closing of a day by this process.
#[derive(Default)]
pub(super) struct Closer {
    is_due: bool,
    under_way: Option<ClosingDay>,
}

struct ClosingDay {
    mark: String,
    rows: Pages,
    digest: RowsDigest,
}

impl Closer {
    /// Notes whether there is a day to close: the answer of [`due`].
    pub(super) fn expect(&mut self, is_due: bool) {
        self.is_due = is_due;
    }

    /// One turn on the writer's connection: digests some rows of the oldest day that is due, and closes the day after its last row.
    /// After a failure the day starts over.
    pub(super) fn turn(
        &mut self,
        connection: &Connection,
        keeping: Keeping,
        now: Timestamp,
    ) -> rusqlite::Result<()> {
        let begun = match self.under_way.take() {
            Some(under_way) => Some(under_way),
            None if self.is_due => begin(connection, keeping, now)?,
            None => None,
        };
        let Some(mut under_way) = begun else {
            return Ok(());
        };
        let mut digested = 0;
        while digested < usize::from(ROWS_MAX) {
            let rows = under_way.rows.next(connection)?;
            rows.iter().for_each(|row| under_way.digest.take(row));
            digested += rows.len();
            if under_way.rows.reached == PageStart::End {
                return finish(connection, under_way, now);
            }
        }
        self.under_way = Some(under_way);
        Ok(())
    }
}

/// The oldest day that is due, if there is a day to close. Some milliseconds for a year of days: not on the connection on which charges
/// wait.
pub(super) fn due(
    connection: &Connection,
    keeping: Keeping,
    now: Timestamp,
) -> rusqlite::Result<Option<String>> {
    let [closed, dropped] = [keeping.settle_window_seconds(), keeping.retention_seconds()]
        .map(|seconds| now.as_second().saturating_sub(seconds));
    first(connection, DUE, [closed, dropped], |row| row.get(0))
}

/// Marks the oldest day that is due, or uses the mark of another process.
fn begin(
    connection: &Connection,
    keeping: Keeping,
    now: Timestamp,
) -> rusqlite::Result<Option<ClosingDay>> {
    let transaction = Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
    let Some(date) = due(&transaction, keeping, now)? else {
        return Ok(None);
    };
    let day: Date = date.parse().map_err(unreadable)?;
    if appended::lacks(&transaction, day)? {
        return Ok(None);
    }
    let mark = match meta(&transaction, MARK)? {
        Some(mark) if mark.starts_with(&date) => mark,
        Some(_) | None => {
            let mut word = [0; 8];
            os_entropy(&mut word);
            let mark = format!("{date} {:016x}", u64::from_le_bytes(word));
            write_meta(&transaction, MARK, &mark)?;
            mark
        }
    };
    transaction.commit()?;
    Ok(Some(ClosingDay {
        mark,
        rows: Pages::of(day, Lacking::new()),
        digest: RowsDigest::default(),
    }))
}

/// Closes the day, unless it was written since it was marked, or another process has closed it.
fn finish(connection: &Connection, under_way: ClosingDay, now: Timestamp) -> rusqlite::Result<()> {
    let ClosingDay {
        mark: own,
        rows: Pages { date, text, .. },
        digest,
    } = under_way;
    let transaction = Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
    if meta(&transaction, MARK)?.as_ref() != Some(&own) {
        return Ok(());
    }
    execute(&transaction, DROP_MARK, [&text])?;
    let rows = digest.finish();
    let place = (date, now.as_second());
    let entry = append(&transaction, place, DayState::Closed, Some(rows))?;
    transaction.commit()?;
    tracing::info!(
        %date, rows = entry.rows, rows_sha256 = entry.rows_sha256, entry = entry.number, digest = entry.digest,
        "a day of the ledger is closed"
    );
    Ok(())
}

/// Removes the mark of a day and reopens it at `at` (Unix seconds) if it is closed: this transaction writes rows of it. Returns
/// whether it was closed.
pub(super) fn reopen(connection: &Connection, date: &str, at: i64) -> rusqlite::Result<bool> {
    execute(connection, DROP_MARK, [date])?;
    let is_closed = state(connection, date)?.as_deref() == Some(DayState::Closed.as_str());
    if is_closed {
        let day = date.parse().map_err(unreadable)?;
        append(connection, (day, at), DayState::Reopened, None)?;
    }
    Ok(is_closed)
}

/// Records that the retention drops a day.
pub(super) fn let_go(connection: &Connection, date: &str, at: i64) -> rusqlite::Result<()> {
    execute(connection, DROP_MARK, [date])?;
    match state(connection, date)?.as_deref() {
        Some("closed" | "reopened") => {
            let day = date.parse().map_err(unreadable)?;
            append(connection, (day, at), DayState::Dropped, None).map(|_| ())
        }
        Some(_) | None => Ok(()),
    }
}

/// The day's state in its last entry.
fn state(connection: &Connection, date: &str) -> rusqlite::Result<Option<String>> {
    first(connection, STATE, [date], |row| row.get(0))
}

/// Appends an entry. Called in an immediate transaction only: the last number is read first.
fn append(
    connection: &Connection,
    place: (Date, i64),
    state: DayState,
    closed: Option<RowsSummary>,
) -> rusqlite::Result<ChainEntry> {
    let read = |row: &Row<'_>| Ok((unsigned(row.get(0)?), row.get(1)?));
    let last = first(connection, LAST, [], read)?;
    let entry = ChainEntry::after(last, place, state, closed);
    let row = (
        signed(entry.number),
        entry.date.to_string(),
        entry.state.as_str(),
        entry.at,
        signed(entry.rows),
        &entry.rows_sha256,
        &entry.previous,
        &entry.digest,
    );
    execute(connection, APPEND, row)?;
    Ok(entry)
}

/// The entries of a day that are not in the ledger yet, by key and row name.
type Lacking = BTreeMap<(String, String), RowTotals>;

/// The rows of a day in their canonical order, page by page.
struct Pages {
    date: Date,
    text: String,
    reached: PageStart,
    lacking: Lacking,
}

/// The row after which the next page begins.
#[derive(PartialEq, Eq)]
enum PageStart {
    Ledger { key: String, endpoint: String },
    Late { key: String, came: i64 },
    End,
}

impl Pages {
    fn of(date: Date, lacking: Lacking) -> Pages {
        Pages {
            date,
            text: date.to_string(),
            lacking,
            reached: PageStart::Ledger {
                key: String::new(),
                endpoint: String::new(),
            },
        }
    }

    fn next(&mut self, connection: &Connection) -> rusqlite::Result<Vec<ChainItem>> {
        let (date, text) = (self.date, self.text.as_str());
        match &mut self.reached {
            PageStart::Ledger { key, endpoint } => {
                let mut rows = connection.prepare_cached(LEDGER)?;
                let mut rows = rows.query((text, key.as_str(), endpoint.as_str(), ROWS_MAX))?;
                let mut page = BTreeMap::new();
                while let Some(row) = rows.next()? {
                    (*key, *endpoint) = (row.get(0)?, row.get(1)?);
                    page.insert((key.clone(), endpoint.clone()), read_numbers(row, 2)?);
                }
                let is_last = page.len() < usize::from(ROWS_MAX);
                let end = (key.clone(), endpoint.clone());
                while let Some(next) = self.lacking.first_entry()
                    && (is_last || *next.key() <= end)
                {
                    let (place, addition) = next.remove_entry();
                    add_numbers(page.entry(place).or_default(), stored(addition));
                }
                if is_last {
                    self.reached = PageStart::Late {
                        key: String::new(),
                        came: i64::MIN,
                    };
                }
                let rows = page.into_iter();
                Ok(rows.map(|row| ledger_row(date, row)).collect())
            }
            PageStart::Late { key, came } => {
                let mut rows = connection.prepare_cached(LATE)?;
                let mut rows = rows.query((text, key.as_str(), *came, ROWS_MAX))?;
                let mut page = Vec::new();
                while let Some(row) = rows.next()? {
                    (*key, *came) = (row.get(0)?, row.get(1)?);
                    page.push(ChainItem::Late(LateRow {
                        date,
                        key: key.clone(),
                        came: *came,
                        units: row.get(2)?,
                    }));
                }
                if page.len() < usize::from(ROWS_MAX) {
                    self.reached = PageStart::End;
                }
                Ok(page)
            }
            PageStart::End => Ok(Vec::new()),
        }
    }
}

fn ledger_row(date: Date, ((key, place), numbers): ((String, String), RowNumbers)) -> ChainItem {
    let (tier, endpoint) = tier_and_endpoint(&place);
    ChainItem::Ledger(LedgerRow {
        date,
        key,
        tier: tier.map(|tier| tier.to_string()),
        endpoint: endpoint.to_owned(),
        numbers,
    })
}

/// Reads every entry, then the rows of some days.
pub(super) fn read(
    instant: &Connection,
    days: Option<(Date, Date)>,
    pieces: &mpsc::Sender<ChainItem>,
) -> rusqlite::Result<()> {
    let mut entries = instant.prepare(ENTRIES)?;
    let mut entries = entries.query([])?;
    while let Some(row) = entries.next()? {
        sqlite::send(pieces, ChainItem::Entry(entry(row)?))?;
    }
    let Some((from, to)) = days else {
        return Ok(());
    };
    let mut lacking: BTreeMap<Date, Lacking> = BTreeMap::new();
    let mut sums = appended::lacking(instant, |date, _| (from..=to).contains(&date))?;
    while let Some(((date, key), place, addition)) = sums.pop_first() {
        let place = (key.to_string(), place.to_string());
        lacking.entry(date).or_default().insert(place, addition);
    }
    let mut reached = from
        .yesterday()
        .map_or_else(|_| String::new(), |date| date.to_string());
    loop {
        let in_ledger: Option<String> = value(instant, NEXT_DATE, [&reached])?;
        let in_ledger = in_ledger.filter(|date| *date <= to.to_string());
        let appended = lacking.keys().next().map(Date::to_string);
        let Some(date) = in_ledger.into_iter().chain(appended).min() else {
            return Ok(());
        };
        let day = date.parse().map_err(unreadable)?;
        let mut pages = Pages::of(day, lacking.remove(&day).unwrap_or_default());
        while pages.reached != PageStart::End {
            for piece in pages.next(instant)? {
                sqlite::send(pieces, piece)?;
            }
        }
        reached = date;
    }
}

fn entry(row: &Row<'_>) -> rusqlite::Result<ChainEntry> {
    let known = DayState::of_str(row.get_ref(2)?.as_str()?);
    Ok(ChainEntry {
        number: unsigned(row.get(0)?),
        date: parsed(row, 1)?,
        state: known.ok_or_else(|| {
            let kind = rusqlite::types::Type::Text;
            rusqlite::Error::InvalidColumnType(2, "state".into(), kind)
        })?,
        at: row.get(3)?,
        rows: unsigned(row.get(4)?),
        rows_sha256: row.get(5)?,
        previous: row.get(6)?,
        digest: row.get(7)?,
    })
}
