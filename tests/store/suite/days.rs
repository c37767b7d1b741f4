//! Facts about days: midnights, boundaries, zones.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::Date;
use touchline::policy::calendar::{Calendar, Day};
use touchline::store::{Decision, Keeping, NodeName, Role, StoreError};

use super::{Fixture, ZONE, charge, eventually, eventually_used, granted, issue, today};

pub async fn a_refund_after_midnight_goes_to_the_day_of_its_charge(fixture: &dyn Fixture) {
    let store = fixture.gateway("a").await;
    let key = issue(&store).await;
    let calendar = Calendar::of_fixed_days(Timestamp::now(), 2);
    let (first, receipt) = eventually("a charge is granted", async || {
        let day = calendar.day_at(store.now()).unwrap();
        match store.charge(charge(&key, day, 5, 2)).await.unwrap() {
            Decision::Granted { receipt, .. } => Some((day, receipt)),
            _ => None,
        }
    })
    .await;
    let second = eventually("a charge is granted on a later day", async || {
        let day = calendar.day_at(store.now()).unwrap();
        if day == first {
            return None;
        }
        match store.charge(charge(&key, day, 5, 1)).await.unwrap() {
            Decision::Granted { .. } => Some(day),
            _ => None,
        }
    })
    .await;
    store.refund(receipt).await;
    eventually_used(&store, &key, first, 0).await;
    eventually_used(&store, &key, second, 1).await;
}

pub async fn two_processes_crossing_midnights_grant_exactly_the_limit_each_day(
    fixture: &dyn Fixture,
) {
    const LIMIT: u64 = 50;
    let stores = [fixture.gateway("a").await, fixture.gateway("b").await];
    let key = issue(&stores[0]).await;
    let origin = Timestamp::now();
    let calendar = Calendar::of_fixed_days(origin, 2);
    let last = calendar
        .day_at(origin + Duration::from_secs(6))
        .unwrap()
        .date;
    let running: Vec<_> = (0..8)
        .map(|task| {
            let (store, key, calendar) = (stores[task % 2].clone(), key.clone(), calendar.clone());
            tokio::spawn(async move {
                let mut counts = Vec::new();
                let mut now = store.now();
                loop {
                    let day = calendar.day_at(now).unwrap();
                    if day.date >= last {
                        return counts;
                    }
                    match store.charge(charge(&key, day, LIMIT, 1)).await.unwrap() {
                        Decision::Granted { used, .. } => counts.push((day.date, used)),
                        Decision::Exhausted { used } => assert_eq!(used, LIMIT),
                        Decision::KeyChanged => panic!("nobody changed the key"),
                        Decision::OtherDay { now: theirs } => {
                            now = theirs;
                            continue;
                        }
                    }
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    now = store.now();
                }
            })
        })
        .collect();
    let mut days: BTreeMap<Date, Vec<u64>> = BTreeMap::new();
    for task in running {
        for (date, used) in task.await.unwrap() {
            days.entry(date).or_default().push(used);
        }
    }
    assert!(days.len() >= 3, "{days:?}");
    for (date, mut counts) in days {
        counts.sort_unstable();
        assert_eq!(counts, (1..=LIMIT).collect::<Vec<u64>>(), "on {date}");
    }
}

pub async fn a_day_with_other_boundaries_is_refused(fixture: &dyn Fixture) {
    let (one, other) = (fixture.gateway("a").await, fixture.gateway("b").await);
    let key = issue(&one).await;
    let day = today();
    granted(one.charge(charge(&key, day, 10, 1)).await);
    for shifted in [
        Day {
            start: day.start - 3_600,
            ..day
        },
        Day {
            end: day.end + 3_600,
            ..day
        },
    ] {
        for store in [&one, &other] {
            let refused = store.charge(charge(&key, shifted, 10, 1)).await;
            assert!(
                matches!(&refused, Err(error @ StoreError::OtherCalendar(_)) if !error.is_transient()),
                "{refused:?}"
            );
        }
    }
    assert_eq!(granted(one.charge(charge(&key, day, 10, 1)).await).0, 2);
}

pub async fn a_day_that_is_over_or_to_come_is_refused_with_the_stores_time(fixture: &dyn Fixture) {
    let store = fixture.gateway("a").await;
    let key = issue(&store).await;
    let now = Timestamp::now().as_second();
    for (date, start, end) in [
        ("2099-11-20", now - 90_000, now - 3_600),
        ("2099-11-22", now + 3_600, now + 90_000),
    ] {
        let day = Day {
            date: date.parse().unwrap(),
            start,
            end,
        };
        let decision = store.charge(charge(&key, day, 10, 1)).await.unwrap();
        let Decision::OtherDay { now: theirs } = decision else {
            panic!("{decision:?}");
        };
        assert!((theirs.as_second() - now).abs() < 60);
        assert_eq!(store.used(key.record.id, day, 100).await.unwrap(), 0);
    }
}

pub async fn another_zone_is_refused_at_open(fixture: &dyn Fixture) {
    let store = fixture.gateway("a").await;
    for role in [Role::Gateway(NodeName("b".into())), Role::Command] {
        match fixture
            .try_open(role, "Europe/London", Keeping::default())
            .await
        {
            Err(StoreError::OtherCalendar(message)) => {
                assert!(message.contains("Europe/London"), "{message}");
                assert!(message.contains(ZONE), "{message}");
            }
            Err(other) => panic!("{other:?}"),
            Ok(_) => panic!("opened in another zone"),
        }
    }
    let key = issue(&store).await;
    granted(store.charge(charge(&key, today(), 1, 1)).await);
}
