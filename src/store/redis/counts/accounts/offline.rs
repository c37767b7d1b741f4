//! The part of the accounts for the journal and for service without Redis.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use jiff::civil::Date;

use super::moment::Moment;
use super::{
    AccountCall, AccountSlot, Accounts, COUNT_MAX, CallAccount, Context, SlotState, Units,
};
use crate::policy::api_key::KeyId;
use crate::policy::calendar::Day;
use crate::policy::quota::{NodeShare, WaiterTerms};
use crate::store::key_table::packed;
use crate::store::redis::journal::CountRow;
use crate::store::redis::producer::Producer;
use crate::store::redis::wire::request::LinkError;
use crate::store::{Charge, UNBOUNDED};

/// Whether service without Redis has a bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutageBound {
    /// The node's share.
    Share,
    /// None.
    Open,
}

/// The rule for service without Redis.
#[derive(Debug, Clone, Copy)]
pub struct OutageRule {
    /// The node's share.
    pub share: NodeShare,
    /// Whether the share is a bound.
    pub bound: OutageBound,
    /// Since when Redis is away, or now if it is not.
    pub away_since: Instant,
    /// A count that was older than this when Redis went away is treated as unknown.
    pub count_staleness: Duration,
}

/// The outcome of a reservation.
pub enum Reservation<R> {
    /// Units, counted but not written to disk yet; dropping them rolls them back.
    Reserved {
        /// The units.
        units: Units,
        /// The share of this node.
        allowance: u64,
        /// Units of it that this process has served, these included.
        unsettled_units: u64,
        /// Units used as far as known to this process, these included.
        counted: u64,
        /// The result of the function that wrote to the journal.
        written: R,
    },
    /// Redis itself refused this cost before, or reported a count that leaves no room for it.
    Exhausted {
        /// The units used at that time.
        used: u64,
    },
    /// The share is used up.
    Beyond,
}

impl Accounts {
    /// Counts units that are to be served without Redis and passes them to `write`, which must not wait: rows are passed to it
    /// in the order of their values.
    pub fn reserve<R>(
        self: &Arc<Self>,
        charge: &Charge,
        rule: &OutageRule,
        write: impl FnOnce(CountRow, Option<u64>) -> R,
    ) -> Reservation<R> {
        let (limit, cost) = (charge.limit, charge.cost.max(1));
        let slot = self.slot(charge.key.record.id, charge.day);
        let mut state = slot.state.lock();
        let terms = WaiterTerms {
            limit,
            version: charge.key.record.version,
            context: Context {
                entry: None,
                day: slot.day.or(charge.day),
            },
        };
        if let Some(used) = state.account.refused(cost, &terms) {
            return Reservation::Exhausted { used };
        }
        state.limit = limit;
        state.away_since.get_or_insert_with(Moment::now);
        let allowance = rule.allowance(&state, limit);
        let served = state.account.offline() + u64::from(cost);
        if rule.bound == OutageBound::Share && served > allowance {
            let full = rule
                .known(&state)
                .filter(|used| u64::from(cost) > limit.saturating_sub(*used));
            return full.map_or(Reservation::Beyond, |used| Reservation::Exhausted {
                used: state.used_at_most(used, limit, allowance),
            });
        }
        state.account.serve_without_store(cost);
        let (row, unsettled_units) = (slot.row(&self.producer, &state), state.account.offline());
        let counted = unsettled_units + state.account.known().map_or(0, |known| known.used);
        self.recount(&mut state);
        let bound = (rule.bound == OutageBound::Share).then_some(allowance);
        let written = write(row, bound);
        drop(state);
        self.list(&slot);
        let units = Units {
            accounts: self.clone(),
            slot,
            units: cost,
            undo: CallAccount::withdraw,
        };
        Reservation::Reserved {
            units,
            allowance,
            unsettled_units,
            counted,
            written,
        }
    }

