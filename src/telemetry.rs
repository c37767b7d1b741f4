//! What the gateway tells its operators: metric families, the access log, spans.
//!
//! Labels and fields come from the configuration and from fixed words, never from a client: no key, path, address or
//! header value is ever a label, and the access log holds the key id, never the key.

pub mod access_log;
pub mod diagnostics;
pub mod history;
pub mod metrics;
pub mod reading;
pub mod traces;
