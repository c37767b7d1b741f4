//! The stream that the HTTP/2 library reads from and writes to: watched for floods, with gathered writes.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::wire::ClientWire;
use crate::config::Limits;
use crate::proxy::gate::Gate;

mod http2;

use http2::Http2Guard;

/// A connection over HTTP/2, below the library.
pub struct Guard {
    gate: Arc<Gate>,
    wire: ClientWire,
    http2: Box<Http2Guard>,
    /// Whether the client refuses bytes.
    has_backlog: bool,
}

impl Guard {
    /// Guards a connection of which some bytes may have been received already.
    pub(super) fn new(gate: Arc<Gate>, wire: ClientWire, limits: &Limits) -> Guard {
        Guard {
            gate,
            wire,
            http2: Box::new(Http2Guard::new(limits)),
            has_backlog: false,
        }
    }

    fn note_backlog(&mut self, has_backlog: bool) {
        if has_backlog != self.has_backlog {
            self.has_backlog = has_backlog;
            self.wire.connection.note_backlog(has_backlog);
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
        let Guard { wire, http2, .. } = &mut *self;
        let Poll::Ready(written) = wire.poll_write(cx, buf) else {
            self.note_backlog(true);
            return Poll::Pending;
        };
        let written = written?;
        let sent = buf.get(..written).unwrap_or_default();
        match http2.note_sent(sent, &wire.limit_hits) {
            Some(flood) => Poll::Ready(Err(self.calm_down(flood, cx))),
            None => Poll::Ready(Ok(written)),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = self.wire.poll_flush(cx);
        if flushed.is_ready() {
            self.wire.writes.release();
        }
        self.note_backlog(flushed.is_pending());
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ClientWire {
            writes, transport, ..
        } = &mut self.wire;
        ready!(writes.poll_flush(transport, cx))?;
        Pin::new(transport).poll_shutdown(cx)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.note_backlog(false);
    }
}
