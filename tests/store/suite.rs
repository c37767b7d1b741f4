//! Facts that hold for every store, seen through the trait alone.
//!
//! A store takes part with a [`Fixture`] and one line, `store_suite!(MyFixture::new().await)`, which makes one test per
//! fact. Each test gets a fixture of its own, hence an empty store. Every fact runs on the real clock, because a shared
//! store compares days with its own; what needs an injected clock is in the store's own file. A handle stands for a
//! process: facts that speak of two processes open two handles.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use jiff::civil::Date;
use tokio::time::Instant;
use touchline::policy::api_key::{ApiKey, KeyPrefix, os_entropy};
use touchline::policy::calendar::{Calendar, Day};
use touchline::policy::key_record::{KeyRecord, KeyState, PreviousDigest};
use touchline::store::{
    ChangeError, Charge, DayUsage, Decision, KeyEntry, NodeName, Receipt, Refusal, Role, Store,
    StoreError, Totals,
};

/// An empty store of one kind, opened as often as a fact wants.
#[async_trait]
pub trait Fixture: Send + Sync {
    /// Another handle on the same store, as another process would have, with the system's clock.
    async fn try_open(&self, role: Role, zone: &str) -> Result<Arc<dyn Store>, StoreError>;

    /// The same in the zone of most facts.
    async fn open(&self, role: Role) -> Arc<dyn Store> {
        self.try_open(role, ZONE).await.expect("the store opens")
    }

    /// A gateway's handle.
    async fn gateway(&self, name: &str) -> Arc<dyn Store> {
        self.open(Role::Gateway(NodeName(name.into()))).await
    }

    /// A command's handle.
    async fn command(&self) -> Arc<dyn Store> {
        self.open(Role::Command).await
    }
}

/// One test per fact for the fixture that the expression makes; it is evaluated inside an async function.
#[allow(unused_macros, reason = "until a store takes part")]
macro_rules! store_suite {
    ($fixture:expr) => {
        store_suite!(@facts $fixture;
            of_3000_concurrent_charges_exactly_the_limit_is_granted,
            two_processes_together_grant_exactly_the_limit,
            mixed_costs_and_refunds_in_two_processes_add_up_exactly,
            a_cost_is_charged_whole_or_not_at_all,
            a_lowered_limit_refuses_and_a_raised_one_grants_at_once,
            a_refund_reopens_an_exhausted_key_within_the_second,
            a_refund_in_one_process_reopens_the_key_in_another_within_two_seconds,
            a_refund_after_midnight_goes_to_the_day_of_its_charge,
            two_processes_crossing_midnights_grant_exactly_the_limit_each_day,
            a_dropped_charge_gives_its_units_back,
            a_charge_with_an_older_record_is_not_granted,
            a_revocation_holds_from_the_next_charge_of_another_process,
            a_changed_key_keeps_its_count,
            of_two_changes_from_the_same_reading_one_is_made,
            an_id_or_digest_in_use_is_refused,
            an_unknown_key_cannot_be_changed,
            the_store_dates_and_versions_every_record,
            all_keys_come_in_the_order_of_their_creation,
            a_change_reaches_the_key_table_of_another_process,
            an_applied_change_awaits_nobody,
            a_gateway_that_does_not_apply_a_change_is_named,
            a_gateway_that_said_goodbye_is_not_awaited,
            the_ledger_reconciles_with_the_counts_by_day_key_and_endpoint,
            refused_requests_are_counted_by_their_reason,
            usage_is_told_for_the_asked_days_and_key_only,
            used_is_told_without_a_charge,
            a_day_with_other_boundaries_is_refused,
            a_day_that_is_over_or_to_come_is_refused_with_the_stores_time,
            another_zone_is_refused_at_open,
            reopening_keeps_keys_counts_and_ledger,
            closing_writes_refunds_that_were_not_awaited,
            an_open_store_is_healthy,
        );
    };
    (@facts $fixture:expr; $($fact:ident,)+) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $fact() {
                let fixture = $fixture;
                crate::suite::$fact(&fixture).await;
            }
        )+
    };
}

