//! The origin of a request, for upstreams, the access log and the limits of one client.
//!
//! Without a proxy it is the connection. `X-Forwarded-For`, `-Proto` and `-Host` count only if the connection is from one of
//! `listen.trusted_proxies`.

use http::HeaderValue;

use super::client::Client as Request;
use super::forward::{self, X_FORWARDED_FOR, X_FORWARDED_HOST, X_FORWARDED_PROTO};
use crate::policy::address::Network;
use crate::policy::forwarded::{self, RequestSender};

/// The origin of one request.
#[derive(Debug, Clone)]
pub struct Origin {
    /// The sender.
    pub client: RequestSender,
    /// The sender's address.
    pub address: HeaderValue,
    /// `https` or `http`, as used by the client.
    pub scheme: &'static str,
    /// The requested host, as stated by a trusted proxy.
    pub host: Option<HeaderValue>,
}

impl Origin {
    /// The origin of a request.
    pub fn of(request: &Request<'_>, trusted: &[Network]) -> Origin {
        let (connection, fields) = (&request.connection, &request.head.fields);
        let peer = connection.client;
        let scheme = if connection.is_encrypted {
            "https"
        } else {
            "http"
        };
        if !forwarded::is_trusted(peer.ip(), trusted) {
            let client = RequestSender::Connected(peer);
            return Origin {
                client,
                address: connection.address.clone(),
                scheme,
                host: None,
            };
        }
        let forwarded_host = forwarded::host_of(fields.all(&X_FORWARDED_HOST));
        let client = RequestSender::of(peer, fields.all(&X_FORWARDED_FOR), trusted);
        Origin {
            client,
            address: forward::address(client.ip()),
            scheme: forwarded::scheme_of(fields.all(&X_FORWARDED_PROTO)).unwrap_or(scheme),
            host: forwarded_host.and_then(|host| HeaderValue::from_bytes(host).ok()),
        }
    }
}
