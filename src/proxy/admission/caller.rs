//! An authenticated caller on its quota day, and the refusals that tell where it stands. Asks nobody.

use std::num::NonZeroU32;
use std::sync::Arc;

use jiff::Timestamp;

use super::outcome::{Place, Refusal};
use crate::policy::endpoint::Endpoint;
use crate::policy::enforcement::{Enforcement, Waived};
use crate::policy::rate_limit::Standing;
use crate::policy::rejection::Rejection;
use crate::policy::token_bucket::Rate;
use crate::proxy::gate::{Gate, Snapshot};
use crate::store::ledger::NO_ENDPOINT;
use crate::store::{KeyEntry, Refusal as LedgerRefusal};

/// Whoever presented a usable key.
pub(super) struct Caller {
    /// The key.
    pub key: Arc<KeyEntry>,
    /// Its limit today; what it used is not known yet.
    pub standing: Standing,
    /// How fast its tier lets it send requests.
    pub burst: Option<Rate>,
    /// How many requests its tier lets it have under way.
    pub concurrent: Option<NonZeroU32>,
    /// Whether the limits of its tier refuse.
    pub enforcement: Enforcement,
}

impl Caller {
    /// The caller with `key` at `now`.
    pub fn new(
        gate: &Gate,
        snapshot: &Snapshot,
        key: Arc<KeyEntry>,
        now: Timestamp,
    ) -> Result<Caller, Refusal> {
        let day = gate
            .day_at(&snapshot.config.calendar, now)
            .map_err(|error| Refusal::internal(error.to_string()))?;
        let Some(tier) = snapshot.config.tier(&key.record.tier) else {
            return Err(Refusal::internal(format!(
                "the configuration has no tier {}",
                key.record.tier
            )));
        };
        let limit = key.record.limit_on(day.date, tier.daily.get());
        Ok(Caller {
            key,
            enforcement: tier.enforcement,
            standing: Standing {
                limit,
                used: None,
                day,
            },
            burst: tier.burst,
            concurrent: tier.concurrent,
        })
    }

    /// Refuses a request of an enforced tier; of one in shadow notes the first reason that would have.
    pub fn refuse_or_waive(
        &self,
        rejection: Rejection,
        reason: Waived,
        waived: &mut Option<Waived>,
    ) -> Result<(), Rejection> {
        self.enforcement.refuse_or_waive(rejection, reason, waived)
    }

    /// Where it stands once the units used are known, or not.
    pub fn standing_with(&self, used: Option<u64>) -> Standing {
        Standing {
            used,
            ..self.standing
        }
    }

    /// Whether the replica holds a newer record of the key than the one that was checked.
    pub fn has_changed(&self, gate: &Gate) -> bool {
        let record = &self.key.record;
        let newest = gate.store.keys().get(record.id);
        newest.is_some_and(|entry| entry.record.version > record.version)
    }

    /// Counts a refusal in the ledger, at its endpoint if there is one.
    pub fn note_refusal(
        &self,
        gate: &Gate,
        endpoint: Option<&Arc<Endpoint>>,
        refusal: LedgerRefusal,
    ) {
        let pattern = endpoint.map_or(&*NO_ENDPOINT, |endpoint| &endpoint.pattern);
        gate.store
            .refused(&self.key, self.standing.day, pattern, refusal);
    }

    /// Hands over what shares of its limit it has come to.
    pub fn note_share(&self, gate: &Gate, snapshot: &Snapshot, used: u64) {
        let (shares, standing) = (
            &snapshot.config.events.shares,
            self.standing_with(Some(used)),
        );
        let record = &self.key.record;
        let noted = gate
            .crossings
            .look(shares, record, standing, || gate.store.now());
        if noted.is_err() {
            let hits = &gate.metrics.limit_hits;
            hits.with_label_values(&["events"]).inc();
        }
    }

    /// The answer where the day has no room for the endpoint's cost.
    pub fn refuse_exhausted(self, gate: &Gate, endpoint: Arc<Endpoint>, used: u64) -> Refusal {
        self.note_refusal(gate, Some(&endpoint), LedgerRefusal::DailyQuota);
        let standing = self.standing_with(Some(used));
        Refusal {
            rejection: Rejection::DailyQuotaExceeded { standing },
            key: Some(self.key),
            place: Some(Place::Endpoint(endpoint)),
            standing: Some(standing),
            cause: None,
        }
    }

    /// The answer where the gateway or its store failed.
    pub fn refuse_unserved(self, place: Option<Place>, cause: String) -> Refusal {
        Refusal {
            rejection: Rejection::Internal,
            key: Some(self.key),
            place,
            standing: Some(self.standing),
            cause: Some(cause),
        }
    }
}
