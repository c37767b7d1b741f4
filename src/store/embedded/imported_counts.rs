//! Imported counts in the ledger of this database.
//!
//! The rows of the ledger are the counts of the quota for all producers: this database's own charges, and those imported from other
//! producers. The imported counts are also stored on their own, as they were exported, so that a later import adds only what is new.
//! Pure: rows in, rows out.
//!
//! Invariant: the rows are this database's own numbers plus the totals of the other producers. If the accounts of other producers
//! count more units than their totals, the difference is one more row, [`UNATTRIBUTED`], so that the sum of the rows is the count.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::appended::Additions;
use crate::policy::api_key::KeyId;
use crate::policy::calendar::Day;
use crate::policy::key_record::TierName;
use crate::store::Totals;
use crate::store::export::{KeyDay, LateUnits, ProducerAccount, Sheet, process_of};
use crate::store::ledger::{Ceiling, RowTotals, add_row};
use crate::store::ledger_row::{UNATTRIBUTED, row_name, tier_and_endpoint};
use crate::store::sqlite::{signed, unsigned};

/// The name of this database's only account.
const OWN_ACCOUNT: &str = "own";
/// The tier in a producer's name if it is unknown.
const NO_TIER: &str = "-";

/// The counts of other producers as stored: the largest export of each number.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ImportedCounts {
    /// Units granted and refunded, by producer.
    accounts: BTreeMap<String, (u64, u64)>,
    /// The totals, by producer, a bar and the endpoint.
    sheets: BTreeMap<String, Sheet>,
    /// The late units of others in addition to this database's own, by the time of their settlement (Unix seconds).
    late: BTreeMap<i64, i64>,
}

impl ImportedCounts {
    /// The numbers that others have added to the rows.
    fn rows(&self) -> BTreeMap<String, Totals> {
        let mut rows: BTreeMap<String, Totals> = BTreeMap::new();
        let mut attributed = 0_i64;
        for sheet in self.sheets.values() {
            let totals = sheet.totals();
            let row = rows.entry(row_name(sheet.tier.as_ref(), &sheet.endpoint));
            row.or_default().add(&totals);
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
            rows.insert(UNATTRIBUTED.to_owned(), totals);
        }
        rows
    }
}

/// All rows of a key and day.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct DayRows {
    /// The rows of the ledger, by name.
    pub(super) rows: BTreeMap<String, RowTotals>,
    /// The adjustments, by the time of their settlement (Unix seconds).
    pub(super) late: BTreeMap<i64, i64>,
    /// The counts of other producers.
    pub(super) imported: ImportedCounts,
}

impl DayRows {
    /// Adds the entries of groups that are not in the rows yet.
    pub(super) fn add(&mut self, appended: Additions) {
        for (name, addition) in appended {
            add_row(self.rows.entry(name.to_string()).or_default(), addition);
        }
    }

    /// This database's own numbers.
    fn own(&self) -> (BTreeMap<String, Totals>, BTreeMap<i64, i64>) {
        let imported = self.imported.rows();
        let mut rows = BTreeMap::new();
        for (name, (totals, _)) in &self.rows {
            let imported = imported.get(name).copied().unwrap_or_default();
            let own = totals.with(&imported, u64::saturating_sub);
            if own != Totals::default() {
                rows.insert(name.clone(), own);
            }
        }
        let mut late = self.late.clone();
        for (came, units) in &self.imported.late {
            *late.entry(*came).or_default() -= units;
        }
        late.retain(|_, units| *units != 0);
        (rows, late)
    }

    /// The exported day; `own` is this database's name.
    pub(super) fn exported(&self, own: &str, key: KeyId, day: Day) -> KeyDay {
        let (rows, own_late) = self.own();
        let mut account = ProducerAccount {
            producer: format!("{own}.{OWN_ACCOUNT}"),
            granted: 0,
            returned: 0,
        };
        let mut count = |charged: u64, refunded: u64| {
            account.granted = account.granted.saturating_add(charged);
            account.returned = account.returned.saturating_add(refunded);
        };
        let mut sheets: Vec<Sheet> = Vec::new();
        for (name, totals) in &rows {
            count(totals.charged, totals.refunded);
            let (_, ceiling) = self.rows.get(name).copied().unwrap_or_default();
            sheets.push(sheet(own, name, totals, ceiling));
        }
        for units in own_late.values() {
            count(unsigned(*units), unsigned(-*units));
        }
        let mut accounts: Vec<ProducerAccount> = Vec::new();
        if (account.granted, account.returned) != (0, 0) {
            accounts.push(account);
        }
        for (producer, (granted, returned)) in &self.imported.accounts {
            accounts.push(ProducerAccount {
                producer: producer.clone(),
                granted: *granted,
                returned: *returned,
            });
        }
        sheets.extend(self.imported.sheets.values().cloned());
        let late = self.late.iter().filter(|(_, units)| **units != 0);
        KeyDay {
            key,
            date: day.date,
            start: day.start,
            end: day.end,
            accounts,
            sheets,
            late: late
                .map(|(came, units)| LateUnits {
                    came: *came,
                    units: *units,
                })
                .collect(),
        }
    }

    /// Imports an exported day. This database's own numbers in it count if the database has lost them.
    pub(super) fn import(&mut self, own: &str, day: &KeyDay) {
        let (mut rows, own_late) = self.own();
        let mut ceilings: BTreeMap<String, Ceiling> = BTreeMap::new();
        for (name, (_, ceiling)) in &self.rows {
            ceilings.insert(name.clone(), *ceiling);
        }
        for account in &day.accounts {
            if process_of(&account.producer) != own {
                let sums = self.imported.accounts.entry(account.producer.clone());
                let (granted, returned) = sums.or_default();
                *granted = account.granted.max(*granted);
                *returned = account.returned.max(*returned);
            }
        }
        for sheet in &day.sheets {
            let name = row_name(sheet.tier.as_ref(), &sheet.endpoint);
            let ceiling = ceilings.entry(name.clone()).or_default();
            *ceiling = ceiling.max(sheet.ceiling());
            if process_of(&sheet.producer) == own {
                let totals = rows.entry(name).or_default();
                *totals = totals.with(&sheet.totals(), u64::max);
            } else {
                let field = format!("{}|{}", sheet.producer, sheet.endpoint);
                let kept = self.imported.sheets.entry(field);
                kept.or_insert_with(|| sheet.clone()).merge(sheet);
            }
        }
        for late in &day.late {
            let held = self.late.get(&late.came).copied().unwrap_or(0);
            if late.units.unsigned_abs() > held.unsigned_abs() {
                *self.imported.late.entry(late.came).or_default() += late.units - held;
            }
        }
        for (name, imported) in self.imported.rows() {
            rows.entry(name).or_default().add(&imported);
        }
        self.rows = rows
            .into_iter()
            .map(|(name, totals)| {
                let ceiling = ceilings.get(&name).copied().unwrap_or_default();
                (name, (totals, ceiling))
            })
            .collect();
        self.late = own_late;
        for (came, units) in &self.imported.late {
            *self.late.entry(*came).or_default() += units;
        }
    }
}

/// One of this database's own rows, exported.
fn sheet(own: &str, name: &str, totals: &Totals, ceiling: Ceiling) -> Sheet {
    let (tier, endpoint) = tier_and_endpoint(name);
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
