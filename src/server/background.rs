//! The tasks of a gateway beside its services.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, mpsc};
use tokio::task::{JoinHandle, JoinSet};

use super::events::courier::Courier;
use super::events::{self, Claimer};
use super::exporter::Exporter;
use super::unknown_tiers::log_unknown_tiers;
use super::upkeep::Upkeep;
use crate::clock::lasting;
use crate::proxy::Gate;
use crate::store::NodeName;
use crate::telemetry::history::{History, SAMPLE_INTERVAL};
use crate::telemetry::traces::Span;

/// How long a stopping gateway continues to claim events of keys near their limits.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a stopping gateway exports pending spans, if its grace permits; and the least time otherwise.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);
const EXPORT_TIMEOUT_MIN: Duration = Duration::from_millis(500);

/// The tasks, which end if this is dropped, but for the exporter of spans.
pub struct Background {
    tasks: JoinSet<()>,
    exporting: JoinHandle<()>,
    end_of_traces: Arc<Notify>,
}

impl Background {
    /// Starts them on the gateway `node`, whose `spans` are exported.
    pub fn start(
        gate: &Arc<Gate>,
        node: &NodeName,
        history: Arc<History>,
        spans: mpsc::Receiver<Vec<Span>>,
    ) -> Background {
        let mut tasks = JoinSet::new();
        let own = || (gate.clone(), node.clone());
        tasks.spawn(lasting::task("claims", own(), |(gate, node)| {
            Claimer::new(gate, node).run()
        }));
        tasks.spawn(lasting::task("upstreams", gate.clone(), |gate| {
            Upkeep::new(gate).run()
        }));
        tasks.spawn(lasting::task("webhook", own(), |(gate, node)| {
            Courier::new(gate, node).run()
        }));
        tasks.spawn(lasting::task("history", gate.clone(), move |gate| {
            sample(gate, history.clone())
        }));
        let own = gate.clone();
        tasks.spawn(lasting::task("unknown tiers", own, log_unknown_tiers));
        let end_of_traces = Arc::new(Notify::new());
        let exporter = Exporter::new(gate.clone(), node.clone(), spans, end_of_traces.clone());
        Background {
            tasks,
            exporting: tokio::spawn(exporter.run()),
            end_of_traces,
        }
    }

    /// Ends them after the last request, whose span is exported and whose events are claimed.
    pub async fn end(mut self, gate: &Gate, deadline: Instant) {
        self.end_of_traces.notify_one();
        exported(self.exporting, deadline).await;
        events::settled(gate, Instant::now() + CLAIM_TIMEOUT).await;
        // The tasks that claim events have ended then, so no claim follows the release of the lease.
        self.tasks.shutdown().await;
    }
}

/// Ends a sample of the history each [`SAMPLE_INTERVAL`], until it is dropped.
async fn sample(gate: Arc<Gate>, history: Arc<History>) {
    let mut ends = tokio::time::interval(SAMPLE_INTERVAL);
    ends.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    // The first tick is immediate, before there is anything to sample.
    ends.tick().await;
    let mut began = Instant::now();
    loop {
        ends.tick().await;
        let now = Instant::now();
        history.note(&gate.metrics, gate.store.now(), now - began);
        began = now;
    }
}

/// Waits until the last spans are exported, as long as the grace and [`EXPORT_TIMEOUT`] permit.
async fn exported(mut exporting: JoinHandle<()>, deadline: Instant) {
    let grace = deadline.saturating_duration_since(Instant::now());
    let patience = grace.clamp(EXPORT_TIMEOUT_MIN, EXPORT_TIMEOUT);
    if tokio::time::timeout(patience, &mut exporting)
        .await
        .is_err()
    {
        tracing::warn!("not all spans were exported before the gateway ended");
        exporting.abort();
    }
}
