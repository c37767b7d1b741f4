//! How the gateway connects to an upstream's servers: in clear text, or over TLS with the certificate always verified; over
//! HTTP/1.1 or HTTP/2.

use std::sync::Arc;
use std::time::Duration;

use http::Version;
use pingora::protocols::tls::CaType;
use pingora::protocols::{ALPN, TcpKeepalive};
use pingora::upstreams::peer::HttpPeer;
use pingora::utils::tls::{CertKey, WrappedX509, parse_x509};

use super::server::Server;
use crate::config::{self, Protocol, Timeouts};
use crate::policy::choice::identity;
use crate::policy::http2_memory;

/// The silence of a connection after which TCP asks its other end whether it still exists, and how long it waits before it asks again.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);

/// The properties shared by the connections to an upstream.
#[derive(Debug)]
pub struct Wire {
    tls: Option<Tls>,
    protocol: Protocol,
    /// Separates connections in the pool that were verified by other authorities, or negotiated otherwise.
    group: u64,
}

#[derive(Debug)]
struct Tls {
    /// The name that certificates must contain, or `None` for the server's host.
    name: Option<String>,
    /// The accepted authorities, or `None` for those of the operating system.
    authorities: Option<Arc<CaType>>,
    /// The gateway's client certificate.
    identity: Option<Arc<CertKey>>,
}

impl Wire {
    /// The wire of a configuration, whose TLS contents were checked to be certificates and a key.
    pub fn new(config: &config::UpstreamConfig) -> Wire {
        let tls = config.tls.as_ref().map(|tls| {
            let authorities = tls.authorities.as_ref().map(|authorities| {
                let wrapped = authorities.iter();
                wrapped
                    .map(|der| WrappedX509::new(der.clone(), parse_x509))
                    .collect::<Arc<[_]>>()
            });
            let identity = tls.identity.as_ref().map(|identity| {
                let key = identity.key.secret_der().to_vec();
                Arc::new(CertKey::new(identity.chain.clone(), key))
            });
            Tls {
                name: tls.name.clone(),
                authorities,
                identity,
            }
        });
        Wire {
            tls,
            protocol: config.protocol,
            group: group(config),
        }
    }

    /// Whether requests may be sent in this version of HTTP.
    pub fn takes(&self, version: Version) -> bool {
        match self.protocol {
            Protocol::Http1 => version == Version::HTTP_11,
            Protocol::Http2 => version == Version::HTTP_2,
            Protocol::Negotiated => true,
        }
    }

    /// The memory of a request that waits for a server, beside its head and body.
    pub fn exchange_bytes(&self) -> u64 {
        let [http1, http2] = [Version::HTTP_11, Version::HTTP_2].map(|version| self.takes(version));
        http2_memory::exchange_bytes(self.tls.is_some(), http1, http2)
    }

    /// pingora's description of a server.
    pub fn peer(&self, server: &Server, timeouts: &Timeouts) -> HttpPeer {
        let mut peer = match &self.tls {
            None => HttpPeer::new(server.address, false, String::new()),
            Some(tls) => {
                // Never empty: without a name pingora would verify nothing.
                let name = tls.name.as_deref().unwrap_or(server.host());
                let mut peer = HttpPeer::new(server.address, true, name.to_owned());
                peer.options.ca = tls.authorities.clone();
                peer.client_cert_key = tls.identity.clone();
                peer
            }
        };
        peer.group_key = self.group;
        let options = &mut peer.options;
        options.idle_timeout = Some(timeouts.idle);
        // Where the other end has vanished (a power failure, a firewall that forgot the connection), TCP itself waits for 15 minutes.
        options.tcp_keepalive = Some(TcpKeepalive {
            idle: KEEPALIVE_IDLE,
            interval: KEEPALIVE_INTERVAL,
            // Has no effect beside `user_timeout`, which also ends a connection whose server reads nothing.
            count: 2,
            user_timeout: timeouts.read.max(KEEPALIVE_IDLE),
        });
        options.alpn = match self.protocol {
            Protocol::Http1 => ALPN::H1,
            Protocol::Http2 => ALPN::H2,
            Protocol::Negotiated if server.is_http1_only() => ALPN::H1,
            Protocol::Negotiated => ALPN::H2H1,
        };
        peer
    }
}

/// A number for the properties of a connection; 0 for HTTP/1.1 in clear text.
fn group(config: &config::UpstreamConfig) -> u64 {
    let tls = config.tls.iter();
    let certificates = tls.flat_map(|tls| {
        let authorities = tls.authorities.iter().flatten();
        let chain = tls.identity.iter().flat_map(|identity| &identity.chain);
        authorities.chain(chain)
    });
    let protocol = match config.protocol {
        Protocol::Http1 => 0,
        Protocol::Http2 => 1,
        Protocol::Negotiated => 2,
    };
    certificates.fold(protocol, |group: u64, certificate| {
        group.rotate_left(1) ^ identity(certificate)
    })
}
