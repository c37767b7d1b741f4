//! Why a handshake failed, as a label value of a metric.

use std::io;

/// The reason of a failed handshake, from a fixed set of words.
pub fn reason(error: &io::Error) -> &'static str {
    let inner = error.get_ref();
    match inner.and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::NoCertificatesPresented) => "client_certificate_missing",
        Some(rustls::Error::InvalidCertificate(_)) => "client_certificate_invalid",
        // No version, cipher or extension in common.
        Some(rustls::Error::PeerIncompatible(_)) => "incompatible",
        // The client refused the certificate.
        Some(rustls::Error::AlertReceived(_)) => "alert",
        // No TLS, for example plain HTTP.
        Some(rustls::Error::InvalidMessage(_)) => "not_tls",
        Some(_) => "other",
        // The connection ended.
        None => "closed",
    }
}
