//! Reading the ledger: the usage of each key and day by tier and endpoint, and the check of its rows. Entries of groups that are not
//! in the ledger yet are read in the same transaction and added.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use jiff::civil::Date;
use rusqlite::{Connection, Row};

use super::appended;
use crate::policy::api_key::KeyId;
use crate::store::ledger::Cell;
use crate::store::ledger_row::{
    RowNumbers, UNATTRIBUTED, add_numbers, read_numbers, read_row, stored, tier_and_endpoint,
};
use crate::store::sqlite::{parsed, rows, signed, value};
use crate::store::{Adjustment, DayUsage, Proof};

// The tables are sorted by date, then by key, so a range of keys is looked up date by date; a scan would read every key's rows. `days`
// has all of their dates.
const LEDGER_OF_KEYS: &str =
    "SELECT date, key, endpoint, requests, charged, refunded, refused_tier, refused_quota, refused_burst,
         refused_concurrent, refused_not_found, refused_method, day_limit, granted
     FROM days CROSS JOIN ledger USING (date) WHERE date BETWEEN ?1 AND ?2 AND key BETWEEN ?3 AND ?4";
const ADJUSTMENTS_OF_KEYS: &str =
    "SELECT date, key, came, units FROM days CROSS JOIN adjustments USING (date)
     WHERE date BETWEEN ?1 AND ?2 AND key BETWEEN ?3 AND ?4 ORDER BY date, key, came";
const LATE_DAYS: &str = "SELECT DISTINCT date, key FROM adjustments WHERE date BETWEEN ?1 AND ?2";
const COPIED_OF_KEYS: &str = "SELECT date, key FROM days CROSS JOIN copied USING (date)
     WHERE date BETWEEN ?1 AND ?2 AND key BETWEEN ?3 AND ?4";
/// The number of keys in a range, counted up to a limit.
const KEYS_BETWEEN: &str =
    "SELECT count(*) FROM (SELECT 1 FROM keys WHERE id BETWEEN ?1 AND ?2 LIMIT ?3)";
const KEYS: &str = "SELECT id FROM keys INDEXED BY keys_by_change";
const DAYS: &str = "SELECT date FROM days WHERE date BETWEEN ?1 AND ?2";

type KeyDate = (Date, KeyId);

#[derive(Default)]
struct OneDay {
    rows: Vec<(Arc<str>, RowNumbers)>,
    adjustments: Vec<Adjustment>,
    /// Whether the day has imported counts. Their producers may have served above the limit.
    is_imported: bool,
}

/// The ids of all keys in their order, and the days of the ledger between these dates.
pub(super) fn keys_and_days(
    connection: &Connection,
    from: Date,
    to: Date,
) -> rusqlite::Result<(Vec<KeyId>, Vec<String>)> {
    let mut keys: Vec<KeyId> = rows(connection, KEYS, [], |row| parsed(row, 0))?;
    keys.sort_unstable();
    let between = (from.to_string(), to.to_string());
    let days = rows(connection, DAYS, between, |row| row.get(0))?;
    Ok((keys, days))
}

/// The days of keys that have units which arrived after the day was closed.
pub(super) fn late_days(
    connection: &Connection,
    from: Date,
    to: Date,
) -> rusqlite::Result<Vec<KeyDate>> {
    let between = (from.to_string(), to.to_string());
    rows(connection, LATE_DAYS, between, place)
}

/// The days of some keys: read in one range if they are neighbours among all keys, or nearly, otherwise key by key.
fn days(
    connection: &Connection,
    from: Date,
    to: Date,
    keys: &[KeyId],
) -> rusqlite::Result<BTreeMap<KeyDate, OneDay>> {
    let wanted: BTreeSet<KeyId> = keys.iter().copied().collect();
    let (Some(first), Some(last)) = (wanted.first(), wanted.last()) else {
        return Ok(BTreeMap::new());
    };
    let instant = connection.unchecked_transaction()?;
    let mut days = BTreeMap::new();
    if are_neighbours(&instant, &wanted, (first, last))? {
        add_days_of(&mut days, &instant, (from, to), (first, last))?;
        days.retain(|(_, key), _| wanted.contains(key));
    } else {
        for key in &wanted {
            add_days_of(&mut days, &instant, (from, to), (key, key))?;
        }
    }
    // The entries of groups that are not in the ledger yet.
    let wanted = |date, key| (from..=to).contains(&date) && wanted.contains(&key);
    let mut sums = appended::lacking(&instant, wanted)?;
    while let Some((place, endpoint, addition)) = sums.pop_first() {
        let day: &mut OneDay = days.entry(place).or_default();
        day.add(endpoint, stored(addition));
    }
    Ok(days)
}

/// Whether less than half of the keys from the first to the last are other keys.
fn are_neighbours(
    connection: &Connection,
    wanted: &BTreeSet<KeyId>,
    (first, last): (&KeyId, &KeyId),
) -> rusqlite::Result<bool> {
    let most = i64::try_from(wanted.len().saturating_mul(2)).unwrap_or(i64::MAX);
    let asked = (first.as_str(), last.as_str(), most);
    Ok(value::<i64>(connection, KEYS_BETWEEN, asked)? < most)
}

