//! The way from the text to checked values: reads leaves, expands `${VARIABLE}`, and collects every problem.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::Path as FilePath;

use serde::de::DeserializeOwned;
use serde_json::Value as Json;
use serde_yaml::Value;

use super::outline::{Outline, Path};
use super::problem::Problem;
use super::scalar::{Quantity, Scalar, Text};
use super::secret::Secret;
use super::text::{Leaf, List, Named, Section, key_text, known_keys};

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
}

/// A wrong value: what is wrong and how to make it right.
pub(super) struct Wrong {
    pub(super) message: String,
    pub(super) hint: String,
}

impl Wrong {
    pub(super) fn new(message: impl Into<String>, hint: impl Into<String>) -> Wrong {
        Wrong {
            message: message.into(),
            hint: hint.into(),
        }
    }
}

/// What was found out about one leaf while it was read.
#[derive(Debug, Clone, Default)]
pub(super) struct Reading {
    /// What it is, in one form for equal values; one with a variable as it is written. `None`: nothing is written.
    pub(super) value: Option<String>,
    /// What it is where nothing is written, as JSON.
    pub(super) default: Option<Json>,
    /// The least and the most that it may be.
    pub(super) bounds: Option<(String, String)>,
}

/// One check of one file.
pub(super) struct Check<'a> {
    outline: &'a Outline,
    surroundings: &'a Surroundings<'a>,
    problems: Vec<Problem>,
    readings: BTreeMap<String, Reading>,
}

