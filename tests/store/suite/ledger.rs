//! Facts about the ledger, and about closing and opening again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::civil::Date;
use touchline::policy::calendar::Day;
use touchline::store::{
    DayUsage, Decision, Keeping, KeyEntry, NodeName, Proof, RefusalReason, Role, Totals,
};

use super::{
    Fixture, PATIENCE, WholeLedger, ZONE, charge, charge_for, day_around_now, eventually, granted,
    issue, ledger, today,
};

pub async fn the_ledger_reconciles_with_the_counts_by_day_key_and_endpoint(fixture: &dyn Fixture) {
    let store = fixture.gateway("a").await;
    let days = [day_around_now("2099-11-20"), day_around_now("2099-11-21")];
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
        let output: BTreeMap<_, _> = rows
            .iter()
            .map(|row| ((row.date, row.key.to_string()), row.endpoints.clone()))
            .collect();
        (output == expected).then_some(rows)
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
    let reasons = [
        (RefusalReason::Tier, 100),
        (RefusalReason::DailyQuota, 25),
        (RefusalReason::Burst, 4),
        (RefusalReason::Concurrent, 3),
        (RefusalReason::NotFound, 2),
        (RefusalReason::Method, 1),
    ];
    for (reason, times) in reasons {
        for _ in 0..times {
            store.refused(&key, day, &endpoint, reason);
        }
    }
    let expected = Totals {
        requests: 1,
        charged: 1,
        refunded: 0,
        refused_tier: 100,
        refused_quota: 25,
        refused_burst: 4,
        refused_concurrent: 3,
        refused_not_found: 2,
        refused_method: 1,
    };
    eventually("the refusals are in the ledger", async || {
        let rows = ledger(&store).await;
        let row = rows.first()?;
        (row.used == 1 && row.endpoints.get("rankings") == Some(&expected)).then_some(())
    })
    .await;
}

pub async fn every_unit_is_reported_by_the_tier_that_the_key_had(fixture: &dyn Fixture) {
    let store = fixture.gateway("a").await;
    let pro = issue(&store).await;
    let day = today();
    let (_, before) = granted(store.charge(charge(&pro, day, 300, 5)).await);
    granted(
        store
            .charge(charge_for(&pro, day, 300, 2, "insights"))
            .await,
    );
    let mut record = pro.record.clone();
    record.tier = "starter".parse().unwrap();
    let starter = KeyEntry::new(store.update_key(record).await.unwrap().0);
    granted(store.charge(charge(&starter, day, 100, 3)).await);
    store.refused(&starter, day, &"rankings".into(), RefusalReason::Tier);
    // Given back in the tier in which it was charged.
    store.refund(before).await;
    let output = eventually("all is in the ledger", async || {
        let row = ledger(&store).await.into_iter().next()?;
        let refused: u64 = row.endpoints.values().map(Totals::refused).sum();
        (row.unattributed == 0 && row.used == 5 && refused == 1).then_some(row)
    })
    .await;
    let numbers = |tier: &str| {
        let totals = output.tiers[tier];
        (totals.requests, totals.charged, totals.refunded)
    };
    assert_eq!(numbers("pro"), (2, 7, 5));
    assert_eq!(numbers("starter"), (1, 3, 0));
    assert_eq!(output.tiers["starter"].refused_tier, 1);
    assert_eq!(output.tiers.len(), 2);
    assert_eq!(output.endpoints["markets"].charged, 8);
    assert_eq!(output.limit, Some(300), "the largest that was in force");
}

pub async fn limit_and_grants_of_a_day_are_reported(fixture: &dyn Fixture) {
    let store = fixture.gateway("a").await;
    let key = issue(&store).await;
    let (day, tomorrow) = (today(), day_around_now("2099-11-22"));
    granted(store.charge(charge(&key, day, 100, 1)).await);
    let mut record = key.record.clone();
    record.grants.insert(day.date, 50);
    let key = KeyEntry::new(store.update_key(record).await.unwrap().0);
    let limit = key.record.limit_on(day.date, 100);
    granted(store.charge(charge(&key, day, limit, 120)).await);
    granted(store.charge(charge(&key, tomorrow, 100, 1)).await);
    let rows = eventually("both days are in the ledger", async || {
        let rows = ledger(&store).await;
        let whole = rows.iter().all(|row| row.unattributed == 0);
        (whole && rows.len() == 2).then_some(rows)
    })
    .await;
    let output: Vec<_> = rows
        .iter()
        .map(|row| (row.used, row.limit, row.granted, row.over))
        .collect();
    assert_eq!(output, [(121, Some(150), 50, 0), (1, Some(100), 0, 0)]);
}

