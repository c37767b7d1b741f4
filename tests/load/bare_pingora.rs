//! A bare proxy on pingora, which does nothing else: the lower bound in `make bench`.
//!
//! `bare_pingora LISTEN UPSTREAM`, one worker thread, mimalloc, header and body of an answer in one write.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a measurement fails by panicking and prints its address"
)]

use async_trait::async_trait;
use pingora::listeners::ListenerConfig;
use pingora::prelude::*;
use pingora::protocols::l4::stream::L4BufferSettings;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Large enough that header and body of an answer leave together.
const BUFFER_BYTES: usize = 16 * 1024;

struct Bare(String);

#[async_trait]
impl ProxyHttp for Bare {
    type CTX = ();
    fn new_ctx(&self) {}
    async fn upstream_peer(&self, _: &mut Session, _: &mut ()) -> Result<Box<HttpPeer>> {
        Ok(Box::new(HttpPeer::new(
            self.0.as_str(),
            false,
            String::new(),
        )))
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (listen, upstream) = (arguments.next().unwrap(), arguments.next().unwrap());
    let mut server = Server::new(None).unwrap();
    server.bootstrap();
    let mut service = http_proxy_service(&server.configuration, Bare(upstream));
    service.threads = Some(1);
    let buffers = L4BufferSettings::new(BUFFER_BYTES, BUFFER_BYTES);
    service.add_listener(ListenerConfig::tcp(&listen).l4_buffer(buffers));
    server.add_service(service);
    server.run_forever();
}
