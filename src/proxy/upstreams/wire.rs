//! How an upstream's servers are spoken to: in clear, or over TLS with the certificate verified, always.

use std::sync::Arc;
use std::time::Duration;

use pingora::protocols::ALPN;
use pingora::protocols::tls::CaType;
use pingora::upstreams::peer::{HttpPeer, HttpUpstreamRequestPolicy};
use pingora::utils::tls::{CertKey, WrappedX509, parse_x509};

use super::Server;
use crate::config::{Timeouts, UpstreamTls};
use crate::policy::choice::identity;

/// What the connections to an upstream have in common.
#[derive(Debug)]
pub struct Wire(Option<Tls>);

#[derive(Debug)]
struct Tls {
    /// What certificates must name; `None`: the server's host.
    name: Option<String>,
    /// Who signs them; `None`: whom the operating system trusts.
    authorities: Option<Arc<CaType>>,
    /// Who the gateway is.
    identity: Option<Arc<CertKey>>,
    /// Keeps apart in the pool what was verified by other authorities.
    group: u64,
}

impl Wire {
    /// In clear without `tls`. What that holds was checked to be certificates and a key.
    pub fn new(tls: Option<&UpstreamTls>) -> Wire {
        Wire(tls.map(|tls| {
            let authorities = tls.authorities.as_ref().map(|authorities| {
                let wrapped = authorities.iter();
                wrapped
                    .map(|der| WrappedX509::new(der.clone(), parse_x509))
                    .collect::<Arc<[_]>>()
            });
            let identity = tls.identity.as_ref().map(|identity| {
                let key = identity.key.0.clone();
                Arc::new(CertKey::new(identity.chain.clone(), key))
            });
            Tls {
                name: tls.name.clone(),
                authorities,
                identity,
                group: group(tls),
            }
        }))
    }

    /// pingora's description of a server, for an exchange with so much time left.
    pub fn peer(&self, server: &Server, timeouts: &Timeouts, left: Duration) -> HttpPeer {
        let mut peer = match &self.0 {
            None => HttpPeer::new(server.address, false, String::new()),
            Some(tls) => {
                // Never empty: without a name pingora would verify nothing.
                let name = tls.name.as_deref().unwrap_or(server.host());
                let mut peer = HttpPeer::new(server.address, true, name.to_owned());
                peer.options.ca = tls.authorities.clone();
                peer.client_cert_key = tls.identity.clone();
                peer.group_key = tls.group;
                peer
            }
        };
        let options = &mut peer.options;
        let connect = timeouts.connect.min(left);
        options.connection_timeout = Some(connect);
        options.total_connection_timeout = Some(connect);
        options.read_timeout = Some(timeouts.read.min(left));
        options.write_timeout = Some(timeouts.read.min(left));
        options.idle_timeout = Some(timeouts.idle);
        options.alpn = ALPN::H1;
        // An upgraded connection would carry requests that nobody counts.
        options.http_upstream_request_policy = HttpUpstreamRequestPolicy::deny_upgrades();
        peer
    }
}

/// A number for what a connection was made with.
fn group(tls: &UpstreamTls) -> u64 {
    let authorities = tls.authorities.iter().flatten();
    let chain = tls.identity.iter().flat_map(|identity| &identity.chain);
    authorities.chain(chain).fold(0, |group: u64, certificate| {
        group.rotate_left(1) ^ identity(certificate)
    })
}
