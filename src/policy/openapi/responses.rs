//! The answers of the document: each error of the contract with its schema, its headers and its actual body.
//!
//! Every answer has two components, one for `HEAD` without a body. If the service behind the gateway may send an answer of the
//! same status, which is forwarded unchanged, the schema states this.

use std::time::Duration;

use http::StatusCode;
use http::header::{CACHE_CONTROL, ETAG};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::api::Api;
use crate::policy::calendar::Day;
use crate::policy::key_record::TierName;
use crate::policy::rate_limit::{self, QuotaStatus};
use crate::policy::rejection::{ExceededLimit, Limit, Malformed, Rejection};

/// The request id of every example.
const EXAMPLE_ID: &str = "c953ddfe4a8cffa30d88e63383e3e3fc";
/// 2026-11-21T12:00:00Z: examples must not depend on the clock.
const EXAMPLE_SECOND: i64 = 1_795_262_400;
const EXAMPLE_DAY: Day = Day {
    date: jiff::civil::date(2026, 11, 21),
    start: 1_795_219_200,
    end: 1_795_305_600,
};

/// An error answer of the contract.
#[derive(Debug)]
pub struct ErrorAnswer {
    name: &'static str,
    status: StatusCode,
    operations: Operations,
    sender: Sender,
    caller: ClientKind,
    /// All that have this answer, with values for its examples.
    rejections: Vec<Rejection>,
}

/// The operations with an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operations {
    /// Every method of every endpoint.
    Endpoints,
    /// Methods of endpoints whose requests have a body.
    Bodies,
    /// The endpoints and `/api/v1/usage`.
    Keyed,
    /// `/api/v1/usage`.
    Usage,
    /// The paths without a service behind them: `/api/v1/usage` and `/openapi.json`.
    Own,
    /// `/openapi.json`.
    Document,
}

/// The sender of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sender {
    Gateway,
    GatewayOrService,
}

/// The callers who may get an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClientKind {
    /// Callers whose key was not looked up or is unknown.
    Anybody,
    /// Authenticated callers too: then the answer has their quota status.
    Authenticated,
}

/// The error answers.
pub fn errors(api: &Api<'_>) -> Vec<ErrorAnswer> {
    use Operations::{Bodies, Document, Endpoints, Keyed, Own, Usage};
    let (gateway, both) = (Sender::Gateway, Sender::GatewayOrService);
    let (any, known) = (ClientKind::Anybody, ClientKind::Authenticated);
    let bad = &[Rejection::BadRequest(Malformed::Host)];
    let unauthorized = &[Rejection::MissingApiKey, Rejection::InvalidApiKey];
    let tier = &tier_insufficient(api);
    let path = &[Rejection::NotFound];
    let allow = "GET, HEAD".to_owned();
    let method = &[Rejection::MethodNotAllowed { allow }];
    let body = &[Rejection::PayloadTooLarge];
    let target = &[Rejection::UriTooLong];
    let head = &[Rejection::HeadersTooLarge];
    let quota = &limits_exceeded(api);
    let reads = &[usage_read_too_often(api)];
    let fault = &[Rejection::Internal];
    let all: [(&str, Operations, Sender, ClientKind, &[Rejection]); 16] = [
        ("BadRequest", Endpoints, both, known, bad),
        ("Unauthorized", Keyed, gateway, any, unauthorized),
        ("TierInsufficient", Endpoints, gateway, known, tier),
        ("NotFound", Endpoints, both, known, path),
        ("MethodNotAllowed", Endpoints, both, known, method),
        ("DocumentMethodNotAllowed", Document, gateway, any, method),
        ("UsageMethodNotAllowed", Usage, gateway, known, method),
        ("PayloadTooLarge", Bodies, both, known, body),
        ("UriTooLong", Endpoints, both, known, target),
        ("DailyQuotaExceeded", Endpoints, gateway, known, quota),
        ("UsageReadTooOften", Usage, gateway, known, reads),
        ("HeadersTooLarge", Endpoints, both, known, head),
        ("Internal", Keyed, gateway, known, fault),
        ("OwnBadRequest", Own, gateway, any, bad),
        ("OwnUriTooLong", Own, gateway, any, target),
        ("OwnHeadersTooLarge", Own, gateway, any, head),
    ];
    let answers = all
        .into_iter()
        .filter_map(|(name, operations, sender, caller, rejections)| {
            Some(ErrorAnswer {
                name,
                status: rejections.first()?.status(),
                operations,
                sender,
                caller,
                rejections: rejections.to_vec(),
            })
        });
    answers.collect()
}

