//! One exchange with a server over HTTP/2, on a stream of pingora's client.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::{Reason, SendStream};
use http::header::CONTENT_LENGTH;
use http::uri::{Scheme, Uri};
use http::{HeaderName, HeaderValue, Method, Request, StatusCode, Version};
use pingora::Error;
use pingora::http::RequestHeader;

use super::connections::Lease;
use super::event::LinkEvent;
use crate::policy::http1;
use crate::policy::http1::framing::Framing;
use crate::proxy::client::Head;
use crate::proxy::failure::{Failure, Fault, ServerFault, look_at};
use crate::proxy::forward::Outgoing;

/// How long the end of a stream may take after a complete answer.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// An exchange on a stream.
pub struct Http2 {
    lease: Box<Lease>,
    upload: Option<SendStream<Bytes>>,
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
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Http2Reading {
    Head,
    Body,
    Trailers,
    Over,
}

impl Http2 {
    /// Sends the head of a request.
    ///
    /// # Errors
    /// If the target cannot be expressed in HTTP/2, or the connection has ended.
    pub fn begin(
        mut lease: Box<Lease>,
        request: &Outgoing<'_>,
        is_tls: bool,
    ) -> Result<Http2, Failure> {
        let ends = request.framing.is_empty();
        let answers_head = request.head.method == Method::HEAD;
        let session = lease.session.as_mut().ok_or_else(over)?;
        let sent = session.write_request_header(Box::new(head(request, is_tls)?), ends);
        sent.map_err(|error| failed(true, error))?;
        let upload = session.take_request_body_writer().filter(|_| !ends);
        Ok(Http2 {
            lease,
            upload,
            outgoing: VecDeque::new(),
            ends,
            is_reported: true,
            write_error: None,
            reading: Http2Reading::Head,
            left: None,
            answers_head,
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

    pub(super) async fn next(&mut self) -> Result<LinkEvent, Failure> {
        let event = poll_fn(|context| self.poll_next(context)).await?;
        if let Some(event) = event {
            return Ok(event);
        }
        // Trailers are not forwarded, but they end the stream.
        let session = self.lease.session.as_mut().ok_or_else(over)?;
        session
            .read_trailers()
            .await
            .map_err(|error| failed(false, error))?;
        self.reading = Http2Reading::Over;
        Ok(LinkEvent::Part(Bytes::new(), true))
    }

    /// Excludes the connection from further exchanges.
    pub(super) fn distrust(&mut self) {
        self.lease.distrust();
    }

    /// Waits for the end of the stream after a complete answer.
    async fn end(mut self) {
        while self.reading != Http2Reading::Over && self.next().await.is_ok() {}
    }

    /// Ends the exchange after a complete answer.
    pub(super) async fn finish(mut self: Box<Self>) {
        while self.reading != Http2Reading::Over {
            match look_at(self.next()).await {
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(_)) => return,
                Poll::Pending => {
                    // A reset of the stream at its end might be taken for an attack.
                    tokio::spawn(tokio::time::timeout(END_TIMEOUT, self.end()));
                    return;
                }
            }
        }
    }

    /// The next event, or `None` for the trailers.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<LinkEvent>, Failure>> {
        if let Poll::Ready(Err(error)) = self.poll_write(context) {
            // The server may have answered before it disconnected.
            self.outgoing.clear();
            self.is_reported = true;
            self.write_error = Some(error);
        }
        if self.outgoing.is_empty() && !self.is_reported {
            self.is_reported = true;
            return Poll::Ready(Ok(Some(LinkEvent::Written)));
        }
        let read = ready!(self.poll_read(context));
        Poll::Ready(read.map_err(|failure| match failure.fault {
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
                upload.reserve_capacity(part.len());
                while upload.capacity() == 0 {
                    match ready!(upload.poll_capacity(context)) {
                        Some(Ok(_)) => {}
                        Some(Err(error)) => return Poll::Ready(Err(ended(false, &error))),
                        None => {
                            let cause = "the stream accepts no more of the request's body";
                            return Poll::Ready(Err(Failure::broken(false, cause)));
                        }
                    }
                }
                bytes = upload.capacity().min(part.len());
            }
            let sent = part.split_to(bytes);
            let is_written = part.is_empty();
            if is_written {
                self.outgoing.pop_front();
            }
            let ends = self.ends && self.outgoing.is_empty();
            let sent = upload.send_data(sent, ends);
            sent.map_err(|error| ended(false, &error))?;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<LinkEvent>, Failure>> {
        let reading = self.reading;
        let session = self.lease.session.as_mut().ok_or_else(over)?;
        let (event, reading) = match reading {
            Http2Reading::Head => {
                let head = ready!(session.poll_read_response_header(context));
                head.map_err(|error| ended(true, &error))?;
                let ends = session
                    .check_response_end_or_error()
                    .map_err(|error| failed(false, error))?;
                let header = session.response_header().ok_or_else(over)?;
                let lengths = header.headers.get_all(CONTENT_LENGTH).iter();
                let length = http1::agreed_length(lengths.map(HeaderValue::as_bytes));
                let head = Head {
                    status: header.status,
                    length: length.filter(|_| header.status != StatusCode::NO_CONTENT),
                    fields: header.headers.clone().into(),
                };
                self.left = length.filter(|_| !self.answers_head);
                let reading = if ends {
                    Http2Reading::Over
                } else {
                    Http2Reading::Body
                };
                // The end of the stream may arrive after that of the body.
                let ends = ends || self.left == Some(0) || self.answers_head;
                (Some(LinkEvent::Head(Box::new(head), ends)), reading)
            }
            Http2Reading::Body => match ready!(session.poll_read_response_body(context)) {
                Some(part) => {
                    let part = part.map_err(|error| ended(false, &error))?;
                    let checked = match session.response_finished() {
                        true => session.check_response_end_or_error(),
                        false => Ok(false),
                    };
                    if checked.map_err(|error| failed(false, error))? {
                        (Some(LinkEvent::Part(part, true)), Http2Reading::Over)
                    } else {
                        // The end of the stream may arrive after that of the body.
                        self.left = self.left.map(|left| left.saturating_sub(part.len() as u64));
                        (
                            Some(LinkEvent::Part(part, self.left == Some(0))),
                            Http2Reading::Body,
                        )
                    }
                }
                None if session.response_finished() => (
                    Some(LinkEvent::Part(Bytes::new(), true)),
                    Http2Reading::Over,
                ),
                None => (None, Http2Reading::Trailers),
            },
            Http2Reading::Trailers => (None, Http2Reading::Trailers),
            Http2Reading::Over => return Poll::Pending,
        };
        self.reading = reading;
        Poll::Ready(Ok(event))
    }
}

fn over() -> Failure {
    Failure::broken(false, "the stream has ended")
}

/// The head of a request with its host where HTTP/2 requires it (RFC 9113 section 8.3.1).
fn head(outgoing: &Outgoing<'_>, is_tls: bool) -> Result<RequestHeader, Failure> {
    let (mut parts, ()) = Request::new(()).into_parts();
    parts.method = outgoing.head.method.clone();
    parts.version = Version::HTTP_2;
    let uri = Uri::builder()
        .scheme(if is_tls { Scheme::HTTPS } else { Scheme::HTTP })
        .authority(outgoing.host.as_bytes())
        .path_and_query(outgoing.head.raw_target())
        .build();
    parts.uri = uri.map_err(Failure::gateway)?;
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
    Ok(parts.into())
}

/// The failure for an error of the library's wrapper.
fn failed(unanswered: bool, error: Box<Error>) -> Failure {
    match error.root_cause().downcast_ref() {
        Some(cause) => ended(unanswered, cause),
        None => Failure::broken(unanswered, error),
    }
}

/// The failure for a stream that has ended, with no part of an answer before it if `unanswered`.
fn ended(unanswered: bool, error: &h2::Error) -> Failure {
    let reason = error.reason();
    let refused = error.is_reset() && reason == Some(Reason::REFUSED_STREAM);
    // On a server's GOAWAY, the library ends only those streams that it excludes.
    let fault = if error.is_remote() && (error.is_go_away() || refused) {
        ServerFault::Unprocessed
    } else if error.is_remote() && reason == Some(Reason::HTTP_1_1_REQUIRED) {
        ServerFault::WantsHttp1
    } else if unanswered
        && error.is_go_away()
        && error.is_library()
        && reason == Some(Reason::PROTOCOL_ERROR)
    {
        ServerFault::InvalidHttp2
    } else {
        ServerFault::Broken {
            unanswered: unanswered && error.get_io().is_some_and(is_of_the_connection),
            by_reset: error.is_remote(),
        }
    };
    Failure::server(fault, error)
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
