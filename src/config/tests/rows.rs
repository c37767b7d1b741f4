//! Facts about every row, found by walking them: what a reload may change, and what is never shown.

use serde_yaml::Value;

use super::*;
use crate::config::rows::{Row, What};

/// What is in every secret here, in files too.
const SECRET: &str = "hunter2";
/// A file in which everything is given that can stand in one file. `DIR` has the files of [`directory`].
const EVERYTHING: &str = r#"
listen:
  http: {address: 127.0.0.1:81, cleartext: loopback, proxy_protocol: false}
  https:
    address: 127.0.0.1:82
    certificate: DIR/a.pem
    private_key: DIR/a.key
    client_certificates: {authorities: DIR/a.pem, mode: required}
    hsts: 1d
    proxy_protocol: false
  redirect: {address: 127.0.0.1:83, port: 443, hosts: [a.example], proxy_protocol: false}
  trusted_proxies: [10.0.0.0/8]
  admin: {address: 127.0.0.1:84, token: hunter2-hunter2-hunter2}
  upgrade: DIR/a.sock
store: {embedded: {path: DIR/a.db, durability: 1s}}
quota: {timezone: UTC, settle_window: 2h, retention: 100d}
keys: {prefix: abc, realm: here}
tiers:
  any: {daily: 5, price: 9.5, enforce: true, burst: {rate: 2, burst: 3}, concurrent: 4}
  other: {daily: 5}
billing: {months: whole, unused_keys: skip}
endpoints:
  - path: /a
    methods: [GET]
    tiers: [any]
    cost: 2
    upstream: any
    deprecation: 2026-12-01
    sunset: 2027-12-01
    links: {deprecation: /a, sunset: /b, successor_version: /c}
    maintenance: {until: 2026-12-01, message: Back soon.}
