//! Facts about charges and refunds: exactness, alone and beside another process.

use std::sync::Arc;
use std::time::Duration;

use harness::SLACK;
use tokio::time::Instant;
use touchline::store::{Decision, KeyEntry, Store};

use super::{
    Fixture, charge, eventually, eventually_used, exhausted, granted, issue, ledger, today,
};

/// Charges one unit at a time from `tasks` tasks, `attempts` in all, spread over the stores; the counts granted.
async fn charge_from_many_tasks(
    stores: &[Arc<dyn Store>],
    key: &Arc<KeyEntry>,
    limit: u64,
    tasks: usize,
    attempts: usize,
) -> Vec<u64> {
    let day = today();
    let running: Vec<_> = (0..tasks)
        .map(|task| {
            let store = stores[task % stores.len()].clone();
            let key = key.clone();
            let share = attempts / tasks + usize::from(task < attempts % tasks);
            tokio::spawn(async move {
                let mut counts = Vec::new();
                for _ in 0..share {
                    match store.charge(charge(&key, day, limit, 1)).await.unwrap() {
                        Decision::Granted { used, .. } => counts.push(used),
                        Decision::Exhausted { used } => assert_eq!(used, limit),
                        other => panic!("{other:?}"),
                    }
                }
                counts
            })
        })
        .collect();
    let mut counts = Vec::new();
    for task in running {
        counts.extend(task.await.unwrap());
    }
    counts.sort_unstable();
    counts
}

pub async fn of_3000_concurrent_charges_exactly_the_limit_is_granted(fixture: &dyn Fixture) {
    let store = fixture.gateway("a").await;
    let key = issue(&store).await;
    let counts = charge_from_many_tasks(std::slice::from_ref(&store), &key, 1_000, 64, 3_000).await;
    assert_eq!(counts, (1..=1_000).collect::<Vec<u64>>());
}

pub async fn two_processes_together_grant_exactly_the_limit(fixture: &dyn Fixture) {
    let stores = [fixture.gateway("a").await, fixture.gateway("b").await];
    let key = issue(&stores[0]).await;
    let counts = charge_from_many_tasks(&stores, &key, 1_000, 64, 3_000).await;
    assert_eq!(counts, (1..=1_000).collect::<Vec<u64>>());
    for store in &stores {
        eventually_used(store, &key, today(), 1_000).await;
    }
}

pub async fn mixed_costs_and_refunds_in_two_processes_add_up_exactly(fixture: &dyn Fixture) {
    const LIMIT: u64 = 500;
    let stores = [fixture.gateway("a").await, fixture.gateway("b").await];
    let key = issue(&stores[0]).await;
    let day = today();
    let running: Vec<_> = (0..16_u32)
        .map(|task| {
            let store = stores[task as usize % 2].clone();
            let key = key.clone();
            tokio::spawn(async move {
                let mut kept = 0;
                for turn in 0..40 {
                    let cost = 1 + (task + turn) % 5;
                    let asked = charge(&key, day, LIMIT, cost);
                    if let Decision::Granted { used, receipt, .. } =
                        store.charge(asked).await.unwrap()
                    {
                        assert!(used <= LIMIT);
                        match turn % 6 {
                            0 => drop(store.refund(receipt).await),
                            3 => store.give_back(receipt),
                            _ => kept += u64::from(cost),
                        }
                    }
                }
                kept
            })
        })
        .collect();
    let mut kept = 0;
    for task in running {
        kept += task.await.unwrap();
    }
    assert!(kept <= LIMIT);
    for store in &stores {
        eventually_used(store, &key, day, kept).await;
    }
}

pub async fn a_charge_that_does_not_fit_takes_nothing_from_another_process(fixture: &dyn Fixture) {
    let stores = [fixture.gateway("a").await, fixture.gateway("b").await];
    let day = today();
    for _ in 0..100 {
        let key = issue(&stores[0]).await;
        let (large, small) = tokio::join!(
            stores[0].charge(charge(&key, day, 3, 5)),
            stores[1].charge(charge(&key, day, 3, 1)),
        );
        exhausted(large);
        assert_eq!(granted(small).0, 1);
    }
}

pub async fn a_cost_is_charged_whole_or_not_at_all(fixture: &dyn Fixture) {
    let store = fixture.gateway("a").await;
    let key = issue(&store).await;
    let day = today();
    assert_eq!(granted(store.charge(charge(&key, day, 10, 4)).await).0, 4);
    assert_eq!(granted(store.charge(charge(&key, day, 10, 4)).await).0, 8);
    assert_eq!(exhausted(store.charge(charge(&key, day, 10, 4)).await), 8);
    assert_eq!(exhausted(store.charge(charge(&key, day, 10, 3)).await), 8);
    assert_eq!(granted(store.charge(charge(&key, day, 10, 2)).await).0, 10);
    assert_eq!(exhausted(store.charge(charge(&key, day, 10, 1)).await), 10);
}

