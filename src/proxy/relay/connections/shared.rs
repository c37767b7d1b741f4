//! Connections over HTTP/2, on which several exchanges have a stream each. The unread part of a client's answer stays in that stream's
//! window and must leave room for the others, so only the windows of streams bound what a server may send.
//!
//! A request takes a place on a connection without waiting, and nothing wakes for one that becomes idle: all are looked at once a second
//! ([`SharedConnections::close_ended`]). pingora's pool has a task and a timer for each idle connection, a thread for those timers, and
//! takes a connection from others while a stream is opened on it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use ahash::RandomState;
use h2::client::{Builder, ResponseFuture, SendRequest};
use h2::{Reason, SendStream};
use http::Request;
use parking_lot::Mutex;
use pingora::protocols::Stream;

use crate::policy::http1::answer::ANSWER_HEAD_BYTES_MAX;
use crate::policy::http2_memory::UPSTREAM_WINDOW_BYTES;
use crate::proxy::sent_part::SentPart;

/// Requests in flight on one connection, unless the server allows fewer; further ones get another connection. Servers are advised to allow
/// at least 100 (RFC 9113 section 6.5.2). With fewer, a lost packet or a failing connection delays fewer requests, and the work is spread
/// over the threads of both sides.
const STREAMS_MAX: usize = 32;
/// What `h2` takes for the server's limit of streams until its SETTINGS come: more than the 32 bits of that setting, and less than none.
const STREAMS_BEFORE_SETTINGS: usize = usize::MAX - 1;
/// The window of a connection, which never stops a server before its streams do: the largest (RFC 9113 section 6.9.1). `h2` ends a
/// connection whose unread small frames cost more than half of its window, at 256 bytes less their payload each. Full windows of
/// one-byte frames on all streams cost a quarter of this half.
const CONNECTION_WINDOW_BYTES: u32 = (1 << 31) - 1;
/// The most of one request's body that the library buffers; its default is 400 KiB.
const UPLOAD_BUFFER_BYTES: usize = 32 * 1024;
/// The largest frame that a server may send. The window of a stream bounds its DATA frames before that.
const FRAME_BYTES_MAX: u32 = 64 * 1024;

/// How long each request to a server has a connection alone after one that was shared was ended for an error: whatever causes it, perhaps the
/// requests of one caller, harms no others meanwhile.
const APART: Duration = Duration::from_secs(60);
/// Connections to one server up to which one is made for a request that needs it alone. Servers limit how many they accept, some to several
/// hundred.
const ALONE_MAX: usize = 64;
/// Connections that are kept at most, over all servers; those with streams are not closed for it.
const KEPT_MAX: usize = 1_024;

/// The connections by what they were made with.
#[derive(Default)]
pub struct SharedConnections(Mutex<HashMap<u64, ServerConnections, RandomState>>);

#[derive(Default)]
struct ServerConnections {
    connections: Vec<Arc<SharedConnection>>,
    failures: Arc<ServerFailures>,
}

/// The shared connections to a server that one side has ended for an error.
#[derive(Default)]
pub struct ServerFailures {
    /// The server, for the log.
    server: String,
    /// When one was last ended.
    last: Mutex<Option<Instant>>,
}

struct SharedConnection {
    sender: SendRequest<SentPart>,
    /// Whether it gets no further streams: it has ended, or its server does not accept any. Those in flight are not affected.
    is_retired: Arc<AtomicBool>,
    failures: Arc<ServerFailures>,
    occupancy: Arc<Mutex<Occupancy>>,
}

struct Occupancy {
    streams: usize,
    /// Whether its only stream has the connection alone.
    is_reserved: bool,
    /// When it is too old without streams; `None` for never.
    until: Option<Instant>,
}

/// A place for a stream on a connection. Dropped, it is free for another one.
pub struct StreamPlace {
    connection: Arc<SharedConnection>,
    sender: SendRequest<SentPart>,
    /// How long the connection is kept after its last stream.
    patience: Duration,
}

impl SharedConnections {
    /// A place on a connection that was made with these settings, if one has room at `now`: on the oldest, so that others become idle; `alone`
    /// on one without other streams, unless there are too many.
    pub fn take(
        &self,
        settings: u64,
        alone: bool,
        patience: Duration,
        now: Instant,
    ) -> Option<StreamPlace> {
        let by_settings = self.0.lock();
        let server = by_settings.get(&settings)?;
        let place = |alone| {
            let mut connections = server.connections.iter();
            connections.find_map(|connection| connection.place(alone, patience, now))
        };
        if !(alone || server.failures.are_recent(now)) {
            return place(false);
        }
        place(true).or_else(|| match server.has_room_alone() {
            true => None,
            false => place(false),
        })
    }

