//! What the parts of a connection over HTTP/2 report to each other.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What the stream below the library, the connection's task and its requests report to each other.
#[derive(Debug, Default)]
pub(super) struct Progress {
    received: AtomicU64,
    examined: AtomicU64,
    has_unflushed: AtomicBool,
}

impl Progress {
    /// Notes the number of heads received so far.
    pub(super) fn note_received(&self, heads: u64) {
        self.received.store(heads, Ordering::Relaxed);
    }

    /// The number of heads received so far.
    pub(super) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Notes that a request's head has been examined.
    pub(super) fn note_examined(&self) {
        self.examined.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes whether written bytes wait for a flush.
    pub(super) fn note_unflushed(&self, has_unflushed: bool) {
        self.has_unflushed.store(has_unflushed, Ordering::Relaxed);
    }

    /// Whether written bytes wait for a flush.
    pub(super) fn has_unflushed(&self) -> bool {
        self.has_unflushed.load(Ordering::Relaxed)
    }

    /// The number of heads received and not examined so far, with those that never are: trailers, and what the library refuses.
    pub(super) fn unexamined(&self) -> u64 {
        let examined = self.examined.load(Ordering::Relaxed);
        self.received().saturating_sub(examined)
    }
}
