//! The settings of upstreams, and the messages for their mistakes.

use std::path::Path as FilePath;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;

use crate::config::{Config, Protocol, UpstreamConfig, certificates_in};
use crate::policy::compression::{Coding, Compression};

fn parse(upstream: &str) -> Result<UpstreamConfig, String> {
    let text = format!(
        "tiers: {{pro: {{daily: 5}}}}
endpoints: [{{path: /a, tiers: [pro], upstream: u}}]
upstreams: {{u: {upstream}}}
"
    );
    let env = |name: &str| (name == "SECRET").then(|| "hunter2".into());
    let config = Config::parse("g.yaml", &text, &env).map_err(|errors| errors.to_string())?;
    Ok(config.upstream("u").unwrap().clone())
}

#[track_caller]
fn is_refused(upstream: &str, path: &str, message: &str) {
    let output = parse(upstream).map(|_| ()).unwrap_err();
    let wanted = format!("upstreams.u.{path}: ");
    let line = output.lines().find(|line| line.contains(&wanted));
    let line = line.unwrap_or_else(|| panic!("nothing of {path} in {output}"));
    assert!(line.contains(message), "{line}");
    assert!(line.starts_with("g.yaml:3:"), "{line}");
}

/// A self-signed certificate and its key in `directory`, as PEM files.
fn pair(directory: &FilePath, name: &str) -> (String, String) {
    let made = rcgen::generate_simple_self_signed(["data.internal".to_owned()]).unwrap();
    let file = |end: &str, text: String| {
        let file = directory.join(format!("{name}.{end}"));
        std::fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_owned()
    };
    (
        file("pem", made.cert.pem()),
        file("key", made.signing_key.serialize_pem()),
    )
}

#[test]
fn servers_have_weights_where_they_are_written() {
    let upstream = parse("{servers: [127.0.0.1:1, {address: '[::1]:2', weight: 3}]}").unwrap();
    let servers: Vec<_> = upstream
        .servers
        .iter()
        .map(|server| (server.name.as_str(), server.weight.get()))
        .collect();
    assert_eq!(servers, [("127.0.0.1:1", 1), ("[::1]:2", 3)]);
    for (servers, path, message) in [
        (
            "{address: a:1, weigth: 2}",
            "servers[0].weigth",
            "no such key",
        ),
        ("{weight: 2}", "servers[0].address", "the key is missing"),
        (
            "{address: a}",
            "servers[0].address",
            "\"a\" is not a server",
        ),
        (
            "{address: '127.0.0.1:1', weight: 0}",
            "servers[0].weight",
            "",
        ),
        (
            "{address: '127.0.0.1:1', weight: 1001}",
            "servers[0].weight",
            "too large",
        ),
    ] {
        is_refused(&format!("{{servers: [{servers}]}}"), path, message);
    }
}

#[test]
fn mistakes_in_choice_checks_and_ejection_are_reported_at_their_places() {
    for (more, path, message) in [
        ("choice: random", "choice", "not a way to choose a server"),
        ("resolve: 1ms", "resolve", "too small"),
        ("protocol: h2", "protocol", "not a version of HTTP"),
        ("protocol: 2", "protocol", "found the number 2"),
        ("protocol: auto", "protocol", "without TLS"),
        ("health: {}", "health.path", "the key is missing"),
        ("health: {path: healthz}", "health.path", "is not a path"),
        (
            "health: {path: /h, interval: 1ms}",
            "health.interval",
            "too small",
        ),
        (
            "health: {path: /h, unhealthy_after: 0}",
            "health.unhealthy_after",
            "",
        ),
        (
            "health: {path: /h, thresholds: 1}",
            "health.thresholds",
            "no such key",
        ),
        (
            "ejection: {failures: 1001}",
            "ejection.failures",
            "too large",
        ),
        (
            "ejection: {pause: 2s, pause_max: 1s}",
            "ejection.pause_max",
            "shorter than the first",
        ),
    ] {
        is_refused(
            &format!("{{servers: [127.0.0.1:1], {more}}}"),
            path,
            message,
        );
    }
    for (more, protocol) in [
        ("retries: 1", Protocol::Http1),
        ("protocol: http1", Protocol::Http1),
        ("protocol: http2", Protocol::Http2),
        ("protocol: http2, tls: {}", Protocol::Http2),
        ("protocol: auto, tls: {}", Protocol::Negotiated),
    ] {
        let upstream = parse(&format!("{{servers: [127.0.0.1:1], {more}}}")).unwrap();
        assert_eq!(upstream.protocol, protocol, "{more}");
    }
    let never = parse("{servers: [127.0.0.1:1], ejection: {failures: 0}}").unwrap();
    assert_eq!(never.ejection.failures, None);
}

