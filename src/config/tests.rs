//! Facts about `gateway.yaml`: the shipped file, the defaults, and every kind of mistake.

use std::ffi::OsString;
use std::io;
use std::num::NonZeroU32;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::policy::billing::Rules;
use crate::policy::enforcement::Enforcement;
use crate::policy::key_record::TierName;
use crate::policy::store_settings::Servers;
use crate::policy::token_bucket::Rate;

mod mistakes;
mod rows;
mod whole_file;

const SHIPPED: &str = include_str!("../../gateway.yaml");

/// What a file needs beside the part that a test is about; 3 lines.
const NEEDED: &str = "\
tiers: {pro: {daily: 5}}
endpoints: [{path: /a, tiers: [pro], upstream: u}]
upstreams: {u: {servers: [127.0.0.1:9000]}}
";

fn env(name: &str) -> Option<OsString> {
    match name {
        "FIVE" => Some("5".into()),
        "SECRET" => Some("hunter2".into()),
        "ZONE" => Some("Europe".into()),
        "LATIN" => Some(OsString::from_vec(b"caf\xe9".to_vec())),
        _ => None,
    }
}

/// Knows `good.example:9000` and nothing else.
fn resolve(servers: &[&str]) -> Vec<LookedUp> {
    let known = |server: &&str| match *server {
        "good.example:9000" => Ok(vec![
            "[2001:db8::1]:9000".parse().unwrap(),
            "192.0.2.1:9000".parse().unwrap(),
        ]),
        _ => Err(io::Error::other("no such host")),
    };
    servers.iter().map(known).collect()
}

fn parse(text: &str) -> Result<Config, ConfigErrors> {
    let surroundings = outside::Surroundings {
        file: None,
        env: &env,
        resolve: &resolve,
        purpose: Purpose::Serve,
        in_use: Vec::new(),
    };
    parse_in("g.yaml", text.as_bytes(), &surroundings, None)
        .map_err(|problems| ConfigErrors::new("g.yaml", problems))
}

/// A configuration of [`NEEDED`] and `more` after it.
fn with(more: &str) -> Result<Config, ConfigErrors> {
    parse(&format!("{NEEDED}{more}"))
}

/// The listeners of `listen: {…}` in a file, or every problem as `LINE:COLUMN path: message (hint)`.
pub(super) fn listen(inside: &str) -> Result<Listen, String> {
    match parse(&format!("listen: {{{inside}}}\n{NEEDED}")) {
        Ok(config) => Ok(config.listen),
        Err(errors) => {
            let reported = errors.problems.iter().map(|problem| {
                let (line, column) = (problem.line, problem.column);
                let hint = problem.hint.as_str();
                format!(
                    "{line}:{column} {}: {} ({hint})",
                    problem.path, problem.message
                )
            });
            Err(reported.collect::<Vec<String>>().join(", "))
        }
    }
}

/// `LINE:COLUMN path: message` of every problem, lines counted from the first of `more`.
fn problems_of(result: Result<Config, ConfigErrors>, lines_before: usize) -> Vec<String> {
    match result {
        Ok(_) => Vec::new(),
        Err(errors) => errors
            .problems
            .iter()
            .map(|problem| {
                format!(
                    "{}:{} {}: {}",
                    problem.line - lines_before,
                    problem.column,
                    problem.path,
                    problem.message
                )
            })
            .collect(),
    }
}

