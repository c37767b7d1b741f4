//! The state of one request between its head and its line in the access log.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::HeaderValue;
use jiff::Timestamp;
use prometheus::IntGauge;

use super::admission::{AdmissionTrace, Grant, Permit, Refusal};
use super::client::Client;
use super::connection::allowance::Held;
use super::encoder::Encoder;
use super::failure::Failure;
use super::forward::{TRACEPARENT, X_API_KEY, X_REQUEST_ID};
use super::gate::{Gate, Snapshot};
use super::origin::Origin;
use super::rates::Slot;
use super::relay::connections::PlannedAttempt;
use super::trace::Recording;
use super::upstreams::{Assignment, Server, Upstream};
use crate::policy::choice::identity;
use crate::policy::endpoint::Endpoint;
use crate::policy::enforcement::ShadowViolation;
use crate::policy::own_path::OwnPath;
use crate::policy::rate_limit::QuotaStatus;
use crate::policy::rejection::Rejection;
use crate::policy::request_id;
use crate::store::KeyEntry;

mod charged;

pub use charged::{Charged, RefundReason};

/// A shorter wait for the client between two parts of a body does not count: networks cause those.
const LONG_WAIT_MIN: Duration = Duration::from_millis(100);
/// How long it may take to forward what the system had received from the upstream while the client did not read: a few megabytes.
const LATELY: Duration = Duration::from_secs(5);

/// A request in flight.
#[derive(Debug)]
pub struct Exchange {
    /// The configuration when it began, kept to its end.
    pub snapshot: Arc<Snapshot>,
    /// When its header had been read, for durations.
    pub started: Instant,
    /// The same on the wall clock.
    pub time: Timestamp,
    /// Its id.
    pub request_id: HeaderValue,
    /// The `Strict-Transport-Security` of its answer, if any.
    pub hsts: Option<HeaderValue>,
    /// Its origin.
    pub origin: Origin,
    /// The trace of its admission.
    pub admission_trace: AdmissionTrace,
    /// Why it was not forwarded completely, although it was answered.
    pub cause: Option<String>,
    _in_flight: InFlight,
}

/// The stage of a request, beside its [`Exchange`], which a forwarding reads.
pub enum Stage {
    /// Not decided yet.
    Arrived,
    /// Answered by the gateway with an error.
    Refused(Refusal),
    /// Served by the gateway itself.
    Served(Served),
    /// Being forwarded.
    Forwarding(Box<Forwarding>),
}

/// A request for a path that the gateway answers itself.
#[derive(Debug)]
pub struct Served {
    /// The path.
    pub path: OwnPath,
    /// The caller's key, if one is required.
    pub key: Option<Arc<KeyEntry>>,
    /// How it ended, unless served completely.
    pub ending: Option<Ending>,
}

/// A permitted request with its upstream.
pub struct Forwarding {
    /// The key that pays.
    pub key: Arc<KeyEntry>,
    /// The endpoint.
    pub endpoint: Arc<Endpoint>,
    /// The quota status of the key; after a refund without this request.
    pub quota_status: QuotaStatus,
    /// The limit of the tier that would have refused it if enforced.
    pub shadow_violation: Option<ShadowViolation>,
    /// Units charged.
    pub units: u32,
    /// The upstream.
    pub upstream: Arc<Upstream>,
    /// Attempts so far.
    pub attempts: u32,
    /// Its place at the server of the present attempt.
    assignment: Option<Assignment>,
    /// The servers of earlier attempts, except those in `asked`.
    tried: Vec<Arc<Server>>,
    /// The servers of earlier attempts that had a connection and did not act on the request: they may get it again.
    asked: Vec<Arc<Server>>,
    /// Whether further attempts use a new connection: if a kept one had ended, so may all others of the same server.
    pub anew: bool,
    /// When it was first forwarded.
    pub since: Instant,
    /// How long after that the upstream's header arrived.
    pub header_after: Option<Duration>,
    /// The encoder of the answer's body, until the body has ended.
    pub encoder: Option<Box<Encoder>>,
    /// The memory of the encoder.
    pub encoder_held: Option<Held>,
    /// Bytes of the request's body that were forwarded.
    pub request_body_bytes: usize,
    /// Whether they are the whole body of the request.
    pub request_whole: bool,
    /// Whether the upstream has ended its answer.
    pub answer_ended: bool,
    /// When the gateway waited for the client.
    pub client_waits: ClientWaits,
    /// How it ended, unless served completely.
    pub ending: Option<Ending>,
    /// The charged units.
    pub charged: Charged,
    /// Its slot among the key's requests in flight, if these are limited.
    slot: Option<Slot>,
}