pub async fn what_reconciles_is_proved_without_a_fault(fixture: &dyn Fixture) {
    let stores = [fixture.gateway("a").await, fixture.gateway("b").await];
    let keys = [issue(&stores[0]).await, issue(&stores[0]).await];
    let day = today();
    for turn in 0..40_u32 {
        let (store, key) = (&stores[turn as usize % 2], &keys[turn as usize / 20]);
        let asked = charge(key, day, 30, 1 + turn % 3);
        if let Decision::Granted { receipt, .. } = store.charge(asked).await.unwrap() {
            if turn % 4 == 0 {
                store.refund(receipt).await;
            }
        } else {
            store.refused(key, day, &"markets".into(), RefusalReason::DailyQuota);
        }
    }
    let proofs = eventually("all is proved", async || {
        let proofs = stores[0].prove(day.date, day.date, None).await.unwrap();
        let settled = |proof: &Proof| proof.faults.is_empty() && proof.usage.unattributed == 0;
        proofs.iter().all(settled).then_some(proofs)
    })
    .await;
    let usage: Vec<DayUsage> = proofs.into_iter().map(|proof| proof.usage).collect();
    assert_eq!(usage, ledger(&stores[1]).await);
    assert_eq!(usage.len(), 2);
    let id = keys[0].record.id;
    let alone = stores[1].prove(day.date, day.date, Some(id)).await.unwrap();
    assert!(alone.len() == 1 && alone[0].usage.key == id);
}

pub async fn a_refund_of_a_closed_day_is_an_adjustment_and_the_day_stays(fixture: &dyn Fixture) {
    let keeping = Keeping {
        settle_window: Duration::from_secs(1),
        ..Keeping::default()
    };
    let role = Role::Gateway(NodeName("a".into()));
    let store = fixture.try_open(role, ZONE, keeping).await.unwrap();
    let key = issue(&store).await;
    let now = store.server_time().await.unwrap().as_second();
    let day = Day {
        end: now + 4,
        ..today()
    };
    let (_, early) = granted(store.charge(charge(&key, day, 10, 4)).await);
    let (_, late) = granted(store.charge(charge(&key, day, 10, 3)).await);
    store.refund(early).await;
    let before = eventually("the day is whole", async || {
        let row = ledger(&store).await.into_iter().next()?;
        (row.used == 3 && row.unattributed == 0).then_some(row)
    })
    .await;
    assert_eq!(before.adjustments, []);
    eventually("the day is closed", async || {
        let now = store.server_time().await.unwrap();
        (now.as_second() > day.end + 1).then_some(())
    })
    .await;
    store.refund(late).await;
    let proof = eventually("the refund is counted", async || {
        let proofs = store.prove(day.date, day.date, None).await.unwrap();
        proofs.into_iter().find(|proof| proof.usage.adjusted() != 0)
    })
    .await;
    assert_eq!(proof.faults, [""; 0]);
    let [adjustment] = proof.usage.adjustments[..] else {
        panic!("{proof:?}");
    };
    assert_eq!(adjustment.units, -3);
    let (date, id) = (day.date, key.record.id);
    let output = store.usage_of(date, date, &[id]).await.unwrap();
    assert_eq!(output, std::slice::from_ref(&proof.usage));
    let late = async |to: Date| {
        let from = date.checked_sub(jiff::Span::new().days(500)).unwrap();
        store.late_days(from, to, &[id]).await.unwrap()
    };
    assert_eq!(late(date).await, [(date, id)]);
    assert_eq!(late(date.yesterday().unwrap()).await, []);
    let age = store.now().as_second() - adjustment.came.as_second();
    assert!((0..960).contains(&age), "{age} s ago");
    let after = DayUsage {
        adjustments: Vec::new(),
        ..proof.usage
    };
    assert_eq!(after, before);
    assert_eq!(store.used(key.record.id, day, 100).await.unwrap(), 0);
    let other = fixture.command().await;
    assert_eq!(ledger(&other).await[0].adjusted(), -3);
}

