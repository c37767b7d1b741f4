//! One connection to one server: commands are written in their order, and each gets its reply, in the same order.
//!
//! A command is written by its caller if no other one awaits its reply; otherwise by the connection's task, together with those that
//! were sent meanwhile. The task also reads: a lone command wakes no task but its caller's. The client library makes commands and
//! parses replies; its own connection has a queue, two tasks and a timer for each command
//! (docs/decisions/redis-link.md). There are no deadlines here, and a caller that no longer waits does not cancel its command.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, BytesMut};
use parking_lot::Mutex;
use redis::{Cmd, Pipeline, RedisError, RedisResult, Value};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use super::replies::{self, NotAReply, ReplySearch};

/// The least room for one read.
const READ_MIN: usize = 4 * 1024;
/// The memory that a buffer keeps when it is empty.
const KEPT_MAX: usize = 64 * 1024;

/// What a connection is made over.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// An open connection; it is closed when this is dropped.
pub struct RedisConnection {
    exchange: Arc<Mutex<Exchange>>,
    task: AbortHandle,
}

impl RedisConnection {
    /// A connection over a stream on which nothing was sent yet, or only what was answered.
    pub fn over(stream: impl Stream + 'static) -> RedisConnection {
        let exchange = Arc::new(Mutex::new(Exchange::over(Box::new(stream))));
        let task = tokio::spawn({
            let exchange = exchange.clone();
            poll_fn(move |context| exchange.lock().poll(context))
        });
        let task = task.abort_handle();
        RedisConnection { exchange, task }
    }

    /// The reply to a command.
    ///
    /// # Errors
    /// The server's, or an error of input and output if the connection is broken.
    pub async fn ask(&self, command: &Cmd) -> RedisResult<Value> {
        let mut replies = self.send(&command.get_packed_command(), 1).await?;
        replies.pop().unwrap_or(Value::Nil).extract_error()
    }

    /// The reply to each command of a pipeline, which is sent at once. Errors of the server are values.
    ///
    /// # Errors
    /// As [`RedisConnection::ask`], but for the server's.
    pub async fn ask_each(&self, pipeline: &Pipeline) -> RedisResult<Vec<Value>> {
        if pipeline.is_empty() {
            return Ok(Vec::new());
        }
        self.send(&pipeline.get_packed_pipeline(), pipeline.len())
            .await
    }

    async fn send(&self, commands: &[u8], replies: usize) -> RedisResult<Vec<Value>> {
        let (to, awaited) = oneshot::channel();
        let awaits = Awaited {
            missing: replies,
            replies: Vec::with_capacity(replies),
            to,
        };
        let task = self.exchange.lock().send(commands, awaits);
        if let Some(task) = task {
            task.wake();
        }
        awaited
            .await
            .unwrap_or_else(|_| Err(broken("the connection was closed")))
    }
}

impl Drop for RedisConnection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Commands of one caller, of which replies are awaited.
struct Awaited {
    missing: usize,
    replies: Vec<Value>,
    to: oneshot::Sender<RedisResult<Vec<Value>>>,
}

/// What is on its way on a connection.
struct Exchange {
    stream: Box<dyn Stream>,
    /// Commands that are not written yet.
    unsent: BytesMut,
    awaited: VecDeque<Awaited>,
    /// Replies that are not complete yet.
    received: BytesMut,
    search: ReplySearch,
    /// Wakes the connection's task, once it runs.
    task: Waker,
    /// Why nothing can be sent any longer.
    broken: Option<String>,
}

impl Exchange {
    fn over(stream: Box<dyn Stream>) -> Exchange {
        Exchange {
            stream,
            unsent: BytesMut::new(),
            awaited: VecDeque::new(),
            received: BytesMut::new(),
            search: ReplySearch::default(),
            task: Waker::noop().clone(),
            broken: None,
        }
    }

    /// Writes commands if no other one is awaited. Returns the task that has to write them otherwise.
    fn send(&mut self, commands: &[u8], awaits: Awaited) -> Option<Waker> {
        if let Some(why) = &self.broken {
            let _ = awaits.to.send(Err(broken(why)));
            return None;
        }
        let is_alone = self.awaited.is_empty();
        self.unsent.extend_from_slice(commands);
        self.awaited.push_back(awaits);
        let task = self.task.clone();
        if !is_alone {
            return Some(task);
        }
        // What the stream does not take now is written by the task, which it wakes.
        if let Poll::Ready(Err(error)) = self.write(&mut Context::from_waker(&task)) {
            self.end(&error.to_string());
        }
        None
    }

    /// Writes and reads until the connection is broken, as its task.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if !self.task.will_wake(context.waker()) {
            self.task = context.waker().clone();
        }
        let error = match self.write(context) {
            Poll::Ready(Err(error)) => error,
            Poll::Ready(Ok(())) | Poll::Pending => ready!(self.read(context)),
        };
        self.end(&error.to_string());
        Poll::Ready(())
    }

    fn write(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.unsent.is_empty() {
            let written = Pin::new(&mut self.stream).poll_write(context, &self.unsent);
            match ready!(written)? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.unsent.advance(written),
            }
        }
        shrink(&mut self.unsent);
        Pin::new(&mut self.stream).poll_flush(context)
    }

    /// Reads until nothing more is there. Returns why there will be nothing more.
    fn read(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        loop {
            self.received.reserve(READ_MIN);
            let read = pin!(self.stream.read_buf(&mut self.received));
            let read = match ready!(read.poll(context)) {
                Ok(0) => Err(io::Error::other("the server closed the connection")),
                Ok(_) => self.deliver(),
                Err(error) => Err(error),
            };
            if let Err(error) = read {
                return Poll::Ready(error);
            }
        }
    }

    /// Returns the complete replies to their callers.
    fn deliver(&mut self) -> io::Result<()> {
        while !self.received.is_empty() {
            let Some(end) = self.search.end(&self.received).map_err(io::Error::other)? else {
                return Ok(());
            };
            let reply = replies::read(self.received.get(..end).unwrap_or_default());
            self.received.advance(end);
            let reply = reply.map_err(io::Error::other)?;
            let awaited = self.awaited.front_mut();
            let awaited = awaited.ok_or_else(|| io::Error::other(NotAReply))?;
            awaited.replies.push(reply);
            awaited.missing = awaited.missing.saturating_sub(1);
            if awaited.missing == 0
                && let Some(done) = self.awaited.pop_front()
            {
                // An error here is a caller that no longer waits.
                let _ = done.to.send(Ok(done.replies));
            }
        }
        shrink(&mut self.received);
        Ok(())
    }

    /// Fails all that is awaited, and whatever is sent from now on.
    fn end(&mut self, why: &str) {
        self.broken = Some(why.to_owned());
        for awaited in self.awaited.drain(..) {
            let _ = awaited.to.send(Err(broken(why)));
        }
    }
}

fn shrink(empty: &mut BytesMut) {
    if empty.capacity() > KEPT_MAX {
        *empty = BytesMut::new();
    }
}

fn broken(why: &str) -> RedisError {
    io::Error::other(why.to_owned()).into()
}
