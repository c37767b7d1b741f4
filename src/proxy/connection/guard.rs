//! The stream that pingora reads from and writes to.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Buf, BytesMut};
use pingora::http::ResponseHeader;
use pingora::protocols::l4::socket::SocketAddr as PingoraAddress;
use pingora::protocols::raw_connect::ProxyDigest;
use pingora::protocols::tls::SslDigest;
use pingora::protocols::{Shutdown, SocketDigest};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::http1::{Http1, Late, Reader, Step};
use super::timer::Timer;
use super::transport::{Agreed, Transport};
use super::writes::Writes;
use super::{BodyFault, Connection, refusal};
use crate::config::Limits;
use crate::policy::http2::PREFACE;
use crate::policy::rejection::Rejection;
use crate::proxy::gate::Gate;

mod bounds;
mod digests;
mod http2;

pub(super) use bounds::bounds_of;
use bounds::{deadlines_of, patience_of, rates_of};
use http2::Http2;

/// What is read from the socket at a time.
pub(super) const READ_BYTES: usize = 8 * 1024;
/// After a refusal, what the client is still sending is read and thrown away, so that the answer reaches it: a connection
/// that is closed with unread bytes is reset (RFC 9112 section 9.6). Up to so much, for so long.
pub(super) const LINGER_BYTES: usize = 256 * 1024;
pub(super) const LINGER: Duration = Duration::from_secs(1);

/// A client's connection as pingora sees it.
pub struct Guard {
    gate: Arc<Gate>,
    connection: Arc<Connection>,
    transport: Transport,
    unread: BytesMut,
    reading: Reading,
    writes: Writes,
    timer: Timer,
    requests_max: u64,
    digest: Option<Arc<SslDigest>>,
    proxy_digest: Option<Arc<ProxyDigest>>,
    socket_digest: Arc<SocketDigest>,
}

/// What is on the wire.
enum Reading {
    Http1(Box<Http1>),
    Http2(Box<Http2>),
    /// An HTTP/1 head was refused: its answer is being written.
    Refusing,
    /// The answer is out.
    Lingering {
        until: Instant,
        bytes: usize,
    },
    Over,
}

/// Why a connection ends before pingora has seen it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Silent {
    /// The client has closed it.
    Closed,
    /// The client said too little for too long; the limit's name in metrics.
    Late(&'static str),
}

impl Guard {
    /// Guards a connection from its first bytes on, which tell HTTP/2 from HTTP/1 where TLS has not done so.
    ///
    /// # Errors
    /// If too little comes within `limits.request_head`.
    pub async fn begin(
        gate: Arc<Gate>,
        connection: Arc<Connection>,
        mut transport: Transport,
        limits: &Limits,
    ) -> Result<Guard, Silent> {
        let start = Instant::now();
        let agreed = transport.agreed();
        let mut unread = BytesMut::new();
        let is_http2 = match agreed {
            Agreed::Http1 => false,
            Agreed::Http2 | Agreed::Open => {
                let first = tokio::time::timeout_at(
                    start + limits.request_head,
                    first_bytes(&mut transport, &mut unread),
                );
                match (first.await, agreed) {
                    (Ok(Ok(is_preface)), Agreed::Open) => is_preface,
                    // A wrong preface is the library's to refuse.
                    (Ok(Ok(_)), _) => true,
                    (Ok(Err(_)), _) => return Err(Silent::Closed),
                    (Err(_), Agreed::Http2) => return Err(Silent::Late("h2_preface")),
                    // What came so far gets its answer.
                    (Err(_), _) if !unread.is_empty() => false,
                    (Err(_), _) => return Err(Silent::Late("request_head")),
                }
            }
        };
        let reading = if is_http2 {
            Reading::Http2(Box::new(Http2::new(rates_of(limits))))
        } else {
            let http1 = Http1::new(bounds_of(limits), deadlines_of(limits), start);
            Reading::Http1(Box::new(http1))
        };
        let digest = transport.tls().map(|(cipher, version)| {
            Arc::new(SslDigest::new(
                cipher,
                version.to_owned(),
                None,
                None,
                Vec::new(),
            ))
        });
        let socket_digest = SocketDigest::from_raw_fd(transport.as_raw_fd());
        // Set here for the first time, so it is taken.
        let _ = socket_digest
            .peer_addr
            .set(Some(PingoraAddress::Inet(connection.client)));
        // The one field of a connection that pingora carries from the stream to every request on it.
        let carrier = ResponseHeader::build(200, Some(0)).ok();
        let proxy_digest = carrier.map(|carrier| {
            Arc::new(ProxyDigest::new(
                Box::new(carrier),
                Some(Box::new(connection.clone())),
            ))
        });
        Ok(Guard {
            gate,
            connection,
            transport,
            unread,
            reading,
            writes: Writes::new(patience_of(limits)),
            timer: Timer::default(),
            requests_max: limits.requests_per_connection,
            digest,
            proxy_digest,
            socket_digest: Arc::new(socket_digest),
        })
    }

