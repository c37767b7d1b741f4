//! A client's connection, from its acceptance to its end.
//!
//! pingora's own listeners have no deadline for a request's head, none for a silent HTTP/2 client, no bound on
//! connections, and answer what they cannot parse in their own words. So connections are accepted by the gateway and handed to
//! pingora inside a [`guard::Guard`]: a stream that lets only whole and unambiguous HTTP/1 heads through, watches HTTP/2
//! for floods, keeps the deadlines and gathers writes.
//!
//! | Room | Job |
//! |---|---|
//! | [`census`] | how many connections there are, in all and of each client address |
//! | [`guard`] | the stream that pingora reads from and writes to |
//! | [`http1`] | what of an HTTP/1 connection pingora may read yet |
//! | [`http2`] | one request over HTTP/2, as pingora drives it |
//! | [`pace`] | how many requests of an HTTP/2 connection are worked on while its client takes nothing |
//! | [`redirect`] | a connection without TLS that is led to HTTPS |
//! | [`refusal`] | the answer to what is refused before pingora sees it, its line in the log and its traces in the metrics |
//! | [`timer`] | one deadline after another on one timer |
//! | [`transport`] | TCP, with TLS or without |
//! | [`writes`] | gathered writes, and who does not read them |
//!
//! Invariants: pingora and this room agree on where each request ends, because every request whose end could be read in
//! two ways is refused here; an idle connection holds no buffer of its own; no wait is without a deadline.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

use http::{HeaderValue, Version};
use pingora::proxy::Session;
use tokio::sync::Notify;

use super::forward;

pub mod census;
pub mod guard;
pub mod http1;
pub mod http2;
pub mod pace;
pub mod redirect;
pub mod refusal;
pub mod timer;
pub mod transport;
pub mod writes;

/// What the guard of a connection and the requests on it tell each other.
#[derive(Debug)]
pub struct Connection {
    /// The client's address.
    pub client: SocketAddr,
    /// The same without its port, as upstreams are told.
    pub address: HeaderValue,
    retired: AtomicBool,
    retire: Notify,
    body_fault: AtomicU8,
    broken_off: AtomicBool,
    malformed: AtomicU32,
}

/// Heads over HTTP/2 without a usable target or host on one connection before it takes no further request. Over HTTP/1 the first
/// one ends it. pingora's own loop allows as many.
const MALFORMED_MAX: u32 = 32;

/// What was wrong with a request's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyFault {
    /// It breaks the rules of its framing.
    Framing,
    /// It did not come in time.
    Late,
}

/// Whether a request came over HTTP/2. pingora's own `is_http2` knows only its own sessions.
pub fn is_http2(session: &Session) -> bool {
    session.req_header().version == Version::HTTP_2
}

impl Connection {
    /// A connection that has just been accepted.
    pub fn new(client: SocketAddr) -> Arc<Connection> {
        Arc::new(Connection {
            client,
            address: forward::address(client.ip()),
            retired: AtomicBool::new(false),
            retire: Notify::new(),
            body_fault: AtomicU8::new(0),
            broken_off: AtomicBool::new(false),
            malformed: AtomicU32::new(0),
        })
    }

    /// The connection that a request came on; `None` only where pingora was given another stream.
    pub fn of(session: &Session) -> Option<&Arc<Connection>> {
        let carried = session
            .digest()?
            .proxy_digest
            .as_ref()?
            .user_data
            .as_ref()?;
        carried.downcast_ref()
    }

    /// Lets the connection end with the requests under way: it takes no further one.
    pub fn retire(&self) {
        if !self.retired.swap(true, Ordering::AcqRel) {
            self.retire.notify_one();
        }
    }

    /// Whether it takes no further request.
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

    /// Returns when it has been retired.
    pub async fn retired(&self) {
        if !self.is_retired() {
            self.retire.notified().await;
        }
    }

    /// Says that its last answer, which was to end with it, is not whole: it is reset, since a plain end would say the opposite
    /// (RFC 9112 section 8).
    pub fn break_off(&self) {
        self.broken_off.store(true, Ordering::Release);
    }

    /// Whether it is to be reset.
    pub fn is_broken_off(&self) -> bool {
        self.broken_off.load(Ordering::Acquire)
    }

    /// Says what is wrong with the body of the request under way.
    pub fn note_body_fault(&self, fault: BodyFault) {
        let word = match fault {
            BodyFault::Framing => 1,
            BodyFault::Late => 2,
        };
        self.body_fault.store(word, Ordering::Release);
    }

    /// What was wrong with the body of the request under way. HTTP/1 only: HTTP/2 knows no broken framing of one request.
    pub fn body_fault(&self) -> Option<BodyFault> {
        match self.body_fault.load(Ordering::Acquire) {
            1 => Some(BodyFault::Framing),
            2 => Some(BodyFault::Late),
            _ => None,
        }
    }
}
