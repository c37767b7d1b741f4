//! How the gateway connects to an upstream's servers: in clear text, or over TLS with the certificate always verified; over
//! HTTP/1.1 or HTTP/2.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::Version;
use pingora::protocols::TcpKeepalive;
use pingora::tls::load_platform_certs_incl_env_into_store;
use pingora::upstreams::peer::HttpPeer;
use rustls::client::Resumption;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::CertificateDer;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use super::server::{Server, number};
use crate::config::{self, ClientIdentity, Protocol, Timeouts, UpstreamTls};
use crate::policy::http2_memory;

/// The silence of a connection after which TCP asks its other end whether it still exists, and how long it waits before it asks again.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);

/// The properties shared by the connections to an upstream.
#[derive(Debug)]
pub struct Wire {
    tls: Option<Tls>,
    protocol: Protocol,
    /// Separates connections that were verified by other authorities or names, or negotiated otherwise.
    pub group: u64,
}

#[derive(Debug)]
struct Tls {
    /// The name that certificates must contain, or `None` for the server's host.
    name: Option<String>,
    /// Negotiates the configured versions of HTTP.
    configured: Arc<ClientConfig>,
    /// Negotiates HTTP/1.1 alone.
    http1: Arc<ClientConfig>,
}

impl Wire {
    /// The wire of a configuration, whose TLS contents were checked to be certificates and a key.
    pub fn new(config: &config::UpstreamConfig) -> Wire {
        Wire {
            tls: config
                .tls
                .as_ref()
                .map(|tls| Tls::new(tls, config.protocol)),
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

    /// Whether connections have TLS.
    pub fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Whether servers are sent HTTP/2 without having agreed to it.
    pub fn assumes_http2(&self) -> bool {
        self.tls.is_none() && self.protocol == Protocol::Http2
    }

    /// Whether requests to this server may be sent in this version of HTTP.
    pub fn may_send(&self, server: &Server, version: Version) -> bool {
        self.takes(version) && (version != Version::HTTP_2 || !self.is_http1_only(server))
    }

    /// The settings of a connection to this server, as a number: one that another configuration made with the same may be used.
    pub fn settings(&self, server: &Server) -> u64 {
        server.number ^ self.group
    }

    /// TLS to a server, and the name that its certificate must contain; `None` for clear text.
    pub fn tls<'a>(&'a self, server: &'a Server) -> Option<(TlsConnector, &'a str)> {
        let tls = self.tls.as_ref()?;
        let config = match self.is_http1_only(server) {
            true => &tls.http1,
            false => &tls.configured,
        };
        let name = tls.name.as_deref().unwrap_or(server.host());
        Some((TlsConnector::from(config.clone()), name))
    }

    /// The URL of a server, with its address if that is another.
    pub fn url(&self, server: &Server) -> String {
        let scheme = if self.is_tls() { "https" } else { "http" };
        let (name, address) = (&server.name, server.label());
        match *name == address {
            true => format!("{scheme}://{name}"),
            false => format!("{scheme}://{name} ({address})"),
        }
    }

    fn is_http1_only(&self, server: &Server) -> bool {
        self.protocol == Protocol::Negotiated && server.is_http1_only()
    }

    /// pingora's description of a server, for a connection over TCP.
    pub fn peer(&self, server: &Server, timeouts: &Timeouts) -> HttpPeer {
        let mut peer = HttpPeer::new(server.address, false, String::new());
        // Where the other end has vanished (a power failure, a firewall that forgot the connection), TCP itself waits for 15 minutes.
        peer.options.tcp_keepalive = Some(TcpKeepalive {
            idle: KEEPALIVE_IDLE,
            interval: KEEPALIVE_INTERVAL,
            // Has no effect beside `user_timeout`, which also ends a connection whose server reads nothing.
            count: 2,
            user_timeout: timeouts.read.max(KEEPALIVE_IDLE),
        });
        peer
    }
}

impl Tls {
    fn new(config: &UpstreamTls, protocol: Protocol) -> Tls {
        // Fails only if a provider is already installed.
        let _ = default_provider().install_default();
        let roots = match &config.authorities {
            Some(authorities) => {
                let mut roots = RootCertStore::empty();
                let authorities = authorities.iter().map(|der| CertificateDer::from(&**der));
                roots.add_parsable_certificates(authorities);
                Arc::new(roots)
            }
            // A gateway that starts has read them.
            None => system_authorities().unwrap_or_else(|_| Arc::new(RootCertStore::empty())),
        };
        let builder = ClientConfig::builder().with_root_certificates(roots);
        let mut configured = match config.identity.as_ref().and_then(certified) {
            Some(own) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(own))),
            None => builder.with_no_client_auth(),
        };
        // In a resumed session a certificate that has expired since would be accepted.
        configured.resumption = Resumption::disabled();
        let mut http1 = configured.clone();
        let names = |names: &[&[u8]]| names.iter().map(|name| name.to_vec()).collect();
        http1.alpn_protocols = names(&[b"http/1.1"]);
        configured.alpn_protocols = match protocol {
            Protocol::Http1 => names(&[b"http/1.1"]),
            Protocol::Http2 => names(&[b"h2"]),
            Protocol::Negotiated => names(&[b"h2", b"http/1.1"]),
        };
        Tls {
            name: config.name.clone(),
            configured: Arc::new(configured),
            http1: Arc::new(http1),
        }
    }
}

