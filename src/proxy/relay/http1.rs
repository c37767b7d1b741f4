//! One exchange with a server over HTTP/1.1, on its own connection.
//!
//! Invariant: a connection is kept for another exchange only if [`is_between_requests`] holds; otherwise it is closed.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

use super::connections::OwnConnection;
use crate::policy::http1::answer::{
    ANSWER_HEAD_BYTES_MAX, AnswerBounds, AnswerHead, AnswerReader, is_between_requests,
};
use crate::policy::http1::body::{BodyReader, ChunkLimits};
use crate::policy::http1::fields::FieldBounds;
use crate::policy::http1::framing::AnswerFraming;
use crate::policy::http1::writer::{BodyWriter, ConnectionFate, HeadWriter, WrongLength};
use crate::proxy::client::{Head, Piece};
use crate::proxy::failure::{Failure, ServerFault};
use crate::proxy::forward::Outgoing;

/// The bytes of an answer read at a time, and the most held beyond its head.
const READ_BYTES: usize = 16 * 1024;
/// How long a connection rests after an answer that must not have a body, where a faulty server may send one all the same. It does so at
/// once, but in a packet of its own, which may wait for the acknowledgement of the head's (40 ms and a round trip).
const BODILESS_REST: Duration = Duration::from_millis(100);
/// The bounds of an answer's head.
pub(super) const BOUNDS: AnswerBounds = AnswerBounds {
    reason_bytes_max: 1024,
    fields: FieldBounds {
        bytes_max: ANSWER_HEAD_BYTES_MAX,
        count_max: 256,
    },
};

/// An exchange on a connection.
pub struct Http1 {
    connection: OwnConnection,
    /// The bytes that are not flushed yet; none after a failed write.
    outgoing: Vec<u8>,
    written: usize,
    upload: BodyWriter,
    /// Whether the end of writing was reported, or needs no report.
    is_reported: bool,
    write_error: Option<io::Error>,
    incoming: BytesMut,
    reading: Http1Reading,
    /// Whether any part of an answer has arrived.
    has_answered: bool,
    /// Whether the last read had at least half of [`READ_BYTES`].
    reads_much: bool,
}

enum Http1Reading {
    Head(AnswerReader),
    Body(AnswerEnd, BodyReader),
}

/// What an answer's head states of its end.
#[derive(Clone, Copy)]
struct AnswerEnd {
    keeps_open: bool,
    body_may_follow: bool,
}

impl Http1 {
    /// Begins with the head of a request, to be written.
    ///
    /// # Errors
    /// If it cannot be expressed in HTTP/1.
    pub(super) fn begin(
        connection: OwnConnection,
        request: &Outgoing<'_>,
    ) -> Result<Http1, Failure> {
        let target = request.head.target();
        let target = target.map_err(Failure::gateway)?;
        let method = &request.head.method;
        let mut outgoing = Vec::with_capacity(1024);
        let mut head = HeadWriter::request(&mut outgoing, method, target, request.host);
        let written = request.fields(|field| head.pass(field));
        written.map_err(Failure::gateway)?;
        let upload = head.end(request.framing, ConnectionFate::Implied);
        Ok(Http1 {
            connection,
            outgoing,
            written: 0,
            is_reported: upload.is_done(),
            upload,
            write_error: None,
            incoming: BytesMut::new(),
            reading: Http1Reading::Head(AnswerReader::new(method)),
            has_answered: false,
            reads_much: false,
        })
    }

    pub(super) fn takes_more(&self) -> bool {
        self.outgoing.is_empty() && !self.upload.is_done() && self.write_error.is_none()
    }

    /// Frames a part of the body.
    ///
    /// # Errors
    /// If the body differs from its announced length, which the client's side excludes.
    pub(super) fn push(&mut self, part: &[u8], ends: bool) -> Result<(), WrongLength> {
        if self.write_error.is_some() || (self.upload.is_done() && part.is_empty()) {
            return Ok(());
        }
        self.upload.write(part, &mut self.outgoing)?;
        if ends {
            self.upload.end(&mut self.outgoing)?;
        }
        self.is_reported = self.upload.is_done();
        Ok(())
    }

