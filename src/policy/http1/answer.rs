//! The head of an upstream's answer (RFC 9112 sections 2 to 6): read once, from the buffer that received it.
//!
//! An upstream is trusted no more than a client: an answer that can be read in two ways is a fault of the upstream and never
//! forwarded. This includes a folded line, white space before a colon and a length beside chunks (sections 5.1, 5.2 and 6.3 allow
//! or advise this).

use bytes::BytesMut;
use http::{Method, StatusCode};

use super::body::{BodyReader, ChunkLimits};
use super::fields::{FieldBounds, FieldFault, FieldList, FieldPlace, FieldReader, Lines, Options};
use super::framing::{AnswerFraming, KnownField, is_bodiless, is_chunked, is_lengthless};
use super::grammar::{agreed_length, is_field_value};
use super::version::{Version, version_of};
use super::writer::BodyWriter;

/// The bytes of a status line before its LF, without the reason phrase: the version, a space, the status, a space and CR.
const LINE_OVERHEAD_BYTES: usize = 14;
/// The largest head of an answer, whose fields count 32 bytes more each over HTTP/2 (RFC 9113 section 6.5.2): more than servers send, and
/// too little to be a burden.
pub const ANSWER_HEAD_BYTES_MAX: usize = 64 * 1024;

/// The limits of an answer's head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnswerBounds {
    /// Bytes of the reason phrase.
    pub reason_bytes_max: usize,
    /// The fields.
    pub fields: FieldBounds,
}

/// Why an answer is not forwarded: faults of the upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AnswerFault {
    /// The first line is not a status line of HTTP/1.
    #[error("the answer has no status line of HTTP/1")]
    StatusLine,
    /// A line is not a field, or is one that servers read in different ways.
    #[error("the answer has a malformed header field")]
    Field,
    /// The head is larger than its bounds.
    #[error("the head of the answer is too large")]
    TooLarge,
    /// The fields that frame the body contradict each other, or name a coding that the gateway did not request.
    #[error("the fields that frame the answer's body are contradictory or unsupported")]
    Framing,
    /// The upstream switched the protocol (101) unasked.
    #[error("the answer switches the protocol")]
    Switched,
}

impl From<FieldFault> for AnswerFault {
    fn from(fault: FieldFault) -> AnswerFault {
        match fault {
            FieldFault::Malformed => AnswerFault::Field,
            FieldFault::TooLarge => AnswerFault::TooLarge,
        }
    }
}

/// Reads the answers to one request: interim answers, and the final one.
#[derive(Debug)]
pub struct AnswerReader {
    /// The request's method, to the extent that framing depends on it.
    asked_head: bool,
    lines: Lines,
    line: Option<StatusLine>,
    fields: FieldReader,
    noted: NotedAnswer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct StatusLine {
    version: Version,
    status: StatusCode,
}

impl AnswerReader {
    /// A reader of the answers to a request with this method.
    pub fn new(method: &Method) -> AnswerReader {
        AnswerReader {
            asked_head: *method == Method::HEAD,
            lines: Lines::default(),
            line: None,
            fields: FieldReader::default(),
            noted: NotedAnswer::default(),
        }
    }

    /// Takes a head off the front of `buffer`; `None` until it is complete. The buffer is the same each time, with more at its
    /// end; after an interim answer, the next answer begins. Cost: each byte is read once; one allocation for the positions of
    /// the fields.
    ///
    /// # Errors
    /// If the upstream is at fault. Nothing more can be read from it.
    pub fn take(
        &mut self,
        buffer: &mut BytesMut,
        bounds: &AnswerBounds,
    ) -> Result<Option<AnswerHead>, AnswerFault> {
        let Some(end) = self.read(buffer, bounds)? else {
            return Ok(None);
        };
        let next = AnswerReader {
            asked_head: self.asked_head,
            ..AnswerReader::new(&Method::GET)
        };
        std::mem::replace(self, next).whole(end, buffer).map(Some)
    }

    /// The end of a complete head at the start of `bytes`.
    fn read(&mut self, bytes: &[u8], bounds: &AnswerBounds) -> Result<Option<usize>, AnswerFault> {
        if self.line.is_none() && !self.read_line(bytes, bounds)? {
            return Ok(None);
        }
        let note = |field| self.noted.note(field, bytes);
        self.fields.read(bytes, &bounds.fields, note)
    }

    /// Reads the first line; returns whether it is complete.
    fn read_line(&mut self, bytes: &[u8], bounds: &AnswerBounds) -> Result<bool, AnswerFault> {
        const START: &[u8] = b"HTTP/1.";
        let end = self.lines.end(bytes);
        let line = bytes.get(..end.unwrap_or(bytes.len())).unwrap_or_default();
        if !line
            .iter()
            .zip(START)
            .all(|(sent, expected)| sent == expected)
        {
            return Err(AnswerFault::StatusLine);
        }
        if line.len() - usize::from(end.is_some()) > LINE_OVERHEAD_BYTES + bounds.reason_bytes_max {
            return Err(AnswerFault::TooLarge);
        }
        let Some(end) = end else {
            return Ok(false);
        };
        let line = status_line(line).ok_or(AnswerFault::StatusLine)?;
        if line.status == StatusCode::SWITCHING_PROTOCOLS {
            return Err(AnswerFault::Switched);
        }
        self.line = Some(line);
        self.fields = FieldReader::starting_at(end);
        Ok(true)
    }

