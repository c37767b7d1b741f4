//! One request over HTTP/2, as pingora's proxy drives it.
//!
//! pingora's own session answers a head without one usable host with a bare 400, and resets the stream of one with a
//! questionable target or length, before any hook runs: no body, no line in the log. This session judges nothing, so that the
//! hooks see each head that the library below could read, and the contract's step 1 refuses it. Otherwise it does what
//! pingora 0.9.1's does (`protocols/http/v2/server.rs`), down to the kinds of its errors, by which failures are settled.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::Stream;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::header::{
    CONNECTION, CONTENT_LENGTH, DATE, HeaderMap, HeaderName, TRANSFER_ENCODING, UPGRADE,
};
use http::{Request, Response};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::protocols::Digest;
use pingora::protocols::http::body_buffer::FixedBuffer;
use pingora::protocols::http::custom::CustomMessageWrite;
use pingora::protocols::http::custom::server::Session;
use pingora::protocols::http::date::get_cached_date;
use pingora::protocols::http::v1::client::http_req_header_to_wire;
use pingora::protocols::http::{HttpTask, v2};
use pingora::protocols::l4::socket::SocketAddr;
use pingora::{Error, ErrorType, OrErr};

use crate::policy::http1;

/// What is kept of a body in case the request is sent again; as much as pingora keeps.
const RETRY_BYTES_MAX: usize = 64 * 1024;
/// What HTTP/1 has between two neighbours and HTTP/2 must not have (RFC 9113 section 8.2.2).
const BETWEEN_NEIGHBOURS: [HeaderName; 5] = [
    TRANSFER_ENCODING,
    CONNECTION,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// Custom messages, of which HTTP/2 has none.
type Messages = Box<dyn Stream<Item = pingora::Result<Bytes>> + Unpin + Send + Sync>;

/// A request and its answer.
pub struct Http2Request {
    header: RequestHeader,
    body: RecvStream,
    respond: SendResponse<Bytes>,
    /// The writer of the answer's body, once its header is sent.
    answer: Option<SendStream<Bytes>>,
    answer_header: Option<Box<ResponseHeader>>,
    /// Whether the answer's last frame is out.
    ended: bool,
    body_read: usize,
    body_sent: usize,
    retry_buffer: Option<FixedBuffer>,
    digest: Arc<Digest>,
    write_timeout: Option<Duration>,
    total_drain_timeout: Option<Duration>,
}

impl Http2Request {
    /// A request that the library has read, on a connection with this digest.
    pub fn new(
        request: Request<RecvStream>,
        respond: SendResponse<Bytes>,
        digest: Arc<Digest>,
    ) -> Http2Request {
        let (header, body) = request.into_parts();
        Http2Request {
            header: header.into(),
            body,
            respond,
            answer: None,
            answer_header: None,
            ended: false,
            body_read: 0,
            body_sent: 0,
            retry_buffer: None,
            digest,
            write_timeout: None,
            total_drain_timeout: None,
        }
    }

    fn has_no_more_body(&self) -> bool {
        self.has_no_body() || self.body.is_end_stream()
    }

    fn has_no_body(&self) -> bool {
        let length = self.header.headers.get(CONTENT_LENGTH);
        let is_empty = || length.is_some_and(|length| http1::length(length.as_bytes()) == Some(0));
        self.body_read == 0 && (self.body.is_end_stream() || is_empty())
    }

    async fn read(&mut self) -> pingora::Result<Option<Bytes>> {
        let part = self.body.data().await.transpose();
        let part = part.or_err(
            ErrorType::ReadError,
            "while reading downstream request body",
        )?;
        if let Some(part) = &part {
            self.body_read += part.len();
            if let Some(buffer) = &mut self.retry_buffer {
                buffer.write_to_buffer(part);
            }
            // Fails only where the stream is over.
            let _ = self.body.flow_control().release_capacity(part.len());
        }
        Ok(part)
    }

    async fn drain(&mut self) -> pingora::Result<()> {
        while !self.has_no_more_body() && self.read().await?.is_some() {}
        Ok(())
    }

    /// Returns when the client has reset the stream.
    async fn reset(&mut self) -> pingora::Result<Reason> {
        let (answer, respond) = (&mut self.answer, &mut self.respond);
        let reset = std::future::poll_fn(|context| match answer {
            Some(answer) => answer.poll_reset(context),
            None => respond.poll_reset(context),
        });
        let reset = reset.await;
        reset.or_err(ErrorType::H2Error, "downstream error while idling")
    }

    fn send_header(&mut self, mut header: Box<ResponseHeader>, ends: bool) -> pingora::Result<()> {
        // The library sends one header only.
        if self.ended || header.status.is_informational() || self.answer_header.is_some() {
            return Ok(());
        }
        header.insert_header(DATE, get_cached_date())?;
        for name in &BETWEEN_NEIGHBOURS {
            header.remove_header(name);
        }
        let answer = Response::from_parts(header.as_owned_parts(), ());
        let answer = self.respond.send_response(answer, ends);
        let answer = answer.or_err(
            ErrorType::WriteError,
            "while writing h2 response to downstream",
        )?;
        self.answer = Some(answer);
        self.answer_header = Some(header);
        self.ended = ends;
        Ok(())
    }

    async fn send_body(&mut self, part: Bytes, ends: bool) -> pingora::Result<()> {
        if self.ended {
            return Ok(());
        }
        let Some(answer) = &mut self.answer else {
            return Err(no_header());
        };
        let bytes = part.len();
        let written = v2::write_body(answer, part, ends, self.write_timeout);
        written.await.map_err(Error::into_down)?;
        self.body_sent += bytes;
        self.ended = ends;
        Ok(())
    }

    fn send_trailers(&mut self, trailers: HeaderMap) -> pingora::Result<()> {
        if self.ended {
            return Ok(());
        }
        let answer = self.answer.as_mut().ok_or_else(no_header)?;
        answer.send_trailers(trailers).or_err(
            ErrorType::WriteError,
            "while writing h2 response trailers to downstream",
        )?;
        self.ended = true;
        Ok(())
    }

    /// Ends the answer. One whose header is not out ends as a reset, when this is dropped.
    fn end(&mut self) -> pingora::Result<()> {
        if let (Some(answer), false) = (&mut self.answer, self.ended) {
            answer.send_data(Bytes::new(), true).or_err(
                ErrorType::WriteError,
                "while writing h2 response body to downstream",
            )?;
            self.ended = true;
        }
        Ok(())
    }

    /// Sends a part of the answer. Returns whether it was the last.
    async fn send(&mut self, task: HttpTask) -> pingora::Result<bool> {
        match task {
            HttpTask::Header(header, ends) => {
                self.send_header(header, ends).map_err(Error::into_down)?;
                Ok(ends)
            }
            HttpTask::Body(part, ends) => {
                if let Some(part) = part.filter(|part| !part.is_empty()) {
                    let written = self.write_body(part, ends).await;
                    written.map_err(Error::into_down)?;
                }
                Ok(ends)
            }
            HttpTask::Trailer(trailers) => {
                if let Some(trailers) = trailers {
                    self.send_trailers(*trailers)?;
                }
                Ok(true)
            }
            HttpTask::Done => Ok(true),
            // Neither is asked for, as HTTP/2 has no upgrade.
            HttpTask::UpgradedBody(..) => Err(Error::explain(
                ErrorType::InternalError,
                "upgraded body on h2 server session",
            )),
            HttpTask::Failed(error) => Err(error),
        }
    }
}

fn no_header() -> Box<Error> {
    let context = "try to send body before header is sent";
    Error::explain(ErrorType::H2Error, context)
}

#[async_trait]
impl Session for Http2Request {
    fn req_header(&self) -> &RequestHeader {
        &self.header
    }

    fn req_header_mut(&mut self) -> &mut RequestHeader {
        &mut self.header
    }

    async fn read_body_bytes(&mut self) -> pingora::Result<Option<Bytes>> {
        self.read().await
    }

    async fn drain_request_body(&mut self) -> pingora::Result<()> {
        let Some(timeout) = self.total_drain_timeout else {
            return self.drain().await;
        };
        match tokio::time::timeout(timeout, self.drain()).await {
            Ok(drained) => drained,
            Err(_) => Error::e_explain(ErrorType::ReadTimedout, "draining body"),
        }
    }

    async fn write_response_header(
        &mut self,
        header: Box<ResponseHeader>,
        ends: bool,
    ) -> pingora::Result<()> {
        self.send_header(header, ends)
    }

    async fn write_response_header_ref(
        &mut self,
        header: &ResponseHeader,
        ends: bool,
    ) -> pingora::Result<()> {
        self.send_header(Box::new(header.clone()), ends)
    }

    async fn write_body(&mut self, part: Bytes, ends: bool) -> pingora::Result<()> {
        let Some(timeout) = self.write_timeout else {
            return self.send_body(part, ends).await;
        };
        match tokio::time::timeout(timeout, self.send_body(part, ends)).await {
            Ok(written) => written,
            Err(_) => Error::e_explain(ErrorType::WriteTimedout, "writing body"),
        }
    }

    async fn write_trailers(&mut self, trailers: HeaderMap) -> pingora::Result<()> {
        self.send_trailers(trailers)
    }

    async fn response_duplex_vec(&mut self, tasks: Vec<HttpTask>) -> pingora::Result<bool> {
        let mut ends = false;
        for task in tasks {
            ends |= self.send(task).await?;
        }
        if ends {
            self.end().map_err(Error::into_down)?;
        }
        Ok(ends)
    }

    /// Does nothing: nothing of an upload's time is this session's to keep.
    fn set_read_timeout(&mut self, _: Option<Duration>) {}

    fn get_read_timeout(&self) -> Option<Duration> {
        None
    }

    fn set_write_timeout(&mut self, timeout: Option<Duration>) {
        self.write_timeout = timeout;
    }

    fn get_write_timeout(&self) -> Option<Duration> {
        self.write_timeout
    }

    fn set_total_drain_timeout(&mut self, timeout: Option<Duration>) {
        self.total_drain_timeout = timeout;
    }

    fn get_total_drain_timeout(&self) -> Option<Duration> {
        self.total_drain_timeout
    }

    fn request_summary(&self) -> String {
        format!("{} {}", self.header.method, self.header.uri.path())
    }

    fn response_written(&self) -> Option<&ResponseHeader> {
        self.answer_header.as_deref()
    }

    async fn shutdown(&mut self, _: u32, _: &str) {
        if !self.ended {
            self.respond.send_reset(Reason::INTERNAL_ERROR);
        }
    }

    fn is_body_done(&mut self) -> bool {
        self.has_no_more_body()
    }

    async fn finish(&mut self) -> pingora::Result<()> {
        self.end()
    }

    fn is_body_empty(&mut self) -> bool {
        self.has_no_body()
    }

    async fn read_body_or_idle(&mut self, no_more: bool) -> pingora::Result<Option<Bytes>> {
        if !no_more && !self.has_no_more_body() {
            return self.read().await;
        }
        let reason = self.reset().await?;
        let context = format!("Client closed H2, reason: {reason}");
        Error::e_explain(ErrorType::H2Error, context)
    }

    fn body_bytes_sent(&self) -> usize {
        self.body_sent
    }

    fn body_bytes_read(&self) -> usize {
        self.body_read
    }

    fn digest(&self) -> Option<&Digest> {
        Some(&self.digest)
    }

    fn digest_mut(&mut self) -> Option<&mut Digest> {
        Arc::get_mut(&mut self.digest)
    }

    fn client_addr(&self) -> Option<&SocketAddr> {
        self.digest.socket_digest.as_ref()?.peer_addr()
    }

    fn server_addr(&self) -> Option<&SocketAddr> {
        self.digest.socket_digest.as_ref()?.local_addr()
    }

    fn pseudo_raw_h1_request_header(&self) -> Bytes {
        let head = http_req_header_to_wire(&self.header);
        head.map(|head| head.freeze()).unwrap_or_default()
    }

    fn enable_retry_buffering(&mut self) {
        let new = || FixedBuffer::new(RETRY_BYTES_MAX);
        self.retry_buffer.get_or_insert_with(new);
    }

    fn retry_buffer_truncated(&self) -> bool {
        let buffer = self.retry_buffer.as_ref();
        buffer.is_some_and(FixedBuffer::is_truncated)
    }

    fn get_retry_buffer(&self) -> Option<Bytes> {
        let buffer = self.retry_buffer.as_ref();
        let whole = buffer.filter(|buffer| !buffer.is_truncated());
        whole.and_then(FixedBuffer::get_buffer)
    }

    async fn finish_custom(&mut self) -> pingora::Result<()> {
        Ok(())
    }

    fn take_custom_message_reader(&mut self) -> Option<Messages> {
        None
    }

    fn restore_custom_message_reader(&mut self, _: Messages) -> pingora::Result<()> {
        Ok(())
    }

    fn take_custom_message_writer(&mut self) -> Option<Box<dyn CustomMessageWrite>> {
        None
    }

    fn restore_custom_message_writer(
        &mut self,
        _: Box<dyn CustomMessageWrite>,
    ) -> pingora::Result<()> {
        Ok(())
    }
}
