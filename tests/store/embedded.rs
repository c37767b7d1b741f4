//! The embedded store: the shared suite, and what only it has: a file, an injected clock, a model.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use rusqlite::Connection;
use touchline::clock::Clock;
use touchline::policy::calendar::Calendar;
use touchline::policy::key_record::KeyRecord;
use touchline::store::embedded::{Durability, EmbeddedStore, Settings, open};
use touchline::store::{Decision, Keeping, KeyEntry, NodeName, Role, Store, StoreError};

use crate::log_lines::log_lines;
use crate::suite::{
    Fixture, PATIENCE, WholeLedger, ZONE, charge, charge_for, day_around_now, eventually,
    exhausted, granted, issue, ledger, new_record, today,
};

/// A database file in a directory of its own.
struct EmbeddedFixture {
    directory: tempfile::TempDir,
    durability: Durability,
}

impl EmbeddedFixture {
    fn new() -> EmbeddedFixture {
        EmbeddedFixture {
            directory: tempfile::tempdir().unwrap(),
            durability: Durability::default(),
        }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("touchline.db")
    }

    /// A gateway's handle with a clock of the test's.
    async fn gateway_at(&self, zone: &str, clock: Clock) -> Arc<dyn Store> {
        let role = Role::Gateway(NodeName("a".into()));
        open(Settings::new(self.path()), role, zone, clock)
            .await
            .unwrap()
    }
}

#[async_trait]
impl Fixture for EmbeddedFixture {
    async fn try_open(
        &self,
        role: Role,
        zone: &str,
        keeping: Keeping,
    ) -> Result<Arc<dyn Store>, StoreError> {
        let settings = Settings {
            durability: self.durability,
            keeping,
            ..Settings::new(self.path())
        };
        let store = open(settings, role, zone, Clock::system()).await?;
        Ok(store)
    }
}

mod closing;
mod model;
mod reckoning;

store_suite!(EmbeddedFixture::new());

/// A clock that stands where the test puts it.
#[derive(Clone, Default)]
struct Hands(Arc<AtomicI64>);

impl Hands {
    fn set(&self, now: &str) {
        let now: Timestamp = now.parse().unwrap();
        self.0.store(now.as_millisecond(), Ordering::SeqCst);
    }

    fn clock(&self) -> Clock {
        let hands = self.0.clone();
        Clock::from_fn(move || {
            Timestamp::from_millisecond(hands.load(Ordering::SeqCst)).unwrap_or_default()
        })
    }
}

async fn open_file(path: &Path) -> Result<Arc<EmbeddedStore>, StoreError> {
    open(Settings::new(path), Role::Command, ZONE, Clock::system()).await
}

async fn refused_at_open(path: &Path) -> String {
    match open_file(path).await {
        Err(error @ StoreError::Failed(_)) => error.to_string(),
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("opened"),
    }
}

#[tokio::test]
async fn a_courier_that_a_clock_which_was_ahead_gave_hours_is_succeeded() {
    let (directory, hands) = (tempfile::tempdir().unwrap(), Hands::default());
    hands.set("2026-11-21T14:00:00Z");
    let settings = Settings::new(directory.path().join("touchline.db"));
    let store = open(settings, Role::Command, ZONE, hands.clock()).await;
    let store = store.unwrap();
    let takes = async |name: &str| {
        let node = NodeName(name.into());
        let events = store.undelivered(&node, Duration::from_secs(15), 0).await;
        events.unwrap().is_some()
    };
    assert!(takes("dead").await);
    assert!(!takes("next").await);
    hands.set("2026-11-21T12:00:00Z");
    assert!(takes("next").await);
    assert!(!takes("dead").await);
}

/// Both sides of a midnight: a limit of 2 is used up before it, and 2 more are there after it.
async fn each_side_of_midnight_has_its_own_count(zone: &str, hours: i64, last: &str, first: &str) {
    let fixture = EmbeddedFixture::new();
    let hands = Hands::default();
    hands.set(last);
    let store = fixture.gateway_at(zone, hands.clock()).await;
    let calendar = Calendar::of_zone(zone).unwrap();
    let key = issue(&store).await;
    let day = calendar.day_at(store.now()).unwrap();
    assert_eq!(day.length_seconds(), hours * 3_600);
    assert_eq!(granted(store.charge(charge(&key, day, 2, 1)).await).0, 1);
    assert_eq!(granted(store.charge(charge(&key, day, 2, 1)).await).0, 2);
    assert_eq!(exhausted(store.charge(charge(&key, day, 2, 1)).await), 2);

    hands.set(first);
    let late = store.charge(charge(&key, day, 2, 1)).await.unwrap();
    let Decision::OtherDay { now } = late else {
        panic!("{late:?}");
    };
    let next = calendar.day_at(now).unwrap();
    assert_eq!(next.date, day.date.tomorrow().unwrap());
    assert_eq!(next.start, day.end);
    assert_eq!(granted(store.charge(charge(&key, next, 2, 1)).await).0, 1);
    assert_eq!(store.used(key.record.id, day, 100).await.unwrap(), 2);

    hands.set(last);
    let early = store.charge(charge(&key, next, 2, 1)).await.unwrap();
    assert!(matches!(early, Decision::OtherDay { .. }), "{early:?}");
}