#[test]
fn the_shipped_file_holds_the_tiers_and_endpoints_of_the_contract() {
    let config = Config::parse("gateway.yaml", SHIPPED, &|_| None).unwrap();
    let tiers: Vec<(&str, u64)> = config
        .tiers
        .iter()
        .map(|(name, tier)| (name.as_str(), tier.daily.get()))
        .collect();
    assert_eq!(
        tiers,
        [("starter", 1_000), ("pro", 3_000), ("enterprise", 10_000)]
    );
    let all = vec!["starter", "pro", "enterprise"];
    let expected = [
        ("markets", all.clone()),
        ("predictions", all.clone()),
        ("predictions/{fixture_id}", all),
        ("insights", vec!["pro", "enterprise"]),
        ("sentiment", vec!["pro", "enterprise"]),
        ("rankings", vec!["enterprise"]),
    ];
    let endpoints: Vec<_> = config.endpoints.iter().collect();
    assert_eq!(endpoints.len(), expected.len());
    for (endpoint, (path, tiers)) in endpoints.iter().zip(expected) {
        assert_eq!(*endpoint.pattern, format!("/api/v1/data/{path}"));
        assert_eq!(
            endpoint
                .tiers
                .iter()
                .map(TierName::as_str)
                .collect::<Vec<_>>(),
            tiers
        );
        assert_eq!(endpoint.methods, [http::Method::GET]);
        assert_eq!(
            (endpoint.cost.get(), &*endpoint.upstream),
            (1, "prediction-data")
        );
    }
    assert_eq!(
        config.tier(&"pro".parse().unwrap()).unwrap().daily.get(),
        3_000
    );
    assert!(config.tier(&"gold".parse().unwrap()).is_none());
    let prices = config.tiers.iter().map(|(_, tier)| tier.price_cents);
    assert_eq!(
        prices.collect::<Vec<_>>(),
        [Some(9_900), Some(29_900), Some(79_900)]
    );
    let day = Duration::from_secs(86_400);
    assert_eq!(
        (config.keeping.settle_window, config.keeping.retention),
        (7 * day, 396 * day)
    );
    assert_eq!(config.billing, Rules::default());
    assert_eq!(
        config.upstream("prediction-data").unwrap().servers,
        [UpstreamServer {
            name: "127.0.0.1:9000".into(),
            weight: NonZeroU32::MIN,
            addresses: vec!["127.0.0.1:9000".parse().unwrap()],
        }]
    );
    assert_eq!(config.hash.len(), 12);
}

#[test]
fn what_the_shipped_file_writes_down_is_what_leaving_it_out_gives() {
    let shipped = parse(SHIPPED).unwrap();
    let text: serde_yaml::Value = serde_yaml::from_str(SHIPPED).unwrap();
    // Every section but those that have no default, first left out whole, then emptied.
    for emptied in [false, true] {
        let mut bare = text.clone();
        let mapping = bare.as_mapping_mut().unwrap();
        for section in [
            "quota", "keys", "billing", "events", "forward", "runtime", "limits", "logging",
            "tracing", "store", "listen",
        ] {
            let empty = match section {
                "store" => "{embedded: {}}",
                "listen" => "{http: {}, https: {}, admin: {}}",
                _ => "{}",
            };
            if emptied {
                mapping.insert(section.into(), serde_yaml::from_str(empty).unwrap());
            } else {
                assert!(mapping.remove(section).is_some(), "{section}");
            }
        }
        let upstream = bare["upstreams"]["prediction-data"]
            .as_mapping_mut()
            .unwrap();
        upstream.remove("timeouts").unwrap();
        for key in ["retries", "choice", "resolve", "ejection", "protocol"] {
            upstream.remove(key).unwrap();
        }
        for endpoint in bare["endpoints"].as_sequence_mut().unwrap() {
            let endpoint = endpoint.as_mapping_mut().unwrap();
            endpoint.remove("methods").unwrap();
            endpoint.remove("cost").unwrap();
        }
        let mut bare = parse(&serde_yaml::to_string(&bare).unwrap()).unwrap();
        assert_ne!(bare.hash, shipped.hash);
        assert_eq!(bare.effective.differences(&shipped.effective), []);
        bare.hash.clone_from(&shipped.hash);
        bare.effective = shipped.effective.clone();
        assert_eq!(format!("{bare:#?}"), format!("{shipped:#?}"));
    }
}

#[test]
fn a_tier_is_enforced_unless_it_is_in_shadow() {
    let enforcement = |more: &str| {
        let config = parse(&NEEDED.replace("daily: 5", &format!("daily: 5{more}"))).unwrap();
        config.tiers[0].1.enforcement
    };
    assert_eq!(enforcement(""), Enforcement::Enforced);
    assert_eq!(enforcement(", enforce: true"), Enforcement::Enforced);
    assert_eq!(enforcement(", enforce: false"), Enforcement::Shadow);
}

