//! The section `store.redis`: where Redis is, who the gateway is there, and how it is spoken to.

use super::super::check::{Check, Wrong};
use super::super::outline::Path;
use super::super::text::{RedisText, RedisTlsText, Section};
use super::super::{RedisPlace, RedisStore, RedisTls, Secret};
use super::outage;
use super::{HOUR, MINUTE, MS, seconds};

const URL: &str = "redis://127.0.0.1:6379/0";
const KEY_PREFIX: &str = "touchline";
const REPLICA_PATH: &str = "var/keys.db";
/// The largest number of databases that a server can be configured with.
const DATABASE_MAX: u64 = 65_535;

pub(super) fn redis(check: &mut Check<'_>, at: &Path, section: Section<RedisText>) -> RedisStore {
    let mut text = check.section(at, section).unwrap_or_default();
    let tls = std::mem::take(&mut text.tls);
    let (tls_given, tls) = (tls.is_given(), self::tls(check, &at.key("tls"), tls));
    let password = secret(check, &at.key("password_file"), &text.password_file);
    let sentinel_password = secret(
        check,
        &at.key("sentinel_password_file"),
        &text.sentinel_password_file,
    );
    let database_at = at.key("database");
    let databases = 0..=DATABASE_MAX;
    check.bounds(&database_at, &databases);
    let database = text.database.is_given().then(|| {
        let number = check.bounded(&database_at, &text.database, 0, databases);
        u32::try_from(number).unwrap_or(0)
    });
    if text.cluster.is_given() && database.is_some_and(|database| database > 0) {
        check.wrong(&database_at, "a cluster has only database 0", "remove it");
    }
    for (key, given) in [
        ("master", text.master.is_given()),
        (
            "sentinel_password_file",
            text.sentinel_password_file.is_given(),
        ),
    ] {
        if given && !text.sentinels.is_given() {
            check.wrong_key(
                &at.key(key),
                "there are no sentinels",
                "write sentinels: [host:port, …], or remove it",
            );
        }
    }
    let username = check.parsed(&at.key("username"), &text.username, |text| {
        not_empty(text, "user name")
    });
    check.default(&at.key("key_prefix"), KEY_PREFIX);
    let key_prefix = check.parsed(&at.key("key_prefix"), &text.key_prefix, key_prefix);
    let timeout = check.bounded(
        &at.key("timeout"),
        &text.timeout,
        MS * 100,
        MS..=seconds(10),
    );
    let replica = check.leaf_or(&at.key("replica"), &text.replica, REPLICA_PATH.into());
    // Shorter than the feed's own freshness it would end service at every hiccup of Redis.
    let max_staleness = check.bounded(
        &at.key("max_staleness"),
        &text.max_staleness,
        HOUR * 24,
        MINUTE..=HOUR * 24 * 30,
    );
    let outage = outage::outage(check, at, &text);
    if outage.journal == replica {
        check.wrong_key(
            &at.key("journal"),
            "it is the file of the replica",
            "give journal and replica a file each",
        );
    }
    let place = place(check, at, text);
    if let RedisPlace::Url(url) = &place
        && tls_given
        && !url.reveal().starts_with("rediss://")
    {
        check.wrong_key(
            &at.key("tls"),
            "the URL does not ask for TLS",
            "begin the URL with rediss://",
        );
    }
    RedisStore {
        place,
        database,
        username,
        password,
        sentinel_password,
        tls,
        key_prefix: key_prefix.unwrap_or_else(|| KEY_PREFIX.to_owned()),
        timeout,
        replica,
        max_staleness,
        outage,
    }
}

