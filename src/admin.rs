//! The admin listener: `/livez`, `/readyz`, `/config`, `/metrics`, `/dashboard` (where `/` leads), `/dashboard.json`.
//!
//! The listener is independent of the request path; its content comes from the store and the metric families. `/livez` reports that
//! the process answers; `/readyz` whether the gateway itself can serve a request sent now, whatever its upstreams do, possibly without
//! the store or another promise (`degraded`), and if not, why; `/config` the effective configuration, without secrets; `/dashboard` is a page that shows
//! [`dashboard::Dashboard`]. Nothing can be changed here. If a token is configured, requests without it get only the status of the
//! first two and the page, which is the same for every viewer. Without a token (on loopback only) every path requires a `Host` that
//! is an address or `localhost`, so that no page of another site can read it.

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use http::header::{
    ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_SECURITY_POLICY, CONTENT_TYPE,
    HOST, LOCATION, REFERRER_POLICY, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, Version};
use pingora::apps::http_app::ServeHttp;
use pingora::protocols::http::ServerSession;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::config::Effective;
use crate::policy::secret::Secret;
use crate::store::{NodeName, Store, WithoutStore};
use crate::telemetry::history::{History, SAMPLE_INTERVAL};
use crate::telemetry::metrics::Metrics;

pub mod dashboard;
mod readiness;
mod reloads;
pub mod today;

use dashboard::{Dashboard, PAGE};
use readiness::Readiness;
pub use reloads::{ConfigView, RefusedFile, Reload};
use today::{LastSurvey, SurveyTerms, Surveyor};

/// The Prometheus text format.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
const JSON_TYPE: &str = "application/json";
const HTML_TYPE: &str = "text/html; charset=utf-8";
/// Isolates the dashboard's page from other sites (HTML, "cross-origin opener policies"; Fetch, "`Cross-Origin-Resource-Policy`").
const OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");
/// The prefix of a token.
const BEARER: &[u8] = b"Bearer ";
const PATHS: &[u8] =
    br#"{"paths":["/livez","/readyz","/config","/metrics","/dashboard","/dashboard.json"]}"#;
const MISDIRECTED: &[u8] = br#"{"status":"misdirected","hint":"without listen.admin.token the Host header must be localhost or an address: use one, or set a token"}"#;
/// The statuses of `/readyz`: requests are served with all promises, without one of them (`reasons`), or not at all.
const READY: &str = "ready";
const DEGRADED: &str = "degraded";
const UNREADY: &str = "unready";
const PARTLY_UP: &str = "a master of the Redis Cluster does not serve all of its slots (see store_trouble): requests with its keys are decided without it, or refused under outage: deny";

/// The application behind the admin listener.
pub struct AdminService {
    node: NodeName,
    started: Instant,
    store: Arc<dyn Store>,
    metrics: Arc<Metrics>,
    history: Arc<History>,
    surveyor: Arc<Surveyor>,
    view: Box<dyn Fn() -> View + Send + Sync>,
}

/// The state of the rest of the gateway, as the composition passes it to the admin listener.
#[derive(Debug, Clone)]
pub struct View {
    /// Whether the gateway is about to stop.
    pub draining: bool,
    /// The running configuration's history.
    pub config: Arc<ConfigView>,
    /// The effective configuration.
    pub effective: Arc<Effective>,
    /// The token that `/metrics` and the other protected paths require, if one is configured.
    pub token: Option<Secret>,
    /// The quota day and the tiers' limits; `None` if the calendar has no such day.
    pub terms: Option<SurveyTerms>,
    /// Why the gateway is not `ready`, beside the reasons that the store reports.
    pub reasons: Vec<String>,
}

impl AdminService {
    /// The admin application of the gateway `node`, which starts now; `view` is called at each request.
    pub fn new(
        node: NodeName,
        store: Arc<dyn Store>,
        metrics: Arc<Metrics>,
        history: Arc<History>,
        view: impl Fn() -> View + Send + Sync + 'static,
    ) -> AdminService {
        AdminService {
            node,
            started: Instant::now(),
            surveyor: Surveyor::new(store.clone()),
            store,
            metrics,
            history,
            view: Box::new(view),
        }
    }