    pub(super) async fn next(&mut self) -> Result<Option<Piece>, Failure> {
        poll_fn(|context| self.poll_next(context)).await
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Piece>, Failure>> {
        match self.poll_write(context) {
            Poll::Ready(Err(error)) => {
                // The server may have answered before it disconnected.
                (self.outgoing, self.is_reported) = (Vec::new(), true);
                self.write_error = Some(error);
            }
            Poll::Ready(Ok(())) if !self.is_reported => {
                self.is_reported = true;
                return Poll::Ready(Ok(None));
            }
            Poll::Ready(Ok(())) | Poll::Pending => {}
        }
        let read = ready!(self.poll_read(context));
        Poll::Ready(read.map(Some).map_err(|failure| {
            // After a part of an answer, what is wrong with that is the cause.
            let write_error = self.write_error.take().filter(|_| !self.has_answered);
            write_error.map_or(failure, |error| Failure::broken(true, error))
        }))
    }

    fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.outgoing.is_empty() {
            return Poll::Ready(Ok(()));
        }
        loop {
            let rest = self.outgoing.get(self.written..).unwrap_or_default();
            if rest.is_empty() {
                break;
            }
            match ready!(Pin::new(&mut self.connection.stream).poll_write(context, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.written += written,
            }
        }
        ready!(Pin::new(&mut self.connection.stream).poll_flush(context))?;
        (self.outgoing, self.written) = (Vec::new(), 0);
        Poll::Ready(Ok(()))
    }

    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<Result<Piece, Failure>> {
        loop {
            if let Some(piece) = self.read()? {
                return Poll::Ready(Ok(piece));
            }
            if self.is_read() {
                return Poll::Pending;
            }
            match ready!(self.poll_receive(context)) {
                Ok(0) => return Poll::Ready(self.closed()),
                Ok(_) => self.has_answered = true,
                Err(error) => return Poll::Ready(Err(Failure::broken(!self.has_answered, error))),
            }
        }
    }

    /// Reads bytes of the answer: returns their number, 0 at the end. No buffer is held until they arrive, and then one that is hardly larger
    /// than they are: a part of an answer keeps the whole buffer that it is in. If the last read was a large one, they are read into a
    /// buffer, which is that of the parts before if those have been written.
    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if !self.reads_much {
            if self.incoming.is_empty() {
                // It may still refer to the buffer of the parts before.
                self.incoming = BytesMut::new();
            }
            let mut space = [MaybeUninit::<u8>::uninit(); READ_BYTES];
            let mut space = ReadBuf::uninit(&mut space);
            ready!(Pin::new(&mut self.connection.stream).poll_read(context, &mut space))?;
            self.incoming.extend_from_slice(space.filled());
            self.reads_much = space.filled().len() >= READ_BYTES / 2;
            return Poll::Ready(Ok(space.filled().len()));
        }
        self.incoming.reserve(READ_BYTES);
        let read = pin!(self.connection.stream.read_buf(&mut self.incoming)).poll(context);
        if self.incoming.is_empty() {
            self.incoming = BytesMut::new();
        }
        let bytes = ready!(read)?;
        self.reads_much = bytes >= READ_BYTES / 2;
        if !self.reads_much {
            self.incoming = BytesMut::from(&*self.incoming);
        }
        Poll::Ready(Ok(bytes))
    }

    /// The next piece in the bytes received so far, if complete.
    fn read(&mut self) -> Result<Option<Piece>, Failure> {
        match &mut self.reading {
            Http1Reading::Head(reader) => {
                let read = reader.take(&mut self.incoming, &BOUNDS);
                let Some(head) = read.map_err(malformed)? else {
                    return Ok(None);
                };
                if head.is_interim() {
                    return Ok(Some(Piece::Head(Box::new(passed_on(head)), false)));
                }
                let body = head.body(&ChunkLimits::STANDARD);
                let ends = body.is_done();
                let end = AnswerEnd {
                    keeps_open: head.keeps_open,
                    body_may_follow: head.body_may_follow,
                };
                self.reading = Http1Reading::Body(end, body);
                Ok(Some(Piece::Head(Box::new(passed_on(head)), ends)))
            }
            Http1Reading::Body(_, body) => {
                if body.is_done() || self.incoming.is_empty() {
                    return Ok(None);
                }
                let data = body.read(&self.incoming).map_err(malformed)?;
                let read = self.incoming.split_to(data.end);
                let part = read.freeze().slice(data.start..);
                let ends = body.is_done();
                Ok((ends || !part.is_empty()).then_some(Piece::Part(part, ends)))
            }
        }
    }

    /// The piece or failure when the server has closed the connection.
    fn closed(&mut self) -> Result<Piece, Failure> {
        // A failed write takes the connection's error: later reads return an end. A broken pipe means that the server had ended its side.
        let is_ended = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
        if let Http1Reading::Body(_, body) = &mut self.reading
            && self.write_error.as_ref().is_none_or(is_ended)
            && body.close().is_ok()
        {
            return Ok(Piece::Part(Bytes::new(), true));
        }
        let cause = "closed the connection before the end of its answer";
        Err(Failure::broken(!self.has_answered, cause))
    }

    fn is_read(&self) -> bool {
        matches!(&self.reading, Http1Reading::Body(_, body) if body.is_done())
    }

    /// The connection, if its state is proven, and how long it must rest first.
    pub(super) fn into_reusable(self) -> Option<(OwnConnection, Option<Duration>)> {
        let Http1Reading::Body(end, body) = &self.reading else {
            return None;
        };
        let is_sent = self.outgoing.is_empty() && self.write_error.is_none();
        let is_between = is_between_requests(&self.upload, end.keeps_open, body, &self.incoming);
        let rest = end.body_may_follow.then_some(BODILESS_REST);
        (is_sent && is_between).then_some((self.connection, rest))
    }
}

pub(super) fn malformed(cause: impl fmt::Display) -> Failure {
    Failure::server(ServerFault::Malformed, cause)
}

/// The head of an answer without the parts that concern its connection.
fn passed_on(head: AnswerHead) -> Head {
    Head {
        status: head.status,
        length: match head.framing {
            AnswerFraming::Bodiless(announced) => announced,
            AnswerFraming::Length(bytes) => Some(bytes),
            AnswerFraming::Chunked | AnswerFraming::ByClose => None,
        },
        fields: head.fields,
    }
}
