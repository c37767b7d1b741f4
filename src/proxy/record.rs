//! The records of a finished request: its line in the access log, its metrics, its spans.
//!
//! Nothing is decided here. An API key that a client put into its path is redacted.

use std::borrow::Cow;
use std::time::Duration;

use super::admission::RouteId;
use super::client::Client;
use super::exchange::{Ending, Exchange, Stage};
use super::failure::Failure;
use super::gate::Gate;
use super::trace::RequestFacts;
use super::upstreams::Upstream;
use crate::policy::api_key;
use crate::policy::enforcement::ShadowViolation;
use crate::policy::forwarded::RequestSender;
use crate::policy::http1::{METHOD_BYTES_MAX, Version};
use crate::telemetry::access_log::Line;
use crate::telemetry::metrics::NONE;

/// Writes the request's line in the access log and counts it.
pub fn record(gate: &Gate, client: &Client<'_>, failure: Option<&Failure>, exchange: &Exchange) {
    let head = &client.head;
    let prefix = &exchange.snapshot.config.keys.prefix;
    let outcome = RecordedOutcome::of(&exchange.stage);
    let endpoint = outcome.endpoint.unwrap_or(NONE);
    // Over HTTP/2 a request is examined when its turn has come.
    let waited = client.turn().map_or(Duration::ZERO, |turn| turn.waited());
    let duration = waited + exchange.started.elapsed();
    let arrived = exchange.time.checked_sub(waited).unwrap_or(exchange.time);
    let metrics = &gate.metrics;
    let tier = outcome.tier.unwrap_or(NONE);
    match &exchange.stage {
        Stage::Forwarding(forwarding) if forwarding.ending.is_none() => {
            let table = &exchange.snapshot.series;
            table.with(metrics, endpoint, tier, |series| {
                series.served.inc();
                series.duration.observe(duration.as_secs_f64());
            });
        }
        _ => {
            let labels = [endpoint, tier, outcome.word];
            metrics.requests.with_label_values(&labels).inc();
            let durations = &metrics.request_duration;
            let of_endpoint = durations.with_label_values(&[endpoint]);
            of_endpoint.observe(duration.as_secs_f64());
        }
    }
    if let (Some(tier), Some(shadow_violation)) = (outcome.tier, outcome.shadow_violation) {
        let labels = [tier, shadow_violation.as_str()];
        metrics.shadow_refusals.with_label_values(&labels).inc();
    }
    if let Some((upstream, waited)) = outcome.upstream {
        let durations = &upstream.series(metrics).duration;
        durations.observe(waited.as_secs_f64());
    }
    let cause = match (&exchange.stage, failure) {
        (Stage::Refused(refusal), _) if refusal.cause.is_some() => refusal.cause.clone(),
        (_, Some(failure)) => Some(failure.to_string()),
        (_, None) => exchange.cause.clone(),
    };
    let status = client.status().map_or(0, |status| status.as_u16());
    if let Some(recording) = &exchange.admission_trace.recording {
        let facts = RequestFacts {
            time: arrived,
            started: exchange
                .started
                .checked_sub(waited)
                .unwrap_or(exchange.started),
            request_id: exchange.request_id_str(),
            method: head.method(),
            endpoint: outcome.endpoint,
            key_id: outcome.key_id,
            tier: outcome.tier,
            status,
            outcome: outcome.word,
            units: outcome.units,
        };
        let spans = recording.spans(&facts);
        let count = spans.len() as u64;
        if !gate.tracer.leave(spans) {
            let dropped = metrics.trace_spans.with_label_values(&["dropped"]);
            dropped.inc_by(count);
        }
    }
    let sample = sample(exchange, &outcome, status);
    if sample.is_some_and(|percent| fastrand::u8(..100) >= percent) {
        return;
    }
    let sender = exchange.origin.as_ref().map(|origin| match origin.client {
        RequestSender::Connected(_) => Cow::Borrowed(&*client.connection.client_text),
        RequestSender::Forwarded(client) => Cow::Owned(client.to_string()),
    });
    gate.access_log.write(&Line {
        time: arrived,
        request_id: exchange.request_id_str(),
        client: sender.as_deref(),
        protocol: match head.version() {
            Version::Http2 => "HTTP/2",
            Version::Http11 => "HTTP/1.1",
            Version::Http10 => "HTTP/1.0",
        },
        method: &match head.method().as_str() {
            method if method.len() > METHOD_BYTES_MAX => Cow::Borrowed("-"),
            method => api_key::redacted(method, prefix),
        },
        path: &api_key::redacted(head.path(), prefix),
        endpoint: outcome.endpoint,
        key_id: outcome.key_id,
        tier: outcome.tier,
        status,
        outcome: outcome.word,
        policy: outcome.policy,
        would_refuse: outcome.shadow_violation.map(ShadowViolation::as_str),
        sample_percent: sample,
        units: outcome.units,
        refunded: outcome.refunded,
        duration_ms: duration,
        store_ms: exchange.admission_trace.store_wait,
        upstream_ms: outcome.upstream.map(|(_, waited)| waited),
        bytes_sent: client.bytes_sent(),
        cause: cause.as_deref(),
    });
}

