//! Values of the file that are chosen among words.

use std::time::Duration;

/// The importance of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Something failed.
    Error,
    /// Something may fail soon.
    Warn,
    /// Starts, stops, changes.
    Info,
    /// Details for developers.
    Debug,
    /// Everything.
    Trace,
}

impl Level {
    /// The word in the file, which tracing's filters accept too.
    pub fn as_str(self) -> &'static str {
        match self {
            Level::Error => "error",
            Level::Warn => "warn",
            Level::Info => "info",
            Level::Debug => "debug",
            Level::Trace => "trace",
        }
    }
}

/// Which addresses the cleartext listener may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cleartext {
    /// Loopback addresses only.
    Loopback,
    /// Any address: a proxy in front of the gateway ends TLS.
    Allowed,
}

/// Whether a client needs a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientMode {
    /// The handshake of a client without a certificate fails.
    Required,
    /// A client needs no certificate; one that it sends must be valid.
    Optional,
}

/// How charges are decided while Redis is unreachable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutagePolicy {
    /// Each gateway serves its share of what remained.
    Bounded,
    /// Nothing is served.
    Deny,
    /// Everything is served.
    Open,
}

/// The version of HTTP that is used with an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2 only: with TLS by ALPN, without TLS with prior knowledge (RFC 9113 section 3.3).
    Http2,
    /// HTTP/2 if the server agrees to it by ALPN, else HTTP/1.1.
    Negotiated,
}

/// Whether connections begin with a PROXY protocol header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyProtocol {
    /// Every connection does, from a trusted proxy; others are closed.
    Spoken,
    /// No connection does.
    Absent,
}

/// When commits are safe on disk. A crash of the process alone never loses one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
pub enum DurabilitySetting {
    /// Before each answer.
    Commit,
    /// At most this long after each answer.
    Interval(Duration),
}
