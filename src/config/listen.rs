//! Where clients and operators connect, checked.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::Secret;
use crate::policy::address::Network;
use crate::policy::redirect;

/// The listeners: at least one of `http` and `https`, all on different addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listen {
    /// Cleartext HTTP for clients.
    pub http: Option<Http>,
    /// HTTPS for clients.
    pub https: Option<Https>,
    /// Cleartext HTTP that leads to HTTPS; only beside it.
    pub redirect: Option<Redirect>,
    /// The networks of proxies that are believed about clients.
    pub trusted_proxies: Vec<Network>,
    /// Metrics and health for operators; outside loopback only with a token.
    pub admin: SocketAddr,
    /// What opens `/metrics`; never absent where `admin` is no loopback address.
    pub admin_token: Option<Secret>,
    /// The Unix socket on which a successor is given the listeners; `None`: it is not.
    pub upgrade: Option<PathBuf>,
}

/// The cleartext listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Http {
    /// Its address; outside loopback only with [`Cleartext::Allowed`].
    pub address: SocketAddr,
    /// Whether API keys may cross a network in clear text.
    pub cleartext: Cleartext,
    /// Whether proxies speak first.
    pub proxy_protocol: ProxyProtocol,
}

/// Whether connections begin with a header of the PROXY protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyProtocol {
    /// Each of them, from a trusted proxy; others are closed.
    Spoken,
    /// None of them.
    Absent,
}

/// The listener that redirects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redirect {
    /// Its address, anywhere.
    pub address: SocketAddr,
    /// Where it leads to.
    pub rule: redirect::Rule,
    /// Whether proxies speak first.
    pub proxy_protocol: ProxyProtocol,
}

/// Whether the cleartext listener may leave the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cleartext {
    /// Loopback addresses only.
    Loopback,
    /// Any address: something in front of the gateway ends TLS.
    Allowed,
}

/// The TLS listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Https {
    /// Its address.
    pub address: SocketAddr,
    /// What it shows to clients: at least one, none twice, the first to those that ask for no name or an unknown one.
    pub certificates: Vec<Certificate>,
    /// Whose certificates clients show, where they are asked for any.
    pub client_certificates: Option<ClientCertificates>,
    /// For how long browsers are told to come with TLS only, if they are (RFC 6797).
    pub hsts: Option<Duration>,
    /// Whether proxies speak first.
    pub proxy_protocol: ProxyProtocol,
}

/// A certificate and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Certificate {
    /// Made at start, for loopback addresses only.
    SelfSigned,
    /// PEM files, readable when the configuration was checked.
    Files {
        /// The chain, the server's own certificate first.
        certificate: PathBuf,
        /// The private key.
        private_key: PathBuf,
    },
}

impl Certificate {
    /// What it is called in logs and metrics: its file.
    pub fn label(&self) -> String {
        match self {
            Certificate::SelfSigned => "self-signed".to_owned(),
            Certificate::Files { certificate, .. } => certificate.display().to_string(),
        }
    }
}

/// Certificates of clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificates {
    /// The PEM file of the authorities that sign them, readable when the configuration was checked.
    pub authorities: PathBuf,
    /// Whether there must be one.
    pub mode: ClientMode,
}

/// Whether a client needs a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientMode {
    /// Without one its handshake fails.
    Required,
    /// It may do without; one that it shows must be good.
    Optional,
}