#[test]
fn a_date_on_which_an_endpoint_goes_away_is_its_first_instant_in_the_quotas_zone() {
    let config = parse(
        "tiers: {pro: {daily: 5}}
quota: {timezone: Europe/Berlin}
endpoints: [{path: /a, tiers: [pro], upstream: u, deprecation: 2026-12-01, sunset: 2027-06-30T12:00:00Z, links: {successor_version: /b}}]
upstreams: {u: {servers: [127.0.0.1:9000]}}
",
    );
    let config = config.unwrap();
    let retirement = &config.endpoints.find("/a").unwrap().retirement;
    let output = |instant: Option<jiff::Timestamp>| instant.unwrap().to_string();
    assert_eq!(output(retirement.deprecation), "2026-11-30T23:00:00Z");
    assert_eq!(output(retirement.sunset), "2027-06-30T12:00:00Z");
    assert_eq!(retirement.headers().len(), 3);
}

#[test]
fn traces_go_where_the_file_directs_and_nowhere_by_default() {
    let tracing = |more: &str| with(&format!("tracing: {more}\n")).map(|config| config.tracing);
    assert_eq!(with("").unwrap().tracing, Tracing::default());
    assert_eq!(tracing("{}").unwrap().otlp, None);
    let url = "https://collector.example:4318/v1/traces";
    let otlp = tracing(&format!("{{otlp: {{url: '{url}'}}}}"));
    let otlp = otlp.unwrap().otlp.unwrap();
    assert_eq!(otlp.url.reveal(), url);
    assert_eq!((otlp.sample_percent, otlp.header), (1, None));
    assert_eq!(otlp.timeout, Duration::from_secs(5));
    let more =
        "header: {name: Authorization, value: 'Bearer ${SECRET}'}, sample: 100%, timeout: 1m";
    let otlp = tracing(&format!("{{otlp: {{url: '{url}', {more}}}}}"));
    let otlp = otlp.unwrap().otlp.unwrap();
    assert_eq!(otlp.header.unwrap().value.reveal(), "Bearer hunter2");
    assert_eq!(otlp.sample_percent, 100);
    for (more, output) in [
        ("{otlp: {}}", "tracing.otlp.url: the key is missing"),
        (
            "{otlp: {url: 'collector:4318'}}",
            "tracing.otlp.url: the value is not the URL of a collector",
        ),
        (
            "{otlp: {url: 'http://a/', sample: 101%}}",
            "tracing.otlp.sample: ",
        ),
        (
            "{otlp: {url: 'http://a/', timeout: 2m}}",
            "tracing.otlp.timeout: ",
        ),
    ] {
        let problems = problems_of(with(&format!("tracing: {more}")), 3);
        assert!(
            problems.iter().any(|one| one.contains(output)),
            "{problems:?}"
        );
    }
}

#[test]
fn both_ends_of_a_range_are_taken() {
    for more in [
        "limits: {header_count: 8, header_bytes: 1KiB, target_bytes: 256B, body_bytes: 0B, shutdown_grace: 0s}",
        "limits: {header_count: 256, header_bytes: 1MiB, target_bytes: 64KiB, body_bytes: 1GiB, shutdown_grace: 1h}",
        "limits: {exempt_addresses: [], failed_authentications: 1}",
        "limits: {exempt_addresses: ['2001:db8::/32', 192.0.2.1], failed_authentications: 10000}",
        "listen: {https: {hsts: 0s}}",
        "listen: {https: {hsts: 1s}}",
        "listen: {https: {hsts: 1000d}}",
        "runtime: {threads: 256}",
        "store: {embedded: {durability: 10ms}}",
        "store: {embedded: {durability: commit}}",
        "store: {redis: {timeout: 1ms}}",
        "store: {redis: {timeout: 10s}}",
        "store: {redis: {max_staleness: 1m}}",
        "store: {redis: {max_staleness: 30d}}",
        "store: {redis: {url: \"rediss://x\", database: 0, tls: {}}}",
        "store: {redis: {sentinels: [\"a:1\", \"[::1]:65535\"], master: m, database: 65535, username: u, tls: {}}}",
        "store: {redis: {cluster: [\"a.example:1\"], database: 0, tls: {}}}",
        "store: {redis: {outage: bounded, journal: j.db, journal_interval: 10ms, min_nodes: 1, cold_cap: 0%, count_staleness: 1s}}",
        "store: {redis: {outage: deny, journal_interval: 1m, min_nodes: 1000, cold_cap: 100%, count_staleness: 1d}}",
        "store: {redis: {outage: open}}",
        "listen: {http: {address: '0.0.0.0:80', cleartext: allowed}}",
        "listen: {http: {}, admin: {address: '0.0.0.0:9', token: '${SECRET}${SECRET}${SECRET}'}}",
        "listen: {http: {address: '[::1]:0'}, https: {address: '[::1]:0'}}",
    ] {
        assert_eq!(problems_of(with(more), 3), Vec::<String>::new(), "{more}");
    }
}