#[tokio::test]
async fn the_last_and_first_second_around_a_utc_midnight_count_for_their_own_days() {
    let (last, first) = ("2026-11-21T23:59:59.999Z", "2026-11-22T00:00:00Z");
    each_side_of_midnight_has_its_own_count("UTC", 24, last, first).await;
}

#[tokio::test]
async fn the_last_and_first_second_around_a_day_of_23_hours_count_for_their_own_days() {
    let (last, first) = ("2026-03-29T22:59:59.999Z", "2026-03-29T23:00:00Z");
    each_side_of_midnight_has_its_own_count("Europe/London", 23, last, first).await;
}

#[tokio::test]
async fn the_last_and_first_second_around_a_day_of_25_hours_count_for_their_own_days() {
    let (last, first) = ("2026-11-02T04:59:59.999Z", "2026-11-02T05:00:00Z");
    each_side_of_midnight_has_its_own_count("America/New_York", 25, last, first).await;
}

#[tokio::test]
async fn a_charge_that_waits_for_the_lock_until_the_day_is_over_is_not_counted_on_it() {
    let fixture = EmbeddedFixture::new();
    let hands = Hands::default();
    hands.set("2026-11-21T23:59:59.999Z");
    let store = fixture.gateway_at(ZONE, hands.clock()).await;
    let key = issue(&store).await;
    let day = Calendar::of_zone(ZONE)
        .and_then(|calendar| calendar.day_at(store.now()))
        .unwrap();
    let other = Connection::open(fixture.path()).unwrap();
    other.busy_timeout(PATIENCE).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let midnight = async {
        hands.set("2026-11-22T00:00:00Z");
        other.execute_batch("ROLLBACK").unwrap();
    };
    // The charge is on its way, and its day is right, when midnight comes.
    let charged = store.charge(charge(&key, day, 2, 1));
    let (decision, ()) = tokio::join!(biased; charged, midnight);
    let Ok(Decision::OtherDay { now }) = decision else {
        panic!("{decision:?}");
    };
    assert_eq!(now.as_second(), day.end);
    assert_eq!(store.used(key.record.id, day, 100).await.unwrap(), 0);
}

#[tokio::test]
async fn a_version_rises_even_when_the_clock_goes_back() {
    let fixture = EmbeddedFixture::new();
    let hands = Hands::default();
    hands.set("2026-11-21T12:00:00Z");
    let store = fixture.gateway_at(ZONE, hands.clock()).await;
    let (made, _) = store.create_key(new_record("pro")).await.unwrap();
    assert_eq!(made.created, store.now());
    hands.set("2026-11-21T11:00:00Z");
    let (changed, _) = store.update_key(made.clone()).await.unwrap();
    assert_eq!(changed.version, made.version + 1);
    assert_eq!(changed.created, made.created);
}

#[tokio::test]
async fn a_key_that_the_database_does_not_have_is_never_granted() {
    let fixture = EmbeddedFixture::new();
    let store = fixture.gateway("a").await;
    let stranger = KeyEntry::new(KeyRecord {
        version: u64::MAX,
        ..new_record("pro")
    });
    let decision = store.charge(charge(&stranger, today(), 10, 1)).await;
    assert!(matches!(decision, Ok(Decision::KeyChanged)), "{decision:?}");
    assert!(store.keys().find(&stranger.record.digest).is_none());
    assert_eq!(ledger(&store).await, []);
}

#[tokio::test]
async fn with_a_commit_per_answer_the_limit_is_exact_too() {
    let fixture = EmbeddedFixture {
        durability: Durability::Commit,
        ..EmbeddedFixture::new()
    };
    crate::suite::two_processes_together_grant_exactly_the_limit(&fixture).await;
}

