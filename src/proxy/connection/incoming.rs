//! The requests of a connection over HTTP/2 as they arrive, and when the library is polled for them.
//!
//! A poll of the library reads what has arrived and writes what is ready to be sent. One that would find nothing is left out. If several
//! streams are open, a poll comes after all that are ready have been served, so that their answers are written together.

use std::mem;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use h2::server::{Connection, SendResponse};
use h2::{Reason, RecvStream};
use http::Request;

use super::guard::Guard;
use super::progress::Progress;
use crate::proxy::sent_part::SentPart;

/// A request with its stream.
pub(super) type Accepted = (Request<RecvStream>, SendResponse<SentPart>);

/// The requests of a connection.
pub(super) struct Incoming {
    library: Connection<Guard, SentPart>,
    progress: Arc<Progress>,
    /// The number of requests so far. If it is that of all heads, the library has no other request.
    taken: u64,
    /// Whether the library has returned the last request that it received: a poll would find nothing before the task is woken.
    is_drained: bool,
    /// Whether the task has let others run since it was woken.
    has_yielded: bool,
}

impl Incoming {
    /// The requests of a connection that has just begun.
    pub(super) fn new(library: Connection<Guard, SentPart>, progress: Arc<Progress>) -> Incoming {
        Incoming {
            library,
            progress,
            taken: 0,
            is_drained: false,
            has_yielded: false,
        }
    }

    /// The next request, or `None` once the connection has ended. `are_several`: more than one stream is open.
    pub(super) fn poll_next(
        &mut self,
        are_several: bool,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Accepted, h2::Error>>> {
        if mem::take(&mut self.is_drained) {
            self.has_yielded = false;
            return Poll::Pending;
        }
        if are_several && !mem::replace(&mut self.has_yielded, true) {
            // The runtime polls a task that wakes itself after those that are ready.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let mut accepted = pin!(self.library.accept()).poll(context);
        if accepted.is_pending() && self.progress.has_unflushed() {
            // With nothing to write, the library flushes.
            accepted = pin!(self.library.accept()).poll(context);
        }
        if accepted.is_ready() {
            // The library returns a request after it has read and written all it could, and has registered the task to be woken.
            self.taken += 1;
            let has_all = self.taken == self.progress.received();
            self.is_drained = has_all && !self.progress.has_unflushed();
        } else {
            self.has_yielded = false;
        }
        accepted
    }

    /// Accepts no further request after those in transit (RFC 9113 section 6.8).
    pub(super) fn graceful_shutdown(&mut self) {
        self.is_drained = false;
        self.library.graceful_shutdown();
    }

    /// Accepts no further request.
    pub(super) fn abrupt_shutdown(&mut self) {
        self.is_drained = false;
        self.library.abrupt_shutdown(Reason::NO_ERROR);
    }
}
