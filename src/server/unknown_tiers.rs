//! Tiers that keys have and the configuration does not: each request with such a key is a 500.
//!
//! A reload refuses such a configuration, and so does the start of a successor. A gateway that starts without a predecessor serves
//! its other keys, and so does one whose keys get such a tier later.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::next_tick;
use crate::config::Config;
use crate::policy::key_record::TierName;
use crate::policy::words::counted;
use crate::proxy::Gate;
use crate::store::Store;

/// How often a gateway looks for tiers to log. A look costs as much as there are tiers.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// A tier that is not configured, and the number of its keys that are not revoked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the configuration has no tier {tier}, which {}: add it under tiers, move the keys to another tier (touchline keys set-tier), or revoke those that are over",
    counted(*keys, "key has", "keys have")
)]
pub struct UnknownTier {
    tier: TierName,
    keys: u64,
}

/// The tiers of a store's known keys that a configuration lacks.
pub fn unknown_tiers(store: &dyn Store, config: &Config) -> Vec<UnknownTier> {
    let tiers = store.keys().by_tier().into_iter();
    let unknown = tiers.filter(|(tier, _)| config.tier(tier).is_none());
    unknown
        .map(|(tier, keys)| UnknownTier { tier, keys })
        .collect()
}

/// The unknown tiers of a running gateway; none while its keys may not be used, because they may have been moved.
pub fn unknown_tiers_of(gate: &Gate) -> Vec<UnknownTier> {
    match gate.store.freshness().usable {
        true => unknown_tiers(&*gate.store, &gate.snapshot().config),
        false => Vec::new(),
    }
}

/// Logs each unknown tier once, until it is dropped; one that was known in between is logged again.
pub async fn log_unknown_tiers(gate: Arc<Gate>) {
    let mut logged = BTreeSet::new();
    loop {
        let found = unknown_tiers_of(&gate);
        for unknown in found.iter().filter(|found| !logged.contains(&found.tier)) {
            tracing::error!(error = %unknown, "keys have a tier that is not configured: requests of those that may be used are answered with 500");
        }
        logged = found.into_iter().map(|unknown| unknown.tier).collect();
        next_tick(LOOK_INTERVAL).await;
    }
}
