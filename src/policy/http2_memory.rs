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

/// A connection begins with this part of its shares; each request that ends adds half of what it took, so that a client has what it
/// needs after a few answers, and one that only ever asks has little to hold.
const FIRST_PART: u64 = 6;

/// How an allowance is shared out. What is left of it is for streams that wait for their turn and for what the library
/// below has to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shares {
    /// Requests that are worked on.
    pub requests_bytes: u64,
    /// Answers that wait for the client; one that was let in may go beyond it.
    pub answers_bytes: u64,
}

impl Shares {
    /// Of so many bytes.
    pub fn of(allowance_bytes: u64) -> Shares {
        Shares {
            requests_bytes: allowance_bytes / 3,
            answers_bytes: allowance_bytes / 4,
        }
    }

    /// What a connection begins with.
    pub fn first(self) -> Shares {
        Shares {
            requests_bytes: self.requests_bytes / FIRST_PART,
            answers_bytes: self.answers_bytes / FIRST_PART,
        }
    }
}

/// A request by the bytes of its head, whether a body follows, and what its upstream may send unasked.
pub fn request_bytes(head_bytes: u64, has_body: bool, window_bytes: u32) -> u64 {
    // The head is there once as it came and once as it is forwarded.
    let upload = if has_body { UPLOAD_BYTES } else { 0 };
    REQUEST_BYTES + 2 * head_bytes + upload + u64::from(window_bytes)
}

/// How much of an answer's body the gateway holds at most.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Body {
    /// Its length, if the upstream has said it.
    pub announced_bytes: Option<u64>,
    /// What was read of it.
    pub seen_bytes: u64,
    /// What that became, compressed or not.
    pub passed_bytes: u64,
    /// What the library below has taken of that.
    pub sent_bytes: u64,
    /// What compresses the rest takes so much.
    pub encoder_bytes: u64,
    /// Whether that is all of it.
    pub ended: bool,
}

impl Body {
    /// What is held.
    pub fn held_bytes(&self) -> u64 {
        let ahead = match (self.ended, self.announced_bytes) {
            (true, _) => 0,
            (false, Some(announced)) => announced.saturating_sub(self.seen_bytes).min(AHEAD_BYTES),
            (false, None) => AHEAD_BYTES,
        };
        let unsent = self.passed_bytes.saturating_sub(self.sent_bytes);
        ANSWER_BYTES + ahead + unsent + self.encoder_bytes
    }
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

    #[test]
    fn no_more_of_a_body_is_held_than_was_announced_or_can_have_been_read() {
        let body = Body {
            announced_bytes: Some(1_000_000),
            seen_bytes: 200_000,
            passed_bytes: 200_000,
            sent_bytes: 50_000,
            encoder_bytes: 0,
            ended: false,
        };
        assert_eq!(body.held_bytes(), 65_536 + 150_000 + 16_384);
        let short = Body {
            announced_bytes: Some(210_000),
            ..body
        };
        assert_eq!(short.held_bytes(), 65_536 + 150_000 + 10_000);
        let ended = Body {
            announced_bytes: None,
            ended: true,
            ..body
        };
        assert_eq!(ended.held_bytes(), 65_536 + 150_000);
        let sent = Body {
            sent_bytes: 200_000,
            ..ended
        };
        assert_eq!(sent.held_bytes(), 65_536);
        let compressed = Body {
            passed_bytes: 60_000,
            encoder_bytes: 1_000,
            ..short
        };
        assert_eq!(compressed.held_bytes(), 65_536 + 10_000 + 10_000 + 1_000);
    }
}
