//! HTTP/1 on the wire (RFC 9112): where a request's head ends, whether it can be read in one way only, and how its body
//! is framed.
//!
//! The HTTP library below the gateway forgives what servers disagree about: a bare LF, a space in the target, folded
//! lines, two lengths. All of it is refused here, on the bytes as they came, before the library sees any of them; so what
//! the library takes for the end of a request is what is taken for it here. Nothing here reads a clock or a socket.

use http::HeaderName;
use http::header::{CONTENT_LENGTH, HOST, TRANSFER_ENCODING};

use super::octets::OctetSet;
use super::rejection::{Malformed, Rejection};
use super::target::Absolute;

pub mod body;
mod request_line;

use body::Body;
use request_line::{METHOD_BYTES_MAX, RequestLine, Version};

/// Empty lines that may come before a request line (RFC 9112 section 2.2 asks for one at least).
const EMPTY_LINES_MAX: usize = 2;
/// The methods that an endpoint can take, as in `Allow`.
const ENDPOINT_METHODS: &str = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";
/// What a request line has beside method and target: two spaces, the version, CR and LF.
const LINE_OVERHEAD_BYTES: usize = 12;
/// Room for white space around values, which the limit of the headers does not count.
const SLACK_BYTES: usize = 1024;

const X_REQUEST_ID: &[u8] = b"x-request-id";

/// What the head of a request may measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadBounds {
    /// Bytes of the target.
    pub target_bytes_max: usize,
    /// Bytes of all header names and values, four more for each.
    pub header_bytes_max: usize,
    /// Header lines.
    pub header_count_max: usize,
}

/// What the bytes so far are.
#[derive(Debug, PartialEq, Eq)]
pub enum Scan {
    /// Not a whole head yet, and nothing wrong with it so far.
    Partial,
    /// A head that can be read in one way only.
    Whole {
        /// Empty lines before it, in bytes.
        skipped_bytes: usize,
        /// The end of the head, with its empty line.
        end: usize,
        /// What follows it.
        body: Body,
        /// The head, without the empty lines before it, as HTTP/1.0 or 1.1 with a target in origin-form, where it was sent in
        /// another form.
        rewritten: Option<Vec<u8>>,
    },
    /// To be refused; whatever follows cannot be told apart from it.
    Refused(Rejection),
}

/// Looks for a head at the start of `bytes`, of which the first `seen` were partial when they were looked at before.
/// Cost: one pass over what is new, and one over a whole head.
pub fn scan(bytes: &[u8], seen: usize, bounds: &HeadBounds) -> Scan {
    let start = match skip_empty_lines(bytes) {
        Ok(start) => start,
        Err(rejection) => return Scan::Refused(rejection),
    };
    let head = bytes.get(start..).unwrap_or_default();
    let seen = seen.saturating_sub(start);
    let verdict = match end_of_head(head, seen) {
        Some(end) => {
            check(head.get(..end).unwrap_or_default(), bounds).map(|checked| Some((end, checked)))
        }
        None => check_partial(head, bounds).map(|()| None),
    };
    match verdict {
        Err(rejection) => Scan::Refused(rejection),
        Ok(None) => Scan::Partial,
        Ok(Some((end, (body, rewritten)))) => Scan::Whole {
            skipped_bytes: start,
            end: start + end,
            body,
            rewritten,
        },
    }
}

/// The refusal of bytes that are no head.
fn unreadable() -> Rejection {
    Rejection::BadRequest(Malformed::Head)
}

fn framing() -> Rejection {
    Rejection::BadRequest(Malformed::Framing)
}

fn skip_empty_lines(bytes: &[u8]) -> Result<usize, Rejection> {
    let mut rest = bytes;
    for _ in 0..EMPTY_LINES_MAX {
        match rest.strip_prefix(b"\r\n") {
            Some(after) => rest = after,
            None => break,
        }
    }
    match rest.first() {
        // A CR alone may be the half of another empty line.
        Some(b'\n') => Err(unreadable()),
        Some(b'\r') if rest.len() > 1 => Err(unreadable()),
        Some(_) | None => Ok(bytes.len() - rest.len()),
    }
}

