//! What a configuration reads outside its file: environment variables, files and host names. The purpose of the reading
//! decides which of them are read.

use std::cell::Cell;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::OFlags;
use serde_yaml::Value;

use super::problem::Wrong;
use crate::policy::store_settings::without_password;

/// The limit on a file with a secret: no password or URL is longer.
const SECRET_BYTES_MAX: u64 = 64 * 1024;

/// The addresses of a name.
pub type LookedUp = io::Result<Vec<SocketAddr>>;

/// The facts outside its text on which a reading of the configuration depends.
pub(super) struct Surroundings<'a> {
    /// The file itself, if the text is one's.
    pub(super) file: Option<&'a Path>,
    /// The value of an environment variable.
    pub(super) env: &'a dyn Fn(&str) -> Option<OsString>,
    /// The addresses of some `host:port`, in their order.
    pub(super) resolve: &'a dyn Fn(&[&str]) -> Vec<LookedUp>,
    /// The parts that are read for this purpose.
    pub(super) purpose: Purpose,
    /// The files of the TLS listener of a running gateway. It reads them itself, and keeps the last contents of one that is gone.
    pub(super) in_use: Vec<PathBuf>,
}

impl Surroundings<'_> {
    /// A file of the TLS listener: one that can be opened or is in use.
    pub(super) fn listener_file(&self, name: &str) -> Result<PathBuf, Wrong> {
        let file = PathBuf::from(name);
        match self.in_use.contains(&file) {
            true => Ok(file),
            false => readable(name),
        }
    }
}

/// The purpose for which a configuration is read, which decides what is read outside the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A gateway: every variable and file is read. Names of upstreams are resolved; a name that does not resolve is a warning.
    Serve,
    /// `touchline check`: the same as a gateway, and names of Redis are resolved too.
    Check,
    /// Commands on the store: only variables and files of the keys they use are read. No name is resolved.
    Commands,
    /// The file alone: no variable, no file, no name.
    Offline,
}

/// Replaces every `${VARIABLE}` in `text` by its value and every `$${` by `${`. Values are not expanded again.
pub(super) fn expand(text: &str, env: &dyn Fn(&str) -> Option<OsString>) -> Result<String, Wrong> {
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
                "`${` must be followed by a variable's name and `}`",
                "write ${NAME}, or $${ for the characters ${",
            ));
        };
        let Some(value) = env(name) else {
            return Err(Wrong::new(
                format!("the environment variable {name} is not set"),
                "set it, or write $${ for the characters ${",
            ));
        };
        let value = value.into_string().map_err(|_| {
            let message = format!("the value of the environment variable {name} is not UTF-8");
            Wrong::new(message, "set it to a text in UTF-8")
        })?;
        expanded.push_str(&value);
        rest = after.get(name.len() + 1..).unwrap_or_default();
    }
    expanded.push_str(rest);
    Ok(expanded)
}

/// Whether a value is a text with a correctly written variable in it.
pub(super) fn has_variable(written: &Value) -> bool {
    let found = Cell::new(false);
    let note = |_: &str| {
        found.set(true);
        Some(OsString::new())
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

/// Opens a file that a running gateway reads again.
///
/// # Errors
/// Also if it is of another kind, with [`io::ErrorKind::InvalidInput`]: to open a pipe would wait for its writer.
pub fn open_regular(file: &Path) -> io::Result<File> {
    let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(nonblocking)
        .open(file)?;
    if !opened.metadata()?.is_file() {
        let message = "it is not a regular file";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    Ok(opened)
}

/// A file that can be opened.
pub(super) fn readable(name: &str) -> Result<PathBuf, Wrong> {
    let file = PathBuf::from(name);
    match open_regular(&file) {
        Ok(_) => Ok(file),
        Err(error) => Err(unreadable(&error)),
    }
}

/// The problem of a file whose directory is missing.
pub(super) fn missing_directory(file: &Path) -> Option<String> {
    // That of a bare name is the working directory.
    let directory = file.parent().filter(|directory| *directory != "")?;
    let shown = directory.display().to_string();
    (!directory.is_dir()).then(|| format!("there is no directory {}", without_password(&shown)))
}

/// The place of a file, the same for all names of it: absolute and without `.` and `..`; links are followed if files are read.
pub(super) fn place_of(file: &Path, purpose: Purpose) -> PathBuf {
    let absolute = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let mut plain = PathBuf::new();
    for component in absolute.components() {
        match component {
            Component::ParentDir => {
                plain.pop();
            }
            Component::CurDir => {}
            Component::Prefix(_) | Component::RootDir | Component::Normal(_) => {
                plain.push(component);
            }
        }
    }
    if purpose == Purpose::Offline {
        return plain;
    }
    // A link to a directory makes `..` another one.
    let in_directory = || {
        let (directory, name) = absolute.parent().zip(absolute.file_name())?;
        Some(directory.canonicalize().ok()?.join(name))
    };
    let found = absolute.canonicalize().ok();
    found.or_else(in_directory).unwrap_or(plain)
}

/// The problem of a file that cannot be read.
pub(super) fn unreadable(error: &io::Error) -> Wrong {
    let hint = match error.kind() {
        io::ErrorKind::InvalidInput => "name a regular file, which can be read again",
        // Of `read_secret`.
        io::ErrorKind::Other | io::ErrorKind::InvalidData => {
            "write the value and nothing else into the file"
        }
        _ => "create the file, or make it readable for the gateway's user",
    };
    Wrong::of_file("cannot read ", error.to_string(), hint)
}

/// The contents of a file without the newlines at the end.
pub(super) fn read_secret(file: &Path) -> io::Result<String> {
    let mut text = String::new();
    open_regular(file)?
        .take(SECRET_BYTES_MAX + 1)
        .read_to_string(&mut text)?;
    if text.len() as u64 > SECRET_BYTES_MAX {
        return Err(io::Error::other("the file is larger than 64KiB"));
    }
    let end = text.trim_end_matches(['\r', '\n']).len();
    text.truncate(end);
    if text.is_empty() {
        return Err(io::Error::other("the file is empty"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use rustix::fs::{FileType, Mode};

    use super::*;

    #[test]
    fn variables_are_expanded_once_and_escapes_kept() {
        let env = |name: &str| match name {
            "A" => Some("1".into()),
            "B_2" => Some("${A}".into()),
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
        let empty = read_secret(&file).unwrap_err();
        assert!(unreadable(&empty).hint.contains("into the file"));
        assert!(read_secret(dir.path()).is_err());
        // Without a writer, which would be waited for.
        let pipe = dir.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::RUSR, 0).unwrap();
        assert!(read_secret(&pipe).is_err());
    }
}
