//! `touchline check`, and that nothing works on a bad configuration.

use std::path::Path;

use super::run_on;

/// Five mistakes, each with where it is and what is wrong with it.
const MISTAKES: &str = r#"listen:
  http: { address: nonsense }
store:
  embedded: { path: "DIRECTORY/touchline.db" }
tiers:
  starter: { daily: 0 }
endpoints:
  - { path: /a, methods: [GET], tiers: [gold], upstream: u }
  - { path: /b, methods: [GET], tiers: [starter], upstream: v, colour: red }
upstreams:
  u: { servers: ["127.0.0.1:1"] }
"#;
const PLACES: [(&str, &str); 5] = [
    ("2:20", "listen.http.address"),
    ("6:21", "tiers.starter.daily"),
    ("8:41", "endpoints[0].tiers[0]"),
    ("9:61", "endpoints[1].upstream"),
    ("9:64", "endpoints[1].colour"),
];

fn write_mistakes(directory: &Path) -> std::path::PathBuf {
    let file = directory.join("bad.yaml");
    let text = MISTAKES.replace("DIRECTORY", directory.to_str().unwrap());
    std::fs::write(&file, text).unwrap();
    file
}

#[tokio::test]
async fn the_shipped_configuration_is_ok() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("gateway.yaml");
    let message = run_on(&file, &["check"]).await.done();
    let first = message.lines().next().unwrap();
    assert_eq!(first, format!("{}: ok", file.display()));
}

#[tokio::test]
async fn all_mistakes_of_a_configuration_are_reported_at_once_with_their_places() {
    let directory = tempfile::tempdir().unwrap();
    let file = write_mistakes(directory.path());
    let message = run_on(&file, &["check"]).await.failed(78);
    let lines: Vec<&str> = message.lines().collect();
    assert_eq!(lines.len(), PLACES.len(), "{message}");
    for (line, (place, path)) in lines.iter().zip(PLACES) {
        let start = format!("{}:{place}: {path}: ", file.display());
        assert!(line.starts_with(&start), "{line} should start {start}");
        assert!(line.contains("(hint: "), "{line}");
    }
}

#[tokio::test]
async fn every_command_refuses_a_bad_configuration_and_does_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let file = write_mistakes(directory.path());
    for command in [
        "serve",
        "check",
        "keys issue --tier starter --customer Acme",
        "keys list",
        "keys show 4fZk09QwXy2B",
        "keys revoke 4fZk09QwXy2B --yes",
        "usage",
    ] {
        let words: Vec<&str> = command.split(' ').collect();
        let message = run_on(&file, &words).await.failed(78);
        assert_eq!(
            message.lines().count(),
            PLACES.len(),
            "{command}: {message}"
        );
    }
    let files = std::fs::read_dir(directory.path()).unwrap().count();
    assert_eq!(files, 1, "only the configuration is there");
}

#[tokio::test]
async fn a_command_in_a_wrong_directory_names_the_missing_database_and_creates_none() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("gateway.yaml");
    let database = directory.path().join("touchline.db");
    let text = format!(
        "store: {{embedded: {{path: {}}}}}\ntiers: {{pro: {{daily: 5}}}}\n\
         endpoints: [{{path: /a, tiers: [pro], upstream: u}}]\nupstreams: {{u: {{servers: [127.0.0.1:1]}}}}\n",
        database.display()
    );
    std::fs::write(&file, text).unwrap();
    for command in [
        "keys list",
        "keys export",
        "keys revoke 4fZk09QwXy2B --yes",
        "usage",
        "usage verify",
        "audit",
        "explain --key-id 4fZk09QwXy2B --path /a",
        "store status",
    ] {
        let words: Vec<&str> = command.split(' ').collect();
        let message = run_on(&file, &words).await.failed(1);
        assert!(
            message.contains(database.to_str().unwrap()),
            "{command}: {message}"
        );
        assert!(!database.exists(), "{command}");
    }
    let issue = ["keys", "issue", "--tier", "pro", "--customer", "Acme"];
    run_on(&file, &issue).await.done();
    assert!(
        run_on(&file, &["keys", "list"])
            .await
            .done()
            .contains("Acme")
    );
}

