//! The section `store.redis`: address, credentials and TLS of Redis, and what a gateway does while it is unreachable.

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use rustls::pki_types::PrivateKeyDer;

use super::pairs::certificate_and_key;
use super::upstream_tls::{Chain, authorities, certificates, note_own, pair, private_key};
use super::values::{HOST_AND_PORT, HOUR, MINUTE, MS, SECOND, host_and_port, not_empty, seconds};
use crate::config::check::{Check, Wrong};
use crate::config::outline::Path;
use crate::config::rows::{
    between, distinct, file, fitting, leaf, percent, positive, rows, secret_file, section, text,
    url, within,
};
use crate::policy::secret::Secret;
use crate::policy::store_settings::{
    OutagePolicy, OutageSettings, RedisSettings, RedisTls, Servers,
};

/// The default port of a URL.
const PORT: u16 = 6379;
const URL: &str = "redis://127.0.0.1:6379/0";
/// The largest number of databases that a server can be configured with.
const DATABASE_MAX: u64 = 65_535;

rows! {
    pub(super) struct RedisRows {
        /// The address of Redis, one of url, url_file, sentinels, cluster: `redis://[user:password@]host[:port][/database]`, rediss://
        /// for TLS.
        url: Option<Secret> = url(redis_url).like("^rediss?://");
        /// A file with the URL, for a URL with a password.
        url_file: Option<Secret> = secret_file();
        /// The sentinels, each host:port; with `master`.
        sentinels: Vec<String> = distinct(|| text(server).like(HOST_AND_PORT)).not_empty("at least one is needed", "write [host:port, …]");
        /// The sentinels' name for the master.
        master: Option<String> = text(|text| not_empty(text, "write a name, or remove it"));
        /// Some nodes of the cluster, each host:port; the others are discovered.
        cluster: Vec<String> = distinct(|| text(server).like(HOST_AND_PORT)).not_empty("at least one is needed", "write [host:port, …]");
        /// The database; takes precedence over the one in the URL. A cluster has only 0.
        database: Option<u32> = between(0..=DATABASE_MAX).map(|database| database.map(fitting));
        /// The ACL user; takes precedence over the one in the URL.
        username: Option<String> = text(|text| not_empty(text, "write a user name, or remove it"));
        /// A file with the password; takes precedence over one in the URL.
        password_file: Option<Secret> = secret_file();
        /// A file with the password of the sentinels.
        sentinel_password_file: Option<Secret> = secret_file();
        /// TLS to every server; {} trusts the operating system's authorities.
        tls: Option<RedisTls> = section(tls);
        /// The prefix of every name in Redis.
        key_prefix: String = text(key_prefix).or_text("touchline");
        /// The timeout of one call.
        timeout: Duration = within(MS * 100, MS..=seconds(10));
        /// This gateway's copy of the key table (digests, no keys), for times without Redis.
        replica: PathBuf = leaf().or("var/keys.db".into());
        // A value below the feed's own freshness would end service at every short interruption of Redis.
        /// How long a gateway that cannot reach Redis accepts the keys in that copy, also those revoked since.
        max_staleness: Duration = within(HOUR * 24, MINUTE..=HOUR * 24 * 30);
        /// Charges while Redis is unreachable: `bounded`, each gateway serves its share of what remained of each key's quota; `deny`,
        /// nothing is served; `open`, everything is, unless Redis itself had refused the key a charge that day for its quota.
        outage: OutagePolicy = leaf().or(OutagePolicy::Bounded);
        /// The file in which gateways record the units served without Redis, on a local disk, one for each machine and store.
        journal: PathBuf = leaf().or("var/journal.db".into());
        /// The counts lost if a gateway is killed and Redis emptied before the next one starts.
        journal_interval: Duration = within(SECOND, MS * 10..=MINUTE);
        /// Divide quotas among at least this many gateways while Redis is unreachable, even if fewer were seen alive.
        min_nodes: NonZeroU64 = positive(1, 1..=1_000);
        /// The part of the limit served without Redis for a key whose count this gateway does not know.
        cold_cap: u64 = percent(2);
        /// A count that was older than this when the outage began is treated as unknown.
        count_staleness: Duration = within(5 * MINUTE, SECOND..=24 * HOUR);
    }

    struct RedisTlsRows {
        /// PEM file of the authorities that sign the servers.
        ca_file: Option<(PathBuf, Chain)> = file(authorities);
        /// PEM file of this gateway's certificate, if Redis asks for one; read again for every connection.
        certificate: Option<(PathBuf, Chain)> = file(certificates);
        /// PEM file of that certificate's key.
        private_key: Option<(PathBuf, PrivateKeyDer<'static>)> = file(private_key);
    }
}

pub(super) fn redis(check: &mut Check<'_>, at: &Path, rows: RedisRows) -> Option<RedisSettings> {
    relations(check, at, &rows);
    let url = rows.url.or(rows.url_file);
    let is_known = url.is_some()
        || !["url", "url_file"]
            .iter()
            .any(|name| check.is_given(&at.key(name)));
    let servers = match url {
        Some(url) => Servers::Url(url.reveal().to_owned()),
        None if check.is_given(&at.key("sentinels")) => Servers::Sentinels {
            sentinels: rows.sentinels,
            master: rows.master.unwrap_or_default(),
        },
        None if check.is_given(&at.key("cluster")) => Servers::Cluster(rows.cluster),
        None => Servers::Url(URL.to_owned()),
    };
    if let Servers::Url(url) = &servers
        && is_known
        && rows.tls.is_some()
        && !url.starts_with("rediss://")
    {
        let hint = "begin the URL with rediss://";
        check.wrong_key(&at.key("tls"), "the URL does not ask for TLS", hint);
    }
    note_servers(check, at, &servers);
    Some(RedisSettings {
        database: rows.database,
        username: rows.username,
        password: rows.password_file,
        sentinel_password: rows.sentinel_password_file,
        tls: rows.tls,
        key_prefix: rows.key_prefix,
        timeout: rows.timeout,
        replica: Some(rows.replica),
        max_staleness: rows.max_staleness,
        outage: Some(OutageSettings {
            policy: rows.outage,
            journal: rows.journal,
            journal_interval: rows.journal_interval,
            min_nodes: rows.min_nodes,
            cold_percent: rows.cold_cap,
            count_staleness: rows.count_staleness,
        }),
        // What the section `quota` sets replaces the defaults.
        ..RedisSettings::of(servers)
    })
}

/// Notes the servers, so that their names are resolved.
fn note_servers(check: &mut Check<'_>, at: &Path, servers: &Servers) {
    let (name, servers) = match servers {
        Servers::Sentinels { sentinels, .. } => ("sentinels", sentinels),
        Servers::Cluster(nodes) => ("cluster", nodes),
        Servers::Url(url) => {
            let mut given = ["url", "url_file"].map(|name| at.key(name)).into_iter();
            let given = given.find(|at| check.is_given(at));
            let url = reqwest::Url::parse(url).ok();
            let host = url.as_ref().and_then(|url| url.host_str());
            if let (Some(at), Some(url), Some(host)) = (given, &url, host) {
                let server = format!("{host}:{}", url.port().unwrap_or(PORT));
                // The URL may be a secret as a whole.
                check.note_store_server(&at, &server, None);
            }
            return;
        }
    };
    for (index, server) in servers.iter().enumerate() {
        check.note_store_server(&at.key(name).index(index), server, Some(server));
    }
}

/// Checks keys that exclude or need each other.
fn relations(check: &mut Check<'_>, at: &Path, rows: &RedisRows) {
    let mut places = vec!["url", "url_file", "sentinels", "cluster"];
    places.retain(|name| check.is_given(&at.key(name)));
    for second in places.iter().skip(1) {
        let hint = format!("keep one of {}", places.join(" and "));
        check.wrong_key(&at.key(second), "Redis has two addresses", hint);
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
        let hint = "write master: and the sentinels' name for it";
        check.wrong(&master_at, "the key is missing", hint);
    }
}

fn tls(check: &mut Check<'_>, at: &Path, rows: RedisTlsRows) -> Option<RedisTls> {
    certificate_and_key(check, at);
    let identity = rows.certificate.zip(rows.private_key);
    let identity = identity.and_then(|((certificate, chain), (private_key, key))| {
        check.accept(&at.key("private_key"), pair(&chain, &key))?;
        note_own(check, at, &certificate, &chain);
        Some((certificate, private_key))
    });
    Some(RedisTls {
        ca_file: rows.ca_file.map(|(file, _)| file),
        identity,
    })
}

/// A URL that the client library accepts. Problems do not show the URL, which may contain a password.
fn redis_url(url: Secret) -> Result<Secret, Wrong> {
    let text = url.reveal();
    use redis::{ConnectionAddr, IntoConnectionInfo};

    let known = text.starts_with("redis://") || text.starts_with("rediss://");
    let usable = text.into_connection_info().is_ok_and(|info| {
        let is_known = matches!(
            info.addr(),
            ConnectionAddr::Tcp(..)
                | ConnectionAddr::TcpTls {
                    insecure: false,
                    ..
                }
        );
        is_known && u16::try_from(info.redis_settings().db()).is_ok()
    });
    let hint = "write redis://[user:password@]host[:port][/database], or rediss:// for TLS; a database is from 0 to 65535, and \
        characters of user and password such as # / ? @ are percent-encoded (%23 for #)";
    let wrong = || Wrong::new("the value is not the URL of a Redis server", hint);
    (known && usable).then_some(url).ok_or_else(wrong)
}

/// A `host:port`; an IPv6 address is in brackets.
fn server(text: &str) -> Result<String, Wrong> {
    host_and_port(text, "write host:port, such as redis-1.example:6379")
}

fn key_prefix(text: &str) -> Result<String, Wrong> {
    // Braces would put all keys of the store into one slot of a cluster.
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
    let fits = (1..=64).contains(&text.len()) && text.bytes().all(fits);
    let hint = "1 to 64 characters of a-z, A-Z, 0-9 and -_.:";
    let wrong = || Wrong::not("a prefix of names in Redis", hint);
    fits.then(|| text.to_owned()).ok_or_else(wrong)
}
