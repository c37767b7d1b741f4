//! What the requests of one HTTP/2 connection cost in memory, as far as it can be known, and how a connection's allowance is
//! shared out. Figures are upper bounds.

const KIB: u64 = 1024;

/// A request that waits for its upstream: its task and the connection to the upstream, as measured with an HTTP/1.1 upstream.
const REQUEST_BYTES: u64 = 36 * KIB;
/// What is kept of a request's body in case it must be sent again, and what a stream's window lets wait before it.
const UPLOAD_BYTES: u64 = 64 * KIB + STREAM_WINDOW_BYTES as u64;
/// The parts of an answer that are written to the client together.
const ANSWER_BYTES: u64 = 64 * KIB;
/// What may have been read of a body beyond those: one buffer.
const AHEAD_BYTES: u64 = 16 * KIB;

/// How much of a request's body a client may send before the gateway takes it. So that requests that have their turn get
/// theirs while others fill their own windows, the connection's window is as large as all of them together.
pub const STREAM_WINDOW_BYTES: u32 = 16 * 1024;
/// How much of an answer an upstream that speaks HTTP/2 may send before the gateway takes it, which is before the request is looked
/// at. Over a round trip of 1 ms it is 32 MB/s for each answer; twice as much would let half as many requests be worked on.
pub const UPSTREAM_WINDOW_BYTES: u32 = 32 * 1024;
/// Before an answer is looked at, it may be as large as this.
pub const UNSEEN_BYTES: u64 = ANSWER_BYTES + AHEAD_BYTES;
/// The most that the library below may have to send of one answer.
const SEND_BUFFER_BYTES_MAX: u64 = 32 * KIB;
/// The least: with less, each part would be many frames.
const SEND_BUFFER_BYTES_MIN: u64 = 4 * KIB;

/// A connection begins with this part of its shares; each request that ends adds half of what it took, so that a client has what it
/// needs after a few answers, and one that only ever asks has little to hold.
const FIRST_PART: u64 = 6;

/// How an allowance is shared out. What is left of it is for streams that wait for their turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shares {
    /// Requests that are worked on.
    pub requests_bytes: u64,
    /// Answers that wait for the client; one that was let in may go beyond it.
    pub answers_bytes: u64,
    /// What the library below has to send.
    pub library_bytes: u64,
}

impl Shares {
    /// Of so many bytes.
    pub fn of(allowance_bytes: u64) -> Shares {
        Shares {
            requests_bytes: allowance_bytes / 3,
            answers_bytes: allowance_bytes / 4,
            library_bytes: allowance_bytes * 3 / 8,
        }
    }

    /// What a connection begins with.
    pub fn first(self) -> Shares {
        Shares {
            requests_bytes: self.requests_bytes / FIRST_PART,
            answers_bytes: self.answers_bytes / FIRST_PART,
            library_bytes: self.library_bytes,
        }
    }

    /// What the library below may have to send of one answer, where so many streams may be open.
    pub fn send_buffer_bytes(self, streams: u32) -> usize {
        let each = self.library_bytes / u64::from(streams.max(1));
        let each = each.clamp(SEND_BUFFER_BYTES_MIN, SEND_BUFFER_BYTES_MAX);
        usize::try_from(each).unwrap_or(usize::MAX)
    }
}

/// A request by the bytes of its head, whether a body follows, and what its upstream may send unasked.
pub fn request_bytes(head_bytes: u64, has_body: bool, window_bytes: u32) -> u64 {
    // The head is there once as it came and once as it is forwarded.
    let upload = if has_body { UPLOAD_BYTES } else { 0 };
    REQUEST_BYTES + 2 * head_bytes + upload + u64::from(window_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_allowance_lets_dozens_of_requests_be_worked_on() {
        let shares = Shares::of(4 * 1024 * KIB);
        assert_eq!(shares.requests_bytes / request_bytes(200, false, 0), 37);
        assert_eq!(shares.requests_bytes / request_bytes(200, true, 0), 11);
        let over_http2 = request_bytes(200, false, UPSTREAM_WINDOW_BYTES);
        assert_eq!(shares.requests_bytes / over_http2, 19);
        assert!(shares.answers_bytes > 2 * UNSEEN_BYTES);
        assert_eq!(
            shares.first().requests_bytes / request_bytes(200, false, 0),
            6
        );
    }
}