openapi: {title: Here, documentation: https://docs.example/a}
events:
  shares: [50%]
  webhook: {url: https://h.example/hunter2, secret: whsec_aHVudGVyMmh1bnRlcjJodW50ZXIyaHVudGVyMg==, timeout: 6s, give_up: 70h}
upstreams:
  any:
    servers: [{address: 127.0.0.1:9000, weight: 2}]
    choice: round_robin
    resolve: 10s
    health: {path: /a, interval: 6s, timeout: 2s, unhealthy_after: 4, healthy_after: 5}
    ejection: {failures: 6, pause: 2s, pause_max: 3s}
    tls: {name: a.example, ca_file: DIR/a.pem, certificate: DIR/a.pem, private_key: DIR/a.key}
    protocol: http2
    header: {name: X-A, value: hunter2}
    compression: {codings: [gzip], min_bytes: 2KiB}
    timeouts: {connect: 2s, read: 3s, total: 4s, slow: 5s, idle: 6s}
    retries: 2
  other: {servers: [127.0.0.1:9001]}
forward: {headers_denied: [cookie], answer_headers_denied: [alt-svc]}
runtime: {threads: 3}
limits:
  {header_bytes: 2KiB, header_count: 9, target_bytes: 300B, body_bytes: 2MiB, request_head: 11s, tls_handshake: 12s, connections: 13,
  connections_per_address: 14, failed_authentications: 15, exempt_addresses: [10.0.0.0/8], requests_per_connection: 16,
  connection_age: 17s, response_rate: 18B, h2_streams: 19, h2_memory: 20MiB, h2_resets: 21, h2_control_frames: 22, keepalive_idle: 23s,
  request_read: 24s, response_write: 25s, shutdown_grace: 26s}
logging: {level: info, format: json, access_log: off, access_log_sample: 50%}
tracing: {otlp: {url: https://c.example/hunter2, header: {name: X-A, value: hunter2}, sample: 2%, timeout: 6s}}
"#;
/// What is given in its place elsewhere.
const INSTEAD: [(&str, &str); 9] = [
    ("listen.https", "{certificates: [{certificate: DIR/a.pem, private_key: DIR/a.key}]}"),
    ("listen.admin", "{token_file: DIR/secret.token}"),
    (
        "store",
        "{redis: {url: 'rediss://me:hunter2@h/1', database: 3, username: me, password_file: DIR/secret.token, key_prefix: p,
         tls: {ca_file: DIR/a.pem, certificate: DIR/a.pem, private_key: DIR/a.key}, timeout: 50ms, replica: DIR/a.replica,
         max_staleness: 2h, outage: open, journal: DIR/a.journal, journal_interval: 20ms, min_nodes: 2, cold_cap: 3%, count_staleness: 2m}}",
    ),
    ("store", "{redis: {sentinels: ['a:1'], master: a, sentinel_password_file: DIR/secret.token}}"),
    ("store", "{redis: {cluster: ['a:1']}}"),
    ("store", "{redis: {url_file: DIR/secret.redis}}"),
    ("events.webhook", "{url_file: DIR/secret.http, secret_file: DIR/secret.whsec}"),
    ("upstreams.any.header", "{name: X-A, value_file: DIR/secret.token}"),
    ("tracing.otlp.header", "{name: X-A, value_file: DIR/secret.token}"),
];
/// Another value of each row, by the end of its path, for which its form has none. Of files it is the one with `b` for `a`.
const OTHERWISE: [(&str, &str); 36] = [
    (".address", "127.0.0.1:99"),
    (".hosts", "[b.example]"),
    (".trusted_proxies", "[10.0.0.0/9]"),
    (".token", "hunter2-hunter2-hunter22"),
    ("redis.url", "'rediss://me:hunter22@i/1'"),
    (".username", "you"),
    (".key_prefix", "q"),
    (".sentinels", "['a:2']"),
    (".master", "b"),
    (".cluster", "['a:2']"),
    (".timezone", "Asia/Tokyo"),
    (".prefix", "abd"),
    (".realm", "there"),
    (".title", "There"),
    (".documentation", "https://docs.example/b"),
    ("endpoints[0].path", "/b"),
    (".methods", "[PUT]"),
    (".tiers", "[other]"),
    (".upstream", "other"),
    ("].deprecation", "2026-12-02"),
    ("].sunset", "2027-12-02"),
    ("links.deprecation", "/d"),
    ("links.sunset", "/d"),
    (".successor_version", "/d"),
    (".until", "2026-12-02"),
    (".message", "Soon."),
    (".shares", "[60%]"),
    (
        "webhook.secret",
        "whsec_aHVudGVyMmh1bnRlcjJodW50ZXIyaHVudGVyMw==",
    ),
    ("webhook.url", "https://other.example/hunter2"),
    ("otlp.url", "https://other.example/hunter2"),
    ("health.path", "/b"),
    (".name", "x-b"),
    (".value", "hunter22"),
    (".codings", "[zstd]"),
    ("headers_denied", "[x-b]"),
    (".exempt_addresses", "[]"),
];

/// A row that is no section.
struct Leaf {
    path: String,
    /// The least and the most.
    bounds: Option<(String, String)>,
    is_secret: bool,
    needs_restart: bool,
    /// Values that it may have, as far as its form has any.
    values: Vec<Value>,
}

/// Every leaf under `rows`, whose path is `at`; of lists and names the first.
fn leaves(rows: &[Row], at: &outline::Path, needs_restart: bool) -> Vec<Leaf> {
    let mut found = Vec::new();
    for Row { name, form, .. } in rows {
        let at = at.key(name);
        let needs_restart = needs_restart || form.needs_restart;
        let mut leaf = |is_secret, values| {
            found.push(Leaf {
                path: at.as_str().to_owned(),
                bounds: form.bounds.clone(),
                is_secret,
                needs_restart,
                values,
            });
        };
        match &form.what {
            What::Scalar(shape) => {
                let words = shape["anyOf"][0]["enum"]
                    .as_array()
                    .cloned()
                    .unwrap_or_default();
                let mut values: Vec<Value> = words
                    .into_iter()
                    .map(|word| serde_yaml::to_value(word).unwrap())
                    .collect();
                if let Some((least, most)) = &form.bounds {
                    values.extend([least, most].map(|bound| serde_yaml::from_str(bound).unwrap()));
                }
                if shape["type"][0] == "boolean" {
                    values.extend([true, false].map(Value::from));
                }
                leaf(form.is_secret, values);
            }
            What::Section(rows) => found.extend(leaves(rows, &at, needs_restart)),
            What::Named(rows) => found.extend(leaves(rows, &at.key("any"), needs_restart)),
            What::List(item) => match &item.what {
                What::Section(rows) => found.extend(leaves(rows, &at.index(0), needs_restart)),
                What::Either(forms) => {
                    let What::Section(rows) = &forms[1].what else {
                        panic!("{name}")
                    };
                    found.extend(leaves(rows, &at.index(0), needs_restart));
                }
                What::Scalar(_) | What::List(_) | What::Named(_) => leaf(false, Vec::new()),
            },
            What::Either(_) => panic!("{name}"),
        }
    }
    found
}

/// The value at a path, which is made in its section where there is none.
fn place<'v>(value: &'v mut Value, path: &str) -> Option<&'v mut Value> {
    let mut steps = path.split(['.', '[']);
    steps.try_fold(value, |value, step| match step.strip_suffix(']') {
        Some(index) => value.get_mut(index.parse::<usize>().unwrap()),
        None => value.is_mapping().then(|| &mut value[step]),
    })
}

