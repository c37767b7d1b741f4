//! Charges: the accounts of this process, and the tasks that send their calls to the store.
//!
//! [`Account`] decides; this module has its lock, its map and its deadlines. Separate tasks (`carrier`) send the calls, so that
//! a cancelled request cannot lose the reply; units that reach no request are refunded when they are dropped ([`Units`]).

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use jiff::civil::Date;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::guard::Guard;
use super::link::{Link, LinkError};
use super::names::Names;
use super::producer::Producer;
use super::script::{AccountCall, CHARGE, COUNT_MAX, ChargeArgument, charge_replies};
use super::shards::Shards;
use super::slots;
use super::time::StoreClock;
use crate::policy::api_key::KeyId;
use crate::policy::calendar::Day;
use crate::policy::key_record::KeyRecord;
use crate::policy::quota::{Account, Asked, Call, Reply, WaiterResult, WaiterTerms};
use crate::store::{KeyEntry, KeyTable, StoreError};

mod carrier;
mod offline;

use carrier::Carrier;
pub use offline::{Bound, Changed, Offer, Rule, Wanted};

/// The most accounts; beyond, idle ones of the current day are dropped too.
pub const ACCOUNTS_MAX: usize = 200_000;
/// How long after its day an idle account is kept, for refunds of requests that crossed midnight.
const KEPT_AFTER_DAY_SECONDS: i64 = 120;
/// The most accounts that are settled concurrently.
const SETTLING_MAX: usize = 64;
/// The greatest age of a known count that is returned without a call.
const KNOWN_LASTS: Duration = Duration::from_secs(1);

/// The context of a call: the key record of its charges, and its day.
#[derive(Debug, Clone)]
pub struct Context {
    entry: Option<Arc<KeyEntry>>,
    day: Day,
}

/// Compares days only: records of equal version are equal, and the terms compare the version.
impl PartialEq for Context {
    fn eq(&self, other: &Context) -> bool {
        self.day == other.day
    }
}

/// The result for a waiter.
#[derive(Debug)]
pub enum Answer {
    /// The granted units.
    Granted(Units),
    /// Any other verdict of the store.
    Other(WaiterResult),
    /// No reply.
    Failed(StoreError),
}

type Waiter = oneshot::Sender<Answer>;
type Slots = HashMap<(KeyId, Date), Arc<Slot>>;

/// The account of one key and day with its names.
#[derive(Debug)]
pub struct Slot {
    key: KeyId,
    day: Day,
    producer: String,
    record_name: String,
    counts_name: String,
    /// The hash slot of both names in a cluster.
    place: u16,
    /// By the last reply, the store has all record versions below this one; 0 before the first reply, or if it had no record.
    held_below: AtomicU64,
    state: Mutex<SlotState>,
}

#[derive(Debug)]
struct SlotState {
    account: Account<Waiter, Context>,
    /// Whether it is in the list of accounts to settle.
    listed: bool,
    /// Whether it is in the queue of accounts with a call to send.
    queued: bool,
    /// Whether Redis refused this account's own last call: it gets calls of its own until one succeeds.
    shunned: bool,
    /// The state for the journal and the service without Redis.
    offline: offline::Notes,
}

/// Granted units: taken by the caller, or refunded when dropped.
#[derive(Debug)]
pub struct Units {
    accounts: Arc<Accounts>,
    slot: Arc<Slot>,
    used: u64,
    units: u32,
    source: Source,
}

/// The source of units.
#[derive(Debug, Clone, Copy)]
enum Source {
    /// Redis granted them.
    Store,
    /// They are part of this node's share without Redis.
    Share,
}

impl Units {
    /// Takes the units. Returns the units used on the day, including these.
    pub fn take(mut self) -> u64 {
        self.units = 0;
        self.used
    }
}

impl Drop for Units {
    fn drop(&mut self) {
        if self.units > 0 {
            let account = &mut self.slot.state.lock().account;
            match self.source {
                Source::Store => {
                    account.refund(self.units);
                }
                Source::Share => account.withdraw(self.units),
            }
        }
        if self.units > 0 {
            self.accounts.list(&self.slot);
        }
    }
}

