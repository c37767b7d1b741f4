//! Forwarding: a permitted request on its way to a server of its upstream, and the answer on its way to the client.
//!
//! | Room | Job |
//! |---|---|
//! | [`connections`] | connections to servers, new ones and those that were kept |
//! | `link` | one exchange with a server, in either version of HTTP (`http1`, `http2`) |
//! | `answer` | the upstream's answer as the client gets it; `compressing` |
//! | `upload` | the request's body, and what is kept of it for another attempt |
//!
//! [`Relay::run`] makes attempts at servers until one answers. An attempt drives the upload, the answer and the watch for a client that
//! leaves in one loop. A part of an answer is read from the server when the client's side has taken those before: at most four parts of
//! 16 KiB are in memory, beside up to 64 KiB of the request's body while it may be sent again.
//!
//! Invariants: nothing is sent again once the head of an answer has gone to the client; a connection over HTTP/1 that has not carried the
//! last byte of both messages is closed.

use std::mem;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, HeaderValue, Version};
use pingora::http::RequestHeader;
use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, ErrorType};
use tokio::time::Instant;

use super::client::Client;
use super::connection::pace;
use super::connection::timer::Timer;
use super::exchange::{Exchange, Forwarding};
use super::failure::{
    Fate, UPSTREAM_AWAY, given_up, gone_before, header_passed, is_other_protocol, is_upstreams,
    is_worth_another, look_at, not_http2,
};
use super::forward::{self, Identity};
use super::gate::Gate;
use crate::policy::http1::framing::Framing;
use crate::policy::http1::length;

mod answer;
mod compressing;
pub mod connections;
mod http1;
mod http2;
mod link;
mod upload;

use connections::Taken;
use link::{Event, Link};
use upload::Upload;

/// Pieces of an answer that are written to the client together.
const PIECES_MAX: usize = 4;

/// A permitted request and everything that forwarding it needs.
pub struct Relay<'a, 'c> {
    /// What requests share.
    pub gate: &'a Arc<Gate>,
    /// The client's side.
    pub client: &'a mut Client<'c>,
    /// The request.
    pub exchange: &'a mut Exchange,
    /// Its forwarding.
    pub forwarding: &'a mut Forwarding,
}

/// What an attempt came to that did not answer the request.
struct Failed {
    error: Box<Error>,
    /// The server's description and whether its connection had been used before; `None` where none was reached.
    reached: Option<(HttpPeer, bool)>,
}

/// What happens next in an exchange.
enum Turn {
    Server(pingora::Result<Event>),
    Client(pingora::Result<Option<Bytes>>),
    Late,
}

impl Relay<'_, '_> {
    /// Forwards the request, as often as its upstream's settings and the failures allow, and passes the answer on.
    ///
    /// # Errors
    /// With what ended the forwarding otherwise; the caller settles it.
    pub async fn run(mut self) -> pingora::Result<()> {
        let bytes_max = self.exchange.snapshot.head_limits.body_bytes_max;
        let mut upload = Upload::new(bytes_max, self.client.is_body_done());
        loop {
            let failed = match self.attempt(&mut upload).await {
                Ok(()) => return Ok(()),
                Err(failed) => failed,
            };
            self.judge(failed, &upload)?;
        }
    }

    /// Decides what follows from a failed attempt.
    ///
    /// # Errors
    /// With its error, where no other attempt is made.
    fn judge(&mut self, failed: Failed, upload: &Upload) -> pingora::Result<()> {
        let Failed { mut error, reached } = failed;
        let Some((peer, reused)) = reached else {
            // Nothing was sent, so any method may try another server.
            self.forwarding.note_failed(self.gate);
            if !self.forwarding.may_retry() {
                return Err(error);
            }
            self.note_retry("connect");
            return Ok(());
        };
        error = error.more_context(format!("Peer: {peer}"));
        if is_other_protocol(&error, &peer, reused) {
            error = error.more_context("the first request on a connection: does it speak HTTP/2?");
        }
        let fate = Fate::of(&mut error, reused);
        let blamed = fate == Fate::Unknown && is_upstreams(&error, self.client);
        let passed_on = header_passed(self.client);
        let forwarding = &mut *self.forwarding;
        if let (ErrorType::H2Downgrade | ErrorType::InvalidH2, Some(server)) =
            (error.etype(), forwarding.server())
        {
            forwarding.upstream.note_wants_http1(server);
        }
        // What broke an answer off is judged when the exchange is settled.
        if blamed && !passed_on {
            forwarding.note_failed(self.gate);
        }
        if fate != Fate::Unknown {
            forwarding.connect_anew();
        }
        let method = &self.client.header.method;
        let again = match fate {
            Fate::Stale => method.is_idempotent() && forwarding.may_retry(),
            Fate::Unprocessed => forwarding.may_retry(),
            Fate::Unknown => {
                let harmless = method.is_safe() && !passed_on;
                blamed && harmless && is_worth_another(&error) && forwarding.may_try_another()
            }
        };
        if !again || passed_on || !upload.can_be_sent_again() {
            return Err(error);
        }
        self.note_retry(match (fate, error.etype()) {
            (Fate::Stale, _) => "stale",
            (Fate::Unprocessed, _) => "refused",
            (Fate::Unknown, kind) if *kind == UPSTREAM_AWAY => "status",
            (Fate::Unknown, _) => "broken",
        });
        Ok(())
    }

