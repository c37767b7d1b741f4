//! One meaning a word: the name of a type is defined once in the whole of `src`.

use std::collections::BTreeMap;
use std::path::Path;

use super::floors::{source_files, source_root};

/// Names that may be defined more than once, and why.
const SHARED: [(&str, &str); 2] = [
    (
        "Permit",
        "an alias of the policy's permit, with the edge's types",
    ),
    (
        "Refusal",
        "an alias of the policy's refusal, with the edge's types",
    ),
];

/// The names of all structs, enums, traits and type aliases that a text defines. Associated types and unit tests are left out.
fn defined_types(text: &str) -> Vec<&str> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or("");
    code.lines().filter_map(defined_type).collect()
}

fn defined_type(line: &str) -> Option<&str> {
    let is_indented = line.starts_with(' ');
    let mut words = line.split_whitespace().peekable();
    words.next_if(|word| word.starts_with("pub"));
    // `pub(in PATH)` is two words.
    words.next_if(|word| word.ends_with(')') && !word.contains('('));
    match words.next()? {
        "struct" | "enum" | "trait" => {}
        // An indented alias is an associated type.
        "type" if !is_indented => {}
        _ => return None,
    }
    let name = words.next()?;
    let end = name.find(|one: char| !one.is_alphanumeric() && one != '_');
    let name = &name[..end.unwrap_or(name.len())];
    name.starts_with(char::is_uppercase).then_some(name)
}

/// Every name that more than one of the files defines, with these files.
fn repeated<'t>(files: &[(&str, &'t str)]) -> BTreeMap<&'t str, Vec<String>> {
    let mut places: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (file, text) in files {
        for name in defined_types(text) {
            places.entry(name).or_default().push((*file).to_owned());
        }
    }
    places.retain(|_, files| files.len() > 1);
    places
}

fn is_test(file: &Path) -> bool {
    let mut parts = file.components();
    parts.any(|part| matches!(part.as_os_str().to_str(), Some("tests" | "tests.rs")))
}

#[test]
fn the_name_of_a_type_is_defined_once() {
    let root = source_root();
    let files: Vec<(String, String)> = source_files(&root)
        .into_iter()
        .filter(|file| {
            let file = file.strip_prefix(&root).unwrap();
            !is_test(file)
        })
        .map(|file| {
            let text = std::fs::read_to_string(&file).unwrap();
            (
                file.strip_prefix(&root).unwrap().display().to_string(),
                text,
            )
        })
        .collect();
    assert!(files.len() > 100, "{} files were read", files.len());
    let files: Vec<(&str, &str)> = files
        .iter()
        .map(|(file, text)| (file.as_str(), text.as_str()))
        .collect();
    let mut repeated = repeated(&files);
    for (name, reason) in SHARED {
        let files = repeated.remove(name);
        assert!(files.is_some(), "{name} is defined once: remove it here");
        assert!(!reason.is_empty(), "{name} needs a reason");
    }
    assert!(
        repeated.is_empty(),
        "one word has several meanings; give each type a name of its own: {repeated:#?}"
    );
}

#[test]
fn a_name_with_two_meanings_is_found() {
    let one = "/// A place.\npub(super) struct Place<'a> {\n}\ntype Row = u8;\nenum Only {}\n";
    let other = "pub(in crate::cli) enum Place {\n}\n    struct Row;\nimpl A for B {\n    type Only = u8;\n}\n\
        #[cfg(test)]\nmod tests {\n    struct Only;\n}\n";
    let found = repeated(&[("one.rs", one), ("other.rs", other)]);
    let names: Vec<&&str> = found.keys().collect();
    assert_eq!(names, [&"Place", &"Row"]);
    assert_eq!(found["Place"], ["one.rs", "other.rs"]);
    assert_eq!(repeated(&[("one.rs", one)]), BTreeMap::new());
}
