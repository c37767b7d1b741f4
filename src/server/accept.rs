//! Accepting connections, from a client's SYN to the connection's task.
//!
//! Each connection is one task, which ends with it. Connection limits are checked before the TLS handshake, which is the most
//! expensive part of a flood of connections.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::proxied;
use super::tls::Acceptor;
use crate::config::{Limits, Listen, ProxyProtocol};
use crate::policy::failure_log::FailureLog;
use crate::policy::limit_hit::LimitHit;
use crate::policy::redirect::Rule;
use crate::policy::{address, forwarded};
use crate::proxy::connection::Connection;
use crate::proxy::connection::limiter::{ConnectionLimiter, ConnectionSlot};
use crate::proxy::connection::on_wake::OnWake;
use crate::proxy::connection::opening::{self, Opened};
use crate::proxy::connection::transport::{self, TlsSocket, Transport};
use crate::proxy::{Gate, Snapshot};
use crate::telemetry::handshake_failure::HandshakeFailure;

/// The pause after a failed accept: the process has no file descriptors or memory left, and must wait.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The most connections that a listener accepts when it closes. The system lets half as many wait; others may come meanwhile, but not
/// hold up the stop.
const ACCEPTED_LAST_MAX: usize = 256;

/// How long a stopping gateway keeps idle connections open: a request that its client is about to send is then answered, with
/// `Connection: close`, instead of reset.
const IDLE_LINGER: Duration = Duration::from_millis(500);

/// The service of a listener.
#[derive(Clone)]
pub enum Behind {
    /// The API in clear text.
    Clear,
    /// The API over TLS.
    Tls(Arc<Acceptor>),
    /// The redirect to HTTPS.
    Redirect,
}

impl Behind {
    /// Whether connections begin with a PROXY protocol header, under a configuration.
    fn proxy_protocol(&self, listen: &Listen) -> ProxyProtocol {
        let spoken = match self {
            Behind::Clear => listen.http.as_ref().map(|http| http.proxy_protocol),
            Behind::Tls(_) => listen.https.as_ref().map(|https| https.proxy_protocol),
            Behind::Redirect => listen.redirect.as_ref().map(|one| one.proxy_protocol),
        };
        spoken.unwrap_or(ProxyProtocol::Absent)
    }
}

/// The unsent bytes that the system may buffer for a client, besides those in transit, before the gateway waits.
const UNSENT_BYTES_MAX: u32 = 128 * 1024;

/// The longest time that the requests of a connection may take.
fn last_requests(snapshot: &Snapshot) -> Duration {
    let (limits, upstreams) = (&snapshot.config.limits, &snapshot.config.upstreams);
    let totals = upstreams.iter().map(|(_, one)| one.timeouts.total);
    limits.request_read + totals.max().unwrap_or_default() + limits.response_write
}

/// The address under which a connection is counted, beside the total. A proxy forwards for many clients, so it has none.
fn counted_address(client: SocketAddr, snapshot: &Snapshot) -> Option<IpAddr> {
    let (limits, listen) = (&snapshot.config.limits, &snapshot.config.listen);
    match forwarded::is_trusted(client.ip(), &listen.trusted_proxies) {
        true => None,
        false => address::counted(client.ip(), &limits.exempt_addresses),
    }
}

/// A connection that is counted among those of the gateway, under the configuration of its beginning.
struct CountedConnection {
    peer: SocketAddr,
    slot: ConnectionSlot,
    snapshot: Arc<Snapshot>,
}

/// A listener for clients: its service, and what its connections need.
pub struct Door {
    /// The service of this listener.
    pub behind: Behind,
    /// The state shared by requests.
    pub gate: Arc<Gate>,
    /// All connections of the gateway.
    pub limiter: Arc<ConnectionLimiter>,
    /// Whether the gateway is stopping.
    pub shutdown: watch::Receiver<bool>,
}

