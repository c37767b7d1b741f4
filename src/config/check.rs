//! From the text to checked values: reads leaves, expands `${VARIABLE}`, and collects every problem.
//!
//! The purpose of the reading decides which variables, files and names outside the file are read. A value that is unknown because
//! it was not read is no problem, and neither is a conflict of another value with it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::SocketAddr;
use std::path::PathBuf;

use serde_yaml::{Mapping, Value};
use sha2::{Digest, Sha256};

use super::outline::{Outline, Path};
use super::outside::{Purpose, Surroundings, expand, has_variable, read_secret, unreadable};
pub(super) use super::problem::Wrong;
use super::problem::{Problem, brief};
use super::scalar::{Scalar, Text};
use crate::policy::address;
use crate::policy::secret::Secret;
use crate::policy::store_settings::without_password;

/// The least likeness, from 0 to 1, of a known name that is offered for an unknown one.
const LIKENESS_MIN: f64 = 0.6;
/// The most names that a hint lists.
const NAMES_SHOWN_MAX: usize = 25;

/// The value of a leaf in one configuration; its default if nothing is written.
#[derive(Debug, Clone)]
pub(super) struct LeafValue {
    /// The value, the same for equal values and without secrets; a text with a variable as written.
    pub(super) shown: String,
    /// Whether a change needs a restart.
    pub(super) needs_restart: bool,
    /// A part of the digest of a value that needs a restart: of what is not shown of a text as written, or of the content of a file.
    pub(super) hidden: Option<String>,
}

/// The octets of the digest by which a change of a hidden value is noticed. They reveal no more of the value than as many octets.
const DIGEST_OCTETS: usize = 2;

/// A server whose name is resolved after the file was read.
struct NotedServer {
    /// The list in which no other server should have one of its addresses.
    list: Path,
    at: Path,
    name: String,
    /// As written, if that is no secret.
    shown: Option<String>,
}

/// One check of one file.
pub(super) struct Check<'a> {
    outline: &'a Outline,
    /// What is read outside the file.
    pub(super) surroundings: &'a Surroundings<'a>,
    pub(super) problems: Vec<Problem>,
    warnings: Vec<Problem>,
    servers: Vec<NotedServer>,
    /// The files of the gateway's own certificates for upstreams and Redis, and when each chain ends, in Unix seconds.
    pub(super) own_certificates: BTreeMap<PathBuf, i64>,
    /// The number of substitutes for values that were not read.
    unknown: usize,
    /// The leaves read so far, by path.
    pub(super) readings: BTreeMap<String, LeafValue>,
    /// The effects, by path, of every value whose change needs a restart. Sections with such values are included, so that adding
    /// or removing one is noticed.
    pub(super) foundation: BTreeMap<String, Secret>,
    /// Whether a change of any value read now needs a restart.
    pub(super) in_foundation: bool,
    /// Whether all values read now are used only by a serving gateway, by no command.
    pub(super) in_service: bool,
    /// Whether the leaves read now are not noted: what is made of them is noted as a whole.
    pub(super) is_silent: bool,
}