    fn readiness(&self) -> Readiness {
        let health = self.store.health();
        let View {
            draining,
            config,
            reasons,
            ..
        } = (self.view)();
        let serves = health.up || health.partly_up || health.without_store == WithoutStore::Serves;
        let ready = serves && health.keys.loaded && health.keys.usable && !draining;
        let leap = health.clock_leap.map(|leap| leap.to_string());
        let in_part = health.partly_up.then(|| PARTLY_UP.to_owned());
        let of_store = leap.into_iter().chain(health.file_trouble);
        let of_store = of_store.chain(health.keys_trouble);
        let of_store = of_store.chain(health.register_trouble).chain(in_part);
        let mut reasons: Vec<String> = of_store.chain(reasons).collect();
        if !ready && !draining && reasons.is_empty() {
            let waits = || {
                "the key table is not loaded yet, or not current: see `touchline store status` and the log".to_owned()
            };
            reasons.push(health.trouble.clone().unwrap_or_else(waits));
        }
        Readiness {
            status: match (ready, health.up && reasons.is_empty()) {
                (true, true) => READY,
                (true, false) => DEGRADED,
                (false, _) => UNREADY,
            },
            draining,
            store_up: health.up,
            store_partly_up: health.partly_up,
            store_trouble: health.trouble,
            without_store: health.without_store,
            pending_units: health.pending_units,
            keys_loaded: health.keys.loaded,
            keys_age_seconds: health.keys.known_age().map(|age| age.as_secs_f64()),
            keys_usable: health.keys.usable,
            keys: self.store.keys().len(),
            reasons,
            config: ConfigView::clone(&config),
        }
    }

    fn render_metrics(&self) -> String {
        let (health, metrics) = (self.store.health(), &self.metrics);
        let count = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        metrics.store_up.set(health.up.into());
        let failed = health.without_store == WithoutStore::JournalFailed;
        metrics.journal_failed.set(failed.into());
        let degraded = !health.up && health.without_store == WithoutStore::Serves;
        metrics.store_degraded.set(degraded.into());
        metrics.journal_pending.set(count(health.pending_units));
        metrics.gateways_silent.set(count(health.silent_gateways));
        let (keys, age) = (self.store.keys().len(), health.keys.known_age());
        metrics.key_table(health.keys.loaded, keys, age);
        let leapt = health.clock_leap.map_or(0.0, |leap| leap.by.as_secs_f64());
        metrics.clock_leap.set(leapt);
        let readiness = self.readiness();
        metrics.ready.set((readiness.status != UNREADY).into());
        let reasons = i64::try_from(readiness.reasons.len()).unwrap_or(i64::MAX);
        metrics.readiness_reasons.set(reasons);
        metrics.render()
    }

    fn dashboard(&self) -> Dashboard {
        let View { config, terms, .. } = (self.view)();
        let LastSurvey { today, error } = match terms {
            Some(terms) => self.surveyor.ask(terms),
            None => LastSurvey::default(),
        };
        Dashboard {
            time: self.store.now(),
            node: self.node.clone(),
            version: env!("CARGO_PKG_VERSION"),
            uptime_seconds: self.started.elapsed().as_secs(),
            readiness: self.readiness(),
            reloads: config.reloads.clone(),
            today,
            today_error: error,
            answered: dashboard::answered(&self.metrics),
            upstreams: dashboard::upstreams(&self.metrics),
            sample_seconds: SAMPLE_INTERVAL.as_secs(),
            samples: self.history.samples(),
        }
    }

