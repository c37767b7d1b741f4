//! Requests as bytes, prepared before anything is measured, and where an answer ends.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The size of a buffer for a contender's answer, with a margin.
pub const ANSWER_BYTES: usize = 16 * 1024;

/// The requests to one contender, over all connections in turn, and the expected status.
pub struct Calls {
    /// The contender's address.
    pub address: SocketAddr,
    /// The status of each answer.
    pub status: u16,
    requests: Vec<Vec<u8>>,
    next: AtomicUsize,
}

impl Calls {
    /// Keys and paths, each in turn.
    pub fn new(address: SocketAddr, status: u16, keys: &[String], paths: &[String]) -> Calls {
        let request = |number: usize| {
            let (path, key) = (&paths[number % paths.len()], &keys[number % keys.len()]);
            format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nX-API-Key: {key}\r\n\r\n")
        };
        let requests = (0..keys.len().max(paths.len()))
            .map(|number| request(number).into_bytes())
            .collect();
        Calls {
            address,
            status,
            requests,
            next: AtomicUsize::new(0),
        }
    }

    /// The next request.
    pub fn next(&self) -> &[u8] {
        &self.requests[self.next.fetch_add(1, Ordering::Relaxed) % self.requests.len()]
    }

    /// Whether each request was sent.
    pub fn are_all_sent(&self) -> bool {
        self.next.load(Ordering::Relaxed) >= self.requests.len()
    }

    /// Whether these bytes are a whole answer.
    ///
    /// # Panics
    /// If the answer is not the expected one, or there are more than one.
    pub fn answered(&self, bytes: &[u8]) -> bool {
        let Some(body) = memchr::memmem::find(bytes, b"\r\n\r\n").map(|end| end + 4) else {
            return false;
        };
        let head = &bytes[..body];
        let shown = || String::from_utf8_lossy(head);
        let status = head
            .get(9..12)
            .and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
        assert_eq!(status, Some(self.status), "{}: {}", self.address, shown());
        let whole = body + length(head).unwrap_or_else(|| panic!("no length: {}", shown()));
        assert!(bytes.len() <= whole, "more than an answer: {}", shown());
        bytes.len() == whole
    }
}

fn length(head: &[u8]) -> Option<usize> {
    const NAME: &[u8] = b"content-length:";
    let line = head
        .split(|byte| *byte == b'\n')
        .find(|line| line.len() > NAME.len() && line[..NAME.len()].eq_ignore_ascii_case(NAME))?;
    std::str::from_utf8(&line[NAME.len()..])
        .ok()?
        .trim()
        .parse()
        .ok()
}
