//! Spans, and the queue in which they wait to be exported.
//!
//! A request never waits for the queue: spans that do not fit are dropped, and the caller counts them. Spans are made from the same
//! facts as the access log, never from a key, a header's value or a path.

use tokio::sync::mpsc;

pub mod otlp;

pub use otlp::{Attribute, Span, SpanKind, Status};

/// The most requests whose spans may wait: some megabytes.
pub const WAITING_MAX: usize = 2_048;

/// The queue of spans to be exported.
#[derive(Debug)]
pub struct Tracer(mpsc::Sender<Vec<Span>>);

impl Tracer {
    /// A queue of [`WAITING_MAX`], with its receiver.
    pub fn new() -> (Tracer, mpsc::Receiver<Vec<Span>>) {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        (Tracer(sender), receiver)
    }

    /// Queues the spans of a request. Returns whether there was space. Never waits.
    pub fn leave(&self, spans: Vec<Span>) -> bool {
        self.0.try_send(spans).is_ok()
    }
}
