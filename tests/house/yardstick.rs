//! The bare proxy that `make bench` compares with stays as it is, or a ratio of today could not be compared with one of last year.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use sha2::{Digest, Sha256};

/// Of the proxy's code, the release profile, the features that are asked for of its crates, and all packages it is built from. A
/// change of these is a change of every ratio in docs/benchmarks.md: measure them all anew in the same commit.
const DIGEST: &str = "f30bd5d26edbfd6b7f7a653e662569a5cc59cdcd5720e94e3cd0e5d9adebddff";

/// The crates that the proxy's code names.
const CRATES: [&str; 3] = ["async-trait", "mimalloc", "pingora"];

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// A package of `Cargo.lock`: its name, version and checksum in a line, and the names of its dependencies, with versions where the
/// file has several.
struct Package<'l> {
    line: String,
    dependencies: Vec<&'l str>,
}

/// The packages of `Cargo.lock`, by name and by name and version.
fn packages(lock: &str) -> BTreeMap<String, Vec<Package<'_>>> {
    let mut packages: BTreeMap<String, Vec<Package<'_>>> = BTreeMap::new();
    for text in lock.split("\n[[package]]\n").skip(1) {
        let value = |key: &str| {
            let mut lines = text.lines();
            let value = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "));
            value.map(|value| value.trim_matches('"'))
        };
        let (name, version) = (value("name").unwrap(), value("version").unwrap());
        // Packages of the workspace have none.
        let checksum = value("checksum").unwrap_or_default();
        let listed = text.split_once("dependencies = [\n");
        let listed = listed.map_or("", |(_, listed)| listed.split("\n]").next().unwrap());
        let dependencies = listed
            .lines()
            .map(|line| line.trim().trim_end_matches(',').trim_matches('"'));
        let dependencies: Vec<&str> = dependencies.collect();
        for key in [name.to_owned(), format!("{name} {version}")] {
            packages.entry(key).or_default().push(Package {
                line: format!("{name} {version} {checksum}\n"),
                dependencies: dependencies.clone(),
            });
        }
    }
    packages
}

/// A line for each package that these crates are built from on any system, themselves included.
fn closure(lock: &str, crates: &[&str]) -> BTreeSet<String> {
    let packages = packages(lock);
    let (mut lines, mut next) = (BTreeSet::new(), crates.to_vec());
    while let Some(name) = next.pop() {
        let found = &packages[name];
        assert_eq!(found.len(), 1, "Cargo.lock has several {name}");
        if lines.insert(found[0].line.clone()) {
            next.extend(&found[0].dependencies);
        }
    }
    lines
}

#[test]
fn the_bare_proxy_of_the_bench_is_the_same_as_ever() {
    let mut frozen = String::new();
    let code = read("tests/load/bare_pingora.rs");
    for line in code.lines().map(str::trim) {
        if !line.is_empty() && !line.starts_with("//") {
            frozen.push_str(line);
        }
    }
    let manifest = read("Cargo.toml");
    let profile = manifest.split("[profile.release]").nth(1).unwrap();
    frozen.push_str(profile.split("\n[").next().unwrap().trim());
    for name in CRATES {
        assert!(code.contains(&format!("{}::", name.replace('-', "_"))));
        let asked = manifest.lines();
        let asked = asked.filter(|line| line.starts_with(&format!("{name} = ")));
        frozen.extend(asked.map(|line| format!("\n{line}")));
    }
    let packages = closure(&read("Cargo.lock"), &CRATES);
    assert!(packages.len() > 50, "{} packages", packages.len());
    frozen.push('\n');
    frozen.extend(packages);
    let digest = format!("{:x}", Sha256::digest(&frozen));
    assert_eq!(digest, DIGEST, "the yardstick has moved: {frozen}");
}

#[test]
fn an_update_of_a_package_below_the_crates_is_seen() {
    let lock = "version = 4\n\n[[package]]\nname = \"top\"\nversion = \"1.0.0\"\nchecksum = \"aa\"\ndependencies = [\n \"low 2.0.0\",\n]\n\
        \n[[package]]\nname = \"low\"\nversion = \"1.0.0\"\nchecksum = \"bb\"\n\
        \n[[package]]\nname = \"low\"\nversion = \"2.0.0\"\nchecksum = \"cc\"\ndependencies = [\n \"top\",\n]\n\
        \n[[package]]\nname = \"other\"\nversion = \"1.0.0\"\n";
    let lines = closure(lock, &["top"]);
    assert_eq!(
        lines.into_iter().collect::<Vec<_>>(),
        ["low 2.0.0 cc\n", "top 1.0.0 aa\n"]
    );
}
