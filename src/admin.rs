//! The admin listener: `/livez`, `/readyz`, `/config`, `/metrics`.
//!
//! It knows nothing of requests; what it shows comes from the store's health and the metric families. `/livez` says that
//! the process answers; `/readyz` that a request sent now can be served, be it
//! without the store (`degraded`), and else why not; `/config` what the running configuration comes to, without secrets. With a
//! token configured, only whoever has it sees more than the first two's status.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use http::header::{
    ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, WWW_AUTHENTICATE,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderValue, Method, Response, StatusCode};
use jiff::Timestamp;
use pingora::apps::http_app::ServeHttp;
use pingora::protocols::http::ServerSession;
use serde::Serialize;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::config::{Effective, Secret};
use crate::store::{Store, WithoutStore};
use crate::telemetry::metrics::Metrics;

/// The Prometheus text format.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
const JSON_TYPE: &str = "application/json";
/// What comes before a token.
const BEARER: &[u8] = b"Bearer ";
/// What `/readyz` calls the gateway: served by the store, served without it, not served.
const READY: &str = "ready";
const DEGRADED: &str = "degraded";
const UNREADY: &str = "unready";

/// The application behind the admin listener.
pub struct Admin {
    store: Arc<dyn Store>,
    metrics: Arc<Metrics>,
    view: Box<dyn Fn() -> View + Send + Sync>,
}

/// What the composition tells the admin listener of the rest of the gateway.
#[derive(Debug, Clone)]
pub struct View {
    /// Whether the gateway is about to stop.
    pub draining: bool,
    /// Access log lines lost so far.
    pub access_log_dropped: usize,
    /// How the configuration came to run.
    pub config: Arc<ConfigView>,
    /// What it comes to.
    pub effective: Arc<Effective>,
    /// What opens the metrics; without one they are open.
    pub token: Option<Secret>,
}

/// The running configuration, and what keeps the file from being it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConfigView {
    /// The hash of what runs.
    pub hash: String,
    /// Since when it runs.
    pub applied: Timestamp,
    /// Why the file is not what runs, where it is not.
    pub refused: Option<Refused>,
}

/// A configuration file that was not applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Refused {
    /// When.
    pub at: Timestamp,
    /// Why: its problems, one a line.
    pub reason: String,
}

impl ConfigView {
    /// The configuration with this hash runs from now on.
    pub fn applied(hash: String, now: Timestamp) -> ConfigView {
        ConfigView {
            hash,
            applied: now,
            refused: None,
        }
    }

    /// The same configuration, beside a file that was refused.
    pub fn but_refused(&self, refused: Refused) -> ConfigView {
        ConfigView {
            refused: Some(refused),
            ..self.clone()
        }
    }
}

/// The body of `/readyz`.
#[derive(Debug, PartialEq, Serialize)]
struct Readiness {
    status: &'static str,
    draining: bool,
    store_up: bool,
    /// What becomes of charges while the store is away.
    without_store: WithoutStore,
    pending_units: u64,
    keys_loaded: bool,
    keys_age_seconds: f64,
    keys_usable: bool,
    keys: usize,
    config: ConfigView,
}

impl Admin {
    /// An admin application; `view` is asked at each request.
    pub fn new(
        store: Arc<dyn Store>,
        metrics: Arc<Metrics>,
        view: impl Fn() -> View + Send + Sync + 'static,
    ) -> Admin {
        Admin {
            store,
            metrics,
            view: Box::new(view),
        }
    }

    fn readiness(&self) -> Readiness {
        let health = self.store.health();
        let View {
            draining, config, ..
        } = (self.view)();
        let serves = health.up || health.without_store == WithoutStore::Serves;
        let ready = serves && health.keys.loaded && health.keys.usable && !draining;
        Readiness {
            status: match (ready, health.up) {
                (true, true) => READY,
                (true, false) => DEGRADED,
                (false, _) => UNREADY,
            },
            draining,
            store_up: health.up,
            without_store: health.without_store,
            pending_units: health.pending_units,
            keys_loaded: health.keys.loaded,
            keys_age_seconds: health.keys.age.as_secs_f64(),
            keys_usable: health.keys.usable,
            keys: self.store.keys().len(),
            config: ConfigView::clone(&config),
        }
    }