    /// The answer for a path; `opened` states whether the request may read the protected paths.
    fn content(&self, path: &str, opened: Result<(), Closed>) -> AdminAnswer {
        match (path, opened) {
            ("/livez", _) => AdminAnswer::json(StatusCode::OK, br#"{"status":"live"}"#),
            ("/readyz", opened) => {
                let readiness = self.readiness();
                let status = match readiness.status {
                    UNREADY => StatusCode::SERVICE_UNAVAILABLE,
                    _ => StatusCode::OK,
                };
                match opened {
                    Ok(()) => AdminAnswer::json(
                        status,
                        serde_json::to_vec(&readiness).unwrap_or_default(),
                    ),
                    Err(Closed) => {
                        AdminAnswer::json(status, format!(r#"{{"status":"{}"}}"#, readiness.status))
                    }
                }
            }
            ("/", _) => AdminAnswer::json(StatusCode::FOUND, PATHS),
            ("/dashboard", _) => AdminAnswer {
                status: StatusCode::OK,
                content_type: HTML_TYPE,
                body: PAGE.body.clone(),
            },
            (_, Err(Closed)) => {
                AdminAnswer::json(StatusCode::UNAUTHORIZED, br#"{"status":"unauthorized"}"#)
            }
            ("/config", Ok(())) => {
                let effective = serde_json::to_vec(&*(self.view)().effective);
                AdminAnswer::json(StatusCode::OK, effective.unwrap_or_default())
            }
            ("/metrics", Ok(())) => AdminAnswer {
                status: StatusCode::OK,
                content_type: METRICS_TYPE,
                body: self.render_metrics().into_bytes(),
            },
            ("/dashboard.json", Ok(())) => {
                let dashboard = serde_json::to_vec(&self.dashboard());
                AdminAnswer::json(StatusCode::OK, dashboard.unwrap_or_default())
            }
            (_, Ok(())) => AdminAnswer::json(StatusCode::NOT_FOUND, PATHS),
        }
    }

    fn answer(&self, method: &Method, path: &str, headers: &HeaderMap) -> Response<Vec<u8>> {
        let token = (self.view)().token;
        let misdirected = token.is_none() && !dashboard::is_local(headers.get(HOST));
        let taken = method == Method::GET || method == Method::HEAD;
        let content = if misdirected {
            AdminAnswer::json(StatusCode::MISDIRECTED_REQUEST, MISDIRECTED)
        } else {
            let opened = match &token {
                Some(token) if !opens(headers.get(AUTHORIZATION), token) => Err(Closed),
                Some(_) | None => Ok(()),
            };
            let content = self.content(path, opened);
            if taken {
                content
            } else {
                AdminAnswer {
                    status: StatusCode::METHOD_NOT_ALLOWED,
                    body: Vec::new(),
                    ..content
                }
            }
        };
        let mut answer = Response::builder()
            .status(content.status)
            .header(CONTENT_TYPE, content.content_type)
            .header(CONTENT_LENGTH, content.body.len())
            .header(CACHE_CONTROL, "no-store")
            .header(RESOURCE_POLICY, "same-origin")
            .header(X_CONTENT_TYPE_OPTIONS, "nosniff");
        if content.content_type == HTML_TYPE {
            answer = answer
                .header(CONTENT_SECURITY_POLICY, &PAGE.policy)
                .header(X_FRAME_OPTIONS, "DENY")
                .header(REFERRER_POLICY, "no-referrer")
                .header(OPENER_POLICY, "same-origin");
        }
        if content.status == StatusCode::FOUND {
            answer = answer.header(LOCATION, "/dashboard");
        }
        if content.status == StatusCode::UNAUTHORIZED {
            answer = answer.header(WWW_AUTHENTICATE, "Bearer realm=\"touchline admin\"");
        }
        if content.status == StatusCode::METHOD_NOT_ALLOWED {
            answer = answer.header(ALLOW, "GET, HEAD");
        }
        let body = if method == Method::HEAD {
            Vec::new()
        } else {
            content.body
        };
        answer.body(body).unwrap_or_default()
    }
}

/// The request does not carry the token.
#[derive(Debug, Clone, Copy)]
struct Closed;

/// An answer before its headers.
struct AdminAnswer {
    status: StatusCode,
    content_type: &'static str,
    body: Vec<u8>,
}

impl AdminAnswer {
    fn json(status: StatusCode, body: impl Into<Vec<u8>>) -> AdminAnswer {
        AdminAnswer {
            status,
            content_type: JSON_TYPE,
            body: body.into(),
        }
    }
}

#[async_trait]
impl ServeHttp for AdminService {
    async fn response(&self, session: &mut ServerSession) -> Response<Vec<u8>> {
        let header = session.req_header();
        let answer = self.answer(&header.method, header.uri.path(), &header.headers);
        if header.version == Version::HTTP_10 {
            // Its end shows the end of the answer to a client that knows no Content-Length; pingora keeps the connection.
            session.set_keepalive(None);
        }
        answer
    }
}

/// Whether these are the credentials (RFC 6750 section 2.1). The duration does not reveal how much of the token matches.
fn opens(authorization: Option<&HeaderValue>, token: &Secret) -> bool {
    let Some((scheme, presented)) =
        authorization.and_then(|value| value.as_bytes().split_at_checked(BEARER.len()))
    else {
        return false;
    };
    let (presented, token) = (Sha256::digest(presented), Sha256::digest(token.reveal()));
    scheme.eq_ignore_ascii_case(BEARER) && presented.ct_eq(&token).into()
}
