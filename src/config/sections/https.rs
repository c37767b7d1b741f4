//! The TLS listener: its certificates, and those of clients.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::upstream_tls;
use super::values::{DAY, SECOND, loopback, not_empty};
use crate::config::check::{Check, Wrong};
use crate::config::choices::{ClientMode, ProxyProtocol};
use crate::config::outline::Path;
use crate::config::rows::{
    between, leaf, list, listener_file, needed, optional, restart, rows, text,
};

const SELF_SIGNED: &str = "self-signed";
/// The limit on certificates. Each is read at start and checked for changes once a second.
const CERTIFICATES_MAX: usize = 1_000;
const NAMELESS: &str = "the certificate names no DNS host in its subjectAltName";
const NAMELESS_HINT: &str =
    "only the first certificate is shown without a name: move it there, or name one with a name";
const CERTIFICATES_HINT: &str = "write - certificate: FILE and private_key: FILE";

rows! {
    pub(super) struct HttpsRows {
        /// IP address and port; port 0 means any free port. A change needs a restart.
        address: SocketAddr = restart(leaf().or(loopback(8443)));
        /// `self-signed` (loopback addresses only), or a PEM file with the chain, the server's own certificate first. A renewed file
        /// is used from the next handshake on.
        certificate: String = text(|text| not_empty(text, "write self-signed or a PEM file")).or_text(SELF_SIGNED);
        /// The PEM file of the certificate's key.
        private_key: Option<PathBuf> = listener_file();
        /// Several certificates instead of `certificate`: a client gets the one for the server name that it sends (SNI), else the
        /// first.
        certificates: Vec<Option<CertificateRows>> = list(optional)
            .at_most(CERTIFICATES_MAX)
            .not_empty("at least one is needed", CERTIFICATES_HINT);
        /// Certificates of clients; without this section, clients are not asked for one.
        client_certificates: Option<ClientCertificates> = optional();
        /// How long browsers must use TLS only (Strict-Transport-Security); without it, the header is not sent. With 0s, browsers delete
        /// an earlier value.
        hsts: Option<Duration> = between(Duration::ZERO..=DAY * 1_000).then(max_age);
        /// If true, every connection must begin, before TLS, with a PROXY protocol header from one of listen.trusted_proxies.
        proxy_protocol: ProxyProtocol = leaf().or(ProxyProtocol::Absent);
    }

    pub(super) struct CertificateRows {
        /// A PEM file with the chain, the server's own certificate first. It is used for the DNS names of its subjectAltName;
        /// the `*` of `*.example.com` matches one label.
        certificate: PathBuf = needed(CERTIFICATES_HINT, listener_file());
        /// The PEM file of the certificate's key.
        private_key: PathBuf = needed(CERTIFICATES_HINT, listener_file());
    }

    /// Certificates of clients.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ClientCertificates {
        /// A PEM file of the authorities that sign certificates of clients. Read again when it changes.
        authorities: PathBuf = needed("write authorities: FILE, with the certificates that sign those of clients", listener_file());
        /// Whether a client without a certificate is refused. A client with a certificate of another authority always is.
        mode: ClientMode = leaf().or(ClientMode::Required);
    }
}

/// The TLS listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Https {
    /// The address to listen on.
    pub address: SocketAddr,
    /// The certificates shown to clients: at least one, none twice. The first is for clients that send no server name or an unknown one.
    pub certificates: Vec<Certificate>,
    /// The certificates that clients are asked for, if any.
    pub client_certificates: Option<ClientCertificates>,
    /// How long browsers must use TLS only (RFC 6797), if the header is sent.
    pub hsts: Option<Duration>,
    /// Whether connections begin with a PROXY protocol header.
    pub proxy_protocol: ProxyProtocol,
}

impl Https {
    /// The files of its certificates, keys and authorities.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        let own = self.certificates.iter();
        let own = own.flat_map(|certificate| match certificate {
            Certificate::Files {
                certificate,
                private_key,
            } => vec![certificate, private_key],
            Certificate::SelfSigned => Vec::new(),
        });
        let clients = self.client_certificates.iter();
        own.chain(clients.map(|clients| &clients.authorities))
    }
}

/// A certificate and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Certificate {
    /// Made at start, for loopback addresses only.
    SelfSigned,
    /// PEM files, readable when the configuration was checked, or in use by the running gateway.
    Files {
        /// The chain, the server's own certificate first.
        certificate: PathBuf,
        /// The private key.
        private_key: PathBuf,
    },
}

