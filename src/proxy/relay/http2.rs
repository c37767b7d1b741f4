//! One exchange with a server over HTTP/2, on a stream of pingora's client.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::SendStream;
use http::header::{CONTENT_LENGTH, HOST};
use http::uri::{Scheme, Uri};
use http::{HeaderValue, Method, Version};
use pingora::http::RequestHeader;
use pingora::{Error, ErrorType, OrErr, RetryType};

use super::connections::Lease;
use super::link::Event;
use crate::policy::http1;
use crate::policy::http1::framing::Framing;
use crate::proxy::failure::{is_left_out, look_at};

/// How long the end of a stream may take to come behind a whole answer.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// An exchange on a stream.
pub struct Http2 {
    lease: Box<Lease>,
    upload: Option<SendStream<Bytes>>,
    outgoing: VecDeque<Bytes>,
    /// Whether the last part is among those to be written, or written.
    ends: bool,
    /// Whether writing was reported, or needs no report.
    is_reported: bool,
    write_error: Option<Box<Error>>,
    reading: Reading,
    /// What is left of the answer's body, if its head has said it.
    left: Option<u64>,
    answers_head: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reading {
    Head,
    Body,
    Trailers,
    Over,
}

impl Http2 {
    /// Sends the head of a request.
    ///
    /// # Errors
    /// If the target has no form of HTTP/2, or the connection is over.
    pub fn begin(
        mut lease: Box<Lease>,
        mut request: RequestHeader,
        framing: Framing,
        is_tls: bool,
    ) -> pingora::Result<Http2> {
        address(&mut request, is_tls)?;
        let ends = framing.is_empty();
        let answers_head = request.method == Method::HEAD;
        let session = lease.session().ok_or_else(over)?;
        session.write_request_header(Box::new(request), ends)?;
        let upload = session.take_request_body_writer().filter(|_| !ends);
        Ok(Http2 {
            lease,
            upload,
            outgoing: VecDeque::new(),
            ends,
            is_reported: true,
            write_error: None,
            reading: Reading::Head,
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

    pub(super) async fn next(&mut self) -> pingora::Result<Event> {
        let event = poll_fn(|context| self.poll_next(context)).await?;
        if let Some(event) = event {
            return Ok(event);
        }
        // No trailer is passed on, but they end the stream.
        let session = self.lease.session().ok_or_else(over)?;
        session.read_trailers().await?;
        self.reading = Reading::Over;
        Ok(Event::Part(Bytes::new(), true))
    }

    /// Waits for the end of the stream, whose answer was read whole.
    async fn end(mut self) {
        while self.reading != Reading::Over && self.next().await.is_ok() {}
    }

    /// Ends the exchange, whose answer was read whole.
    pub(super) async fn finish(mut self: Box<Self>) {
        while self.reading != Reading::Over {
            match look_at(self.next()).await {
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(_)) => return,
                Poll::Pending => {
                    // A stream that is reset at its end might be taken for an attack.
                    tokio::spawn(tokio::time::timeout(END_TIMEOUT, self.end()));
                    return;
                }
            }
        }
    }

    /// The next event; `None` where it is the trailers.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<pingora::Result<Option<Event>>> {
        if let Poll::Ready(Err(error)) = self.poll_write(context) {
            // The server may have answered before it went.
            self.outgoing.clear();
            self.is_reported = true;
            self.write_error = Some(error);
        }
        if self.outgoing.is_empty() && !self.is_reported {
            self.is_reported = true;
            return Poll::Ready(Ok(Some(Event::Written)));
        }
        let read = ready!(self.poll_read(context));
        Poll::Ready(read.map_err(|error| match is_left_out(&error) {
            true => error,
            false => self.write_error.take().unwrap_or(error),
        }))
    }

    fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<pingora::Result<()>> {
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
                        Some(Err(error)) => {
                            let context = "while writing a request's body";
                            return Poll::Ready(Err(Error::because(
                                ErrorType::WriteError,
                                context,
                                error,
                            )));
                        }
                        None => {
                            let context = "the stream takes no more of the request's body";
                            return Poll::Ready(Error::e_explain(ErrorType::WriteError, context));
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
            sent.or_err(ErrorType::WriteError, "while writing a request's body")?;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<pingora::Result<Option<Event>>> {
        let reading = self.reading;
        let session = self.lease.session().ok_or_else(over)?;
        let (event, reading) = match reading {
            Reading::Head => {
                let head = ready!(session.poll_read_response_header(context));
                head.map_err(head_failed)?;
                let ends = session.check_response_end_or_error()?;
                let header = session.response_header().cloned().ok_or_else(over)?;
                let lengths = header.headers.get_all(CONTENT_LENGTH).iter();
                let lengths = lengths.map(HeaderValue::as_bytes);
                self.left = http1::agreed_length(lengths).filter(|_| !self.answers_head);
                let reading = if ends { Reading::Over } else { Reading::Body };
                // The end of the stream may come later than that of the body.
                let ends = ends || self.left == Some(0);
                (Some(Event::Head(Box::new(header), ends)), reading)
            }
            Reading::Body => match ready!(session.poll_read_response_body(context)) {
                Some(part) => {
                    let part = part.or_err(ErrorType::ReadError, "while reading an answer")?;
                    if session.response_finished() && session.check_response_end_or_error()? {
                        (Some(Event::Part(part, true)), Reading::Over)
                    } else {
                        // The end of the stream may come later than that of the body.
                        self.left = self.left.map(|left| left.saturating_sub(part.len() as u64));
                        (Some(Event::Part(part, self.left == Some(0))), Reading::Body)
                    }
                }
                None if session.response_finished() => {
                    (Some(Event::Part(Bytes::new(), true)), Reading::Over)
                }
                None => (None, Reading::Trailers),
            },
            Reading::Trailers => (None, Reading::Trailers),
            Reading::Over => return Poll::Pending,
        };
        self.reading = reading;
        Poll::Ready(Ok(event))
    }
}

fn over() -> Box<Error> {
    Error::explain(ErrorType::H2Error, "the stream is over")
}

/// Puts the host into the place that it has in HTTP/2 (RFC 9113 section 8.3.1).
fn address(request: &mut RequestHeader, is_tls: bool) -> pingora::Result<()> {
    let kind = ErrorType::InvalidHTTPHeader;
    let host = request.remove_header(&HOST);
    let host = host.as_ref().map_or(&[][..], HeaderValue::as_bytes);
    let target = request.uri.path_and_query().cloned();
    let target = target.ok_or_else(|| Error::explain(kind.clone(), "a request has no target"))?;
    let scheme = if is_tls { Scheme::HTTPS } else { Scheme::HTTP };
    let uri = Uri::builder()
        .scheme(scheme)
        .authority(host)
        .path_and_query(target)
        .build();
    request.set_uri(uri.or_err(kind, "a server's name is no authority")?);
    request.set_version(Version::HTTP_2);
    Ok(())
}

/// What it means that the head of an answer did not come.
fn head_failed(error: h2::Error) -> Box<Error> {
    let context = "while reading the head of an answer";
    let (reason, is_remote) = (error.reason(), error.is_remote());
    let is_io = error.get_io().is_some_and(is_of_the_connection);
    let kind = if is_remote && reason == Some(h2::Reason::HTTP_1_1_REQUIRED) {
        ErrorType::H2Downgrade
    } else if error.is_go_away() && error.is_library() && reason == Some(h2::Reason::PROTOCOL_ERROR)
    {
        ErrorType::InvalidH2
    } else if error.is_io() {
        ErrorType::ReadError
    } else {
        ErrorType::H2Error
    };
    let unprocessed = is_remote
        && ((error.is_go_away() && reason == Some(h2::Reason::NO_ERROR))
            || (error.is_reset() && reason == Some(h2::Reason::REFUSED_STREAM)));
    let again = unprocessed || matches!(kind, ErrorType::H2Downgrade | ErrorType::InvalidH2);
    let mut error = Error::because(kind, context, error);
    if again {
        error.set_retry(true);
    } else if is_io {
        error.retry = RetryType::ReusedOnly;
    }
    error
}

/// Whether an error is that of a connection that had ended, and not one of TLS.
fn is_of_the_connection(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionReset, TimedOut};
    error.raw_os_error().is_some()
        || matches!(error.kind(), ConnectionReset | TimedOut | BrokenPipe)
}
