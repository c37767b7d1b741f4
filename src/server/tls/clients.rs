//! Certificates of clients: the authorities that may sign them, and the verification in a handshake.

use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;

use super::error::CertificateError;
use crate::config::{ClientCertificates, ClientMode, certificates_in};

/// The authorities that sign certificates of clients, read from their file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Clients {
    /// The configuration.
    pub configured: ClientCertificates,
    authorities: Vec<CertificateDer<'static>>,
}

impl Clients {
    /// Reads the authorities.
    ///
    /// # Errors
    /// If the file cannot be used.
    pub fn read(configured: &ClientCertificates) -> Result<Clients, CertificateError> {
        let file = &configured.authorities;
        let unusable = |reason| CertificateError::File {
            file: file.clone(),
            reason,
            setting: "client_certificates.authorities",
        };
        let clients = Clients {
            configured: configured.clone(),
            authorities: certificates_in(file).map_err(unusable)?,
        };
        clients.roots().map_err(unusable)?;
        Ok(clients)
    }

    fn roots(&self) -> Result<RootCertStore, String> {
        let mut roots = RootCertStore::empty();
        for authority in &self.authorities {
            roots
                .add(authority.clone())
                .map_err(|error| error.to_string())?;
        }
        Ok(roots)
    }

    /// The verifier of client certificates: chain, times and purpose (RFC 5280), no revocation lists.
    ///
    /// # Errors
    /// If there is no authority, which reading the file excludes.
    pub fn verifier(
        &self,
        provider: Arc<CryptoProvider>,
    ) -> Result<Arc<dyn ClientCertVerifier>, CertificateError> {
        let roots = self.roots().map_err(CertificateError::Settings)?;
        let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        let builder = match self.configured.mode {
            ClientMode::Required => builder,
            ClientMode::Optional => builder.allow_unauthenticated(),
        };
        builder
            .build()
            .map_err(|error| CertificateError::Settings(error.to_string()))
    }
}
