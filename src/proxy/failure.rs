//! Why a forwarding ended without a complete answer: whose fault it was, and whether another attempt may succeed.

use std::fmt;

/// The end of an attempt, or of the whole forwarding, before the client had its answer.
#[derive(Debug)]
pub struct Failure {
    /// The side at fault.
    pub fault: Fault,
    /// The cause, for the access log.
    cause: String,
}

/// The side at fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The client's.
    Client(ClientFault),
    /// The upstream's.
    Server(ServerFault),
    /// The gateway.
    Gateway,
}

/// A fault of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientFault {
    /// The client closed its connection, or reset its stream.
    Gone,
    /// The client read too little of the answer for too long.
    Slow,
    /// The body did not arrive in time.
    Late,
    /// The body violates the rules of its framing.
    Malformed,
    /// The body is larger than `limits.body_bytes`.
    TooLarge,
}

/// A fault of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerFault {
    /// No connection was made: nothing was sent.
    Unreached,
    /// The server reported that it has not processed the request: REFUSED_STREAM, or a GOAWAY that excludes it (RFC 9113 section
    /// 8.7). Servers do this to shut down and to limit their load; it is not held against them.
    Unprocessed,
    /// The server requested HTTP/1.1 on a connection over HTTP/2.
    WantsHttp1 {
        /// It reported that it has not processed the request.
        is_unprocessed: bool,
    },
    /// The server did not agree to HTTP/2, which is the only configured protocol.
    NotHttp2,
    /// The server sent invalid HTTP/2.
    InvalidHttp2,
    /// The connection or the stream ended before the answer did.
    Broken {
        /// No part of an answer had arrived: a reused connection may have ended before the request.
        unanswered: bool,
        /// The server ended the stream with a frame that states a reason.
        by_reset: bool,
    },
    /// The server sent nothing for too long.
    Silent,
    /// The server read nothing of the request's body for too long.
    Blocked,
    /// The answer cannot be read in one way only.
    Malformed,
    /// The status means that this server is temporarily unavailable, and another one may not be.
    Away,
    /// The status means that the gateway or the upstream failed.
    Status,
    /// The exchange took longer than the upstream's `timeouts.total`.
    OverTime,
}

impl Failure {
    /// A failure of the client.
    pub fn client(fault: ClientFault, cause: impl fmt::Display) -> Failure {
        Failure::new(Fault::Client(fault), format!("client: {cause}"))
    }

    /// A failure of the upstream.
    pub fn server(fault: ServerFault, cause: impl fmt::Display) -> Failure {
        Failure::new(Fault::Server(fault), format!("upstream: {cause}"))
    }

    /// A failure of an upstream whose connection ended, with no part of an answer before it if `unanswered`.
    pub fn broken(unanswered: bool, cause: impl fmt::Display) -> Failure {
        let by_reset = false;
        let fault = ServerFault::Broken {
            unanswered,
            by_reset,
        };
        Failure::server(fault, cause)
    }

    /// A failure of the gateway.
    pub fn gateway(cause: impl fmt::Display) -> Failure {
        Failure::new(Fault::Gateway, format!("gateway: {cause}"))
    }

    /// The gateway stopped before the request ended.
    pub fn cut_off() -> Failure {
        Failure::gateway("it stopped before the request ended")
    }

    /// The client does not read the answers before this one.
    pub fn given_up() -> Failure {
        Failure::client(ClientFault::Slow, "does not read its answers")
    }

    /// The upstream took too long.
    pub fn over_time() -> Failure {
        let cause = "took longer than timeouts.total";
        Failure::server(ServerFault::OverTime, cause)
    }

    fn new(fault: Fault, cause: String) -> Failure {
        Failure { fault, cause }
    }

    /// The same failure with an addition to its cause.
    pub fn with(mut self, more: impl fmt::Display) -> Failure {
        self.cause = format!("{}; {more}", self.cause);
        self
    }

    /// The fate of the request on a connection that was `reused` or new.
    pub fn fate(&self, reused: bool) -> Fate {
        match self.fault {
            Fault::Server(
                ServerFault::Unprocessed
                | ServerFault::WantsHttp1 {
                    is_unprocessed: true,
                },
            ) => Fate::Unprocessed,
            Fault::Server(ServerFault::WantsHttp1 { .. } | ServerFault::InvalidHttp2) => {
                Fate::Stale
            }
            Fault::Server(ServerFault::Broken {
                unanswered: true, ..
            }) if reused => Fate::Stale,
            Fault::Server(_) | Fault::Client(_) | Fault::Gateway => Fate::Unknown,
        }
    }

    /// Whether another server may succeed, for an idempotent request. A request that takes too long would take as long again.
    pub fn is_worth_another(&self) -> bool {
        matches!(
            self.fault,
            Fault::Server(
                ServerFault::Broken { .. }
                    | ServerFault::WantsHttp1 { .. }
                    | ServerFault::InvalidHttp2
                    | ServerFault::NotHttp2
                    | ServerFault::Away
            )
        )
    }

    /// Whether the server did not accept the request's version of HTTP.
    pub fn is_about_version(&self) -> bool {
        matches!(
            self.fault,
            Fault::Server(ServerFault::WantsHttp1 { .. } | ServerFault::InvalidHttp2)
        )
    }

    /// Whether the failure indicates that the server does not support HTTP/2: it sent invalid HTTP/2, or closed the connection.
    pub fn may_be_other_protocol(&self) -> bool {
        matches!(
            self.fault,
            Fault::Server(
                ServerFault::InvalidHttp2
                    | ServerFault::Broken {
                        by_reset: false,
                        ..
                    }
            )
        )
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.cause)
    }
}

/// The fate of a request after a failed attempt, which decides whether it may be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The connection had ended before use, or did not fit the request, which is not the server's fault.
    Stale,
    /// The server has not processed the request.
    Unprocessed,
    /// The server may have acted on the request.
    Unknown,
}