    fn note_retry(&self, reason: &str) {
        let labels = [&*self.forwarding.upstream.name, reason];
        let retries = &self.gate.metrics.upstream_retries;
        retries.with_label_values(&labels).inc();
    }

    /// One attempt at a server.
    async fn attempt(&mut self, upload: &mut Upload) -> Result<(), Failed> {
        let Some((peer, is_fresh)) = self.forwarding.attempt() else {
            let context = "the upstream has no server";
            let error = Error::explain(ErrorType::InternalError, context);
            return Err(Failed {
                error,
                reached: None,
            });
        };
        let taken = self.gate.connections.take(&peer, is_fresh).await;
        let (taken, reused) = taken.map_err(|error| Failed {
            error: error.into_up(),
            reached: None,
        })?;
        let kind = if reused { "reused" } else { "new" };
        let labels = [&*self.forwarding.upstream.name, kind];
        let connections = &self.gate.metrics.upstream_connections;
        connections.with_label_values(&labels).inc();
        pace::note_forwarded();
        let done = self.exchange_with(taken, &peer, upload).await;
        done.map_err(|error| Failed {
            error,
            reached: Some((peer, reused)),
        })
    }

    /// Sends the request to a server that was reached, and passes its answer on.
    async fn exchange_with(
        &mut self,
        taken: Taken,
        peer: &HttpPeer,
        upload: &mut Upload,
    ) -> pingora::Result<()> {
        let version = match &taken {
            Taken::Http1(_) => Version::HTTP_11,
            Taken::Http2(_) => Version::HTTP_2,
        };
        if !self.forwarding.upstream.takes(version) {
            return Err(not_http2());
        }
        if pace::is_given_up() {
            return Err(given_up());
        }
        if let Some(gone) = gone_before(self.client).await {
            return Err(gone);
        }
        let request = self.request()?;
        let framing = framing(self.client, &request);
        // What is left before it is written fails as a 500, which is refunded.
        self.forwarding.note_sent();
        let mut link =
            Link::begin(taken, request, framing, peer.is_tls()).map_err(Error::into_up)?;
        let answered = self.drive(&mut link, peer, upload).await;
        if answered.is_ok() {
            link.finish(&self.gate.connections, peer).await;
        }
        answered
    }

    /// The request as this attempt's server gets it.
    fn request(&mut self) -> pingora::Result<RequestHeader> {
        let Relay {
            client,
            exchange,
            forwarding,
            ..
        } = self;
        let recorded = exchange.steps.recording.as_mut().map(|recording| {
            let span = recording.attempt(forwarding.server());
            (recording.context, span)
        });
        let origin = exchange.origin.as_ref();
        let record = &forwarding.key.record;
        let identity = Identity {
            request_id: &exchange.request_id,
            client: origin.map(|origin| origin.address.clone()),
            scheme: origin.map_or("http", |origin| origin.scheme),
            host: origin.and_then(|origin| origin.host.clone()),
            key_id: record.id.as_str(),
            tier: record.tier.as_str(),
            upstream_host: forwarding.server().map_or("", |server| &server.name),
            recorded,
        };
        let mut request = client.header.clone();
        forward::rebuild_request(&mut request, &identity, &exchange.snapshot.denied)?;
        if let Some((name, value)) = &forwarding.upstream.header {
            request.insert_header(name.clone(), value.clone())?;
        }
        Ok(request)
    }

