//! The memory that the requests of one HTTP/2 connection occupy, as far as it can be known, and how a connection's allowance is
//! divided. Figures are upper bounds.

const KIB: u64 = 1024;

/// A request that waits for its upstream: its task and a connection to the upstream over HTTP/1.1. Measured were 14.3 KiB in clear text
/// and 22.1 over TLS. About twice as much is counted, for what quick answers occupy (`make hostile`).
const CLEAR_BYTES: u64 = 28 * KIB;
const TLS_BYTES: u64 = 40 * KIB;
/// The same on a stream of a connection over HTTP/2: 13.0 and 16.9 KiB.
const STREAM_BYTES: u64 = 18 * KIB;
/// The most that is kept of a request's body for another attempt.
pub const KEPT_BYTES_MAX: u64 = 64 * KIB;
/// What of that is counted from the beginning if the body's length is not announced.
const KEPT_BYTES_UNANNOUNCED: u64 = 16 * KIB;
/// The parts of an answer that are written to the client together.
const ANSWER_BYTES: u64 = 64 * KIB;
/// The part of a body that may have been read beyond those: one buffer.
const AHEAD_BYTES: u64 = 16 * KIB;

/// How much of a request's body a client may send before the gateway reads it. The connection's window is as large as those of
/// all streams together, so that requests being served receive their bodies while others fill their own windows.
pub const STREAM_WINDOW_BYTES: u32 = 16 * 1024;
/// How much of an answer an HTTP/2 upstream may send before the gateway reads it. Over a round trip of 1 ms it allows 32 MB/s for
/// each answer; twice as much would halve the number of requests served at the same time.
pub const UPSTREAM_WINDOW_BYTES: u32 = 32 * 1024;
/// The size that an answer may reach before the gateway examines it.
pub const UNSEEN_BYTES: u64 = ANSWER_BYTES + AHEAD_BYTES;
/// The most that the HTTP/2 library may buffer of one answer.
const SEND_BUFFER_BYTES_MAX: u64 = 32 * KIB;
/// The least: with less, each part would be many frames.
const SEND_BUFFER_BYTES_MIN: u64 = 4 * KIB;

/// A connection begins with this fraction of its shares. Each request that is permitted or answered lets as many more be served as it
/// took, and each answer that ends adds half of that to the memory of answers: a client has what it needs after a few requests, and one
/// whose requests are not permitted occupies little.
const FIRST_PART: u64 = 6;

/// How an allowance is divided. The rest is for streams that wait for their turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryShares {
    /// For requests being served.
    pub requests_bytes: u64,
    /// For answers that wait for the client; an admitted one may exceed it.
    pub answers_bytes: u64,
    /// For the library's send buffers.
    pub library_bytes: u64,
}

impl MemoryShares {
    /// The shares of this many bytes.
    pub fn of(allowance_bytes: u64) -> MemoryShares {
        MemoryShares {
            requests_bytes: allowance_bytes / 3,
            answers_bytes: allowance_bytes / 4,
            library_bytes: allowance_bytes * 3 / 8,
        }
    }

    /// The shares at the beginning of a connection.
    pub fn first(self) -> MemoryShares {
        MemoryShares {
            requests_bytes: self.requests_bytes / FIRST_PART,
            answers_bytes: self.answers_bytes / FIRST_PART,
            library_bytes: self.library_bytes,
        }
    }

    /// The most that the HTTP/2 library may buffer of one answer if `streams` may be open.
    pub fn send_buffer_bytes(self, streams: u32) -> usize {
        let each = self.library_bytes / u64::from(streams.max(1));
        let each = each.clamp(SEND_BUFFER_BYTES_MIN, SEND_BUFFER_BYTES_MAX);
        usize::try_from(each).unwrap_or(usize::MAX)
    }
}

/// What is counted from the beginning for what is kept of a body, whose length may be announced.
pub fn kept_bytes(announced: Option<u64>) -> u64 {
    announced.map_or(KEPT_BYTES_UNANNOUNCED, |bytes| bytes.min(KEPT_BYTES_MAX))
}

/// The memory of a request, beside its head and body, that waits for an upstream with these versions of HTTP, with what the upstream may
/// send unasked.
pub fn exchange_bytes(is_tls: bool, may_be_http1: bool, may_be_http2: bool) -> u64 {
    let own = if is_tls { TLS_BYTES } else { CLEAR_BYTES };
    let shared = STREAM_BYTES + u64::from(UPSTREAM_WINDOW_BYTES);
    let own = if may_be_http1 { own } else { 0 };
    own.max(if may_be_http2 { shared } else { 0 })
}

/// The memory of a request by the size of its head, the announced length of its body, and the [`exchange_bytes`] of its upstream.
pub fn request_bytes(head_bytes: u64, announced: Option<u64>, exchange_bytes: u64) -> u64 {
    let window = u64::from(STREAM_WINDOW_BYTES);
    let waiting = announced.map_or(window, |bytes| bytes.min(window));
    let upload = kept_bytes(announced) + waiting;
    // The head exists twice: as received and as forwarded.
    exchange_bytes + 2 * head_bytes + upload
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_allowance_lets_dozens_of_requests_be_worked_on() {
        let shares = MemoryShares::of(4 * 1024 * KIB);
        let [clear, tls, http2, either] = [
            exchange_bytes(false, true, false),
            exchange_bytes(true, true, false),
            exchange_bytes(true, false, true),
            exchange_bytes(true, true, true),
        ];
        let served = |part: MemoryShares, announced, exchange| {
            part.requests_bytes / request_bytes(200, announced, exchange)
        };
        assert_eq!(served(shares, Some(0), clear), 48);
        assert_eq!(served(shares, Some(0), tls), 33);
        assert_eq!(served(shares, Some(0), http2), 27);
        assert_eq!(served(shares, Some(0), either), 27);
        assert_eq!(served(shares, None, clear), 22);
        assert!(shares.answers_bytes > 2 * UNSEEN_BYTES);
        assert_eq!(served(shares.first(), Some(0), clear), 8);
        assert_eq!(served(shares.first(), None, http2), 2);
    }
}
