//! Writing the gateway's own answers: the problem body, the standing, the request id.
//!
//! An answer to `HEAD` has the header of the answer to `GET`, and no body: over HTTP/2 a body would break the stream.

use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, ETAG, IF_NONE_MATCH, LINK,
    STRICT_TRANSPORT_SECURITY, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use jiff::Timestamp;
use pingora::http::{RequestHeader, ResponseHeader};

use super::client::{Client, Piece};
use super::exchange::Exchange;
use super::forward::{NOSNIFF, X_REQUEST_ID};
use crate::config::Config;
use crate::policy::caching;
use crate::policy::endpoint::Endpoint;
use crate::policy::openapi::Document;
use crate::policy::rate_limit::Standing;
use crate::policy::rejection::{PROBLEM_JSON, Problem, Rejection};
use crate::policy::retirement::Retirement;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// The document changes with the configuration only; whoever kept it asks again after five minutes.
const DOCUMENT_CACHING: HeaderValue = HeaderValue::from_static("max-age=300");
const USAGE_CACHING: HeaderValue = HeaderValue::from_static("no-store");
/// More than any answer of ours has.
const FIELDS: usize = 16;

/// A whole answer of ours.
#[derive(Debug)]
pub struct Answer {
    status: StatusCode,
    fields: HeaderMap,
    body: Bytes,
}

impl Answer {
    /// The answer for `rejection`, with the standing of an authenticated caller and what its `endpoint` announces.
    pub fn to(
        method: &Method,
        exchange: &Exchange,
        rejection: &Rejection,
        standing: Option<Standing>,
        endpoint: Option<&Endpoint>,
        now: Timestamp,
    ) -> Answer {
        let problem = rejection.problem(
            exchange.request_id_str(),
            &exchange.snapshot.config.keys.realm,
            now,
        );
        let mut fields = refusal_fields(&problem, standing, endpoint, now);
        insert_common(&mut fields, exchange);
        let body = if method == Method::HEAD {
            Bytes::new()
        } else {
            Bytes::from(problem.body)
        };
        Answer {
            status: problem.status,
            fields,
            body,
        }
    }

    /// The answer of `/openapi.json`: the document, or 304 to a client that has it (RFC 9110 section 15.4.5).
    pub fn with_document(
        request: &RequestHeader,
        exchange: &Exchange,
        document: &Document,
    ) -> Answer {
        let held = request.headers.get_all(IF_NONE_MATCH).iter();
        let mut answer = if document.is_held(held.map(HeaderValue::as_bytes)) {
            Answer {
                status: StatusCode::NOT_MODIFIED,
                fields: HeaderMap::new(),
                body: Bytes::new(),
            }
        } else {
            Answer::json(&request.method, document.body().clone())
        };
        let etag = document.etag().clone();
        answer.fields.insert(ETAG, etag);
        answer.fields.insert(CACHE_CONTROL, DOCUMENT_CACHING);
        insert_common(&mut answer.fields, exchange);
        answer
    }

    /// The answer of `/api/v1/usage`, for nobody's cache.
    pub fn with_usage(
        method: &Method,
        exchange: &Exchange,
        report: Vec<u8>,
        standing: Standing,
        now: Timestamp,
    ) -> Answer {
        let mut answer = Answer::json(method, Bytes::from(report));
        answer.fields.insert(CACHE_CONTROL, USAGE_CACHING);
        insert_common(&mut answer.fields, exchange);
        insert_standing(&mut answer.fields, standing, now);
        answer
    }

    /// A 200 with a JSON body, which an answer to `HEAD` keeps to itself.
    fn json(method: &Method, body: Bytes) -> Answer {
        let mut fields = HeaderMap::with_capacity(FIELDS);
        fields.insert(CONTENT_TYPE, JSON);
        fields.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
        let body = if method == Method::HEAD {
            Bytes::new()
        } else {
            body
        };
        Answer {
            status: StatusCode::OK,
            fields,
            body,
        }
    }

    fn into_parts(self) -> (ResponseHeader, Bytes) {
        let (mut parts, ()) = http::Response::new(()).into_parts();
        parts.status = self.status;
        parts.headers = self.fields;
        (parts.into(), self.body)
    }

    /// Writes the answer.
    ///
    /// # Errors
    /// If the client is gone.
    pub async fn write(self, client: &mut Client<'_>) -> pingora::Result<()> {
        let (header, body) = self.into_parts();
        let ends_here = body.is_empty();
        let mut pieces = vec![Piece::Head(Box::new(header), ends_here)];
        if !ends_here {
            pieces.push(Piece::Part(body, true));
        }
        client.write(pieces).await
    }
}

/// The fields of a refusal, but for its request id.
pub fn refusal_fields(
    problem: &Problem,
    standing: Option<Standing>,
    endpoint: Option<&Endpoint>,
    now: Timestamp,
) -> HeaderMap {
    let mut fields = HeaderMap::with_capacity(FIELDS);
    fields.insert(CONTENT_TYPE, PROBLEM_JSON);
    fields.insert(CONTENT_LENGTH, HeaderValue::from(problem.body.len()));
    fields.insert(CACHE_CONTROL, caching::NO_STORE);
    for (name, value) in &problem.headers {
        fields.insert(name.clone(), value.clone());
    }
    if let Some(standing) = standing {
        insert_standing(&mut fields, standing, now);
    }
    if let Some(endpoint) = endpoint {
        announce(&mut fields, &endpoint.retirement);
    }
    fields
}

/// Says that the endpoint is going away, if it is; links stand beside those that an upstream gave.
pub fn announce(fields: &mut HeaderMap, retirement: &Retirement) {
    for (name, value) in retirement.headers() {
        if *name == LINK {
            fields.append(name.clone(), value.clone());
        } else {
            fields.insert(name.clone(), value.clone());
        }
    }
}

/// Puts into an answer's header what every answer has: the request id, that its type is not to be guessed, and over TLS
/// what browsers are told of it.
pub fn insert_common(fields: &mut HeaderMap, exchange: &Exchange) {
    fields.insert(X_REQUEST_ID, exchange.request_id.clone());
    fields.insert(X_CONTENT_TYPE_OPTIONS, NOSNIFF);
    if let Some(hsts) = &exchange.hsts {
        fields.insert(STRICT_TRANSPORT_SECURITY, hsts.clone());
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
pub fn insert_standing(fields: &mut HeaderMap, standing: Standing, now: Timestamp) {
    for (name, value) in standing.headers(now) {
        fields.insert(name, value);
    }
}
