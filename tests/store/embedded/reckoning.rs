//! The ledger in the file: proofs that fail, and days that go.

use jiff::civil::Date;
use touchline::store::{Keeping, Proof};

use super::*;
use crate::log_lines::log_lines;
use crate::suite::WholeLedger;

async fn proved(store: &Arc<dyn Store>) -> Vec<Proof> {
    let date = today().date;
    store.prove(date, date, None).await.unwrap()
}

#[tokio::test]
async fn a_row_that_no_charge_could_have_written_is_found_with_its_key_and_day() {
    let fixture = EmbeddedFixture::new();
    let store = fixture.gateway("a").await;
    let keys = [issue(&store).await, issue(&store).await];
    for key in &keys {
        granted(store.charge(charge(key, today(), 10, 4)).await);
    }
    let clean = proved(&store).await;
    assert!(clean.len() == 2 && clean.iter().all(|proof| proof.faults.is_empty()));
    let id = keys[0].record.id;
    let file = Connection::open(fixture.path()).unwrap();
    eventually_in_ledger(&file).await;
    for (corruption, fault) in [
        ("refunded = 5", "5 units were refunded of 4 charged"),
        ("charged = 11", "no charge had a limit above 10"),
        ("requests = 5", "5 requests were charged 4 units"),
        ("refused_burst = -1", "below zero"),
    ] {
        let set =
            |what: &str| file.execute(&format!("UPDATE ledger SET {what} WHERE key = '{id}'"), []);
        assert_eq!(set(corruption).unwrap(), 1);
        for proof in proved(&store).await {
            let is_corrupted = proof.usage.key == id;
            assert_eq!(!proof.faults.is_empty(), is_corrupted, "{proof:?}");
            if is_corrupted {
                assert!(proof.faults[0].contains(fault), "{proof:?}");
            }
        }
        set("requests = 1, charged = 4, refunded = 0, refused_burst = 0").unwrap();
    }
    assert!(
        proved(&store)
            .await
            .iter()
            .all(|proof| proof.faults.is_empty())
    );
}

#[tokio::test]
async fn a_refund_by_a_clock_that_was_ahead_makes_room_for_a_charge_without_a_fault() {
    let (fixture, hands) = (EmbeddedFixture::new(), Hands::default());
    let noon = "2026-11-21T12:00:00Z";
    hands.set(noon);
    let store = fixture.gateway_at(ZONE, hands.clock()).await;
    let key = issue(&store).await;
    let day = Calendar::of_zone(ZONE)
        .unwrap()
        .day_at(store.now())
        .unwrap();
    let (_, receipt) = granted(store.charge(charge(&key, day, 10, 4)).await);
    granted(store.charge(charge(&key, day, 10, 6)).await);
    hands.set("2027-11-21T12:00:00Z");
    store.refund(receipt).await;
    eventually("the day is adjusted", async || {
        (store.used(key.record.id, day, 100).await.ok()? == 6).then_some(())
    })
    .await;
    hands.set(noon);
    granted(store.charge(charge(&key, day, 10, 4)).await);
    let proof = store
        .prove(day.date, day.date, None)
        .await
        .unwrap()
        .remove(0);
    assert_eq!((proof.usage.used, proof.usage.adjusted()), (14, -4));
    assert_eq!(proof.faults, [""; 0]);
}

#[tokio::test]
async fn days_are_dropped_when_the_retention_is_over_and_never_before() {
    let fixture = EmbeddedFixture::new();
    let hands = Hands::default();
    let settings = Settings {
        keeping: Keeping {
            retention: Duration::from_secs(62 * 86_400),
            ..Keeping::default()
        },
        ..Settings::new(fixture.path())
    };
    hands.set("2026-01-01T12:00:00Z");
    let role = Role::Gateway(NodeName("a".into()));
    let store: Arc<dyn Store> = open(settings, role, ZONE, hands.clock()).await.unwrap();
    let calendar = Calendar::of_zone(ZONE).unwrap();
    let key = issue(&store).await;
    // More rows on the first day than one turn takes, and one of refusals alone.
    let first = calendar.day_at(store.now()).unwrap();
    for number in 0..2_500 {
        let endpoint = format!("/{number}").into();
        store.refused(
            &key,
            first,
            &endpoint,
            touchline::store::RefusalReason::Tier,
        );
    }
    granted(store.charge(charge(&key, first, 10, 1)).await);
    hands.set("2026-01-02T12:00:00Z");
    let second = calendar.day_at(store.now()).unwrap();
    granted(store.charge(charge(&key, second, 10, 1)).await);
    hands.set("2026-01-03T12:00:00Z");
    let third = calendar.day_at(store.now()).unwrap();
    granted(store.charge(charge(&key, third, 10, 1)).await);
    let dates = async || -> Vec<Date> { ledger(&store).await.iter().map(|row| row.date).collect() };
    let all = [first.date, second.date, third.date];
    eventually("all days are written", async || {
        (dates().await == all).then_some(())
    })
    .await;

    // The last second: the next process charges a turn later, and nothing is gone.
    hands.set("2026-03-04T23:59:59Z");
    let file = Connection::open(fixture.path()).unwrap();
    turns(&file, 1).await;
    assert_eq!(dates().await, all);

    hands.set("2026-03-05T00:00:00Z");
    eventually("the first day is gone", async || {
        (dates().await == all[1..]).then_some(())
    })
    .await;
    let days: i64 = eventually("and so is its name", async || {
        let count = "SELECT count(*) FROM days";
        let days: i64 = file.query_row(count, [], |row| row.get(0)).unwrap();
        (days == 2).then_some(days)
    })
    .await;
    assert_eq!(days, 2);
    assert_eq!(store.used(key.record.id, second, 100).await.unwrap(), 1);

    // Long after all of them: the two that were charged last stay.
    hands.set("2030-01-01T00:00:00Z");
    turns(&file, 3).await;
    assert_eq!(dates().await, all[1..]);
}