/// When the client's connection refused bytes for long.
///
/// What an upstream sent before it broke off is still forwarded, so the break is noticed only some time after a client that had
/// stopped reading has continued.
#[derive(Debug)]
pub struct ClientWaits {
    /// Refused in earlier requests of the connection.
    before: Duration,
    /// Refused so far, over the whole connection.
    refused: Duration,
    /// When the last long wait ended.
    long_wait_over: Option<Instant>,
}

impl ClientWaits {
    /// For a request on a connection that has refused bytes for this long in earlier requests.
    fn of_connection(before: Duration) -> ClientWaits {
        ClientWaits {
            before,
            refused: before,
            long_wait_over: None,
        }
    }

    /// How long this request has waited for the client in all.
    pub fn in_all(&self) -> Duration {
        self.refused.saturating_sub(self.before)
    }

    /// Notes how long the connection has refused bytes up to `now`.
    pub fn note(&mut self, refused: Duration, now: Instant) {
        if refused.saturating_sub(self.refused) >= LONG_WAIT_MIN {
            self.long_wait_over = Some(now);
        }
        self.refused = refused;
    }

    /// Whether an upstream whose break is noticed at `now` broke off while the gateway waited for the client.
    pub fn was_waiting(&self, now: Instant) -> bool {
        self.long_wait_over
            .is_some_and(|over| now.saturating_duration_since(over) < LATELY)
    }
}

/// How an admitted request ended if not served completely.
#[derive(Debug)]
pub enum Ending {
    /// The gateway refused the request: it answered instead of the upstream, or cut the answer whose header had been forwarded.
    Rejected(Rejection),
    /// The upstream broke off after its header had been forwarded, or the gateway stopped.
    Cut,
    /// The client disconnected.
    ClientClosed,
}

impl Exchange {
    /// A request whose header has just been read.
    pub fn begin(gate: &Gate, client: &Client<'_>) -> Exchange {
        let snapshot = gate.snapshot();
        let (started, time) = (Instant::now(), gate.store.now());
        let (config, sent) = (&snapshot.config, &client.head.fields);
        let (sent_id, prefix) = (sent.first(&X_REQUEST_ID), &config.keys.prefix);
        let presented = sent_id.and_then(|_| sent.first(&X_API_KEY));
        let hsts = snapshot.hsts.as_ref();
        let recording = Recording::begin(sent.first(&TRACEPARENT), &config.tracing);
        Exchange {
            started,
            time,
            request_id: request_id::of(sent_id, prefix, presented, || fastrand::u128(..)),
            hsts: hsts.filter(|_| client.connection.is_encrypted).cloned(),
            origin: Origin::of(client, &config.listen.trusted_proxies),
            admission_trace: AdmissionTrace {
                recording,
                ..AdmissionTrace::default()
            },
            snapshot,
            cause: None,
            _in_flight: InFlight::enter(&gate.metrics.in_flight),
        }
    }

    /// The wall clock's time at `now`, an instant of the request.
    pub fn time_at(&self, now: Instant) -> Timestamp {
        let since = now.saturating_duration_since(self.started);
        self.time.saturating_add(since).unwrap_or(self.time)
    }

    /// The request id as text.
    pub fn request_id_str(&self) -> &str {
        self.request_id.to_str().unwrap_or_default()
    }
}

impl Forwarding {
    /// Begins with a permit that was given at `since`; its receipt is kept until it is refunded. `client_blocked` is how long the
    /// client's connection has refused bytes so far.
    pub fn begin(
        gate: &Arc<Gate>,
        permit: Permit,
        since: Instant,
        client_blocked: Duration,
    ) -> Forwarding {
        let Grant {
            receipt,
            upstream,
            slot,
        } = permit.grant;
        Forwarding {
            key: permit.key,
            endpoint: permit.endpoint,
            quota_status: permit.quota_status,
            shadow_violation: permit.shadow_violation,
            units: receipt.units,
            upstream,
            attempts: 0,
            assignment: None,
            tried: Vec::new(),
            asked: Vec::new(),
            anew: false,
            since,
            header_after: None,
            encoder: None,
            encoder_held: None,
            request_body_bytes: 0,
            request_whole: false,
            answer_ended: false,
            client_waits: ClientWaits::of_connection(client_blocked),
            // The initial value, replaced by any other end.
            ending: Some(Ending::Cut),
            charged: Charged::new(gate.clone(), receipt),
            slot,
        }
    }

    /// Begins an attempt, at another server than before if there is one, with a connection `alone` or a shared one. `None` if no server has
    /// an address.
    pub fn attempt(&mut self, alone: bool) -> Option<PlannedAttempt> {
        let now = Instant::now();
        self.attempts += 1;
        self.header_after = None;
        self.request_body_bytes = 0;
        if let Some(before) = self.assignment.take() {
            self.tried.push(before.server.clone());
        }
        let key = identity(self.key.record.id.as_bytes());
        let assignment = self.upstream.assign(key, &self.tried, &self.asked)?;
        let total = self.upstream.config.timeouts.total;
        let left = total.saturating_sub(now.saturating_duration_since(self.since));
        let server = assignment.server.clone();
        self.assignment = Some(assignment);
        Some(PlannedAttempt {
            upstream: self.upstream.clone(),
            server,
            connect_timeout: self.upstream.config.timeouts.connect.min(left),
            is_fresh: self.anew,
            is_alone: alone,
            now,
        })
    }

