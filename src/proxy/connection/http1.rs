//! A client's connection over HTTP/1: successive requests, read and answered by the same task.
//!
//! Invariants: after an incomplete answer or request the connection accepts no other; between two requests it holds no buffer.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::on_wake::OnWake;
use super::unserved::Unserved;
use super::wire::ClientWire;
use crate::config::Limits;
use crate::policy::http1::HeadBounds;
use crate::policy::http1::request::{RequestHead, RequestReader};
use crate::policy::limit_hit::LimitHit;
use crate::policy::redirect::{Rule, redirect};
use crate::policy::rejection::{Malformed, Rejection};
use crate::proxy::client::http1::{After, Http1Side};
use crate::proxy::client::{Client, Side};
use crate::proxy::gate::Gate;
use crate::proxy::serve::serve;
use crate::proxy::well_formed::bounds_of;

/// How long the gateway still reads once it is to end a connection: after a stall of the process, the runtime reports that time has
/// passed before it reports the bytes that have arrived.
const LAST_READ: Duration = Duration::from_millis(50);

/// A connection.
pub struct Http1Connection {
    gate: Arc<Gate>,
    wire: ClientWire,
    bounds: HeadBounds,
    /// How long a client may take for a complete head from its first byte, and for the first byte of a connection from its start.
    head_timeout: Duration,
    /// For a body.
    body_timeout: Duration,
    /// Between two requests.
    idle_timeout: Duration,
    /// The rule by which the connection only redirects to HTTPS, if it does.
    redirect: Option<Rule>,
    /// When the first byte of the first head arrived, if it has.
    begun: Option<Instant>,
    requests: u64,
}

/// The request to end a connection, until it is made.
struct EndRequest<F>(Option<OnWake<F>>);

impl<F: Future<Output = ()> + Unpin> EndRequest<F> {
    /// Returns [`LAST_READ`] after the end was requested, or after this call if it was requested earlier.
    async fn last_read(&mut self) {
        if let Some(requested) = &mut self.0 {
            requested.await;
            self.0 = None;
        }
        tokio::time::sleep(LAST_READ).await;
    }
}

impl Http1Connection {
    /// A connection of which some bytes may have been received already, the first when it had `begun`. Its first request is redirected if
    /// there is a `redirect`.
    pub(super) fn new(
        gate: Arc<Gate>,
        wire: ClientWire,
        limits: &Limits,
        redirect: Option<Rule>,
        begun: Option<Instant>,
    ) -> Http1Connection {
        Http1Connection {
            gate,
            wire,
            bounds: bounds_of(limits),
            head_timeout: limits.request_head,
            body_timeout: limits.request_read,
            idle_timeout: limits.keepalive_idle,
            redirect,
            begun,
            requests: 0,
        }
    }

    /// Serves the connection from its `start` to its end, which `ending` requests.
    pub(super) async fn run(mut self: Box<Self>, start: Instant, ending: CancellationToken) {
        let (mut deadline, mut limit) = (start + self.head_timeout, LimitHit::RequestHead);
        let requested = pin!(ending.cancelled());
        let mut end = EndRequest(Some(OnWake::new(requested)));
        loop {
            let after = match self.next(deadline, limit, &mut end).await {
                Ok(head) => {
                    self.requests += 1;
                    self.wire.note_requests(self.requests);
                    self.serve(head).await
                }
                Err(after) => after,
            };
            match after {
                After::Request => {}
                After::Close(rest_timeout) => return self.wire.close(rest_timeout).await,
                After::End => {
                    self.wire.end().await;
                    return;
                }
                After::Nothing => return,
            }
            if self.wire.unread.is_empty() {
                self.wire.unread = BytesMut::new();
            }
            self.wire.writes.release();
            (deadline, limit) = (Instant::now() + self.idle_timeout, LimitHit::KeepaliveIdle);
        }
    }

    /// Reads the next head, whose first byte must arrive before `deadline` and before the connection's `end` is requested; what has
    /// arrived by then is served.
    ///
    /// # Errors
    /// With the end of the connection, if there is no such head.
    async fn next(
        &mut self,
        deadline: Instant,
        limit: LimitHit,
        end: &mut EndRequest<impl Future<Output = ()> + Unpin>,
    ) -> Result<Box<RequestHead>, After> {
        loop {
            // Some clients end a body with an empty line too many (RFC 9112 section 2.2), which begins no request.
            match &*self.wire.unread {
                b"\r\n" | b"\r\n\r\n" => self.wire.unread = BytesMut::new(),
                b"" | b"\r" | b"\r\n\r" => {}
                _ => break,
            }
            let more = tokio::select! {
                biased;
                more = self.wire.read_more(deadline) => more,
                () = end.last_read() => return Err(After::End),
            };
            match more {
                Ok(Some(1..)) => {}
                Ok(Some(0)) => return Err(After::End),
                Err(_) => return Err(After::Nothing),
                Ok(None) => {
                    self.wire.note_limit(limit);
                    return Err(After::End);
                }
            }
        }
        let (first_byte, mut begun) = (self.begun.take(), None);
        let mut reader = RequestReader::default();
        loop {
            let rejection = match reader.take(&mut self.wire.unread, &self.bounds) {
                Ok(Some(head)) => return Ok(Box::new(head)),
                Err(rejection) => rejection,
                Ok(None) => {
                    let (begun, _) = begun.get_or_insert_with(|| {
                        let began = first_byte.unwrap_or_else(Instant::now);
                        (began, self.gate.arrival())
                    });
                    match self.wire.read_more(*begun + self.head_timeout).await {
                        Ok(Some(1..)) => continue,
                        Ok(Some(0)) | Err(_) => return Err(After::Nothing),
                        Ok(None) => {
                            self.wire.note_limit(LimitHit::RequestHead);
                            Rejection::BadRequest(Malformed::Late)
                        }
                    }
                }
            };
            let waited = begun.map_or(Duration::ZERO, |(begun, _)| begun.elapsed());
            let (connection, received) = (&self.wire.connection, &self.wire.unread);
            let unserved = Unserved::unread(&self.gate, connection, received, waited);
            let answer = unserved.refuse(&rejection);
            self.wire.writes.gathered().extend_from_slice(&answer);
            return Err(After::Close(self.body_timeout));
        }
    }

    /// Serves a request; a redirected one ends the connection.
    async fn serve(&mut self, head: Box<RequestHead>) -> After {
        let connection = self.wire.connection.clone();
        if let Some(rule) = &self.redirect {
            let unserved = Unserved::read(&self.gate, &connection, &head);
            let answer = match redirect(&head, rule) {
                Ok(redirect) => unserved.redirect(&redirect),
                Err(rejection) => unserved.refuse(&rejection),
            };
            self.wire.writes.gathered().extend_from_slice(&answer);
            return After::Close(self.body_timeout);
        }
        let side = Http1Side::new(&mut self.wire, &head, self.body_timeout);
        let mut client = Client::new(connection, head, Side::Http1(side));
        Box::pin(serve(&self.gate, &mut client)).await;
        match client.side {
            Side::Http1(side) => side.finish().await,
            Side::Http2(_) => After::Nothing,
        }
    }
}
