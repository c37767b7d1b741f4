//! The file as a whole: what is no configuration, how all its problems are reported, and how it is read from its place.

use super::*;

#[test]
fn all_problems_are_reported_at_once_in_the_order_of_the_file() {
    let errors =
        with("logging: {level: loud, fromat: json}\nlimits: {header_count: many}\nzzz: 1\n")
            .unwrap_err();
    assert_eq!(
        errors.to_string(),
        "g.yaml:4:18: logging.level: \"loud\" is not a log level (hint: write error, warn, info, debug or trace)\n\
         g.yaml:4:24: logging.fromat: there is no such key (hint: did you mean `format`?)\n\
         g.yaml:5:24: limits.header_count: expected a whole number, found \"many\" (hint: write digits only, such as 1000)\n\
         g.yaml:6:1: zzz: there is no such key (hint: the keys here are listen, store, quota, keys, tiers, billing, endpoints, openapi, events, upstreams, forward, runtime, limits, logging, tracing)"
    );
}

#[test]
fn what_is_not_a_configuration_at_all_is_one_problem() {
    let bomb = format!("a: &a [x]\n{}", "b: [*a, *a]\n");
    for (text, expected) in [
        ("", "1:1 : the file is empty"),
        ("# nothing\n", "1:1 : the file is empty"),
        ("5", "1:1 : expected keys, found a number"),
        ("- a\n", "1:1 : expected keys, found a list"),
        ("a: [\n", "2:1 : this is not YAML: "),
        ("a: 1\n\tb: 2\n", "2:1 : this is not YAML: "),
        (
            "a: 1\nb: 2 # é\u{7}\n",
            "2:9 : this is not YAML: the control character U+0007",
        ),
        (
            "a: \"\0\"\n",
            "1:5 : this is not YAML: the control character U+0000",
        ),
        // For a parser of YAML 1.1 they end the comment.
        ("a: 1 # x\u{2028}b: 2\n", "1:9 : the line separator U+2028"),
        ("a: 1 # x\u{2029}b: 2\n", "1:9 : the line separator U+2029"),
        ("a: 1 # x\u{85}b: 2\n", "1:9 : the line separator U+0085"),
        (
            "a: 1\na: 1\n",
            "2:1 a: the key is given twice, first on line 1",
        ),
        (
            "a: 1\n---\na: 1\n",
            "2:1 : a second YAML document begins here",
        ),
        (&bomb, "2:5 b[0]: aliases (`*name`, `<<`) are not supported"),
    ] {
        let problems = problems_of(parse(text), 0);
        assert!(
            problems.len() == 1 && problems[0].starts_with(expected),
            "{text:?}: {problems:?}"
        );
    }
}

#[test]
fn a_summary_of_many_problems_is_short() {
    let tiers = (0..100).map(|number| format!("tier-{number:04}: {{daily: 1}}"));
    let tiers = Vec::from_iter(tiers).join(", ");
    let endpoint = |number| format!("{{path: /{number}, tiers: [zzzzz], upstream: u}}");
    let endpoints = Vec::from_iter((0..21).map(endpoint)).join(",\n");
    let text = format!(
        "tiers: {{{tiers}}}\nendpoints: [{endpoints}]\nupstreams: {{u: {{servers: [127.0.0.1:9]}}}}"
    );
    let summary = parse(&text).unwrap_err().summary();
    assert_eq!(summary.lines().count(), 21, "{summary}");
    assert!(summary.ends_with("\nand 1 more: `touchline check --against-running` lists all"));
    assert!(summary.contains("tier-0024, and 75 more)\n"), "{summary}");
}

#[test]
fn a_file_that_cannot_be_read_is_one_problem() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("gateway.yaml");
    let problem = || problems_of(Config::load(&file), 0).remove(0);
    assert!(problem().starts_with("1:1 : cannot read the file: "));
    std::fs::write(&file, b"a: 1\nb: \xff\n").unwrap();
    assert_eq!(problem(), "2:4 : the file is not UTF-8");
    std::fs::write(&file, vec![b'#'; FILE_BYTES_MAX + 1]).unwrap();
    assert_eq!(problem(), "1:1 : the file is too large");
    std::fs::write(&file, format!("{NEEDED}#").into_bytes()).unwrap();
    assert!(Config::load(&file).is_ok());
}

#[test]
fn no_file_of_the_gateway_is_the_configuration_itself() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("gateway.yaml");
    let (link, log) = (directory.path().join("link"), file.display());
    std::os::unix::fs::symlink(&file, &link).unwrap();
    std::fs::write(&file, format!("{NEEDED}logging: {{access_log: {log}}}")).unwrap();
    let expected = "4:23 logging.access_log: this is the configuration file itself";
    assert_eq!(problems_of(Config::load(&link), 0), [expected]);
    // A command does not use that file.
    assert!(Config::load_for(&file, Purpose::Commands).is_ok());
}

#[test]
fn a_command_does_not_take_the_default_for_an_address_that_it_does_not_read() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("gateway.yaml");
    for (address, port) in [("${ADMIN}", 0), ("127.0.0.1:9191", 9191)] {
        let listen = format!("listen: {{http: {{}}, admin: {{address: '{address}'}}}}");
        std::fs::write(&file, [NEEDED, &listen].concat()).unwrap();
        let config = Config::load_for(&file, Purpose::Commands).unwrap();
        assert_eq!(config.listen.admin.address.port(), port);
    }
}

#[test]
fn a_syntax_error_has_a_hint_that_fits_its_line() {
    for (text, expected) in [
        (
            "- { path: /v1/o/{id}, tiers: [pro] }",
            "put a path with {…} in",
        ),
        (
            "a: { b: ${NAME}, c: [1] }",
            "put a value with ${VARIABLE} in",
        ),
        ("a: 1\n b: 2", "compare the indentation"),
        (
            "- { path: \"/v1/o/{id}\", tiers: [pro }",
            "compare the indentation",
        ),
    ] {
        let problems = parse(text).unwrap_err().problems;
        let hint = problems[0].hint.as_str();
        assert!(hint.starts_with(expected), "{text}: {problems:?}");
    }
}
