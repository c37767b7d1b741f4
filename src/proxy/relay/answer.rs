//! An upstream's answer as the client gets it.

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderValue, Version};
use pingora::http::ResponseHeader;
use pingora::{Error, ErrorSource};
use std::time::Instant;

use super::compressing;
use super::link::Event;
use crate::policy::http1;
use crate::proxy::client::{Client, Piece};
use crate::proxy::connection::pace::{self, Part};
use crate::proxy::exchange::{Exchange, Forwarding};
use crate::proxy::failure::{UPSTREAM_AWAY, UPSTREAM_STATUS, given_up, over_time};
use crate::proxy::forward;
use crate::proxy::gate::Gate;
use crate::proxy::respond::{self, announce, insert_standing};

/// What becomes of a head or a part: what is written to the client, and whether the answer ends with it.
pub(super) type Made = (Piece, bool);

/// Turns what came from the server into what is written to the client; `None` for what is not for the client.
///
/// # Errors
/// If the answer is not to be passed on, or not any further.
pub(super) fn pass(
    gate: &Gate,
    client: &mut Client<'_>,
    exchange: &Exchange,
    forwarding: &mut Forwarding,
    event: Event,
) -> pingora::Result<Option<Made>> {
    match event {
        Event::Written => Ok(None),
        Event::Interim(mut head) => {
            check_time(forwarding)?;
            forward::clean_response(&mut head, &exchange.snapshot.answer_denied, |_| ());
            Ok(Some((Piece::Head(head, false), false)))
        }
        Event::Head(head, ends) => {
            check(forwarding, &head)?;
            let head = begin(gate, client, exchange, forwarding, head, ends);
            Ok(Some((Piece::Head(head, ends), ends)))
        }
        Event::Part(part, ends) => {
            let part = pass_part(client, forwarding, part, ends)?;
            Ok(Some((Piece::Part(part.unwrap_or_default(), ends), ends)))
        }
    }
}

/// Whether the answer came in time, as far as its upstream is to blame.
fn check_time(forwarding: &mut Forwarding) -> pingora::Result<()> {
    let paused = pace::paused();
    if pace::is_given_up() {
        forwarding.header_after = Some(forwarding.since.elapsed().saturating_sub(paused));
        return Err(given_up());
    }
    if forwarding.is_over_time_without(paused) {
        return Err(over_time());
    }
    Ok(())
}

/// Whether a final answer is one to be passed on.
fn check(forwarding: &mut Forwarding, head: &ResponseHeader) -> pingora::Result<()> {
    check_time(forwarding)?;
    forwarding.header_after = Some(forwarding.since.elapsed());
    let away = forward::is_away(head.status);
    if !away {
        forwarding.note_served();
    }
    if !forward::is_our_failure(head.status) {
        return Ok(());
    }
    let context = format!("the upstream answered {}", head.status.as_u16());
    let kind = if away { UPSTREAM_AWAY } else { UPSTREAM_STATUS };
    Err(Error::create(
        kind,
        ErrorSource::Upstream,
        Some(context.into()),
        None,
    ))
}

/// The head of a final answer as the client gets it.
fn begin(
    gate: &Gate,
    client: &mut Client<'_>,
    exchange: &Exchange,
    forwarding: &mut Forwarding,
    mut head: Box<ResponseHeader>,
    ends: bool,
) -> Box<ResponseHeader> {
    if gate.is_draining() {
        client.close_after();
    }
    let now = gate.store.now();
    let status = head.status;
    // A gateway's answers are of its own version (RFC 9112 section 2.3).
    head.set_version(Version::HTTP_11);
    let request = &client.header;
    forward::clean_response(&mut head, &exchange.snapshot.answer_denied, |fields| {
        // How the body was framed by its server says nothing of how it is framed for the client.
        fields.remove(TRANSFER_ENCODING);
        let length = fields.get(CONTENT_LENGTH).map(HeaderValue::as_bytes);
        forwarding.announced_bytes = length.and_then(http1::length);
        respond::insert_common(fields, exchange);
        forward::confine_response(fields);
        announce(fields, &forwarding.endpoint.retirement);
        insert_standing(fields, forwarding.standing, now);
        compressing::begin(forwarding, request, status, ends, fields);
    });
    if ends {
        forwarding.leave();
    }
    head
}

/// A part of the answer's body as the client gets it.
fn pass_part(
    client: &Client<'_>,
    forwarding: &mut Forwarding,
    part: Bytes,
    ends: bool,
) -> pingora::Result<Option<Bytes>> {
    if pace::is_given_up() {
        return Err(given_up());
    }
    let read_bytes = part.len() as u64;
    let mut body = Some(part);
    compressing::pass(forwarding, &mut body, ends)?;
    pace::note_part(Part {
        read_bytes,
        passed_bytes: body.as_ref().map_or(0, Bytes::len) as u64,
        announced_bytes: forwarding.announced_bytes,
        sent_bytes: client.bytes_sent() as u64,
        encoder_bytes: forwarding
            .encoder
            .as_ref()
            .map_or(0, |encoder| encoder.held_bytes()),
        ended: ends,
    });
    forwarding
        .client_waits
        .note(client.blocked(), Instant::now());
    if ends {
        forwarding.leave();
    } else if forwarding.is_over_time() {
        return Err(over_time());
    }
    Ok(body)
}
