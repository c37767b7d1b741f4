//! The model of the quota's arithmetic, for millions of decisions: the real account against the real ledger model.

use std::time::Instant;

use ledger_model::{ModelCall, ModelDay, StoredRecord};
use touchline::policy::quota::{
    Account, Asked, Call, Code, NodeShare, Reply, WaiterResult, WaiterTerms,
};

// The modules of the library's own tests.
#[allow(dead_code, reason = "what only the library's tests use")]
#[path = "../../src/policy/quota/tests/ledger_model.rs"]
mod ledger_model;
#[allow(dead_code, reason = "what only the library's tests use")]
#[path = "../../src/policy/quota/tests/outage_simulation.rs"]
mod outage_simulation;
#[allow(dead_code, reason = "what only the library's tests use")]
#[path = "../../src/policy/quota/tests/simulation.rs"]
mod simulation;

/// Decisions between two readings of the time.
const BATCH: u64 = 100_000;

/// Makes this number of decisions; panics with the schedule if a rule was broken.
pub fn run(seed: u64, wanted: u64, end: Instant) -> (&'static str, String) {
    let (mut decided, mut outage_decided, mut schedules, mut batches) = (0, 0, 0, 0);
    while decided + outage_decided < wanted && Instant::now() < end {
        let seed = seed.wrapping_mul(1_000_003) + batches;
        let run = simulation::run(seed, BATCH);
        let outages = outage_simulation::run(seed, BATCH);
        decided += run.decisions;
        outage_decided += outages.decisions;
        schedules += run.schedules + outages.schedules;
        batches += 1;
    }
    let what = format!(
        "{decided} decisions with lost, late and doubled calls, crashes, refunds, lost writes and service without the store, \
         {outage_decided} with outages, shares and journals, in {schedules} random schedules: 0 units beyond the bounds, 0 lost"
    );
    ("model", what)
}
