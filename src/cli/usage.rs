//! `touchline usage`: reports from the ledger, the invoice of a month, and the verification of both.

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::bail;
use clap::{Args, Subcommand};
use jiff::Timestamp;
use jiff::civil::Date;

use super::key_argument::{KeyArgument, id_of};
use super::output::{RecordFormat, RowsFormat, parse_date};
use super::session::{Session, UsageError, note, require_content};
use crate::config::Config;
use crate::policy::api_key::KeyId;
use crate::policy::key_record::KeyRecord;
use crate::store::DayUsage;

mod bars;
mod chain;
mod grouping;
mod invoice;
mod report;
mod verify;

use grouping::Grouping;
use invoice::Month;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct UsageArguments {
    #[command(subcommand)]
    command: Option<UsageCommand>,
    #[command(flatten)]
    asked: LedgerQuery,
    /// The group that one row shows.
    #[arg(long, value_enum, default_value = "key")]
    by: Grouping,
    /// The format of the result.
    #[arg(short, long, value_enum, default_value = "table")]
    output: RowsFormat,
}

#[derive(Debug, Subcommand)]
enum UsageCommand {
    /// Verify that the ledger reconciles: the units used equal the units charged minus refunded at all endpoints, plus those that a
    /// crashed gateway did not attribute. On the embedded store, also verify that the rows of closed days have not changed since.
    /// Fails with the first day, and its key if known, that does not reconcile.
    #[command(after_help = "Example:\n  touchline usage verify --from 2026-10-01 --to 2026-10-31")]
    Verify {
        #[command(flatten)]
        asked: LedgerQuery,
        /// A digest of the chain of closed days from an earlier verify or export; fails if the chain no longer has it.
        #[arg(long, value_name = "SHA-256", value_parser = chain::parse_digest)]
        digest: Option<String>,
        /// The format of the result.
        #[arg(short, long, value_enum, default_value = "table")]
        output: RecordFormat,
    },
    /// Write the rows of the ledger and the chain of closed days, one JSON value per line, so that anyone can check the days against
    /// their digests. Works on the embedded store only.
    #[command(
        after_help = "Example:\n  touchline usage export --from 2026-10-01 --to 2026-10-31 > 2026-10.jsonl"
    )]
    Export {
        #[command(flatten)]
        span: chain::ExportedDays,
    },
    /// List a month by customer, key and tier, with days, units and prices.
    #[command(
        after_help = "Example:\n  touchline usage invoice --month 2026-10 --output csv > 2026-10.csv"
    )]
    Invoice {
        /// The month, such as 2026-10.
        #[arg(long, value_name = "YYYY-MM")]
        month: Month,
        /// Only the keys of this customer, written exactly as stored.
        #[arg(long, value_name = "NAME")]
        customer: Option<String>,
        /// The format of the result.
        #[arg(short, long, value_enum, default_value = "table")]
        output: RowsFormat,
    },
}

/// The requested part of the ledger.
#[derive(Debug, Args)]
struct LedgerQuery {
    /// The first quota day; the same as the last if left out.
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
    key: Option<KeyArgument>,
    /// Only the keys of this customer, written exactly as stored.
    #[arg(long, value_name = "NAME")]
    customer: Option<String>,
}

/// Records by id.
type Records = BTreeMap<KeyId, KeyRecord>;

/// Runs the command on the configured store.
pub(super) fn run(
    arguments: &UsageArguments,
    config: Config,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let UsageArguments {
        command,
        asked,
        by,
        output,
    } = arguments;
    Session::run(config, async |session| {
        require_content(&*session.store).await?;
        match command {
            None => report::run(session, asked, *by, *output, out).await,
            Some(UsageCommand::Verify {
                asked,
                digest,
                output,
            }) => verify::run(session, asked, digest.as_deref(), *output, out).await,
            Some(UsageCommand::Export { span }) => chain::export(session, span, out).await,
            Some(UsageCommand::Invoice {
                month,
                customer,
                output,
            }) => invoice::run(session, *month, customer.as_deref(), *output, out).await,
        }
    })
}

impl LedgerQuery {
    /// The days, both included, and the requested keys in the order of their ids.
    async fn resolved(&self, session: &Session) -> anyhow::Result<((Date, Date), Vec<KeyId>)> {
        let now = session.store.server_time().await?;
        let days = self.days(&session.config, now)?;
        if let Some(first) = first_kept(&session.config, now)
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

    /// The days, both included.
    fn days(&self, config: &Config, now: Timestamp) -> anyhow::Result<(Date, Date)> {
        if let Some(month) = self.month {
            return Ok(month.days());
        }
        let today = config.calendar.day_at(now)?.date;
        Ok(range(self.from, self.to, today)?)
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
fn range(from: Option<Date>, to: Option<Date>, today: Date) -> Result<(Date, Date), UsageError> {
    let (from, to) = match (from, to) {
        (Some(from), Some(to)) => (from, to),
        (Some(from), None) => (from, today),
        (None, to) => (to.unwrap_or(today), to.unwrap_or(today)),
    };
    if from > to {
        return Err(UsageError(format!("--from {from} is after --to {to}")));
    }
    Ok((from, to))
}

/// The requested keys, in the order of their ids: all, or one, or those of a customer.
///
/// # Errors
/// Also if a key or customer is asked for that the store does not have: an empty report would look like one without use.
async fn keys_of(
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
async fn records(session: &Session, keys: &[KeyId]) -> anyhow::Result<Records> {
    let records = session.store.records_of(keys).await?.into_iter();
    Ok(records.map(|record| (record.id, record)).collect())
}

/// The price of a month of a tier, in cents of US dollars.
fn price_cents(config: &Config, tier: &str) -> Option<u64> {
    config.tier(&tier.parse().ok()?)?.price_cents
}

/// The tier by which a day is billed: the most expensive one in which units stay charged; if all were refunded, the most expensive
/// one that was charged; among equal prices, the first by name.
fn billed_tier<'u>(config: &Config, usage: &'u DayUsage) -> Option<&'u str> {
    let charged = usage.tiers.iter();
    let charged = charged.filter(|(_, totals)| totals.requests > 0 || totals.net() > 0);
    let dearest = charged.min_by_key(|(tier, totals)| {
        let price = price_cents(config, tier);
        (totals.net() <= 0, std::cmp::Reverse(price), *tier)
    });
    dearest.map(|(tier, _)| tier.as_str())
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
        assert!(range(Some(late), None, today).is_err());
    }
}
