//! A body over HTTP/2 as it arrives.
//!
//! The HTTP/2 library keeps an unread frame as a slice of the buffer in which it read it, with frames of other streams. So a single byte
//! that is not read keeps 8 KiB, while windows, and limits of memory, count one. Therefore the task of a stream takes out of the library
//! what has arrived, small frames as a copy, whatever else the task waits for; of an answer once its head is read. The window bounds it,
//! which opens again for what is read.
//! Trailers, which are not forwarded, are dropped.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use h2::RecvStream;
use parking_lot::Mutex;

/// A frame below this size is copied.
const COPIED_BYTES: usize = 8 * 1024;

/// The body, from its stream.
#[derive(Debug)]
pub struct ReceivedBody {
    stream: RecvStream,
    /// Parts that were taken out of the library, in their order.
    parts: VecDeque<Bytes>,
    /// Copies of small frames, which follow the parts.
    copies: BytesMut,
}

impl ReceivedBody {
    /// The body of a stream.
    pub fn new(stream: RecvStream) -> ReceivedBody {
        ReceivedBody {
            stream,
            parts: VecDeque::new(),
            copies: BytesMut::new(),
        }
    }

    /// Whether everything was read, and the stream has ended.
    pub fn is_over(&self) -> bool {
        self.parts.is_empty() && self.copies.is_empty() && self.stream.is_end_stream()
    }

    /// Waits for the next part, and lets the sender send as much again; `None` at the end of the body.
    pub fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, h2::Error>>> {
        if self.parts.is_empty() && self.copies.is_empty() {
            let arrived = ready!(self.poll_frame(context));
            match arrived {
                Some(Ok(frame)) => self.take(frame),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
        let part = self.parts.pop_front();
        let part = part.unwrap_or_else(|| std::mem::take(&mut self.copies).freeze());
        let released = self.stream.flow_control().release_capacity(part.len());
        Poll::Ready(Some(released.map(|()| part)))
    }

    /// Takes out of the library what has arrived. Ready when nothing more can: with the error if the stream has ended with one.
    pub fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<Result<(), h2::Error>> {
        while let Some(arrived) = ready!(self.poll_frame(context)) {
            match arrived {
                Ok(frame) => self.take(frame),
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, h2::Error>>> {
        let frame = ready!(self.stream.poll_data(context));
        if frame.is_none() {
            // The next frame, if there is one, has the trailers.
            let _ = self.stream.poll_trailers(context);
        }
        Poll::Ready(frame)
    }

    fn take(&mut self, frame: Bytes) {
        if frame.len() < COPIED_BYTES {
            self.copies.extend_from_slice(&frame);
            return;
        }
        if !self.copies.is_empty() {
            self.parts
                .push_back(std::mem::take(&mut self.copies).freeze());
        }
        self.parts.push_back(frame);
    }
}

/// Runs `task`, and takes what arrives of `body` out of the library each time it runs.
pub async fn collecting<T>(
    body: &Mutex<ReceivedBody>,
    mut task: Pin<&mut impl Future<Output = T>>,
) -> T {
    let mut is_over = body.lock().is_over();
    poll_fn(|context| {
        // Before the task: if it reads the body, it finds what arrives afterwards, or this is woken for it.
        is_over = is_over || body.lock().poll_end(context).is_ready();
        task.as_mut().poll(context)
    })
    .await
}
