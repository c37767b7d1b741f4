//! The section `store.redis`: where Redis is, who the gateway is there, how it is spoken to, and what a gateway does while it is
//! away.

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use super::{HOUR, MINUTE, MS, SECOND, certificate_and_key, seconds};
use crate::config::Secret;
use crate::config::check::{Check, Wrong};
use crate::config::outline::Path;
use crate::config::outside::readable;
use crate::config::rows::{
    Number, between, file, leaf, number, percent, rows, secret_file, section, text, texts, url,
    within,
};

/// Of a URL without one.
const PORT: u16 = 6379;
const URL: &str = "redis://127.0.0.1:6379/0";
/// The largest number of databases that a server can be configured with.
const DATABASE_MAX: u64 = 65_535;

rows! {
    pub(super) struct RedisRows {
        /// Where Redis is, one of url, url_file, sentinels, cluster: `redis://[user:password@]host[:port][/database]`,
        /// rediss:// for TLS.
        url: Option<Secret> = url(redis_url);
        /// A file with the URL, for one with a password in it.
        url_file: Option<Secret> = secret_file();
        /// The sentinels, each host:port; with `master`.
        sentinels: Vec<String> = texts(server).not_empty("at least one is needed", "write [host:port, …]");
        /// What the sentinels call the master.
        master: Option<String> = text(|text| not_empty(text, "write a name, or remove it"));
        /// Some nodes of the cluster, each host:port; the others are learnt.
        cluster: Vec<String> = texts(server).not_empty("at least one is needed", "write [host:port, …]");
        /// The database; goes before the one in the URL. A cluster has only 0.
        database: Option<u32> = between(0..=DATABASE_MAX).map(|database| database.map(u32::of));
        /// The ACL user; goes before the one in the URL.
        username: Option<String> = text(|text| not_empty(text, "write a user name, or remove it"));
        /// A file with the password; goes before one in the URL.
        password_file: Option<Secret> = secret_file();
        /// A file with the password of the sentinels.
        sentinel_password_file: Option<Secret> = secret_file();
        /// TLS to every server; {} trusts what the operating system trusts.
        tls: Option<RedisTls> = section(tls);
        /// What every name in Redis begins with.
        key_prefix: String = text(key_prefix).or_text("touchline");
        /// For one call.
        timeout: Duration = within(MS * 100, MS..=seconds(10));
        /// This gateway's copy of the key table (digests, no keys), for days without Redis.
        replica: PathBuf = leaf().or("var/keys.db".into());
        // Shorter than the feed's own freshness it would end service at every hiccup of Redis.
        /// How long known keys are served by that copy; a revoked one too, by a gateway that cannot reach Redis.
        max_staleness: Duration = within(HOUR * 24, MINUTE..=HOUR * 24 * 30);
        /// While Redis is away: `bounded`, each gateway serves its share of what was left of each key's quota; `deny`, nothing
        /// is served; `open`, everything is.
        outage: OutagePolicy = leaf().or(OutagePolicy::Bounded);
        /// Where each gateway writes down what it serves without Redis, on a local disk, one for each machine; it belongs to
        /// this store alone.
        journal: PathBuf = leaf().or("var/journal.db".into());
        /// What an emptied Redis and a killed gateway together may cost.
        journal_interval: Duration = within(SECOND, MS * 10..=MINUTE);
        /// Share at least so finely while Redis is away, even if fewer gateways were seen alive.
        min_nodes: NonZeroU64 = number(1, 1..=1_000);
        /// Of the limit, for a key whose count this gateway does not know while Redis is away.
        cold_cap: u64 = percent(2);
        /// A count older than this when Redis went away is not known.
        count_staleness: Duration = within(5 * MINUTE, SECOND..=24 * HOUR);
    }

    struct RedisTlsRows {
        /// PEM file of the authorities that sign the servers.
        ca_file: Option<PathBuf> = file(readable);
        /// PEM file of this gateway's certificate, where Redis asks for one; read anew for every connection.
        certificate: Option<PathBuf> = file(readable);
        /// PEM file of that certificate's key.
        private_key: Option<PathBuf> = file(readable);
    }
}

