//! The diagnostic log: events of the gateway itself, on standard error.
//!
//! One line per event, as JSON for programs or text for people. Requests are in the access log instead. Lines are queued, so that a
//! reader who stalls never holds up the gateway, and are written at once by a thread of their own.

use std::io;
use std::sync::{LazyLock, OnceLock};
use std::time::Duration;

use once_cell::sync::OnceCell;
use prometheus::IntCounter;
use tracing::level_filters::{LevelFilter, STATIC_MAX_LEVEL};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, reload};

use super::line_queue::{LineQueue, unbuffered};
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
/// Changes level and format of the installed subscriber.
type Change = Box<dyn Fn(&str, Format) + Send + Sync>;

static CHANGE: OnceLock<Change> = OnceLock::new();
static QUEUE: OnceCell<LineQueue> = OnceCell::new();
static DROPPED_LINES: LazyLock<IntCounter> = LazyLock::new(|| {
    let family = IntCounter::new(
        "touchline_diagnostic_log_dropped_lines_total",
        "Diagnostic log lines lost because they could not be written, or not fast enough",
    );
    family.unwrap_or_else(|error| unreachable!("the name is valid: {error}"))
});

/// The lines that the diagnostic log of this process has lost.
pub fn dropped_lines() -> IntCounter {
    DROPPED_LINES.clone()
}

/// An installed log. Dropping it waits, at most a second, until the queued lines are written.
#[must_use]
pub struct Installed(());

impl Drop for Installed {
    fn drop(&mut self) {
        if let Some(queue) = QUEUE.get() {
            queue.flush();
        }
    }
}

/// Writes events of the program and its libraries at `level` (`error` to `trace`) and above to standard error. pingora, `h2`
/// and `rustls` report each broken connection as an error. These are filtered out: operators cannot act on them, and the gateway counts
/// them.
///
/// # Errors
/// If no thread can be started, or no descriptor is left.
pub fn install(level: &str, format: Format) -> io::Result<Installed> {
    QUEUE.get_or_try_init(|| {
        let (sink, lost) = (Box::new(unbuffered(io::stderr())?), dropped_lines());
        // The log cannot report its own failure.
        LineQueue::new("diagnostic-log", sink, |_| {}, Duration::ZERO, lost)
    })?;
    change(level, format);
    Ok(Installed(()))
}

/// Changes level and format of the installed log; events at that moment may be written either way.
pub fn change(level: &str, format: Format) {
    let change = CHANGE.get_or_init(|| {
        let (writer, writer_handle) = reload::Layer::new(self::writer(format));
        let (filter, filter_handle) = reload::Layer::new(self::filter(level));
        // Fails only if a subscriber is already installed, as in a test with its own.
        let _ = tracing_subscriber::registry()
            .with(writer)
            .with(filter)
            .try_init();
        Box::new(move |level, format| {
            // Fails only if the subscriber was dropped, which never happens.
            let _ = writer_handle.reload(self::writer(format));
            let _ = filter_handle.reload(self::filter(level));
        })
    });
    change(level, format);
}

/// Puts each line, which is written at once, into the queue.
struct Queued;

impl io::Write for Queued {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if let Some(queue) = QUEUE.get() {
            queue.put(line);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A release build contains no event below `debug` (`Cargo.toml`), and the library warns about a filter that asks for one.
fn filter(level: &str) -> EnvFilter {
    let level = level.parse().unwrap_or(LevelFilter::INFO);
    let level = level.min(STATIC_MAX_LEVEL);
    EnvFilter::new(format!("{level},pingora_core=off,h2=off,rustls=off"))
}

fn writer(format: Format) -> FormatLayer {
    let layer = tracing_subscriber::fmt::layer().with_writer(|| Queued);
    match format {
        Format::Json => Box::new(layer.json().flatten_event(true)),
        Format::Pretty => Box::new(layer),
    }
}