#[test]
fn answers_are_compressed_where_it_is_configured_and_mistakes_in_it_are_reported() {
    let with = |more: &str| format!("{{servers: [127.0.0.1:1]{more}}}");
    let reply = |more: &str| parse(&with(more)).unwrap().compression;
    assert_eq!(reply(""), None);
    let compression = |codings: &[Coding], bytes_min| {
        let codings = codings.to_vec();
        Some(Compression { codings, bytes_min })
    };
    for (more, expected) in [
        (", compression: {}", compression(&Coding::ALL, 1_024)),
        (
            ", compression: {codings: [gzip], min_bytes: 2KiB}",
            compression(&[Coding::Gzip], 2_048),
        ),
        (
            ", compression: {codings: [gzip, zstd], min_bytes: 1B}",
            compression(&[Coding::Gzip, Coding::Zstd], 1),
        ),
    ] {
        assert_eq!(reply(more), expected, "{more}");
    }
    for (text, path, message) in [
        ("true", "compression", "expected keys"),
        ("{codings: []}", "compression.codings", "there is no coding"),
        (
            "{codings: [br]}",
            "compression.codings[0]",
            "\"br\" is not a coding that the gateway supports (hint: write zstd or gzip)",
        ),
        (
            "{codings: [gzip, gzip]}",
            "compression.codings[1]",
            "in the list already",
        ),
        ("{codings: gzip}", "compression.codings", "expected a list"),
        ("{min_bytes: 0B}", "compression.min_bytes", "too small"),
        ("{min_bytes: 2MiB}", "compression.min_bytes", "too large"),
        (
            "{min_bytes: 1024}",
            "compression.min_bytes",
            "expected a size",
        ),
        ("{level: 9}", "compression.level", "no such key"),
    ] {
        is_refused(&with(&format!(", compression: {text}")), path, message);
    }
}

