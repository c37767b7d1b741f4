//! What others counted, in the ledger of this database.
//!
//! The rows of the ledger are what the quota counts, whoever charged: own charges, and those of other producers that were
//! carried here. What came of the others is kept beside, as they told it, so that a later telling adds only what is new.
//! Pure: rows in, rows out.
//!
//! Invariant: the rows are this database's own numbers plus the sheets of the others; what the others' accounts count
//! beyond their sheets is one more row, [`UNATTRIBUTED`], so that the rows are the count still.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::appended::Additions;
use super::group::{signed, unsigned};
use crate::policy::api_key::KeyId;
use crate::policy::calendar::Day;
use crate::policy::key_record::TierName;
use crate::store::Totals;
use crate::store::carried::{Account, KeyDay, Late, Sheet, process_of};
use crate::store::ledger::Ceiling;

/// The place of the row with units of which their producers have said no endpoint. No endpoint has this name.
pub(super) const UNATTRIBUTED: &str = "unattributed";
/// What tells the one account of this database from its process.
const OWN_ACCOUNT: &str = "own";
/// Stands for the tier in a producer's name where none is known.
const NO_TIER: &str = "-";

type Numbers = [i64; Totals::NUMBERS];

/// What others told, as it is kept: the larger of each number.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Copied {
    /// Granted and given back, by producer.
    accounts: BTreeMap<String, (u64, u64)>,
    /// By producer and endpoint, with a bar between.
    sheets: BTreeMap<String, Sheet>,
    /// By when they came: what the others' late units add to this database's own.
    late: BTreeMap<i64, i64>,
}

impl Copied {
    /// What the others have added to the rows.
    fn rows(&self) -> BTreeMap<String, Numbers> {
        let mut rows: BTreeMap<String, Numbers> = BTreeMap::new();
        let mut attributed = 0_i64;
        for sheet in self.sheets.values() {
            let totals = sheet.totals();
            add(
                rows.entry(place(sheet.tier.as_ref(), &sheet.endpoint))
                    .or_default(),
                totals.numbers().map(signed),
            );
            attributed = attributed.saturating_add(totals.net());
        }
        let counted: i64 = self
            .accounts
            .values()
            .map(|(granted, returned)| signed(*granted).saturating_sub(signed(*returned)))
            .sum();
        let late: i64 = self.late.values().sum();
        let unattributed = counted - attributed - late;
        if unattributed != 0 {
            let totals = Totals {
                charged: unsigned(unattributed),
                refunded: unsigned(-unattributed),
                ..Totals::default()
            };
            rows.insert(UNATTRIBUTED.to_owned(), totals.numbers().map(signed));
        }
        rows
    }
}

/// All that the database holds of a key's day.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct DayRows {
    /// The rows of the ledger by their places.
    pub(super) rows: BTreeMap<String, (Totals, Ceiling)>,
    /// The adjustments, by when they came (Unix seconds).
    pub(super) late: BTreeMap<i64, i64>,
    /// What others told.
    pub(super) copied: Copied,
}

impl DayRows {
    /// Adds what groups hold of the day that its rows lack.
    pub(super) fn add(&mut self, appended: Additions) {
        for (place, addition) in appended {
            let (totals, ceiling) = self.rows.entry(place.to_string()).or_default();
            totals.add(&addition.0);
            *ceiling = ceiling.max(addition.1);
        }
    }

    /// What this database charged itself.
    fn own(&self) -> (BTreeMap<String, Numbers>, BTreeMap<i64, i64>) {
        let copied = self.copied.rows();
        let mut rows = BTreeMap::new();
        for (place, (totals, _)) in &self.rows {
            let mut own = totals.numbers().map(signed);
            for (number, copied) in own
                .iter_mut()
                .zip(copied.get(place).unwrap_or(&[0; Totals::NUMBERS]))
            {
                *number = number.saturating_sub(*copied).max(0);
            }
            if own != Numbers::default() {
                rows.insert(place.clone(), own);
            }
        }
        let mut late = self.late.clone();
        for (came, units) in &self.copied.late {
            *late.entry(*came).or_default() -= units;
        }
        late.retain(|_, units| *units != 0);
        (rows, late)
    }

