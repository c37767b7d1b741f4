//! One producer's account of one key on one day: who waits, what to ask the store, how a reply is shared out.
//!
//! It owns no connection, clock or lock: the caller carries calls to the store and brings replies back. Three rules make
//! it exact (docs/decisions/charge-protocol.md):
//! 1. at most one call is awaited at a time: two calls with the same `ack` would both be shown the same credit;
//! 2. the reply of an abandoned call is never used; what it granted shows as credit in the next reply;
//! 3. credit that nobody takes goes back in the same step, as acknowledged and given back.
//!
//! Invariant: `ack` counts the units handed out, given back or served without the store, and never more than the store
//! granted plus those served without it; `rack` never passes `ack`. Units served without the store are counted before
//! they are written down and served, so that the larger of the store's number and the written one is never below `ack`
//! of what was served.
//!
//! A waiter's `W` is whatever the caller answers it by; `C` is the context its call needs (record and day). Waiters are
//! called for together only if their [`Terms`] are equal, so that nobody is granted units by another's limit.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::{Code, Reply};

/// How long the store's refusal is repeated without asking it again: refunds on other nodes show after this.
pub const DENIAL_LASTS: Duration = Duration::from_secs(1);

/// How long after an abandoned call it may still run in the store, on a connection we no longer have: until then the
/// account is settled again and again.
pub const LATE_CALL_LASTS: Duration = Duration::from_secs(5);

/// How often it is looked for.
pub const LATE_CALL_LOOK: Duration = Duration::from_secs(1);

/// The most waiters that one call asks for.
pub const BATCH_MAX: usize = 1_024;

/// By what a waiter is judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms<C> {
    /// The units that the key may use on the day.
    pub limit: u64,
    /// The version of the record it was checked against.
    pub version: u64,
    /// What else the call needs.
    pub context: C,
}

/// What became of asking.
#[derive(Debug, PartialEq, Eq)]
pub enum Asked<W> {
    /// Not enough was left a moment ago: refused without a call.
    Denied {
        /// Who asked.
        waiter: W,
        /// Units used on the day.
        used: u64,
    },
    /// Waits; call [`Account::begin`].
    Waiting,
}

/// What to ask the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call<C> {
    /// Which call of this account it is.
    pub number: u64,
    /// Units consumed so far.
    pub ack: u64,
    /// Units given back so far.
    pub rack: u64,
    /// Units wanted; 0 only settles.
    pub want: u64,
    /// By what the waiters are judged.
    pub terms: Terms<C>,
}

/// What a waiter is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Its units are its own; `used` counts them and differs for every waiter of a day while nothing is given back and no
    /// call was abandoned.
    Granted {
        /// Units used on the day.
        used: u64,
    },
    /// Not enough is left.
    Exhausted {
        /// Units used on the day.
        used: u64,
    },
    /// It asked for no units, only for their number.
    Told {
        /// Units used on the day.
        used: u64,
    },
    /// The store has a newer record.
    KeyChanged,
    /// The store's time is outside the day.
    OtherDay {
        /// The store's time (Unix seconds).
        now: i64,
    },
    /// The store knows the day by other boundaries.
    OtherCalendar,
}

/// What the store said when it had too little.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Denial {
    /// Units used.
    pub used: u64,
    limit: u64,
    version: u64,
    until: Instant,
}

#[derive(Debug)]
struct Waiter<W, C> {
    token: W,
    cost: u32,
    terms: Terms<C>,
}

#[derive(Debug)]
struct Awaited<W> {
    number: u64,
    ack: u64,
    rack: u64,
    offline: u64,
    limit: u64,
    version: u64,
    batch: Vec<(W, u32)>,
}

#[derive(Debug, Clone, Copy)]
struct Late {
    look_at: Instant,
    until: Instant,
}

/// A count as the store told it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    /// Units used on the day, own refunds since then taken off.
    pub used: u64,
    /// When it was told.
    pub at: Instant,
}

/// The account.
#[derive(Debug)]
pub struct Account<W, C> {
    ack: u64,
    rack: u64,
    /// What the store is known to hold of `ack` and `rack`.
    stored: (u64, u64),
    waiting: VecDeque<Waiter<W, C>>,
    awaited: Option<Awaited<W>>,
    calls: u64,
    /// Set when the store may hold something that was not heard of, or have lost something that it held.
    unsettled: bool,
    /// Set while an abandoned call may still run.
    late: Option<Late>,
    known: Option<Known>,
    denial: Option<Denial>,
    /// The last reply, if it said that too little was left.
    refusal: Option<Denial>,
    /// Units served without the store that no reply has confirmed.
    offline: u64,
    terms: Terms<C>,
}

