//! The versions of HTTP.

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

impl Version {
    /// The name of the version in logs.
    pub fn name(self) -> &'static str {
        match self {
            Version::Http10 => "HTTP/1.0",
            Version::Http11 => "HTTP/1.1",
            Version::Http2 => "HTTP/2",
        }
    }
}

/// The version as which a request or answer is interpreted.
pub(super) fn version_of(version: &[u8]) -> Option<Version> {
    match version {
        b"HTTP/1.0" => Some(Version::Http10),
        [b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'1'..=b'9'] => Some(Version::Http11),
        _ => None,
    }
}
