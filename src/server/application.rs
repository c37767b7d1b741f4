//! pingora's application with the options of the configuration that a connection began under.
//!
//! pingora's own proxy has one set of options for its life, and it holds the pool of connections to upstreams, which must
//! outlive every configuration. So the proxy is one, and each connection gets it wrapped in its own options.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pingora::apps::{HttpServerApp, HttpServerOptions, ReusedHttpStream, ServerApp};
use pingora::protocols::http::ServerSession;
use pingora::protocols::http::custom::server::Session;
use pingora::protocols::http::v2::server::{H2Options, default_h2_options};
use pingora::protocols::{Digest, GetProxyDigest, GetSocketDigest, GetTimingDigest, Ssl};
use pingora::proxy::{HttpProxy, http_proxy};
use pingora::server::ShutdownWatch;
use pingora::server::configuration::ServerConf;
use tokio::sync::watch;

use crate::config::Limits;
use crate::policy::http2_memory::{STREAM_WINDOW_BYTES, request_bytes};
use crate::proxy::connection::guard::Guard;
use crate::proxy::connection::http2::Http2Request;
use crate::proxy::connection::pace::Pace;
use crate::proxy::well_formed::{self, HeadLimits};
use crate::proxy::{Edge, Gate};

/// What an HTTP/2 stream may have waiting to be written. The library's own 400 KiB for each of 100 streams is more than a
/// client that does not read should cost.
const H2_SEND_BUFFER_BYTES: usize = 32 * 1024;
/// Streams of a connection that the library resets because of what the client sent, before it ends the connection. The guard counts
/// them towards `limits.h2_resets` too, and ends the connection earlier unless that allows more.
const H2_ERROR_RESETS_MAX: usize = 48;
/// Streams that a client may open at once before it has read the settings: RFC 9113 section 6.5.2 recommends to allow 100. The
/// library counts the streams above the allowed number, which it refuses, together with those resets.
const H2_STREAMS_ASSUMED: usize = 100;
/// RFC 9113 counts 32 bytes more for each header than their text (section 6.5.2), the gateway's own limit 4; and what is
/// only a little over gets the gateway's answer instead of the library's bare 431.
const H2_HEADER_LIST_FACTOR: usize = 2;

/// The one proxy behind all listeners for clients.
pub fn proxy(settings: &Arc<ServerConf>, gate: &Arc<Gate>) -> Arc<HttpProxy<Edge>> {
    let mut proxy = http_proxy(settings, Edge::new(gate.clone()));
    proxy.server_options = Some(options());
    Arc::new(proxy)
}

fn options() -> HttpServerOptions {
    let mut options = HttpServerOptions::default();
    // Over HTTP/2 it is refused by the gateway, over HTTP/1 it never gets here.
    options.allow_connect_method_proxying = true;
    options
}

/// What serves one connection: everything from a request's head on.
pub struct Application {
    proxy: Arc<HttpProxy<Edge>>,
    gate: Arc<Gate>,
    h2_options: H2Options,
    idle: Duration,
    head_limits: HeadLimits,
    pace: Arc<Pace>,
}

impl Application {
    /// The proxy for one connection under these limits.
    pub fn new(proxy: Arc<HttpProxy<Edge>>, gate: &Arc<Gate>, limits: &Limits) -> Arc<Application> {
        Arc::new(Application {
            proxy,
            gate: gate.clone(),
            h2_options: h2_options(limits),
            idle: limits.keepalive_idle,
            head_limits: HeadLimits::of(limits),
            pace: Pace::new(limits, gate.metrics.limit_hits.clone()),
        })
    }
}

fn h2_options(limits: &Limits) -> H2Options {
    let list_bytes = limits.header_bytes.saturating_mul(H2_HEADER_LIST_FACTOR);
    let refused = H2_STREAMS_ASSUMED.saturating_sub(limits.h2_streams as usize);
    let mut options = default_h2_options();
    options
        .max_local_error_reset_streams(Some(H2_ERROR_RESETS_MAX + refused))
        .max_header_list_size(u32::try_from(list_bytes).unwrap_or(u32::MAX))
        .max_concurrent_streams(limits.h2_streams)
        .initial_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(STREAM_WINDOW_BYTES.saturating_mul(limits.h2_streams))
        .max_send_buffer_size(H2_SEND_BUFFER_BYTES);
    options
}

