//! The head of a request (RFC 9112 sections 2 to 6): read once, from the buffer that received it.
//!
//! Forms that servers read in different ways are refused: a bare LF, a space in the target, a folded line, two lengths, a length
//! beside chunks, a second `Host`. An accepted head can be read in one way only.

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, COOKIE, EXPECT, HOST};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method, request};

use super::body::{BodyReader, ChunkLimits};
use super::fields::{
    FieldBounds, FieldFault, FieldList, FieldPlace, FieldRange, FieldReader, Lines, Options,
};
use super::framing::{Framing, KnownField, is_chunked};
use super::grammar::{self, TOKEN, is_host};
use super::request_line::{self, RequestLine, unreadable};
use super::version::Version;
use crate::policy::rejection::{Malformed, Rejection};
use crate::policy::target::{ReceivedTarget, Target, TargetError};

/// Empty lines that may precede a request line (RFC 9112 section 2.2 requires at least one to be accepted).
const EMPTY_LINES_MAX: usize = 2;

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

/// Reads the heads of one connection's requests, one after the other, from bytes that arrive in pieces.
#[derive(Debug, Default)]
pub struct RequestReader {
    lines: Lines,
    line: Option<RequestLine>,
    fields: FieldReader,
    noted: NotedRequest,
}

impl RequestReader {
    /// Takes a head off the front of `buffer`; `None` until it is complete. The buffer is the same each time, with more at its
    /// end; after a head, the next one begins. Cost: each byte is read once; an allocation for the target and one for the positions of
    /// the fields.
    ///
    /// # Errors
    /// With the refusal of a head that can be read in more than one way, or is too large. The bytes after it cannot be read.
    pub fn take(
        &mut self,
        buffer: &mut BytesMut,
        bounds: &HeadBounds,
    ) -> Result<Option<RequestHead>, Rejection> {
        let Some(end) = self.read(buffer, bounds)? else {
            return Ok(None);
        };
        std::mem::take(self).whole(end, buffer).map(Some)
    }

    /// Reads a text that is one complete head.
    ///
    /// # Errors
    /// The same as [`RequestReader::take`], and if the text is not exactly one head.
    pub fn whole_head(text: &str, bounds: &HeadBounds) -> Result<RequestHead, Rejection> {
        let mut unread = BytesMut::from(text);
        let head = RequestReader::default().take(&mut unread, bounds)?;
        head.filter(|_| unread.is_empty()).ok_or_else(unreadable)
    }

    /// The end of a complete head at the start of `bytes`.
    fn read(&mut self, bytes: &[u8], bounds: &HeadBounds) -> Result<Option<usize>, Rejection> {
        if self.line.is_none() && !self.read_line(bytes, bounds)? {
            return Ok(None);
        }
        let note = |field| self.noted.note(field, bytes);
        self.fields.read(bytes, &bounds.fields(), note)
    }

    /// Reads the first line; returns whether it is complete.
    fn read_line(&mut self, bytes: &[u8], bounds: &HeadBounds) -> Result<bool, Rejection> {
        let start = skip_empty_lines(bytes)?;
        if self.lines.start() < start {
            self.lines.pass(start);
        }
        let end = self.lines.end(bytes);
        let line = bytes
            .get(start..end.unwrap_or(bytes.len()))
            .unwrap_or_default();
        let begins = |byte: &u8| TOKEN.contains(*byte) || *byte == b'\r';
        if !line.first().is_none_or(begins) {
            return Err(unreadable());
        }
        let bytes_max = request_line::line_bytes_max(bounds.target_bytes_max);
        if line.len() - usize::from(end.is_some()) > bytes_max {
            return Err(request_line::too_long(line));
        }
        let Some(end) = end else {
            return Ok(false);
        };
        self.line = Some(RequestLine::parse(line, start, bounds.target_bytes_max)?);
        self.fields = FieldReader::starting_at(end);
        Ok(true)
    }

