//! One connection to Redis that is either there or not: nobody ever waits for it to come.
//!
//! A call without a connection fails at once; a call with one ends by its deadline. The connection is dropped when it is
//! broken, when the server says that it cannot serve (read-only, loading, master down), or after two timeouts in a row;
//! one task ([`Link::keep`]) then makes another, prepares it, and only then shows it. The client library's own
//! reconnecting and retrying is not used: it hides both (notes/quota.md, 1.1).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, ErrorKind, Pipeline, ServerErrorKind, Value};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout, timeout_at};

use super::settings::Server;
use crate::store::StoreError;

/// Consecutive timeouts after which a connection is taken for hung.
const TIMEOUTS_MAX: u32 = 2;
/// The shortest and the longest wait between attempts to connect, before jitter.
const RECONNECT_MIN: Duration = Duration::from_millis(50);
const RECONNECT_MAX: Duration = Duration::from_secs(1);
/// How long making a connection may take, and how long preparing it.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// Commands that may queue in the client before callers wait (their deadlines run meanwhile).
const QUEUE_MAX: usize = 1_024;

/// Why a command has no result.
#[derive(Debug, Clone)]
pub enum LinkError {
    /// There was no connection: the command was not sent.
    NoConnection(String),
    /// No result in time or the connection broke: whether the command ran is unknown.
    Lost(String),
    /// The server refused it.
    Refused(redis::RedisError),
    /// It was answered, but not in the way that was asked for.
    Unreadable(String),
}

impl From<LinkError> for StoreError {
    fn from(error: LinkError) -> StoreError {
        match error {
            LinkError::NoConnection(why) | LinkError::Lost(why) => StoreError::Unavailable(why),
            LinkError::Refused(error) => StoreError::Failed(error.to_string()),
            LinkError::Unreadable(what) => StoreError::Failed(what),
        }
    }
}

/// What a command is: one, or several in one write.
pub trait Request: Sync {
    /// Sends it and waits for the result.
    fn send(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> impl Future<Output = Result<Value, redis::RedisError>> + Send;
}

impl Request for Cmd {
    async fn send(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> Result<Value, redis::RedisError> {
        self.query_async(connection).await
    }
}

impl Request for Pipeline {
    async fn send(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> Result<Value, redis::RedisError> {
        self.query_async(connection).await
    }
}

struct Live {
    connection: MultiplexedConnection,
    number: u64,
}

/// The connection, there or not.
pub struct Link {
    server: Server,
    response_timeout: Duration,
    live: ArcSwapOption<Live>,
    /// Why there is no connection.
    trouble: ArcSwapOption<StoreError>,
    made: AtomicU64,
    timeouts: AtomicU32,
    broken: Notify,
}

impl Link {
    /// A link without a connection; [`Link::keep`] makes it.
    pub fn new(server: Server, response_timeout: Duration) -> Link {
        Link {
            server,
            response_timeout,
            live: ArcSwapOption::empty(),
            trouble: ArcSwapOption::empty(),
            made: AtomicU64::new(0),
            timeouts: AtomicU32::new(0),
            broken: Notify::new(),
        }
    }

    /// Whether there is a connection.
    pub fn is_up(&self) -> bool {
        self.live.load().is_some()
    }

    /// How many connections were made so far: a new number means that the server may have changed.
    pub fn made(&self) -> u64 {
        self.made.load(Ordering::Acquire)
    }

    /// Why there is no connection, where there is none.
    pub fn trouble(&self) -> Option<Arc<StoreError>> {
        self.trouble.load_full()
    }

    /// Fails at once where there is no connection.
    pub fn require(&self) -> Result<(), LinkError> {
        if self.is_up() {
            Ok(())
        } else {
            Err(self.no_connection())
        }
    }

    fn no_connection(&self) -> LinkError {
        let why = match self.trouble.load().as_deref() {
            Some(trouble) => trouble.to_string(),
            None => "not connected yet".to_owned(),
        };
        LinkError::NoConnection(format!("no connection to {}: {why}", self.server))
    }

    /// Sends a request and waits for its result until `deadline`.
    pub async fn query(
        &self,
        request: &impl Request,
        deadline: Instant,
    ) -> Result<Value, LinkError> {
        let Some(live) = self.live.load_full() else {
            return Err(self.no_connection());
        };
        let mut connection = live.connection.clone();
        match timeout_at(deadline, request.send(&mut connection)).await {
            Ok(Ok(value)) => {
                self.timeouts.store(0, Ordering::Relaxed);
                Ok(value)
            }
            Ok(Err(error)) if error.is_timeout() => Err(self.timed_out(&live)),
            Err(_) => Err(self.timed_out(&live)),
            Ok(Err(error)) if breaks(&error) => {
                self.drop_connection(&live, &error.to_string());
                Err(LinkError::Lost(error.to_string()))
            }
            Ok(Err(error)) => {
                self.timeouts.store(0, Ordering::Relaxed);
                // A script of somebody else's runs for too long, or a cluster rearranges itself: both pass.
                if error.is_cluster_error() || error.code() == Some("BUSY") {
                    Err(LinkError::Lost(error.to_string()))
                } else {
                    Err(LinkError::Refused(error))
                }
            }
        }
    }