/// The Redis store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisStore {
    /// Where Redis is.
    pub place: RedisPlace,
    /// The database; goes before the one in the URL. Never with a cluster.
    pub database: Option<u32>,
    /// The ACL user; goes before the one in the URL.
    pub username: Option<String>,
    /// The password of `password_file`, which goes before the one in the URL.
    pub password: Option<Secret>,
    /// The password of the sentinels.
    pub sentinel_password: Option<Secret>,
    /// How TLS is spoken, where it is.
    pub tls: Option<RedisTls>,
    /// What every name in Redis begins with.
    pub key_prefix: String,
    /// How long one call may take.
    pub timeout: Duration,
    /// Where a gateway saves its replica of the key table.
    pub replica: PathBuf,
    /// How long known keys are served by a replica that could not be brought up to date.
    pub max_staleness: Duration,
    /// What happens to charges while Redis is away.
    pub outage: Outage,
}

/// What a gateway does while Redis is away, and what it writes down for that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outage {
    /// What happens to charges.
    pub policy: OutagePolicy,
    /// The file in which this node writes down what it counts.
    pub journal: PathBuf,
    /// How often it does so while Redis answers.
    pub journal_interval: Duration,
    /// The gateways that share what is left of a quota while Redis is away, at least.
    pub min_nodes: NonZeroU64,
    /// The part of a limit that is served without knowing the count, in hundredths.
    pub cold_percent: u64,
    /// A count that was older than this when Redis went away is unknown.
    pub count_staleness: Duration,
}

/// What happens to charges while Redis is away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutagePolicy {
    /// Each gateway serves its share of what was left.
    Bounded,
    /// Nothing is served.
    Deny,
    /// Everything is served.
    Open,
}

/// Where Redis is; addresses are `host:port`, resolved for every connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RedisPlace {
    /// `redis[s]://[user[:password]@]host[:port][/database]`.
    Url(Secret),
    /// The master that sentinels name.
    Sentinels {
        /// At least one, none twice.
        sentinels: Vec<String>,
        /// Their name for the master.
        master: String,
    },
    /// Nodes of a cluster, at least one, none twice.
    Cluster(Vec<String>),
}

/// TLS to Redis. The files were readable when the configuration was checked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RedisTls {
    /// PEM file of the authorities that sign servers; without one those of the operating system.
    pub ca_file: Option<PathBuf>,
    /// PEM files of the gateway's certificate and its private key, where Redis asks for one.
    pub identity: Option<(PathBuf, PathBuf)>,
}

pub(super) fn redis(check: &mut Check<'_>, at: &Path, rows: RedisRows) -> Option<RedisStore> {
    relations(check, at, &rows);
    let url = rows.url.or(rows.url_file);
    let is_known = url.is_some()
        || !["url", "url_file"]
            .iter()
            .any(|name| check.is_given(&at.key(name)));
    let place = match url {
        Some(url) => RedisPlace::Url(url),
        None if check.is_given(&at.key("sentinels")) => RedisPlace::Sentinels {
            sentinels: rows.sentinels,
            master: rows.master.unwrap_or_default(),
        },
        None if check.is_given(&at.key("cluster")) => RedisPlace::Cluster(rows.cluster),
        None => RedisPlace::Url(Secret::hide(URL.to_owned())),
    };
    if let RedisPlace::Url(url) = &place
        && is_known
        && rows.tls.is_some()
        && !url.reveal().starts_with("rediss://")
    {
        let hint = "begin the URL with rediss://";
        check.wrong_key(&at.key("tls"), "the URL does not ask for TLS", hint);
    }
    look_up(check, at, &place);
    Some(RedisStore {
        place,
        database: rows.database,
        username: rows.username,
        password: rows.password_file,
        sentinel_password: rows.sentinel_password_file,
        tls: rows.tls,
        key_prefix: rows.key_prefix,
        timeout: rows.timeout,
        replica: rows.replica,
        max_staleness: rows.max_staleness,
        outage: Outage {
            policy: rows.outage,
            journal: rows.journal,
            journal_interval: rows.journal_interval,
            min_nodes: rows.min_nodes,
            cold_percent: rows.cold_cap,
            count_staleness: rows.count_staleness,
        },
    })
}

/// Looks up the names of its servers.
fn look_up(check: &mut Check<'_>, at: &Path, place: &RedisPlace) {
    let (name, servers) = match place {
        RedisPlace::Sentinels { sentinels, .. } => ("sentinels", sentinels),
        RedisPlace::Cluster(nodes) => ("cluster", nodes),
        RedisPlace::Url(url) => {
            let mut given = ["url", "url_file"].map(|name| at.key(name)).into_iter();
            let given = given.find(|at| check.is_given(at));
            let url = reqwest::Url::parse(url.reveal()).ok();
            let host = url.as_ref().and_then(|url| url.host_str());
            if let (Some(at), Some(url), Some(host)) = (given, &url, host) {
                let server = format!("{host}:{}", url.port().unwrap_or(PORT));
                // The URL may be a secret as a whole.
                check.look_up(&at, &server, "its host");
            }
            return;
        }
    };
    for (index, server) in servers.iter().enumerate() {
        check.look_up(&at.key(name).index(index), server, &format!("{server:?}"));
    }
}