    /// The places of a head that ends at `end`.
    fn whole(self, end: usize, buffer: &mut BytesMut) -> Result<RequestHead, Rejection> {
        let line = self.line.ok_or_else(unreadable)?;
        let framing = self.noted.framing(line.version)?;
        let is_http11 = line.version == Version::Http11;
        let host = line.authority.or(self.noted.host);
        let bytes = buffer.split_to(end.min(buffer.len())).freeze();
        Ok(RequestHead {
            method: line.method,
            version: line.version,
            target: line.target,
            authority: None,
            host: host.map(|host| bytes.slice(host.range())),
            framing,
            keeps_open: self.noted.options.keeps_open(line.version),
            expects_continue: is_http11 && self.noted.expects_continue == Some(true),
            fields: FieldList::new(bytes, self.fields.places),
            is_oversized: false,
        })
    }
}

/// The number of bytes of the empty lines before a head.
fn skip_empty_lines(bytes: &[u8]) -> Result<usize, Rejection> {
    let mut rest = bytes;
    for _ in 0..EMPTY_LINES_MAX {
        match rest.strip_prefix(b"\r\n") {
            Some(after) => rest = after,
            None => break,
        }
    }
    match rest {
        // A lone CR may be the beginning of another empty line.
        [b'\n', ..] | [b'\r', _, ..] => Err(unreadable()),
        _ => Ok(bytes.len() - rest.len()),
    }
}

impl From<FieldFault> for Rejection {
    fn from(fault: FieldFault) -> Rejection {
        match fault {
            FieldFault::Malformed => unreadable(),
            FieldFault::TooLarge => Rejection::HeadersTooLarge,
        }
    }
}

fn framing_refused() -> Rejection {
    Rejection::BadRequest(Malformed::Framing)
}

/// Whether a value of `Expect` asks for 100 (Continue).
fn is_continue(expected: &[u8]) -> bool {
    expected.eq_ignore_ascii_case(b"100-continue")
}

/// The fields that determine the message's end, its host and the connection's end.
#[derive(Debug, Default)]
struct NotedRequest {
    host: Option<FieldRange>,
    length: Option<u64>,
    chunked: bool,
    options: Options,
    /// Whether the first `Expect` is `100-continue`; `None` if there is no `Expect`.
    expects_continue: Option<bool>,
}

impl NotedRequest {
    fn note(&mut self, field: FieldPlace, bytes: &[u8]) -> Result<(), Rejection> {
        let value = field.value.of(bytes);
        match field.known {
            Some(KnownField::HopByHop) | None => {}
            Some(KnownField::Host) => {
                let before = self.host.replace(field.value);
                if before.is_some() || !is_host(value) {
                    return Err(Rejection::BadRequest(Malformed::Host));
                }
            }
            Some(KnownField::ContentLength) => {
                let length = grammar::length(value).ok_or_else(framing_refused)?;
                if self.length.replace(length).is_some() {
                    return Err(framing_refused());
                }
            }
            Some(KnownField::TransferEncoding) => {
                if self.chunked || !is_chunked(value) {
                    return Err(framing_refused());
                }
                self.chunked = true;
            }
            Some(KnownField::Connection) => {
                let noted = self.options.note(value);
                noted.map_err(|_| Rejection::BadRequest(Malformed::Connection))?;
            }
            Some(KnownField::Expect) => {
                self.expects_continue.get_or_insert(is_continue(value));
            }
        }
        Ok(())
    }

    fn framing(&self, version: Version) -> Result<Framing, Rejection> {
        if self.host.is_none() && version == Version::Http11 {
            return Err(Rejection::BadRequest(Malformed::Host));
        }
        match (self.chunked, self.length) {
            (true, Some(_)) => Err(framing_refused()),
            (true, None) if version == Version::Http10 => Err(framing_refused()),
            (true, None) => Ok(Framing::Chunked),
            (false, Some(length)) => Ok(Framing::Length(length)),
            (false, None) => Ok(Framing::Empty),
        }
    }
}

