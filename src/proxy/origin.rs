//! Where a request comes from: what upstreams, the access log and the limits of one client are told of it.
//!
//! Without a proxy that is the connection. What `X-Forwarded-For`, `-Proto` and `-Host` say counts only where the connection is with
//! one of `listen.trusted_proxies`.

use http::{HeaderMap, HeaderName, HeaderValue};

use super::client::Client as Request;
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
    /// The origin of a request.
    pub fn of(request: &Request<'_>, trusted: &[Network]) -> Origin {
        let (connection, header) = (&request.connection, &request.header);
        let peer = connection.client;
        let scheme = if connection.is_encrypted {
            "https"
        } else {
            "http"
        };
        let host = well_formed::host(header);
        if !forwarded::is_trusted(peer.ip(), trusted) {
            let client = Client::Connected(peer);
            return Origin {
                client,
                address: connection.address.clone(),
                scheme,
                host,
            };
        }
        let told = |name| values(&header.headers, name);
        let told_host = forwarded::host_of(told(X_FORWARDED_HOST));
        let client = Client::of(peer, told(X_FORWARDED_FOR), trusted);
        Origin {
            client,
            address: forward::address(client.ip()),
            scheme: forwarded::scheme_of(told(X_FORWARDED_PROTO)).unwrap_or(scheme),
            host: told_host
                .and_then(|host| HeaderValue::from_bytes(host).ok())
                .or(host),
        }
    }
}

fn values(headers: &HeaderMap, name: HeaderName) -> impl DoubleEndedIterator<Item = &[u8]> {
    headers.get_all(name).iter().map(HeaderValue::as_bytes)
}
