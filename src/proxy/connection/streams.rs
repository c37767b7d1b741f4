//! A client's connection over HTTP/2: its streams, each a request with its own task.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use h2::server::{Builder, SendResponse};
use h2::{Reason, RecvStream};
use http::Request;
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Connection;
use super::allowance::Allowance;
use super::guard::Guard;
use super::incoming::Incoming;
use super::on_wake::OnWake;
use super::progress::Progress;
use super::wire::bytes_at;
use crate::config::Limits;
use crate::policy::http1::framing::Framing;
use crate::policy::http1::request::RequestHead;
use crate::policy::http2_memory::{MemoryShares, STREAM_WINDOW_BYTES, kept_bytes, request_bytes};
use crate::policy::limit_hit::LimitHit;
use crate::proxy::client::http2::Http2Side;
use crate::proxy::client::{Client, Side};
use crate::proxy::gate::Gate;
use crate::proxy::received_body::{ReceivedBody, collecting};
use crate::proxy::sent_part::SentPart;
use crate::proxy::serve::serve as serve_request;
use crate::proxy::well_formed;

/// Streams of a connection that the library resets because of what the client sent, before it ends the connection. The guard
/// counts them towards `limits.h2_resets` too, and ends the connection earlier unless that allows more.
const ERROR_RESETS_MAX: usize = 48;
/// Streams that a client may open at once before it has read the settings: RFC 9113 section 6.5.2 recommends to allow 100. The
/// library counts the streams above the allowed number, which it refuses, together with those resets.
const STREAMS_ASSUMED: usize = 100;
/// How long a client may take to acknowledge that its connection accepts no further stream (RFC 9113 section 6.8).
const CLOSING: Duration = Duration::from_secs(5);
/// A connection is at rest if no stream was open for so long: its client sends less than a request a second, so one is seldom in transit.
const REST: Duration = Duration::from_secs(1);
/// RFC 9113 adds 32 bytes for each header to its text (section 6.5.2), the gateway's own limit adds 4. Also, a head that is
/// slightly too large gets the gateway's answer instead of the library's bare 431.
const HEADER_LIST_FACTOR: usize = 2;

/// The state that the requests of a connection share, with the limits that applied when it began.
pub struct StreamTerms {
    gate: Arc<Gate>,
    connection: Arc<Connection>,
    pub(super) progress: Arc<Progress>,
    library: Builder,
    idle: Duration,
    /// For a request's body, and for a client to read at least `read_bytes_min` of a part of its answer.
    timeouts: [Duration; 2],
    read_bytes_min: u64,
    allowance: Arc<Allowance>,
}

impl StreamTerms {
    pub(super) fn new(
        gate: &Arc<Gate>,
        connection: &Arc<Connection>,
        limits: &Limits,
    ) -> StreamTerms {
        StreamTerms {
            gate: gate.clone(),
            connection: connection.clone(),
            progress: Arc::default(),
            library: library(limits),
            idle: limits.keepalive_idle,
            timeouts: [limits.request_read, limits.response_write],
            read_bytes_min: bytes_at(limits.response_rate, limits.response_write),
            allowance: Allowance::new(limits, gate.metrics.limit_hits.clone()),
        }
    }
}

fn library(limits: &Limits) -> Builder {
    let list_bytes = limits.header_bytes.saturating_mul(HEADER_LIST_FACTOR);
    let refused = STREAMS_ASSUMED.saturating_sub(limits.h2_streams as usize);
    let mut library = Builder::new();
    library
        .max_local_error_reset_streams(Some(ERROR_RESETS_MAX + refused))
        .max_header_list_size(u32::try_from(list_bytes).unwrap_or(u32::MAX))
        .max_concurrent_streams(limits.h2_streams)
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(STREAM_WINDOW_BYTES.saturating_mul(limits.h2_streams))
        .max_send_buffer_size(
            MemoryShares::of(limits.h2_memory).send_buffer_bytes(limits.h2_streams),
        );
    library
}

/// Serves a connection to its end, which `ending` requests. `guard` stays in its box until the library takes it: a future has room for
/// each of its arguments to its end.
pub(super) async fn serve(guard: Box<Guard>, terms: Arc<StreamTerms>, ending: CancellationToken) {
    let mut incoming = match terms.library.handshake::<_, SentPart>(*guard).await {
        Ok(library) => Incoming::new(library, terms.progress.clone()),
        Err(error) => return tracing::debug!(%error, "an HTTP/2 handshake failed"),
    };
    let open = Arc::new(OpenStreams::none());
    let asked = pin!(ending.cancelled());
    let mut asked = OnWake::new(asked);
    let mut idle = OnWake::new(Box::pin(open.idle(&terms.connection, terms.idle)));
    let mut stopped: Option<Instant> = None;
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut asked, if stopped.is_none() => None,
            accepted = poll_fn(|context| incoming.poll_next(open.are_several(), context)) => Some(accepted),
            () = &mut idle => {
                if stopped.is_some() {
                    return;
                }
                terms.gate.metrics.limit_hits.note(LimitHit::KeepaliveIdle);
                None
            }
        };
        let Some(accepted) = accepted else {
            if open.are_at_rest(&terms.connection) {
                // It names the last stream: a client that reads it with its next request sends that on another connection. One that was in
                // transit is not served, and may be sent again (RFC 9113 section 6.8).
                incoming.abrupt_shutdown();
            } else {
                // Requests in transit are served; a later GOAWAY names the last of them.
                incoming.graceful_shutdown();
            }
            stopped = Some(Instant::now());
            idle = OnWake::new(Box::pin(open.idle(&terms.connection, CLOSING)));
            continue;
        };
        // However the connection ended, the library ends its requests.
        let Some(Ok((request, mut respond))) = accepted else {
            return;
        };
        if stopped.is_some_and(|stopped| stopped.elapsed() > CLOSING) {
            // The client has had enough time to answer the PING after which no further stream is accepted.
            respond.send_reset(Reason::REFUSED_STREAM);
            continue;
        }
        let open_stream = OpenStream::begin(&open);
        let stream = serve_stream(terms.clone(), request, respond, open_stream);
        // In a box, so that only a pointer is moved: the runtime moves a task's future at its start and at its end.
        tokio::spawn(Box::pin(stream));
    }
}

