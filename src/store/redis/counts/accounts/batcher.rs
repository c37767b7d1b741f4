//! The tasks that carry the calls of accounts to Redis and their replies back: what is due at the same time in one script
//! call, whatever its keys.
//!
//! Accounts that somebody waits for stand in one queue ([`Due`]). A carrier takes what stands there, brings the replies
//! back, and takes what has come meanwhile, until nobody waits; so calls are the larger the busier the gateway is, and
//! nobody waits for a timer. Two are under way at most, so that a request seldom waits for another's round trip. In a
//! cluster the keys of one call must be in one hash slot: only accounts of the same slot share a call there.
//!
//! Invariants: an account is in one call at a time; a call for several accounts that Redis refused, or whose answers cannot
//! be read, is tried again for each alone, so that an account that Redis cannot count for harms itself only; and whatever
//! ends a carrier, a panic included, no call stays awaited for ever: that would keep a key from being charged until the
//! process ends.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Accounts, Answer, Context, Slot, Waiter, is_waiting};
use crate::policy::quota::{Call, Reply};
use crate::store::redis::wire::link::LinkError;

/// The most accounts in one script call: Redis serves no other client meanwhile, for 4 to 8 µs each.
const TOGETHER_MAX: usize = 64;
/// The most carriers that take from the queue, where a call may be for several accounts.
const CARRIERS_MAX: usize = 2;

/// Accounts whose calls are to be carried.
#[derive(Debug, Default)]
pub struct Due {
    slots: VecDeque<Arc<Slot>>,
    /// Carriers that take from it.
    carriers: usize,
}

impl Due {
    /// Takes what one call may be for: in a cluster the first account and those of its hash slot, else up to `most`.
    fn take(&mut self, is_cluster: bool, most: usize) -> Vec<Arc<Slot>> {
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

    /// Whether nobody stands there.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }
}

impl Accounts {
    /// Has the account's next call carried; it was just marked as queued.
    pub(super) fn carry(self: &Arc<Self>, slot: &Arc<Slot>) {
        self.due.lock().slots.push_back(slot.clone());
        self.send_carrier();
    }

    /// Sends for what stands in the queue although its carrier is gone.
    pub(super) fn carry_forgotten(self: &Arc<Self>) {
        if !self.due.lock().is_empty() {
            self.send_carrier();
        }
    }

    fn send_carrier(self: &Arc<Self>) {
        let carriers_max = match self.together_max() {
            1 => usize::MAX,
            _ => CARRIERS_MAX,
        };
        {
            let mut due = self.due.lock();
            if due.carriers >= carriers_max {
                return;
            }
            due.carriers += 1;
        }
        let mut carrier = Carrier::of(self.clone());
        carrier.takes = true;
        tokio::spawn(carrier.carry_due());
    }

    /// The most accounts in one call, whatever their keys.
    pub(super) fn together_max(&self) -> usize {
        match self.link.is_cluster() || self.apart.load(Ordering::Relaxed) {
            true => 1,
            false => TOGETHER_MAX,
        }
    }
}

/// Carries calls.
pub struct Carrier {
    accounts: Arc<Accounts>,
    /// The calls that are awaited, of different accounts.
    load: Vec<(Arc<Slot>, Call<Context>)>,
    /// Whether it takes from the queue.
    takes: bool,
}

impl Carrier {
    /// One with nothing to carry yet. Counted from the moment it is made, before it runs.
    pub fn of(accounts: Arc<Accounts>) -> Carrier {
        accounts.carrying.fetch_add(1, Ordering::SeqCst);
        Carrier {
            accounts,
            load: Vec::new(),
            takes: false,
        }
    }

    /// Carries the calls of these accounts; those that become due meanwhile are left to others.
    pub async fn carry_these(mut self, slots: Vec<Arc<Slot>>) {
        self.take_up(slots);
        self.deliver().await;
    }

    /// Carries what stands in the queue until nobody does.
    async fn carry_due(mut self) {
        // Whoever is ready to ask in this moment asks first: their calls go together.
        tokio::task::yield_now().await;
        while self.take_due() {
            self.deliver().await;
        }
    }

    /// Takes up what stands in the queue. Says no, and takes no more, where nobody does.
    fn take_due(&mut self) -> bool {
        let together = self.accounts.together_max();
        let apart = self.accounts.apart.load(Ordering::Relaxed);
        let slots = {
            let mut due = self.accounts.due.lock();
            if due.slots.is_empty() {
                due.carriers -= 1;
                self.takes = false;
                return false;
            }
            due.take(self.accounts.link.is_cluster() && !apart, together)
        };
        self.take_up(slots);
        true
    }

    /// Begins the next calls of these accounts, where one is due and none is awaited. While the breaker is open nobody waits
    /// for Redis.
    fn take_up(&mut self, slots: Vec<Arc<Slot>>) {
        let closed = self.accounts.guard.require().err();
        for slot in slots {
            let mut state = slot.state.lock();
            state.queued = false;
            if let Some(error) = &closed {
                let waiters = state.account.dismiss();
                drop(state);
                fail(waiters, error);
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
                Some(call) => self.load.push((slot, call)),
                None if due => self.accounts.list(&slot),
                None => {}
            }
        }
    }

