//! Reloads under load on both stores in turn.

use super::store_of;

#[allow(dead_code, reason = "what only the test of fewer reloads uses")]
#[path = "../operations/reload_under_load.rs"]
mod reload_under_load;

/// Changes of the file on one stage, before its ledgers are compared.
const ROUND: u32 = 150;

/// Makes this number of changes of the file, one each 50 to 150 ms; panics if a request failed or a count was lost.
pub async fn run(binary: &str, changes: u32, first_seed: u64) -> (&'static str, String) {
    let (mut done, mut calls, mut applied) = (0, 0, 0);
    for seed in first_seed.. {
        if done >= changes {
            break;
        }
        let round = ROUND.min(changes - done);
        println!("seed {seed}; again: make soak PARTS=reloads RELOADS={round} SEED={seed}");
        let (served, reloads) =
            reload_under_load::reload_under_load(binary, store_of(seed), round, seed).await;
        done += round;
        calls += served;
        applied += reloads;
    }
    let what = format!(
        "{done} changes of gateway.yaml, one each 50 to 150 ms, {applied} configurations applied under {calls} requests: 0 failed, every \
         count exact, none saw half a configuration"
    );
    ("reloads", what)
}
