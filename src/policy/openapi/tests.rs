//! Facts of the document: complete, consistent, the same on every node.

use std::num::NonZeroU32;

use super::*;
use crate::policy::endpoint::{self, EndpointTable};
use crate::policy::rejection::ProblemTerms;
use crate::policy::target::Target;
use crate::policy::token_bucket::Rate;

fn endpoint(pattern: &str, methods: &[http::Method], tier: &str) -> Endpoint {
    Endpoint {
        methods: methods.to_vec(),
        tiers: vec![tier.parse().unwrap()],
        cost: 3.try_into().unwrap(),
        upstream: "secret-upstream".into(),
        ..endpoint::tests::endpoint(pattern)
    }
}

fn document() -> Document {
    use http::Method;
    let endpoints = EndpointTable::new(vec![
        endpoint("/d/markets", &[Method::GET], "starter"),
        endpoint("/d_markets", &[Method::GET, Method::POST], "pro"),
        endpoint("/d/{a}/x/{b}", &[Method::GET], "pro"),
        endpoint("/files/{rest...}", &[Method::GET], "pro"),
    ])
    .unwrap();
    let (starter, pro) = ("starter".parse().unwrap(), "pro".parse().unwrap());
    Document::of(&Api {
        endpoints: &endpoints,
        tiers: vec![(&starter, 10), (&pro, 20)],
        burst: Some(Rate::per_second(NonZeroU32::MIN, NonZeroU32::MIN)),
        concurrent: NonZeroU32::new(3),
        problems: &ProblemTerms::new("API", Some("https://docs.example/errors")),
        title: "Prices",
    })
}

fn parsed() -> Value {
    serde_json::from_slice(&document().body).unwrap()
}

