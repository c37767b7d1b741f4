//! The stream that the HTTP/2 library reads from and writes to: watched for floods, with gathered writes.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::Connection;
use super::transport::Transport;
use super::writes::{Patience, Writes, note_slow};
use crate::config::Limits;
use crate::policy::limit_hit::LimitHit;
use crate::proxy::gate::Gate;

mod http2;

use http2::Http2Guard;

/// A connection over HTTP/2, below the library.
pub struct Guard {
    gate: Arc<Gate>,
    connection: Arc<Connection>,
    transport: Transport,
    unread: BytesMut,
    http2: Box<Http2Guard>,
    writes: Writes,
    /// Whether the client refuses bytes.
    has_backlog: bool,
    requests_max: u64,
}

impl Guard {
    /// Guards a connection on which `unread` was received so far.
    pub(super) fn new(
        gate: Arc<Gate>,
        connection: Arc<Connection>,
        transport: Transport,
        unread: BytesMut,
        limits: &Limits,
    ) -> Guard {
        Guard {
            gate,
            connection,
            transport,
            unread,
            http2: Box::new(Http2Guard::new(limits)),
            writes: Writes::new(Patience::of(limits)),
            has_backlog: false,
            requests_max: limits.requests_per_connection,
        }
    }

    /// Retires the connection once it has had the maximum number of requests.
    fn note_requests(&self, requests: u64) {
        if requests >= self.requests_max && !self.connection.is_retired() {
            let hits = &self.gate.metrics.limit_hits;
            hits.note(LimitHit::RequestsPerConnection);
            self.connection.retire();
        }
    }

    fn note_backlog(&mut self, has_backlog: bool) {
        if has_backlog != self.has_backlog {
            self.has_backlog = has_backlog;
            self.connection.note_backlog(has_backlog);
            self.gate.note_backlog(has_backlog);
        }
    }
}

impl AsyncRead for Guard {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_http2(cx, buf)
    }
}

impl AsyncWrite for Guard {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let Guard {
            writes,
            transport,
            http2,
            gate,
            ..
        } = &mut *self;
        let Poll::Ready(written) = writes.poll_write(transport, cx, buf) else {
            self.note_backlog(true);
            return Poll::Pending;
        };
        let written = written.inspect_err(|error| note_slow(&gate.metrics.limit_hits, error))?;
        let sent = buf.get(..written).unwrap_or_default();
        let flood = http2.note_sent(sent, &gate.metrics.limit_hits);
        match flood {
            Some(flood) => Poll::Ready(Err(self.calm_down(flood, cx))),
            None => Poll::Ready(Ok(written)),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Guard {
            writes,
            transport,
            gate,
            ..
        } = &mut *self;
        let flushed = writes.poll_flush(transport, cx);
        let has_backlog = flushed.is_pending();
        if let Poll::Ready(flushed) = &flushed {
            writes.release();
            let _ = flushed
                .as_ref()
                .inspect_err(|error| note_slow(&gate.metrics.limit_hits, error));
        }
        self.note_backlog(has_backlog);
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Guard {
            writes, transport, ..
        } = &mut *self;
        ready!(writes.poll_flush(transport, cx))?;
        Pin::new(transport).poll_shutdown(cx)
    }
}

impl Drop for Guard {
    /// Written bytes are still sent, as far as the socket accepts them at once.
    fn drop(&mut self) {
        let mut context = Context::from_waker(std::task::Waker::noop());
        let _ = self.writes.poll_flush(&mut self.transport, &mut context);
        self.note_backlog(false);
    }
}
