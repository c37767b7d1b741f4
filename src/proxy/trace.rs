//! The spans of a recorded request: the request, and in it authentication, charges, and each attempt at the upstream.
//!
//! Instants are noted only for recorded requests; without an export of traces there are none. Every span of an attempt has its
//! own id, which the upstream receives as its parent.

use std::sync::Arc;
use std::time::Instant;

use super::upstreams::Server;
use crate::config::Tracing;
use crate::policy::trace_context::TraceContext;
use crate::telemetry::access_log::Line;
use crate::telemetry::traces::{Attribute, Span, SpanKind, Status};

/// The notes about a recorded request.
#[derive(Debug)]
pub struct Recording {
    /// The trace.
    pub context: TraceContext,
    /// The id of the request's own span.
    span: u64,
    /// When the key was judged.
    authenticated: Option<Instant>,
    /// The beginning and end of each call of the store for a charge.
    charges: Vec<(Instant, Instant)>,
    attempts: Vec<Attempt>,
}

#[derive(Debug)]
struct Attempt {
    span: u64,
    server: Option<Arc<Server>>,
    began: Instant,
}

impl Recording {
    /// A recording, if the request is to be recorded: by the caller's decision, or else for the configured share.
    pub fn begin(client_sent: Option<&[u8]>, tracing: &Tracing) -> Option<Box<Recording>> {
        let otlp = tracing.otlp.as_ref()?;
        let context = client_sent
            .and_then(TraceContext::of_header)
            .unwrap_or_else(|| TraceContext::begin(fastrand::u128(..), otlp.sample_percent));
        context.is_recorded().then(|| {
            Box::new(Recording {
                context,
                span: fresh_id(),
                authenticated: None,
                charges: Vec::new(),
                attempts: Vec::new(),
            })
        })
    }

    /// Notes that the key has been judged.
    pub fn authenticated(&mut self) {
        self.authenticated = Some(Instant::now());
    }

    /// Notes the answer of the store to a charge that was requested at `asked`.
    pub fn charged(&mut self, asked: Instant) {
        self.charges.push((asked, Instant::now()));
    }

    /// Notes the beginning of an attempt, before the server is connected.
    pub fn attempt(&mut self, server: Option<&Arc<Server>>) {
        self.attempts.push(Attempt {
            span: fresh_id(),
            server: server.cloned(),
            began: Instant::now(),
        });
    }

    /// The id of the span of the present attempt, which its server receives.
    pub fn attempt_id(&self) -> u64 {
        self.attempts
            .last()
            .map_or(self.span, |attempt| attempt.span)
    }

    /// All spans of a finished request that `started` at the time of its `line`.
    pub fn spans(&self, line: &Line<'_>, started: Instant) -> Vec<Span> {
        let at = |instant: Instant| {
            let after = instant.saturating_duration_since(started);
            let time = line.time.saturating_add(after).unwrap_or(line.time);
            u64::try_from(time.as_nanosecond()).unwrap_or(0)
        };
        let is_failed = line.status >= 500 || line.outcome == "cut";
        let ended = at(Instant::now());
        let mut spans = vec![Span {
            span_id: bytes(self.span),
            parent_span_id: self.context.parent.map(bytes).unwrap_or_default(),
            attributes: attributes(line),
            status: Status::of(line.status == 0 || is_failed),
            ..self.part(&name(line), SpanKind::Server, [at(started), ended])
        }];
        if let Some(authenticated) = self.authenticated {
            let times = [at(started), at(authenticated)];
            spans.push(self.part("authenticate", SpanKind::Internal, times));
        }
        for (asked, answered) in &self.charges {
            let times = [at(*asked), at(*answered)];
            spans.push(self.part("charge", SpanKind::Internal, times));
        }
        spans.extend(self.attempt_spans(at, ended, is_failed));
        spans
    }

    /// The spans of the attempts at servers, the last of which `ended` with the request.
    fn attempt_spans(
        &self,
        at: impl Fn(Instant) -> u64,
        ended: u64,
        is_failed: bool,
    ) -> impl Iterator<Item = Span> {
        self.attempts
            .iter()
            .enumerate()
            .map(move |(number, attempt)| {
                // An attempt that is followed by another ends where that begins, and has failed.
                let next = self.attempts.get(number + 1);
                let attempt_ended = next.map_or(ended, |next| at(next.began));
                let server = attempt.server.iter().flat_map(|server| {
                    let port = server.address.port().into();
                    [
                        Attribute::text("server.address", server.host()),
                        Attribute::number("server.port", port),
                    ]
                });
                let tried = i64::try_from(number).unwrap_or(i64::MAX);
                let again =
                    (number > 0).then(|| Attribute::number("http.request.resend_count", tried));
                let times = [at(attempt.began), attempt_ended];
                Span {
                    span_id: bytes(attempt.span),
                    attributes: server.chain(again).collect(),
                    status: Status::of(next.is_some() || is_failed),
                    ..self.part("upstream", SpanKind::Client, times)
                }
            })
    }

    /// A span beneath that of the request, between these times (Unix nanoseconds).
    fn part(&self, name: &str, kind: SpanKind, [began, ended]: [u64; 2]) -> Span {
        Span {
            trace_id: self.context.trace_id.to_be_bytes().to_vec(),
            span_id: bytes(fresh_id()),
            parent_span_id: bytes(self.span),
            name: name.to_owned(),
            kind: kind as i32,
            start_time_unix_nano: began,
            end_time_unix_nano: ended,
            attributes: Vec::new(),
            status: None,
        }
    }
}

fn bytes(id: u64) -> Vec<u8> {
    id.to_be_bytes().to_vec()
}

fn fresh_id() -> u64 {
    fastrand::u64(1..)
}

/// Method and pattern, by OpenTelemetry's convention; a method that no endpoint can take is not repeated.
fn name(line: &Line<'_>) -> String {
    let method = known(line.method);
    match line.endpoint {
        Some(endpoint) => format!("{method} {endpoint}"),
        None => method.to_owned(),
    }
}

fn known(method: &str) -> &str {
    match method {
        "GET" | "HEAD" | "POST" | "PUT" | "PATCH" | "DELETE" | "OPTIONS" => method,
        _ => "HTTP",
    }
}

fn attributes(line: &Line<'_>) -> Vec<Attribute> {
    let mut attributes = vec![
        Attribute::text("http.request.method", known(line.method)),
        Attribute::text("touchline.request_id", line.request_id),
        Attribute::text("touchline.outcome", line.outcome),
    ];
    for (key, text) in [
        ("http.route", line.endpoint),
        ("touchline.key_id", line.key_id),
        ("touchline.tier", line.tier),
    ] {
        attributes.extend(text.map(|text| Attribute::text(key, text)));
    }
    for (key, number) in [
        ("http.response.status_code", i64::from(line.status)),
        ("touchline.units", i64::from(line.units)),
    ] {
        attributes.extend((number > 0).then(|| Attribute::number(key, number)));
    }
    attributes
}
