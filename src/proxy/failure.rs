//! Why a forwarding ended without a complete answer: whose fault it was, whether another attempt may succeed, what the client
//! gets, and whether the units are refunded.

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
    /// The side at fault.
    pub fault: Fault,
    /// The cause, for the access log.
    cause: String,
}

/// The side at fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The client's.
    Client(ClientFault),
    /// The upstream's.
    Server(ServerFault),
    /// The gateway.
    Gateway,
}

/// A fault of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientFault {
    /// The client closed its connection, or reset its stream.
    Gone,
    /// The client read too little of the answer for too long.
    Slow,
    /// The body did not arrive in time.
    Late,
    /// The body violates the rules of its framing.
    Malformed,
    /// The body is larger than `limits.body_bytes`.
    TooLarge,
}

/// A fault of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerFault {
    /// No connection was made: nothing was sent.
    Unreached,
    /// The server reported that it has not processed the request: REFUSED_STREAM, or a GOAWAY that excludes it (RFC 9113 section
    /// 8.7). Servers do this to shut down and to limit their load; it is not held against them.
    Unprocessed,
    /// The server requested HTTP/1.1 on a connection over HTTP/2.
    WantsHttp1,
    /// The server did not agree to HTTP/2, which is the only configured protocol.
    NotHttp2,
    /// The server sent invalid HTTP/2.
    InvalidHttp2,
    /// The connection or the stream ended before the answer did.
    Broken {
        /// No part of an answer had arrived: a reused connection may have ended before the request.
        unanswered: bool,
        /// The server ended the stream with a frame that states a reason.
        by_reset: bool,
    },
    /// The server sent nothing for too long.
    Silent,
    /// The server read nothing of the request's body for too long.
    Blocked,
    /// The answer cannot be read in one way only.
    Malformed,
    /// The status means that this server is temporarily unavailable, and another one may not be.
    Away,
    /// The status means that the gateway or the upstream failed.
    Status,
    /// The exchange took longer than the upstream's `timeouts.total`.
    OverTime,
}

impl Failure {
    /// A failure of the client.
    pub fn client(fault: ClientFault, cause: impl fmt::Display) -> Failure {
        Failure::new(Fault::Client(fault), format!("client: {cause}"))
    }

    /// A failure of the upstream.
    pub fn server(fault: ServerFault, cause: impl fmt::Display) -> Failure {
        Failure::new(Fault::Server(fault), format!("upstream: {cause}"))
    }

    /// A failure of an upstream whose connection ended, with no part of an answer before it if `unanswered`.
    pub fn broken(unanswered: bool, cause: impl fmt::Display) -> Failure {
        let by_reset = false;
        let fault = ServerFault::Broken {
            unanswered,
            by_reset,
        };
        Failure::server(fault, cause)
    }

    /// A failure of the gateway.
    pub fn gateway(cause: impl fmt::Display) -> Failure {
        Failure::new(Fault::Gateway, format!("gateway: {cause}"))
    }

    /// The client does not read the answers before this one.
    pub fn given_up() -> Failure {
        Failure::client(ClientFault::Slow, "does not read its answers")
    }

    /// The upstream took too long.
    pub fn over_time() -> Failure {
        let cause = "took longer than timeouts.total";
        Failure::server(ServerFault::OverTime, cause)
    }

    fn new(fault: Fault, cause: String) -> Failure {
        Failure { fault, cause }
    }

    /// The same failure with an addition to its cause.
    pub fn with(mut self, more: impl fmt::Display) -> Failure {
        self.cause = format!("{}; {more}", self.cause);
        self
    }

    /// Whether the server is to blame: it was not reached, broke off, was too late or reported that it is unavailable. A server
    /// that answered is not, whatever the answer was, nor one that waits for a request's body, because it waits for the client.
    pub fn is_servers(&self, client: &Client<'_>) -> bool {
        match self.fault {
            Fault::Server(ServerFault::Status | ServerFault::OverTime) => false,
            Fault::Server(ServerFault::Silent) => client.is_body_done(),
            Fault::Server(_) => true,
            Fault::Client(_) | Fault::Gateway => false,
        }
    }

    /// The fate of the request on a connection that was `reused` or new.
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

    /// Whether another server may succeed, for an idempotent request. A request that takes too long would take as long again.
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

    /// Whether the failure indicates that the server does not support HTTP/2: it sent invalid HTTP/2, or closed the connection.
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

/// The fate of a request after a failed attempt, which decides whether it may be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The connection had ended before use, or did not fit the request, which is not the server's fault.
    Stale,
    /// The server has not processed the request.
    Unprocessed,
    /// The server may have acted on the request.
    Unknown,
}

/// Decides how a failed forwarding ends: the client's answer, and whether the units are refunded.
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

/// The refusal of a request because of its body, if that is why it failed.
fn refusal(failure: &Failure, client: &Client<'_>, forwarding: &Forwarding) -> Option<Rejection> {
    match failure.fault {
        Fault::Client(ClientFault::TooLarge) => Some(Rejection::PayloadTooLarge),
        Fault::Client(ClientFault::Late) => Some(Rejection::BadRequest(Malformed::Late)),
        // HTTP/2 frames after a complete request are not part of it.
        Fault::Client(ClientFault::Malformed)
            if !(client.is_http2() && forwarding.was_sent() && forwarding.request_whole) =>
        {
            Some(Rejection::BadRequest(Malformed::Framing))
        }
        // An upstream that sends nothing before it has the whole body waits for the client.
        Fault::Server(ServerFault::Silent) if !client.is_body_done() => {
            Some(Rejection::BadRequest(Malformed::Late))
        }
        Fault::Client(_) | Fault::Server(_) | Fault::Gateway => None,
    }
}

/// The reason to refund a request whose client disconnected, if there is one.
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

/// Whether the answer was cut because of the client: the gateway was waiting for the client when the upstream broke off, or the
/// answer would have been in time without such waits.
fn waited_for_client(failure: &Failure, forwarding: &Forwarding, now: Instant) -> bool {
    if failure.fault == Fault::Server(ServerFault::OverTime) {
        let by_client = forwarding.client_waits.in_all();
        let by_upstream = forwarding.since.elapsed().saturating_sub(by_client);
        by_upstream <= forwarding.upstream.timeouts.total
    } else {
        forwarding.client_waits.was_waiting(now)
    }
}

/// The client's failure, if the client ended the request before it is written to an upstream. Over HTTP/1 only requests without a
/// body to come are checked, because the check would read from the body.
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

/// Whether the head of an answer has been sent to the client.
pub(super) fn header_passed(client: &Client<'_>) -> bool {
    client.status().is_some()
}
