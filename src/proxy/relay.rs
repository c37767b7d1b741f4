//! Forwarding: a permitted request is sent to a server of its upstream, and the answer to the client.
//!
//! | Room | Job |
//! |---|---|
//! | [`connections`] | connections to servers, new and kept ones |
//! | `link` | one exchange with a server, over HTTP/1 or HTTP/2 (`http1`, `http2`) |
//! | [`health_check`] | a request of the gateway's own, to one server |
//! | `answer` | the upstream's answer as the client receives it; `compressing` |
//! | `upload` | the request's body, and the part kept for another attempt |
//!
//! [`Relay::run`] makes attempts at servers until one answers. An attempt drives the upload, the answer and the watch for a
//! client that disconnects in one loop. A part of an answer is read from the server once the client's side has taken the earlier
//! ones: at most four parts are in memory, each of 16 KiB over HTTP/1 and of a stream's window (32 KiB) over HTTP/2, besides up to 64 KiB of
//! the request's body while it may be sent again.
//!
//! Invariants: nothing is sent again once the head of an answer has been sent to the client; a connection over HTTP/1 that has
//! not carried the last byte of both messages is closed.

use std::mem;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::poll_immediate;
use http::{HeaderValue, Version};
use tokio::time::Instant;

use super::client::{Client, Piece};
use super::connection::allowance::Reads;
use super::exchange::{Exchange, Forwarding};
use super::failure::{ClientFault, Failure, Fate, Fault, ServerFault};
use super::forward::Outgoing;
use super::gate::Gate;
use super::received_body::collecting;
use super::settlement::is_servers_fault;
use crate::policy::http1::framing::Framing;

mod answer;
mod compressing;
pub mod connections;
pub mod health_check;
mod http1;
mod http2;
mod link;
mod upload;

use connections::TakenConnection;
use link::Link;
use upload::Upload;

/// A larger head has its connection over HTTP/2 alone until the answer begins: servers end the connection for one that they do not accept,
/// nginx for a field of 8 kB.
const SHARED_HEAD_BYTES_MAX: usize = 4 * 1024;
/// A placeholder, which is not the host of any server.
static NO_HOST: HeaderValue = HeaderValue::from_static("");
/// Pieces of an answer that are written to the client together; small parts that follow one another are one.
const PIECES_MAX: usize = 4;
/// The silence of a server after which a request whose client disconnects casts doubt on the connection. Clients may always give up
/// before `timeouts.read`. If it were shorter, clients that disconnect early would cause many new connections; if it were much longer, few
/// clients would wait for it.
const SUSPICIOUS_SILENCE: Duration = Duration::from_secs(1);

/// A permitted request and everything that forwarding it needs.
pub struct Relay<'a, 'c> {
    /// The state shared by requests.
    pub gate: &'a Arc<Gate>,
    /// The client's side.
    pub client: &'a mut Client<'c>,
    /// The request.
    pub exchange: &'a mut Exchange,
    /// Its forwarding.
    pub forwarding: &'a mut Forwarding,
}

/// An attempt that did not answer the request.
struct FailedAttempt {
    failure: Failure,
    /// Whether its connection was reused; `None` if the server could not be reached, which is its fault.
    reused: Option<bool>,
}

/// The next event of an exchange.
enum NextEvent {
    Server(Result<Option<Piece>, Failure>),
    Client(Result<Option<Bytes>, Failure>),
    Late,
}

impl Relay<'_, '_> {
    /// Forwards the request, as often as its upstream's settings and the failures allow, and forwards the answer.
    ///
    /// # Errors
    /// With the failure that ended the forwarding; the caller settles it.
    pub async fn run(mut self) -> Result<(), Failure> {
        let bytes_max = self.exchange.snapshot.config.limits.body_bytes;
        let turn = self.client.turn().cloned();
        let mut upload = Upload::new(bytes_max, self.client.is_body_done(), turn);
        loop {
            let failed = match self.attempt(&mut upload).await {
                Ok(()) => return Ok(()),
                Err(failed) => failed,
            };
            self.judge(failed, &upload)?;
        }
    }