impl<W, C: Clone + PartialEq> Account<W, C> {
    /// An account of a producer that the store has never heard of. `terms` serve calls for which nobody waits, until
    /// somebody does.
    pub fn new(terms: Terms<C>) -> Account<W, C> {
        Account {
            ack: 0,
            rack: 0,
            stored: (0, 0),
            waiting: VecDeque::new(),
            awaited: None,
            calls: 0,
            unsettled: false,
            late: None,
            known: None,
            denial: None,
            refusal: None,
            offline: 0,
            terms,
        }
    }

    /// Asks for `cost` units; a cost of 0 asks for the number of used ones only.
    pub fn ask(&mut self, waiter: W, cost: u32, terms: Terms<C>, now: Instant) -> Asked<W> {
        if let Some(denial) = self.denial {
            let holds = now < denial.until
                && terms.limit <= denial.limit
                && terms.version <= denial.version;
            if !holds {
                self.denial = None;
            } else if u64::from(cost) > terms.limit.saturating_sub(denial.used) {
                return Asked::Denied {
                    waiter,
                    used: denial.used,
                };
            }
        }
        self.waiting.push_back(Waiter {
            token: waiter,
            cost,
            terms,
        });
        Asked::Waiting
    }

    /// The next call to make, if one is due and none is awaited. Waiters that are no longer `alive` are left out.
    pub fn begin(&mut self, alive: impl Fn(&W) -> bool) -> Option<Call<C>> {
        if self.awaited.is_some() {
            return None;
        }
        self.waiting.retain(|waiter| alive(&waiter.token));
        if self.waiting.is_empty() && !self.is_due() {
            return None;
        }
        if let Some(first) = self.waiting.front() {
            self.terms = first.terms.clone();
        }
        let together = self
            .waiting
            .iter()
            .take(BATCH_MAX)
            .take_while(|waiter| waiter.terms == self.terms)
            .count();
        let batch: Vec<(W, u32)> = self
            .waiting
            .drain(..together)
            .map(|waiter| (waiter.token, waiter.cost))
            .collect();
        let want = batch.iter().map(|(_, cost)| u64::from(*cost)).sum();
        self.calls += 1;
        self.awaited = Some(Awaited {
            number: self.calls,
            ack: self.ack,
            rack: self.rack,
            offline: self.offline,
            limit: self.terms.limit,
            version: self.terms.version,
            batch,
        });
        Some(Call {
            number: self.calls,
            ack: self.ack,
            rack: self.rack,
            want,
            terms: self.terms.clone(),
        })
    }

    /// Lets everybody go who waits for a call that has not begun.
    pub fn dismiss(&mut self) -> Vec<W> {
        let waiting = std::mem::take(&mut self.waiting);
        waiting.into_iter().map(|waiter| waiter.token).collect()
    }

    /// Leaves waiters that are no longer `alive` out of the awaited call: what was asked for them is shared by the
    /// others, or covers what was served without the store meanwhile.
    pub fn leave_out(&mut self, alive: impl Fn(&W) -> bool) {
        if let Some(awaited) = &mut self.awaited {
            awaited.batch.retain(|(waiter, _)| alive(waiter));
        }
    }

    /// Shares out the reply to call `number`, to each waiter with its cost: first come, first served; one whose cost
    /// does not fit is refused and the next tried; what is left goes back. Where the store granted everything and yet
    /// one does not fit, because units served without the store meanwhile took its place, it waits for the next call.
    /// Nothing happens if that call was abandoned.
    pub fn settle(&mut self, number: u64, reply: &Reply, now: Instant) -> Vec<(W, u32, Verdict)> {
        let Some(awaited) = self.awaited.take_if(|awaited| awaited.number == number) else {
            return Vec::new();
        };
        let granted = awaited.ack + reply.grant;
        let mut credit = granted.saturating_sub(self.ack);
        self.ack = self.ack.max(granted);
        self.stored = (granted, awaited.rack);
        self.offline = self.offline.saturating_sub(awaited.offline);
        self.unsettled = false;
        let mut counted = reply.used.saturating_sub(credit);
        let mut fits = |cost: u64| {
            let takes = cost <= credit;
            if takes {
                credit -= cost;
                counted += cost;
            }
            takes.then_some(counted)
        };
        let shares = matches!(reply.code, Code::Granted | Code::Exhausted);
        let (mut served, mut again) = (Vec::new(), Vec::new());
        for (waiter, cost) in awaited.batch {
            let used = if shares { fits(cost.into()) } else { None };
            if used.is_none() && reply.code == Code::Granted {
                again.push((waiter, cost));
            } else {
                served.push((waiter, cost, used));
            }
        }
        for (token, cost) in again.into_iter().rev() {
            let terms = self.terms.clone();
            self.waiting.push_front(Waiter { token, cost, terms });
        }
        self.rack += credit;
        let used = reply.used.saturating_sub(self.rack - awaited.rack);
        self.known = Some(Known { used, at: now });
        self.denial = (reply.code == Code::Exhausted).then(|| Denial {
            used,
            limit: awaited.limit,
            version: awaited.version,
            until: now + DENIAL_LASTS,
        });
        self.refusal = self.denial;
        served
            .into_iter()
            .map(|(waiter, cost, granted)| (waiter, cost, verdict(reply, cost, granted, used)))
            .collect()
    }