/// What a tier with `more` in it is.
fn tier_with(more: &str) -> Result<Config, ConfigErrors> {
    parse(&NEEDED.replace("daily: 5", &format!("daily: 5, {more}")))
}

#[test]
fn a_tier_has_the_rates_that_are_written_and_else_none() {
    let tier = |config: Config| config.tier(&"pro".parse().unwrap()).unwrap().clone();
    let plain = tier(with("").unwrap());
    assert_eq!((plain.burst, plain.concurrent), (None, None));
    let limited =
        tier(tier_with("burst: {rate: 10000, burst: 1000000}, concurrent: 1000000").unwrap());
    let number = NonZeroU32::new;
    let rate = Rate::per_second(number(10_000).unwrap(), number(1_000_000).unwrap());
    assert_eq!(
        (limited.burst, limited.concurrent),
        (Some(rate), number(1_000_000))
    );
    for (more, expected) in [
        (
            "burst: {rate: 20}",
            vec!["1:25 tiers.pro.burst.burst: the key is missing"],
        ),
        (
            "burst: {burst: 20}",
            vec!["1:25 tiers.pro.burst.rate: the key is missing"],
        ),
        (
            "burst: {rate: 0, burst: 0}",
            vec![
                "1:39 tiers.pro.burst.rate: 0 is too small",
                "1:49 tiers.pro.burst.burst: 0 is too small",
            ],
        ),
        (
            "burst: {rate: 10001, burst: 1000001}, concurrent: 1000001",
            vec![
                "1:39 tiers.pro.burst.rate: 10001 is too large",
                "1:53 tiers.pro.burst.burst: 1000001 is too large",
                "1:75 tiers.pro.concurrent: 1000001 is too large",
            ],
        ),
        (
            "burst: 20",
            vec!["1:32 tiers.pro.burst: expected keys, found a number"],
        ),
        (
            "concurrent: none",
            vec!["1:37 tiers.pro.concurrent: expected a whole number, found \"none\""],
        ),
    ] {
        assert_eq!(problems_of(tier_with(more), 0), expected, "{more}");
    }
}

/// A signing secret.
const WHSEC: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

