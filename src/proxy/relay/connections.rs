//! Connections to upstreams, made by pingora's connector.
//!
//! A connection of HTTP/1 belongs to one exchange and is kept for the next one only in a proven state, which the exchange states. One of
//! HTTP/2 is shared: each exchange has a stream of it.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::Version;
use pingora::connectors::TransportConnector;
use pingora::protocols::l4;
use pingora::protocols::tls::client::handshake;
use pingora::protocols::{ALPN, Ssl as _, Stream};
use pingora::{Error, ErrorType, OrErr};

mod idle;
mod shared;

use idle::Idle;
use shared::SharedConnections;

use crate::proxy::failure::{Failure, ServerFault};
use crate::proxy::upstreams::{Server, Upstream};

pub use shared::{StreamPlace, described};

/// The longest reason for having no connection.
const REASON_BYTES_MAX: usize = 400;

/// Connections to the servers of all upstreams, whatever the configuration: they are distinguished by the settings that they were made with.
pub struct Connections {
    connector: TransportConnector,
    idle: Idle,
    shared: SharedConnections,
}

/// An attempt at a server, for which a connection is needed.
pub struct PlannedAttempt {
    /// The upstream.
    pub upstream: Arc<Upstream>,
    /// Its server.
    pub server: Arc<Server>,
    /// For making a connection.
    pub connect_timeout: Duration,
    /// Whether a connection is to be made for it.
    pub is_fresh: bool,
    /// Whether it has a connection alone: with a body to its end, else until its answer begins.
    pub is_alone: bool,
    /// When it begins: kept connections that are too old then are closed.
    pub now: Instant,
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
    /// A connection for an attempt, and whether it was used before.
    ///
    /// # Errors
    /// If none can be made within the attempt's timeout.
    pub async fn take(&self, attempt: &PlannedAttempt) -> Result<(TakenConnection, bool), Failure> {
        let PlannedAttempt {
            upstream,
            server,
            connect_timeout,
            is_fresh,
            is_alone,
            ..
        } = attempt;
        if !is_fresh && let Some(kept) = self.kept(attempt) {
            return Ok((kept, true));
        }
        // By tokio's timers: those of pingora have a thread that wakes a hundred times a second from their first use on.
        let made = tokio::time::timeout(*connect_timeout, self.make(upstream, server));
        // Seldom needed, and larger than all the rest of a request.
        let cause = match Box::pin(made).await {
            Ok(Ok(made)) => {
                if let TakenConnection::Http2(place) = &made {
                    let settings = upstream.wire.settings(server);
                    self.shared.keep(settings, place, *is_alone);
                }
                return Ok((made, false));
            }
            Ok(Err(failure)) => return Err(failure),
            Err(_) => format!("not within timeouts.connect ({connect_timeout:?})"),
        };
        Err(unreached(&cause))
    }

    /// Keeps a connection on which nothing is under way for a further exchange, `from` an instant on (`None` for at once) and `until` it
    /// is too old.
    pub fn keep(&self, connection: OwnConnection, from: Option<Instant>, until: Option<Instant>) {
        let OwnConnection { stream, settings } = connection;
        self.idle.keep(stream, settings, from, until);
    }

    /// Closes those that are kept although their servers have closed them, or for too long: to be called now and then.
    pub async fn close_ended(&self) {
        self.shared.close_ended();
        self.idle.close_ended().await;
    }

    /// A connection that was made before, if one can be used when the attempt begins.
    fn kept(&self, attempt: &PlannedAttempt) -> Option<TakenConnection> {
        let PlannedAttempt {
            upstream,
            server,
            is_alone,
            now,
            ..
        } = attempt;
        let wire = &upstream.wire;
        let settings = wire.settings(server);
        let patience = upstream.config.timeouts.idle;
        if wire.may_send(server, Version::HTTP_2)
            && let Some(place) = self.shared.take(settings, *is_alone, patience, *now)
        {
            return Some(TakenConnection::Http2(place));
        }
        if !wire.may_send(server, Version::HTTP_11) {
            return None;
        }
        let stream = self.idle.take(settings, *now)?;
        Some(TakenConnection::Http1(OwnConnection { stream, settings }))
    }

    /// A new connection, which no other exchange has.
    ///
    /// # Errors
    /// If none can be made. There is no timeout.
    pub async fn make(
        &self,
        upstream: &Upstream,
        server: &Server,
    ) -> Result<TakenConnection, Failure> {
        let made = self.begin(upstream, server).await;
        made.map_err(|error| unreached(&reason(&error)))
    }

    async fn begin(
        &self,
        upstream: &Upstream,
        server: &Server,
    ) -> pingora::Result<TakenConnection> {
        let (wire, timeouts) = (&upstream.wire, &upstream.config.timeouts);
        let peer = wire.peer(server, timeouts);
        let mut stream = self.connector.new_stream(&peer).await?;
        let is_http2 = match wire.tls(server) {
            // In clear text nothing is negotiated: the configuration decides.
            None => wire.assumes_http2(),
            Some((connector, name)) => {
                let socket = stream.into_any().downcast::<l4::stream::Stream>();
                let not_tcp = |_| Error::new(ErrorType::InternalError);
                let socket = socket.map_err(not_tcp)?;
                let tls = handshake(&connector, name, *socket).await?;
                let agreed = tls.selected_alpn_proto();
                stream = Box::new(tls);
                agreed == Some(ALPN::H2)
            }
        };
        if !is_http2 {
            let settings = wire.settings(server);
            return Ok(TakenConnection::Http1(OwnConnection { stream, settings }));
        }
        let failures = self.shared.failures(wire.settings(server), server.label());
        let begun = shared::begin(stream, timeouts.idle, failures);
        let context = "HTTP/2 to the server could not begin";
        let place = begun.await.or_err(ErrorType::HandshakeError, context)?;
        Ok(TakenConnection::Http2(place))
    }
}

fn unreached(cause: &str) -> Failure {
    let cause = format_args!("no connection: {cause}");
    Failure::server(ServerFault::Unreached, cause)
}

/// Why an error of pingora happened: its innermost level, since its own text has those of all levels. Cut, because one of TLS has all names of
/// the certificate.
fn reason(error: &Error) -> String {
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
    let mut text = match &level.cause {
        None => context.to_owned(),
        // Errors of the system are complete.
        Some(cause) if cause.is::<io::Error>() || cause.source().is_some() => cause.to_string(),
        Some(cause) => format!("{context}: {cause}"),
    };
    if text.len() > REASON_BYTES_MAX {
        text.truncate(text.floor_char_boundary(REASON_BYTES_MAX));
        text.push('…');
    }
    text
}
