//! Connections over HTTP/2, on which several exchanges have a stream each. The unread part of a client's answer stays in that stream's
//! window and must leave room for the others, so only the windows of streams bound what a server may send.
//!
//! A request takes a place on a connection without waiting, and nothing wakes for one that becomes idle: all are looked at once a second
//! ([`SharedConnections::close_ended`]). Simultaneous requests wait for one connection rather than make one each: after a start, or a
//! GOAWAY, these would be hundreds of handshakes. pingora's pool has a task and a timer for each idle connection, a thread for those
//! timers, and takes a connection from others while a stream is opened on it.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use ahash::RandomState;
use bytes::Bytes;
use h2::SendStream;
use h2::client::{Builder, ResponseFuture, SendRequest};
use http::Request;
use parking_lot::Mutex;
use pingora::protocols::Stream;
use tokio::sync::{OnceCell, watch};

use crate::policy::http1::answer::ANSWER_HEAD_BYTES_MAX;
use crate::policy::http2_memory::UPSTREAM_WINDOW_BYTES;

/// Requests in flight on one connection, unless the server allows fewer; further ones get another connection. Servers are advised to allow
/// at least 100 (RFC 9113 section 6.5.2). With fewer, a lost packet or a failing connection delays fewer requests, and the work is spread
/// over the threads of both sides.
const STREAMS_MAX: usize = 32;
/// The window of a connection, which never stops a server before its streams do: the largest (RFC 9113 section 6.9.1). `h2` ends a
/// connection whose unread small frames cost more than half of its window, at 256 bytes less their payload each. Full windows of
/// one-byte frames on all streams cost a quarter of this half.
const CONNECTION_WINDOW_BYTES: u32 = (1 << 31) - 1;
/// The largest frame that a server may send: answers come in fewer ones.
const FRAME_BYTES_MAX: u32 = 64 * 1024;

/// Connections that are kept for further streams at most, over all servers. Each request that is sent again makes one.
const KEPT_MAX: usize = 1_024;

/// How many streams a server allows as long as its settings have not arrived: more than they can state (RFC 9113 section 6.5.1).
const STREAMS_UNKNOWN: usize = usize::MAX - 1;

/// The connections by what they were made with.
#[derive(Default)]
pub struct SharedConnections {
    kept: Mutex<HashMap<u64, Vec<Arc<SharedConnection>>, RandomState>>,
    making: Mutex<HashMap<u64, Arc<Making>, RandomState>>,
}

/// The connection that some requests wait for; `None` within if the server agreed to HTTP/1, over which connections are not shared.
pub type Making = OnceCell<Option<Arc<SharedConnection>>>;

/// A connection for up to [`STREAMS_MAX`] streams.
pub struct SharedConnection {
    sender: SendRequest<Bytes>,
    /// Closed once the server's settings have arrived, or the connection has ended.
    unsettled: watch::Receiver<()>,
    /// Whether it gets no further streams: it has ended, or its server does not accept any. Those in flight are not affected.
    is_retired: Arc<AtomicBool>,
    occupancy: Mutex<Occupancy>,
}

struct Occupancy {
    streams: usize,
    /// When it is too old without streams; `None` for never.
    until: Option<Instant>,
}

/// A place for a stream on a connection. Dropped, it is free for another one.
pub struct StreamPlace {
    connection: Arc<SharedConnection>,
    sender: SendRequest<Bytes>,
    /// How long the connection is kept after its last stream.
    patience: Option<Duration>,
}

impl SharedConnections {
    /// A place on a connection that was made with these settings, if one has room at `now`: on the oldest, so that others become idle.
    pub fn take(
        &self,
        settings: u64,
        patience: Option<Duration>,
        now: Instant,
    ) -> Option<StreamPlace> {
        let kept = self.kept.lock();
        let connections = kept.get(&settings)?;
        let mut found = connections
            .iter()
            .filter_map(|connection| connection.place(patience, now));
        found.next()
    }

    /// The making of a connection with these settings that a request waits for, or does itself if none has begun: one that a place is left
    /// on. It may have ended a moment before, unless the connection is to be a fresh one.
    pub fn making(&self, settings: u64, is_fresh: bool) -> Arc<Making> {
        let mut by_server = self.making.lock();
        let making = by_server.entry(settings).or_default();
        let is_http1 = matches!(making.get(), Some(None));
        // One reference is the list's, the others are those of the requests.
        let is_full = Arc::strong_count(making) > STREAMS_MAX;
        if !is_http1 && (is_full || is_fresh && making.initialized()) {
            *making = Arc::default();
        }
        making.clone()
    }

