//! Writing the gateway's own answers: the problem body, the quota status, the request id.
//!
//! An answer to `HEAD` has the header of the answer to `GET`, and no body: over HTTP/2 a body would break the stream.

use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH, LINK, STRICT_TRANSPORT_SECURITY,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderValue, Method, StatusCode};
use jiff::Timestamp;

use super::client::{Client, Head, Piece};
use super::exchange::Exchange;
use super::failure::Failure;
use super::forward::{NOSNIFF, X_REQUEST_ID};
use crate::policy::caching;
use crate::policy::endpoint::Endpoint;
use crate::policy::http1::fields::FieldList;
use crate::policy::http1::request::RequestHead;
use crate::policy::openapi::Document;
use crate::policy::rate_limit::QuotaStatus;
use crate::policy::rejection::{PROBLEM_JSON, ProblemAnswer, Rejection};
use crate::policy::retirement::Retirement;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// The document changes with the configuration only; caches revalidate it after five minutes.
const DOCUMENT_CACHING: HeaderValue = HeaderValue::from_static("max-age=300");
/// Room for the fields that the gateway adds to most answers. The allocator takes several times longer for more than 1,024 bytes.
pub const ADDED_FIELDS: usize = 12;

/// A complete answer of the gateway.
#[derive(Debug)]
pub struct Answer {
    head: Head,
    body: Bytes,
}

impl Answer {
    /// The answer for `rejection`, with the quota status of an authenticated caller and the announcements of its `endpoint`.
    pub fn refusing(
        method: &Method,
        exchange: &Exchange,
        rejection: &Rejection,
        quota_status: Option<QuotaStatus>,
        endpoint: Option<&Endpoint>,
        now: Timestamp,
    ) -> Answer {
        let terms = &exchange.snapshot.problems;
        let problem = rejection.problem(exchange.request_id_str(), terms, now);
        let mut fields = refusal_fields(&problem, quota_status, endpoint, now);
        insert_common(&mut fields, &exchange.request_id, exchange.hsts.as_ref());
        let body = Bytes::from(problem.body);
        Answer::new(method, problem.status, fields, body)
    }

    /// An answer, without its body if `method` is `HEAD`.
    fn new(method: &Method, status: StatusCode, fields: FieldList, mut body: Bytes) -> Answer {
        let length = Some(body.len() as u64);
        if method == Method::HEAD {
            body = Bytes::new();
        }
        let head = Head {
            status,
            length,
            fields,
        };
        Answer { head, body }
    }

    /// The answer of `/openapi.json`: the document, or 304 to a client that has it (RFC 9110 section 15.4.5).
    pub fn with_document(
        request: &RequestHead,
        exchange: &Exchange,
        document: &Document,
    ) -> Answer {
        let mut answer = if document.is_held(request.fields.all(&IF_NONE_MATCH)) {
            let head = Head {
                status: StatusCode::NOT_MODIFIED,
                length: None,
                fields: FieldList::with_capacity(ADDED_FIELDS),
            };
            Answer {
                head,
                body: Bytes::new(),
            }
        } else {
            Answer::json(&request.method, document.body.clone())
        };
        let fields = &mut answer.head.fields;
        fields.append(ETAG, document.etag.clone());
        fields.append(CACHE_CONTROL, DOCUMENT_CACHING);
        insert_common(fields, &exchange.request_id, exchange.hsts.as_ref());
        answer
    }

    /// The answer of `/api/v1/usage`, which must not be cached.
    pub fn with_usage(
        method: &Method,
        exchange: &Exchange,
        report: Vec<u8>,
        quota_status: QuotaStatus,
        now: Timestamp,
    ) -> Answer {
        let mut answer = Answer::json(method, Bytes::from(report));
        let fields = &mut answer.head.fields;
        fields.append(CACHE_CONTROL, caching::NO_STORE);
        insert_common(fields, &exchange.request_id, exchange.hsts.as_ref());
        insert_quota_status(fields, quota_status, now);
        answer
    }

    /// A 200 with a JSON body.
    fn json(method: &Method, body: Bytes) -> Answer {
        let mut fields = FieldList::with_capacity(ADDED_FIELDS);
        fields.append(CONTENT_TYPE, JSON);
        Answer::new(method, StatusCode::OK, fields, body)
    }

    /// Writes the answer.
    ///
    /// # Errors
    /// If the client has disconnected.
    pub async fn write(self, client: &mut Client<'_>) -> Result<(), Failure> {
        let Answer { head, body } = self;
        let ends_here = body.is_empty();
        let mut pieces = Vec::with_capacity(2);
        pieces.push(Piece::Head(Box::new(head), ends_here));
        if !ends_here {
            pieces.push(Piece::Part(body, true));
        }
        client.write(pieces).await
    }
}

/// The fields of a refusal, except its request id and its length.
pub fn refusal_fields(
    problem: &ProblemAnswer,
    quota_status: Option<QuotaStatus>,
    endpoint: Option<&Endpoint>,
    now: Timestamp,
) -> FieldList {
    let mut fields = FieldList::with_capacity(ADDED_FIELDS);
    fields.append(CONTENT_TYPE, PROBLEM_JSON);
    fields.append(CACHE_CONTROL, caching::NO_STORE);
    if let Some((name, value)) = &problem.header {
        fields.append(name.clone(), value.clone());
    }
    if let Some(quota_status) = quota_status {
        insert_quota_status(&mut fields, quota_status, now);
    }
    if let Some(endpoint) = endpoint {
        announce(&mut fields, &endpoint.retirement);
    }
    fields
}

/// Announces the endpoint's retirement, if there is one; links are added to those of the upstream.
pub fn announce(fields: &mut FieldList, retirement: &Retirement) {
    for (name, value) in retirement.headers() {
        if *name == LINK {
            fields.append(name.clone(), value.clone());
        } else {
            fields.insert(name.clone(), value.clone());
        }
    }
}

/// Inserts the fields of every answer: the request id and `nosniff`, of which the head has none yet, and over TLS
/// `Strict-Transport-Security` in the place of an upstream's.
pub fn insert_common(fields: &mut FieldList, request_id: &HeaderValue, hsts: Option<&HeaderValue>) {
    fields.append(X_REQUEST_ID, request_id.clone());
    fields.append(X_CONTENT_TYPE_OPTIONS, NOSNIFF);
    if let Some(hsts) = hsts {
        fields.insert(STRICT_TRANSPORT_SECURITY, hsts.clone());
    }
}

/// Inserts the caller's quota status into an answer's head, which has none yet.
pub fn insert_quota_status(fields: &mut FieldList, quota_status: QuotaStatus, now: Timestamp) {
    for (name, value) in quota_status.headers(now) {
        fields.append(name, value);
    }
}
