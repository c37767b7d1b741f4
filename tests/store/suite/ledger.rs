//! Facts about the ledger, and about closing and opening again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::civil::Date;
use touchline::store::{DayUsage, Refusal, Totals};

use super::{
    Fixture, PATIENCE, charge, charge_for, day_around_now, eventually, granted, issue, ledger,
    today,
};

pub async fn the_ledger_reconciles_with_the_counts_by_day_key_and_endpoint(fixture: &dyn Fixture) {
    let store = fixture.gateway("a").await;
    let days = [day_around_now("2026-11-20"), day_around_now("2026-11-21")];
    let keys = [
        issue(&store).await,
        issue(&store).await,
        issue(&store).await,
    ];
    let mut expected: BTreeMap<(Date, String), BTreeMap<String, Totals>> = BTreeMap::new();
    for turn in 0..120_usize {
        let (key, day) = (&keys[turn % 3], days[turn / 60]);
        let endpoint = ["markets", "insights", "rankings"][turn / 5 % 3];
        let cost = 1 + (turn % 4) as u32;
        let asked = charge_for(key, day, 1_000, cost, endpoint);
        let (_, receipt) = granted(store.charge(asked).await);
        let totals = expected
            .entry((day.date, key.record.id.to_string()))
            .or_default()
            .entry(endpoint.into())
            .or_default();
        totals.requests += 1;
        totals.charged += u64::from(cost);
        if turn % 7 == 0 {
            store.refund(receipt).await;
            totals.refunded += u64::from(cost);
        }
    }
    let rows = eventually("the ledger is whole", async || {
        let rows = ledger(&store).await;
        let told: BTreeMap<_, _> = rows
            .iter()
            .map(|row| ((row.date, row.key.to_string()), row.endpoints.clone()))
            .collect();
        (told == expected).then_some(rows)
    })
    .await;
    assert_eq!(rows.len(), 6);
    let places: Vec<_> = rows.iter().map(|row| (row.date, row.key)).collect();
    assert!(places.is_sorted());
    for row in rows {
        let by_endpoint: u64 = row
            .endpoints
            .values()
            .map(|totals| totals.charged - totals.refunded)
            .sum();
        assert_eq!(row.used, by_endpoint);
    }
}

pub async fn refused_requests_are_counted_by_their_reason(fixture: &dyn Fixture) {
    let store = fixture.gateway("a").await;
    let key = issue(&store).await;
    let day = today();
    let endpoint: Arc<str> = "rankings".into();
    granted(store.charge(charge_for(&key, day, 1, 1, "rankings")).await);
    for turn in 0..100 {
        store.refused(&key, day, &endpoint, Refusal::Tier);
        if turn % 4 == 0 {
            store.refused(&key, day, &endpoint, Refusal::DailyQuota);
        }
    }
    let expected = Totals {
        requests: 1,
        charged: 1,
        refunded: 0,
        refused_tier: 100,
        refused_quota: 25,
        ..Totals::default()
    };
    eventually("the refusals are in the ledger", async || {
        let rows = ledger(&store).await;
        let row = rows.first()?;
        (row.used == 1 && row.endpoints.get("rankings") == Some(&expected)).then_some(())
    })
    .await;
}

pub async fn usage_is_told_for_the_asked_days_and_key_only(fixture: &dyn Fixture) {
    let store = fixture.gateway("a").await;
    let keys = [issue(&store).await, issue(&store).await];
    for date in ["2026-11-19", "2026-11-20", "2026-11-21"] {
        for key in &keys {
            granted(store.charge(charge(key, day_around_now(date), 5, 1)).await);
        }
    }
    eventually("all rows are there", async || {
        (ledger(&store).await.len() == 6).then_some(())
    })
    .await;
    let (from, to) = ("2026-11-20".parse().unwrap(), "2026-11-21".parse().unwrap());
    let rows = store.usage(from, to, None).await.unwrap();
    assert_eq!(rows.len(), 4);
    assert!(rows.iter().all(|row| row.date >= from && row.used == 1));
    let rows = store
        .usage(from, to, Some(keys[1].record.id))
        .await
        .unwrap();
    assert_eq!(rows.len(), 2);
    assert!(rows.iter().all(|row| row.key == keys[1].record.id));
    assert_eq!(store.usage(to, from, None).await.unwrap(), []);
}

pub async fn reopening_keeps_keys_counts_and_ledger(fixture: &dyn Fixture) {
    let day = today();
    let store = fixture.gateway("a").await;
    let key = issue(&store).await;
    let (_, receipt) = granted(store.charge(charge(&key, day, 10, 4)).await);
    granted(store.charge(charge(&key, day, 10, 3)).await);
    store.refund(receipt).await;
    store.refused(&key, day, &"markets".into(), Refusal::DailyQuota);
    store.close(PATIENCE).await;
    drop(store);

    let store = fixture.gateway("b").await;
    assert_eq!(store.keys().get(key.record.id).unwrap(), key);
    assert_eq!(store.used(key.record.id, day).await.unwrap(), 3);
    let rows = ledger(&store).await;
    let totals = Totals {
        requests: 2,
        charged: 7,
        refunded: 4,
        refused_quota: 1,
        ..Totals::default()
    };
    assert_eq!(
        rows,
        [DayUsage {
            date: day.date,
            key: key.record.id,
            used: 3,
            unattributed: 0,
            limit: 10,
            granted: 0,
            over: 0,
            endpoints: BTreeMap::from([("markets".into(), totals)]),
            tiers: BTreeMap::from([("pro".into(), totals)]),
            adjustments: Vec::new(),
        }]
    );
    assert_eq!(granted(store.charge(charge(&key, day, 10, 1)).await).0, 4);
}

pub async fn closing_writes_refunds_that_were_not_awaited(fixture: &dyn Fixture) {
    let day = today();
    let store = fixture.gateway("a").await;
    let key = issue(&store).await;
    let mut receipts = Vec::new();
    for _ in 0..20 {
        receipts.push(granted(store.charge(charge(&key, day, 100, 1)).await).1);
    }
    for receipt in receipts {
        let mut refund = store.refund(receipt);
        // Polled once and dropped: the store has it then.
        let _ = tokio::time::timeout(Duration::ZERO, &mut refund).await;
    }
    store.close(PATIENCE).await;
    drop(store);
    let store = fixture.gateway("b").await;
    assert_eq!(store.used(key.record.id, day).await.unwrap(), 0);
}

pub async fn an_open_store_is_healthy(fixture: &dyn Fixture) {
    let store = fixture.gateway("a").await;
    eventually("the store is healthy", async || {
        let health = store.health();
        (health.up && health.keys_loaded && health.keys_age < Duration::from_secs(5)).then_some(())
    })
    .await;
    let (told, asked) = (store.now(), store.server_time().await.unwrap());
    assert!(asked.duration_since(told).abs() < jiff::SignedDuration::from_secs(5));
}
