//! The description of the API (OpenAPI 3.1), made from its configuration.
//!
//! Examples of errors and of headers come from [`crate::policy::rejection::Rejection::problem`] and
//! [`crate::policy::rate_limit::QuotaStatus::headers`], so the document cannot differ from the gateway's behaviour. It names
//! endpoints, tiers, methods and costs, which every client may know, and no upstream. The same configuration yields the same
//! bytes, and so the same `ETag`, on every node.

use std::collections::HashSet;

use bytes::Bytes;
use http::HeaderValue;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::endpoint::Endpoint;
use super::http1::fields::list;
use super::key_record::TierName;
use super::own_path::OwnPath;
use super::retirement::Retirement;
use super::words::counted;
use responses::{ErrorAnswer, Operations};

mod api;
mod responses;
mod schemas;

pub use api::Api;

/// The version of the contract, not of the program.
const API_VERSION: &str = "1.0.0";
/// Hexadecimal digits of the SHA-256 used for an `ETag`: a collision is practically impossible.
const ETAG_DIGITS: usize = 32;

/// The characters that one segment of a path cannot have, percent-encoded or not (see [`super::target`]): separators, controls, and
/// those whose form NFKC is or has one.
const OUTSIDE: &str = r"/\\?#;\u0000-\u001f\u007f-\u009f\u037e\u2024\u2025\u2047-\u2049\u2100\u2101\u2105\u2106\ufe14\ufe16\ufe30\ufe52\ufe54\ufe56\ufe5f\ufe68\ufe6a\uff03\uff05\uff0e\uff0f\uff1b\uff1f\uff3c";

/// The possible values of one segment of a path: none of [`OUTSIDE`], not only dots.
fn segment() -> String {
    format!(r"^(?!\.{{1,2}}$)[^{OUTSIDE}]+$")
}

/// The possible values of the rest of a path: one or more segments.
fn rest() -> String {
    format!(r"^(?!\.{{1,2}}(/|$))[^{OUTSIDE}]+(/(?!\.{{1,2}}(/|$))[^{OUTSIDE}]+)*/?$")
}

/// The served document.
#[derive(Debug, Clone)]
pub struct Document {
    /// The JSON text.
    pub body: Bytes,
    /// The strong validator (RFC 9110 section 8.8.3).
    pub etag: HeaderValue,
}

impl Document {
    /// The document of `api`. Costs some microseconds an endpoint: built once for a configuration.
    pub fn of(api: &Api<'_>) -> Document {
        let body = Bytes::from(serde_json::to_vec(&describe(api)).unwrap_or_default());
        let digest = Sha256::digest(&body);
        let etag = HeaderValue::try_from(format!("\"{digest:.ETAG_DIGITS$x}\""))
            .unwrap_or(HeaderValue::from_static("\"\""));
        Document { body, etag }
    }

    /// Whether these `If-None-Match` values match this document (RFC 9110 section 13.1.2: a list of tags, compared weakly, or
    /// `*`).
    pub fn is_held<'a>(&self, if_none_match: impl Iterator<Item = &'a [u8]>) -> bool {
        let mut tags = if_none_match.flat_map(list);
        tags.any(|tag| {
            let strong = tag.strip_prefix(b"W/").unwrap_or(tag);
            tag == b"*" || strong == self.etag.as_bytes()
        })
    }
}

fn describe(api: &Api<'_>) -> Value {
    let mut paths = Map::new();
    let mut names = HashSet::new();
    let errors = responses::errors(api);
    for endpoint in api.endpoints.iter() {
        let path = endpoint_item(endpoint, &errors, &mut names);
        // A template has no syntax for several segments: the parameter's schema allows them.
        paths.insert(endpoint.pattern.replace("...}", "}"), path);
    }
    for own in OwnPath::ALL {
        paths.insert(own.as_str().to_owned(), own_item(own, &errors, &mut names));
    }
    let tiers: Map<String, Value> = api
        .tiers
        .iter()
        .map(|(name, daily)| (name.to_string(), json!({ "daily": daily })))
        .collect();
    let documentation = api
        .problems
        .documentation()
        .map(|url| json!({ "url": url }));
    let mut described = json!({
        "openapi": "3.1.0",
        "info": {
            "title": api.title,
            "version": API_VERSION,
            "description": "Send your API key in `X-API-Key`. Every answer to an authenticated request has the key's \
                quota status in its headers. A call that fails on our side (500) is not charged.",
        },
        "servers": [{ "url": "/" }],
        "security": [{ "ApiKey": [] }],
        "x-tiers": tiers,
        "paths": paths,
        "components": {
            "securitySchemes": { "ApiKey": { "type": "apiKey", "in": "header", "name": "X-API-Key" } },
            "parameters": { "RequestId": {
                "name": "X-Request-Id", "in": "header", "required": false,
                "description": "Any value is taken. One of 1 to 128 characters of `A-Za-z0-9._-` is kept and comes back in \
                    the answer, any other is replaced.",
                "schema": { "type": "string" },
            } },
            "headers": responses::headers(),
            "schemas": schemas::schemas(),
            "responses": responses::responses(api, &errors),
        },
    });
    if let (Some(members), Some(documentation)) = (described.as_object_mut(), documentation) {
        members.insert("externalDocs".to_owned(), documentation);
    }
    described
}

