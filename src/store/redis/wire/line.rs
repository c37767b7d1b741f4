//! One connection to one server, up or down: no caller waits for it to be made.
//!
//! A call without a connection fails at once; a call with one ends by its deadline. The connection is dropped when it is
//! broken, when the server replies that it cannot serve (read-only, loading, master down), or after two timeouts in a row;
//! one task ([`ServerLine::keep`]) then makes another, prepares it, and only then publishes it. Behind Sentinel, every new one
//! is to the current master. The client library's own reconnecting and retrying is not used: it hides both
//! (docs/decisions/redis-link.md).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, Pipeline, ServerErrorKind, Value};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout, timeout_at};

use super::preparation::{Preparation, begin};
use super::request::{Commands, LinkError, breaks, jittered, refused};
use super::topology::{Address, Dialled, Topology};
use crate::store::StoreError;

/// Consecutive timeouts after which a connection is taken for hung.
const TIMEOUTS_MAX: u32 = 2;
/// The shortest and the longest wait between attempts to connect, before jitter.
const RECONNECT_MIN: Duration = Duration::from_millis(50);
const RECONNECT_MAX: Duration = Duration::from_secs(1);
/// How often the sentinels are asked whether the master is still the same.
const MASTER_EVERY: Duration = Duration::from_secs(1);
/// How long preparing a connection may take.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(1);

/// The connection, if there is one.
pub struct ServerLine {
    server: Topology,
    /// `None` for a node of a cluster, which is prepared as a whole: of each node, only the scripts.
    preparation: Option<Arc<Preparation>>,
    response_timeout: Duration,
    live: ArcSwapOption<Dialled>,
    /// Why there is no connection.
    trouble: ArcSwapOption<StoreError>,
    /// Since when there is no connection, or `None` if there is one.
    down_since: Mutex<Option<std::time::Instant>>,
    made: Arc<AtomicU64>,
    timeouts: AtomicU32,
    broken: Notify,
}

impl ServerLine {
    /// A line without a connection; [`ServerLine::keep`] makes it. `made` counts the connections, other lines' too.
    pub fn new(
        server: Topology,
        preparation: Option<Arc<Preparation>>,
        response_timeout: Duration,
        made: Arc<AtomicU64>,
    ) -> ServerLine {
        ServerLine {
            server,
            preparation,
            response_timeout,
            live: ArcSwapOption::empty(),
            trouble: ArcSwapOption::empty(),
            down_since: Mutex::new(Some(std::time::Instant::now())),
            made,
            timeouts: AtomicU32::new(0),
            broken: Notify::new(),
        }
    }

    /// Whether there is a connection.
    pub fn is_up(&self) -> bool {
        self.live.load().is_some()
    }

    /// The master that the sentinels named for the current connection.
    pub fn named_master(&self) -> Option<Address> {
        self.live.load().as_ref()?.master.clone()
    }

    /// The server, as its operator knows it: behind Sentinel, the master that is connected.
    pub fn shown(&self) -> String {
        self.named_master()
            .map_or_else(|| self.server.to_string(), |named| named.to_string())
    }

    /// Why there is no connection, or `None` if there is one.
    pub fn trouble(&self) -> Option<Arc<StoreError>> {
        self.trouble.load_full()
    }

    /// Since when there is no connection, or `None` if there is one.
    pub fn down_since(&self) -> Option<std::time::Instant> {
        *self.down_since.lock()
    }

    /// Whether there is a connection or one was attempted.
    pub fn is_tried(&self) -> bool {
        self.is_up() || self.trouble.load().is_some()
    }

    /// Fails at once if there is no connection.
    pub fn require(&self) -> Result<(), LinkError> {
        if self.is_up() {
            Ok(())
        } else {
            Err(self.no_connection())
        }
    }

    fn no_connection(&self) -> LinkError {
        LinkError::no_connection(&self.server, self.trouble.load().as_deref())
    }

    /// Sends commands and waits for their result until `deadline`. Redirections of a cluster's node are returned as
    /// [`LinkError::Refused`].
    pub async fn query(&self, parts: Commands<'_>, deadline: Instant) -> Result<Value, LinkError> {
        match self.live.load_full() {
            Some(live) => self.query_on(&live, parts, deadline).await,
            None => Err(self.no_connection()),
        }
    }

    /// The result of each command of a pipeline, which is sent in one write. An error of one does not affect the others.
    pub async fn each(
        &self,
        pipeline: &Pipeline,
        deadline: Instant,
    ) -> Vec<Result<Value, LinkError>> {
        let all = |error| vec![Err(error); pipeline.len()];
        let Some(live) = self.live.load_full() else {
            return all(self.no_connection());
        };
        let values = match self
            .query_on(&live, Commands::Each(pipeline), deadline)
            .await
        {
            Ok(Value::Array(values)) if values.len() == pipeline.len() => values,
            Ok(other) => return all(LinkError::Unreadable(format!("{other:?}"))),
            Err(error) => return all(error),
        };
        let results = values.into_iter().map(|value| self.answered(value));
        let results: Vec<_> = results.collect();
        if let Some(Err(LinkError::Lost(why))) = results.iter().find(|result| is_lost(result)) {
            self.drop_connection(&live, why);
        }
        results
    }

