//! Charges: the accounts of this process, and the tasks that send their calls to the store.
//!
//! [`Account`] decides; this module has its lock, its map and its deadlines. Separate tasks (`batcher`) send the calls, so that
//! a cancelled request cannot lose the reply; units that reach no request are refunded when they are dropped ([`Units`]).

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ahash::RandomState;
use jiff::Timestamp;
use jiff::civil::Date;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use self::moment::Moment;
use crate::clock::timer::Timers;
use crate::policy::api_key::KeyId;
use crate::policy::calendar::Day;
use crate::policy::quota::{Account, WaiterResult, WaiterTerms};
use crate::store::redis::clock::StoreClock;
use crate::store::redis::counts::kept_day::KeptDay;
use crate::store::redis::producer::Producer;
use crate::store::redis::wire::guard::BreakerGuard;
use crate::store::redis::wire::script::{AccountCall, COUNT_MAX};
use crate::store::redis::wire::slots;
use crate::store::shards::Shards;
use crate::store::{KeyEntry, KeyTable, StoreError};

mod batcher;
mod charging;
mod moment;
pub mod offline;

/// How long after its day an idle account is kept, for refunds of requests that crossed midnight.
const KEPT_AFTER_DAY_SECONDS: i64 = 120;

/// The context of a call: the key record of its charges, and its day.
#[derive(Debug, Clone)]
pub struct Context {
    entry: Option<Arc<KeyEntry>>,
    day: KeptDay,
}

/// Compares days only: records of equal version are equal, and the terms compare the version.
impl PartialEq for Context {
    fn eq(&self, other: &Context) -> bool {
        self.day == other.day
    }
}

/// The result for a waiter, with the units that it grants; an error if there was no reply.
pub type ChargeResult = Result<(WaiterResult, Option<Units>), StoreError>;

type ChargeWaiter = oneshot::Sender<ChargeResult>;
type CallAccount = Account<ChargeWaiter, Context>;
type Slots = HashMap<(KeyId, Date), Arc<AccountSlot>, RandomState>;

/// The account of one key and day. The names of its record, its counts and its producer are written for each call: kept, they would
/// take more memory than the account.
pub struct AccountSlot {
    key: KeyId,
    day: KeptDay,
    /// The number of its producer.
    producer: u64,
    /// The hash slot of its record and counts in a cluster.
    place: u16,
    /// By the last reply, the store has all record versions below this one; 0 before the first reply, or if it had no record.
    held_below: AtomicU64,
    state: Mutex<SlotState>,
}

struct SlotState {
    account: CallAccount,
    /// Whether it is in the list of accounts to settle.
    listed: bool,
    /// Whether it is in the queue of accounts with a call to send.
    queued: bool,
    /// Whether Redis refused this account's own last call: it gets calls of its own until one succeeds.
    shunned: bool,
    /// The limit of the last charge.
    limit: u64,
    /// Whether it is in the list of accounts to be written to the journal.
    to_note: bool,
    /// Its part of the sum of unsettled units.
    unsettled_units: u64,
    /// When a charge of it was first served without Redis since the last reply.
    away_since: Option<Moment>,
}

/// Accounts whose calls are to be sent.
#[derive(Default)]
pub struct Pending {
    slots: VecDeque<Arc<AccountSlot>>,
    /// Batchers that take from it.
    batchers: usize,
    /// Whether one of them waits to see whether the others take from it soon.
    is_watched: bool,
    /// How often one has taken from it, wrapping.
    turns: u64,
    /// Whether the last one took more than one account.
    last_took_several: bool,
}

/// Granted units: kept by the caller, or refunded when dropped.
pub struct Units {
    accounts: Arc<Accounts>,
    slot: Arc<AccountSlot>,
    units: u32,
    /// How they are rolled back: units that Redis granted are refunded; those of this node's share are withdrawn.
    undo: fn(&mut CallAccount, u32),
}

impl Units {
    /// Keeps the units.
    pub fn keep(mut self) {
        self.units = 0;
    }
}

impl Drop for Units {
    fn drop(&mut self) {
        if self.units > 0 {
            (self.undo)(&mut self.slot.state.lock().account, self.units);
            self.accounts.list(&self.slot);
        }
    }
}

