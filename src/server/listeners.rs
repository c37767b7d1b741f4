//! Listeners, bound before anything starts: [`super::accept`] serves those for clients, pingora the admin listener.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::IntoRawFd;
use std::sync::Arc;

use parking_lot::Mutex;
use pingora::listeners::ListenerConfig;
use pingora::protocols::l4::stream::L4BufferSettings;
use pingora::server::Fds;
use pingora::services::Service as _;
use pingora::services::listening::Service;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::accept::{Behind, Door};
use super::admin_limit::LimitedAdmin;
use super::descriptors;
use super::error::{ListenError, ServeError};
use super::handover::{Handed, Label};
use super::tls::Acceptor;
use serde::Serialize;

use crate::admin::AdminService;
use crate::config::Listen;
use crate::proxy::Gate;
use crate::proxy::connection::limiter::ConnectionLimiter;

/// Buffers of a connection to the admin listener.
const ADMIN_BUFFER_BYTES: usize = 8 * 1024;

/// The addresses of a running gateway, printed as one JSON line when all listeners are bound.
#[derive(Debug, Clone, Serialize)]
pub struct Addresses {
    event: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) http: Option<SocketAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) https: Option<SocketAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) redirect: Option<SocketAddr>,
    pub(super) admin: SocketAddr,
}

/// The paths of the listeners for clients in the configuration.
const HTTP: &str = "listen.http.address";
const HTTPS: &str = "listen.https.address";
const REDIRECT: &str = "listen.redirect.address";

/// The bound sockets with the service behind each.
pub struct Listeners {
    clients: Vec<(Handed, Behind)>,
    admin: Handed,
}

/// The socket handed over for this address, or a new one.
fn bind(
    path: &'static str,
    configured: SocketAddr,
    handed: &mut Vec<Handed>,
) -> Result<Handed, ListenError> {
    let label = Label {
        path: path.to_owned(),
        configured,
    };
    let own = handed.iter().position(|one| one.label == label);
    let listener = match own {
        Some(own) => Ok(handed.swap_remove(own).listener),
        None => TcpListener::bind(configured),
    };
    let bound = listener.and_then(|listener| {
        listener.set_nonblocking(true)?;
        // Reports here that the address is unknown.
        listener.local_addr()?;
        Ok(Handed { label, listener })
    });
    bound.map_err(|error| ListenError {
        path,
        address: configured,
        error,
    })
}

/// The address of a bound socket, with the port that the system chose for port 0.
fn address_of(socket: &Handed) -> SocketAddr {
    let address = socket.listener.local_addr();
    address.unwrap_or(socket.label.configured)
}

impl Listeners {
    /// Binds every configured address except those `handed` over, and reads the certificates.
    ///
    /// # Errors
    /// With the first address that cannot be listened on, or certificate that cannot be used.
    pub fn bind(listen: &Listen, mut handed: Vec<Handed>) -> Result<Listeners, ServeError> {
        let mut bind = |path, address| bind(path, address, &mut handed);
        let mut clients = Vec::new();
        if let Some(http) = &listen.http {
            clients.push((bind(HTTP, http.address)?, Behind::Clear));
        }
        if let Some(https) = &listen.https {
            let acceptor = Arc::new(Acceptor::new(https)?);
            clients.push((bind(HTTPS, https.address)?, Behind::Tls(acceptor)));
        }
        if let Some(redirect) = &listen.redirect {
            clients.push((bind(REDIRECT, redirect.address)?, Behind::Redirect));
        }
        let admin = bind("listen.admin.address", listen.admin.address)?;
        Ok(Listeners { clients, admin })
    }

