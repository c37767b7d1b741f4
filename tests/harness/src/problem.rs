//! The common properties of every error answer of the contract.

use crate::client::Answer;

/// An error answer in the gateway's own words: status, code, type, the six members of every problem body, and nothing of
/// the inside.
///
/// # Panics
/// If the answer is another one.
#[track_caller]
pub fn assert_problem(answer: &Answer, status: u16, code: &str) {
    assert_eq!(answer.status, status, "{answer:?}");
    assert!(answer.complete, "{answer:?}");
    assert_eq!(
        answer.header("content-type"),
        Some("application/problem+json")
    );
    let body = answer.json();
    assert_eq!(body["code"], code, "{answer:?}");
    assert_eq!(body["status"], status, "{answer:?}");
    for member in ["type", "title", "detail"] {
        let text = body[member].as_str().unwrap_or_default();
        assert!(!text.is_empty(), "{member} in {body}");
    }
    assert_eq!(body["request_id"].as_str(), answer.header("x-request-id"));
    assert!(answer.header("x-request-id").is_some());
    let text = String::from_utf8_lossy(&answer.body).to_lowercase();
    for word in ["127.0.0.1", "sqlite", "redis", "pingora", "/tmp", "fpd_"] {
        assert!(!text.contains(word), "{word} in {text}");
    }
    assert_eq!(answer.header("server"), None);
}
