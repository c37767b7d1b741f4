//! The access log: one JSON object per line and request, written by its own thread.
//!
//! Writing never delays a request: lines are put into a bounded queue, and lines that do not fit are dropped and counted. JSON
//! escaping makes every value from a client harmless. The key itself is never logged.

use std::cell::RefCell;
use std::fmt;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use jiff::Timestamp;
use prometheus::IntCounter;

use self::file::NamedFile;
use super::line_queue::{LineQueue, unbuffered};
use crate::policy::failure_log::FailureLog;

mod file;
mod line;

/// The bytes that a thread's buffer keeps between two lines.
const LINE_BYTES: usize = 1_024;
/// How long lines gather before they are written: how much of its log a killed process may lose.
const GATHER: Duration = Duration::from_millis(25);

thread_local! {
    /// A thread's own buffer for a line, which is then put into the queue as a whole.
    static LINE: RefCell<Vec<u8>> = RefCell::new(Vec::with_capacity(LINE_BYTES));
}

/// The destination of lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// A file that is appended to, and created again after it was moved away.
    File(PathBuf),
    /// Nowhere.
    Off,
}

/// As written in the configuration.
impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Destination::Stdout => f.write_str("stdout"),
            Destination::Stderr => f.write_str("stderr"),
            Destination::Off => f.write_str("off"),
            Destination::File(path) => path.display().fmt(f),
        }
    }
}

/// One answered request.
#[derive(Debug, Default)]
pub struct Line<'a> {
    /// When the request's header was read.
    pub time: Timestamp,
    /// The request id that the client and the upstream received.
    pub request_id: &'a str,
    /// The client's address, with its port if known.
    pub client: Option<&'a str>,
    /// `HTTP/1.0`, `HTTP/1.1` or `HTTP/2`.
    pub protocol: &'static str,
    /// The method.
    pub method: &'a str,
    /// The path without its query.
    pub path: &'a str,
    /// The endpoint's pattern.
    pub endpoint: Option<&'a str>,
    /// The public id of the key.
    pub key_id: Option<&'a str>,
    /// The key's tier.
    pub tier: Option<&'a str>,
    /// The status sent to the client; 0 if none was.
    pub status: u16,
    /// `served`, an error code, `maintenance`, `cut` (the upstream broke off, or the gateway stopped), `client_closed` or `redirected` (to
    /// HTTPS).
    pub outcome: &'a str,
    /// The quota or rate that refused the request, for a 429.
    pub policy: Option<&'static str>,
    /// The check that an enforced tier would have refused: `tier`, `burst`, `concurrent` or `daily`.
    pub would_refuse: Option<&'static str>,
    /// The percentage of such requests that are logged, if not all are.
    pub sample_percent: Option<u8>,
    /// Units charged.
    pub units: u32,
    /// Whether they were refunded.
    pub refunded: bool,
    /// The time from the request's header to the end of the answer.
    pub duration_ms: Duration,
    /// The part of it spent waiting for the store.
    pub store_ms: Duration,
    /// The time from forwarding to the upstream's header.
    pub upstream_ms: Option<Duration>,
    /// Body bytes sent to the client.
    pub bytes_sent: usize,
    /// Why a request was not served, or not completely; for a redirect, that the request had a key.
    pub cause: Option<&'a str>,
}

/// The log. Dropping it waits (at most a second) until the queued lines are written.
pub struct AccessLog {
    sink: ArcSwapOption<Sink>,
}

/// An open destination. Dropping it waits (at most a second) until its queued lines are written: not in a task.
pub struct Sink(LineQueue);

impl Sink {
    /// Opens the destination, whose lost lines are added to `dropped_lines`; `None` for [`Destination::Off`].
    ///
    /// # Errors
    /// If the file cannot be opened for appending, or no thread can be started.
    pub fn open(
        destination: &Destination,
        dropped_lines: IntCounter,
    ) -> std::io::Result<Option<Sink>> {
        let name = destination.to_string();
        let sink: Box<dyn Write + Send> = match destination {
            Destination::Stdout => Box::new(unbuffered(std::io::stdout())?),
            Destination::Stderr => Box::new(unbuffered(std::io::stderr())?),
            Destination::File(path) => Box::new(NamedFile::open(path)?),
            Destination::Off => return Ok(None),
        };
        let mut log = FailureLog::default();
        // The metric of lost lines has no reason.
        let note = move |written| match written {
            Err(error) if log.failed(Instant::now()) => {
                tracing::error!(destination = name, %error, "the access log cannot be written: its lines are lost until it can");
            }
            Ok(()) if log.succeeded() => {
                tracing::info!(destination = name, "the access log is written again");
            }
            Ok(()) | Err(_) => {}
        };
        let queue = LineQueue::new("access-log", sink, note, GATHER, dropped_lines)?;
        Ok(Some(Sink(queue)))
    }
}

impl AccessLog {
    /// A log that writes to `sink`.
    pub fn new(sink: Option<Sink>) -> AccessLog {
        AccessLog {
            sink: ArcSwapOption::from_pointee(sink),
        }
    }

    /// Queues a line. Never waits.
    pub fn write(&self, line: &Line<'_>) {
        let sink = self.sink.load();
        let Some(Sink(queue)) = sink.as_deref() else {
            return;
        };
        LINE.with_borrow_mut(|text| {
            text.clear();
            line.write(text);
            text.push(b'\n');
            queue.put(text);
            // The buffer does not keep the size of a very long path.
            text.shrink_to(LINE_BYTES);
        });
    }

    /// Writes to `sink` from now on. Returns the previous sink, whose queued lines are still written; its last owner waits for that
    /// when dropping it.
    pub fn redirect(&self, sink: Option<Sink>) -> Option<Arc<Sink>> {
        self.sink.swap(sink.map(Arc::new))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn open(file: &Path) -> Option<Sink> {
        let lost = IntCounter::new("lost", "lost").unwrap();
        Sink::open(&Destination::File(file.to_owned()), lost).unwrap()
    }

    pub(super) fn line(path: &str) -> Line<'_> {
        Line {
            request_id: "r",
            protocol: "HTTP/1.1",
            method: "GET",
            path,
            status: 401,
            outcome: "INVALID_API_KEY",
            duration_ms: Duration::from_nanos(1_234_567),
            ..Line::default()
        }
    }

    #[test]
    fn a_hostile_value_stays_inside_its_line() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("access.log");
        let log = AccessLog::new(open(&file));
        log.write(&line("/a\"}\n{\"forged\":1}\u{1b}[31m"));
        log.write(&line("/b"));
        drop(log);
        let text = std::fs::read_to_string(&file).unwrap();
        let lines: Vec<serde_json::Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0]["path"], "/a\"}\n{\"forged\":1}\u{1b}[31m");
        assert_eq!(lines[1]["duration_ms"], 1.235);
        assert!(!text.contains('\u{1b}'));
    }

    #[test]
    fn after_a_redirection_lines_go_elsewhere_and_none_is_lost() {
        let directory = tempfile::tempdir().unwrap();
        let [one, other] = ["one.log", "other.log"].map(|name| directory.path().join(name));
        let log = AccessLog::new(open(&one));
        log.write(&line("/a"));
        drop(log.redirect(open(&other)));
        log.write(&line("/b"));
        drop(log.redirect(None));
        log.write(&line("/c"));
        let text = [one, other].map(|file| std::fs::read_to_string(file).unwrap());
        assert!(text[0].contains("/a") && !text[0].contains("/b"));
        assert!(text[1].contains("/b") && !text[1].contains("/a"));
    }
}
