//! Gathered writes, and clients that do not read them.
//!
//! An answer's head and body are written one after the other; gathered, both leave in one packet. The buffer is released between
//! two requests; one of at most 4 KiB is used again for the next answer on its thread. A client that reads more slowly than
//! `limits.response_rate` loses its connection; otherwise a client could hold an answer forever by reading one byte a minute. Only the time
//! in which it refuses bytes counts: an upstream may be arbitrarily slow.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::AsyncWrite;
use tokio::time::Instant;

use super::transport::Transport;
use crate::clock::timer::Timer;

/// The most bytes gathered: the head of an answer with a part of 16 KiB. One that did not fit would leave in two writes.
const GATHERED_BYTES_MAX: usize = 17 * 1024;
/// The most bytes of a buffer that is kept for another answer, and what a client that does not read may hold beyond its answer.
const SPARE_BYTES_MAX: usize = 4 * 1024;

thread_local! {
    /// An empty buffer of an earlier answer, so that hardly any answer allocates one.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// The writing side of a connection.
#[derive(Debug)]
pub struct Writes {
    gathered: Vec<u8>,
    /// The number of gathered bytes that are written.
    written: usize,
    /// How long a client may refuse bytes, in which time it must read at least `bytes_min` in all.
    patience: Duration,
    bytes_min: u64,
    timer: Timer,
    /// How long the client has refused bytes in the present window, and the bytes written in it; `None` until it refuses any.
    window: Option<(Duration, u64)>,
    blocked_since: Option<Instant>,
    /// How long it had refused bytes before that.
    blocked: Duration,
}

impl Writes {
    /// Nothing written yet; a client must read `bytes_min` in each interval of `patience`.
    pub fn new(patience: Duration, bytes_min: u64) -> Writes {
        Writes {
            gathered: Vec::new(),
            written: 0,
            patience,
            bytes_min,
            timer: Timer::default(),
            window: None,
            blocked_since: None,
            blocked: Duration::ZERO,
        }
    }

    /// How long the client has refused bytes so far.
    pub fn blocked(&self) -> Duration {
        let since = self.blocked_since.map(|since| since.elapsed());
        self.blocked + since.unwrap_or_default()
    }

    /// Releases the buffer and resets the judgement of the client, if nothing is to be written.
    pub fn release(&mut self) {
        if self.unwritten().is_empty() {
            let mut buffer = std::mem::take(&mut self.gathered);
            if (1..=SPARE_BYTES_MAX).contains(&buffer.capacity()) {
                buffer.clear();
                SPARE.set(buffer);
            }
            self.written = 0;
            self.window = None;
        }
    }

    /// Makes room for this many bytes, if all are gathered, so that the buffer does not move its bytes while it grows.
    pub fn reserve(&mut self, bytes: usize) {
        if bytes <= GATHERED_BYTES_MAX {
            self.gathered().reserve(bytes);
        }
    }

    /// Whether more is gathered than may be: it is to be written before anything follows.
    pub fn is_over_full(&self) -> bool {
        self.unwritten().len() > GATHERED_BYTES_MAX
    }

    /// The buffer, to append one head to; it is written before anything follows if it [is over full](Writes::is_over_full).
    pub fn gathered(&mut self) -> &mut Vec<u8> {
        if self.gathered.capacity() == 0 {
            self.gathered = SPARE.take();
        }
        &mut self.gathered
    }

    fn unwritten(&self) -> &[u8] {
        self.gathered.get(self.written..).unwrap_or_default()
    }

    /// Appends the bytes if they fit; returns whether they do.
    fn gather(&mut self, bytes: &[u8]) -> bool {
        let fits = self.unwritten().len() + bytes.len() <= GATHERED_BYTES_MAX;
        if fits {
            self.gathered.drain(..self.written);
            self.written = 0;
            self.gathered().extend_from_slice(bytes);
        }
        fits
    }

    /// Takes bytes to write; those that do not fit are written at once.
    pub fn poll_write(
        &mut self,
        transport: &mut Transport,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.gather(bytes) {
            return Poll::Ready(Ok(bytes.len()));
        }
        ready!(self.poll_drain(transport, context))?;
        if self.gather(bytes) {
            return Poll::Ready(Ok(bytes.len()));
        }
        let written = Pin::new(transport).poll_write(context, bytes);
        self.note(written, context)
    }

    /// Writes all gathered bytes, down to the socket.
    pub fn poll_flush(
        &mut self,
        transport: &mut Transport,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(transport, context))?;
        let flushed = Pin::new(transport).poll_flush(context).map_ok(|()| 0);
        Poll::Ready(ready!(self.note(flushed, context)).map(|_| ()))
    }

    fn poll_drain(
        &mut self,
        transport: &mut Transport,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while !self.unwritten().is_empty() {
            let written = Pin::new(&mut *transport).poll_write(context, self.unwritten());
            let written = ready!(self.note(written, context))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += written;
        }
        self.gathered.clear();
        self.written = 0;
        Poll::Ready(Ok(()))
    }

    /// Notes the result of a write; an error if the client has refused bytes for too long.
    fn note(
        &mut self,
        written: Poll<io::Result<usize>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        match written {
            Poll::Ready(Ok(bytes)) => {
                let refused = self.blocked_since.take().map(|since| since.elapsed());
                let refused = refused.unwrap_or_default();
                self.blocked += refused;
                if let Some((in_window, written)) = &mut self.window {
                    *in_window += refused;
                    *written += bytes as u64;
                }
                Poll::Ready(Ok(bytes))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                let now = Instant::now();
                let since = *self.blocked_since.get_or_insert(now);
                let (refused, written) = *self.window.get_or_insert((Duration::ZERO, 0));
                let over = since + self.patience.saturating_sub(refused);
                if self.timer.poll_until(over, context).is_pending() {
                    return Poll::Pending;
                }
                if written < self.bytes_min {
                    let slow = io::Error::new(io::ErrorKind::TimedOut, "the client does not read");
                    return Poll::Ready(Err(slow));
                }
                self.blocked += now.saturating_duration_since(since);
                self.blocked_since = Some(now);
                self.window = Some((Duration::ZERO, 0));
                let next = self.timer.poll_until(now + self.patience, context);
                if next.is_ready() {
                    // The process has stalled for this window, too: nothing else may wake the task.
                    context.waker().wake_by_ref();
                }
                Poll::Pending
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::net::{TcpListener, TcpStream};

    use super::super::transport;
    use super::*;

    /// With a patience of zero, each window is over before the timer is set for it, as after a stall of the process that is longer.
    #[tokio::test]
    async fn a_window_that_is_over_before_its_timer_is_set_is_judged_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connected = TcpStream::connect(listener.local_addr().unwrap());
        let (mut transport, _client) = (transport::Clear(connected.await.unwrap()), listener);
        let (mut writes, mut polls) = (Writes::new(Duration::ZERO, 0), 0);
        let judged_again = poll_fn(|context| {
            polls += 1;
            writes.gathered().extend([b'a'; 64 * 1024]);
            while polls < 5 && writes.poll_flush(&mut transport, context).is_ready() {
                writes.gathered().extend([b'a'; 64 * 1024]);
            }
            match polls {
                5 => Poll::Ready(()),
                _ => Poll::Pending,
            }
        });
        let judged_again = tokio::time::timeout(Duration::from_secs(5), judged_again);
        assert!(judged_again.await.is_ok(), "polled {polls} times");
    }

    #[test]
    fn gathered_bytes_that_are_written_make_room_for_others() {
        let mut writes = Writes::new(Duration::from_secs(1), 1);
        assert!(writes.gather(&[b'a'; GATHERED_BYTES_MAX]) && !writes.gather(b"b"));
        writes.written = GATHERED_BYTES_MAX - 1;
        assert!(writes.gather(b"bc"));
        assert_eq!(
            (&*writes.gathered, writes.unwritten()),
            (&b"abc"[..], &b"abc"[..])
        );
        assert!(!writes.gather(&[b'd'; GATHERED_BYTES_MAX - 2]));
        assert!(!writes.is_over_full());
        writes.gathered().extend([b'e'; GATHERED_BYTES_MAX]);
        assert!(writes.is_over_full());
    }
}
