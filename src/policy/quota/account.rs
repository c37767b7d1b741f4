//! One producer's account of one key on one day: the waiters, the next call to the store, and the distribution of a reply.
//!
//! It owns no connection, clock or lock: the caller sends the calls to the store and returns the replies. Three rules make it
//! exact (docs/decisions/charge-protocol.md):
//! 1. at most one call is awaited at a time: two calls with the same `ack` would both be shown the same credit;
//! 2. the reply of an abandoned call is never used; its grant appears as credit in the next reply;
//! 3. unclaimed credit is returned in the same step, as acknowledged and refunded.
//!
//! Invariant: `ack` counts the units handed out, refunded or served without the store, and never exceeds the units that the store
//! granted plus those served without it; `rack` never exceeds `ack`. Units served without the store are counted before they are
//! journaled and served, so that the larger of the store's number and the journaled one is never below the `ack` of what was
//! served.
//!
//! A waiter's `W` is the caller's means to answer it; `C` is the context of its call (record and day). Waiters share a call only
//! if their [`WaiterTerms`] are equal, so that units are never granted by another waiter's limit, and if their costs are equal, so
//! that the store grants whole charges: a part of one would be unavailable to other producers until it is returned.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::call::{Call, Code, Reply, WaiterTerms};

/// How long the store's denial is repeated without another call: refunds on other nodes take effect after this.
const DENIAL_LASTS: Duration = Duration::from_secs(1);

/// How long an abandoned call may still run in the store, on a connection that the gateway has dropped: until then the account is
/// settled repeatedly.
pub const LATE_CALL_LASTS: Duration = Duration::from_secs(5);

/// How often the account is settled during that time.
pub const LATE_CALL_LOOK: Duration = Duration::from_secs(1);

/// The most waiters of one call.
const BATCH_MAX: usize = 1_024;

/// The result of [`Account::ask`].
#[derive(Debug, PartialEq, Eq)]
pub enum Asked<W> {
    /// Too few units were left a moment ago: refused without a call.
    Denied {
        /// The refused waiter.
        waiter: W,
        /// Units used on the day.
        used: u64,
    },
    /// Waits; call [`Account::begin`].
    Waiting,
}

/// The result for a waiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaiterResult {
    /// Its units are granted. `used` includes them, and differs for every waiter of a day that requested any unless units are refunded
    /// or a call is abandoned.
    Granted {
        /// Units used on the day.
        used: u64,
    },
    /// Too few units are left.
    Exhausted {
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
    /// The store has other boundaries for the day.
    OtherCalendar,
}

/// The last reply, if it reported that too few units were left.
#[derive(Debug, Clone, Copy)]
struct Denial {
    used: u64,
    limit: u64,
    version: u64,
    /// Until when it is repeated without another call.
    repeated_until: Option<Instant>,
}

impl Denial {
    /// Whether it concerns waiters with these terms.
    fn covers<C>(&self, terms: &WaiterTerms<C>) -> bool {
        terms.limit <= self.limit && terms.version <= self.version
    }

    /// Whether a cost does not fit.
    fn is_exceeded_by<C>(&self, cost: u32, terms: &WaiterTerms<C>) -> bool {
        u64::from(cost) > terms.limit.saturating_sub(self.used)
    }
}

#[derive(Debug)]
struct Waiter<W, C> {
    token: W,
    cost: u32,
    terms: WaiterTerms<C>,
}

/// The last call that began, on the account's present terms.
#[derive(Debug)]
struct Awaited<W> {
    ack: u64,
    rack: u64,
    batch: Vec<(W, u32)>,
    /// Whether another call is due after it: what it finds in the store may be lost, or changed, before its reply.
    repeated: bool,
}

#[derive(Debug, Clone, Copy)]
struct LatePeriod {
    look_at: Instant,
    until: Instant,
}

/// The part of an account that has something under way.
#[derive(Debug)]
struct Busy<W, C> {
    waiting: VecDeque<Waiter<W, C>>,
    awaited: Option<Awaited<W>>,
    /// Set while an abandoned call may still run.
    late: Option<LatePeriod>,
}

impl<W, C> Default for Busy<W, C> {
    fn default() -> Busy<W, C> {
        Busy {
            waiting: VecDeque::new(),
            awaited: None,
            late: None,
        }
    }
}