    /// As [`Link::query`], with the link's own timeout from now.
    pub async fn ask(&self, request: &impl Request) -> Result<Value, LinkError> {
        self.query(request, Instant::now() + self.response_timeout)
            .await
    }

    fn timed_out(&self, live: &Live) -> LinkError {
        if self.timeouts.fetch_add(1, Ordering::Relaxed) + 1 >= TIMEOUTS_MAX {
            self.drop_connection(live, "two calls in a row timed out");
        }
        LinkError::Lost(format!("{} did not answer in time", self.server))
    }

    fn drop_connection(&self, live: &Live, why: &str) {
        let current = self.live.load();
        if current
            .as_ref()
            .is_some_and(|current| current.number == live.number)
        {
            self.trouble
                .store(Some(Arc::new(StoreError::Unavailable(why.to_owned()))));
            self.live.store(None);
            self.timeouts.store(0, Ordering::Relaxed);
            tracing::warn!(server = %self.server, why, "connection to Redis dropped");
            self.broken.notify_one();
        }
    }

    /// A connection of its own, for blocking commands; its calls have no timeout but the caller's.
    pub async fn connect_apart(&self) -> Result<MultiplexedConnection, StoreError> {
        self.dial(None).await
    }

    async fn dial(
        &self,
        response_timeout: Option<Duration>,
    ) -> Result<MultiplexedConnection, StoreError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(response_timeout)
            .set_pipeline_buffer_size(QUEUE_MAX);
        let client = self.server.client();
        let dialled = client.get_multiplexed_async_connection_with_config(&config);
        match timeout(2 * CONNECT_TIMEOUT, dialled).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(error)) => Err(StoreError::Unavailable(format!("{}: {error}", self.server))),
            Err(_) => Err(StoreError::Unavailable(format!(
                "{}: no connection in time",
                self.server
            ))),
        }
    }

    /// One attempt to make, prepare and show a connection.
    pub async fn connect<P, F>(&self, prepare: &P) -> Result<(), Arc<StoreError>>
    where
        P: Fn(MultiplexedConnection) -> F,
        F: Future<Output = Result<(), StoreError>>,
    {
        let attempt = async {
            let connection = self.dial(Some(self.response_timeout)).await?;
            timeout(2 * CONNECT_TIMEOUT, prepare(connection.clone()))
                .await
                .unwrap_or_else(|_| {
                    Err(StoreError::Unavailable(format!(
                        "{}: connected, but no answer in time",
                        self.server
                    )))
                })?;
            Ok(connection)
        };
        match attempt.await {
            Ok(connection) => {
                let number = self.made.load(Ordering::Acquire) + 1;
                self.timeouts.store(0, Ordering::Relaxed);
                self.live.store(Some(Arc::new(Live { connection, number })));
                self.made.store(number, Ordering::Release);
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

    /// Keeps a connection for ever: the link's one task. Logs every new reason for having none, once.
    pub async fn keep<P, F>(&self, prepare: P)
    where
        P: Fn(MultiplexedConnection) -> F,
        F: Future<Output = Result<(), StoreError>>,
    {
        let mut wait = RECONNECT_MIN;
        let mut logged = String::new();
        loop {
            while self.is_up() {
                self.broken.notified().await;
                wait = RECONNECT_MIN;
            }
            match self.connect(&prepare).await {
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
                    tokio::time::sleep(jittered(wait)).await;
                    wait = (2 * wait).min(RECONNECT_MAX);
                }
            }
        }
    }
}

/// Between half of `wait` and the whole, so that gateways do not come back all at once.
pub fn jittered(wait: Duration) -> Duration {
    let mut random = [0; 1];
    crate::policy::api_key::os_entropy(&mut random);
    wait.mul_f64(0.5 + f64::from(u8::from_ne_bytes(random)) / 512.0)
}

/// Whether the connection is of no use after this error.
fn breaks(error: &redis::RedisError) -> bool {
    error.is_unrecoverable_error()
        || error.is_io_error()
        || matches!(
            error.kind(),
            ErrorKind::Server(
                ServerErrorKind::ReadOnly
                    | ServerErrorKind::BusyLoading
                    | ServerErrorKind::MasterDown
            )
        )
}