/// Waits until the store has had so many turns at dropping days: it has one with each heartbeat.
async fn turns(file: &Connection, count: usize) {
    let seen = || -> i64 {
        file.query_row("SELECT seen FROM gateways", [], |row| row.get(0))
            .unwrap()
    };
    // The one that is under way may have begun before.
    for _ in 0..=count {
        let before = seen();
        eventually("a turn is over", async || (seen() != before).then_some(())).await;
    }
}

/// A wall clock and a boot-time clock that stand where the test puts them.
#[derive(Clone, Default)]
struct TwoHands {
    wall: Hands,
    boot_seconds: Arc<AtomicI64>,
}

impl TwoHands {
    fn clock(&self) -> Clock {
        let boot = self.boot_seconds.clone();
        let seconds = move || u64::try_from(boot.load(Ordering::SeqCst)).unwrap_or(0);
        self.wall
            .clock()
            .beside(move || Duration::from_secs(seconds()))
    }
}

#[tokio::test]
async fn a_clock_that_leapt_drops_nothing_until_it_has_agreed_for_an_hour() {
    const HOUR: i64 = 3_600;
    let log = log_lines();
    let fixture = EmbeddedFixture::new();
    let hands = TwoHands::default();
    hands.wall.set("2025-11-01T12:00:00Z");
    let store = fixture.gateway_at(ZONE, hands.clock()).await;
    let calendar = Calendar::of_zone(ZONE).unwrap();
    let key = issue(&store).await;
    let mut all = Vec::new();
    for now in [
        "2025-11-01T12:00:00Z",
        "2025-11-02T12:00:00Z",
        "2025-11-03T12:00:00Z",
    ] {
        hands.wall.set(now);
        let day = calendar.day_at(store.now()).unwrap();
        granted(store.charge(charge(&key, day, 10, 1)).await);
        all.push(day.date);
    }
    let dates = async || -> Vec<Date> { ledger(&store).await.iter().map(|row| row.date).collect() };
    let file = Connection::open(fixture.path()).unwrap();
    hands.wall.set("2028-01-01T00:00:00Z");
    eventually("the leap is reported", async || {
        let leap = store.health().clock_leap?.to_string();
        leap.ends_with("for an hour").then_some(())
    })
    .await;
    // Charges go by the time to which the clock was just set.
    let day = calendar.day_at(store.now()).unwrap();
    granted(store.charge(charge(&key, day, 10, 1)).await);
    all.push(day.date);
    // A second less than an hour of both clocks.
    hands.wall.set("2028-01-01T00:59:59Z");
    hands.boot_seconds.store(HOUR - 1, Ordering::SeqCst);
    turns(&file, 3).await;
    assert_eq!(dates().await, all);
    assert!(store.health().clock_leap.is_some());
    hands.wall.set("2028-01-01T01:00:00Z");
    hands.boot_seconds.store(HOUR, Ordering::SeqCst);
    eventually("what was kept long enough is gone", async || {
        (dates().await == all[2..]).then_some(())
    })
    .await;
    assert_eq!(store.health().clock_leap, None);
    eventually("each dropped day has a line, and no other", async || {
        let lines = all
            .iter()
            .map(|date| log.with(&["was dropped", &date.to_string()]));
        (lines.collect::<Vec<_>>() == [1, 1, 0, 0]).then_some(())
    })
    .await;
}