pub async fn usage_is_reported_for_the_asked_days_and_key_only(fixture: &dyn Fixture) {
    let store = fixture.gateway("a").await;
    let keys = [issue(&store).await, issue(&store).await];
    for date in ["2099-11-19", "2099-11-20", "2099-11-21"] {
        for key in &keys {
            granted(store.charge(charge(key, day_around_now(date), 5, 1)).await);
        }
    }
    eventually("all rows are there", async || {
        (ledger(&store).await.len() == 6).then_some(())
    })
    .await;
    let (from, to) = ("2099-11-20".parse().unwrap(), "2099-11-21".parse().unwrap());
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

pub async fn usage_of_some_keys_is_what_the_ledger_has_of_them(fixture: &dyn Fixture) {
    let store = fixture.gateway("a").await;
    let mut keys = Vec::new();
    for turn in 0..4 {
        let key = issue(&store).await;
        for date in ["2099-11-19", "2099-11-20", "2099-11-21"] {
            let charged = charge(&key, day_around_now(date), 100, turn + 1);
            let (_, receipt) = granted(store.charge(charged).await);
            if turn == 1 {
                store.refund(receipt).await;
            }
        }
        keys.push(key.record.id);
    }
    let idle = issue(&store).await.record.id;
    let whole = eventually("the ledger is whole", async || {
        let rows = ledger(&store).await;
        let settled = rows.iter().all(|row| row.unattributed == 0);
        (rows.len() == 12 && settled).then_some(rows)
    })
    .await;
    let date = |text: &str| text.parse::<Date>().unwrap();
    for (from, to) in [
        (date("2099-11-20"), date("2099-11-21")),
        (date("2099-09-01"), date("2099-11-19")),
        (date("2099-11-21"), date("2099-11-20")),
    ] {
        for asked in [vec![keys[3], keys[1]], vec![idle], keys.clone(), Vec::new()] {
            let expected = whole
                .iter()
                .filter(|row| (from..=to).contains(&row.date) && asked.contains(&row.key));
            let expected: Vec<DayUsage> = expected.cloned().collect();
            let output = store.usage_of(from, to, &asked).await.unwrap();
            assert_eq!(output, expected, "{from} to {to}");
        }
    }
}

pub async fn reopening_keeps_keys_counts_and_ledger(fixture: &dyn Fixture) {
    let day = today();
    let store = fixture.gateway("a").await;
    let key = issue(&store).await;
    let (_, receipt) = granted(store.charge(charge(&key, day, 10, 4)).await);
    granted(store.charge(charge(&key, day, 10, 3)).await);
    store.refund(receipt).await;
    store.refused(&key, day, &"markets".into(), RefusalReason::DailyQuota);
    store.close(PATIENCE).await;
    drop(store);

    let store = fixture.gateway("b").await;
    assert_eq!(store.keys().get(key.record.id).unwrap(), key);
    assert_eq!(store.used(key.record.id, day, 100).await.unwrap(), 3);
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
            limit: Some(10),
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
    assert_eq!(store.used(key.record.id, day, 100).await.unwrap(), 0);
}

pub async fn an_open_store_is_healthy(fixture: &dyn Fixture) {
    let store = fixture.gateway("a").await;
    eventually("the store is healthy", async || {
        let health = store.health();
        (health.up && health.keys.loaded && health.keys.age < Duration::from_secs(5)).then_some(())
    })
    .await;
    let (output, asked) = (store.now(), store.server_time().await.unwrap());
    assert!(asked.duration_since(output).abs() < jiff::SignedDuration::from_secs(5));
}

pub async fn a_day_of_some_keys_is_what_the_ledger_has_of_them(fixture: &dyn Fixture) {
    let store = fixture.gateway("a").await;
    let days = [day_around_now("2099-11-20"), day_around_now("2099-11-21")];
    let mut keys = Vec::new();
    for turn in 0..5 {
        let key = issue(&store).await;
        for day in days {
            granted(store.charge(charge(&key, day, 100, turn + 1)).await);
        }
        keys.push(key.record.id);
    }
    let idle = issue(&store).await.record.id;
    keys.sort_unstable();
    let whole = eventually("the ledger is whole", async || {
        let rows = ledger(&store).await;
        let settled = rows.iter().all(|row| row.unattributed == 0);
        (rows.len() == 10 && settled).then_some(rows)
    })
    .await;
    for day in days {
        // Neither the one between them nor the other day.
        for asked in [vec![keys[1], keys[3]], keys.clone(), vec![idle], Vec::new()] {
            let expected = whole
                .iter()
                .filter(|row| row.date == day.date && asked.contains(&row.key));
            let expected: Vec<DayUsage> = expected.cloned().collect();
            let (date, asked) = (day.date, &asked);
            let output = store.usage_of(date, date, asked).await.unwrap();
            assert_eq!(output, expected);
        }
    }
}
