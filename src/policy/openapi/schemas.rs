//! The schemas of the document: problem bodies (RFC 9457) and the body of `/api/v1/usage`.

use serde_json::{Map, Value, json};

/// All schemas, by name.
pub fn schemas() -> Value {
    let text = json!({ "type": "string" });
    let count = json!({ "type": "integer", "minimum": 0 });
    let instant = json!({ "type": "string", "format": "date-time" });
    let texts = json!({ "type": "array", "items": text });
    let counts: Map<String, Value> = [
        "requests",
        "charged",
        "refunded",
        "refused_tier",
        "refused_quota",
        "refused_burst",
        "refused_concurrent",
        "refused_not_found",
        "refused_method",
    ]
    .map(|name| (name.to_owned(), count.clone()))
    .into_iter()
    .collect();
    let problem = json!({ "$ref": "#/components/schemas/Problem" });
    json!({
        "Problem": {
            "description": "RFC 9457; `code` never changes.",
            "type": "object",
            "required": ["type", "title", "status", "detail", "code", "request_id"],
            "properties": {
                "type": { "type": "string", "format": "uri-reference" }, "title": text,
                "status": { "type": "integer" }, "detail": text, "code": text, "request_id": text,
                "documentation": { "type": "string", "format": "uri" },
            },
        },
        "TierProblem": { "allOf": [problem, {
            "type": "object",
            "required": ["tier", "required_tiers"],
            "properties": { "tier": text, "required_tiers": texts },
        }] },
        "QuotaProblem": { "allOf": [problem, {
            "type": "object",
            "required": ["limit", "reset", "violated-policies"],
            "properties": { "limit": count, "used": count, "reset": instant, "violated-policies": texts },
        }] },
        "Usage": {
            "type": "object",
            "required": ["tier", "limit", "used", "remaining", "reset", "subscription_expires", "endpoints", "days"],
            "properties": {
                "tier": text, "limit": count, "used": count, "remaining": count, "reset": instant,
                "subscription_expires": { "type": ["string", "null"], "format": "date-time" },
                "endpoints": { "type": "array", "items": {
                    "type": "object",
                    "required": ["path", "methods", "cost"],
                    "properties": { "path": text, "methods": texts, "cost": { "type": "integer", "minimum": 1 } },
                } },
                "days": { "description": "The days of the last 30 on which something happened, oldest first, by endpoint: \
                    requests that were charged, units charged and refunded, and refused requests; `none` has those to other paths.",
                    "type": "array", "items": {
                    "type": "object",
                    "required": ["date", "used", "endpoints"],
                    "properties": {
                        "date": { "type": "string", "format": "date" }, "used": count,
                        "endpoints": { "type": "object", "additionalProperties": {
                            "type": "object", "required": counts.keys().collect::<Vec<_>>(), "properties": counts,
                        } },
                    },
                } },
            },
        },
    })
}
