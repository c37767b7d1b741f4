//! What is known of one request between its head and its line in the access log.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::HeaderValue;
use jiff::Timestamp;
use pingora::upstreams::peer::HttpPeer;
use prometheus::IntGauge;

use super::admission::{Grant, Permit, Refusal, Steps};
use super::connection::allowance::Held;
use super::encoder::Encoder;
use super::gate::{Gate, Snapshot};
use super::origin::Origin;
use super::rates::Slot;
use super::upstreams::{Assignment, Server, Upstream};
use crate::policy::choice::identity;
use crate::policy::endpoint::Endpoint;
use crate::policy::enforcement::Waived;
use crate::policy::own_path::OwnPath;
use crate::policy::rate_limit::Standing;
use crate::policy::rejection::Rejection;
use crate::policy::request_id;
use crate::store::KeyEntry;

mod charged;

use charged::Charged;

/// Between two parts of a body, a shorter wait for the client says nothing: networks do that.
const LONG_WAIT_MIN: Duration = Duration::from_millis(100);
/// How long it may take to pass on what the system had received from the upstream while the client did not read: a few
/// megabytes.
const LATELY: Duration = Duration::from_secs(5);

/// A request under way.
#[derive(Debug)]
pub struct Exchange {
    /// The configuration it began with and keeps.
    pub snapshot: Arc<Snapshot>,
    /// When its header had been read, for durations.
    pub started: Instant,
    /// The same on the wall clock.
    pub time: Timestamp,
    /// Its id; empty until its head was looked at.
    pub request_id: HeaderValue,
    /// What browsers are told of TLS, if they are.
    pub hsts: Option<HeaderValue>,
    /// Where the request comes from, once its header has been looked at.
    pub origin: Option<Origin>,
    /// What is noted on its way through the steps, and after.
    pub steps: Steps,
    /// How far it has come.
    pub stage: Stage,
    /// Why it was not forwarded to its end, although it was answered.
    pub cause: Option<String>,
    _in_flight: InFlight,
}

/// How far a request has come.
#[derive(Debug)]
pub enum Stage {
    /// Not decided yet.
    Arrived,
    /// Answered by the gateway itself.
    Refused(Refusal),
    /// Served by the gateway itself.
    Served(Served),
    /// On its way to the upstream and back.
    Forwarding(Box<Forwarding>),
}

/// A request for one of the gateway's own paths.
#[derive(Debug)]
pub struct Served {
    /// The path.
    pub path: OwnPath,
    /// The key that asked, if one had to.
    pub key: Option<Arc<KeyEntry>>,
    /// How it ended, unless served whole.
    pub ending: Option<Ending>,
}

/// A permitted request with its upstream.
#[derive(Debug)]
pub struct Forwarding {
    /// The key that pays.
    pub key: Arc<KeyEntry>,
    /// The endpoint.
    pub endpoint: Arc<Endpoint>,
    /// Where the key stands, after a refund without the request.
    pub standing: Standing,
    /// What an enforced tier would have refused it for.
    pub waived: Option<Waived>,
    /// Units charged.
    pub units: u32,
    /// The upstream it goes to.
    pub upstream: Arc<Upstream>,
    /// Attempts so far.
    pub attempts: u32,
    /// Its place at the server of the present attempt.
    assignment: Option<Assignment>,
    /// The servers of the attempts before.
    tried: Vec<Arc<Server>>,
    /// Whether the next attempt is made on a connection of its own.
    anew: bool,
    /// When it was forwarded first.
    pub since: Instant,
    /// How long after that the upstream's header came.
    pub header_after: Option<Duration>,
    /// What compresses the answer's body, until that has ended.
    pub encoder: Option<Box<Encoder>>,
    /// What that holds.
    pub encoder_held: Option<Held>,
    /// Request body bytes passed on.
    pub request_body_bytes: usize,
    /// Whether that is all of the request's body.
    pub request_whole: bool,
    /// When the client let the gateway wait.
    pub client_waits: ClientWaits,
    /// How it ended, unless served whole.
    pub ending: Option<Ending>,
    charged: Charged,
    /// Its place among the key's requests under way, where those are limited.
    slot: Option<Slot>,
}

