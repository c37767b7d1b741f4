//! The tasks of a gateway beside its services.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

use crate::proxy::Gate;
use crate::telemetry::history::{History, SAMPLE_INTERVAL};

/// How long a stopping gateway continues to claim events of keys near their limits.
pub const CLAIM_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a stopping gateway exports pending spans, if its grace permits; and the least time otherwise.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);
const EXPORT_TIMEOUT_MIN: Duration = Duration::from_millis(500);

/// Ends a sample of the history each [`SAMPLE_INTERVAL`], until it is dropped.
pub async fn sample(gate: Arc<Gate>, history: Arc<History>) {
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
pub async fn exported(mut exporting: JoinHandle<()>, deadline: Instant) {
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
