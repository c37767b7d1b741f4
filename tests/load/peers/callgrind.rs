//! A process whose instructions are counted: valgrind's callgrind, switched on, read and set to zero from
//! outside, by `callgrind_control`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use harness::eventually;
use harness::process::Process;

use super::calls::Calls;
use super::machine::on_cores;
use super::stage::spawn;
use super::start::answers;

/// A process under callgrind. Dropping it kills the process.
pub struct Counted {
    process: Process,
    out: PathBuf,
    dumps: usize,
}

/// Events that callgrind counted, by its names for them.
pub struct Counts(BTreeMap<String, u64>);

impl Counted {
    /// Starts a command on these cores and waits until it answers. Nothing is counted yet.
    ///
    /// # Panics
    /// With the output of the process if it ends before.
    pub async fn start(
        cores: &str,
        options: &[&str],
        command: &[String],
        calls: &Calls,
        directory: &Path,
    ) -> Counted {
        let out = directory.join("callgrind.out");
        let mut under = on_cores(cores, "valgrind");
        under.args(["--tool=callgrind", "--instr-atstart=no"]);
        under.args(options);
        under.arg(format!("--callgrind-out-file={}", out.display()));
        under.args(command).current_dir(directory);
        let mut process = spawn(under, directory, "counted");
        eventually("it answers", async || {
            assert!(process.ended().is_none(), "{}", process.output());
            answers(calls).then_some(())
        })
        .await;
        Counted {
            process,
            out,
            dumps: 0,
        }
    }

    /// Counts from now on, or no longer.
    pub fn count(&self, state: &str) {
        self.control(&["-i", state]);
    }

    /// Sets all counts to zero.
    pub fn zero(&self) {
        self.control(&["-z"]);
    }

    /// The counts since the start, the last zero or the last dump.
    pub async fn dump(&mut self) -> Counts {
        self.control(&["-d"]);
        self.dumps += 1;
        let file = self.out.with_extension(format!("out.{}", self.dumps));
        eventually("callgrind writes what it counted", async || {
            Counts::of(&std::fs::read_to_string(&file).ok()?)
        })
        .await
    }

    fn control(&self, arguments: &[&str]) {
        let mut command = Command::new("callgrind_control");
        command.args(arguments).arg(self.process.pid().to_string());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        // Its ordinary end takes seconds, and its last dump is not needed.
        self.process.kill9();
    }
}

impl Counts {
    /// Reads the counts of a dump from its lines `events: Ir Dr …` and `totals: 1 2 …`; `None` if it is incomplete.
    fn of(dump: &str) -> Option<Counts> {
        let line = |name| dump.lines().find_map(|line| line.strip_prefix(name));
        let totals = line("totals: ")?.split_whitespace();
        let totals = totals.map(|total| total.parse().unwrap());
        let names = line("events: ")?.split_whitespace().map(str::to_owned);
        Some(Counts(names.zip(totals).collect()))
    }

    /// The sum of these events.
    pub fn sum(&self, events: &[&str]) -> f64 {
        events.iter().map(|event| self.0[*event] as f64).sum()
    }
}
