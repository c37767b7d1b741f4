//! Certificates: from files, or self-signed for loopback; another one can take the place of the present one at any time.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::{TLS12, TLS13};
use tokio_rustls::TlsAcceptor;

use crate::config::Certificate;

/// A certificate or its key that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A file cannot be read or holds something else.
    #[error("{file}: {reason}; mend listen.https.{setting}", file = file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
        /// The setting that names it.
        setting: &'static str,
    },
    /// The private key does not belong to the certificate.
    #[error("the private key in {key} does not belong to the certificate in {certificate}", key = key.display(), certificate = certificate.display())]
    Mismatch {
        /// The certificate file.
        certificate: PathBuf,
        /// The key file.
        key: PathBuf,
    },
    /// The settings contradict each other.
    #[error("TLS cannot be set up: {0}")]
    Settings(String),
    /// A self-signed certificate could not be made.
    #[error("a self-signed certificate could not be made: {0}")]
    SelfSigned(String),
}

/// What speaks TLS with clients. Handshakes that begin after an exchange see the new certificate; connections stay.
pub struct Front {
    listen: IpAddr,
    speaker: ArcSwap<Speaker>,
}

/// TLS 1.2 and 1.3 with one certificate, offering HTTP/2 and HTTP/1.1.
pub struct Speaker {
    self_signed: bool,
    chain: Vec<CertificateDer<'static>>,
    /// When the first certificate of the chain ends, in Unix seconds.
    end: i64,
    acceptor: TlsAcceptor,
}

impl Front {
    /// Begins with a certificate; `listen` is the address that a self-signed one names.
    pub fn new(certificate: &Certificate, listen: IpAddr) -> Result<Front, CertificateError> {
        let speaker = Speaker::new(certificate, listen)?;
        Ok(Front {
            listen,
            speaker: ArcSwap::from_pointee(speaker),
        })
    }

    /// What takes the next handshake.
    pub fn acceptor(&self) -> TlsAcceptor {
        self.speaker.load().acceptor.clone()
    }

    /// The Unix second at which the present certificate, or one above it in its chain, ends.
    pub fn certificate_end(&self) -> i64 {
        self.speaker.load().end
    }

    /// What speaks with this certificate; `None` where that is the present one, be it that its files were written anew.
    pub fn successor(
        &self,
        certificate: &Certificate,
    ) -> Result<Option<Speaker>, CertificateError> {
        let present = self.speaker.load();
        if present.self_signed && *certificate == Certificate::SelfSigned {
            return Ok(None);
        }
        let next = Speaker::new(certificate, self.listen)?;
        Ok((next.chain != present.chain).then_some(next))
    }

    /// Lets another speak from the next handshake on.
    pub fn exchange(&self, speaker: Speaker) {
        self.speaker.store(Arc::new(speaker));
    }
}

impl Speaker {
    fn new(certificate: &Certificate, listen: IpAddr) -> Result<Speaker, CertificateError> {
        let key = match certificate {
            Certificate::SelfSigned => self_signed(listen)?,
            Certificate::Files {
                certificate,
                private_key,
            } => from_files(certificate, private_key)?,
        };
        let chain = key.cert.clone();
        let end = end_of(&chain);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut settings = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13, &TLS12])
            .map_err(|error| CertificateError::Settings(error.to_string()))?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(key)));
        settings.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        // The server's order of ciphers, strongest first.
        settings.ignore_client_order = true;
        Ok(Speaker {
            self_signed: *certificate == Certificate::SelfSigned,
            chain,
            end,
            acceptor: TlsAcceptor::from(Arc::new(settings)),
        })
    }
}

