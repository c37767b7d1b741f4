//! The chain of closed days: when a day is closed, what reopens it, and that its digest is that of its rows.

use jiff::civil::Date;
use tokio::sync::mpsc;
use touchline::store::chain::{ChainCheck, ChainEntry, ChainItem, CheckedChain, DayState};
use touchline::store::export::{Exported, ImportMode, KeyDay, ProducerAccount, Sheet};
use touchline::store::{RefusalReason, Totals};

use super::*;

const ALL: (Date, Date) = (Date::constant(1, 1, 1), Date::MAX);

/// A gateway on a file, with a clock of the test's.
async fn gateway_on(path: PathBuf, hands: &Hands, keeping: Keeping) -> Arc<dyn Store> {
    let settings = Settings {
        keeping,
        ..Settings::new(path)
    };
    let role = Role::Gateway(NodeName("b".into()));
    open(settings, role, ZONE, hands.clock()).await.unwrap()
}

/// The entries and rows of a store's chain, and the result of checking them.
async fn chain_of(store: &Arc<dyn Store>) -> (Vec<ChainEntry>, Vec<ChainItem>, CheckedChain) {
    let (sender, mut pieces) = mpsc::channel::<ChainItem>(100);
    let chained = store.chained().unwrap();
    let take = async {
        let (mut entries, mut rows, mut check) =
            (Vec::new(), Vec::new(), ChainCheck::of(Some(ALL), None));
        while let Some(piece) = pieces.recv().await {
            check.take(piece.clone());
            match piece {
                ChainItem::Entry(entry) => entries.push(entry),
                row => rows.push(row),
            }
        }
        (entries, rows, check.finish())
    };
    let (read, chain) = tokio::join!(chained.read_chain(Some(ALL), sender), take);
    read.unwrap();
    chain
}

/// The days and states of the entries, in order.
async fn states(store: &Arc<dyn Store>) -> Vec<(String, DayState)> {
    let entries = chain_of(store).await.0.into_iter();
    entries
        .map(|one| (one.date.to_string(), one.state))
        .collect()
}

fn entries(expected: &[(&str, DayState)]) -> Vec<(String, DayState)> {
    let expected = expected.iter();
    expected
        .map(|(date, state)| ((*date).to_owned(), *state))
        .collect()
}

/// Waits until the chain has these entries, and all of it holds.
async fn eventually_has(store: &Arc<dyn Store>, expected: &[(&str, DayState)]) {
    let what = format!("the chain has {expected:?}");
    eventually(&what, async || {
        (states(store).await == entries(expected)).then_some(())
    })
    .await;
    assert_eq!(chain_of(store).await.2.faults, []);
}

/// Waits until the gateway has had its turn, twice.
async fn turns(path: &Path) {
    let file = Connection::open(path).unwrap();
    file.busy_timeout(Duration::from_secs(5)).unwrap();
    let seen = || -> i64 {
        let seen = "SELECT max(seen) FROM gateways";
        file.query_row(seen, [], |row| row.get(0)).unwrap()
    };
    for _ in 0..2 {
        let before = seen();
        eventually("a turn is over", async || (seen() > before).then_some(())).await;
    }
}

fn day_at(store: &Arc<dyn Store>) -> touchline::policy::calendar::Day {
    let calendar = Calendar::of_zone(ZONE).unwrap();
    calendar.day_at(store.now()).unwrap()
}

#[tokio::test]
async fn days_are_closed_once_and_in_order_when_their_settle_window_is_over() {
    let fixture = EmbeddedFixture::new();
    let hands = Hands::default();
    hands.set("2026-11-01T12:00:00Z");
    // Two processes, as during an upgrade.
    let store = fixture.gateway_at(ZONE, hands.clock()).await;
    let other = gateway_on(fixture.path(), &hands, Keeping::default()).await;
    let key = issue(&store).await;
    for noon in [
        "2026-11-01T12:00:00Z",
        "2026-11-02T12:00:00Z",
        "2026-11-03T12:00:00Z",
    ] {
        hands.set(noon);
        let charged = store.charge(charge(&key, day_at(&store), 10, 2)).await;
        granted(charged);
    }
    hands.set("2026-11-08T23:59:59Z");
    turns(&fixture.path()).await;
    assert_eq!(states(&store).await, []);
    hands.set("2026-11-10T00:00:00Z");
    let two = [
        ("2026-11-01", DayState::Closed),
        ("2026-11-02", DayState::Closed),
    ];
    eventually_has(&store, &two).await;
    turns(&fixture.path()).await;
    assert_eq!(states(&store).await, entries(&two));
    hands.set("2026-11-11T00:00:00Z");
    eventually_has(&other, &[two[0], two[1], ("2026-11-03", DayState::Closed)]).await;
    let (entries, rows, _) = chain_of(&store).await;
    assert!(entries.iter().all(|entry| entry.rows == 1) && rows.len() == 3);
}

