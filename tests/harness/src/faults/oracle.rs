//! Whether a schedule of faults cost more than it may: a pure function over the records of clients, upstream, access logs
//! and store.
//!
//! The truth is what the upstream served: units forwarded and not refunded. The rules:
//! - a key's served units never pass its limit by more than the bound of the schedule's [`Effect`]s, which is 0 if
//!   the store lost nothing and nothing was served without it;
//! - after settlement the store counts exactly those units. A gateway that was killed may leave it higher, by the units that
//!   the gateway had in flight or had not yet refunded, and never lower; lower only if the store lost counts that the gateway
//!   had not yet journaled, before it had reported them again or its successor had read them;
//! - no call is refused with a 401, and with a 429 only if as many calls as the limit had been made before;
//! - nothing waited for the store longer than its timeout and a quantum for a busy machine.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use crate::ledger::date_of;

mod facts;

pub use facts::{Cost, Effect, Facts, Figures, KeyFacts, Kill, Logged, Seen, SeenAnswer};

/// The most differences that are reported; more only hide the first.
const VIOLATIONS_MAX: usize = 25;
/// Refunds reach the store within a second; the rest is for a busy machine.
const REFUNDS_LAST: Duration = Duration::from_secs(3);
/// Counts reach the journal within a second; the rest is for a busy machine.
const JOURNALED_WITHIN: Duration = Duration::from_secs(3);
/// Counts that the store lost are reported to it again within a second; the rest is for a busy machine.
const TOLD_AGAIN_WITHIN: Duration = Duration::from_secs(3);
/// The time that a busy machine may add to a wait, beside timeout and journal.
const QUANTUM: Duration = Duration::from_secs(3);
/// Answers of one gateway and key that may have overtaken each other.
const OVERTAKING: usize = 24;
const HALF_DAY_SECONDS: u64 = 43_200;

/// The judgement.
#[derive(Debug, Clone, Default)]
pub struct Verdict {
    /// Every rule that was broken, in words.
    pub violations: Vec<String>,
    /// The figures.
    pub figures: Figures,
}

/// The units of a call: exact, or unknown within bounds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Units {
    least: u64,
    most: u64,
}

/// The sums over the calls of one key and day.
#[derive(Debug, Clone, Copy, Default)]
struct Account {
    units: Units,
    forgotten: u64,
}

impl Facts {
    /// Judges.
    pub fn judge(&self) -> Verdict {
        let mut verdict = Verdict::default();
        let stalls = self.stalls();
        if !stalls.is_empty() {
            let mut facts = self.clone();
            facts.timeout = Duration::MAX;
            facts.effects.extend(stalls.iter().cloned());
            verdict = facts.judge();
            verdict.figures.stalls = stalls.len() as u64;
            verdict.figures.costly_faults = self.effects.len() as u64;
            return verdict;
        }
        self.count(&mut verdict.figures);
        let found = &mut verdict.violations;
        self.judge_answers(found);
        self.judge_refusals(found);
        self.judge_logs(found);
        self.judge_counts(&mut verdict);
        self.judge_limits(&mut verdict);
        let found = &mut verdict.violations;
        if found.len() > VIOLATIONS_MAX {
            let more = found.len() - VIOLATIONS_MAX;
            found.truncate(VIOLATIONS_MAX);
            found.push(format!("… and {more} more"));
        }
        verdict
    }

    /// Whether the store counts all served units, so that nothing is left to be reported. Logs are not considered.
    pub fn is_settled(&self) -> bool {
        let mut verdict = Verdict::default();
        self.judge_counts(&mut verdict);
        verdict.violations.is_empty()
    }

    /// Keys, by day, of which the store counts as many units as their limits. A killed gateway may have taken some of them
    /// with it, so the served units do not show it.
    pub fn used_up(&self) -> BTreeSet<(usize, String)> {
        let limit = |place: usize| self.keys.get(place).map_or(u64::MAX, |key| key.limit);
        let up = self
            .counts
            .iter()
            .filter(|((place, _), count)| **count >= limit(*place));
        up.map(|(account, _)| account.clone()).collect()
    }

    /// The possible cost of timeouts of a store without a fault.
    fn stalls(&self) -> Vec<Effect> {
        let late = self
            .logged
            .iter()
            .filter(|line| line.store_wait >= self.timeout);
        let late: BTreeSet<u64> = late.map(|line| line.id).collect();
        let late = self.seen.iter().filter(|seen| late.contains(&seen.id));
        late.filter(|seen| !self.without_store(seen.gateway, seen.began))
            .map(|seen| Effect {
                keys: Some(BTreeSet::from([seen.key])),
                cost: Cost::Flapping {
                    gateways: vec![seen.gateway],
                    from: seen.began,
                    until: seen.ended,
                },
            })
            .collect()
    }