    /// Decides whether another attempt follows a failed one.
    ///
    /// # Errors
    /// With the failure, if no other attempt is made.
    fn judge(&mut self, failed: FailedAttempt, upload: &Upload) -> Result<(), Failure> {
        let FailedAttempt { failure, reused } = failed;
        let Some(reused) = reused else {
            // Nothing was sent, so a request of any method may try another server.
            self.forwarding.note_failed(&failure, self.gate);
            if !self.forwarding.may_retry() {
                return Err(failure);
            }
            self.note_retry("connect");
            return Ok(());
        };
        let mut failure = self.forwarding.with_server(failure);
        // The server has not confirmed that it supports HTTP/2.
        let unasked = !reused && self.forwarding.upstream.wire.assumes_http2();
        if unasked && failure.may_be_other_protocol() {
            failure = failure.with("the first request on a connection: does it support HTTP/2?");
        }
        let fate = failure.fate(reused);
        let wants_http1 = failure.is_about_version();
        let is_hopeless = wants_http1 && !self.forwarding.upstream.wire.takes(Version::HTTP_11);
        let blamed =
            (fate == Fate::Unknown || is_hopeless) && is_servers_fault(&failure, self.client);
        let passed_on = self.client.header_passed();
        let forwarding = &mut *self.forwarding;
        if wants_http1 && let Some(server) = forwarding.server() {
            forwarding.upstream.note_wants_http1(server);
        }
        // The blame for an interrupted answer is decided when the exchange is settled.
        if blamed && !passed_on {
            forwarding.note_failed(&failure, self.gate);
        }
        if fate != Fate::Unknown {
            forwarding.anew = true;
        }
        let method = &self.client.head.method;
        let again = match fate {
            Fate::Stale => method.is_idempotent() && forwarding.may_retry(),
            Fate::Unprocessed => forwarding.may_retry(),
            Fate::Unknown => {
                let harmless = method.is_safe() && failure.is_worth_another();
                blamed && harmless && forwarding.may_try_another()
            }
        };
        if !again || passed_on || !upload.can_be_sent_again() {
            return Err(failure);
        }
        // One that speaks another version of HTTP is to blame for it.
        if fate != Fate::Unknown && !wants_http1 {
            self.forwarding.release_server();
        }
        self.note_retry(match (fate, failure.fault) {
            (Fate::Stale, _) => "stale",
            (Fate::Unprocessed, _) => "refused",
            (Fate::Unknown, Fault::Server(ServerFault::Away)) => "status",
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
    async fn attempt(&mut self, upload: &mut Upload) -> Result<(), FailedAttempt> {
        // The connection of an earlier attempt may have ended because of the request.
        let is_alone = self.forwarding.upstream.wire.takes(Version::HTTP_2)
            && (self.forwarding.attempts > 0 || may_harm_others(self.client));
        let Some(attempt) = self.forwarding.attempt(is_alone) else {
            let cause = "none of its servers has an address";
            return Err(FailedAttempt {
                failure: Failure::server(ServerFault::Unreached, cause),
                reused: None,
            });
        };
        if let Some(recording) = &mut self.exchange.admission_trace.recording {
            recording.attempt(self.forwarding.server());
        }
        let taken = tokio::select! {
            biased;
            taken = self.gate.connections.take(&attempt) => taken,
            gone = self.cut_off() => {
                return Err(FailedAttempt {
                    failure: gone,
                    reused: Some(false),
                });
            }
        };
        let (taken, reused) = match taken {
            Ok(taken) => taken,
            // The time that earlier attempts took is not this server's fault.
            Err(_) if self.forwarding.attempts > 1 && !self.forwarding.has_time_left() => {
                return Err(FailedAttempt {
                    failure: Failure::over_time(),
                    reused: Some(false),
                });
            }
            Err(failure) => {
                return Err(FailedAttempt {
                    failure: self.forwarding.with_server(failure),
                    reused: None,
                });
            }
        };
        let series = self.forwarding.upstream.series(&self.gate.metrics);
        match reused {
            true => series.reused.inc(),
            false => series.new.inc(),
        }
        let started = match reused {
            true => attempt.now,
            false => std::time::Instant::now(),
        };
        let was_sent = self.forwarding.charged.was_sent();
        let done = self.exchange_with(taken, upload, started.into());
        done.await.map_err(|failure| {
            if failure.fate(reused) == Fate::Unprocessed && !was_sent {
                self.forwarding.charged.note_unprocessed();
            }
            FailedAttempt {
                failure,
                reused: Some(reused),
            }
        })
    }

    /// Waits until the gateway has cut its client off: a gateway that stops closes the store soon after, so what has not been sent by
    /// then must be refunded before.
    async fn cut_off(&mut self) -> Failure {
        self.gate.cut_off.cancelled().await;
        self.client.gone().await
    }

    /// Sends the request to a server that was connected at `started`, and forwards its answer.
    async fn exchange_with(
        &mut self,
        taken: TakenConnection,
        upload: &mut Upload,
        started: Instant,
    ) -> Result<(), Failure> {
        let version = match &taken {
            TakenConnection::Http1(_) => Version::HTTP_11,
            TakenConnection::Http2(_) => Version::HTTP_2,
        };
        if !self.forwarding.upstream.wire.takes(version) {
            let cause = "protocol is http2, but the server did not agree to it by ALPN";
            return Err(Failure::server(ServerFault::NotHttp2, cause));
        }
        if let Some(gone) = self.client.gone_already().await {
            return Err(gone);
        }
        let mut link = self.begin(taken)?;
        let ended = match self.drive(&mut link, upload, started).await {
            Ok(ended) => ended,
            Err(failure) => {
                let is_doubtful = self.suggests_dead_connection(&failure, &link, upload, started);
                if is_doubtful || link.left_body_unread() {
                    link.distrust();
                }
                return Err(failure);
            }
        };
        let patience = self.forwarding.upstream.config.timeouts.idle;
        link.finish(&self.gate.connections, patience, ended.into_std())
            .await;
        Ok(())
    }

    /// Whether an exchange that began at `started` failed as if the other end of its connection no longer existed: the server was silent.
    fn suggests_dead_connection(
        &self,
        failure: &Failure,
        link: &Link,
        upload: &Upload,
        started: Instant,
    ) -> bool {
        match failure.fault {
            Fault::Server(ServerFault::Blocked) => true,
            // Else the server may wait for the client's body.
            Fault::Server(ServerFault::Silent) => upload.ended(),
            Fault::Client(ClientFault::Gone) | Fault::Server(ServerFault::OverTime) => {
                let is_servers_turn = upload.ended() || !link.takes_more();
                is_servers_turn
                    && !self.client.header_passed()
                    && started.elapsed() >= SUSPICIOUS_SILENCE
            }
            Fault::Server(_) | Fault::Client(_) | Fault::Gateway => false,
        }
    }

    /// Sends the head of the request to the server of this attempt.
    fn begin(&mut self, taken: TakenConnection) -> Result<Link, Failure> {
        let Relay {
            client,
            exchange,
            forwarding,
            ..
        } = self;
        let recorded = exchange
            .admission_trace
            .recording
            .as_ref()
            .map(|recording| (recording.context, recording.attempt_id()));
        let (server, origin) = (forwarding.server(), &exchange.origin);
        let forwarded_host = origin.host.as_ref();
        let record = &forwarding.key.record;
        let outgoing = Outgoing {
            head: &client.head,
            host: server.map_or(&NO_HOST, |server| &server.authority),
            framing: framing(client),
            request_id: &exchange.request_id,
            client: &origin.address,
            scheme: origin.scheme,
            asked_host: forwarded_host
                .map(HeaderValue::as_bytes)
                .or(client.head.host()),
            key_id: record.id.as_bytes(),
            tier: record.tier.as_str(),
            recorded,
            denied: &exchange.snapshot.denied,
            secret: forwarding.upstream.header.as_ref(),
        };
        let link = Link::begin(taken, &outgoing, forwarding.upstream.wire.is_tls())?;
        if link.is_sent_at_once() {
            forwarding.charged.note_sent();
        }
        Ok(link)
    }

    /// Drives an exchange that `started` just now to the end of its answer. Returns when that arrived.
    async fn drive(
        &mut self,
        link: &mut Link,
        upload: &mut Upload,
        started: Instant,
    ) -> Result<Instant, Failure> {
        let timeouts = &self.forwarding.upstream.config.timeouts;
        let patience = timeouts.read;
        let end = Instant::from_std(self.forwarding.since) + timeouts.total;
        let mut timer = self.client.lend_timer();
        let turn = self.client.turn().cloned();
        let may_compress = self.forwarding.upstream.compression.is_some();
        let mut reads = Reads::new(turn.clone(), may_compress);
        let paused_so_far = || turn.as_ref().map_or(Duration::ZERO, |turn| turn.paused());
        let is_paused = || turn.as_ref().is_some_and(|turn| turn.is_paused());
        let mut paused = Duration::ZERO;
        let mut held = Bytes::new();
        let kept = upload.kept();
        upload.count(self.forwarding, &kept, upload.ended())?;
        if upload.ended() || !self.is_as_long_as_announced() {
            link.push(kept, upload.ended())?;
        } else {
            held = kept;
        }
        let has_whole_time = upload.ended() && self.forwarding.attempts == 1;
        let mut since = started;
        loop {
            // While a client over HTTP/2 takes nothing, the server's time does not end.
            let deadline = match is_paused() {
                true => since + patience,
                false => (since + patience).min(end + paused),
            };
            let listens = upload.ended() || link.takes_more() || !held.is_empty();
            let unasked_since = (!listens).then(Instant::now);
            let body = link.body();
            let exchanged = async {
                self.forwarding.charged.note_sent();
                link.next().await
            };
            let next = tokio::select! {
                biased;
                event = reads.read(exchanged, body.as_deref()) => NextEvent::Server(event),
                part = next(self.client, listens && !upload.ended()) => NextEvent::Client(part),
                () = std::future::poll_fn(|context| timer.poll_until(deadline, context)) => NextEvent::Late,
            };
            if let Some(unasked) = unasked_since {
                self.client.note_unasked(unasked.elapsed());
            }
            match next {
                NextEvent::Server(event) => {
                    let now = Instant::now();
                    if self.pass(link, event?, upload, now).await? {
                        self.client.return_timer(timer);
                        return Ok(now);
                    }
                    if self.client.header_passed() {
                        reads.note_begun();
                    }
                    // Time in which the client did not take the answer is not the server's.
                    paused = paused_so_far();
                    since = Instant::now();
                }
                NextEvent::Client(part) => {
                    if self.send(link, upload, &mut held, part?)? {
                        // From now on the gateway waits for the server.
                        since = Instant::now();
                    }
                }
                NextEvent::Late if is_paused() || paused_so_far() > paused => {
                    // The gateway did not wait for the server.
                    paused = paused_so_far();
                    since = Instant::now();
                }
                NextEvent::Late => {
                    return Err(match since.elapsed() >= patience {
                        true => self.silence(upload, listens),
                        false => self.overtime(has_whole_time),
                    });
                }
            }
        }
    }

    /// Sends a part of the request's body, or its end. The part that completes an announced length is `held` until the client has
    /// ended the body. Returns whether it has.
    fn send(
        &mut self,
        link: &mut Link,
        upload: &mut Upload,
        held: &mut Bytes,
        part: Option<Bytes>,
    ) -> Result<bool, Failure> {
        let ends = part.is_none() || self.client.is_body_done();
        let part = part.unwrap_or_default();
        upload.count(self.forwarding, &part, ends)?;
        upload.take(&part, ends);
        let before = mem::take(held);
        if ends && part.is_empty() {
            link.push(before, true)?;
            return Ok(true);
        }
        link.push(before, false)?;
        if !ends && self.is_as_long_as_announced() {
            *held = part;
        } else {
            link.push(part, ends)?;
        }
        Ok(ends)
    }

    /// The failure at the end of `timeouts.total`, of which the server `had_all`.
    fn overtime(&self, had_all: bool) -> Failure {
        match had_all && self.forwarding.header_after.is_none() {
            true => Failure::server(ServerFault::Silent, "sent no answer in timeouts.total"),
            false => Failure::over_time(),
        }
    }

    /// The failure of the side for which the gateway has waited for `timeouts.read`; it `listens` if it reads the client's body.
    fn silence(&self, upload: &Upload, listens: bool) -> Failure {
        if !listens {
            let cause = "read nothing of the request's body for timeouts.read";
            return Failure::server(ServerFault::Blocked, cause);
        }
        if !upload.ended() {
            // An upstream that sends nothing before it has the whole body waits for the client.
            let cause = "sent nothing of the request's body for timeouts.read";
            return Failure::client(ClientFault::Late, cause);
        }
        Failure::server(ServerFault::Silent, "sent nothing for timeouts.read")
    }

    /// Whether the body would be complete for its server. It is not before the client has ended it: the client may send more,
    /// which makes the request malformed.
    fn is_as_long_as_announced(&self) -> bool {
        match self.client.head.framing {
            Framing::Length(bytes) => bytes <= self.forwarding.request_body_bytes as u64,
            Framing::Empty | Framing::Chunked => false,
        }
    }

    /// Forwards an event that arrived at `now`, and those that follow at once. Returns whether the answer is complete.
    async fn pass(
        &mut self,
        link: &mut Link,
        event: Option<Piece>,
        upload: &mut Upload,
        now: Instant,
    ) -> Result<bool, Failure> {
        let (mut pieces, mut ended, mut failed) = (Vec::<Piece>::new(), false, None);
        let mut next = Some(Ok(event));
        while let Some(event) = next.take() {
            let made = event.and_then(|event| {
                let Relay {
                    gate,
                    client,
                    exchange,
                    forwarding,
                } = self;
                answer::pass(gate, client, exchange, forwarding, event, now.into_std())
            });
            match made {
                Ok(Some(piece)) => {
                    ended = piece.ends();
                    let other = match pieces.last_mut() {
                        Some(last) => last.join(piece),
                        None => Some(piece),
                    };
                    pieces.extend(other);
                }
                Ok(None) => {}
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
            if !ended && !pieces.is_empty() && pieces.len() < PIECES_MAX {
                next = poll_immediate(link.next()).await;
            }
        }
        if !pieces.is_empty() {
            let bytes = || pieces.iter().map(Piece::held_bytes).sum();
            let _held = self.client.turn().map(|turn| turn.hold(bytes(), 0));
            let written = self.client.write(pieces);
            match link.body() {
                Some(body) => collecting(&body, pin!(written)).await?,
                None => written.await?,
            }
            if self.client.header_passed() {
                upload.forget();
            }
        }
        match failed {
            Some(error) => Err(error),
            None => Ok(ended),
        }
    }
}

/// Whether a request may hold up or end others that share its connection: some servers read nothing more of a connection, or open its window
/// no further, while a handler does not read its body.
fn may_harm_others(client: &Client<'_>) -> bool {
    let head_bytes = client.head.fields.bytes() + client.head.raw_target().len();
    !framing(client).is_empty() || head_bytes > SHARED_HEAD_BYTES_MAX
}

/// The framing of a request's body for its server.
fn framing(client: &Client<'_>) -> Framing {
    match client.head.framing {
        Framing::Chunked if client.is_body_empty() => Framing::Empty,
        framing => framing,
    }
}

/// The next part of the request's body if it is `wanted`; else waits for the client's failure.
async fn next(client: &mut Client<'_>, wanted: bool) -> Result<Option<Bytes>, Failure> {
    match wanted {
        true => client.read().await,
        false => Err(client.gone().await),
    }
}
