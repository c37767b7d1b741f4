//! pingora's application with the options of the configuration that a connection began under.
//!
//! pingora's own proxy has one set of options for its life, and it holds the pool of connections to upstreams, which must
//! outlive every configuration. So the proxy is one, and each connection gets it wrapped in its own options.

use std::pin::Pin;
use std::sync::Arc;

use pingora::apps::{HttpServerApp, HttpServerOptions, ReusedHttpStream};
use pingora::protocols::http::ServerSession;
use pingora::protocols::http::v2::server::{H2Options, default_h2_options};
use pingora::proxy::{HttpProxy, http_proxy};
use pingora::server::ShutdownWatch;
use pingora::server::configuration::ServerConf;

use crate::config::Limits;
use crate::policy::http2_memory::{STREAM_WINDOW_BYTES, request_bytes};
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
    options: HttpServerOptions,
    h2_options: H2Options,
    head_limits: HeadLimits,
    pace: Arc<Pace>,
}

impl Application {
    /// The proxy for one connection under these limits.
    pub fn new(proxy: Arc<HttpProxy<Edge>>, gate: &Arc<Gate>, limits: &Limits) -> Arc<Application> {
        let mut options = options();
        options.h2_idle_timeout = Some(limits.keepalive_idle);
        Arc::new(Application {
            proxy,
            gate: gate.clone(),
            options,
            h2_options: h2_options(limits),
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

type Served<'a> = Pin<Box<dyn Future<Output = Option<ReusedHttpStream>> + Send + 'a>>;

impl HttpServerApp for Application {
    /// What `async_trait` would make of it, but over HTTP/1 the proxy's future is handed on as it is: it measures 15 kB, and
    /// in another future it would be copied once more for each request.
    fn process_new_http<'app, 'watch, 'a>(
        self: &'app Arc<Self>,
        mut session: ServerSession,
        shutdown: &'watch ShutdownWatch,
    ) -> Served<'a>
    where
        'app: 'a,
        'watch: 'a,
        Self: 'a,
    {
        if !session.is_http2() {
            return self.proxy.process_new_http(session, shutdown);
        }
        Box::pin(async move {
            let head_bytes = well_formed::lighten(session.req_header_mut(), &self.head_limits);
            let window_bytes = self.gate.snapshot().window_bytes;
            let has_body = !session.is_body_done();
            let bytes = request_bytes(head_bytes as u64, has_body, window_bytes);
            let work = || self.proxy.process_new_http(session, shutdown);
            self.pace.run(bytes, work).await
        })
    }

    fn h2_options(&self) -> Option<H2Options> {
        Some(self.h2_options.clone())
    }

    fn server_options(&self) -> Option<&HttpServerOptions> {
        Some(&self.options)
    }
}
