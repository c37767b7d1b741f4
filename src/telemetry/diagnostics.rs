//! The diagnostic log: what happened to the gateway itself, on standard error.
//!
//! One line per event, JSON for programs or text for people. Requests are not logged here: they have the access log.

use std::io;
use std::sync::Once;

use tracing_subscriber::EnvFilter;

/// How lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// One JSON object a line.
    Json,
    /// Text for people.
    Pretty,
}

static INSTALLED: Once = Once::new();

/// Sends the program's and its libraries' events at `level` (`error` to `trace`) and above to standard error. pingora reports broken client
/// connections as errors; they are not ours to act on and are kept out. A second call changes nothing.
pub fn install(level: &str, format: Format) {
    INSTALLED.call_once(|| {
        let filter = EnvFilter::new(format!(
            "{level},pingora_core=off,pingora_proxy=off,h2=off,rustls=off"
        ));
        let builder = tracing_subscriber::fmt()
            .with_env_filter(filter)
            // A line that cannot be written (a full disk) is lost. Saying so on standard error would fail too, and that panics
            // in whichever task had something to log: the store's, for one, would never connect again.
            .log_internal_errors(false)
            .with_writer(io::stderr);
        // Fails only where a subscriber is installed already, as in a test that brings its own.
        let _ = match format {
            Format::Json => builder.json().flatten_event(true).try_init(),
            Format::Pretty => builder.try_init(),
        };
    });
}
