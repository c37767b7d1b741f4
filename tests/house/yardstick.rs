//! The bare proxy that `make bench` compares with stays as it is, or a ratio of today could not be compared with one of last year.

use std::fs;
use std::path::Path;

use sha2::{Digest, Sha256};

/// Of the proxy's code, the release profile and the versions it is built from. A change of these is a change of every ratio in
/// docs/benchmarks.md: measure them all anew in the same commit.
const DIGEST: &str = "208aa465b9c868bd60bf645a094380be1261130e44bcfb0ca1bc2c760aac5c96";

/// The crates whose versions count.
const CRATES: [&str; 6] = [
    "pingora-core",
    "pingora-proxy",
    "pingora-http",
    "mimalloc",
    "tokio",
    "h2",
];

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

#[test]
fn the_bare_proxy_of_the_bench_is_the_same_as_ever() {
    let mut frozen = String::new();
    for line in read("tests/load/bare_pingora.rs").lines().map(str::trim) {
        if !line.is_empty() && !line.starts_with("//") {
            frozen.push_str(line);
        }
    }
    let manifest = read("Cargo.toml");
    let profile = manifest.split("[profile.release]").nth(1).unwrap();
    frozen.push_str(profile.split("\n[").next().unwrap().trim());
    let lock = read("Cargo.lock");
    for name in CRATES {
        let mut packages = lock.split("[[package]]");
        let header = format!("\nname = \"{name}\"\n");
        let package = packages.find(|one| one.starts_with(&header)).unwrap();
        frozen.push_str(package.lines().nth(2).unwrap());
    }
    assert_eq!(format!("{:x}", Sha256::digest(&frozen)), DIGEST);
}
