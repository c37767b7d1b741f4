//! Heads and bodies as they are written: requests to an upstream, answers to a client.
//!
//! Heads are made from decisions, never copied: a head has exactly one framing and one end, and its writer returns the writer of
//! exactly that body, which also has exactly one end. Names and values are fields that were read, valid by their type, or
//! checked: none of their bytes can end a line.

use http::{HeaderName, HeaderValue, Method, StatusCode};

use super::fields::{EndToEnd, FieldList};
use super::framing::{AnswerFraming, KnownField, is_bodiless, is_lengthless};
use crate::policy::target::Target;

/// The fate of the connection after a message, as its head announces it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionFate {
    /// Not announced: HTTP/1.1 keeps the connection open.
    Implied,
    /// `keep-alive`, for clients of HTTP/1.0.
    KeepAlive,
    /// `close`: the connection ends with the message.
    Close,
}

/// A head that is being written; [`HeadWriter::end`] completes it.
#[derive(Debug)]
#[must_use = "a head without its end is not complete"]
pub struct HeadWriter<'a> {
    out: &'a mut Vec<u8>,
    /// The status of an answer; for a request one that does not affect the body.
    status: StatusCode,
}

impl<'a> HeadWriter<'a> {
    /// Begins an HTTP/1.1 request at the end of `out`, with its `Host`.
    pub fn request(
        out: &'a mut Vec<u8>,
        method: &Method,
        target: Target<'_>,
        host: &HeaderValue,
    ) -> HeadWriter<'a> {
        out.extend_from_slice(method.as_str().as_bytes());
        out.push(b' ');
        out.extend_from_slice(target.path.as_bytes());
        if let Some(query) = target.query {
            out.push(b'?');
            out.extend_from_slice(query.as_bytes());
        }
        out.extend_from_slice(b" HTTP/1.1\r\n");
        push_field(out, b"host", host.as_bytes());
        HeadWriter {
            out,
            status: StatusCode::OK,
        }
    }

    /// Begins an HTTP/1.1 answer at the end of `out`. Answers to clients of any version have this version (RFC 9112 section 2.3),
    /// and the standard reason phrase of the status.
    pub fn answer(out: &'a mut Vec<u8>, status: StatusCode) -> HeadWriter<'a> {
        out.extend_from_slice(b"HTTP/1.1 ");
        out.extend_from_slice(status.as_str().as_bytes());
        out.push(b' ');
        let reason = status.canonical_reason().unwrap_or_default();
        out.extend_from_slice(reason.as_bytes());
        out.extend_from_slice(b"\r\n");
        HeadWriter { out, status }
    }

    /// Ends the head; returns the writer of its body. There is no body if the status has none; the head announces a close if the
    /// body ends with the connection.
    pub fn end(self, framing: impl Into<AnswerFraming>, connection: ConnectionFate) -> BodyWriter {
        let (length, body) = match framing.into() {
            _ if is_lengthless(self.status) => (None, BodyForm::Done),
            AnswerFraming::Bodiless(announced) => (announced, BodyForm::Done),
            AnswerFraming::Length(bytes) if bytes == 0 || is_bodiless(self.status) => {
                (Some(bytes), BodyForm::Done)
            }
            _ if is_bodiless(self.status) => (None, BodyForm::Done),
            AnswerFraming::Length(bytes) => (Some(bytes), BodyForm::Length(bytes)),
            AnswerFraming::Chunked => (None, BodyForm::Chunked),
            AnswerFraming::ByClose => (None, BodyForm::ByClose),
        };
        let out = self.out;
        if let Some(bytes) = length {
            let mut digits = itoa::Buffer::new();
            push_field(out, b"content-length", digits.format(bytes).as_bytes());
        }
        if body == BodyForm::Chunked {
            push_field(out, b"transfer-encoding", b"chunked");
        }
        let connection = match body == BodyForm::ByClose {
            true => ConnectionFate::Close,
            false => connection,
        };
        out.extend_from_slice(match connection {
            ConnectionFate::Implied => b"\r\n",
            ConnectionFate::KeepAlive => b"connection: keep-alive\r\n\r\n",
            ConnectionFate::Close => b"connection: close\r\n\r\n",
        });
        BodyWriter(body)
    }

    /// Forwards a field as sent, except `Host`, which a request already has.
    pub fn pass(&mut self, field: EndToEnd<'_>) {
        if !field.is_host() {
            push_field(self.out, field.name(), field.value());
        }
    }

    /// Forwards the fields that may be forwarded, as sent.
    pub fn pass_all(&mut self, fields: &FieldList) {
        for field in fields.end_to_end() {
            self.pass(field);
        }
    }

    /// Adds a field, except those that are written separately: `Host`, `Connection` and the framing.
    pub fn add(&mut self, name: &HeaderName, value: &HeaderValue) {
        let name = name.as_str().as_bytes();
        match KnownField::of(name) {
            Some(
                KnownField::Host
                | KnownField::Connection
                | KnownField::ContentLength
                | KnownField::TransferEncoding,
            ) => {}
            Some(KnownField::Expect | KnownField::HopByHop) | None => {
                push_field(self.out, name, value.as_bytes());
            }
        }
    }
}

