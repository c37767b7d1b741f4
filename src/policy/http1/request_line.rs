//! The first line of a request (RFC 9112 section 3).
//!
//! A target in absolute-form is interpreted as origin-form with its authority in place of `Host` (section 3.2.2), and a later
//! minor version as 1.1 (RFC 9110 section 2.5).

use http::Method;

use super::fields::FieldRange;
use super::grammar::{TOKEN, is_host};
use super::version::{Version, version_of};
use crate::policy::octets;
use crate::policy::rejection::{Malformed, Rejection};
use crate::policy::target::{Absolute, ReceivedTarget, Target, TargetError};

/// The longest method that is accepted, in bytes. No registered one is longer than 17.
pub const METHOD_BYTES_MAX: usize = 32;
/// The methods that an endpoint can accept, as in `Allow`.
const ENDPOINT_METHODS: &str = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";
/// The bytes of a request line without method and target: two spaces, the version, CR and LF.
const LINE_OVERHEAD_BYTES: usize = 12;

/// The bytes of a version and the space before it.
const VERSION_BYTES: usize = 9;

/// A parsed `method SP target SP version`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RequestLine {
    pub(super) method: Method,
    /// The target in origin-form.
    pub(super) target: ReceivedTarget,
    /// The authority of a target in absolute-form.
    pub(super) authority: Option<FieldRange>,
    pub(super) version: Version,
}

/// The most bytes that a line can have, including its end.
pub(super) fn line_bytes_max(target_bytes_max: usize) -> usize {
    METHOD_BYTES_MAX + target_bytes_max + LINE_OVERHEAD_BYTES
}

/// The refusal of bytes that are not a head.
pub(super) fn unreadable() -> Rejection {
    Rejection::BadRequest(Malformed::Head)
}

/// The refusal of `CONNECT`, over HTTP/2 too: no endpoint accepts it, and requests in a tunnel would not be counted.
pub fn connect_refused() -> Rejection {
    Rejection::MethodNotAllowed {
        allow: ENDPOINT_METHODS.into(),
    }
}

/// The refusal of a longer line: for its target, if the line begins like a request.
pub(super) fn too_long(line: &[u8]) -> Rejection {
    let method = line
        .iter()
        .take(METHOD_BYTES_MAX + 1)
        .position(|byte| *byte == b' ');
    match method.and_then(|end| line.get(..end)) {
        Some(method) if !method.is_empty() && TOKEN.contains_all(method) => Rejection::UriTooLong,
        Some(_) | None => unreadable(),
    }
}

impl RequestLine {
    /// Parses a line, including its end, that begins at `start` of the buffer.
    pub(super) fn parse(
        line: &[u8],
        start: usize,
        target_bytes_max: usize,
    ) -> Result<RequestLine, Rejection> {
        let text = line.strip_suffix(b"\r\n").ok_or_else(unreadable)?;
        let (method, target, version) = words(text).ok_or_else(unreadable)?;
        let version = version_of(version).ok_or_else(unreadable)?;
        if !(1..=METHOD_BYTES_MAX).contains(&method.len()) || !TOKEN.contains_all(method) {
            return Err(unreadable());
        }
        let target_start = start + method.len() + 1;
        let method = Method::from_bytes(method).map_err(|_| unreadable())?;
        // The target of CONNECT is an authority.
        if method == Method::CONNECT {
            return Err(connect_refused());
        }
        if target.len() > target_bytes_max {
            return Err(Rejection::UriTooLong);
        }
        let (target, authority) = origin(target, target_start, &method)
            .map_err(|error| Rejection::BadRequest(Malformed::Target(error)))?;
        Ok(RequestLine {
            method,
            target,
            authority,
            version,
        })
    }
}

/// The three words of a line. The check of the target would also refuse a space or a CR, but they are not part of the target.
fn words(line: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (method, rest) = line.split_at(line.iter().position(|byte| *byte == b' ')?);
    let (target, version) = rest.split_last_chunk::<VERSION_BYTES>()?;
    let (target, version) = (target.strip_prefix(b" ")?, version.strip_prefix(b" ")?);
    (!octets::any(target, |octet| matches!(octet, b' ' | b'\r')))
        .then_some((method, target, version))
}

/// The origin-form of a target that begins at `start`, checked, and its authority if it was in absolute-form.
fn origin(
    target: &[u8],
    start: usize,
    method: &Method,
) -> Result<(ReceivedTarget, Option<FieldRange>), TargetError> {
    let Some(absolute) = Absolute::of(target) else {
        return Ok((Target::receive(target)?, None));
    };
    if !is_host(absolute.authority) {
        return Err(TargetError::InvalidAuthority);
    }
    // This means `*`, which is refused as well (section 3.2.4).
    if absolute.rest.is_empty() && *method == Method::OPTIONS {
        return Err(TargetError::NotOriginForm);
    }
    let origin = Target::receive(&absolute.origin_form())?;
    let authority_end = start + target.len() - absolute.rest.len();
    let authority = FieldRange::new(authority_end - absolute.authority.len(), authority_end);
    Ok((origin, Some(authority)))
}
