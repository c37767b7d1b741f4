//! One request over HTTP/2, on a stream of the `h2` library.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::poll_immediate;
use h2::server::SendResponse;
use h2::{Reason, SendStream};
use http::header::{CONTENT_LENGTH, DATE};
use http::{HeaderName, Response, StatusCode};
use parking_lot::Mutex;
use pingora::protocols::http::date::get_cached_date;
use tokio::time::Instant;

use super::piece::Head;
use crate::policy::rate_limit::{RATE_LIMIT, X_RATE_LIMIT_REMAINING};
use crate::proxy::connection::allowance::{Obstacle, Turn};
use crate::proxy::connection::wire::REST_PAUSE_MAX;
use crate::proxy::failure::{ClientFault, Failure};
use crate::proxy::forward::X_REQUEST_ID;
use crate::proxy::received_body::ReceivedBody;
use crate::proxy::sent_part::{SentPart, SentParts};

/// Fields whose values hardly any two answers share. The library compresses fields with a table of earlier ones (RFC 7541 section
/// 2.3.2), which it searches value by value. The first answer of a connection enters their names; later ones only refer to them,
/// being marked as sensitive (section 6.2.3). `Date`, whose name needs no entry, is always marked: it would add one each second, all of
/// which are searched for each answer, and which displace the names.
const UNREPEATED: [HeaderName; 3] = [X_REQUEST_ID, X_RATE_LIMIT_REMAINING, RATE_LIMIT];

/// A request's body and its answer.
pub struct Http2Side {
    body: Arc<Mutex<ReceivedBody>>,
    has_read: bool,
    is_ended: bool,
    deadline: Instant,
    respond: SendResponse<SentPart>,
    /// The writer of the answer's body, once its head is sent.
    answer: Option<SendStream<SentPart>>,
    sent: SentParts,
    /// Whether the answer's last frame is sent.
    is_whole: bool,
    write_timeout: Duration,
    read_bytes_min: u64,
    turn: Arc<Turn>,
}

impl Http2Side {
    /// A request whose body must arrive within `read_timeout` from now. A client that waits for `write_timeout` to read
    /// `read_bytes_min` of an answer is given up.
    pub fn new(
        body: Arc<Mutex<ReceivedBody>>,
        respond: SendResponse<SentPart>,
        turn: Arc<Turn>,
        [read_timeout, write_timeout]: [Duration; 2],
        read_bytes_min: u64,
    ) -> Http2Side {
        Http2Side {
            body,
            has_read: false,
            is_ended: false,
            deadline: Instant::now() + read_timeout,
            respond,
            answer: None,
            sent: SentParts::default(),
            is_whole: false,
            write_timeout,
            read_bytes_min,
            turn,
        }
    }

    /// The request's turn among those of its connection.
    pub(super) fn turn(&self) -> &Arc<Turn> {
        &self.turn
    }

    pub(super) fn is_body_done(&self) -> bool {
        self.is_ended || self.body.lock().is_over()
    }

    pub(super) fn is_body_empty(&self) -> bool {
        !self.has_read && self.is_body_done()
    }

    pub(super) fn note_unasked(&mut self, time: Duration) {
        self.deadline += time;
    }

    pub(super) async fn read(&mut self) -> Result<Option<Bytes>, Failure> {
        let next = poll_fn(|context| self.body.lock().poll_next(context));
        let Ok(part) = tokio::time::timeout_at(self.deadline, next).await else {
            let cause = "the request's body did not arrive within limits.request_read";
            return Err(Failure::client(ClientFault::Late, cause));
        };
        let part = part.transpose().map_err(ended)?;
        // Trailers may follow, which are not forwarded.
        self.is_ended |= part.is_none();
        self.has_read |= part.as_ref().is_some_and(|part| !part.is_empty());
        Ok(part)
    }

    /// Waits until the stream is reset, by the client or because of what it sent.
    pub(super) async fn gone(&mut self) -> Failure {
        let (answer, respond) = (&mut self.answer, &mut self.respond);
        let reset = poll_fn(|context| match answer {
            Some(answer) => answer.poll_reset(context),
            None => respond.poll_reset(context),
        });
        let reason = match reset.await {
            Ok(reason) => reason,
            Err(error) => return ended(error),
        };
        // The reason does not show which side ended the stream; the body's error does.
        let end = poll_fn(|context| self.body.lock().poll_end(context));
        if let Some(Err(error)) = poll_immediate(end).await {
            return ended(error);
        }
        let cause = format!("the stream was reset: {reason}");
        Failure::client(ClientFault::Gone, cause)
    }

    pub(super) async fn ask_for_body(&mut self) -> Result<(), Failure> {
        // The library would send the head on a stream that was reset, too.
        let reset = poll_fn(|context| self.respond.poll_reset(context));
        if let Some(reset) = poll_immediate(reset).await {
            return Err(ended(reset.map_or_else(|error| error, h2::Error::from)));
        }
        let mut interim = Response::new(());
        *interim.status_mut() = StatusCode::CONTINUE;
        self.respond.send_informational(interim).map_err(ended)
    }

