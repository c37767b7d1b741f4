//! A master of a cluster: the line to it, and whether it accepts writes.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redis::Cmd;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};

use crate::clock::lasting;
use crate::store::StoreError;
use crate::store::redis::wire::breaker::{Breaker, CallOutcome};
use crate::store::redis::wire::line::ServerLine;
use crate::store::redis::wire::preparation::write_nothing;
use crate::store::redis::wire::remedies::is_of_user;
use crate::store::redis::wire::request::LinkError;
use crate::store::redis::wire::slots::is_script;
use crate::store::redis::wire::topology::Address;

/// How often to check whether a new line is up.
pub(super) const AWAIT_LINES_EVERY: Duration = Duration::from_millis(2);
/// How long a denied command is reported after the last one.
const DENIAL_SHOWN: Duration = Duration::from_secs(10);

/// A master and the task that keeps the line to it.
pub(super) struct ClusterNode {
    /// Where it is.
    pub address: Address,
    /// The line to it.
    pub line: Arc<ServerLine>,
    task: AbortHandle,
    /// When a redirection last named it, or when it was found.
    pub redirected_to: Mutex<Instant>,
    refusals: Mutex<WriteRefusals>,
    /// When it last denied the user a command, and its error.
    denial: Mutex<Option<(Instant, String)>>,
    /// Since when it reports that its cluster does not serve, or `None` if it serves.
    failing_since: Mutex<Option<std::time::Instant>>,
}

/// Whether a master accepts writes.
struct WriteRefusals {
    /// Open while it does not. Only refusals of all writes are recorded: the line is dropped after lost calls, and a key whose calls are
    /// refused concerns no other.
    breaker: Breaker,
    /// When it last began to refuse them.
    since: std::time::Instant,
}

impl ClusterNode {
    /// A master whose `line` is kept by a new task.
    pub fn new(address: Address, line: Arc<ServerLine>) -> ClusterNode {
        let keep = lasting::task("master", line.clone(), async |line| line.keep().await);
        let since = std::time::Instant::now();
        let breaker = Breaker::new(since);
        ClusterNode {
            address,
            line,
            task: tokio::spawn(keep).abort_handle(),
            redirected_to: Mutex::new(Instant::now()),
            refusals: Mutex::new(WriteRefusals { breaker, since }),
            denial: Mutex::default(),
            failing_since: Mutex::default(),
        }
    }

    /// Notes whether it reports that its cluster serves. One that does not hear most masters serves no slot, whatever they report.
    pub fn note_cluster(&self, serves: bool) {
        let mut failing_since = self.failing_since.lock();
        match (serves, *failing_since) {
            (true, Some(since)) => {
                *failing_since = None;
                let failed_seconds = since.elapsed().as_secs_f64();
                tracing::warn!(master = %self.address, failed_seconds, "the master serves its slots again");
            }
            (false, None) => {
                *failing_since = Some(std::time::Instant::now());
                tracing::warn!(master = %self.address, "a master of the Redis cluster reports that its cluster does not serve");
            }
            (true, None) | (false, Some(_)) => {}
        }
    }

    /// Whether it reports that its cluster does not serve.
    pub fn is_failing(&self) -> bool {
        self.failing_since.lock().is_some()
    }

    /// Why it denies the user a command, if it did so a moment ago.
    pub fn denial(&self) -> Option<String> {
        let mut denial = self.denial.lock();
        denial.take_if(|(denied, _)| denied.elapsed() >= DENIAL_SHOWN);
        denial.as_ref().map(|(_, error)| error.clone())
    }

    fn note_denial(&self, error: &LinkError) {
        let error = StoreError::from(error.clone()).reason().to_owned();
        let before = self.denial.lock().replace((Instant::now(), error.clone()));
        if before.is_none() {
            tracing::warn!(master = %self.address, %error, "a master of the Redis cluster denies a command");
        }
    }

    /// Waits until a connection to it was made, or could not be made; at most until `deadline`.
    pub async fn tried(&self, deadline: Instant) {
        while !self.line.is_tried() && Instant::now() + AWAIT_LINES_EVERY < deadline {
            sleep(AWAIT_LINES_EVERY).await;
        }
    }

    /// Whether it is expected to serve its slots.
    pub fn serves(&self) -> bool {
        self.line.is_up() && !self.refuses_writes() && !self.is_failing()
    }

    /// Whether it is known to refuse all writes.
    pub fn refuses_writes(&self) -> bool {
        !self.refusals.lock().breaker.is_closed()
    }

    /// Since when it does not serve its slots, or `None` if it does.
    pub fn away_since(&self) -> Option<std::time::Instant> {
        let refusals = self.refusals.lock();
        let refusing_since = (!refusals.breaker.is_closed()).then_some(refusals.since);
        let failing_since = *self.failing_since.lock();
        let since = [self.line.down_since(), refusing_since, failing_since];
        since.into_iter().flatten().min()
    }

    /// Notes that it refuses all writes, or denies the user a script, if the error of a command shows it. Other commands that it denies are
    /// administration, without which a gateway can do.
    pub fn note(&self, error: &LinkError, command: &Cmd) {
        match error {
            LinkError::RefusedWrites(_) => {}
            LinkError::Refused(refusal)
                if is_script(command) && is_of_user(&refusal.to_string()) =>
            {
                return self.note_denial(error);
            }
            _ => return,
        }
        let mut refusals = self.refusals.lock();
        if refusals.breaker.is_closed() {
            refusals.since = std::time::Instant::now();
            let since = refusals.since;
            refusals.breaker.record(CallOutcome::RefusedWrites, since);
            drop(refusals);
            let error = StoreError::from(error.clone());
            tracing::warn!(master = %self.address, %error, "a master of the Redis cluster refuses writes");
        }
    }

    /// If that is due, asks a master that refuses writes for one that changes nothing.
    pub async fn probe(&self, deadline: Instant) {
        if !self
            .refusals
            .lock()
            .breaker
            .begin_probe(std::time::Instant::now())
        {
            return;
        }
        let accepts = self.line.query(&write_nothing(), deadline).await.is_ok();
        let outcome = match accepts {
            true => CallOutcome::Wrote,
            false => CallOutcome::RefusedWrites,
        };
        let mut refusals = self.refusals.lock();
        let now = std::time::Instant::now();
        refusals.breaker.probed(outcome, now, fastrand::f64());
        let refused_seconds = (now - refusals.since).as_secs_f64();
        drop(refusals);
        if accepts {
            tracing::warn!(master = %self.address, refused_seconds, "the master accepts writes again");
        }
    }
}

impl Drop for ClusterNode {
    fn drop(&mut self) {
        self.task.abort();
    }
}