    fn count(&self, figures: &mut Figures) {
        figures.calls = self.seen.len() as u64;
        figures.kills = self.kills.len() as u64;
        figures.costly_faults = self.effects.len() as u64;
        for seen in &self.seen {
            let counter = match seen.output.map(|output| output.status) {
                Some(200) => &mut figures.served,
                Some(429) => &mut figures.exhausted,
                Some(_) if self.failed.contains(&seen.id) => &mut figures.upstream_failed,
                Some(_) => &mut figures.unserved,
                None => &mut figures.unanswered,
            };
            *counter += 1;
        }
        for logged in &self.logged {
            let wait = logged.store_wait;
            figures.longest_wait = figures.longest_wait.max(wait);
            let whole = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
            *figures.waits.entry(whole).or_default() += 1;
        }
    }

    fn judge_answers(&self, found: &mut Vec<String>) {
        let mut ids = BTreeSet::new();
        for seen in &self.seen {
            let what = || self.name(seen);
            if !ids.insert(seen.id) {
                found.push(format!("{} was sent twice", what()));
            }
            let forwarded = self.forwarded.get(&seen.id).copied().unwrap_or(0);
            match seen.output.map(|output| output.status) {
                Some(200) if forwarded != 1 => {
                    found.push(format!(
                        "{} was served, forwarded {forwarded} times",
                        what()
                    ));
                }
                Some(429) if forwarded != 0 => {
                    found.push(format!("{} was refused and forwarded", what()));
                }
                Some(200 | 429 | 500) => {}
                Some(other) => found.push(format!("{} was answered {other}", what())),
                None if self.killed_during(seen) => {}
                None => found.push(format!("{} had no answer, and nobody was killed", what())),
            }
            if forwarded > 1 {
                found.push(format!("{} was forwarded {forwarded} times", what()));
            }
        }
        for id in self.forwarded.keys().filter(|id| !ids.contains(id)) {
            found.push(format!("upstream: nobody sent {id}"));
        }
    }

    /// A 429 is right only if enough calls that may have been charged were made before it.
    fn judge_refusals(&self, found: &mut Vec<String>) {
        let mut begun: BTreeMap<(usize, Option<String>), Vec<Instant>> = BTreeMap::new();
        for seen in &self.seen {
            if seen.output.is_none_or(|output| output.status != 429) {
                let account = (seen.key, day_of(seen));
                begun.entry(account).or_default().push(seen.began);
            }
        }
        begun.values_mut().for_each(|times| times.sort_unstable());
        let before = |account: &(usize, Option<String>), end: Instant| {
            let times = begun.get(account);
            times.map_or(0, |times| times.partition_point(|began| *began < end))
        };
        for seen in &self.seen {
            if seen.output.is_none_or(|output| output.status != 429) {
                continue;
            }
            let charged = before(&(seen.key, day_of(seen)), seen.ended)
                + before(&(seen.key, None), seen.ended);
            let limit = self.keys.get(seen.key).map_or(0, |key| key.limit);
            if (charged as u64) < limit {
                found.push(format!(
                    "{} was refused as used up, but only {charged} calls of {limit} had been made",
                    self.name(seen)
                ));
            }
        }
    }

    fn judge_logs(&self, found: &mut Vec<String>) {
        let logged: HashMap<u64, Logged> =
            self.logged.iter().map(|line| (line.id, *line)).collect();
        if logged.len() != self.logged.len() {
            found.push("access log: an id stands there twice".into());
        }
        for seen in &self.seen {
            let Some(output) = seen.output else { continue };
            let Some(line) = logged.get(&seen.id) else {
                if !self.unlogged.contains(&seen.gateway) && !self.killed_soon_after(seen) {
                    found.push(format!("access log: {} is missing", self.name(seen)));
                }
                continue;
            };
            let units = self.units(seen);
            if line.status != output.status || !(units.least..=units.most).contains(&line.units) {
                found.push(format!(
                    "access log: {} has status {} and {} units",
                    self.name(seen),
                    line.status,
                    line.units
                ));
            }
        }
        for line in &self.logged {
            if line.store_wait > self.patience + QUANTUM {
                found.push(format!(
                    "access log: call {} waited {:?} for the store",
                    line.id, line.store_wait
                ));
            }
        }
    }

