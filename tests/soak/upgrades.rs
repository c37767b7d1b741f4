//! Upgrades, reloads and renewed certificates under load on both stores, in turn.

use super::store_of;

#[allow(dead_code, reason = "what only the test of fewer changes uses")]
#[path = "../operations/changes_under_load.rs"]
mod changes_under_load;

/// Upgrades on one stage, before its ledgers are compared.
const ROUND: u32 = 10;

/// Makes this number of upgrades, each with ten reloads and a renewed certificate; panics if a request failed or a count was lost.
pub async fn run(binary: &str, upgrades: u32, first_seed: u64) -> (&'static str, String) {
    let (mut done, mut calls) = (0, 0);
    for seed in first_seed.. {
        if done >= upgrades {
            break;
        }
        let round = ROUND.min(upgrades - done);
        println!("seed {seed}; again: make soak PARTS=upgrades UPGRADES={round} SEED={seed}");
        calls += changes_under_load::changes_under_load(binary, store_of(seed), round, seed).await;
        done += round;
    }
    let reloads = done * changes_under_load::RELOADS;
    let what = format!(
        "{done} upgrades, {reloads} reloads, {done} renewed certificates and {} upgrades that failed under {calls} requests: 0 \
         failed, every count exact",
        done.div_ceil(ROUND)
    );
    ("upgrades", what)
}
