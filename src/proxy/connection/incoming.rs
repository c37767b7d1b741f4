//! The requests of a connection over HTTP/2 as they arrive, and when the library is polled for them.
//!
//! A poll of the library reads what has arrived and writes what is ready to be sent. One that would find nothing is left out.

use std::mem;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use h2::server::{Connection, SendResponse};
use h2::{Reason, RecvStream};
use http::Request;

use super::guard::Guard;
use super::progress::Progress;

/// A request with its stream.
pub(super) type Accepted = (Request<RecvStream>, SendResponse<Bytes>);

/// The requests of a connection.
pub(super) struct Incoming {
    library: Connection<Guard, Bytes>,
    progress: Arc<Progress>,
    /// The number of requests so far. If it is that of all heads, the library has no other request.
    taken: u64,
    /// Whether the library has returned the last request that it received: a poll would find nothing before the task is woken.
    is_drained: bool,
}

impl Incoming {
    /// The requests of a connection that has just begun.
    pub(super) fn new(library: Connection<Guard, Bytes>, progress: Arc<Progress>) -> Incoming {
        Incoming {
            library,
            progress,
            taken: 0,
            is_drained: false,
        }
    }

    /// The next request, or `None` once the connection has ended.
    pub(super) fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Accepted, h2::Error>>> {
        if mem::take(&mut self.is_drained) {
            return Poll::Pending;
        }
        let accepted = pin!(self.library.accept()).poll(context);
        if accepted.is_ready() {
            // The library returns a request after it has read and written all it could, and has registered the task to be woken.
            self.taken += 1;
            self.is_drained = self.taken == self.progress.received();
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
