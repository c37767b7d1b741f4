//! The tasks that send the calls of accounts to Redis and return the replies: calls that are due at the same time share one
//! script call, whatever their keys.
//!
//! Accounts with waiting requests are in one queue ([`Pending`]). A batcher takes the queued accounts, sends their calls,
//! returns the replies, and repeats this until the queue is empty. So batches grow with the load, and no request waits for a
//! timer. Two batchers take from the queue, so that a request seldom waits for another one's round trip. Where round trips are long,
//! it would: whenever none has taken from the queue for [`TURN_AWAITED`], there is one more. In a cluster, the keys of one call
//! must be in one hash slot: there, only accounts of the same slot share a call.
//!
//! Invariants: an account is in one call at a time; a call for several accounts that Redis refused, or whose reply cannot be
//! read, is repeated for each account alone, so that an account that Redis cannot count affects only itself; when a batcher
//! ends for any reason, even a panic, none of its calls remains awaited, which would prevent charges of a key until the process
//! ends.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::{AccountSlot, Accounts, CallAccount, ChargeWaiter, Context, Pending, Units};
use crate::policy::key_record::KeyRecord;
use crate::policy::quota::{Call, Reply, WaiterResult};
use crate::store::KeyEntry;
use crate::store::key_table::packed;
use crate::store::redis::wire::request::LinkError;
use crate::store::redis::wire::script::{AccountCall, CHARGE, ChargeArgument, charge_replies};

/// The most accounts in one script call: Redis serves no other client meanwhile, for 4 to 8 µs each.
const TOGETHER_MAX: usize = 64;
/// The batchers that take from the queue at once if a call may be for several accounts: few, so that their calls are for many.
const BATCHERS_AT_ONCE: usize = 2;
/// The most batchers if round trips are long. Over 160 ms they begin 25,000 calls of accounts a second.
const BATCHERS_MAX: usize = 64;
/// How long accounts wait for the reply of a call in flight before there is another batcher. Longer than a round trip in a data center,
/// so that calls are for as many accounts as possible there.
const TURN_AWAITED: Duration = Duration::from_millis(2);

impl Pending {
    /// Takes the accounts of one call: in a cluster, the first account and those of its hash slot; else up to `most`.
    fn take(&mut self, is_cluster: bool, most: usize) -> Vec<Arc<AccountSlot>> {
        if !is_cluster {
            let count = self.slots.len().min(most);
            return self.slots.drain(..count).collect();
        }
        let mut taken = Vec::from_iter(self.slots.pop_front());
        self.slots.retain(|slot| {
            let joins = taken.len() < TOGETHER_MAX
                && taken.first().is_some_and(|first| first.place == slot.place);
            if joins {
                taken.push(slot.clone());
            }
            !joins
        });
        taken
    }

    /// Whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }
}

impl Accounts {
    /// Queues the account, which was just marked as queued, for its next call.
    pub(super) fn enqueue(self: &Arc<Self>, slot: &Arc<AccountSlot>) {
        self.due.lock().slots.push_back(slot.clone());
        self.start_batcher();
    }

    /// Starts a batcher for accounts in the queue whose batcher has ended.
    pub(super) fn flush_forgotten(self: &Arc<Self>) {
        if !self.due.lock().is_empty() {
            self.start_batcher();
        }
    }

    fn start_batcher(self: &Arc<Self>) {
        let [at_once, most] = match self.together_max() {
            1 => [usize::MAX; 2],
            _ => [BATCHERS_AT_ONCE, BATCHERS_MAX],
        };
        let watches = {
            let mut due = self.due.lock();
            let watches = due.batchers >= at_once;
            if due.batchers >= most || watches && due.is_watched {
                return;
            }
            due.batchers += 1;
            due.is_watched |= watches;
            watches
        };
        let mut batcher = Batcher::of(self.clone());
        batcher.takes = true;
        batcher.watches = watches;
        // In a box, so that only a pointer is moved: the runtime moves a task's future at its start and at its end.
        tokio::spawn(Box::pin(batcher.flush_due()));
    }

    /// Whether further accounts are expected to be queued at the same time as one that was just queued. With few requests none are; once
    /// there are more than the batchers send at once, batches have several. In a cluster, each account has a batcher of its own.
    fn expect_more(&self) -> bool {
        self.together_max() == 1 || self.due.lock().last_took_several
    }

