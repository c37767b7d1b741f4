//! pingora's hooks, in the order in which they run for a request.
//!
//! `request_filter` runs once and admits; everything from `upstream_peer` to `response_filter` runs again for each
//! attempt, so nothing is charged there; `upstream_response_filter` and `response_filter` also run for 1xx answers.
//! `fail_to_proxy` settles what went wrong, `logging` only records.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::protocols::Digest;
use pingora::proxy::{FailToProxy, ProxyHttp, ProxyWarnLogContext, Session};
use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, ErrorSource, ErrorType};

use super::admission::{self, Admitted, Refusal};
use super::connection::pace::{self, Part};
use super::connection::{self, Connection};
use super::exchange::{Ending, Exchange, Forwarding, Served, Stage};
use super::forward::{self, Identity, TRACEPARENT, X_REQUEST_ID};
use super::framing;
use super::gate::Gate;
use super::origin::Origin;
use super::record;
use super::respond::{self, Answer, announce, insert_standing};
use super::trace::Recording;
use super::well_formed;
use crate::policy::http1;
use crate::policy::own_path::OwnPath;
use crate::policy::rejection::Rejection;

mod answering;
mod compressing;
mod failure;
mod request_body;

use failure::{
    Fate, UPSTREAM_AWAY, UPSTREAM_STATUS, client_blocked, given_up, gone_before, header_passed,
    is_other_protocol, is_upstreams, is_worth_another, not_http2, over_time,
};

/// The gateway as pingora's application.
#[derive(Debug, Clone)]
pub struct Edge {
    gate: Arc<Gate>,
}

impl Edge {
    /// The edge of `gate`.
    pub fn new(gate: Arc<Gate>) -> Edge {
        Edge { gate }
    }

    fn note_retry(&self, exchange: &mut Exchange, reason: &str) {
        if let Some(forwarding) = exchange.forwarding() {
            let labels = [&*forwarding.upstream.name, reason];
            let retries = &self.gate.metrics.upstream_retries;
            retries.with_label_values(&labels).inc();
        }
    }
}

#[async_trait]
impl ProxyHttp for Edge {
    type CTX = Exchange;

    fn new_ctx(&self) -> Exchange {
        Exchange::begin(&self.gate)
    }

    fn init_downstream_modules(&self, _: &mut pingora::modules::http::HttpModules) {
        // pingora's default is a compression module that does nothing until it is configured.
    }

    async fn request_filter(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
    ) -> pingora::Result<bool> {
        let snapshot = exchange.snapshot.clone();
        let limits = &snapshot.config.limits;
        // What HTTP/1.0 had for it was never standardised.
        let old = session.req_header().version == http::Version::HTTP_10;
        let keepalive = if old || self.gate.is_draining() || is_retired(session) {
            None
        } else {
            // The connection's guard keeps the exact deadlines.
            Some((limits.keepalive_idle + limits.request_head).as_secs() + 2)
        };
        session.set_keepalive(keepalive);
        session.set_read_timeout(Some(limits.request_read));
        // Over HTTP/1 the connection's guard looks at what the client reads; over HTTP/2 it cannot, because a client that does not
        // read says so in frames.
        let is_http2 = connection::is_http2(session);
        session.set_write_timeout(is_http2.then_some(limits.response_write));
        let sent = &session.req_header().headers;
        exchange.identify(sent.get(X_REQUEST_ID));
        exchange.steps.recording =
            Recording::begin(sent.get(TRACEPARENT), &exchange.snapshot.config.tracing);
        let trusted = &exchange.snapshot.config.listen.trusted_proxies;
        exchange.origin = Origin::of(session, trusted);
        if is_encrypted(session) {
            exchange.hsts = respond::hsts(&exchange.snapshot.config);
        }
        let bodiless =
            request_body::expect_none(session, &snapshot.head_limits, limits.request_read).await;
        let raw = session
            .as_http1()
            .map(|session| session.get_headers_raw_bytes());
        let header = session.req_header();
        let admitted = match bodiless {
            Ok(()) => {
                let (raw, steps) = (raw.as_deref(), &mut exchange.steps);
                admission::admit(&self.gate, &snapshot, header, raw, steps).await
            }
            Err(malformed) => Err(Refusal::of(Rejection::BadRequest(malformed))),
        };
        match admitted {
            Err(refusal) => {
                self.refuse(session, exchange, refusal).await?;
                Ok(true)
            }
            Ok(Admitted::Document) => {
                let answer =
                    Answer::with_document(session.req_header(), exchange, &snapshot.document);
                let served = Served::new(OwnPath::Document, None);
                self.serve(session, exchange, answer, served).await?;
                Ok(true)
            }
            Ok(Admitted::Usage(usage)) => {
                let method = &session.req_header().method;
                let now = self.gate.store.now();
                let answer =
                    Answer::with_usage(method, exchange, usage.report, usage.standing, now);
                let served = Served::new(OwnPath::Usage, Some(usage.key));
                self.serve(session, exchange, answer, served).await?;
                Ok(true)
            }
            Ok(Admitted::Forward(permit)) => {
                let tier = permit.key().record.tier.as_str();
                let charged = u64::from(permit.endpoint().cost.get());
                self.gate
                    .metrics
                    .quota_units
                    .with_label_values(&[tier, "charged"])
                    .inc_by(charged);
                let blocked = client_blocked(session);
                let forwarding = Forwarding::begin(&self.gate, permit, blocked);
                exchange.stage = Stage::Forwarding(Box::new(forwarding));
                if well_formed::expects_continue(session.req_header()) && !session.is_body_done() {
                    // Should the client be gone, reading its body will tell.
                    let _ = session.as_downstream_mut().write_continue_response().await;
                }
                Ok(false)
            }
        }
    }

