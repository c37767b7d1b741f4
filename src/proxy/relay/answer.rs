//! An upstream's answer as the client receives it.

use bytes::Bytes;
use http::StatusCode;
use jiff::Timestamp;
use std::time::{Duration, Instant};

use super::compressing;
use crate::proxy::client::{Client, Head, Piece};
use crate::proxy::exchange::{Exchange, Forwarding};
use crate::proxy::failure::{Failure, ServerFault};
use crate::proxy::forward;
use crate::proxy::gate::Gate;
use crate::proxy::respond::{self, announce, insert_quota_status};

/// Turns a piece of the server's answer, which arrived at `now`, into the client's; `None`, if the server has only read so far, stays.
///
/// # Errors
/// If the answer must not be forwarded, or not any further.
pub(super) fn pass(
    gate: &Gate,
    client: &mut Client<'_>,
    exchange: &Exchange,
    forwarding: &mut Forwarding,
    piece: Option<Piece>,
    now: Instant,
) -> Result<Option<Piece>, Failure> {
    Ok(Some(match piece {
        None => {
            check_time(client, forwarding, now)?;
            return Ok(None);
        }
        Some(Piece::Head(mut head, false)) if head.status.is_informational() => {
            check_time(client, forwarding, now)?;
            let denied = &exchange.snapshot.answer_denied;
            forward::clean_answer(head.status, &mut head.fields, denied);
            Piece::Head(head, false)
        }
        Some(Piece::Head(head, ends)) => {
            judge_status(client, forwarding, head.status, now)?;
            let now = exchange.time_at(now);
            let head = begin(gate, client, exchange, forwarding, (head, ends), now);
            Piece::Head(head, ends)
        }
        Some(Piece::Part(part, ends)) => {
            Piece::Part(pass_part(client, forwarding, part, ends, now)?, ends)
        }
    }))
}

/// Fails if the answer arrived too late, not counting delays of the client.
fn check_time(client: &Client<'_>, forwarding: &Forwarding, now: Instant) -> Result<(), Failure> {
    let paused = client.turn().map(|turn| turn.paused());
    if forwarding.is_over_time_at(now, paused.unwrap_or_default()) {
        return Err(Failure::over_time());
    }
    Ok(())
}

/// Notes the arrival of a final answer, and that its server served unless it is away. Fails if the answer must not be forwarded.
fn judge_status(
    client: &Client<'_>,
    forwarding: &mut Forwarding,
    status: StatusCode,
    now: Instant,
) -> Result<(), Failure> {
    check_time(client, forwarding, now)?;
    forwarding.header_after = Some(now.saturating_duration_since(forwarding.since));
    let away = forward::is_away(status);
    if !away {
        forwarding.note_answered();
    }
    if !forward::is_our_failure(status) {
        return Ok(());
    }
    let fault = match away {
        true => ServerFault::Away,
        false => {
            // The rest of the answer is not read.
            forwarding.note_served();
            ServerFault::Status
        }
    };
    let cause = format_args!("answered {}", status.as_u16());
    Err(Failure::server(fault, cause))
}

/// The head of a final answer as the client receives it. Begins to compress its body, and ends the connection of a draining gateway.
fn begin(
    gate: &Gate,
    client: &mut Client<'_>,
    exchange: &Exchange,
    forwarding: &mut Forwarding,
    (mut head, ends): (Box<Head>, bool),
    now: Timestamp,
) -> Box<Head> {
    if gate.is_draining() {
        client.close_after();
    }
    let fields = &mut head.fields;
    forward::clean_answer(head.status, fields, &exchange.snapshot.answer_denied);
    if let Some(server) = forwarding.server() {
        forward::relate_links(fields, &server.authority);
    }
    fields.reserve(respond::ADDED_FIELDS);
    respond::insert_common(fields, &exchange.request_id, exchange.hsts.as_ref());
    forward::confine_answer(fields);
    announce(fields, &forwarding.endpoint.retirement);
    insert_quota_status(fields, forwarding.quota_status, now);
    compressing::begin(forwarding, client, &mut head, ends);
    if ends {
        forwarding.note_answer_ended();
    }
    head
}

/// A part of the answer's body as the client receives it.
fn pass_part(
    client: &Client<'_>,
    forwarding: &mut Forwarding,
    part: Bytes,
    ends: bool,
    now: Instant,
) -> Result<Bytes, Failure> {
    let body = compressing::pass(forwarding, part, ends)?;
    forwarding.client_waits.note(client.blocked(), now);
    if ends {
        forwarding.note_answer_ended();
    } else if forwarding.is_over_time_at(now, Duration::ZERO) {
        return Err(Failure::over_time());
    }
    Ok(body)
}
