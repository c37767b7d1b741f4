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

const CLOSED: &str = "the server closed the connection";

/// What a connection is made over.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// An open connection; it is closed when this is dropped.
pub struct RedisConnection {
    traffic: Arc<Mutex<Traffic>>,
    task: AbortHandle,
}

impl RedisConnection {
    /// A connection over a stream on which nothing was sent yet, or only what was answered.
    pub fn over(stream: impl Stream + 'static) -> RedisConnection {
        let traffic = Arc::new(Mutex::new(Traffic::over(Box::new(stream))));
        let task = tokio::spawn({
            let traffic = traffic.clone();
            poll_fn(move |context| traffic.lock().poll(context))
        });
        let task = task.abort_handle();
        RedisConnection { traffic, task }
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
        let awaits = AwaitedReplies {
            expected: replies,
            replies: Vec::with_capacity(replies),
            to,
        };
        let task = self.traffic.lock().send(commands, awaits);
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
struct AwaitedReplies {
    expected: usize,
    replies: Vec<Value>,
    to: oneshot::Sender<RedisResult<Vec<Value>>>,
}

/// What is on its way on a connection.
struct Traffic {
    stream: Box<dyn Stream>,
    /// Commands that are not written yet.
    unsent: BytesMut,
    awaited: VecDeque<AwaitedReplies>,
    /// Replies that are not complete yet.
    received: BytesMut,
    search: ReplySearch,
    /// Whether there was a reply; and the error that was the only one: a server that takes no connection states why, unasked, and closes
    /// it.
    has_replied: bool,
    refusal: Option<String>,
    /// Wakes the connection's task, once it runs.
    task: Waker,
    /// Why nothing can be sent any longer.
    broken: Option<String>,
}

impl Traffic {
    fn over(stream: Box<dyn Stream>) -> Traffic {
        Traffic {
            stream,
            unsent: BytesMut::new(),
            awaited: VecDeque::new(),
            received: BytesMut::new(),
            search: ReplySearch::default(),
            has_replied: false,
            refusal: None,
            task: Waker::noop().clone(),
            broken: None,
        }
    }

    /// Writes commands if no other one is awaited. Returns the task that has to write them otherwise.
    fn send(&mut self, commands: &[u8], awaits: AwaitedReplies) -> Option<Waker> {
        if let Some(why) = &self.broken {
            let _ = awaits.to.send(Err(broken(why)));
            return None;
        }
        let is_alone = self.awaited.is_empty();
        self.unsent.extend_from_slice(commands);
        self.awaited.push_back(awaits);
        let task = self.task.clone();
        // What the stream does not take now is written by the task, which the stream wakes; an error is found by the task too.
        let mut context = Context::from_waker(&task);
        let is_begun = is_alone && !matches!(self.write(&mut context), Poll::Ready(Err(_)));
        (!is_begun).then_some(task)
    }

    /// Reads and writes until the connection is broken, as its task. What was received is read even if nothing can be written.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if !self.task.will_wake(context.waker()) {
            self.task = context.waker().clone();
        }
        let error = match self.read(context) {
            Poll::Ready(error) => error,
            Poll::Pending => match self.write(context) {
                Poll::Ready(Err(error)) => error,
                Poll::Ready(Ok(())) | Poll::Pending => return Poll::Pending,
            },
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
                Ok(0) => Err(io::Error::other(CLOSED)),
                Ok(_) => self.deliver(),
                // Over TLS, without its farewell.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    Err(io::Error::other(CLOSED))
                }
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
            self.refusal = match &reply {
                Value::ServerError(error) if !self.has_replied => {
                    Some(RedisError::from(error.clone()).to_string())
                }
                _ => None,
            };
            self.has_replied = true;
            let awaited = self.awaited.front_mut();
            let awaited = awaited.ok_or_else(|| io::Error::other(NotAReply))?;
            awaited.replies.push(reply);
            if awaited.replies.len() == awaited.expected
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
        let refusal = self.refusal.take();
        let why = refusal.as_deref().unwrap_or(why);
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    /// A connection, and the server's end, which takes so many bytes before they are read.
    fn made(capacity: usize) -> (RedisConnection, DuplexStream) {
        let (stream, server) = duplex(capacity);
        (RedisConnection::over(stream), server)
    }

    fn echo(text: &str) -> Cmd {
        redis::cmd("ECHO").arg(text).take()
    }

    async fn reads(server: &mut DuplexStream, expected: &Cmd) {
        let expected = expected.get_packed_command();
        let mut read = vec![0; expected.len()];
        server.read_exact(&mut read).await.unwrap();
        assert_eq!(read, expected);
    }

    fn begun(future: Pin<&mut impl Future>) {
        let polled = future.poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending());
    }

