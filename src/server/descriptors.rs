//! How many files and sockets the process may open.
//!
//! The usual soft limit of 1,024 is far below what an edge needs, and is there for programs that use `select`, which the
//! gateway does not: it is raised to the hard limit at start.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Beside connections: listeners, logs, the store's files and connections.
const OTHERS: u64 = 256;

/// Raises the limit as far as it may be, and says where `connections` clients, each with a connection to an upstream,
/// still do not fit under it.
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
            "limits.connections is more than the process may have: lower it, or raise the hard limit of open files (LimitNOFILE= of \
             systemd, ulimit -n)"
        );
    }
}

/// What so many connections and their requests need.
fn wanted(connections: usize) -> u64 {
    let connections = u64::try_from(connections).unwrap_or(u64::MAX);
    connections.saturating_mul(2).saturating_add(OTHERS)
}
