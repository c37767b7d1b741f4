//! Compression of answers while they are forwarded.

use bytes::Bytes;
use http::Method;

use crate::policy::compression::BodyCoding;
use crate::proxy::client::{Client, Head};
use crate::proxy::encoder::Encoder;
use crate::proxy::exchange::Forwarding;
use crate::proxy::failure::Failure;

/// Begins to compress the answer to `request`, if its upstream is configured so, the answer is compressible, and the client
/// accepts it. An answer that `ends` with its head has nothing to compress.
pub(super) fn begin(forwarding: &mut Forwarding, client: &Client<'_>, head: &mut Head, ends: bool) {
    let Some(compression) = &forwarding.upstream.compression else {
        return;
    };
    let (asked, status) = (client.head.fields(), head.status);
    let mut verdict = compression.verdict(asked, status, head.length, &head.fields);
    if let BodyCoding::Coded(coding) = verdict
        && *client.head.method() != Method::HEAD
    {
        let has_room = client.turn().is_none_or(|turn| turn.may_compress());
        if ends || !has_room {
            verdict = BodyCoding::Plain;
        } else {
            // Without memory for an encoder, the answer is sent unchanged.
            let Ok(encoder) = Encoder::new(coding) else {
                return;
            };
            forwarding.encoder_held = client
                .turn()
                .map(|turn| turn.hold_encoder(encoder.held_bytes()));
            forwarding.encoder = Some(Box::new(encoder));
        }
    }
    verdict.mark(asked, status, &mut head.fields);
    if let BodyCoding::Coded(_) = verdict {
        // Unknown until the body is compressed.
        head.length = None;
    }
}

/// Compresses a part of the answer, if the answer is compressed.
///
/// # Errors
/// If there is not enough memory: the answer is interrupted.
pub(super) fn pass(
    forwarding: &mut Forwarding,
    body: &mut Option<Bytes>,
    end_of_stream: bool,
) -> Result<(), Failure> {
    let Some(encoder) = &mut forwarding.encoder else {
        return Ok(());
    };
    let part = body.take().unwrap_or_default();
    let made = if !end_of_stream {
        (!part.is_empty()).then(|| encoder.part(&part)).transpose()
    } else {
        let encoder = forwarding.encoder.take();
        forwarding.encoder_held = None;
        let end = encoder.map(|encoder| encoder.end(&part));
        end.transpose()
    };
    *body = made.map_err(Failure::gateway)?;
    Ok(())
}
