//! A part of an answer's body in the HTTP/2 library.

use std::sync::Arc;

use bytes::{Buf, Bytes};
use tokio::sync::Notify;

/// A part of an answer's body in the library, which counts only its bytes, although it needs about 400 bytes more for each part. So a
/// small one announces when it has left the library, written or dropped, and no other of its answer is given to it before.
pub struct SentPart {
    bytes: Bytes,
    _leaving: Option<Leaving>,
}

/// Notifies that the part which has it left the library.
struct Leaving(Arc<Notify>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

impl Buf for SentPart {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, bytes: usize) {
        self.bytes.advance(bytes);
    }
}

impl SentPart {
    /// A part of any size.
    pub fn new(bytes: Bytes) -> SentPart {
        let _leaving = None;
        SentPart { bytes, _leaving }
    }

    /// A part with what is notified when it has left the library.
    pub fn announced(bytes: Bytes) -> (SentPart, Arc<Notify>) {
        let left = Arc::new(Notify::new());
        let _leaving = Some(Leaving(left.clone()));
        (SentPart { bytes, _leaving }, left)
    }
}
