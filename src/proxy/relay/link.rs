//! One exchange with a server, in either version of HTTP.

use bytes::Bytes;
use pingora::upstreams::peer::HttpPeer;

use super::connections::{Connections, Taken};
use super::http1::Http1;
use super::http2::Http2;
use crate::proxy::client::Head;
use crate::proxy::failure::Failure;
use crate::proxy::forward::Outgoing;

/// An exchange that has begun with the head of its request.
pub enum Link {
    /// On a connection of its own.
    Http1(Box<Http1>),
    /// On a stream.
    Http2(Box<Http2>),
}

/// What an exchange comes to next.
#[derive(Debug)]
pub enum Event {
    /// Everything that was pushed is written, and more is to come.
    Written,
    /// The head of an interim answer.
    Interim(Box<Head>),
    /// The head of the answer, and whether that is all of it.
    Head(Box<Head>, bool),
    /// A part of the answer's body, and whether it is the last one.
    Part(Bytes, bool),
}

impl Link {
    /// Begins an exchange on a connection that has been taken.
    ///
    /// # Errors
    /// If the request cannot be sent over HTTP/2, or its connection is over.
    pub fn begin(taken: Taken, request: &Outgoing<'_>, is_tls: bool) -> Result<Link, Failure> {
        Ok(match taken {
            Taken::Http1(stream) => Link::Http1(Box::new(Http1::begin(stream, request)?)),
            Taken::Http2(lease) => Link::Http2(Box::new(Http2::begin(lease, request, is_tls)?)),
        })
    }

    /// Waits for what comes next, while what was pushed is written. Can be dropped and called again: nothing is lost.
    ///
    /// # Errors
    /// If the exchange cannot go on.
    pub async fn next(&mut self) -> Result<Event, Failure> {
        match self {
            Link::Http1(http1) => http1.next().await,
            Link::Http2(http2) => http2.next().await,
        }
    }

    /// Whether everything that was pushed is written, and more of the request may be pushed.
    pub fn takes_more(&self) -> bool {
        match self {
            Link::Http1(http1) => http1.takes_more(),
            Link::Http2(http2) => http2.takes_more(),
        }
    }

    /// Gives a part of the request's body to be written, and whether it is the last one.
    ///
    /// # Errors
    /// If the body is not as long as was announced.
    pub fn push(&mut self, part: Bytes, ends: bool) -> Result<(), Failure> {
        match self {
            Link::Http1(http1) => http1.push(&part, ends).map_err(Failure::gateway),
            Link::Http2(http2) => {
                http2.push(part, ends);
                Ok(())
            }
        }
    }

    /// Ends the exchange, whose answer was read whole; its connection is kept where its state is proven.
    pub async fn finish(self, connections: &Connections, peer: &HttpPeer) {
        match self {
            Link::Http1(http1) => {
                if let Some(stream) = http1.into_reusable() {
                    connections.keep(stream, peer);
                }
            }
            Link::Http2(http2) => http2.finish().await,
        }
    }
}
