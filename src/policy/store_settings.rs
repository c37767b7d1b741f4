//! The settings of the stores, which the configuration reads and the stores follow: durability, the ledger's days, the connection to
//! Redis and service during an outage. How a store follows them is its own matter.

use std::fmt;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use super::clock_trust;
use super::secret::Secret;
use super::words::words;

/// When a commit is forced to disk. A crash of the process alone never loses one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
pub enum Durability {
    /// Before its replies are sent: one fsync per group.
    Commit,
    /// At most this long afterwards; at least 10 ms. Default: 1 s.
    Interval(Duration),
}

impl Default for Durability {
    fn default() -> Durability {
        Durability::Interval(Duration::from_secs(1))
    }
}

/// How long the ledger waits for late settlements, and how long it is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keeping {
    /// How long after its end a day is closed. Default: 7 days.
    pub settle_window: Duration,
    /// How long after its end a day is kept; longer than the settle window. Default: 396 days (13 months).
    pub retention: Duration,
    /// How long wall clock and boot-time clock must have agreed before a day is dropped. Default: an hour.
    pub agreement: Duration,
}

impl Default for Keeping {
    fn default() -> Keeping {
        const DAY: Duration = Duration::from_secs(86_400);
        Keeping {
            settle_window: 7 * DAY,
            retention: 396 * DAY,
            agreement: clock_trust::AGREEMENT,
        }
    }
}

impl Keeping {
    /// Whether a day that ended at `day_end` is closed at `now` (Unix seconds).
    pub fn is_closed(&self, day_end: i64, now: i64) -> bool {
        now >= day_end.saturating_add(whole_seconds(self.settle_window))
    }

    /// The settle window in seconds.
    pub fn settle_window_seconds(&self) -> i64 {
        whole_seconds(self.settle_window)
    }

    /// The retention in seconds.
    pub fn retention_seconds(&self) -> i64 {
        whole_seconds(self.retention)
    }
}

fn whole_seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}

/// The configuration of the Redis store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisSettings {
    /// The servers.
    pub servers: Servers,
    /// The number of the database; overrides the one in the URL. A cluster has only 0.
    pub database: Option<u32>,
    /// The ACL user; overrides the one in the URL.
    pub username: Option<String>,
    /// The password; overrides the one in the URL.
    pub password: Option<Secret>,
    /// The password of the sentinels.
    pub sentinel_password: Option<Secret>,
    /// TLS to every server, sentinels included; a `rediss://` URL implies it.
    pub tls: Option<RedisTls>,
    /// The prefix of all key names in Redis, default `touchline`; the gateways of one service share it.
    pub key_prefix: String,
    /// How long a call may take, queueing included, default 100 ms.
    pub timeout: Duration,
    /// The file in which a gateway saves its replica of the key table; `None`: it is not saved.
    pub replica: Option<PathBuf>,
    /// The greatest age of the key table at which its keys are served, default 24 h.
    pub max_staleness: Duration,
    /// Service while Redis is unavailable; `None`: there is no journal, and nothing is served then.
    pub outage: Option<OutageSettings>,
    /// When days of the ledger are closed, and when they are dropped.
    pub keeping: Keeping,
    /// The most accounts of keys and days in memory, 200,000 but in tests; idle ones beyond are dropped although their day is not over.
    pub accounts_max: usize,
}

words! {
    /// How to decide a charge that Redis does not decide.
    pub enum OutagePolicy {
        /// Serve this node's share of the units that were left.
        Bounded = "bounded",
        /// Serve nothing.
        Deny = "deny",
        /// Serve everything.
        Open = "open",
    }
}

/// The configuration of service without Redis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutageSettings {
    /// How charges are decided without Redis.
    pub policy: OutagePolicy,
    /// The journal's file: on a local disk, used by this machine only.
    pub journal: PathBuf,
    /// How often changed counts are journaled while Redis answers, default 1 s: the most that is lost if Redis is emptied and this
    /// process dies.
    pub journal_interval: Duration,
    /// The least number of gateways that share a limit; default 1.
    pub min_nodes: NonZeroU64,
    /// The part of a limit that is served if the count is unknown, in hundredths; default 2.
    pub cold_percent: u64,
    /// A count that was older than this when the outage began is treated as unknown; default 5 min.
    pub count_staleness: Duration,
}

impl OutageSettings {
    /// The defaults with this journal.
    pub fn of_journal(journal: impl Into<PathBuf>) -> OutageSettings {
        OutageSettings {
            policy: OutagePolicy::Bounded,
            journal: journal.into(),
            journal_interval: Duration::from_secs(1),
            min_nodes: NonZeroU64::MIN,
            cold_percent: 2,
            count_staleness: Duration::from_secs(300),
        }
    }
}

/// The servers of Redis; addresses are `host:port`.
#[derive(Clone, PartialEq, Eq)]
pub enum Servers {
    /// One server: `redis[s]://[user:password@]host[:port][/db]`.
    Url(String),
    /// The server that the sentinels name as the master.
    Sentinels {
        /// The sentinels, some of which may be down.
        sentinels: Vec<String>,
        /// Their name for the master.
        master: String,
    },
    /// The cluster to which these nodes belong; the other nodes are discovered through them.
    Cluster(Vec<String>),
}

/// How the server is verified, and how the gateway authenticates to it. Files are read for every new connection, so a renewed
/// certificate is used from the next one on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RedisTls {
    /// PEM file of the certificate authorities for servers; default: those of the operating system.
    pub ca_file: Option<PathBuf>,
    /// PEM files of the client certificate and its private key, if the server requires one.
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl RedisSettings {
    /// The defaults for a server.
    pub fn of_url(url: impl Into<String>) -> RedisSettings {
        RedisSettings::of(Servers::Url(url.into()))
    }

    /// The defaults for these servers.
    pub fn of(servers: Servers) -> RedisSettings {
        RedisSettings {
            servers,
            database: None,
            username: None,
            password: None,
            sentinel_password: None,
            tls: None,
            key_prefix: "touchline".into(),
            timeout: Duration::from_millis(100),
            replica: None,
            max_staleness: Duration::from_secs(86_400),
            outage: None,
            keeping: Keeping::default(),
            accounts_max: 200_000,
        }
    }
}

/// The addresses, without a login.
impl fmt::Display for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Servers::Url(url) => f.write_str(&without_password(url)),
            Servers::Sentinels { sentinels, master } => {
                write!(f, "{master} of sentinels {}", sentinels.join(", "))
            }
            Servers::Cluster(nodes) => write!(f, "cluster of {}", nodes.join(", ")),
        }
    }
}

impl fmt::Debug for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The URL with everything between the scheme, if there is one, and the last `@` replaced by `…`.
pub fn without_password(url: &str) -> String {
    let Some((login, place)) = url.rsplit_once('@') else {
        return url.to_owned();
    };
    match login.split_once("://") {
        Some((scheme, _)) => format!("{scheme}://…@{place}"),
        None => format!("…@{place}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_is_closed_when_the_settle_window_is_over() {
        let keeping = Keeping::default();
        let week = 7 * 86_400;
        assert!(!keeping.is_closed(1_000, 1_000 + week - 1));
        assert!(keeping.is_closed(1_000, 1_000 + week));
    }
}