/// All accounts of this process.
pub struct Accounts {
    pub(super) link: Arc<Link>,
    guard: Arc<Guard>,
    names: Names,
    producer: Arc<Producer>,
    keys: Arc<KeyTable>,
    clock: Arc<StoreClock>,
    timeout: Duration,
    slots: Shards<Slots>,
    to_settle: Mutex<VecDeque<Arc<Slot>>>,
    to_note: Mutex<VecDeque<Arc<Slot>>>,
    /// All accounts, the one whose count was checked longest ago first.
    to_read: Mutex<VecDeque<Arc<Slot>>>,
    /// Units served without Redis that it may not have.
    untold: AtomicU64,
    /// Accounts with a call to send, and the tasks that send them.
    due: Mutex<carrier::Due>,
    /// Running carrier tasks, including those that no request started.
    carrying: AtomicUsize,
    /// Whether Redis rejects calls for several accounts.
    apart: AtomicBool,
}

impl std::fmt::Debug for Accounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Accounts")
    }
}

impl Accounts {
    /// No accounts yet.
    pub fn new(
        guard: Arc<Guard>,
        names: Names,
        producer: Arc<Producer>,
        keys: Arc<KeyTable>,
        clock: Arc<StoreClock>,
        timeout: Duration,
    ) -> Arc<Accounts> {
        Arc::new(Accounts {
            link: guard.link().clone(),
            guard,
            names,
            producer,
            keys,
            clock,
            timeout,
            slots: Shards::default(),
            to_settle: Mutex::default(),
            to_note: Mutex::default(),
            to_read: Mutex::default(),
            untold: AtomicU64::new(0),
            due: Mutex::default(),
            carrying: AtomicUsize::new(0),
            apart: AtomicBool::new(false),
        })
    }

    fn slot(&self, key: KeyId, day: Day) -> Arc<Slot> {
        let make = || {
            let counts_name = self.names.counts(key, day.date);
            let slot = Arc::new(Slot {
                key,
                day,
                producer: self.producer.next_name(),
                record_name: self.names.record(key),
                place: slots::slot(counts_name.as_bytes()),
                counts_name,
                held_below: AtomicU64::new(0),
                state: Mutex::new(SlotState {
                    account: Account::new(self.terms(key, day)),
                    listed: false,
                    queued: false,
                    shunned: false,
                    offline: offline::Notes::default(),
                }),
            });
            self.to_read.lock().push_back(slot.clone());
            slot
        };
        let mut slots = self.slots.of(key);
        slots.entry((key, day.date)).or_insert_with(make).clone()
    }

    /// Terms for calls that grant nothing.
    fn terms(&self, key: KeyId, day: Day) -> WaiterTerms<Context> {
        let entry = self.keys.get(key);
        WaiterTerms {
            limit: 0,
            version: entry
                .as_ref()
                .map_or(COUNT_MAX, |entry| entry.record.version),
            context: Context { entry, day },
        }
    }

    /// Requests units; waits at most `timeout` for the store.
    pub async fn charge(
        self: &Arc<Self>,
        entry: &Arc<KeyEntry>,
        day: Day,
        limit: u64,
        cost: u32,
    ) -> Answer {
        let terms = WaiterTerms {
            limit,
            version: entry.record.version,
            context: Context {
                entry: Some(entry.clone()),
                day,
            },
        };
        let slot = self.slot(entry.record.id, day);
        self.ask(&slot, cost, terms).await
    }

    /// Units used: a count of the last second, else one read that concurrent callers share.
    pub async fn used(self: &Arc<Self>, key: KeyId, day: Day) -> Result<u64, StoreError> {
        let slot = self.slot(key, day);
        let known = {
            let now = std::time::Instant::now();
            let since = now.checked_sub(KNOWN_LASTS).unwrap_or(now);
            slot.state.lock().account.used_since(since)
        };
        if let Some(used) = known {
            return Ok(used);
        }
        let terms = self.terms(key, day);
        match self.ask(&slot, 0, terms).await {
            Answer::Other(WaiterResult::Counted { used } | WaiterResult::Exhausted { used }) => {
                Ok(used)
            }
            Answer::Other(WaiterResult::OtherCalendar) => Err(other_calendar(key, day)),
            Answer::Failed(error) => Err(error),
            Answer::Granted(units) => Ok(units.used),
            Answer::Other(verdict) => Err(StoreError::Failed(format!(
                "a read of the count returned {verdict:?}"
            ))),
        }
    }