    #[tokio::test]
    async fn a_lone_command_is_written_by_its_caller_and_others_by_the_task() {
        let (connection, mut server) = made(1_024);
        let (lone, other) = (echo("lone"), echo("other"));
        let mut first = pin!(connection.ask(&lone));
        let mut second = pin!(connection.ask(&other));
        begun(first.as_mut());
        // The task has not run yet: nothing was awaited.
        let lone_length = lone.get_packed_command().len();
        let mut read = vec![0; 1_024];
        let mut at_once = pin!(server.read(&mut read));
        let polled = at_once
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(polled, Poll::Ready(Ok(length)) if length == lone_length));
        begun(second.as_mut());
        reads(&mut server, &other).await;
        server.write_all(b"+1\r\n:2\r\n").await.unwrap();
        assert_eq!(first.await.unwrap(), Value::SimpleString("1".into()));
        assert_eq!(second.await.unwrap(), Value::Int(2));
    }

    #[tokio::test]
    async fn each_caller_gets_its_own_replies_when_others_stop_waiting_or_are_refused() {
        let (connection, mut server) = made(1_024);
        let commands = ["a", "b", "c"].map(echo);
        let pipeline = super::super::request::pipeline(commands.clone());
        let [a, b, _] = &commands;
        let mut dropped = Box::pin(connection.ask_each(&pipeline));
        begun(dropped.as_mut());
        drop(dropped);
        let (refused, kept, sent) = tokio::join!(connection.ask(a), connection.ask(b), async {
            for command in commands.iter().chain([a, b]) {
                reads(&mut server, command).await;
            }
            for part in ["+1\r\n+2", "\r\n+3\r\n-WRONG ", "thing\r\n$1\r\n", "4\r\n"] {
                server.write_all(part.as_bytes()).await.unwrap();
                tokio::task::yield_now().await;
            }
        });
        assert_eq!(refused.unwrap_err().code(), Some("WRONG"));
        assert_eq!(kept.unwrap(), Value::BulkString(b"4".to_vec()));
        assert_eq!(sent, ());
    }

    #[tokio::test]
    async fn more_than_the_stream_takes_is_written_as_it_takes_it() {
        let (connection, mut server) = made(16);
        let large = echo(&"x".repeat(100 * 1_024));
        let (reply, ()) = tokio::join!(connection.ask(&large), async {
            reads(&mut server, &large).await;
            server.write_all(b"$-1\r\n").await.unwrap();
        });
        assert_eq!(reply.unwrap(), Value::Nil);
        assert!(connection.traffic.lock().unsent.capacity() <= KEPT_MAX);
    }

    #[tokio::test]
    async fn a_broken_connection_fails_what_is_awaited_and_what_is_sent_later() {
        for (sent, why) in [
            ("", "the server closed the connection"),
            ("HTTP/1.1 400\r\n", "no reply of Redis"),
            ("+1\r\n+2\r\n+3\r\n", "no reply of Redis"),
            (
                "-ERR max number of clients reached\r\n",
                "max number of clients reached",
            ),
        ] {
            let (connection, mut server) = made(1_024);
            let [a, b, c] = ["a", "b", "c"].map(echo);
            let (first, second, ()) = tokio::join!(connection.ask(&a), connection.ask(&b), async {
                reads(&mut server, &a).await;
                server.write_all(sent.as_bytes()).await.unwrap();
                drop(server);
            });
            let are_answered = sent.starts_with('+');
            assert_eq!(
                (first.is_ok(), second.is_ok()),
                (are_answered, are_answered)
            );
            let awaited = tokio::time::timeout(Duration::from_secs(60), connection.ask(&c));
            let error = awaited.await.unwrap().unwrap_err();
            assert!(
                error.is_io_error() && error.to_string().contains(why),
                "{error}"
            );
        }
    }

    #[tokio::test]
    async fn a_dropped_connection_is_closed_though_its_server_does_not_answer() {
        let (connection, mut server) = made(1_024);
        let hanging = echo("hanging");
        begun(pin!(connection.ask(&hanging)));
        reads(&mut server, &hanging).await;
        drop(connection);
        assert_eq!(server.read(&mut [0]).await.unwrap(), 0);
    }
}
