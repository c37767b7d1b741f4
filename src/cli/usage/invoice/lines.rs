//! The invoice lines of one key: the units used in each tier, and the price of its days.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::civil::Date;
use serde::Serialize;

use super::terms::BillingTerms;
use crate::cli::output::cells;
use crate::cli::usage::month::Month;
use crate::cli::usage::prices::{billed_tier, over_by_tier, price_cents};
use crate::config::Config;
use crate::policy::api_key::KeyId;
use crate::policy::billing::{Counted, Life};
use crate::policy::key_record::KeyRecord;
use crate::store::DayUsage;
use crate::store::ledger::UNKNOWN_TIER;

pub(super) const CURRENCY: &str = "USD";
pub(super) const COLUMNS: [&str; 16] = [
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
    "use",
];

/// A key and the tiers that it had.
pub(super) struct BilledKey<'k> {
    pub(super) customer: Arc<str>,
    pub(super) record: &'k KeyRecord,
    pub(super) life: Life,
}

/// Whether a key was used in the month.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Use {
    /// Some units stay charged.
    Used,
    /// Every unit was refunded, so that the key counts as unused.
    Refunded,
    /// Nothing was charged.
    None,
}

/// One key in one tier. Some hundred thousand of them are in memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct InvoiceLine {
    pub(super) customer: Arc<str>,
    pub(super) key: KeyId,
    pub(super) label: Option<Box<str>>,
    pub(super) tier: Box<str>,
    pub(super) price_cents: Option<u64>,
    /// Days of the month that are counted for the tier.
    pub(super) days: u64,
    pub(super) requests: u64,
    pub(super) charged: u64,
    pub(super) refunded: u64,
    pub(super) unattributed: i64,
    /// Units served above the limit while the store was unreachable.
    pub(super) over: u64,
    pub(super) adjusted: i64,
    pub(super) billed_units: i64,
    pub(super) amount_cents: Option<u64>,
    /// The use of the key, in all its tiers.
    #[serde(rename = "use")]
    pub(super) used: Use,
}

/// The lines in the order of tiers; none for a key without a counted day and without a request.
pub(super) fn of(
    terms: &BillingTerms<'_>,
    key: &BilledKey<'_>,
    usage: &[DayUsage],
) -> anyhow::Result<impl Iterator<Item = InvoiceLine> + use<>> {
    let config = terms.config;
    let mut lines = KeyLines {
        config,
        key,
        by_tier: BTreeMap::new(),
    };
    let mut used: BTreeMap<Date, String> = BTreeMap::new();
    for usage in usage {
        let billed = billed_tier(config, usage).filter(|tier| *tier != UNKNOWN_TIER);
        let billed = billed.unwrap_or_else(|| tier_held(terms, key, usage.date));
        let mut late = 0;
        for adjustment in &usage.adjustments {
            let came = config.calendar.day_at(adjustment.came)?;
            if terms.month.holds(came.date) {
                late += adjustment.units;
            }
        }
        if late != 0 {
            lines.of(billed).adjusted += late;
        }
        if terms.month.holds(usage.date) {
            lines.add(usage, billed);
            if usage.used > 0 {
                used.insert(usage.date, billed.to_owned());
            }
        }
    }
    let counted = Counted::of(config.billing, &terms.days, &key.life, &used);
    for (tier, days) in &counted.tiers {
        lines.of(tier).days = *days;
    }
    let mut lines = lines.by_tier;
    let use_of_key = match counted.is_used {
        true => Use::Used,
        false if lines.values().any(|line| line.charged > 0) => Use::Refunded,
        false => Use::None,
    };
    let month_days = u64::try_from(terms.month.first.days_in_month()).unwrap_or(0);
    for line in lines.values_mut() {
        line.billed_units =
            signed(line.charged) - signed(line.refunded) + line.unattributed - signed(line.over);
        line.amount_cents = line.price_cents.map(|price| {
            let rules = config.billing;
            rules.amount_cents(price, line.days, counted.days(), month_days)
        });
        line.used = use_of_key;
    }
    Ok(lines.into_values())
}

