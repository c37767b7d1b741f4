//! Why a gateway cannot start.

use std::io::ErrorKind;
use std::net::SocketAddr;

use super::handover::Withdrawal;
use super::tls::CertificateError;
use super::unknown_tiers::UnknownTier;
use crate::store::StoreError;

/// Why a gateway does not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// An address cannot be listened on.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A certificate or its key cannot be used.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// The store cannot be used with this configuration.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The access log, in this file or stream, cannot be written.
    #[error("cannot open the access log {0}: {1}; correct logging.access_log")]
    AccessLog(String, std::io::Error),
    /// The operating system's certificates of authorities, which prove upstreams over TLS, cannot be read.
    #[error(
        "cannot read the system's certificate authorities: {0}; install them (Debian: ca-certificates), or name a file of them in \
        the environment variable SSL_CERT_FILE"
    )]
    Authorities(String),
    /// There is no gateway behind this Unix socket whose listeners could be taken over.
    #[error(
        "no gateway hands over its listeners at {0}: {1}; start without --upgrade, or correct listen.upgrade"
    )]
    Predecessor(String, std::io::Error),
    /// The running gateway behind this Unix socket does not answer, waits for another successor, or was just replaced by it.
    #[error(
        "the gateway at {0} does not hand over its listeners now ({1}): another process may be replacing it; check \
        which one runs, then upgrade again if necessary"
    )]
    Busy(String, std::io::Error),
    /// Keys of the running gateway would be without a tier.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    UnknownTiers(Vec<UnknownTier>),
    /// The running gateway continues to serve instead.
    #[error(transparent)]
    Withdrawn(#[from] Withdrawal),
    /// The listeners cannot be offered to a successor at this Unix socket.
    #[error(
        "cannot offer the listeners at {0}: {1}; write a path of this gateway's own into listen.upgrade, in a directory \
        where it may create files"
    )]
    Offer(String, std::io::Error),
    /// Threads, signals or metric families failed for lack of system resources.
    #[error("the gateway cannot start: {0}")]
    System(String),
}

/// An address that cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} ({path}): {error}; {}", advice(.error))]
pub struct ListenError {
    pub(super) path: &'static str,
    pub(super) address: SocketAddr,
    pub(super) error: std::io::Error,
}

fn advice(error: &std::io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::PermissionDenied => {
            "choose a port from 1024 on, or give the process the capability CAP_NET_BIND_SERVICE, as the unit for systemd does"
        }
        ErrorKind::AddrNotAvailable => {
            "no interface of this machine has this address: choose one that it has, or 0.0.0.0 or [::] for all"
        }
        ErrorKind::AddrInUse => "choose another address or stop the process that uses it",
        _ => "choose another address",
    }
}

#[cfg(test)]
mod tests {
    use std::io::Error;

    use rustix::io::Errno;

    use super::*;

    #[test]
    fn an_address_that_cannot_be_listened_on_has_the_advice_for_its_error() {
        for (errno, advised) in [
            (Errno::ACCESS, "CAP_NET_BIND_SERVICE"),
            (Errno::ADDRNOTAVAIL, "no interface of this machine"),
            (Errno::ADDRINUSE, "stop the process that uses it"),
            (Errno::AFNOSUPPORT, "choose another address"),
        ] {
            let error = Error::from(errno);
            let shown = ListenError {
                path: "listen.http.address",
                address: SocketAddr::from(([127, 0, 0, 1], 81)),
                error,
            };
            let shown = shown.to_string();
            assert!(shown.contains(advised), "{shown}");
            let others = shown.matches("stop the process").count();
            assert_eq!(others == 1, errno == Errno::ADDRINUSE, "{shown}");
        }
    }
}
