//! Events of keys near their limits: each share of a key and day is claimed once in the store, for all gateways. The gateway that
//! made the claim writes the log line and counts it; with a webhook, the store keeps the event until it is delivered.
//!
//! | Room | Job |
//! |---|---|
//! | this | claims events that requests caused, off their path |
//! | [`courier`] | delivers the stored events, from one gateway at a time |
//!
//! Claim and event are one atomic step of the store. An unclaimed event is lost with the process, and detected again at the key's
//! next request. After a data loss of the store, this process repeats its claims: without a line or a count, but the event may be
//! delivered once more, with the same id. The claims of a process that has ended by then are detected again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::clock::next_tick;
use crate::policy::threshold_event::ThresholdEvent;
use crate::proxy::Gate;
use crate::store::{Claim, Delivery, NodeName};

pub mod courier;

/// How often the store is checked for data loss and finished claims are forgotten.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The pause between two attempts of a claim.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// How long after the end of its day an event is still claimed.
const LATE_MAX_SECONDS: i64 = 86_400;
/// The time by which every gateway has repeated its claims after a possible data loss; unclaimed events are then detected again.
const FORGET_AFTER: Duration = Duration::from_secs(10);
/// The most own claims kept for a data loss of the store; some 20 MiB.
const OWN_MAX: usize = 100_000;
/// How often a stopping gateway checks whether all events are claimed.
const STOP_POLL: Duration = Duration::from_millis(10);

/// Claims the events that the gateway's requests cause.
pub struct Claimer {
    gate: Arc<Gate>,
    node: NodeName,
    /// The claims of this process for days that are not over.
    own: Vec<ThresholdEvent>,
    losses: u64,
    /// When detected events are to be forgotten.
    forget: Option<Instant>,
}

/// The reason for a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClaimReason {
    /// The event was just detected; once more if its day was forgotten, because the clock had left it for a moment.
    Seen,
    /// The store may have lost the claim.
    Again,
}

impl Claimer {
    /// The claimer of the gateway `node`, or the successor of one that has panicked.
    pub fn new(gate: Arc<Gate>, node: NodeName) -> Claimer {
        gate.threshold_events.forget_unreported();
        let losses = gate.store.losses();
        Claimer {
            gate,
            node,
            own: Vec::new(),
            losses,
            forget: None,
        }
    }

    /// Claims until it is dropped.
    pub async fn run(mut self) {
        let look = next_tick(LOOK_INTERVAL);
        tokio::pin!(look);
        loop {
            let gate = self.gate.clone();
            tokio::select! {
                threshold_event = gate.threshold_events.next() => {
                    self.claim(threshold_event, ClaimReason::Seen).await;
                    gate.threshold_events.mark_reported();
                }
                // Kept from turn to turn, so that many events do not put it off.
                () = &mut look => {
                    self.look().await;
                    look.set(next_tick(LOOK_INTERVAL));
                }
            }
        }
    }

    async fn look(&mut self) {
        let now = self.gate.store.now();
        if let Ok(today) = self.gate.day_at(&self.gate.snapshot().config.calendar, now) {
            self.gate.threshold_events.sweep(today.date);
        }
        let second = now.as_second();
        self.own
            .retain(|threshold_event| second < threshold_event.quota_status.day.end);
        let losses = self.gate.store.losses();
        if losses != self.losses {
            self.losses = losses;
            self.forget = Some(Instant::now() + FORGET_AFTER);
            for threshold_event in std::mem::take(&mut self.own) {
                self.claim(threshold_event, ClaimReason::Again).await;
            }
        }
        if self.forget.is_some_and(|at| at <= Instant::now()) {
            self.forget = None;
            // Claims of an ended gateway were not repeated: the next request of their key causes them again. Its own were.
            self.gate.threshold_events.forget_all_but(&self.own);
        }
    }

    /// Claims until the store has answered which gateway has the claim.
    async fn claim(&mut self, threshold_event: ThresholdEvent, reason: ClaimReason) {
        let mut pause = RETRY_MIN;
        loop {
            let delivery = match self.gate.snapshot().config.events.webhook {
                Some(_) => Delivery::Wanted,
                None => Delivery::Unwanted,
            };
            match self
                .gate
                .store
                .claim(&threshold_event, &self.node, delivery)
                .await
            {
                // An attempt that seemed to fail has made the claim.
                Ok(Claim::Repeated) if pause > RETRY_MIN => {
                    return self.report(threshold_event, Claim::Made, reason);
                }
                Ok(claim) => return self.report(threshold_event, claim, reason),
                Err(error) => {
                    if is_late(&threshold_event, self.gate.store.now()) {
                        tracing::error!(%error, event = threshold_event.id(), "event given up: its day is long over");
                        return;
                    }
                    // An unreachable store is logged elsewhere.
                    if pause == RETRY_MIN && !error.is_transient() {
                        tracing::warn!(%error, event = threshold_event.id(), "an event could not be claimed; retrying");
                    }
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RETRY_MAX);
        }
    }

    fn report(&mut self, threshold_event: ThresholdEvent, claim: Claim, reason: ClaimReason) {
        match (claim, reason) {
            (Claim::Held, _) => return,
            (Claim::Repeated, _) | (Claim::Made | Claim::Undeliverable, ClaimReason::Again) => {}
            (Claim::Made | Claim::Undeliverable, ClaimReason::Seen) => {
                let share = threshold_event.share.to_string();
                let counter = &self.gate.metrics.threshold_events;
                counter
                    .with_label_values(&[threshold_event.tier.as_str(), &share])
                    .inc();
                tracing::warn!(
                    event = threshold_event.id(),
                    key = %threshold_event.key,
                    tier = %threshold_event.tier,
                    share = threshold_event.share.percent(),
                    used = threshold_event.quota_status.used,
                    limit = threshold_event.quota_status.limit,
                    "a key reached a share of its limit"
                );
            }
        }
        if claim == Claim::Undeliverable {
            let attempts = &self.gate.metrics.webhook_attempts;
            attempts.with_label_values(&["given_up"]).inc();
            tracing::error!(
                event = threshold_event.id(),
                "no event is sent to the webhook: too many are pending"
            );
        }
        if self.own.len() < OWN_MAX {
            self.own.push(threshold_event);
        }
    }
}

fn is_late(threshold_event: &ThresholdEvent, now: Timestamp) -> bool {
    now.as_second() > threshold_event.quota_status.day.end + LATE_MAX_SECONDS
}

/// Waits until all events that requests caused are claimed, or until the deadline.
pub async fn settled(gate: &Gate, deadline: Instant) {
    while !gate.threshold_events.all_reported() && Instant::now() < deadline {
        tokio::time::sleep(STOP_POLL).await;
    }
}
