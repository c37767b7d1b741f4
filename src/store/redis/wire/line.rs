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
use redis::{Cmd, Pipeline, Value};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use super::connection::RedisConnection;
use super::preparation::{Preparation, begin, write_nothing};
use super::remedies::{unconnected, with_remedy};
use super::request::{IS_REPLICA, LinkError, breaks, is_replica, jittered, refused};
use super::slots::names_of;
use super::topology::{Address, Dialled, Topology};
use crate::clock::timer::Timers;
use crate::policy::failure_log::LoggedReasons;
use crate::store::StoreError;

/// Consecutive timeouts after which a connection is taken for hung.
const TIMEOUTS_MAX: u32 = 2;
/// The shortest and the longest wait between attempts to connect, before jitter.
const RECONNECT_MIN: Duration = Duration::from_millis(50);
const RECONNECT_MAX: Duration = Duration::from_secs(1);
/// How often the sentinels are asked whether the master is still the same.
const MASTER_EVERY: Duration = Duration::from_secs(1);
/// The least time that preparing a connection may take. It is longer if its two round trips may each take the link's own timeout.
const PREPARE_TIMEOUT_MIN: Duration = Duration::from_secs(1);

/// What a connection is prepared with.
pub enum LinePreparation {
    /// The server of the store.
    Whole(Arc<Preparation>),
    /// A node of a cluster, which is prepared as a whole: of each node, only the scripts; and whether it runs writes, if it is to.
    Node {
        /// Whether it is to run writes, as for a gateway.
        writes: bool,
    },
}

/// The connection, if there is one.
pub struct ServerLine {
    server: Topology,
    preparation: LinePreparation,
    response_timeout: Duration,
    live: ArcSwapOption<Dialled>,
    /// Why there is no connection.
    trouble: ArcSwapOption<StoreError>,
    /// Since when there is no connection, or `None` if there is one.
    down_since: Mutex<Option<std::time::Instant>>,
    made: Arc<AtomicU64>,
    timeouts: AtomicU32,
    timers: Timers,
    broken: Notify,
}

