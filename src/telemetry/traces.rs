//! Spans, and the queue in which they wait to be exported.
//!
//! A request never waits for it: what does not fit is dropped, and counted by whoever asks. Spans are made of the same facts
//! as the access log: never of a key, a header's value or a path.

use jiff::Timestamp;
use tokio::sync::mpsc;

pub mod otlp;

/// Requests whose spans may wait: some megabytes.
pub const WAITING_MAX: usize = 2_048;

/// What a span is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A request of a client.
    Server,
    /// A step of ours.
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

/// A span that is over.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    /// The trace.
    pub trace_id: u128,
    /// Its id, not 0.
    pub id: u64,
    /// The span that it is part of.
    pub parent: Option<u64>,
    /// Its name, of a fixed set: words of ours, methods and configured patterns.
    pub name: String,
    /// What it is of.
    pub kind: Kind,
    /// When it began.
    pub began: Timestamp,
    /// When it was over.
    pub ended: Timestamp,
    /// Attributes, by OpenTelemetry's names where it has one.
    pub attributes: Vec<(&'static str, Value)>,
    /// Whether what it is of failed.
    pub is_failed: bool,
}

/// Where spans are left to be exported.
#[derive(Debug)]
pub struct Tracer(mpsc::Sender<Vec<Span>>);

impl Tracer {
    /// A queue of [`WAITING_MAX`], with the end that is read.
    pub fn new() -> (Tracer, mpsc::Receiver<Vec<Span>>) {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        (Tracer(sender), receiver)
    }

    /// Leaves the spans of a request; whether there was room. Never waits.
    pub fn leave(&self, spans: Vec<Span>) -> bool {
        self.0.try_send(spans).is_ok()
    }
}
