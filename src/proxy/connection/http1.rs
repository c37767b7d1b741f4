//! A client's connection over HTTP/1: successive requests, read and answered by the same task.
//!
//! Invariants: a request begins at the byte after the one before; after an incomplete answer or request the connection accepts no
//! other; between two requests it holds no buffer.

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::DATE;
use http::{Method, StatusCode};
use pingora::protocols::http::date::get_cached_date;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tokio::time::Instant;

use super::limits::{bounds_of, patience_of};
use super::timer::Timer;
use super::transport::Transport;
use super::writes::Writes;
use super::{Connection, refusal};
use crate::config::Limits;
use crate::policy::http1::body::{BodyReader, ChunkLimits};
use crate::policy::http1::framing::AnswerFraming;
use crate::policy::http1::request::{RequestHead, RequestReader};
use crate::policy::http1::writer::{self, BodyWriter, HeadWriter, WrongLength};
use crate::policy::http1::{HeadBounds, Version};
use crate::policy::rejection::{Malformed, Rejection};
use crate::proxy::client::{Client, Head, Side};
use crate::proxy::failure::{ClientFault, Failure, ServerFault};
use crate::proxy::gate::Gate;
use crate::proxy::serve::serve;

/// The bytes read from the socket at a time.
pub(super) const READ_BYTES: usize = 8 * 1024;
/// Bytes that a client may send ahead while a request is answered; more waits in the system's buffers.
const AHEAD_BYTES_MAX: usize = 8 * 1024;
/// After the last answer, the client's further bytes are read and discarded, so that the answer reaches it: a connection closed
/// with unread bytes is reset (RFC 9112 section 9.6). At most this many bytes, for this long.
pub(super) const LINGER_BYTES: usize = 256 * 1024;
pub(super) const LINGER: Duration = Duration::from_secs(1);
/// How long the discarded rest of a body may take.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a client may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Deadlines {
    /// For a complete head from its first byte, and for the first head from the connection's start.
    head: Duration,
    /// For a body.
    body: Duration,
    /// Between two requests.
    idle: Duration,
}

/// A connection.
pub struct Http1Connection {
    gate: Arc<Gate>,
    connection: Arc<Connection>,
    transport: Transport,
    unread: BytesMut,
    writes: Writes,
    timer: Timer,
    bounds: HeadBounds,
    deadlines: Deadlines,
    requests: u64,
    requests_max: u64,
}

/// The use of a connection after a request.
enum After {
    /// Another request.
    Request,
    /// To be closed, once the client has the answer.
    Close,
    /// None: its answer is incomplete.
    Nothing,
}

/// The next event on a connection between two requests.
enum NextInput {
    Request(Box<RequestHead>),
    /// Its last answer is being written.
    Refused,
    Over,
}

impl Http1Connection {
    /// A connection on which `unread` was received so far.
    pub(super) fn new(
        gate: Arc<Gate>,
        connection: Arc<Connection>,
        transport: Transport,
        unread: BytesMut,
        limits: &Limits,
    ) -> Http1Connection {
        Http1Connection {
            gate,
            connection,
            transport,
            unread,
            writes: Writes::new(patience_of(limits)),
            timer: Timer::default(),
            bounds: bounds_of(limits),
            deadlines: Deadlines {
                head: limits.request_head,
                body: limits.request_read,
                idle: limits.keepalive_idle,
            },
            requests: 0,
            requests_max: limits.requests_per_connection,
        }
    }

    /// Serves the connection from its `start` to its end, which `ending` requests.
    pub(super) async fn run(mut self, start: Instant, mut ending: watch::Receiver<bool>) {
        let (mut deadline, mut limit) = (start + self.deadlines.head, "request_head");
        loop {
            match self.next(deadline, limit, &mut ending).await {
                NextInput::Request(head) => {
                    self.note_request();
                    match self.serve(*head).await {
                        After::Request => {}
                        After::Close => break,
                        After::Nothing => return,
                    }
                }
                NextInput::Refused => break,
                NextInput::Over => return,
            }
            if self.unread.is_empty() {
                self.unread = BytesMut::new();
            }
            self.writes.release();
            (deadline, limit) = (Instant::now() + self.deadlines.idle, "keepalive_idle");
        }
        self.close().await;
    }

