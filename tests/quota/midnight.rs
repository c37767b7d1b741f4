//! The quota is a day's: what is charged before midnight and what after are two accounts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use harness::{Call, Protocol, Scene, Store};
use tokio::task::JoinSet;

use super::{MARKETS, TOUCHLINE};

const DAILY: u64 = 40;
const DAY_SECONDS: u64 = 86_400;
/// No client sends more than this.
const CALLS_MAX: usize = 2_000;

async fn both_days_give_exactly_their_quota(store: Store) {
    let mut scene = Scene::builder(TOUCHLINE)
        .store(store)
        .gateways(2)
        .daily("starter", DAILY)
        .faketime()
        .start()
        .await;
    let key = scene.issue("starter").await;
    let midnight = scene.clock().set_before_midnight(Duration::from_secs(2));
    let over = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    for number in 0..8 {
        let client = scene.client_of(number % 2, Protocol::Http1);
        let (key, over) = (key.clone(), Arc::clone(&over));
        clients.spawn(async move {
            let mut answers = Vec::new();
            for _ in 0..CALLS_MAX {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                let answer = client.call(Call::get(MARKETS).key(&key)).await;
                let reset = answer.number("x-ratelimit-reset").unwrap();
                let exhausted = answer.status == 429;
                answers.push((answer.status, reset));
                if exhausted && reset == midnight + DAY_SECONDS {
                    over.store(true, Ordering::Relaxed);
                } else if exhausted {
                    // Before midnight there is nothing to be had: not the gateway's speed is tested here.
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
            answers
        });
    }
    let answers = clients.join_all().await.concat();
    assert!(over.load(Ordering::Relaxed), "midnight did not come");
    let mut served: BTreeMap<u64, u64> = BTreeMap::new();
    for (status, reset) in &answers {
        assert!([200, 429].contains(status), "{status}");
        *served.entry(*reset).or_default() += u64::from(*status == 200);
    }
    let expected = [(midnight, DAILY), (midnight + DAY_SECONDS, DAILY)];
    assert_eq!(served, BTreeMap::from(expected));
    assert_eq!(scene.used(&key).await, 2 * DAILY);
    scene.assert_ledgers_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_day_gives_exactly_its_quota_across_midnight_on_the_embedded_store() {
    both_days_give_exactly_their_quota(Store::Embedded).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_day_gives_exactly_its_quota_across_midnight_on_redis() {
    both_days_give_exactly_their_quota(Store::Redis).await;
}