/// Calls `visit` with every value of a tree.
fn walk(value: &Value, visit: &mut dyn FnMut(&Value)) {
    visit(value);
    match value {
        Value::Array(values) => values.iter().for_each(|value| walk(value, visit)),
        Value::Object(members) => members.values().for_each(|value| walk(value, visit)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[test]
fn every_endpoint_stands_in_it_with_methods_tiers_cost_and_parameters() {
    let document = parsed();
    let paths = document["paths"].as_object().unwrap();
    assert_eq!(paths.len(), 6, "four endpoints and two own paths");
    let markets = &paths["/d/markets"];
    assert_eq!(markets["get"]["x-tiers"], json!(["starter"]));
    assert_eq!(markets["get"]["x-cost"], 3);
    let description = markets["get"]["description"].as_str().unwrap();
    assert!(description.contains("Costs 3 units of"), "{description}");
    let of_all = document["info"]["description"].as_str().unwrap();
    assert!(of_all.contains("quota status in its headers"), "{of_all}");
    assert!(markets["head"].is_object() && markets["post"].is_null());
    assert!(paths["/d_markets"]["post"]["requestBody"].is_object());
    let parameters = paths["/d/{a}/x/{b}"]["parameters"].as_array().unwrap();
    let names: Vec<_> = parameters
        .iter()
        .filter(|parameter| parameter["in"] == "path" && parameter["required"] == true)
        .map(|parameter| parameter["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["a", "b"]);
    let rest = &paths["/files/{rest}"]["parameters"][1];
    assert_eq!(
        (&rest["name"], &rest["in"]),
        (&json!("rest"), &json!("path"))
    );
    assert!(rest["schema"]["pattern"].as_str().unwrap().contains(")*"));
    assert!(rest["description"].as_str().unwrap().contains("%2F"));
    assert_eq!(document["x-tiers"]["pro"]["daily"], 20);
    assert_eq!(document["info"]["title"], "Prices");
    let documentation = "https://docs.example/errors";
    assert_eq!(document["externalDocs"]["url"], documentation);
    let examples = document["components"]["responses"]["NotFound"]["content"]
        ["application/problem+json"]["examples"].as_object().unwrap();
    for example in examples.values() {
        assert_eq!(example["value"]["documentation"], documentation);
    }
    assert!(!document.to_string().contains("secret-upstream"));
}

#[test]
fn every_reference_leads_somewhere_and_every_operation_has_a_name_of_its_own() {
    let document = parsed();
    let mut names = Vec::new();
    walk(&document, &mut |value| {
        if let Some(reference) = value.get("$ref").and_then(Value::as_str) {
            let pointer = reference.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{reference}");
        }
        names.extend(value.get("operationId").map(Value::to_string));
    });
    let distinct: HashSet<_> = names.iter().collect();
    assert_eq!((names.len(), distinct.len()), (13, 13));
}

#[test]
fn every_error_has_its_example_which_is_what_the_gateway_sends() {
    let document = parsed();
    let get = &document["paths"]["/d/markets"]["get"]["responses"];
    for (status, codes) in [
        ("400", vec!["BAD_REQUEST"]),
        ("401", vec!["INVALID_API_KEY", "MISSING_API_KEY"]),
        ("403", vec!["TIER_INSUFFICIENT"]),
        ("404", vec!["NOT_FOUND"]),
        ("405", vec!["METHOD_NOT_ALLOWED"]),
        ("414", vec!["URI_TOO_LONG"]),
        ("429", vec!["burst", "concurrent", "daily"]),
        ("431", vec!["HEADERS_TOO_LARGE"]),
        ("500", vec!["INTERNAL_ERROR"]),
    ] {
        let reference = get[status]["$ref"].as_str().unwrap();
        let response = document.pointer(&reference[1..]).unwrap();
        let examples = &response["content"]["application/problem+json"]["examples"];
        let examples = examples.as_object().unwrap();
        assert_eq!(examples.keys().collect::<Vec<_>>(), codes);
        for (name, example) in examples {
            let code = if status == "429" {
                "RATE_LIMIT_EXCEEDED"
            } else {
                name.as_str()
            };
            assert_eq!(example["value"]["code"], code);
            assert_eq!(example["value"]["status"].to_string(), status);
        }
    }
    let header = |name: &str, header: &str| {
        let response = &document["components"]["responses"][name];
        response["headers"][header].is_object()
    };
    assert!(header("DailyQuotaExceeded", "Retry-After") && header("Internal", "Retry-After"));
    assert!(header("Unauthorized", "WWW-Authenticate") && header("MethodNotAllowed", "Allow"));
    for name in ["X-RateLimit-Limit", "RateLimit", "RateLimit-Policy"] {
        assert!(
            header("Served", name) && header("Internal", name) && !header("Unauthorized", name)
        );
        for both in [
            "BadRequest",
            "PayloadTooLarge",
            "UriTooLong",
            "HeadersTooLarge",
        ] {
            assert!(header(both, name), "{both}");
        }
        for own in ["OwnBadRequest", "OwnUriTooLong", "OwnHeadersTooLarge"] {
            assert!(!header(own, name), "{own}");
        }
    }
    let usage = &document["components"]["responses"]["UsageReadTooOften"];
    assert!(usage.to_string().contains("[\"usage\"]"));
}

#[test]
fn every_policy_of_a_429_has_an_example_where_a_tier_has_it() {
    let document = parsed();
    let response = &document["components"]["responses"]["DailyQuotaExceeded"];
    let examples = &response["content"]["application/problem+json"]["examples"];
    for policy in ["daily", "burst", "concurrent"] {
        let violated = &examples[policy]["value"]["violated-policies"];
        assert_eq!(violated, &serde_json::json!([policy]), "{response}");
    }
    let without = Document::of(&Api {
        endpoints: &EndpointTable::new(Vec::new()).unwrap(),
        tiers: Vec::new(),
        burst: None,
        concurrent: None,
        problems: &ProblemTerms::new("API", None),
        title: "Prices",
    });
    let text = String::from_utf8(without.body.to_vec()).unwrap();
    assert!(text.contains("\"daily\"") && !text.contains("\"concurrent\""));
}

#[test]
fn an_answer_to_head_is_described_without_a_body() {
    let document = parsed();
    for (name, response) in document["components"]["responses"].as_object().unwrap() {
        if name.starts_with("Head") && name != "HeadersTooLarge" {
            assert!(response["content"].is_null(), "{name}");
        }
    }
}

#[test]
fn the_same_configuration_gives_the_same_bytes_and_a_tag_is_compared_as_rfc_9110_requires() {
    let (one, other) = (document(), document());
    assert_eq!((&one.body, &one.etag), (&other.body, &other.etag));
    let tag = one.etag.to_str().unwrap().to_owned();
    let held = |values: &[&str]| one.is_held(values.iter().map(|value| value.as_bytes()));
    for values in [
        &[tag.as_str()][..],
        &["*"],
        &[&format!("W/{tag}")],
        &[&format!("\"a\" , {tag}")],
        &["\"a\"", &tag],
    ] {
        assert!(held(values), "{values:?}");
    }
    for values in [&[][..], &["\"a\""], &[tag.trim_matches('"')], &[""]] {
        assert!(!held(values), "{values:?}");
    }
}

#[test]
fn an_endpoint_that_is_retired_announces_it_and_the_others_do_not() {
    use crate::policy::retirement::{LinkTarget, Relation, Retirement};
    let ending = Retirement::new(
        Some("2026-12-01T00:00:00Z".parse().unwrap()),
        Some("2027-06-30T00:00:00Z".parse().unwrap()),
        vec![(
            Relation::SuccessorVersion,
            LinkTarget::parse("/v2").unwrap(),
        )],
    );
    let old = Endpoint {
        retirement: ending.unwrap(),
        ..endpoint("/old", &[http::Method::GET], "pro")
    };
    let other = endpoint("/other", &[http::Method::GET], "pro");
    let endpoints = EndpointTable::new(vec![old, other]).unwrap();
    let pro = "pro".parse().unwrap();
    let document = Document::of(&Api {
        endpoints: &endpoints,
        tiers: vec![(&pro, 20)],
        burst: None,
        concurrent: None,
        problems: &ProblemTerms::new("API", None),
        title: "Prices",
    });
    let document: Value = serde_json::from_slice(&document.body).unwrap();
    for method in ["get", "head"] {
        let old = &document["paths"]["/old"][method];
        assert_eq!(old["deprecated"], true);
        assert_eq!(old["x-deprecation"], "2026-12-01T00:00:00Z");
        assert_eq!(old["x-sunset"], "2027-06-30T00:00:00Z");
        assert_eq!(old["x-links"], json!({"successor-version": "/v2"}));
        assert!(document["paths"]["/other"][method]["deprecated"].is_null());
    }
    let headers = |name: &str| document["components"]["responses"][name]["headers"].clone();
    for name in [
        "Served",
        "BadRequest",
        "PayloadTooLarge",
        "DailyQuotaExceeded",
        "Internal",
    ] {
        assert!(headers(name)["Sunset"].is_object(), "{name}");
    }
    for name in ["Usage", "Document", "Unauthorized"] {
        assert!(headers(name)["Sunset"].is_null(), "{name}");
    }
    assert!(parsed()["components"]["responses"]["Served"]["headers"]["Sunset"].is_null());
}

#[test]
fn the_document_is_openapi_3_1_by_the_schema_of_its_authors() {
    let schema = include_str!("../../../tests/edge/openapi-3.1-schema.json");
    let schema: Value = serde_json::from_str(schema).unwrap();
    let validator = jsonschema::draft202012::new(&schema).unwrap();
    let mut document = parsed();
    let problems: Vec<String> = validator
        .iter_errors(&document)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert_eq!(problems, Vec::<String>::new());
    document["paths"]["/d/markets"]["get"]["responses"]["2XX"] = json!({ "content": {} });
    assert!(
        !validator.is_valid(&document),
        "a response without its description"
    );
}

#[test]
fn a_parameter_of_a_path_has_exactly_the_values_that_a_client_can_send() {
    let encoded = |text: &str| -> String {
        let octet = |octet: u8| match octet {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                char::from(octet).to_string()
            }
            _ => format!("%{octet:02X}"),
        };
        text.bytes().map(octet).collect()
    };
    let validator = |pattern: String| {
        let schema = json!({ "type": "string", "pattern": pattern });
        jsonschema::draft202012::new(&schema).unwrap()
    };
    let (one, several) = (validator(segment()), validator(rest()));
    let characters = ('\0'..='\u{ffff}').map(|character| format!("a{character}b"));
    let dots = [".", "..", "...", ".a", "a."].map(String::from);
    for text in characters.chain(dots) {
        let target = format!("/{}", encoded(&text));
        let is_taken = Target::parse(target.as_bytes()).is_ok();
        let value = Value::from(text.clone());
        // Encoded as one segment, a slash is refused.
        assert_eq!(one.is_valid(&value), is_taken, "{text:?}");
        assert_eq!(
            several.is_valid(&value),
            is_taken || text == "a/b",
            "{text:?}"
        );
    }
    for (text, is_taken) in [("a/../b", false), ("a/b/c/", true), ("a/.", false)] {
        assert_eq!(several.is_valid(&text.into()), is_taken, "{text}");
    }
}
