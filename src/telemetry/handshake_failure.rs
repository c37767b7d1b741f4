//! Why a handshake failed, as a label value of a metric.

use std::io;

use crate::policy::words::words;

words! {
    /// The reason of a failed handshake.
    pub enum HandshakeFailure {
        /// The client presented no certificate.
        ClientCertificateMissing = "client_certificate_missing",
        /// The client's certificate is not valid.
        ClientCertificateInvalid = "client_certificate_invalid",
        /// No version, cipher or extension in common.
        Incompatible = "incompatible",
        /// The client refused the certificate or the parameters.
        Alert = "alert",
        /// No TLS, for example plain HTTP.
        NotTls = "not_tls",
        /// The connection ended.
        Closed = "closed",
        /// Any other.
        Other = "other",
    }
}

impl HandshakeFailure {
    /// The reason in an error of the TLS library.
    pub fn of(error: &io::Error) -> HandshakeFailure {
        let inner = error.get_ref();
        match inner.and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            Some(rustls::Error::NoCertificatesPresented) => {
                HandshakeFailure::ClientCertificateMissing
            }
            Some(rustls::Error::InvalidCertificate(_)) => {
                HandshakeFailure::ClientCertificateInvalid
            }
            Some(rustls::Error::PeerIncompatible(_)) => HandshakeFailure::Incompatible,
            Some(rustls::Error::AlertReceived(_)) => HandshakeFailure::Alert,
            Some(rustls::Error::InvalidMessage(_)) => HandshakeFailure::NotTls,
            Some(_) => HandshakeFailure::Other,
            None => HandshakeFailure::Closed,
        }
    }
}
