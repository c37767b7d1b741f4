//! The machine under the measurement: the roles of the cores, the resources that a process has used, and a description of the machine.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

/// The contenders' core.
pub const FIRST_CORE: &str = "0";
/// The core of everything else: upstream, Redis, load.
pub const SECOND_CORE: &str = "1";
/// The ticks a second of the kernel's process times: USER_HZ, 100 on every Linux.
const TICK: Duration = Duration::from_millis(10);
const PAGE_BYTES: u64 = 4_096;

/// The CPU time of a process's threads so far, user and system.
pub struct Cpu(BTreeMap<u32, u64>);

impl Cpu {
    /// Reads the times of a process, in nanoseconds. In ticks of 10 ms if the kernel has no `schedstat`.
    pub fn of(pid: u32) -> Cpu {
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        let used = threads.filter_map(|thread| {
            let thread = thread.ok()?;
            let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
            let used = text.split(' ').next()?.parse().ok()?;
            Some((thread.file_name().to_str()?.parse().ok()?, used))
        });
        let used: BTreeMap<u32, u64> = used.collect();
        if used.is_empty() {
            return Cpu([(pid, in_ticks(pid))].into());
        }
        Cpu(used)
    }

    /// The time used since `before`, except by threads that have ended in between.
    pub fn since(&self, before: &Cpu) -> Duration {
        let used = self.0.iter().map(|(id, now)| {
            let before = before.0.get(id).copied().unwrap_or_default();
            now.saturating_sub(before)
        });
        Duration::from_nanos(used.sum())
    }
}

fn in_ticks(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let after_name = text.rsplit(')').next().unwrap();
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    // Fields 14 and 15 of proc(5), of which two precede the name's end.
    let ticks = fields[11..13].iter().map(|text| text.parse::<u64>());
    let ticks: u64 = ticks.map(Result::unwrap).sum();
    ticks * u64::try_from(TICK.as_nanos()).unwrap()
}

/// The resident memory of a process, in MiB.
pub fn resident_mib(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
    let pages: u64 = text.split(' ').nth(1).unwrap().parse().unwrap();
    (pages * PAGE_BYTES) as f64 / f64::from(1 << 20)
}

/// The limit of open files of this process; child processes may raise theirs.
pub fn open_files() -> usize {
    let text = std::fs::read_to_string("/proc/self/limits").unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"));
    let soft = line.unwrap().split_whitespace().next().unwrap();
    soft.parse().unwrap_or(usize::MAX)
}

/// A program on these cores.
pub fn on_cores(cores: &str, program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", cores]).arg(program);
    command
}

/// Moves every thread of a process to a core.
pub fn pin(pid: u32, core: &str) {
    let done = Command::new("taskset")
        .args(["-acp", core, &pid.to_string()])
        .output()
        .unwrap();
    assert!(done.status.success(), "{done:?}");
}

/// Lets this thread sleep to the microsecond: the kernel lets others sleep up to 50 µs longer, to wake several at once.
pub fn sleep_precisely() {
    let thread = std::fs::read_link("/proc/thread-self").unwrap();
    let slack = Path::new("/proc")
        .join(thread.file_name().unwrap())
        .join("timerslack_ns");
    std::fs::write(slack, "1").unwrap();
}

/// The origin of the figures, for their readers: the machine, the day, the versions of the other programs.
pub fn described(tools: &[(&str, &str)]) -> String {
    let processors = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    let models = processors
        .lines()
        .filter_map(|line| line.strip_prefix("model name"));
    let models: Vec<&str> = models
        .map(|model| model.trim_start_matches(['\t', ' ', ':']))
        .collect();
    let mut text = format!(
        "{}, {} cores, Linux {}",
        models.first().unwrap_or(&"a processor"),
        models.len(),
        message("uname", "-r")
    );
    for (tool, flag) in tools {
        // The version is the first word that starts with a figure, behind `nginx/`, `v=` or nothing.
        let message = message(tool, flag);
        let mut words = message.split([' ', '/', '=', '-']);
        let version = words.find(|word| word.starts_with(|first: char| first.is_ascii_digit()));
        let _ = write!(text, ", {tool} {}", version.unwrap_or("unknown"));
    }
    format!("{text}; {}.", message("date", "+%-d %B %Y"))
}

/// The first line of a command's output.
fn message(command: &str, argument: &str) -> String {
    let output = Command::new(command).arg(argument).output();
    let output = output.unwrap_or_else(|error| panic!("{command}: {error}"));
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    text.lines().next().unwrap_or_default().trim().to_owned()
}

/// A program of the build that is measured, beside the gateway.
pub fn example(name: &str) -> PathBuf {
    let path = Path::new(TOUCHLINE).with_file_name("examples").join(name);
    assert!(
        path.exists(),
        "{}: cargo build --release --examples",
        path.display()
    );
    path
}

/// The gateway.
pub const TOUCHLINE: &str = env!("CARGO_BIN_EXE_touchline");

/// The gateway that `make pgo` built, if there is one; refused if it is older than the plain build.
pub fn optimised() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/pgo/touchline");
    let built = |path: &Path| path.metadata().and_then(|file| file.modified()).ok();
    let (by_profile, plain) = (built(&path)?, built(Path::new(TOUCHLINE)));
    if plain.is_some_and(|plain| plain > by_profile) {
        eprintln!(
            "{} is older than the plain build: make pgo rebuilds it",
            path.display()
        );
        return None;
    }
    Some(path)
}

/// A port that was free a moment ago. None is returned twice: what is to listen there may not have begun.
pub fn free_port() -> u16 {
    static RETURNED: Mutex<Vec<u16>> = Mutex::new(Vec::new());
    let mut returned = RETURNED.lock().unwrap();
    loop {
        let probe = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = probe.local_addr().unwrap().port();
        if !returned.contains(&port) {
            returned.push(port);
            return port;
        }
    }
}

/// An address on this machine.
pub fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}