impl Application {
    /// Serves a connection to its end, which `shutdown` asks for. In a box of its own, so that what waits for it is small.
    pub fn serve<'a>(
        self: &'a Arc<Self>,
        guard: Guard,
        shutdown: &'a ShutdownWatch,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        if guard.is_http2() {
            return Box::pin(self.serve_http2(guard, shutdown.clone()));
        }
        let served = self.process_new(Box::new(guard), shutdown);
        Box::pin(async {
            served.await;
        })
    }

    /// What pingora's own loop does, but that each head that the library could read is a request: pingora's answers some of them
    /// in its own words.
    async fn serve_http2(self: &Arc<Self>, guard: Guard, mut shutdown: ShutdownWatch) {
        let digest = Arc::new(Digest {
            ssl_digest: guard.get_ssl_digest(),
            timing_digest: guard.get_timing_digest(),
            proxy_digest: guard.get_proxy_digest(),
            socket_digest: guard.get_socket_digest(),
        });
        let mut connection = match self.h2_options.handshake::<_, Bytes>(guard).await {
            Ok(connection) => connection,
            Err(error) => return tracing::debug!(%error, "an HTTP/2 handshake failed"),
        };
        let (under_way, mut quiet) = watch::channel(0_usize);
        let under_way = Arc::new(under_way);
        let mut stopping = false;
        loop {
            let accepted = tokio::select! {
                biased;
                _ = shutdown.changed(), if !stopping => {
                    connection.graceful_shutdown();
                    stopping = true;
                    continue;
                }
                accepted = connection.accept() => accepted,
                () = self.idle(&mut quiet), if !stopping => return,
            };
            // However the connection ended, the library ends its requests.
            let Some(Ok((request, respond))) = accepted else {
                return;
            };
            let request = Http2Request::new(request, respond, digest.clone());
            let under_way = UnderWay::begin(&under_way);
            let (application, shutdown) = (self.clone(), shutdown.clone());
            tokio::spawn(async move {
                let _under_way = under_way;
                application.serve_request(request, &shutdown).await;
            });
        }
    }

    async fn serve_request(&self, mut request: Http2Request, shutdown: &ShutdownWatch) {
        let head_bytes = well_formed::lighten(request.req_header_mut(), &self.head_limits);
        let window_bytes = self.gate.snapshot().window_bytes;
        let has_body = !request.is_body_done();
        let bytes = request_bytes(head_bytes as u64, has_body, window_bytes);
        let session = ServerSession::new_custom(Box::new(request));
        let work = || self.proxy.process_new_http(session, shutdown);
        self.pace.run(bytes, work).await;
    }

    /// Returns when no request has been under way for as long as a connection may be idle.
    async fn idle(&self, under_way: &mut watch::Receiver<usize>) {
        // Fails only once the connection has ended.
        let _ = under_way.wait_for(|count| *count == 0).await;
        tokio::time::sleep(self.idle).await;
    }
}

/// A request under way on a connection that counts them.
struct UnderWay(Arc<watch::Sender<usize>>);

impl UnderWay {
    fn begin(count: &Arc<watch::Sender<usize>>) -> UnderWay {
        count.send_modify(|count| *count += 1);
        UnderWay(count.clone())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

type Served<'a> = Pin<Box<dyn Future<Output = Option<ReusedHttpStream>> + Send + 'a>>;

/// HTTP/1.
impl HttpServerApp for Application {
    /// What `async_trait` would make of it, but the proxy's future is handed on unchanged: it measures 15 kB, and in another
    /// future it would be copied once more for each request.
    fn process_new_http<'app, 'watch, 'a>(
        self: &'app Arc<Self>,
        session: ServerSession,
        shutdown: &'watch ShutdownWatch,
    ) -> Served<'a>
    where
        'app: 'a,
        'watch: 'a,
        Self: 'a,
    {
        self.proxy.process_new_http(session, shutdown)
    }

    fn server_options(&self) -> Option<&HttpServerOptions> {
        self.proxy.server_options()
    }
}
