//! Sums over the ledger: the groups of a report, and their counts.

use std::collections::BTreeMap;

use clap::ValueEnum;
use serde::{Serialize, Serializer};

use super::prices::{billed_tier, over_by_tier};
use super::query::Records;
use crate::config::Config;
use crate::policy::api_key::KeyId;
use crate::store::ledger::UNKNOWN_TIER;
use crate::store::{DayUsage, Totals};

/// The row of units that belong to a day but to no endpoint.
const NOT_AT_AN_ENDPOINT: &str = "(unattributed)";

/// The group that one row of a report shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Grouping {
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

/// The names of the numbers of [`UsageCounts`], in their order: those of [`Totals`], and four more.
pub(super) const NUMBERS: [&str; 4 + Totals::NUMBERS] = [
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
pub(super) struct UsageCounts {
    pub used: i64,
    pub unattributed: i64,
    pub over: u64,
    pub adjusted: i64,
    pub totals: Totals,
}

impl UsageCounts {
    fn of_totals(totals: &Totals) -> UsageCounts {
        UsageCounts {
            used: totals.net(),
            totals: *totals,
            ..UsageCounts::default()
        }
    }

    /// The counts of a day that are in none of its entries.
    fn beside(usage: &DayUsage) -> UsageCounts {
        UsageCounts {
            used: usage.unattributed,
            unattributed: usage.unattributed,
            over: usage.over,
            adjusted: usage.adjusted(),
            totals: Totals::default(),
        }
    }

    fn add(&mut self, other: &UsageCounts) {
        self.used += other.used;
        self.unattributed += other.unattributed;
        self.over += other.over;
        self.adjusted += other.adjusted;
        self.totals.add(&other.totals);
    }

    /// In the order of [`NUMBERS`].
    pub fn numbers(&self) -> impl Iterator<Item = i64> + use<> {
        let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let [requests, charged, refunded, refused @ ..] = self.totals.numbers().map(signed);
        let units = [self.used, requests, charged, refunded];
        let rare = [self.unattributed, signed(self.over), self.adjusted];
        units.into_iter().chain(rare).chain(refused)
    }
}

impl Serialize for UsageCounts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(NUMBERS.iter().zip(self.numbers()))
    }
}

/// One row.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct GroupRow {
    /// Column and cell; `None` if the key is not in the key table.
    #[serde(flatten, serialize_with = "as_map")]
    pub names: Vec<(&'static str, Option<String>)>,
    /// The number of keys in the row; not set for a row of one key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keys: Option<usize>,
    #[serde(flatten)]
    pub counts: UsageCounts,
}