    fn send_alone(&self, slot: Arc<Slot>, call: Call<Context>) {
        let mut carrier = Carrier::of(self.accounts.clone());
        carrier.load.push((slot, call));
        tokio::spawn(carrier.deliver_alone());
    }

    /// As [`Carrier::deliver`], which it is called by.
    fn deliver_alone(mut self) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move { self.deliver().await })
    }

    /// Carries what was taken up, and tells everybody what came of it.
    async fn deliver(&mut self) {
        if self.load.is_empty() {
            return;
        }
        match self.accounts.call(&self.load).await {
            Ok(replies) => self.bring(replies),
            // What did run is shown again as credit, as of any call that is repeated.
            Err(error) if is_of_one(&error) && self.load.len() > 1 => {
                self.accounts.note_refusal(&error);
                for (slot, call) in std::mem::take(&mut self.load) {
                    self.send_alone(slot, call);
                }
            }
            Err(error) => {
                while let Some((slot, call)) = self.load.last() {
                    slot.state.lock().shunned = is_of_one(&error);
                    self.accounts.give_up(slot, call.number, &error);
                    self.load.pop();
                }
            }
        }
        if !self.takes {
            self.accounts.carry_forgotten();
        }
    }

    /// Brings the replies to everybody who waited for them. A call counts as awaited until its waiters are answered.
    fn bring(&mut self, mut replies: Vec<Reply>) {
        while let (Some((slot, call)), Some(reply)) = (self.load.last(), replies.pop()) {
            let verdicts = {
                let mut state = slot.state.lock();
                state.shunned = false;
                state.account.leave_out(is_waiting);
                let now = std::time::Instant::now();
                let verdicts = state.account.settle(call.number, &reply, now);
                // The store has lost the record that it held: the next call, made at once, brings it back.
                let held = reply.version.map_or(0, |version| version + 1);
                if held < slot.held_below.swap(held, Ordering::Relaxed) {
                    state.account.repeat();
                }
                self.accounts.recount(&mut state);
                verdicts
            };
            // Before anybody can say of the units what they were for: the journal has the counts first.
            self.accounts.list_to_note(slot);
            // Whoever is gone drops the units, which takes the account's lock: it must be free here.
            for (waiter, cost, verdict) in verdicts {
                let _ = waiter.send(self.accounts.answer(slot, cost, verdict));
            }
            self.accounts.go_on(slot, After::Reply);
            self.load.pop();
        }
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        let error = LinkError::Lost("the call was aborted".into());
        for (slot, call) in std::mem::take(&mut self.load) {
            self.accounts.give_up(&slot, call.number, &error);
            self.accounts.list(&slot);
        }
        if self.takes {
            self.accounts.due.lock().carriers -= 1;
        }
        self.accounts.carrying.fetch_sub(1, Ordering::SeqCst);
    }
}

/// After what an account goes on.
#[derive(Debug, Clone, Copy)]
enum After {
    Reply,
    Failure,
}

impl Accounts {
    /// Gives up a call whose fate is unknown, and tells those who waited for it. While the breaker is open nobody else waits
    /// either.
    fn give_up(&self, slot: &Arc<Slot>, number: u64, error: &LinkError) {
        let waiters = {
            let account = &mut slot.state.lock().account;
            let mut waiters = account.abandon(number, std::time::Instant::now());
            if self.guard.require().is_err() {
                waiters.extend(account.dismiss());
            }
            waiters
        };
        fail(waiters, error);
        self.go_on(slot, After::Failure);
    }

    /// Has the account stand in the queue if a call is due; after a failed one only if somebody waits.
    fn go_on(&self, slot: &Arc<Slot>, after: After) {
        self.list_to_note(slot);
        let mut state = slot.state.lock();
        let due = match after {
            After::Reply => state.account.has_waiters() || state.account.is_due(),
            After::Failure => state.account.has_waiters(),
        };
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

    /// Notes why a call for several accounts was refused: where their keys may not be in one call, none will be again.
    fn note_refusal(&self, error: &LinkError) {
        let LinkError::Refused(error) = error else {
            return;
        };
        let kind = redis::ErrorKind::Server(redis::ServerErrorKind::CrossSlot);
        if error.kind() == kind && !self.apart.swap(true, Ordering::Relaxed) {
            tracing::warn!(%error, "Redis rejects calls for several keys, as the nodes of a cluster do: from now on each key has its own call. If it is a cluster, name its nodes under store.redis.cluster");
        }
    }
}

/// Whether one of several accounts may be to blame for a failed call.
fn is_of_one(error: &LinkError) -> bool {
    match error {
        LinkError::Refused(_) | LinkError::Unreadable(_) => true,
        LinkError::NoConnection(_) | LinkError::Lost(_) => false,
    }
}

fn fail(waiters: Vec<Waiter>, error: &LinkError) {
    for waiter in waiters {
        let _ = waiter.send(Answer::Failed(error.clone().into()));
    }
}