/// The zone that the fixtures' stores are opened with.
pub const ZONE: &str = "UTC";
/// How long a fact that comes about in the background may take, ten times what it should.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// A day with this date that has been going on for an hour and goes on for another, so that no fact meets midnight.
pub fn day_around_now(date: &str) -> Day {
    let now = Timestamp::now().as_second();
    Day {
        date: date.parse().unwrap(),
        start: now - 3_600,
        end: now + 3_600,
    }
}

/// The day of most facts.
pub fn today() -> Day {
    day_around_now("2026-11-21")
}

/// The record of a new active key of a tier, as a command hands it to the store.
pub fn new_record(tier: &str) -> KeyRecord {
    let key = ApiKey::generate(&KeyPrefix::default(), &mut os_entropy);
    KeyRecord {
        id: key.id(),
        customer: "Acme".into(),
        label: None,
        tier: tier.parse().unwrap(),
        state: KeyState::Active,
        expires: None,
        digest: key.digest(),
        previous: None,
        grants: BTreeMap::new(),
        created: Timestamp::UNIX_EPOCH,
        updated: Timestamp::UNIX_EPOCH,
        version: 0,
    }
}

/// Issues a key.
pub async fn issue(store: &Arc<dyn Store>) -> Arc<KeyEntry> {
    let (record, _) = store.create_key(new_record("pro")).await.unwrap();
    KeyEntry::new(record)
}

/// A charge for the endpoint `markets`.
pub fn charge(key: &Arc<KeyEntry>, day: Day, limit: u64, cost: u32) -> Charge {
    charge_for(key, day, limit, cost, "markets")
}

/// A charge for an endpoint.
pub fn charge_for(key: &Arc<KeyEntry>, day: Day, limit: u64, cost: u32, endpoint: &str) -> Charge {
    Charge {
        key: key.clone(),
        day,
        limit,
        cost,
        endpoint: endpoint.into(),
    }
}

/// What a granted charge answered.
#[track_caller]
pub fn granted(decision: Result<Decision, StoreError>) -> (u64, Receipt) {
    match decision {
        Ok(Decision::Granted { used, receipt }) => (used, receipt),
        other => panic!("not granted: {other:?}"),
    }
}

/// What an exhausted charge answered.
#[track_caller]
pub fn exhausted(decision: Result<Decision, StoreError>) -> u64 {
    match decision {
        Ok(Decision::Exhausted { used }) => used,
        other => panic!("not exhausted: {other:?}"),
    }
}

