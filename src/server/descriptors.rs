//! The limit of open files and sockets of the process.
//!
//! The usual soft limit of 1,024 exists for programs that use `select` and is far too low for a gateway, which does not: it is
//! raised to the hard limit at start.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The files other than connections: listeners, logs, the store's files and connections.
const OTHERS: u64 = 256;

/// Raises the limit as far as permitted, and warns if `connections` clients, each with a connection to an upstream, still do not
/// fit.
pub fn raise(connections: usize) {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "the limit of open files could not be raised");
    }
    let wanted = wanted(connections);
    // Without a value there is no limit.
    if let Some(open_files) = getrlimit(Resource::Nofile).current
        && open_files < wanted
    {
        tracing::warn!(
            open_files,
            wanted,
            "limits.connections exceeds the open files of the process: lower it, or raise the hard limit of open files (LimitNOFILE= of \
             systemd, ulimit -n)"
        );
    }
}

/// The number of open files that `connections` clients and their requests need.
fn wanted(connections: usize) -> u64 {
    let connections = u64::try_from(connections).unwrap_or(u64::MAX);
    connections.saturating_mul(2).saturating_add(OTHERS)
}
