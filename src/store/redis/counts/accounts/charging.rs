//! Charges and reads of counts, and sending what is not sent yet.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::batcher::Batcher;
use super::{AccountSlot, Accounts, ChargeResult, Context, SlotState, other_calendar};
use crate::policy::api_key::KeyId;
use crate::policy::calendar::Day;
use crate::policy::quota::{Asked, WaiterResult, WaiterTerms};
use crate::store::{Charge, StoreError};

/// The most accounts that are settled concurrently.
const SETTLING_MAX: usize = 64;
/// The greatest age of a known count that is returned without a call.
const KNOWN_LASTS: Duration = Duration::from_secs(1);

impl Accounts {
    /// Requests units; waits at most `timeout` for the store.
    pub async fn charge(self: &Arc<Self>, charge: &Charge) -> ChargeResult {
        let record = &charge.key.record;
        let slot = self.slot(record.id, charge.day);
        let terms = WaiterTerms {
            limit: charge.limit,
            version: record.version,
            context: Context {
                entry: Some(charge.key.clone()),
                day: slot.day.or(charge.day),
            },
        };
        self.ask(&slot, charge.cost, terms).await
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
        let terms = self.terms(key, slot.day.or(day));
        let (verdict, _) = self.ask(&slot, 0, terms).await?;
        match verdict {
            WaiterResult::Granted { used } | WaiterResult::Exhausted { used } => Ok(used),
            WaiterResult::OtherCalendar => Err(other_calendar(key, day)),
            WaiterResult::KeyChanged | WaiterResult::OtherDay { .. } => Err(StoreError::Failed(
                format!("a read of the count returned {verdict:?}"),
            )),
        }
    }

    async fn ask(
        self: &Arc<Self>,
        slot: &Arc<AccountSlot>,
        cost: u32,
        terms: WaiterTerms<Context>,
    ) -> ChargeResult {
        let now = std::time::Instant::now();
        self.guard.require()?;
        let (sender, receiver) = oneshot::channel();
        let due = {
            let SlotState {
                account,
                limit,
                queued,
                ..
            } = &mut *slot.state.lock();
            if cost > 0 {
                *limit = terms.limit;
            }
            match account.ask(sender, cost, terms, now) {
                Asked::Denied { used, .. } => {
                    return Ok((WaiterResult::Exhausted { used }, None));
                }
                // The task that awaits a call of the account sends the next one too.
                Asked::Waiting => !account.is_awaited() && !std::mem::replace(queued, true),
            }
        };
        if due {
            self.enqueue(slot);
        }
        let deadline = Instant::from_std(now) + self.timeout;
        match self.timers.wait(deadline, receiver).await {
            Some(Ok(answer)) => answer,
            Some(Err(_)) => Err(StoreError::Unavailable("the store is closed".into())),
            None => Err(StoreError::Unavailable(format!(
                "no answer within {:?}",
                self.timeout
            ))),
        }
    }

    /// Sends the store all unsent totals, a bounded number of accounts at a time. Accounts whose call fails remain listed.
    pub async fn settle(self: &Arc<Self>) {
        self.flush_forgotten();
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
            if slots.is_empty() {
                tokio::task::consume_budget().await;
                continue;
            }
            let batcher = Batcher::of(self.clone());
            running.push_back(tokio::spawn(batcher.flush_these(slots)));
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
}
