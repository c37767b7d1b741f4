//! The limit of open files and sockets of the process.
//!
//! The usual soft limit of 1,024 exists for programs that use `select` and is far too low for a gateway, which does not: it is
//! raised to the hard limit at start.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The files other than connections: listeners, logs, the store's files and connections.
const OTHERS: u64 = 256;

/// Raises the limit as far as permitted.
pub fn raise() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "the limit of open files could not be raised");
    }
}

/// Warns if `connections` clients, each with a connection to an upstream, do not fit into the limit.
pub fn warn_of(connections: usize) {
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

/// The most clients at once for whom there are open files, whatever `limits.connections` permits: idle clients must not take those of
/// the store, the connections to upstreams and Redis, health checks and the admin listener.
pub fn clients_max() -> usize {
    let open_files = getrlimit(Resource::Nofile).current;
    open_files.map_or(usize::MAX, |open_files| {
        usize::try_from(without_others(open_files)).unwrap_or(usize::MAX)
    })
}

/// The open files that clients may take. A limit that is too small even for the others is halved.
fn without_others(open_files: u64) -> u64 {
    open_files - OTHERS.min(open_files / 2)
}

/// The number of open files that `connections` clients and their requests need.
fn wanted(connections: usize) -> u64 {
    let connections = u64::try_from(connections).unwrap_or(u64::MAX);
    connections.saturating_mul(2).saturating_add(OTHERS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_leave_open_files_to_the_others() {
        for (open_files, clients) in [
            (65_536, 65_280),
            (513, 257),
            (512, 256),
            (511, 256),
            (2, 1),
            (0, 0),
        ] {
            assert_eq!(without_others(open_files), clients, "of {open_files}");
        }
    }
}
