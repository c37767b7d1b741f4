//! Listeners: bound before anything starts, served by pingora.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::IntoRawFd;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pingora::apps::{HttpServerOptions, ServerApp};
use pingora::listeners::ListenerConfig;
use pingora::listeners::tls::TlsSettings;
use pingora::protocols::l4::stream::L4BufferSettings;
use pingora::proxy::ProxyServiceBuilder;
use pingora::server::Fds;
use pingora::server::configuration::ServerConf;
use pingora::services::Service as _;
use pingora::services::listening::Service;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::{Addresses, ServeError, tls};
use crate::admin::Admin;
use crate::config::Listen;
use crate::proxy::Edge;

/// Per-connection read buffer: a request's head fits; pingora's 64 KiB would cost 640 MB for 10,000 idle clients.
const READ_BUFFER_BYTES: usize = 8 * 1024;
/// Per-connection write buffer: header and body of most answers leave in one write.
const WRITE_BUFFER_BYTES: usize = 16 * 1024;

/// An address that cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot listen on {address} ({path}): {error}; choose another address or stop what uses it"
)]
pub struct ListenError {
    path: &'static str,
    address: SocketAddr,
    error: std::io::Error,
}

/// The bound addresses with what stands behind each.
pub struct Listener {
    http: Option<Socket>,
    https: Option<(Socket, Arc<dyn rustls::server::ResolvesServerCert>)>,
    admin: Socket,
}

struct Socket {
    address: SocketAddr,
    /// Taken when the service starts.
    listener: Mutex<Option<TcpListener>>,
}

impl Socket {
    fn bind(path: &'static str, address: SocketAddr) -> Result<Socket, ListenError> {
        let bound = TcpListener::bind(address).and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok((listener.local_addr()?, listener))
        });
        let (address, listener) = bound.map_err(|error| ListenError {
            path,
            address,
            error,
        })?;
        Ok(Socket {
            address,
            listener: Mutex::new(Some(listener)),
        })
    }
}

impl Listener {
    /// Binds every configured address and reads the certificate.
    pub fn bind(listen: &Listen) -> Result<Listener, ServeError> {
        let http = listen
            .http
            .as_ref()
            .map(|http| Socket::bind("listen.http.address", http.address))
            .transpose()?;
        let https = match &listen.https {
            Some(https) => {
                let certificate = tls::resolver(&https.certificate, https.address.ip())?;
                Some((
                    Socket::bind("listen.https.address", https.address)?,
                    certificate,
                ))
            }
            None => None,
        };
        let admin = Socket::bind("listen.admin.address", listen.admin)?;
        Ok(Listener { http, https, admin })
    }

    /// Where the gateway listens, with the ports that the system chose for port 0.
    pub fn addresses(&self) -> Addresses {
        Addresses {
            event: "listening",
            http: self.http.as_ref().map(|socket| socket.address),
            https: self.https.as_ref().map(|(socket, _)| socket.address),
            admin: self.admin.address,
        }
    }

    /// Starts a pingora service behind each address. Those of clients stop when `watch` says so; the admin listener goes
    /// on until the [`Bound`] is dropped, so that a stopping gateway can be watched. Needs a tokio runtime.
    pub fn start(
        &self,
        settings: &Arc<ServerConf>,
        edge: Edge,
        admin: Admin,
        h2_idle: Duration,
        watch: &watch::Receiver<bool>,
    ) -> Bound {
        let (admin_stop, admin_watch) = watch::channel(false);
        let mut bound = Bound {
            services: JoinSet::new(),
            admin: JoinSet::new(),
            _admin_stop: admin_stop,
        };
        let mut options = HttpServerOptions::default();
        options.h2_idle_timeout = Some(h2_idle);
        options.h2c = true;
        let proxy = |name: &str| {
            ProxyServiceBuilder::new(settings, edge.clone())
                .name(name)
                .server_options(options.clone())
                .build()
        };
        if let Some(socket) = &self.http {
            start(&mut bound.services, proxy("http"), socket, None, watch);
        }
        if let Some((socket, certificate)) = &self.https {
            // The paths are not read: the certificate comes from the resolver.
            if let Ok(mut tls) = TlsSettings::intermediate("", "") {
                tls.set_cert_resolver(certificate.clone());
                tls.enable_h2();
                start(
                    &mut bound.services,
                    proxy("https"),
                    socket,
                    Some(tls),
                    watch,
                );
            }
        }
        start(
            &mut bound.admin,
            Service::new("admin".into(), admin),
            &self.admin,
            None,
            &admin_watch,
        );
        bound
    }
}

/// Starts one service.
fn start<A: ServerApp + Send + Sync + 'static>(
    services: &mut JoinSet<()>,
    mut service: Service<A>,
    socket: &Socket,
    tls: Option<TlsSettings>,
    watch: &watch::Receiver<bool>,
) {
    let Some(listener) = socket.listener.lock().take() else {
        return;
    };
    let address = socket.address.to_string();
    let mut fds = Fds::new();
    fds.add(address.clone(), listener.into_raw_fd());
    let buffers = L4BufferSettings::new(READ_BUFFER_BYTES, WRITE_BUFFER_BYTES);
    let mut endpoint = ListenerConfig::tcp(address).l4_buffer(buffers);
    if let Some(tls) = tls {
        endpoint = endpoint.tls(tls);
    }
    service.add_listener(endpoint);
    let watch = watch.clone();
    services.spawn(async move {
        service
            .start_service(Some(Arc::new(Mutex::new(fds))), watch, 1)
            .await;
    });
}

/// The running services; dropping them ends them.
pub struct Bound {
    services: JoinSet<()>,
    admin: JoinSet<()>,
    /// Never told anything; without it the admin service would end.
    _admin_stop: watch::Sender<bool>,
}

impl Bound {
    /// Waits until every listener for clients is closed and idle connections have been told to go.
    pub async fn closed(&mut self) {
        while self.services.join_next().await.is_some() {}
    }
}
