//! `touchline usage invoice`: a month by customer, key and tier, ready to be billed.
//!
//! The rules, which the README tells finance:
//! - a day counts for one tier: of those that the key was charged in on that day, the dearest;
//! - the price of the month is shared among the tiers of a key in proportion to their days; a key that was not used at all
//!   has one line, with the tier of its record and the whole price;
//! - units above the limit (`over`) are not billed; unattributed ones are, because the quota counted them;
//! - what was settled after its day was closed (`adjusted`) is in the month in which it came, with the tier of its day.
//!
//! Money is whole cents; a share is rounded half up.

use std::collections::BTreeMap;
use std::io::Write;
use std::str::FromStr;

use jiff::Span;
use jiff::civil::Date;
use serde::Serialize;

use super::{Records, Session, billed_tier, is_of, price_cents, records};
use crate::cli::note;
use crate::cli::output::{RowsFormat, write_csv, write_json, write_table};
use crate::config::Config;
use crate::policy::api_key::KeyId;
use crate::policy::key_record::{KeyRecord, KeyState};
use crate::store::DayUsage;
use crate::store::ledger::UNKNOWN_TIER;

/// How long before the month a day may have ended to which something came in it: longer than any journal is kept.
const LATE_DAYS_MAX: i32 = 40;
const COLUMNS: [&str; 15] = [
    "month",
    "customer",
    "key",
    "label",
    "tier",
    "price_cents",
    "days",
    "requests",
    "charged",
    "refunded",
    "unattributed",
    "over",
    "adjusted",
    "billed_units",
    "amount_cents",
];

/// A calendar month.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Month {
    first: Date,
}

impl FromStr for Month {
    type Err = String;

    fn from_str(text: &str) -> Result<Month, String> {
        let first = format!("{text}-01").parse::<Date>().ok();
        first
            .filter(|first| text.len() == 7 && first.to_string().starts_with(text))
            .map(|first| Month { first })
            .ok_or_else(|| "write a month such as 2026-10".to_owned())
    }
}

impl std::fmt::Display for Month {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.first.strftime("%Y-%m").fmt(f)
    }
}

impl Serialize for Month {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Month {
    /// The first day and the last.
    pub(super) fn days(self) -> (Date, Date) {
        (self.first, self.last())
    }

    fn last(self) -> Date {
        self.first.last_of_month()
    }

    fn holds(self, date: Date) -> bool {
        (self.first..=self.last()).contains(&date)
    }
}

/// One key in one tier.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
struct Line {
    customer: String,
    key: String,
    label: Option<String>,
    tier: String,
    price_cents: Option<u64>,
    days: u64,
    /// 1 where a key that was not used is billed by this line.
    #[serde(skip)]
    share: u64,
    requests: u64,
    charged: u64,
    refunded: u64,
    unattributed: i64,
    over: u64,
    adjusted: i64,
    billed_units: i64,
    amount_cents: Option<u64>,
}

#[derive(Debug, Serialize)]
struct Invoice {
    month: Month,
    currency: &'static str,
    /// Whether all days of the month are closed: nothing of it changes any more.
    closed: bool,
    lines: Vec<Line>,
    amount_cents: u64,
}

/// Reads the month and writes it in the form asked for.
pub(super) async fn run(
    session: &Session,
    month: Month,
    customer: Option<&str>,
    output: RowsFormat,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let from = month.first.checked_sub(Span::new().days(LATE_DAYS_MAX))?;
    let now = session.store.server_time().await?;
    let config = &session.config;
    let last = config.calendar.day_of(month.last())?;
    let window = i64::try_from(config.ledger.settle_window.as_secs())?;
    let closed = now.as_second() >= last.end.saturating_add(window);
    let records = records(session).await?;
    let mut usage = session.store.usage(from, month.last(), None).await?;
    usage.retain(|usage| is_of(&records, customer, usage.key));
    let kept = records
        .iter()
        .filter(|(key, _)| is_of(&records, customer, **key));
    let kept: Records = kept.map(|(key, record)| (*key, record.clone())).collect();
    let lines = lines(config, month, &usage, &kept)?;
    let invoice = Invoice {
        month,
        currency: "USD",
        closed,
        amount_cents: lines.iter().filter_map(|line| line.amount_cents).sum(),
        lines,
    };
    if !closed {
        note(&format!(
            "{month} is not closed yet: its days can change until quota.settle_window after they end."
        ));
    }
    match output {
        RowsFormat::Json => write_json(out, &invoice),
        RowsFormat::Csv => {
            let rows: Vec<Vec<String>> =
                invoice.lines.iter().map(|line| row(month, line)).collect();
            write_csv(out, &COLUMNS, &rows)
        }
        RowsFormat::Table => table(out, &invoice),
    }
}

/// The lines in the order of customers, keys and tiers.
fn lines(
    config: &Config,
    month: Month,
    usage: &[DayUsage],
    records: &Records,
) -> anyhow::Result<Vec<Line>> {
    let mut keys: BTreeMap<KeyId, BTreeMap<String, Line>> = BTreeMap::new();
    for usage in usage {
        let billed = billed_tier(config, usage);
        let billed = billed.unwrap_or_else(|| {
            let record = records.get(&usage.key);
            record.map_or(UNKNOWN_TIER, |record| record.tier.as_str())
        });
        let mut late = 0;
        for adjustment in &usage.adjustments {
            if month.holds(config.calendar.day_at(adjustment.came)?.date) {
                late += adjustment.units;
            }
        }
        if late != 0 {
            line_of(&mut keys, usage.key, billed).adjusted += late;
        }
        if month.holds(usage.date) {
            add_day(&mut keys, usage, billed);
        }
    }
    for record in records.values() {
        let tiers = keys.get(&record.id);
        let used = tiers.is_some_and(|tiers| tiers.values().any(|line| line.days > 0));
        if is_subscribed(config, month, record) && !used {
            // As if it had been used in that tier on all days.
            line_of(&mut keys, record.id, record.tier.as_str()).share = 1;
        }
    }
    let mut lines: Vec<Line> = Vec::new();
    for (key, mut tiers) in keys {
        let record = records.get(&key);
        let all: u64 = tiers.values().map(|line| line.days + line.share).sum();
        for (tier, line) in &mut tiers {
            line.customer = record.map_or_else(String::new, |record| record.customer.clone());
            line.label = record.and_then(|record| record.label.clone());
            line.price_cents = price_cents(config, tier);
            line.billed_units = signed(line.charged) - signed(line.refunded) + line.unattributed
                - signed(line.over);
            let days = line.days + line.share;
            line.amount_cents = line.price_cents.map(|price| share(price, days, all));
        }
        lines.extend(tiers.into_values());
    }
    lines.sort_by(|one, other| {
        (&one.customer, &one.key, &one.tier).cmp(&(&other.customer, &other.key, &other.tier))
    });
    Ok(lines)
}

fn line_of<'k>(
    keys: &'k mut BTreeMap<KeyId, BTreeMap<String, Line>>,
    key: KeyId,
    tier: &str,
) -> &'k mut Line {
    let tiers = keys.entry(key).or_default();
    tiers.entry(tier.to_owned()).or_insert_with(|| Line {
        key: key.to_string(),
        tier: tier.to_owned(),
        ..Line::default()
    })
}

