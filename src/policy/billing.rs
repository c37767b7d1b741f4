//! The price of a key's month: which days are counted for which tier, and the share of the tier's price that they cost.
//!
//! A day of the quota's zone is counted at most once. A day on which units stay charged is counted for a tier in which they were
//! charged; the caller names it. Any other day is counted for the tier that the key held when the day ended. So the day of a
//! change belongs to the tier after the change, the day of the issue is counted, the day of the end is not counted unless the key
//! was used on it, and a key that was issued and revoked on one day and not used costs nothing. A suspended key still holds its
//! tier.
//!
//! Laws, each with a property below: the amounts of a key never sum to more than one month of its most expensive tier; a key held
//! a whole month in one tier costs exactly the month's price; neither the order of the audit trail nor that of the days matters.

use std::collections::BTreeMap;

use jiff::Timestamp;
use jiff::civil::Date;

use super::audit::Entry;
use super::calendar::Day;
use super::key_record::{Action, KeyRecord, KeyState, TierName};
use super::words::words;

/// How months are billed (`billing`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rules {
    /// The part of a month that is billed.
    pub months: Months,
    /// Whether keys without use are billed.
    pub unused_keys: UnusedKeys,
}

words! {
    /// The part of a month that is billed (`billing.months`); the word is also on invoices.
    #[derive(Default)]
    pub enum Months {
        /// The counted days, each for its part of the month.
        #[default]
        ByDay = "by_day",
        /// The whole month if any day is counted, shared among the tiers in proportion to their days.
        Whole = "whole",
    }

    /// Whether to bill keys for which no unit stays charged in the month (`billing.unused_keys`); the word is also on
    /// invoices.
    #[derive(Default)]
    pub enum UnusedKeys {
        /// Billed like other keys: the price is that of the subscription.
        #[default]
        Bill = "bill",
        /// None of their days are counted.
        Skip = "skip",
    }
}

impl Rules {
    /// The rules in one phrase, for a table cell.
    pub fn phrase(self) -> &'static str {
        match (self.months, self.unused_keys) {
            (Months::ByDay, UnusedKeys::Bill) => "by day held, unused keys billed",
            (Months::ByDay, UnusedKeys::Skip) => "by day held, unused keys not billed",
            (Months::Whole, UnusedKeys::Bill) => "whole months, unused keys billed",
            (Months::Whole, UnusedKeys::Skip) => "whole months, unused keys not billed",
        }
    }

    /// The rules in sentences, for the reader of an invoice. `zone` is the time zone of the days.
    pub fn sentences(self, zone: &str) -> Vec<String> {
        let months = match self.months {
            Months::ByDay => {
                "A tier of a key is billed by its days: price × days / days of the month, rounded down to a cent."
            }
            Months::Whole => {
                "A key with a counted day is billed a whole month, shared among its tiers by their days: price × days / \
                 days of the key, rounded down to a cent."
            }
        };
        let unused = match self.unused_keys {
            UnusedKeys::Bill => "A key that was not used is billed as any other.",
            UnusedKeys::Skip => "A key that was not used is not billed.",
        };
        vec![
            months.to_owned(),
            format!(
                "A day ({zone}) is counted for the dearest tier in which units stay charged, otherwise for the tier held when \
                 it ends."
            ),
            format!(
                "{unused} Refunded units do not count as use: a key whose every request was refunded was not used."
            ),
            "Units over the limit, which were served while Redis was unavailable, are listed but not billed."
                .to_owned(),
        ]
    }

    /// The part of the month's price for `days` of a key that has `key_days` in all its tiers, in a month of `month_days`. Rounded
    /// down to a whole cent.
    pub fn amount_cents(self, price_cents: u64, days: u64, key_days: u64, month_days: u64) -> u64 {
        let all = match self.months {
            Months::ByDay => month_days,
            Months::Whole => key_days,
        };
        let part = u128::from(price_cents) * u128::from(days) / u128::from(all.max(1));
        u64::try_from(part).unwrap_or(u64::MAX)
    }
}