fn from_files(certificate: &Path, private_key: &Path) -> Result<CertifiedKey, CertificateError> {
    let unusable = |file: &Path, setting, reason: String| CertificateError::File {
        file: file.into(),
        reason,
        setting,
    };
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect)
        .map_err(|error| unusable(certificate, "certificate", error.to_string()))?;
    if chain.is_empty() {
        return Err(unusable(
            certificate,
            "certificate",
            "it holds no certificate in PEM form".into(),
        ));
    }
    let key = PrivateKeyDer::from_pem_file(private_key)
        .map_err(|error| unusable(private_key, "private_key", error.to_string()))?;
    let signer = any_supported_type(&key)
        .map_err(|error| unusable(private_key, "private_key", error.to_string()))?;
    let certified = CertifiedKey::new(chain, signer);
    match certified.keys_match() {
        Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::KeyMismatch)) => {
            Err(CertificateError::Mismatch {
                certificate: certificate.into(),
                key: private_key.into(),
            })
        }
        Err(error) => Err(unusable(certificate, "certificate", error.to_string())),
        Ok(()) => Ok(certified),
    }
}

/// When the first of these ends. TLS has read them all already; one that cannot be read here ends nothing.
fn end_of(chain: &[CertificateDer<'static>]) -> i64 {
    let ends = chain.iter().filter_map(|certificate| {
        let (_, certificate) = x509_parser::parse_x509_certificate(certificate).ok()?;
        Some(certificate.validity().not_after.timestamp())
    });
    ends.min().unwrap_or(i64::MAX)
}

/// A certificate for `localhost` and the loopback addresses, new at each start.
fn self_signed(listen: IpAddr) -> Result<CertifiedKey, CertificateError> {
    let failed = |error: &dyn std::fmt::Display| CertificateError::SelfSigned(error.to_string());
    let names = vec![
        "localhost".to_owned(),
        "127.0.0.1".to_owned(),
        "::1".to_owned(),
        listen.to_string(),
    ];
    let made = rcgen::generate_simple_self_signed(names).map_err(|error| failed(&error))?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let signer = any_supported_type(&key).map_err(|error| failed(&error))?;
    Ok(CertifiedKey::new(vec![made.cert.der().clone()], signer))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(directory: &Path, name: &str, text: &str) -> PathBuf {
        let file = directory.join(name);
        std::fs::write(&file, text).unwrap();
        file
    }

    #[test]
    fn a_pair_from_files_is_used_and_a_bad_one_is_told_apart() {
        let directory = tempfile::tempdir().unwrap();
        let one = rcgen::generate_simple_self_signed(["a.example".to_owned()]).unwrap();
        let other = rcgen::generate_simple_self_signed(["a.example".to_owned()]).unwrap();
        let certificate = write(directory.path(), "c.pem", &one.cert.pem());
        let key = write(directory.path(), "k.pem", &one.signing_key.serialize_pem());
        let wrong_key = write(
            directory.path(),
            "w.pem",
            &other.signing_key.serialize_pem(),
        );
        let rubbish = write(directory.path(), "r.pem", "rubbish");
        assert!(from_files(&certificate, &key).is_ok());
        assert!(matches!(
            from_files(&certificate, &wrong_key),
            Err(CertificateError::Mismatch { .. })
        ));
        assert!(
            from_files(&rubbish, &key)
                .unwrap_err()
                .to_string()
                .contains("listen.https.certificate")
        );
        assert!(
            from_files(&certificate, &rubbish)
                .unwrap_err()
                .to_string()
                .contains("listen.https.private_key")
        );
    }

    #[test]
    fn a_chain_ends_with_the_first_of_its_certificates() {
        let ending_in = |year| {
            let mut parameters = rcgen::CertificateParams::new(["a.example".to_owned()]).unwrap();
            parameters.not_after = rcgen::date_time_ymd(year, 1, 1);
            let key = rcgen::KeyPair::generate().unwrap();
            parameters.self_signed(&key).unwrap().der().clone()
        };
        let second = |text: &str| text.parse::<jiff::Timestamp>().unwrap().as_second();
        let end = second("2031-01-01T00:00:00Z");
        assert_eq!(end_of(&[ending_in(2031)]), end);
        assert_eq!(end_of(&[ending_in(2040), ending_in(2031)]), end);
    }

    #[test]
    fn a_self_signed_certificate_can_be_made() {
        assert!(self_signed("127.0.0.1".parse().unwrap()).is_ok());
    }
}