#[tokio::test]
async fn the_file_and_its_directory_are_made_for_their_owner_only() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("deep/er/touchline.db");
    let store: Arc<dyn Store> = open_file(&path).await.unwrap();
    issue(&store).await;
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&directory.path().join("deep")), 0o700);
    assert_eq!(mode(&directory.path().join("deep/er")), 0o700);
    assert_eq!(mode(&path), 0o600);
    assert_eq!(
        mode(&directory.path().join("deep/er/touchline.db-wal")),
        0o600
    );
}

#[tokio::test]
async fn a_file_that_is_no_database_of_ours_is_refused_and_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("touchline.db");
    let text = "listen: { address: 127.0.0.1:8080 }\n".repeat(200);
    std::fs::write(&path, &text).unwrap();
    let message = refused_at_open(&path).await;
    assert!(message.contains("not an SQLite database"), "{message}");
    assert!(message.contains(path.to_str().unwrap()), "{message}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text);

    let path = directory.path().join("other.db");
    let other = Connection::open(&path).unwrap();
    other
        .execute_batch("CREATE TABLE songs (name TEXT)")
        .unwrap();
    drop(other);
    let before = std::fs::read(&path).unwrap();
    let message = refused_at_open(&path).await;
    assert!(message.contains("another program"), "{message}");
    assert!(message.contains(path.to_str().unwrap()), "{message}");
    assert!(std::fs::read(&path).unwrap() == before, "it was changed");
}

#[tokio::test]
async fn a_damaged_database_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("touchline.db");
    let store = open_file(&path).await.unwrap();
    store.close(PATIENCE).await;
    drop(store);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[100..].fill(0xA5);
    for ending in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{}{ending}", path.display()));
    }
    std::fs::write(&path, &bytes).unwrap();
    let message = refused_at_open(&path).await;
    assert!(message.contains("damaged"), "{message}");
    assert!(message.contains(path.to_str().unwrap()), "{message}");
    assert!(std::fs::read(&path).unwrap() == bytes, "it was changed");
}

#[tokio::test]
async fn a_database_of_another_version_is_refused_and_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("touchline.db");
    let store = open_file(&path).await.unwrap();
    store.close(PATIENCE).await;
    drop(store);
    let file = Connection::open(&path).unwrap();
    for (version, hint) in [(3, "make a backup with the version"), (99, "a later one")] {
        let other = format!("PRAGMA user_version = {version}");
        file.execute_batch(&other).unwrap();
        let message = refused_at_open(&path).await;
        assert!(message.contains(&format!("schema {version} ")), "{message}");
        assert!(message.contains(hint), "{message}");
        let kept: i64 = file
            .query_row("PRAGMA user_version", [], |row| row.get(0))
            .unwrap();
        assert_eq!(kept, version);
    }
}

