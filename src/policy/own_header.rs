//! Which request headers the gateway keeps to itself on the way to an upstream.

/// Headers that frame a message, belong to one connection, or are read or set here.
const READ_OR_SET: [&str; 14] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-authenticate",
    "proxy-connection",
    "te",
    "traceparent",
    "tracestate",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "x-request-id",
];

/// Whether a header, by its name in lower case, frames a message, belongs to one connection, or is read or set here.
pub fn is_read_or_set(name: &str) -> bool {
    READ_OR_SET.contains(&name)
}

/// Whether a header, by its name in lower case, is the caller's key or says who calls: upstreams believe it, so a client's own
/// never reaches them.
pub fn tells_who_calls(name: &str) -> bool {
    name == "x-api-key" || name.starts_with("x-consumer-") || name.starts_with("x-forwarded-")
}
