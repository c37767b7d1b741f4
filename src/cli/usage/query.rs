//! The part of the ledger that a command asks for: days, keys, and their records.

use std::collections::BTreeMap;

use anyhow::bail;
use clap::Args;
use jiff::Timestamp;
use jiff::civil::Date;

use super::month::Month;
use crate::cli::key_argument::{KeyArgument, id_of};
use crate::cli::output::parse_date;
use crate::cli::session::{Session, UsageError, note};
use crate::config::Config;
use crate::policy::api_key::KeyId;
use crate::policy::key_record::KeyRecord;

/// The requested part of the ledger.
#[derive(Debug, Args)]
pub(super) struct LedgerQuery {
    /// The first quota day; without it, the day of --to.
    #[arg(long, value_parser = parse_date, value_name = "DATE")]
    from: Option<Date>,
    /// The last quota day; today if left out.
    #[arg(long, value_parser = parse_date, value_name = "DATE")]
    to: Option<Date>,
    /// All days of this month, such as 2026-10.
    #[arg(long, value_name = "YYYY-MM", conflicts_with_all = ["from", "to"])]
    month: Option<Month>,
    /// Only this key: its id, or the key itself.
    #[arg(long, value_name = "ID")]
    pub(super) key: Option<KeyArgument>,
    /// Only the keys of this customer, written exactly as stored.
    #[arg(long, value_name = "NAME")]
    pub(super) customer: Option<String>,
}

/// Records by id.
pub(super) type Records = BTreeMap<KeyId, KeyRecord>;

impl LedgerQuery {
    /// The days, both included, and the requested keys in the order of their ids.
    pub(super) async fn resolved(
        &self,
        session: &Session,
    ) -> anyhow::Result<((Date, Date), Vec<KeyId>)> {
        let now = session.store.server_time().await?;
        let days = match self.month {
            Some(month) => month.days(),
            None => range(
                self.from,
                self.to,
                session.config.calendar.day_at(now)?.date,
            )?,
        };
        let first = first_kept(&session.config, now);
        let dropped = session.store.last_dropped().await?;
        if let Some(dropped) = dropped.filter(|dropped| first <= Some(*dropped))
            && days.0 <= dropped
        {
            note(&format!(
                "the ledger lacks the days through {dropped}: they were deleted earlier (under a shorter quota.retention, or by a clock that was ahead)"
            ));
        } else if let Some(first) = first
            && days.0 < first
        {
            let retention = session.config.keeping.retention_seconds() / 86_400;
            note(&format!(
                "the ledger may lack days before {first}: a day is deleted {retention} days after its end (quota.retention)"
            ));
        }
        let key = id_of(self.key, session).await?;
        let keys = keys_of(session, days, key, self.customer.as_deref()).await?;
        Ok((days, keys))
    }
}

/// The earliest day that is not deleted at `now`; `None` if none ever was.
fn first_kept(config: &Config, now: Timestamp) -> Option<Date> {
    let retention = config.keeping.retention_seconds();
    let oldest = now.as_second().checked_sub(retention)?;
    let day = config.calendar.day_at(Timestamp::from_second(oldest).ok()?);
    Some(day.ok()?.date)
}

/// The requested days, both included.
pub(super) fn range(
    from: Option<Date>,
    to: Option<Date>,
    today: Date,
) -> Result<(Date, Date), UsageError> {
    let is_to_given = to.is_some();
    let (from, to) = match (from, to) {
        (Some(from), Some(to)) => (from, to),
        (Some(from), None) => (from, today),
        (None, to) => (to.unwrap_or(today), to.unwrap_or(today)),
    };
    if from <= to {
        return Ok((from, to));
    }
    Err(UsageError(match is_to_given {
        true => format!("--from {from} is after --to {to}"),
        false => format!("--from {from} is after today, {today}: add --to"),
    }))
}

/// The requested keys, in the order of their ids: all, or one, or those of a customer.
///
/// # Errors
/// Also if a key or customer is asked for that the store does not have: an empty report would look like one without use.
pub(super) async fn keys_of(
    session: &Session,
    (from, to): (Date, Date),
    key: Option<KeyId>,
    customer: Option<&str>,
) -> anyhow::Result<Vec<KeyId>> {
    session.store.check_zone().await?;
    let Some(customer) = customer else {
        let Some(key) = key else {
            return Ok(session.store.ledger_keys(from, to).await?);
        };
        if session.store.key(key).await?.is_none()
            && session.store.usage_of(from, to, &[key]).await?.is_empty()
        {
            bail!("there is no key {key}: look for it with `touchline keys list`");
        }
        return Ok(vec![key]);
    };
    let customer = customer.trim();
    let found = session.store.search_keys(customer).await?;
    let found = found.iter().filter(|record| *record.customer == *customer);
    let mut ids: Vec<KeyId> = found.map(|record| record.id).collect();
    ids.retain(|id| key.is_none_or(|key| key == *id));
    if ids.is_empty() {
        let key = key.map_or_else(|| "no key".to_owned(), |key| format!("no key {key}"));
        bail!(
            "there is {key} of the customer {customer:?}: write the name exactly as `touchline keys list` shows it"
        );
    }
    ids.sort_unstable();
    Ok(ids)
}

/// The records of some keys.
pub(super) async fn records(session: &Session, keys: &[KeyId]) -> anyhow::Result<Records> {
    let records = session.store.records_of(keys).await?.into_iter();
    Ok(records.map(|record| (record.id, record)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_days_default_to_today() {
        let date = |text: &str| text.parse::<Date>().unwrap();
        let today = date("2026-11-21");
        let (early, late) = (date("2026-11-01"), date("2026-11-30"));
        assert_eq!(range(None, None, today).unwrap(), (today, today));
        assert_eq!(range(Some(early), None, today).unwrap(), (early, today));
        assert_eq!(range(None, Some(early), today).unwrap(), (early, early));
        assert_eq!(
            range(Some(early), Some(late), today).unwrap(),
            (early, late)
        );
        assert_eq!(range(Some(late), Some(late), today).unwrap(), (late, late));
        let refused = |to| range(Some(late), to, today).unwrap_err().to_string();
        assert_eq!(
            refused(None),
            "--from 2026-11-30 is after today, 2026-11-21: add --to"
        );
        assert_eq!(
            refused(Some(early)),
            "--from 2026-11-30 is after --to 2026-11-01"
        );
    }
}
