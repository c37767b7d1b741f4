//! The breaker that all tasks of a gateway share, and its probe.
//!
//! Invariant: [`BreakerGuard::require`] never waits, and fails whenever a request would wait for an unavailable Redis.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::civil::Date;
use parking_lot::Mutex;
use redis::{Cmd, Value};
use tokio::sync::Notify;

use super::breaker::{Breaker, CallOutcome};
use super::link::RedisLink;
use super::request::{LinkError, pipeline};
use super::script::{AccountCall, CHARGE, ChargeArgument};
use crate::policy::calendar::Day;
use crate::store::StoreError;
use crate::store::status::{BreakerFacts, BreakerState};

/// The lifetime of the probe's entry in Redis (milliseconds).
const PROBE_LIVES_MS: i64 = 5_000;

/// An account that merges a unit, for which the script runs on an empty entry the commands of a day's first charge; in a day that never
/// closes.
const PRETENDED: AccountCall<'_> = AccountCall {
    producer: "probe",
    ack: 1,
    rack: 0,
    want: 0,
    cost: 1,
    limit: 0,
    version: 0,
    record: "",
    day: Day {
        date: Date::ZERO,
        start: 0,
        end: 1 << 52,
    },
};

/// A change of the breaker that is to be reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerChange {
    /// The breaker opened.
    Opened,
    /// The breaker closed, after it was open for this duration.
    Closed(Duration),
}

/// The breaker in front of a link.
pub struct BreakerGuard {
    /// The link behind it.
    pub link: Arc<RedisLink>,
    breaker: Mutex<Breaker>,
    /// Whether it was open at the last look, and when it turned so or was created.
    turned: Mutex<(bool, Instant)>,
    /// Notified when the breaker is likely to have turned.
    turning: Notify,
    /// The last call or probe that failed.
    last_failure: Mutex<Option<(Instant, String)>>,
}

impl BreakerGuard {
    /// A closed breaker.
    pub fn new(link: Arc<RedisLink>) -> BreakerGuard {
        BreakerGuard {
            link,
            breaker: Mutex::new(Breaker::new(Instant::now())),
            turned: Mutex::new((false, Instant::now())),
            turning: Notify::new(),
            last_failure: Mutex::new(None),
        }
    }

    /// Whether requests call Redis.
    pub fn is_closed(&self) -> bool {
        self.breaker.lock().is_closed() && self.link.is_up()
    }

    /// When the breaker opened, or `None` if it is closed or that was not noticed yet.
    pub fn opened(&self) -> Option<Instant> {
        let (is_open, since) = *self.turned.lock();
        is_open.then_some(since)
    }

    /// The state of the breaker, for operators.
    pub fn facts(&self) -> BreakerFacts {
        // Without a connection, the breaker opens at the next look.
        let state = match (self.breaker.lock().state(), self.link.is_up()) {
            (BreakerState::Closed, false) => BreakerState::Open,
            (state, _) => state,
        };
        let last_failure = self.last_failure.lock().clone();
        let (at, last_failure) = last_failure.unzip();
        BreakerFacts {
            state,
            since_seconds: self.turned.lock().1.elapsed().as_secs_f64(),
            last_failure,
            last_failure_age_seconds: at.map(|at| at.elapsed().as_secs_f64()),
        }
    }

    /// Why calls are not sent while the breaker is open: there is no connection, or too many calls failed like the last one.
    pub fn reason(&self) -> Option<String> {
        let last_failure = || self.last_failure.lock().clone().map(|(_, error)| error);
        let trouble = self.link.trouble().map(|error| error.to_string());
        trouble.or_else(last_failure)
    }

    /// Fails at once while the breaker is open.
    pub fn require(&self) -> Result<(), LinkError> {
        self.link.require()?;
        if self.breaker.lock().is_closed() {
            return Ok(());
        }
        let why = "too many calls failed; calls resume when a probe of Redis succeeds";
        Err(LinkError::NoConnection(why.into()))
    }

    /// Whether the server must not be used because it counts by another calendar.
    pub fn is_foreign(&self) -> bool {
        let trouble = self.link.trouble();
        matches!(trouble.as_deref(), Some(StoreError::OtherCalendar(_)))
    }

