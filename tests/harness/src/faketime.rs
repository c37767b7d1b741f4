//! A clock that tests can set, for the processes under test: libfaketime, preloaded.
//!
//! The fake time is the real one plus an offset in a file that is read with every reading of the clock, so all
//! processes agree and jump together. Monotonic clocks, hence all deadlines, stay real.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const LIBRARIES: [&str; 3] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/faketime/libfaketimeMT.so.1",
];

/// Seconds of a day.
const DAY_SECONDS: u64 = 86_400;

/// A settable clock; clones set the same one.
#[derive(Debug, Clone)]
pub struct Faketime {
    file: PathBuf,
    library: &'static str,
}

impl Faketime {
    /// A clock that begins at the real time; its file is made in `directory`.
    ///
    /// # Panics
    /// If libfaketime is not installed.
    pub fn new(directory: &Path) -> Faketime {
        let library = LIBRARIES
            .into_iter()
            .find(|path| Path::new(path).exists())
            .expect("libfaketimeMT.so.1 is missing: apt-get install faketime");
        let clock = Faketime {
            file: directory.join("faketime"),
            library,
        };
        clock.set_offset(0.0);
        clock
    }

    /// Sets the clock `seconds` ahead of the real one (behind, if negative).
    pub fn set_offset(&self, seconds: f64) {
        // Renamed into place, so that no process reads half a number.
        let next = self.file.with_extension("next");
        std::fs::write(&next, format!("{seconds:+.3}\n")).expect("the clock's file");
        std::fs::rename(&next, &self.file).expect("the clock's file");
    }

    /// Sets the clock to `before` ahead of the next midnight of UTC, and returns that midnight in Unix seconds.
    pub fn set_before_midnight(&self, before: Duration) -> u64 {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .expect("a time after 1970")
            .as_secs_f64();
        let midnight = (now as u64 / DAY_SECONDS + 1) * DAY_SECONDS;
        // Rounded up to what is written: never before the instant.
        let offset = midnight as f64 - before.as_secs_f64() - now;
        self.set_offset((offset * 1e3).ceil() / 1e3);
        midnight
    }

    /// Puts `command` under this clock.
    pub fn wrap(&self, command: &mut Command) {
        // Debian's redis-server uses jemalloc, which reads the clock while it starts, and faketime allocates while it
        // starts: glibc's allocator put before jemalloc ends that circle.
        command
            .env("LD_PRELOAD", format!("{} libc.so.6", self.library))
            .env("FAKETIME_TIMESTAMP_FILE", &self.file)
            .env("FAKETIME_NO_CACHE", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    }
}
