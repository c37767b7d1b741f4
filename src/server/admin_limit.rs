//! The limits of the admin listener: its connections share the open files of the process with those of clients.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pingora::apps::{HttpServerApp, ReusedHttpStream};
use pingora::protocols::http::ServerSession;
use pingora::server::ShutdownWatch;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::admin::AdminService;
use crate::policy::limit_hit::LimitHit;
use crate::telemetry::limit_hits::LimitHits;

/// Connections at once: scrapers, probes and some viewers of the dashboard, of whom each browser opens up to six.
const CONNECTIONS_MAX: usize = 64;
/// The time from the start of a connection, or from its last answer, to the end of the next answer; longer than the usual pause
/// between two scrapes (15 s).
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

/// The admin application with limits.
pub struct LimitedAdmin {
    admin: Arc<AdminService>,
    places: Semaphore,
    limit_hits: LimitHits,
}

impl LimitedAdmin {
    /// Limits `admin`; `limit_hits` counts what is closed.
    pub fn new(admin: AdminService, limit_hits: LimitHits) -> LimitedAdmin {
        LimitedAdmin {
            admin: Arc::new(admin),
            places: Semaphore::new(CONNECTIONS_MAX),
            limit_hits,
        }
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
            self.limit_hits.note(LimitHit::AdminConnections);
            return None;
        };
        let request = self.admin.process_new_http(session, shutdown);
        match timeout(REQUEST_TIMEOUT, request).await {
            Ok(reused) => reused,
            Err(_) => {
                self.limit_hits.note(LimitHit::AdminRequest);
                None
            }
        }
    }
}
