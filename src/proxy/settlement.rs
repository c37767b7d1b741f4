//! The outcome of a failed forwarding: what the client gets, whether the units are refunded, and whether the server is blamed.

use std::time::Instant;

use super::client::Client;
use super::exchange::{Ending, Forwarding, RefundReason};
use super::failure::{ClientFault, Failure, Fault, ServerFault};
use super::gate::Gate;
use crate::policy::limit_hit::LimitHit;
use crate::policy::rejection::{Malformed, Rejection};

/// Settles a failed forwarding: decides the client's answer, blames the server, gives up the key's place and refunds the units if they are
/// to be refunded.
pub(super) async fn settle(
    gate: &Gate,
    client: &Client<'_>,
    failure: &Failure,
    forwarding: &mut Forwarding,
) {
    let header_passed = client.header_passed();
    let refusal = refusal(failure, client, forwarding);
    let hit = match (&refusal, failure.fault) {
        (Some(rejection), _) => limit_hit(rejection),
        (None, Fault::Client(ClientFault::Slow)) => Some(LimitHit::ResponseRate),
        (None, _) => None,
    };
    if let Some(limit) = hit {
        gate.metrics.limit_hits.note(limit);
    }
    let (ending, reason) = match (refusal, failure.fault) {
        (Some(rejection), _) if !header_passed || !keeps_charge(client, forwarding) => {
            (Ending::Rejected(rejection), Some(RefundReason::Body))
        }
        // The gateway itself has closed the connection.
        (_, Fault::Client(_)) if gate.cut_off.is_cancelled() => {
            (Ending::Cut, cut_off(client, forwarding))
        }
        (_, Fault::Client(fault)) => (Ending::ClientClosed, hung_up(fault, forwarding)),
        _ if header_passed => {
            let now = Instant::now();
            forwarding.client_waits.note(client.blocked(), now);
            let waited_for_client = waited_for_client(failure, forwarding, now);
            if !waited_for_client && is_servers_fault(failure, client) {
                forwarding.note_failed(failure, gate);
            }
            let reason = (!waited_for_client).then_some(RefundReason::Cut);
            (Ending::Cut, reason)
        }
        _ => (
            Ending::Rejected(Rejection::Internal),
            Some(RefundReason::Failed),
        ),
    };
    if header_passed && matches!(failure.fault, Fault::Client(_)) {
        forwarding.note_served();
    }
    forwarding.ending = Some(ending);
    forwarding.leave();
    if let Some(reason) = reason {
        forwarding.refund(reason).await;
    }
}

/// Whether the server is to blame: it was not reached, broke off, was silent, sent what cannot be read or reported that it is unavailable.
/// One whose answer is a failure of another kind is not, nor one that waits for a request's body, because it waits for the client, nor
/// one at which the request's total time ended.
pub(super) fn is_servers_fault(failure: &Failure, client: &Client<'_>) -> bool {
    match failure.fault {
        Fault::Server(ServerFault::Status | ServerFault::OverTime) => false,
        Fault::Server(ServerFault::Silent) => client.is_body_done(),
        Fault::Server(_) => true,
        Fault::Client(_) | Fault::Gateway => false,
    }
}

/// The limit that a request whose head was read has exceeded.
pub(super) fn limit_hit(rejection: &Rejection) -> Option<LimitHit> {
    match rejection {
        Rejection::BadRequest(Malformed::Late) => Some(LimitHit::RequestRead),
        _ => rejection.limit_hit(),
    }
}

/// The refusal of a request because of its body, if that is why it failed.
fn refusal(failure: &Failure, client: &Client<'_>, forwarding: &Forwarding) -> Option<Rejection> {
    match failure.fault {
        Fault::Client(ClientFault::TooLarge) => Some(Rejection::PayloadTooLarge),
        Fault::Client(ClientFault::Late) => Some(Rejection::BadRequest(Malformed::Late)),
        // HTTP/2 frames after a complete request are not part of it.
        Fault::Client(ClientFault::Malformed)
            if !(client.is_http2()
                && forwarding.charged.was_sent()
                && forwarding.request_whole) =>
        {
            Some(Rejection::BadRequest(Malformed::Body))
        }
        Fault::Client(_) | Fault::Server(_) | Fault::Gateway => None,
    }
}

/// The reason to refund a request whose client disconnected, if there is one.
fn hung_up(fault: ClientFault, forwarding: &Forwarding) -> Option<RefundReason> {
    let slow = || {
        let waited = forwarding.since.elapsed();
        let unanswered = forwarding.header_after.is_none() && fault != ClientFault::Slow;
        unanswered && waited > forwarding.upstream.config.timeouts.slow
    };
    unsent(forwarding).or_else(|| slow().then_some(RefundReason::Slow))
}

/// Settles a request whose task was dropped, unless that was done before: a request that the gateway cut off, or in which it failed,
/// is refunded.
pub(super) fn settle_dropped(gate: &Gate, client: &Client<'_>, forwarding: &mut Forwarding) {
    let is_undecided = matches!(forwarding.ending, None | Some(Ending::Cut));
    forwarding.ending.get_or_insert(Ending::Cut);
    if is_undecided
        && (gate.cut_off.is_cancelled() || std::thread::panicking())
        && let Some(reason) = cut_off(client, forwarding)
    {
        forwarding.charged.give_back(reason);
    }
}

/// The reason to refund a request that the gateway itself has cut, if there is one: it was not waiting for the client.
fn cut_off(client: &Client<'_>, forwarding: &mut Forwarding) -> Option<RefundReason> {
    let now = Instant::now();
    forwarding.client_waits.note(client.blocked(), now);
    let waited_for_client = forwarding.client_waits.was_waiting(now);
    unsent(forwarding).or_else(|| (!waited_for_client).then_some(RefundReason::Cut))
}

/// The reason to refund a request of which nothing was sent to an upstream.
fn unsent(forwarding: &Forwarding) -> Option<RefundReason> {
    (!forwarding.charged.was_sent()).then_some(RefundReason::Unsent)
}

/// Whether a client that breaks its own request keeps the charge: it has got a part of the answer's body, or the upstream had ended
/// the answer, or the gateway was waiting for the client to read. Otherwise it could end each request this way after the part that it
/// needs, and read a stream of events for nothing.
fn keeps_charge(client: &Client<'_>, forwarding: &mut Forwarding) -> bool {
    let now = Instant::now();
    forwarding.client_waits.note(client.blocked(), now);
    client.bytes_sent() > 0 || forwarding.answer_ended || forwarding.client_waits.was_waiting(now)
}

/// Whether the answer was cut because of the client: the gateway was waiting for the client when the upstream broke off, or the
/// answer would have been in time without such waits.
fn waited_for_client(failure: &Failure, forwarding: &Forwarding, now: Instant) -> bool {
    if failure.fault == Fault::Server(ServerFault::OverTime) {
        let by_client = forwarding.client_waits.in_all();
        let by_upstream = forwarding.since.elapsed().saturating_sub(by_client);
        by_upstream <= forwarding.upstream.config.timeouts.total
    } else {
        forwarding.client_waits.was_waiting(now)
    }
}
