//! What `docs/guarantees.md` promises by the name of a test is held by a test of that name.

use std::path::{Path, PathBuf};

/// The text of all tests.
fn test_sources(directory: &Path) -> String {
    let mut text = String::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path: PathBuf = entry.unwrap().path();
        if path.is_dir() {
            text.push_str(&test_sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&std::fs::read_to_string(path).unwrap());
        }
    }
    text
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
    let sources = test_sources(&root.join("tests"));
    for row in rows {
        let cell = row.trim().strip_suffix('|').unwrap().rsplit('|').next();
        let names: Vec<&str> = cell.unwrap().split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "no test: {row}");
        for name in names {
            // A fact of the shared suite is a function without arguments of its own or one that takes the fixture.
            assert!(
                sources.contains(&format!("fn {name}(")),
                "there is no test {name}"
            );
        }
    }
}