/// Joins the `Cookie` fields, into which HTTP/2 may split one (RFC 9113 section 8.2.3): servers over HTTP/1 know only one.
fn join_cookies(fields: &mut HeaderMap) {
    let crumbs: Vec<&[u8]> = fields
        .get_all(COOKIE)
        .iter()
        .map(HeaderValue::as_bytes)
        .collect();
    // Consists of valid values.
    if crumbs.len() > 1
        && let Ok(joined) = HeaderValue::try_from(crumbs.join(&b"; "[..]))
    {
        fields.insert(COOKIE, joined);
    }
}

/// The head of a request. Over HTTP/1 it shares the buffer that received it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestHead {
    /// The method; never `CONNECT` over HTTP/1.
    pub method: Method,
    /// The version as which the request is interpreted.
    pub version: Version,
    target: ReceivedTarget,
    authority: Option<Bytes>,
    host: Option<Bytes>,
    /// The framing of the body. Over HTTP/2, where frames end it: the announced length, or else chunks, with or without a body.
    pub framing: Framing,
    /// Whether the client accepts another answer on its connection (RFC 9112 section 9.3).
    pub keeps_open: bool,
    /// Whether the client waits for 100 (Continue) before it sends its body (RFC 9110 section 10.1.1).
    pub expects_continue: bool,
    /// All fields, as sent: if there is an authority, `Host` among them has no meaning.
    pub fields: FieldList,
    /// Whether the head was too large, and only some of its fields are kept.
    pub is_oversized: bool,
}

impl RequestHead {
    /// A head that the HTTP/2 library has read: its host and its announced length are not checked.
    pub fn of_http2(mut parts: request::Parts) -> RequestHead {
        join_cookies(&mut parts.headers);
        let uri = &parts.uri;
        let target = uri.path_and_query().map_or("", PathAndQuery::as_str);
        let authority = uri.authority().map(|authority| authority.as_str());
        let authority = authority.map(|text| Bytes::copy_from_slice(text.as_bytes()));
        let fields = FieldList::from(parts.headers);
        let host = fields.first(&HOST).map(Bytes::copy_from_slice);
        let length = fields.first(&CONTENT_LENGTH).and_then(grammar::length);
        let expects_continue = fields.first(&EXPECT).is_some_and(is_continue);
        RequestHead {
            target: ReceivedTarget::new(target),
            host,
            authority,
            framing: match length {
                Some(bytes) => Framing::Length(bytes),
                // A body need not be announced (RFC 9113 section 8.1).
                None => Framing::Chunked,
            },
            keeps_open: true,
            expects_continue,
            method: parts.method,
            version: Version::Http2,
            fields,
            is_oversized: false,
        }
    }

    /// The target as sent; over HTTP/1 in origin-form.
    pub fn raw_target(&self) -> &[u8] {
        self.target.as_str().as_bytes()
    }

    /// The target. It was checked when the head was read.
    ///
    /// # Errors
    /// If it can be read in more than one way, which is possible over HTTP/2 only.
    pub fn target(&self) -> Result<Target<'_>, TargetError> {
        self.target.target()
    }

    /// The path, checked or not.
    pub fn path(&self) -> &str {
        self.target.path()
    }

    /// The requested host: the authority of a target in absolute-form, `Host`, or `:authority`. Only HTTP/1.0 may have none.
    pub fn host(&self) -> Option<&[u8]> {
        self.host.as_deref().or(self.authority())
    }

    /// The `:authority` of HTTP/2.
    pub fn authority(&self) -> Option<&[u8]> {
        self.authority.as_deref()
    }

    /// A reader of the body that follows.
    pub fn body(&self, limits: &ChunkLimits) -> BodyReader {
        BodyReader::new(self.framing, limits)
    }
}