    /// Gives up the place at the present server, which has not acted on the request: it may get it again rather than a server that
    /// is out.
    pub fn release_server(&mut self) {
        let released = self.assignment.take();
        self.asked
            .extend(released.map(|place| place.server.clone()));
    }

    /// The server of the present attempt.
    pub fn server(&self) -> Option<&Arc<Server>> {
        self.assignment.as_ref().map(|place| &place.server)
    }

    /// The failure with the server of the present attempt.
    pub fn with_server(&self, failure: Failure) -> Failure {
        match self.server() {
            Some(server) => {
                failure.with(format_args!("server: {}", self.upstream.wire.url(server)))
            }
            None => failure,
        }
    }

    /// Whether another attempt is allowed: there is one left, and enough time.
    pub fn may_retry(&self) -> bool {
        self.attempts <= self.upstream.config.retries && self.has_time_left()
    }

    /// Whether `timeouts.total` is not over.
    pub fn has_time_left(&self) -> bool {
        self.since.elapsed() < self.upstream.config.timeouts.total
    }

    /// Whether another attempt is allowed at a server that has not had the request.
    pub fn may_try_another(&self) -> bool {
        let another = |server| self.upstream.has_another(server, &self.tried);
        self.may_retry() && self.server().is_some_and(another)
    }

    /// Notes that the present server began its answer.
    pub fn note_answered(&self) {
        if let Some(server) = self.server() {
            self.upstream.note_answered(server);
        }
    }

    /// Notes that the present server succeeded.
    pub fn note_served(&self) {
        if let Some(server) = self.server() {
            self.upstream.note_served(server);
        }
    }

    /// Notes that the present server failed, and why.
    pub fn note_failed(&self, why: &Failure, gate: &Gate) {
        if let Some(assignment) = &self.assignment {
            self.upstream.note_failed(assignment, why, &gate.metrics);
        }
    }

    /// Releases the key's slot: the upstream has nothing more to do for the request. Called before the end of an answer is
    /// written, so that a client that has read it completely finds the slot free.
    pub fn leave(&mut self) {
        self.slot = None;
    }

    /// Notes that the upstream has ended its answer.
    pub fn note_answer_ended(&mut self) {
        self.answer_ended = true;
        self.note_served();
        self.leave();
    }

    /// Refunds the units, once; a second call does nothing.
    pub async fn refund(&mut self, reason: RefundReason) {
        if let Some(used) = self.charged.refund(reason).await {
            self.quota_status.used = used;
        }
    }

    /// Whether the upstream has taken longer than `timeouts.total` at `now`, minus the time for which the gateway `waited` for the
    /// client.
    pub fn is_over_time_at(&self, now: Instant, waited: Duration) -> bool {
        let taken = now.saturating_duration_since(self.since);
        taken.saturating_sub(waited) > self.upstream.config.timeouts.total
    }
}

/// Counts a request as in flight while it exists, however it ends.
#[derive(Debug)]
struct InFlight(IntGauge);

impl InFlight {
    fn enter(gauge: &IntGauge) -> InFlight {
        gauge.inc();
        InFlight(gauge.clone())
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_long_and_recent_wait_makes_the_client_the_reason() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut waits = ClientWaits::of_connection(Duration::ZERO);
        assert!(!waits.was_waiting(start));
        for part in 1..=20 {
            waits.note(part * Duration::from_millis(99), start);
        }
        assert!(!waits.was_waiting(start), "many short waits");
        waits.note(Duration::from_millis(20 * 99 + 100), start + second);
        assert!(waits.was_waiting(start + second));
        // The system's received bytes are sent.
        waits.note(Duration::from_millis(20 * 99 + 100), start + 2 * second);
        assert!(waits.was_waiting(start + 5 * second));
        assert!(!waits.was_waiting(start + 6 * second));
    }

    #[test]
    fn what_a_client_delayed_in_earlier_requests_of_its_connection_is_not_of_this_request() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let mut waits = ClientWaits::of_connection(3 * second);
        assert_eq!(waits.in_all(), Duration::ZERO);
        waits.note(3 * second, now);
        assert_eq!(waits.in_all(), Duration::ZERO);
        assert!(!waits.was_waiting(now));
        waits.note(5 * second, now);
        assert_eq!(waits.in_all(), 2 * second);
    }
}
