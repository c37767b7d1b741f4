//! A JSON Schema (2020-12) of `gateway.yaml`, for editors.
//!
//! It is made of what reads the file, so that it cannot say anything else: names, types and descriptions come from the
//! text types, defaults and bounds from a check of a file in which nothing is given, and what is required from that check's
//! problems. Editors accept more than [`super::Config::load`] does: what depends on two places of the file (an endpoint's
//! upstream, a certificate's key, patterns that overlap) is beyond a schema.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use serde_json::{Value as Json, json};
use serde_yaml::{Mapping, Value};

use super::check::{Check, Reading, Surroundings};
use super::outline::{Outline, Path};
use super::places::Places;
use super::scalar::Scalar;
use super::sections;
use super::text::{Leaf, List, Named, RootText, Section};

/// What stands for a name of the operators' choice while the schema is made.
const ANY_NAME: &str = "any";
/// A value with a `${VARIABLE}` may be anything.
const VARIABLE: &str = r"\$\{";

/// A part of the file as a schema has it.
pub(super) trait Shape {
    /// What stands there in a file in which nothing is given but sections; `None`: nothing.
    fn probe() -> Option<Value>;

    /// The schema of what stands at `at`.
    fn shape(at: &Path, learnt: &Learnt) -> Json;
}

/// One key of a section.
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) description: &'static str,
    pub(super) shape: Json,
    /// Whether it stands in the file in which nothing is given.
    pub(super) probed: bool,
}

/// What checks of files in which nothing is given have shown.
pub(super) struct Learnt {
    readings: BTreeMap<String, Reading>,
    /// Where something was missed, in a file with all sections and in one with none.
    missed: BTreeSet<String>,
    missed_at_root: BTreeSet<String>,
}

impl Learnt {
    fn by_checking() -> Learnt {
        let probe = RootText::probe().unwrap_or_default();
        let (readings, missed) = check(probe);
        let (_, missed_at_root) = check(Value::Mapping(Mapping::new()));
        Learnt {
            readings,
            missed,
            missed_at_root,
        }
    }

    fn is_required(&self, at: &Path, probed: bool) -> bool {
        let missed = !probed && self.missed.contains(at.as_str());
        missed || self.missed_at_root.contains(at.as_str())
    }
}

/// What a check of `file` finds out about its leaves, and where it finds fault.
fn check(file: Value) -> (BTreeMap<String, Reading>, BTreeSet<String>) {
    let surroundings = Surroundings {
        env: &|_| None,
        resolve: &|_| Err(io::ErrorKind::Unsupported.into()),
    };
    let outline = Arc::new(Outline::default());
    let mut check = Check::new(&outline, &surroundings);
    // What cannot be read is no section; then nothing is learnt, which the test against the shipped file would show.
    let root: Section<RootText> = serde_yaml::from_value(file).unwrap_or_default();
    let places = Places::new("", outline.clone());
    let _ = sections::config(&mut check, root, String::new(), places);
    let readings = check.readings().clone();
    let problems = check.into_problems().into_iter();
    (readings, problems.map(|problem| problem.path).collect())
}

/// The schema of the whole file.
pub(super) fn document() -> Json {
    let mut document = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "gateway.yaml of Touchline",
        "description": "Durations are whole numbers with ms, s, m, h or d; sizes with B, KiB, MiB or GiB. ${VARIABLE} in a text is \
                        replaced by the environment's value. `touchline check` knows more than this schema.",
    });
    let root = RootText::shape(&Path::default(), &Learnt::by_checking());
    merge(&mut document, root);
    document
}

/// The schema of a section at `at`.
pub(super) fn section<const N: usize>(at: &Path, learnt: &Learnt, fields: [Field; N]) -> Json {
    let mut properties = serde_json::Map::new();
    let mut required = Vec::new();
    let names = fields.each_ref().map(|field| field.name);
    for field in fields {
        // What may stand in a file of its own need not stand here.
        let elsewhere = names.contains(&format!("{}_file", field.name).as_str());
        let is_required = !elsewhere && learnt.is_required(&at.key(field.name), field.probed);
        let mut shape = field.shape;
        if is_required {
            required.push(field.name);
            // What a missing value is taken for only so that the rest of the file is checked.
            shape.as_object_mut().map(|shape| shape.remove("default"));
        }
        describe(&mut shape, field.description.trim());
        properties.insert(field.name.to_owned(), shape);
    }
    let mut section = json!({
        "type": "object",
        "additionalProperties": false,
        "properties": properties,
    });
    if !required.is_empty() {
        merge(&mut section, json!({ "required": required }));
    }
    section
}