    /// For a new connection to a server that is made with these settings.
    pub fn failures(&self, settings: u64, server: String) -> Arc<ServerFailures> {
        let new = || ServerConnections {
            failures: Arc::new(ServerFailures {
                server,
                ..ServerFailures::default()
            }),
            ..ServerConnections::default()
        };
        let mut by_settings = self.0.lock();
        by_settings
            .entry(settings)
            .or_insert_with(new)
            .failures
            .clone()
    }

    /// Lets other exchanges share the connection of this place, which has it `alone` at first if it is to.
    pub fn keep(&self, settings: u64, place: &StreamPlace, alone: bool) {
        let _closed;
        let mut by_settings = self.0.lock();
        let server = by_settings.entry(settings).or_default();
        let alone = alone || server.failures.are_recent(Instant::now());
        place.connection.occupancy.lock().is_reserved = alone && server.has_room_alone();
        server.connections.push(place.connection.clone());
        // Without the lock, which is released first.
        _closed = take_excess(&mut by_settings);
    }

    /// Forgets the connections that get no further streams, and closes those without streams that are too old or too many.
    pub fn close_ended(&self) {
        let _closed;
        let now = Instant::now();
        let mut by_settings = self.0.lock();
        by_settings.retain(|_, server| {
            server
                .connections
                .retain(|connection| !connection.is_over(now));
            let is_in_use = Arc::strong_count(&server.failures) > 1;
            is_in_use || server.failures.are_recent(now)
        });
        _closed = take_excess(&mut by_settings);
    }
}

/// Takes the connections without streams of which too many are kept: the oldest ones of the server with the most, so that neither a busy nor
/// a removed server keeps others out.
fn take_excess(
    by_settings: &mut HashMap<u64, ServerConnections, RandomState>,
) -> Vec<Arc<SharedConnection>> {
    let kept = by_settings.values().map(|server| server.connections.len());
    let excess = kept.sum::<usize>().saturating_sub(KEPT_MAX);
    let mut taken = Vec::new();
    while taken.len() < excess {
        let servers = by_settings.values_mut();
        let most = servers.max_by_key(|server| server.connections.len());
        let unused = most.and_then(|most| {
            let mut connections = most.connections.iter();
            let unused = connections.position(|one| one.occupancy.lock().streams == 0)?;
            Some(most.connections.remove(unused))
        });
        let Some(unused) = unused else { break };
        taken.push(unused);
    }
    taken
}

impl ServerConnections {
    /// Whether another connection may be made that a request has alone.
    fn has_room_alone(&self) -> bool {
        self.connections.len() < ALONE_MAX
    }
}

impl ServerFailures {
    /// Whether each request needs a connection alone at `now`.
    fn are_recent(&self, now: Instant) -> bool {
        let last = *self.last.lock();
        last.is_some_and(|last| now.saturating_duration_since(last) < APART)
    }

    /// Notes the end of a connection that several exchanges may share, and logs the first one for an error.
    fn note(&self, occupancy: &Occupancy, error: &h2::Error) {
        let is_error = error.is_go_away() && error.reason() != Some(Reason::NO_ERROR);
        if !is_error || occupancy.streams < 2 {
            return;
        }
        let now = Instant::now();
        if !self.are_recent(now) {
            let (server, error) = (&*self.server, described(error));
            tracing::warn!(
                server,
                error,
                "a shared HTTP/2 connection was ended: requests to the server share none for a minute"
            );
        }
        *self.last.lock() = Some(now);
    }
}

/// An error in words, without the data that a server may send with a GOAWAY: they may be long, and quote the request with its secrets.
pub fn described(error: &h2::Error) -> String {
    match error.reason() {
        Some(reason) if error.is_go_away() && error.is_remote() => {
            format!("connection error received: {reason}")
        }
        _ => error.to_string(),
    }
}

