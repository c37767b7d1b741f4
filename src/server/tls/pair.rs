//! A certificate with its key: from files, or self-signed for loopback.

use std::net::IpAddr;
use std::path::Path;

use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys};

use super::error::CertificateError;
use crate::config::{certificates_in, dns_names_of, private_key_in};

/// Reads a pair.
///
/// # Errors
/// If a file cannot be used or the two do not belong together.
pub fn from_files(
    certificate: &Path,
    private_key: &Path,
) -> Result<CertifiedKey, CertificateError> {
    let unusable = |file: &Path, setting, reason: String| CertificateError::File {
        file: file.into(),
        reason,
        setting,
    };
    let chain = certificates_in(certificate)
        .map_err(|reason| unusable(certificate, "certificate", reason))?;
    let key = private_key_in(private_key)
        .map_err(|reason| unusable(private_key, "private_key", reason))?;
    CertifiedKey::from_der(chain, key, &default_provider()).map_err(|error| match error {
        Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => CertificateError::Mismatch {
            certificate: certificate.into(),
            key: private_key.into(),
        },
        Error::InvalidCertificate(_) => unusable(certificate, "certificate", error.to_string()),
        _ => unusable(private_key, "private_key", error.to_string()),
    })
}

/// The DNS names of a server's certificate.
pub fn names_of(chain: &[CertificateDer<'static>]) -> Vec<String> {
    let own = chain.first();
    own.map_or_else(Vec::new, |own| dns_names_of(own))
}

/// A certificate for `localhost`, the loopback addresses and the listening address, new at each start.
///
/// # Errors
/// If the system has no randomness.
pub fn self_signed(listen: IpAddr) -> Result<CertifiedKey, CertificateError> {
    let failed = |error: &dyn std::fmt::Display| CertificateError::SelfSigned(error.to_string());
    let names = vec![
        "localhost".to_owned(),
        "127.0.0.1".to_owned(),
        "::1".to_owned(),
        listen.to_string(),
    ];
    let made = rcgen::generate_simple_self_signed(names).map_err(|error| failed(&error))?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let chain = vec![made.cert.der().clone()];
    CertifiedKey::from_der(chain, key, &default_provider()).map_err(|error| failed(&error))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn write(directory: &Path, name: &str, text: &str) -> PathBuf {
        let file = directory.join(name);
        std::fs::write(&file, text).unwrap();
        file
    }

    #[test]
    fn a_pair_from_files_is_used_and_a_bad_one_is_distinguished() {
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
                .contains("certificate of listen.https")
        );
        assert!(
            from_files(&certificate, &rubbish)
                .unwrap_err()
                .to_string()
                .contains("private_key of listen.https")
        );
    }

    #[test]
    fn the_names_of_a_certificate_are_the_dns_names_of_its_own_subject() {
        let made = rcgen::generate_simple_self_signed([
            "a.example".to_owned(),
            "*.b.example".to_owned(),
            "192.0.2.1".to_owned(),
        ]);
        let own = made.unwrap().cert.der().clone();
        let above = rcgen::generate_simple_self_signed(["above.example".to_owned()]).unwrap();
        let chain = [own, above.cert.der().clone()];
        assert_eq!(names_of(&chain), ["a.example", "*.b.example"]);
        assert_eq!(names_of(&[]), [""; 0]);
    }

    #[test]
    fn a_self_signed_certificate_can_be_made() {
        assert!(self_signed("127.0.0.1".parse().unwrap()).is_ok());
    }
}