    async fn query_on(
        &self,
        live: &Dialled,
        parts: Commands<'_>,
        deadline: Instant,
    ) -> Result<Value, LinkError> {
        let mut connection = live.connection.clone();
        match timeout_at(deadline, parts.send(&mut connection)).await {
            Ok(Ok(value)) => {
                self.timeouts.store(0, Ordering::Relaxed);
                Ok(value)
            }
            Ok(Err(error)) if error.is_timeout() => Err(self.timed_out(live)),
            Err(_) => Err(self.timed_out(live)),
            Ok(Err(error)) if breaks(&error) => {
                let why = self.broken_by(&error);
                self.drop_connection(live, &why);
                Err(LinkError::Lost(why))
            }
            Ok(Err(error)) => {
                self.timeouts.store(0, Ordering::Relaxed);
                // Another client's script runs for too long: transient.
                if error.code() == Some("BUSY") {
                    Err(LinkError::Lost(error.to_string()))
                } else {
                    Err(refused(|| self.shown(), error))
                }
            }
        }
    }

    /// A value of [`Commands::Each`] as the result of its command; one that makes the connection unusable is [`LinkError::Lost`].
    pub fn answered(&self, value: Value) -> Result<Value, LinkError> {
        let Value::ServerError(error) = value else {
            return Ok(value);
        };
        let error = redis::RedisError::from(error);
        match breaks(&error) {
            true => Err(LinkError::Lost(self.broken_by(&error))),
            false => Err(refused(|| self.shown(), error)),
        }
    }

    /// Why the connection is unusable after this error, with the remedy if an operator has one.
    fn broken_by(&self, error: &redis::RedisError) -> String {
        match error.kind() {
            ErrorKind::Server(ServerErrorKind::ReadOnly) => format!(
                "{} refuses writes, because it is a replica: name the master in store.redis, or wait for the end of a failover (READONLY)",
                self.shown()
            ),
            _ => error.to_string(),
        }
    }

    fn timed_out(&self, live: &Dialled) -> LinkError {
        if self.timeouts.fetch_add(1, Ordering::Relaxed) + 1 >= TIMEOUTS_MAX {
            self.drop_connection(live, "two calls in a row timed out");
        }
        LinkError::Lost(format!("{} did not answer in time", self.server))
    }

    fn drop_connection(&self, live: &Dialled, why: &str) {
        let current = self.live.load();
        if current
            .as_ref()
            .is_some_and(|current| std::ptr::eq(Arc::as_ptr(current), live))
        {
            self.trouble
                .store(Some(Arc::new(StoreError::Unavailable(why.to_owned()))));
            // Before the connection goes, so that no count is taken for older than it is.
            *self.down_since.lock() = Some(std::time::Instant::now());
            self.live.store(None);
            self.timeouts.store(0, Ordering::Relaxed);
            tracing::warn!(server = %self.server, why, "connection to Redis dropped");
            self.broken.notify_one();
        }
    }

    /// Drops the connection if the sentinels now name another master: an unaware former master continues to accept writes for ten
    /// seconds and more, and will lose them.
    async fn leave_former_master(&self) {
        let Some(live) = self.live.load_full() else {
            return;
        };
        if live.master.is_some()
            && let Some(named) = self.server.named_master().await
            && live.master.as_ref() != Some(&named)
        {
            self.drop_connection(
                &live,
                &format!("the sentinels name another master, {named}"),
            );
        }
    }

    /// Tries once to make and prepare a connection and to publish it to callers.
    pub async fn connect(&self) -> Result<(), Arc<StoreError>> {
        let attempt = async {
            let dialled = self.server.dial(Some(self.response_timeout)).await?;
            timeout(PREPARE_TIMEOUT, self.prepare(dialled.connection.clone()))
                .await
                .unwrap_or_else(|_| {
                    Err(StoreError::Unavailable(format!(
                        "{}: connected, but no answer in time",
                        self.server
                    )))
                })?;
            Ok(dialled)
        };
        match attempt.await {
            Ok(dialled) => {
                self.timeouts.store(0, Ordering::Relaxed);
                *self.down_since.lock() = None;
                self.live.store(Some(Arc::new(dialled)));
                self.made.fetch_add(1, Ordering::AcqRel);
                self.trouble.store(None);
                Ok(())
            }
            Err(error) => {
                let error: Arc<StoreError> = Arc::new(error);
                self.trouble.store(Some(error.clone()));
                Err(error)
            }
        }
    }

    async fn prepare(&self, mut connection: MultiplexedConnection) -> Result<(), StoreError> {
        match &self.preparation {
            Some(preparation) => preparation.prepare(&mut connection).await,
            None => begin(&mut connection).await,
        }
    }

    /// Keeps a connection, as the line's one task. Logs every new reason for having none, once. Never returns.
    pub async fn keep(&self) {
        let mut wait = Duration::ZERO;
        let mut logged = String::new();
        loop {
            while self.is_up() {
                if timeout(MASTER_EVERY, self.broken.notified()).await.is_err() {
                    self.leave_former_master().await;
                    // Only a connection that lasted is replaced at once.
                    wait = Duration::ZERO;
                }
            }
            tokio::time::sleep(jittered(wait)).await;
            wait = (2 * wait).clamp(RECONNECT_MIN, RECONNECT_MAX);
            match self.connect().await {
                Ok(()) => {
                    logged.clear();
                    tracing::info!(server = %self.server, "connected to Redis");
                }
                Err(error) => {
                    let text = error.to_string();
                    if text != logged {
                        tracing::error!(error = %text, "no connection to Redis; trying again");
                        logged = text;
                    }
                }
            }
        }
    }
}

fn is_lost(result: &Result<Value, LinkError>) -> bool {
    matches!(result, Err(LinkError::Lost(_)))
}
