//! Writing the gateway's own answers: the problem body, the standing, the request id.
//!
//! An answer to `HEAD` has the header of the answer to `GET`, and no body: over HTTP/2 a body would break the stream.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderValue, Method};
use jiff::Timestamp;
use pingora::http::ResponseHeader;
use pingora::proxy::Session;

use super::exchange::Exchange;
use super::forward::X_REQUEST_ID;
use crate::policy::rate_limit::Standing;
use crate::policy::rejection::{PROBLEM_JSON, Rejection};

/// A whole answer of ours.
#[derive(Debug)]
pub struct Answer {
    header: ResponseHeader,
    body: Bytes,
}

impl Answer {
    /// The answer for `rejection`, with the standing of an authenticated caller.
    ///
    /// # Errors
    /// If a header cannot be built, which checked values exclude.
    pub fn to(
        method: &Method,
        exchange: &Exchange,
        rejection: &Rejection,
        standing: Option<Standing>,
        now: Timestamp,
    ) -> pingora::Result<Answer> {
        let problem = rejection.problem(
            exchange.request_id_str(),
            &exchange.snapshot.config.keys.realm,
            now,
        );
        let mut header = ResponseHeader::build(problem.status, Some(16))?;
        header.insert_header(CONTENT_TYPE, PROBLEM_JSON)?;
        header.insert_header(CONTENT_LENGTH, HeaderValue::from(problem.body.len()))?;
        header.insert_header(CACHE_CONTROL, HeaderValue::from_static("no-store"))?;
        header.insert_header(X_REQUEST_ID, exchange.request_id.clone())?;
        for (name, value) in problem.headers {
            header.insert_header(name, value)?;
        }
        if let Some(standing) = standing {
            insert_standing(&mut header, standing, now)?;
        }
        let body = if method == Method::HEAD {
            Bytes::new()
        } else {
            Bytes::from(problem.body)
        };
        Ok(Answer { header, body })
    }

    /// Writes the answer; an HTTP/1 connection stays open for the next request.
    ///
    /// # Errors
    /// If the client is gone.
    pub async fn write(self, session: &mut Session) -> pingora::Result<()> {
        let ends_here = self.body.is_empty();
        session
            .write_response_header(Box::new(self.header), ends_here)
            .await?;
        if !ends_here {
            session.write_response_body(Some(self.body), true).await?;
        }
        Ok(())
    }

    /// Writes the answer in place of an upstream's and closes an HTTP/1 connection. Does nothing if an answer has begun.
    ///
    /// # Errors
    /// If the client is gone.
    pub async fn write_instead(self, session: &mut Session) -> pingora::Result<()> {
        session
            .as_downstream_mut()
            .write_error_response(self.header, self.body)
            .await
    }
}

/// Puts the caller's standing into an answer's header.
///
/// # Errors
/// Never in fact: the values are numbers and constants.
pub fn insert_standing(
    header: &mut ResponseHeader,
    standing: Standing,
    now: Timestamp,
) -> pingora::Result<()> {
    for (name, value) in standing.headers(now) {
        header.insert_header(name, value)?;
    }
    Ok(())
}