fn yaml(text: &str, directory: &Path) -> Value {
    let text = text.replace("DIR", directory.to_str().unwrap());
    serde_yaml::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// A directory with the files that are named here: a certificate with its key, and secrets.
fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["a.example".to_owned()]).unwrap();
    let certificate = (made.cert.pem(), made.signing_key.serialize_pem());
    for (a, secret) in [("a", "secret"), ("b", "secret2")] {
        for (name, text) in [
            (format!("{a}.pem"), certificate.0.clone()),
            (format!("{a}.key"), certificate.1.clone()),
            (
                format!("{secret}.token"),
                format!("{SECRET}-{SECRET}-{SECRET}-{a}"),
            ),
            (
                format!("{secret}.redis"),
                format!("redis://:{SECRET}@{a}:1"),
            ),
            (format!("{secret}.http"), format!("https://h/{SECRET}/{a}")),
            (
                format!("{secret}.whsec"),
                "whsec_aHVudGVyMmh1bnRlcjJodW50ZXIyaHVudGVyMg==".to_owned(),
            ),
        ] {
            std::fs::write(directory.path().join(name), text).unwrap();
        }
    }
    directory
}

/// Files that have every leaf among them.
fn files(directory: &Path) -> Vec<Value> {
    let everything = yaml(EVERYTHING, directory);
    let mut files = vec![everything.clone()];
    for (path, instead) in INSTEAD {
        let mut file = everything.clone();
        *place(&mut file, path).unwrap() = yaml(instead, directory);
        files.push(file);
    }
    files
}

/// Every leaf with a file that has it, and the same file with another value of it.
fn changes(directory: &Path) -> Vec<(Leaf, String, String)> {
    let root = sections::form();
    let What::Section(rows) = &root.what else {
        panic!()
    };
    let files = files(directory);
    let change = |leaf: Leaf| {
        let value = |file: &Value| {
            place(&mut file.clone(), &leaf.path)
                .filter(|value| !value.is_null())
                .cloned()
        };
        let file = files.iter().find(|file| value(file).is_some());
        let file =
            file.unwrap_or_else(|| panic!("neither EVERYTHING nor INSTEAD has {}", leaf.path));
        let now = value(file).unwrap();
        let named = OTHERWISE.iter().filter(|(end, _)| leaf.path.ends_with(end));
        let mut values: Vec<Value> = named.map(|(_, value)| yaml(value, directory)).collect();
        values.extend(leaf.values.clone());
        if let Some(file) = now.as_str() {
            values.push(
                file.replace("/a.", "/b.")
                    .replace("/secret.", "/secret2.")
                    .into(),
            );
        }
        let next = values
            .into_iter()
            .filter(|value| *value != now)
            .map(|value| {
                let mut next = file.clone();
                *place(&mut next, &leaf.path).unwrap() = value;
                serde_yaml::to_string(&next).unwrap()
            });
        let file = serde_yaml::to_string(file).unwrap();
        let mut next = next.filter(|next| parse(next).is_ok());
        let next = next.next().unwrap_or_else(|| {
            panic!(
                "OTHERWISE has no other value of {}: {:?}",
                leaf.path,
                parse(&file).err()
            )
        });
        (leaf, file, next)
    };
    leaves(rows, &outline::Path::default(), false)
        .into_iter()
        .map(change)
        .collect()
}