/// When the client's connection refused bytes for long.
///
/// What an upstream sent before it broke off is still passed on, so that the break comes to light only some time after
/// a client that had stopped reading has gone on.
#[derive(Debug)]
pub struct ClientWaits {
    /// Refused in the connection's requests before this one.
    before: Duration,
    /// Refused so far, over the whole connection.
    refused: Duration,
    /// When the last long wait was over.
    long_wait_over: Option<Instant>,
}

impl ClientWaits {
    /// For a request on a connection that has refused bytes for this long in all its requests before.
    pub fn of_connection(before: Duration) -> ClientWaits {
        ClientWaits {
            before,
            refused: before,
            long_wait_over: None,
        }
    }

    /// How long the client has let this request wait in all.
    pub fn in_all(&self) -> Duration {
        self.refused.saturating_sub(self.before)
    }

    /// Notes for how long the connection has refused bytes up to `now`.
    pub fn note(&mut self, refused: Duration, now: Instant) {
        if refused.saturating_sub(self.refused) >= LONG_WAIT_MIN {
            self.long_wait_over = Some(now);
        }
        self.refused = refused;
    }

    /// Whether an upstream that is seen to have broken off at `now` did so while the gateway waited for the client.
    pub fn was_waiting(&self, now: Instant) -> bool {
        self.long_wait_over
            .is_some_and(|over| now.saturating_duration_since(over) < LATELY)
    }
}

/// How a forwarded request ended otherwise than served whole.
#[derive(Debug)]
pub enum Ending {
    /// The gateway answered in the upstream's place.
    Rejected(Rejection),
    /// The upstream broke off after its header had been passed on.
    Cut,
    /// The client went away.
    ClientClosed,
}

/// Why units are given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefundReason {
    /// The request ended in a 500.
    Failed,
    /// The answer was cut.
    Cut,
    /// The client gave up on an upstream that had been silent for long.
    Slow,
    /// The request's body was refused while it was forwarded.
    Body,
    /// The client went before anything was sent to an upstream.
    Unsent,
}

impl RefundReason {
    fn as_str(self) -> &'static str {
        match self {
            RefundReason::Failed => "failed",
            RefundReason::Cut => "cut",
            RefundReason::Slow => "slow",
            RefundReason::Body => "body",
            RefundReason::Unsent => "unsent",
        }
    }
}

impl Exchange {
    /// A request whose header has just been read.
    pub fn begin(gate: &Gate) -> Exchange {
        Exchange {
            snapshot: gate.snapshot(),
            started: Instant::now(),
            time: gate.store.now(),
            request_id: HeaderValue::from_static(""),
            hsts: None,
            origin: None,
            steps: Steps::default(),
            stage: Stage::Arrived,
            cause: None,
            _in_flight: InFlight::enter(&gate.metrics.in_flight),
        }
    }

    /// Keeps the client's request id if it is acceptable and no API key of ours, else makes one.
    pub fn identify(&mut self, client_sent: Option<&[u8]>) {
        let prefix = &self.snapshot.config.keys.prefix;
        let kept = client_sent.and_then(|sent| request_id::kept(sent, prefix));
        let id = match kept {
            Some(kept) => HeaderValue::from_str(kept),
            None => HeaderValue::try_from(request_id::from_random(fastrand::u128(..))),
        };
        if let Ok(id) = id {
            self.request_id = id;
        }
    }

    /// The request id as text.
    pub fn request_id_str(&self) -> &str {
        self.request_id.to_str().unwrap_or_default()
    }

    /// The forwarding under way, if it has come so far.
    pub fn forwarding(&mut self) -> Option<&mut Forwarding> {
        match &mut self.stage {
            Stage::Forwarding(forwarding) => Some(forwarding),
            Stage::Arrived | Stage::Refused(_) | Stage::Served(_) => None,
        }
    }
}

impl Served {
    /// About to be served.
    pub fn new(path: OwnPath, key: Option<Arc<KeyEntry>>) -> Served {
        Served {
            path,
            key,
            ending: None,
        }
    }
}