/// The counted days of a key's month.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counted {
    /// Days by tier; no tier has 0 days.
    pub tiers: BTreeMap<String, u64>,
    /// Whether the key was used.
    pub is_used: bool,
}

impl Counted {
    /// Counts the days of a key, from the days of the month that have begun, the tiers that the key held, and the tier of each
    /// day on which units stay charged.
    pub fn of(rules: Rules, days: &[Day], life: &Life, used: &BTreeMap<Date, String>) -> Counted {
        let mut counted = Counted {
            is_used: days.iter().any(|day| used.contains_key(&day.date)),
            ..Counted::default()
        };
        match rules.unused_keys {
            UnusedKeys::Skip if !counted.is_used => return counted,
            UnusedKeys::Skip | UnusedKeys::Bill => {}
        }
        for day in days {
            let tier = used.get(&day.date).map(String::as_str);
            let held = || life.tier_on(day).map(TierName::as_str);
            let Some(tier) = tier.or_else(held) else {
                continue;
            };
            *counted.tiers.entry(tier.to_owned()).or_default() += 1;
        }
        counted
    }

    /// The sum of the days of all tiers.
    pub fn days(&self) -> u64 {
        self.tiers.values().sum()
    }
}

/// The tiers that a key held over time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Life {
    begun: Timestamp,
    /// In the order of the versions; the first stretch has no beginning.
    stretches: Vec<Stretch>,
}

/// The state of a key from an instant until the next stretch.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stretch {
    from: Timestamp,
    tier: TierName,
    is_revoked: bool,
    expires: Option<Timestamp>,
}

impl Life {
    /// The life of a key by its record and its audit trail, in any order: the changes are undone one by one, the latest first.
    /// The entry of the last change may be missing, because the record has it. Facts without a change in an incomplete trail
    /// count as unchanged, except a revocation, which is dated to the oldest known change.
    pub fn of(record: &KeyRecord, trail: &[Entry]) -> Life {
        let last = Entry::of(record);
        let earlier = trail.iter().filter(|entry| entry.version < record.version);
        let mut changes: Vec<&Entry> = earlier.chain([&last]).collect();
        changes.sort_by_key(|entry| std::cmp::Reverse(entry.version));
        let mut now = Stretch {
            from: record.created,
            tier: record.tier.clone(),
            is_revoked: record.state == KeyState::Revoked,
            expires: record.expires,
        };
        let mut stretches = Vec::with_capacity(changes.len() + 1);
        for entry in &changes {
            stretches.push(Stretch {
                from: entry.at,
                ..now.clone()
            });
            now.undo(entry);
        }
        let is_first = |entry: &&Entry| matches!(entry.what, Action::Issue | Action::Import);
        if !changes.last().is_some_and(is_first) {
            now.is_revoked = false;
        }
        stretches.push(now);
        stretches.reverse();
        Life {
            begun: record.created,
            stretches,
        }
    }

    /// The tier that the key holds when a day ends; `None` before its issue, and if it is revoked or expired by then.
    pub fn tier_on(&self, day: &Day) -> Option<&TierName> {
        if self.begun.as_second() >= day.end {
            return None;
        }
        // A version overrides an earlier one even if a clock that was ahead dated that one later.
        let mut begun = self.stretches.iter().skip(1);
        let last = begun.rfind(|stretch| stretch.from.as_second() < day.end);
        let stretch = last.or(self.stretches.first())?;
        let is_valid = stretch
            .expires
            .is_none_or(|expires| expires.as_second() >= day.end);
        (is_valid && !stretch.is_revoked).then_some(&stretch.tier)
    }
}

impl Stretch {
    /// The state before a change.
    fn undo(&mut self, entry: &Entry) {
        if let Some(Some(tier)) = entry.before.get("tier")
            && let Ok(tier) = tier.parse()
        {
            self.tier = tier;
        }
        if let Some(state) = entry.before.get("state") {
            self.is_revoked = state.as_deref() == Some(KeyState::Revoked.as_str());
        }
        if let Some(expires) = entry.before.get("expires") {
            self.expires = expires.as_ref().and_then(|expires| expires.parse().ok());
        }
    }
}

#[cfg(test)]
mod tests;
