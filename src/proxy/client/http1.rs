//! One request over HTTP/1, on its connection.

use std::future::poll_fn;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use http::header::DATE;
use pingora::protocols::http::date::get_cached_date;
use tokio::time::Instant;

use super::piece::Head;
use crate::clock::timer::Timer;
use crate::policy::http1::Version;
use crate::policy::http1::body::{BodyReader, ChunkLimits};
use crate::policy::http1::framing::{AnswerFraming, is_bodiless};
use crate::policy::http1::request::RequestHead;
use crate::policy::http1::writer::{BodyWriter, ConnectionFate, HeadWriter, WrongLength};
use crate::proxy::connection::wire::{ClientWire, REST_PAUSE_MAX};
use crate::proxy::failure::{ClientFault, Failure, Fault, ServerFault};

/// Unread bytes of a client above which no more are read while a request is answered: the rest waits in the system's buffers. One read may
/// exceed it by 8 KiB.
const AHEAD_BYTES_MAX: usize = 8 * 1024;
/// Room for one field of an answer. Most take less, so that the buffer of a short answer stays small and cheap to allocate.
const FIELD_BYTES: usize = 48;
/// Room for the parts of a head that are not among its fields: status line, `Date`, framing and `Connection`.
const HEAD_BYTES: usize = 128;

/// The use of a connection after a request.
pub enum After {
    /// Another request.
    Request,
    /// To be closed, once the client has the answer. Its further bytes are read for this long at most.
    Close(Duration),
    /// To be ended without an answer: no request has arrived.
    End,
    /// None: its answer is incomplete.
    Nothing,
}

/// The client's connection has ended.
fn broke(error: io::Error) -> Failure {
    Failure::client(ClientFault::Gone, error)
}

/// One request on its connection.
pub struct Http1Side<'c> {
    wire: &'c mut ClientWire,
    body: BodyReader,
    /// When the body must have arrived; `None` if there is none.
    deadline: Option<Instant>,
    answer: Option<BodyWriter>,
    answers_head: bool,
    version: Version,
    keeps_open: bool,
    /// Whether the last piece of the answer is written.
    is_whole: bool,
    is_broken_off: bool,
}