#[tokio::test]
async fn a_refund_of_a_closed_day_reopens_it_and_it_is_closed_again() {
    let fixture = EmbeddedFixture::new();
    let hands = Hands::default();
    hands.set("2026-11-01T12:00:00Z");
    let store = fixture.gateway_at(ZONE, hands.clock()).await;
    let key = issue(&store).await;
    let day = day_at(&store);
    let (_, receipt) = granted(store.charge(charge(&key, day, 10, 2)).await);
    hands.set("2026-11-09T00:00:00Z");
    eventually_has(&store, &[("2026-11-01", DayState::Closed)]).await;
    // Another process that knows the count learns of the refund.
    let other = gateway_on(fixture.path(), &hands, Keeping::default()).await;
    assert_eq!(other.used(key.record.id, day, 100).await.unwrap(), 2);
    assert_eq!(store.refund(receipt).await, Some(0));
    crate::suite::eventually_used(&other, &key, day, 0).await;
    // What was refused then and could not be written is not counted any more.
    store.refused(&key, day, &"markets".into(), RefusalReason::Tier);
    let all = [DayState::Closed, DayState::Reopened, DayState::Closed];
    eventually_has(&store, &all.map(|state| ("2026-11-01", state))).await;
    turns(&fixture.path()).await;
    assert_eq!(states(&store).await.len(), 3);
    let row = ledger(&store).await.remove(0);
    assert_eq!(
        (row.used, row.adjusted(), row.totals().refused()),
        (2, -2, 0)
    );
}

#[tokio::test]
async fn a_day_that_a_clock_closed_which_was_ahead_goes_on_and_is_closed_again() {
    let fixture = EmbeddedFixture::new();
    let hands = Hands::default();
    hands.set("2026-11-01T12:00:00Z");
    let store = fixture.gateway_at(ZONE, hands.clock()).await;
    let key = issue(&store).await;
    let day = day_at(&store);
    granted(store.charge(charge(&key, day, 10, 2)).await);
    hands.set("2026-12-01T12:00:00Z");
    eventually_has(&store, &[("2026-11-01", DayState::Closed)]).await;
    hands.set("2026-11-01T13:00:00Z");
    for used in [4, 6, 8] {
        assert_eq!(
            granted(store.charge(charge(&key, day, 10, 2)).await).0,
            used
        );
    }
    let reopened = [
        ("2026-11-01", DayState::Closed),
        ("2026-11-01", DayState::Reopened),
    ];
    eventually_has(&store, &reopened).await;
    turns(&fixture.path()).await;
    assert_eq!(states(&store).await, entries(&reopened));
    hands.set("2026-11-09T00:00:00Z");
    eventually_has(&store, &[reopened[0], reopened[1], reopened[0]]).await;
}

/// What another store counted of a key's day at so many endpoints.
fn key_day(key: &str, date: &str, endpoints: usize) -> Exported {
    let calendar = Calendar::of_zone(ZONE).unwrap();
    let day = calendar.day_of(date.parse().unwrap()).unwrap();
    let totals = Totals {
        requests: 1,
        charged: 1,
        ..Totals::default()
    };
    let sheet = |number| Sheet {
        producer: "other.0".into(),
        tier: Some("pro".parse().unwrap()),
        endpoint: format!("/{number}"),
        numbers: totals.numbers().to_vec(),
        limit: 10_000,
        granted: 0,
    };
    Exported::KeyDay(Box::new(KeyDay {
        key: key.parse().unwrap(),
        date: day.date,
        start: day.start,
        end: day.end,
        accounts: vec![ProducerAccount {
            producer: "other.1".into(),
            granted: endpoints as u64,
            returned: 0,
        }],
        sheets: (0..endpoints).map(sheet).collect(),
        late: Vec::new(),
    }))
}

#[tokio::test]
async fn what_comes_while_a_day_is_being_closed_is_in_its_digest() {
    let fixture = EmbeddedFixture::new();
    let hands = Hands::default();
    hands.set("2026-11-20T12:00:00Z");
    let store = fixture.gateway_at(ZONE, hands.clock()).await;
    // More rows than six turns digest, a second each; what comes afterwards is before the rows that are digested by then.
    let (many, one) = (
        key_day("zzzzzzzzzzzz", "2026-11-01", 6_500),
        key_day("000000000000", "2026-11-01", 1),
    );
    store
        .import_exported(vec![many], ImportMode::Write)
        .await
        .unwrap();
    let file = Connection::open(fixture.path()).unwrap();
    file.busy_timeout(Duration::from_secs(5)).unwrap();
    eventually("the day is being closed", async || {
        let mark = "SELECT value FROM meta WHERE name = 'closing'";
        let mark = file.query_row(mark, [], |row| row.get::<_, String>(0));
        mark.ok().filter(|mark| mark.starts_with("2026-11-01"))
    })
    .await;
    assert_eq!(states(&store).await, [], "it is being closed still");
    store
        .import_exported(vec![one], ImportMode::Write)
        .await
        .unwrap();
    eventually_has(&store, &[("2026-11-01", DayState::Closed)]).await;
    assert_eq!(chain_of(&store).await.0[0].rows, 6_501);
    // Exported again it changes nothing; a rehearsal of more neither.
    let more = key_day("000000000001", "2026-11-01", 1);
    let again = key_day("000000000000", "2026-11-01", 1);
    store
        .import_exported(vec![again], ImportMode::Write)
        .await
        .unwrap();
    store
        .import_exported(vec![more], ImportMode::DryRun)
        .await
        .unwrap();
    assert_eq!(states(&store).await.len(), 1);
}