/// The ledger of some keys from `from` through `to`, in the order of date and key, each day with its faults. The rows are the count, so
/// there is no second count to compare them with: a fault is a row that no charge and no refund could have written.
pub(super) fn prove(
    connection: &Connection,
    from: Date,
    to: Date,
    keys: &[KeyId],
) -> rusqlite::Result<Vec<Proof>> {
    let days = days(connection, from, to, keys)?.into_iter();
    let proofs = days.map(|(place, day)| {
        let mut faults: BTreeSet<String> = day.rows.iter().flat_map(faults_of).collect();
        let mut cells: Vec<Cell> = day.rows.iter().map(cell).collect();
        let net: i64 = cells.iter().map(|cell| cell.totals.net()).sum();
        let ceiling = cells.iter().map(|cell| cell.ceiling.limit).max();
        let by_older = day.is_imported || cells.iter().any(|cell| cell.tier.is_none());
        let late: i64 = day.adjustments.iter().map(|late| late.units).sum();
        // A late refund makes room for charges if a clock that was ahead had closed the day.
        if let Some(limit) = ceiling.filter(|limit| *limit > 0 && !by_older)
            && net + late.min(0) > signed(limit)
        {
            faults.insert(format!(
                "{net} units are used, but no charge had a limit above {limit}"
            ));
        }
        let used = day.is_imported.then_some(net + late);
        if day.is_imported {
            // The rows are the count, but the row of units without an endpoint is no entry of the ledger.
            cells.retain(|cell| cell.endpoint != UNATTRIBUTED);
        }
        Proof {
            usage: DayUsage::of_cells(place, used, cells, day.adjustments),
            faults: faults.into_iter().collect(),
        }
    });
    Ok(proofs.collect())
}

impl OneDay {
    /// Adds to a row.
    fn add(&mut self, place: Arc<str>, added: RowNumbers) {
        let Some((_, numbers)) = self.rows.iter_mut().find(|(known, _)| *known == place) else {
            self.rows.push((place, added));
            return;
        };
        add_numbers(numbers, added);
    }
}

fn cell((place, numbers): &(Arc<str>, RowNumbers)) -> Cell {
    let (tier, endpoint) = tier_and_endpoint(place);
    let (totals, ceiling) = read_row(*numbers);
    Cell {
        tier,
        endpoint: endpoint.to_owned(),
        totals,
        ceiling,
    }
}

/// The reasons why no charge and no refund could have written the row.
fn faults_of((place, numbers): &(Arc<str>, RowNumbers)) -> Vec<String> {
    let ((totals, _), mut faults) = (read_row(*numbers), Vec::new());
    if numbers.iter().any(|number| *number < 0) {
        faults.push(format!("{place}: a number is below zero"));
    }
    if totals.refunded > totals.charged && tier_and_endpoint(place).1 != UNATTRIBUTED {
        faults.push(format!(
            "{place}: {} units were refunded of {} charged",
            totals.refunded, totals.charged
        ));
    }
    if totals.requests > totals.charged {
        faults.push(format!(
            "{place}: {} requests were charged {} units",
            totals.requests, totals.charged
        ));
    }
    faults
}

/// Adds the days of the keys from the first through the last.
fn add_days_of(
    days: &mut BTreeMap<KeyDate, OneDay>,
    connection: &Connection,
    (from, to): (Date, Date),
    (first, last): (&KeyId, &KeyId),
) -> rusqlite::Result<()> {
    let (from, to) = (from.to_string(), to.to_string());
    let asked = (&from, &to, first.as_str(), last.as_str());
    let mut ledger = connection.prepare_cached(LEDGER_OF_KEYS)?;
    let mut rows = ledger.query(asked)?;
    while let Some(row) = rows.next()? {
        let day = days.entry(place(row)?).or_default();
        day.add(row.get(2)?, read_numbers(row, 3)?);
    }
    let mut adjustments = connection.prepare_cached(ADJUSTMENTS_OF_KEYS)?;
    let mut rows = adjustments.query(asked)?;
    while let Some(row) = rows.next()? {
        let day = days.entry(place(row)?).or_default();
        day.adjustments.push(Adjustment {
            came: Timestamp::from_second(row.get(2)?).unwrap_or_default(),
            units: row.get(3)?,
        });
    }
    let mut copied = connection.prepare_cached(COPIED_OF_KEYS)?;
    let mut rows = copied.query(asked)?;
    while let Some(row) = rows.next()? {
        if let Some(day) = days.get_mut(&place(row)?) {
            day.is_imported = true;
        }
    }
    Ok(())
}

fn place(row: &Row<'_>) -> rusqlite::Result<KeyDate> {
    Ok((parsed(row, 0)?, parsed(row, 1)?))
}
