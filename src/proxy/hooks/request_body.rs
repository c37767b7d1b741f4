//! The body of a request on its way to the upstream.
//!
//! pingora 0.9.1 writes an empty last part as a terminating chunk and then a second terminator, which an HTTP/1 upstream reads
//! as the next request of the connection. The invariant here: an empty part never reaches pingora's writer.

use bytes::Bytes;
use pingora::Error;

use super::failure::BODY_TOO_LARGE;
use crate::proxy::exchange::Forwarding;

/// Takes a part of the body on its way: an empty one becomes none, and a body over `body_bytes_max` is an error.
pub(super) fn pass(
    forwarding: &mut Forwarding,
    part: &mut Option<Bytes>,
    ends: bool,
    body_bytes_max: usize,
) -> pingora::Result<()> {
    forwarding.request_body_bytes += part.as_ref().map_or(0, Bytes::len);
    if forwarding.request_body_bytes > body_bytes_max {
        return Error::e_explain(BODY_TOO_LARGE, "request body over limits.body_bytes");
    }
    if ends && part.as_ref().is_some_and(Bytes::is_empty) {
        *part = None;
    }
    Ok(())
}
