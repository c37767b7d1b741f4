//! Connections to upstreams, on pingora's connectors.
//!
//! A connection of HTTP/1 belongs to one exchange and is kept for the next one only in a proven state, which the exchange states. One of
//! HTTP/2 is shared: each exchange has a stream of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pingora::connectors::http::v2::Connector;
use pingora::protocols::http::client::HttpSession;
use pingora::protocols::http::v2::client::Http2Session;
use pingora::protocols::{ALPN, Stream};
use pingora::upstreams::peer::{HttpPeer, Peer as _};
use pingora::{Error, ErrorType};
use tokio::sync::oneshot;

mod idle;

use idle::Idle;

/// Connections to the servers of all upstreams, whatever the configuration: they are distinguished by the settings that they were made with.
#[derive(Clone)]
pub struct Connections {
    connector: Arc<Connector>,
    idle: Arc<Idle>,
}

/// An attempt at a server, for which a connection is needed.
pub struct PlannedAttempt {
    /// The server.
    pub peer: Box<HttpPeer>,
    /// For making a connection.
    pub connect_timeout: Duration,
    /// Whether the connection is to be made for it, and never shared.
    pub is_fresh: bool,
    /// When it begins: kept connections that are too old then are closed.
    pub now: Instant,
}

/// A connection for one exchange.
pub enum TakenConnection {
    /// A connection of its own.
    Http1(OwnConnection),
    /// A stream of a shared one.
    Http2(Box<Lease>),
}

/// A connection over HTTP/1.
pub struct OwnConnection {
    /// The transport.
    pub stream: Stream,
    /// The settings that it was made with, as a hash.
    settings: u64,
}

/// A stream of an HTTP/2 connection. Dropped, it is ended, and the connection has its place for another one.
pub struct Lease {
    /// The stream, until it is released.
    pub session: Option<Http2Session>,
    connector: Arc<Connector>,
    peer: HttpPeer,
}

impl Default for Connections {
    fn default() -> Connections {
        Connections {
            connector: Arc::new(Connector::new(None)),
            idle: Arc::default(),
        }
    }
}

impl Connections {
    /// A connection for an attempt, and whether it was used before.
    ///
    /// # Errors
    /// If none can be made within the attempt's timeout.
    pub async fn take(&self, attempt: &PlannedAttempt) -> pingora::Result<(TakenConnection, bool)> {
        let PlannedAttempt {
            peer,
            connect_timeout,
            is_fresh,
            now,
        } = attempt;
        let (timeout, is_fresh) = (*connect_timeout, *is_fresh);
        if peer.options.alpn == ALPN::H1 {
            let settings = peer.reuse_hash();
            if !is_fresh && let Some(taken) = kept(&self.idle, settings, *now) {
                return Ok((taken, true));
            }
            // Seldom needed, and larger than all the rest of a request.
            let made = self.connector.transport().new_stream(&**peer);
            let stream = Box::pin(within(timeout, made)).await?;
            let made = OwnConnection { stream, settings };
            return Ok((TakenConnection::Http1(made), false));
        }
        // The library counts a stream before it has it: that must not be cut short where the request ends meanwhile.
        let (done, taken) = oneshot::channel();
        let (connections, peer) = (self.clone(), peer.clone());
        tokio::spawn(async move {
            // Whoever asked may be gone; what was taken is then released.
            let _ = done.send(connections.take_http2(*peer, timeout, is_fresh).await);
        });
        let gone = |_| Error::explain(ErrorType::InternalError, "connecting was given up");
        taken.await.map_err(gone)?
    }

    /// Keeps a connection for a further exchange, `until` it is too old: nothing is under way on it.
    pub fn keep(&self, connection: OwnConnection, until: Option<Instant>) {
        let OwnConnection { stream, settings } = connection;
        self.idle.keep(stream, settings, until);
    }

    /// Closes those that are kept although their servers have closed them, or for too long: to be called now and then.
    pub fn close_ended(&self) {
        self.idle.close_ended();
    }

    async fn take_http2(
        self,
        peer: HttpPeer,
        timeout: Duration,
        is_fresh: bool,
    ) -> pingora::Result<(TakenConnection, bool)> {
        let connector = self.connector;
        let mut reused = false;
        let mut session = None;
        if !is_fresh {
            // One that has ended meanwhile is an error of the library; the server was not asked.
            session = connector.reused_http_session(&peer).await.ok().flatten();
            if session.is_none()
                && peer.options.alpn.get_min_http_version() == 1
                && let Some(taken) = kept(&self.idle, peer.reuse_hash(), Instant::now())
            {
                return Ok((taken, true));
            }
            reused = session.is_some();
        }
        let session = match session {
            Some(session) => session,
            None => match within(timeout, connector.new_http_session::<_, ()>(&peer)).await? {
                HttpSession::H2(session) => session,
                HttpSession::H1(session) => {
                    let made = OwnConnection {
                        stream: session.into_inner(),
                        settings: peer.reuse_hash(),
                    };
                    return Ok((TakenConnection::Http1(made), false));
                }
                HttpSession::Custom(()) => return Err(Error::new(ErrorType::InternalError)),
            },
        };
        let lease = Lease {
            session: Some(session),
            connector,
            peer,
        };
        Ok((TakenConnection::Http2(Box::new(lease)), reused))
    }
}

/// What is made in time. By tokio's timers: those of pingora have a thread that wakes a hundred times a second from their first use on.
async fn within<T>(
    timeout: Duration,
    making: impl Future<Output = pingora::Result<T>>,
) -> pingora::Result<T> {
    let made = tokio::time::timeout(timeout, making).await;
    made.unwrap_or_else(|_| {
        let context = format!("no connection within {timeout:?}");
        Error::e_explain(ErrorType::ConnectTimedout, context)
    })
}

/// A kept connection with these settings, if one is open at `now`.
fn kept(idle: &Idle, settings: u64, now: Instant) -> Option<TakenConnection> {
    let stream = idle.take(settings, now)?;
    let own = OwnConnection { stream, settings };
    Some(TakenConnection::Http1(own))
}

impl Lease {
    /// Gives the connection no further streams; those in flight are not affected. A dead connection whose packets are dropped
    /// looks like one with a slow server, and each further request on it would wait for `timeouts.read`. If the server was only
    /// slow, this costs one new connection, even if other streams of this one are answered.
    pub fn distrust(&mut self) {
        if let Some(session) = &self.session {
            session.conn.mark_shutdown();
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(mut session) = self.session.take() {
            // Does nothing where both sides have ended.
            session.shutdown();
            let idle = self.peer.options.idle_timeout;
            self.connector
                .release_http_session(session, &self.peer, idle);
        }
    }
}