fn push_field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// A body that is shorter or longer than its head announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the body is not as long as announced")]
pub struct WrongLength;

/// The writer of the body of a written head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BodyWriter(BodyForm);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BodyForm {
    /// Bytes still to come.
    Length(u64),
    Chunked,
    ByClose,
    Done,
}

/// The bytes around a part of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wrapping {
    before: [u8; SIZE_LINE_BYTES],
    before_from: usize,
    /// The bytes after the part.
    pub after: &'static [u8],
}

/// Sixteen digits, CR and LF.
const SIZE_LINE_BYTES: usize = 18;

impl Wrapping {
    const NONE: Wrapping = Wrapping {
        before: [0; SIZE_LINE_BYTES],
        before_from: SIZE_LINE_BYTES,
        after: b"",
    };

    /// A chunk of `bytes` bytes, not 0: that would be the last chunk.
    fn chunk(bytes: usize) -> Wrapping {
        let mut wrapping = Wrapping {
            after: b"\r\n",
            ..Wrapping::NONE
        };
        let (mut left, mut from) = (bytes, SIZE_LINE_BYTES);
        let line = wrapping.before.iter_mut().enumerate().rev();
        for ((at, octet), place) in line.zip(0_usize..) {
            *octet = match place {
                0 => b'\n',
                1 => b'\r',
                _ if left == 0 => break,
                _ => {
                    let digit = b"0123456789abcdef".get(left & 0xf).copied();
                    left >>= 4;
                    digit.unwrap_or_default()
                }
            };
            from = at;
        }
        wrapping.before_from = from;
        wrapping
    }

    /// The bytes before the part.
    pub fn before(&self) -> &[u8] {
        self.before.get(self.before_from..).unwrap_or_default()
    }
}

impl BodyWriter {
    /// Whether the body has been written completely. A body that ends with the connection never is.
    pub fn is_done(&self) -> bool {
        self.0 == BodyForm::Done
    }

    /// Announces a part of `bytes` bytes; returns the bytes to write around it. An empty part writes nothing and does not end the
    /// body.
    ///
    /// # Errors
    /// If the part exceeds the body's length; the connection cannot be kept.
    pub fn part(&mut self, bytes: usize) -> Result<Wrapping, WrongLength> {
        if bytes == 0 {
            return Ok(Wrapping::NONE);
        }
        match &mut self.0 {
            BodyForm::Done => Err(WrongLength),
            BodyForm::ByClose => Ok(Wrapping::NONE),
            BodyForm::Chunked => Ok(Wrapping::chunk(bytes)),
            BodyForm::Length(left) => {
                *left = left.checked_sub(bytes as u64).ok_or(WrongLength)?;
                if *left == 0 {
                    self.0 = BodyForm::Done;
                }
                Ok(Wrapping::NONE)
            }
        }
    }

    /// Writes a part to the end of `out`, as a copy.
    ///
    /// # Errors
    /// The same as [`BodyWriter::part`]; nothing is written.
    pub fn write(&mut self, part: &[u8], out: &mut Vec<u8>) -> Result<(), WrongLength> {
        let wrapping = self.part(part.len())?;
        for bytes in [wrapping.before(), part, wrapping.after] {
            out.extend_from_slice(bytes);
        }
        Ok(())
    }

    /// Ends the body. Ending it again writes nothing.
    ///
    /// # Errors
    /// If bytes are missing; the connection cannot be kept.
    pub fn end(&mut self, out: &mut Vec<u8>) -> Result<(), WrongLength> {
        match self.0 {
            BodyForm::Length(_) => Err(WrongLength),
            // A body that ends with the connection has no other end.
            BodyForm::Done | BodyForm::ByClose => Ok(()),
            BodyForm::Chunked => {
                out.extend_from_slice(b"0\r\n\r\n");
                self.0 = BodyForm::Done;
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests;
