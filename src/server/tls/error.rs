//! Why the configured certificates, keys and authorities cannot be used.

use std::path::PathBuf;

/// A certificate or key that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A file cannot be read or has other content.
    #[error("{file}: {reason}; correct the file, or the {setting} of listen.https that names it", file = file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// The mistake in it.
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
    /// The certificate has no name by which a client could request it.
    #[error("the certificate in {certificate} names no DNS host in its subjectAltName, and only the first certificate is shown without a name", certificate = certificate.display())]
    Nameless {
        /// The certificate file.
        certificate: PathBuf,
    },
    /// The settings contradict each other.
    #[error("TLS cannot be set up: {0}")]
    Settings(String),
    /// A self-signed certificate could not be made.
    #[error("a self-signed certificate could not be made: {0}")]
    SelfSigned(String),
}
