//! What every listener has: a default address, and the choice of PROXY protocol headers.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Whether connections begin with a PROXY protocol header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyProtocol {
    /// Every connection does, from a trusted proxy; others are closed.
    Spoken,
    /// No connection does.
    Absent,
}

/// The address of a listener that only this machine can reach.
pub(super) const fn loopback(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}