    /// The accounts of each key, by day, and the account of unknown days.
    fn accounts(&self) -> Vec<(BTreeMap<String, Account>, Account)> {
        let mut accounts = vec![<(BTreeMap<String, Account>, Account)>::default(); self.keys.len()];
        for seen in &self.seen {
            let Some((dated, undated)) = accounts.get_mut(seen.key) else {
                continue;
            };
            let account = match day_of(seen) {
                Some(date) => dated.entry(date).or_default(),
                None => undated,
            };
            let units = self.units(seen);
            account.units.least += units.least;
            account.units.most += units.most;
            account.forgotten += if self.is_forgotten(seen) {
                units.least
            } else {
                0
            };
        }
        accounts
    }

    /// Whether the store counts the served units.
    fn judge_counts(&self, verdict: &mut Verdict) {
        for (place, (key, (days, none))) in self.keys.iter().zip(self.accounts()).enumerate() {
            let counted = self.counts.iter().filter(|((of, _), _)| *of == place);
            let total: u64 = counted.map(|(_, count)| count).sum();
            let sum =
                |pick: fn(&Account) -> u64| days.values().map(pick).sum::<u64>() + pick(&none);
            let least = sum(|one| one.units.least).saturating_sub(sum(|one| one.forgotten));
            let most = sum(|one| one.units.most);
            judge_count(verdict, &key.id, "in all", total, Units { least, most });
            for (date, account) in &days {
                let count = self.counts.get(&(place, date.clone()));
                let units = Units {
                    least: account.units.least.saturating_sub(account.forgotten),
                    most: account.units.most + none.units.most,
                };
                let count = count.copied().unwrap_or(0);
                judge_count(verdict, &key.id, date, count, units);
            }
            verdict.figures.lost += least.saturating_sub(total);
            verdict.figures.counted_more += total.saturating_sub(sum(|one| one.units.least));
        }
    }

    /// Whether no key was served more than its limit and the bound.
    fn judge_limits(&self, verdict: &mut Verdict) {
        for (place, (days, none)) in self.accounts().into_iter().enumerate() {
            // Units of an unknown day count if there is only one day.
            let undated = if days.len() == 1 { none.units.least } else { 0 };
            for (date, account) in &days {
                self.judge_limit(verdict, place, date, account.units.least + undated);
            }
        }
    }

    fn judge_limit(&self, verdict: &mut Verdict, place: usize, date: &str, served: u64) {
        let Some(key) = self.keys.get(place) else {
            return;
        };
        if served <= key.limit {
            return;
        }
        let bound = self.bound(place, date);
        verdict.figures.above += served - key.limit;
        verdict.figures.allowed_above += bound;
        if served > key.limit + bound {
            verdict.violations.push(format!(
                "{} was served {served} units on {date}: its limit is {} and the bound {bound}",
                key.id, key.limit
            ));
        }
    }

    /// Units that the faults may have cost a key on a day.
    fn bound(&self, place: usize, date: &str) -> u64 {
        let limit = self.keys.get(place).map_or(0, |key| key.limit);
        let cold = (limit / self.gateways.max(1)).min(limit * self.cold_percent / 100);
        let concerned = |effect: &&Effect| {
            effect
                .keys
                .as_ref()
                .is_none_or(|keys| keys.contains(&place))
        };
        let parts = self
            .effects
            .iter()
            .filter(concerned)
            .map(|effect| match &effect.cost {
                Cost::Away { gateways, from, .. } => {
                    let share = |gateway: &usize| match self.left(*gateway, place, date, *from) {
                        // A killed gateway may have lost the count.
                        Some(left) if self.was_killed(*gateway) => {
                            (left / self.gateways.max(1)).max(cold)
                        }
                        Some(left) => left / self.gateways.max(1),
                        None => cold,
                    };
                    gateways.iter().map(share).sum()
                }
                Cost::Flapping { gateways, from, .. } => {
                    let left =
                        |gateway: &usize| self.left(*gateway, place, date, *from).unwrap_or(limit);
                    gateways.iter().map(left).sum()
                }
                Cost::Lost { from, until } => {
                    let lost = |seen: &&Seen| {
                        let within =
                            seen.began < *until && from.is_none_or(|from| seen.ended >= from);
                        seen.key == place && within && self.units(seen).most > 0
                    };
                    self.seen.iter().filter(lost).count() as u64
                }
                Cost::ColdStart => cold,
            });
        parts.sum()
    }

