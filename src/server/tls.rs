//! TLS with clients: certificates by server name, client certificates, and their replacement at any time.
//!
//! Every pair is read by itself: a pair whose files cannot be used keeps its last contents, and the others are updated. A change
//! makes a new TLS server with an empty session cache, so that no session outlives the authorities that admitted it.

use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::version::{TLS12, TLS13};
use tokio_rustls::TlsAcceptor;

use crate::config::{Certificate, Https, end_of};
use crate::policy::server_name::ServerNames;

mod clients;
mod error;
mod pair;

pub use error::CertificateError;

use clients::Clients;

/// The TLS acceptor. Handshakes that begin after an exchange see the new certificates; connections stay.
pub struct Acceptor(ArcSwap<TlsServer>);

/// TLS 1.2 and 1.3 with some certificates, offering HTTP/2, HTTP/1.1 and HTTP/1.0 by ALPN.
pub struct TlsServer {
    shown: Vec<ShownCertificate>,
    clients: Option<Clients>,
    acceptor: TlsAcceptor,
}

/// A certificate that clients are shown.
#[derive(Clone)]
struct ShownCertificate {
    configured: Certificate,
    key: Arc<CertifiedKey>,
}

/// The next TLS server.
pub struct NextTlsServer {
    /// The next TLS server; `None` if neither paths nor contents have changed, even if files were rewritten.
    pub tls_server: Option<TlsServer>,
    /// Why some of it still has its last contents.
    pub kept: Vec<CertificateError>,
}

impl Acceptor {
    /// Begins with the configured certificates. Reads files.
    ///
    /// # Errors
    /// With the first one that cannot be used.
    pub fn new(https: &Https) -> Result<Acceptor, CertificateError> {
        let (shown, clients) = contents(https, None, &mut Vec::new())?;
        let tls_server = TlsServer::new(shown, clients)?;
        Ok(Acceptor(ArcSwap::from_pointee(tls_server)))
    }

    /// The acceptor of the next handshake.
    pub fn acceptor(&self) -> TlsAcceptor {
        self.0.load().acceptor.clone()
    }

    /// The name of each certificate, which is its file's, and the Unix second at which it, or another of its chain, ends.
    pub fn certificate_ends(&self) -> Vec<(String, i64)> {
        let tls_server = self.0.load();
        let ends = tls_server.shown.iter();
        ends.map(|shown| (shown.configured.label(), end_of(&shown.key.cert)))
            .collect()
    }

    /// The TLS server of a new configuration. Reads files; a pair or authorities already in use whose files cannot be used keep their
    /// last contents.
    ///
    /// # Errors
    /// With the first new one that cannot be used.
    pub fn successor(&self, https: &Https) -> Result<NextTlsServer, CertificateError> {
        let present = self.0.load();
        let mut kept = Vec::new();
        let (shown, clients) = contents(https, Some(&present), &mut kept)?;
        // Also under the same paths, which identify a pair at the next change.
        let same = shown
            .iter()
            .map(ShownCertificate::identity)
            .eq(present.shown.iter().map(ShownCertificate::identity))
            && clients == present.clients;
        let tls_server = if same {
            None
        } else {
            Some(TlsServer::new(shown, clients)?)
        };
        Ok(NextTlsServer { tls_server, kept })
    }

    /// Exchanges the TLS server from the next handshake on.
    pub fn exchange(&self, tls_server: TlsServer) {
        self.0.store(Arc::new(tls_server));
    }
}

