//! The bytes of a connection, in both directions.
//!
//! Invariant: over HTTP/1, a request begins at the byte after the one before.

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::Connection;
use super::transport::{self, Transport};
use super::writes::Writes;
use crate::clock::timer::Timer;
use crate::config::Limits;
use crate::policy::limit_hit::LimitHit;
use crate::telemetry::limit_hits::LimitHits;

/// The bytes read from the socket at a time.
const READ_BYTES: usize = 8 * 1024;
/// After an answer, the client's further bytes are read and discarded until they pause for this long: clients exist that write first and
/// read later, and a connection closed with unread bytes is reset (RFC 9112 section 9.6).
pub(in crate::proxy) const REST_PAUSE_MAX: Duration = Duration::from_secs(1);
/// How long the end of the gateway's own direction may take.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// The bytes received and not read yet, and those to be written.
pub struct ClientWire {
    pub(in crate::proxy) connection: Arc<Connection>,
    pub(super) transport: Transport,
    pub(in crate::proxy) unread: BytesMut,
    pub(in crate::proxy) writes: Writes,
    pub(in crate::proxy) timer: Timer,
    pub(super) limit_hits: LimitHits,
    requests_max: u64,
}

/// The bytes that a client reads in `interval` at this rate, in bytes a second; at least one.
pub(super) fn bytes_at(rate: u64, interval: Duration) -> u64 {
    let bytes = u128::from(rate) * interval.as_millis();
    u64::try_from(bytes.div_ceil(1_000))
        .unwrap_or(u64::MAX)
        .max(1)
}

impl ClientWire {
    pub(super) fn new(
        connection: Arc<Connection>,
        transport: Transport,
        limits: &Limits,
        limit_hits: LimitHits,
    ) -> ClientWire {
        let patience = limits.response_write;
        let bytes_min = bytes_at(limits.response_rate, patience);
        ClientWire {
            connection,
            transport,
            unread: BytesMut::new(),
            writes: Writes::new(patience, bytes_min),
            timer: Timer::default(),
            limit_hits,
            requests_max: limits.requests_per_connection,
        }
    }

    pub(super) fn note_limit(&self, limit: LimitHit) {
        self.limit_hits.note(limit);
    }

    /// Retires the connection once it has had the maximum number of requests.
    pub(super) fn note_requests(&self, requests: u64) {
        if requests >= self.requests_max && !self.connection.is_retired() {
            self.note_limit(LimitHit::RequestsPerConnection);
            self.connection.retire();
        }
    }

    /// Counts a client that did not read its answers, if this is why a write failed. Its connection is to be reset: after a normal
    /// close the system would keep what it has not read for minutes, and a client that has vanished would see no end.
    fn note_slow(&self, error: &io::Error) {
        if error.kind() == io::ErrorKind::TimedOut {
            self.note_limit(LimitHit::ResponseRate);
            self.connection.break_off();
        }
    }

