//! The first bytes of a connection, which determine its protocol unless TLS has done so.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Connection;
use super::guard::Guard;
use super::http1::Http1Connection;
use super::streams::{self, StreamTerms};
use super::transport::{self, Agreed, Transport};
use super::unserved::Unserved;
use super::wire::ClientWire;
use crate::config::Limits;
use crate::policy::http2::PREFACE;
use crate::policy::limit_hit::LimitHit;
use crate::policy::redirect::Rule;
use crate::policy::rejection::{Malformed, Rejection};
use crate::proxy::gate::{Arrival, Gate};

/// A connection whose protocol is known.
pub enum Opened {
    /// HTTP/1, with the connection's start.
    Http1(Box<Http1Connection>, Instant),
    /// HTTP/2.
    Http2(Box<Guard>, Arc<StreamTerms>),
}

/// Reads enough of a connection to determine its protocol; that of a listener that redirects is always HTTP/1.
///
/// # Errors
/// If the client closes the connection, or with the limit that is hit because too little arrives within `limits.request_head`.
pub async fn open(
    gate: &Arc<Gate>,
    connection: Arc<Connection>,
    transport: Transport,
    limits: &Limits,
    redirect: Option<Rule>,
) -> Result<Opened, Option<LimitHit>> {
    let start = Instant::now();
    let agreed = transport::agreed(&transport);
    let limit_hits = gate.metrics.limit_hits.clone();
    let mut wire = ClientWire::new(connection, transport, limits, limit_hits);
    let mut begun = None;
    let is_http2 = match agreed {
        Agreed::Http1 => false,
        Agreed::Open if redirect.is_some() => false,
        agreed => {
            let begins = is_preface(gate, &mut wire, start + limits.request_head, &mut begun).await;
            match (begins.map_err(|_| None)?, agreed) {
                // The library refuses a wrong preface.
                (Some(is_preface), agreed) => is_preface || agreed == Agreed::Http2,
                (None, Agreed::Http2) => return Err(Some(LimitHit::H2Preface)),
                // The bytes so far are answered.
                (None, _) if !wire.unread.is_empty() => false,
                (None, _) => return Err(Some(LimitHit::RequestHead)),
            }
        }
    };
    let gate = gate.clone();
    Ok(if is_http2 {
        let terms = StreamTerms::new(&gate, &wire.connection, limits);
        let guard = Guard::new(gate, wire, limits, terms.progress.clone());
        Opened::Http2(Box::new(guard), Arc::new(terms))
    } else {
        let http1 = Http1Connection::new(gate, wire, limits, redirect, begun);
        Opened::Http1(Box::new(http1), start)
    })
}

/// Waits until the first byte has arrived, which stays unread, and counts what it begins. Returns the byte too, which is 0 if the client
/// has ended the connection.
///
/// # Errors
/// If the connection has failed.
pub async fn arrival_on<'g>(socket: &TcpStream, gate: &'g Gate) -> io::Result<(Arrival<'g>, u8)> {
    let mut first = [0];
    socket.peek(&mut first).await?;
    Ok((gate.arrival(), u8::from_be_bytes(first)))
}

/// Refuses a connection in clear text to a listener for TLS: reads what has arrived, writes one answer, and closes it.
pub async fn refuse_clear_text(
    gate: &Gate,
    connection: Arc<Connection>,
    transport: Transport,
    limits: &Limits,
) {
    let limit_hits = gate.metrics.limit_hits.clone();
    let mut wire = ClientWire::new(connection.clone(), transport, limits, limit_hits);
    // Does not wait: the first byte has arrived.
    let _ = wire.read_more(Instant::now() + limits.request_head).await;
    let unserved = Unserved::unread(gate, &connection, &wire.unread, Duration::ZERO);
    let answer = unserved.refuse(&Rejection::BadRequest(Malformed::ClearText));
    wire.writes.gathered().extend_from_slice(&answer);
    wire.close(limits.request_read).await;
}

impl Opened {
    /// Serves the connection to its end, which `ending` requests. The future is in a box of the size that its version of HTTP needs.
    pub fn serve(self, ending: CancellationToken) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        match self {
            Opened::Http1(http1, start) => Box::pin(http1.run(start, ending)),
            Opened::Http2(guard, terms) => Box::pin(streams::serve(guard, terms, ending)),
        }
    }
}

/// Reads until the first bytes are the HTTP/2 preface or differ from it; returns which, or `None` if neither is known at `deadline`. Sets
/// `begun` when the first byte has arrived.
async fn is_preface(
    gate: &Gate,
    wire: &mut ClientWire,
    deadline: Instant,
    begun: &mut Option<Instant>,
) -> io::Result<Option<bool>> {
    let mut _arrival = None;
    loop {
        let compared = wire.unread.len().min(PREFACE.len());
        if wire.unread.get(..compared) != PREFACE.get(..compared) {
            return Ok(Some(false));
        }
        if compared == PREFACE.len() {
            return Ok(Some(true));
        }
        match wire.read_more(deadline).await? {
            Some(1..) => {}
            Some(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            None => return Ok(None),
        }
        begun.get_or_insert_with(Instant::now);
        _arrival.get_or_insert_with(|| gate.arrival());
    }
}