/// Waits until the ledger has everything that was charged.
async fn eventually_in_ledger(file: &Connection) {
    file.busy_timeout(PATIENCE).unwrap();
    eventually("the ledger has all charges", async || {
        let appended = "SELECT count(*) FROM appended";
        let appended: i64 = file.query_row(appended, [], |row| row.get(0)).unwrap();
        (appended == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_group_of_another_format_is_refused_and_never_misread() {
    let fixture = EmbeddedFixture::new();
    let store = fixture.gateway("a").await;
    let key = issue(&store).await;
    granted(store.charge(charge(&key, today(), 10, 1)).await);
    // As another process of a later version would append.
    let other = Connection::open(fixture.path()).unwrap();
    other.busy_timeout(PATIENCE).unwrap();
    let append = "INSERT INTO appended (number, entries) VALUES (1 + (SELECT max(max(number), max(through)) FROM appended, folding), x'02AB')";
    other.execute_batch(append).unwrap();
    let failed = store.charge(charge(&key, today(), 10, 1)).await;
    let Err(StoreError::Failed(why)) = failed else {
        panic!("{failed:?}");
    };
    assert!(why.contains("a group of charges has format 2"), "{why}");
    let read = store.usage(today().date, today().date, None).await;
    assert!(matches!(read, Err(StoreError::Failed(_))), "{read:?}");
    other
        .execute_batch("DELETE FROM appended WHERE entries = x'02AB'")
        .unwrap();
    assert_eq!(
        granted(store.charge(charge(&key, today(), 10, 1)).await).0,
        2
    );
}

#[tokio::test]
async fn the_ledger_gets_what_was_charged_also_of_a_process_that_has_ended() {
    let fixture = EmbeddedFixture::new();
    let ended = fixture.gateway("a").await;
    let key = issue(&ended).await;
    let store = fixture.gateway("b").await;
    granted(ended.charge(charge(&key, today(), 10, 3)).await);
    ended.close(PATIENCE).await;
    drop(ended);
    let file = Connection::open(fixture.path()).unwrap();
    let appended = "SELECT count(*) FROM appended";
    let appended: i64 = file.query_row(appended, [], |row| row.get(0)).unwrap();
    assert_eq!(appended, 1);
    assert_eq!(ledger(&store).await[0].used, 3);
    eventually_in_ledger(&file).await;
    let sum = "SELECT sum(charged) FROM ledger";
    let charged: i64 = file.query_row(sum, [], |row| row.get(0)).unwrap();
    assert_eq!(charged, 3);
    assert_eq!(ledger(&store).await[0].used, 3);
    assert_eq!(
        granted(store.charge(charge(&key, today(), 10, 1)).await).0,
        4
    );
}

#[tokio::test]
async fn a_path_that_cannot_be_made_is_refused_with_a_hint() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    std::fs::write(&file, "").unwrap();
    for path in [file.join("touchline.db"), directory.path().to_path_buf()] {
        let message = refused_at_open(&path).await;
        assert!(message.contains(path.to_str().unwrap()), "{message}");
        assert!(message.contains("store.embedded.path"), "{message}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_another_process_holds_the_lock_charges_wait_and_then_fail_without_being_counted() {
    let fixture = EmbeddedFixture::new();
    let settings = Settings {
        timeout: Duration::from_millis(100),
        ..Settings::new(fixture.path())
    };
    let role = Role::Gateway(NodeName("a".into()));
    let store: Arc<dyn Store> = open(settings, role, ZONE, Clock::system()).await.unwrap();
    let key = issue(&store).await;
    let (_, receipt) = granted(store.charge(charge(&key, today(), 10, 1)).await);
    let other = Connection::open(fixture.path()).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    for _ in 0..3 {
        let unanswered = store.charge(charge(&key, today(), 10, 1)).await;
        assert!(
            matches!(unanswered, Err(StoreError::Unavailable(_))),
            "{unanswered:?}"
        );
    }
    assert_eq!(store.refund(receipt).await, None);
    other.execute_batch("ROLLBACK").unwrap();
    crate::suite::eventually_used(&store, &key, today(), 0).await;
    eventually("the store is up", async || store.health().up.then_some(())).await;
}

#[tokio::test]
async fn a_key_known_to_be_exhausted_is_refused_without_asking_the_database() {
    let fixture = EmbeddedFixture::new();
    let store = fixture.gateway("a").await;
    let key = issue(&store).await;
    let day = today();
    granted(store.charge(charge(&key, day, 3, 3)).await);
    let other = Connection::open(fixture.path()).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert_eq!(exhausted(store.charge(charge(&key, day, 3, 1)).await), 3);
    assert_eq!(store.used(key.record.id, day, 100).await.unwrap(), 3);
    // A second later it asks again.
    let asked = tokio::time::timeout(PATIENCE, async {
        loop {
            let mut asking = store.charge(charge(&key, day, 3, 1));
            let output = tokio::time::timeout(Duration::from_millis(50), &mut asking).await;
            if output.is_err() {
                other.execute_batch("ROLLBACK").unwrap();
                return asking.await;
            }
        }
    });
    assert_eq!(exhausted(asked.await.unwrap()), 3);
}

#[tokio::test]
async fn a_group_that_cannot_be_written_charges_nothing_and_keeps_its_refunds() {
    let fixture = EmbeddedFixture::new();
    let store = fixture.gateway("a").await;
    let key = issue(&store).await;
    let day = today();
    let (_, receipt) = granted(store.charge(charge(&key, day, 10, 4)).await);
    // A rule that no group can keep stands for a disk that cannot be written.
    let other = Connection::open(fixture.path()).unwrap();
    other
        .execute_batch(
            "CREATE TRIGGER full BEFORE INSERT ON appended BEGIN SELECT RAISE(ABORT, 'full'); END",
        )
        .unwrap();
    let (failed, refund) = tokio::join!(
        store.charge(charge(&key, day, 10, 1)),
        tokio::time::timeout(Duration::from_millis(200), store.refund(receipt)),
    );
    assert!(matches!(failed, Err(StoreError::Failed(_))), "{failed:?}");
    assert!(refund.is_err(), "the refund still waits");
    let health = store.health();
    assert!(!health.up && health.trouble.is_some(), "{health:?}");
    other.execute_batch("DROP TRIGGER full").unwrap();
    crate::suite::eventually_used(&store, &key, day, 0).await;
    let row = ledger(&store).await.remove(0);
    let totals = row.endpoints["markets"];
    assert_eq!(
        (totals.requests, totals.charged, totals.refunded),
        (1, 4, 4)
    );
}

/// From now on neither a group nor a heartbeat can be written, as on a full disk.
fn fill_disk(fixture: &EmbeddedFixture) -> Connection {
    let other = Connection::open(fixture.path()).unwrap();
    for table in ["appended", "gateways"] {
        let rule = format!(
            "CREATE TRIGGER full_{table} BEFORE INSERT ON {table} BEGIN SELECT RAISE(ABORT, 'full'); END"
        );
        other.execute_batch(&rule).unwrap();
    }
    other
}

#[tokio::test]
async fn a_full_disk_is_logged_once_and_so_is_its_end() {
    let log = log_lines();
    let fixture = EmbeddedFixture::new();
    let store = fixture.gateway("a").await;
    let path = fixture.path().display().to_string();
    let (key, day) = (issue(&store).await, today());
    let other = fill_disk(&fixture);
    for _ in 0..20 {
        store.charge(charge(&key, day, 10, 1)).await.unwrap_err();
    }
    for table in ["appended", "gateways"] {
        let allow = format!("DROP TRIGGER full_{table}");
        other.execute_batch(&allow).unwrap();
    }
    granted(store.charge(charge(&key, day, 10, 1)).await);
    // A heartbeat may have failed last, and the charge's own outcome is noted after its answer.
    eventually("the end of the failure is noted", async || {
        store.health().up.then_some(())
    })
    .await;
    assert_eq!(log.with(&["the database cannot be written", &path]), 1);
    assert_eq!(log.with(&["the database is written again", &path]), 1);
    assert_eq!(log.with(&["ERROR", &path]), 1);
}

#[tokio::test]
async fn refunds_that_a_full_disk_keeps_from_the_database_to_the_end_are_logged() {
    let log = log_lines();
    let fixture = EmbeddedFixture::new();
    let store = fixture.gateway("a").await;
    let (key, day) = (issue(&store).await, today());
    let (_, receipt) = granted(store.charge(charge(&key, day, 10, 7)).await);
    let _full = fill_disk(&fixture);
    store.give_back(receipt);
    store.close(Duration::from_millis(300)).await;
    let path = fixture.path().display().to_string();
    let line = ["their units stay charged", "refunds=1 units=7", &path];
    assert_eq!(log.with(&line), 1);
}

#[tokio::test]
async fn a_closed_store_turns_charges_away_at_once() {
    let fixture = EmbeddedFixture::new();
    let store = fixture.gateway("a").await;
    let key = issue(&store).await;
    store.close(PATIENCE).await;
    let refused = store.charge(charge(&key, today(), 10, 1)).await;
    assert!(
        matches!(refused, Err(StoreError::Unavailable(_))),
        "{refused:?}"
    );
}

#[tokio::test]
async fn the_ledger_of_one_key_is_found_date_by_date() {
    let fixture = EmbeddedFixture::new();
    let store = fixture.gateway("a").await;
    let keys = [issue(&store).await, issue(&store).await];
    for date in ["2099-10-31", "2099-11-01", "2099-11-21"] {
        for key in &keys {
            let asked = charge_for(key, day_around_now(date), 5, 1, "insights");
            granted(store.charge(asked).await);
        }
    }
    let output = |from: &str, to: &str| {
        let (from, to) = (from.parse().unwrap(), to.parse().unwrap());
        let (store, id) = (store.clone(), keys[0].record.id);
        async move {
            let rows = store.usage(from, to, Some(id)).await.unwrap();
            assert!(rows.iter().all(|row| row.key == id && row.used == 1));
            assert!(
                rows.iter()
                    .all(|row| row.endpoints["insights"].charged == 1)
            );
            rows.iter()
                .map(|row| row.date.to_string())
                .collect::<Vec<_>>()
        }
    };
    let all = ["2099-10-31", "2099-11-01", "2099-11-21"];
    assert_eq!(output("2001-01-01", "2199-12-31").await, all);
    assert_eq!(output("2099-10-31", "2099-11-21").await, all);
    assert_eq!(output("2099-11-01", "2099-11-20").await, [all[1]]);
    assert_eq!(output("2099-11-22", "2099-12-01").await, [""; 0]);
    assert_eq!(output("2001-01-01", "2002-01-01").await, [""; 0]);
}