    /// The most accounts in one call, whatever their keys.
    pub(super) fn together_max(&self) -> usize {
        match self.guard.link.is_cluster() || self.apart.load(Ordering::Relaxed) {
            true => 1,
            false => TOGETHER_MAX,
        }
    }
}

impl Accounts {
    fn answer(
        self: &Arc<Self>,
        slot: &Arc<AccountSlot>,
        cost: u32,
        verdict: WaiterResult,
    ) -> (WaiterResult, Option<Units>) {
        let is_granted = matches!(verdict, WaiterResult::Granted { .. });
        let units = is_granted.then(|| Units {
            accounts: self.clone(),
            slot: slot.clone(),
            units: cost,
            undo: |account, units| {
                account.refund(units);
            },
        });
        (verdict, units)
    }

    /// Sends the calls of different accounts in one round trip, with a reply each. A newer record in a reply is in the key table
    /// when this returns.
    async fn call(
        &self,
        calls: &[(Arc<AccountSlot>, Call<Context>)],
    ) -> Result<Vec<Reply>, LinkError> {
        let mut keys = Vec::with_capacity(2 * calls.len());
        let mut argument = self.argument(calls.len());
        for (slot, call) in calls {
            keys.push(self.guard.link.names.record(slot.key));
            keys.push(self.guard.link.names.counts(slot.key, slot.day.date));
            let entry = self.record_for(slot, call);
            let version = entry
                .as_ref()
                .map_or(call.terms.version, |entry| entry.record.version);
            let held = slot.held_below.load(Ordering::Relaxed) > version;
            let record = entry.filter(|_| !held).map(|entry| packed(&entry.record));
            argument.push(&AccountCall {
                producer: &self.producer.name(slot.producer),
                ack: call.ack,
                rack: call.rack,
                want: call.want,
                cost: call.cost,
                limit: call.terms.limit,
                version,
                record: record.as_deref().unwrap_or_default(),
                day: *call.terms.context.day,
            });
        }
        let replies = self.run(&keys, argument).await?;
        for (reply, (slot, _)) in replies.iter().zip(calls) {
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
    pub(super) fn argument(&self, accounts: usize) -> ChargeArgument {
        ChargeArgument::new(
            self.guard.link.names.keeping.settle_window_seconds(),
            accounts,
        )
    }

    /// The record to send with a call, or `None` if the store is known to have it. A call that wants no units sends the newest known
    /// record, to repair the store.
    fn record_for(&self, slot: &AccountSlot, call: &Call<Context>) -> Option<Arc<KeyEntry>> {
        let newest = || self.keys.get(slot.key);
        match &call.terms.context.entry {
            None => newest(),
            Some(judged) if call.want == 0 => newest()
                .filter(|held| held.record.version > judged.record.version)
                .or_else(|| Some(judged.clone())),
            Some(judged) => Some(judged.clone()),
        }
    }

    /// Runs the script for the accounts with these names, a record's and a count's each, and takes the store's time from its reply.
    pub(super) async fn run(
        &self,
        keys: &[String],
        argument: ChargeArgument,
    ) -> Result<Vec<Reply>, LinkError> {
        let asked = self.clock.ask();
        let deadline = Instant::now() + self.timeout;
        let packed = argument.packed();
        let value = self.guard.link.run(&CHARGE, keys, &packed, deadline).await;
        let replies = value.and_then(|value| {
            charge_replies(&value, keys.len() / 2).map_err(LinkError::Unreadable)
        });
        let granted = |replies: &Vec<Reply>| replies.iter().any(|reply| reply.grant > 0);
        self.guard.record(&replies, granted);
        let replies = replies?;
        if let Some(reply) = replies.first() {
            self.clock.learn_second(asked, reply.now);
        }
        Ok(replies)
    }
}

/// Sends calls.
pub struct Batcher {
    accounts: Arc<Accounts>,
    /// The calls that are awaited, of different accounts.
    calls: Vec<(Arc<AccountSlot>, Call<Context>)>,
    /// Whether it takes from the queue.
    takes: bool,
    /// Whether it is the one that waits to see whether others do so soon.
    watches: bool,
}

impl Batcher {
    /// A batcher without calls. It is counted from its creation, before it runs.
    pub fn of(accounts: Arc<Accounts>) -> Batcher {
        accounts.batchers.fetch_add(1, Ordering::SeqCst);
        Batcher {
            accounts,
            calls: Vec::new(),
            takes: false,
            watches: false,
        }
    }

    /// Sends the calls of these accounts; other batchers send those that become due meanwhile.
    pub async fn flush_these(mut self, slots: Vec<Arc<AccountSlot>>) {
        self.begin_calls(slots);
        self.flush().await;
    }

    /// Sends the calls of queued accounts until the queue is empty.
    async fn flush_due(mut self) {
        match self.watches {
            true => self.watch().await,
            // Requests that are ready now queue their accounts first, so that their calls share a batch.
            false if self.accounts.expect_more() => tokio::task::yield_now().await,
            false => {}
        }
        while self.take_due() {
            self.flush().await;
        }
    }

    /// Waits until the queue is empty, or no batcher has taken from it for [`TURN_AWAITED`].
    async fn watch(&mut self) {
        let mut seen = self.accounts.due.lock().turns;
        loop {
            tokio::time::sleep(TURN_AWAITED).await;
            let mut due = self.accounts.due.lock();
            if due.slots.is_empty() || due.turns == seen {
                due.is_watched = false;
                self.watches = false;
                return;
            }
            seen = due.turns;
        }
    }

    /// Begins the calls of queued accounts. Returns `false`, and no longer takes from the queue, if it is empty.
    fn take_due(&mut self) -> bool {
        let together = self.accounts.together_max();
        let apart = self.accounts.apart.load(Ordering::Relaxed);
        let (slots, are_all) = {
            let mut due = self.accounts.due.lock();
            if due.slots.is_empty() {
                due.batchers -= 1;
                self.takes = false;
                return false;
            }
            due.turns = due.turns.wrapping_add(1);
            let slots = due.take(self.accounts.guard.link.is_cluster() && !apart, together);
            due.last_took_several = slots.len() > 1;
            (slots, due.slots.is_empty())
        };
        // In a cluster, each account has started one.
        if !are_all && together > 1 {
            self.accounts.start_batcher();
        }
        self.begin_calls(slots);
        true
    }

    /// Begins the next calls of those accounts that have one due and await none. While the breaker is open, or the account's master
    /// of a cluster refuses writes, no request waits for Redis.
    fn begin_calls(&mut self, slots: Vec<Arc<AccountSlot>>) {
        let closed = self.accounts.guard.require().err();
        for slot in slots {
            let refusing = || self.accounts.guard.link.require_writes(slot.place).err();
            let closed = closed.clone().or_else(refusing);
            let mut state = slot.state.lock();
            state.queued = false;
            if let Some(error) = closed {
                let waiters = state.account.dismiss();
                drop(state);
                fail(waiters, &error);
                self.accounts.list(&slot);
                continue;
            }
            let alone = state.shunned;
            let call = state.account.begin(is_waiting);
            let awaited = state.account.is_awaited();
            let due = !awaited && !state.account.is_idle();
            drop(state);
            match call {
                Some(call) if alone => self.send_alone(slot, call),
                Some(call) => self.calls.push((slot, call)),
                None if due => self.accounts.list(&slot),
                None => {}
            }
        }
    }

    fn send_alone(&self, slot: Arc<AccountSlot>, call: Call<Context>) {
        let mut batcher = Batcher::of(self.accounts.clone());
        batcher.calls.push((slot, call));
        tokio::spawn(batcher.flush_alone());
    }

    /// As [`Batcher::flush`], which calls it.
    fn flush_alone(mut self) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move { self.flush().await })
    }