/// The percentage of requests like this one that have a line in the access log; `None` for all. Only requests that were served
/// normally are sampled.
fn sample(exchange: &Exchange, outcome: &RecordedOutcome<'_>, status: u16) -> Option<u8> {
    let percent = exchange.snapshot.config.logging.access_log_percent;
    let plain = outcome.word == word(None) && status < 400 && outcome.shadow_violation.is_none();
    (plain && percent < 100).then_some(percent)
}

/// The facts of a request for the access log and the metrics.
#[derive(Default)]
struct RecordedOutcome<'a> {
    word: &'static str,
    policy: Option<&'static str>,
    endpoint: Option<&'a str>,
    key_id: Option<&'a str>,
    tier: Option<&'a str>,
    shadow_violation: Option<ShadowViolation>,
    units: u32,
    refunded: bool,
    upstream: Option<(&'a Upstream, Duration)>,
}

impl<'a> RecordedOutcome<'a> {
    fn of(stage: &'a Stage) -> RecordedOutcome<'a> {
        let nothing = RecordedOutcome {
            word: "INTERNAL_ERROR",
            ..RecordedOutcome::default()
        };
        match stage {
            Stage::Arrived => nothing,
            Stage::Refused(refusal) => RecordedOutcome {
                word: refusal.rejection.code(),
                policy: refusal.rejection.policy(),
                endpoint: refusal.place.as_ref().map(RouteId::name),
                key_id: refusal.key.as_ref().map(|key| key.record.id.as_str()),
                tier: refusal.key.as_ref().map(|key| key.record.tier.as_str()),
                ..nothing
            },
            Stage::Served(served) => RecordedOutcome {
                word: word(served.ending.as_ref()),
                endpoint: Some(served.path.as_str()),
                key_id: served.key.as_ref().map(|key| key.record.id.as_str()),
                tier: served.key.as_ref().map(|key| key.record.tier.as_str()),
                ..nothing
            },
            Stage::Forwarding(forwarding) => RecordedOutcome {
                word: word(forwarding.ending.as_ref()),
                endpoint: Some(&forwarding.endpoint.pattern),
                key_id: Some(forwarding.key.record.id.as_str()),
                tier: Some(forwarding.key.record.tier.as_str()),
                shadow_violation: forwarding.shadow_violation,
                units: forwarding.units,
                refunded: forwarding.refunded(),
                upstream: forwarding
                    .header_after
                    .map(|waited| (&*forwarding.upstream, waited)),
                ..nothing
            },
        }
    }
}

/// The outcome of an admitted request, in logs and metrics.
fn word(ending: Option<&Ending>) -> &'static str {
    match ending {
        None => "served",
        Some(Ending::Rejected(rejection)) => rejection.code(),
        Some(Ending::Cut) => "cut",
        Some(Ending::ClientClosed) => "client_closed",
    }
}
