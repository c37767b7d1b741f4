//! The versions that close known holes (RUSTSEC-2026-0258, RUSTSEC-2026-0285, CVE-2026-105297, CVE-2026-105299).

use std::path::Path;

/// The least version of each, as `Cargo.lock` must have it.
const AT_LEAST: [(&str, [u32; 3]); 5] = [
    ("pingora-core", [0, 9, 1]),
    ("pingora-proxy", [0, 9, 1]),
    ("h2", [0, 4, 16]),
    ("rustls", [0, 23, 45]),
    ("rustls-webpki", [0, 103, 13]),
];

/// All versions of a crate in a lock file.
fn locked(lock: &str, name: &str) -> Vec<[u32; 3]> {
    let header = format!("name = \"{name}\"");
    lock.split("[[package]]")
        .filter(|package| package.lines().any(|line| line == header))
        .filter_map(|package| {
            package
                .lines()
                .find_map(|line| line.strip_prefix("version = \""))
        })
        .map(|version| {
            let numbers = version
                .trim_end_matches('"')
                .split(['-', '+'])
                .next()
                .unwrap();
            let mut parts = numbers.split('.').map(|part| part.parse().unwrap());
            std::array::from_fn(|_| parts.next().unwrap())
        })
        .collect()
}

#[test]
fn the_lock_file_has_no_version_with_a_known_hole() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.lock");
    let lock = std::fs::read_to_string(file).unwrap();
    for (name, least) in AT_LEAST {
        let versions = locked(&lock, name);
        assert!(!versions.is_empty(), "{name} is locked");
        assert!(
            versions.iter().all(|version| *version >= least),
            "{name} {versions:?} is older than {least:?}"
        );
    }
}

#[test]
fn the_client_of_redis_is_not_a_release_candidate() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.lock");
    assert_eq!(
        locked(&std::fs::read_to_string(file).unwrap(), "redis")
            .first()
            .map(|version| version[0]),
        Some(1)
    );
}
