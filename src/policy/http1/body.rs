//! The bodies of messages: which of the bytes after a head belong to it, and where it ends (RFC 9112 sections 6 and 7).
//!
//! A reader returns ranges of the buffer that it is given and copies nothing. The result is the same however the bytes were
//! split.

use std::ops::Range;

use super::fields::{FieldBounds, FieldFault, FieldReader};
use super::framing::AnswerFraming;

/// Hexadecimal digits of a chunk's size: up to 2^48.
const SIZE_DIGITS_MAX: u8 = 12;

/// The limits of a chunked body, besides its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkLimits {
    /// Extensions of all chunks together. None are in use; they are read and dropped.
    pub extension_bytes_max: usize,
    /// The trailer section, which must fit into the buffer as a whole.
    pub trailers: FieldBounds,
}

impl ChunkLimits {
    /// The limits for requests and answers.
    pub const STANDARD: ChunkLimits = ChunkLimits {
        extension_bytes_max: 1024,
        trailers: FieldBounds {
            bytes_max: 4 * 1024,
            count_max: 128,
        },
    };
}

/// Why a body cannot be read further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BodyFault {
    /// A byte that violates the syntax of chunks, or that servers read in different ways.
    #[error("the chunks of the body are malformed")]
    Malformed,
    /// Extensions or trailers beyond their limits.
    #[error("the body has too many chunk extensions or trailers")]
    TooLarge,
    /// The connection ended before the body.
    #[error("the connection was closed before the end of the body")]
    Cut,
}

impl From<FieldFault> for BodyFault {
    fn from(fault: FieldFault) -> BodyFault {
        match fault {
            FieldFault::Malformed => BodyFault::Malformed,
            FieldFault::TooLarge => BodyFault::TooLarge,
        }
    }
}

/// A body that may have been read in part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BodyReader {
    state: BodyProgress,
    limits: ChunkLimits,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum BodyProgress {
    Done,
    /// Bytes still to come.
    Length(u64),
    Chunked {
        part: Part,
        extension_bytes: usize,
    },
    Trailers(FieldReader),
    ByClose,
}

/// The next byte of a chunked body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// A digit of a chunk's size, or the byte that ends it.
    Size {
        size: u64,
        digits: u8,
    },
    /// A byte of a chunk's extension, or the CR that ends it.
    Extension {
        size: u64,
    },
    /// The LF after a chunk's size.
    SizeEnd {
        size: u64,
    },
    Data {
        left: u64,
    },
    DataCr,
    DataLf,
    /// After the last chunk.
    Trailers,
}

impl BodyReader {
    /// The body of a request or an answer.
    pub fn new(framing: impl Into<AnswerFraming>, limits: &ChunkLimits) -> BodyReader {
        let state = match framing.into() {
            AnswerFraming::Bodiless(_) | AnswerFraming::Length(0) => BodyProgress::Done,
            AnswerFraming::Length(bytes) => BodyProgress::Length(bytes),
            AnswerFraming::Chunked => BodyProgress::FIRST_CHUNK,
            AnswerFraming::ByClose => BodyProgress::ByClose,
        };
        BodyReader {
            state,
            limits: *limits,
        }
    }

    /// Whether the body has been read completely: bytes after it are not part of it.
    pub fn is_done(&self) -> bool {
        self.state == BodyProgress::Done
    }

    /// Reads on at the start of `bytes`, up to the end of the first data in them. A trailer section is taken as a whole; all
    /// other bytes of the body are always taken. Returns the range of the data, which is empty only if the body has ended or more
    /// bytes are needed. The bytes up to its end are read, framing and data; the caller must not pass them again.
    ///
    /// # Errors
    /// If the body is malformed. The bytes after it cannot be read.
    pub fn read(&mut self, bytes: &[u8]) -> Result<Range<usize>, BodyFault> {
        match &mut self.state {
            BodyProgress::Done => Ok(0..0),
            BodyProgress::ByClose => Ok(0..bytes.len()),
            BodyProgress::Length(left) => {
                let taken = take(left, bytes.len());
                if *left == 0 {
                    self.state = BodyProgress::Done;
                }
                Ok(0..taken)
            }
            BodyProgress::Chunked { .. } => self.read_chunks(bytes),
            BodyProgress::Trailers(_) => self.read_trailers(bytes, 0),
        }
    }

