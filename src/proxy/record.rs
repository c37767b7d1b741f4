//! The records of a finished request: its line in the access log, its metrics, its spans.
//!
//! Nothing is decided here. An API key that a client put into its path is redacted.

use std::borrow::Cow;
use std::time::Duration;

use super::admission::RouteId;
use super::client::Client;
use super::exchange::{Ending, Exchange, Stage};
use super::failure::{Failure, Fault};
use super::forward::X_API_KEY;
use super::gate::Gate;
use crate::policy::api_key;
use crate::policy::enforcement::ShadowViolation;
use crate::policy::http1::METHOD_BYTES_MAX;
use crate::policy::rejection::Rejection;
use crate::telemetry::access_log::Line;
use crate::telemetry::metrics::NONE;

/// Records a request: counts it, writes its line in the access log unless a sample leaves it out, and queues its spans.
pub fn record(
    gate: &Gate,
    client: &Client<'_>,
    failure: Option<&Failure>,
    exchange: &Exchange,
    stage: &Stage,
) {
    let head = &client.head;
    let prefix = &exchange.snapshot.config.keys.prefix;
    let status = client.status().map_or(0, |status| status.as_u16());
    let line = Line {
        status,
        ..of_stage(failure, stage)
    };
    // Over HTTP/2 a request is examined when its turn has come.
    let waited = client.turn().map_or(Duration::ZERO, |turn| turn.waited);
    let duration = waited + exchange.started.elapsed();
    count(gate, exchange, stage, &line, duration);
    let sample = sample(exchange, &line);
    let is_left_out = sample.is_some_and(|percent| fastrand::u8(..100) >= percent);
    let recording = exchange.admission_trace.recording.as_ref();
    if is_left_out && recording.is_none() {
        return;
    }
    let cause = cause(failure, exchange, stage);
    let presented = || head.fields.first(&X_API_KEY);
    let sender = client.connection.text_of(exchange.origin.client);
    let line = Line {
        time: exchange.time.checked_sub(waited).unwrap_or(exchange.time),
        request_id: exchange.request_id_str(),
        client: Some(&sender),
        protocol: head.version.name(),
        method: &match head.method.as_str() {
            method if method.len() > METHOD_BYTES_MAX => Cow::Borrowed("-"),
            method => api_key::redacted_beside(method, prefix, presented),
        },
        path: &api_key::redacted_beside(head.path(), prefix, presented),
        sample_percent: sample,
        duration_ms: duration,
        store_ms: exchange.admission_trace.store_wait,
        bytes_sent: client.bytes_sent(),
        cause: cause.as_deref(),
        ..line
    };
    if let Some(recording) = recording {
        let started = exchange.started.checked_sub(waited);
        let spans = recording.spans(&line, started.unwrap_or(exchange.started));
        let count = spans.len() as u64;
        if gate.spans.try_send(spans).is_err() {
            let dropped = gate.metrics.trace_spans.with_label_values(&["dropped"]);
            dropped.inc_by(count);
        }
    }
    if !is_left_out {
        gate.access_log.write(&line);
    }
}

/// Counts a request, and observes how long it and its upstream took.
fn count(gate: &Gate, exchange: &Exchange, stage: &Stage, line: &Line<'_>, duration: Duration) {
    let metrics = &gate.metrics;
    let endpoint = line.endpoint.unwrap_or(NONE);
    let tier = line.tier.unwrap_or(NONE);
    match stage {
        Stage::Forwarding(forwarding) if forwarding.ending.is_none() => {
            let table = &exchange.snapshot.series;
            table.with(metrics, endpoint, tier, |series| {
                series.served.inc();
                series.duration.observe(duration.as_secs_f64());
            });
        }
        _ => {
            let labels = [endpoint, tier, line.outcome];
            metrics.requests.with_label_values(&labels).inc();
            let durations = &metrics.request_duration;
            let of_endpoint = durations.with_label_values(&[endpoint]);
            of_endpoint.observe(duration.as_secs_f64());
        }
    }
    if let (Some(tier), Some(limit)) = (line.tier, line.would_refuse) {
        let refusals = &metrics.shadow_refusals;
        refusals.with_label_values(&[tier, limit]).inc();
    }
    if let (Stage::Forwarding(forwarding), Some(waited)) = (stage, line.upstream_ms) {
        let durations = &forwarding.upstream.series(metrics).duration;
        durations.observe(waited.as_secs_f64());
    }
}

/// Why a request was not served, or not completely.
fn cause(failure: Option<&Failure>, exchange: &Exchange, stage: &Stage) -> Option<String> {
    match (stage, failure) {
        (Stage::Refused(refusal), _) if refusal.cause.is_some() => refusal.cause.clone(),
        (Stage::Refused(refusal), _) if matches!(refusal.rejection, Rejection::Maintenance(_)) => {
            Some("the endpoint is under maintenance".to_owned())
        }
        (_, Some(failure)) => Some(failure.to_string()),
        (_, None) => exchange.cause.clone(),
    }
}

/// The percentage of requests like this one that have a line in the access log; `None` for all. Only requests that were served
/// normally are sampled.
fn sample(exchange: &Exchange, line: &Line<'_>) -> Option<u8> {
    let percent = exchange.snapshot.config.logging.access_log_percent;
    let plain = line.outcome == word(None) && line.status < 400 && line.would_refuse.is_none();
    (plain && percent < 100).then_some(percent)
}

/// A line with the facts of a request's last stage.
fn of_stage<'a>(failure: Option<&Failure>, stage: &'a Stage) -> Line<'a> {
    let nothing = Line::default();
    match stage {
        Stage::Arrived => Line {
            outcome: match failure.map(|failure| failure.fault) {
                _ if std::thread::panicking() => "INTERNAL_ERROR",
                Some(Fault::Client(_)) => word(Some(&Ending::ClientClosed)),
                Some(_) | None => word(Some(&Ending::Cut)),
            },
            ..nothing
        },
        Stage::Refused(refusal) => Line {
            outcome: refusal.rejection.outcome(),
            policy: refusal.rejection.policy(),
            endpoint: refusal.place.as_ref().map(RouteId::name),
            key_id: refusal.key.as_ref().map(|key| key.record.id.as_str()),
            tier: refusal.key.as_ref().map(|key| key.record.tier.as_str()),
            ..nothing
        },
        Stage::Served(served) => Line {
            outcome: word(served.ending.as_ref()),
            endpoint: Some(served.path.as_str()),
            key_id: served.key.as_ref().map(|key| key.record.id.as_str()),
            tier: served.key.as_ref().map(|key| key.record.tier.as_str()),
            ..nothing
        },
        Stage::Forwarding(forwarding) => Line {
            outcome: word(forwarding.ending.as_ref()),
            endpoint: Some(&forwarding.endpoint.pattern),
            key_id: Some(forwarding.key.record.id.as_str()),
            tier: Some(forwarding.key.record.tier.as_str()),
            would_refuse: forwarding.shadow_violation.map(ShadowViolation::as_str),
            units: forwarding.units,
            refunded: forwarding.charged.refunded(),
            upstream_ms: forwarding.header_after,
            ..nothing
        },
    }
}

/// The outcome of an admitted request, in logs and metrics.
fn word(ending: Option<&Ending>) -> &'static str {
    match ending {
        None => "served",
        Some(Ending::Rejected(rejection)) => rejection.outcome(),
        Some(Ending::Cut) => "cut",
        Some(Ending::ClientClosed) => "client_closed",
    }
}
