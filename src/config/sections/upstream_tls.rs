//! TLS to an upstream: the trusted authorities and the gateway's own certificate. The files are read and checked with the rest of
//! the configuration, so a mistake in them refuses the configuration, and a renewed file makes a new one.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys, RootCertStore};
use x509_parser::certificate::Validity;
use x509_parser::extensions::GeneralName;

use super::pairs::certificate_and_key;
use crate::config::check::{Check, Wrong};
use crate::config::outline::Path;
use crate::config::outside::{open_regular, readable};
use crate::config::rows::{file, rows, text};

/// The largest PEM file: thousands of certificates.
const PEM_BYTES_MAX: u64 = 1024 * 1024;

/// A chain of certificates, X.509 in DER.
pub(super) type Chain = Vec<Vec<u8>>;

rows! {
    pub(super) struct UpstreamTlsRows {
        /// The name in the servers' certificates, if it is not the host of the server.
        name: Option<String> = text(server_name);
        /// PEM file of the authorities that sign the servers.
        ca_file: Option<(PathBuf, Chain)> = file(authorities);
        /// PEM file of the gateway's own certificate, if the servers ask for one.
        certificate: Option<(PathBuf, Chain)> = file(certificates);
        /// PEM file of that certificate's key.
        private_key: Option<(PathBuf, PrivateKeyDer<'static>)> = file(private_key);
    }
}

/// TLS to an upstream, whose certificate is always verified. The files were read with the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamTls {
    /// The name in the servers' certificates; `None` for the host of the server.
    pub name: Option<String>,
    /// The trusted authorities, X.509 in DER; `None` for the operating system's.
    pub authorities: Option<Chain>,
    /// The gateway's own certificate.
    pub identity: Option<ClientIdentity>,
    /// The files that were read, to be watched.
    pub files: Vec<PathBuf>,
}

/// A certificate of the gateway, and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientIdentity {
    /// The chain, the gateway's own certificate first, X.509 in DER; at least one.
    pub chain: Chain,
    /// The key of the first of them; its `Debug` shows nothing of it.
    pub key: Arc<PrivateKeyDer<'static>>,
}

pub(super) fn tls(check: &mut Check<'_>, at: &Path, rows: UpstreamTlsRows) -> Option<UpstreamTls> {
    certificate_and_key(check, at);
    let (ca_file, authorities) = rows.ca_file.unzip();
    let (certificate, chain) = rows.certificate.unzip();
    let (key_file, key) = rows.private_key.unzip();
    let identity = chain.zip(key).and_then(|(chain, key)| {
        check.accept(&at.key("private_key"), pair(&chain, &key))?;
        note_own(check, at, certificate.as_deref()?, &chain);
        let key = Arc::new(key);
        Some(ClientIdentity { chain, key })
    });
    Some(UpstreamTls {
        name: rows.name,
        authorities,
        identity,
        files: [ca_file, certificate, key_file]
            .into_iter()
            .flatten()
            .collect(),
    })
}

fn server_name(text: &str) -> Result<String, Wrong> {
    let hint = "write the name in the servers' certificates, such as data.internal";
    match ServerName::try_from(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err(Wrong::not("the name of a server", hint)),
    }
}

pub(super) fn certificates(file: &str) -> Result<(PathBuf, Chain), Wrong> {
    let hint = "name a PEM file with one certificate or more";
    let wrong = |reason| Wrong::of_file("", reason, hint);
    let path = readable(file)?;
    let chain = certificates_in(&path).map_err(wrong)?;
    for certificate in &chain {
        x509_parser::parse_x509_certificate(certificate).map_err(|_| {
            wrong("the file has a PEM section that is not a valid certificate".to_owned())
        })?;
    }
    let chain = chain.iter().map(|certificate| certificate.to_vec());
    Ok((path, chain.collect()))
}

/// Certificates of which each can be an authority.
pub(super) fn authorities(file: &str) -> Result<(PathBuf, Chain), Wrong> {
    let (path, chain) = certificates(file)?;
    let unusable = chain.iter().position(|der| !is_usable_authority(der));
    unusable.map_or(Ok((path, chain)), |index| {
        let reason = format!(
            "certificate {} of the file has a form that no connection accepts for an authority",
            index + 1
        );
        let hint = "remove it, or have it issued anew, in version 3 of X.509 (RFC 5280)";
        Err(Wrong::of_file("", reason, hint))
    })
}

/// Whether a certificate in DER can be an authority. With one that cannot, every connection fails.
fn is_usable_authority(der: &[u8]) -> bool {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(der)).is_ok()
}

/// The certificates of a PEM file, at least one.
///
/// # Errors
/// With the mistake in the file.
pub fn certificates_in(file: &FilePath) -> Result<Vec<CertificateDer<'static>>, String> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_reader_iter(reader(file)?).collect();
    match read {
        Ok(chain) if chain.is_empty() => Err(mistake(&pem::Error::NoItemsFound, "certificate")),
        Ok(chain) => Ok(chain),
        Err(error) => Err(mistake(&error, "certificate")),
    }
}

/// The earliest end of these certificates, in Unix seconds. TLS has already read them; one that cannot be read here is ignored.
pub fn end_of(chain: &[impl AsRef<[u8]>]) -> i64 {
    let ends = validities(chain).map(|validity| validity.not_after.timestamp());
    ends.min().unwrap_or(i64::MAX)
}

/// The latest begin of these certificates, as [`end_of`] has their end.
fn begin_of(chain: &[impl AsRef<[u8]>]) -> i64 {
    let begins = validities(chain).map(|validity| validity.not_before.timestamp());
    begins.max().unwrap_or(i64::MIN)
}

