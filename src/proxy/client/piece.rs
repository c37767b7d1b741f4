//! An answer to a client, piece by piece.

use bytes::Bytes;
use http::StatusCode;

use crate::policy::http1::fields::FieldList;

/// The size of the buffer that a part of an answer was read into.
const BUFFER_BYTES: u64 = 16 * 1024;

/// A part below this size is a small one: what it needs beside its bytes counts.
pub(super) const SMALL_BYTES: usize = 1024;

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
            // A part keeps the whole buffer that it was read into.
            Piece::Part(part, _) => (part.len() as u64).max(BUFFER_BYTES),
        }
    }
}

/// The same pieces, with small parts that follow one another joined.
pub(super) fn joined(pieces: Vec<Piece>) -> Vec<Piece> {
    let mut joined: Vec<Piece> = Vec::with_capacity(pieces.len());
    for piece in pieces {
        match (joined.last_mut(), piece) {
            (Some(Piece::Part(before, ended)), Piece::Part(part, ends))
                if before.len() < SMALL_BYTES && part.len() < SMALL_BYTES =>
            {
                *before = [&**before, &*part].concat().into();
                *ended = ends;
            }
            (_, piece) => joined.push(piece),
        }
    }
    joined
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
