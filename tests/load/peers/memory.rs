//! The memory of connections: 1,000 that are busy, and as many idle ones as open files allow.

use std::time::{Duration, Instant};

use super::closed::Connections;
use super::contender::{Cast, Contender};
use super::kind::Kind;
use super::machine::{open_files, resident_mib};

/// Connections that each have a request in flight again and again.
pub const BUSY: usize = 1_000;
const BUSY_FOR: Duration = Duration::from_secs(3);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Connections that have had one answer each and wait for the next request.
const IDLE: usize = 10_000;
/// Files of this process that are not idle connections.
const OTHER_FILES: usize = 1_500;
/// The time in which an idle connection releases memory.
const SETTLING: Duration = Duration::from_secs(2);

/// The memory of one contender, in MiB.
pub struct Memory {
    /// The contender.
    pub kind: Kind,
    /// With few connections, after the rounds.
    pub few: f64,
    /// The most with [`BUSY`] busy connections.
    pub busy: f64,
    /// With idle connections, and their count; not reported for nginx, which is configured for fewer.
    pub idle: Option<(usize, f64)>,
}

impl Memory {
    /// The memory that an idle connection adds to the process, in KiB.
    pub fn idle_kib(&self) -> Option<f64> {
        let (count, resident) = self.idle?;
        Some((resident - self.few) * 1024.0 / count as f64)
    }
}

/// Measures the contenders one after the other.
pub async fn measure(cast: &Cast) -> Vec<Memory> {
    let mut all = Vec::new();
    for one in cast.those(&Kind::WEIGHED) {
        eprintln!("memory: {}", one.kind.name());
        all.push(weigh(one).await);
    }
    all
}

async fn weigh(contender: &Contender) -> Memory {
    let pid = contender.pid;
    let few = resident_mib(pid);
    let mut connections = Connections::open(std::slice::from_ref(&contender.calls), BUSY).await;
    let looking = tokio::spawn(most_resident(pid));
    connections.saturate(BUSY_FOR).await;
    let busy = looking.await.unwrap();
    drop(connections);
    let idle = if contender.kind == Kind::Nginx {
        None
    } else {
        Some(idle(contender).await)
    };
    Memory {
        kind: contender.kind,
        few,
        busy,
        idle,
    }
}

/// The largest memory of a process while its connections are busy.
async fn most_resident(pid: u32) -> f64 {
    let start = Instant::now();
    let mut most = 0.0_f64;
    while start.elapsed() < BUSY_FOR {
        most = most.max(resident_mib(pid));
        tokio::time::sleep(LOOK_EVERY).await;
    }
    most
}

async fn idle(contender: &Contender) -> (usize, f64) {
    let count = IDLE.min(open_files().saturating_sub(OTHER_FILES).max(1));
    let connections = Connections::open(std::slice::from_ref(&contender.calls), count).await;
    tokio::time::sleep(SETTLING).await;
    let resident = resident_mib(contender.pid);
    drop(connections);
    (count, resident)
}