    async fn upstream_peer(
        &self,
        _: &mut Session,
        exchange: &mut Exchange,
    ) -> pingora::Result<Box<HttpPeer>> {
        let Some(forwarding) = exchange.forwarding() else {
            return Err(Error::explain(
                ErrorType::InternalError,
                "nothing is forwarded without a permit",
            ));
        };
        let peer = forwarding.attempt();
        peer.map(Box::new)
            .ok_or_else(|| Error::explain(ErrorType::InternalError, "the upstream has no server"))
    }

    fn fail_to_connect(
        &self,
        _: &mut Session,
        _: &HttpPeer,
        exchange: &mut Exchange,
        mut error: Box<Error>,
    ) -> Box<Error> {
        // Nothing was sent, so any method may try another server.
        let again = exchange.forwarding().is_some_and(|forwarding| {
            forwarding.note_failed(&self.gate);
            forwarding.may_retry()
        });
        if again {
            self.note_retry(exchange, "connect");
        }
        error.set_retry(again);
        error
    }

    fn error_while_proxy(
        &self,
        peer: &HttpPeer,
        session: &mut Session,
        error: Box<Error>,
        exchange: &mut Exchange,
        client_reused: bool,
    ) -> Box<Error> {
        let mut error = error.more_context(format!("Peer: {peer}"));
        if is_other_protocol(&error, peer, client_reused) {
            error = error.more_context("the first request on a connection: does it speak HTTP/2?");
        }
        let fate = Fate::of(&mut error, client_reused);
        let blamed = fate == Fate::Unknown && is_upstreams(&error, session);
        let passed_on = header_passed(session);
        let again = exchange.forwarding().is_some_and(|forwarding| {
            if let (ErrorType::H2Downgrade | ErrorType::InvalidH2, Some(server)) =
                (error.etype(), forwarding.server())
            {
                forwarding.upstream.note_wants_http1(server);
            }
            // What broke an answer off is judged when the exchange is settled.
            if blamed && !passed_on {
                forwarding.note_failed(&self.gate);
            }
            if fate != Fate::Unknown {
                forwarding.connect_anew();
            }
            let whole = !session.as_ref().retry_buffer_truncated();
            let method = &session.req_header().method;
            let again = match fate {
                Fate::Stale => method.is_idempotent() && forwarding.may_retry(),
                Fate::Unprocessed => forwarding.may_retry(),
                Fate::Unknown => {
                    let harmless = method.is_safe() && !passed_on;
                    blamed && harmless && is_worth_another(&error) && forwarding.may_try_another()
                }
            };
            again && whole && !passed_on
        });
        if again {
            let reason = match (fate, error.etype()) {
                (Fate::Stale, _) => "stale",
                (Fate::Unprocessed, _) => "refused",
                (Fate::Unknown, kind) if *kind == UPSTREAM_AWAY => "status",
                (Fate::Unknown, _) => "broken",
            };
            self.note_retry(exchange, reason);
        }
        error.set_retry(again);
        error
    }

    async fn connected_to_upstream(
        &self,
        _: &mut Session,
        reused: bool,
        _: &HttpPeer,
        _: std::os::fd::RawFd,
        _: Option<&Digest>,
        exchange: &mut Exchange,
    ) -> pingora::Result<()> {
        pace::note_forwarded();
        if let Some(forwarding) = exchange.forwarding() {
            let kind = if reused { "reused" } else { "new" };
            let connections = &self.gate.metrics.upstream_connections;
            connections
                .with_label_values(&[&*forwarding.upstream.name, kind])
                .inc();
        }
        Ok(())
    }