#[tokio::test]
async fn a_certificate_that_a_start_would_refuse_is_a_mistake() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let file = directory.path().join(name);
        std::fs::write(&file, text).unwrap();
        file.display().to_string()
    };
    let made = || rcgen::generate_simple_self_signed(["a.example".to_owned()]).unwrap();
    let (own, other) = (made(), made());
    let certificate = write("own.pem", &own.cert.pem());
    let key = write("own.key", &own.signing_key.serialize_pem());
    let other_key = write("other.key", &other.signing_key.serialize_pem());
    let named = certificate.replace(".pem", "");
    let numbered = rcgen::generate_simple_self_signed(["192.0.2.1".to_owned()]).unwrap();
    write("numbered.key", &numbered.signing_key.serialize_pem());
    let nameless = write("numbered.pem", &numbered.cert.pem()).replace(".pem", "");
    let empty = write("empty.pem", "no certificate");
    let half = own.cert.pem().replace("-----END", "");
    let broken = write("broken.pem", &half);
    let large = write("large.pem", &"#".repeat(1024 * 1024 + 1));
    let unsupported = "-----BEGIN PRIVATE KEY-----\nMAA=\n-----END PRIVATE KEY-----\n";
    let unsupported = write("unsupported.key", unsupported);
    let https = |certificate: &str, key: &str| {
        format!("listen: {{https: {{certificate: {certificate}, private_key: {key}}}}}")
    };
    let pairs = |first: &str, second: &str| {
        let pair = |file: &str| format!("{{certificate: {file}.pem, private_key: {file}.key}}");
        let (first, second) = (pair(first), pair(second));
        format!("listen: {{https: {{certificates: [{first}, {second}]}}}}")
    };
    let clients = |authorities: &str| {
        format!("listen: {{https: {{client_certificates: {{authorities: {authorities}}}}}}}")
    };
    let redis = |tls: &str| format!("store: {{redis: {{url: 'rediss://x', tls: {{{tls}}}}}}}");
    let ended = {
        let mut parameters = rcgen::CertificateParams::new(["a.example".to_owned()]).unwrap();
        parameters.not_after = rcgen::date_time_ymd(2026, 1, 1);
        let ended = parameters.self_signed(&own.signing_key).unwrap();
        write("ended.pem", &ended.pem())
    };
    let early = {
        let mut parameters = rcgen::CertificateParams::new(["a.example".to_owned()]).unwrap();
        parameters.not_before = rcgen::date_time_ymd(2096, 1, 1);
        let early = parameters.self_signed(&own.signing_key).unwrap();
        write("early.pem", &early.pem())
    };
    let identity = |certificate: &str, key: &str| {
        redis(&format!("certificate: {certificate}, private_key: {key}"))
    };
    let no_certificate = "the file has no certificate in PEM format \
                          (hint: name a PEM file with one certificate or more)";
    let no_key = "the file has no private key in PEM format \
                  (hint: name a PEM file with the private key, which has no passphrase)";
    let damaged = "the file has a damaged PEM section";
    let mismatch = "the private key does not belong to the certificate \
                    (hint: use the key that the certificate was made for)";
    for (section, place, problem) in [
        (https(&certificate, &key), "", ""),
        (https(&ended, &key), "", "it has expired (hint: renew it)"),
        (
            https(&early, &key),
            "",
            "it is valid from 2096-01-01T00:00:00Z on, and refused by clients and servers until then",
        ),
        (https(&empty, &key), "https.certificate", no_certificate),
        (https(&broken, &key), "https.certificate", damaged),
        (
            https(&large, &key),
            "https.certificate",
            "the file is larger than 1MiB",
        ),
        (https(&certificate, &empty), "https.private_key", no_key),
        (https(&certificate, &broken), "https.private_key", damaged),
        (
            https(&certificate, &other_key),
            "https.private_key",
            mismatch,
        ),
        (pairs(&nameless, &named), "", ""),
        (
            pairs(&named, &nameless),
            "https.certificates[1].certificate",
            "the certificate names no DNS host",
        ),
        (
            https(&certificate, &unsupported),
            "https.private_key",
            "of a kind that is not supported (hint: use a key for RSA of 2048 to 8192 bits, ",
        ),
        (clients(&certificate), "", ""),
        (
            clients(&empty),
            "client_certificates.authorities",
            no_certificate,
        ),
        (clients(&broken), "client_certificates.authorities", damaged),
        (redis(&format!("ca_file: {certificate}")), "", ""),
        (
            redis(&format!("ca_file: {empty}")),
            "redis.tls.ca_file",
            no_certificate,
        ),
        (identity(&certificate, &key), "", ""),
        (
            identity(&ended, &key),
            "",
            "it has expired (hint: renew it)",
        ),
        (identity(&broken, &key), "redis.tls.certificate", damaged),
        (
            identity(&certificate, &empty),
            "redis.tls.private_key",
            no_key,
        ),
        (
            identity(&certificate, &other_key),
            "redis.tls.private_key",
            mismatch,
        ),
        (
            redis(&format!("certificate: {certificate}")),
            "redis.tls.private_key",
            "the key is missing",
        ),
    ] {
        let text = format!(
            "{section}\n\
             tiers: {{pro: {{daily: 5}}}}\nendpoints: [{{path: /a, tiers: [pro], upstream: u}}]\n\
             upstreams: {{u: {{servers: [127.0.0.1:1]}}}}\n"
        );
        let file = write("gateway.yaml", &text);
        let ran = run_on(file.as_ref(), &["check"]).await;
        if place.is_empty() {
            assert!(ran.stderr.contains(problem), "{}", ran.stderr);
            let warns = ran.stderr.contains("expire") || ran.stderr.contains("is valid from");
            assert_eq!(warns, !problem.is_empty(), "{}", ran.stderr);
            ran.done();
            continue;
        }
        let message = ran.failed(78);
        assert!(message.starts_with(&format!("{file}:1:")), "{message}");
        assert!(message.contains(&format!("{place}: ")), "{message}");
        assert!(message.contains(problem), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
}

#[tokio::test]
async fn a_configuration_that_is_not_there_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("none.yaml");
    for command in ["serve", "check", "usage"] {
        let message = run_on(&file, &[command]).await.failed(78);
        assert!(
            message.contains(file.to_str().unwrap()),
            "{command}: {message}"
        );
    }
}