fn add_day(keys: &mut BTreeMap<KeyId, BTreeMap<String, Line>>, usage: &DayUsage, billed: &str) {
    for (tier, totals) in &usage.tiers {
        // Refusals alone make no line: nothing was used in that tier.
        if totals.requests > 0 || totals.refunded > 0 {
            let line = line_of(keys, usage.key, tier);
            line.requests += totals.requests;
            line.charged += totals.charged;
            line.refunded += totals.refunded;
        }
    }
    if usage.totals().requests > 0 || usage.used > 0 {
        let line = line_of(keys, usage.key, billed);
        line.days += 1;
        line.unattributed += usage.unattributed;
        line.over += usage.over;
    }
}

/// Whether the key could be used on some day of the month, as far as its record says.
fn is_subscribed(config: &Config, month: Month, record: &KeyRecord) -> bool {
    let (Ok(first), Ok(last)) = (
        config.calendar.day_of(month.first),
        config.calendar.day_of(month.last()),
    ) else {
        return false;
    };
    let begun = record.created.as_second() < last.end;
    let expired = record
        .expires
        .is_some_and(|expires| expires.as_second() <= first.start);
    let revoked = record.state == KeyState::Revoked && record.updated.as_second() < first.start;
    begun && !expired && !revoked
}

/// The part of a price for `days` of `all` days, rounded half up.
fn share(price_cents: u64, days: u64, all: u64) -> u64 {
    let (price, days, all) = (
        u128::from(price_cents),
        u128::from(days),
        u128::from(all.max(1)),
    );
    u64::try_from((2 * price * days + all) / (2 * all)).unwrap_or(u64::MAX)
}

fn signed(units: u64) -> i64 {
    i64::try_from(units).unwrap_or(i64::MAX)
}

fn row(month: Month, line: &Line) -> Vec<String> {
    let optional = |cents: Option<u64>| cents.map(|cents| cents.to_string()).unwrap_or_default();
    vec![
        month.to_string(),
        line.customer.clone(),
        line.key.clone(),
        line.label.clone().unwrap_or_default(),
        line.tier.clone(),
        optional(line.price_cents),
        line.days.to_string(),
        line.requests.to_string(),
        line.charged.to_string(),
        line.refunded.to_string(),
        line.unattributed.to_string(),
        line.over.to_string(),
        line.adjusted.to_string(),
        line.billed_units.to_string(),
        optional(line.amount_cents),
    ]
}

/// For people: dollars in place of cents, and the month only once.
fn table(out: &mut dyn Write, invoice: &Invoice) -> anyhow::Result<()> {
    let dollars = |cents: Option<u64>| {
        cents.map_or_else(String::new, |cents| {
            format!("{}.{:02}", cents / 100, cents % 100)
        })
    };
    let header = COLUMNS.map(|name| name.strip_suffix("_cents").unwrap_or(name));
    let [_, header @ ..] = header;
    let mut rows: Vec<Vec<String>> = Vec::new();
    for line in &invoice.lines {
        let mut cells = row(invoice.month, line).split_off(1);
        if let [.., price, _, _, _, _, _, _, _, _, amount] = cells.as_mut_slice() {
            *price = dollars(line.price_cents);
            *amount = dollars(line.amount_cents);
        }
        rows.push(cells);
    }
    let mut total = vec![String::new(); header.len()];
    if let [first, .., last] = total.as_mut_slice() {
        *first = format!("total of {}, {}", invoice.month, invoice.currency);
        *last = dollars(Some(invoice.amount_cents));
    }
    rows.push(total);
    let [_, _, _, _, numbers @ ..] = header;
    write_table(out, &header, &numbers, &rows)
}

#[cfg(test)]
mod tests;
