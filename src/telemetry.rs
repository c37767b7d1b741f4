//! Telemetry for operators: metric families and the last hour of them, the access log, the diagnostic log, spans.
//!
//! Labels are names from the configuration and fixed words, never values from a client: no key, path, address or header value
//! is a label. The access log has the key id, never the key.

pub mod access_log;
pub mod diagnostics;
pub mod handshake_failure;
pub mod history;
pub mod limit_hits;
mod line_queue;
pub mod metrics;
pub mod reading;
pub mod traces;
