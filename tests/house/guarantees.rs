//! What `docs/guarantees.md` promises by the name of a test is held by a test of that name.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Directories below `tests` that `make test` does not run.
const NOT_RUN: [&str; 4] = ["dashboard", "fuzz", "load", "soak"];

/// The names of all tests below a directory: functions with an attribute of a test, and facts of the stores' suite.
fn test_names(directory: &Path) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path: PathBuf = entry.unwrap().path();
        if NOT_RUN.iter().any(|name| path.ends_with(name)) {
            continue;
        }
        if path.is_dir() {
            names.extend(test_names(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(path).unwrap();
            names.extend(
                with_attribute(&text)
                    .into_iter()
                    .chain(facts(&text))
                    .map(str::to_owned),
            );
        }
    }
    names
}

/// The functions that `#[test]` or `#[tokio::test]` makes tests.
fn with_attribute(text: &str) -> Vec<&str> {
    let (mut names, mut is_test) = (Vec::new(), false);
    let mut lines = text.lines().map(str::trim);
    while let Some(line) = lines.next() {
        if line.starts_with("#[") {
            is_test |= line == "#[test]" || line.starts_with("#[tokio::test");
            if !line.ends_with(']') {
                lines.by_ref().find(|line| line.ends_with(']'));
            }
        } else if !line.starts_with("//") {
            let line = line.strip_prefix("async ").unwrap_or(line);
            let function = line
                .strip_prefix("fn ")
                .and_then(|rest| rest.split_once('('));
            names.extend(function.filter(|_| is_test).map(|(name, _)| name));
            is_test = false;
        }
    }
    names
}

/// The facts that `store_suite!` makes tests: the names that it lists, between its two rules.
fn facts(text: &str) -> Vec<&str> {
    let listed = text.split_once("\nmacro_rules! store_suite {");
    let listed = listed.and_then(|(_, rest)| rest.split_once("(@facts $fixture:expr; $("));
    let lines = listed.map_or("", |(listed, _)| listed).lines();
    lines
        .filter_map(|line| line.trim().strip_suffix(','))
        .collect()
}

/// The rows of the tables whose last column names tests.
fn rows(page: &str) -> Vec<&str> {
    let (_, section) = page.split_once("\n## When things fail\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with('|'));
    rows.filter(|line| !line.starts_with("|---") && !line.starts_with("| What fails"))
        .collect()
}

#[test]
fn every_row_of_when_things_fail_has_a_test_of_its_name() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("docs/guarantees.md")).unwrap();
    let rows = rows(&page);
    assert!(rows.len() > 100, "{} rows", rows.len());
    let tests = test_names(&root.join("tests"));
    for row in rows {
        let cell = row.trim().strip_suffix('|').unwrap().rsplit('|').next();
        let names: Vec<&str> = cell.unwrap().split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "no test: {row}");
        for name in names {
            assert!(tests.contains(name), "there is no test {name}");
        }
    }
}

#[test]
fn a_function_that_nothing_makes_a_test_is_none() {
    let text = "#[test]\nfn one() {\n    fn inner() {}\n}\n\n#[tokio::test(\n    flavor = \"multi_thread\"\n)]\n#[cfg(unix)]\n\
        /// It is one.\nasync fn two() {}\n\nfn helper() {}\n// #[test]\nfn disabled() {}\n#[must_use]\npub async fn fact(of: u8) {}\n";
    assert_eq!(with_attribute(text), ["one", "two"]);
    let suite = "\nmacro_rules! store_suite {\n    ($f:expr) => {\n        store_suite!(@facts $f;\n            fact,\n        );\n    };\n    \
        (@facts $fixture:expr; $($fact:ident,)+) => {\n            other,\n";
    assert_eq!(facts(suite), ["fact"]);
    assert!(facts(text).is_empty());
}
