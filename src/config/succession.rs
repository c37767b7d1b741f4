//! One configuration taking the place of another in a running gateway: what of it cannot change, and what must not.
//!
//! The addresses that are listened on, the store, the quota day and the number of threads are what a process was built on:
//! a change of those waits for a restart. A tier that keys hold must not go, or their next request would have no limit.

use super::check::Check;
use super::outline::Path;
use super::{
    Config, EmbeddedStore, Http, Https, Ledger, Outage, Redirect, RedisPlace, RedisStore,
    StoreConfig,
};
use crate::policy::key_record::TierName;

/// What a configuration is to take the place of.
pub struct Running<'a> {
    /// The configuration that runs.
    pub config: &'a Config,
    /// How many keys hold a tier, revoked ones not counted, or why that cannot be told. Asked only for tiers that are gone.
    pub keys_of: &'a dyn Fn(&TierName) -> Result<u64, String>,
}

/// Notes everything that keeps `next` from taking the place of what runs.
pub(super) fn check(check: &mut Check<'_>, running: &Running<'_>, next: &Config) {
    for at in fixed(running.config, next) {
        check.wrong(
            &at,
            "a change of it needs a restart",
            "restart the gateway, or put it back as it was",
        );
    }
    let at = Path::default().key("tiers");
    for (tier, _) in &running.config.tiers {
        if next.tier(tier).is_some() {
            continue;
        }
        let hint = "give them another with `touchline keys set-tier` first, or keep the tier";
        match (running.keys_of)(tier) {
            Ok(0) => {}
            Ok(1) => check.wrong(&at, format!("{tier} is gone, and 1 key holds it"), hint),
            Ok(keys) => check.wrong(
                &at,
                format!("{tier} is gone, and {keys} keys hold it"),
                hint,
            ),
            Err(why) => check.wrong(
                &at,
                format!("{tier} is gone, and whether keys hold it cannot be told: {why}"),
                "keep the tier until the store answers",
            ),
        }
    }
}

/// The paths that differ of those that only a restart changes.
fn fixed(running: &Config, next: &Config) -> Vec<Path> {
    let at = Path::default();
    let mut differing = Vec::new();
    let mut compare = |same: bool, at: Path| {
        if !same {
            differing.push(at);
        }
    };
    let listen = at.key("listen");
    let (one, other) = (&running.listen, &next.listen);
    let of_http = |http: &Http| http.address;
    let of_https = |https: &Https| https.address;
    let of_redirect = |redirect: &Redirect| redirect.address;
    for (name, one, other) in [
        (
            "http",
            one.http.as_ref().map(of_http),
            other.http.as_ref().map(of_http),
        ),
        (
            "https",
            one.https.as_ref().map(of_https),
            other.https.as_ref().map(of_https),
        ),
        (
            "redirect",
            one.redirect.as_ref().map(of_redirect),
            other.redirect.as_ref().map(of_redirect),
        ),
        ("admin", Some(one.admin), Some(other.admin)),
    ] {
        let at = listen.key(name);
        let at = if one.is_some() && other.is_some() {
            at.key("address")
        } else {
            at
        };
        compare(one == other, at);
    }
    compare(one.upgrade == other.upgrade, listen.key("upgrade"));
    let store = at.key("store");
    match (&running.store, &next.store) {
        (StoreConfig::Embedded(one), StoreConfig::Embedded(other)) => {
            embedded(&mut compare, &store.key("embedded"), one, other);
        }
        (StoreConfig::Redis(one), StoreConfig::Redis(other)) => {
            redis(&mut compare, &store.key("redis"), one, other);
        }
        (StoreConfig::Embedded(_), StoreConfig::Redis(_))
        | (StoreConfig::Redis(_), StoreConfig::Embedded(_)) => compare(false, store),
    }
    let quota = at.key("quota");
    compare(
        running.calendar.name() == next.calendar.name(),
        quota.key("timezone"),
    );
    let Ledger {
        settle_window,
        retention,
    } = running.ledger;
    compare(
        settle_window == next.ledger.settle_window,
        quota.key("settle_window"),
    );
    compare(retention == next.ledger.retention, quota.key("retention"));
    compare(
        running.runtime.threads == next.runtime.threads,
        at.key("runtime").key("threads"),
    );
    differing
}

fn embedded(
    compare: &mut impl FnMut(bool, Path),
    at: &Path,
    one: &EmbeddedStore,
    other: &EmbeddedStore,
) {
    let EmbeddedStore { path, durability } = one;
    compare(*path == other.path, at.key("path"));
    compare(*durability == other.durability, at.key("durability"));
}

