//! One exchange with a server over HTTP/2, on a stream of a connection that is shared.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::poll_immediate;
use h2::client::ResponseFuture;
use h2::{Reason, SendStream};
use http::header::CONTENT_LENGTH;
use http::uri::{Scheme, Uri};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version};
use parking_lot::Mutex;

use super::connections::{StreamPlace, described};
use crate::policy::http1;
use crate::policy::http1::framing::{Framing, is_bodiless};
use crate::proxy::client::{Head, Piece};
use crate::proxy::failure::{Failure, Fault, ServerFault};
use crate::proxy::forward::Outgoing;
use crate::proxy::received_body::ReceivedBody;
use crate::proxy::sent_part::{SentPart, SentParts};

/// How long the end of a stream may take after a complete answer.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// The interim answers that are passed on in one exchange; further ones are dropped. They are not subject to flow control (RFC 9113
/// section 5.2): while a client does not read, the library would collect them without a limit. A socket accepts this much unread.
const INTERIM_PASSED_BYTES_MAX: usize = 16 * 1024;
/// The interim answers of one exchange, above those of any server that means them: a server that sends more is not waited for.
const INTERIM_BYTES_MAX: usize = 128 * 1024;
/// What a field counts beyond its bytes, and a head beyond its fields (RFC 9113 section 6.5.2).
const FIELD_OVERHEAD_BYTES: usize = 32;

/// An exchange on a stream.
pub struct Http2 {
    upload: Option<SendStream<SentPart>>,
    sent: SentParts,
    outgoing: VecDeque<Bytes>,
    /// Whether the last part is written or waits to be written.
    ends: bool,
    /// Whether writing was reported, or needs no report.
    is_reported: bool,
    write_error: Option<Failure>,
    reading: Http2Reading,
    /// The remaining length of the answer's body, if its head announced one.
    left: Option<u64>,
    answers_head: bool,
    /// What the interim answers so far have.
    interim_bytes: usize,
    /// Free when the stream is no longer referred to.
    place: StreamPlace,
}

enum Http2Reading {
    Head(ResponseFuture),
    Body(Arc<Mutex<ReceivedBody>>),
    Over,
}

impl Http2 {
    /// Sends the head of a request.
    ///
    /// # Errors
    /// If the target cannot be expressed in HTTP/2, or the connection has ended.
    pub fn begin(
        mut place: StreamPlace,
        request: &Outgoing<'_>,
        is_tls: bool,
    ) -> Result<Http2, Failure> {
        let ends = request.framing.is_empty();
        let answers_head = request.head.method == Method::HEAD;
        let sent = place.send(head(request, is_tls)?, ends);
        // The connection has ended meanwhile.
        let unprocessed = |error| Failure::server(ServerFault::Unprocessed, described(&error));
        let sent = sent.map_err(unprocessed);
        let (response, upload) = sent?;
        Ok(Http2 {
            upload: Some(upload).filter(|_| !ends),
            sent: SentParts::default(),
            outgoing: VecDeque::new(),
            ends,
            is_reported: true,
            write_error: None,
            reading: Http2Reading::Head(response),
            left: None,
            answers_head,
            interim_bytes: 0,
            place,
        })
    }

    pub(super) fn takes_more(&self) -> bool {
        self.outgoing.is_empty() && !self.ends && self.write_error.is_none()
    }

    pub(super) fn push(&mut self, part: Bytes, ends: bool) {
        if self.ends || self.write_error.is_some() {
            return;
        }
        if !part.is_empty() || ends {
            self.outgoing.push_back(part);
            self.is_reported = ends;
        }
        self.ends = ends;
    }

    /// The body of the answer, while it arrives.
    pub(super) fn body(&self) -> Option<&Arc<Mutex<ReceivedBody>>> {
        match &self.reading {
            Http2Reading::Body(body) => Some(body),
            Http2Reading::Head(_) | Http2Reading::Over => None,
        }
    }

    pub(super) async fn next(&mut self) -> Result<Option<Piece>, Failure> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// Whether the server began its answer before it had read the request's body.
    pub(super) fn left_body_unread(&self) -> bool {
        let has_answered = !matches!(self.reading, Http2Reading::Head(_));
        has_answered && (!self.ends || !self.outgoing.is_empty())
    }

    /// Excludes the connection from further exchanges.
    pub(super) fn distrust(&mut self) {
        self.place.distrust();
    }

    /// Waits for the end of the stream after a complete answer.
    async fn end(mut self) {
        while !self.is_over() && self.next().await.is_ok() {}
    }

    /// Ends the exchange after a complete answer.
    pub(super) async fn finish(mut self: Box<Self>) {
        if self.left_body_unread() {
            // Some servers read nothing more of the connection where the rest of a request's body is unread (hypercorn 0.18).
            self.distrust();
        }
        while !self.is_over() {
            match poll_immediate(self.next()).await {
                Some(Ok(_)) => {}
                Some(Err(_)) => return,
                None => {
                    // A reset of the stream at its end might be taken for an attack.
                    tokio::spawn(tokio::time::timeout(END_TIMEOUT, self.end()));
                    return;
                }
            }
        }
    }

