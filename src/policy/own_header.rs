//! The request headers that are not forwarded to an upstream as sent. Names are compared in any case, with all
//! but letters and digits taken as `-`.

use super::header_pattern::{begins, folded_octet};
use super::http1::framing::KnownField;
use super::octets;

/// Whether a header frames a message, belongs to one connection, or is read or set by the gateway.
pub fn is_read_or_set(name: &[u8]) -> bool {
    let name: Vec<u8> = name.iter().map(|octet| folded_octet(*octet)).collect();
    let is = |own: &str| name == own.as_bytes();
    ["traceparent", "tracestate", "x-request-id"]
        .into_iter()
        .any(is)
        || KnownField::of(&name).is_some()
}

/// Whether a header may be in another spelling than its own.
pub fn has_variants(name: &[u8]) -> bool {
    octets::any(name, |octet| {
        !octet.is_ascii_alphanumeric() && octet != b'-'
    })
}

/// Whether a header contains the key or identifies the caller: upstreams trust it, so a client's own is never forwarded.
pub fn identifies_caller(name: &[u8]) -> bool {
    const API_KEY: &str = "x-api-key";
    (name.len() == API_KEY.len() && begins(name, API_KEY))
        || begins(name, "x-consumer-")
        || begins(name, "x-forwarded-")
}