/// The certificate with its key, which were checked to belong together.
fn certified(identity: &ClientIdentity) -> Option<CertifiedKey> {
    let chain = identity.chain.iter().cloned().map(CertificateDer::from);
    let key = identity.key.clone_key();
    CertifiedKey::from_der(chain.collect(), key, &default_provider()).ok()
}

/// The authorities of the operating system, read at the first call.
///
/// # Errors
/// With the reason why they cannot be read.
pub fn system_authorities() -> Result<Arc<RootCertStore>, String> {
    static AUTHORITIES: OnceLock<Result<Arc<RootCertStore>, String>> = OnceLock::new();
    let read = || {
        let mut roots = RootCertStore::empty();
        let read = load_platform_certs_incl_env_into_store(&mut roots);
        read.map_err(|error| error.to_string())?;
        Ok(Arc::new(roots))
    };
    AUTHORITIES.get_or_init(read).clone()
}

/// A number for the properties of a connection.
fn group(config: &config::UpstreamConfig) -> u64 {
    let tls = config.tls.as_ref().map(|tls| {
        let chain = tls.identity.as_ref().map(|identity| &identity.chain);
        (&tls.name, &tls.authorities, chain)
    });
    number((config.protocol.as_str(), tls))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::config::Config;

    #[test]
    fn connections_are_separate_unless_all_of_their_settings_are_equal() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, text: String| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let made = || rcgen::generate_simple_self_signed(["a.example".to_owned()]).unwrap();
        let (x, y) = (made(), made());
        let [x_pem, y_pem] = [&x, &y].map(|made| made.cert.pem());
        let both = file("both.pem", format!("{x_pem}{y_pem}"));
        let swapped = file("swapped.pem", format!("{y_pem}{x_pem}"));
        let x_key = file("x.key", x.signing_key.serialize_pem());
        let y_key = file("y.key", y.signing_key.serialize_pem());
        let (x, y) = (file("x.pem", x_pem), file("y.pem", y_pem));
        let settings = [
            "{}".to_owned(),
            "{name: a.example}".to_owned(),
            format!("{{ca_file: {x}}}"),
            format!("{{ca_file: {both}}}"),
            format!("{{ca_file: {swapped}}}"),
            format!("{{certificate: {x}, private_key: {x_key}}}"),
            format!("{{ca_file: {x}, certificate: {y}, private_key: {y_key}}}"),
            format!("{{ca_file: {y}, certificate: {x}, private_key: {x_key}}}"),
        ];
        let groups = || {
            let tls = settings.iter().map(|tls| format!(", tls: {tls}"));
            let clear = ["".to_owned(), ", protocol: http2".to_owned()];
            let groups = tls.chain(clear).map(|settings| {
                let text = format!(
                    "
tiers: {{pro: {{daily: 5}}}}
endpoints: [{{path: /a, tiers: [pro], upstream: u}}]
upstreams: {{u: {{servers: [127.0.0.1:1]{settings}}}}}
"
                );
                let config = Config::parse("g.yaml", &text, &|_| None).unwrap();
                Wire::new(&config.upstreams[0].1).group
            });
            groups.collect::<Vec<u64>>()
        };
        let distinct: HashSet<u64> = groups().into_iter().collect();
        assert_eq!(distinct.len(), settings.len() + 2);
        assert_eq!(groups(), groups());
    }
}
