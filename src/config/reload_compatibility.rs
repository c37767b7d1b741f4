//! Reload compatibility: the changes that a running gateway refuses because they need a restart, and those that it always refuses.
//!
//! A process cannot change its listening addresses, store, quota day and number of threads: a change of these needs a restart.
//! A tier that keys have must not be removed, or their next request would have no limit.

use std::collections::BTreeSet;

use super::check::Check;
use super::outline::Path;
use super::sections::Config;
use crate::policy::key_record::TierName;
use crate::policy::words::counted;

/// The configuration to be replaced.
pub struct Running<'a> {
    /// The running configuration.
    pub config: &'a Config,
    /// Counts the keys of a tier, without revoked ones, or returns why it cannot. Called only for removed tiers.
    pub keys_of: &'a dyn Fn(&TierName) -> Result<u64, String>,
}

/// Notes everything that prevents `next` from replacing the running configuration.
pub(super) fn check(check: &mut Check<'_>, running: &Running<'_>, next: &Config) {
    for path in needing_restart(running.config, next) {
        check.wrong(
            &Path::written(path),
            "a change of this key needs a restart",
            "restart the gateway, or restore the old value",
        );
    }
    let at = Path::default().key("tiers");
    for (tier, _) in &running.config.tiers {
        if next.tier(tier).is_some() {
            continue;
        }
        let hint = "keep it beside the new tier until no key has it (suspended and expired keys count), then remove it";
        match (running.keys_of)(tier) {
            Ok(0) => {}
            Ok(keys) => {
                let held = counted(keys, "key has it", "keys have it");
                check.wrong(&at, format!("{tier} is removed, but {held}"), hint);
            }
            Err(why) => check.wrong(
                &at,
                format!("{tier} is removed, and whether keys have it is unknown: {why}"),
                "keep the tier until the store answers",
            ),
        }
    }
}

/// The changed paths that need a restart; for a section that was added or removed, not the paths beneath it.
fn needing_restart<'a>(running: &'a Config, next: &'a Config) -> Vec<&'a str> {
    let (one, other) = (&running.foundation, &next.foundation);
    let differs = |path: &str| one.get(path) != other.get(path);
    let is_beneath = |path: &str| {
        let ends = path.match_indices('.').map(|(end, _)| end);
        ends.filter_map(|end| path.get(..end)).any(differs)
    };
    // Moving a secret from the file into a file of its own changes nothing.
    let same_store = running.store == next.store;
    let paths: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
    let paths = paths.into_iter().map(String::as_str);
    paths
        .filter(|path| differs(path) && !is_beneath(path))
        .filter(|path| !same_store || !path.starts_with("store."))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::outside::Surroundings;
    use crate::config::{Problem, Purpose, parse_in};

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
        let surroundings = Surroundings {
            file: None,
            env: &|_| None,
            resolve: &|names| names.iter().map(|name| panic!("{name}")).collect(),
            purpose: Purpose::Serve,
            in_use: Vec::new(),
        };
        let refused = parse_in("g.yaml", next.as_bytes(), &surroundings, Some(&over)).err();
        let mut problems = refused.unwrap_or_default();
        problems.sort_by(Problem::by_place);
        let problems = problems.iter();
        problems
            .map(|problem| format!("{} {}", problem.line, problem.path))
            .collect()
    }

    #[test]
    fn everything_that_a_process_was_built_on_needs_a_restart_and_is_reported_at_its_line() {
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
        let sentinels = redis("sentinels: [\"a:1\"], master: m");
        let both = ["1 store.redis.sentinels", "1 store.redis.master"];
        assert_eq!(problems(&redis(""), &sentinels), both);
    }

    #[test]
    fn another_password_needs_a_restart_and_the_same_one_elsewhere_does_not() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let file = directory.path().join(name);
            std::fs::write(&file, text).unwrap();
            file.display().to_string()
        };
        let store = |inside: &str| format!("store: {{redis: {{{inside}}}}}{TRAFFIC}");
        let url = |password: &str| store(&format!("url: \"redis://:{password}@h\""));
        let in_file = store(&format!("url_file: {}", file("url", "redis://:a@h\n")));
        assert_eq!(problems(&url("a"), &url("b")), ["1 store.redis.url"]);
        assert_eq!(problems(&url("a"), &in_file), [""; 0]);
        let of_file = |name, text| store(&format!("password_file: {}", file(name, text)));
        let (one, same) = (of_file("one", "a"), of_file("same", "a\n"));
        assert_eq!(problems(&one, &same), [""; 0]);
        let other = of_file("other", "b");
        assert_eq!(problems(&one, &other), ["1 store.redis.password_file"]);
    }

    #[test]
    fn keys_that_change_live_are_accepted_and_the_same_file_too() {
        let other = "
listen:
  http: {cleartext: allowed, proxy_protocol: true}
  https: {certificates: [{certificate: Cargo.toml, private_key: Cargo.lock}], client_certificates: {authorities: Cargo.toml}}
  trusted_proxies: [10.0.0.0/8]
keys: {prefix: abc, realm: other}
openapi: {title: Other, documentation: https://docs.example}
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
    fn a_tier_with_keys_must_stay_and_one_without_keys_may_be_removed() {
        let without = |tier: &str| TRAFFIC.replace(tier, "other");
        assert_eq!(problems(TRAFFIC, &without("starter")), [""; 0]);
        assert_eq!(problems(TRAFFIC, &without("pro")), ["2 tiers"]);
    }
}
