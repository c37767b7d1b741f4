//! The facts of a configuration, which programs exchange, and the differences between the facts of two configurations.
//!
//! A running gateway serves its facts on the admin listener, and `touchline check --against-running` compares them with those
//! of a new file. Facts are the values read, with defaults filled in and each value in one form, so that two configurations with
//! the same effect have the same facts. No fact shows a secret: not the value of a variable or of a `…_file`, nor the user and
//! password of a URL. A hidden value whose change needs a restart has a fact `digest`: 16 bits, with which a change is noticed and the
//! value cannot be guessed.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::check::LeafValue;
use crate::policy::endpoint::EndpointTable;
use crate::policy::key_record::TierName;

/// The value of a tier's fact for each endpoint that it includes.
const INCLUDED: &str = "included";

/// The fact of a path of the file.
const VALUE: &str = "value";
/// The fact of a hidden value that only a restart changes.
const DIGEST: &str = "digest";

/// The subject of a fact, in the order in which differences are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum About {
    /// A path of the file that only a restart changes.
    Restart,
    /// A tier: its limits and the endpoints it includes.
    Tier,
    /// An endpoint, regardless of tiers.
    Endpoint,
    /// An upstream.
    Upstream,
    /// Any other path of the file.
    Setting,
}

/// The facts of subjects by name, such as `daily` of `pro`. A path of the file is a name with one fact, `value`.
type Subjects = BTreeMap<String, BTreeMap<String, String>>;

/// The facts of one configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Effective {
    /// The hash of the configuration.
    pub hash: String,
    facts: BTreeMap<About, Subjects>,
}

/// A fact that differs between two configurations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The subject of the fact.
    pub about: About,
    /// The subject's name; for a path of the file, the path.
    pub name: String,
    /// The name of the fact.
    pub fact: String,
    /// The value in the first; `None` if it has no such fact.
    pub from: Option<String>,
    /// The value in the second.
    pub to: Option<String>,
}

impl Effective {
    /// The facts of a configuration, from the value of each leaf of the file.
    pub(super) fn of(
        hash: &str,
        readings: &BTreeMap<String, LeafValue>,
        endpoints: &EndpointTable,
    ) -> Effective {
        let mut effective = Effective {
            hash: hash.to_owned(),
            facts: BTreeMap::new(),
        };
        let patterns: Vec<&str> = endpoints.iter().map(|one| &*one.pattern).collect();
        for (path, reading) in readings {
            effective.place(path, &patterns, reading);
        }
        for endpoint in endpoints.iter() {
            for tier in &endpoint.tiers {
                let fact = format!("endpoint {}", endpoint.pattern);
                effective.note(About::Tier, tier.as_str(), &fact, INCLUDED.to_owned());
            }
        }
        effective
    }

    /// Whether the configuration has a tier.
    pub fn has_tier(&self, name: &TierName) -> bool {
        let tiers = self.facts.get(&About::Tier);
        tiers.is_some_and(|tiers| tiers.contains_key(name.as_str()))
    }

    /// The facts that differ in `next`, in the order of subject, name and fact.
    pub fn differences(&self, next: &Effective) -> Vec<Difference> {
        let (one, other) = (self.flat(), next.flat());
        let places: BTreeSet<_> = one.keys().chain(other.keys()).collect();
        let differing = places
            .into_iter()
            .filter(|place| one.get(*place) != other.get(*place))
            .filter(|(about, name, fact)| {
                // A shown change is reported once.
                let value = (*about, *name, VALUE);
                *fact != DIGEST || one.get(&value) == other.get(&value)
            });
        differing
            .map(|place| {
                let (about, name, fact) = *place;
                let value =
                    |facts: &BTreeMap<_, &str>| facts.get(place).map(|text| (*text).to_owned());
                Difference {
                    about,
                    name: name.to_owned(),
                    fact: fact.to_owned(),
                    from: value(&one),
                    to: value(&other),
                }
            })
            .collect()
    }

    /// Finds the subject that a path of the file belongs to.
    fn place(&mut self, path: &str, patterns: &[&str], reading: &LeafValue) {
        let value = reading.shown.clone();
        if reading.needs_restart {
            if let Some(digest) = &reading.hidden {
                self.note(About::Restart, path, DIGEST, digest.clone());
            }
            return self.note(About::Restart, path, VALUE, value);
        }
        let named = |section: &str| path.strip_prefix(section)?.split_once('.');
        if let Some((tier, fact)) = named("tiers.") {
            return self.note(About::Tier, tier, fact, value);
        }
        if let Some((upstream, fact)) = named("upstreams.") {
            return self.note(About::Upstream, upstream, fact, value);
        }
        let Some((index, fact)) = named("endpoints[") else {
            return self.note(About::Setting, path, VALUE, value);
        };
        let index = index.trim_end_matches(']').parse::<usize>().ok();
        let pattern = index.and_then(|index| patterns.get(index));
        // The path is the name, and the tiers have a fact for each endpoint.
        if let (Some(pattern), false) = (pattern, ["path", "tiers"].contains(&fact)) {
            self.note(About::Endpoint, pattern, fact, value);
        }
    }

    fn note(&mut self, about: About, name: &str, fact: &str, value: String) {
        let subjects = self.facts.entry(about).or_default();
        let facts = subjects.entry(name.to_owned()).or_default();
        facts.insert(fact.to_owned(), value);
    }