impl Certificate {
    /// The certificate's name in logs and metrics: its file.
    pub fn label(&self) -> String {
        match self {
            Certificate::SelfSigned => "self-signed".to_owned(),
            Certificate::Files { certificate, .. } => certificate.display().to_string(),
        }
    }
}

/// Notes a duration that the header, in whole seconds, would have as 0.
fn max_age(check: &mut Check<'_>, at: &Path, hsts: Option<Duration>) -> Option<Duration> {
    if hsts.is_some_and(|hsts| !hsts.is_zero() && hsts < SECOND) {
        let message = "below one second, browsers would delete an earlier value";
        check.wrong(at, message, "write 0s for that, or at least 1s");
    }
    hsts
}

pub(super) fn https(check: &mut Check<'_>, at: &Path, rows: HttpsRows) -> Https {
    let (certificate_at, key_at) = (at.key("certificate"), at.key("private_key"));
    let certificates = if check.is_given(&at.key("certificates")) {
        for at in [&certificate_at, &key_at] {
            if check.is_given(at) {
                let hint = "move this certificate into the list certificates; its first entry is the default";
                check.wrong_key(at, "there is a list of certificates too", hint);
            }
        }
        certificates(check, &at.key("certificates"), rows.certificates)
    } else if rows.certificate == SELF_SIGNED {
        if !rows.address.ip().is_loopback() {
            check.wrong(
                &certificate_at,
                "a self-signed certificate is for loopback addresses only",
                "write certificate: FILE and private_key: FILE, or listen on 127.0.0.1",
            );
        }
        if check.is_given(&key_at) {
            let hint = "remove it, or name a certificate file";
            check.wrong(&key_at, "a self-signed certificate takes no key file", hint);
        }
        vec![Certificate::SelfSigned]
    } else {
        if !check.is_given(&key_at) {
            let hint = "write private_key: FILE beside the certificate";
            check.wrong(&key_at, "the key is missing", hint);
        }
        let file = check.looks_outside().then_some(&rows.certificate);
        let read = file.map(|file| check.surroundings.listener_file(file));
        let certificate = read.and_then(|read| check.accept(&certificate_at, read));
        vec![Certificate::Files {
            certificate: certificate.unwrap_or_default(),
            private_key: rows.private_key.unwrap_or_default(),
        }]
    };
    if check.reads_certificates() {
        for (index, certificate) in certificates.iter().enumerate() {
            let at = match check.is_given(&at.key("certificates")) {
                true => at.key("certificates").index(index),
                false => at.clone(),
            };
            readable_pair(check, &at, certificate, index);
        }
        let at = at.key("client_certificates").key("authorities");
        let clients = rows.client_certificates.iter();
        // A name that could not be read is empty, and its problem is noted.
        for file in clients.filter_map(|clients| clients.authorities.to_str()) {
            if !file.is_empty() {
                check.accept(&at, upstream_tls::authorities(file));
            }
        }
    }
    Https {
        address: rows.address,
        certificates,
        client_certificates: rows.client_certificates,
        hsts: rows.hsts,
        proxy_protocol: rows.proxy_protocol,
    }
}

/// Checks that the files of a certificate have it and its key, and that a client can request it unless it is the first.
fn readable_pair(check: &mut Check<'_>, at: &Path, certificate: &Certificate, index: usize) {
    let Certificate::Files {
        certificate,
        private_key,
    } = certificate
    else {
        return;
    };
    // A name that could not be read is empty, and its problem is noted.
    if certificate.as_os_str().is_empty() || private_key.as_os_str().is_empty() {
        return;
    }
    let (certificate, private_key) = (certificate.to_string_lossy(), private_key.to_string_lossy());
    let read = upstream_tls::certificates(&certificate).and_then(|(file, chain)| {
        let own = chain.first().map_or(&[][..], |own| own);
        match index > 0 && upstream_tls::dns_names_of(own).is_empty() {
            true => Err(Wrong::of_file("", NAMELESS, NAMELESS_HINT)),
            false => Ok((file, chain)),
        }
    });
    let certificate_at = at.key("certificate");
    let chain = check.accept(&certificate_at, read);
    if let Some((_, chain)) = &chain {
        upstream_tls::warn_of_validity(check, &certificate_at, chain);
    }
    let key_at = at.key("private_key");
    let key = check.accept(&key_at, upstream_tls::private_key(&private_key));
    if let (Some((_, chain)), Some((_, key))) = (chain, key) {
        check.accept(&key_at, upstream_tls::pair(&chain, &key));
    }
}