    /// Whether it speaks HTTP/2.
    pub fn is_http2(&self) -> bool {
        matches!(self.reading, Reading::Http2(_))
    }

    fn poll_http1(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let reader = if buffer.remaining() == 1 {
            Reader::Lookout
        } else {
            Reader::Request
        };
        loop {
            let Reading::Http1(http1) = &mut self.reading else {
                return self.poll_refusing(context);
            };
            if reader == Reader::Request && http1.is_between() {
                // The answer before is out.
                self.writes.release();
                if self.connection.is_retired() && self.unread.is_empty() {
                    return Poll::Ready(Ok(()));
                }
            }
            match http1.step(reader, &mut self.unread, Instant::now()) {
                Step::HandOver(ready) => {
                    let bytes = ready.min(buffer.remaining()).min(self.unread.len());
                    buffer.put_slice(self.unread.get(..bytes).unwrap_or_default());
                    self.unread.advance(bytes);
                    http1.handed_over(bytes);
                    if self.unread.is_empty() {
                        self.unread = BytesMut::new();
                    }
                    let requests = http1.requests();
                    self.note_requests(requests);
                    return Poll::Ready(Ok(()));
                }
                Step::Hold => return Poll::Pending,
                Step::Refuse(rejection) => {
                    let waited = http1.waited(Instant::now());
                    self.refuse(&rejection, waited);
                }
                Step::Fail(fault) => return self.fail(fault),
                Step::Read { until } => {
                    match poll_more(&mut self.transport, &mut self.unread, context) {
                        Poll::Ready(Ok(0)) => return Poll::Ready(Ok(())),
                        Poll::Ready(Ok(_)) => {}
                        Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                        Poll::Pending => {
                            if reader == Reader::Lookout
                                || self.timer.poll_until(until, context).is_pending()
                            {
                                return Poll::Pending;
                            }
                            match http1.late() {
                                Late::Close(limit) => {
                                    self.note_limit(limit);
                                    return Poll::Ready(Ok(()));
                                }
                                Late::Refuse(rejection, limit) => {
                                    let waited = http1.waited(Instant::now());
                                    self.note_limit(limit);
                                    self.refuse(&rejection, waited);
                                }
                                Late::Fail(fault) => return self.fail(fault),
                            }
                        }
                    }
                }
            }
        }
    }

    /// Lets the connection end once it has had all the requests it may have.
    fn note_requests(&self, requests: u64) {
        if requests >= self.requests_max && !self.connection.is_retired() {
            self.note_limit("requests_per_connection");
            self.connection.retire();
        }
    }

    fn note_limit(&self, limit: &str) {
        let hits = &self.gate.metrics.limit_hits;
        hits.with_label_values(&[limit]).inc();
    }

    fn refuse(&mut self, rejection: &Rejection, waited: Duration) {
        let answer = refusal::refuse(
            &self.gate,
            self.connection.client,
            &self.unread,
            rejection,
            waited,
            self.digest.as_deref(),
        );
        self.writes.append(&answer);
        self.unread = BytesMut::new();
        self.reading = Reading::Refusing;
    }

    fn fail(&mut self, fault: BodyFault) -> Poll<io::Result<()>> {
        self.connection.note_body_fault(fault);
        let error = match fault {
            BodyFault::Framing => {
                io::Error::new(io::ErrorKind::InvalidData, "the body breaks its framing")
            }
            BodyFault::Late => {
                self.note_limit("request_read");
                io::Error::new(io::ErrorKind::TimedOut, "the body did not come in time")
            }
        };
        Poll::Ready(Err(error))
    }

    /// Writes the refusal, closes the writing side and reads on until the client has closed too; then the connection is
    /// at its end for pingora, which never saw the request.
    fn poll_refusing(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Reading::Refusing = self.reading {
            let written = ready!(self.writes.poll_flush(&mut self.transport, context));
            if written.is_ok() {
                let _ = ready!(Pin::new(&mut self.transport).poll_shutdown(context));
            }
            self.reading = match written {
                Ok(()) => Reading::Lingering {
                    until: Instant::now() + LINGER,
                    bytes: 0,
                },
                Err(_) => Reading::Over,
            };
        }
        ready!(self.poll_linger(context));
        Poll::Ready(Ok(()))
    }

