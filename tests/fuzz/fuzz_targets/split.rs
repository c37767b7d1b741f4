//! Bytes that arrive in pieces.

use bytes::{Buf, BytesMut};
use touchline::policy::http1::body::{BodyFault, BodyReader};

/// A head, taken from bytes that arrive in pieces, and what is left of them; `None` while it has not arrived whole.
#[allow(dead_code, reason = "not every target has heads")]
pub fn head<H, F>(
    bytes: &[u8],
    piece: usize,
    mut take: impl FnMut(&mut BytesMut) -> Result<Option<H>, F>,
) -> Result<Option<(H, Vec<u8>)>, F> {
    let (mut buffer, mut at) = (BytesMut::new(), 0_usize);
    loop {
        let end = at.saturating_add(piece).min(bytes.len());
        buffer.extend_from_slice(&bytes[at..end]);
        at = end;
        if let Some(head) = take(&mut buffer)? {
            return Ok(Some((head, [&buffer[..], &bytes[at..]].concat())));
        }
        if at == bytes.len() {
            return Ok(None);
        }
    }
}

/// A body as it was read.
#[derive(Debug, PartialEq, Eq)]
pub struct Body {
    pub data: Vec<u8>,
    pub done: bool,
    pub left: Vec<u8>,
}

/// Reads a body from bytes that arrive in pieces.
pub fn body(mut reader: BodyReader, bytes: &[u8], piece: usize) -> Result<Body, BodyFault> {
    let (mut buffer, mut at) = (BytesMut::new(), 0_usize);
    let mut data = Vec::new();
    loop {
        let taken = reader.read(&buffer)?;
        data.extend_from_slice(&buffer[taken.clone()]);
        buffer.advance(taken.end);
        if reader.is_done() || (taken.is_empty() && at == bytes.len()) {
            return Ok(Body {
                data,
                done: reader.is_done(),
                left: [&buffer[..], &bytes[at..]].concat(),
            });
        }
        let end = at.saturating_add(piece).min(bytes.len());
        buffer.extend_from_slice(&bytes[at..end]);
        at = end;
    }
}