    /// Whether a gateway then reported its share, and not the units left.
    fn without_store(&self, gateway: usize, then: Instant) -> bool {
        self.effects.iter().any(|effect| match &effect.cost {
            Cost::Away {
                gateways,
                from,
                until,
            }
            | Cost::Flapping {
                gateways,
                from,
                until,
            } => gateways.contains(&gateway) && (*from..*until).contains(&then),
            Cost::Lost { .. } | Cost::ColdStart => false,
        })
    }

    /// The most units that a gateway may have considered left of a key's day at that time, by its last answers.
    fn left(&self, gateway: usize, place: usize, date: &str, at: Instant) -> Option<u64> {
        let output =
            |seen: &&Seen| seen.gateway == gateway && seen.key == place && seen.ended <= at;
        let mut answers: Vec<(Instant, u64)> = self
            .seen
            .iter()
            .filter(output)
            .filter(|seen| !self.without_store(gateway, seen.ended))
            .filter(|seen| day_of(seen).as_deref() == Some(date))
            .filter_map(|seen| Some((seen.ended, seen.output?.remaining?)))
            .collect();
        answers.sort_unstable();
        let last = answers.iter().rev().take(OVERTAKING);
        last.map(|(_, remaining)| *remaining).max()
    }

    fn units(&self, seen: &Seen) -> Units {
        let forwarded = self.forwarded.contains_key(&seen.id);
        let (least, most) = match seen.output.map(|output| output.status) {
            Some(200) => (1, 1),
            Some(500) if self.owed(seen) => (0, 1),
            Some(_) => (0, 0),
            None if forwarded && !self.failed.contains(&seen.id) => (1, 1),
            None => (0, 1),
        };
        Units { least, most }
    }

    /// Whether a refused call's unit may have stayed in the store, because its gateway was killed.
    fn owed(&self, seen: &Seen) -> bool {
        self.kills.iter().any(|kill| {
            let since = kill
                .owing_since
                .checked_sub(REFUNDS_LAST)
                .unwrap_or(kill.owing_since);
            kill.gateway == seen.gateway && seen.began <= kill.at && seen.ended >= since
        })
    }

    fn is_forgotten(&self, seen: &Seen) -> bool {
        self.kills.iter().any(|kill| {
            kill.gateway == seen.gateway
                && seen.began <= kill.at
                && seen.ended + JOURNALED_WITHIN >= kill.at
                && (kill.forgets || self.was_lost_with(seen, kill))
        })
    }

    /// Whether the store lost a call's count before its gateway, which was killed then, had reported it again.
    fn was_lost_with(&self, seen: &Seen, kill: &Kill) -> bool {
        self.effects.iter().any(|effect| match &effect.cost {
            Cost::Lost { from, until } => {
                let keys = effect.keys.as_ref();
                keys.is_none_or(|keys| keys.contains(&seen.key))
                    && seen.began < *until
                    && from.is_none_or(|from| seen.ended >= from && kill.at >= from)
                    && kill.at < *until + TOLD_AGAIN_WITHIN
            }
            Cost::Away { .. } | Cost::Flapping { .. } | Cost::ColdStart => false,
        })
    }

    fn killed_during(&self, seen: &Seen) -> bool {
        self.kills.iter().any(|kill| {
            kill.gateway == seen.gateway && seen.began <= kill.back && kill.from <= seen.ended
        })
    }

    fn killed_soon_after(&self, seen: &Seen) -> bool {
        self.kills.iter().any(|kill| {
            kill.gateway == seen.gateway
                && seen.began <= kill.at
                && kill.from <= seen.ended + REFUNDS_LAST
        })
    }

    fn was_killed(&self, gateway: usize) -> bool {
        self.kills.iter().any(|kill| kill.gateway == gateway)
    }

    fn name(&self, seen: &Seen) -> String {
        let key = self.keys.get(seen.key).map_or("?", |key| &key.id);
        format!("call {} of {key} at gateway {}", seen.id, seen.gateway)
    }
}

fn judge_count(verdict: &mut Verdict, key: &str, when: &str, count: u64, units: Units) {
    if !(units.least..=units.most).contains(&count) {
        verdict.violations.push(format!(
            "the store counts {count} units of {key} {when}; served were {} to {}",
            units.least, units.most
        ));
    }
}

/// The date of an answer's day, which ends at its reset.
fn day_of(seen: &Seen) -> Option<String> {
    let reset = seen.output?.reset?;
    Some(date_of(reset.saturating_sub(HALF_DAY_SECONDS)))
}

#[cfg(test)]
mod tests;
