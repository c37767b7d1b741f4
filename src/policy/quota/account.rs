//! One producer's account of one key on one day: who waits, what to ask the store, how a reply is shared out.
//!
//! It owns no connection, clock or lock: the caller carries calls to the store and brings replies back. Three rules make
//! it exact (notes/quota.md, 2.4):
//! 1. at most one call is awaited at a time: two calls with the same `ack` would both be shown the same credit;
//! 2. the reply of an abandoned call is never used; what it granted shows as credit in the next reply;
//! 3. credit that nobody takes goes back in the same step, as acknowledged and given back.
//!
//! Invariant: `ack` counts the units handed out, given back or served without the store, and never more than the store
//! granted plus those served without it; `rack` never passes `ack`.
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
    limit: u64,
    version: u64,
    batch: Vec<(W, u32)>,
}

#[derive(Debug, Clone, Copy)]
struct Late {
    look_at: Instant,
    until: Instant,
}

#[derive(Debug, Clone, Copy)]
struct Known {
    used: u64,
    at: Instant,
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

    /// Shares out the reply to call `number`, to each waiter with its cost: first come, first served; one whose cost does not fit is refused and the
    /// next tried; what is left goes back. Nothing happens if that call was abandoned.
    pub fn settle(&mut self, number: u64, reply: &Reply, now: Instant) -> Vec<(W, u32, Verdict)> {
        let Some(awaited) = self.awaited.take_if(|awaited| awaited.number == number) else {
            return Vec::new();
        };
        let granted = awaited.ack + reply.grant;
        let mut credit = granted.saturating_sub(self.ack);
        self.ack = self.ack.max(granted);
        self.stored = (granted, awaited.rack);
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
        let served: Vec<(W, u32, Option<u64>)> = awaited
            .batch
            .into_iter()
            .map(|(waiter, cost)| {
                let used = if shares { fits(cost.into()) } else { None };
                (waiter, cost, used)
            })
            .collect();
        self.rack += credit;
        let used = reply.used.saturating_sub(self.rack - awaited.rack);
        self.known = Some(Known { used, at: now });
        self.denial = (reply.code == Code::Exhausted).then(|| Denial {
            used,
            limit: awaited.limit,
            version: awaited.version,
            until: now + DENIAL_LASTS,
        });
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
        let known = self.known.as_mut()?;
        known.used = known.used.saturating_sub(units.into());
        Some(known.used)
    }