    /// Reads the next head, whose first byte must arrive before `deadline`.
    async fn next(
        &mut self,
        deadline: Instant,
        limit: &'static str,
        ending: &mut watch::Receiver<bool>,
    ) -> NextInput {
        while self.unread.is_empty() {
            if self.connection.is_retired() || *ending.borrow() {
                return NextInput::Over;
            }
            let more = tokio::select! {
                more = self.read_more(deadline) => more,
                _ = ending.changed() => continue,
            };
            match more {
                Ok(Some(1..)) => {}
                Ok(Some(0)) | Err(_) => return NextInput::Over,
                Ok(None) => {
                    self.note_limit(limit);
                    return NextInput::Over;
                }
            }
        }
        let begun = Instant::now();
        let mut reader = RequestReader::default();
        loop {
            let rejection = match reader.take(&mut self.unread, &self.bounds) {
                Ok(Some(head)) => return NextInput::Request(Box::new(head)),
                Err(rejection) => rejection,
                Ok(None) => match self.read_more(begun + self.deadlines.head).await {
                    Ok(Some(1..)) => continue,
                    Ok(Some(0)) | Err(_) => return NextInput::Over,
                    Ok(None) => {
                        self.note_limit("request_head");
                        Rejection::BadRequest(Malformed::Late)
                    }
                },
            };
            let (gate, client) = (&self.gate, self.connection.client);
            let is_encrypted = self.connection.is_encrypted;
            let waited = begun.elapsed();
            let answer =
                refusal::refuse(gate, client, &self.unread, &rejection, waited, is_encrypted);
            self.writes.append(&answer);
            return NextInput::Refused;
        }
    }

    /// Serves a request.
    async fn serve(&mut self, head: RequestHead) -> After {
        let (gate, connection) = (self.gate.clone(), self.connection.clone());
        let side = Http1Side {
            body: head.body(&ChunkLimits::STANDARD),
            is_body_empty: head.framing().is_empty(),
            deadline: Instant::now() + self.deadlines.body,
            answer: None,
            answers_head: *head.method() == Method::HEAD,
            version: head.version(),
            // The keep-alive of HTTP/1.0 was never standardised.
            keeps_open: head.version() == Version::Http11 && head.keeps_open(),
            is_whole: false,
            is_broken_off: false,
            wire: self,
        };
        let mut client = Client::new(connection, head, Side::Http1(side));
        Box::pin(serve(&gate, &mut client)).await;
        match client.into_side() {
            Side::Http1(side) => side.finish().await,
            Side::Http2(_) => After::Nothing,
        }
    }

    /// Retires the connection once it has had the maximum number of requests.
    fn note_request(&mut self) {
        self.requests += 1;
        if self.requests >= self.requests_max && !self.connection.is_retired() {
            self.note_limit("requests_per_connection");
            self.connection.retire();
        }
    }

    fn note_limit(&self, limit: &str) {
        let hits = &self.gate.metrics.limit_hits;
        hits.with_label_values(&[limit]).inc();
    }

    /// Reads available bytes after the unread ones: returns their number, 0 at the end; `None` if none arrived before `deadline`.
    async fn read_more(&mut self, deadline: Instant) -> io::Result<Option<usize>> {
        poll_fn(|context| match self.poll_more(context) {
            Poll::Ready(read) => Poll::Ready(read.map(Some)),
            Poll::Pending => {
                ready!(self.timer.poll_until(deadline, context));
                Poll::Ready(Ok(None))
            }
        })
        .await
    }

    fn poll_more(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut space = [MaybeUninit::<u8>::uninit(); READ_BYTES];
        let mut space = ReadBuf::uninit(&mut space);
        ready!(Pin::new(&mut self.transport).poll_read(context, &mut space))?;
        self.unread.extend_from_slice(space.filled());
        Poll::Ready(Ok(space.filled().len()))
    }

