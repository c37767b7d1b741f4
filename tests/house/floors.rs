//! A module imports only from lower floors; siblings do not know each other.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The table of `src/lib.rs`.
const FLOORS: [(&str, u32); 10] = [
    ("main", 5),
    ("cli", 5),
    ("server", 4),
    ("proxy", 3),
    ("admin", 3),
    ("config", 2),
    ("store", 2),
    ("telemetry", 1),
    ("policy", 0),
    ("clock", 0),
];

/// Rooms where things would be put that have no place.
const FORBIDDEN_ROOMS: [&str; 7] = [
    "utils", "util", "common", "helpers", "types", "prelude", "mod",
];

pub(super) fn source_files(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(source_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

pub(super) fn source_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// The room that a file belongs to: `src/store/redis/names.rs` and `src/store.rs` are of `store`.
fn room(file: &Path, root: &Path) -> String {
    let first = file
        .strip_prefix(root)
        .unwrap()
        .components()
        .next()
        .unwrap();
    Path::new(first.as_os_str())
        .file_stem()
        .unwrap()
        .to_str()
        .unwrap()
        .to_owned()
}

/// The rooms that a text imports from: the word behind each `crate::` or `touchline::`, in code or in braces.
fn imported_rooms(text: &str) -> Vec<String> {
    let mut rooms = Vec::new();
    let code: String = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .collect::<Vec<_>>()
        .join("\n");
    for prefix in ["crate::", "touchline::"] {
        for (at, _) in code.match_indices(prefix) {
            let rest = &code[at + prefix.len()..];
            if let Some(group) = rest.strip_prefix('{') {
                let mut depth = 0;
                let mut word = String::new();
                for character in group.chars() {
                    match character {
                        '{' => depth += 1,
                        '}' if depth == 0 => break,
                        '}' => depth -= 1,
                        ',' if depth == 0 => rooms.push(std::mem::take(&mut word)),
                        _ if depth == 0 => word.push(character),
                        _ => {}
                    }
                }
                rooms.push(word);
            } else {
                rooms.push(rest.to_owned());
            }
        }
    }
    rooms
        .iter()
        .map(|text| {
            text.trim()
                .chars()
                .take_while(|c| c.is_ascii_alphanumeric() || *c == '_')
                .collect::<String>()
        })
        .filter(|room| !room.is_empty())
        .collect()
}

/// What a file imports against the order.
fn violations(file: &str, own_room: &str, text: &str) -> Vec<String> {
    let floors: BTreeMap<&str, u32> = FLOORS.into();
    let Some(own) = floors.get(own_room) else {
        return vec![format!("{file}: the room {own_room} has no floor")];
    };
    imported_rooms(text)
        .into_iter()
        .filter(|room| room != own_room)
        .filter_map(|room| match floors.get(room.as_str()) {
            // The binary may call the command line, its neighbour on the top floor.
            Some(_) if own_room == "main" => None,
            Some(floor) if floor < own => None,
            Some(floor) => Some(format!(
                "{file} (floor {own}) imports from {room} (floor {floor})"
            )),
            None => Some(format!("{file} imports from {room}, which has no floor")),
        })
        .collect()
}

#[test]
fn a_module_imports_only_from_lower_floors() {
    let root = source_root();
    let mut wrong = Vec::new();
    for file in source_files(&root) {
        let own_room = room(&file, &root);
        if own_room != "lib" {
            let text = std::fs::read_to_string(&file).unwrap();
            wrong.extend(violations(&file.display().to_string(), &own_room, &text));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn an_import_against_the_order_is_found() {
    for (own_room, text) in [
        ("policy", "use crate::store::Store;"),
        ("config", "use crate::store::Store;"),
        ("store", "let x = crate::proxy::Gate::new();"),
        (
            "policy",
            "use crate::{policy::key, config::{Config, Tier}};",
        ),
        ("store", "use crate::cellar::Wine;"),
        ("cellar", ""),
    ] {
        assert_eq!(
            violations("f", own_room, text).len(),
            1,
            "{own_room}: {text}"
        );
    }
    assert!(
        violations(
            "f",
            "proxy",
            "use crate::{policy::{a, b}, store::Store};\n// use crate::server::X"
        )
        .is_empty()
    );
}

#[test]
fn there_is_no_room_for_things_without_a_place() {
    for file in source_files(&source_root()) {
        let stem = file.file_stem().unwrap().to_str().unwrap();
        assert!(
            !FORBIDDEN_ROOMS.contains(&stem),
            "{}: name the file after what it owns",
            file.display()
        );
    }
}

#[test]
fn every_room_of_the_map_exists() {
    let root = source_root();
    let maps = [("lib.rs", "//! "), ("../docs/architecture.md", "")];
    let maps = maps.map(|(file, begin)| {
        (
            file,
            begin,
            std::fs::read_to_string(root.join(file)).unwrap(),
        )
    });
    for (name, floor) in FLOORS {
        assert!(
            source_root().join(format!("{name}.rs")).exists(),
            "there is no src/{name}.rs"
        );
        for (file, begin, map) in &maps {
            let row = map.lines().any(|line| {
                line.starts_with(&format!("{begin}| {floor} |"))
                    && line.contains(&format!("`{name}`"))
            });
            assert!(
                row,
                "the table in src/{file} does not have {name} on floor {floor}"
            );
        }
    }
}