    fn is_over(&self) -> bool {
        matches!(self.reading, Http2Reading::Over)
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Piece>, Failure>> {
        if let Poll::Ready(Err(error)) = self.poll_write(context) {
            // The server may have answered before it disconnected.
            self.outgoing.clear();
            self.is_reported = true;
            self.write_error = Some(error);
        }
        if self.outgoing.is_empty() && !self.is_reported {
            self.is_reported = true;
            return Poll::Ready(Ok(None));
        }
        let read = ready!(self.poll_read(context));
        Poll::Ready(read.map(Some).map_err(|failure| match failure.fault {
            Fault::Server(ServerFault::Unprocessed) => failure,
            _ => self.write_error.take().unwrap_or(failure),
        }))
    }

    fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        let Some(upload) = &mut self.upload else {
            return Poll::Ready(Ok(()));
        };
        while let Some(part) = self.outgoing.front_mut() {
            let mut bytes = 0;
            if !part.is_empty() {
                ready!(self.sent.poll_left(context));
                upload.reserve_capacity(part.len());
                while upload.capacity() == 0 {
                    match ready!(upload.poll_capacity(context)) {
                        Some(Ok(_)) => {}
                        Some(Err(error)) => {
                            return Poll::Ready(Err(ended(false, &error, &self.place)));
                        }
                        None => {
                            let cause = "the stream accepts no more of the request's body";
                            return Poll::Ready(Err(Failure::broken(false, cause)));
                        }
                    }
                }
                bytes = upload.capacity().min(part.len());
            }
            let piece = part.split_to(bytes);
            let is_written = part.is_empty();
            if is_written {
                self.outgoing.pop_front();
            }
            let ends = self.ends && self.outgoing.is_empty();
            let sent = upload.send_data(self.sent.next(piece, ends), ends);
            sent.map_err(|error| ended(false, &error, &self.place))?;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<Result<Piece, Failure>> {
        let (piece, reading) = match &mut self.reading {
            Http2Reading::Head(response) => {
                while let Some(answer) = ready!(response.poll_informational(context)) {
                    let answer = answer.map_err(|error| ended(true, &error, &self.place))?;
                    if let Some(piece) = interim(answer, &mut self.interim_bytes)? {
                        return Poll::Ready(Ok(piece));
                    }
                }
                let answer = ready!(Pin::new(response).poll(context));
                let answer = answer.map_err(|error| ended(true, &error, &self.place))?;
                if self.upload.is_none() {
                    self.place.share();
                }
                let (parts, body) = answer.into_parts();
                let is_over = body.is_end_stream();
                let length = length_of(&parts.headers)?;
                self.left = length;
                let head = Head {
                    status: parts.status,
                    length: length.filter(|_| parts.status != StatusCode::NO_CONTENT),
                    fields: parts.headers.into(),
                };
                // The end of the stream may arrive after that of the body, and a body where none may be is not read.
                let has_none = self.answers_head || is_bodiless(parts.status);
                let ends = is_over || self.left == Some(0) || has_none;
                let reading = match is_over {
                    true => Http2Reading::Over,
                    false => Http2Reading::Body(Arc::new(Mutex::new(ReceivedBody::new(body)))),
                };
                (Piece::Head(Box::new(head), ends), reading)
            }
            Http2Reading::Body(body) => {
                let mut body = body.lock();
                match ready!(body.poll_next(context)) {
                    Some(part) => {
                        let part = part.map_err(|error| ended(false, &error, &self.place))?;
                        if !body.is_over() {
                            // The end of the stream may arrive after that of the body.
                            self.left =
                                self.left.map(|left| left.saturating_sub(part.len() as u64));
                            return Poll::Ready(Ok(Piece::Part(part, self.left == Some(0))));
                        }
                        (Piece::Part(part, true), Http2Reading::Over)
                    }
                    // The stream has ended, perhaps with trailers, which are not forwarded.
                    None => (Piece::Part(Bytes::new(), true), Http2Reading::Over),
                }
            }
            Http2Reading::Over => return Poll::Pending,
        };
        self.reading = reading;
        Poll::Ready(Ok(piece))
    }
}

/// The head of an interim answer, whose size is added to `interim_bytes`; `None` if it is not passed on.
fn interim(answer: Response<()>, interim_bytes: &mut usize) -> Result<Option<Piece>, Failure> {
    let malformed = |cause| Err(Failure::server(ServerFault::Malformed, cause));
    let (parts, ()) = answer.into_parts();
    if parts.status == StatusCode::SWITCHING_PROTOCOLS {
        // HTTP/2 does not have it (RFC 9113 section 8.6); over HTTP/1 the client would leave HTTP.
        return malformed("switched the protocol unasked");
    }
    *interim_bytes += list_bytes(&parts.headers);
    if *interim_bytes > INTERIM_BYTES_MAX {
        return malformed("sent too many interim answers");
    }
    let head = Head {
        status: parts.status,
        length: None,
        fields: parts.headers.into(),
    };
    let is_passed_on = *interim_bytes <= INTERIM_PASSED_BYTES_MAX;
    Ok(is_passed_on.then(|| Piece::Head(Box::new(head), false)))
}

/// The size of a head.
fn list_bytes(fields: &HeaderMap) -> usize {
    let bytes = |(name, value): (&HeaderName, &HeaderValue)| {
        name.as_str().len() + value.len() + FIELD_OVERHEAD_BYTES
    };
    FIELD_OVERHEAD_BYTES + fields.iter().map(bytes).sum::<usize>()
}

/// The length that the head of an answer announces.
fn length_of(fields: &HeaderMap) -> Result<Option<u64>, Failure> {
    let mut lengths = fields.get_all(CONTENT_LENGTH).iter().peekable();
    if lengths.peek().is_none() {
        return Ok(None);
    }
    let agreed = http1::agreed_length(lengths.map(HeaderValue::as_bytes));
    let invalid = || {
        Failure::server(
            ServerFault::Malformed,
            "its Content-Length is not one number",
        )
    };
    agreed.map(Some).ok_or_else(invalid)
}

/// A target with its host where HTTP/2 requires it (RFC 9113 section 8.3.1).
pub(super) fn uri(is_tls: bool, host: &HeaderValue, target: &[u8]) -> Result<Uri, Failure> {
    let uri = Uri::builder()
        .scheme(if is_tls { Scheme::HTTPS } else { Scheme::HTTP })
        .authority(host.as_bytes())
        .path_and_query(target)
        .build();
    uri.map_err(Failure::gateway)
}

/// The head of a request.
fn head(outgoing: &Outgoing<'_>, is_tls: bool) -> Result<Request<()>, Failure> {
    let (mut parts, ()) = Request::new(()).into_parts();
    parts.method = outgoing.head.method.clone();
    parts.version = Version::HTTP_2;
    parts.uri = uri(is_tls, outgoing.host, outgoing.head.raw_target())?;
    let fields = outgoing.fields(|field| {
        // A field that was read has a valid name and value.
        if let (Ok(name), Ok(value)) = (
            HeaderName::from_bytes(field.name()),
            HeaderValue::from_bytes(field.value()),
        ) {
            parts.headers.append(name, value);
        }
    });
    fields.map_err(Failure::gateway)?;
    if let Framing::Length(bytes) = outgoing.framing {
        parts.headers.insert(CONTENT_LENGTH, bytes.into());
    }
    Ok(Request::from_parts(parts, ()))
}

/// The failure for the stream of a place that has ended, with no part of an answer before it if `unanswered`.
pub(super) fn ended(unanswered: bool, error: &h2::Error, place: &StreamPlace) -> Failure {
    let reason = error.reason();
    // Also for a head that it cannot read, of any stream, although RFC 9113 section 8.1.1 has an error of that stream.
    let ended_by_library = unanswered && error.is_go_away() && error.is_library();
    let refused = error.is_reset() && reason == Some(Reason::REFUSED_STREAM);
    // On a server's GOAWAY, the library ends only those streams that it excludes.
    let fault = if error.is_remote() && reason == Some(Reason::HTTP_1_1_REQUIRED) {
        ServerFault::WantsHttp1 {
            is_unprocessed: error.is_go_away(),
        }
    } else if error.is_remote() && (error.is_go_away() || refused) {
        ServerFault::Unprocessed
    } else if error.is_library() && error.is_reset() {
        // The library ends a stream whose answer is malformed, or whose head is too large.
        ServerFault::Malformed
    } else if ended_by_library
        && !place.speaks_http2()
        // The first bytes of an answer over HTTP/1.1 are the length of a frame that is too large.
        && matches!(reason, Some(Reason::PROTOCOL_ERROR | Reason::FRAME_SIZE_ERROR))
    {
        ServerFault::InvalidHttp2
    } else {
        let is_of_connection = ended_by_library || error.get_io().is_some_and(is_of_the_connection);
        ServerFault::Broken {
            unanswered: unanswered && is_of_connection,
            by_reset: error.is_remote(),
        }
    };
    Failure::server(fault, described(error))
}

/// Whether an error means that the connection had ended, over TLS also without `close_notify`, and is no other error of TLS.
fn is_of_the_connection(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionReset, TimedOut, UnexpectedEof};
    error.raw_os_error().is_some()
        || matches!(
            error.kind(),
            ConnectionReset | TimedOut | BrokenPipe | UnexpectedEof
        )
}
