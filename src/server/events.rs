//! Telling of keys that came near their limits: each share of a key and day is claimed once in the store, for all
//! gateways; who made the claim writes the log line and counts it, and where there is a webhook the store keeps the event
//! until it is delivered.
//!
//! | Room | Job |
//! |---|---|
//! | this | claims what requests have shown, off their path |
//! | [`courier`] | delivers what the store keeps: one gateway at a time |
//!
//! Claim and event are one atomic step of the store. What was seen and not claimed yet is lost with the process, and seen
//! again with the key's next request. A store that loses its memory is told this process's claims again: with no line and
//! no count, but the event may be delivered once more, by the same id. What a process had claimed that is gone by then is
//! seen anew.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::policy::crossing::Crossing;
use crate::proxy::Gate;
use crate::store::{Claim, Delivery, NodeName};

pub mod courier;

/// How often the store is asked whether it lost something, and what is over forgotten.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Between two attempts of a claim.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// A crossing of a day that has been over for so long is not claimed any more.
const LATE_MAX_SECONDS: i64 = 86_400;
/// After the store may have lost something, every gateway has made its claims again by then; what is not claimed is seen anew.
const FORGET_AFTER: Duration = Duration::from_secs(10);
/// Own claims that are remembered for a store that loses its memory; some 20 MiB.
const OWN_MAX: usize = 100_000;
/// How often whoever stops looks whether all is claimed.
const STOP_POLL: Duration = Duration::from_millis(10);

/// Claims what the gateway's requests show.
pub struct Teller {
    gate: Arc<Gate>,
    node: NodeName,
    /// Of this process and of days that are not over.
    own: Vec<Crossing>,
    losses: u64,
    /// When what was seen is to be forgotten.
    forget: Option<Instant>,
}

/// What a claim is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Occasion {
    /// It was just seen.
    Seen,
    /// The store may have lost it.
    Again,
}

impl Teller {
    /// A teller of the gateway `node`.
    pub fn new(gate: Arc<Gate>, node: NodeName) -> Teller {
        let losses = gate.store.losses();
        Teller {
            gate,
            node,
            own: Vec::new(),
            losses,
            forget: None,
        }
    }

    /// Tells until it is dropped.
    pub async fn run(mut self) {
        let mut looks = tokio::time::interval(LOOK_INTERVAL);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let gate = self.gate.clone();
            tokio::select! {
                crossing = gate.crossings.next() => {
                    self.claim(crossing, Occasion::Seen).await;
                    gate.crossings.told();
                }
                _ = looks.tick() => self.look().await,
            }
        }
    }

    async fn look(&mut self) {
        let now = self.gate.store.now();
        if let Ok(today) = self.gate.day_at(&self.gate.snapshot().config.calendar, now) {
            self.gate.crossings.sweep(today.date);
        }
        let second = now.as_second();
        self.own
            .retain(|crossing| second < crossing.standing.day.end);
        let losses = self.gate.store.losses();
        if losses != self.losses {
            self.losses = losses;
            self.forget = Some(Instant::now() + FORGET_AFTER);
            for crossing in std::mem::take(&mut self.own) {
                self.claim(crossing, Occasion::Again).await;
            }
        }
        if self.forget.is_some_and(|at| at <= Instant::now()) {
            self.forget = None;
            // Claims of a gateway that is gone were not made again: the next request of their key shows them.
            self.gate.crossings.forget();
        }
    }

    /// Claims until the store has said whose it is.
    async fn claim(&mut self, crossing: Crossing, occasion: Occasion) {
        let mut pause = RETRY_MIN;
        loop {
            let delivery = match self.gate.snapshot().config.events.webhook {
                Some(_) => Delivery::Wanted,
                None => Delivery::Unwanted,
            };
            match self.gate.store.claim(&crossing, &self.node, delivery).await {
                Ok(claim) => return self.tell(crossing, claim, occasion),
                Err(error) => {
                    if is_late(&crossing, self.gate.store.now()) {
                        tracing::error!(%error, event = crossing.id(), "given up: the day is long over");
                        return;
                    }
                    // A store that is away is told of elsewhere.
                    if pause == RETRY_MIN && !error.is_transient() {
                        tracing::warn!(%error, event = crossing.id(), "an event is not claimed yet; trying again");
                    }
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RETRY_MAX);
        }
    }

    fn tell(&mut self, crossing: Crossing, claim: Claim, occasion: Occasion) {
        match (claim, occasion) {
            (Claim::Held, _) => return,
            (Claim::Made | Claim::Undeliverable, Occasion::Again) => {}
            (Claim::Made | Claim::Undeliverable, Occasion::Seen) => {
                let share = crossing.share.to_string();
                let counter = &self.gate.metrics.quota_crossings;
                counter
                    .with_label_values(&[crossing.tier.as_str(), &share])
                    .inc();
                tracing::warn!(
                    event = crossing.id(),
                    key = %crossing.key,
                    tier = %crossing.tier,
                    share = crossing.share.percent(),
                    used = crossing.standing.used,
                    limit = crossing.standing.limit,
                    "a key came to a share of its limit"
                );
            }
        }
        if claim == Claim::Undeliverable {
            tracing::error!(
                event = crossing.id(),
                "the webhook is not told: too many events wait to be delivered"
            );
        }
        if self.own.len() < OWN_MAX {
            self.own.push(crossing);
        }
    }
}

fn is_late(crossing: &Crossing, now: Timestamp) -> bool {
    now.as_second() > crossing.standing.day.end + LATE_MAX_SECONDS
}

/// Waits until what requests have shown is handed to the store, or the deadline.
pub async fn settled(gate: &Gate, deadline: Instant) {
    while !gate.crossings.is_told() && Instant::now() < deadline {
        tokio::time::sleep(STOP_POLL).await;
    }
}