/// The tier of units without a known tier: the key's tier when the day ended, else its present one.
fn tier_held<'k>(terms: &BillingTerms<'_>, key: &'k BilledKey<'_>, date: Date) -> &'k str {
    let day = terms.days.iter().find(|day| day.date == date);
    let held = day.and_then(|day| key.life.tier_on(day));
    held.unwrap_or(&key.record.tier).as_str()
}

/// The lines of the key being read.
struct KeyLines<'k> {
    config: &'k Config,
    key: &'k BilledKey<'k>,
    by_tier: BTreeMap<String, InvoiceLine>,
}

impl KeyLines<'_> {
    fn of(&mut self, tier: &str) -> &mut InvoiceLine {
        let (config, key) = (self.config, self.key);
        self.by_tier
            .entry(tier.to_owned())
            .or_insert_with(|| InvoiceLine {
                customer: key.customer.clone(),
                key: key.record.id,
                label: key.record.label.as_deref().map(Into::into),
                tier: tier.into(),
                price_cents: price_cents(config, tier),
                days: 0,
                requests: 0,
                charged: 0,
                refunded: 0,
                unattributed: 0,
                over: 0,
                adjusted: 0,
                billed_units: 0,
                amount_cents: None,
                used: Use::None,
            })
    }

    fn add(&mut self, usage: &DayUsage, billed: &str) {
        for (tier, totals) in &usage.tiers {
            // Refusals alone make no line, because nothing was used in that tier.
            if totals.requests > 0 || totals.refunded > 0 {
                let line = self.of(tier);
                line.requests += totals.requests;
                line.charged += totals.charged;
                line.refunded += totals.refunded;
            }
        }
        if usage.unattributed != 0 {
            self.of(billed).unattributed += usage.unattributed;
        }
        for (tier, over) in over_by_tier(usage, billed) {
            self.of(tier).over += over;
        }
    }
}

fn signed(units: u64) -> i64 {
    i64::try_from(units).unwrap_or(i64::MAX)
}

impl InvoiceLine {
    /// The sort key of lines.
    pub(super) fn place(&self) -> (&str, KeyId, &str) {
        (&self.customer, self.key, &self.tier)
    }

    /// The cells for people: without the month, amounts in dollars.
    pub(super) fn shown(&self) -> serde_json::Result<Vec<String>> {
        let [_, columns @ ..] = &COLUMNS;
        let mut cells = cells(self, columns)?;
        if let [_, _, _, _, price, .., amount, _] = cells.as_mut_slice() {
            *price = dollars(self.price_cents);
            *amount = dollars(self.amount_cents);
        }
        Ok(cells)
    }
}

/// The sums of an invoice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(super) struct InvoiceSums {
    pub(super) over: u64,
    pub(super) amount_cents: u64,
}

impl InvoiceSums {
    pub(super) fn of(lines: &[InvoiceLine]) -> InvoiceSums {
        InvoiceSums {
            over: lines.iter().map(|line| line.over).sum(),
            amount_cents: lines.iter().filter_map(|line| line.amount_cents).sum(),
        }
    }
}

/// The last row for people.
pub(super) fn total(month: Month, sums: &InvoiceSums) -> Vec<String> {
    let mut total = vec![String::new(); COLUMNS.len() - 1];
    if let [first, .., over, _, _, amount, _] = total.as_mut_slice() {
        *first = format!("total of {month}, {CURRENCY}");
        *over = sums.over.to_string();
        *amount = dollars(Some(sums.amount_cents));
    }
    total
}

fn dollars(cents: Option<u64>) -> String {
    cents.map_or_else(String::new, |cents| {
        format!("{}.{:02}", cents / 100, cents % 100)
    })
}