/// No rejection without a tier.
fn tier_insufficient(api: &Api<'_>) -> Vec<Rejection> {
    let mut names = api.tiers.iter().map(|(name, _)| (*name).clone());
    let tier = names.next();
    let required = names.collect();
    let rejection = tier.map(|tier| Rejection::TierInsufficient { tier, required });
    rejection.into_iter().collect()
}

/// The daily quota, and the limits of each gateway that a tier has.
fn limits_exceeded(api: &Api<'_>) -> Vec<Rejection> {
    let burst = api
        .burst
        .map(|rate| ExceededLimit::OfGateway(Limit::Burst(rate), rate.interval));
    let concurrent = api.concurrent.map(Limit::Concurrent);
    let concurrent = concurrent.map(|limit| ExceededLimit::OfGateway(limit, Duration::ZERO));
    let limits = [Some(ExceededLimit::Daily), burst, concurrent];
    let status = example_status(&api.tiers);
    let exceeded = |limit| Rejection::RateLimitExceeded(limit, status);
    limits.into_iter().flatten().map(exceeded).collect()
}

fn usage_read_too_often(api: &Api<'_>) -> Rejection {
    let limit = ExceededLimit::OfGateway(Limit::UsageRead, Duration::from_secs(1));
    Rejection::RateLimitExceeded(limit, example_status(&api.tiers))
}

/// The quota status of all examples: the first tier's daily quota, used up.
fn example_status(tiers: &[(&TierName, u64)]) -> QuotaStatus {
    let limit = tiers.first().map_or(1_000, |(_, daily)| *daily);
    QuotaStatus {
        limit,
        used: Some(limit),
        day: EXAMPLE_DAY,
    }
}

/// The error answers of an operation, by status.
pub fn answers(errors: &[ErrorAnswer], of: &[Operations], method: &str) -> Map<String, Value> {
    let of_operation = errors.iter().filter(|error| of.contains(&error.operations));
    of_operation
        .map(|error| {
            let status = error.status.as_str().to_owned();
            (status, reference(error.name, method))
        })
        .collect()
}

/// A reference to one of [`responses`].
pub fn reference(name: &str, method: &str) -> Value {
    let prefix = if method == "HEAD" { "Head" } else { "" };
    json!({ "$ref": format!("#/components/responses/{prefix}{name}") })
}

/// All answers, by name.
pub fn responses(api: &Api<'_>, errors: &[ErrorAnswer]) -> Map<String, Value> {
    let errors = errors
        .iter()
        .map(|error| (error.name, described(error, api)));
    let mut all: Vec<(&str, Value)> = errors.collect();
    let quota_status = header_references(ClientKind::Authenticated, announced(api));
    let anything = anything();
    all.extend([
        ("Served", json!({
            "description": "The answer of the service; charged.",
            "headers": quota_status, "content": anything,
        })),
        ("Passed", json!({
            "description": "Any other answer of the service, forwarded unchanged; charged.",
            "headers": quota_status, "content": anything,
        })),
        ("Usage", json!({
            "description": "The quota status of the key.",
            "headers": header_references(ClientKind::Authenticated, &[CACHE_CONTROL.as_str()]),
            "content": { "application/json": {
                "schema": { "$ref": "#/components/schemas/Usage" },
                "example": usage_example(api),
            } },
        })),
        ("Document", json!({
            "description": "This description.",
            "headers": header_references(ClientKind::Anybody, &[ETAG.as_str(), CACHE_CONTROL.as_str()]),
            "content": { "application/json": { "schema": { "type": "object" } } },
        })),
        ("DocumentHeld", json!({
            "description": "The description has not changed.",
            "headers": header_references(ClientKind::Anybody, &[ETAG.as_str(), CACHE_CONTROL.as_str()]),
        })),
    ]);
    let mut named = Map::new();
    for (name, response) in all {
        let mut without_body = response.clone();
        if let Some(members) = without_body.as_object_mut() {
            members.remove("content");
        }
        named.insert(format!("Head{name}"), without_body);
        named.insert(name.to_owned(), response);
    }
    named
}

