//! TLS to an upstream: whom the gateway trusts there, and who it is. What the files hold is read and checked with the rest of the
//! configuration, so that a mistake refuses it and a renewed file makes it another one.

use std::path::{Path as FilePath, PathBuf};

use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::CertifiedKey;

use crate::config::check::{Check, Wrong};
use crate::config::outline::Path;
use crate::config::text::{Leaf, Section, UpstreamTlsText};
use crate::config::{Identity, PrivateKey, UpstreamTls};

/// What a PEM file of certificates should hold.
const PEM_HINT: &str = "a PEM file with one certificate or more, readable by the gateway's user";

pub(super) fn tls(
    check: &mut Check<'_>,
    at: &Path,
    section: Section<UpstreamTlsText>,
) -> Option<UpstreamTls> {
    let text = check.section(at, section)?;
    let name = check.parsed(&at.key("name"), &text.name, |text| {
        let hint = "write the name in the servers' certificate, such as data.internal";
        match ServerName::try_from(text) {
            Ok(_) => Ok(text.to_owned()),
            Err(_) => Err(Wrong::new(
                format!("{text:?} is not the name of a server"),
                hint,
            )),
        }
    });
    let mut files = Vec::new();
    let authorities = certificates(check, &at.key("ca_file"), &text.ca_file, &mut files);
    let chain_at = at.key("certificate");
    let chain = certificates(check, &chain_at, &text.certificate, &mut files);
    let key_at = at.key("private_key");
    let key = private_key(check, &key_at, &text.private_key, &mut files);
    match (text.certificate.is_given(), text.private_key.is_given()) {
        (true, false) => check.required(
            &key_at,
            &text.private_key,
            "write private_key: FILE beside the certificate",
        ),
        (false, true) => check.required(
            &chain_at,
            &text.certificate,
            "write certificate: FILE beside the private key",
        ),
        (true, true) | (false, false) => {}
    }
    let identity = chain
        .zip(key)
        .and_then(|(chain, key)| match pair(&chain, &key) {
            Ok(()) => Some(Identity {
                chain,
                key: PrivateKey(key.secret_der().to_vec()),
            }),
            Err(reason) => {
                check.wrong(
                    &key_at,
                    reason,
                    "use the key that the certificate was made for",
                );
                None
            }
        });
    Some(UpstreamTls {
        name,
        authorities,
        identity,
        files,
    })
}

/// The certificates of a file, in DER; `None` where none is given or it cannot be used.
fn certificates(
    check: &mut Check<'_>,
    at: &Path,
    leaf: &Leaf<PathBuf>,
    files: &mut Vec<PathBuf>,
) -> Option<Vec<Vec<u8>>> {
    let file = check.leaf(at, leaf)?;
    let read = read_certificates(&file);
    let told = |reason: String| format!("{}: {reason}", file.display());
    match read {
        Ok(chain) => {
            files.push(file);
            Some(chain)
        }
        Err(reason) => {
            check.wrong(at, told(reason), PEM_HINT);
            None
        }
    }
}

fn read_certificates(file: &FilePath) -> Result<Vec<Vec<u8>>, String> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    let chain = read.map_err(|error| error.to_string())?;
    if chain.is_empty() {
        return Err("it holds no certificate in PEM form".to_owned());
    }
    for certificate in &chain {
        x509_parser::parse_x509_certificate(certificate)
            .map_err(|_| "it holds something that is no certificate".to_owned())?;
    }
    Ok(chain
        .iter()
        .map(|certificate| certificate.to_vec())
        .collect())
}

fn private_key(
    check: &mut Check<'_>,
    at: &Path,
    leaf: &Leaf<PathBuf>,
    files: &mut Vec<PathBuf>,
) -> Option<PrivateKeyDer<'static>> {
    let file = check.leaf(at, leaf)?;
    match PrivateKeyDer::from_pem_file(&file) {
        Ok(key) => {
            files.push(file);
            Some(key)
        }
        Err(error) => {
            let hint = "a PEM file with the private key, readable by the gateway's user";
            check.wrong(at, format!("{}: {error}", file.display()), hint);
            None
        }
    }
}

/// Whether a key can sign for the first of these certificates.
fn pair(chain: &[Vec<u8>], key: &PrivateKeyDer<'static>) -> Result<(), String> {
    let signer = any_supported_type(key).map_err(|error| error.to_string())?;
    let chain = chain.iter().map(|der| CertificateDer::from(der.clone()));
    let certified = CertifiedKey::new(chain.collect(), signer);
    match certified.keys_match() {
        Ok(()) => Ok(()),
        Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::KeyMismatch)) => {
            Err("the private key does not belong to the certificate".to_owned())
        }
        Err(error) => Err(error.to_string()),
    }
}
