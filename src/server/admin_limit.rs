//! The limits of the admin listener: its connections share the open files of the process with those of clients.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use pingora::apps::{HttpServerApp, ReusedHttpStream};
use pingora::protocols::http::ServerSession;
use pingora::server::ShutdownWatch;
use tokio::sync::Notify;
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
    /// What ends each connection; the one that has waited longest first.
    connections: Mutex<VecDeque<Arc<Notify>>>,
    limit_hits: LimitHits,
}

impl LimitedAdmin {
    /// Limits `admin`; `limit_hits` counts what is closed.
    pub fn new(admin: AdminService, limit_hits: LimitHits) -> LimitedAdmin {
        LimitedAdmin {
            admin: Arc::new(admin),
            connections: Mutex::default(),
            limit_hits,
        }
    }

    /// Registers a connection, and ends the one that has waited longest if there are too many: a client that holds many open must not
    /// make a probe or a scrape fail.
    fn register(&self) -> Arc<Notify> {
        let end = Arc::new(Notify::new());
        let mut connections = self.connections.lock();
        if connections.len() >= CONNECTIONS_MAX
            && let Some(longest) = connections.pop_front()
        {
            self.limit_hits.note(LimitHit::AdminConnections);
            longest.notify_one();
        }
        connections.push_back(end.clone());
        end
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
        let end = self.register();
        let request = self.admin.process_new_http(session, shutdown);
        let answered = tokio::select! {
            answered = timeout(REQUEST_TIMEOUT, request) => answered,
            () = end.notified() => Ok(None),
        };
        let mut connections = self.connections.lock();
        connections.retain(|other| !Arc::ptr_eq(other, &end));
        drop(connections);
        answered.unwrap_or_else(|_| {
            self.limit_hits.note(LimitHit::AdminRequest);
            None
        })
    }
}
