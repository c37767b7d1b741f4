//! A JSON Schema (2020-12) of `gateway.yaml`, for editors.
//!
//! The schema is made from the rows that read the file, so it cannot differ from them. Editors accept more than
//! [`super::Config::load`] does: a schema cannot express rules about two places of the file (an endpoint's upstream, a
//! certificate's key, patterns that overlap), and this one leaves out what its patterns would only obscure: the bounds of durations,
//! sizes and percentages, which are in the descriptions, and all but the simplest forms of texts.

use serde_json::{Number, Value as Json, json};

use super::rows::{Form, Row, What};

/// The schema of the file whose permitted content is `form`.
pub(super) fn document(form: &Form) -> Json {
    let mut document = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "gateway.yaml of Touchline",
        "description": "Durations are whole numbers with ms, s, m, h or d; sizes with B, KiB, MiB or GiB. ${VARIABLE} in a text is \
        replaced by the environment variable's value. `touchline check` checks more than this schema.",
    });
    merge(&mut document, shape(form));
    document
}

fn shape(form: &Form) -> Json {
    let mut shape = match &form.what {
        What::Scalar(shape) => shape.clone(),
        What::List(item) => json!({ "type": "array", "items": self::shape(item) }),
        What::Named(rows) => {
            json!({ "type": "object", "minProperties": 1, "additionalProperties": section(rows) })
        }
        What::Section(rows) => section(rows),
        What::Either(forms) => json!({ "anyOf": forms.each_ref().map(self::shape) }),
    };
    merge(&mut shape, Json::Object(form.rules.clone()));
    // The default of a required value only serves to check the rest of the file.
    if let (Some(default), false) = (&form.default, form.is_required) {
        merge(&mut shape, json!({ "default": default }));
    }
    if let Some((least, most)) = &form.bounds {
        let bounds = match (least.parse::<Number>(), most.parse::<Number>()) {
            (Ok(least), Ok(most)) => json!({ "minimum": least, "maximum": most }),
            _ => json!({ "description": format!("From {least} to {most}.") }),
        };
        merge(&mut shape, bounds);
    }
    shape
}

fn section(rows: &[Row]) -> Json {
    let mut properties = serde_json::Map::new();
    for row in rows {
        let mut shape = shape(&row.form);
        // The sentence of help precedes the description of the shape.
        let own = shape.get("description").and_then(Json::as_str);
        let description = own.map_or(row.help.to_owned(), |own| format!("{} {own}", row.help));
        merge(&mut shape, json!({ "description": description }));
        properties.insert(row.name.to_owned(), shape);
    }
    let mut section = json!({
        "type": "object",
        "additionalProperties": false,
        "properties": properties,
    });
    let required = rows.iter().filter(|row| row.form.is_required);
    let required: Vec<&str> = required.map(|row| row.name).collect();
    if !required.is_empty() {
        merge(&mut section, json!({ "required": required }));
    }
    section
}

fn merge(into: &mut Json, more: Json) {
    if let (Json::Object(into), Json::Object(more)) = (into, more) {
        into.extend(more);
    }
}
