//! What pingora asks a stream about itself.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use pingora::protocols::raw_connect::ProxyDigest;
use pingora::protocols::tls::SslDigest;
use pingora::protocols::{
    ALPN, GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, SocketDigest, Ssl, TimingDigest,
    UniqueID, UniqueIDType,
};

use super::Guard;

impl UniqueID for Guard {
    fn id(&self) -> UniqueIDType {
        self.transport.as_raw_fd()
    }
}

impl Ssl for Guard {
    fn get_ssl_digest(&self) -> Option<Arc<SslDigest>> {
        self.digest.clone()
    }

    fn selected_alpn_proto(&self) -> Option<ALPN> {
        self.is_http2().then_some(ALPN::H2)
    }
}

impl GetTimingDigest for Guard {
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        Vec::new()
    }

    fn get_write_pending_time(&self) -> Duration {
        self.writes.blocked()
    }
}

impl GetProxyDigest for Guard {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        self.proxy_digest.clone()
    }
}

impl GetSocketDigest for Guard {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        Some(self.socket_digest.clone())
    }
}

impl Peek for Guard {}
