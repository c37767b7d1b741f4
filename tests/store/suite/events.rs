//! Facts about events of keys near their limits: claimed once, kept until they are delivered.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use touchline::policy::rate_limit::QuotaStatus;
use touchline::policy::threshold_event::{Event, Share, ThresholdEvent};
use touchline::store::{Claim, Delivery, EVENTS_MAX, NodeName, Store};

use super::{Fixture, PATIENCE, eventually, new_record, today};

/// Long enough for a fact, and over at once.
const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(50);

fn node(name: &str) -> NodeName {
    NodeName(name.into())
}

/// That a new key came to a share, `second` seconds after a fixed instant.
pub fn threshold_event(percent: u64, second: i64) -> ThresholdEvent {
    let record = new_record("pro");
    ThresholdEvent {
        key: record.id,
        tier: record.tier,
        quota_status: QuotaStatus {
            limit: 10,
            used: Some(8),
            day: today(),
        },
        share: Share::of_percent(percent).unwrap(),
        at: Timestamp::from_second(Timestamp::now().as_second() - 100 + second).unwrap(),
    }
}

async fn claimed(
    store: &Arc<dyn Store>,
    threshold_event: &ThresholdEvent,
    by: &str,
    delivery: Delivery,
) -> Claim {
    store
        .claim(threshold_event, &node(by), delivery)
        .await
        .unwrap()
}

async fn output(store: &Arc<dyn Store>, courier: &str, lease: Duration) -> Option<Vec<String>> {
    let events = store.undelivered(&node(courier), lease, 0).await.unwrap();
    events.map(|events| events.into_iter().map(|event| event.id).collect())
}

pub async fn an_event_is_claimed_by_one_node_for_a_key_day_and_share(fixture: &dyn Fixture) {
    let (one, other) = (fixture.gateway("one").await, fixture.gateway("other").await);
    let eighty = threshold_event(80, 0);
    let claims = tokio::join!(
        claimed(&one, &eighty, "one", Delivery::Wanted),
        claimed(&other, &eighty, "other", Delivery::Wanted)
    );
    let (winner, loser) = match claims {
        (Claim::Made, Claim::Held) => ((&one, "one"), (&other, "other")),
        (Claim::Held, Claim::Made) => ((&other, "other"), (&one, "one")),
        claims => panic!("{claims:?}"),
    };
    // A reply that was lost: the call is repeated.
    let again = claimed(winner.0, &eighty, winner.1, Delivery::Wanted).await;
    assert_eq!(again, Claim::Repeated);
    let later = ThresholdEvent {
        at: Timestamp::now(),
        ..eighty.clone()
    };
    assert_eq!(
        claimed(loser.0, &later, loser.1, Delivery::Wanted).await,
        Claim::Held
    );
    let share = Share::of_percent(95).unwrap();
    let ninety_five = ThresholdEvent {
        share,
        ..eighty.clone()
    };
    assert_eq!(
        claimed(loser.0, &ninety_five, loser.1, Delivery::Wanted).await,
        Claim::Made
    );
    let mut other_day = eighty.clone();
    other_day.quota_status.day.date = "2099-11-22".parse().unwrap();
    assert_eq!(
        claimed(loser.0, &other_day, loser.1, Delivery::Wanted).await,
        Claim::Made
    );
    let kept = output(&one, "one", LONG).await.unwrap();
    assert_eq!(kept.len(), 3, "{kept:?}");
}

pub async fn events_are_kept_in_their_order_until_they_are_delivered(fixture: &dyn Fixture) {
    let store = fixture.gateway("one").await;
    let threshold_events = [
        threshold_event(80, 1),
        threshold_event(80, 0),
        threshold_event(100, 2),
    ];
    for threshold_event in &threshold_events {
        assert_eq!(
            claimed(&store, threshold_event, "one", Delivery::Wanted).await,
            Claim::Made
        );
    }
    let silent = threshold_event(80, 3);
    assert_eq!(
        claimed(&store, &silent, "one", Delivery::Unwanted).await,
        Claim::Made
    );
    let ids = |order: &[usize]| -> Vec<String> {
        order
            .iter()
            .map(|index| threshold_events[*index].id())
            .collect()
    };
    assert_eq!(output(&store, "one", LONG).await, Some(ids(&[1, 0, 2])));
    // They are kept for another process, byte for byte.
    let other = fixture.gateway("other").await;
    let events = store
        .undelivered(&node("one"), LONG, 0)
        .await
        .unwrap()
        .unwrap();
    let expected: Vec<Event> = [1, 0, 2]
        .map(|index: usize| threshold_events[index].event())
        .into();
    assert_eq!(events, expected);
    let skipping = store.undelivered(&node("one"), LONG, 2).await;
    assert_eq!(skipping.unwrap(), Some(expected[2..].to_vec()));
    other.delivered(&events[0]).await.unwrap();
    other.delivered(&events[0]).await.unwrap();
    assert_eq!(output(&store, "one", LONG).await, Some(ids(&[0, 2])));
    // A claim outlives its event.
    assert_eq!(
        claimed(&other, &threshold_events[1], "other", Delivery::Wanted).await,
        Claim::Held
    );
    assert_eq!(output(&store, "one", LONG).await, Some(ids(&[0, 2])));
}