/// The configured certificates, and the authorities of clients. Where files cannot be used, those of `present` are kept, with the reason
/// noted in `kept`.
///
/// # Errors
/// With the first that cannot be used and is not present.
fn contents(
    https: &Https,
    present: Option<&TlsServer>,
    kept: &mut Vec<CertificateError>,
) -> Result<(Vec<ShownCertificate>, Option<Clients>), CertificateError> {
    let mut shown = Vec::new();
    for (number, configured) in https.certificates.iter().enumerate() {
        let mut known = present.iter().flat_map(|present| &present.shown);
        let known = known.find(|known| known.configured == *configured);
        let read = match (known, configured) {
            // A self-signed certificate is made once and cannot have changed.
            (Some(known), Certificate::SelfSigned) => Ok(known.clone()),
            (_, configured) => ShownCertificate::read(configured, number, https.address.ip()),
        };
        shown.push(last_good(read, known, kept)?);
    }
    let clients = https.client_certificates.as_ref().map(|configured| {
        let known = present.and_then(|present| present.clients.as_ref());
        let known = known.filter(|known| known.configured == *configured);
        last_good(Clients::read(configured), known, kept)
    });
    Ok((shown, clients.transpose()?))
}

/// The new contents, or the last known ones with the reason noted.
fn last_good<T: Clone>(
    read: Result<T, CertificateError>,
    known: Option<&T>,
    kept: &mut Vec<CertificateError>,
) -> Result<T, CertificateError> {
    match (read, known) {
        (Ok(read), _) => Ok(read),
        (Err(error), Some(known)) => {
            kept.push(error);
            Ok(known.clone())
        }
        (Err(error), None) => Err(error),
    }
}

impl ShownCertificate {
    fn read(
        configured: &Certificate,
        number: usize,
        listen: IpAddr,
    ) -> Result<ShownCertificate, CertificateError> {
        let key = match configured {
            Certificate::SelfSigned => pair::self_signed(listen)?,
            Certificate::Files {
                certificate,
                private_key,
            } => {
                let key = pair::from_files(certificate, private_key)?;
                if number > 0 && pair::names_of(&key.cert).is_empty() {
                    return Err(CertificateError::Nameless {
                        certificate: certificate.clone(),
                    });
                }
                key
            }
        };
        Ok(ShownCertificate {
            configured: configured.clone(),
            key: Arc::new(key),
        })
    }

    fn identity(&self) -> (&Certificate, &[CertificateDer<'static>]) {
        (&self.configured, &self.key.cert)
    }
}

impl TlsServer {
    fn new(
        shown: Vec<ShownCertificate>,
        clients: Option<Clients>,
    ) -> Result<TlsServer, CertificateError> {
        let unsound = |error: rustls::Error| CertificateError::Settings(error.to_string());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13, &TLS12])
            .map_err(unsound)?;
        let builder = match &clients {
            None => builder.with_no_client_auth(),
            Some(clients) => builder.with_client_cert_verifier(clients.verifier(provider)?),
        };
        let mut settings = builder.with_cert_resolver(Arc::new(ByName::new(&shown)));
        let protocols = ["h2", "http/1.1", "http/1.0"];
        settings.alpn_protocols = protocols.map(Into::into).to_vec();
        if clients.is_some() {
            // A resumed session would admit a certificate that has expired since.
            settings.session_storage = Arc::new(NoServerSessionStorage {});
            settings.send_tls13_tickets = 0;
        }
        // The server's order of ciphers, strongest first.
        settings.ignore_client_order = true;
        Ok(TlsServer {
            shown,
            clients,
            acceptor: TlsAcceptor::from(Arc::new(settings)),
        })
    }
}

/// Chooses a certificate for a client.
#[derive(Debug)]
struct ByName {
    names: ServerNames,
    keys: Vec<Arc<CertifiedKey>>,
}

impl ByName {
    fn new(shown: &[ShownCertificate]) -> ByName {
        ByName {
            names: ServerNames::new(shown.iter().map(|shown| pair::names_of(&shown.key.cert))),
            keys: shown.iter().map(|shown| shown.key.clone()).collect(),
        }
    }
}

impl ResolvesServerCert for ByName {
    /// The first certificate with the name whose kind of key the client supports; without a name, or for an unknown one, the first of
    /// all.
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let schemes = hello.signature_schemes();
        let named = hello
            .server_name()
            .into_iter()
            .flat_map(|name| self.names.find(name))
            .filter_map(|number| self.keys.get(number));
        let mut fit = named.filter(|key| key.key.choose_scheme(schemes).is_some());
        fit.next().or(self.keys.first()).cloned()
    }
}
