//! Reading the ledger: what each key used on each day, by endpoint.

use std::collections::BTreeMap;

use jiff::civil::Date;
use rusqlite::{Connection, Row, TransactionBehavior};

use super::group::unsigned;
use crate::policy::api_key::KeyId;
use crate::store::{DayUsage, Totals};

const COUNTS: &str = "SELECT date, key, used FROM counts WHERE date BETWEEN ?1 AND ?2";
const LEDGER: &str = "
    SELECT date, key, endpoint, requests, charged, refunded, refused_tier, refused_quota FROM ledger
    WHERE date BETWEEN ?1 AND ?2";
// The tables are in the order of dates first, so one key is looked up date by date; a scan would read every key's rows.
// Whatever was counted is in the ledger too, so the ledger bounds the dates worth a look.
const COUNTS_OF_KEY: &str = "
    WITH RECURSIVE asked (date) AS (
        SELECT max(?1, (SELECT min(date) FROM ledger))
        UNION ALL
        SELECT date(date, '+1 day') FROM asked WHERE date < min(?2, (SELECT max(date) FROM ledger))
    )
    SELECT counts.date, key, used
    FROM asked CROSS JOIN counts ON counts.date = asked.date AND key = ?3 WHERE asked.date <= ?2";
const LEDGER_OF_KEY: &str = "
    WITH RECURSIVE asked (date) AS (
        SELECT max(?1, (SELECT min(date) FROM ledger))
        UNION ALL
        SELECT date(date, '+1 day') FROM asked WHERE date < min(?2, (SELECT max(date) FROM ledger))
    )
    SELECT ledger.date, key, endpoint, requests, charged, refunded, refused_tier, refused_quota
    FROM asked CROSS JOIN ledger ON ledger.date = asked.date AND key = ?3 WHERE asked.date <= ?2";

/// The ledger from `from` through `to`, in the order of date and key. Reads both tables in one snapshot.
pub(super) fn read(
    connection: &mut Connection,
    from: Date,
    to: Date,
    key: Option<KeyId>,
) -> rusqlite::Result<Vec<DayUsage>> {
    let snapshot = connection.transaction_with_behavior(TransactionBehavior::Deferred)?;
    let (from, to) = (from.to_string(), to.to_string());
    let key = key.as_ref().map(KeyId::as_str);
    let (counts, ledger, asked) = match &key {
        None => (COUNTS, LEDGER, vec![from.as_str(), to.as_str()]),
        Some(key) => (
            COUNTS_OF_KEY,
            LEDGER_OF_KEY,
            vec![from.as_str(), to.as_str(), key],
        ),
    };
    let asked = || rusqlite::params_from_iter(&asked);
    let mut days: BTreeMap<(Date, KeyId), DayUsage> = BTreeMap::new();
    let mut counts = snapshot.prepare(counts)?;
    let mut rows = counts.query(asked())?;
    while let Some(row) = rows.next()? {
        let place = place(row)?;
        days.entry(place).or_insert_with(|| empty(place)).used = unsigned(row.get(2)?);
    }
    let mut ledger = snapshot.prepare(ledger)?;
    let mut rows = ledger.query(asked())?;
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
    Ok(days.into_values().collect())
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