    /// Gives up call `number`: whether it runs is unknown, its reply will not be used, and the account is settled again
    /// until it can no longer run. Returns those who waited for it.
    pub fn abandon(&mut self, number: u64, now: Instant) -> Vec<W> {
        let Some(awaited) = self.awaited.take_if(|awaited| awaited.number == number) else {
            return Vec::new();
        };
        self.unsettled = true;
        self.late = Some(Late {
            look_at: now + LATE_CALL_LOOK,
            until: now + LATE_CALL_LASTS,
        });
        awaited
            .batch
            .into_iter()
            .map(|(waiter, _)| waiter)
            .collect()
    }

    /// Gives back units that were granted. Answers the units used afterwards, if that is known.
    pub fn refund(&mut self, units: u32) -> Option<u64> {
        self.rack += u64::from(units);
        self.denial = None;
        self.refusal = None;
        let known = self.known.as_mut()?;
        known.used = known.used.saturating_sub(units.into());
        Some(known.used)
    }

    /// Counts units that are served although the store could not be asked. If a charge for them did run in the store,
    /// merging makes the two one.
    pub fn serve_without_store(&mut self, units: u32) {
        self.ack += u64::from(units);
        self.offline += u64::from(units);
    }

    /// Takes back [`Account::serve_without_store`]: the units were not served after all.
    pub fn withdraw(&mut self, units: u32) {
        self.rack += u64::from(units);
        self.offline = self.offline.saturating_sub(units.into());
    }

    /// Units served without the store that no reply has confirmed.
    pub fn offline(&self) -> u64 {
        self.offline
    }

    /// The count as the store last told it.
    pub fn known(&self) -> Option<Known> {
        self.known
    }

    /// The count with which the store itself last refused such a cost, if that was its last word.
    pub fn refused(&self, cost: u32, terms: &Terms<C>) -> Option<u64> {
        self.refusal
            .filter(|refusal| {
                terms.limit <= refusal.limit
                    && terms.version <= refusal.version
                    && u64::from(cost) > terms.limit.saturating_sub(refusal.used)
            })
            .map(|refusal| refusal.used)
    }

    /// The terms of the last call.
    pub fn terms(&self) -> &Terms<C> {
        &self.terms
    }

    /// Whether the store is known to hold everything.
    pub fn is_stored(&self) -> bool {
        self.stored == (self.ack, self.rack) && !self.unsettled
    }

    /// Has a call made although nothing is due: the store may have lost what it held, or run a call twice.
    pub fn repeat(&mut self) {
        self.unsettled |= self.calls > 0 || self.ack > 0 || self.rack > 0;
    }

    /// Has the account settled once more, every [`LATE_CALL_LOOK`], while an abandoned call may still run. Says whether
    /// it must be asked again.
    pub fn look_for_late_calls(&mut self, now: Instant) -> bool {
        let Some(late) = &mut self.late else {
            return false;
        };
        if now >= late.look_at {
            self.unsettled = true;
            late.look_at = now + LATE_CALL_LOOK;
        }
        if now >= late.until {
            self.late = None;
        }
        self.late.is_some()
    }

    /// Whether a call is on its way.
    pub fn is_awaited(&self) -> bool {
        self.awaited.is_some()
    }

    /// Whether somebody waits for a call that has not begun.
    pub fn has_waiters(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether something must be told to the store although nobody waits.
    pub fn is_due(&self) -> bool {
        self.unsettled || self.rack > self.stored.1 || self.ack > self.stored.0
    }

    /// Whether nobody waits, nothing is due and nothing may still come: such an account may be dropped, if a later one
    /// for the same key and day uses another producer's name.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.awaited.is_none() && self.late.is_none() && !self.is_due()
    }

    /// Units used on the day, if a reply said so since `since`.
    pub fn used_since(&self, since: Instant) -> Option<u64> {
        self.known
            .filter(|known| known.at >= since)
            .map(|known| known.used)
    }

    /// Units consumed and units given back so far.
    pub fn marks(&self) -> (u64, u64) {
        (self.ack, self.rack)
    }
}

fn verdict(reply: &Reply, cost: u32, granted: Option<u64>, used: u64) -> Verdict {
    if cost == 0 && reply.code != Code::OtherCalendar {
        return Verdict::Told { used };
    }
    match (reply.code, granted) {
        (Code::Granted | Code::Exhausted, Some(used)) => Verdict::Granted { used },
        (Code::Granted | Code::Exhausted, None) => Verdict::Exhausted { used },
        (Code::KeyChanged, _) => Verdict::KeyChanged,
        (Code::OtherDay, _) => Verdict::OtherDay { now: reply.now },
        (Code::OtherCalendar, _) => Verdict::OtherCalendar,
    }
}

#[cfg(test)]
mod tests;