    pub(super) fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(self.writes.poll_write(&mut self.transport, context, bytes));
        Poll::Ready(written.inspect_err(|error| self.note_slow(error)))
    }

    pub(super) fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = ready!(self.writes.poll_flush(&mut self.transport, context));
        Poll::Ready(flushed.inspect_err(|error| self.note_slow(error)))
    }

    /// Reads available bytes after the unread ones: returns their number, 0 at the end; `None` if none arrived before `deadline`.
    pub(in crate::proxy) async fn read_more(
        &mut self,
        deadline: Instant,
    ) -> io::Result<Option<usize>> {
        poll_fn(|context| match self.poll_more(context) {
            Poll::Ready(read) => Poll::Ready(read.map(Some)),
            Poll::Pending => {
                ready!(self.timer.poll_until(deadline, context));
                Poll::Ready(Ok(None))
            }
        })
        .await
    }

    pub(in crate::proxy) fn poll_more(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let mut space = [MaybeUninit::<u8>::uninit(); READ_BYTES];
        let mut space = ReadBuf::uninit(&mut space);
        ready!(Pin::new(&mut self.transport).poll_read(context, &mut space))?;
        self.unread.extend_from_slice(space.filled());
        Poll::Ready(Ok(space.filled().len()))
    }

    /// Waits until the client has closed its side, without reading: returns 0, as the read at the end would.
    pub(in crate::proxy) async fn closed(&self) -> io::Result<usize> {
        transport::closed(&self.transport).await.map(|()| 0)
    }

    pub(in crate::proxy) async fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let written = poll_fn(|context| self.poll_write(context, bytes)).await?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            bytes = bytes.get(written..).unwrap_or_default();
        }
        Ok(())
    }

    /// Writes the gathered bytes if they are more than the buffer's limit.
    pub(in crate::proxy) async fn limit_gathered(&mut self) -> io::Result<()> {
        match self.writes.is_over_full() {
            true => self.flush().await,
            false => Ok(()),
        }
    }

    pub(in crate::proxy) async fn flush(&mut self) -> io::Result<()> {
        poll_fn(|context| self.poll_flush(context)).await
    }

    /// Ends the gateway's direction after the written bytes, over TLS by the alert `close_notify` (RFC 8446 section 6.1); whether
    /// that was sent.
    pub(super) async fn end(&mut self) -> bool {
        if self.flush().await.is_err() {
            return false;
        }
        let transport = &mut self.transport;
        let ended = poll_fn(|context| Pin::new(&mut *transport).poll_shutdown(context));
        matches!(tokio::time::timeout(END_TIMEOUT, ended).await, Ok(Ok(())))
    }

    /// Closes the connection after the written bytes; the client's further bytes are read first, for `rest_timeout` at most, as the answer
    /// might be lost otherwise.
    pub(super) async fn close(mut self, rest_timeout: Duration) {
        if !self.end().await {
            return;
        }
        let until = Instant::now() + rest_timeout;
        // While bytes come without a pause, no read waits for its deadline.
        while Instant::now() < until {
            self.unread.clear();
            let pause = until.min(Instant::now() + REST_PAUSE_MAX);
            match self.read_more(pause).await {
                Ok(Some(1..)) => {}
                Ok(Some(0) | None) | Err(_) => return,
            }
        }
    }
}

impl Drop for ClientWire {
    /// The written part of an interrupted answer is still sent, as far as the socket accepts it at once, so that the client sees
    /// the head and the cut.
    fn drop(&mut self) {
        let mut context = Context::from_waker(std::task::Waker::noop());
        let _ = self.writes.poll_flush(&mut self.transport, &mut context);
        if self.connection.is_broken_off() {
            transport::break_off(&self.transport);
        }
    }
}

#[cfg(test)]
pub(in crate::proxy) mod tests {
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::proxy::gate::Gate;

    /// A connection over HTTP/1 in clear text, and the client's end of it.
    pub(in crate::proxy) async fn connected(gate: &Gate) -> (ClientWire, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap());
        let (client, (socket, address)) = tokio::try_join!(client, listener.accept()).unwrap();
        let limits = &gate.snapshot().config.limits;
        let (connection, limit_hits) = (
            Connection::new(address, false),
            gate.metrics.limit_hits.clone(),
        );
        let transport = transport::Clear(socket);
        let wire = ClientWire::new(connection, transport, limits, limit_hits);
        (wire, client)
    }

    #[test]
    fn a_rate_counts_in_parts_of_a_second_too() {
        for (rate, millis, expected) in [
            (1_024, 30_000, 30_720),
            (1_024, 1_999, 2_047),
            (1_024, 100, 103),
            (1, 100, 1),
            (1 << 20, 3_600_000, 3_774_873_600),
        ] {
            let interval = Duration::from_millis(millis);
            assert_eq!(bytes_at(rate, interval), expected, "{rate} {millis}");
        }
    }
}
