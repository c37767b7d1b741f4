//! The body of an HTTP/1 request: how many of the bytes that follow a head belong to it (RFC 9112 sections 6 and 7).

/// Extensions of all chunks together; nobody sends any, and they are read and thrown away.
const EXTENSION_BYTES_MAX: usize = 1024;
/// The trailer section; it is thrown away too.
const TRAILER_BYTES_MAX: usize = 4 * 1024;
/// Hexadecimal digits of a chunk's size: up to 2^48.
const SIZE_DIGITS_MAX: u8 = 12;

/// A body of which some bytes may have gone by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Body(State);

/// A body that breaks the rules of its framing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Broken;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Done,
    /// So many bytes to come.
    Length(u64),
    Chunked {
        part: Part,
        extension_bytes: usize,
        trailer_bytes: usize,
    },
}

/// What the next byte of a chunked body is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// A digit of a chunk's size, or what ends it.
    Size {
        size: u64,
        digits: u8,
    },
    /// A byte of a chunk's extension, or the CR that ends it.
    Extension {
        size: u64,
    },
    /// The LF behind a chunk's size.
    SizeEnd {
        size: u64,
    },
    Data {
        left: u64,
    },
    DataCr,
    DataLf,
    /// The first byte of a trailer line, or the CR of the last, empty one.
    TrailerStart,
    Trailer,
    TrailerLf,
    /// The LF of the last line.
    LastLf,
}

impl Body {
    /// A body of so many bytes; none for 0.
    pub fn of_length(bytes: u64) -> Body {
        Body(match bytes {
            0 => State::Done,
            bytes => State::Length(bytes),
        })
    }

    /// A chunked body.
    pub fn chunked() -> Body {
        Body(State::Chunked {
            part: Part::Size { size: 0, digits: 0 },
            extension_bytes: 0,
            trailer_bytes: 0,
        })
    }

    /// Whether all of it has gone by.
    pub fn is_done(&self) -> bool {
        self.0 == State::Done
    }

    /// Takes what belongs to the body off the front of `bytes`, and says how much that was.
    pub fn advance(&mut self, bytes: &[u8]) -> Result<usize, Broken> {
        match &mut self.0 {
            State::Done => Ok(0),
            State::Length(left) => {
                let taken =
                    usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
                *left -= taken as u64;
                if *left == 0 {
                    self.0 = State::Done;
                }
                Ok(taken)
            }
            State::Chunked { .. } => self.advance_chunked(bytes),
        }
    }

    fn advance_chunked(&mut self, bytes: &[u8]) -> Result<usize, Broken> {
        let mut at = 0;
        while let (
            Some(byte),
            State::Chunked {
                part,
                extension_bytes,
                trailer_bytes,
            },
        ) = (bytes.get(at).copied(), &mut self.0)
        {
            if let Part::Data { left } = part {
                let there = bytes.len() - at;
                let taken = usize::try_from(*left).map_or(there, |left| left.min(there));
                *left -= taken as u64;
                at += taken;
                if *left == 0 {
                    *part = Part::DataCr;
                }
                continue;
            }
            at += 1;
            match part {
                Part::Extension { .. } => *extension_bytes += 1,
                Part::Trailer | Part::TrailerStart => *trailer_bytes += 1,
                _ => {}
            }
            if *extension_bytes > EXTENSION_BYTES_MAX || *trailer_bytes > TRAILER_BYTES_MAX {
                return Err(Broken);
            }
            match part.after(byte)? {
                Some(next) => *part = next,
                None => self.0 = State::Done,
            }
        }
        Ok(at)
    }
}

impl Part {
    /// What comes after `byte`; `None` behind the last byte of the body.
    fn after(self, byte: u8) -> Result<Option<Part>, Broken> {
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
            // White space before an extension is bad practice that was once allowed; without one it is nothing.
            (Part::Size { size, digits: 1.. }, b';') => Part::Extension { size },
            (Part::Extension { size }, b'\r') => Part::SizeEnd { size },
            (Part::Extension { size }, b'\t' | b' '..=b'~' | 0x80..) => Part::Extension { size },
            (Part::SizeEnd { size: 0 }, b'\n') => Part::TrailerStart,
            (Part::SizeEnd { size }, b'\n') => Part::Data { left: size },
            (Part::DataCr, b'\r') => Part::DataLf,
            (Part::DataLf, b'\n') => Part::Size { size: 0, digits: 0 },
            (Part::TrailerStart, b'\r') => Part::LastLf,
            (Part::LastLf, b'\n') => return Ok(None),
            // A trailer field begins with its name, never folded.
            (Part::TrailerStart, b'!'..=b'~') => Part::Trailer,
            (Part::Trailer, b'\r') => Part::TrailerLf,
            (Part::Trailer, b'\t' | b' '..=b'~' | 0x80..) => Part::Trailer,
            (Part::TrailerLf, b'\n') => Part::TrailerStart,
            (_, _) => return Err(Broken),
        };
        Ok(Some(next))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn taken(bytes: &[u8]) -> Result<(usize, bool), Broken> {
        let mut body = Body::chunked();
        body.advance(bytes).map(|taken| (taken, body.is_done()))
    }