    /// Drives an exchange to the end of its answer.
    async fn drive(
        &mut self,
        link: &mut Link,
        peer: &HttpPeer,
        upload: &mut Upload,
    ) -> pingora::Result<()> {
        let patience = peer.options.read_timeout.unwrap_or_default();
        let mut timer = Timer::default();
        let mut held = Bytes::new();
        let kept = upload.kept();
        upload.count(self.forwarding, &kept, upload.ended())?;
        if upload.ended() || !self.is_as_long_as_announced() {
            link.push(kept, upload.ended())?;
        } else {
            held = kept;
        }
        let mut deadline = Instant::now() + patience;
        loop {
            let listens = upload.ended() || link.takes_more() || !held.is_empty();
            let turn = tokio::select! {
                biased;
                event = link.next() => Turn::Server(event),
                part = next(self.client, upload.ended()), if listens => Turn::Client(part),
                () = std::future::poll_fn(|context| timer.poll_until(deadline, context)) => Turn::Late,
            };
            match turn {
                Turn::Server(event) => {
                    let event = event.map_err(Error::into_up)?;
                    if self.pass(link, event, upload).await? {
                        break;
                    }
                    deadline = Instant::now() + patience;
                }
                Turn::Client(part) => {
                    let part = part?;
                    let ends = part.is_none() || self.client.is_body_done();
                    let part = part.unwrap_or_default();
                    upload.count(self.forwarding, &part, ends)?;
                    upload.take(&part, ends);
                    if ends {
                        // From now on the server is waited for.
                        deadline = Instant::now() + patience;
                    }
                    let before = mem::take(&mut held);
                    if ends && part.is_empty() {
                        link.push(before, true)?;
                        continue;
                    }
                    link.push(before, false)?;
                    if !ends && self.is_as_long_as_announced() {
                        held = part;
                    } else {
                        link.push(part, ends)?;
                    }
                }
                Turn::Late if !listens => {
                    let context = "the server took nothing of the request's body for too long";
                    return Error::e_explain(ErrorType::WriteTimedout, context)
                        .map_err(Error::into_up);
                }
                Turn::Late => {
                    let context = "the server was silent for too long";
                    return Error::e_explain(ErrorType::ReadTimedout, context)
                        .map_err(Error::into_up);
                }
            }
        }
        Ok(())
    }

    /// Whether the body would be whole for its server. It is not before the client has ended it: more may come, which makes the request
    /// malformed.
    fn is_as_long_as_announced(&self) -> bool {
        let announced = announced(&self.client.header.headers);
        announced.is_some_and(|bytes| bytes <= self.forwarding.request_body_bytes as u64)
    }

    /// Passes an event on, with those that follow at once. Returns whether the answer is whole.
    async fn pass(
        &mut self,
        link: &mut Link,
        event: Event,
        upload: &mut Upload,
    ) -> pingora::Result<bool> {
        let (mut pieces, mut ended, mut failed) = (Vec::new(), false, None);
        let mut next = Some(Ok(event));
        while let Some(event) = next.take() {
            let made = event.map_err(Error::into_up).and_then(|event| {
                let Relay {
                    gate,
                    client,
                    exchange,
                    forwarding,
                } = self;
                answer::pass(gate, client, exchange, forwarding, event)
            });
            match made {
                Ok(Some((piece, ends))) => {
                    pieces.push(piece);
                    ended = ends;
                }
                Ok(None) => {}
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
            if !ended && !pieces.is_empty() && pieces.len() < PIECES_MAX {
                next = match look_at(link.next()).await {
                    Poll::Ready(event) => Some(event),
                    Poll::Pending => None,
                };
            }
        }
        if !pieces.is_empty() {
            self.client.write(pieces).await?;
            if header_passed(self.client) {
                upload.forget();
            }
        }
        match failed {
            Some(error) => Err(error),
            None => Ok(ended),
        }
    }
}

/// How the body of a request is framed for its server.
fn framing(client: &Client<'_>, request: &RequestHeader) -> Framing {
    match announced(&request.headers) {
        Some(bytes) => Framing::Length(bytes),
        None if client.is_body_empty() => Framing::Empty,
        None => Framing::Chunked,
    }
}

/// The length of the body that a request announces.
fn announced(fields: &HeaderMap) -> Option<u64> {
    let announced = fields.get(CONTENT_LENGTH);
    announced.map(HeaderValue::as_bytes).and_then(length)
}

/// The next part of the request's body; behind its end, what ends the client.
async fn next(client: &mut Client<'_>, is_over: bool) -> pingora::Result<Option<Bytes>> {
    match is_over {
        false => client.read().await,
        true => Err(client.gone().await),
    }
}