    /// Records a charge's result, and whether it wrote if it has a reply. Those of a cluster are not recorded: each master's line is
    /// dropped after its own timeouts and then fails at once, while the keys of the other masters continue; the breaker opens when
    /// there is no line at all.
    pub fn record<T>(&self, result: &Result<T, LinkError>, wrote: impl FnOnce(&T) -> bool) {
        self.note_failure(result);
        if self.link.is_cluster() {
            return;
        }
        let mut breaker = self.breaker.lock();
        let was_closed = breaker.is_closed();
        breaker.record(outcome(result, wrote), Instant::now());
        if was_closed && !breaker.is_closed() {
            self.turning.notify_one();
        }
    }

    fn note_failure<T>(&self, result: &Result<T, LinkError>) {
        if let Err(error) = result {
            *self.last_failure.lock() =
                Some((Instant::now(), StoreError::from(error.clone()).to_string()));
        }
    }

    /// Records that the server refuses all writes, if this error of another call shows it: charges, which are recorded in any case, may
    /// be seldom. Masters of a cluster note it themselves.
    pub fn note_refusal(&self, error: &LinkError) {
        if matches!(error, LinkError::RefusedWrites(_)) {
            self.record::<()>(&Err(error.clone()), |()| true);
        }
    }

    /// Has the breaker checked now, unless it is known to be open. For a request that Redis did not decide.
    pub fn look_soon(&self) {
        if self.opened().is_none() {
            self.turning.notify_one();
        }
    }

    /// Waits until the breaker should be checked before its next regular check. For the task that calls [`BreakerGuard::look`].
    pub async fn turning(&self) {
        self.turning.notified().await;
    }

    /// Checks the connection, probes if that is due, and returns whether the breaker turned since the last call. Called by one
    /// task, repeatedly.
    pub async fn look(&self) -> Option<BreakerChange> {
        let now = Instant::now();
        let due = {
            let (mut breaker, is_up) = (self.breaker.lock(), self.link.is_up());
            if !is_up {
                breaker.disconnected(now);
            }
            is_up && breaker.begin_probe(now)
        };
        if due {
            let outcome = self.probe().await;
            let jitter = fastrand::f64();
            self.breaker.lock().probed(outcome, Instant::now(), jitter);
        }
        let mut turned = self.turned.lock();
        let is_open = !self.breaker.lock().is_closed();
        let (was_open, since) = *turned;
        if is_open == was_open {
            return None;
        }
        Some(if is_open {
            *turned = (true, now);
            BreakerChange::Opened
        } else {
            *turned = (false, Instant::now());
            BreakerChange::Closed(since.elapsed())
        })
    }

    /// Sends one write and a pretended charge, because a server that answers but rejects these is of no use; a cluster, whose
    /// masters may differ, gets a `PING`.
    async fn probe(&self) -> CallOutcome {
        if self.link.is_cluster() {
            return outcome(&self.link.ask(&redis::cmd("PING")).await, |_| false);
        }
        let name = self.link.names.probe();
        // The kind of write that a charge makes, which may be the only one that is refused.
        let write = Cmd::hset(&name, "n", 1);
        let write = [Cmd::del(&name), write, Cmd::pexpire(&name, PROBE_LIVES_MS)];
        let write = pipeline(write);
        let results = self.link.ask_each(&write).await.into_iter();
        let mut result = results.collect::<Result<Vec<_>, _>>().map(drop);
        if result.is_ok() {
            let (mut argument, deadline) = (ChargeArgument::new(0, 1), self.link.deadline());
            argument.push(&PRETENDED);
            let (names, argument) = ([&name, &name], argument.packed());
            let ran = self.link.run(&CHARGE, &names, &argument, deadline);
            result = ran.await.map(|_: Value| ());
        }
        // What opened the breaker may be over, such as the loss of a connection; this is why it remains open.
        self.note_failure(&result);
        outcome(&result, |_| true)
    }
}

fn outcome<T>(result: &Result<T, LinkError>, wrote: impl FnOnce(&T) -> bool) -> CallOutcome {
    match result {
        Ok(reply) if wrote(reply) => CallOutcome::Wrote,
        Ok(_) => CallOutcome::Read,
        Err(LinkError::RefusedWrites(_)) => CallOutcome::RefusedWrites,
        Err(LinkError::Lost(_) | LinkError::NoConnection(_)) => CallOutcome::Lost,
        Err(LinkError::Refused(_) | LinkError::Unreadable(_)) => CallOutcome::Refused,
    }
}
