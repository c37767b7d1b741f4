//! Spans, the queue in which they wait to be exported, and their form: OTLP 1.x, `ExportTraceServiceRequest` in protobuf, and of its
//! answer, `ExportTraceServiceResponse`, which spans were rejected.
//!
//! A request never waits for the queue: spans that do not fit are dropped, and the caller counts them. Spans are made from the same
//! facts as the access log, never from a key, a header's value or a path.
//!
//! The messages of `opentelemetry/proto/{collector/trace,trace,resource,common}/v1`, with only the fields that the gateway's spans
//! use; field numbers never change. Declared here because the crate with the generated messages depends on the whole SDK.

use prost::Message;

/// The most requests whose spans may wait: some megabytes.
pub const WAITING_MAX: usize = 2_048;

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
    attributes: Vec<Attribute>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    spans: Vec<Span>,
}

#[derive(Clone, PartialEq, Message)]
struct Scope {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    version: String,
}

/// The kind of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanKind {
    /// A step of the gateway.
    Internal = 1,
    /// A request of a client.
    Server = 2,
    /// A request to an upstream.
    Client = 3,
}

/// A finished span.
#[derive(Clone, PartialEq, Message)]
pub struct Span {
    /// The trace id.
    #[prost(bytes = "vec", tag = "1")]
    pub trace_id: Vec<u8>,
    /// The span id, not 0.
    #[prost(bytes = "vec", tag = "2")]
    pub span_id: Vec<u8>,
    /// The id of the parent span; empty without one.
    #[prost(bytes = "vec", tag = "4")]
    pub parent_span_id: Vec<u8>,
    /// The name, from a fixed set: the gateway's words, methods and configured patterns.
    #[prost(string, tag = "5")]
    pub name: String,
    /// The number of its [`SpanKind`].
    #[prost(int32, tag = "6")]
    pub kind: i32,
    /// The beginning.
    #[prost(fixed64, tag = "7")]
    pub start_time_unix_nano: u64,
    /// The end.
    #[prost(fixed64, tag = "8")]
    pub end_time_unix_nano: u64,
    /// Attributes, with OpenTelemetry's names if there is one.
    #[prost(message, repeated, tag = "9")]
    pub attributes: Vec<Attribute>,
    /// Whether the request or step failed.
    #[prost(message, optional, tag = "15")]
    pub status: Option<Status>,
}

/// The status of a span that failed.
#[derive(Clone, PartialEq, Message)]
pub struct Status {
    #[prost(int32, tag = "3")]
    code: i32,
}

impl Status {
    /// The status of a span; others than failures have none.
    pub fn of(is_failed: bool) -> Option<Status> {
        is_failed.then_some(Status { code: FAILED })
    }
}

/// An attribute of a span or of the gateway.
#[derive(Clone, PartialEq, Message)]
pub struct Attribute {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

impl Attribute {
    /// An attribute whose value is a text.
    pub fn text(key: &str, text: &str) -> Attribute {
        Attribute::new(key, Any::Text(text.to_owned()))
    }

    /// An attribute whose value is a number.
    pub fn number(key: &str, number: i64) -> Attribute {
        Attribute::new(key, Any::Number(number))
    }

    fn new(key: &str, value: Any) -> Attribute {
        Attribute {
            key: key.to_owned(),
            value: Some(AnyValue { value: Some(value) }),
        }
    }
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

#[derive(Clone, PartialEq, Message)]
struct ExportAnswer {
    #[prost(message, optional, tag = "1")]
    partial_success: Option<PartialSuccess>,
}

/// The part of an accepted export that the collector rejected for good, or its warning (OTLP 1.x, "Partial Success").
#[derive(Clone, PartialEq, Message)]
pub struct PartialSuccess {
    /// The number of rejected spans; 0 for a warning.
    #[prost(int64, tag = "1")]
    pub rejected_spans: i64,
    /// The collector's reason.
    #[prost(string, tag = "2")]
    pub error_message: String,
}

/// The partial success in the body of an answer with a status of success. A body that is not OTLP has none.
pub fn partial_success(answer: &[u8]) -> Option<PartialSuccess> {
    ExportAnswer::decode(answer).ok()?.partial_success
}

/// The body of one export. `instance` identifies this process among others of the service.
pub fn encoded(spans: Vec<Span>, instance: &str) -> Vec<u8> {
    let version = env!("CARGO_PKG_VERSION");
    let attributes = vec![
        Attribute::text("service.name", "touchline"),
        Attribute::text("service.version", version),
        Attribute::text("service.instance.id", instance),
    ];
    let request = Request {
        resource_spans: vec![ResourceSpans {
            resource: Some(Resource { attributes }),
            scope_spans: vec![ScopeSpans {
                scope: Some(Scope {
                    name: "touchline".to_owned(),
                    version: version.to_owned(),
                }),
                spans,
            }],
        }],
    };
    request.encode_to_vec()
}
