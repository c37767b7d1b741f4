//! The head of a request (RFC 9112 sections 2 to 6): read once, out of the buffer that it came into.
//!
//! Forms that servers read in different ways are refused: a bare LF, a space in the target, a folded line, two lengths, a length beside
//! chunks, a `Host` too many. What comes out has one reading.

use bytes::{Bytes, BytesMut};
use http::Method;

use super::body::{BodyReader, ChunkLimits};
use super::fields::{
    FieldFault, FieldPlace, FieldReader, Fields, Lines, Next, Options, Place, Places,
};
use super::framing::{Framing, Known, is_chunked};
use super::request_line::{self, RequestLine};
use super::{HeadBounds, TOKEN, Version, is_host, length, unreadable};
use crate::policy::rejection::{Malformed, Rejection};
use crate::policy::target::Target;

/// Empty lines that may come before a request line (RFC 9112 section 2.2 asks for one at least).
const EMPTY_LINES_MAX: usize = 2;

/// Reads the heads of one connection's requests, one after the other, from bytes that arrive in pieces.
#[derive(Debug, Default)]
pub struct RequestReader {
    lines: Lines,
    line: Option<RequestLine>,
    fields: FieldReader,
    places: Places,
    noted: Noted,
}

impl RequestReader {
    /// Takes a head off the front of `buffer`; `None` while it has not arrived whole. The buffer is the same each time, with more at
    /// its end; behind a head that was taken, the next one begins. Cost: each byte is read once; one allocation for the places of
    /// the fields.
    ///
    /// # Errors
    /// With the refusal of a head that has more than one reading, or is too large. The bytes behind it cannot be read.
    pub fn take(
        &mut self,
        buffer: &mut BytesMut,
        bounds: &HeadBounds,
    ) -> Result<Option<RequestHead>, Rejection> {
        let read = self.read(buffer, bounds)?;
        Ok(read.map(|places| places.take(buffer)))
    }

    /// Reads a head at the start of `bytes` and leaves it there.
    ///
    /// # Errors
    /// The same as [`RequestReader::take`].
    pub fn read(
        &mut self,
        bytes: &[u8],
        bounds: &HeadBounds,
    ) -> Result<Option<RequestPlaces>, Rejection> {
        if self.line.is_none() && !self.read_line(bytes, bounds)? {
            return Ok(None);
        }
        let field_bounds = bounds.fields();
        loop {
            match self.fields.next(bytes, &field_bounds).map_err(refused)? {
                Next::Partial => return Ok(None),
                Next::Field(field) => {
                    self.noted.note(&mut self.places, field, bytes)?;
                    self.places.push(field);
                }
                Next::End(end) => return std::mem::take(self).whole(end).map(Some),
            }
        }
    }

    /// Reads the first line; whether it has arrived whole.
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
        let bytes_max = request_line::line_bytes_max(bounds);
        if line.len() - usize::from(end.is_some()) > bytes_max {
            return Err(request_line::too_long(line));
        }
        let Some(end) = end else {
            return Ok(false);
        };
        self.line = Some(RequestLine::parse(line, start, bounds)?);
        self.fields = FieldReader::starting_at(end);
        Ok(true)
    }

    /// The places of a head that ends there.
    fn whole(self, end: usize) -> Result<RequestPlaces, Rejection> {
        let line = self.line.ok_or_else(unreadable)?;
        let framing = self.noted.framing(line.version)?;
        let is_http11 = line.version == Version::Http11;
        Ok(RequestPlaces {
            start: self.lines.start(),
            end,
            framing,
            keeps_open: self.noted.options.keeps_open(line.version),
            expects_continue: is_http11 && self.noted.expects_continue == Some(true),
            host: line.authority.or(self.noted.host),
            line,
            fields: self.places,
        })
    }
}

/// The bytes of the empty lines before a head.
fn skip_empty_lines(bytes: &[u8]) -> Result<usize, Rejection> {
    let mut rest = bytes;
    for _ in 0..EMPTY_LINES_MAX {
        match rest.strip_prefix(b"\r\n") {
            Some(after) => rest = after,
            None => break,
        }
    }
    match rest {
        [b'\n', ..] => Err(unreadable()),
        // A CR alone may be the half of another empty line.
        [b'\r', _, ..] => Err(unreadable()),
        _ => Ok(bytes.len() - rest.len()),
    }
}

fn refused(fault: FieldFault) -> Rejection {
    match fault {
        FieldFault::Malformed => unreadable(),
        FieldFault::TooLarge => Rejection::HeadersTooLarge,
    }
}

fn framing_refused() -> Rejection {
    Rejection::BadRequest(Malformed::Framing)
}

/// The fields on which the message's end, its host and the connection depend.
#[derive(Debug, Default)]
struct Noted {
    host: Option<Place>,
    length: Option<u64>,
    chunked: bool,
    options: Options,
    /// Whether the first `Expect` is `100-continue`; `None` without one.
    expects_continue: Option<bool>,
}