/// All accounts of this process.
pub struct Accounts {
    guard: Arc<BreakerGuard>,
    producer: Arc<Producer>,
    keys: Arc<KeyTable>,
    clock: Arc<StoreClock>,
    timeout: Duration,
    timers: Timers,
    slots: Shards<Slots>,
    /// The most accounts; idle ones beyond are dropped although their day is not over.
    slots_max: usize,
    /// The end of the last day of which accounts were dropped before it was over (Unix seconds): only the journal has their counts.
    dropped_day_end: AtomicI64,
    to_settle: Mutex<VecDeque<Arc<AccountSlot>>>,
    to_note: Mutex<VecDeque<Arc<AccountSlot>>>,
    /// All accounts, the one whose count was checked longest ago first.
    to_read: Mutex<VecDeque<Arc<AccountSlot>>>,
    /// Units served without Redis that it may not have.
    unsettled_units: AtomicU64,
    /// Accounts with a call to send, and the tasks that send them.
    due: Mutex<Pending>,
    /// Running batcher tasks, including those that no request started.
    batchers: AtomicUsize,
    /// Whether Redis rejects calls for several accounts.
    apart: AtomicBool,
}

impl Accounts {
    /// No accounts yet.
    pub fn new(
        guard: Arc<BreakerGuard>,
        producer: Arc<Producer>,
        keys: Arc<KeyTable>,
        clock: Arc<StoreClock>,
        timeout: Duration,
        slots_max: usize,
    ) -> Arc<Accounts> {
        Arc::new(Accounts {
            guard,
            producer,
            keys,
            clock,
            timeout,
            timers: Timers::default(),
            slots: Shards::default(),
            slots_max,
            dropped_day_end: AtomicI64::new(0),
            to_settle: Mutex::default(),
            to_note: Mutex::default(),
            to_read: Mutex::default(),
            unsettled_units: AtomicU64::new(0),
            due: Mutex::default(),
            batchers: AtomicUsize::new(0),
            apart: AtomicBool::new(false),
        })
    }

    fn slot(&self, key: KeyId, day: Day) -> Arc<AccountSlot> {
        let make = || {
            let day = KeptDay::of(day);
            let slot = Arc::new(AccountSlot {
                key,
                day,
                producer: self.producer.next_number(),
                place: slots::slot(self.guard.link.names.record(key).as_bytes()),
                held_below: AtomicU64::new(0),
                state: Mutex::new(SlotState {
                    account: Account::new(self.terms(key, day)),
                    listed: false,
                    queued: false,
                    shunned: false,
                    limit: 0,
                    to_note: false,
                    unsettled_units: 0,
                    away_since: None,
                }),
            });
            self.to_read.lock().push_back(slot.clone());
            slot
        };
        let mut slots = self.slots.of(key);
        slots.entry((key, day.date)).or_insert_with(make).clone()
    }

    /// The terms of calls that grant nothing.
    fn terms(&self, key: KeyId, day: KeptDay) -> WaiterTerms<Context> {
        let entry = self.keys.get(key);
        WaiterTerms {
            limit: 0,
            version: entry
                .as_ref()
                .map_or(COUNT_MAX, |entry| entry.record.version),
            context: Context { entry, day },
        }
    }

    /// Refunds units on the day of their charge. Returns the units used afterwards, if they are known.
    pub fn refund(&self, key: KeyId, day: Day, units: u32) -> Option<u64> {
        let slot = self.slot(key, day);
        let used = slot.state.lock().account.refund(units);
        self.list(&slot);
        used
    }

    fn list(&self, slot: &Arc<AccountSlot>) {
        self.list_to_note(slot);
        self.list_to_settle(slot);
    }

    fn list_to_settle(&self, slot: &Arc<AccountSlot>) {
        let fresh = !std::mem::replace(&mut slot.state.lock().listed, true);
        if fresh {
            self.to_settle.lock().push_back(slot.clone());
        }
    }

    /// Whether all totals were sent to the store; not meaningful while [`Accounts::settle`] runs.
    pub fn is_settled(&self) -> bool {
        self.batchers.load(Ordering::SeqCst) == 0
            && self.due.lock().is_empty()
            && self.to_settle.lock().is_empty()
    }

