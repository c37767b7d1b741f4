//! A client's connection, from its acceptance to its end.
//!
//! | Room | Job |
//! |---|---|
//! | [`limiter`] | the number of connections, in all and of each client address |
//! | [`opening`] | the protocol of a connection |
//! | [`http1`] | a connection over HTTP/1: its requests one after the other |
//! | [`streams`] | a connection over HTTP/2: its requests on their streams |
//! | [`incoming`] | these requests as they arrive, and when the HTTP/2 library is polled for them |
//! | [`guard`] | the stream below the HTTP/2 library, watched for floods |
//! | [`allowance`] | the memory of an HTTP/2 connection's requests while its client does not read |
//! | [`unserved`] | the answer to a head that cannot be read or is redirected to HTTPS, its line in the access log and its metrics |
//! | [`progress`] | what the guard, the connection's task and the requests over HTTP/2 report to each other |
//! | [`on_wake`] | the futures of a busy task that are seldom ready, polled only when they were woken |
//! | [`transport`] | TCP, with TLS or without |
//! | [`wire`] | the bytes of a connection over HTTP/1, in both directions |
//! | [`writes`] | gathered writes, and clients that do not read them |
//!
//! Invariants: every request whose end could be read in two ways is refused here; an idle connection holds no buffer of its own;
//! every wait has a deadline.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use http::HeaderValue;
use tokio::sync::Notify;

use super::forward;
use crate::policy::forwarded::RequestSender;

pub mod allowance;
pub mod guard;
pub mod http1;
pub mod incoming;
pub mod limiter;
pub mod on_wake;
pub mod opening;
pub mod progress;
pub mod streams;
pub mod transport;
pub mod unserved;
pub mod wire;
pub mod writes;

/// The state shared by a connection and its requests.
#[derive(Debug)]
pub struct Connection {
    /// The client's address.
    pub client: SocketAddr,
    /// The address as text, for log lines.
    client_text: Box<str>,
    /// The address without its port, as sent to upstreams.
    pub address: HeaderValue,
    /// Whether the connection is over TLS.
    pub is_encrypted: bool,
    retired: AtomicBool,
    retire: Notify,
    broken_off: AtomicBool,
    backlog: AtomicBool,
    malformed: AtomicU32,
}

/// The number of heads over HTTP/2 without a usable target or host after which a connection accepts no further request. Over
/// HTTP/1 the first one ends it.
const MALFORMED_MAX: u32 = 32;

impl Connection {
    /// A newly accepted connection.
    pub fn new(client: SocketAddr, is_encrypted: bool) -> Arc<Connection> {
        Arc::new(Connection {
            client,
            client_text: client.to_string().into(),
            address: forward::address(client.ip()),
            is_encrypted,
            retired: AtomicBool::new(false),
            retire: Notify::new(),
            broken_off: AtomicBool::new(false),
            backlog: AtomicBool::new(false),
            malformed: AtomicU32::new(0),
        })
    }

    /// The sender of one of its requests as text, for log lines.
    pub fn text_of(&self, sender: RequestSender) -> Cow<'_, str> {
        match sender {
            RequestSender::Connected(_) => Cow::Borrowed(&self.client_text),
            RequestSender::Forwarded(client) => Cow::Owned(client.to_string()),
        }
    }

    /// Notes whether its client refuses bytes over HTTP/2, where answers may be over before their bytes are written.
    fn note_backlog(&self, has_backlog: bool) {
        self.backlog.store(has_backlog, Ordering::Relaxed);
    }

    fn has_backlog(&self) -> bool {
        self.backlog.load(Ordering::Relaxed)
    }

    /// Ends the connection after the requests in flight: no further one is accepted.
    pub fn retire(&self) {
        if !self.retired.swap(true, Ordering::AcqRel) {
            self.retire.notify_one();
        }
    }

    /// Whether the connection accepts no further request.
    pub fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
    }

    /// Notes a head without a usable target or host.
    pub fn note_malformed(&self) {
        let before = self.malformed.fetch_add(1, Ordering::Relaxed);
        if before + 1 >= MALFORMED_MAX {
            self.retire();
        }
    }

    /// Returns once the connection is retired.
    pub async fn retired(&self) {
        if !self.is_retired() {
            self.retire.notified().await;
        }
    }

    /// Marks the last answer, which was to end with the connection, as incomplete: the connection is reset, because a normal
    /// close would mark the answer as complete (RFC 9112 section 8).
    pub fn break_off(&self) {
        self.broken_off.store(true, Ordering::Release);
    }

    /// Whether the connection is to be reset.
    pub fn is_broken_off(&self) -> bool {
        self.broken_off.load(Ordering::Acquire)
    }
}
