//! What a store holds, in the form in which it is carried into a backup or another store.
//!
//! Counts are told by producer: whoever charged, by a name that nobody else ever bears, with totals that only grow. So
//! whatever is carried may be taken in by any store, in any order and any number of times: of two tellings of a producer
//! the larger is the later one, and nothing is lost or doubled. An embedded store is one producer itself; in Redis every
//! gateway process is one for each of its accounts. Records are told with their versions, of which the larger is the later.
//!
//! What belongs to gateways is not carried: who is on the register, who delivers events, the feed, the journal.

use std::collections::BTreeMap;

use async_trait::async_trait;
use jiff::civil::Date;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::StoreError;
use super::ledger::{Ceiling, Totals};
use crate::policy::api_key::KeyId;
use crate::policy::audit::Entry;
use crate::policy::calendar::Day;
use crate::policy::key_record::{KeyRecord, TierName};

/// One piece of what a store holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Carried {
    /// A key.
    Key(Box<CarriedKey>),
    /// What a key used on a day.
    KeyDay(Box<KeyDay>),
    /// An event of a key near its limit.
    Event(CarriedEvent),
    /// An entry of the audit trail that is of no key.
    Audit(Box<Entry>),
}

/// A key with all that is told of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CarriedKey {
    /// Its record: with digests, never with a key.
    pub record: KeyRecord,
    /// Its audit trail, no later than the record.
    pub trail: Vec<Entry>,
}

/// The counts and the ledger of a key's day.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyDay {
    /// The key.
    pub key: KeyId,
    /// The day, its first second and the next day's (Unix seconds).
    pub date: Date,
    /// See above.
    pub start: i64,
    /// See above.
    pub end: i64,
    /// What the quota counts, by producer.
    pub accounts: Vec<Account>,
    /// What the ledger says, by producer.
    pub sheets: Vec<Sheet>,
    /// Of the counted units, those that came after the day was closed.
    pub late: Vec<Late>,
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

/// What one producer was granted and gave back, in units; both only grow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Account {
    /// Its name: that of a process, a dot, and what tells its accounts apart.
    pub producer: String,
    /// Units granted.
    pub granted: u64,
    /// Units given back.
    pub returned: u64,
}

/// What one producer wrote of an endpoint; every number only grows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sheet {
    /// Its name, under which it wrote of one tier only.
    pub producer: String,
    /// The tier; `None` where an older version did not write it down.
    pub tier: Option<TierName>,
    /// The endpoint as the ledger names it.
    pub endpoint: String,
    /// The numbers of [`Totals`] in their order; those that are missing at the end are 0.
    pub numbers: Vec<u64>,
    /// The largest limit that a charge was judged by, and the granted units in it.
    pub limit: u64,
    /// See above.
    pub granted: u64,
}

impl Sheet {
    /// The numbers by their names.
    pub fn totals(&self) -> Totals {
        let mut numbers = [0; Totals::NUMBERS];
        for (number, told) in numbers.iter_mut().zip(&self.numbers) {
            *number = *told;
        }
        Totals::of_numbers(numbers)
    }

    /// By what its charges were judged.
    pub fn ceiling(&self) -> Ceiling {
        Ceiling {
            limit: self.limit,
            granted: self.granted,
        }
    }

    /// Takes the larger of each number of another telling of the same producer and endpoint.
    pub fn merge(&mut self, other: &Sheet) {
        let (own, others) = (self.totals().numbers(), other.totals().numbers());
        self.numbers = own.into_iter().zip(others).map(|(a, b)| a.max(b)).collect();
        self.limit = self.limit.max(other.limit);
        self.granted = self.granted.max(other.granted);
    }
}

/// Units that came after their day was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Late {
    /// When, to the quarter of an hour (Unix seconds).
    pub came: i64,
    /// Units charged, minus units given back.
    pub units: i64,
}

/// An event: that it was claimed, that it waits to be delivered, or both.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CarriedEvent {
    /// The event's id.
    pub id: String,
    /// Who claimed it.
    pub claim: Option<HeldClaim>,
    /// What waits to be delivered.
    pub waiting: Option<WaitingEvent>,
}

/// A claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeldClaim {
    /// The node that made it.
    pub node: String,
    /// Unix seconds after which nobody asks for it.
    pub until: i64,
}

/// An event that waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WaitingEvent {
    /// Since when (Unix milliseconds).
    pub since: i64,
    /// What is delivered.
    pub body: String,
}

/// What to do with what is carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taking {
    /// Take it in.
    Write,
    /// Only say what would come of it.
    Rehearse,
}

/// What came, or would come, of pieces that were taken in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Taken {
    /// Keys that were not there.
    pub keys_added: u64,
    /// Keys that were there with an older record.
    pub keys_replaced: u64,
    /// Keys that were there as they are, or newer.
    pub keys_held: u64,
    /// Entries of the audit trail that were not there.
    pub audit_entries_added: u64,
    /// Days of keys of which something was not there.
    pub key_days_added: u64,
    /// Days of keys that were there already.
    pub key_days_held: u64,
    /// Events that were not there.
    pub events_added: u64,
    /// Events that were there already.
    pub events_held: u64,
}

impl Taken {
    /// Adds what came of others.
    pub fn add(&mut self, others: &Taken) {
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

/// A store whose holdings can be carried away, and that takes in others.
#[async_trait]
pub trait Carrying {
    /// Tells all that the store holds: every key before the days. `told` is bounded, and so is the memory that this takes.
    /// Ends without error where nobody listens any more.
    ///
    /// The embedded store tells one instant. Redis has no such thing while gateways charge: each key's day is as it was at some
    /// instant of the telling, no entry of the ledger without its charge; what came afterwards is told the next time.
    ///
    /// # Errors
    /// Those of the store, and [`StoreError::Failed`] where something in it cannot be read.
    async fn carry_out(&self, told: mpsc::Sender<Carried>) -> Result<(), StoreError>;

    /// Takes in some hundred pieces: what the store lacks or holds older. Charges pass before and after. Taking in the same again
    /// changes nothing, so whoever was interrupted begins anew.
    ///
    /// # Errors
    /// Those of the store; [`StoreError::OtherCalendar`] where it knows a day by other boundaries; [`StoreError::Failed`] where
    /// another of its keys has the secret of a carried one. Of the pieces some may have been taken in then.
    async fn take_in(&self, carried: Vec<Carried>, taking: Taking) -> Result<Taken, StoreError>;
}

/// The process of a producer: its name up to the last dot.
pub fn process_of(producer: &str) -> &str {
    producer
        .rsplit_once('.')
        .map_or(producer, |(process, _)| process)
}

/// What is said of a key whose secret another key of the store has.
pub fn secret_in_use(carried: KeyId, holder: &str) -> StoreError {
    StoreError::Failed(format!(
        "the key {carried} cannot be imported: the key {holder} of this store has the same secret; revoke one of the two in its \
         own store and rotate it, then begin again"
    ))
}

/// Accounts that the sheets of a day would have, where its counts are gone: what they say was charged and given back.
pub fn accounts_of(sheets: &[Sheet]) -> Vec<Account> {
    let mut sums: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for sheet in sheets {
        let (totals, sum) = (
            sheet.totals(),
            sums.entry(process_of(&sheet.producer)).or_default(),
        );
        sum.0 = sum.0.saturating_add(totals.charged);
        sum.1 = sum.1.saturating_add(totals.refunded);
    }
    let told = sums.into_iter().filter(|(_, sum)| *sum != (0, 0));
    told.map(|(process, (granted, returned))| Account {
        producer: format!("{process}.ledger"),
        granted,
        returned,
    })
    .collect()
}
