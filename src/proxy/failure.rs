//! Why a forwarding did not end with a whole answer: whose fault that was, whether another attempt may help, what the client gets
//! instead and whether the units go back.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Instant;

use super::client::Client;
use super::exchange::{Ending, Forwarding, RefundReason};
use super::gate::Gate;
use crate::policy::rejection::{Malformed, Rejection};

/// The end of an attempt, or of the whole forwarding, before the client had its answer.
#[derive(Debug)]
pub struct Failure {
    /// Whose fault it was.
    pub fault: Fault,
    /// What happened, for the access log.
    cause: String,
}

/// Whose fault a failure was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The client's.
    Client(ClientFault),
    /// The upstream's.
    Server(ServerFault),
    /// The gateway's own.
    Gateway,
}

/// What a client did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientFault {
    /// It closed its connection, or reset its stream.
    Gone,
    /// It took too little of the answer for too long.
    Slow,
    /// Its body did not come in time.
    Late,
    /// Its body breaks the rules of its framing.
    Malformed,
    /// Its body is larger than `limits.body_bytes`.
    TooLarge,
}

/// What a server did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerFault {
    /// No connection was made: nothing was sent.
    Unreached,
    /// It answered that it has not looked at the request: REFUSED_STREAM, or a GOAWAY that leaves it out (RFC 9113 section 8.7). That
    /// is how servers stop and how they keep their load down; it is no fault.
    Unprocessed,
    /// It asked for HTTP/1.1 on a connection over HTTP/2.
    WantsHttp1,
    /// It did not agree to HTTP/2 where nothing else is to be spoken.
    NotHttp2,
    /// What it sent is no HTTP/2.
    InvalidHttp2,
    /// The connection or the stream ended before the answer did.
    Broken {
        /// Nothing of an answer had come: on a connection that had been used before, it may have ended before the request.
        unanswered: bool,
        /// The server ended the stream, with a frame that names a reason.
        by_reset: bool,
    },
    /// It sent nothing for too long.
    Silent,
    /// It took nothing of the request's body for too long.
    Blocked,
    /// Its answer cannot be read in one way only.
    Malformed,
    /// Its status is one of a server that cannot serve now, where another one may.
    Away,
    /// Its status is one that means that the gateway or the upstream failed.
    Status,
    /// The exchange took longer than the upstream's `timeouts.total`.
    OverTime,
}

impl Failure {
    /// By the client.
    pub fn client(fault: ClientFault, cause: impl fmt::Display) -> Failure {
        Failure::new(Fault::Client(fault), format!("client: {cause}"))
    }

    /// By the upstream.
    pub fn server(fault: ServerFault, cause: impl fmt::Display) -> Failure {
        Failure::new(Fault::Server(fault), format!("upstream: {cause}"))
    }

    /// By an upstream whose connection ended, with nothing of an answer before it where it is `unanswered`.
    pub fn broken(unanswered: bool, cause: impl fmt::Display) -> Failure {
        let by_reset = false;
        let fault = ServerFault::Broken {
            unanswered,
            by_reset,
        };
        Failure::server(fault, cause)
    }

    /// By the gateway.
    pub fn gateway(cause: impl fmt::Display) -> Failure {
        Failure::new(Fault::Gateway, format!("gateway: {cause}"))
    }

    /// The client takes nothing of the answers before this one.
    pub fn given_up() -> Failure {
        Failure::client(ClientFault::Slow, "it does not read")
    }

    /// The upstream took too long.
    pub fn over_time() -> Failure {
        let cause = "it took longer than timeouts.total";
        Failure::server(ServerFault::OverTime, cause)
    }

    fn new(fault: Fault, cause: String) -> Failure {
        Failure { fault, cause }
    }

    /// The same failure with more about it.
    pub fn with(mut self, more: impl fmt::Display) -> Failure {
        self.cause = format!("{}; {more}", self.cause);
        self
    }

    /// Whether the server is to blame: it was not reached, broke off, came too late or answered that it is away. One that answered did
    /// its part, whatever the answer was, and one that waits for a request's body waits for the client.
    pub fn is_servers(&self, client: &Client<'_>) -> bool {
        match self.fault {
            Fault::Server(ServerFault::Status | ServerFault::OverTime) => false,
            Fault::Server(ServerFault::Silent) => client.is_body_done(),
            Fault::Server(_) => true,
            Fault::Client(_) | Fault::Gateway => false,
        }
    }

    /// What became of the request, on a connection that was `reused` or new.
    pub fn fate(&self, reused: bool) -> Fate {
        match self.fault {
            Fault::Server(ServerFault::Unprocessed) => Fate::Unprocessed,
            Fault::Server(ServerFault::WantsHttp1 | ServerFault::InvalidHttp2) => Fate::Stale,
            Fault::Server(ServerFault::Broken {
                unanswered: true, ..
            }) if reused => Fate::Stale,
            Fault::Server(_) | Fault::Client(_) | Fault::Gateway => Fate::Unknown,
        }
    }

    /// Whether another server may do better with a request that nothing depends on but its answer. One that takes too long would
    /// take as long again.
    pub fn is_worth_another(&self) -> bool {
        matches!(
            self.fault,
            Fault::Server(
                ServerFault::Broken { .. }
                    | ServerFault::WantsHttp1
                    | ServerFault::InvalidHttp2
                    | ServerFault::NotHttp2
                    | ServerFault::Away
            )
        )
    }

