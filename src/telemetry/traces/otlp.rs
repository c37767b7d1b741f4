//! Spans in OTLP 1.x: `ExportTraceServiceRequest` in protobuf.
//!
//! The messages of `opentelemetry/proto/{collector/trace,trace,resource,common}/v1`, with only the fields that the gateway's spans
//! use; field numbers never change. Declared here because the crate with the generated messages depends on the whole SDK.

use prost::Message;
use prost::alloc::string::String;
use prost::alloc::vec::Vec;

use super::{Span, SpanKind, Value};

#[derive(Clone, PartialEq, Message)]
struct Request {
    #[prost(message, repeated, tag = "1")]
    resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    spans: Vec<SpanMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct Scope {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    version: String,
}

#[derive(Clone, PartialEq, Message)]
struct SpanMessage {
    #[prost(bytes = "vec", tag = "1")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    span_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    name: String,
    #[prost(int32, tag = "6")]
    kind: i32,
    #[prost(fixed64, tag = "7")]
    start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<KeyValue>,
    #[prost(message, optional, tag = "15")]
    status: Option<Status>,
}

#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(int32, tag = "3")]
    code: i32,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct AnyValue {
    #[prost(oneof = "Any", tags = "1, 3")]
    value: Option<Any>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Any {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(int64, tag = "3")]
    Number(i64),
}

/// `STATUS_CODE_ERROR`.
const FAILED: i32 = 2;

/// The body of one export. `instance` identifies this process among others of the service.
pub fn encoded(spans: &[Span], instance: &str) -> Vec<u8> {
    let version = env!("CARGO_PKG_VERSION");
    let resource = [
        ("service.name", Value::from("touchline")),
        ("service.version", Value::from(version)),
        ("service.instance.id", Value::from(instance)),
    ];
    let request = Request {
        resource_spans: vec![ResourceSpans {
            resource: Some(Resource {
                attributes: resource.iter().map(attribute).collect(),
            }),
            scope_spans: vec![ScopeSpans {
                scope: Some(Scope {
                    name: "touchline".to_owned(),
                    version: version.to_owned(),
                }),
                spans: spans.iter().map(message).collect(),
            }],
        }],
    };
    request.encode_to_vec()
}

fn message(span: &Span) -> SpanMessage {
    let nanos = |instant: jiff::Timestamp| u64::try_from(instant.as_nanosecond()).unwrap_or(0);
    let parent = span.parent.map(|parent| parent.to_be_bytes().to_vec());
    SpanMessage {
        trace_id: span.trace_id.to_be_bytes().to_vec(),
        span_id: span.id.to_be_bytes().to_vec(),
        parent_span_id: parent.unwrap_or_default(),
        name: span.name.clone(),
        kind: match span.kind {
            SpanKind::Internal => 1,
            SpanKind::Server => 2,
            SpanKind::Client => 3,
        },
        start_time_unix_nano: nanos(span.began),
        end_time_unix_nano: nanos(span.ended),
        attributes: span.attributes.iter().map(attribute).collect(),
        status: span.is_failed.then_some(Status { code: FAILED }),
    }
}

fn attribute((key, value): &(&'static str, Value)) -> KeyValue {
    let value = match value {
        Value::Text(text) => Any::Text(text.clone()),
        Value::Number(number) => Any::Number(*number),
    };
    KeyValue {
        key: (*key).to_owned(),
        value: Some(AnyValue { value: Some(value) }),
    }
}
