//! Answers: JSON with an ETag, `304 Not Modified`, and problem documents.
//!
//! Validators follow RFC 9110, section 8.8.3 (strong ETags) and 13.1.2 (`If-None-Match`); problem documents RFC 9457. A gateway may
//! hand a problem on to a customer, so it names parameters and values, never files, hosts or causes inside the service.

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::query::{Pagination, ParameterProblem};

/// Answers may be kept by the customer, not by caches they share, for a minute.
const CACHE_CONTROL: HeaderValue = HeaderValue::from_static("private, max-age=60");

/// Bytes of the SHA-256 that make an ETag: 128 bits, far beyond chance.
const ETAG_BYTES: usize = 16;

/// The body of a list.
#[derive(Debug, Serialize)]
pub struct List<T> {
    /// The rows of the page.
    pub data: Vec<T>,
    /// Where the page lies.
    pub pagination: Pagination,
}

/// The body of a single resource.
#[derive(Debug, Serialize)]
pub struct Single<T> {
    /// The resource.
    pub data: T,
}

/// What went wrong, for the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    /// One or more parameters are not as documented.
    InvalidParameters(Vec<ParameterProblem>),
    /// No fixture has this number.
    FixtureUnknown,
    /// The fixture has a result, so there is nothing to predict.
    FixturePlayed,
    /// No resource has this path.
    PathUnknown,
    /// The resource cannot be asked for with this method.
    MethodNotAllowed,
    /// An answer could not be written; a defect of the service.
    Internal,
    /// A failure that was asked for on the command line.
    Staged(StatusCode),
}

#[derive(Serialize)]
struct ProblemDocument {
    r#type: &'static str,
    title: &'static str,
    status: u16,
    detail: String,
    code: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    errors: Vec<ParameterProblem>,
}

impl Problem {
    /// Status, code and detail of each problem: the one place where they are decided.
    fn parts(&self) -> (StatusCode, &'static str, String) {
        match self {
            Self::InvalidParameters(problems) => {
                let details: Vec<String> =
                    problems.iter().map(|problem| format!("{} {}", problem.parameter, problem.detail)).collect();
                (StatusCode::BAD_REQUEST, "INVALID_PARAMETER", format!("{}.", details.join("; ")))
            }
            Self::FixtureUnknown => (
                StatusCode::NOT_FOUND,
                "FIXTURE_NOT_FOUND",
                "No fixture has this number; /api/v1/data/predictions lists those that have a prediction.".to_owned(),
            ),
            Self::FixturePlayed => (
                StatusCode::NOT_FOUND,
                "FIXTURE_NOT_FOUND",
                "This fixture has been played; /api/v1/data/predictions lists those that are to come.".to_owned(),
            ),
            Self::PathUnknown => (StatusCode::NOT_FOUND, "NOT_FOUND", "No resource has this path.".to_owned()),
            Self::MethodNotAllowed => (
                StatusCode::METHOD_NOT_ALLOWED,
                "METHOD_NOT_ALLOWED",
                "This resource can be asked for with GET and HEAD.".to_owned(),
            ),
            Self::Internal => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "INTERNAL_ERROR",
                "The answer could not be written.".to_owned(),
            ),
            Self::Staged(status) => (
                *status,
                "STAGED_FAILURE",
                "This failure was asked for on the command line of the service.".to_owned(),
            ),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let (status, code, detail) = self.parts();
        let document = ProblemDocument {
            r#type: "about:blank",
            title: status.canonical_reason().unwrap_or("Error"),
            status: status.as_u16(),
            detail,
            code,
            errors: match self {
                Self::InvalidParameters(problems) => problems,
                Self::FixtureUnknown
                | Self::FixturePlayed
                | Self::PathUnknown
                | Self::MethodNotAllowed
                | Self::Internal
                | Self::Staged(_) => Vec::new(),
            },
        };
        // Strings and numbers always can be written.
        let body = serde_json::to_vec(&document).unwrap_or_default();
        let headers = [
            (
                header::CONTENT_TYPE,
                HeaderValue::from_static("application/problem+json"),
            ),
            (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        ];
        (status, headers, body).into_response()
    }
}

/// `body` as JSON with its ETag; `304` without it where the caller has it already.
pub fn json(request: &HeaderMap, body: &impl Serialize) -> Response {
    let Ok(bytes) = serde_json::to_vec(body) else {
        return Problem::Internal.into_response();
    };
    let etag = etag(&bytes);
    let Ok(etag_value) = HeaderValue::from_str(&etag) else {
        return Problem::Internal.into_response();
    };
    let validators = [
        (header::ETAG, etag_value),
        (header::CACHE_CONTROL, CACHE_CONTROL),
    ];
    if has_already(request, &etag) {
        return (StatusCode::NOT_MODIFIED, validators, Body::empty()).into_response();
    }
    let content_type = [(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    )];
    (StatusCode::OK, validators, content_type, bytes).into_response()
}

/// A strong ETag: two answers have the same one only if they have the same bytes.
fn etag(bytes: &[u8]) -> String {
    let mut etag = String::with_capacity(2 * ETAG_BYTES + 2);
    etag.push('"');
    for byte in Sha256::digest(bytes).iter().take(ETAG_BYTES) {
        etag.push_str(&format!("{byte:02x}"));
    }
    etag.push('"');
    etag
}

/// Whether `If-None-Match` names this ETag, by weak comparison as RFC 9110 asks, or anything (`*`).
fn has_already(request: &HeaderMap, etag: &str) -> bool {
    request
        .get_all(header::IF_NONE_MATCH)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .any(|known| known == "*" || known.strip_prefix("W/").unwrap_or(known) == etag)
}