    async fn upstream_request_filter(
        &self,
        session: &mut Session,
        request: &mut RequestHeader,
        exchange: &mut Exchange,
    ) -> pingora::Result<()> {
        let snapshot = exchange.snapshot.clone();
        let request_id = exchange.request_id.clone();
        let origin = exchange.origin.clone();
        let Stage::Forwarding(forwarding) = &mut exchange.stage else {
            return Err(Error::explain(
                ErrorType::InternalError,
                "nothing is forwarded without a permit",
            ));
        };
        if !forwarding.upstream.takes(request.version) {
            return Err(not_http2());
        }
        if pace::is_given_up() {
            return Err(given_up());
        }
        if let Some(gone) = gone_before(session).await {
            return Err(gone);
        }
        let recorded = exchange.steps.recording.as_mut().map(|recording| {
            let span = recording.attempt(forwarding.server());
            (recording.context, span)
        });
        let record = &forwarding.key.record;
        let identity = Identity {
            request_id: &request_id,
            client: origin.as_ref().map(|origin| origin.address.clone()),
            scheme: origin.as_ref().map_or("http", |origin| origin.scheme),
            host: origin.and_then(|origin| origin.host),
            key_id: record.id.as_str(),
            tier: record.tier.as_str(),
            upstream_host: forwarding.server().map_or("", |server| &server.name),
            recorded,
        };
        forward::rebuild_request(request, &identity, &snapshot.denied)?;
        if let Some((name, value)) = &forwarding.upstream.header {
            request.insert_header(name.clone(), value.clone())?;
        }
        // What is left before it is written fails as a 500, which is refunded.
        forwarding.note_sent();
        Ok(())
    }

    async fn request_body_filter(
        &self,
        _: &mut Session,
        body: &mut Option<Bytes>,
        end_of_stream: bool,
        exchange: &mut Exchange,
    ) -> pingora::Result<()> {
        let limit = exchange.snapshot.head_limits.body_bytes_max;
        match exchange.forwarding() {
            Some(forwarding) => request_body::pass(forwarding, body, end_of_stream, limit),
            None => Ok(()),
        }
    }

    async fn upstream_response_filter(
        &self,
        _: &mut Session,
        response: &mut ResponseHeader,
        exchange: &mut Exchange,
    ) -> pingora::Result<()> {
        let paused = pace::paused();
        if let Some(forwarding) = exchange.forwarding() {
            if pace::is_given_up() {
                forwarding.header_after = Some(forwarding.since.elapsed().saturating_sub(paused));
                return Err(given_up());
            }
            if forwarding.is_over_time_without(paused) {
                return Err(over_time());
            }
        }
        let switches_protocol = response.status == http::StatusCode::SWITCHING_PROTOCOLS;
        if response.status.is_informational() && !switches_protocol {
            return Ok(());
        }
        if let Some(forwarding) = exchange.forwarding() {
            forwarding.header_after = Some(forwarding.since.elapsed());
        }
        let away = forward::is_away(response.status);
        if let (Some(forwarding), false) = (exchange.forwarding(), away) {
            forwarding.note_served();
        }
        if forward::is_our_failure(response.status) {
            let context = format!("the upstream answered {}", response.status.as_u16());
            return Err(Error::create(
                if away { UPSTREAM_AWAY } else { UPSTREAM_STATUS },
                ErrorSource::Upstream,
                Some(context.into()),
                None,
            ));
        }
        Ok(())
    }

    async fn response_filter(
        &self,
        session: &mut Session,
        response: &mut ResponseHeader,
        exchange: &mut Exchange,
    ) -> pingora::Result<()> {
        let snapshot = exchange.snapshot.clone();
        if response.status.is_informational() {
            forward::clean_response(response, &snapshot.answer_denied, |_| ());
            return Ok(());
        }
        if self.gate.is_draining() {
            session.set_keepalive(None);
        }
        let now = self.gate.store.now();
        let (status, announced_bytes) = (response.status, content_length(&response.headers));
        if response.version == http::Version::HTTP_10 {
            // A gateway's answers are of its own version (RFC 9112 section 2.3), which frames them too.
            response.set_version(http::Version::HTTP_11);
        }
        let request = session.req_header();
        forward::clean_response(response, &snapshot.answer_denied, |fields| {
            respond::insert_common(fields, exchange);
            forward::confine_response(fields);
            if let Some(forwarding) = exchange.forwarding() {
                announce(fields, &forwarding.endpoint.retirement);
                insert_standing(fields, forwarding.standing, now);
                forwarding.announced_bytes = announced_bytes;
                compressing::begin(forwarding, request, status, fields);
            }
        });
        if let Some(forwarding) = exchange.forwarding() {
            if ends_with_header(&request.method, response) {
                forwarding.leave();
            }
            framing::mend(session, response, forwarding.encoder.as_deref());
        }
        Ok(())
    }

