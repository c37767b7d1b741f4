//! One request over HTTP/2, on a stream of the `h2` library.

use std::future::poll_fn;
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::Response;
use http::header::{CONNECTION, CONTENT_LENGTH, DATE, HeaderName, TE, TRANSFER_ENCODING, UPGRADE};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::protocols::http::date::get_cached_date;
use pingora::{Error, ErrorType, OrErr};
use tokio::time::Instant;

use super::BodyFault;
use crate::policy::http1;

/// What HTTP/1 has between two neighbours and HTTP/2 must not have (RFC 9113 section 8.2.2).
const BETWEEN_NEIGHBOURS: [HeaderName; 6] = [
    TE,
    TRANSFER_ENCODING,
    CONNECTION,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// A request's body and its answer.
pub struct Http2Side {
    body: RecvStream,
    announces_none: bool,
    has_read: bool,
    is_ended: bool,
    deadline: Instant,
    is_late: bool,
    respond: SendResponse<Bytes>,
    /// The writer of the answer's body, once its head is sent.
    answer: Option<SendStream<Bytes>>,
    /// Whether the answer's last frame is out.
    is_whole: bool,
    write_timeout: Duration,
}

impl Http2Side {
    /// Of a request with this head, whose body must have come within `read_timeout`. A client that takes nothing of an answer for
    /// `write_timeout` is given up.
    pub fn new(
        header: &RequestHeader,
        body: RecvStream,
        respond: SendResponse<Bytes>,
        [read_timeout, write_timeout]: [Duration; 2],
    ) -> Http2Side {
        let length = header.headers.get(CONTENT_LENGTH);
        Http2Side {
            body,
            announces_none: length
                .is_some_and(|length| http1::length(length.as_bytes()) == Some(0)),
            has_read: false,
            is_ended: false,
            deadline: Instant::now() + read_timeout,
            is_late: false,
            respond,
            answer: None,
            is_whole: false,
            write_timeout,
        }
    }

    pub(in crate::proxy) fn is_body_done(&self) -> bool {
        self.is_ended || self.is_body_empty() || self.body.is_end_stream()
    }

    pub(in crate::proxy) fn is_body_empty(&self) -> bool {
        let ends = || self.is_ended || self.body.is_end_stream() || self.announces_none;
        !self.has_read && ends()
    }

    pub(in crate::proxy) fn fault(&self) -> Option<BodyFault> {
        self.is_late.then_some(BodyFault::Late)
    }

    pub(in crate::proxy) async fn read(&mut self) -> pingora::Result<Option<Bytes>> {
        let context = "while reading a request's body";
        let Ok(part) = tokio::time::timeout_at(self.deadline, self.body.data()).await else {
            self.is_late = true;
            return Error::e_explain(ErrorType::ReadTimedout, context);
        };
        let part = part.transpose().or_err(ErrorType::ReadError, context)?;
        // Trailers may follow, which are not passed on.
        self.is_ended |= part.is_none();
        if let Some(part) = &part {
            self.has_read |= !part.is_empty();
            // Fails only where the stream is over.
            let _ = self.body.flow_control().release_capacity(part.len());
        }
        Ok(part)
    }

    /// Waits until the stream is reset, by the client or for what it sent.
    pub(in crate::proxy) async fn gone(&mut self) -> Box<Error> {
        let (answer, respond) = (&mut self.answer, &mut self.respond);
        let reset = poll_fn(|context| match answer {
            Some(answer) => answer.poll_reset(context),
            None => respond.poll_reset(context),
        });
        match reset.await {
            Ok(reason) => {
                let context = format!("the stream was reset: {reason}");
                Error::explain(ErrorType::H2Error, context)
            }
            Err(error) => {
                let context = "while waiting for an answer";
                Error::because(ErrorType::H2Error, context, error)
            }
        }
    }

    pub(in crate::proxy) fn write_head(
        &mut self,
        mut head: Box<ResponseHeader>,
        ends: bool,
    ) -> pingora::Result<()> {
        // The library sends one head only.
        if self.answer.is_some() || head.status.is_informational() {
            return Ok(());
        }
        head.insert_header(DATE, get_cached_date())?;
        for name in &BETWEEN_NEIGHBOURS {
            head.remove_header(name);
        }
        let answer = Response::from_parts(head.as_owned_parts(), ());
        let answer = self.respond.send_response(answer, ends);
        self.answer = Some(answer.or_err(ErrorType::WriteError, "while writing an answer")?);
        self.is_whole = ends;
        Ok(())
    }

    pub(in crate::proxy) async fn write_part(
        &mut self,
        mut part: Bytes,
        ends: bool,
    ) -> pingora::Result<()> {
        let context = "while writing an answer";
        let Some(answer) = &mut self.answer else {
            return Error::e_explain(ErrorType::InternalError, "a body before its head");
        };
        let timeout = self.write_timeout;
        let sent = tokio::time::timeout(timeout, async {
            while !part.is_empty() {
                answer.reserve_capacity(part.len());
                while answer.capacity() == 0 {
                    match poll_fn(|context| answer.poll_capacity(context)).await {
                        Some(Ok(_)) => {}
                        Some(Err(error)) => return Err(error),
                        None => return Err(Reason::CANCEL.into()),
                    }
                }
                let piece = part.split_to(answer.capacity().min(part.len()));
                answer.send_data(piece, ends && part.is_empty())?;
                if ends && part.is_empty() {
                    return Ok(());
                }
            }
            match ends {
                true => answer.send_data(Bytes::new(), true),
                false => Ok(()),
            }
        });
        match sent.await {
            Ok(sent) => sent.or_err(ErrorType::WriteError, context)?,
            Err(_) => return Error::e_explain(ErrorType::WriteTimedout, context),
        }
        self.is_whole = ends;
        Ok(())
    }
}