/// The end of the first empty line, whether its line ends are right or not.
fn end_of_head(head: &[u8], seen: usize) -> Option<usize> {
    let from = seen.saturating_sub(3);
    let mut line_ends = memchr::memchr_iter(b'\n', head.get(from..)?).map(|at| from + at);
    line_ends.find_map(|at| match head.get(at + 1..)? {
        [b'\n', ..] => Some(at + 2),
        [b'\r', b'\n', ..] => Some(at + 3),
        _ => None,
    })
}

/// What can be said before a head is whole: that it is too large, or no HTTP.
fn check_partial(head: &[u8], bounds: &HeadBounds) -> Result<(), Rejection> {
    if head
        .first()
        .is_some_and(|byte| !TOKEN.contains(*byte) && *byte != b'\r')
    {
        return Err(unreadable());
    }
    let line_bytes_max = METHOD_BYTES_MAX + bounds.target_bytes_max + LINE_OVERHEAD_BYTES;
    match memchr::memchr(b'\n', head) {
        None if head.len() > line_bytes_max => Err(too_long_a_line(head)),
        None => Ok(()),
        Some(end) => {
            let line = head.get(..=end).unwrap_or_default();
            RequestLine::parse(line, bounds)?;
            let header_bytes_max = bounds.header_bytes_max + SLACK_BYTES;
            if head.len() - line.len() > header_bytes_max {
                return Err(Rejection::HeadersTooLarge);
            }
            Ok(())
        }
    }
}

/// A first line that does not end: a long target, if it begins like one of a request.
fn too_long_a_line(line: &[u8]) -> Rejection {
    let method = line
        .iter()
        .take(METHOD_BYTES_MAX + 1)
        .position(|byte| *byte == b' ');
    match method {
        Some(end)
            if end > 0
                && line
                    .get(..end)
                    .is_some_and(|method| TOKEN.contains_all(method)) =>
        {
            Rejection::UriTooLong
        }
        Some(_) | None => unreadable(),
    }
}

/// Checks a whole head: how its body is framed, and the head written anew where the library below could not read it.
fn check(head: &[u8], bounds: &HeadBounds) -> Result<(Body, Option<Vec<u8>>), Rejection> {
    let mut lines = Lines(head);
    let request_line = RequestLine::parse(lines.next().unwrap_or_default(), bounds)?;
    let mut fields = Fields::default();
    let (mut count, mut header_bytes) = (0, 0);
    for line in lines {
        let line = line_text(line)?;
        if line.is_empty() {
            break;
        }
        let colon = memchr::memchr(b':', line).ok_or_else(unreadable)?;
        let (name, value) = line.split_at(colon);
        let value = value.get(1..).unwrap_or_default().trim_ascii();
        // A folded line begins with white space, which no name has.
        if name.is_empty()
            || !TOKEN.contains_all(name)
            || !value.iter().copied().all(is_field_value)
        {
            return Err(unreadable());
        }
        count += 1;
        header_bytes += name.len() + value.len() + 4;
        if count > bounds.header_count_max || header_bytes > bounds.header_bytes_max {
            return Err(Rejection::HeadersTooLarge);
        }
        fields.note(name, value)?;
    }
    let body = fields.check(request_line.version)?;
    Ok((body, request_line.rewritten(head)))
}

/// Line by line, each with its LF.
struct Lines<'a>(&'a [u8]);

impl<'a> Iterator for Lines<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let end = memchr::memchr(b'\n', self.0)?;
        let (line, rest) = self.0.split_at_checked(end + 1)?;
        self.0 = rest;
        Some(line)
    }
}

/// A line without its end, which is CR and LF and nothing else, and without any other CR.
fn line_text(line: &[u8]) -> Result<&[u8], Rejection> {
    let text = line.strip_suffix(b"\r\n").ok_or_else(unreadable)?;
    match memchr::memchr(b'\r', text) {
        Some(_) => Err(unreadable()),
        None => Ok(text),
    }
}

/// The fields on which the message's end and its host depend.
#[derive(Default)]
struct Fields {
    hosts: usize,
    length: Option<u64>,
    chunked: bool,
}

