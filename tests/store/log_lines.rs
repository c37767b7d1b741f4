//! What the stores of this process log, for the tests that promise a line.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, OnceLock};

use tracing::subscriber::DefaultGuard;
use tracing_subscriber::util::SubscriberInitExt;

/// All lines since the first test that asked.
#[derive(Clone, Default)]
pub struct LogLines(Arc<Mutex<Vec<u8>>>);

/// Begins to collect; tests that run at the same time log into the same, so what is looked for must be the test's own.
pub fn log_lines() -> LogLines {
    static LINES: OnceLock<LogLines> = OnceLock::new();
    let lines = LINES.get_or_init(|| {
        let lines = LogLines::default();
        let writer = lines.clone();
        tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .init();
        lines
    });
    lines.clone()
}

/// Collects what this thread logs until the guard is dropped: all of a test whose runtime has no other thread.
pub fn lines_of_this_thread() -> (LogLines, DefaultGuard) {
    let lines = LogLines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || writer.clone());
    (lines, subscriber.set_default())
}

impl LogLines {
    /// How many lines have all these parts.
    pub fn with(&self, parts: &[&str]) -> usize {
        let bytes = self.0.lock().unwrap().clone();
        let text = String::from_utf8_lossy(&bytes);
        let has_all = |line: &&str| parts.iter().all(|part| line.contains(part));
        text.lines().filter(has_all).count()
    }
}

impl Write for LogLines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
