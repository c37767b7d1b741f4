//! The first line of a request (RFC 9112 section 3), and the head that the library below reads in its place.
//!
//! The library reads HTTP/1.0 and 1.1 with targets in origin-form. What else is valid is written anew in that form: a target in
//! absolute-form, whose authority takes the place of `Host` (section 3.2.2), and a later minor version, which is read as 1.1
//! (RFC 9110 section 2.5).

use http::header::HOST;

use super::{HeadBounds, Lines, TOKEN, connect_refused, is_host, line_text, unreadable};
use crate::policy::rejection::{Malformed, Rejection};
use crate::policy::target::{Absolute, Target, TargetError};

/// No registered method is longer than 17 characters.
pub(super) const METHOD_BYTES_MAX: usize = 32;

/// What a `Host` field has beside its value.
const HOST_FIELD_BYTES: usize = 8;

/// The version that a request is read as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    Http10,
    Http11,
}

/// `method SP target SP version`.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestLine<'a> {
    method: &'a [u8],
    target: &'a [u8],
    absolute: Option<Absolute<'a>>,
    pub(super) version: Version,
    /// Whether the version is 1.0 or 1.1 as it was sent.
    is_known: bool,
}

impl<'a> RequestLine<'a> {
    /// Reads a line with its end.
    pub(super) fn parse(line: &'a [u8], bounds: &HeadBounds) -> Result<RequestLine<'a>, Rejection> {
        let mut words = line_text(line)?.split(|byte| *byte == b' ');
        let (Some(method), Some(target), Some(version), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(unreadable());
        };
        let is_method =
            (1..=METHOD_BYTES_MAX).contains(&method.len()) && TOKEN.contains_all(method);
        let (version, is_known) = match version {
            b"HTTP/1.1" => (Version::Http11, true),
            b"HTTP/1.0" => (Version::Http10, true),
            [b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'2'..=b'9'] => (Version::Http11, false),
            _ => return Err(unreadable()),
        };
        if !is_method {
            return Err(unreadable());
        }
        // Its target is an authority.
        if method == b"CONNECT" {
            return Err(connect_refused());
        }
        if target.len() > bounds.target_bytes_max {
            return Err(Rejection::UriTooLong);
        }
        let absolute = Absolute::of(target);
        let line = RequestLine {
            method,
            target,
            absolute,
            version,
            is_known,
        };
        line.check_target()?;
        Ok(line)
    }

    fn check_target(&self) -> Result<(), Rejection> {
        let refused = |error| Rejection::BadRequest(Malformed::Target(error));
        match &self.absolute {
            None => Target::parse(self.target).map(|_| ()).map_err(refused),
            Some(absolute) if !is_host(absolute.authority) => {
                Err(refused(TargetError::InvalidAuthority))
            }
            // It means `*`, which is refused as well (section 3.2.4).
            Some(absolute) if absolute.is_bare() && self.method == b"OPTIONS" => {
                Err(refused(TargetError::NotOriginForm))
            }
            Some(absolute) => Target::parse(&absolute.origin_form())
                .map(|_| ())
                .map_err(refused),
        }
    }

    /// The whole checked head, whose first line this is, as the library below can read it; `None` where it can read it as sent.
    pub(super) fn rewritten(&self, head: &[u8]) -> Option<Vec<u8>> {
        if self.absolute.is_none() && self.is_known {
            return None;
        }
        let mut anew = Vec::with_capacity(head.len() + HOST_FIELD_BYTES);
        anew.extend_from_slice(self.method);
        anew.push(b' ');
        match &self.absolute {
            Some(absolute) => anew.extend_from_slice(&absolute.origin_form()),
            None => anew.extend_from_slice(self.target),
        }
        anew.extend_from_slice(match self.version {
            Version::Http10 => b" HTTP/1.0\r\n",
            Version::Http11 => b" HTTP/1.1\r\n",
        });
        if let Some(absolute) = &self.absolute {
            for part in [HOST.as_str().as_bytes(), b": ", absolute.authority, b"\r\n"] {
                anew.extend_from_slice(part);
            }
        }
        for line in Lines(head).skip(1) {
            let name = line.split(|byte| *byte == b':').next().unwrap_or_default();
            let is_host = name.eq_ignore_ascii_case(HOST.as_str().as_bytes());
            if self.absolute.is_none() || !is_host {
                anew.extend_from_slice(line);
            }
        }
        Some(anew)
    }
}