/// A count from the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredCount {
    /// Units used on the day, minus own refunds since then of units that it contains.
    pub used: u64,
    /// When it was received.
    pub at: Instant,
}

/// The account. A gateway has one for each key that was charged on the day: what few of them need is boxed.
#[derive(Debug)]
pub struct Account<W, C> {
    ack: u64,
    rack: u64,
    /// The values of `ack` and `rack` that the store is known to have.
    stored: (u64, u64),
    /// Set while there is a waiter, an awaited call or a late one.
    busy: Option<Box<Busy<W, C>>>,
    calls: u64,
    /// Set when the store may have something unknown to the account, or may have lost something.
    unsettled: bool,
    /// Set when the known count is to be read again.
    stale: bool,
    known: Option<StoredCount>,
    denial: Option<Box<Denial>>,
    /// Units served without the store that no reply has confirmed.
    offline: u64,
    terms: WaiterTerms<C>,
}

impl<W, C: Clone + PartialEq> Account<W, C> {
    /// An account of a producer that is unknown to the store. `terms` are used for calls without waiters, until there is one.
    pub fn new(terms: WaiterTerms<C>) -> Account<W, C> {
        Account {
            ack: 0,
            rack: 0,
            stored: (0, 0),
            busy: None,
            calls: 0,
            unsettled: false,
            stale: false,
            known: None,
            denial: None,
            offline: 0,
            terms,
        }
    }

    /// Requests `cost` units; a cost of 0 requests only the number of used ones.
    pub fn ask(&mut self, waiter: W, cost: u32, terms: WaiterTerms<C>, now: Instant) -> Asked<W> {
        if let Some(denial) = &mut self.denial
            && let Some(until) = denial.repeated_until
        {
            if now >= until || !denial.covers(&terms) {
                denial.repeated_until = None;
            } else if denial.is_exceeded_by(cost, &terms) {
                let used = denial.used;
                return Asked::Denied { waiter, used };
            }
        }
        let waiting = &mut self.busy.get_or_insert_default().waiting;
        if waiting.capacity() == 0 {
            // Most keys have one request at a time, and a queue grows to four places at once.
            waiting.reserve_exact(1);
        }
        waiting.push_back(Waiter {
            token: waiter,
            cost,
            terms,
        });
        Asked::Waiting
    }

    /// The next call to make, if one is due and none is awaited: for the first waiter and all that have its cost and terms. Waiters
    /// that are no longer `alive` are left out.
    pub fn begin(&mut self, alive: impl Fn(&W) -> bool) -> Option<Call<C>> {
        if self.is_awaited() {
            return None;
        }
        if let Some(busy) = &mut self.busy {
            busy.waiting.retain(|waiter| alive(&waiter.token));
        }
        if !self.has_waiters() && !self.is_due() {
            self.rest();
            return None;
        }
        let busy = self.busy.get_or_insert_default();
        let mut cost = 0;
        if let Some(first) = busy.waiting.front() {
            self.terms = first.terms.clone();
            cost = first.cost;
        }
        let mut batch = Vec::with_capacity(busy.waiting.len().min(BATCH_MAX));
        for _ in 0..busy.waiting.len() {
            let Some(waiter) = busy.waiting.pop_front() else {
                break;
            };
            let shares = waiter.cost == cost && waiter.terms == self.terms;
            if shares && batch.len() < BATCH_MAX {
                batch.push((waiter.token, cost));
            } else {
                busy.waiting.push_back(waiter);
            }
        }
        let want = u64::from(cost) * batch.len() as u64;
        self.calls += 1;
        busy.awaited = Some(Awaited {
            ack: self.ack,
            rack: self.rack,
            batch,
            repeated: false,
        });
        Some(Call {
            number: self.calls,
            ack: self.ack,
            rack: self.rack,
            want,
            cost,
            terms: self.terms.clone(),
        })
    }

    /// Removes and returns all waiters whose call has not begun.
    pub fn dismiss(&mut self) -> Vec<W> {
        let busy = self.busy.as_mut();
        let waiting = busy.map(|busy| std::mem::take(&mut busy.waiting));
        self.rest();
        let waiting = waiting.into_iter().flatten();
        waiting.map(|waiter| waiter.token).collect()
    }