/// Asks until the answer is there, for at most [`PATIENCE`].
pub async fn eventually<T, A: Future<Output = Option<T>>>(
    what: &str,
    mut ask: impl FnMut() -> A,
) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(Instant::now() < deadline, "in {PATIENCE:?} not: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until the store tells this count.
pub async fn eventually_used(store: &Arc<dyn Store>, key: &Arc<KeyEntry>, day: Day, expected: u64) {
    let mut last = None;
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        last = Some(store.used(key.record.id, day).await.unwrap());
        if last == Some(expected) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{expected} units used were expected, and {last:?} are told");
}

/// The whole ledger.
pub async fn ledger(store: &Arc<dyn Store>) -> Vec<DayUsage> {
    let from: Date = "2001-01-01".parse().unwrap();
    let to: Date = "2099-12-31".parse().unwrap();
    store.usage(from, to, None).await.unwrap()
}

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
                    if let Decision::Granted { used, receipt } = store.charge(asked).await.unwrap()
                    {
                        assert!(used <= LIMIT);
                        if turn % 3 == 0 {
                            store.refund(receipt).await;
                        } else {
                            kept += u64::from(cost);
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
    assert!(refunded.elapsed() < Duration::from_millis(1_100));
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
    assert!(refunded.elapsed() < Duration::from_secs(2));
}

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

pub async fn a_charge_with_an_older_record_is_not_granted(fixture: &dyn Fixture) {
    let (gateway, command) = (fixture.gateway("a").await, fixture.command().await);
    let old = issue(&command).await;
    let day = today();
    granted(gateway.charge(charge(&old, day, 10, 1)).await);
    let mut record = old.record.clone();
    record.tier = "enterprise".parse().unwrap();
    let (new, _) = command.update_key(record).await.unwrap();
    let decision = gateway.charge(charge(&old, day, 10, 1)).await.unwrap();
    assert!(matches!(decision, Decision::KeyChanged), "{decision:?}");
    let held = gateway.keys().get(new.id).unwrap();
    assert_eq!(held.record, new);
    assert_eq!(
        granted(gateway.charge(charge(&held, day, 10, 1)).await).0,
        2
    );
}

pub async fn a_revocation_holds_from_the_next_charge_of_another_process(fixture: &dyn Fixture) {
    let (gateway, command) = (fixture.gateway("a").await, fixture.command().await);
    let old = issue(&command).await;
    let day = today();
    for _ in 0..3 {
        granted(gateway.charge(charge(&old, day, 10, 1)).await);
    }
    let mut record = old.record.clone();
    record.state = KeyState::Revoked;
    command.update_key(record).await.unwrap();
    let decision = gateway.charge(charge(&old, day, 10, 1)).await.unwrap();
    assert!(matches!(decision, Decision::KeyChanged), "{decision:?}");
    let held = gateway.keys().get(old.record.id).unwrap();
    assert_eq!(held.record.state, KeyState::Revoked);
    eventually_used(&gateway, &old, day, 3).await;
}

pub async fn a_changed_key_keeps_its_count(fixture: &dyn Fixture) {
    let store = fixture.gateway("a").await;
    let old = issue(&store).await;
    let day = today();
    granted(store.charge(charge(&old, day, 10, 7)).await);
    let next = ApiKey::for_id(&KeyPrefix::default(), old.record.id, &mut os_entropy);
    let mut record = old.record.clone();
    record.previous = Some(PreviousDigest {
        digest: old.record.digest,
        until: Timestamp::MAX,
    });
    record.digest = next.digest();
    let (record, _) = store.update_key(record).await.unwrap();
    let new = KeyEntry::new(record);
    assert_eq!(granted(store.charge(charge(&new, day, 10, 1)).await).0, 8);
    assert_eq!(exhausted(store.charge(charge(&new, day, 5, 1)).await), 8);
}

pub async fn of_two_changes_from_the_same_reading_one_is_made(fixture: &dyn Fixture) {
    let (one, other) = (fixture.command().await, fixture.command().await);
    let key = issue(&one).await;
    let mut grant = key.record.clone();
    grant.grants.insert(today().date, 500);
    let (made, lost) = tokio::join!(one.update_key(grant.clone()), other.update_key(grant));
    let made = match (made, lost) {
        (Ok((record, _)), Err(ChangeError::Conflict(id)))
        | (Err(ChangeError::Conflict(id)), Ok((record, _))) => {
            assert_eq!(id, key.record.id);
            record
        }
        other => panic!("{other:?}"),
    };
    assert!(made.version > key.record.version);
    assert_eq!(one.key(made.id).await.unwrap(), Some(made.clone()));
    let (again, _) = one.update_key(made.clone()).await.unwrap();
    assert!(again.version > made.version);
}

pub async fn an_id_or_digest_in_use_is_refused(fixture: &dyn Fixture) {
    let store = fixture.command().await;
    let taken = issue(&store).await;
    let other = issue(&store).await;

    let mut same_id = new_record("pro");
    same_id.id = taken.record.id;
    let mut same_digest = new_record("pro");
    same_digest.digest = taken.record.digest;
    let mut same_previous = new_record("pro");
    same_previous.previous = Some(PreviousDigest {
        digest: taken.record.digest,
        until: Timestamp::MAX,
    });
    for record in [same_id, same_digest, same_previous] {
        let refused = store.create_key(record).await;
        assert!(
            matches!(refused, Err(ChangeError::Exists(_))),
            "{refused:?}"
        );
    }
    let mut moved = other.record.clone();
    moved.digest = taken.record.digest;
    let refused = store.update_key(moved).await;
    assert!(
        matches!(refused, Err(ChangeError::Exists(_))),
        "{refused:?}"
    );
    assert_eq!(store.all_keys().await.unwrap().len(), 2);
}

pub async fn an_unknown_key_cannot_be_changed(fixture: &dyn Fixture) {
    let store = fixture.command().await;
    let record = new_record("pro");
    let id = record.id;
    let refused = store.update_key(record).await;
    assert!(
        matches!(refused, Err(ChangeError::UnknownKey(unknown)) if unknown == id),
        "{refused:?}"
    );
    assert_eq!(store.key(id).await.unwrap(), None);
}

pub async fn the_store_dates_and_versions_every_record(fixture: &dyn Fixture) {
    let store = fixture.command().await;
    let before = store.server_time().await.unwrap();
    let (made, first) = store.create_key(new_record("pro")).await.unwrap();
    let after = store.server_time().await.unwrap();
    assert!(made.created >= before - Duration::from_millis(1) && made.created <= after);
    assert_eq!(made.updated, made.created);
    assert!(made.version >= u64::try_from(before.as_microsecond()).unwrap());
    let (changed, second) = store
        .update_key(KeyRecord {
            label: Some("billing".into()),
            created: Timestamp::UNIX_EPOCH,
            ..made.clone()
        })
        .await
        .unwrap();
    assert!(second > first);
    assert!(changed.version > made.version);
    assert!(changed.updated >= made.updated);
    assert_eq!(store.key(made.id).await.unwrap(), Some(changed));
}

pub async fn all_keys_come_in_the_order_of_their_creation(fixture: &dyn Fixture) {
    let store = fixture.command().await;
    let mut expected = Vec::new();
    for _ in 0..20 {
        expected.push(issue(&store).await.record.id);
    }
    let all = store.all_keys().await.unwrap();
    let told: Vec<_> = all.iter().map(|record| record.id).collect();
    assert_eq!(told, expected);
}

pub async fn a_change_reaches_the_key_table_of_another_process(fixture: &dyn Fixture) {
    let (gateway, command) = (fixture.gateway("a").await, fixture.command().await);
    let key = issue(&command).await;
    let digest = key.record.digest;
    eventually("the new key is in the table", async || {
        gateway.keys().find(&digest).filter(|found| *found == key)
    })
    .await;
    let next = ApiKey::for_id(&KeyPrefix::default(), key.record.id, &mut os_entropy);
    let mut record = key.record.clone();
    record.digest = next.digest();
    let (record, _) = command.update_key(record).await.unwrap();
    eventually("the rotated key is in the table", async || {
        gateway.keys().find(&next.digest())
    })
    .await;
    assert_eq!(gateway.keys().get(record.id).unwrap().record, record);
    assert!(gateway.keys().find(&digest).is_none());

    let late = fixture.gateway("b").await;
    assert_eq!(late.keys().get(record.id).unwrap().record, record);
}

pub async fn an_applied_change_awaits_nobody(fixture: &dyn Fixture) {
    let gateways = [fixture.gateway("a").await, fixture.gateway("b").await];
    let command = fixture.command().await;
    for _ in 0..10 {
        let (record, mark) = command.create_key(new_record("pro")).await.unwrap();
        let lagging = command.await_applied(&mark, PATIENCE).await.unwrap();
        assert_eq!(lagging, []);
        for gateway in &gateways {
            assert_eq!(gateway.keys().get(record.id).unwrap().record, record);
        }
    }
}

pub async fn a_gateway_that_does_not_apply_a_change_is_named(fixture: &dyn Fixture) {
    let follows = fixture.gateway("follows").await;
    let command = fixture.command().await;
    drop(fixture.gateway("hangs").await);
    // What the dropped handle had under way may still apply a change or two.
    let lagging = eventually("the gateway that hangs is named", async || {
        let (_, mark) = command.create_key(new_record("pro")).await.unwrap();
        let patience = Duration::from_millis(300);
        let lagging = command.await_applied(&mark, patience).await.unwrap();
        (!lagging.is_empty()).then_some(lagging)
    })
    .await;
    assert_eq!(lagging, [NodeName("hangs".into())]);
    // And in time it counts as dead.
    eventually("the dead gateway is forgotten", async || {
        let (_, mark) = command.create_key(new_record("pro")).await.unwrap();
        let patience = Duration::from_millis(300);
        let lagging = command.await_applied(&mark, patience).await.unwrap();
        lagging.is_empty().then_some(())
    })
    .await;
    assert!(follows.health().keys_loaded);
}

pub async fn a_gateway_that_said_goodbye_is_not_awaited(fixture: &dyn Fixture) {
    let command = fixture.command().await;
    let gateway = fixture.gateway("gone").await;
    gateway.close(PATIENCE).await;
    let (_, mark) = command.create_key(new_record("pro")).await.unwrap();
    let asked = Instant::now();
    assert_eq!(command.await_applied(&mark, PATIENCE).await.unwrap(), []);
    assert!(asked.elapsed() < Duration::from_secs(2));
}

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
        store.refused(key.record.id, day, &endpoint, Refusal::Tier);
        if turn % 4 == 0 {
            store.refused(key.record.id, day, &endpoint, Refusal::DailyQuota);
        }
    }
    let expected = Totals {
        requests: 1,
        charged: 1,
        refunded: 0,
        refused_tier: 100,
        refused_quota: 25,
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

pub async fn used_is_told_without_a_charge(fixture: &dyn Fixture) {
    let (one, other) = (fixture.gateway("a").await, fixture.gateway("b").await);
    let key = issue(&one).await;
    let day = today();
    assert_eq!(one.used(key.record.id, day).await.unwrap(), 0);
    granted(one.charge(charge(&key, day, 10, 3)).await);
    assert_eq!(one.used(key.record.id, day).await.unwrap(), 3);
    let many = (0..50).map(|_| {
        let (other, id) = (other.clone(), key.record.id);
        tokio::spawn(async move { other.used(id, day).await.unwrap() })
    });
    for asked in many.collect::<Vec<_>>() {
        assert_eq!(asked.await.unwrap(), 3);
    }
    granted(one.charge(charge(&key, day, 10, 2)).await);
    eventually_used(&other, &key, day, 5).await;
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
        ("2026-11-20", now - 90_000, now - 3_600),
        ("2026-11-22", now + 3_600, now + 90_000),
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
        assert_eq!(store.used(key.record.id, day).await.unwrap(), 0);
    }
}

pub async fn another_zone_is_refused_at_open(fixture: &dyn Fixture) {
    let store = fixture.gateway("a").await;
    for role in [Role::Gateway(NodeName("b".into())), Role::Command] {
        match fixture.try_open(role, "Europe/London").await {
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

pub async fn reopening_keeps_keys_counts_and_ledger(fixture: &dyn Fixture) {
    let day = today();
    let store = fixture.gateway("a").await;
    let key = issue(&store).await;
    let (_, receipt) = granted(store.charge(charge(&key, day, 10, 4)).await);
    granted(store.charge(charge(&key, day, 10, 3)).await);
    store.refund(receipt).await;
    store.refused(key.record.id, day, &"markets".into(), Refusal::DailyQuota);
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
        refused_tier: 0,
        refused_quota: 1,
    };
    assert_eq!(
        rows,
        [DayUsage {
            date: day.date,
            key: key.record.id,
            used: 3,
            endpoints: BTreeMap::from([("markets".into(), totals)]),
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
