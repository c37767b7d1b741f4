//! Compression of answers while they are forwarded.

use bytes::Bytes;
use http::Method;

use crate::policy::compression::BodyCoding;
use crate::proxy::client::{Client, Head};
use crate::proxy::encoder::Encoder;
use crate::proxy::exchange::Forwarding;
use crate::proxy::failure::Failure;

/// Begins to compress the answer to the client's request, if its upstream is configured so, the answer is compressible, and the client
/// accepts it. An answer that `ends` with its head has nothing to compress.
pub(super) fn begin(forwarding: &mut Forwarding, client: &Client<'_>, head: &mut Head, ends: bool) {
    let Some(compression) = &forwarding.upstream.compression else {
        return;
    };
    let (asked, status) = (&client.head.fields, head.status);
    let mut verdict = compression.verdict(asked, status, head.length, &head.fields);
    if let BodyCoding::Coded(coding) = verdict
        && client.head.method != Method::HEAD
    {
        let has_room = client.turn().is_none_or(|turn| turn.may_compress());
        if ends || !has_room {
            verdict = BodyCoding::Plain;
        } else {
            // Without memory for an encoder, the answer is sent unchanged.
            let Ok(encoder) = Encoder::new(coding) else {
                return;
            };
            let bytes = encoder.held_bytes();
            forwarding.encoder_held = client.turn().map(|turn| turn.hold(bytes, bytes));
            forwarding.encoder = Some(Box::new(encoder));
        }
    }
    verdict.mark(asked, status, &mut head.fields);
    if let BodyCoding::Coded(_) = verdict {
        // Unknown until the body is compressed.
        head.length = None;
    }
}

/// Compresses a part of the answer, if the answer is compressed; the last part `ends` it.
///
/// # Errors
/// If there is not enough memory: the answer is interrupted.
pub(super) fn pass(forwarding: &mut Forwarding, part: Bytes, ends: bool) -> Result<Bytes, Failure> {
    let Some(encoder) = &mut forwarding.encoder else {
        return Ok(part);
    };
    let made = match (ends, part.is_empty()) {
        (false, true) => return Ok(part),
        (false, false) => encoder.part(&part),
        (true, _) => {
            forwarding.encoder_held = None;
            match forwarding.encoder.take() {
                Some(encoder) => encoder.end(&part),
                None => Ok(part),
            }
        }
    };
    made.map_err(Failure::gateway)
}
