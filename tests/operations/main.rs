//! The gateway as operators meet it, against the real binary: its commands, its start and end, the admin listener, the
//! access log, and what it does while Redis or a server of an upstream is gone.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)] // Clippy's exception for tests does not reach their functions.

mod access_log;
mod admin;
mod against_running;
mod audit;
mod certificates;
mod changes_under_load;
mod check;
mod closed_days;
mod command_line;
mod dashboard;
mod descriptors;
mod diagnostic_log;
mod drain;
mod durability;
mod explain;
mod files;
mod hung_disk;
mod import;
mod invoice;
mod keys;
mod ledger;
mod lifecycle;
mod manual;
mod metrics;
mod names;
mod preload;
mod redis_outage;
mod redis_user;
mod reload;
mod reload_under_load;
mod servers;
mod service_manager;
mod slow_client;
mod start;
mod store_transfer;
mod surroundings;
mod traces;
mod upgrade;
mod upstream_http2;
mod upstream_tls;
mod usage;
mod zone;

use std::io::PipeWriter;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use harness::{Gateway, Store};

/// The binary under test.
const TOUCHLINE: &str = env!("CARGO_BIN_EXE_touchline");
/// An endpoint of every tier.
const MARKETS: &str = "/api/v1/data/markets";
/// An endpoint of the enterprise tier only.
const RANKINGS: &str = "/api/v1/data/rankings";
/// Both stores.
const STORES: [Store; 2] = [Store::Embedded, Store::Redis];

/// What a command left behind.
#[derive(Debug)]
struct Ran {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Ran {
        Ran {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Ran {
    /// Its standard output, of a command that has worked.
    #[track_caller]
    fn done(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.stdout
    }

    /// Its standard error, of a command that has failed with `code` and reported nothing else.
    #[track_caller]
    fn failed(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert_eq!(self.stdout, "", "{self:?}");
        assert!(!self.stderr.contains("panicked"), "{self:?}");
        self.stderr
    }
}

/// Runs a command on the configuration of a gateway.
async fn run_beside(gateway: &Gateway, arguments: &[&str]) -> Ran {
    gateway.cli(arguments).await.into()
}

/// Runs a command on a configuration file, with its standard output given.
fn run_into(config: &Path, output: impl Into<Stdio>, arguments: &[&str]) -> Ran {
    let child = Command::new(TOUCHLINE)
        .args(arguments)
        .arg("--config")
        .arg(config)
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(Stdio::piped())
        .spawn();
    child.unwrap().wait_with_output().unwrap().into()
}

/// A pipe whose reader is gone.
fn closed_pipe() -> PipeWriter {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer
}

/// Runs a command on a configuration file.
async fn run_on(config: &Path, arguments: &[&str]) -> Ran {
    harness::gateway::cli(Path::new(TOUCHLINE), config, None, arguments)
        .await
        .into()
}
