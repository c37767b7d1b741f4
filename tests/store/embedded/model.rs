//! The embedded store beside a model: any history of charges, refunds, refusals, changes and restarts gives what a few
//! maps give.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use touchline::policy::calendar::Day;
use touchline::policy::key_record::KeyState;
use touchline::store::{Decision, KeyEntry, Receipt, RefusalReason, Store};

use super::EmbeddedFixture;
use crate::suite::{
    Fixture, PATIENCE, charge, day_around_now, eventually_used, granted, issue, ledger,
};

/// One step of a random history.
#[derive(Debug, Clone)]
enum Step {
    Charge {
        key: usize,
        day: usize,
        cost: u32,
        limit: u64,
    },
    ChargeAndLeave {
        key: usize,
        day: usize,
    },
    Refund {
        which: usize,
    },
    Refuse {
        key: usize,
        day: usize,
    },
    Change {
        key: usize,
    },
    Used {
        key: usize,
        day: usize,
    },
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    let (key, day) = (0..3_usize, 0..2_usize);
    prop_oneof![
        8 => (key.clone(), day.clone(), 1..5_u32, 0..12_u64)
            .prop_map(|(key, day, cost, limit)| Step::Charge { key, day, cost, limit }),
        1 => (key.clone(), day.clone()).prop_map(|(key, day)| Step::ChargeAndLeave { key, day }),
        4 => (0..8_usize).prop_map(|which| Step::Refund { which }),
        1 => (key.clone(), day.clone()).prop_map(|(key, day)| Step::Refuse { key, day }),
        1 => key.clone().prop_map(|key| Step::Change { key }),
        2 => (key, day).prop_map(|(key, day)| Step::Used { key, day }),
        1 => Just(Step::Reopen),
    ]
}

/// What the store must report, kept as simply as it can be.
#[derive(Default)]
struct Model {
    used: BTreeMap<(usize, usize), u64>,
    refused: BTreeMap<(usize, usize), u64>,
    receipts: Vec<(usize, usize, Receipt)>,
}

impl Model {
    fn charge(&mut self, place: (usize, usize), cost: u32, limit: u64) -> Result<u64, u64> {
        let used = self.used.entry(place).or_default();
        if *used + u64::from(cost) > limit {
            return Err(*used);
        }
        *used += u64::from(cost);
        Ok(*used)
    }

    /// Holds what the store decided against what the model decides, and keeps the receipt.
    fn compare(&mut self, place: (usize, usize), cost: u32, limit: u64, output: Decision) {
        match (output, self.charge(place, cost, limit)) {
            (Decision::Granted { used, receipt, .. }, Ok(expected)) => {
                assert_eq!(used, expected);
                self.receipts.push((place.0, place.1, receipt));
            }
            (Decision::Exhausted { used }, Err(expected)) => assert_eq!(used, expected),
            (output, expected) => panic!("{output:?} instead of {expected:?}"),
        }
    }
}

async fn run_history(steps: Vec<Step>) {
    let fixture = EmbeddedFixture::new();
    let mut store = fixture.gateway("a").await;
    let days = [day_around_now("2099-11-20"), day_around_now("2099-11-21")];
    let mut keys = vec![
        issue(&store).await,
        issue(&store).await,
        issue(&store).await,
    ];
    let mut model = Model::default();
    for step in steps {
        match step {
            Step::Charge {
                key,
                day,
                cost,
                limit,
            } => {
                let decision = store
                    .charge(charge(&keys[key], days[day], limit, cost))
                    .await;
                model.compare((key, day), cost, limit, decision.unwrap());
            }
            Step::ChargeAndLeave { key, day } => {
                let used = model.used.get(&(key, day)).copied().unwrap_or(0);
                charge_and_leave(&store, &keys[key], days[day], used).await;
            }
            Step::Refund { which } => {
                if model.receipts.is_empty() {
                    continue;
                }
                let (key, day, receipt) = model.receipts.remove(which % model.receipts.len());
                let used = model.used.get_mut(&(key, day)).unwrap();
                *used -= u64::from(receipt.units);
                assert_eq!(store.refund(receipt).await, Some(*used));
            }
            Step::Refuse { key, day } => {
                let endpoint = "markets".into();
                store.refused(&keys[key], days[day], &endpoint, RefusalReason::DailyQuota);
                *model.refused.entry((key, day)).or_default() += 1;
            }
            Step::Change { key } => {
                let old = keys[key].clone();
                let mut record = old.record.clone();
                record.state = KeyState::Suspended;
                let (record, _) = store.update_key(record).await.unwrap();
                keys[key] = KeyEntry::new(record);
                let stale = store.charge(charge(&old, days[0], 1_000, 1)).await.unwrap();
                assert!(matches!(stale, Decision::KeyChanged), "{stale:?}");
            }
            Step::Used { key, day } => {
                let used = store
                    .used(keys[key].record.id, days[day], 100)
                    .await
                    .unwrap();
                assert_eq!(used, model.used.get(&(key, day)).copied().unwrap_or(0));
            }
            Step::Reopen => {
                store.close(PATIENCE).await;
                store = fixture.gateway("a").await;
            }
        }
    }
    store.close(PATIENCE).await;
    drop(store);
    let store = fixture.gateway("a").await;
    reconcile(&store, &keys, &days, &model).await;
}

/// Drops a charge that is under way. What was granted is back once two more charges have been through the same queue.
async fn charge_and_leave(store: &Arc<dyn Store>, key: &Arc<KeyEntry>, day: Day, used: u64) {
    let mut future = store.charge(charge(key, day, 1_000, 1));
    let left = tokio::time::timeout(Duration::ZERO, &mut future).await;
    if let Ok(decision) = left {
        store.refund(granted(decision).1).await;
    }
    drop(future);
    for _ in 0..2 {
        let (_, receipt) = granted(store.charge(charge(key, day, u64::MAX, 1)).await);
        store.refund(receipt).await;
    }
    eventually_used(store, key, day, used).await;
}

/// After the history: each count is the model's, and the ledger adds up to it.
async fn reconcile(store: &Arc<dyn Store>, keys: &[Arc<KeyEntry>], days: &[Day], model: &Model) {
    let rows = ledger(store).await;
    for (k, key) in keys.iter().enumerate() {
        for (d, day) in days.iter().enumerate() {
            let row = rows
                .iter()
                .find(|row| row.key == key.record.id && row.date == day.date);
            let used = row.map_or(0, |row| row.used);
            let totals = row
                .and_then(|row| row.endpoints.get("markets").copied())
                .unwrap_or_default();
            assert_eq!(used, model.used.get(&(k, d)).copied().unwrap_or(0));
            assert_eq!(used, totals.charged - totals.refunded);
            let refused = model.refused.get(&(k, d)).copied().unwrap_or(0);
            assert_eq!(totals.refused_quota, refused);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn any_history_of_one_process_is_that_of_a_simple_model(steps in proptest::collection::vec(step(), 1..40)) {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap()
            .block_on(run_history(steps));
    }
}