    /// Notes that the connection has been closed, which ends a body without another end.
    ///
    /// # Errors
    /// If the body had not ended.
    pub fn close(&mut self) -> Result<(), BodyFault> {
        match self.state {
            BodyProgress::Done => Ok(()),
            BodyProgress::ByClose => {
                self.state = BodyProgress::Done;
                Ok(())
            }
            BodyProgress::Length(_) | BodyProgress::Chunked { .. } | BodyProgress::Trailers(_) => {
                Err(BodyFault::Cut)
            }
        }
    }

    fn read_chunks(&mut self, bytes: &[u8]) -> Result<Range<usize>, BodyFault> {
        let BodyProgress::Chunked {
            part,
            extension_bytes,
        } = &mut self.state
        else {
            return Ok(0..0);
        };
        let mut at = 0;
        loop {
            if *part == Part::Trailers {
                self.state = BodyProgress::Trailers(FieldReader::default());
                return self.read_trailers(bytes, at);
            }
            let Some(byte) = bytes.get(at) else {
                return Ok(at..at);
            };
            if let Part::Data { left } = part {
                let end = at + take(left, bytes.len() - at);
                if *left == 0 {
                    *part = Part::DataCr;
                }
                return Ok(at..end);
            }
            if matches!(part, Part::Extension { .. }) {
                *extension_bytes += 1;
            }
            *part = part.after(*byte)?;
            if *extension_bytes > self.limits.extension_bytes_max {
                return Err(BodyFault::TooLarge);
            }
            at += 1;
        }
    }

    /// Reads a trailer section that begins at `start`.
    fn read_trailers(&mut self, bytes: &[u8], start: usize) -> Result<Range<usize>, BodyFault> {
        let section = bytes.get(start..).unwrap_or_default();
        let BodyProgress::Trailers(fields) = &mut self.state else {
            return Ok(start..start);
        };
        let end: Result<_, BodyFault> = fields.read(section, &self.limits.trailers, |_| Ok(()));
        let Some(end) = end? else {
            return Ok(start..start);
        };
        self.state = BodyProgress::Done;
        Ok(start + end..start + end)
    }
}

impl BodyProgress {
    const FIRST_CHUNK: BodyProgress = BodyProgress::Chunked {
        part: Part::Size { size: 0, digits: 0 },
        extension_bytes: 0,
    };
}

/// Takes as many of the `there` bytes off `left` as it has; returns their number.
fn take(left: &mut u64, there: usize) -> usize {
    let taken = usize::try_from(*left).map_or(there, |left| left.min(there));
    *left -= taken as u64;
    taken
}

impl Part {
    /// The part after `byte`.
    fn after(self, byte: u8) -> Result<Part, BodyFault> {
        let next = match (self, byte) {
            (Part::Size { size, digits }, _)
                if byte.is_ascii_hexdigit() && digits < SIZE_DIGITS_MAX =>
            {
                let digit = char::from(byte).to_digit(16).map_or(0, u64::from);
                Part::Size {
                    size: size * 16 + digit,
                    digits: digits + 1,
                }
            }
            (Part::Size { size, digits: 1.. }, b'\r') => Part::SizeEnd { size },
            // White space before an extension was once allowed, though bad practice; without an extension it has no meaning.
            (Part::Size { size, digits: 1.. }, b';') => Part::Extension { size },
            (Part::Extension { size }, b'\r') => Part::SizeEnd { size },
            (Part::Extension { size }, b'\t' | b' '..=b'~' | 0x80..) => Part::Extension { size },
            (Part::SizeEnd { size: 0 }, b'\n') => Part::Trailers,
            (Part::SizeEnd { size }, b'\n') => Part::Data { left: size },
            (Part::DataCr, b'\r') => Part::DataLf,
            (Part::DataLf, b'\n') => Part::Size { size: 0, digits: 0 },
            (_, _) => return Err(BodyFault::Malformed),
        };
        Ok(next)
    }
}

#[cfg(test)]
mod tests;