    #[test]
    fn a_body_of_a_length_takes_that_many_bytes() {
        let mut body = Body::of_length(5);
        assert_eq!(body.advance(b"abc"), Ok(3));
        assert!(!body.is_done());
        assert_eq!(body.advance(b"deGET"), Ok(2));
        assert!(body.is_done());
        assert_eq!(body.advance(b"GET"), Ok(0));
        assert!(Body::of_length(0).is_done());
    }

    #[test]
    fn a_chunked_body_ends_behind_its_trailers() {
        for whole in [
            &b"0\r\n\r\n"[..],
            b"5\r\nhello\r\n0\r\n\r\n",
            b"00005\r\nhello\r\n0;a=b\r\n\r\n",
            b"5;x=\"a b\"\r\nhello\r\nA\r\n0123456789\r\n0\r\nX: y\r\nZ:\r\n\r\n",
        ] {
            let mut more = whole.to_vec();
            more.extend(b"GET / HTTP/1.1\r\n");
            assert_eq!(
                taken(&more),
                Ok((whole.len(), true)),
                "{}",
                whole.escape_ascii()
            );
        }
    }

    #[test]
    fn what_servers_read_in_different_ways_is_broken() {
        for broken in [
            &b"5\nhello\r\n0\r\n\r\n"[..],
            b"5\r\nhello\n0\r\n\r\n",
            b"5\r\nhelloX\r\n0\r\n\r\n",
            b"5 \r\nhello\r\n",
            b" 5\r\nhello\r\n",
            b"+5\r\nhello\r\n",
            b"-5\r\nhello\r\n",
            b"0x5\r\nhello\r\n",
            b"5_0\r\n",
            b"\r\n",
            b";a\r\n",
            b"5;a\nhello\r\n0\r\n\r\n",
            b"5;a\rhello",
            b"5\r\rhello",
            b"1000000000000\r\n",
            b"0\r\n X: folded\r\n\r\n",
            b"0\r\nX: y\n\r\n",
            b"0\r\nX: \x00\r\n\r\n",
            b"0\n\n",
            b"0\r\n\n",
        ] {
            assert_eq!(taken(broken), Err(Broken), "{}", broken.escape_ascii());
        }
    }

    #[test]
    fn extensions_and_trailers_are_bounded() {
        let extension =
            |length: usize| format!("1;{}\r\na\r\n0\r\n\r\n", "e".repeat(length)).into_bytes();
        assert!(taken(&extension(1_023)).is_ok());
        assert_eq!(taken(&extension(1_025)), Err(Broken));
        let trailer = |length: usize| format!("0\r\n{}\r\n\r\n", "t".repeat(length)).into_bytes();
        assert!(taken(&trailer(4_000)).is_ok());
        assert_eq!(taken(&trailer(5_000)), Err(Broken));
    }

    proptest! {
        #[test]
        fn pieces_make_no_difference(
            text in "[0-3a\r\n;:X]{0,40}",
            cuts in proptest::collection::vec(1usize..8, 0..20),
        ) {
            let bytes = text.as_bytes();
            let whole = taken(bytes);
            let (mut body, mut at, mut cuts) = (Body::chunked(), 0, cuts.into_iter());
            let pieces = loop {
                if body.is_done() || at == bytes.len() {
                    break Ok((at, body.is_done()));
                }
                let end = (at + cuts.next().unwrap_or(1)).min(bytes.len());
                match body.advance(&bytes[at..end]) {
                    Ok(taken) => at += taken,
                    Err(broken) => break Err(broken),
                }
            };
            prop_assert_eq!(pieces, whole);
        }
    }
}
