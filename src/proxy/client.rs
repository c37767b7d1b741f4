//! The client's side of a request, over HTTP/1 or HTTP/2: the head, the body as it arrives, and the answer as it is written.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::poll_immediate;
use http::StatusCode;

use super::connection::Connection;
use super::connection::allowance::Turn;
use super::failure::Failure;
use crate::clock::timer::Timer;
use crate::policy::http1::Version;
use crate::policy::http1::request::RequestHead;

pub mod http1;
pub mod http2;
mod piece;

pub use piece::{Head, Piece};

use http1::Http1Side;
use http2::Http2Side;

/// A request with its client's side.
pub struct Client<'c> {
    /// The connection of the request.
    pub connection: Arc<Connection>,
    /// The head.
    pub head: Box<RequestHead>,
    /// Its connection's side.
    pub side: Side<'c>,
    status: Option<StatusCode>,
    bytes_sent: usize,
}

/// The transport of a request.
pub enum Side<'c> {
    /// The connection, which has no other request in the meantime.
    Http1(Http1Side<'c>),
    /// One of the connection's streams.
    Http2(Box<Http2Side>),
}

impl<'c> Client<'c> {
    /// A request whose head has been read.
    pub fn new(connection: Arc<Connection>, head: Box<RequestHead>, side: Side<'c>) -> Client<'c> {
        Client {
            connection,
            head,
            side,
            status: None,
            bytes_sent: 0,
        }
    }

    /// Whether the request was received over HTTP/2.
    pub fn is_http2(&self) -> bool {
        self.head.version == Version::Http2
    }

    /// Whether the body has been read completely.
    pub fn is_body_done(&self) -> bool {
        match &self.side {
            Side::Http1(side) => side.is_body_done(),
            Side::Http2(side) => side.is_body_done(),
        }
    }

    /// Whether the request has no body at all.
    pub fn is_body_empty(&self) -> bool {
        match &self.side {
            Side::Http1(_) => self.head.framing.is_empty(),
            Side::Http2(side) => side.is_body_empty(),
        }
    }

    /// Reads a part of the body; `None` at its end. Cancel-safe.
    ///
    /// # Errors
    /// If the client has disconnected, the body violates its framing, or it arrives too late.
    pub async fn read(&mut self) -> Result<Option<Bytes>, Failure> {
        match &mut self.side {
            Side::Http1(side) => side.read().await,
            Side::Http2(side) => side.read().await,
        }
    }

    /// Extends the deadline of the body by a time in which the gateway did not read it.
    pub fn note_unasked(&mut self, time: Duration) {
        match &mut self.side {
            Side::Http1(side) => side.note_unasked(time),
            Side::Http2(side) => side.note_unasked(time),
        }
    }

    /// Waits until the client disconnects.
    pub async fn gone(&mut self) -> Failure {
        match &mut self.side {
            Side::Http1(side) => side.gone().await,
            Side::Http2(side) => side.gone().await,
        }
    }

    /// The client's failure, if the client has ended the request.
    pub async fn gone_already(&mut self) -> Option<Failure> {
        poll_immediate(self.gone()).await
    }

    /// Closes an HTTP/1 connection after the answer.
    pub fn close_after(&mut self) {
        if let Side::Http1(side) = &mut self.side {
            side.close_after();
        }
    }

    /// Marks the answer as incomplete: an HTTP/1 connection ends at once.
    pub fn break_off(&mut self) {
        if let Side::Http1(side) = &mut self.side {
            side.break_off();
        }
    }

    /// Sends 100 (Continue) to ask for the body (RFC 9110 section 15.2.1).
    ///
    /// # Errors
    /// If the client has disconnected.
    pub async fn ask_for_body(&mut self) -> Result<(), Failure> {
        match &mut self.side {
            Side::Http1(side) => side.ask_for_body().await,
            Side::Http2(side) => side.ask_for_body().await,
        }
    }

    /// Writes pieces of the answer: over HTTP/1 down to the socket, over HTTP/2 as far as the client's windows allow.
    ///
    /// # Errors
    /// If the client has disconnected, or reads too little for too long.
    pub async fn write(&mut self, pieces: Vec<Piece>) -> Result<(), Failure> {
        if let (Side::Http1(side), [Piece::Head(head, _), parts @ ..]) = (&mut self.side, &*pieces)
        {
            side.reserve(head, parts.iter().map(Piece::body_bytes).sum());
        }
        for piece in pieces {
            match piece {
                Piece::Head(head, ends) => {
                    let status = head.status;
                    match &mut self.side {
                        Side::Http1(side) => side.write_head(&head, ends).await?,
                        Side::Http2(side) => side.write_head(*head, ends)?,
                    }
                    if !status.is_informational() {
                        self.status = Some(status);
                    }
                }
                Piece::Part(part, ends) => {
                    let bytes = part.len();
                    match &mut self.side {
                        Side::Http1(side) => side.write_part(&part, ends).await?,
                        Side::Http2(side) => side.write_part(part, ends).await?,
                    }
                    self.bytes_sent += bytes;
                }
            }
        }
        match &mut self.side {
            Side::Http1(side) => side.flush().await,
            Side::Http2(_) => Ok(()),
        }
    }

    /// The status of the final answer, once its head is written.
    pub fn status(&self) -> Option<StatusCode> {
        self.status
    }

    /// Whether the head of the final answer is written.
    pub fn header_passed(&self) -> bool {
        self.status.is_some()
    }

    /// Bytes of the answer's body that were written.
    pub fn bytes_sent(&self) -> usize {
        self.bytes_sent
    }

    /// Lends the timer of an HTTP/1 connection. It is usually set already, and most requests end without setting it again. Over
    /// HTTP/2 each request has its own.
    pub fn lend_timer(&mut self) -> Timer {
        match &mut self.side {
            Side::Http1(side) => mem::take(side.timer()),
            Side::Http2(_) => Timer::default(),
        }
    }

    /// Takes the timer back.
    pub fn return_timer(&mut self, timer: Timer) {
        match &mut self.side {
            Side::Http1(side) => *side.timer() = timer,
            Side::Http2(_) => {}
        }
    }

    /// The turn of a request over HTTP/2 among those of its connection.
    pub fn turn(&self) -> Option<&Arc<Turn>> {
        match &self.side {
            Side::Http1(_) => None,
            Side::Http2(side) => Some(side.turn()),
        }
    }

    /// How long the connection has refused bytes so far, over all its requests. HTTP/2 connections are shared: there it is how
    /// long this request was paused because of the client.
    pub fn blocked(&self) -> Duration {
        match &self.side {
            Side::Http1(side) => side.blocked(),
            Side::Http2(side) => side.turn().paused_by_client(),
        }
    }
}