#[test]
fn a_reload_changes_every_row_but_those_that_need_a_restart_which_it_refuses_at_their_place() {
    let directory = directory();
    for (leaf, file, next) in changes(directory.path()) {
        let running = parse(&file).unwrap();
        let over = Running {
            config: &running,
            keys_of: &|_| Ok(0),
        };
        let surroundings = outside::Surroundings {
            file: None,
            env: &env,
            resolve: &resolve,
            purpose: Purpose::Serve,
            in_use: Vec::new(),
        };
        let problems = parse_in("g.yaml", next.as_bytes(), &surroundings, Some(&over))
            .err()
            .unwrap_or_default();
        let paths: Vec<&str> = problems
            .iter()
            .map(|problem| problem.path.as_str())
            .collect();
        if !leaf.needs_restart {
            assert_eq!(paths, [""; 0], "{}", leaf.path);
            continue;
        }
        assert_eq!(paths, [leaf.path.as_str()]);
        assert_eq!(problems[0].message, "a change of this key needs a restart");
        let line = next.lines().nth(problems[0].line - 1).unwrap();
        let (before, value) = line.split_at(problems[0].column - 1);
        let key = leaf.path.rsplit_once('.').unwrap().1;
        // A scalar stands after its key, a list begins with it.
        assert!(
            before.trim() == format!("{key}:") || value.starts_with(&format!("{key}:")),
            "{}: {line}",
            leaf.path
        );
    }
}

#[test]
fn every_row_is_shown_or_a_secret_and_every_change_that_needs_a_restart_is() {
    let directory = directory();
    for (leaf, file, next) in changes(directory.path()) {
        let [one, other] = [&file, &next].map(|file| parse(file).unwrap().effective);
        let differences = one.differences(&other);
        assert_eq!(
            differences.is_empty(),
            leaf.is_secret && !leaf.needs_restart,
            "{}: {differences:?}",
            leaf.path
        );
        let restart = differences.iter().all(|one| one.about == About::Restart);
        assert!(
            leaf.is_secret || restart == leaf.needs_restart,
            "{}",
            leaf.path
        );
        let written = file.contains(SECRET) || leaf.path.contains("file");
        assert!(!leaf.is_secret || written, "{}", leaf.path);
    }
}

#[test]
fn no_secret_is_in_a_fact_or_a_problem() {
    let directory = directory();
    let wrong = |file: &str, path: &str, value: Value| {
        let mut file: Value = serde_yaml::from_str(file).unwrap();
        *place(&mut file, path).unwrap() = value;
        parse(&serde_yaml::to_string(&file).unwrap())
    };
    for (leaf, file, next) in changes(directory.path()) {
        for text in [&file, &next] {
            let config = parse(text).unwrap();
            let facts = serde_json::to_string(&*config.effective).unwrap();
            assert!(!facts.contains(SECRET), "{}: {facts}", leaf.path);
            assert!(!format!("{config:?}").contains(SECRET), "{}", leaf.path);
        }
        let number = 4_711_471_147_114_711_u64;
        let list = Value::Sequence(vec![SECRET.into()]);
        let wrong_values = [
            number.into(),
            list,
            format!("{SECRET}\n").into(),
            "${SECRET}\n".into(),
        ];
        for value in wrong_values.into_iter().filter(|_| leaf.is_secret) {
            let errors = wrong(&file, &leaf.path, value).unwrap_err().to_string();
            assert!(
                !errors.contains(SECRET) && !errors.contains("4711"),
                "{errors}"
            );
            assert!(errors.contains(&leaf.path), "{errors}");
        }
    }
    let file = directory.path().join("wrong");
    std::fs::write(&file, format!("{SECRET}\u{7}")).unwrap();
    let files = [
        "listen.admin.token",
        "events.webhook.url",
        "events.webhook.secret",
        "upstreams.any.header.value",
    ];
    for path in files {
        let mut text = yaml(EVERYTHING, directory.path());
        let (section, key) = path.rsplit_once('.').unwrap();
        let section = place(&mut text, section).unwrap().as_mapping_mut().unwrap();
        section.remove(key).unwrap();
        section.insert(format!("{key}_file").into(), file.to_str().unwrap().into());
        let errors = parse(&serde_yaml::to_string(&text).unwrap())
            .unwrap_err()
            .to_string();
        assert!(
            errors.contains(path) && !errors.contains(SECRET),
            "{errors}"
        );
    }
}