#[tokio::test]
async fn a_copied_day_has_the_digest_of_its_rows_that_it_had() {
    let (one, two) = (EmbeddedFixture::new(), EmbeddedFixture::new());
    let hands = Hands::default();
    hands.set("2026-11-01T12:00:00Z");
    let from = one.gateway_at(ZONE, hands.clock()).await;
    let keys = [issue(&from).await, issue(&from).await];
    let day = day_at(&from);
    let mut late = None;
    for (key, endpoint) in keys.iter().zip(["markets", "insights"]) {
        for cost in [1, 2, 3] {
            let asked = charge_for(key, day, 10, cost, endpoint);
            let (_, receipt) = granted(from.charge(asked).await);
            match cost {
                2 => drop(from.refund(receipt).await),
                _ => late = Some(receipt),
            }
        }
        from.refused(key, day, &"rankings".into(), RefusalReason::Method);
    }
    hands.set("2026-11-20T12:00:00Z");
    eventually_has(&from, &[("2026-11-01", DayState::Closed)]).await;
    from.refund(late.unwrap()).await;
    let reopened = [DayState::Closed, DayState::Reopened, DayState::Closed];
    eventually_has(&from, &reopened.map(|state| ("2026-11-01", state))).await;
    let to = two.gateway_at(ZONE, hands.clock()).await;
    let (sender, mut pieces) = mpsc::channel(1_000);
    from.export(sender).await.unwrap();
    let mut exported = Vec::new();
    while let Some(piece) = pieces.recv().await {
        exported.push(piece);
    }
    to.import_exported(exported, ImportMode::Write)
        .await
        .unwrap();
    eventually_has(&to, &[("2026-11-01", DayState::Closed)]).await;
    let ((before, rows, _), (after, copied, _)) = (chain_of(&from).await, chain_of(&to).await);
    assert_eq!(rows, copied);
    assert_eq!(before[2].rows_sha256, after[0].rows_sha256);
    assert_ne!(before[2].digest, after[0].digest);
}

#[tokio::test]
async fn the_entries_of_days_that_the_retention_dropped_stay_in_the_chain() {
    let fixture = EmbeddedFixture::new();
    let hands = Hands::default();
    hands.set("2026-01-01T12:00:00Z");
    let keeping = Keeping {
        retention: Duration::from_secs(62 * 86_400),
        // The clock of the test leaps.
        agreement: Duration::ZERO,
        ..Keeping::default()
    };
    let store = gateway_on(fixture.path(), &hands, keeping).await;
    let key = issue(&store).await;
    // The two days that were charged last stay.
    let dates = ["2026-01-01", "2026-01-02", "2026-01-03"];
    for noon in dates.map(|date| format!("{date}T12:00:00Z")) {
        hands.set(&noon);
        granted(store.charge(charge(&key, day_at(&store), 10, 2)).await);
    }
    hands.set("2026-03-04T12:00:00Z");
    let closed = dates.map(|date| (date, DayState::Closed));
    eventually_has(&store, &closed).await;
    // A gateway that was killed had begun to close it again.
    let file = Connection::open(fixture.path()).unwrap();
    let mark = "INSERT INTO meta (name, value) VALUES ('closing', '2026-01-01 0')";
    file.execute(mark, []).unwrap();
    hands.set("2026-03-05T12:00:00Z");
    let dropped = [&closed[..], &[("2026-01-01", DayState::Dropped)]].concat();
    eventually_has(&store, &dropped).await;
    eventually("the day is gone", async || {
        let (_, rows, _) = chain_of(&store).await;
        (rows.len() == 2).then_some(())
    })
    .await;
    let (_, _, checked) = chain_of(&store).await;
    assert_eq!((checked.faults.len(), checked.closed_days), (0, 2));
    let marks = "SELECT count(*) FROM meta WHERE name = 'closing'";
    let marks: i64 = file.query_row(marks, [], |row| row.get(0)).unwrap();
    assert_eq!(marks, 0, "it is not closed after it was dropped");
}
