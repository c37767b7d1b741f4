//! Exporting spans: OTLP over HTTP, in batches.
//!
//! A batch that cannot be delivered is retried twice, while other spans wait in their bounded queue, then dropped and counted.
//! Only the end of the gateway waits for exports, briefly.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use reqwest::StatusCode;
use reqwest::header::CONTENT_TYPE;
use tokio::sync::{Notify, mpsc};

use super::outgoing::{OutgoingClient, shown};
use crate::config::Otlp;
use crate::proxy::Gate;
use crate::store::NodeName;
use crate::telemetry::traces::{self, PartialSuccess, Span};

/// The spans with which a batch is full. Those of one request stay together, so it may have a few more.
const BATCH: usize = 512;
/// How long spans are gathered for a batch.
const GATHER: Duration = Duration::from_secs(1);
/// The pauses before a batch is retried.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(3)];
/// The most that is read of an answer: the number of rejected spans and a reason. A longer answer is not decoded.
const ANSWER_BYTES_MAX: usize = 16 * 1024;

/// Exports the spans of requests.
pub struct Exporter {
    gate: Arc<Gate>,
    node: NodeName,
    spans: mpsc::Receiver<Vec<Span>>,
    /// Signals the end of the gateway: pending spans are then exported once.
    end: Arc<Notify>,
    caller: OutgoingClient,
}

/// Why a batch was not accepted.
struct FailedExport {
    why: String,
    is_worth_another: bool,
}

impl Exporter {
    /// An exporter on the gateway `node`.
    pub fn new(
        gate: Arc<Gate>,
        node: NodeName,
        spans: mpsc::Receiver<Vec<Span>>,
        end: Arc<Notify>,
    ) -> Exporter {
        Exporter {
            gate,
            node,
            spans,
            end,
            caller: OutgoingClient::default(),
        }
    }

    /// Exports until the gateway ends, then the pending spans.
    pub async fn run(mut self) {
        while let Some(batch) = self.gather().await {
            match &self.gate.snapshot().config.tracing.otlp {
                Some(otlp) => self.export(batch, otlp).await,
                // Tracing was switched off meanwhile.
                None => self.count("dropped", batch.len()),
            }
        }
    }

    /// The next batch; `None` at the end.
    async fn gather(&mut self) -> Option<Vec<Span>> {
        let mut batch = self.receive().await?;
        let until = tokio::time::sleep(GATHER);
        tokio::pin!(until);
        while batch.len() < BATCH {
            tokio::select! {
                left = self.receive() => match left {
                    Some(spans) => batch.extend(spans),
                    None => break,
                },
                () = &mut until => break,
            }
        }
        Some(batch)
    }

    /// The next spans; `None` when all were received after the signal of the end.
    async fn receive(&mut self) -> Option<Vec<Span>> {
        loop {
            tokio::select! {
                left = self.spans.recv() => return left,
                () = self.end.notified(), if !self.spans.is_closed() => self.spans.close(),
            }
        }
    }

    async fn export(&mut self, batch: Vec<Span>, otlp: &Otlp) {
        let spans = batch.len();
        let body = Bytes::from(traces::encoded(batch, &self.node.0));
        let mut pauses = PAUSES.iter();
        loop {
            let failed = match self.attempt(otlp, body.clone()).await {
                Ok(partial) => return self.note_accepted(spans, partial),
                Err(failed) => failed,
            };
            let pause = pauses
                .next()
                .filter(|_| failed.is_worth_another && !self.spans.is_closed());
            let Some(pause) = pause else {
                tracing::warn!(spans, why = failed.why, "spans were not exported");
                return self.count("dropped", spans);
            };
            tokio::select! {
                () = tokio::time::sleep(*pause) => {}
                () = self.end.notified() => self.spans.close(),
            }
        }
    }

    /// Counts the spans of an accepted batch; rejected spans are not sent again (OTLP 1.x, "Partial Success").
    fn note_accepted(&self, spans: usize, partial: Option<PartialSuccess>) {
        let PartialSuccess {
            rejected_spans,
            error_message: why,
        } = partial.unwrap_or_default();
        let rejected = usize::try_from(rejected_spans).unwrap_or(0).min(spans);
        if rejected > 0 || !why.is_empty() {
            tracing::warn!(spans = rejected, why, "the collector rejected spans");
        }
        self.count("exported", spans - rejected);
        self.count("dropped", rejected);
    }

    async fn attempt(
        &mut self,
        otlp: &Otlp,
        body: Bytes,
    ) -> Result<Option<PartialSuccess>, FailedExport> {
        let failed = |error: reqwest::Error, is_worth_another| FailedExport {
            why: shown(error),
            is_worth_another,
        };
        let client = self.caller.client().map_err(|error| failed(error, false))?;
        let mut request = client
            .post(otlp.url.reveal())
            .timeout(otlp.timeout)
            .header(CONTENT_TYPE, "application/x-protobuf")
            .body(body);
        if let Some(header) = &otlp.header {
            request = request.header(header.name.clone(), header.value.reveal());
        }
        let answer = request.send().await.map_err(|error| failed(error, true))?;
        let status = answer.status();
        if status.is_success() {
            return Ok(partial_success_in(answer).await);
        }
        Err(FailedExport {
            why: format!("the collector answered {status}"),
            // OTLP 1.x, "Retryable Response Codes".
            is_worth_another: [
                StatusCode::TOO_MANY_REQUESTS,
                StatusCode::BAD_GATEWAY,
                StatusCode::SERVICE_UNAVAILABLE,
                StatusCode::GATEWAY_TIMEOUT,
            ]
            .contains(&status),
        })
    }

    fn count(&self, outcome: &str, spans: usize) {
        let spans = u64::try_from(spans).unwrap_or(u64::MAX);
        let family = &self.gate.metrics.trace_spans;
        family.with_label_values(&[outcome]).inc_by(spans);
    }
}

/// The partial success in an answer whose status accepts the export, also if its body cannot be read.
async fn partial_success_in(mut answer: reqwest::Response) -> Option<PartialSuccess> {
    let mut body = Vec::new();
    while let Some(part) = answer.chunk().await.ok()? {
        if body.len() + part.len() > ANSWER_BYTES_MAX {
            return None;
        }
        body.extend_from_slice(&part);
    }
    traces::partial_success(&body)
}
