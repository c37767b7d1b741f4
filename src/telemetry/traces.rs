//! Spans, and the queue in which they wait to be exported.
//!
//! A request never waits for the queue: spans that do not fit are dropped, and the caller counts them. Spans are made from the same
//! facts as the access log, never from a key, a header's value or a path.

use jiff::Timestamp;
use tokio::sync::mpsc;

pub mod otlp;

/// The most requests whose spans may wait: some megabytes.
pub const WAITING_MAX: usize = 2_048;

/// The kind of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanKind {
    /// A request of a client.
    Server,
    /// A step of the gateway.
    Internal,
    /// A request to an upstream.
    Client,
}

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A text.
    Text(String),
    /// A number.
    Number(i64),
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::Text(text.to_owned())
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Value {
        Value::Number(number)
    }
}

/// A finished span.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    /// The trace id.
    pub trace_id: u128,
    /// The span id, not 0.
    pub id: u64,
    /// The id of the parent span.
    pub parent: Option<u64>,
    /// The name, from a fixed set: the gateway's words, methods and configured patterns.
    pub name: String,
    /// The kind.
    pub kind: SpanKind,
    /// The beginning.
    pub began: Timestamp,
    /// The end.
    pub ended: Timestamp,
    /// Attributes, with OpenTelemetry's names if there is one.
    pub attributes: Vec<(&'static str, Value)>,
    /// Whether the request or step failed.
    pub is_failed: bool,
}

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