impl Forwarding {
    /// Begins with a permit; its receipt is kept until it is refunded. `client_blocked` is how long the client's
    /// connection has refused bytes so far.
    pub fn begin(gate: &Arc<Gate>, permit: Permit, client_blocked: Duration) -> Forwarding {
        let key = permit.key().clone();
        let endpoint = permit.endpoint().clone();
        let (standing, waived) = (permit.standing(), permit.waived());
        let Grant {
            receipt,
            upstream,
            slot,
        } = permit.into_grant();
        Forwarding {
            key,
            endpoint,
            standing,
            waived,
            units: receipt.units,
            upstream,
            attempts: 0,
            assignment: None,
            tried: Vec::new(),
            anew: false,
            since: Instant::now(),
            header_after: None,
            encoder: None,
            encoder_held: None,
            request_body_bytes: 0,
            request_whole: false,
            client_waits: ClientWaits::of_connection(client_blocked),
            // Until it has ended otherwise.
            ending: Some(Ending::Cut),
            charged: Charged::new(gate.clone(), receipt),
            slot,
        }
    }

    /// Begins an attempt, at another server than those before where there is one. Returns the server's description, and whether the
    /// attempt is made on a connection of its own.
    pub fn attempt(&mut self) -> Option<(Box<HttpPeer>, bool)> {
        self.attempts += 1;
        self.header_after = None;
        (self.encoder, self.encoder_held) = (None, None);
        self.request_body_bytes = 0;
        if let Some(before) = self.assignment.take() {
            self.tried.push(before.server().clone());
        }
        let key = identity(self.key.record.id.as_str());
        let assignment = self.upstream.assign(key, &self.tried)?;
        let left = self
            .upstream
            .timeouts
            .total
            .saturating_sub(self.since.elapsed());
        let peer = Box::new(self.upstream.peer(assignment.server(), left));
        self.assignment = Some(assignment);
        Some((peer, self.anew))
    }

    /// Asks for a connection of its own in further attempts: where one that was kept had ended, so may all others of the same server.
    pub fn connect_anew(&mut self) {
        self.anew = true;
    }

    /// The server of the present attempt.
    pub fn server(&self) -> Option<&Arc<Server>> {
        self.assignment.as_ref().map(Assignment::server)
    }

    /// Whether another attempt is allowed: there is one left, and time for it.
    pub fn may_retry(&self) -> bool {
        self.attempts <= self.upstream.retries && !self.is_over_time()
    }

    /// The same, at a server that has not had the request.
    pub fn may_try_another(&self) -> bool {
        let another = |server| self.upstream.has_another(server, &self.tried);
        self.may_retry() && self.server().is_some_and(another)
    }

    /// Notes that the present server did its part.
    pub fn note_served(&self) {
        if let Some(server) = self.server() {
            self.upstream.note_served(server);
        }
    }

    /// Notes that it did not.
    pub fn note_failed(&self, gate: &Gate) {
        if let Some(server) = self.server() {
            self.upstream.note_failed(server, &gate.metrics);
        }
    }

    /// Says that the upstream has nothing more to do for the request: the key may have another one under way. Called
    /// before the end of an answer is written, so that a client that has read it whole finds the place free.
    pub fn leave(&mut self) {
        self.slot = None;
    }

    /// Notes that the request is about to be written to a connection of the present server.
    pub fn note_sent(&mut self) {
        self.charged.note_sent();
    }

    /// Whether something of the request was sent, to any server.
    pub fn was_sent(&self) -> bool {
        self.charged.was_sent()
    }

    /// Gives the units back, without waiting for that, unless something of the request was sent.
    pub fn give_up_unsent(&mut self) {
        self.charged.give_up_unsent();
    }

    /// Gives the units back, once; a second call does nothing.
    pub async fn refund(&mut self, reason: RefundReason) {
        if let Some(used) = self.charged.refund(reason).await {
            self.standing.used = used;
        }
    }

    /// Whether the upstream has had more than `timeouts.total`.
    pub fn is_over_time(&self) -> bool {
        self.since.elapsed() > self.upstream.timeouts.total
    }

    /// The same without the time for which the client let the gateway wait.
    pub fn is_over_time_without(&self, waited: Duration) -> bool {
        self.since.elapsed().saturating_sub(waited) > self.upstream.timeouts.total
    }

    /// Whether the units were given back.
    pub fn refunded(&self) -> bool {
        self.charged.refunded()
    }
}

/// Counts a request as being answered while it lives, however it ends.
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
        // What the system had received meanwhile goes out.
        waits.note(Duration::from_millis(20 * 99 + 100), start + 2 * second);
        assert!(waits.was_waiting(start + 5 * second));
        assert!(!waits.was_waiting(start + 6 * second));
    }
}
