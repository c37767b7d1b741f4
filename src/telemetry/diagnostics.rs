//! The diagnostic log: events of the gateway itself, on standard error.
//!
//! One line per event, as JSON for programs or text for people. Requests are in the access log instead.

use std::io;
use std::sync::OnceLock;

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, reload};

use crate::policy::words::words;

words! {
    /// The format of lines.
    pub enum Format {
        /// One JSON object per line.
        Json = "json",
        /// Text for people.
        Pretty = "pretty",
    }
}

/// The writer of one format.
type FormatLayer = Box<dyn Layer<Registry> + Send + Sync>;
/// The filter of lines, and their writer.
type Handles = (
    reload::Handle<
        EnvFilter,
        tracing_subscriber::layer::Layered<reload::Layer<FormatLayer, Registry>, Registry>,
    >,
    reload::Handle<FormatLayer, Registry>,
);

static HANDLES: OnceLock<Handles> = OnceLock::new();

/// Writes events of the program and its libraries at `level` (`error` to `trace`) and above to standard error. pingora reports broken
/// client connections as errors; these are filtered out, because operators cannot act on them. A later call changes level and
/// format; events at that moment may be written either way.
pub fn install(level: &str, format: Format) {
    let mut first = false;
    let (filter, writer) = HANDLES.get_or_init(|| {
        first = true;
        let (writer, writer_handle) = reload::Layer::new(writer(format));
        let (filter, filter_handle) = reload::Layer::new(filter(level));
        // Fails only if a subscriber is already installed, as in a test with its own.
        let _ = tracing_subscriber::registry()
            .with(writer)
            .with(filter)
            .try_init();
        (filter_handle, writer_handle)
    });
    if !first {
        // Fails only if the subscriber was dropped, which never happens.
        let _ = writer.reload(self::writer(format));
        let _ = filter.reload(self::filter(level));
    }
}

fn filter(level: &str) -> EnvFilter {
    EnvFilter::new(format!(
        "{level},pingora_core=off,pingora_proxy=off,h2=off,rustls=off"
    ))
}

fn writer(format: Format) -> FormatLayer {
    let layer = tracing_subscriber::fmt::layer()
        // A line that cannot be written (a full disk) is lost. The default is to print that to standard error, which fails too and
        // panics in the task that logs: the store's task, for example, would never connect again.
        .log_internal_errors(false)
        .with_writer(io::stderr);
    match format {
        Format::Json => Box::new(layer.json().flatten_event(true)),
        Format::Pretty => Box::new(layer),
    }
}
