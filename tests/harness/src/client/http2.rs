//! A client's HTTP/2 connection, on h2 itself: its error for a failed request shows whether the gateway may have taken the
//! request. (hyper returns the same error for a sent and an unsent request if a GOAWAY arrives meanwhile.)

use std::error::Error;
use std::future::poll_fn;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::{Reason, RecvStream};
use http::header::{CONNECTION, CONTENT_LENGTH, TE, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderName, Method, Request, Response};
use tokio::io::{AsyncRead, AsyncWrite};

/// The bytes that a client may receive before it reads them, on a stream and in all; headers of an answer (bytes).
const STREAM_WINDOW: u32 = 2 << 20;
const CONNECTION_WINDOW: u32 = 5 << 20;
const HEADERS_MAX: u32 = 16 << 10;

/// The sending side of a connection; clones share it.
#[derive(Clone)]
pub struct Sender(SendRequest<Bytes>);

/// The outcome of a request.
pub enum Sent {
    /// The head of the answer, and the stream of its body.
    Answered(Box<Response<RecvStream>>),
    /// The connection had ended, or reported that this request was not processed (RFC 9113 section 6.8).
    NotTaken,
}

impl Sender {
    /// Begins a connection on this socket.
    pub async fn begin(
        socket: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    ) -> Result<Sender, String> {
        let (sender, connection) = h2::client::Builder::new()
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(HEADERS_MAX)
            .enable_push(false)
            .handshake(socket)
            .await
            .map_err(|error| chain(&error))?;
        tokio::spawn(async move {
            let _ = connection.await;
        });
        Ok(Sender(sender))
    }

    /// Whether another request may be sent, once it is known; false if the connection has ended or is ending.
    pub async fn is_open(&mut self) -> bool {
        poll_fn(|context| self.0.poll_ready(context)).await.is_ok()
    }

    /// Sends a request and waits for the head of its answer; resets its stream if it is dropped before that.
    pub async fn send(&mut self, request: Request<Bytes>) -> Result<Sent, String> {
        let (mut head, body) = request.into_parts();
        drop_what_http2_has_not(&mut head.headers);
        let asks_for_length = [Method::POST, Method::PUT, Method::PATCH].contains(&head.method);
        if (asks_for_length || !body.is_empty()) && !head.headers.contains_key(CONTENT_LENGTH) {
            head.headers.insert(CONTENT_LENGTH, body.len().into());
        }
        let request = Request::from_parts(head, ());
        let (answer, mut stream) = match self.0.send_request(request, body.is_empty()) {
            Ok(sent) => sent,
            Err(error) if ended_in_order(&error) => return Ok(Sent::NotTaken),
            Err(error) => return Err(chain(&error)),
        };
        if !body.is_empty() {
            // h2 keeps the part that does not fit the window yet. If the stream has already ended, its answer has the reason.
            let _ = stream.send_data(body, true);
        }
        match answer.await {
            Ok(answer) => Ok(Sent::Answered(Box::new(answer))),
            // h2 reports this for streams above the last one that the gateway has taken, and for no other.
            Err(error) if ended_in_order(&error) => Ok(Sent::NotTaken),
            Err(error) => Err(chain(&error)),
        }
    }
}

/// The whole body and the trailer fields, or `None` if the body did not end properly.
pub async fn read(mut body: RecvStream) -> (Vec<u8>, Option<HeaderMap>) {
    let mut received = Vec::new();
    while let Some(part) = body.data().await {
        let Ok(part) = part else {
            return (received, None);
        };
        let _ = body.flow_control().release_capacity(part.len());
        received.extend_from_slice(&part);
    }
    let trailers = body.trailers().await.ok();
    (received, trailers.map(Option::unwrap_or_default))
}

/// Whether the gateway has ended the connection in order.
fn ended_in_order(error: &h2::Error) -> bool {
    error.is_go_away() && error.is_remote() && error.reason() == Some(Reason::NO_ERROR)
}

/// HTTP/2 has no headers of a connection (RFC 9113 section 8.2.2).
fn drop_what_http2_has_not(headers: &mut HeaderMap) {
    if let Some(named) = headers.remove(CONNECTION) {
        let named = String::from_utf8_lossy(named.as_bytes()).into_owned();
        for name in named.split(',') {
            headers.remove(name.trim());
        }
    }
    let others = ["keep-alive", "proxy-connection"].map(HeaderName::from_static);
    for name in others.iter().chain(&[TRANSFER_ENCODING, UPGRADE]) {
        headers.remove(name);
    }
    if headers.get(TE).is_some_and(|value| value != "trailers") {
        headers.remove(TE);
    }
}

fn chain(error: &dyn Error) -> String {
    super::chain(error)
}