    /// Whether a key has units on a day that were served without Redis and that it may not know.
    pub fn is_ahead(&self, key: KeyId, day: Day) -> bool {
        let slot = self.slots.of(key).get(&(key, day.date)).cloned();
        slot.is_some_and(|slot| slot.state.lock().account.offline() > 0)
    }

    /// Units used, as reported while Redis is unavailable: an upper bound for this limit, or for that of the last charge. `None` if no
    /// count is known and no charge was decided without Redis.
    pub fn used_at_most(
        &self,
        key: KeyId,
        day: Day,
        limit: Option<u64>,
        rule: &OutageRule,
    ) -> Option<u64> {
        // A question opens no account.
        let slot = self.slots.of(key).get(&(key, day.date)).cloned()?;
        let state = slot.state.lock();
        let known = match state.account.known() {
            Some(known) => known.used,
            // Decided by what may be served without a count, as its charges are.
            None if state.away_since.is_some() => 0,
            None => return None,
        };
        let limit = limit.unwrap_or(state.limit);
        if limit == UNBOUNDED {
            return Some(known + state.account.offline());
        }
        Some(state.used_at_most(known, limit, rule.allowance(&state, limit)))
    }

    /// Updates the sum of unsettled units.
    pub(super) fn recount(&self, state: &mut SlotState) {
        let now = state.account.offline();
        let before = std::mem::replace(&mut state.unsettled_units, now);
        self.unsettled_units.fetch_add(now, Ordering::Relaxed);
        self.unsettled_units.fetch_sub(before, Ordering::Relaxed);
    }

    /// Units served without Redis that it may not know.
    pub fn unsettled_units(&self) -> u64 {
        self.unsettled_units.load(Ordering::Relaxed)
    }

    /// Lists the account to be written to the journal in the next interval.
    pub(super) fn list_to_note(&self, slot: &Arc<AccountSlot>) {
        let fresh = {
            let mut state = slot.state.lock();
            self.recount(&mut state);
            !std::mem::replace(&mut state.to_note, true)
        };
        if fresh {
            self.to_note.lock().push_back(slot.clone());
        }
    }

    /// The number of changed accounts.
    pub fn changed_count(&self) -> usize {
        self.to_note.lock().len()
    }

    /// Passes the rows of up to `most` changed accounts to `note`, in the order of the list, and returns its results. `note`
    /// must not wait, because rows of one producer are passed to it in the order of their values.
    pub fn note_changes_with<R>(
        &self,
        most: usize,
        note: impl Fn((KeyId, Date), CountRow) -> R,
    ) -> Vec<(Changed, R)> {
        let slots: Vec<_> = {
            let mut changed = self.to_note.lock();
            let count = changed.len().min(most);
            changed.drain(..count).collect()
        };
        let noted = slots.into_iter().map(|slot| {
            let mut state = slot.state.lock();
            state.to_note = false;
            let answer = note((slot.key, slot.day.date), slot.row(&self.producer, &state));
            drop(state);
            (Changed(slot), answer)
        });
        noted.collect()
    }

    /// Passes the row of a key's day to `note`, whether it changed or not, or `None` if there is no account of it: none can be opened then
    /// until `note` has returned.
    pub fn note_with<R>(
        &self,
        (key, date): (KeyId, Date),
        note: impl FnOnce(Option<CountRow>) -> R,
    ) -> R {
        let slots = self.slots.of(key);
        let Some(slot) = slots.get(&(key, date)).cloned() else {
            return note(None);
        };
        drop(slots);
        let state = slot.state.lock();
        note(Some(slot.row(&self.producer, &state)))
    }

    /// Lists the account as changed again: it could not be written.
    pub fn changed_still(&self, changed: &Changed) {
        self.list_to_note(&changed.0);
    }