    fn flat(&self) -> BTreeMap<(About, &str, &str), &str> {
        let mut flat = BTreeMap::new();
        for (about, subjects) in &self.facts {
            for (name, facts) in subjects {
                for (fact, value) in facts {
                    flat.insert((*about, name.as_str(), fact.as_str()), value.as_str());
                }
            }
        }
        flat
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    const FILE: &str = "
tiers: {pro: {daily: 5}, starter: {daily: 1}}
endpoints: [{path: /a, tiers: [pro], upstream: u}]
upstreams: {u: {servers: [127.0.0.1:9000]}}
";

    fn differences(one: &str, other: &str) -> Vec<String> {
        let effective = |text: &str| {
            Config::parse("g.yaml", text, &|_| Some("7".into()))
                .unwrap()
                .effective
        };
        let none = || "-".to_owned();
        effective(one)
            .differences(&effective(other))
            .into_iter()
            .map(|one| {
                let (from, to) = (one.from.unwrap_or_else(none), one.to.unwrap_or_else(none));
                let about = serde_json::to_value(one.about).unwrap();
                let about = about.as_str().unwrap();
                format!("{about} {} {}: {from} → {to}", one.name, one.fact)
            })
            .collect()
    }

    #[test]
    fn what_is_the_same_in_effect_does_not_differ() {
        let written_out = "
listen: {http: {address: 127.0.0.1:8080}, https: {certificate: self-signed}}
store: {embedded: {durability: 1000ms}}
quota: {timezone: UTC}
tiers:
  starter: {daily: 1, enforce: true}
  pro: {daily: 5}
endpoints: [{path: /a, methods: [GET], tiers: [pro], upstream: u, cost: 1}]
upstreams: {u: {servers: [\"127.0.0.1:9000\"], timeouts: {total: 1m}}}
limits: {header_bytes: 16384B}
logging: {level: info}
";
        assert_eq!(differences(FILE, written_out), [""; 0]);
    }

    #[test]
    fn each_kind_of_change_is_reported_once() {
        let other = "
listen: {http: {}}
store: {embedded: {path: other.db}}
tiers: {pro: {daily: 7, burst: {rate: 1, burst: 2}}, gold: {daily: 9}}
endpoints:
  - {path: /b, tiers: [gold], upstream: u}
  - {path: /a, tiers: [pro, gold], upstream: u, cost: 2}
upstreams: {u: {servers: [127.0.0.1:9001], retries: 0}}
limits: {connections: \"${N}\"}
";
        assert_eq!(
            differences(FILE, other),
            [
                "restart listen.https.address value: 127.0.0.1:8443 → -",
                "restart store.embedded.path value: var/touchline.db → other.db",
                "tier gold daily: - → 9",
                "tier gold endpoint /a: - → included",
                "tier gold endpoint /b: - → included",
                "tier gold enforce: - → true",
                "tier pro burst.burst: - → 2",
                "tier pro burst.rate: - → 1",
                "tier pro daily: 5 → 7",
                "tier starter daily: 1 → -",
                "tier starter enforce: true → -",
                "endpoint /a cost: 1 → 2",
                "endpoint /b cost: - → 1",
                "endpoint /b methods: - → GET",
                "endpoint /b upstream: - → u",
                "upstream u retries: 1 → 0",
                "upstream u servers: 127.0.0.1:9000 → 127.0.0.1:9001",
                "setting limits.connections value: 20000 → ${N}",
                "setting listen.https.certificate value: self-signed → -",
                "setting listen.https.proxy_protocol value: false → -",
            ]
        );
    }

    #[test]
    fn a_hidden_value_that_needs_a_restart_is_compared_by_its_digest() {
        let url = |user: &str| format!("store: {{redis: {{url: 'redis://{user}host:1/0'}}}}{FILE}");
        assert_eq!(differences(&url(":old@"), &url(":old@")), [""; 0]);
        let changed = differences(&url(":old@"), &url(":new@"));
        assert_eq!(changed.len(), 1);
        let path = "restart store.redis.url digest: ";
        let digests = changed[0].strip_prefix(path).unwrap();
        assert_eq!(digests.chars().count(), "3fa9 → 81c2".chars().count());
        let first = differences(&url(""), &url(":new@"));
        assert_eq!(
            first,
            ["restart store.redis.url value: redis://host:1/0 → redis://…@host:1/0"]
        );
    }

    #[test]
    fn a_url_is_shown_without_user_and_password() {
        let url = |text: &str| format!("store: {{redis: {{url: \"{text}\"}}}}{FILE}");
        let shown = |text: &str| {
            let config = Config::parse("g.yaml", &url(text), &|_| Some("hunter2".into())).unwrap();
            serde_json::to_string(&*config.effective).unwrap()
        };
        for text in [
            "redis://me:hunter2@host:1/0",
            "redis://:hunter2@host:1/0",
            "redis://me:${SECRET}@host:1/0",
        ] {
            let shown = shown(text);
            assert!(!shown.contains("hunter2"), "{shown}");
            assert!(shown.contains("redis://…@host:1/0"), "{shown}");
        }
        assert!(shown("redis://host:1/0").contains("redis://host:1/0"));
        let path = format!("store: {{embedded: {{path: 'x://a:hunter2@b/c'}}}}{FILE}");
        let config = Config::parse("g.yaml", &path, &|_| None).unwrap();
        let facts = serde_json::to_string(&*config.effective).unwrap();
        assert!(facts.contains("x://…@b/c"), "{facts}");
    }
}