    /// Copies of all sockets for a successor. The addresses stay open as long as the copies exist.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    pub fn spares(&self) -> std::io::Result<Vec<Handed>> {
        let clients = self.clients.iter().map(|(socket, _)| socket);
        let spares = clients.chain([&self.admin]).map(|socket| {
            Ok(Handed {
                label: socket.label.clone(),
                listener: socket.listener.try_clone()?,
            })
        });
        spares.collect()
    }

    /// The TLS acceptor, if there is an HTTPS listener.
    pub fn acceptor(&self) -> Option<Arc<Acceptor>> {
        self.clients.iter().find_map(|(_, behind)| match behind {
            Behind::Tls(acceptor) => Some(acceptor.clone()),
            Behind::Clear | Behind::Redirect => None,
        })
    }

    /// The gateway's addresses.
    pub fn addresses(&self) -> Addresses {
        let of = |path: &str| {
            let mut sockets = self.clients.iter().map(|(socket, _)| socket);
            let socket = sockets.find(|socket| socket.label.path == path);
            socket.map(address_of)
        };
        Addresses {
            event: "listening",
            http: of(HTTP),
            https: of(HTTPS),
            redirect: of(REDIRECT),
            admin: address_of(&self.admin),
        }
    }

    /// Prepares the services behind every address, including everything that can fail. The result opens them: it accepts connections
    /// at every address. Client listeners close when its argument changes; the admin listener continues until the [`Bound`] is
    /// dropped, so that a stopping gateway can be observed. Both need a tokio runtime.
    ///
    /// # Errors
    /// If the runtime does not accept a socket.
    pub fn prepare(
        self,
        gate: &Arc<Gate>,
        admin: AdminService,
    ) -> std::io::Result<impl FnOnce(&watch::Receiver<bool>) -> Bound> {
        let clients = self.clients.into_iter().map(|(socket, behind)| {
            let listener = tokio::net::TcpListener::from_std(socket.listener)?;
            Ok((listener, behind))
        });
        let clients = clients.collect::<std::io::Result<Vec<_>>>()?;
        let admin = LimitedAdmin::new(admin, gate.metrics.limit_hits.clone());
        let (mut service, fds) = admin_service(admin, self.admin);
        let gate = gate.clone();
        Ok(move |watch: &watch::Receiver<bool>| {
            let (admin_stop, admin_watch) = watch::channel(false);
            let mut bound = Bound {
                services: JoinSet::new(),
                admin: JoinSet::new(),
                admin_stop,
            };
            let connections = gate.metrics.connections.clone();
            let limiter = ConnectionLimiter::new(descriptors::clients_max(), connections);
            for (listener, behind) in clients {
                let door = Arc::new(Door {
                    behind,
                    gate: gate.clone(),
                    limiter: limiter.clone(),
                    shutdown: watch.clone(),
                });
                bound.services.spawn(door.serve(listener));
            }
            bound.admin.spawn(async move {
                let fds = Some(Arc::new(Mutex::new(fds)));
                service.start_service(fds, admin_watch, 1).await;
            });
            bound
        })
    }
}

/// pingora's own service, with its socket, for operators, who are few and trusted.
fn admin_service(admin: LimitedAdmin, socket: Handed) -> (Service<LimitedAdmin>, Fds) {
    let address = address_of(&socket).to_string();
    let mut fds = Fds::new();
    fds.add(address.clone(), socket.listener.into_raw_fd());
    let buffers = L4BufferSettings::new(ADMIN_BUFFER_BYTES, ADMIN_BUFFER_BYTES);
    let mut service = Service::new("admin".into(), admin);
    service.add_listener(ListenerConfig::tcp(address).l4_buffer(buffers));
    (service, fds)
}

/// The running services; dropping them ends them.
pub struct Bound {
    services: JoinSet<()>,
    admin: JoinSet<()>,
    /// Kept because the admin service ends without it.
    admin_stop: watch::Sender<bool>,
}

impl Bound {
    /// Leaves the admin listener to a successor.
    pub fn leave_admin(&self) {
        // Fails only if the service has already ended.
        let _ = self.admin_stop.send(true);
    }

    /// Waits until every client listener is closed; connections that had waited in it are accepted then.
    pub async fn closed(&mut self) {
        while self.services.join_next().await.is_some() {}
    }
}