    /// Takes accounts from the list of those to settle. One that an abandoned call may still change is taken and listed again; one whose
    /// master of a cluster does not serve is not taken and stays listed.
    fn take_listed(&self, most: usize) -> Vec<Arc<AccountSlot>> {
        let slots: Vec<_> = {
            let mut listed = self.to_settle.lock();
            let count = listed.len().min(most);
            let served = |slot: &Arc<AccountSlot>| self.guard.link.serves_slot(slot.place);
            let (served, others) = listed.drain(..count).partition(served);
            let others: Vec<_> = others;
            listed.extend(others);
            served
        };
        let now = Instant::now();
        for slot in &slots {
            let again = {
                let mut state = slot.state.lock();
                state.listed = false;
                state.account.look_for_late_calls(now)
            };
            if again {
                self.list(slot);
            }
        }
        slots
    }

    /// Makes every account send its totals again: the store may have lost them.
    pub async fn repeat_all(&self) {
        let repeat = |slot: &Arc<AccountSlot>| {
            slot.state.lock().account.repeat();
            self.list(slot);
        };
        self.slots
            .walk(|slots| slots.values().for_each(repeat))
            .await;
    }

    /// Whether counts that Redis may lose are in the journal only, because their accounts were dropped.
    pub fn has_dropped(&self) -> bool {
        let day_end = self.dropped_day_end.load(Ordering::Acquire);
        self.clock.now().as_second() <= day_end + KEPT_AFTER_DAY_SECONDS
    }

    fn count(&self) -> usize {
        self.slots.parts().map(|slots| slots.lock().len()).sum()
    }

    /// Whether there are too many.
    pub fn are_crowded(&self) -> bool {
        self.count() > self.slots_max
    }

    /// Drops idle accounts of past days, and if there are too many then, as many idle ones of the current day: those whose last reply is
    /// the oldest.
    pub async fn sweep(&self) {
        let now = self.clock.now_unless_leapt().map(Timestamp::as_second);
        let is_over =
            |slot: &AccountSlot| now.is_some_and(|now| slot.day.end + KEPT_AFTER_DAY_SECONDS < now);
        let is_past = |slot: &Arc<AccountSlot>| is_over(slot) && slot.idle_since().is_some();
        self.slots
            .walk(|slots| slots.retain(|_, slot| !is_past(slot)))
            .await;
        let total = self.count();
        if total <= self.slots_max {
            return;
        }
        tracing::warn!(
            total,
            limit = self.slots_max,
            "too many accounts of keys and days"
        );
        let mut replied = Vec::new();
        self.slots
            .walk(|slots| replied.extend(slots.values().filter_map(|slot| slot.idle_since())))
            .await;
        let last = replied.len().min(total - self.slots_max).checked_sub(1);
        let Some(last) = last.map(|last| *replied.select_nth_unstable(last).1) else {
            return;
        };
        let is_excess = |slot: &Arc<AccountSlot>| {
            let is_excess = slot.idle_since().is_some_and(|since| since <= last);
            if is_excess {
                self.dropped_day_end
                    .fetch_max(slot.day.end, Ordering::AcqRel);
            }
            is_excess
        };
        self.slots
            .walk(|slots| slots.retain(|_, slot| !is_excess(slot)))
            .await;
    }
}

impl AccountSlot {
    /// The time of the last reply, if there was one, of an account that may be dropped; `None` if it may not.
    fn idle_since(&self) -> Option<Option<Instant>> {
        let state = self.state.lock();
        let listed = state.listed || state.queued || state.to_note;
        let known = state.account.known().map(|known| known.at);
        (!listed && state.account.is_idle()).then_some(known)
    }
}

/// The error for a day that the store has with other boundaries.
pub fn other_calendar(key: KeyId, day: Day) -> StoreError {
    StoreError::OtherCalendar(format!(
        "the day {} of key {key} is stored with other boundaries than {} to {}: another time zone or another version of the zone table was used",
        day.date, day.start, day.end
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// There is one for each key that was charged on the day.
    #[test]
    fn an_account_stays_small() {
        let bytes = size_of::<AccountSlot>();
        assert!(bytes <= 208, "{bytes} bytes");
    }
}