    pub(super) fn write_head(&mut self, head: Head, ends: bool) -> Result<(), Failure> {
        // The library does not limit how many interim heads wait for a client that does not read.
        if self.answer.is_some() || head.status.is_informational() {
            return Ok(());
        }
        let mut answer = Response::new(());
        *answer.status_mut() = head.status;
        let fields = answer.headers_mut();
        *fields = head.fields.into_map();
        let mut date = get_cached_date();
        date.set_sensitive(true);
        fields.insert(DATE, date);
        let is_first = self.respond.stream_id().as_u32() == 1;
        for name in &UNREPEATED {
            if let Some(value) = fields.get_mut(name) {
                value.set_sensitive(!is_first);
            }
        }
        if let Some(bytes) = head.length {
            fields.insert(CONTENT_LENGTH, bytes.into());
        }
        let answer = self.respond.send_response(answer, ends);
        self.answer = Some(answer.map_err(ended)?);
        self.turn.note_judged();
        self.is_whole = ends;
        Ok(())
    }

    /// Discards the rest of the body after a complete answer, outside of the request's turn, up to its deadline or a pause. The library
    /// would reset the stream, which is no error (RFC 9113 section 8.1), but clients exist that discard the answer then.
    pub(in crate::proxy) async fn finish(self) {
        let Http2Side {
            body,
            deadline,
            is_whole,
            turn,
            ..
        } = self;
        drop(turn);
        if !is_whole || body.lock().is_over() {
            return;
        }
        while Instant::now() < deadline {
            let next = poll_fn(|context| body.lock().poll_next(context));
            let until = deadline.min(Instant::now() + REST_PAUSE_MAX);
            let Ok(Some(Ok(_))) = tokio::time::timeout_at(until, next).await else {
                return;
            };
        }
    }

    pub(super) async fn write_part(&mut self, mut part: Bytes, ends: bool) -> Result<(), Failure> {
        let Some(answer) = &mut self.answer else {
            return Err(Failure::gateway("a body before its head"));
        };
        let (mut judged_at, mut bytes_read) = (Instant::now() + self.write_timeout, 0);
        while !part.is_empty() {
            answer.reserve_capacity(part.len());
            if self.sent.has_small() || answer.capacity() == 0 {
                let asked = Instant::now();
                let room = wait_for_room(answer, &mut self.sent);
                let waited = tokio::time::timeout_at(judged_at, room).await;
                self.turn.note_paused(Obstacle::Client, asked.elapsed());
                match waited {
                    // A client that ends the stream now does not read, however it ends it.
                    Ok(waited) => {
                        waited.map_err(|error| Failure::client(ClientFault::Gone, error))?;
                    }
                    Err(_) if bytes_read < self.read_bytes_min => {
                        let cause = "read the answer more slowly than limits.response_rate";
                        return Err(Failure::client(ClientFault::Slow, cause));
                    }
                    Err(_) => {
                        (judged_at, bytes_read) = (Instant::now() + self.write_timeout, 0);
                        continue;
                    }
                }
            }
            let piece = part.split_to(answer.capacity().min(part.len()));
            bytes_read += piece.len() as u64;
            let is_last = ends && part.is_empty();
            let piece = self.sent.next(piece, is_last);
            answer.send_data(piece, is_last).map_err(ended)?;
            if is_last {
                self.is_whole = true;
                return Ok(());
            }
        }
        if ends {
            let end = self.sent.next(Bytes::new(), true);
            answer.send_data(end, true).map_err(ended)?;
        }
        self.is_whole = ends;
        Ok(())
    }
}

/// Waits until the client reads, so that more can be sent: until the last part has left the library, and the windows allow some.
async fn wait_for_room(
    answer: &mut SendStream<SentPart>,
    sent: &mut SentParts,
) -> Result<(), h2::Error> {
    poll_fn(|context| sent.poll_left(context)).await;
    while answer.capacity() == 0 {
        match poll_fn(|context| answer.poll_capacity(context)).await {
            Some(Ok(_)) => {}
            Some(Err(error)) => return Err(error),
            None => {
                let reset = poll_immediate(poll_fn(|context| answer.poll_reset(context))).await;
                return Err(reset.unwrap_or(Ok(Reason::CANCEL))?.into());
            }
        }
    }
    Ok(())
}

/// The failure for a stream that has ended. The library resets it with PROTOCOL_ERROR if the request violates the protocol: its
/// body differs in length from its `content-length`, or its trailers do not end the stream.
fn ended(error: h2::Error) -> Failure {
    let is_librarys = error.is_reset() && error.is_library();
    let fault = match error.reason() {
        Some(Reason::PROTOCOL_ERROR) if is_librarys => ClientFault::Malformed,
        _ => ClientFault::Gone,
    };
    // The library takes what is sent on a stream that has ended meanwhile for the sender's mistake.
    if !error.is_reset() && !error.is_go_away() && !error.is_io() {
        return Failure::client(fault, "closed the connection before the end of its answer");
    }
    Failure::client(fault, error)
}
