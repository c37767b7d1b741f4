//! The transport of bytes: TCP, with TLS or without.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;
/// TCP alone, or TLS on TCP.
pub use tokio_util::either::Either::{Left as Clear, Right as Tls};

/// An established connection.
pub type Transport = Either<TcpStream, Box<TlsStream<TlsSocket>>>;

/// The socket below TLS. The TLS library writes lists of records, and most answers are one record: for a list of one the system has
/// a cheaper call.
pub struct TlsSocket(pub TcpStream);

/// The protocol that client and gateway negotiated by ALPN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Agreed {
    /// HTTP/2.
    Http2,
    /// HTTP/1.1 or HTTP/1.0, or nothing negotiated over TLS.
    Http1,
    /// Without TLS nothing is negotiated; the first bytes determine the protocol.
    Open,
}

/// The negotiated protocol.
pub fn agreed(transport: &Transport) -> Agreed {
    match transport {
        Clear(_) => Agreed::Open,
        Tls(tls) if tls.get_ref().1.alpn_protocol() == Some(b"h2") => Agreed::Http2,
        Tls(_) => Agreed::Http1,
    }
}

/// Makes the close after the written bytes a reset.
pub fn break_off(transport: &Transport) {
    // Fails only if the socket has already ended.
    let _ = SockRef::from(socket(transport)).set_linger(Some(Duration::ZERO));
}

/// Waits until the other end has closed its side, whether or not all bytes before that were read.
///
/// # Errors
/// If the runtime stops.
pub(super) async fn closed(transport: &Transport) -> io::Result<()> {
    // Unlike `READABLE`, this is not ready while there are bytes to be read.
    socket(transport).ready(Interest::PRIORITY).await.map(drop)
}

fn socket(transport: &Transport) -> &TcpStream {
    match transport {
        Clear(socket) => socket,
        Tls(tls) => &tls.get_ref().0.0,
    }
}

impl AsyncRead for TlsSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for TlsSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match bufs {
            [record] => Pin::new(&mut self.0).poll_write(cx, record),
            records => Pin::new(&mut self.0).poll_write_vectored(cx, records),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
