//! The exported content of a store: the form in which it is written into a backup or imported by another store.
//!
//! Counts are exported per producer: under the name of the process or database that charged, which no other producer ever has. A
//! producer's totals only grow. So any store can import them, in any order and any number of times: of two exports of a producer the
//! larger is the later one, and no unit is lost or counted twice. An embedded store is one producer; in Redis, each gateway process
//! is a producer for each of its accounts. Key records are exported with their versions, of which the larger is the later one.
//!
//! What belongs to gateways is not exported: the register, the delivery of events, the feed and the journal.

use std::collections::BTreeMap;

use jiff::civil::Date;
use serde::{Deserialize, Serialize};

use super::error::StoreError;
use super::ledger::{Ceiling, Totals};
use crate::policy::api_key::KeyId;
use crate::policy::audit::Entry;
use crate::policy::calendar::Day;
use crate::policy::key_record::{KeyRecord, TierName};

/// One item of an export.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exported {
    /// A key.
    Key(Box<ExportedKey>),
    /// The usage of a key on a day.
    KeyDay(Box<KeyDay>),
    /// An event of a key near its limit.
    Event(ExportedEvent),
    /// An audit entry that belongs to no key.
    Audit(Box<Entry>),
}

/// A key and its audit trail.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExportedKey {
    /// The record: it has digests, never the secret.
    pub record: KeyRecord,
    /// The audit trail, no newer than the record.
    pub trail: Vec<Entry>,
}

/// The counts and the ledger of a key's day.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyDay {
    /// The key.
    pub key: KeyId,
    /// The date of the day.
    pub date: Date,
    /// The first second of the day (Unix seconds).
    pub start: i64,
    /// The first second of the next day (Unix seconds).
    pub end: i64,
    /// The counts of the quota, by producer.
    pub accounts: Vec<ProducerAccount>,
    /// The rows of the ledger, by producer.
    pub sheets: Vec<Sheet>,
    /// The counted units that were settled after the day was closed.
    pub late: Vec<LateUnits>,
}

impl KeyDay {
    /// The day.
    pub fn day(&self) -> Day {
        Day {
            date: self.date,
            start: self.start,
            end: self.end,
        }
    }
}

/// The units that one producer was granted and refunded; both only grow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProducerAccount {
    /// The producer's name: the process, a dot, and a name for each of its accounts.
    pub producer: String,
    /// Units granted.
    pub granted: u64,
    /// Units refunded.
    pub returned: u64,
}

/// The totals of one producer for an endpoint; every number only grows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sheet {
    /// The producer's name. It has totals for one tier only.
    pub producer: String,
    /// The tier; `None` if an older version did not record it.
    pub tier: Option<TierName>,
    /// The endpoint's name in the ledger.
    pub endpoint: String,
    /// The numbers of [`Totals`] in their order; missing numbers at the end are 0.
    pub numbers: Vec<u64>,
    /// The largest limit of a charge.
    pub limit: u64,
    /// The granted units in that limit.
    pub granted: u64,
}

impl Sheet {
    /// The numbers with their names.
    pub fn totals(&self) -> Totals {
        let mut numbers = [0; Totals::NUMBERS];
        for (number, exported) in numbers.iter_mut().zip(&self.numbers) {
            *number = *exported;
        }
        Totals::of_numbers(numbers)
    }

    /// The limit of its charges.
    pub fn ceiling(&self) -> Ceiling {
        Ceiling {
            limit: self.limit,
            granted: self.granted,
        }
    }

    /// Keeps the larger of each number of another export of the same producer and endpoint.
    pub fn merge(&mut self, other: &Sheet) {
        let larger = self.totals().with(&other.totals(), u64::max);
        self.numbers = larger.numbers().to_vec();
        self.limit = self.limit.max(other.limit);
        self.granted = self.granted.max(other.granted);
    }
}

/// Units settled after their day was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LateUnits {
    /// The quarter of an hour in which they were settled (Unix seconds).
    pub came: i64,
    /// Units charged, minus units refunded.
    pub units: i64,
}

