//! HTTP/1 on the wire (RFC 9112): heads and bodies of requests and answers, read and written. The only reader and the only writer
//! of HTTP/1 in the gateway; neither reads a socket or a clock, and every limit is an argument.
//!
//! | Room | Decides |
//! |---|---|
//! | [`request`] | where the head of a request ends, whether it can be read in one way only, and its meaning |
//! | [`answer`] | the same for an upstream's answer, and whether its connection can be reused |
//! | [`fields`] | what a field is, and which ones are forwarded |
//! | [`framing`] | where a body ends |
//! | [`body`] | which bytes belong to a body |
//! | [`writer`] | heads and bodies as they are written |
//! | [`refused`] | the readable parts of a refused head |
//!
//! Servers and libraries tolerate different deviations: a bare LF, a space in the target, folded lines, two lengths. All are
//! refused here. A head is read once, into one buffer and the positions of its fields; from HTTP/1 to HTTP/1 no header map is
//! built.

use super::octets::{self, OctetSet};
use super::rejection::{Malformed, Rejection};

pub mod answer;
pub mod body;
pub mod fields;
pub mod framing;
pub mod refused;
pub mod request;
mod request_line;
pub mod writer;

pub use request_line::METHOD_BYTES_MAX;

use fields::FieldBounds;

/// The methods that an endpoint can accept, as in `Allow`.
const ENDPOINT_METHODS: &str = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";
/// Room for white space around values, which the limit of the headers does not count.
const SLACK_BYTES: usize = 1024;

/// The limits of a request's head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadBounds {
    /// Bytes of the target.
    pub target_bytes_max: usize,
    /// Bytes of all header names and values, plus four for each header.
    pub header_bytes_max: usize,
    /// Header lines.
    pub header_count_max: usize,
}

impl HeadBounds {
    fn fields(&self) -> FieldBounds {
        FieldBounds {
            bytes_max: self.header_bytes_max,
            count_max: self.header_count_max,
        }
    }
}

/// The version as which a message is interpreted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.0.
    Http10,
    /// HTTP/1.1, also for messages of a later minor version.
    Http11,
    /// HTTP/2, whose messages have the same heads in another form.
    Http2,
}

/// The refusal of bytes that are not a head.
fn unreadable() -> Rejection {
    Rejection::BadRequest(Malformed::Head)
}

/// A valid `Content-Length`: digits only (RFC 9110 section 8.6), 19 at most.
pub fn length(value: &[u8]) -> Option<u64> {
    let is_number = (1..=19).contains(&value.len()) && value.iter().all(u8::is_ascii_digit);
    let digits = value.iter().map(|digit| u64::from(digit - b'0'));
    is_number.then(|| digits.fold(0, |number, digit| number * 10 + digit))
}

/// The common length of all `Content-Length` values of an answer, each a number or a list of numbers: a recipient may treat equal
/// ones as one (RFC 9110 section 8.6). `None` if they differ or are not numbers.
pub fn agreed_length<'a>(values: impl IntoIterator<Item = &'a [u8]>) -> Option<u64> {
    let mut all = values
        .into_iter()
        .flat_map(|value| value.split(|byte| *byte == b','))
        .map(|element| length(element.trim_ascii()));
    let first = all.next()??;
    all.all(|other| other == Some(first)).then_some(first)
}

/// A registered name or address with an optional port; no user, path, list or space (RFC 9110 section 7.2).
pub fn is_host(host: &[u8]) -> bool {
    let name = match host.iter().rposition(|byte| *byte == b':') {
        Some(colon) if !host.ends_with(b"]") => {
            let (name, port) = host.split_at(colon);
            if port.len() > 6 || !port.iter().skip(1).all(u8::is_ascii_digit) {
                return false;
            }
            name
        }
        _ => host,
    };
    match name.strip_prefix(b"[").map(|rest| rest.strip_suffix(b"]")) {
        Some(Some(address)) => std::str::from_utf8(address)
            .is_ok_and(|text| text.parse::<std::net::Ipv6Addr>().is_ok()),
        Some(None) => false,
        None => !name.is_empty() && HOST_NAME.contains_all(name),
    }
}

/// A character of a registered name, as used in practice.
static HOST_NAME: OctetSet = OctetSet::alphanumeric_and(b"-._");

/// A character of a token (RFC 9110 section 5.6.2).
static TOKEN: OctetSet = OctetSet::alphanumeric_and(b"!#$%&'*+-.^_`|~");

/// Whether all characters are allowed in a field's value (RFC 9110 section 5.5): no control character except the tab.
fn is_field_value(value: &[u8]) -> bool {
    !octets::any(value, |octet| {
        (octet < b' ' && octet != b'\t') || octet == 0x7f
    })
}

/// The refusal of `CONNECT`, over HTTP/2 too: no endpoint accepts it, and requests in a tunnel would not be counted.
pub fn connect_refused() -> Rejection {
    Rejection::MethodNotAllowed {
        allow: ENDPOINT_METHODS.into(),
    }
}

#[cfg(test)]
mod tests;
