//! The transport of bytes: TCP, with TLS or without.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

/// An established connection.
#[derive(Debug)]
pub enum Transport {
    /// TCP alone.
    Clear(TcpStream),
    /// TLS on TCP.
    Tls(Box<TlsStream<TcpStream>>),
}

/// The protocol that client and gateway negotiated by ALPN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Agreed {
    /// HTTP/2.
    Http2,
    /// HTTP/1.1, or nothing negotiated over TLS.
    Http1,
    /// Without TLS nothing is negotiated; the first bytes determine the protocol.
    Open,
}

impl Transport {
    /// The negotiated protocol.
    pub fn agreed(&self) -> Agreed {
        match self {
            Transport::Clear(_) => Agreed::Open,
            Transport::Tls(tls) if tls.get_ref().1.alpn_protocol() == Some(b"h2") => Agreed::Http2,
            Transport::Tls(_) => Agreed::Http1,
        }
    }

    /// Makes the close after the written bytes a reset.
    pub fn break_off(&self) {
        // Fails only if the socket has already ended.
        let _ = SockRef::from(self.socket()).set_linger(Some(Duration::ZERO));
    }

    /// Waits until the other end has closed its side, whether or not all bytes before that were read.
    ///
    /// # Errors
    /// If the runtime stops.
    pub(super) async fn closed(&self) -> io::Result<()> {
        // Unlike `READABLE`, this is not ready while there are bytes to be read.
        self.socket().ready(Interest::PRIORITY).await.map(drop)
    }

    fn socket(&self) -> &TcpStream {
        match self {
            Transport::Clear(socket) => socket,
            Transport::Tls(tls) => tls.get_ref().0,
        }
    }
}

impl AsyncRead for Transport {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut *self {
            Transport::Clear(socket) => Pin::new(socket).poll_read(cx, buf),
            Transport::Tls(tls) => Pin::new(tls).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Transport {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut *self {
            Transport::Clear(socket) => Pin::new(socket).poll_write(cx, buf),
            Transport::Tls(tls) => Pin::new(tls).poll_write(cx, buf),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Transport::Clear(socket) => Pin::new(socket).poll_flush(cx),
            Transport::Tls(tls) => Pin::new(tls).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Transport::Clear(socket) => Pin::new(socket).poll_shutdown(cx),
            Transport::Tls(tls) => Pin::new(tls).poll_shutdown(cx),
        }
    }
}