    fn poll_linger(&mut self, context: &mut Context<'_>) -> Poll<()> {
        while let Reading::Lingering { until, bytes } = &mut self.reading {
            match poll_more(&mut self.transport, &mut self.unread, context) {
                Poll::Ready(Ok(more @ 1..)) if *bytes < LINGER_BYTES => {
                    *bytes += more;
                    self.unread.clear();
                }
                Poll::Ready(_) => self.reading = Reading::Over,
                Poll::Pending => {
                    ready!(self.timer.poll_until(*until, context));
                    self.reading = Reading::Over;
                }
            }
        }
        Poll::Ready(())
    }
}

/// Counts a client that did not read its answers.
fn note_slow(gate: &Gate, error: &io::Error) {
    if error.kind() == io::ErrorKind::TimedOut {
        gate.metrics
            .limit_hits
            .with_label_values(&["response_rate"])
            .inc();
    }
}

/// Reads until the first bytes are HTTP/2's preface or cannot be.
async fn first_bytes(transport: &mut Transport, unread: &mut BytesMut) -> io::Result<bool> {
    loop {
        let compared = unread.len().min(PREFACE.len());
        if unread.get(..compared) != PREFACE.get(..compared) {
            return Ok(false);
        }
        if compared == PREFACE.len() {
            return Ok(true);
        }
        let more = std::future::poll_fn(|context| poll_more(transport, unread, context)).await?;
        if more == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// Reads what is there behind what is unread; 0 at the end. An idle connection owns no buffer meanwhile.
fn poll_more(
    transport: &mut Transport,
    unread: &mut BytesMut,
    context: &mut Context<'_>,
) -> Poll<io::Result<usize>> {
    let mut space = [MaybeUninit::<u8>::uninit(); READ_BYTES];
    let mut space = ReadBuf::uninit(&mut space);
    ready!(Pin::new(transport).poll_read(context, &mut space))?;
    unread.extend_from_slice(space.filled());
    Poll::Ready(Ok(space.filled().len()))
}

impl AsyncRead for Guard {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.reading {
            Reading::Http1(_) => self.poll_http1(cx, buf),
            Reading::Http2(_) => self.poll_http2(cx, buf),
            Reading::Refusing | Reading::Lingering { .. } | Reading::Over => self.poll_refusing(cx),
        }
    }
}

impl AsyncWrite for Guard {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let Guard {
            writes,
            transport,
            reading,
            gate,
            ..
        } = &mut *self;
        let written = ready!(writes.poll_write(transport, cx, buf))
            .inspect_err(|error| note_slow(gate, error))?;
        let flood = match reading {
            Reading::Http1(http1) => {
                http1.note_answer();
                None
            }
            Reading::Http2(http2) => {
                let flood = http2.note_sent(buf.get(..written).unwrap_or_default());
                let malformed = http2.take_malformed();
                if malformed > 0 {
                    let hits = &gate.metrics.limit_hits;
                    hits.with_label_values(&["h2_malformed"]).inc_by(malformed);
                }
                flood
            }
            Reading::Refusing | Reading::Lingering { .. } | Reading::Over => None,
        };
        match flood {
            Some(flood) => Poll::Ready(Err(self.calm_down(flood, cx))),
            None => Poll::Ready(Ok(written)),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Guard {
            writes,
            transport,
            reading,
            gate,
            ..
        } = &mut *self;
        let flushed =
            ready!(writes.poll_flush(transport, cx)).inspect_err(|error| note_slow(gate, error));
        if let Reading::Http2(_) = reading {
            writes.release();
        }
        Poll::Ready(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Guard {
            writes, transport, ..
        } = &mut *self;
        ready!(writes.poll_flush(transport, cx))?;
        Pin::new(transport).poll_shutdown(cx)
    }
}

#[async_trait]
impl Shutdown for Guard {
    /// Closes after an answer; what the client is still sending is read first, or the answer might be lost.
    async fn shutdown(&mut self) {
        if tokio::io::AsyncWriteExt::shutdown(self).await.is_err() {
            return;
        }
        if let Reading::Http1(_) = self.reading {
            self.reading = Reading::Lingering {
                until: Instant::now() + LINGER,
                bytes: 0,
            };
            std::future::poll_fn(|context| self.poll_linger(context)).await;
        }
    }
}

impl Drop for Guard {
    /// An answer that is broken off is dropped unflushed; what there is of it still goes out, as far as the socket takes it
    /// at once, so that the client sees the header and the cut.
    fn drop(&mut self) {
        let mut context = Context::from_waker(std::task::Waker::noop());
        let _ = self.writes.poll_flush(&mut self.transport, &mut context);
        if self.connection.is_broken_off() {
            self.transport.break_off();
        }
    }
}

impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Guard")
    }
}
