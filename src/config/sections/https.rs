//! The TLS listener: certificates of its own and of clients.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::{loopback, proxies, seconds};
use crate::config::check::{Check, Wrong};
use crate::config::outline::Path;
use crate::config::text::{
    CertificateText, ClientCertificatesText, HttpsText, Leaf, List, Section,
};
use crate::config::{Certificate, ClientCertificates, ClientMode, Https};

const ADDRESS: SocketAddr = loopback(8443);
const SELF_SIGNED: &str = "self-signed";
/// `max-age` of `Strict-Transport-Security`: 0 takes back what was said before.
const HSTS: std::ops::RangeInclusive<Duration> = Duration::ZERO..=seconds(1_000 * 24 * 3_600);
/// Each is read at start and looked at twice a second.
const CERTIFICATES_MAX: usize = 1_000;

pub(super) fn https(check: &mut Check<'_>, at: &Path, section: Section<HttpsText>) -> Https {
    let text = check.section(at, section).unwrap_or_default();
    let address = check.leaf_or(&at.key("address"), &text.address, ADDRESS);
    check.default(&at.key("certificate"), SELF_SIGNED);
    let several = text.certificates.is_given();
    let certificates = if several {
        for (name, given) in [
            ("certificate", text.certificate.is_given()),
            ("private_key", text.private_key.is_given()),
        ] {
            if given {
                check.wrong_key(
                    &at.key(name),
                    "there is a list of certificates too",
                    "move it into certificates, whose first is the default",
                );
            }
        }
        certificates(check, &at.key("certificates"), text.certificates)
    } else {
        vec![certificate(check, at, &text, address)]
    };
    let client_certificates = text
        .client_certificates
        .is_given()
        .then(|| {
            client_certificates(
                check,
                &at.key("client_certificates"),
                text.client_certificates,
            )
        })
        .flatten();
    let hsts_at = at.key("hsts");
    check.bounds(&hsts_at, &HSTS);
    let hsts = text
        .hsts
        .is_given()
        .then(|| check.bounded(&hsts_at, &text.hsts, *HSTS.start(), HSTS));
    Https {
        address,
        certificates,
        client_certificates,
        hsts,
        proxy_protocol: proxies::protocol(check, at, &text.proxy_protocol),
    }
}

/// The only certificate.
fn certificate(
    check: &mut Check<'_>,
    at: &Path,
    text: &HttpsText,
    address: SocketAddr,
) -> Certificate {
    let (certificate_at, key_at) = (at.key("certificate"), at.key("private_key"));
    let certificate = check
        .parsed(&certificate_at, &text.certificate, |text| match text {
            "" => Err(Wrong::new("it is empty", "write self-signed or a PEM file")),
            text => Ok(text.to_owned()),
        })
        .unwrap_or_else(|| SELF_SIGNED.to_owned());
    if certificate == SELF_SIGNED {
        if !address.ip().is_loopback() {
            let hint = "write certificate: FILE and private_key: FILE, or listen on 127.0.0.1";
            check.wrong(
                &certificate_at,
                "a self-signed certificate is for loopback addresses only",
                hint,
            );
        }
        if text.private_key.is_given() {
            check.wrong(
                &key_at,
                "a self-signed certificate has its own key",
                "remove it, or name a certificate file",
            );
        }
        return Certificate::SelfSigned;
    }
    let certificate = PathBuf::from(certificate);
    check.readable(&certificate_at, &certificate);
    let hint = "write private_key: FILE beside the certificate";
    Certificate::Files {
        certificate,
        private_key: file(check, &key_at, &text.private_key, hint),
    }
}

/// A list of certificates, the first of which is the default.
fn certificates(check: &mut Check<'_>, at: &Path, list: List<CertificateText>) -> Vec<Certificate> {
    const HINT: &str = "write - certificate: FILE and private_key: FILE";
    let mut certificates = Vec::new();
    let Some(items) = check.items(at, list) else {
        return certificates;
    };
    if items.is_empty() {
        check.wrong(at, "at least one is needed", HINT);
    }
    if items.len() > CERTIFICATES_MAX {
        let message = format!("{} are too many", items.len());
        check.wrong(at, message, format!("at most {CERTIFICATES_MAX}"));
        return certificates;
    }
    for (at, item) in items {
        let text: CertificateText = check.section_of(&at, item).unwrap_or_default();
        let certificate_at = at.key("certificate");
        let certificate = file(check, &certificate_at, &text.certificate, HINT);
        let private_key = file(check, &at.key("private_key"), &text.private_key, HINT);
        let is_same = |known: &Certificate| match known {
            Certificate::Files {
                certificate: file, ..
            } => *file == certificate,
            Certificate::SelfSigned => false,
        };
        if text.certificate.is_given() && certificates.iter().any(is_same) {
            check.wrong(
                &certificate_at,
                "it is in the list already",
                "remove one of them",
            );
        }
        certificates.push(Certificate::Files {
            certificate,
            private_key,
        });
    }
    certificates
}

/// A file that must be named and readable.
fn file(check: &mut Check<'_>, at: &Path, leaf: &Leaf<PathBuf>, hint: &str) -> PathBuf {
    check.required(at, leaf, hint);
    let file = check.leaf(at, leaf);
    if let Some(file) = &file {
        check.readable(at, file);
    }
    file.unwrap_or_default()
}

fn client_certificates(
    check: &mut Check<'_>,
    at: &Path,
    section: Section<ClientCertificatesText>,
) -> Option<ClientCertificates> {
    let text = check.section(at, section)?;
    let hint = "write authorities: FILE, with the certificates that sign those of clients";
    Some(ClientCertificates {
        authorities: file(check, &at.key("authorities"), &text.authorities, hint),
        mode: check.leaf_or(&at.key("mode"), &text.mode, ClientMode::Required),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    const NEEDED: &str = "
tiers: {pro: {daily: 5}}
endpoints: [{path: /a, tiers: [pro], upstream: u}]
upstreams: {u: {servers: [127.0.0.1:9000]}}
";

    /// The listener of `listen: {https: {…}}`, or every problem as `LINE:COLUMN path: message (hint)`.
    fn https(inside: &str) -> Result<Https, Vec<String>> {
        let text = format!("listen: {{https: {{{inside}}}}}{NEEDED}");
        match Config::parse("g.yaml", &text, &|_| None) {
            Ok(config) => Ok(config.listen.https.unwrap()),
            Err(errors) => Err(errors
                .problems
                .iter()
                .map(|problem| {
                    let (line, column) = (problem.line, problem.column);
                    let hint = problem.hint.as_deref().unwrap_or_default();
                    format!(
                        "{line}:{column} {}: {} ({hint})",
                        problem.path, problem.message
                    )
                })
                .collect()),
        }
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
    fn mistakes_are_told_with_their_place_and_a_hint() {
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
                 (the file must exist and be readable by the gateway's user)",
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
                 (move it into certificates, whose first is the default)",
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
        let told = cases.map(|(inside, _)| (inside, https(inside).unwrap_err().join(", ")));
        assert_eq!(
            told,
            cases.map(|(inside, problem)| (inside, problem.to_owned()))
        );
    }
}
