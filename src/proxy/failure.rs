//! What to make of a failed forwarding: whose fault it was, whether another attempt may help, what the client is told and
//! whether the units go back.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Instant;

use pingora::protocols::ALPN;
use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, ErrorSource, ErrorType};

use super::client::Client;
use super::connection::BodyFault;
use super::exchange::{Ending, Forwarding, RefundReason};
use super::gate::Gate;
use crate::policy::rejection::{Malformed, Rejection};

/// The answer's status said that the upstream failed us.
pub(super) const UPSTREAM_STATUS: ErrorType = ErrorType::new("UpstreamStatus");
/// The same, and that another server may do better.
pub(super) const UPSTREAM_AWAY: ErrorType = ErrorType::new("UpstreamAway");
/// The server did not agree to HTTP/2 where nothing else is to be spoken.
pub(super) const NOT_HTTP2: ErrorType = ErrorType::new("UpstreamIsNotHttp2");
/// The exchange took longer than the upstream's `total`.
const TOTAL_TIMEOUT: ErrorType = ErrorType::new("UpstreamTotalTimeout");
/// The request's body grew over the limit.
pub(super) const BODY_TOO_LARGE: ErrorType = ErrorType::new("RequestBodyTooLarge");
/// Parts of a body that are read to find the error behind them. A stream's window holds 16 KiB.
const PARTS_MAX: usize = 1_024;
/// Kinds of errors of a chunked body that breaks the rules of RFC 9112 section 7.1.
const BROKEN_BODY: [ErrorType; 3] = [
    ErrorType::new("InvalidChunk"),
    ErrorType::new("InvalidTrailerEnd"),
    ErrorType::InvalidHTTPHeader,
];

/// Decides how a failed forwarding ends: what the client is told and whether the units go back.
pub(super) async fn settle(
    gate: &Gate,
    client: &mut Client<'_>,
    error: &Error,
    forwarding: &mut Forwarding,
) {
    let header_passed = header_passed(client);
    let clients = *error.esource() == ErrorSource::Downstream;
    let too_large = *error.etype() == BODY_TOO_LARGE;
    if clients && *error.etype() == ErrorType::WriteTimedout {
        let hits = &gate.metrics.limit_hits;
        hits.with_label_values(&["response_rate"]).inc();
    }
    if client.is_http2() && client.body_fault() == Some(BodyFault::Late) {
        let hits = &gate.metrics.limit_hits;
        hits.with_label_values(&["request_read"]).inc();
    }
    // The guard counts it, when it sees the reset.
    let malformed = match breaks_protocol(client, error, forwarding).await {
        true => Some(Malformed::Framing),
        false => malformed_body(client, error),
    };
    let (ending, reason) = if too_large && !header_passed {
        let rejection = Rejection::PayloadTooLarge;
        (Ending::Rejected(rejection), Some(RefundReason::Body))
    } else if let (Some(malformed), false) = (malformed, header_passed) {
        let rejection = Rejection::BadRequest(malformed);
        (Ending::Rejected(rejection), Some(RefundReason::Body))
    } else if clients || too_large {
        (Ending::ClientClosed, hung_up(forwarding))
    } else if header_passed {
        let now = Instant::now();
        forwarding.client_waits.note(client.blocked(), now);
        let waited_for_client = waited_for_client(error, forwarding, now);
        if !waited_for_client && is_upstreams(error, client) {
            forwarding.note_failed(gate);
        }
        (
            Ending::Cut,
            (!waited_for_client).then_some(RefundReason::Cut),
        )
    } else {
        let rejection = Rejection::Internal;
        (Ending::Rejected(rejection), Some(RefundReason::Failed))
    };
    forwarding.ending = Some(ending);
    forwarding.leave();
    if let Some(reason) = reason {
        forwarding.refund(reason).await;
    }
}

/// The reason to refund a request whose client hung up, if there is one.
fn hung_up(forwarding: &Forwarding) -> Option<RefundReason> {
    let slow = || {
        let waited = forwarding.since.elapsed();
        forwarding.header_after.is_none() && waited > forwarding.upstream.timeouts.slow
    };
    match forwarding.was_sent() {
        false => Some(RefundReason::Unsent),
        true => slow().then_some(RefundReason::Slow),
    }
}