    /// Counts units that were served while the store could not be asked.
    pub fn serve_without_store(&mut self, units: u32) {
        self.ack += u64::from(units);
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
mod tests {
    use super::*;

    type Plain = Account<&'static str, ()>;

    fn terms(limit: u64) -> Terms<()> {
        Terms {
            limit,
            version: 1,
            context: (),
        }
    }

    fn reply(code: Code, grant: u64, used: u64) -> Reply {
        Reply {
            code,
            grant,
            used,
            version: Some(1),
            now: 0,
            record: String::new(),
        }
    }

    fn begin(account: &mut Plain) -> Option<Call<()>> {
        account.begin(|waiter| *waiter != "gone")
    }

    #[test]
    fn waiters_are_called_for_together_and_told_distinct_counts() {
        let (mut account, now) = (Plain::new(terms(10)), Instant::now());
        for (waiter, cost) in [("a", 1), ("gone", 4), ("b", 2), ("c", 1)] {
            assert_eq!(account.ask(waiter, cost, terms(10), now), Asked::Waiting);
        }
        let call = begin(&mut account).unwrap();
        assert_eq!((call.ack, call.rack, call.want), (0, 0, 4));
        assert_eq!(begin(&mut account), None, "one call at a time");
        let verdicts = account.settle(call.number, &reply(Code::Granted, 4, 9), now);
        let granted = |used| Verdict::Granted { used };
        assert_eq!(
            verdicts,
            [
                ("a", 1, granted(6)),
                ("b", 2, granted(8)),
                ("c", 1, granted(9))
            ]
        );
        assert!(account.is_idle());
    }

    #[test]
    fn a_cost_that_does_not_fit_is_refused_and_the_next_one_tried() {
        let (mut account, now) = (Plain::new(terms(10)), Instant::now());
        for (waiter, cost) in [("a", 2), ("b", 4), ("c", 1)] {
            account.ask(waiter, cost, terms(10), now);
        }
        let call = begin(&mut account).unwrap();
        let verdicts = account.settle(call.number, &reply(Code::Exhausted, 4, 10), now);
        assert_eq!(
            verdicts,
            [
                ("a", 2, Verdict::Granted { used: 8 }),
                ("b", 4, Verdict::Exhausted { used: 9 }),
                ("c", 1, Verdict::Granted { used: 9 })
            ]
        );
        let settling = begin(&mut account).unwrap();
        assert_eq!(
            (settling.ack, settling.rack, settling.want),
            (4, 1, 0),
            "the unit that nobody took goes back"
        );
    }

    #[test]
    fn waiters_with_other_terms_wait_for_the_next_call() {
        let (mut account, now) = (Plain::new(terms(10)), Instant::now());
        account.ask("a", 1, terms(10), now);
        account.ask("b", 1, terms(20), now);
        let call = begin(&mut account).unwrap();
        assert_eq!((call.want, call.terms.limit), (1, 10));
        account.settle(call.number, &reply(Code::Granted, 1, 1), now);
        let call = begin(&mut account).unwrap();
        assert_eq!((call.want, call.terms.limit), (1, 20));
    }

    #[test]
    fn the_reply_of_an_abandoned_call_is_not_used_and_what_it_granted_goes_back() {
        let (mut account, now) = (Plain::new(terms(10)), Instant::now());
        account.ask("a", 3, terms(10), now);
        let lost = begin(&mut account).unwrap();
        assert_eq!(account.abandon(lost.number, now), ["a"]);
        assert!(!account.is_idle());
        assert_eq!(
            account.settle(lost.number, &reply(Code::Granted, 3, 3), now),
            []
        );
        let settling = begin(&mut account).unwrap();
        assert_eq!((settling.ack, settling.rack, settling.want), (0, 0, 0));
        account.settle(settling.number, &reply(Code::Granted, 3, 3), now);
        let back = begin(&mut account).unwrap();
        assert_eq!((back.ack, back.rack, back.want), (3, 3, 0));
        account.settle(back.number, &reply(Code::Granted, 0, 0), now);
        assert_eq!(begin(&mut account), None);
        assert!(account.look_for_late_calls(now), "it may run later");
        assert_eq!(begin(&mut account), None);
        assert!(!account.look_for_late_calls(now + LATE_CALL_LASTS));
        assert!(begin(&mut account).is_some(), "it may have run only now");
    }

    #[test]
    fn a_denial_holds_for_a_second_for_costs_above_the_remainder_only() {
        let (mut account, now) = (Plain::new(terms(10)), Instant::now());
        account.ask("a", 5, terms(10), now);
        let call = begin(&mut account).unwrap();
        account.settle(call.number, &reply(Code::Exhausted, 2, 10), now);
        let denied = Asked::Denied {
            waiter: "b",
            used: 8,
        };
        assert_eq!(account.ask("b", 3, terms(10), now), denied);
        assert_eq!(
            account.ask("b", 2, terms(10), now),
            Asked::Waiting,
            "it fits"
        );
        let later = now + DENIAL_LASTS;
        assert_eq!(account.ask("b", 3, terms(10), later), Asked::Waiting);
    }

    #[test]
    fn a_denial_ends_with_a_newer_record_a_larger_limit_or_an_own_refund() {
        let now = Instant::now();
        let exhausted = || {
            let mut account = Plain::new(terms(1));
            account.ask("a", 2, terms(1), now);
            let call = begin(&mut account).unwrap();
            account.settle(call.number, &reply(Code::Exhausted, 0, 1), now);
            assert!(matches!(
                account.ask("b", 1, terms(1), now),
                Asked::Denied { .. }
            ));
            account
        };
        let newer = Terms {
            version: 2,
            ..terms(1)
        };
        assert_eq!(exhausted().ask("b", 1, newer, now), Asked::Waiting);
        assert_eq!(exhausted().ask("b", 1, terms(2), now), Asked::Waiting);
        let mut account = exhausted();
        assert_eq!(account.refund(1), Some(0));
        assert_eq!(account.ask("b", 1, terms(1), now), Asked::Waiting);
        assert_eq!(begin(&mut account).unwrap().rack, 1);
    }
}
