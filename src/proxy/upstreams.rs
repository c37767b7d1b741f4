//! Servers to forward to: chosen in turn, another one at a retry.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use pingora::protocols::ALPN;
use pingora::upstreams::peer::{HttpPeer, HttpUpstreamRequestPolicy};

/// How long an upstream may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// To accept a connection.
    pub connect: Duration,
    /// Silence: before its header, and between parts of its body.
    pub read: Duration,
    /// The whole exchange, from forwarding to the last byte.
    pub total: Duration,
    /// Without a header, after which a client that hangs up is not charged.
    pub slow: Duration,
    /// A pooled connection without use.
    pub idle: Duration,
}

/// One configured upstream.
#[derive(Debug)]
pub struct Upstream {
    /// Its name in the configuration, in logs and metrics.
    pub name: Arc<str>,
    /// Its timeouts.
    pub timeouts: Timeouts,
    /// How often a request may be sent again where nothing of it can have been acted on.
    pub retries: u32,
    servers: Vec<Server>,
    turn: AtomicUsize,
}

#[derive(Debug)]
struct Server {
    address: SocketAddr,
    host: String,
}

impl Upstream {
    /// An upstream of these servers, each with the name it is called by.
    pub fn new(
        name: Arc<str>,
        servers: impl IntoIterator<Item = (SocketAddr, String)>,
        timeouts: Timeouts,
        retries: u32,
    ) -> Upstream {
        let servers = servers
            .into_iter()
            .map(|(address, host)| Server { address, host })
            .collect();
        Upstream {
            name,
            timeouts,
            retries,
            servers,
            turn: AtomicUsize::new(0),
        }
    }

    /// The next server in turn. `None` only without servers, which configurations exclude.
    pub fn next_server(&self) -> Option<usize> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        turn.checked_rem(self.servers.len())
    }

    /// What the server is called in `Host`.
    pub fn host_of(&self, server: usize) -> &str {
        self.servers.get(server).map_or("", |server| &server.host)
    }

    /// pingora's description of a server. Never resolves names.
    pub fn peer(&self, server: usize) -> Option<HttpPeer> {
        let server = self.servers.get(server)?;
        let mut peer = HttpPeer::new(server.address, false, String::new());
        let options = &mut peer.options;
        options.connection_timeout = Some(self.timeouts.connect);
        options.total_connection_timeout = Some(self.timeouts.connect);
        options.read_timeout = Some(self.timeouts.read.min(self.timeouts.total));
        options.write_timeout = Some(self.timeouts.read);
        options.idle_timeout = Some(self.timeouts.idle);
        options.alpn = ALPN::H1;
        // An upgraded connection would carry requests that nobody counts.
        options.http_upstream_request_policy = HttpUpstreamRequestPolicy::deny_upgrades();
        Some(peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_take_turns() {
        let second = Duration::from_secs(1);
        let timeouts = Timeouts {
            connect: second,
            read: second,
            total: second,
            slow: second,
            idle: second,
        };
        let servers =
            ["127.0.0.1:1", "127.0.0.1:2"].map(|text| (text.parse().unwrap(), text.to_owned()));
        let upstream = Upstream::new("u".into(), servers, timeouts, 1);
        let turns: Vec<usize> = (0..4).filter_map(|_| upstream.next_server()).collect();
        assert_eq!(turns, [0, 1, 0, 1]);
        assert_eq!(upstream.host_of(1), "127.0.0.1:2");
        let empty = Upstream::new("u".into(), [], timeouts, 1);
        assert_eq!(empty.next_server(), None);
    }
}