    /// A place on a new connection over `stream`, which others may share unless too many are kept.
    ///
    /// # Errors
    /// If the beginning of the connection cannot be written.
    pub async fn make(
        &self,
        stream: Stream,
        settings: u64,
        patience: Option<Duration>,
    ) -> Result<StreamPlace, h2::Error> {
        let mut client = Builder::new();
        client
            .enable_push(false)
            .initial_max_send_streams(STREAMS_UNKNOWN)
            .max_frame_size(FRAME_BYTES_MAX)
            .max_header_list_size(ANSWER_HEAD_BYTES_MAX as u32)
            .initial_window_size(UPSTREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            // Malformed answers, such as a body behind one to HEAD, cost their own streams only; the default ends the connection of
            // many clients after 1,024 of them.
            .max_local_error_reset_streams(None);
        let (sender, mut driving) = client.handshake(stream).await?;
        let is_retired = Arc::new(AtomicBool::new(false));
        let has_ended = is_retired.clone();
        let (settling, unsettled) = watch::channel(());
        // Ends with the last stream once nothing else refers to the connection.
        tokio::spawn(async move {
            let mut settling = Some(settling);
            let driven = poll_fn(|context| {
                let driven = Pin::new(&mut driving).poll(context);
                if settling.is_some() && driving.max_concurrent_send_streams() != STREAMS_UNKNOWN {
                    settling = None;
                }
                driven
            });
            if let Err(error) = driven.await {
                tracing::debug!(%error, "an HTTP/2 connection to a server ended");
            }
            has_ended.store(true, Ordering::Relaxed);
        });
        let occupancy = Occupancy {
            streams: 1,
            until: None,
        };
        let connection = Arc::new(SharedConnection {
            sender: sender.clone(),
            unsettled,
            is_retired,
            occupancy: Mutex::new(occupancy),
        });
        let mut kept = self.kept.lock();
        if kept.values().map(Vec::len).sum::<usize>() < KEPT_MAX {
            let connections = kept.entry(settings).or_default();
            connections.push(connection.clone());
        }
        drop(kept);
        Ok(StreamPlace {
            connection,
            sender,
            patience,
        })
    }

    /// Forgets the connections that get no further streams, and closes those without streams that are too old.
    pub fn close_ended(&self) {
        let now = Instant::now();
        self.kept.lock().retain(|_, connections| {
            connections.retain(|connection| !connection.is_over(now));
            !connections.is_empty()
        });
        let mut making = self.making.lock();
        // That a server agreed to HTTP/1 is remembered, so that its requests do not wait for each other again.
        let is_needed = |making: &Arc<Making>| {
            Arc::strong_count(making) > 1 || matches!(making.get(), Some(None))
        };
        making.retain(|_, making| is_needed(making));
        if making.len() > KEPT_MAX {
            making.clear();
        }
    }
}

impl SharedConnection {
    /// A place on it, if it has room at `now`.
    fn place(self: &Arc<Self>, patience: Option<Duration>, now: Instant) -> Option<StreamPlace> {
        if self.is_over(now) {
            return None;
        }
        let allowed = self.sender.current_max_send_streams();
        if allowed == STREAMS_UNKNOWN {
            return None;
        }
        if allowed == 0 {
            // Kept, each such connection would be one more that serves nothing until it is too old.
            self.retire();
            return None;
        }
        let mut occupancy = self.occupancy.lock();
        if occupancy.streams >= allowed.min(STREAMS_MAX) {
            return None;
        }
        let mut sender = self.sender.clone();
        // Fails after the server's GOAWAY, and when the connection has no number for another stream.
        let ready = sender.poll_ready(&mut Context::from_waker(Waker::noop()));
        if !matches!(ready, Poll::Ready(Ok(()))) {
            self.retire();
            return None;
        }
        occupancy.streams += 1;
        drop(occupancy);
        Some(StreamPlace {
            connection: self.clone(),
            sender,
            patience,
        })
    }

    /// A place on it once its server's settings have arrived, if they allow one.
    pub async fn place_when_settled(
        self: &Arc<Self>,
        patience: Option<Duration>,
    ) -> Option<StreamPlace> {
        // An error is what is waited for.
        let _ = self.unsettled.clone().changed().await;
        self.place(patience, Instant::now())
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
    /// The connection.
    pub fn connection(&self) -> Arc<SharedConnection> {
        self.connection.clone()
    }

    /// Sends the head of a request, whose body follows unless it `ends` the request.
    ///
    /// # Errors
    /// If the connection accepts no further stream: nothing of the request was sent.
    pub fn send(
        &mut self,
        request: Request<()>,
        ends: bool,
    ) -> Result<(ResponseFuture, SendStream<Bytes>), h2::Error> {
        let sent = self.sender.send_request(request, ends);
        sent.inspect_err(|_| self.connection.retire())
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
        if occupancy.streams == 0 {
            let patience = self.patience;
            occupancy.until = patience.and_then(|patience| Instant::now().checked_add(patience));
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    /// A frame of SETTINGS without any.
    const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];

    const SERVER: u64 = 1;
    const PATIENCE: Option<Duration> = Some(Duration::from_secs(60));

    /// A connection, and its server's end.
    async fn made(shared: &SharedConnections) -> (StreamPlace, DuplexStream) {
        let (near, far) = duplex(1024);
        let made = shared.make(Box::new(near), SERVER, PATIENCE).await;
        (made.unwrap(), far)
    }

    #[test]
    fn a_making_is_for_as_many_requests_as_a_connection_has_places_unless_it_shares_none() {
        let shared = SharedConnections::default();
        let makings = |is_fresh| {
            let all = (0..=STREAMS_MAX).map(|_| shared.making(SERVER, is_fresh));
            let all: Vec<_> = all.collect();
            let is_first = |making: &&Arc<Making>| Arc::ptr_eq(making, &all[0]);
            all.iter().filter(is_first).count()
        };
        assert_eq!(makings(false), STREAMS_MAX);
        shared.making(SERVER, false).set(None).ok().unwrap();
        for is_fresh in [false, true] {
            shared.close_ended();
            assert_eq!(makings(is_fresh), STREAMS_MAX + 1);
        }
    }

    #[tokio::test]
    async fn no_more_connections_are_kept_than_the_limit() {
        let shared = SharedConnections::default();
        let mut ends = Vec::new();
        for _ in 0..KEPT_MAX + 10 {
            ends.push(made(&shared).await.1);
        }
        assert_eq!(shared.kept.lock()[&SERVER].len(), KEPT_MAX);
        let first = shared.kept.lock()[&SERVER][0].clone();
        assert!(shared.take(SERVER, PATIENCE, Instant::now()).is_none());
        ends[0].write_all(&SETTINGS).await.unwrap();
        assert!(first.place_when_settled(PATIENCE).await.is_some());
        assert!(shared.take(SERVER, PATIENCE, Instant::now()).is_some());
    }
}