    fn render_metrics(&self) -> String {
        let readiness = self.readiness();
        self.metrics.store_up.set(i64::from(readiness.store_up));
        let failed = readiness.without_store == WithoutStore::JournalFailed;
        self.metrics.journal_failed.set(failed.into());
        let degraded = !readiness.store_up && readiness.without_store == WithoutStore::Serves;
        self.metrics.store_degraded.set(degraded.into());
        self.metrics
            .journal_pending
            .set(i64::try_from(readiness.pending_units).unwrap_or(i64::MAX));
        self.metrics
            .keys
            .set(i64::try_from(readiness.keys).unwrap_or(i64::MAX));
        self.metrics.keys_age.set(readiness.keys_age_seconds);
        self.metrics
            .access_log_dropped
            .set(i64::try_from((self.view)().access_log_dropped).unwrap_or(i64::MAX));
        self.metrics.render()
    }

    fn answer(
        &self,
        method: &Method,
        path: &str,
        authorization: Option<&HeaderValue>,
    ) -> Response<Vec<u8>> {
        let token = (self.view)().token;
        let opened = token.is_none_or(|token| opens(authorization, &token));
        let (status, content_type, body) = match path {
            "/livez" => (StatusCode::OK, JSON_TYPE, br#"{"status":"live"}"#.to_vec()),
            "/readyz" => {
                let readiness = self.readiness();
                let status = if readiness.status == UNREADY {
                    StatusCode::SERVICE_UNAVAILABLE
                } else {
                    StatusCode::OK
                };
                (
                    status,
                    JSON_TYPE,
                    if opened {
                        serde_json::to_vec(&readiness).unwrap_or_default()
                    } else {
                        format!(r#"{{"status":"{}"}}"#, readiness.status).into_bytes()
                    },
                )
            }
            _ if !opened => (
                StatusCode::UNAUTHORIZED,
                JSON_TYPE,
                br#"{"status":"unauthorized"}"#.to_vec(),
            ),
            "/config" => (
                StatusCode::OK,
                JSON_TYPE,
                serde_json::to_vec(&*(self.view)().effective).unwrap_or_default(),
            ),
            "/metrics" => (
                StatusCode::OK,
                METRICS_TYPE,
                self.render_metrics().into_bytes(),
            ),
            _ => (
                StatusCode::NOT_FOUND,
                JSON_TYPE,
                br#"{"paths":["/livez","/readyz","/config","/metrics"]}"#.to_vec(),
            ),
        };
        let taken = method == Method::GET || method == Method::HEAD;
        let (status, body) = if taken {
            (status, body)
        } else {
            (StatusCode::METHOD_NOT_ALLOWED, Vec::new())
        };
        let mut answer = Response::builder()
            .status(status)
            .header(CONTENT_TYPE, content_type)
            .header(CONTENT_LENGTH, body.len())
            .header(CACHE_CONTROL, "no-store")
            .header(X_CONTENT_TYPE_OPTIONS, "nosniff");
        if status == StatusCode::UNAUTHORIZED {
            answer = answer.header(WWW_AUTHENTICATE, "Bearer realm=\"touchline admin\"");
        }
        if !taken {
            answer = answer.header(ALLOW, "GET, HEAD");
        }
        let body = if method == Method::HEAD {
            Vec::new()
        } else {
            body
        };
        answer.body(body).unwrap_or_default()
    }
}

#[async_trait]
impl ServeHttp for Admin {
    async fn response(&self, session: &mut ServerSession) -> Response<Vec<u8>> {
        let header = session.req_header();
        self.answer(
            &header.method,
            header.uri.path(),
            header.headers.get(AUTHORIZATION),
        )
    }
}

/// Whether these are the credentials (RFC 6750 section 2.1). How long it takes does not tell how much of the token fits.
fn opens(authorization: Option<&HeaderValue>, token: &Secret) -> bool {
    let Some((scheme, presented)) =
        authorization.and_then(|value| value.as_bytes().split_at_checked(BEARER.len()))
    else {
        return false;
    };
    let (presented, token) = (Sha256::digest(presented), Sha256::digest(token.reveal()));
    scheme.eq_ignore_ascii_case(BEARER) && presented.ct_eq(&token).into()
}

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Admin")
    }
}
