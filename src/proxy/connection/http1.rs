//! What of an HTTP/1 connection pingora may read yet.
//!
//! pingora gets a head when it is whole and can be read in one way only, then as many bytes as belong to its body, then
//! nothing until it asks for the next head. While it answers a request it looks out for a client that hangs up, one byte
//! at a time: requests that were sent ahead stay hidden from that look, and are served in turn.

use std::time::Duration;

use bytes::BytesMut;
use tokio::time::Instant;

use super::BodyFault;
use crate::policy::http1::HeadBounds;
use crate::policy::http1::body::{BodyFault as Broken, BodyReader, ChunkLimits};
use crate::policy::http1::request::RequestReader;
use crate::policy::rejection::Rejection;

/// Bytes that a client may send ahead while a request is answered; more waits in the system's buffers.
const AHEAD_BYTES_MAX: usize = 8 * 1024;

/// How long a client may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// For a whole head from its first byte, and for the first one from the connection's start.
    pub head: Duration,
    /// For a body.
    pub body: Duration,
    /// Between two requests.
    pub idle: Duration,
}

/// Where a connection is.
#[derive(Debug)]
enum Stage {
    /// Before the first byte of a head.
    Between { deadline: Instant, whose: Idle },
    /// In a head.
    Head {
        head: RequestReader,
        deadline: Instant,
    },
    /// In a request: so many bytes of it are pingora's to read.
    Passing {
        ready: usize,
        body: BodyReader,
        deadline: Instant,
    },
}

/// What a connection that says nothing waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Idle {
    First,
    Next,
}

/// Who reads, as far as the size of his buffer tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// Looks out for a client that hangs up.
    Lookout,
    /// Wants bytes.
    Request,
}

/// What the guard is to do for a reader.
#[derive(Debug)]
pub enum Step {
    /// Hand over at most so many of the unread bytes.
    HandOver(usize),
    /// Get more bytes, until the deadline.
    Read {
        /// When it is too late.
        until: Instant,
    },
    /// Leave bytes where they are: nothing of them is for this reader.
    Hold,
    /// Answer with this refusal and close.
    Refuse(Rejection),
    /// End: the body cannot be read on.
    Fail(BodyFault),
}