/// The one place that is given; without any, the default URL.
fn place(check: &mut Check<'_>, at: &Path, text: RedisText) -> RedisPlace {
    let given: Vec<&str> = [
        ("url", text.url.is_given()),
        ("url_file", text.url_file.is_given()),
        ("sentinels", text.sentinels.is_given()),
        ("cluster", text.cluster.is_given()),
    ]
    .into_iter()
    .filter_map(|(key, given)| given.then_some(key))
    .collect();
    for second in given.iter().skip(1) {
        check.wrong_key(
            &at.key(second),
            "it is told twice where Redis is",
            format!("keep one of {}", given.join(" and ")),
        );
    }
    let url = url(check, at, &text);
    let master_at = at.key("master");
    if text.sentinels.is_given() {
        check.required(&master_at, &text.master, "write master: and its name");
    }
    let master = check.parsed(&master_at, &text.master, |text| not_empty(text, "name"));
    let mut servers = |key: &str, list| {
        let at = at.key(key);
        let servers = check.texts(&at, list, server);
        if servers.as_ref().is_some_and(Vec::is_empty) {
            check.wrong(&at, "at least one is needed", "write [host:port, …]");
        }
        servers
    };
    let sentinels = servers("sentinels", text.sentinels);
    let nodes = servers("cluster", text.cluster);
    match (url, sentinels, nodes) {
        (None, Some(sentinels), _) => RedisPlace::Sentinels {
            sentinels,
            master: master.unwrap_or_default(),
        },
        (None, None, Some(nodes)) => RedisPlace::Cluster(nodes),
        (url, _, _) => RedisPlace::Url(url.unwrap_or_else(|| Secret::from(URL.to_owned()))),
    }
}

fn url(check: &mut Check<'_>, at: &Path, text: &RedisText) -> Option<Secret> {
    let written = check.parsed(&at.key("url"), &text.url, checked_url);
    let file_at = at.key("url_file");
    let from_file = secret(check, &file_at, &text.url_file);
    if let Some(Err(wrong)) = from_file.as_ref().map(|url| checked_url(url.reveal())) {
        check.wrong(&file_at, wrong.message, wrong.hint);
    }
    written.or(from_file)
}

fn secret(
    check: &mut Check<'_>,
    at: &Path,
    file: &super::super::text::Leaf<std::path::PathBuf>,
) -> Option<Secret> {
    let file = check.leaf(at, file)?;
    check.secret_file(at, &file)
}

fn tls(check: &mut Check<'_>, at: &Path, section: Section<RedisTlsText>) -> Option<RedisTls> {
    let text = check.section(at, section)?;
    let mut files = [
        ("ca_file", &text.ca_file),
        ("certificate", &text.certificate),
        ("private_key", &text.private_key),
    ]
    .map(|(key, leaf)| {
        let at = at.key(key);
        let file = check.leaf(&at, leaf);
        if let Some(file) = &file {
            check.readable(&at, file);
        }
        file
    })
    .into_iter();
    let ca_file = files.next().flatten();
    let (certificate, private_key) = (files.next().flatten(), files.next().flatten());
    match (text.certificate.is_given(), text.private_key.is_given()) {
        (true, false) => check.required(
            &at.key("private_key"),
            &text.private_key,
            "write private_key: FILE beside the certificate",
        ),
        (false, true) => check.required(
            &at.key("certificate"),
            &text.certificate,
            "write certificate: FILE beside the private key",
        ),
        (true, true) | (false, false) => {}
    }
    Some(RedisTls {
        ca_file,
        identity: certificate.zip(private_key),
    })
}

/// A URL that the client library takes. What is wrong is told without the URL: there may be a password in it.
fn checked_url(text: &str) -> Result<Secret, Wrong> {
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
    if known && usable {
        Ok(Secret::from(text.to_owned()))
    } else {
        Err(Wrong::new(
            "it is not the URL of a Redis server",
            "write redis://[user:password@]host[:port][/database], or rediss:// for TLS",
        ))
    }
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
    if fits {
        Ok(text.to_owned())
    } else {
        Err(Wrong::new(
            format!("{text:?} is not a server"),
            "write host:port, such as redis-1.example:6379",
        ))
    }
}

fn not_empty(text: &str, what: &str) -> Result<String, Wrong> {
    if text.is_empty() {
        Err(Wrong::new(
            "it is empty",
            format!("write a {what}, or remove it"),
        ))
    } else {
        Ok(text.to_owned())
    }
}

fn key_prefix(text: &str) -> Result<String, Wrong> {
    let fits = (1..=64).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte));
    if fits {
        Ok(text.to_owned())
    } else {
        // Braces would move all keys of the store into one slot of a cluster.
        Err(Wrong::new(
            format!("{text:?} is not a prefix of names in Redis"),
            "1 to 64 characters of a-z, A-Z, 0-9 and -_.:",
        ))
    }
}
