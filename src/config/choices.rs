//! Values of the file that are chosen among words.

use crate::policy::words::words;

words! {
    /// The importance of a message, in words that tracing's filters accept too.
    pub enum Level {
        /// Something failed.
        Error = "error",
        /// Something may fail soon.
        Warn = "warn",
        /// Starts, stops, changes.
        Info = "info",
        /// Details for developers.
        Debug = "debug",
        /// The same as `debug` in a release build; a development build logs more of its libraries.
        Trace = "trace",
    }

    /// Which addresses the cleartext listener may have.
    pub enum Cleartext {
        /// Loopback addresses only.
        Loopback = "loopback",
        /// Any address: a proxy in front of the gateway ends TLS.
        Allowed = "allowed",
    }

    /// Whether a client needs a certificate.
    pub enum ClientMode {
        /// The handshake of a client without a certificate fails.
        Required = "required",
        /// A client needs no certificate; one that it sends must be valid.
        Optional = "optional",
    }

    /// The version of HTTP that is used with an upstream.
    pub enum Protocol {
        /// HTTP/1.1.
        Http1 = "http1",
        /// HTTP/2 only: with TLS by ALPN, without TLS with prior knowledge (RFC 9113 section 3.3).
        Http2 = "http2",
        /// HTTP/2 if the server agrees to it by ALPN, else HTTP/1.1.
        Negotiated = "auto",
    }

    /// Whether connections begin with a PROXY protocol header.
    pub enum ProxyProtocol {
        /// Every connection does, from a trusted proxy; others are closed.
        Spoken = "true",
        /// No connection does.
        Absent = "false",
    }
}
