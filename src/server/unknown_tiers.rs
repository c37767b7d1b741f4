//! Tiers that keys have and the configuration does not: each request with such a key would be a 500.
//!
//! A reload refuses such a configuration, and so does the start of a successor. A gateway that starts without a predecessor serves its other keys.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::config::Config;
use crate::policy::key_record::{KeyState, TierName};
use crate::policy::words::counted;
use crate::proxy::Gate;
use crate::store::Store;

/// How often a gateway that has started checks whether its keys are known.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A tier that is not configured, and the number of its keys that are not revoked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the configuration has no tier {tier}, which {}: add it under tiers, or move the keys to another tier (touchline keys set-tier)",
    counted(*keys, "key has", "keys have")
)]
pub struct UnknownTier {
    tier: TierName,
    keys: u64,
}

/// The tiers of a store's known keys that a configuration lacks. Cost: a look at each key.
pub fn unknown_tiers(store: &dyn Store, config: &Config) -> Vec<UnknownTier> {
    let mut unknown = BTreeMap::<TierName, u64>::new();
    for entry in store.keys().entries() {
        let record = &entry.record;
        if record.state != KeyState::Revoked && config.tier(&record.tier).is_none() {
            *unknown.entry(record.tier.clone()).or_default() += 1;
        }
    }
    let unknown = unknown.into_iter();
    unknown
        .map(|(tier, keys)| UnknownTier { tier, keys })
        .collect()
}

/// The unknown tiers of a gateway that has started; empty before its keys are known.
#[derive(Debug, Default)]
pub struct UnknownTiers(OnceLock<Vec<UnknownTier>>);

impl UnknownTiers {
    /// Looks for them once the keys are known, and logs each.
    pub async fn look(self: Arc<Self>, gate: Arc<Gate>) {
        while !gate.store.freshness().usable {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        let found = unknown_tiers(&*gate.store, &gate.snapshot().config);
        for tier in &found {
            tracing::error!(error = %tier, "requests of some keys are answered with 500");
        }
        // This is the one call.
        let _ = self.0.set(found);
    }

    /// Those that `config` still lacks, as reasons for operators.
    pub fn reasons(&self, config: &Config) -> Vec<String> {
        let found = self.0.get().into_iter().flatten();
        let left = found.filter(|unknown| config.tier(&unknown.tier).is_none());
        left.map(UnknownTier::to_string).collect()
    }
}
