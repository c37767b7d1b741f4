//! Why a handshake came to nothing, in the words of a metric.

use std::io;

/// The word for a failed handshake: one of a few, whatever the client sent.
pub fn reason(error: &io::Error) -> &'static str {
    let inner = error.get_ref();
    match inner.and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::NoCertificatesPresented) => "client_certificate_missing",
        Some(rustls::Error::InvalidCertificate(_)) => "client_certificate_invalid",
        // Versions, ciphers or extensions of which there is none in common.
        Some(rustls::Error::PeerIncompatible(_)) => "incompatible",
        // The client does not like what it was shown.
        Some(rustls::Error::AlertReceived(_)) => "alert",
        // Plain HTTP, among other things.
        Some(rustls::Error::InvalidMessage(_)) => "not_tls",
        Some(_) => "other",
        // The connection is gone.
        None => "closed",
    }
}
