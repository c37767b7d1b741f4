//! The limits of the admin listener: its connections share the open files of the process with those of clients.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pingora::apps::{HttpServerApp, ReusedHttpStream};
use pingora::protocols::http::ServerSession;
use pingora::server::ShutdownWatch;
use prometheus::IntCounterVec;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::admin::AdminService;

/// Connections at once: scrapers, probes and some viewers of the dashboard, of whom each browser opens up to six.
const CONNECTIONS_MAX: usize = 64;
/// The time from the start of a connection, or from its last answer, to the end of the next answer; longer than the usual pause
/// between two scrapes (15 s).
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

/// The admin application with limits.
pub struct LimitedAdmin {
    admin: Arc<AdminService>,
    places: Semaphore,
    limit_hits: IntCounterVec,
}

impl LimitedAdmin {
    /// Limits `admin`; `limit_hits` counts what is closed.
    pub fn new(admin: AdminService, limit_hits: IntCounterVec) -> LimitedAdmin {
        LimitedAdmin {
            admin: Arc::new(admin),
            places: Semaphore::new(CONNECTIONS_MAX),
            limit_hits,
        }
    }

    fn note_limit(&self, limit: &str) {
        self.limit_hits.with_label_values(&[limit]).inc();
    }
}

#[async_trait]
impl HttpServerApp for LimitedAdmin {
    /// Waits for a request and answers it. A connection is in this call from its beginning to its end, apart from the moments between
    /// two requests.
    async fn process_new_http(
        self: &Arc<Self>,
        session: ServerSession,
        shutdown: &ShutdownWatch,
    ) -> Option<ReusedHttpStream> {
        let Ok(_place) = self.places.try_acquire() else {
            self.note_limit("admin_connections");
            return None;
        };
        let request = self.admin.process_new_http(session, shutdown);
        match timeout(REQUEST_TIMEOUT, request).await {
            Ok(reused) => reused,
            Err(_) => {
                self.note_limit("admin_request");
                None
            }
        }
    }
}