    fn response_body_filter(
        &self,
        session: &mut Session,
        body: &mut Option<Bytes>,
        end_of_stream: bool,
        exchange: &mut Exchange,
    ) -> pingora::Result<Option<Duration>> {
        let blocked = client_blocked(session);
        if let Some(forwarding) = exchange.forwarding() {
            if pace::is_given_up() {
                return Err(given_up());
            }
            let read_bytes = body.as_ref().map_or(0, Bytes::len) as u64;
            compressing::pass(forwarding, body, end_of_stream)?;
            pace::note_part(Part {
                read_bytes,
                passed_bytes: body.as_ref().map_or(0, Bytes::len) as u64,
                announced_bytes: forwarding.announced_bytes,
                sent_bytes: session.body_bytes_sent() as u64,
                encoder_bytes: forwarding
                    .encoder
                    .as_ref()
                    .map_or(0, |encoder| encoder.held_bytes()),
                ended: end_of_stream,
            });
            forwarding.client_waits.note(blocked, Instant::now());
            if end_of_stream {
                forwarding.leave();
            } else if forwarding.is_over_time() {
                return Err(over_time());
            }
        }
        Ok(None)
    }

    /// Trailers are not passed on: over HTTP/1.1 they never were, and a client could take them for the gateway's own headers.
    async fn response_trailer_filter(
        &self,
        session: &mut Session,
        trailers: &mut HeaderMap,
        exchange: &mut Exchange,
    ) -> pingora::Result<Option<Bytes>> {
        trailers.clear();
        // The end of the body in their place; with them, `response_body_filter` is not told of it.
        let mut end = Some(Bytes::new());
        self.response_body_filter(session, &mut end, true, exchange)?;
        Ok(end)
    }

    async fn fail_to_proxy(
        &self,
        session: &mut Session,
        error: &Error,
        exchange: &mut Exchange,
    ) -> FailToProxy {
        let cause = error.to_string();
        match &mut exchange.stage {
            Stage::Forwarding(forwarding) => self.settle(session, error, forwarding).await,
            Stage::Refused(_) | Stage::Served(_) => {}
            Stage::Arrived => {
                let refusal = Refusal {
                    cause: Some(cause),
                    ..Refusal::of(Rejection::Internal)
                };
                exchange.stage = Stage::Refused(refusal);
            }
        }
        let (rejection, standing, endpoint) = match &exchange.stage {
            Stage::Forwarding(forwarding) => match &forwarding.ending {
                Some(Ending::Rejected(rejection)) => (
                    rejection,
                    Some(forwarding.standing),
                    Some(&*forwarding.endpoint),
                ),
                Some(Ending::Cut | Ending::ClientClosed) | None => return failed_with(0),
            },
            Stage::Refused(refusal) => (&refusal.rejection, refusal.standing, refusal.endpoint()),
            Stage::Served(_) | Stage::Arrived => return failed_with(0),
        };
        let method = &session.req_header().method;
        let now = self.gate.store.now();
        let answer = Answer::to(method, exchange, rejection, standing, endpoint, now);
        let status = rejection.status().as_u16();
        // If the client is gone there is nobody to tell.
        let _ = answer.write_instead(session).await;
        failed_with(status)
    }

    async fn logging(&self, session: &mut Session, error: Option<&Error>, exchange: &mut Exchange) {
        record::record(&self.gate, session, error, exchange);
    }

    fn suppress_error_log(&self, _: &Session, _: &Exchange, _: &Error) -> bool {
        // The access log has the cause.
        true
    }

    fn suppress_proxy_warn_log(
        &self,
        _: &Session,
        _: &Exchange,
        _: &Error,
        _: ProxyWarnLogContext,
    ) -> bool {
        true
    }
}

/// Whether an answer has no body (RFC 9112 section 6.3).
fn ends_with_header(method: &Method, response: &ResponseHeader) -> bool {
    let empty = response.headers.get(CONTENT_LENGTH);
    method == Method::HEAD
        || [StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED].contains(&response.status)
        || empty.is_some_and(|length| length.as_bytes() == b"0")
}

fn failed_with(status: u16) -> FailToProxy {
    FailToProxy {
        error_code: status,
        can_reuse_downstream: false,
    }
}

/// Whether the client came with TLS.
fn is_encrypted(session: &Session) -> bool {
    let digest = session.digest();
    digest.is_some_and(|digest| digest.ssl_digest.is_some())
}

/// Whether the connection takes no further request.
fn is_retired(session: &Session) -> bool {
    Connection::of(session).is_some_and(|connection| connection.is_retired())
}

/// The length of the body that a message announces, if it does and can be read.
fn content_length(fields: &HeaderMap) -> Option<u64> {
    let values = fields.get_all(CONTENT_LENGTH).iter();
    http1::agreed_length(values.map(HeaderValue::as_bytes))
}