    /// Sends the calls, and passes the results to their waiters.
    async fn flush(&mut self) {
        if self.calls.is_empty() {
            return;
        }
        match self.accounts.call(&self.calls).await {
            Ok(replies) => self.answer_waiters(replies),
            // Units that were granted appear again as credit, as for any repeated call.
            Err(error) if is_of_one(&error) && self.calls.len() > 1 => {
                self.accounts.note_refusal(&error);
                for (slot, call) in std::mem::take(&mut self.calls) {
                    self.send_alone(slot, call);
                }
            }
            Err(error) => {
                while let Some((slot, call)) = self.calls.last() {
                    slot.state.lock().shunned = is_of_one(&error);
                    self.accounts.give_up(slot, call.number, &error);
                    self.calls.pop();
                }
            }
        }
        if !self.takes {
            self.accounts.flush_forgotten();
        }
    }

    /// Passes the replies to their waiters. A call counts as awaited until its waiters have their results.
    fn answer_waiters(&mut self, mut replies: Vec<Reply>) {
        let now = std::time::Instant::now();
        while let (Some((slot, call)), Some(reply)) = (self.calls.last(), replies.pop()) {
            let (verdicts, is_changed) = {
                let mut state = slot.state.lock();
                state.shunned = false;
                state.account.leave_out(is_waiting);
                let before = state.journaled();
                let verdicts = state.account.settle(call.number, &reply, now);
                state.away_since = None;
                // The store has lost its record: the next call, made at once, restores it.
                let held = reply.version.map_or(0, |version| version + 1);
                if held < slot.held_below.swap(held, Ordering::Relaxed) {
                    state.account.repeat();
                }
                self.accounts.recount(&mut state);
                (verdicts, state.journaled() != before)
            };
            // Before the units can be attributed to an endpoint: the journal must have the counts first.
            if is_changed {
                self.accounts.list_to_note(slot);
            }
            // A waiter that is gone drops the units, which takes the account's lock: it must be free here.
            for (waiter, cost, verdict) in verdicts {
                let _ = waiter.send(Ok(self.accounts.answer(slot, cost, verdict)));
            }
            let is_due = |account: &CallAccount| account.has_waiters() || account.is_due();
            self.accounts.go_on(slot, is_due);
            self.calls.pop();
        }
    }
}