#[test]
fn what_a_variable_holds_is_in_no_problem_of_names() {
    let text = "tiers: {pro: {daily: 5}}
endpoints:
  - {path: '/${SECRET}', tiers: [pro], upstream: u}
  - {path: '/{x}', tiers: [pro], upstream: u}
  - {path: /a/b, tiers: ['${SECRET}'], upstream: '${SECRET}'}
upstreams: {u: {servers: [127.0.0.1:1]}}
";
    let errors = parse(text).unwrap_err().to_string();
    assert!(!errors.contains(SECRET), "{errors}");
    for problem in [
        "endpoints[2].tiers[0]: there is no tier \"${SECRET}\"",
        "endpoints[2].upstream: there is no upstream \"${SECRET}\"",
    ] {
        assert!(errors.contains(problem), "{errors}");
    }
    let twice = text.replace("/{x}", "/${SECRET}").replace(
        "tiers: ['${SECRET}'], upstream: '${SECRET}'",
        "tiers: [pro], upstream: u",
    );
    let errors = parse(&twice).unwrap_err().to_string();
    let overlap = "endpoints[1].path: it overlaps with /${SECRET}";
    assert!(
        errors.contains(overlap) && !errors.contains(SECRET),
        "{errors}"
    );
}

#[test]
fn what_a_variable_holds_is_in_no_problem() {
    for (more, output) in [
        (
            "keys: {prefix: '${SECRET}!'}",
            "keys.prefix: the value is not a key prefix",
        ),
        (
            "runtime: {threads: '${FIVE}000'}",
            "runtime.threads: the value is too large",
        ),
        (
            "limits: {exempt_addresses: ['${SECRET}']}",
            "limits.exempt_addresses[0]: the value is not a network",
        ),
        (
            "listen: {http: {}, admin: {token_file: '${SECRET}'}}",
            "listen.admin.token_file: cannot read ${SECRET}: No such file or directory (os error 2)",
        ),
        (
            "listen: {https: {certificate: '${SECRET}', private_key: Cargo.toml}}",
            "listen.https.certificate: cannot read ${SECRET}: No such file or directory (os error 2)",
        ),
        (
            "store: {redis: {url: 'rediss://x', tls: {ca_file: '${SECRET}'}}}",
            "store.redis.tls.ca_file: cannot read ${SECRET}: No such file or directory (os error 2)",
        ),
    ] {
        let problems = problems_of(with(more), 3);
        assert!(
            problems.len() == 1 && problems[0].ends_with(output),
            "{problems:?}"
        );
    }
}

#[test]
fn a_key_in_the_place_of_its_file_is_in_no_problem() {
    let lines = "|\n  -----BEGIN PRIVATE KEY-----\n  hunter2\n  -----END PRIVATE KEY-----\n";
    let one_line = "'-----BEGIN PRIVATE KEY-----hunter2-----END PRIVATE KEY-----'";
    let long = format!("'{}hunter2'", "A".repeat(200));
    for (written, name) in [(lines, ""), (one_line, "-----BEGIN…"), (&*long, "A…")] {
        for path in [
            "listen.https.private_key",
            "listen.https.certificate",
            "listen.admin.token_file",
            "store.redis.tls.private_key",
        ] {
            let (sections, key) = path.rsplit_once('.').unwrap();
            let mut more = String::new();
            for (depth, section) in sections.split('.').enumerate() {
                more.push_str(&format!("{}{section}:\n", " ".repeat(depth)));
            }
            let indent = "\n".to_owned() + &" ".repeat(4);
            more.push_str(&format!("   {key}: {}\n", written.replace('\n', &indent)));
            let problems = with(&more).unwrap_err().to_string();
            assert!(!problems.contains(SECRET), "{problems}");
            let problem = problems.lines().find(|line| line.contains(path));
            assert!(
                problem.is_some_and(|line| line.contains(name)),
                "{problems}"
            );
        }
    }
}

/// The paths of the problems of a file that is read for `purpose` where there is no name, file or variable.
fn problems_alone(file: &Value, purpose: Purpose) -> Vec<String> {
    let surroundings = outside::Surroundings {
        file: None,
        env: &|_| None,
        resolve: &|names| names.iter().map(|name| panic!("{name}")).collect(),
        purpose,
        in_use: Vec::new(),
    };
    let text = serde_yaml::to_string(file).unwrap();
    let problems = parse_in("g.yaml", text.as_bytes(), &surroundings, None).err();
    let problems = problems.unwrap_or_default().into_iter();
    problems.map(|problem| problem.path).collect()
}