    async fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let written =
                poll_fn(|context| self.writes.poll_write(&mut self.transport, context, bytes));
            let written = written.await.inspect_err(|error| self.note_slow(error))?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            bytes = bytes.get(written..).unwrap_or_default();
        }
        Ok(())
    }

    async fn flush(&mut self) -> io::Result<()> {
        let flushed = poll_fn(|context| self.writes.poll_flush(&mut self.transport, context));
        flushed.await.inspect_err(|error| self.note_slow(error))
    }

    /// Counts a client that did not read its answers.
    fn note_slow(&self, error: &io::Error) {
        if error.kind() == io::ErrorKind::TimedOut {
            self.note_limit("response_rate");
        }
    }

    /// Closes the connection after the written bytes; the client's further bytes are read first, as the answer might be lost
    /// otherwise.
    async fn close(mut self) {
        if self.flush().await.is_err() {
            return;
        }
        let transport = &mut self.transport;
        let ended = poll_fn(|context| Pin::new(&mut *transport).poll_shutdown(context));
        if !matches!(tokio::time::timeout(LINGER, ended).await, Ok(Ok(()))) {
            return;
        }
        let (until, mut bytes) = (Instant::now() + LINGER, 0);
        while bytes < LINGER_BYTES {
            self.unread.clear();
            match self.read_more(until).await {
                Ok(Some(more @ 1..)) => bytes += more,
                Ok(Some(0) | None) | Err(_) => return,
            }
        }
    }
}

impl Drop for Http1Connection {
    /// The written part of an interrupted answer is still sent, as far as the socket accepts it at once, so that the client sees
    /// the head and the cut.
    fn drop(&mut self) {
        let mut context = Context::from_waker(std::task::Waker::noop());
        let _ = self.writes.poll_flush(&mut self.transport, &mut context);
        if self.connection.is_broken_off() {
            self.transport.break_off();
        }
    }
}

/// The client's connection has ended.
fn broke(error: io::Error) -> Failure {
    Failure::client(ClientFault::Gone, error)
}

/// One request on its connection.
pub struct Http1Side<'c> {
    wire: &'c mut Http1Connection,
    body: BodyReader,
    is_body_empty: bool,
    deadline: Instant,
    answer: Option<BodyWriter>,
    answers_head: bool,
    version: Version,
    keeps_open: bool,
    /// Whether the last piece of the answer is written.
    is_whole: bool,
    is_broken_off: bool,
}

