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

/// The bound addresses with the service behind each.
pub struct Listener {
    http: Option<Socket>,
    https: Option<(Socket, Arc<Acceptor>)>,
    redirect: Option<Socket>,
    admin: Socket,
}

struct Socket {
    label: Label,
    address: SocketAddr,
    /// Copies for a successor; taken when the offer is made.
    spare: Mutex<Option<TcpListener>>,
    /// Taken when the service starts.
    listener: Mutex<Option<TcpListener>>,
}

impl Socket {
    /// The socket handed over for this address, or a new one.
    fn bind(
        path: &'static str,
        configured: SocketAddr,
        handed: &mut Vec<Handed>,
    ) -> Result<Socket, ListenError> {
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
            Ok((listener.local_addr()?, listener.try_clone()?, listener))
        });
        let (address, spare, listener) = bound.map_err(|error| ListenError {
            path,
            address: configured,
            error,
        })?;
        Ok(Socket {
            label,
            address,
            spare: Mutex::new(Some(spare)),
            listener: Mutex::new(Some(listener)),
        })
    }
}

impl Listener {
    /// Binds every configured address except those `handed` over, and reads the certificates.
    pub fn bind(listen: &Listen, mut handed: Vec<Handed>) -> Result<Listener, ServeError> {
        let handed = &mut handed;
        let http = listen
            .http
            .as_ref()
            .map(|http| Socket::bind("listen.http.address", http.address, handed))
            .transpose()?;
        let https = match &listen.https {
            Some(https) => {
                let acceptor = Acceptor::new(https)?;
                Some((
                    Socket::bind("listen.https.address", https.address, handed)?,
                    Arc::new(acceptor),
                ))
            }
            None => None,
        };
        let redirect = listen
            .redirect
            .as_ref()
            .map(|one| Socket::bind("listen.redirect.address", one.address, handed))
            .transpose()?;
        let admin = Socket::bind("listen.admin.address", listen.admin.address, handed)?;
        Ok(Listener {
            http,
            https,
            redirect,
            admin,
        })
    }

    /// Copies of all sockets for a successor; none on a second call. The addresses stay open as long as the copies exist.
    pub fn spares(&self) -> Vec<Handed> {
        let https = self.https.as_ref().map(|(socket, _)| socket);
        let clear = self.http.iter().chain(&self.redirect);
        let sockets = clear.chain(https).chain([&self.admin]);
        sockets
            .filter_map(|socket| {
                Some(Handed {
                    label: socket.label.clone(),
                    listener: socket.spare.lock().take()?,
                })
            })
            .collect()
    }

    /// The TLS acceptor, if there is an HTTPS listener.
    pub fn acceptor(&self) -> Option<&Arc<Acceptor>> {
        self.https.as_ref().map(|(_, acceptor)| acceptor)
    }

    /// The gateway's addresses, with the ports that the system chose for port 0.
    pub fn addresses(&self) -> Addresses {
        Addresses {
            event: "listening",
            http: self.http.as_ref().map(|socket| socket.address),
            https: self.https.as_ref().map(|(socket, _)| socket.address),
            redirect: self.redirect.as_ref().map(|socket| socket.address),
            admin: self.admin.address,
        }
    }

    /// Prepares the services behind every address, including everything that can fail. None accepts a connection before
    /// [`Ready::open`]. Needs a tokio runtime.
    ///
    /// # Errors
    /// If the runtime does not accept a socket.
    pub fn prepare(&self, gate: &Arc<Gate>, admin: AdminService) -> std::io::Result<Ready> {
        let limiter = ConnectionLimiter::new(gate.metrics.connections.clone());
        let clear = self.http.as_ref().map(|socket| (socket, Behind::Clear));
        let tls = self
            .https
            .as_ref()
            .map(|(socket, acceptor)| (socket, Behind::Tls(acceptor.clone())));
        let redirect = self
            .redirect
            .as_ref()
            .map(|socket| (socket, Behind::Redirect));
        let mut doors = Vec::new();
        for (socket, behind) in clear.into_iter().chain(tls).chain(redirect) {
            let Some(listener) = socket.listener.lock().take() else {
                continue;
            };
            doors.push(Door {
                listener: tokio::net::TcpListener::from_std(listener)?,
                behind,
                gate: gate.clone(),
                limiter: limiter.clone(),
            });
        }
        let admin = LimitedAdmin::new(admin, gate.metrics.limit_hits.clone());
        let admin = admin_service(admin, &self.admin);
        Ok(Ready { doors, admin })
    }
}

/// pingora's own service, with its socket, for operators, who are few and trusted.
fn admin_service(admin: LimitedAdmin, socket: &Socket) -> Option<(Service<LimitedAdmin>, Fds)> {
    let listener = socket.listener.lock().take()?;
    let address = socket.address.to_string();
    let mut fds = Fds::new();
    fds.add(address.clone(), listener.into_raw_fd());
    let buffers = L4BufferSettings::new(ADMIN_BUFFER_BYTES, ADMIN_BUFFER_BYTES);
    let mut service = Service::new("admin".into(), admin);
    service.add_listener(ListenerConfig::tcp(address).l4_buffer(buffers));
    Some((service, fds))
}

/// Services that are ready to be opened.
pub struct Ready {
    doors: Vec<Door>,
    admin: Option<(Service<LimitedAdmin>, Fds)>,
}

impl Ready {
    /// Accepts connections at every address. Client listeners close when `watch` changes; the admin listener continues until the
    /// [`Bound`] is dropped, so that a stopping gateway can be observed. Needs a tokio runtime.
    pub fn open(self, watch: &watch::Receiver<bool>) -> Bound {
        let (admin_stop, admin_watch) = watch::channel(false);
        let mut bound = Bound {
            services: JoinSet::new(),
            admin: JoinSet::new(),
            admin_stop,
        };
        for door in self.doors {
            bound.services.spawn(door.serve(watch.clone()));
        }
        if let Some((mut service, fds)) = self.admin {
            bound.admin.spawn(async move {
                let fds = Some(Arc::new(Mutex::new(fds)));
                service.start_service(fds, admin_watch, 1).await;
            });
        }
        bound
    }
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

    /// Waits until every client listener is closed and the close of idle connections has begun.
    pub async fn closed(&mut self) {
        while self.services.join_next().await.is_some() {}
    }
}
