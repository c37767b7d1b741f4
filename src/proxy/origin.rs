//! Where a request comes from: what upstreams, the access log and the limits of one client are told of it.
//!
//! Without a proxy that is the connection. What `X-Forwarded-For`, `-Proto` and `-Host` say counts only where the connection is with
//! one of `listen.trusted_proxies`.

use http::{HeaderMap, HeaderName, HeaderValue};
use pingora::proxy::Session;

use super::connection::Connection;
use super::forward::{self, X_FORWARDED_FOR, X_FORWARDED_HOST, X_FORWARDED_PROTO};
use super::well_formed;
use crate::policy::address::Network;
use crate::policy::forwarded::{self, Client};

/// The origin of one request.
#[derive(Debug, Clone)]
pub struct Origin {
    /// Who sent it.
    pub client: Client,
    /// Their address.
    pub address: HeaderValue,
    /// `https` or `http`, as the client spoke.
    pub scheme: &'static str,
    /// The host that the client asked for.
    pub host: Option<HeaderValue>,
}

impl Origin {
    /// The origin of the request of `session`; `None` only where pingora was given another stream than ours.
    pub fn of(session: &Session, trusted: &[Network]) -> Option<Origin> {
        let connection = Connection::of(session)?;
        let peer = connection.client;
        let encrypted = session
            .digest()
            .is_some_and(|digest| digest.ssl_digest.is_some());
        let scheme = if encrypted { "https" } else { "http" };
        let header = session.req_header();
        let host = well_formed::host(header);
        if !forwarded::is_trusted(peer.ip(), trusted) {
            let client = Client::Connected(peer);
            return Some(Origin {
                client,
                address: connection.address.clone(),
                scheme,
                host,
            });
        }
        let told = |name| values(&header.headers, name);
        let told_host = forwarded::host_of(told(X_FORWARDED_HOST));
        let client = Client::of(peer, told(X_FORWARDED_FOR), trusted);
        Some(Origin {
            client,
            address: forward::address(client.ip()),
            scheme: forwarded::scheme_of(told(X_FORWARDED_PROTO)).unwrap_or(scheme),
            host: told_host
                .and_then(|host| HeaderValue::from_bytes(host).ok())
                .or(host),
        })
    }
}

fn values(headers: &HeaderMap, name: HeaderName) -> impl DoubleEndedIterator<Item = &[u8]> {
    headers.get_all(name).iter().map(HeaderValue::as_bytes)
}