impl<'c> Http1Side<'c> {
    /// A request with this head, whose body must arrive within `read_timeout`.
    pub fn new(
        wire: &'c mut ClientWire,
        head: &RequestHead,
        read_timeout: Duration,
    ) -> Http1Side<'c> {
        let body = head.body(&ChunkLimits::STANDARD);
        Http1Side {
            wire,
            deadline: (!body.is_done()).then(|| Instant::now() + read_timeout),
            body,
            answer: None,
            answers_head: head.method == Method::HEAD,
            version: head.version,
            // The keep-alive of HTTP/1.0 was never standardised.
            keeps_open: head.version == Version::Http11 && head.keeps_open,
            is_whole: false,
            is_broken_off: false,
        }
    }

    pub(super) fn is_body_done(&self) -> bool {
        self.body.is_done()
    }

    /// Makes room for a head and these bytes of a body, which are written together.
    pub(super) fn reserve(&mut self, head: &Head, body_bytes: usize) {
        let head_bytes = HEAD_BYTES + FIELD_BYTES * head.fields.count();
        self.wire.writes.reserve(head_bytes + body_bytes);
    }

    /// The connection's timer.
    pub(super) fn timer(&mut self) -> &mut Timer {
        &mut self.wire.timer
    }

    pub(super) fn close_after(&mut self) {
        self.keeps_open = false;
    }

    pub(super) fn break_off(&mut self) {
        self.is_broken_off = true;
        // An HTTP/1.0 client takes a normal close as the answer's end, so the connection is reset.
        if self.version == Version::Http10 {
            self.wire.connection.break_off();
        }
    }

    pub(super) fn blocked(&self) -> Duration {
        self.wire.writes.blocked()
    }

    pub(super) fn note_unasked(&mut self, time: Duration) {
        if let Some(deadline) = &mut self.deadline {
            *deadline += time;
        }
    }

    pub(super) async fn read(&mut self) -> Result<Option<Bytes>, Failure> {
        loop {
            if self.body.is_done() {
                return Ok(None);
            }
            let data = self.body.read(&self.wire.unread);
            let data = data.map_err(|error| Failure::client(ClientFault::Malformed, error))?;
            let read = self.wire.unread.split_to(data.end);
            if !data.is_empty() {
                return Ok(Some(read.freeze().slice(data.start..)));
            }
            let Some(deadline) = self.deadline.filter(|_| !self.body.is_done()) else {
                return Ok(None);
            };
            match self.wire.read_more(deadline).await {
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

    /// Waits until the client has closed its side. Bytes received meanwhile are of the rest of the body, or of the next request.
    pub(super) async fn gone(&mut self) -> Failure {
        loop {
            let more = match self.wire.unread.len() {
                ..AHEAD_BYTES_MAX => poll_fn(|context| self.wire.poll_more(context)).await,
                AHEAD_BYTES_MAX.. => self.wire.closed().await,
            };
            match more {
                Ok(1..) => {}
                Ok(0) => {
                    let cause = "closed the connection before the end of its answer";
                    return Failure::client(ClientFault::Gone, cause);
                }
                Err(error) => return broke(error),
            }
        }
    }

    pub(super) async fn ask_for_body(&mut self) -> Result<(), Failure> {
        self.write(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
        self.flush().await
    }

    /// Gathers a head, to be written with what follows it; a head larger than the buffer is written at once.
    pub(super) async fn write_head(&mut self, head: &Head, ends: bool) -> Result<(), Failure> {
        if self.answer.is_none() {
            match head.status.is_informational() {
                true => self.gather_interim(head),
                false => self.gather_final(head, ends),
            }
        }
        self.wire.limit_gathered().await.map_err(broke)
    }

    fn gather_final(&mut self, head: &Head, ends: bool) {
        let framing = self.framing(head, ends);
        if framing == AnswerFraming::ByClose || self.wire.connection.is_retired() {
            self.keeps_open = false;
        }
        let connection = match self.keeps_open {
            true => ConnectionFate::KeepAlive,
            false => ConnectionFate::Close,
        };
        let mut out = HeadWriter::answer(self.wire.writes.gathered(), head.status);
        out.pass_all(&head.fields);
        out.add(&DATE, &get_cached_date());
        self.answer = Some(out.end(framing, connection));
        self.is_whole = ends;
    }

    /// An interim answer has no body. HTTP/1.0 has no interim answers (RFC 9110 section 15.2).
    fn gather_interim(&mut self, head: &Head) {
        if self.version != Version::Http10 {
            let mut out = HeadWriter::answer(self.wire.writes.gathered(), head.status);
            out.pass_all(&head.fields);
            out.end(AnswerFraming::Bodiless(None), ConnectionFate::Implied);
        }
    }

    /// How the answer's body is framed for this client.
    fn framing(&self, head: &Head, ends: bool) -> AnswerFraming {
        match head.length {
            length if is_bodiless(head.status) || self.answers_head => {
                AnswerFraming::Bodiless(length)
            }
            Some(length) => AnswerFraming::Length(length),
            None if ends => AnswerFraming::Length(0),
            None => AnswerFraming::Chunked.towards(self.version),
        }
    }

    pub(super) async fn write_part(&mut self, part: &[u8], ends: bool) -> Result<(), Failure> {
        let Some(mut answer) = self.answer.take() else {
            return Err(Failure::gateway("a body before its head"));
        };
        let wrong = |error: WrongLength| Failure::server(ServerFault::Malformed, error);
        let wrapping = answer.part(part.len()).map_err(wrong)?;
        for bytes in [wrapping.before(), part, wrapping.after] {
            if !bytes.is_empty() {
                self.write(bytes).await?;
            }
        }
        if ends {
            let mut end = Vec::new();
            answer.end(&mut end).map_err(wrong)?;
            self.write(&end).await?;
            self.is_whole = true;
        }
        self.answer = Some(answer);
        Ok(())
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.wire.write_all(bytes).await.map_err(broke)
    }

    pub(super) async fn flush(&mut self) -> Result<(), Failure> {
        self.wire.flush().await.map_err(broke)
    }

    /// The time until the body's deadline.
    fn left(&self) -> Duration {
        let deadline = self.deadline.unwrap_or_else(Instant::now);
        deadline.saturating_duration_since(Instant::now())
    }

    /// Discards the rest of the body, up to its deadline or a pause. Returns for how long further bytes may be read if it has not ended.
    async fn discard_rest(&mut self) -> Duration {
        let deadline = self.deadline;
        while !self.left().is_zero() {
            let pause = self.left().min(REST_PAUSE_MAX);
            self.deadline = Some(Instant::now() + pause);
            let part = self.read().await;
            self.deadline = deadline;
            match part {
                Ok(Some(_)) => {}
                Err(failure) if failure.fault == Fault::Client(ClientFault::Late) => break,
                Ok(None) | Err(_) => return self.left(),
            }
        }
        Duration::ZERO
    }

    /// Ends the request; returns the further use of the connection.
    pub(in crate::proxy) async fn finish(mut self) -> After {
        if self.is_broken_off || !self.is_whole {
            return After::Nothing;
        }
        let left = match self.keeps_open && !self.body.is_done() {
            true => self.discard_rest().await,
            false => self.left().max(REST_PAUSE_MAX),
        };
        match self.keeps_open && self.body.is_done() {
            true => After::Request,
            false => After::Close(left),
        }
    }
}
