//! No two files of a room import each other, not even through others, and the layers of a room are imported downwards only.
//!
//! A file imports another if it names it in a `use`, or in a path that begins with `crate`, `super`, `self` or one of its own
//! modules. Declaring a module imports nothing; code for tests does not count.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A module's path, from `src` on: `["store", "redis", "wire", "link"]` for `src/store/redis/wire/link.rs`.
type Module = Vec<String>;
/// The imports of every file, by its module.
type Imports = BTreeMap<Module, BTreeSet<Module>>;

/// The layers of `store/redis` from the bottom up, as in its documentation. Files without a layer of their own are of the ground.
const REDIS_LAYERS: [&[&str]; 8] = [
    &["names", "identity", "clock", "producer"],
    &["wire"],
    &["journal"],
    &["counts"],
    &["keys", "gateways"],
    &["outage", "recovery", "parts"],
    &["operations"],
    &["opening"],
];

/// The layers of `proxy` from the bottom up, as in its documentation.
const PROXY_LAYERS: [&[&str]; 9] = [
    &[
        "forward",
        "failure",
        "well_formed",
        "rates",
        "threshold_events",
        "upstreams",
        "trace",
        "usage",
        "series",
        "encoder",
        "received_body",
        "sent_part",
        "relay::connections",
    ],
    &["gate"],
    &["connection"],
    &["client"],
    &["origin", "admission", "exchange"],
    &["respond", "record", "settlement"],
    &["relay"],
    &["serve"],
    &[
        "connection::opening",
        "connection::http1",
        "connection::streams",
        "connection::unserved",
    ],
];

fn module(text: &str) -> Module {
    text.split("::").map(str::to_owned).collect()
}

/// The text without comments, and without its modules for tests.
fn code(text: &str) -> String {
    let mut kept = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.trim() == "#[cfg(test)]" {
            // An item with a body ends with a brace of the same indentation.
            let indentation = &line[..line.len() - line.trim_start().len()];
            let end = format!("{indentation}}}");
            for line in lines.by_ref() {
                if line == end
                    || line.ends_with(';')
                        && line.starts_with(indentation)
                        && !line[indentation.len()..].starts_with(' ')
                {
                    break;
                }
            }
        } else if !line.trim_start().starts_with("//") {
            let line = line.split(" // ").next().unwrap();
            // A visibility names a module, and imports nothing from it.
            match line
                .split_once("pub(in ")
                .and_then(|(_, rest)| rest.split_once(')'))
            {
                Some((_, item)) => kept.push(item),
                None => kept.push(line),
            }
        }
    }
    kept.join("\n")
}

/// The paths that a text names: those of `use`, with groups spread, and those that begin with a word of `roots`.
fn paths(code: &str, roots: &BTreeSet<String>) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut others = code.to_owned();
    for (at, _) in code.match_indices("use ") {
        let before = code[..at].chars().next_back();
        if before.is_none_or(|before| before.is_whitespace())
            && let Some(end) = code[at..].find(';')
        {
            let tree: String = code[at + 4..at + end].split_whitespace().collect();
            spread("", &tree, &mut found);
            others.replace_range(at..at + end, &" ".repeat(end));
        }
    }
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let mut rest = others.as_str();
    while let Some(start) = rest.find(is_word) {
        let word = &rest[start..];
        let end = word.find(|c| !is_word(c)).unwrap_or(word.len());
        let word_text = &word[..end];
        if let Some((first, _)) = word_text.split_once("::")
            && roots.contains(first)
        {
            found.insert(word_text.trim_end_matches(':').to_owned());
        }
        rest = &word[end..];
    }
    found
}

/// Adds each path of a tree of `use`.
fn spread(prefix: &str, tree: &str, found: &mut BTreeSet<String>) {
    if tree.is_empty() {
        return;
    }
    let Some((head, group)) = tree.split_once('{') else {
        // `as` was joined to the name before it; a module's own name has no capital letter in it.
        found.insert(format!("{prefix}{tree}"));
        return;
    };
    let prefix = format!("{prefix}{head}");
    let group = group.strip_suffix('}').unwrap_or(group);
    let (mut depth, mut start) = (0, 0);
    for (at, character) in group.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                spread(&prefix, &group[start..at], found);
                start = at + 1;
            }
            _ => {}
        }
    }
    spread(&prefix, &group[start..], found);
}

/// The file that a path names, as seen from `own`.
fn target(path: &str, own: &Module, modules: &BTreeSet<Module>) -> Option<Module> {
    let mut words = path.split("::").peekable();
    let mut place = match words.peek().copied() {
        Some("crate") => {
            words.next();
            Module::new()
        }
        _ => own.clone(),
    };
    while let Some(word) = words.next_if(|word| matches!(*word, "super" | "self")) {
        if word == "super" {
            place.pop();
        }
    }
    for word in words {
        let mut next = place.clone();
        next.push(word.to_owned());
        if !modules.contains(&next) {
            break;
        }
        place = next;
    }
    (modules.contains(&place) && place != *own).then_some(place)
}

/// The imports of all files.
fn imports(texts: &BTreeMap<Module, String>) -> Imports {
    let modules: BTreeSet<Module> = texts.keys().cloned().collect();
    let of = |own: &Module, text: &String| {
        let children = modules
            .iter()
            .filter(|other| other.len() == own.len() + 1 && other.starts_with(own));
        let mut roots: BTreeSet<String> =
            children.filter_map(|child| child.last().cloned()).collect();
        roots.extend(["crate", "super", "self"].map(str::to_owned));
        let named = paths(&code(text), &roots);
        named
            .iter()
            .filter_map(|path| target(path, own, &modules))
            .collect()
    };
    texts
        .iter()
        .map(|(own, text)| (own.clone(), of(own, text)))
        .collect()
}