impl<'a> Check<'a> {
    pub(super) fn new(outline: &'a Outline, surroundings: &'a Surroundings<'a>) -> Check<'a> {
        Check {
            outline,
            surroundings,
            problems: Vec::new(),
            warnings: Vec::new(),
            servers: Vec::new(),
            own_certificates: BTreeMap::new(),
            unknown: 0,
            readings: BTreeMap::new(),
            foundation: BTreeMap::new(),
            in_foundation: false,
            in_service: false,
            is_silent: false,
        }
    }

    /// Whether variables and files are read here.
    pub(super) fn looks_outside(&self) -> bool {
        match self.surroundings.purpose {
            Purpose::Serve | Purpose::Check => true,
            Purpose::Commands => !self.in_service,
            Purpose::Offline => false,
        }
    }

    /// Reads rows and makes a value of them. If a row is unknown, the problems of comparing it with others are not noted.
    pub(super) fn making<R, T>(
        &mut self,
        read: impl FnOnce(&mut Check<'a>) -> R,
        make: impl FnOnce(&mut Check<'a>, R) -> T,
    ) -> T {
        let unknown = self.unknown;
        let rows = read(self);
        let (is_known, problems) = (self.unknown == unknown, self.problems.len());
        let made = make(self, rows);
        if !is_known {
            self.problems.truncate(problems);
        }
        made
    }

    /// Notes the value at `at`, as shown and in effect. A user and password in a URL are never shown.
    pub(super) fn note(&mut self, at: &Path, shown: String, effect: String) {
        if self.is_silent {
            return;
        }
        let open = match shown.contains("://") {
            true => without_password(&shown),
            false => shown.clone(),
        };
        let is_hidden = self.in_foundation && open != shown;
        let reading = LeafValue {
            hidden: is_hidden.then(|| short_digest(&shown, DIGEST_OCTETS)),
            shown: open,
            needs_restart: self.in_foundation,
        };
        self.readings.insert(at.as_str().to_owned(), reading);
        self.note_foundation(at, effect);
    }

    /// Notes the effect of `at` if its change needs a restart.
    pub(super) fn note_foundation(&mut self, at: &Path, effect: String) {
        if self.in_foundation {
            let effect = Secret::hide(effect);
            self.foundation.insert(at.as_str().to_owned(), effect);
        }
    }

    /// Reads a section. Adding or removing it needs a restart if that holds for the section or for anything in it.
    pub(super) fn section<T>(&mut self, at: &Path, read: impl FnOnce(&mut Check<'a>) -> T) -> T {
        let before = self.foundation.len();
        let value = read(self);
        if self.in_foundation || self.foundation.len() > before {
            let at = at.as_str().to_owned();
            self.foundation.entry(at).or_default();
        }
        value
    }

    /// The keys of a section; `None` if the value is something else.
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

    /// Notes the unknown keys of a section.
    pub(super) fn refuse_keys(&mut self, at: &Path, unknown: &Mapping, names: &[&str]) {
        for key in unknown.keys() {
            let key = key_text(key);
            let hint = unknown_key_hint(&key, names);
            self.wrong_key(&at.key(&key), "there is no such key", hint);
        }
    }

    /// The items of a list with their paths; none if there is no list.
    pub(super) fn items(&mut self, at: &Path, written: Option<Value>) -> Vec<(Path, Value)> {
        match written {
            None => Vec::new(),
            Some(Value::Sequence(items)) => {
                let items = items.into_iter().enumerate();
                items.map(|(index, item)| (at.index(index), item)).collect()
            }
            Some(other) => {
                let message = format!("expected a list, found {}", kind_of(&other));
                self.wrong(
                    at,
                    message,
                    "write [one, another], or a line `- item` for each item",
                );
                Vec::new()
            }
        }
    }

    /// The warnings, in the order of the file: no problems of the file, but possible problems where it is used. There are none if a value
    /// is unknown, because with it there might be others.
    pub(super) fn warnings(&self) -> Vec<Problem> {
        if self.unknown > 0 {
            return Vec::new();
        }
        let mut warnings = self.warnings.clone();
        warnings.sort_by(Problem::by_place);
        warnings
    }

    /// Notes a problem of the value at `at`.
    pub(super) fn wrong(&mut self, at: &Path, message: impl AsRef<str>, hint: impl AsRef<str>) {
        let value = self.outline.value(at);
        let problem = value.problem(at, message.as_ref(), hint.as_ref());
        self.problems.push(problem);
    }

    /// Notes a warning about the value at `at`.
    pub(super) fn warn(&mut self, at: &Path, message: impl AsRef<str>, hint: impl AsRef<str>) {
        let value = self.outline.value(at);
        let warning = value.problem(at, message.as_ref(), hint.as_ref());
        self.warnings.push(warning);
    }

    /// Notes a problem of the key at `at`.
    pub(super) fn wrong_key(&mut self, at: &Path, message: impl AsRef<str>, hint: impl AsRef<str>) {
        let key = self.outline.key(at);
        let problem = key.problem(at, message.as_ref(), hint.as_ref());
        self.problems.push(problem);
    }

    /// The value, or `None` with its problem noted; the problem shows only the name of a file, as noted.
    pub(super) fn accept<T>(&mut self, at: &Path, value: Result<T, Wrong>) -> Option<T> {
        value
            .map_err(|wrong| {
                let reading = self.readings.get(at.as_str());
                let name = reading.filter(|_| wrong.is_of_file());
                let message = wrong.message(name.map(|reading| reading.shown.as_str()));
                self.wrong(at, message, wrong.hint);
            })
            .ok()
    }

    /// The value at `at` as it may be shown: that of a variable may be a secret.
    pub(super) fn shown(&self, at: &Path) -> &str {
        let reading = self.readings.get(at.as_str());
        reading.map_or("…", |reading| &reading.shown)
    }

    /// Whether the file has a value at `at`.
    pub(super) fn is_given(&self, at: &Path) -> bool {
        self.outline.has(at)
    }

    /// The scalar read as a `T` and converted by `make`, noted; `None` if it is wrong.
    pub(super) fn leaf<T: Scalar, U>(
        &mut self,
        at: &Path,
        written: &Value,
        make: impl FnOnce(T) -> Result<U, Wrong>,
    ) -> Option<U> {
        if !self.looks_outside() && has_variable(written) {
            // No other value is compared with a secret.
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

    /// The converted scalar with its shown form and its effect, or its mistake with a hint.
    fn scalar<T: Scalar, U>(
        &self,
        written: &Value,
        make: impl FnOnce(T) -> Result<U, Wrong>,
    ) -> Result<(U, String, String), (String, String)> {
        let text = self.text_of::<T>(written);
        let text = text.map_err(|wrong| (wrong.message(None), wrong.hint))?;
        let with_variable = written.as_str().filter(|written| written.contains("${"));
        // The value of a variable may be a secret.
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
        // Of a file, the name as written is enough, and the value of a variable in it may be a secret that is no name.
        let made = make(value).map_err(|error| match error.is_of_file() {
            true => (error.message(Some(&shown)), error.hint),
            false => wrong(error, &effect),
        })?;
        Ok((made, shown, effect))
    }

    /// The text to parse as a `T`.
    fn text_of<T: Scalar>(&self, written: &Value) -> Result<String, Wrong> {
        let (found, hint) = match written {
            Value::String(text) => {
                let expanded = expand(text, self.surroundings.env)?;
                if T::TYPE == "string" || expanded != *text {
                    return Ok(expanded);
                }
                let is_scalar = |value: Value| value.is_number() || value.is_bool();
                let hint = match T::parse(text) {
                    Some(_) if serde_yaml::from_str(text).is_ok_and(is_scalar) => {
                        "remove the quotes"
                    }
                    // YAML takes such digits for a text.
                    Some(_) => "write it without the leading zero",
                    None => T::HINT,
                };
                (format!("{:?}", brief(text)), hint)
            }
            Value::Number(number) if matches!(T::TYPE, "integer" | "number") => {
                return Ok(number.to_string());
            }
            Value::Bool(value) if T::TYPE == "boolean" => return Ok(value.to_string()),
            Value::Number(number) if !T::SECRET => (format!("the number {number}"), T::HINT),
            Value::Sequence(_) | Value::Mapping(_) if T::HINT == Text::HINT => (
                kind_of(written).to_owned(),
                "write one text, without brackets",
            ),
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

    /// The result of `read` for a file; `None` also if files are not read.
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

    /// Whether the contents of certificates are checked now. A gateway reads them later, and keeps the present ones if new ones are wrong.
    pub(super) fn reads_certificates(&self) -> bool {
        self.surroundings.purpose == Purpose::Check
    }

    /// The secret in the file of a `…_file` key, without the newline at its end.
    pub(super) fn secret_file(&mut self, at: &Path, written: &Value) -> Option<Secret> {
        let secret = self.file(at, written, |file| {
            let secret = read_secret(file.as_ref()).map(Secret::hide);
            secret.map_err(|error| unreadable(&error).with_secret())
        })?;
        // Moving the same secret to another file changes nothing.
        self.note_foundation(at, secret.reveal().to_owned());
        if let Some(reading) = self.readings.get_mut(at.as_str()) {
            let digest = reading
                .needs_restart
                .then(|| short_digest(secret.reveal(), DIGEST_OCTETS));
            reading.hidden = digest;
        }
        Some(secret)
    }

    /// Notes a server of an upstream, a `host:port` that is written as `shown`, whose name [`Check::resolve`] resolves.
    pub(super) fn note_server(&mut self, list: &Path, at: Path, name: &str, shown: Option<&str>) {
        if matches!(self.surroundings.purpose, Purpose::Serve | Purpose::Check) {
            self.servers.push(NotedServer {
                list: list.clone(),
                at,
                name: name.to_owned(),
                shown: shown.map(str::to_owned),
            });
        }
    }

    /// Notes a server of the store, a `host:port`, which is only checked for an address: a gateway resolves it for each connection.
    pub(super) fn note_store_server(&mut self, at: &Path, name: &str, shown: Option<&str>) {
        if self.surroundings.purpose == Purpose::Check {
            self.note_server(at, at.clone(), name, shown);
        }
    }

    /// The addresses in use of the noted servers by name, none for a name that does not resolve. This is a warning, as is an address of
    /// two servers of one list.
    pub(super) fn resolve(&mut self) -> HashMap<String, Vec<SocketAddr>> {
        let noted = std::mem::take(&mut self.servers);
        let is_address = |name: &str| name.parse::<SocketAddr>().is_ok();
        let names = noted.iter().map(|server| server.name.as_str());
        let names = BTreeSet::from_iter(names.filter(|name| !is_address(name)));
        let names = Vec::from_iter(names);
        let found = (self.surroundings.resolve)(&names);
        let mut failures = HashMap::new();
        let mut addresses = HashMap::new();
        for (name, found) in names.into_iter().zip(found) {
            let found = found.map(address::of_one_family);
            let failure = match &found {
                Ok(found) if !found.is_empty() => None,
                Ok(_) => Some("the name has no address".to_owned()),
                Err(error) => Some(error.to_string()),
            };
            failures.extend(failure.map(|failure| (name, failure)));
            addresses.insert(name.to_owned(), found.unwrap_or_default());
        }
        let mut before = HashSet::new();
        for NotedServer {
            list,
            at,
            name,
            shown,
        } in &noted
        {
            if let Some(failure) = failures.get(name.as_str()) {
                let shown = shown.as_ref();
                let shown = shown.map_or("its host".to_owned(), |shown| format!("{shown:?}"));
                let message = format!("{shown} cannot be resolved: {failure}");
                self.warn(
                    at,
                    message,
                    "a gateway uses this server once its name resolves",
                );
            }
            let own = match name.parse() {
                Ok(address) => vec![address],
                Err(_) => addresses.get(name).cloned().unwrap_or_default(),
            };
            let own = own.into_iter().map(|address| (list.as_str(), address));
            if own.filter(|place| !before.insert(*place)).count() > 0 {
                // Names may resolve differently tomorrow, or elsewhere.
                let shown = shown.as_deref().unwrap_or_default();
                let message = format!("{shown} has an address of another server of the list");
                self.warn(at, message, "that address gets the requests of both");
            }
        }
        addresses
    }
}

/// The first octets of a text's SHA-256, in hexadecimal.
pub(super) fn short_digest(text: &str, octets: usize) -> String {
    let digits = 2 * octets;
    format!("{:.digits$x}", Sha256::digest(text))
}

/// A key as written in the file.
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
        return "merge keys are not supported: write out the values".to_owned();
    }
    name_hint(key, known, "the keys here are")
}

/// A hint with the known name most similar to `written`; if none is similar enough, with the first of them after `list`.
pub(super) fn name_hint(written: &str, known: &[&str], list: &str) -> String {
    let nearest = known
        .iter()
        .map(|name| (strsim::normalized_damerau_levenshtein(written, name), *name))
        .filter(|(likeness, _)| *likeness >= LIKENESS_MIN)
        .max_by(|(one, _), (other, _)| one.total_cmp(other));
    match nearest {
        Some((_, name)) => format!("did you mean `{name}`?"),
        None => match known.get(..NAMES_SHOWN_MAX) {
            Some(first) if first.len() < known.len() => {
                let more = known.len() - first.len();
                format!("{list} {}, and {more} more", first.join(", "))
            }
            Some(_) | None => format!("{list} {}", known.join(", ")),
        },
    }
}

/// The kind of a value, in words.
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
    fn a_near_name_is_suggested_and_a_far_one_is_not() {
        let known = ["daily", "burst", "concurrent"];
        let hint = |written| name_hint(written, &known, "the keys here are");
        assert_eq!(hint("dayly"), "did you mean `daily`?");
        assert_eq!(hint("dialy"), "did you mean `daily`?");
        assert_eq!(hint("zzz"), "the keys here are daily, burst, concurrent");
    }
}
