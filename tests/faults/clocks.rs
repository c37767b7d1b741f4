//! Clocks that are wrong, and a day that ends.

use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};

use harness::ledger::date_of;
use harness::{IssuedKey, Protocol, Scene, Store, eventually};
use serde_json::Value;

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_whose_clock_is_minutes_off_costs_nothing() {
    let mut stage = stage(Topology::Durable, Timeout::Long, Clocks::Apart).await;
    let faults = [7, -7, 0].map(|minutes| Fault::ClockOff { minutes });
    let schedule = Schedule::of_all(Topology::Durable, faults);
    assert_unharmed(&hold(&mut stage, &schedule).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_whose_clock_reads_another_day_charges_the_day_of_redis() {
    let mut stage = stage(Topology::Durable, Timeout::Long, Clocks::Apart).await;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let minute = (now.as_secs() % DAY_SECONDS as u64 / 60) as i32;
    let faults = [24 * 60 - minute, -minute - 1].map(|minutes| Fault::ClockOff { minutes });
    let schedule = Schedule::of_all(Topology::Durable, faults);
    assert_unharmed(&hold(&mut stage, &schedule).await);
    let dates: BTreeSet<String> = stage
        .counts()
        .await
        .into_keys()
        .map(|(_, date)| date)
        .collect();
    assert_eq!(dates, [date_of(now.as_secs())].into());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_day_that_ends_while_redis_is_unavailable_costs_no_more_than_the_shares_of_both_days() {
    // Few enough to be used up in the second that is left of the first day.
    let spec = StageSpec {
        scarce: 40,
        ..spec(Topology::Durable, Timeout::Short, Clocks::Shared)
    };
    let mut stage = Stage::start(spec).await;
    let schedule = Schedule::of(Topology::Durable, Fault::DayEndsInOutage);
    let report = hold(&mut stage, &schedule).await;
    assert!(report.used_up >= 2, "keys of both days: {report:?}");
}

const MARKETS: &str = "/api/v1/data/markets";
const DAY_SECONDS: f64 = 86_400.0;
/// Beyond the retention of every day that the test charges.
const LEAP_DAYS: f64 = 800.0;

/// The units of each day, whatever the clock reads.
async fn days(scene: &Scene) -> Vec<(String, u64)> {
    let words = ["usage", "--from", "2020-01-01", "--to", "2099-12-31"];
    let words = [&words[..], &["--output", "json"]].concat();
    let reported: Value = serde_json::from_str(&scene.cli(&words).await).unwrap();
    let day = |row: &Value| {
        let date = row["date"].as_str().unwrap().to_owned();
        (date, row["used"].as_u64().unwrap())
    };
    reported["days"]
        .as_array()
        .unwrap()
        .iter()
        .map(day)
        .collect()
}

/// Waits until the store has looked often enough for something to go that is old.
async fn turns(scene: &Scene) {
    match &scene.redis {
        // It expires what is old each 100 ms, and at the latest when it is read.
        Some(_) => drop(days(scene).await),
        // A gateway drops a few rows with each heartbeat.
        None => {
            let file = scene.directory().join("touchline.db");
            let file = rusqlite::Connection::open(file).unwrap();
            // The row of the process that was killed stays, with an older time.
            let sql = "SELECT max(seen) FROM gateways";
            let seen = || file.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
            for _ in 0..8 {
                let before = seen();
                eventually("a heartbeat", async || (seen() != before).then_some(())).await;
            }
        }
    }
}

async fn readiness(scene: &Scene) -> (u16, Value) {
    let (status, body) = scene.admin(0, "/readyz").await;
    (status, serde_json::from_str(&body).unwrap())
}

async fn leapt(scene: &Scene, by: &str) {
    let reported = eventually("the leap is reported", async || {
        let (status, body) = readiness(scene).await;
        let begins = format!("the clock leapt by {by}");
        let mut reasons = body["reasons"].as_array().unwrap().iter();
        let reported = reasons.any(|reason| reason.as_str().unwrap().starts_with(&begins));
        reported.then_some((status, body))
    })
    .await;
    assert_eq!(
        (reported.0, &reported.1["status"]),
        (200, &"degraded".into())
    );
    let seconds = scene.metric("touchline_clock_leap_seconds").await;
    let expected = LEAP_DAYS * DAY_SECONDS * if by.starts_with('-') { -1.0 } else { 1.0 };
    assert!((seconds - expected).abs() < 60.0, "{seconds}");
    let line = format!("the clock leapt by {by}");
    let logged = || scene.gateways[0].output().matches(&line).count();
    eventually("it is logged", async || (logged() > 0).then_some(())).await;
    assert_eq!(logged(), 1, "once: {}", scene.gateways[0].output());
}

/// A call that is served; what is left.
async fn call(scene: &Scene, key: &IssuedKey) -> u64 {
    let answer = scene.client(Protocol::Http1).get(key, MARKETS).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.number("x-ratelimit-remaining").unwrap()
}

async fn a_clock_that_leaps_for_a_moment_drops_no_day(store: Store) {
    let mut scene = Scene::builder(TOUCHLINE)
        .store(store)
        .faketime()
        .start()
        .await;
    let key = scene.issue("starter").await;
    let mut before = Vec::new();
    for days_ago in [3.0, 2.0, 1.0, 0.0] {
        scene.clock().set_offset(-days_ago * DAY_SECONDS);
        call(&scene, &key).await;
        before = eventually("the day is written", async || {
            let days = days(&scene).await;
            (days.len() == before.len() + 1).then_some(days)
        })
        .await;
    }
    // Another process, which knows nothing of these leaps.
    scene.gateways[0].restart().await;
    let (status, body) = readiness(&scene).await;
    assert_eq!((status, &body["status"]), (200, &"ready".into()), "{body}");
    scene.clock().set_offset(LEAP_DAYS * DAY_SECONDS);
    leapt(&scene, "+800 d 00:00:0").await;
    call(&scene, &key).await;
    turns(&scene).await;
    scene.clock().set_offset(0.0);
    leapt(&scene, "-800 d 00:00:0").await;
    assert_eq!(call(&scene, &key).await, 1_000 - 2, "today's count stays");
    let after = eventually("all is written", async || {
        let days = days(&scene).await;
        (days.iter().map(|(_, used)| used).sum::<u64>() == 6).then_some(days)
    })
    .await;
    assert_eq!(after[..3], before[..3]);
    assert_eq!(after.len(), 5, "{after:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_leaps_for_a_moment_drops_no_day_of_the_embedded_store() {
    a_clock_that_leaps_for_a_moment_drops_no_day(Store::Embedded).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_leaps_for_a_moment_drops_no_day_of_redis() {
    a_clock_that_leaps_for_a_moment_drops_no_day(Store::Redis).await;
}