/// Reads a list of certificates, the first of which is the default.
fn certificates(
    check: &mut Check<'_>,
    at: &Path,
    rows: Vec<Option<CertificateRows>>,
) -> Vec<Certificate> {
    let mut certificates: Vec<Certificate> = Vec::new();
    for (index, rows) in rows.into_iter().enumerate() {
        let Some(CertificateRows {
            certificate,
            private_key,
        }) = rows
        else {
            continue;
        };
        let label = certificate.display().to_string();
        if !label.is_empty() && certificates.iter().any(|known| known.label() == label) {
            let at = at.index(index).key("certificate");
            check.wrong(&at, "it is in the list already", "remove one of them");
        }
        certificates.push(Certificate::Files {
            certificate,
            private_key,
        });
    }
    certificates
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::listen;

    /// The listener of `listen: {https: {…}}`, or every problem.
    fn https(inside: &str) -> Result<Https, String> {
        let listen = listen(&format!("https: {{{inside}}}"))?;
        Ok(listen.https.unwrap())
    }

    #[test]
    fn a_listener_shows_one_certificate_or_a_list_of_which_the_first_is_the_default() {
        let pair = |certificate: &str, private_key: &str| Certificate::Files {
            certificate: certificate.into(),
            private_key: private_key.into(),
        };
        for (inside, expected) in [
            ("", vec![Certificate::SelfSigned]),
            (
                "certificate: Cargo.toml, private_key: Cargo.lock",
                vec![pair("Cargo.toml", "Cargo.lock")],
            ),
            (
                "certificates: [{certificate: Cargo.toml, private_key: Cargo.lock}, \
                 {certificate: Makefile, private_key: Cargo.lock}]",
                vec![
                    pair("Cargo.toml", "Cargo.lock"),
                    pair("Makefile", "Cargo.lock"),
                ],
            ),
        ] {
            let https = https(inside).unwrap();
            assert_eq!(https.certificates, expected);
            assert_eq!(https.client_certificates, None);
        }
        // A list of files may be shown anywhere.
        let listed = "address: 0.0.0.0:443, certificates: [{certificate: Cargo.toml, private_key: Cargo.lock}]";
        assert!(https(listed).is_ok());
    }

    #[test]
    fn clients_need_a_certificate_unless_it_is_optional() {
        for (mode, expected) in [
            ("", ClientMode::Required),
            (", mode: required", ClientMode::Required),
            (", mode: optional", ClientMode::Optional),
        ] {
            let inside = format!("client_certificates: {{authorities: Cargo.toml{mode}}}");
            let expected = ClientCertificates {
                authorities: "Cargo.toml".into(),
                mode: expected,
            };
            assert_eq!(https(&inside).unwrap().client_certificates, Some(expected));
        }
    }

    #[test]
    fn mistakes_are_reported_with_their_place_and_a_hint() {
        let cases = [
            (
                "certificates: []",
                "1:18 listen.https.certificates: at least one is needed (write - certificate: FILE and private_key: FILE)",
            ),
            (
                "certificates: [{certificate: Cargo.toml}]",
                "1:33 listen.https.certificates[0].private_key: the key is missing (write - certificate: FILE and private_key: FILE)",
            ),
            (
                "certificates: [{certificate: Cargo.toml, private_key: /none.key}]",
                "1:72 listen.https.certificates[0].private_key: cannot read /none.key: No such file or directory (os error 2) \
                 (create the file, or make it readable for the gateway's user)",
            ),
            (
                "certificates: [{certificate: Cargo.toml, private_key: Cargo.lock}, {certificate: Cargo.toml, private_key: Makefile}]",
                "1:99 listen.https.certificates[1].certificate: it is in the list already (remove one of them)",
            ),
            (
                "certificates: [{certificate: Cargo.toml, key: Cargo.lock, private_key: Cargo.lock}]",
                "1:59 listen.https.certificates[0].key: there is no such key (the keys here are certificate, private_key)",
            ),
            (
                "certificate: Cargo.toml, certificates: [{certificate: Cargo.toml, private_key: Cargo.lock}]",
                "1:18 listen.https.certificate: there is a list of certificates too \
                 (move this certificate into the list certificates; its first entry is the default)",
            ),
            (
                "client_certificates: {}",
                "1:18 listen.https.client_certificates.authorities: the key is missing \
                 (write authorities: FILE, with the certificates that sign those of clients)",
            ),
            (
                "client_certificates: {authorities: Cargo.toml, mode: maybe}",
                "1:71 listen.https.client_certificates.mode: \"maybe\" is not a mode of client certificates \
                 (write required or optional)",
            ),
        ];
        let reported = cases.map(|(inside, _)| (inside, https(inside).unwrap_err()));
        assert_eq!(
            reported,
            cases.map(|(inside, problem)| (inside, problem.to_owned()))
        );
    }
}