    /// Lists up to `most` accounts of current days, whose counts were received before `since`, to be settled and hence read
    /// again, which changes nothing that the journal has. Within `turns` calls all accounts are looked at, if few of them are that old.
    pub fn list_to_read(&self, since: Instant, most: usize, turns: usize) {
        let now = self.clock.now();
        let mut listed = 0;
        let known = self.to_read.lock().len();
        for _ in 0..known.min(known.div_ceil(turns).max(most)) {
            let Some(slot) = self.to_read.lock().pop_front() else {
                return;
            };
            // An account without another owner was dropped.
            if Arc::strong_count(&slot) == 1 {
                continue;
            }
            // A day that is over may be the present one again, when the clock is right.
            let is_present = slot.day.end > now.as_second();
            let old = is_present && slot.state.lock().account.read_again(since);
            if old {
                listed += 1;
                self.list_to_settle(&slot);
            }
            self.to_read.lock().push_back(slot);
            if listed >= most {
                return;
            }
        }
    }

    /// Sends Redis the counts of another producer; grants nothing. This gateway's own count of the day then contains them: once they are
    /// settled, they no longer count as others' units that Redis lacks.
    pub async fn merge(&self, row: &CountRow) -> Result<(), LinkError> {
        let entry = self.keys.get(row.key);
        let mut argument = self.argument(1);
        let record = entry.as_ref().map(|entry| packed(&entry.record));
        argument.push(&AccountCall {
            producer: &row.producer,
            ack: row.ack,
            rack: row.rack,
            want: 0,
            cost: 0,
            limit: 0,
            version: entry
                .as_ref()
                .map_or(COUNT_MAX, |entry| entry.record.version),
            record: record.as_deref().unwrap_or_default(),
            day: row.day,
        });
        let record = self.guard.link.names.record(row.key);
        let counts = self.guard.link.names.counts(row.key, row.day.date);
        let replies = self.run(&[record, counts], argument).await?;
        let slot = self
            .slots
            .of(row.key)
            .get(&(row.key, row.day.date))
            .cloned();
        if let Some((slot, reply)) = slot.zip(replies.first()) {
            slot.state.lock().account.note_merged(reply.used);
        }
        Ok(())
    }
}

/// An account that changed since it was last written to the journal.
pub struct Changed(Arc<AccountSlot>);

/// What the journal has of an account: [`CountRow`] has the meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Journaled {
    ack: u64,
    rack: u64,
    unsettled_units: u64,
    settled: bool,
}

impl SlotState {
    /// An upper bound of the units used: the `known` ones and those served without Redis, or all of the limit but what is left of
    /// the allowance.
    fn used_at_most(&self, known: u64, limit: u64, allowance: u64) -> u64 {
        let offline = self.account.offline();
        (known + offline).max(limit.saturating_sub(allowance.saturating_sub(offline)))
    }

    /// What the journal has of it, once it is written.
    pub(super) fn journaled(&self) -> Journaled {
        let (ack, rack) = self.account.marks();
        Journaled {
            ack,
            rack,
            unsettled_units: self.account.offline(),
            settled: self.account.is_stored(),
        }
    }
}

impl AccountSlot {
    fn row(&self, producer: &Producer, state: &SlotState) -> CountRow {
        let Journaled {
            ack,
            rack,
            unsettled_units,
            settled,
        } = state.journaled();
        CountRow {
            key: self.key,
            day: *self.day,
            producer: producer.name(self.producer),
            ack,
            rack,
            unsettled_units,
            settled,
        }
    }
}

impl OutageRule {
    fn allowance(&self, state: &SlotState, limit: u64) -> u64 {
        self.share.allowance(limit, self.known(state))
    }

    /// The last count from Redis, unless it was too old when Redis went away.
    fn known(&self, state: &SlotState) -> Option<u64> {
        // A master that refuses calls is not away to others.
        let own = state.away_since.map(Moment::instant);
        let away_since = own.map_or(self.away_since, |own| own.min(self.away_since));
        let known_since = away_since.checked_sub(self.count_staleness);
        let known = state.account.known();
        let recent = known.filter(|known| known_since.is_none_or(|since| known.at >= since));
        recent.map(|known| known.used)
    }
}