fn redis(compare: &mut impl FnMut(bool, Path), at: &Path, one: &RedisStore, other: &RedisStore) {
    let RedisStore {
        place,
        database,
        username,
        password,
        sentinel_password,
        tls,
        key_prefix,
        timeout,
        replica,
        max_staleness,
        outage,
    } = one;
    let Outage {
        policy,
        journal,
        journal_interval,
        min_nodes,
        cold_percent,
        count_staleness,
    } = outage;
    let place_key = match &other.place {
        RedisPlace::Url(_) => "url",
        RedisPlace::Sentinels { .. } => "sentinels",
        RedisPlace::Cluster(_) => "cluster",
    };
    for (same, key) in [
        (*place == other.place, place_key),
        (*database == other.database, "database"),
        (*username == other.username, "username"),
        (*password == other.password, "password_file"),
        (
            *sentinel_password == other.sentinel_password,
            "sentinel_password_file",
        ),
        (*tls == other.tls, "tls"),
        (*key_prefix == other.key_prefix, "key_prefix"),
        (*timeout == other.timeout, "timeout"),
        (*replica == other.replica, "replica"),
        (*max_staleness == other.max_staleness, "max_staleness"),
        (*policy == other.outage.policy, "outage"),
        (*journal == other.outage.journal, "journal"),
        (
            *journal_interval == other.outage.journal_interval,
            "journal_interval",
        ),
        (*min_nodes == other.outage.min_nodes, "min_nodes"),
        (*cold_percent == other.outage.cold_percent, "cold_cap"),
        (
            *count_staleness == other.outage.count_staleness,
            "count_staleness",
        ),
    ] {
        compare(same, at.key(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRAFFIC: &str = "
tiers: {pro: {daily: 5}, starter: {daily: 1}}
endpoints: [{path: /a, tiers: [pro], upstream: u}]
upstreams: {u: {servers: [127.0.0.1:9000]}}
";

    fn parse(text: &str) -> Config {
        Config::parse("g.yaml", text, &|_| None).unwrap()
    }

    /// `LINE path` of every problem of `next` in the place of `running`.
    fn problems(running: &str, next: &str) -> Vec<String> {
        let running = parse(running);
        let over = Running {
            config: &running,
            keys_of: &|tier| match tier.as_str() {
                "pro" => Ok(2),
                _ => Ok(0),
            },
        };
        match Config::parse_over("g.yaml", next, &|_| None, Some(&over)) {
            Ok(_) => Vec::new(),
            Err(errors) => errors
                .problems
                .iter()
                .map(|problem| format!("{} {}", problem.line, problem.path))
                .collect(),
        }
    }

    #[test]
    fn everything_that_a_process_was_built_on_needs_a_restart_and_stands_at_its_line() {
        let redis = |inside: &str| format!("store: {{redis: {{{inside}}}}}{TRAFFIC}");
        for (running, next, expected) in [
            (
                "listen: {http: {}}",
                "listen: {https: {}}",
                "1 listen.http, 1 listen.https",
            ),
            (
                "listen: {http: {}}",
                "listen: {http: {address: 127.0.0.1:1}}",
                "1 listen.http.address",
            ),
            (
                "listen: {https: {}}",
                "listen: {https: {}, redirect: {address: 127.0.0.1:80}}",
                "1 listen.redirect",
            ),
            (
                "listen: {https: {}, redirect: {address: 127.0.0.1:81}}",
                "listen: {https: {}, redirect: {address: 127.0.0.1:80}}",
                "1 listen.redirect.address",
            ),
            ("store: {embedded: {}}", "store: {redis: {}}", "1 store"),
            (
                "runtime: {threads: 1}",
                "runtime:\n  threads: 2",
                "2 runtime.threads",
            ),
            (
                "",
                "listen: {http: {}, https: {}, upgrade: u.sock}",
                "1 listen.upgrade",
            ),
            (
                "quota: {timezone: UTC}",
                "quota: {timezone: Asia/Tokyo}",
                "1 quota.timezone",
            ),
            (
                "quota: {}",
                "quota: {settle_window: 1d, retention: 100d}",
                "1 quota.settle_window, 1 quota.retention",
            ),
            ("quota: {timezone: UTC}", "runtime: {threads: 0}", ""),
        ] {
            let (running, next) = (format!("{running}{TRAFFIC}"), format!("{next}{TRAFFIC}"));
            assert_eq!(problems(&running, &next).join(", "), expected);
        }
        let fields = [
            ("url: \"redis://other\"", "url"),
            ("cluster: [\"a:1\"]", "cluster"),
            ("sentinels: [\"a:1\"], master: m", "sentinels"),
            ("database: 1", "database"),
            ("username: u", "username"),
            ("key_prefix: other", "key_prefix"),
            ("timeout: 1s", "timeout"),
            ("replica: x", "replica"),
            ("max_staleness: 1h", "max_staleness"),
            ("outage: deny", "outage"),
            ("journal: x", "journal"),
            ("journal_interval: 2s", "journal_interval"),
            ("min_nodes: 2", "min_nodes"),
            ("cold_cap: 3%", "cold_cap"),
            ("count_staleness: 1m", "count_staleness"),
        ];
        for (changed, key) in fields {
            let problems = problems(&redis(""), &redis(changed));
            assert_eq!(problems, [format!("1 store.redis.{key}")]);
        }
    }

    #[test]
    fn what_changes_live_is_taken_and_the_same_file_too() {
        let other = "
listen:
  http: {cleartext: allowed, proxy_protocol: true}
  https: {certificates: [{certificate: Cargo.toml, private_key: Cargo.lock}], client_certificates: {authorities: Cargo.toml}}
  trusted_proxies: [10.0.0.0/8]
keys: {prefix: abc, realm: other}
tiers: {pro: {daily: 7, price: 1}}
endpoints: [{path: /b, tiers: [pro], upstream: v, cost: 3}]
upstreams: {v: {servers: [127.0.0.1:9001], retries: 0}}
forward: {headers_denied: [], answer_headers_denied: []}
limits: {connections: 5}
logging: {level: debug, format: pretty, access_log: off}
";
        assert_eq!(problems(TRAFFIC, other), [""; 0]);
        assert_eq!(problems(TRAFFIC, TRAFFIC), [""; 0]);
    }

    #[test]
    fn a_tier_that_keys_hold_stays_and_one_that_nobody_holds_may_go() {
        let without = |tier: &str| TRAFFIC.replace(tier, "other");
        assert_eq!(problems(TRAFFIC, &without("starter")), [""; 0]);
        assert_eq!(problems(TRAFFIC, &without("pro")), ["2 tiers"]);
    }
}