pub async fn one_node_delivers_until_it_is_silent_for_its_lease(fixture: &dyn Fixture) {
    let (one, other) = (fixture.gateway("one").await, fixture.gateway("other").await);
    let seen = threshold_event(80, 0);
    claimed(&one, &seen, "one", Delivery::Wanted).await;
    assert_eq!(output(&one, "one", LONG).await, Some(vec![seen.id()]));
    assert_eq!(output(&other, "other", LONG).await, None);
    assert_eq!(output(&one, "one", SHORT).await, Some(vec![seen.id()]));
    assert!(SHORT * 10 < PATIENCE);
    let mut last = None;
    eventually("the other delivers", || {
        let other = other.clone();
        async move { output(&other, "other", LONG).await }
    })
    .await
    .into_iter()
    .for_each(|id| last = Some(id));
    assert_eq!(last, Some(seen.id()));
    assert_eq!(output(&one, "one", LONG).await, None);
}

pub async fn a_node_that_resigns_lets_another_deliver_at_once(fixture: &dyn Fixture) {
    let (one, other) = (fixture.gateway("one").await, fixture.gateway("other").await);
    let seen = threshold_event(80, 0);
    claimed(&one, &seen, "one", Delivery::Wanted).await;
    // No gateway delivers yet.
    one.resign(&node("one")).await.unwrap();
    assert_eq!(output(&one, "one", LONG).await, Some(vec![seen.id()]));
    // It is not the other's to give up.
    other.resign(&node("other")).await.unwrap();
    assert_eq!(output(&other, "other", LONG).await, None);
    one.resign(&node("one")).await.unwrap();
    assert_eq!(output(&other, "other", LONG).await, Some(vec![seen.id()]));
    assert_eq!(output(&one, "one", LONG).await, None);
}

pub async fn what_waits_to_be_delivered_is_reported_with_the_age_of_the_oldest(
    fixture: &dyn Fixture,
) {
    let store = fixture.gateway("one").await;
    let events = async || store.status().await.unwrap().events;
    let none = events().await;
    assert_eq!((none.waiting, none.oldest_seconds), (0, None));
    assert_eq!(none.courier, None);
    // A hundred seconds ago, and ninety.
    let threshold_events = [
        threshold_event(80, 10),
        threshold_event(95, 0),
        threshold_event(100, 5),
    ];
    for threshold_event in &threshold_events {
        claimed(&store, threshold_event, "one", Delivery::Wanted).await;
    }
    output(&store, "one", LONG).await;
    let three = events().await;
    assert_eq!((three.waiting, three.courier.as_deref()), (3, Some("one")));
    let slack = harness::SLACK.as_secs_f64();
    let oldest = three.oldest_seconds.unwrap();
    assert!((99.0..100.0 + slack).contains(&oldest), "{oldest}");
    store.delivered(&threshold_events[1].event()).await.unwrap();
    let two = events().await;
    assert_eq!(two.waiting, 2);
    let oldest = two.oldest_seconds.unwrap();
    assert!((94.0..95.0 + slack).contains(&oldest), "{oldest}");
    store.resign(&node("one")).await.unwrap();
    assert_eq!(events().await.courier, None);
}

pub async fn no_more_events_are_kept_than_may_be(fixture: &dyn Fixture) {
    let store = fixture.gateway("one").await;
    let first = threshold_event(80, 0);
    claimed(&store, &first, "one", Delivery::Wanted).await;
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..8 {
        let store = store.clone();
        let rest = EVENTS_MAX - 1;
        let share = rest / 8 + u64::from(task < rest % 8);
        tasks.spawn(async move {
            for _ in 0..share {
                let claim = claimed(&store, &threshold_event(80, 1), "one", Delivery::Wanted).await;
                assert_eq!(claim, Claim::Made);
            }
        });
    }
    tasks.join_all().await;
    let beyond = threshold_event(80, 2);
    let claim = claimed(&store, &beyond, "one", Delivery::Wanted).await;
    assert_eq!(claim, Claim::Undeliverable);
    assert_eq!(
        claimed(&store, &threshold_event(80, 2), "one", Delivery::Unwanted).await,
        Claim::Made
    );
    store.delivered(&first.event()).await.unwrap();
    assert_eq!(
        claimed(&store, &threshold_event(80, 3), "one", Delivery::Wanted).await,
        Claim::Made
    );
}
