//! One server of an upstream: its address, its requests in flight, its state.

use std::hash::{BuildHasher as _, Hash, RandomState};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use http::HeaderValue;
use parking_lot::Mutex;

use crate::policy::address;
use crate::policy::choice::identity;
use crate::policy::server_health::{
    Ejection, HealthChange, HealthCheckResult, ServerHealth, Thresholds, Trial,
};

/// The result of the last request to a server, or its last check.
const UNTRIED: u8 = 0;
const ANSWERED: u8 = 1;
const FAILED: u8 = 2;

/// A number for a value, as SipHash with a key of this process makes it: no one can choose values that have the same.
pub(super) fn number(value: impl Hash) -> u64 {
    static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    KEY.hash_one(value)
}

/// A server by its name and one of the name's addresses.
#[derive(Debug)]
pub struct Server {
    /// The configured `host:port`, also sent in `Host`.
    pub name: String,
    /// The name as a header value.
    pub authority: HeaderValue,
    /// The address.
    pub address: SocketAddr,
    /// Identifies the server in the choice by key.
    pub(super) identity: u64,
    /// Identifies it among those that connections are kept to.
    pub(super) number: u64,
    in_flight: AtomicU64,
    /// Whether HTTP/2 must not be used: the server required HTTP/1.1, or sent invalid HTTP/2.
    http1_only: AtomicBool,
    /// [`UNTRIED`], [`ANSWERED`] or [`FAILED`].
    last: AtomicU8,
    /// Whether it was checked.
    was_checked: AtomicBool,
    /// Whether `health` holds anything against it: usually not, and then requests need no lock.
    blemished: AtomicBool,
    health: Mutex<ServerHealth>,
}

impl Server {
    /// A new server, which counts as healthy.
    pub(super) fn new(name: &str, address: SocketAddr) -> Server {
        Server {
            identity: identity(format!("{name} {address}")),
            number: number((name, address)),
            // Checked configurations contain only valid values.
            authority: HeaderValue::try_from(name).unwrap_or(HeaderValue::from_static("")),
            name: name.to_owned(),
            address,
            in_flight: AtomicU64::new(0),
            http1_only: AtomicBool::new(false),
            last: AtomicU8::new(UNTRIED),
            was_checked: AtomicBool::new(false),
            blemished: AtomicBool::new(false),
            health: Mutex::default(),
        }
    }

    /// The address, for logs and metrics.
    pub fn label(&self) -> String {
        self.address.to_string()
    }

    /// Its name without the port, which its certificate must contain.
    pub fn host(&self) -> &str {
        address::host_of(&self.name)
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Whether neither checks nor requests have taken it out.
    pub fn is_up(&self) -> bool {
        if !self.blemished.load(Ordering::Acquire) {
            return true;
        }
        let health = self.health.lock();
        !health.is_unhealthy() && !health.is_ejected()
    }

    /// Whether the last request or check was answered; `None` if nothing was sent to it.
    pub fn has_answered(&self) -> Option<bool> {
        match self.last.load(Ordering::Relaxed) {
            UNTRIED => None,
            last => Some(last == ANSWERED),
        }
    }

    /// Notes the last result. Most are equal to the one before, and then no shared memory is written.
    fn note_last(&self, last: u8) {
        if self.last.load(Ordering::Relaxed) != last {
            self.last.store(last, Ordering::Relaxed);
        }
    }

    /// Whether HTTP/2 must not be used, whatever it agrees to.
    pub(super) fn is_http1_only(&self) -> bool {
        self.http1_only.load(Ordering::Relaxed)
    }

    /// Notes that HTTP/2 must not be used; returns whether this is new.
    pub(super) fn wants_http1(&self) -> bool {
        !self.http1_only.swap(true, Ordering::Relaxed)
    }

    /// Whether a request may be sent to it now, also as a trial.
    pub(super) fn is_usable(&self, now: Instant) -> bool {
        !self.blemished.load(Ordering::Acquire) || self.health.lock().is_usable(now)
    }

    /// Notes that it gets a request, which is a trial if requests have ejected it.
    fn assigned(&self) -> Option<Trial> {
        match self.blemished.load(Ordering::Acquire) {
            false => None,
            true => self.health.lock().assigned(),
        }
    }

    /// Whether it is one of `servers`.
    pub(super) fn is_among(self: &Arc<Server>, servers: &[Arc<Server>]) -> bool {
        servers.iter().any(|other| Arc::ptr_eq(self, other))
    }

    /// Notes an answer that has begun.
    pub(super) fn answered(&self) -> Option<HealthChange> {
        self.note_last(ANSWERED);
        self.judge_blemished(ServerHealth::answered)
    }

    /// Notes a request that it served.
    pub(super) fn served(&self) -> Option<HealthChange> {
        self.judge_blemished(ServerHealth::served)
    }

    /// Judges it if something is held against it. Nearly all requests need no lock.
    fn judge_blemished(
        &self,
        judge: fn(&mut ServerHealth) -> Option<HealthChange>,
    ) -> Option<HealthChange> {
        match self.blemished.load(Ordering::Acquire) {
            true => self.judge(judge),
            false => None,
        }
    }

    /// Notes a check. The first one decides by itself, since the server may have been out for long.
    pub(super) fn checked(
        &self,
        checked: HealthCheckResult,
        thresholds: Thresholds,
    ) -> Option<HealthChange> {
        self.note_last(match checked {
            HealthCheckResult::Passed => ANSWERED,
            HealthCheckResult::Failed => FAILED,
        });
        let thresholds = match self.was_checked.swap(true, Ordering::Relaxed) {
            true => thresholds,
            false => Thresholds {
                unhealthy_after: NonZeroU32::MIN,
                ..thresholds
            },
        };
        self.judge(|health| health.checked(checked, thresholds))
    }

    /// Notes that checks are off.
    pub(super) fn unchecked(&self) {
        if self.blemished.load(Ordering::Acquire) {
            self.judge(ServerHealth::unchecked);
        }
    }

    /// Applies a change of its state.
    pub(super) fn judge<T>(&self, note: impl FnOnce(&mut ServerHealth) -> T) -> T {
        let mut health = self.health.lock();
        let change = note(&mut health);
        let blemished = !health.is_unblemished();
        self.blemished.store(blemished, Ordering::Release);
        change
    }
}

/// A request's place among those in flight at a server, released on drop.
#[derive(Debug)]
pub struct Assignment {
    /// The server.
    pub server: Arc<Server>,
    trial: Option<Trial>,
}

impl Assignment {
    pub(super) fn to(server: &Arc<Server>) -> Assignment {
        server.in_flight.fetch_add(1, Ordering::Relaxed);
        Assignment {
            server: server.clone(),
            trial: server.assigned(),
        }
    }

    /// Notes that the server failed the request.
    pub(super) fn failed(&self, ejection: Ejection) -> Option<HealthChange> {
        let (server, trial) = (&self.server, self.trial.as_ref());
        server.note_last(FAILED);
        server.judge(|health| health.failed(trial, ejection, Instant::now()))
    }
}

impl Drop for Assignment {
    fn drop(&mut self) {
        self.server.in_flight.fetch_sub(1, Ordering::Relaxed);
        if let Some(trial) = self.trial.take() {
            self.server.health.lock().ended(trial);
        }
    }
}
