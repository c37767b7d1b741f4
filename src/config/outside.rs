//! The world outside a file that a configuration may ask: variables of the environment, files, names. What it asks of it depends on
//! what the file is read for.

use std::cell::Cell;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde_yaml::Value;

use super::problem::Wrong;

/// A password or URL is never longer.
const SECRET_BYTES_MAX: u64 = 64 * 1024;

/// What a configuration may ask of the world outside its file.
pub(super) struct Surroundings<'a> {
    /// The value of an environment variable.
    pub(super) env: &'a dyn Fn(&str) -> Option<String>,
    /// The addresses of a `host:port`.
    pub(super) resolve: &'a dyn Fn(&str) -> io::Result<Vec<SocketAddr>>,
    /// What is asked of them.
    pub(super) purpose: Purpose,
}

/// What a configuration is read for, and with that what it needs of the world outside its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A gateway: every variable and file. Names of upstreams are resolved; one that does not resolve is a warning.
    Serve,
    /// `touchline check`: the same, and names of Redis are resolved too.
    Check,
    /// Commands on the store: variables and files of what they use. No name is resolved.
    Commands,
    /// The file alone: no variable, no file, no name.
    Offline,
}

/// `text` with every `${VARIABLE}` replaced by its value and every `$${` by `${`. Values are not expanded again.
pub(super) fn expand(text: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<String, Wrong> {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        if let Some(before) = before.strip_suffix('$') {
            expanded.push_str(before);
            expanded.push_str("${");
            rest = after;
            continue;
        }
        expanded.push_str(before);
        let name = after
            .split_once('}')
            .map(|(name, _)| name)
            .filter(|name| is_variable(name));
        let Some(name) = name else {
            return Err(Wrong::new(
                "`${` without a variable's name and `}`",
                "write ${NAME}, or $${ for the characters themselves",
            ));
        };
        let Some(value) = env(name) else {
            return Err(Wrong::new(
                format!("the environment has no variable {name}"),
                "set it, or write $${ for the characters themselves",
            ));
        };
        expanded.push_str(&value);
        rest = after.get(name.len() + 1..).unwrap_or_default();
    }
    expanded.push_str(rest);
    Ok(expanded)
}

/// Whether a value is a text with a variable in it, and no mistake in how it is written.
pub(super) fn has_variable(written: &Value) -> bool {
    let found = Cell::new(false);
    let note = |_: &str| {
        found.set(true);
        Some(String::new())
    };
    written
        .as_str()
        .is_some_and(|text| expand(text, &note).is_ok())
        && found.get()
}

fn is_variable(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// A file that can be opened.
pub(super) fn readable(name: &str) -> Result<PathBuf, Wrong> {
    let file = PathBuf::from(name);
    match std::fs::File::open(&file) {
        Ok(_) => Ok(file),
        Err(error) => Err(unreadable(&file, &error)),
    }
}

pub(super) fn unreadable(file: &Path, error: &io::Error) -> Wrong {
    Wrong::new(
        format!("cannot read {}: {error}", file.display()),
        "the file must exist and be readable by the gateway's user",
    )
}

/// What a file holds, without the newlines at its end.
pub(super) fn read_secret(file: &Path) -> io::Result<String> {
    let mut text = String::new();
    std::fs::File::open(file)?
        .take(SECRET_BYTES_MAX + 1)
        .read_to_string(&mut text)?;
    if text.len() as u64 > SECRET_BYTES_MAX {
        return Err(io::Error::other("it is larger than 64KiB"));
    }
    let end = text.trim_end_matches(['\r', '\n']).len();
    text.truncate(end);
    if text.is_empty() {
        return Err(io::Error::other("it is empty"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_expanded_once_and_escapes_kept() {
        let env = |name: &str| match name {
            "A" => Some("1".to_owned()),
            "B_2" => Some("${A}".to_owned()),
            _ => None,
        };
        for (text, expected) in [
            ("plain $ $A {A}", Some("plain $ $A {A}")),
            ("${A}", Some("1")),
            ("x${A}y${A}", Some("x1y1")),
            ("${B_2}", Some("${A}")),
            ("$${A}", Some("${A}")),
            ("$$${A}", Some("$${A}")),
            ("${NONE}", None),
            ("${A", None),
            ("${}", None),
            ("${2}", None),
            ("${A-b}", None),
        ] {
            assert_eq!(expand(text, &env).ok().as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn a_secret_file_loses_its_last_newline_only() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("secret");
        std::fs::write(&file, " a b \n").unwrap();
        assert_eq!(read_secret(&file).unwrap(), " a b ");
        std::fs::write(&file, "\n").unwrap();
        assert!(read_secret(&file).is_err());
        assert!(read_secret(dir.path()).is_err());
    }
}
