//! The client's side of a request, in either version of HTTP: the head, the body as it comes, and the answer on its way.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{StatusCode, Version};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::{Error, ErrorSource};

use super::connection::http1::Http1Side;
use super::connection::http2::Http2Side;
use super::connection::{BodyFault, Connection};

/// A request with its client's side.
pub struct Client<'c> {
    /// The connection that it came on.
    pub connection: Arc<Connection>,
    /// The head, as the rest of the gateway reads it.
    pub header: RequestHeader,
    side: Side<'c>,
    status: Option<StatusCode>,
    bytes_sent: usize,
}

/// What the request came over.
pub enum Side<'c> {
    /// The connection, which has no other request meanwhile.
    Http1(Http1Side<'c>),
    /// One of the connection's streams.
    Http2(Box<Http2Side>),
}

/// A piece of an answer; each has whether the answer ends with it.
#[derive(Debug)]
pub enum Piece {
    /// A head: of an interim answer, or of the final one.
    Head(Box<ResponseHeader>, bool),
    /// A part of the body; the last one may be empty.
    Part(Bytes, bool),
}

impl<'c> Client<'c> {
    /// A request whose head has been read.
    pub fn new(connection: Arc<Connection>, header: RequestHeader, side: Side<'c>) -> Client<'c> {
        Client {
            connection,
            header,
            side,
            status: None,
            bytes_sent: 0,
        }
    }

    /// The side of a client that was answered.
    pub fn into_side(self) -> Side<'c> {
        self.side
    }

    /// Whether it came over HTTP/2.
    pub fn is_http2(&self) -> bool {
        self.header.version == Version::HTTP_2
    }

    /// Whether there is nothing more of the body to read.
    pub fn is_body_done(&self) -> bool {
        match &self.side {
            Side::Http1(side) => side.is_body_done(),
            Side::Http2(side) => side.is_body_done(),
        }
    }

    /// Whether the request has no body at all.
    pub fn is_body_empty(&self) -> bool {
        match &self.side {
            Side::Http1(side) => side.is_body_empty(),
            Side::Http2(side) => side.is_body_empty(),
        }
    }

    /// Reads a part of the body; `None` at its end. Can be dropped and called again: nothing is lost.
    ///
    /// # Errors
    /// If the client is gone, the body breaks its framing, or it comes too late.
    pub async fn read(&mut self) -> pingora::Result<Option<Bytes>> {
        let read = match &mut self.side {
            Side::Http1(side) => side.read().await,
            Side::Http2(side) => side.read().await,
        };
        read.map_err(Error::into_down)
    }

    /// Waits until the client is gone.
    pub async fn gone(&mut self) -> Box<Error> {
        let gone = match &mut self.side {
            Side::Http1(side) => side.gone().await,
            Side::Http2(side) => side.gone().await,
        };
        gone.into_down()
    }

    /// Reads the rest of the body and throws it away, for at most `timeout`.
    pub async fn drain(&mut self, timeout: Duration) {
        let drained = async { while let Ok(Some(_)) = self.read().await {} };
        let _ = tokio::time::timeout(timeout, drained).await;
    }

    /// What was wrong with the body; over HTTP/2 only that it came too late, its framing is the library's.
    pub fn body_fault(&self) -> Option<BodyFault> {
        match &self.side {
            Side::Http1(side) => side.fault(),
            Side::Http2(side) => side.fault(),
        }
    }

    /// Has an HTTP/1 connection closed behind the answer.
    pub fn close_after(&mut self) {
        if let Side::Http1(side) = &mut self.side {
            side.close_after();
        }
    }

    /// Says that the answer is not whole: an HTTP/1 connection ends with it, at once.
    pub fn break_off(&mut self) {
        if let Side::Http1(side) = &mut self.side {
            side.break_off();
        }
    }

    /// Asks for the body (RFC 9110 section 15.2.1). Over HTTP/2 nothing waits for it.
    ///
    /// # Errors
    /// If the client is gone.
    pub async fn ask_for_body(&mut self) -> pingora::Result<()> {
        match &mut self.side {
            Side::Http1(side) => side.ask_for_body().await.map_err(Error::into_down),
            Side::Http2(_) => Ok(()),
        }
    }

    /// Writes pieces of the answer, down to the socket over HTTP/1, and over HTTP/2 as far as the client's windows let them go.
    ///
    /// # Errors
    /// If the client is gone, or takes too little for too long.
    pub async fn write(&mut self, pieces: Vec<Piece>) -> pingora::Result<()> {
        for piece in pieces {
            match piece {
                Piece::Head(head, ends) => {
                    let status = head.status;
                    let written = match &mut self.side {
                        Side::Http1(side) => side.write_head(&head, ends).await,
                        Side::Http2(side) => side.write_head(head, ends),
                    };
                    written.map_err(by_client)?;
                    if !status.is_informational() {
                        self.status = Some(status);
                    }
                }
                Piece::Part(part, ends) => {
                    let bytes = part.len();
                    let written = match &mut self.side {
                        Side::Http1(side) => side.write_part(&part, ends).await,
                        Side::Http2(side) => side.write_part(part, ends).await,
                    };
                    written.map_err(by_client)?;
                    self.bytes_sent += bytes;
                }
            }
        }
        match &mut self.side {
            Side::Http1(side) => side.flush().await.map_err(Error::into_down),
            Side::Http2(_) => Ok(()),
        }
    }

    /// The status of the final answer, once its head was written.
    pub fn status(&self) -> Option<StatusCode> {
        self.status
    }

    /// Bytes of the answer's body that were written.
    pub fn bytes_sent(&self) -> usize {
        self.bytes_sent
    }

    /// For how long the connection has refused bytes so far, in all its requests. HTTP/2 connections are shared: there it is how long
    /// this request was left alone because of the client.
    pub fn blocked(&self) -> Duration {
        match &self.side {
            Side::Http1(side) => side.blocked(),
            Side::Http2(_) => super::connection::pace::paused(),
        }
    }
}

/// An error while writing, which is the client's unless it says otherwise.
fn by_client(error: Box<Error>) -> Box<Error> {
    match error.esource() {
        ErrorSource::Unset => error.into_down(),
        ErrorSource::Upstream | ErrorSource::Downstream | ErrorSource::Internal => error,
    }
}
