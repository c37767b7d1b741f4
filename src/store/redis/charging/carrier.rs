//! The task that carries the calls of one account to Redis and their replies back.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Accounts, Answer, Context, Slot, Waiter, is_waiting};
use crate::policy::quota::{Call, Reply};
use crate::store::redis::link::LinkError;

/// Carries the calls of one account. Whatever ends it, a panic included, no call stays awaited for ever: that would keep
/// the key from being charged until the process ends.
pub struct Carrier {
    accounts: Arc<Accounts>,
    slot: Arc<Slot>,
    /// The call that is awaited.
    number: Option<u64>,
}

impl Carrier {
    /// For an account whose call with this number was begun.
    pub fn of(accounts: Arc<Accounts>, slot: Arc<Slot>, number: u64) -> Carrier {
        accounts.carrying.fetch_add(1, Ordering::SeqCst);
        Carrier {
            accounts,
            slot,
            number: Some(number),
        }
    }

    /// Carries this call, and those that become due meanwhile, until nobody waits.
    pub async fn carry_all(mut self, first: Call<Context>) {
        let mut next = Some(first);
        while let Some(call) = next {
            self.number = Some(call.number);
            let outcome = self.accounts.call(&self.slot, &call).await;
            let failed = outcome.is_err();
            // Whoever is gone drops the units, which takes the account's lock: it must be free here.
            for (waiter, answer) in self.answers(call.number, outcome) {
                let _ = waiter.send(answer);
            }
            self.number = None;
            next = self.next(failed);
        }
    }

    /// What each waiter of a call is told.
    fn answers(&self, number: u64, outcome: Result<Reply, LinkError>) -> Vec<(Waiter, Answer)> {
        let Carrier { accounts, slot, .. } = self;
        let now = std::time::Instant::now();
        match outcome {
            Ok(reply) => {
                let verdicts = {
                    let mut state = slot.state.lock();
                    state.account.leave_out(is_waiting);
                    let verdicts = state.account.settle(number, &reply, now);
                    accounts.recount(&mut state);
                    verdicts
                };
                let costs = verdicts.into_iter();
                costs
                    .map(|(waiter, cost, verdict)| (waiter, accounts.answer(slot, cost, verdict)))
                    .collect()
            }
            Err(error) => {
                let waiters = {
                    let account = &mut slot.state.lock().account;
                    let mut waiters = account.abandon(number, now);
                    // While the breaker is open nobody waits for Redis.
                    if accounts.guard.require().is_err() {
                        waiters.extend(account.dismiss());
                    }
                    waiters
                };
                let failure = |waiter| (waiter, Answer::Failed(error.clone().into()));
                waiters.into_iter().map(failure).collect()
            }
        }
    }

    /// The next call, if one is due; after a failed one only if somebody waits.
    fn next(&self, failed: bool) -> Option<Call<Context>> {
        let Carrier { accounts, slot, .. } = self;
        accounts.list_to_note(slot);
        let mut state = slot.state.lock();
        let next = if failed && !state.account.has_waiters() {
            None
        } else {
            state.account.begin(is_waiting)
        };
        let due = next.is_none() && !state.account.is_idle();
        drop(state);
        if due {
            accounts.list(slot);
        }
        next
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let error = LinkError::Lost("the call was broken off".into());
            for (waiter, answer) in self.answers(number, Err(error)) {
                let _ = waiter.send(answer);
            }
            self.accounts.list(&self.slot);
        }
        self.accounts.carrying.fetch_sub(1, Ordering::SeqCst);
    }
}