#[test]
fn shares_are_whole_percentages_and_a_webhook_has_a_url_and_a_secret() {
    let events = |more: &str| with(&format!("events: {more}\n")).map(|config| config.events);
    let shares = |more: &str| {
        let events = events(more).unwrap();
        events
            .shares
            .iter()
            .map(|share| share.percent())
            .collect::<Vec<_>>()
    };
    assert_eq!(shares("{}"), [80, 95, 100]);
    assert_eq!(shares("{shares: []}"), [0; 0]);
    assert_eq!(shares("{shares: [100%, 1%]}"), [1, 100]);
    assert_eq!(events("{}").unwrap().webhook, None);
    let given = format!("{{webhook: {{url: \"https://h/x?t=hunter2\", secret: {WHSEC}}}}}");
    let webhook = events(&given).unwrap().webhook.unwrap();
    assert_eq!(webhook.url.reveal(), "https://h/x?t=hunter2");
    assert_eq!(webhook.timeout, Duration::from_secs(5));
    assert_eq!(webhook.give_up, Duration::from_secs(72 * 3_600));
    let shown = format!("{webhook:?}");
    assert!(
        !shown.contains("hunter2") && !shown.contains("MfKQ"),
        "{shown}"
    );
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("secret");
    std::fs::write(&file, format!("{WHSEC}\n")).unwrap();
    let from_file = format!(
        "{{webhook: {{url: \"https://h/x?t=hunter2\", secret_file: {}}}}}",
        file.display()
    );
    assert_eq!(events(&from_file).unwrap().webhook, Some(webhook));
    for (more, problem) in [
        ("{shares: [0%]}", "events.shares[0]: \"0%\" is not a share"),
        (
            "{shares: [101%]}",
            "events.shares[0]: \"101%\" is not a share",
        ),
        (
            "{shares: [80%, 80%]}",
            "events.shares[1]: it is in the list already",
        ),
        (
            "{shares: [1%, 2%, 3%, 4%, 5%, 6%, 7%, 8%, 9%]}",
            "events.shares: there are too many shares",
        ),
        (
            "{webhook: {secret: WHSEC}}",
            "events.webhook.url: the key is missing",
        ),
        (
            "{webhook: {url: \"ftp://hunter2\", secret: WHSEC}}",
            "events.webhook.url: the value is not the URL of a webhook",
        ),
        (
            "{webhook: {url: \"http://h/\", secret: hunter2}}",
            "events.webhook.secret: the value is not a signing secret",
        ),
        (
            "{webhook: {url: \"http://h/\"}}",
            "events.webhook.secret: the key is missing",
        ),
    ] {
        let output = problems_of(
            events(&more.replace("WHSEC", WHSEC)).map(|_| parse(SHIPPED).unwrap()),
            0,
        );
        assert_eq!(output.len(), 1, "{output:?}");
        assert!(output[0].contains(problem), "{output:?}");
        assert!(!output[0].contains("hunter2"), "{output:?}");
    }
}

#[test]
fn variables_and_files_give_values_that_are_never_shown() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("password");
    std::fs::write(&file, "pass word\n").unwrap();
    let config = with(&format!(
        "store: {{redis: {{url: \"redis://:${{SECRET}}@h:1\", password_file: {}}}}}\nruntime: {{threads: \"${{FIVE}}\"}}\nquota: {{timezone: \"${{ZONE}}/London\"}}\n",
        file.display()
    ))
    .unwrap();
    let StoreConfig::Redis(redis) = &config.store else {
        panic!("{:?}", config.store)
    };
    let url = Servers::Url("redis://:hunter2@h:1".into());
    assert!(redis.servers == url, "{:?}", redis.servers);
    assert_eq!(redis.password, Some("pass word".into()));
    assert_eq!(config.runtime.threads, 5);
    assert_eq!(config.calendar.name(), "Europe/London");
    let shown = format!("{config:?}");
    assert!(!shown.contains("hunter2") && !shown.contains("pass word"));
}

#[test]
fn a_host_name_of_an_upstream_is_resolved_to_ipv4_where_it_can() {
    let text = NEEDED.replace("127.0.0.1:9000", "good.example:9000");
    assert_eq!(
        parse(&text).unwrap().upstreams[0].1.servers,
        [UpstreamServer {
            name: "good.example:9000".into(),
            weight: NonZeroU32::MIN,
            addresses: vec!["192.0.2.1:9000".parse().unwrap()],
        }]
    );
}

/// The lines of the warnings about a valid text.
fn warnings(text: &str) -> Vec<String> {
    let warnings = parse(text).unwrap().warnings;
    warnings.iter().map(|one| one.warning("g.yaml")).collect()
}

#[test]
fn a_cost_above_the_daily_units_of_an_enforced_tier_is_a_warning() {
    let warnings = |tiers: &str, cost: u32| {
        let text = format!(
            "tiers: {{{tiers}}}\nendpoints: [{{path: /a, tiers: [pro], cost: {cost}, upstream: u}}, \
             {{path: /b, tiers: [other], upstream: u}}]\nupstreams: {{u: {{servers: [127.0.0.1:9000]}}}}"
        );
        warnings(&text)
    };
    assert_eq!(
        warnings("pro: {daily: 5}, other: {daily: 1}", 6),
        [
            "g.yaml:2:44: warning: endpoints[0].cost: without a grant, pro cannot pay for it: it has 5 units a day \
             (hint: lower the cost, raise tiers.pro.daily, or remove pro from tiers)"
        ]
    );
    assert_eq!(warnings("pro: {daily: 6}, other: {daily: 1}", 6), [""; 0]);
    let shadow = "pro: {daily: 5, enforce: false}, other: {daily: 1}";
    assert_eq!(warnings(shadow, 6), [""; 0]);
}