/// The files of `src`, without those that hold tests only.
fn texts() -> BTreeMap<Module, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let files = super::floors::source_files(&root);
    let named = files.iter().filter_map(|file| {
        let relative = file.strip_prefix(&root).unwrap().with_extension("");
        let own: Module = relative
            .iter()
            .map(|part| part.to_str().unwrap().to_owned())
            .collect();
        let is_test = own.iter().any(|part| part == "tests") || own == ["lib"] || own == ["main"];
        (!is_test).then(|| (own, std::fs::read_to_string(file).unwrap()))
    });
    named.collect()
}

/// The groups of files that import each other (Tarjan's strongly connected components would name the same ones).
fn circles(imports: &Imports) -> Vec<BTreeSet<Module>> {
    let reached = |from: &Module| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(file) = next.pop() {
            for imported in imports.get(file).into_iter().flatten() {
                if seen.insert(imported.clone()) {
                    next.push(imported);
                }
            }
        }
        seen
    };
    let reach: BTreeMap<&Module, BTreeSet<Module>> =
        imports.keys().map(|file| (file, reached(file))).collect();
    let mut found = BTreeSet::new();
    for (file, seen) in &reach {
        if seen.contains(*file) {
            let back = |other: &&Module| reach.get(other).is_some_and(|seen| seen.contains(*file));
            found.insert(
                seen.iter()
                    .filter(back)
                    .cloned()
                    .collect::<BTreeSet<Module>>(),
            );
        }
    }
    found.into_iter().collect()
}

/// The imports within a circle, as text.
fn shown(circle: &BTreeSet<Module>, imports: &Imports) -> String {
    let mut text = format!("a circle of {} files:\n", circle.len());
    for file in circle {
        for imported in imports[file].intersection(circle) {
            text.push_str(&format!(
                "  {} -> {}\n",
                file.join("::"),
                imported.join("::")
            ));
        }
    }
    text
}

/// The imports from a lower layer to a higher one. A file is of the layer that names it, or else of the layer of its folder.
fn upward(room: &Module, layers: &[&[&str]], imports: &Imports) -> Vec<String> {
    let layer = |file: &Module| {
        let name = file.strip_prefix(room.as_slice())?;
        (1..=name.len()).rev().find_map(|end| {
            let name = name[..end].join("::");
            layers.iter().position(|layer| layer.contains(&&*name))
        })
    };
    let mut wrong = Vec::new();
    for named in layers.concat() {
        let named = [room.clone(), module(named)].concat();
        if !imports.contains_key(&named) {
            wrong.push(format!("there is no {}: remove it here", named.join("::")));
        }
    }
    for (file, imported) in imports {
        let Some(own) = layer(file) else {
            if file.starts_with(room) && file != room {
                wrong.push(format!("{} is in no layer", file.join("::")));
            }
            continue;
        };
        for other in imported {
            if other == room || layer(other).is_some_and(|other| other > own) {
                wrong.push(format!(
                    "{} imports from {}",
                    file.join("::"),
                    other.join("::")
                ));
            }
        }
    }
    wrong
}

#[test]
fn no_files_of_a_room_import_each_other() {
    let imports = imports(&texts());
    let circles = circles(&imports);
    let shown: Vec<String> = circles
        .iter()
        .map(|circle| shown(circle, &imports))
        .collect();
    assert!(shown.is_empty(), "{}", shown.join("\n"));
}

#[test]
fn the_layers_of_the_redis_store_are_imported_downwards_only() {
    let wrong = upward(&module("store::redis"), &REDIS_LAYERS, &imports(&texts()));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_layers_of_the_proxy_are_imported_downwards_only() {
    let wrong = upward(&module("proxy"), &PROXY_LAYERS, &imports(&texts()));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A room of three files.
fn room(top: &str, middle: &str, bottom: &str) -> Imports {
    let files = [
        ("room", ""),
        ("room::top", top),
        ("room::middle", middle),
        ("room::bottom", bottom),
    ];
    imports(
        &files
            .map(|(name, text)| (module(name), text.to_owned()))
            .into(),
    )
}

#[test]
fn a_circle_and_an_upward_import_are_found() {
    let layers: [&[&str]; 3] = [&["bottom"], &["middle"], &["top"]];
    let straight = room(
        "use super::{middle::{A, B}, bottom};",
        "fn f() { crate::room::bottom::g() }",
        "",
    );
    assert!(circles(&straight).is_empty());
    assert!(upward(&module("room"), &layers, &straight).is_empty());
    for bottom in [
        "use super::top::C;",
        "pub(super) use crate::room::top;",
        "fn f() -> super::top::C { todo!() }",
        "use crate::{\n    room::{\n        top::C,\n    },\n};",
    ] {
        let round = room("use super::middle::A;", "use super::bottom::B;", bottom);
        assert_eq!(circles(&round).len(), 1, "{bottom}");
        assert_eq!(
            upward(&module("room"), &layers, &round).len(),
            1,
            "{bottom}"
        );
    }
    let tests =
        "#[cfg(test)]\nmod tests {\n    use super::super::top::C;\n}\n// use super::top::C;";
    let tested = room("use super::middle::A;", "use super::bottom::B;", tests);
    assert!(circles(&tested).is_empty());
}