/// A place on a new connection over `stream`, which no other exchange shares.
///
/// # Errors
/// If the beginning of the connection cannot be written.
pub async fn begin(
    stream: Stream,
    patience: Duration,
    failures: Arc<ServerFailures>,
) -> Result<StreamPlace, h2::Error> {
    let mut client = Builder::new();
    client
        .enable_push(false)
        .initial_max_send_streams(STREAMS_BEFORE_SETTINGS)
        .max_frame_size(FRAME_BYTES_MAX)
        .max_header_list_size(ANSWER_HEAD_BYTES_MAX as u32)
        .initial_window_size(UPSTREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_send_buffer_size(UPLOAD_BUFFER_BYTES)
        // Malformed answers, such as a body behind one to HEAD, cost their own streams only; the default ends the connection of
        // many clients after 1,024 of them.
        .max_local_error_reset_streams(None);
    let (sender, driving) = client.handshake::<_, SentPart>(stream).await?;
    let is_retired = Arc::new(AtomicBool::new(false));
    let occupancy = Arc::new(Mutex::new(Occupancy {
        streams: 1,
        is_reserved: false,
        until: None,
    }));
    let (retired, noted, used) = (is_retired.clone(), failures.clone(), occupancy.clone());
    // Ends with the last stream once nothing else refers to the connection.
    tokio::spawn(async move {
        if let Err(error) = driving.await {
            noted.note(&used.lock(), &error);
            let error = described(&error);
            tracing::debug!(error, "an HTTP/2 connection to a server ended");
        }
        retired.store(true, Ordering::Relaxed);
    });
    let connection = Arc::new(SharedConnection {
        sender: sender.clone(),
        is_retired,
        failures,
        occupancy,
    });
    Ok(StreamPlace {
        connection,
        sender,
        patience,
    })
}

impl SharedConnection {
    /// A place on it, if it has room at `now`.
    fn place(
        self: &Arc<Self>,
        alone: bool,
        patience: Duration,
        now: Instant,
    ) -> Option<StreamPlace> {
        if self.is_over(now) {
            return None;
        }
        let allowed = self.sender.current_max_send_streams().min(STREAMS_MAX);
        if allowed == 0 {
            // If it were kept, each attempt would find it without room and add another one.
            self.retire();
            return None;
        }
        let mut occupancy = self.occupancy.lock();
        let below = if alone { 1 } else { allowed };
        if occupancy.is_reserved || occupancy.streams >= below {
            return None;
        }
        let mut sender = self.sender.clone();
        // Fails after the server's GOAWAY, and when the connection has no number for another stream.
        match sender.poll_ready(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(())) => {}
            ended => {
                if let Poll::Ready(Err(error)) = ended {
                    self.failures.note(&occupancy, &error);
                }
                self.retire();
                return None;
            }
        }
        occupancy.streams += 1;
        occupancy.is_reserved = alone;
        drop(occupancy);
        Some(StreamPlace {
            connection: self.clone(),
            sender,
            patience,
        })
    }

    fn retire(&self) {
        self.is_retired.store(true, Ordering::Relaxed);
    }

    /// Whether it gets no further streams.
    fn is_over(&self, now: Instant) -> bool {
        let is_old = |occupancy: &Occupancy| {
            let until = occupancy.until.filter(|_| occupancy.streams == 0);
            until.is_some_and(|until| until <= now)
        };
        self.is_retired.load(Ordering::Relaxed) || is_old(&self.occupancy.lock())
    }
}

impl StreamPlace {
    /// Sends the head of a request, whose body follows unless it `ends` the request.
    ///
    /// # Errors
    /// If the connection accepts no further stream: nothing of the request was sent.
    pub fn send(
        &mut self,
        request: Request<()>,
        ends: bool,
    ) -> Result<(ResponseFuture, SendStream<SentPart>), h2::Error> {
        let sent = self.sender.send_request(request, ends);
        sent.inspect_err(|_| self.connection.retire())
    }

    /// Lets other exchanges share the connection.
    pub fn share(&self) {
        self.connection.occupancy.lock().is_reserved = false;
    }

    /// Whether the server has sent SETTINGS, the beginning of each connection over HTTP/2 (RFC 9113 section 3.4).
    pub fn speaks_http2(&self) -> bool {
        self.sender.current_max_send_streams() != STREAMS_BEFORE_SETTINGS
    }

    /// Gives the connection no further streams; those in flight are not affected. A dead connection whose packets are dropped
    /// looks like one with a slow server, and each further request on it would wait for `timeouts.read`. If the server was only
    /// slow, this costs one new connection, even if other streams of this one are answered.
    pub fn distrust(&self) {
        self.connection.retire();
    }
}

impl Drop for StreamPlace {
    fn drop(&mut self) {
        let mut occupancy = self.connection.occupancy.lock();
        occupancy.streams -= 1;
        occupancy.is_reserved = false;
        if occupancy.streams == 0 {
            occupancy.until = Instant::now().checked_add(self.patience);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    const SERVER: u64 = 1;
    const PATIENCE: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn no_more_connections_are_kept_than_the_limit() {
        let shared = SharedConnections::default();
        let mut ends = Vec::new();
        for _ in 0..KEPT_MAX + 10 {
            let (near, far) = duplex(1024);
            ends.push(far);
            let place = begin(Box::new(near), PATIENCE, Arc::default())
                .await
                .unwrap();
            shared.keep(SERVER, &place, false);
        }
        assert_eq!(shared.0.lock()[&SERVER].connections.len(), KEPT_MAX);
        assert!(
            shared
                .take(SERVER, false, PATIENCE, Instant::now())
                .is_some()
        );
        // That of another server has room.
        let (near, _far) = duplex(1024);
        let place = begin(Box::new(near), PATIENCE, Arc::default())
            .await
            .unwrap();
        shared.keep(SERVER + 1, &place, false);
        assert!(
            shared
                .take(SERVER + 1, false, PATIENCE, Instant::now())
                .is_some()
        );
        assert_eq!(shared.0.lock()[&SERVER].connections.len(), KEPT_MAX - 1);
    }
}
