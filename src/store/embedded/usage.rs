//! Reading the ledger: what each key used on each day, by tier and endpoint; and holding its rows against each other.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use jiff::civil::Date;
use rusqlite::{Connection, Row};

use super::carrying::copied_places;
use super::copied::UNATTRIBUTED;
use super::group::unsigned;
use crate::policy::api_key::KeyId;
use crate::policy::key_record::TierName;
use crate::store::ledger::{Ceiling, Cell};
use crate::store::{Adjustment, DayUsage, Proof, Totals};

macro_rules! columns {
    () => {
        "date, key, endpoint, requests, charged, refunded, refused_tier, refused_quota, refused_burst,
         refused_concurrent, refused_not_found, refused_method, day_limit, granted"
    };
}

const LEDGER: &str = concat!(
    "SELECT ",
    columns!(),
    " FROM ledger WHERE date BETWEEN ?1 AND ?2"
);
// The tables are in the order of dates first and then of keys, so a stretch of keys is looked up date by date; a scan would read
// every key's rows.
macro_rules! stretch_of {
    ($table:literal, $columns:expr) => {
        concat!(
            "WITH RECURSIVE asked (day) AS (
                SELECT max(?1, (SELECT min(date) FROM ",
            $table,
            "))
                UNION ALL
                SELECT date(day, '+1 day') FROM asked WHERE day < min(?2, (SELECT max(date) FROM ",
            $table,
            "))
            ) SELECT ",
            $columns,
            " FROM asked CROSS JOIN ",
            $table,
            " ON date = day AND key BETWEEN ?3 AND ?4 WHERE day <= ?2"
        )
    };
}

const LEDGER_OF_KEYS: &str = stretch_of!("ledger", columns!());
const ADJUSTMENTS_OF_KEYS: &str = concat!(
    stretch_of!("adjustments", "date, key, came, units"),
    " ORDER BY date, key, came"
);
const COPIED_OF_KEYS: &str = stretch_of!("copied", "date, key");
/// How many keys lie in a stretch, as far as that is asked for.
const KEYS_BETWEEN: &str =
    "SELECT count(*) FROM (SELECT 1 FROM keys WHERE id BETWEEN ?1 AND ?2 LIMIT ?3)";
const ADJUSTMENTS: &str = "SELECT date, key, came, units FROM adjustments
    WHERE date BETWEEN ?1 AND ?2 ORDER BY date, key, came";

type Place = (Date, KeyId);

#[derive(Default)]
struct OneDay {
    cells: Vec<Cell>,
    adjustments: Vec<Adjustment>,
    faults: BTreeSet<String>,
    /// Whether others told something of it, who may have served above the limit.
    is_copied: bool,
}

/// The ledger from `from` through `to`, in the order of date and key.
pub(super) fn read(
    connection: &Connection,
    from: Date,
    to: Date,
    key: Option<KeyId>,
) -> rusqlite::Result<Vec<DayUsage>> {
    let days = days(connection, from, to, key)?.into_iter();
    Ok(days.map(|(place, day)| day.told(place)).collect())
}

/// The same of some keys: in one stretch where they are next to each other among all keys, or nearly, else one by one.
pub(super) fn read_of(
    connection: &Connection,
    from: Date,
    to: Date,
    keys: &[KeyId],
) -> rusqlite::Result<Vec<DayUsage>> {
    let wanted: BTreeSet<KeyId> = keys.iter().copied().collect();
    let (Some(first), Some(last)) = (wanted.first(), wanted.last()) else {
        return Ok(Vec::new());
    };
    let mut days = BTreeMap::new();
    if are_neighbours(connection, &wanted, (first, last))? {
        add_days_of(&mut days, connection, (from, to), (first, last))?;
        days.retain(|(_, key), _| wanted.contains(key));
    } else {
        for key in &wanted {
            add_days_of(&mut days, connection, (from, to), (key, key))?;
        }
    }
    let days = days.into_iter();
    Ok(days.map(|(place, day)| day.told(place)).collect())
}

/// Whether less than half of the keys from the first to the last are others.
fn are_neighbours(
    connection: &Connection,
    wanted: &BTreeSet<KeyId>,
    (first, last): (&KeyId, &KeyId),
) -> rusqlite::Result<bool> {
    let most = i64::try_from(wanted.len().saturating_mul(2)).unwrap_or(i64::MAX);
    let mut between = connection.prepare_cached(KEYS_BETWEEN)?;
    let asked = (first.as_str(), last.as_str(), most);
    Ok(between.query_row(asked, |row| row.get::<_, i64>(0))? < most)
}

/// The days that [`read`] tells, each with what is wrong with it. The rows are the count, so there is no second one to compare them with:
/// what is told is what no charge and no refund could have written.
pub(super) fn prove(
    connection: &Connection,
    from: Date,
    to: Date,
    key: Option<KeyId>,
) -> rusqlite::Result<Vec<Proof>> {
    let days = days(connection, from, to, key)?.into_iter();
    let proofs = days.map(|(place, mut day)| {
        let mut faults = std::mem::take(&mut day.faults);
        let net: i64 = day.cells.iter().map(|cell| cell.totals.net()).sum();
        let ceiling = day.cells.iter().map(|cell| cell.ceiling.limit).max();
        let by_older = day.is_copied || day.cells.iter().any(|cell| cell.tier.is_none());
        if let Some(limit) = ceiling.filter(|limit| *limit > 0 && !by_older)
            && net > super::group::signed(limit)
        {
            faults.insert(format!(
                "{net} units are used, and no charge was judged by more than {limit}"
            ));
        }
        Proof {
            usage: day.told(place),
            faults: faults.into_iter().collect(),
        }
    });
    Ok(proofs.collect())
}

impl OneDay {
    fn told(self, place: Place) -> DayUsage {
        let (mut cells, adjustments) = (self.cells, self.adjustments);
        if !self.is_copied {
            return DayUsage::of_cells(place, None, cells, adjustments);
        }
        // The rows are the count; the one of units without endpoint is none of the ledger's entries.
        let late: i64 = adjustments.iter().map(|adjustment| adjustment.units).sum();
        let used: i64 = cells.iter().map(|cell| cell.totals.net()).sum();
        cells.retain(|cell| cell.endpoint != UNATTRIBUTED);
        DayUsage::of_cells(place, Some(used + late), cells, adjustments)
    }

    fn add(&mut self, row: &Row<'_>) -> rusqlite::Result<()> {
        let mut numbers = [0_i64; Totals::NUMBERS];
        for (number, column) in numbers.iter_mut().zip(3..) {
            *number = row.get(column)?;
        }
        let place: String = row.get(2)?;
        let (tier, endpoint) = place_of(&place);
        let totals = Totals::of_numbers(numbers.map(unsigned));
        if numbers.iter().any(|number| *number < 0) {
            self.faults
                .insert(format!("{place}: a number is below zero"));
        }
        if totals.refunded > totals.charged && endpoint != UNATTRIBUTED {
            self.faults.insert(format!(
                "{place}: {} units were refunded of {} charged",
                totals.refunded, totals.charged
            ));
        }
        if totals.requests > totals.charged {
            self.faults.insert(format!(
                "{place}: {} requests were charged {} units",
                totals.requests, totals.charged
            ));
        }
        self.cells.push(Cell {
            tier,
            endpoint: endpoint.to_owned(),
            totals,
            ceiling: Ceiling {
                limit: unsigned(row.get(3 + Totals::NUMBERS)?),
                granted: unsigned(row.get(4 + Totals::NUMBERS)?),
            },
        });
        Ok(())
    }
}

/// Tier and endpoint of a row: an endpoint begins with a slash or is one word, a tier's name has no space.
pub(super) fn place_of(text: &str) -> (Option<TierName>, &str) {
    let parts = text
        .split_once(' ')
        .and_then(|(tier, endpoint)| Some((tier.parse::<TierName>().ok()?, endpoint)));
    match parts {
        Some((tier, endpoint)) => (Some(tier), endpoint),
        None => (None, text),
    }
}

fn days(
    connection: &Connection,
    from: Date,
    to: Date,
    key: Option<KeyId>,
) -> rusqlite::Result<BTreeMap<Place, OneDay>> {
    let mut days: BTreeMap<Place, OneDay> = BTreeMap::new();
    if let Some(key) = key {
        add_days_of(&mut days, connection, (from, to), (&key, &key))?;
        return Ok(days);
    }
    let (from, to) = (from.to_string(), to.to_string());
    let mut ledger = connection.prepare(LEDGER)?;
    let mut rows = ledger.query((&from, &to))?;
    while let Some(row) = rows.next()? {
        days.entry(place(row)?).or_default().add(row)?;
    }
    let mut adjustments = connection.prepare(ADJUSTMENTS)?;
    let mut rows = adjustments.query((&from, &to))?;
    while let Some(row) = rows.next()? {
        let day = days.entry(place(row)?).or_default();
        day.adjustments.push(adjustment(row)?);
    }
    for (date, key) in copied_places(connection, &from, &to)? {
        let place = date.parse::<Date>().ok().zip(key.parse::<KeyId>().ok());
        if let Some(day) = place.and_then(|place| days.get_mut(&place)) {
            day.is_copied = true;
        }
    }
    Ok(days)
}

/// Adds the days of the keys from the first through the last.
fn add_days_of(
    days: &mut BTreeMap<Place, OneDay>,
    connection: &Connection,
    (from, to): (Date, Date),
    (first, last): (&KeyId, &KeyId),
) -> rusqlite::Result<()> {
    let (from, to) = (from.to_string(), to.to_string());
    let asked = (&from, &to, first.as_str(), last.as_str());
    let mut ledger = connection.prepare_cached(LEDGER_OF_KEYS)?;
    let mut rows = ledger.query(asked)?;
    while let Some(row) = rows.next()? {
        days.entry(place(row)?).or_default().add(row)?;
    }
    let mut adjustments = connection.prepare_cached(ADJUSTMENTS_OF_KEYS)?;
    let mut rows = adjustments.query(asked)?;
    while let Some(row) = rows.next()? {
        let day = days.entry(place(row)?).or_default();
        day.adjustments.push(adjustment(row)?);
    }
    let mut copied = connection.prepare_cached(COPIED_OF_KEYS)?;
    let mut rows = copied.query(asked)?;
    while let Some(row) = rows.next()? {
        if let Some(day) = days.get_mut(&place(row)?) {
            day.is_copied = true;
        }
    }
    Ok(())
}

fn adjustment(row: &Row<'_>) -> rusqlite::Result<Adjustment> {
    Ok(Adjustment {
        came: Timestamp::from_second(row.get(2)?).unwrap_or_default(),
        units: row.get(3)?,
    })
}

fn place(row: &Row<'_>) -> rusqlite::Result<Place> {
    fn parsed<T: std::str::FromStr>(row: &Row<'_>, column: usize) -> rusqlite::Result<T>
    where
        T::Err: std::error::Error + Send + Sync + 'static,
    {
        let text: String = row.get(column)?;
        text.parse().map_err(|error| {
            rusqlite::Error::FromSqlConversionFailure(
                column,
                rusqlite::types::Type::Text,
                Box::new(error),
            )
        })
    }
    Ok((parsed(row, 0)?, parsed(row, 1)?))
}