/// Serves the request of a stream, which counts as open until this returns.
async fn serve_stream(
    terms: Arc<StreamTerms>,
    request: Request<RecvStream>,
    respond: SendResponse<SentPart>,
    _open_stream: OpenStream,
) {
    let (parts, body) = request.into_parts();
    let mut head = Box::new(RequestHead::of_http2(parts));
    let (head_bytes, exchange_bytes) = {
        let snapshot = terms.gate.snapshot();
        let head_bytes = well_formed::lighten(&mut head, &snapshot.config.limits);
        terms.progress.note_examined();
        (head_bytes, snapshot.exchange_bytes)
    };
    let announced = match head.framing {
        _ if body.is_end_stream() => Some(0),
        Framing::Empty => Some(0),
        Framing::Length(bytes) => Some(bytes),
        Framing::Chunked => None,
    };
    let bytes = request_bytes(head_bytes as u64, announced, exchange_bytes);
    let body = Arc::new(Mutex::new(ReceivedBody::new(body)));
    let served = async {
        let turn = terms.allowance.turn(bytes, kept_bytes(announced)).await;
        let side = Http2Side::new(
            body.clone(),
            respond,
            turn,
            terms.timeouts,
            terms.read_bytes_min,
        );
        let side = Side::Http2(Box::new(side));
        let mut client = Client::new(terms.connection.clone(), head, side);
        Box::pin(serve_request(&terms.gate, &mut client)).await;
        if let Side::Http2(side) = client.side {
            side.finish().await;
        }
    };
    collecting(&body, pin!(served)).await;
}

/// The open streams of a connection. The end of one does not wake the connection's task, which checks by itself when the connection
/// may have been idle for long enough.
#[derive(Debug)]
struct OpenStreams {
    count: AtomicUsize,
    /// When a stream last ended, or the connection began.
    last_end: Mutex<Instant>,
}

impl OpenStreams {
    fn none() -> OpenStreams {
        OpenStreams {
            count: AtomicUsize::new(0),
            last_end: Mutex::new(Instant::now()),
        }
    }

    /// Whether more than one stream is open.
    fn are_several(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 1
    }

    /// When a stream was last open or its client refused bytes.
    fn last_use(&self, connection: &Connection) -> Instant {
        match self.count.load(Ordering::Acquire) {
            0 if !connection.has_backlog() => *self.last_end.lock(),
            _ => Instant::now(),
        }
    }

    /// Whether no stream has been open for [`REST`].
    fn are_at_rest(&self, connection: &Connection) -> bool {
        self.last_use(connection).elapsed() >= REST
    }

    /// Returns once no stream of the connection has been open for `patience`, which begins now, and its client has not refused bytes.
    async fn idle(&self, connection: &Connection, patience: Duration) {
        let mut quiet_since = Instant::now();
        loop {
            tokio::time::sleep_until(quiet_since + patience).await;
            let last_use = self.last_use(connection);
            if last_use <= quiet_since {
                return;
            }
            quiet_since = last_use;
        }
    }
}

/// One of them, until it is dropped.
struct OpenStream(Arc<OpenStreams>);

impl OpenStream {
    fn begin(open: &Arc<OpenStreams>) -> OpenStream {
        open.count.fetch_add(1, Ordering::Relaxed);
        OpenStream(open.clone())
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        *self.0.last_end.lock() = Instant::now();
        self.0.count.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of<A, B, C, D, F>(_: impl FnOnce(A, B, C, D) -> F) -> usize {
        size_of::<F>()
    }

    /// A box of every open stream, of which a connection may have a hundred.
    #[test]
    fn the_task_of_a_stream_stays_small() {
        let serving = bytes_of(serve_stream);
        assert!(serving <= 1_150, "serve_stream: {serving} bytes");
    }

    /// A box of every connection.
    #[test]
    fn the_future_of_a_connection_stays_small() {
        let serving =
            bytes_of::<_, _, _, (), _>(|guard, terms, ending, ()| serve(guard, terms, ending));
        assert!(serving <= 1_792, "serve: {serving} bytes");
    }
}
