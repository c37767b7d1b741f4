//! Answers that are compressed on their way.

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};
use pingora::http::RequestHeader;
use pingora::{ErrorType, OrErr};

use crate::policy::compression::Verdict;
use crate::proxy::encoder::Encoder;
use crate::proxy::exchange::Forwarding;

/// Begins to compress the answer to `request`, if its upstream's are, it is one of those, and the client takes it. One that `ends` with
/// its head has nothing to compress.
pub(super) fn begin(
    forwarding: &mut Forwarding,
    request: &RequestHeader,
    status: StatusCode,
    ends: bool,
    fields: &mut HeaderMap,
) {
    let Some(compression) = &forwarding.upstream.compression else {
        return;
    };
    let asked = &request.headers;
    let mut verdict = compression.verdict(asked, status, fields);
    if let Verdict::Coded(coding) = verdict
        && request.method != Method::HEAD
    {
        if ends {
            verdict = Verdict::Plain;
        } else {
            // Without memory for it, the answer goes unchanged.
            let Ok(encoder) = Encoder::new(coding) else {
                return;
            };
            forwarding.encoder = Some(Box::new(encoder));
        }
    }
    verdict.mark(asked, status, fields);
}

/// Compresses a part of the answer, if that is compressed.
///
/// # Errors
/// If there is no memory for it: the answer breaks off.
pub(super) fn pass(
    forwarding: &mut Forwarding,
    body: &mut Option<Bytes>,
    end_of_stream: bool,
) -> pingora::Result<()> {
    let Some(encoder) = &mut forwarding.encoder else {
        return Ok(());
    };
    let part = body.take().unwrap_or_default();
    let made = if !end_of_stream {
        (!part.is_empty()).then(|| encoder.part(&part)).transpose()
    } else {
        let encoder = forwarding.encoder.take();
        let end = encoder.map(|encoder| encoder.end(&part));
        end.transpose()
    };
    *body = made.or_err(ErrorType::InternalError, "compressing an answer")?;
    Ok(())
}
