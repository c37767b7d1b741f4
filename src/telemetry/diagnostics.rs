//! The diagnostic log: what happened to the gateway itself, on standard error.
//!
//! One line per event, JSON for programs or text for people. Requests are not logged here: they have the access log.

use std::io;
use std::sync::OnceLock;

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, reload};

/// How lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// One JSON object a line.
    Json,
    /// Text for people.
    Pretty,
}

/// What writes lines in one format.
type Writer = Box<dyn Layer<Registry> + Send + Sync>;
/// What lets lines through, and what writes them.
type Handles = (
    reload::Handle<
        EnvFilter,
        tracing_subscriber::layer::Layered<reload::Layer<Writer, Registry>, Registry>,
    >,
    reload::Handle<Writer, Registry>,
);

static HANDLES: OnceLock<Handles> = OnceLock::new();

/// Sends the program's and its libraries' events at `level` (`error` to `trace`) and above to standard error. pingora reports broken client
/// connections as errors; they are not ours to act on and are kept out. A later call changes level and format; events of the
/// very moment may be written either way.
pub fn install(level: &str, format: Format) {
    let mut first = false;
    let (filter, writer) = HANDLES.get_or_init(|| {
        first = true;
        let (writer, writer_handle) = reload::Layer::new(writer(format));
        let (filter, filter_handle) = reload::Layer::new(filter(level));
        // Fails only where a subscriber is installed already, as in a test that brings its own.
        let _ = tracing_subscriber::registry()
            .with(writer)
            .with(filter)
            .try_init();
        (filter_handle, writer_handle)
    });
    if !first {
        // Fails only where the subscriber is gone, and it never goes.
        let _ = writer.reload(self::writer(format));
        let _ = filter.reload(self::filter(level));
    }
}

fn filter(level: &str) -> EnvFilter {
    EnvFilter::new(format!(
        "{level},pingora_core=off,pingora_proxy=off,h2=off,rustls=off"
    ))
}

fn writer(format: Format) -> Writer {
    let layer = tracing_subscriber::fmt::layer()
        // A line that cannot be written (a full disk) is lost. Saying so on standard error would fail too, and that panics
        // in whichever task had something to log: the store's, for one, would never connect again.
        .log_internal_errors(false)
        .with_writer(io::stderr);
    match format {
        Format::Json => Box::new(layer.json().flatten_event(true)),
        Format::Pretty => Box::new(layer),
    }
}