/// What keys say of each other.
fn relations(check: &mut Check<'_>, at: &Path, rows: &RedisRows) {
    let mut places = vec!["url", "url_file", "sentinels", "cluster"];
    places.retain(|name| check.is_given(&at.key(name)));
    for second in places.iter().skip(1) {
        let hint = format!("keep one of {}", places.join(" and "));
        check.wrong_key(&at.key(second), "it is told twice where Redis is", hint);
    }
    if let Some(file) = &rows.url_file {
        check.accept(&at.key("url_file"), redis_url(file.clone()));
    }
    if places.contains(&"cluster") && rows.database.is_some_and(|database| database > 0) {
        let message = "a cluster has only database 0";
        check.wrong(&at.key("database"), message, "remove it");
    }
    let master_at = at.key("master");
    if !places.contains(&"sentinels") {
        for at in [&master_at, &at.key("sentinel_password_file")] {
            if check.is_given(at) {
                let hint = "write sentinels: [host:port, …], or remove it";
                check.wrong_key(at, "there are no sentinels", hint);
            }
        }
    } else if !check.is_given(&master_at) {
        let hint = "write master: and its name";
        check.wrong(&master_at, "the key is missing", hint);
    }
    if rows.journal == rows.replica {
        let hint = "give journal and replica a file each";
        check.wrong_key(&at.key("journal"), "it is the file of the replica", hint);
    }
}

fn tls(check: &mut Check<'_>, at: &Path, rows: RedisTlsRows) -> Option<RedisTls> {
    certificate_and_key(check, at);
    Some(RedisTls {
        ca_file: rows.ca_file,
        identity: rows.certificate.zip(rows.private_key),
    })
}

/// A URL that the client library takes. What is wrong is told without the URL: there may be a password in it.
fn redis_url(url: Secret) -> Result<Secret, Wrong> {
    let text = url.reveal();
    use redis::{ConnectionAddr, IntoConnectionInfo};

    let known = text.starts_with("redis://") || text.starts_with("rediss://");
    let usable = text.into_connection_info().is_ok_and(|info| {
        matches!(
            info.addr(),
            ConnectionAddr::Tcp(..)
                | ConnectionAddr::TcpTls {
                    insecure: false,
                    ..
                }
        )
    });
    let hint = "write redis://[user:password@]host[:port][/database], or rediss:// for TLS";
    let wrong = || Wrong::new("it is not the URL of a Redis server", hint);
    (known && usable).then_some(url).ok_or_else(wrong)
}

/// A `host:port`; an IPv6 address stands in brackets.
fn server(text: &str) -> Result<String, Wrong> {
    let fits = text.rsplit_once(':').is_some_and(|(host, port)| {
        let bare = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .map_or_else(
                || !host.contains([':', '/', '@', '[', ']']),
                |host| host.parse::<std::net::Ipv6Addr>().is_ok(),
            );
        bare && !host.is_empty()
            && !host.contains(char::is_whitespace)
            && port.bytes().all(|byte| byte.is_ascii_digit())
            && port.parse::<u16>().is_ok_and(|port| port > 0)
    });
    let wrong = || Wrong::not("a server", "write host:port, such as redis-1.example:6379");
    fits.then(|| text.to_owned()).ok_or_else(wrong)
}

fn not_empty(text: &str, hint: &str) -> Result<String, Wrong> {
    match text {
        "" => Err(Wrong::new("it is empty", hint)),
        text => Ok(text.to_owned()),
    }
}

fn key_prefix(text: &str) -> Result<String, Wrong> {
    // Braces would move all keys of the store into one slot of a cluster.
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
    let fits = (1..=64).contains(&text.len()) && text.bytes().all(fits);
    let hint = "1 to 64 characters of a-z, A-Z, 0-9 and -_.:";
    let wrong = || Wrong::not("a prefix of names in Redis", hint);
    fits.then(|| text.to_owned()).ok_or_else(wrong)
}