impl Door {
    /// Accepts connections until the gateway stops; then each open connection ends after its requests in flight.
    pub async fn serve(self: Arc<Door>, listener: TcpListener) {
        let mut shutdown = self.shutdown.clone();
        let mut log = FailureLog::default();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                _ = shutdown.changed() => return self.accept_last(listener),
            };
            match accepted {
                Ok((socket, peer)) => {
                    if log.succeeded() {
                        tracing::info!("connections are accepted again");
                    }
                    self.begin(socket, peer);
                }
                Err(error) => {
                    if log.failed(Instant::now()) {
                        tracing::warn!(%error, "cannot accept a connection");
                    }
                    self.note_limit(LimitHit::Accept);
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Accepts the connections that wait, which the system would reset, and closes the listener.
    fn accept_last(self: Arc<Door>, listener: TcpListener) {
        // The runtime learns of connections later than the system.
        let Ok(listener) = listener.into_std() else {
            return;
        };
        let waiting = std::iter::from_fn(|| listener.accept().ok());
        for (socket, peer) in waiting.take(ACCEPTED_LAST_MAX) {
            let socket = socket
                .set_nonblocking(true)
                .and_then(|()| TcpStream::from_std(socket));
            if let Ok(socket) = socket {
                self.begin(socket, peer);
            }
        }
    }

    /// Begins the task of an accepted connection, unless a limit forbids it.
    fn begin(self: &Arc<Door>, socket: TcpStream, peer: SocketAddr) {
        match self.count(peer) {
            Ok(counted) => drop(tokio::spawn(self.clone().receive(socket, counted))),
            Err(full) => self.note_limit(full),
        }
    }

    /// Counts an accepted connection: before its task begins, which a gateway that stops in between would not wait for.
    fn count(&self, peer: SocketAddr) -> Result<CountedConnection, LimitHit> {
        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        let snapshot = self.gate.snapshot();
        let (limits, listen) = (&snapshot.config.limits, &snapshot.config.listen);
        let is_proxy = forwarded::is_trusted(peer.ip(), &listen.trusted_proxies);
        if self.behind.proxy_protocol(listen) == ProxyProtocol::Spoken && !is_proxy {
            return Err(LimitHit::ProxyProtocol);
        }
        let slot = self
            .limiter
            .slot(counted_address(peer, &snapshot), limits)?;
        Ok(CountedConnection {
            peer,
            slot,
            snapshot,
        })
    }

    /// Serves a connection from beginning to end.
    async fn receive(self: Arc<Door>, mut socket: TcpStream, counted: CountedConnection) {
        let CountedConnection {
            peer,
            mut slot,
            snapshot,
        } = counted;
        let (limits, listen) = (&snapshot.config.limits, &snapshot.config.listen);
        // Answers are already gathered before they are written, so Nagle's algorithm would only delay them.
        let _ = socket.set_nodelay(true);
        // Without it the system buffers megabytes for a client that reads nothing, and the gateway cannot measure how fast it reads.
        let _ = SockRef::from(&socket).set_tcp_notsent_lowat(UNSENT_BYTES_MAX);
        let client = match self.behind.proxy_protocol(listen) {
            ProxyProtocol::Absent => peer,
            ProxyProtocol::Spoken => match Box::pin(self.proxied_client(&mut socket, limits)).await
            {
                Some(Some(client)) => {
                    if let Err(full) = slot.assign(counted_address(client, &snapshot), limits) {
                        return self.note_limit(full);
                    }
                    client
                }
                Some(None) => peer,
                None => return self.note_limit(LimitHit::ProxyProtocol),
            },
        };
        let (tls, redirect) = match (&self.behind, &listen.redirect) {
            (Behind::Clear, _) => (None, None),
            (Behind::Tls(acceptor), _) => (Some(acceptor), None),
            (Behind::Redirect, Some(redirect)) => {
                let (port, hosts) = (redirect.port, redirect.hosts.clone());
                (None, Some(Rule { port, hosts }))
            }
            // The listener is removed only by a restart.
            (Behind::Redirect, None) => return,
        };
        let transport = match tls {
            None => transport::Clear(socket),
            // In a box of its own, so that the task, which lasts as long as the connection, has no room for it.
            Some(tls) => match Box::pin(self.shake_hands(socket, tls, limits)).await {
                Some(transport) => transport,
                None => return,
            },
        };
        let is_encrypted = matches!(transport, transport::Tls(_));
        let connection = Connection::new(client, is_encrypted);
        if tls.is_some() && !is_encrypted {
            let refused = opening::refuse_clear_text(&self.gate, connection, transport, limits);
            return Box::pin(refused).await;
        }
        let opened =
            opening::open(&self.gate, connection.clone(), transport, limits, redirect).await;
        let opened = match opened {
            Ok(opened) => opened,
            Err(hit) => return hit.into_iter().for_each(|limit| self.note_limit(limit)),
        };
        self.serve_until_due(opened, connection, snapshot).await;
    }

    /// The client named by a proxy's header, or the proxy itself; `None` without a valid header in time.
    async fn proxied_client(
        &self,
        socket: &mut TcpStream,
        limits: &Limits,
    ) -> Option<Option<SocketAddr>> {
        let header = async {
            let (_arrival, _) = opening::arrival_on(socket, &self.gate).await?;
            proxied::client_of(socket).await
        };
        let client = tokio::time::timeout(limits.request_head, header);
        let client = client.await.ok()?.ok()?;
        Some(client.map(|client| SocketAddr::new(client.ip().to_canonical(), client.port())))
    }

    /// The transport of a connection; one in clear text in spite of `tls` if the client sends something else than TLS.
    async fn shake_hands(
        &self,
        socket: TcpStream,
        tls: &Acceptor,
        limits: &Limits,
    ) -> Option<Transport> {
        let handshake = async {
            let (_arrival, first) = opening::arrival_on(&socket, &self.gate).await?;
            // No record of TLS begins with a letter, and requests of HTTP do.
            if first.is_ascii_alphabetic() {
                self.note_failed_handshake(HandshakeFailure::NotTls);
                return Ok(transport::Clear(socket));
            }
            let stream = tls.acceptor().accept(TlsSocket(socket)).await?;
            io::Result::Ok(transport::Tls(Box::new(stream)))
        };
        match tokio::time::timeout(limits.tls_handshake, handshake).await {
            Ok(Ok(transport)) => Some(transport),
            Ok(Err(error)) => {
                tracing::debug!(%error, "a TLS handshake failed");
                self.note_failed_handshake(HandshakeFailure::of(&error));
                None
            }
            Err(_) => {
                self.note_limit(LimitHit::TlsHandshake);
                None
            }
        }
    }

    /// Serves the connection to its end. It is asked to end, over HTTP/2 by a GOAWAY, when it is retired or too old, or when the
    /// gateway stops. Over HTTP/1 only an answer can announce the end, so a retired connection may have one more request, which must
    /// arrive within `keepalive_idle`.
    async fn serve_until_due(
        &self,
        opened: Opened,
        connection: Arc<Connection>,
        snapshot: Arc<Snapshot>,
    ) {
        let limits = &snapshot.config.limits;
        let age = limits.connection_age;
        let patience = last_requests(&snapshot);
        // A connection over HTTP/1 ends itself in this time, after an answer that does not announce it yet and one that does.
        let ends_itself = matches!(opened, Opened::Http1(..))
            .then_some(patience + limits.keepalive_idle + patience);
        // A long connection must not keep an old configuration in memory.
        drop(snapshot);
        let ending = CancellationToken::new();
        let mut shutdown = self.shutdown.clone();
        let mut serving = opened.serve(ending.clone());
        let due = pin!(async {
            tokio::select! {
                () = connection.retired() => {}
                () = tokio::time::sleep(age) => {
                    self.note_limit(LimitHit::ConnectionAge);
                    connection.retire();
                }
                _ = shutdown.wait_for(|stopping| *stopping) => return true,
            }
            let shutdown = shutdown.wait_for(|stopping| *stopping);
            match ends_itself {
                Some(within) => tokio::time::timeout(within, shutdown).await.is_ok(),
                None => false,
            }
        });
        let stopping = tokio::select! {
            biased;
            () = &mut serving => return,
            stopping = OnWake::new(due) => stopping,
        };
        if stopping {
            let lingering = tokio::time::timeout(IDLE_LINGER, &mut serving);
            tokio::select! {
                ended = lingering => if ended.is_ok() { return },
                () = self.gate.cut_off.cancelled() => return,
            }
            connection.retire();
        }
        ending.cancel();
        // Requests have their own deadlines; this one is for a client that neither ends nor answers.
        let patience = last_requests(&self.gate.snapshot()).max(patience);
        tokio::select! {
            _ = tokio::time::timeout(patience, serving) => {}
            () = self.gate.cut_off.cancelled() => {}
        }
    }

    fn note_failed_handshake(&self, reason: HandshakeFailure) {
        let failed = &self.gate.metrics.handshakes_failed;
        failed.with_label_values(&[reason.as_str()]).inc();
    }

    fn note_limit(&self, limit: LimitHit) {
        self.gate.metrics.limit_hits.note(limit);
    }
}

#[cfg(test)]
mod tests {
    use prometheus::IntGauge;

    use super::*;
    use crate::proxy::gate::tests::{config, gate};

    /// On one thread, no task of a connection has begun when the listener closes.
    #[tokio::test]
    async fn a_connection_that_was_made_just_before_a_stop_is_accepted_and_counted() {
        let directory = tempfile::tempdir().unwrap();
        let gate = gate(config(""), &directory).await;
        let runtime = tokio::runtime::Handle::current().metrics();
        for is_known in [false, true].repeat(20) {
            let connections = IntGauge::new("connections", "connections").unwrap();
            let (stop, shutdown) = watch::channel(false);
            let door = Arc::new(Door {
                behind: Behind::Clear,
                gate: gate.clone(),
                limiter: ConnectionLimiter::new(usize::MAX, connections.clone()),
                shutdown,
            });
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let _client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            if is_known {
                // So that the runtime has learned of the connection.
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let before = runtime.num_alive_tasks();
            stop.send(true).unwrap();
            door.serve(listener).await;
            let begun = runtime.num_alive_tasks() - before;
            assert_eq!((begun, connections.get()), (1, 1));
        }
    }

    fn bytes_of<A, B, C, F>(_: impl FnOnce(A, B, C) -> F) -> usize {
        size_of::<F>()
    }

    /// An idle connection holds it beside the box in which it is served.
    #[test]
    fn the_task_of_a_connection_stays_small() {
        let task = bytes_of::<Arc<Door>, TcpStream, CountedConnection, _>(Door::receive);
        assert!(task <= 1_200, "the task: {task} bytes");
    }
}