    /// The day for others; `own` is this database's name.
    pub(super) fn told(&self, own: &str, key: KeyId, day: Day) -> KeyDay {
        let (rows, own_late) = self.own();
        let mut account = Account {
            producer: format!("{own}.{OWN_ACCOUNT}"),
            granted: 0,
            returned: 0,
        };
        let mut count = |charged: u64, refunded: u64| {
            account.granted = account.granted.saturating_add(charged);
            account.returned = account.returned.saturating_add(refunded);
        };
        let mut sheets: Vec<Sheet> = Vec::new();
        for (place, numbers) in &rows {
            let totals = Totals::of_numbers(numbers.map(unsigned));
            count(totals.charged, totals.refunded);
            let (_, ceiling) = self.rows.get(place).copied().unwrap_or_default();
            sheets.push(sheet(own, place, &totals, ceiling));
        }
        for units in own_late.values() {
            count(unsigned(*units), unsigned(-*units));
        }
        let mut accounts: Vec<Account> = Vec::new();
        if (account.granted, account.returned) != (0, 0) {
            accounts.push(account);
        }
        for (producer, (granted, returned)) in &self.copied.accounts {
            accounts.push(Account {
                producer: producer.clone(),
                granted: *granted,
                returned: *returned,
            });
        }
        sheets.extend(self.copied.sheets.values().cloned());
        let late = self.late.iter().filter(|(_, units)| **units != 0);
        KeyDay {
            key,
            date: day.date,
            start: day.start,
            end: day.end,
            accounts,
            sheets,
            late: late
                .map(|(came, units)| Late {
                    came: *came,
                    units: *units,
                })
                .collect(),
        }
    }

    /// Takes in what others tell of the day. What they tell of this database itself counts where it has lost it.
    pub(super) fn take(&mut self, own: &str, told: &KeyDay) {
        let (mut rows, own_late) = self.own();
        let mut ceilings: BTreeMap<String, Ceiling> = BTreeMap::new();
        for (place, (_, ceiling)) in &self.rows {
            ceilings.insert(place.clone(), *ceiling);
        }
        for account in &told.accounts {
            if process_of(&account.producer) != own {
                let sums = self.copied.accounts.entry(account.producer.clone());
                let (granted, returned) = sums.or_default();
                *granted = account.granted.max(*granted);
                *returned = account.returned.max(*returned);
            }
        }
        for sheet in &told.sheets {
            let place = place(sheet.tier.as_ref(), &sheet.endpoint);
            let ceiling = ceilings.entry(place.clone()).or_default();
            *ceiling = ceiling.max(sheet.ceiling());
            if process_of(&sheet.producer) == own {
                let numbers = rows.entry(place).or_default();
                for (number, told) in numbers.iter_mut().zip(sheet.totals().numbers()) {
                    *number = signed(told).max(*number);
                }
            } else {
                let field = format!("{}|{}", sheet.producer, sheet.endpoint);
                let kept = self.copied.sheets.entry(field);
                kept.or_insert_with(|| sheet.clone()).merge(sheet);
            }
        }
        for late in &told.late {
            let held = self.late.get(&late.came).copied().unwrap_or(0);
            if late.units.unsigned_abs() > held.unsigned_abs() {
                *self.copied.late.entry(late.came).or_default() += late.units - held;
            }
        }
        for (place, copied) in self.copied.rows() {
            add(rows.entry(place).or_default(), copied);
        }
        self.rows = rows
            .into_iter()
            .map(|(place, numbers)| {
                let ceiling = ceilings.get(&place).copied().unwrap_or_default();
                let totals = Totals::of_numbers(numbers.map(unsigned));
                (place, (totals, ceiling))
            })
            .collect();
        self.late = own_late;
        for (came, units) in &self.copied.late {
            *self.late.entry(*came).or_default() += units;
        }
    }
}

fn add(numbers: &mut Numbers, others: Numbers) {
    for (number, other) in numbers.iter_mut().zip(others) {
        *number = number.saturating_add(other);
    }
}

/// Where the ledger keeps an endpoint's row: the tier, a space, the endpoint.
fn place(tier: Option<&TierName>, endpoint: &str) -> String {
    match tier {
        Some(tier) => format!("{tier} {endpoint}"),
        None => endpoint.to_owned(),
    }
}

/// One of this database's own rows for others.
fn sheet(own: &str, place: &str, totals: &Totals, ceiling: Ceiling) -> Sheet {
    let (tier, endpoint) = super::usage::place_of(place);
    let name = tier.as_ref().map_or(NO_TIER, TierName::as_str);
    Sheet {
        producer: format!("{own}.{name}"),
        endpoint: endpoint.to_owned(),
        numbers: totals.numbers().to_vec(),
        limit: ceiling.limit,
        granted: ceiling.granted,
        tier,
    }
}

#[cfg(test)]
mod tests;
