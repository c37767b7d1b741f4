//! Connections to upstreams, made by pingora's connector.
//!
//! A connection of HTTP/1 belongs to one exchange and is kept for the next one only in a proven state, which the exchange states. One of
//! HTTP/2 is shared: each exchange has a stream of it.

use std::io;
use std::time::{Duration, Instant};

use pingora::connectors::TransportConnector;
use pingora::protocols::{ALPN, Stream};
use pingora::upstreams::peer::{HttpPeer, Peer as _};
use pingora::{Error, ErrorType, OrErr};

mod idle;
mod shared;

use idle::Idle;
use shared::SharedConnections;

use crate::proxy::failure::{Failure, ServerFault};

pub use shared::StreamPlace;

/// Connections to the servers of all upstreams, whatever the configuration: they are distinguished by the settings that they were made with.
pub struct Connections {
    connector: TransportConnector,
    idle: Idle,
    shared: SharedConnections,
}

/// An attempt at a server, for which a connection is needed.
pub struct PlannedAttempt {
    /// The server.
    pub peer: Box<HttpPeer>,
    /// For making a connection.
    pub connect_timeout: Duration,
    /// Whether a connection is to be made for it.
    pub is_fresh: bool,
    /// When it begins: kept connections that are too old then are closed.
    pub now: Instant,
}

/// A connection that was taken for one exchange.
pub struct Obtained {
    /// The connection.
    pub connection: TakenConnection,
    /// Whether another exchange has used it, or shares it.
    pub is_reused: bool,
    /// When it was taken.
    pub at: Instant,
}

/// A connection for one exchange.
pub enum TakenConnection {
    /// A connection of its own.
    Http1(OwnConnection),
    /// A place on a shared one.
    Http2(StreamPlace),
}

/// A connection over HTTP/1.
pub struct OwnConnection {
    /// The transport.
    pub stream: Stream,
    /// The settings that it was made with, as a hash.
    settings: u64,
}

impl Default for Connections {
    fn default() -> Connections {
        Connections {
            connector: TransportConnector::new(None),
            idle: Idle::default(),
            shared: SharedConnections::default(),
        }
    }
}

impl Connections {
    /// A connection for an attempt.
    ///
    /// # Errors
    /// If there is none within the attempt's timeout.
    pub async fn take(&self, attempt: &PlannedAttempt) -> Result<Obtained, Failure> {
        let PlannedAttempt {
            peer,
            connect_timeout,
            is_fresh,
            now,
        } = attempt;
        let settings = peer.reuse_hash();
        if !is_fresh && let Some(kept) = self.kept(peer, settings, *now) {
            return Ok(Obtained {
                connection: kept,
                is_reused: true,
                at: *now,
            });
        }
        // Seldom needed, and larger than all the rest of a request.
        let made = within(
            *connect_timeout,
            self.make_or_join(peer, settings, *is_fresh),
        );
        let unreached = |error: Box<Error>| {
            let cause = format!("no connection: {}", reason(&error));
            Failure::server(ServerFault::Unreached, cause)
        };
        let (connection, is_reused) = Box::pin(made).await.map_err(unreached)?;
        Ok(Obtained {
            connection,
            is_reused,
            at: Instant::now(),
        })
    }

    /// Keeps a connection for a further exchange, `until` it is too old: nothing is under way on it.
    pub fn keep(&self, connection: OwnConnection, until: Option<Instant>) {
        let OwnConnection { stream, settings } = connection;
        self.idle.keep(stream, settings, until);
    }

    /// Closes those that are kept although their servers have closed them, or for too long: to be called now and then.
    pub fn close_ended(&self) {
        self.idle.close_ended();
        self.shared.close_ended();
    }

    /// A connection that was made before, if one can be used at `now`.
    fn kept(&self, peer: &HttpPeer, settings: u64, now: Instant) -> Option<TakenConnection> {
        let alpn = &peer.options.alpn;
        if *alpn != ALPN::H1
            && let Some(place) = self.shared.take(settings, peer.options.idle_timeout, now)
        {
            return Some(TakenConnection::Http2(place));
        }
        if *alpn == ALPN::H2 {
            return None;
        }
        let stream = self.idle.take(settings, now)?;
        Some(TakenConnection::Http1(OwnConnection { stream, settings }))
    }