/// The error that ended the request, if its client ended it before the request is written to an upstream. Over HTTP/1 only requests
/// without a body to come are checked, because the check would read from the body.
pub(super) async fn gone_before(client: &mut Client<'_>) -> Option<Box<Error>> {
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

/// Whether the HTTP/2 library has reset the client's stream because the request breaks the protocol: its body does not have the
/// length of its `content-length`, or its trailers do not end the stream. Frames after a whole request are not part of it.
async fn breaks_protocol(client: &mut Client<'_>, error: &Error, forwarding: &Forwarding) -> bool {
    let served = forwarding.was_sent() && forwarding.request_whole;
    if *error.esource() != ErrorSource::Downstream || !client.is_http2() || served {
        return false;
    }
    if *error.etype() != ErrorType::H2Error {
        return is_librarys_reset(error);
    }
    // The stream's end was waited for, and that error does not name the side that ended it. The body's does, after its last part.
    for _ in 0..PARTS_MAX {
        match look_at(client.read()).await {
            Poll::Ready(Ok(Some(_))) => {}
            Poll::Ready(Err(error)) => return is_librarys_reset(&error),
            Poll::Ready(Ok(None)) | Poll::Pending => break,
        }
    }
    false
}

/// Whether the library ended the stream with a PROTOCOL_ERROR.
fn is_librarys_reset(error: &Error) -> bool {
    let cause: Option<&h2::Error> = error.root_cause().downcast_ref();
    cause.is_some_and(|cause| {
        let reason = cause.reason() == Some(h2::Reason::PROTOCOL_ERROR);
        cause.is_reset() && cause.is_library() && reason
    })
}

/// The upstream took too long.
pub(super) fn over_time() -> Box<Error> {
    let context = "the upstream took longer than timeouts.total".into();
    Error::create(TOTAL_TIMEOUT, ErrorSource::Upstream, Some(context), None)
}

/// The server took the connection, but not for HTTP/2.
pub(super) fn not_http2() -> Box<Error> {
    let context = "the upstream's protocol is http2, and the server did not agree to it by ALPN";
    let (kind, source) = (NOT_HTTP2, ErrorSource::Upstream);
    Error::create(kind, source, Some(context.into()), None)
}

/// The client takes nothing of the answers before this one.
pub(super) fn given_up() -> Box<Error> {
    let context = "the client does not read".into();
    let (kind, source) = (ErrorType::WriteTimedout, ErrorSource::Downstream);
    Error::create(kind, source, Some(context), None)
}

/// Whether the header of an answer has gone to the client.
pub(super) fn header_passed(client: &Client<'_>) -> bool {
    client.status().is_some()
}

/// Whether the server is to blame for a failed attempt: it was not reached, broke off, came too late or said that it is away.
/// One that answered did its part, whatever it said, and one that waits for a request's body waits for the client.
pub(super) fn is_upstreams(error: &Error, client: &mut Client<'_>) -> bool {
    let waits_for_body = *error.etype() == ErrorType::ReadTimedout && !client.is_body_done();
    *error.esource() == ErrorSource::Upstream
        && ![UPSTREAM_STATUS, TOTAL_TIMEOUT].contains(error.etype())
        && !waits_for_body
}

/// The HTTP/2 error of the server's stream that failed an attempt. An error of the client's stream has the same type and is left out.
fn http2_error(error: &Error) -> Option<&h2::Error> {
    if *error.esource() == ErrorSource::Downstream {
        return None;
    }
    error.root_cause().downcast_ref()
}

/// Whether this is how it looks when a server does not know HTTP/2 and nobody had asked it: what it said was no HTTP/2, or it closed.
pub(super) fn is_other_protocol(error: &Error, peer: &HttpPeer, reused: bool) -> bool {
    let unasked = !reused && !peer.is_tls() && peer.options.alpn == ALPN::H2;
    unasked && http2_error(error).is_some_and(|told| !told.is_remote())
}

/// Whether the server has said that it has not looked at the request.
pub(super) fn is_left_out(error: &Error) -> bool {
    // The library ends with a server's GOAWAY only those streams that it leaves out.
    http2_error(error).is_some_and(|told| {
        let refused = told.is_reset() && told.reason() == Some(h2::Reason::REFUSED_STREAM);
        told.is_remote() && (told.is_go_away() || refused)
    })
}

/// What became of a request whose attempt failed, as far as its sending it again goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// Its connection had ended before it was used, which says nothing of the server.
    Stale,
    /// The server said that it has not looked at it: REFUSED_STREAM, or a GOAWAY that leaves it out (RFC 9113 section 8.7). That is
    /// how servers stop and how they keep their load down; it says nothing against them.
    Unprocessed,
    /// It may have been acted on.
    Unknown,
}

impl Fate {
    /// Of a failed attempt, on a connection that was `reused` or new.
    pub(super) fn of(error: &mut Error, reused: bool) -> Fate {
        error.retry.decide_reuse(reused);
        let left_out = is_left_out(error);
        match (left_out, error.retry()) {
            (true, _) => Fate::Unprocessed,
            (false, true) => Fate::Stale,
            (false, false) => Fate::Unknown,
        }
    }
}

/// Whether another server may do better with a request that nothing depends on but its answer. One that takes too long would
/// take as long again.
pub(super) fn is_worth_another(error: &Error) -> bool {
    let kinds = [
        ErrorType::ConnectionClosed,
        ErrorType::ReadError,
        ErrorType::WriteError,
        ErrorType::H2Error,
        ErrorType::H2Downgrade,
        ErrorType::InvalidH2,
        NOT_HTTP2,
        UPSTREAM_AWAY,
    ];
    kinds.contains(error.etype())
}

/// What was wrong with the request's body, if that is why it failed. An upstream that says nothing while it has not got
/// the whole body waits for the client.
fn malformed_body(client: &mut Client<'_>, error: &Error) -> Option<Malformed> {
    let fault = client.body_fault();
    let clients = *error.esource() == ErrorSource::Downstream;
    match fault {
        Some(BodyFault::Framing) => Some(Malformed::Framing),
        Some(BodyFault::Late) => Some(Malformed::Late),
        None if clients && BROKEN_BODY.contains(error.etype()) => Some(Malformed::Framing),
        None if *error.etype() == ErrorType::ReadTimedout && !client.is_body_done() => {
            Some(Malformed::Late)
        }
        None => None,
    }
}

/// Whether the answer was cut because of the client: the gateway was waiting for it when the upstream broke off, or
/// the answer would still have had time without such waits.
fn waited_for_client(error: &Error, forwarding: &Forwarding, now: Instant) -> bool {
    if *error.etype() == TOTAL_TIMEOUT {
        let by_client = forwarding.client_waits.in_all();
        let by_upstream = forwarding.since.elapsed().saturating_sub(by_client);
        by_upstream <= forwarding.upstream.timeouts.total
    } else {
        forwarding.client_waits.was_waiting(now)
    }
}
