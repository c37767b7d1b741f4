//! The units of a permitted request.
//!
//! Invariants: they are refunded at most once; they stay charged only if some part of the request was sent to an upstream that may have
//! processed it, even if the request's future is dropped (after a panic, with a connection past its deadlines, or at the end of the grace).

use std::sync::Arc;
use std::time::Instant;

use crate::policy::words::words;
use crate::proxy::gate::Gate;
use crate::store::Receipt;
use crate::telemetry::metrics::REFUND;

words! {
    /// Why units are refunded.
    pub enum RefundReason {
        /// The request ended in a 500.
        Failed = "failed",
        /// The answer was cut.
        Cut = "cut",
        /// The client disconnected after the upstream had been silent for long.
        Slow = "slow",
        /// The request's body was refused while it was forwarded.
        Body = "body",
        /// The client disconnected before anything was sent to an upstream, or after the upstream had refused it unprocessed.
        Unsent = "unsent",
    }
}

/// Charged units, until they are refunded.
pub struct Charged {
    gate: Arc<Gate>,
    receipt: Option<Receipt>,
    sent: bool,
}

impl Charged {
    /// The units of a request of which nothing was sent yet.
    pub(super) fn new(gate: Arc<Gate>, receipt: Receipt) -> Charged {
        Charged {
            gate,
            receipt: Some(receipt),
            sent: false,
        }
    }

    /// Notes that the request is about to be written to a connection of a server. A failure before it is written becomes a 500, which is
    /// refunded.
    pub fn note_sent(&mut self) {
        self.sent = true;
    }

    /// Notes that the server has processed nothing of what was sent, nor any before it.
    pub fn note_unprocessed(&mut self) {
        self.sent = false;
    }

    /// Whether any part of the request was sent to a server that may have processed it.
    pub fn was_sent(&self) -> bool {
        self.sent
    }

    /// Whether they were refunded.
    pub fn refunded(&self) -> bool {
        self.receipt.is_none()
    }

    /// Refunds the units, once. Returns the units used afterwards if known, or `None` if nothing was left to refund.
    pub(super) async fn refund(&mut self, reason: RefundReason) -> Option<Option<u64>> {
        let receipt = self.receipt.take()?;
        self.count(&receipt, reason);
        let asked = Instant::now();
        let used = self.gate.store.refund(receipt).await;
        let metrics = &self.gate.metrics;
        metrics.store_call(REFUND, asked.elapsed(), Ok(()));
        Some(used)
    }

    /// Refunds the units, without waiting, unless any part of the request was sent.
    pub fn give_up_unsent(&mut self) {
        if !self.sent {
            self.give_back(RefundReason::Unsent);
        }
    }

    /// Refunds the units, once, without waiting.
    pub fn give_back(&mut self, reason: RefundReason) {
        if let Some(receipt) = self.receipt.take() {
            self.count(&receipt, reason);
            self.gate.store.give_back(receipt);
        }
    }

    fn count(&self, receipt: &Receipt, reason: RefundReason) {
        let metrics = &self.gate.metrics;
        metrics.refunds.with_label_values(&[reason.as_str()]).inc();
        metrics
            .quota_units
            .with_label_values(&[receipt.tier.as_str(), "refunded"])
            .inc_by(u64::from(receipt.units));
    }
}

impl Drop for Charged {
    fn drop(&mut self) {
        self.give_up_unsent();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::key_record::tests::key_of;
    use crate::proxy::gate::tests::{config, gate};
    use crate::store::{Charge, Decision, KeyEntry};

    #[tokio::test]
    async fn units_that_are_dropped_stay_charged_only_if_something_was_sent_and_are_refunded_once()
    {
        let directory = tempfile::tempdir().unwrap();
        let gate = gate(config(""), &directory).await;
        let (record, _) = gate.store.create_key(key_of("pro").1).await.unwrap();
        let key = KeyEntry::new(record);
        let calendar = gate.snapshot().config.calendar.clone();
        let day = gate.day_at(&calendar, gate.store.now()).unwrap();
        let charge = async || {
            let charge = Charge {
                key: key.clone(),
                day,
                limit: 5,
                cost: 1,
                endpoint: "/a".into(),
            };
            match gate.store.charge(charge).await.unwrap() {
                Decision::Granted { used, receipt, .. } => {
                    (used, Charged::new(gate.clone(), receipt))
                }
                other => panic!("{other:?}"),
            }
        };
        // The writer processes refunds before the charges that arrive after them.
        let (used, unsent) = charge().await;
        assert_eq!(used, 1);
        drop(unsent);
        let (used, mut sent) = charge().await;
        assert_eq!(used, 1);
        sent.note_sent();
        drop(sent);
        let (used, mut refunded) = charge().await;
        assert_eq!(used, 2);
        assert_eq!(refunded.refund(RefundReason::Failed).await, Some(Some(1)));
        assert_eq!(refunded.refund(RefundReason::Failed).await, None);
        drop(refunded);
        assert_eq!(charge().await.0, 2);
        let metrics = gate.metrics.render();
        for expected in [
            "touchline_refunds_total{reason=\"unsent\"} 2",
            "touchline_refunds_total{reason=\"failed\"} 1",
            "touchline_quota_units_total{change=\"refunded\",tier=\"pro\"} 3",
        ] {
            assert!(metrics.contains(expected), "{metrics}");
        }
    }
}