    /// A new connection, or a place on one that is being made for another request, and whether it is the latter. Where a making fails, or
    /// is given up, the next request that waits for it makes its own.
    async fn make_or_join(
        &self,
        peer: &HttpPeer,
        settings: u64,
        mut is_fresh: bool,
    ) -> pingora::Result<(TakenConnection, bool)> {
        // In a box: it is awaited in three places, each of which would have room for it.
        let make = || Box::pin(self.make(peer, settings));
        if peer.options.alpn == ALPN::H1 {
            return Ok((make().await?, false));
        }
        loop {
            let making = self.shared.making(settings, is_fresh);
            let mut own = None;
            let making_own = async {
                let made = own.insert(make().await?);
                pingora::Result::<_>::Ok(match made {
                    TakenConnection::Http1(_) => None,
                    TakenConnection::Http2(place) => Some(place.connection()),
                })
            };
            let made = making.get_or_try_init(|| making_own).await?.as_ref();
            if let Some(own) = own {
                return Ok((own, false));
            }
            let Some(connection) = made else {
                return Ok((make().await?, false));
            };
            let patience = peer.options.idle_timeout;
            if let Some(place) = connection.place_when_settled(patience).await {
                return Ok((TakenConnection::Http2(place), true));
            }
            is_fresh = true;
        }
    }

    async fn make(&self, peer: &HttpPeer, settings: u64) -> pingora::Result<TakenConnection> {
        let stream = self.connector.new_stream(peer).await?;
        let is_http2 = match stream.selected_alpn_proto() {
            Some(agreed) => agreed == ALPN::H2,
            // In clear text nothing is negotiated: the configuration decides.
            None => !peer.is_tls() && peer.options.alpn == ALPN::H2,
        };
        if !is_http2 {
            return Ok(TakenConnection::Http1(OwnConnection { stream, settings }));
        }
        let made = self
            .shared
            .make(stream, settings, peer.options.idle_timeout);
        let context = "HTTP/2 to the server could not begin";
        let place = made.await.or_err(ErrorType::HandshakeError, context)?;
        Ok(TakenConnection::Http2(place))
    }
}

/// Why an error of pingora happened: its innermost level, since its own text has those of all levels.
pub fn reason(error: &Error) -> String {
    let mut level = error;
    while let Some(inner) = level
        .cause
        .as_ref()
        .and_then(|cause| cause.downcast_ref::<Box<Error>>())
    {
        level = inner;
    }
    let context = level
        .context
        .as_ref()
        .map_or(level.etype.as_str(), |context| context.as_str());
    match &level.cause {
        None => context.to_owned(),
        // Errors of the system are complete.
        Some(cause) if cause.is::<io::Error>() || cause.source().is_some() => cause.to_string(),
        Some(cause) => format!("{context}: {cause}"),
    }
}

