//! Sums over the ledger: the groups of a report, and their counts.

use std::collections::{BTreeMap, BTreeSet};

use clap::ValueEnum;
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use super::{Records, billed_tier};
use crate::config::Config;
use crate::policy::api_key::KeyId;
use crate::store::ledger::UNKNOWN_TIER;
use crate::store::{DayUsage, Totals};

/// The row of units that belong to a day but to no endpoint.
const NOT_AT_AN_ENDPOINT: &str = "(unattributed)";

/// The group that one row of a report shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum By {
    /// A quota day.
    Day,
    /// A key.
    Key,
    /// A customer, with all keys.
    Customer,
    /// An endpoint.
    Endpoint,
    /// The tier that the keys had at that time.
    Tier,
    /// A calendar month of quota days.
    Month,
}

/// The names of the numbers of [`Counts`], in their order.
pub(super) const NUMBERS: [&str; 13] = [
    "used",
    "requests",
    "charged",
    "refunded",
    "unattributed",
    "over",
    "adjusted",
    "refused_tier",
    "refused_quota",
    "refused_burst",
    "refused_concurrent",
    "refused_not_found",
    "refused_method",
];

/// Sums. `used` is exact; the counts by endpoint or tier may lag behind it by up to a second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub used: i64,
    pub unattributed: i64,
    pub over: u64,
    pub adjusted: i64,
    pub totals: Totals,
}

impl Counts {
    fn of_totals(totals: &Totals) -> Counts {
        Counts {
            used: totals.net(),
            totals: *totals,
            ..Counts::default()
        }
    }

    /// The counts of a day that are in none of its entries.
    fn beside(usage: &DayUsage) -> Counts {
        Counts {
            used: usage.unattributed,
            unattributed: usage.unattributed,
            over: usage.over,
            adjusted: usage.adjusted(),
            totals: Totals::default(),
        }
    }

    fn add(&mut self, other: &Counts) {
        self.used += other.used;
        self.unattributed += other.unattributed;
        self.over += other.over;
        self.adjusted += other.adjusted;
        self.totals.add(&other.totals);
    }

    /// In the order of [`NUMBERS`].
    pub fn numbers(&self) -> [i64; 13] {
        let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let [
            requests,
            charged,
            refunded,
            tier,
            quota,
            burst,
            concurrent,
            not_found,
            method,
        ] = self.totals.numbers().map(signed);
        [
            self.used,
            requests,
            charged,
            refunded,
            self.unattributed,
            signed(self.over),
            self.adjusted,
            tier,
            quota,
            burst,
            concurrent,
            not_found,
            method,
        ]
    }
}

impl Serialize for Counts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(NUMBERS.iter().zip(self.numbers()))
    }
}

/// One row.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// Column and cell; `None` if the key is not in the key table.
    pub names: Vec<(&'static str, Option<String>)>,
    /// The number of keys in the row; not set for a row of one key.
    pub keys: Option<usize>,
    pub counts: Counts,
}

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (name, cell) in &self.names {
            map.serialize_entry(name, cell)?;
        }
        if let Some(keys) = self.keys {
            map.serialize_entry("keys", &keys)?;
        }
        for (name, number) in NUMBERS.iter().zip(self.counts.numbers()) {
            map.serialize_entry(name, &number)?;
        }
        map.end()
    }
}

impl By {
    /// The columns before the numbers.
    pub fn columns(self) -> &'static [&'static str] {
        match self {
            By::Day => &["date", "keys"],
            By::Key => &["key", "customer", "label", "tier"],
            By::Customer => &["customer", "keys"],
            By::Endpoint => &["endpoint", "keys"],
            By::Tier => &["tier", "keys"],
            By::Month => &["month", "keys"],
        }
    }

    /// The parts of a day, each with the cell of the first column by which its row is found.
    fn parts(self, usage: &DayUsage, config: &Config, records: &Records) -> Vec<(String, Counts)> {
        let whole = || total(std::slice::from_ref(usage));
        match self {
            By::Day => vec![(usage.date.to_string(), whole())],
            By::Month => vec![(usage.date.strftime("%Y-%m").to_string(), whole())],
            By::Key => vec![(usage.key.to_string(), whole())],
            By::Customer => {
                let record = records.get(&usage.key);
                let customer = record.map_or("", |record| &record.customer);
                vec![(customer.to_owned(), whole())]
            }
            By::Endpoint => with_rest(usage, &usage.endpoints, NOT_AT_AN_ENDPOINT),
            By::Tier => {
                let rest = billed_tier(config, usage).unwrap_or(UNKNOWN_TIER);
                with_rest(usage, &usage.tiers, rest)
            }
        }
    }
}

/// The parts by name, and the counts in none of them under the name `rest`.
fn with_rest(
    usage: &DayUsage,
    parts: &BTreeMap<String, Totals>,
    rest: &str,
) -> Vec<(String, Counts)> {
    let parts = parts.iter();
    let mut parts: Vec<(String, Counts)> = parts
        .map(|(name, totals)| (name.clone(), Counts::of_totals(totals)))
        .collect();
    let beside = Counts::beside(usage);
    if beside != Counts::default() {
        parts.push((rest.to_owned(), beside));
    }
    parts
}

/// The rows in the order of their names (keys by customers, then ids).
pub(super) fn rows(by: By, usage: &[DayUsage], config: &Config, records: &Records) -> Vec<Row> {
    let mut groups: BTreeMap<String, (BTreeSet<KeyId>, Counts)> = BTreeMap::new();
    for usage in usage {
        for (name, part) in by.parts(usage, config, records) {
            let (keys, counts) = groups.entry(name).or_default();
            keys.insert(usage.key);
            counts.add(&part);
        }
    }
    let mut rows: Vec<Row> = groups
        .into_iter()
        .map(|(name, (keys, counts))| Row {
            names: names(by, name, records),
            keys: (by != By::Key).then_some(keys.len()),
            counts,
        })
        .collect();
    if by == By::Key {
        let cell = |row: &Row, column: usize| row.names.get(column).map(|(_, cell)| cell.clone());
        rows.sort_by_key(|row| (cell(row, 1), cell(row, 0)));
    }
    rows
}

fn names(by: By, name: String, records: &Records) -> Vec<(&'static str, Option<String>)> {
    match by {
        By::Day => vec![("date", Some(name))],
        By::Customer => vec![("customer", (!name.is_empty()).then_some(name))],
        By::Endpoint => vec![("endpoint", Some(name))],
        By::Tier => vec![("tier", Some(name))],
        By::Month => vec![("month", Some(name))],
        By::Key => {
            let id = name.parse::<KeyId>().ok();
            let record = id.and_then(|id| records.get(&id));
            vec![
                ("key", Some(name)),
                ("customer", record.map(|record| record.customer.clone())),
                ("label", record.and_then(|record| record.label.clone())),
                ("tier", record.map(|record| record.tier.to_string())),
            ]
        }
    }
}

/// The sum of everything.
pub(super) fn total(usage: &[DayUsage]) -> Counts {
    let mut total = Counts::default();
    for usage in usage {
        total.add(&Counts::beside(usage));
        total.add(&Counts::of_totals(&usage.totals()));
    }
    total
}

#[cfg(test)]
pub(super) mod tests;