    async fn ask(
        self: &Arc<Self>,
        slot: &Arc<Slot>,
        cost: u32,
        terms: WaiterTerms<Context>,
    ) -> Answer {
        let deadline = Instant::now() + self.timeout;
        if let Err(error) = self.guard.require() {
            return Answer::Failed(error.into());
        }
        let (sender, receiver) = oneshot::channel();
        let due = {
            let SlotState {
                account,
                offline,
                queued,
                ..
            } = &mut *slot.state.lock();
            if cost > 0 {
                offline.limit = terms.limit;
            }
            match account.ask(sender, cost, terms, std::time::Instant::now()) {
                Asked::Denied { used, .. } => {
                    return Answer::Other(WaiterResult::Exhausted { used });
                }
                // The task that awaits a call of the account sends the next one too.
                Asked::Waiting => !account.is_awaited() && !std::mem::replace(queued, true),
            }
        };
        if due {
            self.carry(slot);
        }
        match tokio::time::timeout_at(deadline, receiver).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Answer::Failed(StoreError::Unavailable("the store is closed".into())),
            Err(_) => Answer::Failed(StoreError::Unavailable(format!(
                "no answer within {:?}",
                self.timeout
            ))),
        }
    }

    fn answer(self: &Arc<Self>, slot: &Arc<Slot>, cost: u32, verdict: WaiterResult) -> Answer {
        match verdict {
            WaiterResult::Granted { used } => Answer::Granted(Units {
                accounts: self.clone(),
                slot: slot.clone(),
                used,
                units: cost,
                source: Source::Store,
            }),
            WaiterResult::Exhausted { .. }
            | WaiterResult::Counted { .. }
            | WaiterResult::KeyChanged
            | WaiterResult::OtherDay { .. }
            | WaiterResult::OtherCalendar => Answer::Other(verdict),
        }
    }

    /// Sends the calls of different accounts in one round trip, with a reply each. A newer record in a reply is in the key table
    /// when this returns.
    async fn call(&self, load: &[(Arc<Slot>, Call<Context>)]) -> Result<Vec<Reply>, LinkError> {
        let mut keys = Vec::with_capacity(2 * load.len());
        let mut argument = self.argument(load.len());
        for (slot, call) in load {
            keys.extend([slot.record_name.as_str(), slot.counts_name.as_str()]);
            let entry = self.said_with(slot, call);
            let version = entry
                .as_ref()
                .map_or(call.terms.version, |entry| entry.record.version);
            let held = slot.held_below.load(Ordering::Relaxed) > version;
            argument.push(&AccountCall {
                producer: &slot.producer,
                ack: call.ack,
                rack: call.rack,
                want: call.want,
                limit: call.terms.limit,
                version,
                record: entry
                    .as_deref()
                    .filter(|_| !held)
                    .map_or("", KeyEntry::packed),
                day: call.terms.context.day,
            });
        }
        let replies = self.run(&keys, argument).await?;
        for (reply, (slot, _)) in replies.iter().zip(load) {
            if reply.record.is_empty() {
                continue;
            }
            match serde_json::from_str::<KeyRecord>(&reply.record) {
                Ok(record) => {
                    self.keys.apply(record);
                }
                Err(error) => {
                    tracing::error!(key = %slot.key, %error, "the store's record cannot be read");
                }
            }
        }
        Ok(replies)
    }

    /// The argument of a call for a number of accounts.
    fn argument(&self, accounts: usize) -> ChargeArgument {
        ChargeArgument::new(self.names.keeping().settle_window_seconds(), accounts)
    }

    /// The record to send with a call, or `None` if the store is known to have it. A call that wants no units sends the newest known
    /// record, to repair the store.
    fn said_with(&self, slot: &Slot, call: &Call<Context>) -> Option<Arc<KeyEntry>> {
        let newest = || self.keys.get(slot.key);
        match &call.terms.context.entry {
            None => newest(),
            Some(judged) if call.want == 0 => newest()
                .filter(|held| held.record.version > judged.record.version)
                .or_else(|| Some(judged.clone())),
            Some(judged) => Some(judged.clone()),
        }
    }

    /// Refunds units on the day of their charge. Returns the units used afterwards, if they are known.
    pub fn refund(&self, key: KeyId, day: Day, units: u32) -> Option<u64> {
        let slot = self.slot(key, day);
        let used = slot.state.lock().account.refund(units);
        self.list(&slot);
        used
    }

    /// Runs the script for the accounts with these names, and takes the store's time from its reply.
    async fn run(&self, keys: &[&str], argument: ChargeArgument) -> Result<Vec<Reply>, LinkError> {
        let asked = self.clock.now();
        let deadline = Instant::now() + self.timeout;
        let arguments = argument.arguments();
        let value = CHARGE.run(&self.link, keys, &arguments, deadline).await;
        self.guard.record(&value);
        let replies = charge_replies(&value?, keys.len() / 2).map_err(LinkError::Unreadable)?;
        if let Some(reply) = replies.first() {
            self.clock.learn_second(asked, reply.now);
        }
        Ok(replies)
    }

    fn list(&self, slot: &Arc<Slot>) {
        self.list_to_note(slot);
        let fresh = !std::mem::replace(&mut slot.state.lock().listed, true);
        if fresh {
            self.to_settle.lock().push_back(slot.clone());
        }
    }

    /// Whether all totals were sent to the store; not meaningful while [`Accounts::settle`] runs.
    pub fn is_settled(&self) -> bool {
        self.carrying.load(Ordering::SeqCst) == 0
            && self.due.lock().is_empty()
            && self.to_settle.lock().is_empty()
    }

    /// Sends the store all unsent totals, a bounded number of accounts at a time. Accounts whose call fails remain listed.
    pub async fn settle(self: &Arc<Self>) {
        self.carry_forgotten();
        if self.guard.require().is_err() {
            return;
        }
        // Not a `JoinSet`: a caller that stops waiting must not abort these calls.
        let mut running = VecDeque::new();
        let together = self.together_max();
        // Accounts that are listed meanwhile wait for the next turn.
        let listed = self.to_settle.lock().len();
        for _ in 0..listed.div_ceil(together) {
            let slots = self.take_listed(together);
            let carrier = Carrier::of(self.clone());
            running.push_back(tokio::spawn(carrier.carry_these(slots)));
            if running.len() >= SETTLING_MAX.div_ceil(together)
                && let Some(first) = running.pop_front()
            {
                let _ = first.await;
            }
        }
        for call in running {
            let _ = call.await;
        }
    }

    /// Takes accounts from the list of those to settle; one that an abandoned call may still change is moved to its end.
    fn take_listed(&self, most: usize) -> Vec<Arc<Slot>> {
        let slots: Vec<_> = {
            let mut listed = self.to_settle.lock();
            let count = listed.len().min(most);
            listed.drain(..count).collect()
        };
        let now = std::time::Instant::now();
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
        let repeat = |slot: &Arc<Slot>| {
            slot.state.lock().account.repeat();
            self.list(slot);
        };
        self.slots
            .walk(|slots| slots.values().for_each(repeat))
            .await;
    }

    /// Drops idle accounts of past days, and of the current day if there are too many.
    pub async fn sweep(&self) {
        let now = self.clock.now().as_second();
        let total: usize = self.slots.parts().map(|slots| slots.lock().len()).sum();
        let crowded = total > ACCOUNTS_MAX;
        let keep = |slot: &Arc<Slot>| {
            let over = slot.day.end + KEPT_AFTER_DAY_SECONDS < now;
            let idle = || {
                let state = slot.state.lock();
                let listed = state.listed || state.queued || state.offline.listed;
                !listed && state.account.is_idle()
            };
            !((over || crowded) && idle())
        };
        self.slots
            .walk(|slots| slots.retain(|_, slot| keep(slot)))
            .await;
        if crowded {
            tracing::warn!(
                total,
                limit = ACCOUNTS_MAX,
                "too many accounts of keys and days"
            );
        }
    }
}

/// The error for a day that the store has with other boundaries.
pub fn other_calendar(key: KeyId, day: Day) -> StoreError {
    StoreError::OtherCalendar(format!(
        "the day {} of key {key} is stored with other boundaries than {} to {}: another time zone or another version of the zone table was used",
        day.date, day.start, day.end
    ))
}

fn is_waiting(waiter: &Waiter) -> bool {
    !waiter.is_closed()
}