impl Fields {
    fn note(&mut self, name: &[u8], value: &[u8]) -> Result<(), Rejection> {
        let is = |field: &HeaderName| name.eq_ignore_ascii_case(field.as_str().as_bytes());
        if is(&HOST) {
            self.hosts += 1;
            if self.hosts > 1 || !is_host(value) {
                return Err(Rejection::BadRequest(Malformed::Host));
            }
        } else if is(&CONTENT_LENGTH) {
            let length = length(value).ok_or_else(framing)?;
            if self.length.replace(length).is_some() {
                return Err(framing());
            }
        } else if is(&TRANSFER_ENCODING) {
            // Any other coding would be the gateway's to undo (RFC 9112 section 6.1).
            if self.chunked || !value.eq_ignore_ascii_case(b"chunked") {
                return Err(framing());
            }
            self.chunked = true;
        }
        Ok(())
    }

    fn check(self, version: Version) -> Result<Body, Rejection> {
        if self.hosts == 0 && version == Version::Http11 {
            return Err(Rejection::BadRequest(Malformed::Host));
        }
        match (self.chunked, self.length) {
            (true, Some(_)) => Err(framing()),
            (true, None) if version == Version::Http10 => Err(framing()),
            (true, None) => Ok(Body::chunked()),
            (false, length) => Ok(Body::of_length(length.unwrap_or(0))),
        }
    }
}

/// A length as `Content-Length` has it: digits and nothing else (RFC 9110 section 8.6), 19 at most.
pub fn length(value: &[u8]) -> Option<u64> {
    let is_number = (1..=19).contains(&value.len()) && value.iter().all(u8::is_ascii_digit);
    let text = std::str::from_utf8(value).ok().filter(|_| is_number);
    text.and_then(|text| text.parse().ok())
}

/// The one length that all values of `Content-Length` in an answer name, each a number or a list of numbers: a recipient may
/// take equal ones for one (RFC 9110 section 8.6). `None` where they differ or are no numbers.
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

/// A character of a registered name, as far as names are used.
static HOST_NAME: OctetSet = OctetSet::alphanumeric_and(b"-._");

/// A character of a token (RFC 9110 section 5.6.2).
static TOKEN: OctetSet = OctetSet::alphanumeric_and(b"!#$%&'*+-.^_`|~");

/// A character of a field's value (RFC 9110 section 5.5).
fn is_field_value(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}

/// The method and the path of a refused head, as far as they can be told, for the log.
pub fn told_apart(head: &[u8]) -> (String, String) {
    let line = head
        .trim_ascii_start()
        .split(|byte| matches!(byte, b'\r' | b'\n'))
        .next()
        .unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ');
    let mut word = || {
        let word = words.next().unwrap_or_default();
        let word = word.get(..word.len().min(256)).unwrap_or_default();
        String::from_utf8_lossy(word).into_owned()
    };
    let (method, target) = (word(), word());
    let absolute = Absolute::of(target.as_bytes()).map(|absolute| absolute.origin_form());
    let target = match &absolute {
        Some(origin) => String::from_utf8_lossy(origin),
        None => target.into(),
    };
    let path = target.split(['?', '#']).next().unwrap_or_default();
    (method, path.to_owned())
}

/// The value of `X-Request-Id` in a head that was refused, whole or not, as far as it can be told.
pub fn request_id(head: &[u8]) -> Option<&[u8]> {
    // The end of the last line may be missing, and with it a part of the value.
    let whole = head.iter().rposition(|byte| *byte == b'\n')?;
    let lines = head
        .get(..whole)?
        .trim_ascii_start()
        .split(|byte| *byte == b'\n');
    lines
        .skip(1)
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line))
        .take_while(|line| !line.is_empty())
        .find_map(|line| {
            let (name, value) = line.split_at_checked(X_REQUEST_ID.len())?;
            let value = value.strip_prefix(b":")?;
            name.eq_ignore_ascii_case(X_REQUEST_ID)
                .then(|| value.trim_ascii())
        })
}

/// The refusal of `CONNECT`, over HTTP/2 too: no endpoint takes it, and a tunnel would carry what nobody counts.
pub fn connect_refused() -> Rejection {
    Rejection::MethodNotAllowed {
        allow: ENDPOINT_METHODS.into(),
    }
}

#[cfg(test)]
mod tests;