#[test]
fn each_row_is_looked_up_outside_the_file_only_for_what_uses_it() {
    let What::Section(rows) = &sections::form().what else {
        panic!()
    };
    let used_by_commands = [
        "store",
        "quota",
        "keys",
        "tiers",
        "billing",
        "endpoints",
        "openapi",
        "limits",
    ];
    let mut looked_at = std::collections::BTreeSet::new();
    for file in files(Path::new("/nowhere")) {
        assert_eq!(problems_alone(&file, Purpose::Offline), [""; 0]);
        let files_of_store = problems_alone(&file, Purpose::Commands);
        let of_store = |path: &String| path.starts_with("store.");
        assert!(files_of_store.iter().all(of_store), "{files_of_store:?}");
        for leaf in leaves(rows, &outline::Path::default(), false) {
            let mut file = file.clone();
            let Some(value) = place(&mut file, &leaf.path).filter(|value| !value.is_null()) else {
                continue;
            };
            // In the first file that has it: each costs two checks of a whole file.
            if !looked_at.insert(leaf.path.clone()) {
                continue;
            }
            *value = match value {
                Value::Sequence(_) => Value::Sequence(vec!["${UNSET}".into()]),
                _ => "${UNSET}".into(),
            };
            assert_eq!(
                problems_alone(&file, Purpose::Offline),
                [""; 0],
                "{}",
                leaf.path
            );
            let section = leaf.path.split(['.', '[']).next().unwrap();
            let problems = problems_alone(&file, Purpose::Commands);
            let is_reported = problems.iter().any(|path| path.starts_with(&leaf.path));
            assert_eq!(
                is_reported,
                used_by_commands.contains(&section),
                "{}: {problems:?}",
                leaf.path
            );
        }
    }
}

/// Where an editor underlines something in a file.
fn underlined(schema: &jsonschema::Validator, file: &Value) -> Vec<String> {
    let file = serde_json::to_value(file).unwrap();
    let errors = schema.iter_errors(&file);
    errors
        .map(|error| error.instance_path().to_string())
        .collect()
}

#[test]
fn the_schema_and_the_check_agree_on_files_and_at_both_ends_of_each_range() {
    let directory = directory();
    let schema = jsonschema::draft202012::new(&crate::config::schema()).unwrap();
    let root = sections::form();
    let What::Section(rows) = &root.what else {
        panic!()
    };
    let files = files(directory.path());
    for file in &files {
        assert_eq!(underlined(&schema, file), [""; 0]);
    }
    let mut refused = 0;
    for leaf in leaves(rows, &outline::Path::default(), false) {
        let Some((least, most)) = &leaf.bounds else {
            continue;
        };
        let has = |file: &&Value| place(&mut (*file).clone(), &leaf.path).is_some();
        let mut file = files.iter().find(has).unwrap().clone();
        let mut check = |value: Value, is_taken: bool| {
            *place(&mut file, &leaf.path).unwrap() = value.clone();
            let problems = parse(&serde_yaml::to_string(&file).unwrap());
            let problems = problems.err().map(|errors| errors.problems);
            // Some rows are also compared with others.
            let is_here = |problem: &Problem| {
                problem.path == leaf.path && problem.message.contains(" is too ")
            };
            let found = problems.unwrap_or_default().iter().any(is_here);
            assert_eq!(found, !is_taken, "{} = {value:?}", leaf.path);
            let found = underlined(&schema, &file);
            assert_eq!(found.is_empty(), is_taken, "{} = {value:?}", leaf.path);
        };
        for end in [least, most] {
            check(serde_yaml::from_str(end).unwrap(), true);
        }
        // The neighbours of a duration or a size are left to the check.
        let whole = |end: &String| end.parse::<u64>().ok();
        let below = whole(least).and_then(|least| least.checked_sub(1));
        for value in [below, whole(most).map(|most| most + 1)]
            .into_iter()
            .flatten()
        {
            check(value.into(), false);
            refused += 1;
        }
    }
    assert!(refused > 20, "{refused}");
}