fn validities(chain: &[impl AsRef<[u8]>]) -> impl Iterator<Item = Validity> {
    chain.iter().filter_map(|certificate| {
        let (_, certificate) = x509_parser::parse_x509_certificate(certificate.as_ref()).ok()?;
        Some(certificate.validity().clone())
    })
}

/// Notes the end of the certificate in `file`, with which the gateway authenticates itself; `at` is its section.
pub(super) fn note_own(check: &mut Check<'_>, at: &Path, file: &FilePath, chain: &[Vec<u8>]) {
    check.own_certificates.insert(file.into(), end_of(chain));
    if check.reads_certificates() {
        warn_of_validity(check, &at.key("certificate"), chain);
    }
}

/// Warns of a chain that has ended, ends soon or has not begun.
pub(super) fn warn_of_validity(check: &mut Check<'_>, at: &Path, chain: &[Vec<u8>]) {
    let now = Timestamp::now();
    let begin = Timestamp::from_second(begin_of(chain)).ok();
    if let Some(begin) = begin.filter(|begin| *begin > now) {
        let text =
            format!("it is valid from {begin} on, and refused by clients and servers until then");
        check.warn(
            at,
            text,
            "use the present one until then, or correct this machine's clock",
        );
    }
    if let Some(days) = days_if_soon(end_of(chain), now.as_second()) {
        let text = match days < 0 {
            true => "it has expired".to_owned(),
            false => format!("it expires in less than {} days", days + 1),
        };
        check.warn(at, text, "renew it");
    }
}

/// The days left until `end`, if they are few enough for a warning; negative after it. Both are Unix seconds.
pub fn days_if_soon(end: i64, now: i64) -> Option<i64> {
    const DAY_SECONDS: i64 = 86_400;
    // Most certificates are renewed a month before their end.
    const WARNING_SECONDS: i64 = 14 * DAY_SECONDS;
    let left = end.saturating_sub(now);
    (left < WARNING_SECONDS).then(|| left.div_euclid(DAY_SECONDS))
}

/// The DNS names of a certificate, X.509 in DER: those of its subjectAltName and no others (RFC 6125 section 6.4.4).
pub fn dns_names_of(certificate: &[u8]) -> Vec<String> {
    let Ok((_, certificate)) = x509_parser::parse_x509_certificate(certificate) else {
        return Vec::new();
    };
    let Ok(Some(names)) = certificate.subject_alternative_name() else {
        return Vec::new();
    };
    let names = names.value.general_names.iter();
    names
        .filter_map(|name| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            _ => None,
        })
        .collect()
}

/// The private key of a PEM file, the first if there are several.
///
/// # Errors
/// With the mistake in the file; nothing of the key is shown.
pub fn private_key_in(file: &FilePath) -> Result<PrivateKeyDer<'static>, String> {
    let key = PrivateKeyDer::from_pem_reader(reader(file)?);
    key.map_err(|error| mistake(&error, "private key"))
}

fn reader(file: &FilePath) -> Result<BufReader<File>, String> {
    let opened = open_regular(file).and_then(|file| Ok((file.metadata()?.len(), file)));
    let (bytes, file) = opened.map_err(|error| format!("the file cannot be read: {error}"))?;
    match bytes <= PEM_BYTES_MAX {
        true => Ok(BufReader::new(file)),
        false => Err("the file is larger than 1MiB".to_owned()),
    }
}

/// The mistake in a PEM file that should have `wanted`.
fn mistake(error: &pem::Error, wanted: &str) -> String {
    match error {
        pem::Error::Io(error) => format!("the file cannot be read: {error}"),
        pem::Error::NoItemsFound => format!("the file has no {wanted} in PEM format"),
        // The library's words may show a part of the file.
        _ => "the file has a damaged PEM section".to_owned(),
    }
}

pub(super) fn private_key(file: &str) -> Result<(PathBuf, PrivateKeyDer<'static>), Wrong> {
    let hint = "name a PEM file with the private key, which has no passphrase";
    let path = readable(file)?;
    match private_key_in(&path) {
        Ok(key) => Ok((path, key)),
        Err(reason) => Err(Wrong::of_file("", reason, hint)),
    }
}

/// Whether a key can sign for the first of these certificates.
pub(super) fn pair(chain: &[Vec<u8>], key: &PrivateKeyDer<'static>) -> Result<(), Wrong> {
    let signs_for_first = |chain: &[Vec<u8>]| {
        let chain = chain.iter().map(|der| CertificateDer::from(der.clone()));
        CertifiedKey::from_der(chain.collect(), key.clone_key(), &default_provider()).map(drop)
    };
    signs_for_first(chain).map_err(|error| {
        let hint = "use the key that the certificate was made for";
        match error {
            Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                let is_later = (1..chain.len())
                    .filter_map(|first| chain.get(first..))
                    .any(|rest| signs_for_first(rest).is_ok());
                let (problem, hint) = match is_later {
                    true => (
                        "the private key belongs to a later certificate of the file than the first",
                        "write that certificate first, and after it those of its authorities",
                    ),
                    false => ("the private key does not belong to the certificate", hint),
                };
                Wrong::new(problem, hint)
            }
            // Of a key that rustls cannot use.
            Error::General(_) => Wrong::new(
                "the private key is damaged or of a kind that is not supported",
                "use a key for RSA of 2048 to 8192 bits, P-256, P-384 or Ed25519",
            ),
            error => Wrong::new(error.to_string(), hint),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
