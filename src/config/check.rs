//! The way from the text to checked values: reads leaves, expands `${VARIABLE}`, and collects every problem.
//!
//! What a file is read for decides what of the world outside it is looked at: variables, files and names. A value that is therefore
//! not known is no problem, and neither is anything that another value says in its light.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path as FilePath, PathBuf};

use serde_yaml::{Mapping, Value};

use super::outline::{Outline, Path};
use super::problem::Problem;
use super::scalar::{Quantity, Scalar};
use super::secret::Secret;
use crate::policy::address;

/// A password or URL is never longer.
const SECRET_BYTES_MAX: u64 = 64 * 1024;
/// Names further away than this share of their length are no misspelling of each other.
const LIKENESS_MIN: f64 = 0.6;

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

/// A wrong value: what is wrong and how to make it right.
pub(super) struct Wrong {
    about: About,
    message: String,
    hint: String,
}

/// What a message begins with.
enum About {
    /// Nothing: it is a whole sentence, without the value.
    Sentence,
    /// The value as it is written, in quotes.
    Quoted,
    /// The value in its one form.
    Shown,
}

impl Wrong {
    /// A whole sentence, which has nothing of a secret in it.
    pub(super) fn new(message: impl Into<String>, hint: impl Into<String>) -> Wrong {
        Wrong {
            about: About::Sentence,
            message: message.into(),
            hint: hint.into(),
        }
    }

    /// That the value is not what it should be.
    pub(super) fn not(what: &str, hint: impl Into<String>) -> Wrong {
        Wrong {
            about: About::Quoted,
            message: format!("is not {what}"),
            hint: hint.into(),
        }
    }

    /// That the value is on the wrong side of its bounds.
    pub(super) fn outside<T: Quantity>(value: &T, bounds: &RangeInclusive<T>) -> Wrong {
        let too_small = value < bounds.start();
        let side = if too_small { "small" } else { "large" };
        Wrong {
            about: About::Shown,
            message: format!("is too {side}"),
            hint: format!("from {} to {}", bounds.start().show(), bounds.end().show()),
        }
    }

    /// The message on a value; on `None` without it.
    fn message(&self, value: Option<&str>) -> String {
        match (&self.about, value) {
            (About::Sentence, _) => self.message.clone(),
            (About::Quoted, Some(value)) => format!("{value:?} {}", self.message),
            (About::Shown, Some(value)) => format!("{value} {}", self.message),
            // What a variable or a file holds may be a secret.
            (About::Quoted | About::Shown, None) => format!("its value {}", self.message),
        }
    }
}

/// What a leaf is in one configuration, its default where nothing is written.
#[derive(Debug, Clone)]
pub(super) struct Reading {
    /// In one form for equal values, without what is secret; one with a variable as it is written.
    pub(super) shown: String,
    /// Whether only a restart changes it.
    pub(super) needs_restart: bool,
}

/// One check of one file.
pub(super) struct Check<'a> {
    outline: &'a Outline,
    surroundings: &'a Surroundings<'a>,
    problems: Vec<Problem>,
    warnings: Vec<Problem>,
    /// Values that stand for something that was not looked at.
    unknown: usize,
    readings: BTreeMap<String, Reading>,
    foundation: BTreeMap<String, Secret>,
    in_foundation: bool,
    in_service: bool,
    is_silent: bool,
}

