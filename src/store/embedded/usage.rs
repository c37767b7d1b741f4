//! Reading the ledger: what each key used on each day, by endpoint.

use std::collections::BTreeMap;

use jiff::civil::Date;
use rusqlite::{Connection, Row};

use super::group::unsigned;
use crate::policy::api_key::KeyId;
use crate::store::{DayUsage, Totals};

const LEDGER: &str = "
    SELECT date, key, endpoint, requests, charged, refunded, refused_tier, refused_quota FROM ledger
    WHERE date BETWEEN ?1 AND ?2";
// The table is in the order of dates first, so one key is looked up date by date; a scan would read every key's rows.
const LEDGER_OF_KEY: &str = "
    WITH RECURSIVE asked (date) AS (
        SELECT max(?1, (SELECT min(date) FROM ledger))
        UNION ALL
        SELECT date(date, '+1 day') FROM asked WHERE date < min(?2, (SELECT max(date) FROM ledger))
    )
    SELECT ledger.date, key, endpoint, requests, charged, refunded, refused_tier, refused_quota
    FROM asked CROSS JOIN ledger ON ledger.date = asked.date AND key = ?3 WHERE asked.date <= ?2";

/// The ledger from `from` through `to`, in the order of date and key.
pub(super) fn read(
    connection: &Connection,
    from: Date,
    to: Date,
    key: Option<KeyId>,
) -> rusqlite::Result<Vec<DayUsage>> {
    let (from, to) = (from.to_string(), to.to_string());
    let key = key.as_ref().map(KeyId::as_str);
    let (ledger, asked) = match &key {
        None => (LEDGER, vec![from.as_str(), to.as_str()]),
        Some(key) => (LEDGER_OF_KEY, vec![from.as_str(), to.as_str(), key]),
    };
    let mut days: BTreeMap<(Date, KeyId), DayUsage> = BTreeMap::new();
    let mut ledger = connection.prepare(ledger)?;
    let mut rows = ledger.query(rusqlite::params_from_iter(asked))?;
    while let Some(row) = rows.next()? {
        let place = place(row)?;
        let totals = Totals {
            requests: unsigned(row.get(3)?),
            charged: unsigned(row.get(4)?),
            refunded: unsigned(row.get(5)?),
            refused_tier: unsigned(row.get(6)?),
            refused_quota: unsigned(row.get(7)?),
        };
        days.entry(place)
            .or_insert_with(|| empty(place))
            .endpoints
            .insert(row.get(2)?, totals);
    }
    let mut days: Vec<DayUsage> = days.into_values().collect();
    for day in &mut days {
        let sum = |units: fn(&Totals) -> u64| day.endpoints.values().map(units).sum::<u64>();
        day.used = sum(|totals| totals.charged).saturating_sub(sum(|totals| totals.refunded));
    }
    Ok(days)
}

fn empty((date, key): (Date, KeyId)) -> DayUsage {
    DayUsage {
        date,
        key,
        used: 0,
        endpoints: BTreeMap::new(),
    }
}

fn place(row: &Row<'_>) -> rusqlite::Result<(Date, KeyId)> {
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