    /// Removes waiters that are no longer `alive` from the awaited call: their units are shared by the others, or cover units
    /// served meanwhile without the store.
    pub fn leave_out(&mut self, alive: impl Fn(&W) -> bool) {
        if let Some(busy) = &mut self.busy
            && let Some(awaited) = &mut busy.awaited
        {
            awaited.batch.retain(|(waiter, _)| alive(waiter));
        }
    }

    /// Distributes the reply to call `number`, first come, first served; returns each waiter with its cost. The rest is returned.
    /// If the store granted everything and yet a waiter gets nothing, because units served meanwhile without the store took its
    /// place, it waits for the next call. Nothing happens if that call was abandoned.
    pub fn settle(
        &mut self,
        number: u64,
        reply: &Reply,
        now: Instant,
    ) -> Vec<(W, u32, WaiterResult)> {
        let Some(awaited) = self.take_awaited(number) else {
            return Vec::new();
        };
        let granted = awaited.ack + reply.grant;
        let mut credit = granted.saturating_sub(self.ack);
        // Units served and units refunded since the call began, of which the store does not know.
        let (served_since, refunded_since) =
            (self.ack.saturating_sub(granted), self.rack - awaited.rack);
        let refunded_offline = served_since.min(refunded_since);
        self.offline = served_since - refunded_offline;
        self.ack = self.ack.max(granted);
        self.stored = (granted, awaited.rack);
        self.unsettled = awaited.repeated;
        self.stale = false;
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
            let waiting = &mut self.busy.get_or_insert_default().waiting;
            waiting.push_front(Waiter { token, cost, terms });
        }
        self.rack += credit;
        let returned = refunded_since - refunded_offline + credit;
        let used = reply.used.saturating_sub(returned);
        self.known = Some(StoredCount { used, at: now });
        self.denial = (reply.code == Code::Exhausted).then(|| {
            Box::new(Denial {
                used,
                limit: self.terms.limit,
                version: self.terms.version,
                repeated_until: Some(now + DENIAL_LASTS),
            })
        });
        served
            .into_iter()
            .map(|(waiter, cost, granted)| (waiter, cost, verdict(reply, cost, granted, used)))
            .collect()
    }

    /// Abandons call `number`: whether it runs is unknown, its reply will not be used, and the account is settled repeatedly
    /// until it can no longer run. Returns its waiters.
    pub fn abandon(&mut self, number: u64, now: Instant) -> Vec<W> {
        let Some(awaited) = self.take_awaited(number) else {
            return Vec::new();
        };
        self.unsettled = true;
        self.busy.get_or_insert_default().late = Some(LatePeriod {
            look_at: now + LATE_CALL_LOOK,
            until: now + LATE_CALL_LASTS,
        });
        awaited
            .batch
            .into_iter()
            .map(|(waiter, _)| waiter)
            .collect()
    }

    /// Takes the awaited call if it has this number.
    fn take_awaited(&mut self, number: u64) -> Option<Awaited<W>> {
        let busy = self.busy.as_mut()?;
        let awaited = busy.awaited.take_if(|_| number == self.calls);
        self.rest();
        awaited
    }

    /// Releases what only a busy account needs, if it no longer is one.
    fn rest(&mut self) {
        self.busy.take_if(|busy| {
            busy.waiting.is_empty() && busy.awaited.is_none() && busy.late.is_none()
        });
    }

    /// Refunds granted units, first those served without the store: both are one sum, of which the store has not confirmed the latter.
    /// Returns the units used afterwards as the store would count them, if known.
    pub fn refund(&mut self, units: u32) -> Option<u64> {
        self.rack += u64::from(units);
        self.denial = None;
        let rest = u64::from(units) - self.take_offline(units.into());
        let known = self.known.as_mut()?;
        known.used = known.used.saturating_sub(rest);
        Some(known.used)
    }

    /// Takes up to `units` from those served without the store; returns their number.
    fn take_offline(&mut self, units: u64) -> u64 {
        let taken = units.min(self.offline);
        self.offline -= taken;
        taken
    }

    /// Counts units that are served while the store is unreachable. If a charge for them did run in the store, merging counts
    /// them once.
    pub fn serve_without_store(&mut self, units: u32) {
        self.ack += u64::from(units);
        self.offline += u64::from(units);
    }

    /// Rolls back [`Account::serve_without_store`]: the units were not served after all.
    pub fn withdraw(&mut self, units: u32) {
        self.rack += u64::from(units);
        self.take_offline(units.into());
    }

    /// Units served without the store that no reply has confirmed.
    pub fn offline(&self) -> u64 {
        self.offline
    }

    /// The last count from the store.
    pub fn known(&self) -> Option<StoredCount> {
        self.known
    }

    /// Notes how many units the store counted after units of another producer were merged: the last count may lack them.
    pub fn note_merged(&mut self, used: u64) {
        if let Some(known) = &mut self.known {
            known.used = known.used.max(used);
        }
    }

    /// The count with which the store's last reply refused such a cost, if it did.
    pub fn refused(&self, cost: u32, terms: &WaiterTerms<C>) -> Option<u64> {
        let denial = self.denial.as_ref()?;
        (denial.covers(terms) && denial.is_exceeded_by(cost, terms)).then_some(denial.used)
    }

    /// Whether the store is known to have everything.
    pub fn is_stored(&self) -> bool {
        self.stored == (self.ack, self.rack) && !self.unsettled
    }

    /// Makes a call due although nothing has changed: the store may have lost its data, or run a call twice. The awaited call
    /// does not count as this call: it may have run before the loss, even on the former server.
    pub fn repeat(&mut self) {
        if self.calls > 0 || self.ack > 0 || self.rack > 0 {
            self.unsettled = true;
            if let Some(awaited) = self.busy.as_mut().and_then(|busy| busy.awaited.as_mut()) {
                awaited.repeated = true;
            }
        }
    }

    /// Makes a call due if the count was received before `since`. The store is still known to have everything. Returns whether it is due.
    pub fn read_again(&mut self, since: Instant) -> bool {
        self.stale = self.known.is_some_and(|known| known.at < since);
        self.stale
    }

    /// Makes a settling call due, every [`LATE_CALL_LOOK`] while an abandoned call may still run, and once when it no longer can.
    /// Returns whether this must be called again.
    pub fn look_for_late_calls(&mut self, now: Instant) -> bool {
        let Some(late) = self.busy.as_mut().and_then(|busy| busy.late.as_mut()) else {
            return false;
        };
        let may_run = now < late.until;
        // Once more at the end, so that a call that ran last is not missed.
        if now >= late.look_at || !may_run {
            late.look_at = now + LATE_CALL_LOOK;
            self.repeat();
        }
        if !may_run {
            self.busy.as_mut().and_then(|busy| busy.late.take());
            self.rest();
        }
        may_run
    }

    /// Whether a call is awaited.
    pub fn is_awaited(&self) -> bool {
        let busy = self.busy.as_ref();
        busy.is_some_and(|busy| busy.awaited.is_some())
    }

    /// Whether a waiter's call has not begun.
    pub fn has_waiters(&self) -> bool {
        let busy = self.busy.as_ref();
        busy.is_some_and(|busy| !busy.waiting.is_empty())
    }

    /// Whether the store must be called although there is no waiter.
    pub fn is_due(&self) -> bool {
        self.unsettled || self.stale || self.rack > self.stored.1 || self.ack > self.stored.0
    }

    /// Whether there is no waiter, nothing is due and no late call can run: such an account may be dropped, if a later one for
    /// the same key and day uses another producer's name.
    pub fn is_idle(&self) -> bool {
        self.busy.is_none() && !self.is_due()
    }

    /// Units used on the day, if a reply since `since` contained them.
    pub fn used_since(&self, since: Instant) -> Option<u64> {
        self.known
            .filter(|known| known.at >= since)
            .map(|known| known.used)
    }

    /// Units consumed and units refunded so far.
    pub fn marks(&self) -> (u64, u64) {
        (self.ack, self.rack)
    }
}

fn verdict(reply: &Reply, cost: u32, granted: Option<u64>, used: u64) -> WaiterResult {
    if cost == 0 && reply.code != Code::OtherCalendar {
        return WaiterResult::Granted { used };
    }
    match (reply.code, granted) {
        (Code::Granted | Code::Exhausted, Some(used)) => WaiterResult::Granted { used },
        (Code::Granted | Code::Exhausted, None) => WaiterResult::Exhausted { used },
        (Code::KeyChanged, _) => WaiterResult::KeyChanged,
        (Code::OtherDay, _) => WaiterResult::OtherDay { now: reply.now },
        (Code::OtherCalendar, _) => WaiterResult::OtherCalendar,
    }
}

#[cfg(test)]
mod tests;