/// An event: its claim, its pending delivery, or both.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExportedEvent {
    /// The event's id.
    pub id: String,
    /// The claim, if there is one.
    pub claim: Option<HeldClaim>,
    /// The delivery, if it is pending.
    pub waiting: Option<WaitingEvent>,
}

/// A claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeldClaim {
    /// The node that made it.
    pub node: String,
    /// Unix seconds after which the claim is no longer needed.
    pub until: i64,
}

/// An event that is to be delivered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WaitingEvent {
    /// When the key was seen to have reached the share (Unix milliseconds).
    pub since: i64,
    /// The text to be delivered.
    pub body: String,
}

/// Whether an import writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImportMode {
    /// The items are written.
    Write,
    /// The items are only counted: nothing is written.
    DryRun,
}

/// The numbers of items that an import added, replaced and kept, or would have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ImportCounts {
    /// Keys that were missing.
    pub keys_added: u64,
    /// Keys whose stored record was older.
    pub keys_replaced: u64,
    /// Keys whose stored record was the same or newer.
    pub keys_held: u64,
    /// Audit entries that were missing.
    pub audit_entries_added: u64,
    /// Days of keys of which some counts were missing.
    pub key_days_added: u64,
    /// Days of keys without missing counts.
    pub key_days_held: u64,
    /// Events that were missing.
    pub events_added: u64,
    /// Events that were already stored.
    pub events_held: u64,
}

impl ImportCounts {
    /// Adds the numbers of another import.
    pub fn add(&mut self, others: &ImportCounts) {
        self.keys_added += others.keys_added;
        self.keys_replaced += others.keys_replaced;
        self.keys_held += others.keys_held;
        self.audit_entries_added += others.audit_entries_added;
        self.key_days_added += others.key_days_added;
        self.key_days_held += others.key_days_held;
        self.events_added += others.events_added;
        self.events_held += others.events_held;
    }
}

/// The process of a producer: the name up to the last dot.
pub fn process_of(producer: &str) -> &str {
    producer
        .rsplit_once('.')
        .map_or(producer, |(process, _)| process)
}

/// The error for an imported key whose secret belongs to another key of the store.
pub fn secret_in_use(imported: KeyId, holder: &str) -> StoreError {
    StoreError::Failed(format!(
        "the key {imported} cannot be imported: the key {holder} of this store has the same secret; rotate one of the two in its \
         own store with `touchline keys rotate --overlap 0s`, then begin again (with a new backup, if you rotated the key of the old \
         store)"
    ))
}

/// The accounts of a day whose counts are gone, from its ledger: the units charged and refunded.
pub fn accounts_of(sheets: &[Sheet]) -> Vec<ProducerAccount> {
    let mut sums: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for sheet in sheets {
        let (totals, sum) = (
            sheet.totals(),
            sums.entry(process_of(&sheet.producer)).or_default(),
        );
        sum.0 = sum.0.saturating_add(totals.charged);
        sum.1 = sum.1.saturating_add(totals.refunded);
    }
    let accounts = sums.into_iter().filter(|(_, sum)| *sum != (0, 0));
    accounts
        .map(|(process, (granted, returned))| ProducerAccount {
            producer: format!("{process}.ledger"),
            granted,
            returned,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_exports_of_a_sheet_the_larger_of_each_number_is_kept() {
        let sheet = |numbers: [u64; 2], limit, granted| Sheet {
            producer: "one.1".into(),
            tier: None,
            endpoint: "/a".into(),
            numbers: numbers.into(),
            limit,
            granted,
        };
        let mut merged = sheet([3, 1], 10, 5);
        merged.merge(&sheet([2, 4], 8, 7));
        let (totals, ceiling) = (merged.totals(), merged.ceiling());
        assert_eq!((totals.requests, totals.charged), (3, 4));
        assert_eq!((ceiling.limit, ceiling.granted), (10, 7));
    }
}
