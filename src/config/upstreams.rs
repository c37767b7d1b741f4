//! What a checked configuration says of the services behind the gateway.

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;

use super::Secret;
use crate::policy::choice::Choice;
use crate::policy::compression::Compression;
use crate::policy::server_health::{Ejection, Thresholds};

/// A service behind the gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upstream {
    /// The name that endpoints use.
    pub name: Arc<str>,
    /// Its servers, resolved; at least one, no address twice.
    pub servers: Vec<Server>,
    /// How one of them is chosen.
    pub choice: Choice,
    /// How often their names are resolved anew.
    pub resolve: Duration,
    /// How they are checked; `None`: they are not.
    pub health: Option<HealthCheck>,
    /// When failing requests take one out.
    pub ejection: Ejection,
    /// How TLS is spoken with them; `None`: it is not.
    pub tls: Option<UpstreamTls>,
    /// Which HTTP is spoken with them; [`Protocol::Negotiated`] only with TLS.
    pub protocol: Protocol,
    /// What shows them that a request is the gateway's.
    pub header: Option<SecretHeader>,
    /// Which of its answers are compressed; `None`: they go as they are.
    pub compression: Option<Compression>,
    /// How long it may take.
    pub timeouts: Timeouts,
    /// How often a request is tried again, 0 to 3.
    pub retries: u8,
}

/// Which version of HTTP is spoken with an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2 and nothing else: with TLS as agreed on by ALPN, without it as known beforehand (RFC 9113 section 3.3).
    Http2,
    /// HTTP/2 where the server agrees to it by ALPN, else HTTP/1.1.
    Negotiated,
}

/// One server of an upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// `host:port` as it was written: what requests to it name in `Host`.
    pub name: String,
    /// Its share of the requests, beside those of the others.
    pub weight: NonZeroU32,
    /// What the name was resolved to when the file was read; at least one, in order, none twice.
    pub addresses: Vec<SocketAddr>,
}

/// How servers are asked whether they are well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthCheck {
    /// What is asked for; any 2xx will do.
    pub path: String,
    /// Between two checks of a server.
    pub interval: Duration,
    /// For one check.
    pub timeout: Duration,
    /// How many in a row change the mind.
    pub thresholds: Thresholds,
}

/// TLS to an upstream, whose certificate is always verified. The files were read with the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamTls {
    /// What certificates must name; `None`: the host of the server.
    pub name: Option<String>,
    /// Who signs them, X.509 in DER; `None`: whom the operating system trusts.
    pub authorities: Option<Vec<Vec<u8>>>,
    /// Who the gateway is.
    pub identity: Option<Identity>,
    /// Where all that was read, to be watched.
    pub files: Vec<PathBuf>,
}

/// A certificate that the gateway shows, and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The chain, the gateway's own certificate first, X.509 in DER; at least one.
    pub chain: Vec<Vec<u8>>,
    /// The key of the first of them.
    pub key: PrivateKey,
}

/// A private key in DER. Its `Debug` shows nothing.
#[derive(Clone, PartialEq, Eq)]
pub struct PrivateKey(pub Vec<u8>);

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey(…)")
    }
}

/// A header with a secret for an upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretHeader {
    /// Its name, none that the gateway sets or removes.
    pub name: HeaderName,
    /// Its value, which can stand in a header.
    pub value: Secret,
}

/// How long an upstream may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// To accept a connection.
    pub connect: Duration,
    /// Silence: before the answer's header, and between two parts of the answer.
    pub read: Duration,
    /// For the whole answer.
    pub total: Duration,
    /// Without a header for longer than this, a client that hangs up is refunded.
    pub slow: Duration,
    /// How long an unused connection is kept.
    pub idle: Duration,
}