impl ServerLine {
    /// A line without a connection; [`ServerLine::keep`] makes it. `made` counts the connections, other lines' too.
    pub fn new(
        server: Topology,
        preparation: LinePreparation,
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
            timers: Timers::default(),
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

    fn live(&self) -> Result<Arc<Dialled>, LinkError> {
        self.live.load_full().ok_or_else(|| self.no_connection())
    }

    /// Sends a command and waits for its result until `deadline`. Redirections of a cluster's node are returned as
    /// [`LinkError::Refused`].
    pub async fn query(&self, command: &Cmd, deadline: Instant) -> Result<Value, LinkError> {
        let live = self.live()?;
        let value = self.reply(&live, live.connection.ask(command), deadline);
        let value = value.await?;
        value.map_err(|error| self.failed(&live, Some(command), error))
    }

    /// The result of each command of a pipeline, which is sent in one write. An error of one does not affect the others.
    pub async fn each(
        &self,
        pipeline: &Pipeline,
        deadline: Instant,
    ) -> Vec<Result<Value, LinkError>> {
        let all = |error| vec![Err(error); pipeline.len()];
        let live = match self.live() {
            Ok(live) => live,
            Err(error) => return all(error),
        };
        let values = live.connection.ask_each(pipeline);
        let result = |(value, command)| match value {
            Value::ServerError(error) => Err(self.failed(&live, Some(command), error.into())),
            value => Ok(value),
        };
        let values = self.reply(&live, values, deadline).await;
        match values.and_then(|values| values.map_err(|error| self.failed(&live, None, error))) {
            Ok(values) if values.len() == pipeline.len() => values
                .into_iter()
                .zip(pipeline.cmd_iter())
                .map(result)
                .collect(),
            Ok(other) => all(LinkError::Unreadable(format!("{other:?}"))),
            Err(error) => all(error),
        }
    }

    /// Waits for a reply of the connected server until `deadline`.
    async fn reply<T>(
        &self,
        live: &Dialled,
        reply: impl Future<Output = Result<T, redis::RedisError>>,
        deadline: Instant,
    ) -> Result<Result<T, redis::RedisError>, LinkError> {
        let deadline = deadline.min(Instant::now() + self.response_timeout);
        let Some(result) = self.timers.wait(deadline, reply).await else {
            return Err(self.timed_out(live));
        };
        self.timeouts.store(0, Ordering::Relaxed);
        Ok(result)
    }

    /// The error of a command. The connection is dropped if it is unusable after it.
    fn failed(&self, live: &Dialled, command: Option<&Cmd>, error: redis::RedisError) -> LinkError {
        let server = self.shown();
        if breaks(&error) {
            let why = match is_replica(&error) {
                true => format!("{server} {IS_REPLICA}"),
                false => format!("{server}: {error}"),
            };
            self.drop_connection(live, &why);
            return LinkError::Lost(why);
        }
        // Another client's script runs for too long: transient.
        if error.code() == Some("BUSY") {
            return LinkError::Lost(format!("{server}: {error}"));
        }
        refused(server, &command.map(names_of).unwrap_or_default(), error)
    }

    fn timed_out(&self, live: &Dialled) -> LinkError {
        if self.timeouts.fetch_add(1, Ordering::Relaxed) + 1 >= TIMEOUTS_MAX {
            self.drop_connection(live, "two calls in a row timed out");
        }
        LinkError::Lost(format!("{} did not answer in time", self.server))
    }

    fn drop_connection(&self, live: &Dialled, why: &str) {
        // Held until the connection is gone: the next one is published under this lock too.
        let mut down_since = self.down_since.lock();
        let current = self.live.load();
        if current
            .as_ref()
            .is_some_and(|current| std::ptr::eq(Arc::as_ptr(current), live))
        {
            let trouble = StoreError::Unavailable(with_remedy(why.to_owned()));
            self.trouble.store(Some(Arc::new(trouble)));
            // Before the connection goes, so that no count is taken for older than it is.
            *down_since = Some(std::time::Instant::now());
            self.live.store(None);
            self.timeouts.store(0, Ordering::Relaxed);
            tracing::warn!(server = %self.server, why, "connection to Redis dropped");
            self.broken.notify_one();
        }
    }

    /// Drops the connection if the sentinels now name another master: an unaware former master continues to accept writes for ten
    /// seconds and more, and will lose them. Logs each new reason for which one of the sentinels names none.
    async fn leave_former_master(&self, logged: &mut LoggedReasons) {
        let Some(live) = self.live.load_full() else {
            return;
        };
        if live.master.is_none() {
            return;
        }
        let Ok(Some(named)) = self.server.named_master().await else {
            return;
        };
        if named.troubles.is_empty() {
            logged.ended();
        }
        for trouble in named.troubles.iter().filter(|why| logged.is_new(why)) {
            tracing::warn!(
                error = trouble,
                "a sentinel does not name the master; the others do"
            );
        }
        if live.master.as_ref() != Some(&named.address) {
            let why = format!("the sentinels name another master, {}", named.address);
            self.drop_connection(&live, &why);
        }
    }

    /// Tries once to make and prepare a connection and to publish it to callers.
    pub async fn connect(&self) -> Result<(), StoreError> {
        let patience = PREPARE_TIMEOUT_MIN.max(2 * self.response_timeout);
        let attempt = async {
            let dialled = self.server.dial().await?;
            let prepared = timeout(patience, self.prepare(&dialled.connection)).await;
            let prepared = prepared.unwrap_or_else(|_| {
                Err(StoreError::Unavailable(
                    "connected, but no answer in time".into(),
                ))
            });
            match prepared {
                Ok(()) => Ok(dialled),
                Err(StoreError::Unavailable(why)) => {
                    let server = dialled.master.as_ref().map(Address::to_string);
                    let server = server.unwrap_or_else(|| self.server.to_string());
                    Err(StoreError::Unavailable(format!("{server}: {why}")))
                }
                Err(error) => Err(error),
            }
        };
        let attempt = attempt.await.map_err(unconnected);
        let dialled = attempt.inspect_err(|error| {
            self.trouble.store(Some(Arc::new(error.clone())));
        })?;
        self.timeouts.store(0, Ordering::Relaxed);
        let mut down_since = self.down_since.lock();
        *down_since = None;
        self.live.store(Some(Arc::new(dialled)));
        drop(down_since);
        self.made.fetch_add(1, Ordering::AcqRel);
        self.trouble.store(None);
        Ok(())
    }

    async fn prepare(&self, connection: &RedisConnection) -> Result<(), StoreError> {
        match &self.preparation {
            LinePreparation::Whole(preparation) => preparation.prepare(connection).await,
            LinePreparation::Node { writes: false } => begin(connection).await,
            LinePreparation::Node { writes: true } => {
                // One that only lets writes hang would be dropped again. One that refuses them can still be read.
                let write = write_nothing();
                let (begun, _) = tokio::join!(begin(connection), connection.ask(&write));
                begun
            }
        }
    }

    /// Keeps a connection, as the line's one task. Logs every new reason for having none, once. Never returns.
    pub async fn keep(&self) {
        let mut wait = Duration::ZERO;
        let (mut logged, mut logged_of_sentinels) =
            (LoggedReasons::default(), LoggedReasons::default());
        loop {
            while self.is_up() {
                if timeout(MASTER_EVERY, self.broken.notified()).await.is_err() {
                    self.leave_former_master(&mut logged_of_sentinels).await;
                    // Only a connection that lasted is replaced at once.
                    wait = Duration::ZERO;
                }
            }
            tokio::time::sleep(jittered(wait)).await;
            wait = (2 * wait).clamp(RECONNECT_MIN, RECONNECT_MAX);
            match self.connect().await {
                Ok(()) => {
                    logged.ended();
                    tracing::info!(server = %self.server, "connected to Redis");
                }
                Err(error) => {
                    let text = error.to_string();
                    if logged.is_new(&text) {
                        tracing::error!(error = %text, "no connection to Redis; trying again");
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::store_settings::RedisSettings;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_call_on_a_connection_that_was_replaced_does_not_drop_the_next_one() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        let server = Topology::of(&RedisSettings::of_url(url)).unwrap();
        tokio::spawn(async move {
            let mut open = Vec::new();
            loop {
                open.push(listener.accept().await.unwrap());
            }
        });
        let (former, next) = (server.dial().await, server.dial().await);
        let [former, next] = [former, next].map(|dialled| Arc::new(dialled.unwrap()));
        let node = LinePreparation::Node { writes: true };
        let line = ServerLine::new(server, node, Duration::from_secs(1), Arc::default());
        line.live.store(Some(former.clone()));
        std::thread::scope(|scope| {
            let held = line.down_since.lock();
            scope.spawn(|| line.drop_connection(&former, "wanted"));
            // Long enough for it to wait for the lock.
            std::thread::sleep(Duration::from_millis(50));
            line.live.store(Some(next));
            drop(held);
        });
        assert!(line.is_up());
    }
}