/// What becomes of a deadline that has passed.
#[derive(Debug)]
pub enum Late {
    /// Close without a word; the limit's name in metrics.
    Close(&'static str),
    /// Answer with this refusal and close; the limit's name in metrics.
    Refuse(Rejection, &'static str),
    /// The body is late.
    Fail(BodyFault),
}

/// The reading side of an HTTP/1 connection.
#[derive(Debug)]
pub struct Http1 {
    stage: Stage,
    bounds: HeadBounds,
    deadlines: Deadlines,
    requests: u64,
    /// Whether something was written since the last request was read.
    answered: bool,
}

impl Http1 {
    /// A connection that began at `start`.
    pub fn new(bounds: HeadBounds, deadlines: Deadlines, start: Instant) -> Http1 {
        Http1 {
            stage: Stage::Between {
                deadline: start + deadlines.head,
                whose: Idle::First,
            },
            bounds,
            deadlines,
            requests: 0,
            answered: false,
        }
    }

    /// Requests so far.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// Whether no request is under way as far as the client's bytes tell.
    pub fn is_between(&self) -> bool {
        matches!(self.stage, Stage::Between { .. })
    }

    /// What to do for `reader` with what is unread.
    pub fn step(&mut self, reader: Reader, unread: &mut BytesMut, now: Instant) -> Step {
        if reader == Reader::Request {
            self.begin_idle(now);
        }
        loop {
            match &mut self.stage {
                Stage::Between { deadline, .. } => {
                    if reader == Reader::Lookout {
                        // While a request is answered only upstreams have deadlines.
                        return match unread.len() {
                            0..AHEAD_BYTES_MAX => Step::Read { until: now + FAR },
                            _ => Step::Hold,
                        };
                    }
                    if unread.is_empty() {
                        return Step::Read { until: *deadline };
                    }
                    self.stage = Stage::Head {
                        head: RequestReader::default(),
                        deadline: now + self.deadlines.head,
                    };
                }
                Stage::Head { head, deadline } => match head.read(unread, &self.bounds) {
                    Ok(None) => return Step::Read { until: *deadline },
                    Err(rejection) => return Step::Refuse(rejection),
                    Ok(Some(head)) => {
                        let (start, end) = (head.start(), head.end());
                        let head_bytes = match head.rewritten(unread) {
                            None => {
                                let _ = unread.split_to(start);
                                end - start
                            }
                            Some(head) => {
                                let mut anew = BytesMut::from(head.as_slice());
                                anew.extend_from_slice(unread.get(end..).unwrap_or_default());
                                *unread = anew;
                                head.len()
                            }
                        };
                        self.requests += 1;
                        self.stage = Stage::Passing {
                            ready: head_bytes,
                            body: BodyReader::of_request(head.framing(), &ChunkLimits::STANDARD),
                            deadline: now + self.deadlines.body,
                        };
                    }
                },
                Stage::Passing {
                    ready,
                    body,
                    deadline,
                } => {
                    if *ready > 0 {
                        return Step::HandOver(*ready);
                    }
                    if body.is_done() {
                        let deadline = now + self.deadlines.idle;
                        self.stage = Stage::Between {
                            deadline,
                            whose: Idle::Next,
                        };
                        continue;
                    }
                    match taken(body, unread) {
                        // Of trailers pingora gets all or nothing.
                        Ok(0) if !body.is_done() => return Step::Read { until: *deadline },
                        Ok(bytes) => *ready = bytes,
                        Err(_) => return Step::Fail(BodyFault::Framing),
                    }
                }
            }
        }
    }

    /// Notes that so many bytes were handed over.
    pub fn handed_over(&mut self, bytes: usize) {
        if let Stage::Passing { ready, .. } = &mut self.stage {
            *ready = ready.saturating_sub(bytes);
        }
    }

    /// Notes that something was written.
    pub fn note_answer(&mut self) {
        self.answered = true;
    }

    /// The next request is waited for: if the last one has been answered since, the time between two begins now.
    fn begin_idle(&mut self, now: Instant) {
        if let Stage::Between {
            deadline,
            whose: Idle::Next,
        } = &mut self.stage
            && std::mem::take(&mut self.answered)
        {
            *deadline = now + self.deadlines.idle;
        }
    }

    /// For how long the present head has been coming.
    pub fn waited(&self, now: Instant) -> Duration {
        match &self.stage {
            Stage::Head { deadline, .. } => {
                let begun = *deadline - self.deadlines.head;
                now.saturating_duration_since(begun)
            }
            Stage::Between { .. } | Stage::Passing { .. } => Duration::ZERO,
        }
    }

    /// What becomes of the deadline of the last step.
    pub fn late(&self) -> Late {
        let late = || Rejection::BadRequest(crate::policy::rejection::Malformed::Late);
        match &self.stage {
            Stage::Between {
                whose: Idle::First, ..
            } => Late::Close("request_head"),
            Stage::Between {
                whose: Idle::Next, ..
            } => Late::Close("keepalive_idle"),
            Stage::Head { .. } => Late::Refuse(late(), "request_head"),
            Stage::Passing { .. } => Late::Fail(BodyFault::Late),
        }
    }
}

/// How much of what is unread belongs to a body.
fn taken(body: &mut BodyReader, unread: &[u8]) -> Result<usize, Broken> {
    let mut bytes = 0;
    loop {
        let taken = body.read(unread.get(bytes..).unwrap_or_default())?;
        bytes += taken.bytes;
        if taken.data.is_empty() {
            return Ok(bytes);
        }
    }
}

/// As good as never; far beyond every other deadline.
const FAR: Duration = Duration::from_secs(24 * 3_600);

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: HeadBounds = HeadBounds {
        target_bytes_max: 64,
        header_bytes_max: 256,
        header_count_max: 4,
    };
    const DEADLINES: Deadlines = Deadlines {
        head: Duration::from_secs(1),
        body: Duration::from_secs(2),
        idle: Duration::from_secs(3),
    };

    /// Hands over all it may to one reader, and says what the next step is.
    fn read(http1: &mut Http1, reader: Reader, unread: &mut BytesMut) -> (Vec<u8>, Step) {
        let mut read = Vec::new();
        loop {
            match http1.step(reader, unread, Instant::now()) {
                Step::HandOver(bytes) => {
                    read.extend_from_slice(&unread.split_to(bytes));
                    http1.handed_over(bytes);
                }
                step => return (read, step),
            }
        }
    }

    #[test]
    fn a_request_is_handed_over_to_its_last_byte_and_the_next_one_is_hidden_from_the_lookout() {
        let first = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc";
        let second = b"GET /b HTTP/1.1\r\nHost: h\r\n\r\n";
        let mut unread = BytesMut::from([&first[..], second].concat().as_slice());
        let mut http1 = Http1::new(BOUNDS, DEADLINES, Instant::now());
        let mut got = Vec::new();
        while got.len() < first.len() {
            let Step::HandOver(bytes) = http1.step(Reader::Request, &mut unread, Instant::now())
            else {
                panic!("bytes");
            };
            got.extend_from_slice(&unread.split_to(bytes));
            http1.handed_over(bytes);
        }
        assert_eq!(got, first);
        let (got, step) = read(&mut http1, Reader::Lookout, &mut unread);
        assert!(
            got.is_empty() && matches!(step, Step::Read { .. }),
            "{step:?}"
        );
        unread.extend_from_slice(&[b'x'; AHEAD_BYTES_MAX]);
        let (got, step) = read(&mut http1, Reader::Lookout, &mut unread);
        assert!(got.is_empty() && matches!(step, Step::Hold), "{step:?}");
        unread.truncate(second.len());
        let (got, _) = read(&mut http1, Reader::Request, &mut unread);
        assert_eq!(got, second);
        assert_eq!(http1.requests(), 2);
    }

    #[test]
    fn not_one_byte_of_a_refused_head_is_handed_over() {
        let mut http1 = Http1::new(BOUNDS, DEADLINES, Instant::now());
        let mut unread = BytesMut::from(&b"GET / HTTP/1.1\r\nHost: h\r\n"[..]);
        let (got, step) = read(&mut http1, Reader::Request, &mut unread);
        assert!(
            got.is_empty() && matches!(step, Step::Read { .. }),
            "{step:?}"
        );
        unread.extend_from_slice(b" folded: x\r\n\r\n");
        let (got, step) = read(&mut http1, Reader::Request, &mut unread);
        assert!(
            got.is_empty() && matches!(step, Step::Refuse(Rejection::BadRequest(_))),
            "{step:?}"
        );
    }

    #[test]
    fn a_broken_body_ends_at_its_first_wrong_byte() {
        let mut http1 = Http1::new(BOUNDS, DEADLINES, Instant::now());
        let head = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
        let mut unread = BytesMut::from(&head[..]);
        let (got, _) = read(&mut http1, Reader::Request, &mut unread);
        assert_eq!(got, head);
        unread.extend_from_slice(b"3\r\nabc\r\n");
        let (got, _) = read(&mut http1, Reader::Request, &mut unread);
        assert_eq!(got, b"3\r\nabc\r\n");
        unread.extend_from_slice(b"0\n\n");
        let (_, step) = read(&mut http1, Reader::Request, &mut unread);
        assert!(matches!(step, Step::Fail(BodyFault::Framing)), "{step:?}");
    }
}