fn endpoint_item(
    endpoint: &Endpoint,
    errors: &[ErrorAnswer],
    names: &mut HashSet<String>,
) -> Value {
    let mut parameters = vec![json!({ "$ref": "#/components/parameters/RequestId" })];
    for name in endpoint.parameters() {
        let is_rest = endpoint.pattern.ends_with(&format!("/{{{name}...}}"));
        let pattern = if is_rest { rest() } else { segment() };
        let mut parameter = json!({
            "name": name, "in": "path", "required": true,
            "schema": { "type": "string", "pattern": pattern },
        });
        if let (true, Some(members)) = (is_rest, parameter.as_object_mut()) {
            let description = "Slashes are sent as they are, not as `%2F`.";
            members.insert("description".into(), description.into());
        }
        parameters.push(parameter);
    }
    let mut item = Map::from_iter([("parameters".to_owned(), Value::from(parameters))]);
    let tiers: Vec<&str> = endpoint.tiers.iter().map(TierName::as_str).collect();
    for method in endpoint.allowed() {
        let takes_body = matches!(method, "POST" | "PUT" | "PATCH");
        let mut of = vec![Operations::Endpoints, Operations::Keyed];
        if takes_body {
            of.push(Operations::Bodies);
        }
        let mut answers = responses::answers(errors, &of, method);
        answers.insert("2XX".into(), responses::reference("Served", method));
        answers.insert("default".into(), responses::reference("Passed", method));
        let mut operation = json!({
            "operationId": operation_id(method, &endpoint.pattern, names),
            "summary": format!("{method} {}", endpoint.pattern),
            "description": description(endpoint, &tiers),
            "x-tiers": tiers,
            "x-cost": endpoint.cost,
            "responses": answers,
        });
        if let (true, Some(members)) = (takes_body, operation.as_object_mut()) {
            let body = json!({ "content": responses::anything() });
            members.insert("requestBody".into(), body);
        }
        if let (false, Some(members)) = (endpoint.retirement.is_none(), operation.as_object_mut()) {
            members.extend(retirement_members(&endpoint.retirement));
        }
        item.insert(method.to_ascii_lowercase(), operation);
    }
    item.into()
}

fn description(endpoint: &Endpoint, tiers: &[&str]) -> String {
    let mut text = format!(
        "Included in: {}. Costs {} of the daily quota.",
        tiers.join(", "),
        counted(endpoint.cost.get(), "unit", "units")
    );
    if let Some(instant) = endpoint.retirement.deprecation {
        text.push_str(&format!(" Deprecated from {instant} on."));
    }
    if let Some(instant) = endpoint.retirement.sunset {
        text.push_str(&format!(" May be removed from {instant} on."));
    }
    text
}

/// The members of an operation about its retirement. It is `deprecated` once a retirement is announced: the document does not
/// change with the clock.
fn retirement_members(retirement: &Retirement) -> Map<String, Value> {
    let links: Map<String, Value> = retirement
        .links
        .iter()
        .map(|(relation, target)| (relation.as_str().to_owned(), json!(target.as_str())))
        .collect();
    let ends = retirement.deprecation.is_some() || retirement.sunset.is_some();
    let members = json!({
        "deprecated": ends.then_some(true),
        "x-deprecation": retirement.deprecation,
        "x-sunset": retirement.sunset,
        "x-links": (!links.is_empty()).then_some(links),
    });
    let members = members.as_object().into_iter().flatten();
    let present = members.filter(|(_, value)| !value.is_null());
    present
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

fn own_item(own: OwnPath, errors: &[ErrorAnswer], names: &mut HashSet<String>) -> Value {
    let parameters = json!([{ "$ref": "#/components/parameters/RequestId" }]);
    let mut item = Map::from_iter([("parameters".to_owned(), parameters)]);
    for method in ["GET", "HEAD"] {
        let operation_id = operation_id(method, own.as_str(), names);
        let operation = match own {
            OwnPath::Document => {
                let of = [Operations::Own, Operations::Document];
                let mut answers = responses::answers(errors, &of, method);
                answers.insert("200".into(), responses::reference("Document", method));
                let held = responses::reference("DocumentHeld", method);
                answers.insert("304".into(), held);
                json!({
                    "operationId": operation_id,
                    "summary": "This description",
                    "description": "Public; never charged.",
                    "security": [],
                    "parameters": [{ "name": "If-None-Match", "in": "header", "schema": { "type": "string" } }],
                    "x-cost": 0,
                    "responses": answers,
                })
            }
            OwnPath::Usage => {
                let of = [Operations::Keyed, Operations::Own, Operations::Usage];
                let mut answers = responses::answers(errors, &of, method);
                answers.insert("200".into(), responses::reference("Usage", method));
                json!({
                    "operationId": operation_id,
                    "summary": "The quota status of the key, and its last 30 days",
                    "description": "Never charged, and answered with an exhausted quota too; has its own small rate limit.",
                    "x-cost": 0,
                    "responses": answers,
                })
            }
        };
        item.insert(method.to_ascii_lowercase(), operation);
    }
    item.into()
}

/// A unique name for an operation: `get_api_v1_data_markets`.
fn operation_id(method: &str, path: &str, names: &mut HashSet<String>) -> String {
    let mut id = method.to_ascii_lowercase();
    for word in path.split(|character: char| !character.is_ascii_alphanumeric()) {
        if !word.is_empty() {
            id.push('_');
            id.push_str(word);
        }
    }
    let mut unique = id.clone();
    let mut number = 1;
    while !names.insert(unique.clone()) {
        number += 1;
        unique = format!("{id}_{number}");
    }
    unique
}

#[cfg(test)]
mod tests;