#[test]
fn a_tier_without_an_endpoint_is_a_warning() {
    let tiers =
        |tiers: &str| warnings(&NEEDED.replacen("tiers: {", &format!("tiers: {{{tiers}"), 1));
    assert_eq!(
        tiers("old: {daily: 1}, "),
        [
            "g.yaml:1:9: warning: tiers.old: no endpoint includes this tier: its keys get a 403 \
             (hint: add it to tiers of an endpoint; a tier that only has a price for invoices may stay)"
        ]
    );
    assert_eq!(tiers(""), [""; 0]);
}

#[test]
fn a_timeout_above_that_of_the_whole_answer_is_a_warning() {
    let timeouts = |timeouts: &str| {
        warnings(&NEEDED.replace("9000]", &format!("9000], timeouts: {{{timeouts}}}")))
    };
    assert_eq!(
        timeouts("total: 500ms, connect: 501ms, slow: 1s"),
        [("78", "connect"), ("91", "slow")].map(|(column, key)| format!(
            "g.yaml:3:{column}: warning: upstreams.u.timeouts.{key}: it has no effect, because total is shorter and ends the request \
             before (hint: make it shorter than total, or total longer)"
        ))
    );
    assert_eq!(timeouts("total: 1s, connect: 1s, slow: 1s"), [""; 0]);
    // A default that is longer was not chosen.
    assert_eq!(timeouts("total: 500ms"), [""; 0]);
}

#[test]
fn names_with_one_address_are_a_warning_and_one_name_twice_is_a_problem() {
    let servers = |servers: &str| parse(&NEEDED.replace("127.0.0.1:9000", servers));
    let config = servers("good.example:9000, 192.0.2.1:9000").unwrap();
    assert_eq!(config.upstreams[0].1.servers.len(), 2);
    assert_eq!(
        config.warnings[0].to_string(),
        "upstreams.u.servers[1]: 192.0.2.1:9000 has an address of another server of the list \
         (hint: that address gets the requests of both)"
    );
    for (written, column, shown) in [
        (
            "good.example:9000, good.example:9000",
            46,
            "good.example:9000",
        ),
        (
            "'[::1]:1', '[0:0:0:0:0:0:0:1]:1'",
            38,
            "[0:0:0:0:0:0:0:1]:1",
        ),
    ] {
        assert_eq!(
            problems_of(servers(written), 0),
            [format!(
                "3:{column} upstreams.u.servers[1]: {shown} is in the list already"
            )]
        );
    }
}

#[test]
fn a_byte_order_mark_before_the_first_key_is_ignored() {
    assert!(parse(&format!("\u{feff}{NEEDED}")).is_ok());
}

#[test]
fn quotes_are_named_only_where_a_number_has_them() {
    for (daily, hint) in [
        ("'30'", "remove the quotes"),
        ("030", "write it without the leading zero"),
        ("'3x'", "write digits only"),
    ] {
        let text = NEEDED.replace("daily: 5", &format!("daily: {daily}"));
        let errors = parse(&text).unwrap_err().to_string();
        assert!(errors.contains(hint), "{daily}: {errors}");
    }
    let list = NEEDED.replace("upstream: u", "upstream: [u]");
    let errors = parse(&list).unwrap_err().to_string();
    assert!(
        errors.contains("write one text, without brackets"),
        "{errors}"
    );
}

#[test]
fn a_password_in_a_wrong_place_is_in_no_problem() {
    for more in [
        "store: {redis: {cluster: ['redis://me:hunter2@host:1']}}",
        "store: {redis: {sentinels: ['redis://me:hunter2@host:1'], master: m}}",
        "store: {redis: {cluster: ['me:hunter2@host:1']}}",
        "limits: {connections: 'redis://me:hunter2@host:1'}",
        "limits: {header_bytes: 'redis://me:hunter2@host:1'}",
    ] {
        let errors = with(more).unwrap_err().to_string();
        assert!(errors.contains("…@host:1"), "{errors}");
        assert!(!errors.contains("hunter2"), "{errors}");
    }
    let url = NEEDED.replace("127.0.0.1:9000", "'http://me:hunter2@host:1'");
    let errors = parse(&url).unwrap_err().to_string();
    assert!(errors.contains("http://…@host:1"), "{errors}");
    assert!(!errors.contains("hunter2"), "{errors}");
}

