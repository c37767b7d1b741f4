//! One JSON line for each request, written by a thread of its own.
//!
//! A reader of the log that stands still must not make the service stand still: lines that find the queue full are counted and
//! dropped, and the count is written when there is room again. The log holds who asked (`X-Consumer-Id`, set by the gateway) and
//! under which `X-Request-Id`, never a query string or any other header: this service does not look at API keys.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use axum::body::HttpBody;
use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::middleware::Next;
use axum::response::Response;
use jiff::Timestamp;
use serde::Serialize;

/// Lines that wait for the writer; about a megabyte.
const LINES_WAITING_MAX: usize = 4_096;
/// Characters kept of a header that a client chose.
const HEADER_CHARACTERS_MAX: usize = 128;
/// Characters kept of a path.
const PATH_CHARACTERS_MAX: usize = 256;

#[derive(Serialize)]
struct Line<'a> {
    time: String,
    method: &'a str,
    path: String,
    status: u16,
    body_bytes: Option<u64>,
    duration_us: u64,
    request_id: Option<String>,
    consumer_id: Option<String>,
    consumer_tier: Option<String>,
}

/// The sending end of the log; clones share it.
#[derive(Debug, Clone)]
pub struct AccessLog {
    lines: SyncSender<String>,
    dropped: Arc<AtomicU64>,
}

/// The writing end of the log.
#[derive(Debug)]
pub struct LogWriter {
    finished: Receiver<()>,
}

impl AccessLog {
    /// Starts a thread that writes lines to `out` until every clone of the log is dropped.
    pub fn start(mut out: impl Write + Send + 'static) -> (Self, LogWriter) {
        let (lines, waiting) = sync_channel::<String>(LINES_WAITING_MAX);
        let (finish, finished) = sync_channel(1);
        let dropped = Arc::new(AtomicU64::new(0));
        let log = Self {
            lines,
            dropped: Arc::clone(&dropped),
        };
        std::thread::spawn(move || {
            for mut line in waiting {
                let lost = dropped.swap(0, Ordering::Relaxed);
                if lost > 0 {
                    line.push_str(&format!("{{\"log_lines_dropped\":{lost}}}\n"));
                }
                // There is no other place to report that the log cannot be written.
                let _ = out.write_all(line.as_bytes());
            }
            let _ = out.flush();
            let _ = finish.send(());
        });
        (log, LogWriter { finished })
    }

    fn write(&self, line: &Line<'_>) {
        let Ok(mut text) = serde_json::to_string(line) else {
            return;
        };
        text.push('\n');
        if self.lines.try_send(text).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl LogWriter {
    /// Waits until everything is written, at most `patience`. Returns at once only after every clone of the log is dropped.
    pub fn finish(self, patience: Duration) {
        let _ = self.finished.recv_timeout(patience);
    }
}

/// Middleware: answers the request, then logs it.
pub async fn record(State(log): State<AccessLog>, request: Request, next: Next) -> Response {
    let started = Instant::now();
    let method = request.method().clone();
    let path = cut(request.uri().path(), PATH_CHARACTERS_MAX);
    let request_id = header(request.headers(), "x-request-id");
    let consumer_id = header(request.headers(), "x-consumer-id");
    let consumer_tier = header(request.headers(), "x-consumer-tier");
    let response = next.run(request).await;
    log.write(&Line {
        time: Timestamp::now().to_string(),
        method: method.as_str(),
        path,
        status: response.status().as_u16(),
        body_bytes: response.body().size_hint().exact(),
        duration_us: u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX),
        request_id,
        consumer_id,
        consumer_tier,
    });
    response
}

fn header(headers: &HeaderMap, name: &str) -> Option<String> {
    let value = headers.get(name)?.to_str().ok()?;
    Some(cut(value, HEADER_CHARACTERS_MAX))
}

fn cut(text: &str, characters_max: usize) -> String {
    text.chars().take(characters_max).collect()
}
