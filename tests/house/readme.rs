//! What the README promises by the name of a test is held by a test of that name.

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

/// The names in the last column of the table under a heading.
fn promised(readme: &str, heading: &str) -> Vec<String> {
    let section = readme
        .split(heading)
        .nth(1)
        .unwrap()
        .split("\n## ")
        .next()
        .unwrap();
    section
        .lines()
        .filter_map(|line| line.trim().strip_suffix('|')?.rsplit('|').next())
        .flat_map(|cell| {
            cell.split('`')
                .skip(1)
                .step_by(2)
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })
        .collect()
}

#[test]
fn every_row_of_when_things_fail_has_a_test_of_its_name() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = std::fs::read_to_string(root.join("README.md")).unwrap();
    let names = promised(&readme, "## When things fail");
    let rows = readme
        .split("## When things fail")
        .nth(1)
        .unwrap()
        .lines()
        .take_while(|line| !line.starts_with("## "));
    let rows = rows.filter(|line| line.starts_with('|')).count();
    assert!(names.len() >= rows - 2, "each row names a test");
    let sources = test_sources(&root.join("tests"));
    for name in names {
        // A fact of the shared suite is a function without arguments of its own or one that takes the fixture.
        assert!(
            sources.contains(&format!("fn {name}(")),
            "there is no test {name}"
        );
    }
}