impl Noted {
    fn note(
        &mut self,
        places: &mut Places,
        field: FieldPlace,
        bytes: &[u8],
    ) -> Result<(), Rejection> {
        let value = field.value.of(bytes);
        match Known::of(field.name.of(bytes)) {
            None => {}
            Some(Known::Host) => {
                let before = self.host.replace(field.value);
                if before.is_some() || !is_host(value) {
                    return Err(Rejection::BadRequest(Malformed::Host));
                }
            }
            Some(Known::ContentLength) => {
                let length = length(value).ok_or_else(framing_refused)?;
                if self.length.replace(length).is_some() {
                    return Err(framing_refused());
                }
            }
            Some(Known::TransferEncoding) => {
                if self.chunked || !is_chunked(value) {
                    return Err(framing_refused());
                }
                self.chunked = true;
            }
            Some(Known::Connection) => {
                let options = places
                    .nominate(field.value, bytes)
                    .map_err(|_| Rejection::BadRequest(Malformed::Connection))?;
                self.options.add(options);
            }
            Some(Known::Expect) => {
                let is_continue = value.eq_ignore_ascii_case(b"100-continue");
                self.expects_continue.get_or_insert(is_continue);
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

/// A head that was read, as places in its buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestPlaces {
    start: usize,
    end: usize,
    line: RequestLine,
    fields: Places,
    host: Option<Place>,
    framing: Framing,
    keeps_open: bool,
    expects_continue: bool,
}

impl RequestPlaces {
    /// The start of the head, behind the empty lines before it.
    pub fn start(&self) -> usize {
        self.start
    }

    /// The end of the head, with its empty line.
    pub fn end(&self) -> usize {
        self.end
    }

    /// The framing of the body that follows.
    pub fn framing(&self) -> Framing {
        self.framing
    }

    /// Takes the head off the front of the buffer that it was read from.
    pub fn take(self, buffer: &mut BytesMut) -> RequestHead {
        let bytes = buffer.split_to(self.end.min(buffer.len())).freeze();
        RequestHead {
            bytes,
            places: self,
        }
    }

    /// The head as HTTP/1.0 or 1.1 with a target in origin-form, for the library that reads it again; `None` where it was sent so.
    pub fn rewritten(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        if self.line.authority.is_none() && self.line.is_known {
            return None;
        }
        let version: &[u8] = match self.line.version {
            Version::Http10 => b" HTTP/1.0\r\n",
            Version::Http11 => b" HTTP/1.1\r\n",
        };
        let method = self.line.method.as_str().as_bytes();
        let mut anew = [method, b" ", self.line.target.of(bytes), version].concat();
        if let Some(authority) = self.line.authority {
            anew.extend_from_slice(&[b"host: ", authority.of(bytes), b"\r\n"].concat());
        }
        for field in self.fields.view(bytes).iter() {
            if self.line.authority.is_none() || Known::of(field.name()) != Some(Known::Host) {
                anew.extend_from_slice(&[field.name(), b": ", field.value(), b"\r\n"].concat());
            }
        }
        anew.extend_from_slice(b"\r\n");
        Some(anew)
    }
}

/// The head of a request, with the buffer that it came in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestHead {
    bytes: Bytes,
    places: RequestPlaces,
}

impl RequestHead {
    /// The method, which is never `CONNECT`.
    pub fn method(&self) -> &Method {
        &self.places.line.method
    }

    /// The target in origin-form, byte for byte as it was sent.
    pub fn target(&self) -> Target<'_> {
        Target::accepted(self.places.line.target.of(&self.bytes))
    }

    /// The host that the client asked for: the authority of a target in absolute-form, or `Host`. Only HTTP/1.0 has none.
    pub fn host(&self) -> Option<&[u8]> {
        self.places.host.map(|place| place.of(&self.bytes))
    }

    /// The version that the request is read as.
    pub fn version(&self) -> Version {
        self.places.line.version
    }

    /// All fields, as they were sent: beside a target in absolute-form, `Host` among them means nothing.
    pub fn fields(&self) -> Fields<'_> {
        self.places.fields.view(&self.bytes)
    }

    /// The framing of the body.
    pub fn framing(&self) -> Framing {
        self.places.framing
    }

    /// A reader of the body that follows.
    pub fn body(&self, limits: &ChunkLimits) -> BodyReader {
        BodyReader::of_request(self.places.framing, limits)
    }

    /// Whether the client takes another answer on its connection (RFC 9112 section 9.3).
    pub fn keeps_open(&self) -> bool {
        self.places.keeps_open
    }

    /// Whether the client waits to be asked for its body (RFC 9110 section 10.1.1).
    pub fn expects_continue(&self) -> bool {
        self.places.expects_continue
    }

    /// The head as it was sent, without the empty lines before it.
    pub fn as_sent(&self) -> &[u8] {
        self.bytes.get(self.places.start..).unwrap_or_default()
    }
}