/// The content of a message with a body of any type. Generators of clients know JSON, few of them any type, and to some a type without
/// a schema is no body.
pub fn anything() -> Value {
    json!({ "application/json": { "schema": {} }, "*/*": { "schema": {} } })
}

/// The headers that announce a retirement, if an endpoint of the configuration has one.
fn announced(api: &Api<'_>) -> &'static [&'static str] {
    let mut endpoints = api.endpoints.iter();
    if endpoints.any(|endpoint| !endpoint.retirement.is_none()) {
        &["Deprecation", "Sunset", "Link"]
    } else {
        &[]
    }
}

fn described(error: &ErrorAnswer, api: &Api<'_>) -> Value {
    let now = Timestamp::from_second(EXAMPLE_SECOND).unwrap_or_default();
    let mut own_header = None;
    let mut codes = Vec::new();
    let mut examples = Map::new();
    let mut details = Vec::new();
    for rejection in &error.rejections {
        let problem = rejection.problem(EXAMPLE_ID, api.problems, now);
        let body: Value = serde_json::from_slice(&problem.body).unwrap_or_default();
        own_header = problem.header;
        codes.push(rejection.code());
        details.push(rejection.detail().into_owned());
        let name = rejection.policy().unwrap_or(rejection.code());
        examples.insert(name.to_owned(), json!({ "value": body }));
    }
    codes.dedup();
    let mut own_headers: Vec<&str> = own_header.iter().map(|(name, _)| name.as_str()).collect();
    let is_of_endpoints = matches!(
        error.operations,
        Operations::Endpoints | Operations::Bodies | Operations::Keyed
    );
    if is_of_endpoints && error.caller == ClientKind::Authenticated {
        own_headers.extend(announced(api));
    }
    let extension = match error.status {
        StatusCode::FORBIDDEN => "TierProblem",
        StatusCode::TOO_MANY_REQUESTS => "QuotaProblem",
        _ => "Problem",
    };
    // Not `const`: generators of clients do not see a number in it.
    let status = json!({ "type": "integer", "enum": [error.status.as_u16()] });
    let gateways = json!({
        "allOf": [
            { "$ref": format!("#/components/schemas/{extension}") },
            { "properties": { "status": status, "code": { "enum": codes } } },
        ],
    });
    let mut content = Map::new();
    let (schema, more) = match error.sender {
        Sender::Gateway => (gateways, "Not charged."),
        Sender::GatewayOrService => {
            content.insert("*/*".into(), json!({ "schema": {} }));
            let services = json!({ "type": "object", "description": "The service's own problem." });
            let more = "Not charged, unless it is the service's own answer of this status, which is forwarded unchanged.";
            (json!({ "anyOf": [gateways, services] }), more)
        }
    };
    content.insert(
        "application/problem+json".into(),
        json!({ "schema": schema, "examples": examples }),
    );
    json!({
        "description": format!("`{}`: {} {more}", codes.join("`, `"), details.join(" ")),
        "headers": header_references(error.caller, &own_headers),
        "content": content,
    })
}

fn header_references(caller: ClientKind, more: &[&str]) -> Value {
    let is_wanted = |name: &&String| {
        let is = |other: &&str| other.eq_ignore_ascii_case(name);
        let of_quota = caller == ClientKind::Authenticated && rate_limit::ALL.iter().any(is);
        of_quota || *name == "X-Request-Id" || more.iter().any(is)
    };
    let all = headers();
    let names = all.as_object().into_iter().flat_map(Map::keys);
    let references = names.filter(is_wanted).map(|name| {
        let reference = format!("#/components/headers/{name}");
        (name.clone(), json!({ "$ref": reference }))
    });
    references.collect::<Map<String, Value>>().into()
}

/// All headers of answers, by name.
pub fn headers() -> Value {
    let quota_status = example_status(&[]);
    let now = Timestamp::from_second(EXAMPLE_SECOND).unwrap_or_default();
    let shown = |wanted: &str| {
        let mut all = quota_status.headers(now);
        let value = all.find(|(name, _)| name.as_str().eq_ignore_ascii_case(wanted));
        let value = value.and_then(|(_, value)| value.to_str().ok().map(str::to_owned));
        let value = value.unwrap_or_default();
        value
            .parse::<u64>()
            .map_or(json!(value), |number| json!(number))
    };
    let count = json!({ "type": "integer", "minimum": 0 });
    let text = json!({ "type": "string" });
    json!({
        "X-RateLimit-Limit": { "description": "Units of the key today.", "schema": count, "example": shown("X-RateLimit-Limit") },
        "X-RateLimit-Remaining": {
            "description": "Units left today; omitted if unknown.",
            "schema": count, "example": shown("X-RateLimit-Remaining"),
        },
        "X-RateLimit-Reset": {
            "description": "Unix seconds of the next quota day.",
            "schema": count, "example": shown("X-RateLimit-Reset"),
        },
        "RateLimit-Policy": {
            "description": "draft-ietf-httpapi-ratelimit-headers-11.",
            "schema": text, "example": shown("RateLimit-Policy"),
        },
        "RateLimit": {
            "description": "draft-ietf-httpapi-ratelimit-headers-11; omitted if unknown.",
            "schema": text, "example": shown("RateLimit"),
        },
        "X-Request-Id": {
            "description": "The id of the request, to quote in support requests.",
            "schema": text, "example": EXAMPLE_ID,
        },
        "Retry-After": {
            "description": "Seconds to wait before another attempt.",
            "schema": { "type": "integer", "minimum": 1 }, "example": 2,
        },
        "WWW-Authenticate": { "description": "How to authenticate.", "schema": text, "example": "ApiKey realm=\"API\"" },
        "Allow": { "description": "The methods that the path accepts.", "schema": text, "example": "GET, HEAD" },
        "Deprecation": {
            "description": "When the endpoint is or was deprecated, if announced (RFC 9745).",
            "schema": text, "example": "@1796083200",
        },
        "Sunset": {
            "description": "When the endpoint may be removed, if announced (RFC 8594).",
            "schema": text, "example": "Wed, 30 Jun 2027 00:00:00 GMT",
        },
        "Link": {
            "description": "Documentation of the retirement, and the endpoint's replacement.",
            "schema": text, "example": "<https://example.com/v2>; rel=\"successor-version\"",
        },
        "ETag": {
            "description": "The version of the document.",
            "schema": text, "example": "\"5d41402abc4b2a76b9719d911017c592\"",
        },
        "Cache-Control": {
            "description": "Who may cache the answer, and for how long.",
            "schema": text, "example": "max-age=300",
        },
    })
}

fn usage_example(api: &Api<'_>) -> Value {
    let quota_status = example_status(&api.tiers);
    json!({
        "tier": api.tiers.first().map(|(name, _)| name),
        "limit": quota_status.limit,
        "used": quota_status.limit,
        "remaining": 0,
        "reset": Timestamp::from_second(quota_status.day.end).unwrap_or_default(),
        "subscription_expires": null,
        "endpoints": [],
        "days": [],
    })
}