    /// Whether this is how it looks when a server does not know HTTP/2: what it sent was no HTTP/2, or it closed.
    pub fn may_be_other_protocol(&self) -> bool {
        matches!(
            self.fault,
            Fault::Server(
                ServerFault::InvalidHttp2
                    | ServerFault::Broken {
                        by_reset: false,
                        ..
                    }
            )
        )
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.cause)
    }
}

/// What became of a request whose attempt failed, as far as its sending it again goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Its connection had ended before it was used, or was none for it, which says nothing of the server.
    Stale,
    /// The server has not looked at it.
    Unprocessed,
    /// It may have been acted on.
    Unknown,
}

/// Decides how a failed forwarding ends: what the client gets and whether the units go back.
pub(super) async fn settle(
    gate: &Gate,
    client: &Client<'_>,
    failure: &Failure,
    forwarding: &mut Forwarding,
) {
    let hits = &gate.metrics.limit_hits;
    match failure.fault {
        Fault::Client(ClientFault::Slow) => hits.with_label_values(&["response_rate"]).inc(),
        Fault::Client(ClientFault::Late) => hits.with_label_values(&["request_read"]).inc(),
        _ => {}
    }
    let header_passed = header_passed(client);
    let (ending, reason) = match (refusal(failure, client, forwarding), failure.fault) {
        (Some(rejection), _) if !header_passed => {
            (Ending::Rejected(rejection), Some(RefundReason::Body))
        }
        (_, Fault::Client(fault)) => (Ending::ClientClosed, hung_up(fault, forwarding)),
        _ if header_passed => {
            let now = Instant::now();
            forwarding.client_waits.note(client.blocked(), now);
            let waited_for_client = waited_for_client(failure, forwarding, now);
            if !waited_for_client && failure.is_servers(client) {
                forwarding.note_failed(gate);
            }
            let reason = (!waited_for_client).then_some(RefundReason::Cut);
            (Ending::Cut, reason)
        }
        _ => (
            Ending::Rejected(Rejection::Internal),
            Some(RefundReason::Failed),
        ),
    };
    forwarding.ending = Some(ending);
    forwarding.leave();
    if let Some(reason) = reason {
        forwarding.refund(reason).await;
    }
}

/// The refusal of a request for its body, if that is why it failed.
fn refusal(failure: &Failure, client: &Client<'_>, forwarding: &Forwarding) -> Option<Rejection> {
    match failure.fault {
        Fault::Client(ClientFault::TooLarge) => Some(Rejection::PayloadTooLarge),
        Fault::Client(ClientFault::Late) => Some(Rejection::BadRequest(Malformed::Late)),
        // Frames of HTTP/2 behind a whole request are not part of it.
        Fault::Client(ClientFault::Malformed)
            if !(client.is_http2() && forwarding.was_sent() && forwarding.request_whole) =>
        {
            Some(Rejection::BadRequest(Malformed::Framing))
        }
        // An upstream that sends nothing while it has not got the whole body waits for the client.
        Fault::Server(ServerFault::Silent) if !client.is_body_done() => {
            Some(Rejection::BadRequest(Malformed::Late))
        }
        Fault::Client(_) | Fault::Server(_) | Fault::Gateway => None,
    }
}

/// The reason to refund a request whose client hung up, if there is one.
fn hung_up(fault: ClientFault, forwarding: &Forwarding) -> Option<RefundReason> {
    let slow = || {
        let waited = forwarding.since.elapsed();
        let unanswered = forwarding.header_after.is_none() && fault != ClientFault::Slow;
        unanswered && waited > forwarding.upstream.timeouts.slow
    };
    match forwarding.was_sent() {
        false => Some(RefundReason::Unsent),
        true => slow().then_some(RefundReason::Slow),
    }
}

/// Whether the answer was cut because of the client: the gateway was waiting for it when the upstream broke off, or
/// the answer would still have had time without such waits.
fn waited_for_client(failure: &Failure, forwarding: &Forwarding, now: Instant) -> bool {
    if failure.fault == Fault::Server(ServerFault::OverTime) {
        let by_client = forwarding.client_waits.in_all();
        let by_upstream = forwarding.since.elapsed().saturating_sub(by_client);
        by_upstream <= forwarding.upstream.timeouts.total
    } else {
        forwarding.client_waits.was_waiting(now)
    }
}

/// What ended the request, if its client ended it before the request is written to an upstream. Over HTTP/1 only requests
/// without a body to come are checked, because the check would read from the body.
pub(super) async fn gone_before(client: &mut Client<'_>) -> Option<Failure> {
    if !client.is_http2() && !client.is_body_done() {
        return None;
    }
    match look_at(client.gone()).await {
        Poll::Ready(gone) => Some(gone),
        Poll::Pending => None,
    }
}

/// Polls once.
pub(super) async fn look_at<F: Future>(future: F) -> Poll<F::Output> {
    let mut future = pin!(future);
    poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await
}

/// Whether the head of an answer has gone to the client.
pub(super) fn header_passed(client: &Client<'_>) -> bool {
    client.status().is_some()
}
