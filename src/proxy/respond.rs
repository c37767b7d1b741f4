//! Writing the gateway's own answers: the problem body, the standing, the request id.
//!
//! An answer to `HEAD` has the header of the answer to `GET`, and no body: over HTTP/2 a body would break the stream.

use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, ETAG, IF_NONE_MATCH, LINK,
    STRICT_TRANSPORT_SECURITY, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderValue, Method, StatusCode};
use jiff::Timestamp;
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::proxy::Session;

use super::exchange::Exchange;
use super::forward::{NOSNIFF, X_REQUEST_ID};
use crate::config::Config;
use crate::policy::endpoint::Endpoint;
use crate::policy::openapi::Document;
use crate::policy::rate_limit::Standing;
use crate::policy::rejection::{PROBLEM_JSON, Problem, Rejection};
use crate::policy::retirement::Retirement;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// The document changes with the configuration only; whoever kept it asks again after five minutes.
const DOCUMENT_CACHING: HeaderValue = HeaderValue::from_static("max-age=300");
const USAGE_CACHING: HeaderValue = HeaderValue::from_static("no-store");

/// A whole answer of ours.
#[derive(Debug)]
pub struct Answer {
    header: ResponseHeader,
    body: Bytes,
}

impl Answer {
    /// The answer for `rejection`, with the standing of an authenticated caller and what its `endpoint` announces.
    ///
    /// # Errors
    /// If a header cannot be built, which checked values exclude.
    pub fn to(
        method: &Method,
        exchange: &Exchange,
        rejection: &Rejection,
        standing: Option<Standing>,
        endpoint: Option<&Endpoint>,
        now: Timestamp,
    ) -> pingora::Result<Answer> {
        let problem = rejection.problem(
            exchange.request_id_str(),
            &exchange.snapshot.config.keys.realm,
            now,
        );
        let mut header = refusal_header(&problem, standing, endpoint, now)?;
        insert_common(&mut header, exchange)?;
        let body = if method == Method::HEAD {
            Bytes::new()
        } else {
            Bytes::from(problem.body)
        };
        Ok(Answer { header, body })
    }

    /// The answer of `/openapi.json`: the document, or 304 to a client that has it (RFC 9110 section 15.4.5).
    ///
    /// # Errors
    /// If a header cannot be built, which checked values exclude.
    pub fn with_document(
        request: &RequestHeader,
        exchange: &Exchange,
        document: &Document,
    ) -> pingora::Result<Answer> {
        let held = request.headers.get_all(IF_NONE_MATCH).iter();
        let (mut header, body) = if document.is_held(held.map(HeaderValue::as_bytes)) {
            let header = ResponseHeader::build(StatusCode::NOT_MODIFIED, Some(4))?;
            (header, Bytes::new())
        } else {
            Answer::json(&request.method, document.body().clone())?
        };
        header.insert_header(ETAG, document.etag().clone())?;
        header.insert_header(CACHE_CONTROL, DOCUMENT_CACHING)?;
        insert_common(&mut header, exchange)?;
        Ok(Answer { header, body })
    }

    /// The answer of `/api/v1/usage`, for nobody's cache.
    ///
    /// # Errors
    /// If a header cannot be built, which checked values exclude.
    pub fn with_usage(
        method: &Method,
        exchange: &Exchange,
        report: Vec<u8>,
        standing: Standing,
        now: Timestamp,
    ) -> pingora::Result<Answer> {
        let (mut header, body) = Answer::json(method, Bytes::from(report))?;
        header.insert_header(CACHE_CONTROL, USAGE_CACHING)?;
        insert_common(&mut header, exchange)?;
        insert_standing(&mut header, standing, now)?;
        Ok(Answer { header, body })
    }

    /// A 200 with a JSON body, which an answer to `HEAD` keeps to itself.
    fn json(method: &Method, body: Bytes) -> pingora::Result<(ResponseHeader, Bytes)> {
        let mut header = ResponseHeader::build(StatusCode::OK, Some(12))?;
        header.insert_header(CONTENT_TYPE, JSON)?;
        header.insert_header(CONTENT_LENGTH, HeaderValue::from(body.len()))?;
        let body = if method == Method::HEAD {
            Bytes::new()
        } else {
            body
        };
        Ok((header, body))
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

/// The header of a refusal, but for its request id.
///
/// # Errors
/// If a header cannot be built, which checked values exclude.
pub fn refusal_header(
    problem: &Problem,
    standing: Option<Standing>,
    endpoint: Option<&Endpoint>,
    now: Timestamp,
) -> pingora::Result<ResponseHeader> {
    let mut header = ResponseHeader::build(problem.status, Some(16))?;
    header.insert_header(CONTENT_TYPE, PROBLEM_JSON)?;
    header.insert_header(CONTENT_LENGTH, HeaderValue::from(problem.body.len()))?;
    header.insert_header(CACHE_CONTROL, HeaderValue::from_static("no-store"))?;
    for (name, value) in &problem.headers {
        header.insert_header(name.clone(), value.clone())?;
    }
    if let Some(standing) = standing {
        insert_standing(&mut header, standing, now)?;
    }
    if let Some(endpoint) = endpoint {
        announce(&mut header, &endpoint.retirement)?;
    }
    Ok(header)
}

/// Says that the endpoint is going away, if it is; links stand beside those that an upstream gave.
///
/// # Errors
/// Never in fact: the values have been checked.
pub fn announce(header: &mut ResponseHeader, retirement: &Retirement) -> pingora::Result<()> {
    for (name, value) in retirement.headers() {
        if *name == LINK {
            header.append_header(name.clone(), value.clone())?;
        } else {
            header.insert_header(name.clone(), value.clone())?;
        }
    }
    Ok(())
}

/// Puts into an answer's header what every answer has: the request id, that its type is not to be guessed, and over TLS
/// what browsers are told of it.
///
/// # Errors
/// Never in fact: the values are checked.
pub fn insert_common(header: &mut ResponseHeader, exchange: &Exchange) -> pingora::Result<()> {
    header.insert_header(X_REQUEST_ID, exchange.request_id.clone())?;
    header.insert_header(X_CONTENT_TYPE_OPTIONS, NOSNIFF)?;
    match &exchange.hsts {
        Some(hsts) => header.insert_header(STRICT_TRANSPORT_SECURITY, hsts.clone()),
        None => Ok(()),
    }
}

/// `Strict-Transport-Security` of answers over TLS (RFC 6797 section 6.1); none where browsers are told nothing.
pub fn hsts(config: &Config) -> Option<HeaderValue> {
    let max_age = config.listen.https.as_ref()?.hsts?;
    HeaderValue::try_from(format!("max-age={}", max_age.as_secs())).ok()
}

/// An instant as `Date` has it (RFC 9110 section 5.6.7).
pub fn http_date(now: Timestamp) -> String {
    let printer = jiff::fmt::rfc2822::DateTimePrinter::new();
    printer
        .timestamp_to_rfc9110_string(&now)
        .unwrap_or_default()
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