/// The schema of a section in which a key must stand.
pub(super) fn requiring(key: &str, mut section: Json) -> Json {
    merge(&mut section, json!({ "required": [key] }));
    section
}

/// Puts a description in front of what the shape says of itself.
fn describe(shape: &mut Json, description: &str) {
    let own = shape.get("description").and_then(Json::as_str);
    let whole = match own {
        Some(own) => format!("{description} {own}"),
        None => description.to_owned(),
    };
    merge(shape, json!({ "description": whole }));
}

fn merge(into: &mut Json, more: Json) {
    if let (Json::Object(into), Json::Object(more)) = (into, more) {
        into.extend(more);
    }
}

impl<T: Scalar> Shape for T {
    fn probe() -> Option<Value> {
        None
    }

    fn shape(at: &Path, learnt: &Learnt) -> Json {
        let mut shape = form::<T>();
        let Some(reading) = learnt.readings.get(at.as_str()) else {
            return shape;
        };
        if let Some(default) = &reading.default {
            merge(&mut shape, json!({ "default": default }));
        }
        if let Some((least, most)) = &reading.bounds {
            let bounds = match (least.parse::<u64>(), most.parse::<u64>()) {
                (Ok(least), Ok(most)) if T::NUMBER => json!({ "minimum": least, "maximum": most }),
                _ => json!({ "description": format!("From {least} to {most}.") }),
            };
            merge(&mut shape, bounds);
        }
        shape
    }
}

/// What one scalar may look like.
fn form<T: Scalar>() -> Json {
    let text = |pattern: &str| json!({ "type": "string", "pattern": pattern });
    if T::NUMBER {
        let number = if T::WHOLE { "integer" } else { "number" };
        return json!({ "type": [number, "string"], "pattern": VARIABLE });
    }
    if T::BOOLEAN {
        return json!({ "type": ["boolean", "string"], "pattern": VARIABLE });
    }
    let pattern = match T::PATTERN {
        "" => VARIABLE.to_owned(),
        pattern => format!("{pattern}|{VARIABLE}"),
    };
    match (T::CHOICES, T::PATTERN) {
        ([], "") => json!({ "type": "string" }),
        ([], _) => text(&pattern),
        (words, _) => json!({ "anyOf": [{ "enum": words }, text(&pattern)] }),
    }
}

impl<T: Shape> Shape for Leaf<T> {
    fn probe() -> Option<Value> {
        T::probe()
    }

    fn shape(at: &Path, learnt: &Learnt) -> Json {
        T::shape(at, learnt)
    }
}

impl<T: Shape> Shape for Section<T> {
    fn probe() -> Option<Value> {
        T::probe()
    }

    fn shape(at: &Path, learnt: &Learnt) -> Json {
        T::shape(at, learnt)
    }
}

impl<T: Shape> Shape for List<T> {
    fn probe() -> Option<Value> {
        Some(Value::Sequence(vec![T::probe()?]))
    }

    fn shape(at: &Path, learnt: &Learnt) -> Json {
        let mut shape = json!({ "type": "array", "items": T::shape(&at.index(0), learnt) });
        let reading = learnt.readings.get(at.as_str());
        if let Some(default) = reading.and_then(|reading| reading.default.as_ref()) {
            merge(&mut shape, json!({ "default": default }));
        }
        shape
    }
}

impl<T: Shape> Shape for Named<T> {
    fn probe() -> Option<Value> {
        let mut names = Mapping::new();
        names.insert(ANY_NAME.into(), T::probe()?);
        Some(Value::Mapping(names))
    }

    fn shape(at: &Path, learnt: &Learnt) -> Json {
        let shape = T::shape(&at.key(ANY_NAME), learnt);
        json!({ "type": "object", "minProperties": 1, "additionalProperties": shape })
    }
}