impl<'a> Check<'a> {
    pub(super) fn new(outline: &'a Outline, surroundings: &'a Surroundings<'a>) -> Check<'a> {
        Check {
            outline,
            surroundings,
            problems: Vec::new(),
            readings: BTreeMap::new(),
        }
    }

    /// What was found out about each leaf that was read so far, by its path.
    pub(super) fn readings(&self) -> &BTreeMap<String, Reading> {
        &self.readings
    }

    /// Notes what a leaf is where nothing is written.
    pub(super) fn default(&mut self, at: &Path, default: impl Into<Json>) {
        self.reading(at).default = Some(default.into());
    }

    /// Notes the least and the most that a leaf may be.
    pub(super) fn bounds<T: Quantity>(&mut self, at: &Path, bounds: &RangeInclusive<T>) {
        self.reading(at).bounds = Some((bounds.start().show(), bounds.end().show()));
    }

    fn reading(&mut self, at: &Path) -> &mut Reading {
        self.readings.entry(at.as_str().to_owned()).or_default()
    }

    pub(super) fn problems(&self) -> &[Problem] {
        &self.problems
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

    /// Notes a problem of the key at `at`.
    pub(super) fn wrong_key(&mut self, at: &Path, message: impl AsRef<str>, hint: impl AsRef<str>) {
        let problem = self
            .outline
            .key(at)
            .problem(at, message.as_ref(), Some(hint.as_ref()));
        self.problems.push(problem);
    }

    /// The keys of a section; `None` where it is absent or not a mapping.
    pub(super) fn section<T: DeserializeOwned>(
        &mut self,
        at: &Path,
        section: Section<T>,
    ) -> Option<T> {
        match section {
            Section::Absent => None,
            Section::Given { text, unknown } => {
                for key in unknown {
                    let hint = unknown_key_hint(&key, known_keys::<T>());
                    self.wrong_key(&at.key(&key), "there is no such key", hint);
                }
                Some(text)
            }
            Section::NotAMapping(Value::Null) => {
                self.wrong(
                    at,
                    "the section is empty",
                    "write {} for the defaults, or remove the key",
                );
                None
            }
            Section::NotAMapping(other) => {
                let names = known_keys::<T>().join(", ");
                self.wrong(
                    at,
                    format!("expected keys, found {}", kind(&other)),
                    format!("the keys here are {names}"),
                );
                None
            }
        }
    }

    /// The scalar as a `T`; `None` where it is absent or wrong.
    pub(super) fn leaf<T: Scalar>(&mut self, at: &Path, leaf: &Leaf<T>) -> Option<T> {
        let written = leaf.0.as_ref()?;
        match self.scalar::<T>(written) {
            Ok(value) => {
                let with_variable = written.as_str().filter(|text| text.contains("${"));
                let shown = with_variable.map_or_else(|| value.show(), str::to_owned);
                self.reading(at).value = Some(shown);
                Some(value)
            }
            Err(wrong) => {
                self.wrong(at, wrong.message, wrong.hint);
                None
            }
        }
    }

    /// The scalar as a `T`, or the default.
    pub(super) fn leaf_or<T: Scalar>(&mut self, at: &Path, leaf: &Leaf<T>, default: T) -> T {
        self.default(at, json_of(&default));
        self.leaf(at, leaf).unwrap_or(default)
    }

    /// The scalar as a `T` within bounds, or the default.
    pub(super) fn bounded<T: Quantity>(
        &mut self,
        at: &Path,
        leaf: &Leaf<T>,
        default: T,
        bounds: RangeInclusive<T>,
    ) -> T {
        self.default(at, json_of(&default));
        self.bounds(at, &bounds);
        match self.leaf(at, leaf) {
            Some(value) if bounds.contains(&value) => value,
            Some(value) => {
                self.out_of_bounds(at, &value, &bounds);
                default
            }
            None => default,
        }
    }

    /// Notes that a value lies outside its bounds.
    pub(super) fn out_of_bounds<T: Quantity>(
        &mut self,
        at: &Path,
        value: &T,
        bounds: &RangeInclusive<T>,
    ) {
        let side = if value < bounds.start() {
            "too small"
        } else {
            "too large"
        };
        let hint = format!("from {} to {}", bounds.start().show(), bounds.end().show());
        self.wrong(at, format!("{} is {side}", value.show()), hint);
    }

    /// The text made into a `T` by `parse`; `None` where it is absent or wrong.
    pub(super) fn parsed<T>(
        &mut self,
        at: &Path,
        leaf: &Leaf<Text>,
        parse: impl FnOnce(&str) -> Result<T, Wrong>,
    ) -> Option<T> {
        let Text(text) = self.leaf(at, leaf)?;
        match parse(&text) {
            Ok(value) => Some(value),
            Err(wrong) => {
                self.wrong(at, wrong.message, wrong.hint);
                None
            }
        }
    }

    /// Notes a missing key; `at` is where it should be.
    pub(super) fn required<T>(&mut self, at: &Path, leaf: &Leaf<T>, hint: &str) {
        if !leaf.is_given() {
            self.wrong(at, "the key is missing", hint);
        }
    }

    /// The items of a list with their paths; `None` where it is absent or no list.
    pub(super) fn items<T>(&mut self, at: &Path, list: List<T>) -> Option<Vec<(Path, Value)>> {
        match list.0? {
            Value::Sequence(items) => Some(
                items
                    .into_iter()
                    .enumerate()
                    .map(|(index, item)| (at.index(index), item))
                    .collect(),
            ),
            other => {
                self.wrong(
                    at,
                    format!("expected a list, found {}", kind(&other)),
                    "write [one, another], or a line `- item` each",
                );
                None
            }
        }
    }

    /// The texts of a list, each made into a `T` by `parse`; `None` where the list is absent or not a list.
    pub(super) fn texts<T: PartialEq>(
        &mut self,
        at: &Path,
        list: List<Text>,
        mut parse: impl FnMut(&str) -> Result<T, Wrong>,
    ) -> Option<Vec<T>> {
        let mut values = Vec::new();
        let items = self.items(at, list)?;
        self.note_items(at, &items);
        for (at, item) in items {
            if let Some(value) = self.parsed(&at, &Leaf::of(&item), &mut parse) {
                if values.contains(&value) {
                    self.wrong(&at, "it is in the list already", "remove one of them");
                } else {
                    values.push(value);
                }
            }
        }
        Some(values)
    }

    /// Notes what a list holds.
    fn note_items(&mut self, at: &Path, items: &[(Path, Value)]) {
        let texts = items.iter().filter_map(|(_, item)| item.as_str());
        self.note_texts(at, texts.map(str::to_owned).collect());
    }

    /// Notes what a list holds, whose items are no plain texts.
    pub(super) fn note_texts(&mut self, at: &Path, texts: Vec<String>) {
        self.reading(at).value = Some(texts.join(", "));
    }

    /// The named values with their names and paths, in the order of the file; `None` where there is no mapping.
    pub(super) fn named<T>(
        &mut self,
        at: &Path,
        named: Named<T>,
        hint: &str,
    ) -> Option<Vec<(Path, String, Value)>> {
        match named.0 {
            Some(Value::Mapping(entries)) if !entries.is_empty() => Some(
                entries
                    .into_iter()
                    .map(|(key, value)| {
                        let name = key_text(&key);
                        (at.key(&name), name, value)
                    })
                    .collect(),
            ),
            None => {
                self.wrong(at, "the key is missing", hint);
                None
            }
            Some(Value::Mapping(_) | Value::Null) => {
                self.wrong(at, "at least one is needed", hint);
                None
            }
            Some(other) => {
                self.wrong(
                    at,
                    format!("expected names with their values, found {}", kind(&other)),
                    hint,
                );
                None
            }
        }
    }

    /// A value of [`Check::items`] or [`Check::named`] as a section.
    pub(super) fn section_of<T: DeserializeOwned>(&mut self, at: &Path, value: Value) -> Option<T> {
        match serde_yaml::from_value::<Section<T>>(value) {
            Ok(section) => self.section(at, section),
            Err(error) => {
                self.wrong(at, error.to_string(), "see the shipped gateway.yaml");
                None
            }
        }
    }

    /// What a `…_file` key names, without the newline at its end.
    pub(super) fn secret_file(&mut self, at: &Path, file: &FilePath) -> Option<Secret> {
        match read_secret(file) {
            Ok(text) => Some(Secret::from(text)),
            Err(error) => {
                self.wrong(
                    at,
                    format!("cannot read {}: {error}", file.display()),
                    "the file must exist and be readable by the gateway's user",
                );
                None
            }
        }
    }

    /// Notes a file that cannot be opened.
    pub(super) fn readable(&mut self, at: &Path, file: &FilePath) {
        if let Err(error) = std::fs::File::open(file) {
            self.wrong(
                at,
                format!("cannot read {}: {error}", file.display()),
                "the file must exist and be readable by the gateway's user",
            );
        }
    }

    /// The addresses of a `host:port`.
    pub(super) fn resolve(&self, host_and_port: &str) -> io::Result<Vec<SocketAddr>> {
        (self.surroundings.resolve)(host_and_port)
    }

    fn scalar<T: Scalar>(&self, value: &Value) -> Result<T, Wrong> {
        let expected = |found: &str, hint: &str| {
            Err(Wrong::new(
                format!("expected {}, found {found}", T::WHAT),
                hint,
            ))
        };
        let (text, expanded) = match value {
            Value::String(written) => {
                let text = expand(written, self.surroundings.env)?;
                let expanded = text != *written;
                if (T::NUMBER || T::BOOLEAN) && !expanded {
                    let hint = if T::parse(&text).is_some() {
                        "remove the quotes"
                    } else {
                        T::HINT
                    };
                    return expected(&format!("{text:?}"), hint);
                }
                (text, expanded)
            }
            Value::Number(number) if T::NUMBER => (number.to_string(), false),
            Value::Number(number) => return expected(&format!("the number {number}"), T::HINT),
            Value::Null => return expected("nothing", T::HINT),
            Value::Bool(value) if T::BOOLEAN => (value.to_string(), false),
            Value::Bool(_) | Value::Sequence(_) | Value::Mapping(_) | Value::Tagged(_) => {
                return expected(kind(value), T::HINT);
            }
        };
        T::parse(&text).ok_or_else(|| {
            // What a variable holds may be a secret.
            let shown = if expanded {
                "its value".to_owned()
            } else {
                format!("{text:?}")
            };
            Wrong::new(format!("{shown} is not {}", T::WHAT), T::HINT)
        })
    }
}

/// A value as JSON has it.
fn json_of<T: Scalar>(value: &T) -> Json {
    let shown = value.show();
    if T::NUMBER || T::BOOLEAN {
        serde_json::from_str(&shown).unwrap_or(Json::Null)
    } else {
        Json::String(shown)
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

fn is_variable(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
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

/// The nearest known name, or all of them.
pub(super) fn unknown_key_hint(key: &str, known: &[&str]) -> String {
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
fn kind(value: &Value) -> &'static str {
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