impl Http1Side<'_> {
    pub(in crate::proxy) fn is_body_done(&self) -> bool {
        self.body.is_done()
    }

    pub(in crate::proxy) fn is_body_empty(&self) -> bool {
        self.is_body_empty
    }

    pub(in crate::proxy) fn close_after(&mut self) {
        self.keeps_open = false;
    }

    pub(in crate::proxy) fn break_off(&mut self) {
        self.is_broken_off = true;
        // An HTTP/1.0 client takes a normal close as the answer's end, so the connection is reset.
        if self.version == Version::Http10 {
            self.wire.connection.break_off();
        }
    }

    pub(in crate::proxy) fn blocked(&self) -> Duration {
        self.wire.writes.blocked()
    }

    pub(in crate::proxy) async fn read(&mut self) -> Result<Option<Bytes>, Failure> {
        loop {
            if self.body.is_done() {
                return Ok(None);
            }
            let taken = self.body.read(&self.wire.unread);
            let taken = taken.map_err(|error| Failure::client(ClientFault::Malformed, error))?;
            let mut read = self.wire.unread.split_to(taken.bytes);
            if !taken.data.is_empty() {
                read.truncate(taken.data.end);
                return Ok(Some(read.freeze().slice(taken.data.start..)));
            }
            if self.body.is_done() {
                return Ok(None);
            }
            match self.wire.read_more(self.deadline).await {
                Ok(Some(1..)) => {}
                Ok(Some(0)) => {
                    let cause = "closed the connection before the end of its request";
                    return Err(Failure::client(ClientFault::Gone, cause));
                }
                Ok(None) => {
                    let cause = "the request's body did not arrive within limits.request_read";
                    return Err(Failure::client(ClientFault::Late, cause));
                }
                Err(error) => return Err(broke(error)),
            }
        }
    }

    /// Waits until the client has closed its side. Bytes received meanwhile belong to the next request.
    pub(in crate::proxy) async fn gone(&mut self) -> Failure {
        loop {
            if self.wire.unread.len() >= AHEAD_BYTES_MAX {
                std::future::pending::<()>().await;
            }
            match poll_fn(|context| self.wire.poll_more(context)).await {
                Ok(1..) => {}
                Ok(0) => {
                    let cause = "closed the connection before the end of its answer";
                    return Failure::client(ClientFault::Gone, cause);
                }
                Err(error) => return broke(error),
            }
        }
    }

    pub(in crate::proxy) async fn ask_for_body(&mut self) -> Result<(), Failure> {
        self.write(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
        self.flush().await
    }

    pub(in crate::proxy) async fn write_head(
        &mut self,
        head: &Head,
        ends: bool,
    ) -> Result<(), Failure> {
        if self.answer.is_some() {
            return Ok(());
        }
        let is_interim = head.status.is_informational();
        if is_interim && self.version == Version::Http10 {
            // HTTP/1.0 has no interim answers (RFC 9110 section 15.2).
            return Ok(());
        }
        let mut bytes = Vec::with_capacity(1024);
        let mut out = HeadWriter::answer(&mut bytes, head.status);
        for field in head.fields.end_to_end() {
            out.pass(field);
        }
        if is_interim {
            // An interim answer has no body, so its writer has nothing to write.
            out.end_answer(
                AnswerFraming::Bodiless(None),
                writer::ConnectionFate::Implied,
            );
        } else {
            out.add(&DATE, &get_cached_date());
            let framing = self.framing(head, ends);
            if framing == AnswerFraming::ByClose || self.wire.connection.is_retired() {
                self.keeps_open = false;
            }
            let connection = match self.keeps_open {
                true => writer::ConnectionFate::KeepAlive,
                false => writer::ConnectionFate::Close,
            };
            self.answer = Some(out.end_answer(framing, connection));
            self.is_whole = ends;
        }
        self.write(&bytes).await
    }

    /// How the answer's body is framed for this client.
    fn framing(&self, head: &Head, ends: bool) -> AnswerFraming {
        let has_none = [StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED].contains(&head.status);
        match head.length {
            length if has_none || self.answers_head => AnswerFraming::Bodiless(length),
            Some(length) => AnswerFraming::Length(length),
            None if ends => AnswerFraming::Length(0),
            None => AnswerFraming::Chunked.towards(self.version),
        }
    }

    pub(in crate::proxy) async fn write_part(
        &mut self,
        part: &[u8],
        ends: bool,
    ) -> Result<(), Failure> {
        let Some(mut answer) = self.answer.take() else {
            return Err(Failure::gateway("a body before its head"));
        };
        let wrong = |error: WrongLength| Failure::server(ServerFault::Malformed, error);
        let wrapping = answer.part(part.len()).map_err(wrong)?;
        self.write(wrapping.before()).await?;
        self.write(part).await?;
        self.write(wrapping.after).await?;
        if ends {
            let mut end = Vec::new();
            answer.end([], &mut end).map_err(wrong)?;
            self.write(&end).await?;
            self.is_whole = true;
        }
        self.answer = Some(answer);
        Ok(())
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.wire.write_all(bytes).await.map_err(broke)
    }

    pub(in crate::proxy) async fn flush(&mut self) -> Result<(), Failure> {
        self.wire.flush().await.map_err(broke)
    }

    /// Ends the request; returns the further use of the connection.
    async fn finish(mut self) -> After {
        if self.is_broken_off || !self.is_whole {
            return After::Nothing;
        }
        if !self.body.is_done() && self.keeps_open {
            let rest = async { while let Ok(Some(_)) = self.read().await {} };
            let _ = tokio::time::timeout(DRAIN_TIMEOUT, rest).await;
        }
        match self.keeps_open && self.body.is_done() {
            true => After::Request,
            false => After::Close,
        }
    }
}