#[test]
fn tls_files_are_read_with_the_configuration() {
    let directory = tempfile::tempdir().unwrap();
    let (certificate, key) = pair(directory.path(), "ours");
    let (other, other_key) = pair(directory.path(), "other");
    let both = directory.path().join("both.pem");
    let texts = [&other, &certificate].map(|file| std::fs::read_to_string(file).unwrap());
    std::fs::write(&both, texts.concat()).unwrap();
    let both = both.to_str().unwrap();
    let longer = directory.path().join("longer.pem");
    let mut der = certificates_in(FilePath::new(&other)).unwrap()[0].to_vec();
    der.push(0);
    let second = BASE64.encode(der);
    let marks = ["BEGIN", "END"].map(|mark| format!("-----{mark} CERTIFICATE-----\n"));
    let text = format!("{}{}{second}\n{}", texts[1], marks[0], marks[1]);
    std::fs::write(&longer, text).unwrap();
    let longer = longer.to_str().unwrap();
    let rubbish = directory.path().join("rubbish.pem");
    std::fs::write(&rubbish, "rubbish").unwrap();
    let rubbish = rubbish.to_str().unwrap();
    let with = |tls: &str| format!("{{servers: [127.0.0.1:1], tls: {{{tls}}}}}");
    let whole = format!(
        "ca_file: {certificate}, name: data.internal, certificate: {certificate}, private_key: {key}"
    );
    let tls = parse(&with(&whole)).unwrap().tls.unwrap();
    assert_eq!(tls.authorities.as_ref().map(Vec::len), Some(1));
    assert_eq!(tls.files.len(), 3);
    assert!(tls.identity.is_some());
    assert!(!format!("{tls:?}").contains(&format!(
        "{:?}",
        tls.identity.as_ref().unwrap().key.secret_der()
    )));
    assert_eq!(parse(&with("")).unwrap().tls.unwrap().authorities, None);
    for (tls, path, message) in [
        (
            format!("ca_file: {rubbish}"),
            "tls.ca_file",
            "no certificate",
        ),
        (
            format!("ca_file: {longer}"),
            "tls.ca_file",
            "certificate 2 of the file has a form that no connection accepts",
        ),
        (
            "ca_file: /nowhere.pem".to_owned(),
            "tls.ca_file",
            "/nowhere.pem",
        ),
        (
            "name: 'a b'".to_owned(),
            "tls.name",
            "not the name of a server",
        ),
        (
            format!("certificate: {certificate}"),
            "tls.private_key",
            "missing",
        ),
        (format!("private_key: {key}"), "tls.certificate", "missing"),
        (
            format!("certificate: {certificate}, private_key: {other_key}"),
            "tls.private_key",
            "does not belong",
        ),
        (
            format!("certificate: {both}, private_key: {key}"),
            "tls.private_key",
            "belongs to a later certificate of the file than the first",
        ),
        (
            format!("certificate: {certificate}, private_key: {rubbish}"),
            "tls.private_key",
            "rubbish.pem: the file has no private key in PEM format (hint: name a PEM file",
        ),
    ] {
        is_refused(&with(&tls), path, message);
    }
    for host in ["127.1", "-a.internal"] {
        let of = |tls| format!("{{servers: ['a.internal:1', '{host}:1'], tls: {tls}}}");
        is_refused(&of("{}"), "servers", "no certificate can have the name");
        parse(&of("{name: a.internal}")).unwrap();
    }
}

#[test]
fn the_secret_header_comes_from_a_variable_or_a_file_and_is_never_shown() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("secret");
    std::fs::write(&file, "hunter2\n").unwrap();
    let with = |header: &str| format!("{{servers: [127.0.0.1:1], header: {{{header}}}}}");
    for header in [
        "name: X-Gateway-Secret, value: '${SECRET}'".to_owned(),
        format!("name: X-Gateway-Secret, value_file: {}", file.display()),
    ] {
        let upstream = parse(&with(&header)).unwrap();
        let header = upstream.header.as_ref().unwrap();
        assert_eq!(header.name, "x-gateway-secret");
        assert_eq!(header.value.reveal(), "hunter2");
        assert!(!format!("{upstream:?}").contains("hunter2"));
    }
    for (header, path, message) in [
        ("value: a", "header.name", "missing"),
        ("name: X-S", "header.value", "missing"),
        (
            "name: X-API-Key, value: a",
            "header.name",
            "sets or removes",
        ),
        (
            "name: X-Consumer-Id, value: a",
            "header.name",
            "sets or removes",
        ),
        (
            "name: Traceparent, value: a",
            "header.name",
            "sets or removes",
        ),
        (
            "name: tracestate, value: a",
            "header.name",
            "sets or removes",
        ),
        (
            "name: 'a b', value: a",
            "header.name",
            "not the name of a header",
        ),
        (
            "name: X-S, value: \"a\\nb\"",
            "header.value",
            "not valid in a header",
        ),
        (
            "name: X-S, value: a, value_file: b",
            "header.value_file",
            "given twice",
        ),
        (
            "name: 'X-S: hunter2', value: a",
            "header.name",
            "header.name: the value is not the name of a header",
        ),
        (
            "name: X-S, value_file: hunter2",
            "header.value_file",
            "header.value_file: cannot read h…: No such file",
        ),
        (
            "name: X-S, value_file: aHVudGVy/Mg.==",
            "header.value_file",
            "header.value_file: cannot read a…: No such file",
        ),
    ] {
        is_refused(&with(header), path, message);
    }
}
