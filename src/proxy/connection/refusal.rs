//! The answer to a head that cannot be read, its line in the access log and its metrics.

use std::net::SocketAddr;
use std::time::Duration;

use http::HeaderValue;

use crate::policy::http1::refused;
use crate::policy::rejection::{PROBLEM_JSON, Rejection};
use crate::policy::{api_key, request_id};
use crate::proxy::gate::Gate;
use crate::proxy::respond;
use crate::telemetry::access_log::Line;
use crate::telemetry::metrics::NONE;

/// Refuses a head; returns the bytes of the answer. `head` is the received part, `waited` the time since its first byte.
pub fn refuse(
    gate: &Gate,
    client: SocketAddr,
    head: &[u8],
    rejection: &Rejection,
    waited: Duration,
    is_encrypted: bool,
) -> Vec<u8> {
    let snapshot = gate.snapshot();
    let prefix = &snapshot.config.keys.prefix;
    let id = match refused::request_id(head).and_then(|sent| request_id::kept(sent, prefix)) {
        Some(kept) => kept.to_owned(),
        None => request_id::from_random(fastrand::u128(..)),
    };
    let now = gate.store.now();
    let problem = rejection.problem(&id, &snapshot.challenge, now);
    let (method, path) = refused::method_and_path(head);
    let mut answer = format!(
        "HTTP/1.1 {} {}\r\ncontent-length: {}\r\ncache-control: no-store\r\nx-content-type-options: nosniff\r\n\
         x-request-id: {id}\r\nconnection: close\r\ndate: {}\r\n",
        problem.status.as_u16(),
        problem.status.canonical_reason().unwrap_or_default(),
        problem.body.len(),
        respond::http_date(now),
    )
    .into_bytes();
    let content_type = (http::header::CONTENT_TYPE, PROBLEM_JSON);
    let hsts = snapshot.hsts.clone().filter(|_| is_encrypted);
    let hsts = hsts.map(|hsts| (http::header::STRICT_TRANSPORT_SECURITY, hsts));
    let more = [Some(&content_type), hsts.as_ref()].into_iter().flatten();
    for (name, value) in problem.header.iter().chain(more) {
        push_field(&mut answer, name.as_str(), value);
    }
    answer.extend_from_slice(b"\r\n");
    let body_bytes = if method == "HEAD" {
        0
    } else {
        problem.body.len()
    };
    answer.extend_from_slice(problem.body.get(..body_bytes).unwrap_or_default());

    let metrics = &gate.metrics;
    metrics
        .requests
        .with_label_values(&[NONE, NONE, rejection.code()])
        .inc();
    metrics
        .request_duration
        .with_label_values(&[NONE])
        .observe(waited.as_secs_f64());
    if let Some(limit) = rejection.limit_hit() {
        metrics.limit_hits.note(limit);
    }
    gate.access_log.write(&Line {
        time: now,
        request_id: &id,
        client: Some(&client.to_string()),
        protocol: "HTTP/1.1",
        method: &api_key::redacted(&method, prefix),
        path: &api_key::redacted(&path, prefix),
        endpoint: None,
        key_id: None,
        tier: None,
        status: problem.status.as_u16(),
        outcome: rejection.code(),
        policy: rejection.policy(),
        would_refuse: None,
        sample_percent: None,
        units: 0,
        refunded: false,
        duration_ms: waited,
        store_ms: Duration::ZERO,
        upstream_ms: None,
        bytes_sent: body_bytes,
        cause: None,
    });
    answer
}

fn push_field(answer: &mut Vec<u8>, name: &str, value: &HeaderValue) {
    answer.extend_from_slice(name.as_bytes());
    answer.extend_from_slice(b": ");
    answer.extend_from_slice(value.as_bytes());
    answer.extend_from_slice(b"\r\n");
}