#[test]
fn a_server_from_a_variable_is_shown_as_written() {
    let text = NEEDED.replace(
        "127.0.0.1:9000",
        "'${ZONE}.example:1', {address: '${ZONE}:2', weight: 3}",
    );
    let facts = serde_json::to_string(&*parse(&text).unwrap().effective).unwrap();
    assert!(
        facts.contains("${ZONE}.example:1, ${ZONE}:2 (weight 3)") && !facts.contains("Europe"),
        "{facts}"
    );
}

#[test]
fn a_name_that_does_not_resolve_is_a_warning_and_one_that_is_given_twice_a_problem() {
    let servers = |servers: &str| parse(&NEEDED.replace("127.0.0.1:9000", servers));
    let config = servers("127.0.0.1:9000, bad.example:1").unwrap();
    let [server, unresolved] = config.upstreams[0].1.servers.as_slice() else {
        panic!("{:?}", config.upstreams)
    };
    assert_eq!((server.addresses.len(), unresolved.addresses.len()), (1, 0));
    let warnings: Vec<String> = config
        .warnings
        .iter()
        .map(|one| one.warning("g.yaml"))
        .collect();
    assert_eq!(
        warnings,
        [
            "g.yaml:3:43: warning: upstreams.u.servers[1]: \"bad.example:1\" cannot be resolved: no such host \
          (hint: a gateway uses this server once its name resolves)"
        ]
    );
    assert_eq!(
        problems_of(servers("bad.example:1, bad.example:1"), 0),
        ["3:42 upstreams.u.servers[1]: bad.example:1 is in the list already"]
    );
}

proptest! {
    #[test]
    fn no_mutation_of_the_shipped_file_makes_the_check_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0usize..12, "[ -~\t\nü]|\\$\\{A\\}|[0-9]{1,25}(KiB|ms)?|- |: |\\{|\\[|&a |\\*a|!x "), 1..6),
    ) {
        let mut text: Vec<char> = SHIPPED.chars().collect();
        for (at, removed, inserted) in edits {
            let at = at.index(text.len());
            let end = (at + removed).min(text.len());
            text.splice(at..end, inserted.chars());
        }
        let text: String = text.into_iter().collect();
        if let Err(errors) = parse(&text) {
            prop_assert!(!errors.problems.is_empty());
            let lines = text.lines().count() + 1;
            prop_assert!(errors.problems.iter().all(|problem| (1..=lines).contains(&problem.line) && problem.column >= 1));
        }
    }
}

#[test]
fn billing_has_two_rules_of_two_words_each() {
    use crate::policy::billing::{Months, UnusedKeys};
    let billing = |more: &str| with(&format!("billing: {more}\n")).map(|config| config.billing);
    for (months, read_months) in [("by_day", Months::ByDay), ("whole", Months::Whole)] {
        for (unused, read_unused) in [("bill", UnusedKeys::Bill), ("skip", UnusedKeys::Skip)] {
            let read = billing(&format!("{{months: {months}, unused_keys: {unused}}}"));
            let expected = Rules {
                months: read_months,
                unused_keys: read_unused,
            };
            assert_eq!(read.unwrap(), expected);
        }
    }
    assert_eq!(billing("{}").unwrap(), Rules::default());
    for (more, expected) in [
        (
            "{months: half}",
            "billing.months: \"half\" is not a way to bill months (hint: write by_day or whole)",
        ),
        (
            "{unused_keys: no}",
            "billing.unused_keys: \"no\" is not a way to bill unused keys (hint: write bill or skip)",
        ),
        ("{month: whole}", "billing.month: there is no such key"),
    ] {
        let errors = billing(more).unwrap_err().to_string();
        assert!(errors.contains(expected), "{errors}");
    }
}
