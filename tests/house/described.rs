//! A new command, error code, key or member of an access-log line is described wherever its readers look for it.

use super::documents::{Page, codes, keys, page, pages, root, strings, touchline};

/// The pages that describe the present version to its users.
fn guides() -> Vec<Page> {
    let mut pages = pages();
    pages.retain(|page| !["CHANGELOG.md", "CONTRIBUTING.md"].contains(&&*page.name()));
    pages
}

fn printed(arguments: &[&str]) -> String {
    let output = touchline(root(), &strings(arguments));
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The commands below `above` by their whole names, such as `keys issue`.
fn commands(above: &[&str]) -> Vec<String> {
    let help = printed(&[above, &["--help"]].concat());
    let Some((_, list)) = help.split_once("\nCommands:\n") else {
        return Vec::new();
    };
    let lines = list.lines().take_while(|line| !line.is_empty());
    let names = lines.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let mut found = Vec::new();
    for name in names.filter(|name| !["", "help"].contains(name)) {
        let path = [above, &[name]].concat();
        found.push(path.join(" "));
        found.extend(commands(&path));
    }
    found
}

#[test]
fn every_command_is_on_a_page() {
    let commands = commands(&[]);
    assert!(commands.len() > 25, "{commands:?}");
    let pages = guides();
    for command in commands {
        let shown = format!("touchline {command}");
        let is_longer =
            |rest: &str| rest.starts_with(|one: char| one.is_alphanumeric() || one == '-');
        let is_on = |text: &str| text.split(&shown).skip(1).any(|rest| !is_longer(rest));
        assert!(
            pages.iter().any(|page| is_on(&page.text)),
            "no page has `{shown}`: describe it on the page of its reader in docs/"
        );
    }
}

#[test]
fn every_key_is_in_the_shipped_file() {
    let file = std::fs::read_to_string(root().join("gateway.yaml")).unwrap();
    let is_of_name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let keys = keys();
    let place = |key: &str| {
        let (section, name) = (key.split('.').next(), key.rsplit('.').next());
        (section.unwrap().to_owned(), name.unwrap().to_owned())
    };
    for key in keys.iter().filter(|key| !key.ends_with('*')) {
        let (section, name) = place(key);
        let begins = format!("{section}:");
        let mut paragraphs = file.split("\n\n");
        let paragraph = paragraphs.find(|one| one.lines().any(|line| line.starts_with(&begins)));
        let paragraph = paragraph.unwrap_or_default();
        let written = format!("{name}:");
        let before = paragraph
            .match_indices(&written)
            .map(|(at, _)| &paragraph.as_bytes()[..at]);
        let times = before.filter(|before| before.last().is_none_or(|byte| !is_of_name(byte)));
        // As often as there are keys of that name in the section.
        let wanted = keys
            .iter()
            .filter(|key| place(key) == (section.clone(), name.clone()));
        assert!(
            times.count() >= wanted.count(),
            "gateway.yaml does not have {key} in its section: give it there, or in a comment"
        );
    }
}

#[test]
fn every_error_code_is_in_the_openapi_document() {
    let document = printed(&["openapi"]);
    for code in codes() {
        assert!(
            document.contains(&format!("\"{code}\"")),
            "{code} is not in the OpenAPI document: add it to `errors` in src/policy/openapi/responses.rs"
        );
    }
}

/// The members are those that `src/telemetry/access_log/line.rs` writes.
#[test]
fn every_member_of_an_access_log_line_is_described() {
    let source = root().join("src/telemetry/access_log/line.rs");
    let source = std::fs::read_to_string(source).unwrap();
    let (source, _) = source.split_once("#[cfg(test)]").unwrap();
    let ends = source.split("\\\":").map(|part| part.rsplit_once("\\\""));
    let members: Vec<&str> = ends.flatten().map(|(_, name)| name).collect();
    assert!(members.len() > 20, "{members:?}");
    let words = page("docs/operations.md").words();
    for member in members {
        assert!(
            words.iter().any(|word| word == member),
            "docs/operations.md, Logs, does not have the member `{member}` of an access-log line"
        );
    }
}

#[test]
fn every_member_of_readyz_is_described() {
    let source = std::fs::read_to_string(root().join("src/admin/readiness.rs")).unwrap();
    let fields = source.split("pub(super) ").skip(1);
    let fields: Vec<&str> = fields
        .filter_map(|field| Some(field.split_once(':')?.0))
        .collect();
    assert!(fields.len() > 10, "{fields:?}");
    let page = page("docs/operations.md").text;
    let (_, section) = page.split_once("\n## Health and readiness\n").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    for field in fields {
        assert!(
            section.contains(&format!("`{field}`")),
            "docs/operations.md, Health and readiness, does not have the member `{field}` of /readyz"
        );
    }
}

#[test]
fn the_row_of_every_metric_has_its_labels() {
    let source = std::fs::read_to_string(root().join("src/telemetry/metrics.rs")).unwrap();
    let (source, _) = source.split_once("#[cfg(test)]").unwrap();
    let page = page("docs/operations.md").text;
    let mut seen = 0;
    for declared in source.split("(\"touchline_").skip(1) {
        let (declared, _) = declared.split_once(";\n").unwrap();
        let Some((name, labels)) = declared.split_once("&[") else {
            continue;
        };
        let name = format!("`touchline_{}`", name.split('"').next().unwrap());
        let (labels, _) = labels.split_once(']').unwrap();
        let labels = labels.replace('"', "");
        let mut rows = page.lines().filter(|line| line.starts_with("| `"));
        let row = rows.find(|row| row.split('|').nth(1).unwrap().contains(&name));
        let listed = row.and_then(|row| Some(row.split('|').nth(2)?.trim()));
        assert_eq!(
            listed,
            Some(&*labels),
            "docs/operations.md, Metrics: the labels of {name}"
        );
        seen += 1;
    }
    assert!(seen > 20, "{seen} metrics with labels were found");
}