/// What is made in time. By tokio's timers: those of pingora have a thread that wakes a hundred times a second from their first use on.
async fn within<T>(
    timeout: Duration,
    making: impl Future<Output = pingora::Result<T>>,
) -> pingora::Result<T> {
    let made = tokio::time::timeout(timeout, making).await;
    made.unwrap_or_else(|_| {
        let context = format!("not within timeouts.connect ({timeout:?})");
        Error::e_explain(ErrorType::ConnectTimedout, context)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::join_all;
    use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
    use tokio::net::{TcpListener, TcpStream};
    use tokio_rustls::TlsAcceptor;

    use super::*;

    /// How long a handshake with [`Server`] takes.
    const HANDSHAKE: Duration = Duration::from_millis(300);
    const PATIENCE: Duration = Duration::from_secs(20);

    /// A server over TLS that counts its connections and answers nothing.
    struct Server {
        peer: HttpPeer,
        connections: Arc<AtomicUsize>,
    }

    impl Server {
        /// One that speaks `protocol`; over HTTP/2, it allows so many streams on a connection. No handshake ends on the first `silent`
        /// connections.
        async fn start(protocol: &str, streams: u32, silent: usize) -> Server {
            let _ = rustls::crypto::ring::default_provider().install_default();
            let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
            let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
            let settings = rustls::ServerConfig::builder().with_no_client_auth();
            let chain = vec![made.cert.der().clone()];
            let settings = settings.with_single_cert(chain, PrivateKeyDer::Pkcs8(key));
            let mut settings = settings.unwrap();
            settings.alpn_protocols = vec![protocol.into()];
            let acceptor = TlsAcceptor::from(Arc::new(settings));
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let mut peer = HttpPeer::new(listener.local_addr().unwrap(), true, "localhost".into());
            (peer.options.verify_cert, peer.options.verify_hostname) = (false, false);
            peer.options.alpn = ALPN::H2H1;
            let connections = Arc::new(AtomicUsize::new(0));
            let counted = connections.clone();
            tokio::spawn(async move {
                while let Ok((socket, _)) = listener.accept().await {
                    let is_silent = counted.fetch_add(1, Ordering::Relaxed) < silent;
                    tokio::spawn(serve(socket, acceptor.clone(), streams, is_silent));
                }
            });
            Server { peer, connections }
        }

        fn attempt(&self, connect_timeout: Duration, is_fresh: bool) -> PlannedAttempt {
            PlannedAttempt {
                peer: Box::new(self.peer.clone()),
                connect_timeout,
                is_fresh,
                now: Instant::now(),
            }
        }

        /// What simultaneous requests get, all of which hold it until the last has it.
        async fn take_all(&self, all: &Connections, count: usize, is_fresh: bool) -> Vec<Obtained> {
            let attempts = vec![(); count].into_iter();
            let attempts: Vec<_> = attempts
                .map(|()| self.attempt(PATIENCE, is_fresh))
                .collect();
            let taken = join_all(attempts.iter().map(|attempt| all.take(attempt))).await;
            taken.into_iter().map(Result::unwrap).collect()
        }

        fn connections(&self) -> usize {
            self.connections.load(Ordering::Relaxed)
        }
    }

    async fn serve(socket: TcpStream, acceptor: TlsAcceptor, streams: u32, is_silent: bool) {
        tokio::time::sleep(if is_silent { PATIENCE } else { HANDSHAKE }).await;
        let Ok(mut tls) = acceptor.accept(socket).await else {
            return;
        };
        if tls.get_ref().1.alpn_protocol() == Some(b"h2") {
            let mut server = h2::server::Builder::new();
            let begun = server.max_concurrent_streams(streams);
            let mut server = begun.handshake::<_, bytes::Bytes>(tls).await.unwrap();
            while let Some(Ok(_)) = server.accept().await {}
        } else {
            let _ = tokio::io::copy(&mut tls, &mut tokio::io::sink()).await;
        }
    }

    fn bytes_of<A, B, F>(_: impl FnOnce(A, B) -> F) -> usize {
        size_of::<F>()
    }

    /// Each is a box of every request that makes a connection: a thousand at once, when as many clients come at once.
    #[test]
    fn the_futures_of_a_new_connection_stay_small() {
        type Parts = (&'static Connections, &'static HttpPeer);
        let joining =
            bytes_of::<Parts, bool, _>(|(all, peer), is_fresh| all.make_or_join(peer, 0, is_fresh));
        assert!(joining <= 400, "make_or_join: {joining} bytes");
        let making = bytes_of::<Parts, u64, _>(|(all, peer), settings| all.make(peer, settings));
        assert!(making <= 8_600, "make: {making} bytes");
    }

    #[tokio::test]
    async fn simultaneous_requests_to_a_server_over_http2_share_a_connection_also_a_fresh_one() {
        let (server, all) = (Server::start("h2", 100, 0).await, Connections::default());
        for (is_fresh, connections) in [(false, 2), (true, 4)] {
            let taken = server.take_all(&all, 40, is_fresh).await;
            let is_http2 = |taken: &Obtained| matches!(taken.connection, TakenConnection::Http2(_));
            assert!(taken.iter().all(is_http2));
            let new = taken.iter().filter(|taken| !taken.is_reused).count();
            assert_eq!((new, server.connections()), (2, connections));
        }
    }

    #[tokio::test]
    async fn no_more_requests_share_a_connection_than_its_server_allows() {
        let (server, all) = (Server::start("h2", 1, 0).await, Connections::default());
        let taken = server.take_all(&all, 3, false).await;
        assert_eq!((taken.len(), server.connections()), (3, 3));
    }

    #[tokio::test]
    async fn requests_to_a_server_over_http1_wait_for_each_other_at_most_once() {
        let (server, all) = (
            Server::start("http/1.1", 0, 0).await,
            Connections::default(),
        );
        for handshakes in [3, 2] {
            let began = Instant::now();
            let taken = server.take_all(&all, 5, false).await;
            assert!(began.elapsed() < HANDSHAKE * handshakes);
            assert!(taken.iter().all(|taken| !taken.is_reused));
            all.close_ended();
        }
        assert_eq!(server.connections(), 10);
    }

    #[tokio::test]
    async fn a_request_makes_its_own_connection_where_the_one_it_waits_for_is_given_up() {
        let (server, all) = (Server::start("h2", 100, 2).await, Connections::default());
        let (late, gone) = (
            server.attempt(HANDSHAKE, false),
            server.attempt(PATIENCE, false),
        );
        let given_up = async {
            tokio::time::sleep(HANDSHAKE / 4).await;
            // The request itself is dropped.
            let _ = tokio::time::timeout(HANDSHAKE, all.take(&gone)).await;
        };
        let waiting = async {
            tokio::time::sleep(HANDSHAKE * 3 / 4).await;
            server.take_all(&all, 3, false).await
        };
        let (late, (), taken) = tokio::join!(all.take(&late), given_up, waiting);
        assert!(late.is_err());
        assert_eq!((taken.len(), server.connections()), (3, 3));
    }
}