pub async fn a_lowered_limit_refuses_and_a_raised_one_grants_at_once(fixture: &dyn Fixture) {
    let store = fixture.gateway("a").await;
    let key = issue(&store).await;
    let day = today();
    assert_eq!(granted(store.charge(charge(&key, day, 10, 8)).await).0, 8);
    assert_eq!(exhausted(store.charge(charge(&key, day, 5, 1)).await), 8);
    assert_eq!(exhausted(store.charge(charge(&key, day, 0, 1)).await), 8);
    assert_eq!(exhausted(store.charge(charge(&key, day, 8, 1)).await), 8);
    assert_eq!(granted(store.charge(charge(&key, day, 9, 1)).await).0, 9);
    assert_eq!(
        granted(store.charge(charge(&key, day, 100, 91)).await).0,
        100
    );
    assert_eq!(
        exhausted(store.charge(charge(&key, day, 100, 1)).await),
        100
    );
}

pub async fn a_refund_reopens_an_exhausted_key_within_the_second(fixture: &dyn Fixture) {
    let store = fixture.gateway("a").await;
    let key = issue(&store).await;
    let day = today();
    let (_, receipt) = granted(store.charge(charge(&key, day, 2, 1)).await);
    granted(store.charge(charge(&key, day, 2, 1)).await);
    assert_eq!(exhausted(store.charge(charge(&key, day, 2, 1)).await), 2);
    let refunded = Instant::now();
    assert_eq!(store.refund(receipt).await, Some(1));
    let used = eventually("the key is open again", async || {
        match store.charge(charge(&key, day, 2, 1)).await.unwrap() {
            Decision::Granted { used, .. } => Some(used),
            _ => None,
        }
    })
    .await;
    assert_eq!(used, 2);
    assert!(refunded.elapsed() < Duration::from_secs(1) + SLACK);
    assert_eq!(exhausted(store.charge(charge(&key, day, 2, 1)).await), 2);
}

pub async fn a_refund_in_one_process_reopens_the_key_in_another_within_two_seconds(
    fixture: &dyn Fixture,
) {
    let (one, other) = (fixture.gateway("a").await, fixture.gateway("b").await);
    let key = issue(&one).await;
    let day = today();
    let (_, receipt) = granted(one.charge(charge(&key, day, 1, 1)).await);
    assert_eq!(exhausted(other.charge(charge(&key, day, 1, 1)).await), 1);
    one.refund(receipt).await;
    let refunded = Instant::now();
    eventually("the key is open in the other process", async || match other
        .charge(charge(&key, day, 1, 1))
        .await
        .unwrap()
    {
        Decision::Granted { .. } => Some(()),
        _ => None,
    })
    .await;
    assert!(refunded.elapsed() < Duration::from_secs(2) + SLACK);
}

pub async fn a_dropped_charge_gives_its_units_back(fixture: &dyn Fixture) {
    let store = fixture.gateway("a").await;
    let key = issue(&store).await;
    let day = today();
    let mut kept = 0;
    for turn in 0..200_u64 {
        let mut future = store.charge(charge(&key, day, 1_000, 1));
        // Polled once, so that it is under way, and then left after 0 to 200 µs.
        let waited = tokio::time::timeout(Duration::from_micros(turn), &mut future).await;
        if let Ok(decision) = waited {
            granted(decision);
            kept += 1;
        }
    }
    eventually_used(&store, &key, day, kept).await;
    eventually("the ledger shows the same", async || {
        let used = ledger(&store).await.iter().map(|row| row.used).sum::<u64>();
        (used == kept).then_some(())
    })
    .await;
}

pub async fn used_is_reported_without_a_charge(fixture: &dyn Fixture) {
    let (one, other) = (fixture.gateway("a").await, fixture.gateway("b").await);
    let key = issue(&one).await;
    let day = today();
    assert_eq!(one.used(key.record.id, day, 100).await.unwrap(), 0);
    granted(one.charge(charge(&key, day, 10, 3)).await);
    assert_eq!(one.used(key.record.id, day, 100).await.unwrap(), 3);
    let many = (0..50).map(|_| {
        let (other, id) = (other.clone(), key.record.id);
        tokio::spawn(async move { other.used(id, day, 100).await.unwrap() })
    });
    for asked in many.collect::<Vec<_>>() {
        assert_eq!(asked.await.unwrap(), 3);
    }
    granted(one.charge(charge(&key, day, 10, 2)).await);
    eventually_used(&other, &key, day, 5).await;
}
