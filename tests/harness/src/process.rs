//! A child process that never outlives its guard, with its output in files.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// What a failing test prints of each output, in lines and in characters of a line.
const LAST_LINES: usize = 15;
const LINE_WIDTH: usize = 600;

/// A running child. Dropping it kills that process, by its pid.
#[derive(Debug)]
pub struct Process {
    child: Child,
    /// The file of its standard output.
    pub stdout: PathBuf,
    /// The file of its standard error.
    pub stderr: PathBuf,
}

impl Process {
    /// Starts `command` with its output in `NAME.stdout` and `NAME.stderr` of `directory`, appended over restarts.
    pub fn spawn(command: &mut Command, directory: &Path, name: &str) -> std::io::Result<Process> {
        let stdout = directory.join(format!("{name}.stdout"));
        let stderr = directory.join(format!("{name}.stderr"));
        let open = |path: &Path| File::options().create(true).append(true).open(path);
        let child = command
            .stdin(Stdio::null())
            .stdout(open(&stdout)?)
            .stderr(open(&stderr)?)
            .spawn()?;
        Ok(Process {
            child,
            stdout,
            stderr,
        })
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Memory that only the process itself can release; see [`anonymous_bytes`].
    pub fn anonymous_bytes(&self) -> usize {
        anonymous_bytes(self.pid())
    }

    /// Its exit status, if it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Stops it (`SIGSTOP`): sockets stay open, nothing answers.
    pub fn stop(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// Lets it run again (`SIGCONT`).
    pub fn resume(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// Ends it without warning (`SIGKILL`) and waits until it is gone.
    pub fn kill9(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Asks it to end (`SIGTERM`) and does not wait.
    pub fn ask_to_end(&self) {
        self.signal(Signal::SIGTERM);
    }

    /// Asks it to end in the way of other servers (`SIGQUIT`) and does not wait.
    pub fn quit(&self) {
        self.signal(Signal::SIGQUIT);
    }

    /// Asks it to read its configuration again (`SIGHUP`).
    pub fn hang_up(&self) {
        self.signal(Signal::SIGHUP);
    }

    /// Asks it to end (`SIGTERM`); its status, or `None` if it still runs after `deadline`.
    pub fn terminate(&mut self, deadline: Duration) -> Option<ExitStatus> {
        self.ask_to_end();
        self.wait_for_end(deadline)
    }

    /// Its status once it has ended, or `None` if it still runs after `deadline`.
    pub fn wait_for_end(&mut self, deadline: Duration) -> Option<ExitStatus> {
        let end = Instant::now() + deadline;
        while Instant::now() < end {
            if let Some(status) = self.ended() {
                return Some(status);
            }
            std::thread::sleep(crate::POLL_PAUSE);
        }
        None
    }

    /// No write of this process to a file succeeds from now on, as on a full disk; it must ignore `SIGXFSZ`.
    pub fn fill_disk(&self) {
        self.limit_files("0");
    }

    /// Writes succeed again.
    pub fn free_disk(&self) {
        self.limit_files("unlimited");
    }

    fn limit_files(&self, bytes: &str) {
        let done = Command::new("prlimit")
            .args(["--pid", &self.pid().to_string()])
            .arg(format!("--fsize={bytes}:"))
            .status();
        assert!(
            done.is_ok_and(|status| status.success()),
            "prlimit: apt-get install util-linux"
        );
    }

    fn signal(&self, signal: Signal) {
        if let Ok(pid) = i32::try_from(self.child.id()) {
            let _ = kill(Pid::from_raw(pid), signal);
        }
    }

    /// Its output so far, for a failing test's message.
    pub fn output(&self) -> String {
        let read =
            |path| String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned();
        format!(
            "--- stdout\n{}\n--- stderr\n{}",
            read(&self.stdout),
            read(&self.stderr)
        )
    }
}

/// Kills it. In a test that fails, prints how it was and its last lines.
impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let state = self
                .ended()
                .map_or("running".to_owned(), |status| status.to_string());
            let pid = self.pid();
            for path in [&self.stdout, &self.stderr] {
                let output = std::fs::read(path).unwrap_or_default();
                let output = String::from_utf8_lossy(&output);
                let hidden = output.lines().count().saturating_sub(LAST_LINES);
                eprintln!("--- process {pid} ({state}), end of {}:", path.display());
                for line in output.lines().skip(hidden) {
                    eprintln!("{line:.LINE_WIDTH$}");
                }
            }
        }
        self.kill9();
    }
}

/// Memory that only the process with this id can release (resident, anonymous), in bytes; 0 once it has ended.
pub fn anonymous_bytes(pid: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mut lines = status.lines();
    let line = lines.find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kib.and_then(|kib| kib.trim().parse::<usize>().ok())
        .map_or(0, |kib| kib * 1024)
}
