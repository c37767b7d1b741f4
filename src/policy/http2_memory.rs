//! The memory that the requests of one HTTP/2 connection occupy, as far as it can be known, and how a connection's allowance is
//! divided. Figures are upper bounds.

const KIB: u64 = 1024;

/// A request that waits for its upstream: its task and the connection to the upstream. In clear over HTTP/1.1, 12 KiB were measured; TLS
/// takes more.
const REQUEST_BYTES: u64 = 36 * KIB;
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

/// The memory of a request by the size of its head, the announced length of its body, and how much its upstream may send unasked.
pub fn request_bytes(head_bytes: u64, announced: Option<u64>, window_bytes: u32) -> u64 {
    let window = u64::from(STREAM_WINDOW_BYTES);
    let waiting = announced.map_or(window, |bytes| bytes.min(window));
    let upload = kept_bytes(announced) + waiting;
    // The head exists twice: as received and as forwarded.
    REQUEST_BYTES + 2 * head_bytes + upload + u64::from(window_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_allowance_lets_dozens_of_requests_be_worked_on() {
        let shares = MemoryShares::of(4 * 1024 * KIB);
        assert_eq!(shares.requests_bytes / request_bytes(200, Some(0), 0), 37);
        assert_eq!(shares.requests_bytes / request_bytes(200, None, 0), 19);
        let over_http2 = request_bytes(200, Some(0), UPSTREAM_WINDOW_BYTES);
        assert_eq!(shares.requests_bytes / over_http2, 19);
        assert!(shares.answers_bytes > 2 * UNSEEN_BYTES);
        let first = shares.first().requests_bytes;
        assert_eq!(first / request_bytes(200, Some(0), 0), 6);
        assert_eq!(first / request_bytes(200, None, 0), 3);
    }
}
