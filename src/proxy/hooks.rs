//! pingora's hooks, in the order in which they run for a request.
//!
//! `request_filter` admits, and answers: itself, or by forwarding the request ([`super::relay`]). `fail_to_proxy` settles what went
//! wrong, `logging` only records.

use std::sync::Arc;

use async_trait::async_trait;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, HeaderValue};
use pingora::proxy::{FailToProxy, ProxyHttp, ProxyWarnLogContext, Session};
use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, ErrorType};

use super::admission::{self, Admitted, Refusal};
use super::connection::{self, Connection};
use super::exchange::{Ending, Exchange, Forwarding, Served, Stage};
use super::failure::{client_blocked, settle};
use super::forward::{TRACEPARENT, X_REQUEST_ID};
use super::gate::Gate;
use super::origin::Origin;
use super::record;
use super::relay::Relay;
use super::respond::{self, Answer};
use super::trace::Recording;
use super::well_formed;
use crate::policy::http1::agreed_length;
use crate::policy::own_path::OwnPath;
use crate::policy::rejection::Rejection;

mod answering;
mod request_body;

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
                let mut forwarding = Box::new(Forwarding::begin(&self.gate, permit, blocked));
                if well_formed::expects_continue(session.req_header()) && !session.is_body_done() {
                    // Should the client be gone, reading its body will tell.
                    let _ = session.as_downstream_mut().write_continue_response().await;
                }
                let relay = Relay {
                    gate: &self.gate,
                    session,
                    exchange,
                    forwarding: &mut forwarding,
                };
                let answered = Box::pin(relay.run()).await;
                exchange.stage = Stage::Forwarding(forwarding);
                answered.map(|()| true)
            }
        }
    }

    /// Never called: `request_filter` answers every request.
    async fn upstream_peer(
        &self,
        _: &mut Session,
        _: &mut Exchange,
    ) -> pingora::Result<Box<HttpPeer>> {
        let context = "nothing is forwarded without a permit";
        Err(Error::explain(ErrorType::InternalError, context))
    }

    async fn fail_to_proxy(
        &self,
        session: &mut Session,
        error: &Error,
        exchange: &mut Exchange,
    ) -> FailToProxy {
        let cause = error.to_string();
        match &mut exchange.stage {
            Stage::Forwarding(forwarding) => {
                settle(&self.gate, session, error, forwarding).await;
            }
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
    agreed_length(values.map(HeaderValue::as_bytes))
}
