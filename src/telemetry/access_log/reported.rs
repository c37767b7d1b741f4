//! A destination whose failures are reported in the diagnostic log: the metric of lost lines has no reason.

use std::io::{self, ErrorKind, Write};
use std::time::Instant;

use crate::policy::failure_log::FailureLog;

/// A destination that reports when it fails and when it works again.
pub struct Reported<W> {
    to: W,
    /// Its name for operators.
    name: String,
    log: FailureLog,
}

impl<W: Write> Reported<W> {
    /// Writes to `to`, which is reported under `name`.
    pub fn new(to: W, name: String) -> Reported<W> {
        Reported {
            to,
            name,
            log: FailureLog::default(),
        }
    }
}

impl<W: Write> Write for Reported<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.to.write(bytes);
        match &written {
            Ok(0) => self.failed(&ErrorKind::WriteZero.into()),
            Ok(length) if *length == bytes.len() && self.log.succeeded() => {
                tracing::info!(destination = self.name, "the access log is written again");
            }
            // The next write shows why the rest did not fit.
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => self.failed(error),
        }
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

impl<W> Reported<W> {
    fn failed(&mut self, error: &io::Error) {
        if self.log.failed(Instant::now()) {
            tracing::error!(destination = self.name, %error, "the access log cannot be written: its lines are lost until it can");
        }
    }
}