impl<'a> Check<'a> {
    pub(super) fn new(outline: &'a Outline, surroundings: &'a Surroundings<'a>) -> Check<'a> {
        Check {
            outline,
            surroundings,
            problems: Vec::new(),
            warnings: Vec::new(),
            unknown: 0,
            readings: BTreeMap::new(),
            foundation: BTreeMap::new(),
            in_foundation: false,
            in_service: false,
            is_silent: false,
        }
    }

    /// What each leaf is that was read so far, by its path.
    pub(super) fn readings(&self) -> &BTreeMap<String, Reading> {
        &self.readings
    }

    /// What a process is built on: the effects of everything that only a restart changes, by path. Sections that hold any are
    /// there too, so that one which comes or goes is noticed.
    pub(super) fn foundation(&self) -> &BTreeMap<String, Secret> {
        &self.foundation
    }

    /// Runs `read`, during which everything that is noted needs a restart.
    pub(super) fn needing_restart<T>(&mut self, read: impl FnOnce(&mut Check<'a>) -> T) -> T {
        let outer = std::mem::replace(&mut self.in_foundation, true);
        let value = read(self);
        self.in_foundation = outer;
        value
    }

    /// Runs `read`, during which all that is read is of use to a gateway that serves, and to no command.
    pub(super) fn serving<T>(&mut self, read: impl FnOnce(&mut Check<'a>) -> T) -> T {
        let outer = std::mem::replace(&mut self.in_service, true);
        let value = read(self);
        self.in_service = outer;
        value
    }

    /// Whether variables and files are looked at here.
    fn looks_outside(&self) -> bool {
        match self.surroundings.purpose {
            Purpose::Serve | Purpose::Check => true,
            Purpose::Commands => !self.in_service,
            Purpose::Offline => false,
        }
    }

    /// How many values are unknown so far.
    pub(super) fn unknown(&self) -> usize {
        self.unknown
    }

    /// Runs `make`, which judges values by each other; not if more of them are unknown than `before` they were read.
    pub(super) fn judging<T>(
        &mut self,
        before: usize,
        make: impl FnOnce(&mut Check<'a>) -> T,
    ) -> T {
        let (is_known, problems) = (self.unknown == before, self.problems.len());
        let made = make(self);
        if !is_known {
            self.problems.truncate(problems);
        }
        made
    }

    /// Runs `read`, during which no leaf is noted: what it comes to is noted as a whole.
    pub(super) fn silently<T>(&mut self, read: impl FnOnce(&mut Check<'a>) -> T) -> T {
        let outer = std::mem::replace(&mut self.is_silent, true);
        let value = read(self);
        self.is_silent = outer;
        value
    }

    /// Notes what stands at `at`, as it is shown and as it works. A user and password in a URL are not shown in any case.
    pub(super) fn note(&mut self, at: &Path, shown: String, effect: String) {
        if self.is_silent {
            return;
        }
        let reading = Reading {
            shown: without_user(shown),
            needs_restart: self.in_foundation,
        };
        self.readings.insert(at.as_str().to_owned(), reading);
        self.found(at, effect);
    }

    /// Notes what a process is built on, if `at` is a part of that.
    pub(super) fn found(&mut self, at: &Path, effect: String) {
        if self.in_foundation {
            let effect = Secret::hide(effect);
            self.foundation.insert(at.as_str().to_owned(), effect);
        }
    }

    /// Reads a section. It is a part of what a process is built on if it is read as one, or anything in it is.
    pub(super) fn section<T>(&mut self, at: &Path, read: impl FnOnce(&mut Check<'a>) -> T) -> T {
        let before = self.foundation.len();
        let value = read(self);
        if self.in_foundation || self.foundation.len() > before {
            let at = at.as_str().to_owned();
            self.foundation.entry(at).or_default();
        }
        value
    }

    /// The keys of a section; `None` where something else stands there.
    pub(super) fn mapping(&mut self, at: &Path, written: Value, names: &[&str]) -> Option<Mapping> {
        let (message, hint) = match written {
            Value::Mapping(mapping) => return Some(mapping),
            Value::Null => (
                "the section is empty".to_owned(),
                "write {} for the defaults, or remove the key".to_owned(),
            ),
            other => (
                format!("expected keys, found {}", kind_of(&other)),
                format!("the keys here are {}", names.join(", ")),
            ),
        };
        self.wrong(at, message, hint);
        None
    }

    /// Notes the keys of a section that it does not know.
    pub(super) fn refuse_keys(&mut self, at: &Path, unknown: &Mapping, names: &[&str]) {
        for key in unknown.keys() {
            let key = key_text(key);
            let hint = unknown_key_hint(&key, names);
            self.wrong_key(&at.key(&key), "there is no such key", hint);
        }
    }

    /// The items of a list with their paths; none where nothing or something else stands there.
    pub(super) fn items(&mut self, at: &Path, written: Option<Value>) -> Vec<(Path, Value)> {
        match written {
            None => Vec::new(),
            Some(Value::Sequence(items)) => {
                let items = items.into_iter().enumerate();
                items.map(|(index, item)| (at.index(index), item)).collect()
            }
            Some(other) => {
                let message = format!("expected a list, found {}", kind_of(&other));
                self.wrong(at, message, "write [one, another], or a line `- item` each");
                Vec::new()
            }
        }
    }

    pub(super) fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Forgets the problems that were noted since there were `before`.
    pub(super) fn forget_problems(&mut self, before: usize) {
        self.problems.truncate(before);
    }

    /// What is no problem of the file, and may be one where it is used, in the order of the file.
    pub(super) fn warnings(&self) -> Vec<Problem> {
        let mut warnings = self.warnings.clone();
        warnings.sort_by(Problem::by_place);
        warnings
    }

    pub(super) fn into_problems(self) -> Vec<Problem> {
        self.problems
    }

    /// Notes a problem of the value at `at`.
    pub(super) fn wrong(&mut self, at: &Path, message: impl AsRef<str>, hint: impl AsRef<str>) {
        let problem = self
            .outline
            .value(at)
            .problem(at, message.as_ref(), Some(hint.as_ref()));
        self.problems.push(problem);
    }

    /// Notes what may be a problem of the value at `at`.
    pub(super) fn warn(&mut self, at: &Path, message: impl AsRef<str>, hint: impl AsRef<str>) {
        let value = self.outline.value(at);
        let warning = value.problem(at, message.as_ref(), Some(hint.as_ref()));
        self.warnings.push(warning);
    }

    /// Notes a problem of the key at `at`.
    pub(super) fn wrong_key(&mut self, at: &Path, message: impl AsRef<str>, hint: impl AsRef<str>) {
        let problem = self
            .outline
            .key(at)
            .problem(at, message.as_ref(), Some(hint.as_ref()));
        self.problems.push(problem);
    }

    /// The value, or its problem noted without anything of it.
    pub(super) fn accept<T>(&mut self, at: &Path, value: Result<T, Wrong>) -> Option<T> {
        value
            .map_err(|wrong| self.wrong(at, wrong.message(None), wrong.hint))
            .ok()
    }

    /// Whether the file has a value at `at`.
    pub(super) fn is_given(&self, at: &Path) -> bool {
        self.outline.has(at)
    }

    /// The scalar as a `T` and what `make` makes of that, noted; `None` where it is wrong.
    pub(super) fn leaf<T: Scalar, U>(
        &mut self,
        at: &Path,
        written: &Value,
        make: impl FnOnce(T) -> Result<U, Wrong>,
    ) -> Option<U> {
        if !self.looks_outside() && has_variable(written) {
            // Nothing is judged by what a secret holds.
            self.unknown += usize::from(!T::SECRET);
            return None;
        }
        match self.scalar(written, make) {
            Ok((value, shown, effect)) => {
                self.note(at, shown, effect);
                Some(value)
            }
            Err((message, hint)) => {
                self.wrong(at, message, hint);
                None
            }
        }
    }

    /// The same with how it is shown and how it works, or what is wrong with it and how to make it right.
    fn scalar<T: Scalar, U>(
        &self,
        written: &Value,
        make: impl FnOnce(T) -> Result<U, Wrong>,
    ) -> Result<(U, String, String), (String, String)> {
        let text = self.text_of::<T>(written);
        let text = text.map_err(|wrong| (wrong.message(None), wrong.hint))?;
        let with_variable = written.as_str().filter(|written| written.contains("${"));
        // What a variable holds may be a secret.
        let is_open = !T::SECRET && with_variable.is_none_or(|written| written == text);
        let wrong =
            |wrong: Wrong, value: &str| (wrong.message(is_open.then_some(value)), wrong.hint);
        let value = T::parse(&text);
        let value = value.ok_or_else(|| wrong(Wrong::not(T::WHAT, T::HINT), &text))?;
        let effect = value.effect();
        let shown = match with_variable.filter(|_| !T::SECRET) {
            Some(written) => written.to_owned(),
            None => value.show(),
        };
        let made = make(value).map_err(|error| wrong(error, &effect))?;
        Ok((made, shown, effect))
    }

    /// The text that a `T` is read from.
    fn text_of<T: Scalar>(&self, written: &Value) -> Result<String, Wrong> {
        let (found, hint) = match written {
            Value::String(text) => {
                let expanded = expand(text, self.surroundings.env)?;
                if !(T::NUMBER || T::BOOLEAN) || expanded != *text {
                    return Ok(expanded);
                }
                let fits = T::parse(text).is_some();
                let hint = if fits { "remove the quotes" } else { T::HINT };
                (format!("{text:?}"), hint)
            }
            Value::Number(number) if T::NUMBER => return Ok(number.to_string()),
            Value::Bool(value) if T::BOOLEAN => return Ok(value.to_string()),
            Value::Number(number) if !T::SECRET => (format!("the number {number}"), T::HINT),
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::Sequence(_)
            | Value::Mapping(_)
            | Value::Tagged(_) => (kind_of(written).to_owned(), T::HINT),
        };
        let message = format!("expected {}, found {found}", T::WHAT);
        Err(Wrong::new(message, hint))
    }

    /// What `read` makes of a file; `None` also where no file is looked at.
    pub(super) fn file<U>(
        &mut self,
        at: &Path,
        written: &Value,
        read: impl FnOnce(&str) -> Result<U, Wrong>,
    ) -> Option<U> {
        if self.looks_outside() {
            return self.leaf(at, written, |file: PathBuf| read(&file.show()));
        }
        self.leaf::<PathBuf, _>(at, written, Ok)?;
        None
    }

    /// The same of a file whose name was read.
    pub(super) fn named_file<U>(
        &mut self,
        at: &Path,
        name: &str,
        read: impl FnOnce(&str) -> Result<U, Wrong>,
    ) -> Option<U> {
        match self.looks_outside() {
            true => self.accept(at, read(name)),
            false => None,
        }
    }

    /// What a `…_file` key names, without the newline at its end.
    pub(super) fn secret_file(&mut self, at: &Path, written: &Value) -> Option<Secret> {
        let secret = self.file(at, written, |file| {
            let secret = read_secret(file.as_ref()).map(Secret::hide);
            secret.map_err(|error| unreadable(file.as_ref(), &error))
        })?;
        // The same secret in another file changes nothing.
        self.found(at, secret.reveal().to_owned());
        Some(secret)
    }

    /// The addresses of a server of an upstream, a `host:port`, that are used; none where its name does not resolve, which is a
    /// warning, or no name is looked up.
    pub(super) fn addresses(&mut self, at: &Path, server: &str) -> Vec<SocketAddr> {
        if let Ok(address) = server.parse() {
            return vec![address];
        }
        match self.surroundings.purpose {
            Purpose::Serve | Purpose::Check => self.resolve(at, server, &format!("{server:?}")),
            Purpose::Commands | Purpose::Offline => Vec::new(),
        }
    }

    /// Warns of a server of the store, a `host:port`, whose name does not resolve; `shown` is what the warning calls it. A gateway
    /// looks it up for each connection.
    pub(super) fn look_up(&mut self, at: &Path, server: &str, shown: &str) {
        if self.surroundings.purpose == Purpose::Check {
            self.resolve(at, server, shown);
        }
    }

    fn resolve(&mut self, at: &Path, server: &str, shown: &str) -> Vec<SocketAddr> {
        let found = (self.surroundings.resolve)(server).map(address::of_one_family);
        let reason = match found {
            Ok(addresses) if addresses.is_empty() => "it has no address".to_owned(),
            Ok(addresses) => return addresses,
            Err(error) => error.to_string(),
        };
        let message = format!("{shown} cannot be resolved: {reason}");
        self.warn(
            at,
            message,
            "a gateway asks this server once its name resolves",
        );
        Vec::new()
    }
}

/// `text` with every `${VARIABLE}` replaced by its value and every `$${` by `${`. Values are not expanded again.
fn expand(text: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<String, Wrong> {
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
fn has_variable(written: &Value) -> bool {
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

/// The text without the user and password of a URL in it.
fn without_user(text: String) -> String {
    let parts = text.split_once("://").and_then(|(scheme, rest)| {
        let (_, place) = rest.rsplit_once('@')?;
        Some(format!("{scheme}://…@{place}"))
    });
    parts.unwrap_or(text)
}

/// A file that can be opened.
pub(super) fn readable(name: &str) -> Result<PathBuf, Wrong> {
    let file = PathBuf::from(name);
    match std::fs::File::open(&file) {
        Ok(_) => Ok(file),
        Err(error) => Err(unreadable(&file, &error)),
    }
}

fn unreadable(file: &FilePath, error: &io::Error) -> Wrong {
    Wrong::new(
        format!("cannot read {}: {error}", file.display()),
        "the file must exist and be readable by the gateway's user",
    )
}

fn read_secret(file: &FilePath) -> io::Result<String> {
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

/// A key as it is written.
pub(super) fn key_text(key: &Value) -> String {
    match key {
        Value::String(text) => text.clone(),
        Value::Null => "null".to_owned(),
        Value::Bool(_)
        | Value::Number(_)
        | Value::Sequence(_)
        | Value::Mapping(_)
        | Value::Tagged(_) => serde_yaml::to_string(key)
            .unwrap_or_default()
            .trim_end()
            .to_owned(),
    }
}

/// The nearest known name, or all of them.
fn unknown_key_hint(key: &str, known: &[&str]) -> String {
    if key == "<<" {
        return "merge keys are not taken: write the values out".to_owned();
    }
    match nearest(key, known) {
        Some(name) => format!("did you mean `{name}`?"),
        None => format!("the keys here are {}", known.join(", ")),
    }
}

/// The name most like `written`, if one is.
pub(super) fn nearest<'n>(written: &str, names: &[&'n str]) -> Option<&'n str> {
    names
        .iter()
        .map(|name| (strsim::normalized_damerau_levenshtein(written, name), *name))
        .filter(|(likeness, _)| *likeness >= LIKENESS_MIN)
        .max_by(|(one, _), (other, _)| one.total_cmp(other))
        .map(|(_, name)| name)
}

/// What a value is, in words.
pub(super) fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Sequence(_) => "a list",
        Value::Mapping(_) => "keys with values",
        Value::Tagged(_) => "a tag",
    }
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
    fn a_near_name_is_suggested_and_a_far_one_is_not() {
        let known = ["daily", "burst", "concurrent"];
        assert_eq!(nearest("dayly", &known), Some("daily"));
        assert_eq!(nearest("dialy", &known), Some("daily"));
        assert_eq!(nearest("zzz", &known), None);
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
