//! How a message is framed: where its body ends (RFC 9112 section 6).
//!
//! A framing is decided once, from the parsed head; the readers and writers of bodies are made from it, and a written head has
//! exactly the framing fields that it requires.

use http::StatusCode;

use super::version::Version;

/// The framing of a request's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// No body, and no field that announces one.
    Empty,
    /// `Content-Length`: this many bytes, which may be 0.
    Length(u64),
    /// `Transfer-Encoding: chunked`.
    Chunked,
}

impl Framing {
    /// Whether the head excludes any byte of a body.
    pub fn is_empty(self) -> bool {
        matches!(self, Framing::Empty | Framing::Length(0))
    }
}

/// The framing of an answer's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerFraming {
    /// No body, because of the request's method or the status; with the length that the answer to another method would have, if
    /// the server announced one (RFC 9110 section 8.6).
    Bodiless(Option<u64>),
    /// `Content-Length`: this many bytes, which may be 0.
    Length(u64),
    /// `Transfer-Encoding: chunked`.
    Chunked,
    /// The body ends when the connection is closed.
    ByClose,
}

/// The same body in an answer: its bytes do not depend on the direction.
impl From<Framing> for AnswerFraming {
    fn from(framing: Framing) -> AnswerFraming {
        match framing {
            Framing::Empty => AnswerFraming::Bodiless(None),
            Framing::Length(bytes) => AnswerFraming::Length(bytes),
            Framing::Chunked => AnswerFraming::Chunked,
        }
    }
}

impl AnswerFraming {
    /// The framing of the same body for a client of this version: HTTP/1.0 has no chunks (RFC 9112 section 6.1).
    pub fn towards(self, client: Version) -> AnswerFraming {
        match (self, client) {
            (AnswerFraming::Chunked, Version::Http10) => AnswerFraming::ByClose,
            // This lets an HTTP/1.1 client distinguish the body's end from a lost connection.
            (AnswerFraming::ByClose, Version::Http11) => AnswerFraming::Chunked,
            (framing, _) => framing,
        }
    }
}

/// The fields whose names mean something to the reader or the writer of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::policy) enum KnownField {
    Host,
    Expect,
    Connection,
    ContentLength,
    TransferEncoding,
    /// Belongs to one connection, and is not interpreted.
    HopByHop,
}

impl KnownField {
    #[inline]
    pub(in crate::policy) fn of(name: &[u8]) -> Option<KnownField> {
        let is = |text: &[u8], known| name.eq_ignore_ascii_case(text).then_some(known);
        let is_hop_by_hop = |text: &[u8]| is(text, KnownField::HopByHop);
        match name.len() {
            2 => is_hop_by_hop(b"te"),
            4 => is(b"host", KnownField::Host),
            6 => is(b"expect", KnownField::Expect),
            7 => is_hop_by_hop(b"trailer").or_else(|| is_hop_by_hop(b"upgrade")),
            10 => {
                is(b"connection", KnownField::Connection).or_else(|| is_hop_by_hop(b"keep-alive"))
            }
            14 => is(b"content-length", KnownField::ContentLength)
                .or_else(|| is_hop_by_hop(b"http2-settings")),
            16 => is_hop_by_hop(b"proxy-connection"),
            17 => is(b"transfer-encoding", KnownField::TransferEncoding),
            18 => is_hop_by_hop(b"proxy-authenticate"),
            _ => None,
        }
    }

    /// Whether it belongs to one connection or frames a message, independent of `Connection` (RFC 9110 section 7.6.1).
    pub(super) fn is_hop_by_hop(self) -> bool {
        match self {
            KnownField::Connection
            | KnownField::ContentLength
            | KnownField::TransferEncoding
            | KnownField::HopByHop => true,
            KnownField::Host | KnownField::Expect => false,
        }
    }
}

/// Whether a value of `Transfer-Encoding` is `chunked`, the only accepted coding: the gateway would have to decode any other (RFC
/// 9112 section 6.1).
pub(super) fn is_chunked(value: &[u8]) -> bool {
    value.eq_ignore_ascii_case(b"chunked")
}

/// Whether answers of this status never have a body (RFC 9112 section 6.3).
pub fn is_bodiless(status: StatusCode) -> bool {
    status.is_informational() || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
}

/// Whether an answer of this status must not even announce a length (RFC 9110 section 8.6).
pub(super) fn is_lengthless(status: StatusCode) -> bool {
    status.is_informational() || status == StatusCode::NO_CONTENT
}