fn as_map<S: Serializer>(
    names: &[(&'static str, Option<String>)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(names.iter().map(|(name, cell)| (name, cell)))
}

impl GroupRow {
    /// The second cell: the customer in a row of a key.
    fn customer(&self) -> Option<&str> {
        self.names.get(1)?.1.as_deref()
    }
}

impl Grouping {
    /// The columns before the numbers.
    pub fn columns(self) -> &'static [&'static str] {
        match self {
            Grouping::Day => &["date", "keys"],
            Grouping::Key => &["key", "customer", "label", "tier"],
            Grouping::Customer => &["customer", "keys"],
            Grouping::Endpoint => &["endpoint", "keys"],
            Grouping::Tier => &["tier", "keys"],
            Grouping::Month => &["month", "keys"],
        }
    }

    /// The parts of a day, each with the cell of the first column by which its row is found.
    fn parts(
        self,
        usage: &DayUsage,
        config: &Config,
        records: &Records,
    ) -> Vec<(String, UsageCounts)> {
        let whole = || total(std::slice::from_ref(usage));
        match self {
            Grouping::Day => vec![(usage.date.to_string(), whole())],
            Grouping::Month => vec![(usage.date.strftime("%Y-%m").to_string(), whole())],
            Grouping::Key => vec![(usage.key.to_string(), whole())],
            Grouping::Customer => {
                let record = records.get(&usage.key);
                let customer = record.map_or("", |record| &record.customer);
                vec![(customer.to_owned(), whole())]
            }
            Grouping::Endpoint => {
                let beside = UsageCounts::beside(usage);
                with_rest(&usage.endpoints, NOT_AT_AN_ENDPOINT, beside)
            }
            Grouping::Tier => {
                let rest = billed_tier(config, usage).unwrap_or(UNKNOWN_TIER);
                let beside = UsageCounts {
                    over: 0,
                    ..UsageCounts::beside(usage)
                };
                let mut parts = with_rest(&usage.tiers, rest, beside);
                parts.extend(over_by_tier(usage, rest).map(|(tier, over)| {
                    let over = UsageCounts {
                        over,
                        ..UsageCounts::default()
                    };
                    (tier.to_owned(), over)
                }));
                parts
            }
        }
    }
}

/// The parts by name, and the counts `beside` them under the name `rest`.
fn with_rest(
    parts: &BTreeMap<String, Totals>,
    rest: &str,
    beside: UsageCounts,
) -> Vec<(String, UsageCounts)> {
    let parts = parts.iter();
    let mut parts: Vec<(String, UsageCounts)> = parts
        .map(|(name, totals)| (name.clone(), UsageCounts::of_totals(totals)))
        .collect();
    if beside != UsageCounts::default() {
        parts.push((rest.to_owned(), beside));
    }
    parts
}

/// The rows of a report, while it is read.
pub(super) struct Groups {
    by: Grouping,
    /// Each row by its name, with the last key that was added to it.
    rows: BTreeMap<String, (GroupRow, KeyId)>,
    total: UsageCounts,
}

impl Groups {
    pub(super) fn new(by: Grouping) -> Groups {
        Groups {
            by,
            rows: BTreeMap::new(),
            total: UsageCounts::default(),
        }
    }

    /// Adds days in the order of their keys, all days of a key at once.
    pub(super) fn add(&mut self, usage: &[DayUsage], config: &Config, records: &Records) {
        let is_of_keys = self.by == Grouping::Key;
        for usage in usage {
            for (name, part) in self.by.parts(usage, config, records) {
                let new = |name: &String| GroupRow {
                    names: names(self.by, name.clone(), records),
                    keys: (!is_of_keys).then_some(1),
                    counts: UsageCounts::default(),
                };
                let place = self.rows.entry(name);
                let (row, last) = place.or_insert_with_key(|name| (new(name), usage.key));
                if std::mem::replace(last, usage.key) != usage.key {
                    row.keys = row.keys.map(|keys| keys + 1);
                }
                row.counts.add(&part);
            }
        }
        self.total.add(&total(usage));
    }

    /// The rows in the order of their names (keys by customers, then ids), and the total.
    pub(super) fn finish(self) -> (Vec<GroupRow>, UsageCounts) {
        let mut rows: Vec<GroupRow> = self.rows.into_values().map(|(row, _)| row).collect();
        if self.by == Grouping::Key {
            // Customers, of rows that are in the order of keys.
            rows.sort_by(|one, other| one.customer().cmp(&other.customer()));
        }
        (rows, self.total)
    }
}

fn names(by: Grouping, name: String, records: &Records) -> Vec<(&'static str, Option<String>)> {
    let cells = match by {
        Grouping::Day | Grouping::Endpoint | Grouping::Tier | Grouping::Month => vec![Some(name)],
        Grouping::Customer => vec![(!name.is_empty()).then_some(name)],
        Grouping::Key => {
            let id = name.parse::<KeyId>().ok();
            let record = id.and_then(|id| records.get(&id));
            vec![
                Some(name),
                record.map(|record| record.customer.to_string()),
                record.and_then(|record| Some(record.label.as_ref()?.to_string())),
                record.map(|record| record.tier.to_string()),
            ]
        }
    };
    by.columns().iter().copied().zip(cells).collect()
}

/// The sum of everything.
fn total(usage: &[DayUsage]) -> UsageCounts {
    let mut total = UsageCounts::default();
    for usage in usage {
        total.add(&UsageCounts::beside(usage));
        total.add(&UsageCounts::of_totals(&usage.totals()));
    }
    total
}

#[cfg(test)]
pub(super) mod tests;
