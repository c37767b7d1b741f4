//! A reference of `gateway.yaml` in Markdown, for `docs/configuration.md`: for each section a table of its keys with values, default
//! and help.
//!
//! The reference, like the [schema](mod@super::schema), is made from the rows that read the file, so it cannot differ from them.

use serde_json::Value as Json;

use super::rows::{Form, Row, What};

const HEAD: &str = "| Key | Values | Default | Meaning |\n|---|---|---|---|\n";

/// The tables of the file whose permitted content is `form`.
pub(super) fn document(form: &Form) -> String {
    let What::Section(rows) = &form.what else {
        return String::new();
    };
    let sections = rows.iter().map(|row| {
        let mut lines = Vec::new();
        beneath(row.name, &row.form, &mut lines);
        let (name, help, marks) = (row.name, row.help, marks(row));
        format!("### {name}\n{help}{marks}\n\n{HEAD}{}", lines.concat())
    });
    sections.collect::<Vec<_>>().join("\n")
}

/// The lines of all keys beneath a place.
fn beneath(at: &str, form: &Form, lines: &mut Vec<String>) {
    match &form.what {
        What::Scalar(_) => {}
        What::Section(rows) => each(at, rows, lines),
        What::Named(rows) => each(&format!("{at}.<name>"), rows, lines),
        What::List(item) => beneath(&format!("{at}[]"), item, lines),
        What::Either(forms) => {
            for form in forms.iter() {
                beneath(at, form, lines);
            }
        }
    }
}

fn each(at: &str, rows: &[Row], lines: &mut Vec<String>) {
    for row in rows {
        let at = format!("{at}.{}", row.name);
        let (values, default) = (values(&row.form), default(&row.form));
        let (help, marks) = (row.help.replace('|', "\\|"), marks(row));
        lines.push(format!(
            "| `{at}` | {values} | {default} | {help}{marks} |\n"
        ));
        beneath(&at, &row.form, lines);
    }
}

/// The sentences about a key after its help.
fn marks(row: &Row) -> String {
    let marks = [
        (row.form.is_required, " **Required.**"),
        (row.form.is_secret, " Secret: never shown."),
        (
            row.form.needs_restart && !row.help.contains("restart"),
            " A change needs a restart.",
        ),
    ];
    let marks = marks.iter().filter(|(holds, _)| *holds);
    marks.map(|(_, mark)| *mark).collect()
}

/// The permitted values.
fn values(form: &Form) -> String {
    let kind = match &form.what {
        What::Scalar(_) => form.values.clone(),
        What::Section(_) | What::Named(_) => "section".to_owned(),
        What::List(item) => format!("list of {}", values(item)),
        What::Either(forms) => forms.each_ref().map(values).join(" or "),
    };
    match &form.bounds {
        Some((least, most)) => format!("{kind}, {least} to {most}"),
        None => kind,
    }
}

fn default(form: &Form) -> String {
    match &form.default {
        Some(default) if !form.is_required => format!("`{}`", shown(default)),
        Some(_) | None => String::new(),
    }
}

/// A default as written in the file.
fn shown(default: &Json) -> String {
    match default {
        Json::String(text) => text.clone(),
        Json::Array(items) => {
            let items: Vec<String> = items.iter().map(shown).collect();
            format!("[{}]", items.join(", "))
        }
        other => other.to_string(),
    }
}
