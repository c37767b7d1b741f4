//! Spans, and the queue in which they wait to be exported.
//!
//! A request never waits for the queue: spans that do not fit are dropped, and the caller counts them. Spans are made from the same
//! facts as the access log, never from a key, a header's value or a path.

pub mod otlp;

pub use otlp::{Attribute, Span, SpanKind, Status};

/// The most requests whose spans may wait: some megabytes.
pub const WAITING_MAX: usize = 2_048;
