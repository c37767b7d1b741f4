//! The body of a request on its way to the upstream.
//!
//! Over HTTP/2 a body needs no announcement: only the frames show whether one comes, and where it ends (RFC 9113 section 8.1).
//! pingora 0.9.1 writes an empty last part as a terminating chunk and then a second terminator, which an HTTP/1 upstream reads
//! as the next request of the connection. The invariant here: an empty part never reaches pingora's writer.

use std::time::Duration;

use bytes::Bytes;
use pingora::Error;
use pingora::proxy::Session;

use super::failure::BODY_TOO_LARGE;
use crate::policy::rejection::Malformed;
use crate::proxy::connection;
use crate::proxy::exchange::Forwarding;
use crate::proxy::well_formed::{self, HeadLimits};

/// Waits for the end of an HTTP/2 request whose method takes no body, so that a body is refused before anything is charged or
/// forwarded. A head that is refused anyway is not waited for. At most `patience`.
pub(super) async fn expect_none(
    session: &mut Session,
    limits: &HeadLimits,
    patience: Duration,
) -> Result<(), Malformed> {
    if !connection::is_http2(session) || session.is_body_done() {
        return Ok(());
    }
    let head = session.req_header();
    if well_formed::takes_body(&head.method) || well_formed::check(head, None, limits).is_err() {
        return Ok(());
    }
    let end = async {
        while !session.is_body_done() {
            match session.read_request_body().await {
                Ok(None) => break,
                Ok(Some(part)) if part.is_empty() => {}
                Ok(Some(_)) => return Err(Malformed::UnexpectedBody),
                Err(_) => return Err(Malformed::Framing),
            }
        }
        Ok(())
    };
    let end = tokio::time::timeout(patience, end);
    end.await.unwrap_or(Err(Malformed::Late))
}

/// Takes a part of the body on its way: an empty one becomes none, and a body over `body_bytes_max` is an error.
pub(super) fn pass(
    forwarding: &mut Forwarding,
    part: &mut Option<Bytes>,
    ends: bool,
    body_bytes_max: usize,
) -> pingora::Result<()> {
    forwarding.request_whole |= ends;
    forwarding.request_body_bytes += part.as_ref().map_or(0, Bytes::len);
    if forwarding.request_body_bytes > body_bytes_max {
        return Error::e_explain(BODY_TOO_LARGE, "request body over limits.body_bytes");
    }
    if ends && part.as_ref().is_some_and(Bytes::is_empty) {
        *part = None;
    }
    Ok(())
}
