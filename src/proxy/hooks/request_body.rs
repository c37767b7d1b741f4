//! Bodies that a request's method does not take.
//!
//! Over HTTP/2 a body needs no announcement: only the frames show whether one comes, and where it ends (RFC 9113 section 8.1).

use std::time::Duration;

use pingora::proxy::Session;

use crate::policy::rejection::Malformed;
use crate::proxy::connection;
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