impl Drop for Batcher {
    fn drop(&mut self) {
        let error = LinkError::Lost("the call was aborted".into());
        for (slot, call) in std::mem::take(&mut self.calls) {
            self.accounts.give_up(&slot, call.number, &error);
            self.accounts.list(&slot);
        }
        if self.takes {
            let mut due = self.accounts.due.lock();
            due.batchers -= 1;
            due.is_watched &= !self.watches;
        }
        self.accounts.batchers.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Accounts {
    /// Abandons a call whose outcome is unknown, and fails its waiters. While the breaker is open, the account's other waiters
    /// fail too.
    fn give_up(&self, slot: &Arc<AccountSlot>, number: u64, error: &LinkError) {
        let waiters = {
            let account = &mut slot.state.lock().account;
            let mut waiters = account.abandon(number, std::time::Instant::now());
            if self.guard.require().is_err() {
                waiters.extend(account.dismiss());
            }
            waiters
        };
        fail(waiters, error);
        self.list_to_note(slot);
        // A failed call is repeated at once only for a request.
        self.go_on(slot, CallAccount::has_waiters);
    }

    /// Queues the account if a call is due.
    fn go_on(&self, slot: &Arc<AccountSlot>, is_due: impl FnOnce(&CallAccount) -> bool) {
        let mut state = slot.state.lock();
        let due = is_due(&state.account);
        let joins = due && !std::mem::replace(&mut state.queued, true);
        let listed = !due && !state.account.is_idle();
        drop(state);
        if joins {
            self.due.lock().slots.push_back(slot.clone());
        }
        if listed {
            self.list(slot);
        }
    }

    /// Records why a call for several accounts was refused: if their keys may not share a call, later calls are for one account
    /// each.
    fn note_refusal(&self, error: &LinkError) {
        let LinkError::Refused(refusal) = error else {
            return;
        };
        let kind = redis::ErrorKind::Server(redis::ServerErrorKind::CrossSlot);
        if refusal.error.kind() == kind && !self.apart.swap(true, Ordering::Relaxed) {
            tracing::warn!(error = %refusal, "Redis rejects calls for several keys, as the nodes of a cluster do: from now on each key has its own call. If it is a cluster, name its nodes under store.redis.cluster");
        }
    }
}

/// Whether one of several accounts may be the cause of a failed call.
fn is_of_one(error: &LinkError) -> bool {
    match error {
        LinkError::Refused(_) | LinkError::RefusedWrites(_) | LinkError::Unreadable(_) => true,
        LinkError::NoConnection(_) | LinkError::Lost(_) => false,
    }
}

fn fail(waiters: Vec<ChargeWaiter>, error: &LinkError) {
    for waiter in waiters {
        let _ = waiter.send(Err(error.clone().into()));
    }
}

fn is_waiting(waiter: &ChargeWaiter) -> bool {
    !waiter.is_closed()
}