    fn whole(self, end: usize, buffer: &mut BytesMut) -> Result<AnswerHead, AnswerFault> {
        let StatusLine { version, status } = self.line.ok_or(AnswerFault::StatusLine)?;
        let bytes = buffer.split_to(end.min(buffer.len())).freeze();
        let fields = FieldList::new(bytes, self.fields.places);
        let framing = self.noted.framing(self.asked_head, version, status)?;
        let open = self.noted.options.keeps_open(version) && framing != AnswerFraming::ByClose;
        let is_marked =
            self.asked_head || status == StatusCode::NO_CONTENT || self.noted.announces_body();
        Ok(AnswerHead {
            version,
            status,
            framing,
            keeps_open: open,
            body_may_follow: is_marked && matches!(framing, AnswerFraming::Bodiless(_)),
            fields,
        })
    }
}

/// Parses `version SP status SP reason`; the last space may be missing if there is no reason (section 4).
fn status_line(line: &[u8]) -> Option<StatusLine> {
    let text = line.strip_suffix(b"\r\n")?;
    let (version, rest) = text.split_at_checked(8)?;
    let version = version_of(version)?;
    let (status, reason) = rest.strip_prefix(b" ")?.split_at_checked(3)?;
    let reason = match reason {
        [] => reason,
        _ => reason.strip_prefix(b" ")?,
    };
    let status = StatusCode::from_bytes(status).ok()?;
    is_field_value(reason).then_some(StatusLine { version, status })
}

/// The fields that determine the message's end and the connection's.
#[derive(Debug, Default, Clone, Copy)]
struct NotedAnswer {
    /// The common value of all `Content-Length` fields, if any; `None` within if they differ or are not numbers.
    length: Option<Option<u64>>,
    codings: usize,
    chunked: bool,
    options: Options,
}

impl NotedAnswer {
    fn note(&mut self, field: FieldPlace, bytes: &[u8]) -> Result<(), AnswerFault> {
        match field.known {
            Some(KnownField::ContentLength) => {
                let length = agreed_length([field.value.of(bytes)]);
                let before = self.length.unwrap_or(length);
                self.length = Some(before.filter(|_| before == length));
            }
            Some(KnownField::TransferEncoding) => {
                self.codings += 1;
                self.chunked = is_chunked(field.value.of(bytes));
            }
            Some(KnownField::Connection) => {
                let noted = self.options.note(field.value.of(bytes));
                noted.map_err(|_| AnswerFault::Field)?;
            }
            Some(KnownField::Host | KnownField::Expect | KnownField::HopByHop) | None => {}
        }
        Ok(())
    }

    /// Whether the fields are those of an answer with a body.
    fn announces_body(&self) -> bool {
        self.codings > 0 || self.length.is_some_and(|length| length != Some(0))
    }

    /// The framing.
    fn framing(
        self,
        asked_head: bool,
        version: Version,
        status: StatusCode,
    ) -> Result<AnswerFraming, AnswerFault> {
        if is_lengthless(status) {
            return Ok(AnswerFraming::Bodiless(None));
        }
        // Such an answer is not framed by these fields, and any value is allowed.
        if asked_head || is_bodiless(status) {
            let announced = self.length.flatten().filter(|_| self.codings == 0);
            return Ok(AnswerFraming::Bodiless(announced));
        }
        match (self.codings, self.length) {
            (0, None) => Ok(AnswerFraming::ByClose),
            (0, Some(length)) => length
                .map(AnswerFraming::Length)
                .ok_or(AnswerFault::Framing),
            (1, None) if self.chunked && version == Version::Http11 => Ok(AnswerFraming::Chunked),
            (_, _) => Err(AnswerFault::Framing),
        }
    }
}

/// The head of an answer, with the buffer that received it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnswerHead {
    /// The version as which the answer is interpreted.
    pub version: Version,
    /// The status: 100 to 999, except 101. RFC 9110 section 15 defines none above 599.
    pub status: StatusCode,
    /// The framing of the body.
    pub framing: AnswerFraming,
    /// Whether the upstream accepts another request on this connection (RFC 9112 section 9.3), by the answer's head.
    pub keeps_open: bool,
    /// Whether a faulty upstream may send a body that this answer must not have: one to HEAD, a 204, or a 304 with the fields of a body.
    pub body_may_follow: bool,
    /// All fields.
    pub fields: FieldList,
}

impl AnswerHead {
    /// Whether another answer follows (RFC 9110 section 15.2).
    pub fn is_interim(&self) -> bool {
        self.status.is_informational()
    }

    /// A reader of the body that follows.
    pub fn body(&self, limits: &ChunkLimits) -> BodyReader {
        BodyReader::new(self.framing, limits)
    }
}

/// Whether an upstream's connection is between two requests: the request was written and the final answer read to the last byte,
/// the upstream did not announce a close, and nothing more has arrived. `unread` are received bytes that belong to no answer.
///
/// This does not cover bytes that were not received yet: before the connection is kept, a read from it must be pending.
pub fn is_between_requests(
    request: &BodyWriter,
    keeps_open: bool,
    body: &BodyReader,
    unread: &[u8],
) -> bool {
    request.is_done() && keeps_open && body.is_done() && unread.is_empty()
}

#[cfg(test)]
mod tests;
