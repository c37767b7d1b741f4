//! An answer to a client, piece by piece.

use std::mem;

use bytes::{Bytes, BytesMut};
use http::StatusCode;

use crate::policy::http1::fields::FieldList;
use crate::proxy::sent_part::SMALL_BYTES;

/// The size of the buffer that a part of an answer may have been read into.
const BUFFER_BYTES: u64 = 16 * 1024;

/// A piece of an answer, and whether the answer ends with it.
#[derive(Debug)]
pub enum Piece {
    /// A head: of an interim answer, or of the final one.
    Head(Box<Head>, bool),
    /// A part of the body; the last one may be empty.
    Part(Bytes, bool),
}

impl Piece {
    /// Whether the answer ends with it.
    pub fn ends(&self) -> bool {
        match self {
            Piece::Head(_, ends) | Piece::Part(_, ends) => *ends,
        }
    }

    /// Appends a small part to a small one before it. Returns the piece that follows, if it is another.
    pub fn join(&mut self, next: Piece) -> Option<Piece> {
        match (self, next) {
            (Piece::Part(part, ended), Piece::Part(more, ends))
                if part.len() < SMALL_BYTES && more.len() < SMALL_BYTES =>
            {
                let joined = mem::take(part).try_into_mut();
                let mut joined = joined.unwrap_or_else(|shared| BytesMut::from(&*shared));
                joined.extend_from_slice(&more);
                (*part, *ended) = (joined.freeze(), ends);
                None
            }
            (_, next) => Some(next),
        }
    }

    /// The bytes of the body in it.
    pub(super) fn body_bytes(&self) -> usize {
        match self {
            Piece::Head(..) => 0,
            Piece::Part(part, _) => part.len(),
        }
    }

    /// The approximate memory that it occupies.
    pub fn held_bytes(&self) -> u64 {
        match self {
            Piece::Head(head, _) => head.fields.bytes() as u64,
            // A part may keep the whole buffer that it was read into.
            Piece::Part(part, _) => (part.len() as u64).max(BUFFER_BYTES),
        }
    }
}

/// The head of an answer, without the fields that are specific to an HTTP version or frame its body.
#[derive(Debug)]
pub struct Head {
    /// The status.
    pub status: StatusCode,
    /// The length of the body in the answer to a `GET`, if known.
    pub length: Option<u64>,
    /// All other fields.
    pub fields: FieldList,
}
