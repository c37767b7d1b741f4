//! The stream that the HTTP/2 library reads from and writes to: watched for floods, with gathered writes.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::progress::Progress;
use super::wire::ClientWire;
use crate::config::Limits;
use crate::policy::http2::CALM_DOWN;
use crate::policy::limit_hit::LimitHit;
use crate::proxy::gate::Gate;

mod http2;

use http2::Http2Guard;

/// A connection over HTTP/2, below the library.
pub struct Guard {
    gate: Arc<Gate>,
    wire: ClientWire,
    http2: Box<Http2Guard>,
    progress: Arc<Progress>,
    /// Whether something was written since the last flush.
    has_written: bool,
}

impl Guard {
    /// Guards a connection of which some bytes may have been received already.
    pub(super) fn new(
        gate: Arc<Gate>,
        wire: ClientWire,
        limits: &Limits,
        progress: Arc<Progress>,
    ) -> Guard {
        Guard {
            gate,
            wire,
            http2: Box::new(Http2Guard::new(limits)),
            progress,
            has_written: false,
        }
    }

    fn note_backlog(&mut self, has_backlog: bool) {
        if has_backlog != self.wire.connection.has_backlog() {
            self.wire.connection.note_backlog(has_backlog);
            self.gate.note_backlog(has_backlog);
        }
    }

    /// Ends the connection, with a GOAWAY if that does not interrupt a frame.
    fn calm_down(&mut self, flood: LimitHit, context: &mut Context<'_>) -> io::Error {
        self.wire.note_limit(flood);
        if self.http2.sent.is_between() {
            self.wire.writes.gathered().extend_from_slice(&CALM_DOWN);
        }
        // One attempt: a client that floods may also not read.
        let wire = &mut self.wire;
        let _ = wire.writes.poll_flush(&mut wire.transport, context);
        let reason = format!("too many frames: {flood}");
        io::Error::new(io::ErrorKind::ConnectionAborted, reason)
    }
}

impl AsyncRead for Guard {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let guard = &mut *self;
        ready!(guard.http2.breath.poll(&guard.progress, cx));
        let before = buf.filled().len();
        if guard.wire.unread.is_empty() {
            ready!(Pin::new(&mut guard.wire.transport).poll_read(cx, buf))?;
        } else {
            let bytes = guard.wire.unread.len().min(buf.remaining());
            buf.put_slice(guard.wire.unread.get(..bytes).unwrap_or_default());
            guard.wire.unread.advance(bytes);
            if guard.wire.unread.is_empty() {
                guard.wire.unread = BytesMut::new();
            }
        }
        let http2 = &mut guard.http2;
        let received = buf.filled().get(before..).unwrap_or_default();
        let flood = http2.note_received(received, &guard.progress);
        let streams = http2.budgets.streams;
        guard.wire.note_requests(streams);
        let Some(flood) = flood else {
            return Poll::Ready(Ok(()));
        };
        buf.set_filled(before);
        Poll::Ready(Err(guard.calm_down(flood, cx)))
    }
}

impl AsyncWrite for Guard {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let Poll::Ready(written) = self.wire.poll_write(cx, buf) else {
            self.note_backlog(true);
            return Poll::Pending;
        };
        let written = written?;
        self.has_written = true;
        let Guard { wire, http2, .. } = &mut *self;
        let sent = buf.get(..written).unwrap_or_default();
        match http2.note_sent(sent, &wire.limit_hits) {
            Some(flood) => Poll::Ready(Err(self.calm_down(flood, cx))),
            None => Poll::Ready(Ok(written)),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if std::mem::take(&mut self.has_written) && self.http2.is_flushed_again() {
            self.progress.note_unflushed(true);
            return Poll::Ready(Ok(()));
        }
        self.progress.note_unflushed(false);
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
