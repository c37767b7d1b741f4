//! One exchange with a server, over HTTP/1 or HTTP/2.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;

use super::connections::{Connections, TakenConnection};
use super::http1::Http1;
use super::http2::Http2;
use crate::proxy::client::Piece;
use crate::proxy::failure::Failure;
use crate::proxy::forward::Outgoing;
use crate::proxy::received_body::ReceivedBody;

/// An exchange that has begun with the head of its request.
pub enum Link {
    /// On its own connection.
    Http1(Box<Http1>),
    /// On a stream.
    Http2(Box<Http2>),
}

impl Link {
    /// Begins an exchange on a taken connection.
    ///
    /// # Errors
    /// If the request cannot be expressed in the connection's version of HTTP, or the connection has ended.
    pub fn begin(
        taken: TakenConnection,
        request: &Outgoing<'_>,
        is_tls: bool,
    ) -> Result<Link, Failure> {
        Ok(match taken {
            TakenConnection::Http1(own) => Link::Http1(Box::new(Http1::begin(own, request)?)),
            TakenConnection::Http2(place) => {
                Link::Http2(Box::new(Http2::begin(place, request, is_tls)?))
            }
        })
    }

    /// Whether the request is sent without a call of [`Link::next`], which alone sends one over HTTP/1.
    pub fn is_sent_at_once(&self) -> bool {
        matches!(self, Link::Http2(_))
    }

    /// Waits for the next piece of the answer, while pushed bytes are written; `None` once they are, if more are expected. Cancel-safe.
    ///
    /// # Errors
    /// If the exchange cannot continue.
    pub async fn next(&mut self) -> Result<Option<Piece>, Failure> {
        match self {
            Link::Http1(http1) => http1.next().await,
            Link::Http2(http2) => http2.next().await,
        }
    }

    /// The body of an answer over HTTP/2, while it arrives.
    pub fn body(&self) -> Option<Arc<Mutex<ReceivedBody>>> {
        match self {
            Link::Http1(_) => None,
            Link::Http2(http2) => http2.body().cloned(),
        }
    }

    /// Whether all pushed bytes are written, and more of the request may be pushed.
    pub fn takes_more(&self) -> bool {
        match self {
            Link::Http1(http1) => http1.takes_more(),
            Link::Http2(http2) => http2.takes_more(),
        }
    }

    /// Queues a part of the request's body to be written; `ends` marks the last one.
    ///
    /// # Errors
    /// If the body differs from its announced length.
    pub fn push(&mut self, part: Bytes, ends: bool) -> Result<(), Failure> {
        match self {
            Link::Http1(http1) => http1.push(&part, ends).map_err(Failure::gateway),
            Link::Http2(http2) => {
                http2.push(part, ends);
                Ok(())
            }
        }
    }

    /// Whether the server began its answer before it had read the request's body, on a shared connection.
    pub fn left_body_unread(&self) -> bool {
        match self {
            Link::Http1(_) => false,
            Link::Http2(http2) => http2.left_body_unread(),
        }
    }

    /// Excludes the connection from further exchanges. One over HTTP/1 is never kept after a failure.
    pub fn distrust(&mut self) {
        match self {
            Link::Http1(_) => {}
            Link::Http2(http2) => http2.distrust(),
        }
    }

    /// Ends the exchange after an answer that was complete at `now`; its connection is kept for `patience` if it is proven reusable.
    pub async fn finish(self, connections: &Connections, patience: Duration, now: Instant) {
        match self {
            Link::Http1(http1) => {
                if let Some((own, rest)) = http1.into_reusable() {
                    let after = |time: Duration| now.checked_add(time);
                    connections.keep(own, rest.and_then(after), after(patience));
                }
            }
            Link::Http2(http2) => http2.finish().await,
        }
    }
}
