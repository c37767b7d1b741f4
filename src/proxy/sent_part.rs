//! A part of a body in the HTTP/2 library.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use futures_util::task::AtomicWaker;

/// A part below this size is a small one: what it needs beside its bytes counts. At most 1 KiB: the HTTP/2 library copies a smaller part into
/// its write buffer and drops it, towards servers one below 256 bytes.
pub const SMALL_BYTES: usize = 1024;
/// A part from this size on outweighs what a small one after it needs beside its bytes.
const LARGE_BYTES: usize = 4 * SMALL_BYTES;

/// A part of a body in the library, which counts only its bytes, although it needs about 400 bytes more for each part. So a small one
/// announces when it has left the library, and no other of its body is given to it before ([`SentParts`]).
pub struct SentPart {
    bytes: Bytes,
    leaving: Option<Arc<Leaving>>,
}

/// Whether a part has left the library, written or dropped, and the task that waits for this.
#[derive(Debug, Default)]
struct Leaving {
    has_left: AtomicBool,
    waiting: AtomicWaker,
}

impl Drop for SentPart {
    fn drop(&mut self) {
        if let Some(leaving) = &self.leaving {
            leaving.has_left.store(true, Ordering::Release);
            leaving.waiting.wake();
        }
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

/// The parts of one body on their way into the library.
#[derive(Debug, Default)]
pub struct SentParts {
    /// Of the last part, a small one.
    leaving: Option<Arc<Leaving>>,
    last_bytes: usize,
}

impl SentParts {
    /// Whether a small part may still be in the library.
    pub fn has_small(&self) -> bool {
        self.leaving.is_some()
    }

    /// Waits until the library has no small part of this body; it drops those of a stream that has ended, too, but for the one being written.
    pub fn poll_left(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Some(leaving) = &self.leaving {
            leaving.waiting.register(context.waker());
            if !leaving.has_left.load(Ordering::Acquire) {
                return Poll::Pending;
            }
            self.leaving = None;
        }
        Poll::Ready(())
    }

    /// The next part, for the library; `is_last` if the body ends with it.
    pub fn next(&mut self, bytes: Bytes, is_last: bool) -> SentPart {
        // Nothing waits for the rest of a large part, for which there was no room at first.
        let is_rest = self.last_bytes >= LARGE_BYTES;
        self.last_bytes = bytes.len();
        let is_small = !is_last && !is_rest && bytes.len() < SMALL_BYTES;
        self.leaving = is_small.then(Arc::default);
        SentPart {
            bytes,
            leaving: self.leaving.clone(),
        }
    }
}
