//! The ledger in Redis: proofs that fail, gateways that die, journals that come late, days that go, and what older
//! versions wrote.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use touchline::clock::Clock;
use touchline::policy::calendar::{Calendar, Day};
use touchline::store::export::{Exported, ImportMode, KeyDay, ProducerAccount};
use touchline::store::redis::{OutagePolicy, OutageSettings, RedisSettings, RedisStore, open};
use touchline::store::{
    Claim, Delivery, Keeping, KeyEntry, NodeName, Proof, RefusalReason, Role, Store, StoreError,
};

use crate::log_lines::log_lines;
use crate::redis_server::RedisServer;
use crate::suite::{
    PATIENCE, WholeLedger, ZONE, charge, eventually, granted, issue, new_record, threshold_event,
    today, used_field,
};

const WINDOW: Duration = Duration::from_secs(1);

fn settings(server: &RedisServer) -> RedisSettings {
    RedisSettings {
        timeout: Duration::from_secs(5),
        ..RedisSettings::of_url(server.url())
    }
}

async fn gateway_with(settings: RedisSettings) -> Arc<RedisStore> {
    let role = Role::Gateway(NodeName("a".into()));
    open(settings, role, ZONE, Clock::system()).await.unwrap()
}

async fn gateway(server: &RedisServer) -> Arc<dyn Store> {
    gateway_with(settings(server)).await
}

async fn proof_of(store: &dyn Store, key: &KeyEntry, day: Day) -> Proof {
    let id = Some(key.record.id);
    let proofs = store.prove(day.date, day.date, id).await.unwrap();
    proofs.into_iter().next().expect("a day")
}

async fn settled(store: &dyn Store, key: &KeyEntry, day: Day) {
    eventually("the ledger is written", async || {
        let proof = proof_of(store, key, day).await;
        (proof.usage.unattributed == 0 && proof.faults.is_empty()).then_some(())
    })
    .await;
}

async fn run(server: &RedisServer, command: &str) -> i64 {
    let mut words = command.split(' ');
    let mut asked = redis::cmd(words.next().unwrap());
    words.for_each(|word| {
        asked.arg(word);
    });
    asked
        .query_async(&mut server.connect().await)
        .await
        .unwrap()
}

async fn fields(server: &RedisServer, name: &str) -> Vec<String> {
    redis::cmd("HKEYS")
        .arg(name)
        .query_async(&mut server.connect().await)
        .await
        .unwrap()
}

fn names(key: &KeyEntry, day: Day) -> (String, String) {
    let id = key.record.id;
    (
        format!("touchline:q:{{{id}}}:{}", day.date),
        format!("touchline:e:{{{id}}}:{}", day.date),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_count_or_an_entry_that_was_changed_by_hand_is_found_with_its_key_and_day() {
    let server = RedisServer::start().await;
    let store = gateway(&server).await;
    let (key, other, day) = (issue(&store).await, issue(&store).await, today());
    for key in [&key, &other] {
        let (_, receipt) = granted(store.charge(charge(key, day, 10, 4)).await);
        granted(store.charge(charge(key, day, 10, 2)).await);
        store.refund(receipt).await;
        settled(&*store, key, day).await;
    }
    let (counts, entries) = names(&key, day);
    let granted_field = fields(&server, &counts)
        .await
        .into_iter()
        .find(|field| field.starts_with('g'))
        .unwrap();
    let used = used_field(day);
    let entry = fields(&server, &entries).await.remove(0);
    let value: String = redis::cmd("HGET")
        .arg((&entries, &entry))
        .query_async(&mut server.connect().await)
        .await
        .unwrap();
    // The store holds a living gateway's memory: nothing of this may be mended behind the test.
    drop(store);
    let command = open(settings(&server), Role::Command, ZONE, Clock::system())
        .await
        .unwrap();
    assert_eq!(
        value.split(' ').take(3).collect::<Vec<_>>(),
        ["2", "6", "4"]
    );
    let more = value.replacen("2 6 4", "2 7 4", 1);
    let given_back = value.replacen("2 6 4", "2 6 7", 1);
    let set = |value: &str| {
        let command = [
            "HSET".to_owned(),
            entries.clone(),
            entry.clone(),
            value.into(),
        ];
        let server = &server;
        async move {
            let mut asked = redis::cmd(&command[0]);
            command[1..].iter().for_each(|word| {
                asked.arg(word);
            });
            let _: i64 = asked
                .query_async(&mut server.connect().await)
                .await
                .unwrap();
        }
    };
    run(&server, &format!("HINCRBY {counts} {used} 5")).await;
    let lifted = proof_of(&*command, &key, day).await;
    assert!(lifted.faults[0].contains("the count is 7"), "{lifted:?}");
    run(&server, &format!("HINCRBY {counts} {used} -5")).await;

    run(&server, &format!("HINCRBY {counts} {granted_field} -1")).await;
    let lowered = proof_of(&*command, &key, day).await;
    assert!(lowered.faults.len() >= 2, "{lowered:?}");
    run(&server, &format!("HINCRBY {counts} {granted_field} 1")).await;

    for (value, fault) in [
        (more.as_str(), "was granted 6 units and wrote 7"),
        (
            &given_back,
            "6 units are charged in the ledger and 7 refunded",
        ),
        ("nonsense", "the ledger has a field"),
    ] {
        set(value).await;
        let found = proof_of(&*command, &key, day).await;
        assert!(found.faults[0].contains(fault), "{found:?}");
        let untouched = proof_of(&*command, &other, day).await;
        assert_eq!(untouched.faults, [""; 0]);
    }
    set(&value).await;
    assert_eq!(proof_of(&*command, &key, day).await.faults, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn units_of_a_gateway_that_died_before_it_wrote_the_ledger_are_unattributed_and_all_reconciles()
 {
    let server = RedisServer::start().await;
    let store = gateway(&server).await;
    let (key, day) = (issue(&store).await, today());
    granted(store.charge(charge(&key, day, 100, 2)).await);
    settled(&*store, &key, day).await;
    // Its death right after a grant, again and again: the ledger is written five times a second.
    let mut mortal = store;
    let mut unattributed = 0;
    for _ in 0..50 {
        granted(mortal.charge(charge(&key, day, 100, 1)).await);
        drop(mortal);
        mortal = gateway(&server).await;
        unattributed = proof_of(&*mortal, &key, day).await.usage.unattributed;
        if unattributed > 0 {
            break;
        }
    }
    assert!(unattributed > 0, "every gateway wrote before it died");
    let dead = mortal;
    let proof = proof_of(&*dead, &key, day).await;
    assert_eq!(proof.faults, [""; 0]);
    let attributed = proof.usage.totals().net();
    assert_eq!(attributed + unattributed, proof.usage.used as i64);
    // It stays so, whatever the living do.
    granted(dead.charge(charge(&key, day, 100, 7)).await);
    eventually("the living gateway's are attributed", async || {
        let usage = proof_of(&*dead, &key, day).await.usage;
        (usage.totals().net() == attributed + 7).then_some(())
    })
    .await;
    let usage = proof_of(&*dead, &key, day).await.usage;
    assert_eq!(usage.unattributed, unattributed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_day_that_redis_refuses_to_write_delays_no_other_day_of_the_ledger() {
    // More than are written in one round trip.
    const KEYS: usize = 600;
    let server = RedisServer::start().await;
    let keys: Vec<_> = (0..KEYS)
        .map(|_| KeyEntry::new(new_record("pro")))
        .collect();
    let day = today();
    for key in keys.iter().step_by(KEYS / 6) {
        let (_, ledger) = names(key, day);
        let mut other = redis::cmd("SET");
        other.arg(ledger).arg("of another type");
        other.exec_async(&mut server.connect().await).await.unwrap();
    }
    let store = gateway(&server).await;
    for key in &keys {
        store.refused(key, day, &"markets".into(), RefusalReason::DailyQuota);
    }
    let all = keys.iter().map(|key| names(key, day).1);
    let exist = format!("EXISTS {}", Vec::from_iter(all).join(" "));
    eventually("all others are written", async || {
        (run(&server, &exist).await == KEYS as i64).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_ran_late_does_not_lower_the_ledger_for_long() {
    let server = RedisServer::start().await;
    let store = gateway_with(RedisSettings {
        timeout: Duration::from_millis(300),
        ..settings(&server)
    })
    .await;
    let (key, day) = (KeyEntry::new(new_record("pro")), today());
    let (_, entries) = names(&key, day);
    let entry = async || {
        let mut read = redis::cmd("HGETALL");
        let fields: Vec<String> = read
            .arg(&entries)
            .query_async(&mut server.connect().await)
            .await
            .unwrap();
        <[String; 2]>::try_from(fields).ok()
    };
    let refuse = || store.refused(&key, day, &"markets".into(), RefusalReason::DailyQuota);
    refuse();
    let [field, mut older] = eventually("the ledger is written", entry).await;
    for ends in [false, true] {
        let mut pause = redis::cmd("CLIENT");
        pause.arg("PAUSE").arg(2_000).arg("WRITE");
        pause.exec_async(&mut server.connect().await).await.unwrap();
        // No reply in time: whether it is written is unknown.
        refuse();
        let newer = eventually("the ledger is written after the pause", async || {
            entry().await.filter(|[_, value]| *value != older)
        })
        .await;
        // What a write of another connection does that is still on its way.
        let mut late = redis::cmd("HSET");
        late.arg(&entries).arg(&field).arg(&older);
        late.exec_async(&mut server.connect().await).await.unwrap();
        if ends {
            store.close(PATIENCE).await;
            assert_eq!(entry().await, Some(newer));
            return;
        }
        eventually("the newer totals are back", async || {
            (entry().await? == newer).then_some(())
        })
        .await;
        [_, older] = newer;
    }
}

fn journaled(server: &RedisServer, directory: &Path, keeping: Keeping) -> RedisSettings {
    RedisSettings {
        timeout: Duration::from_millis(300),
        keeping,
        outage: Some(OutageSettings {
            policy: OutagePolicy::Open,
            journal_interval: Duration::from_millis(50),
            ..OutageSettings::of_journal(directory.join("journal.db"))
        }),
        ..RedisSettings::of_url(server.url())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_journal_that_comes_after_the_day_was_closed_adjusts_it_and_the_day_stays() {
    let (mut server, directory) = (RedisServer::start().await, tempfile::tempdir().unwrap());
    let key = issue(&gateway(&server).await).await;
    let keeping = Keeping {
        settle_window: WINDOW,
        ..Keeping::default()
    };
    let settings = journaled(&server, directory.path(), keeping);
    let store = gateway_with(settings.clone()).await;
    let now = store.server_time().await.unwrap().as_second();
    let day = Day {
        end: now + 4,
        ..today()
    };
    granted(store.charge(charge(&key, day, 100, 10)).await);
    settled(&*store, &key, day).await;
    server.kill();
    eventually("the breaker is open", async || {
        (!store.health().up).then_some(())
    })
    .await;
    for _ in 0..5 {
        granted(store.charge(charge(&key, day, 100, 1)).await);
    }
    drop(store);
    while jiff::Timestamp::now().as_second() <= day.end + 1 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    server.restart().await;
    // Redis came back empty: all of it comes late, what was counted before the outage too.
    let next = gateway_with(settings).await;
    let proof = eventually("the journal is settled", async || {
        let id = Some(key.record.id);
        let proofs = next.prove(day.date, day.date, id).await.unwrap();
        let proof = proofs.into_iter().next()?;
        (proof.usage.adjusted() == 15).then_some(proof)
    })
    .await;
    assert_eq!(proof.faults, [""; 0]);
    let usage = &proof.usage;
    assert_eq!((usage.used, usage.unattributed), (0, 0));
    assert_eq!(
        usage.endpoints.len(),
        0,
        "nothing is written into a closed day"
    );
    assert!(usage.adjustments[0].came.as_second() >= day.end - 900);
    eventually("the count is repaired", async || {
        (next.used(key.record.id, day, 100).await.ok()? == 15).then_some(())
    })
    .await;
    // By this, an invoice finds the units months later.
    let mut ask = redis::cmd("HEXISTS");
    ask.arg(format!("touchline:k:{{{}}}", key.record.id));
    ask.arg(format!("l{}", day.date));
    let connection = &mut server.connect().await;
    let is_marked: bool = ask.query_async(connection).await.unwrap();
    assert!(is_marked, "the record names the day");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_day_that_was_closed_before_its_ledger_was_written_is_listed() {
    let server = RedisServer::start().await;
    let keeping = Keeping {
        settle_window: Duration::ZERO,
        ..Keeping::default()
    };
    let store = gateway_with(RedisSettings {
        keeping,
        ..settings(&server)
    })
    .await;
    let (key, today) = (KeyEntry::new(new_record("pro")), today());
    let day = Day {
        date: today.date.yesterday().unwrap(),
        start: today.start - 86_400,
        end: today.start,
    };
    store.refused(&key, day, &"markets".into(), RefusalReason::DailyQuota);
    eventually("the day is listed", async || {
        (run(&server, &format!("SISMEMBER touchline:days {}", day.date)).await > 0).then_some(())
    })
    .await;
    let (_, entries) = names(&key, day);
    assert_eq!(fields(&server, &entries).await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn units_above_the_limit_after_an_outage_stand_as_over() {
    let (mut server, directory) = (RedisServer::start().await, tempfile::tempdir().unwrap());
    let (key, day) = (issue(&gateway(&server).await).await, today());
    let settings = journaled(&server, directory.path(), Keeping::default());
    let store = gateway_with(settings).await;
    granted(store.charge(charge(&key, day, 10, 8)).await);
    server.kill();
    eventually("the breaker is open", async || {
        (!store.health().up).then_some(())
    })
    .await;
    for _ in 0..9 {
        granted(store.charge(charge(&key, day, 10, 1)).await);
    }
    server.restart().await;
    let usage = eventually("the outage is settled", async || {
        let id = Some(key.record.id);
        let proofs = store.prove(day.date, day.date, id).await.ok()?;
        let proof = proofs.into_iter().next()?;
        let whole = proof.usage.used == 17 && proof.usage.unattributed == 0;
        (whole && proof.faults.is_empty()).then_some(proof.usage)
    })
    .await;
    assert_eq!(
        (usage.limit, usage.over, usage.adjusted()),
        (Some(10), 7, 0)
    );
    assert_eq!(usage.tiers["pro"].charged, 17);
}

/// Puts counts and ledger of a key's day into Redis, as a gateway of that day left them.
async fn put_day(server: &RedisServer, key: &KeyEntry, days_ago: i64) -> Day {
    let calendar = Calendar::of_zone(ZONE).unwrap();
    let today = calendar.day_at(jiff::Timestamp::now()).unwrap().date;
    let date = today - jiff::Span::new().days(days_ago);
    let day = calendar.day_of(date).unwrap();
    let (counts, entries) = names(key, day);
    let used = used_field(day);
    run(server, &format!("HSET {counts} {used} 2 ga.1 2")).await;
    let sheet = "1 2 0 0 0 0 0 0 0 10 0 pro";
    let mut put = redis::cmd("HSET");
    put.arg((entries, "a.2|markets", sheet));
    let _: i64 = put.query_async(&mut server.connect().await).await.unwrap();
    run(server, &format!("SADD touchline:days {date}")).await;
    let record = format!("touchline:k:{{{}}}", key.record.id);
    run(server, &format!("HSET {record} l{date} 1")).await;
    day
}

/// Whether counts, ledger, name and late units' mark of a day are there; all of them, or none.
async fn is_there(server: &RedisServer, key: &KeyEntry, day: Day) -> bool {
    let (counts, entries) = names(key, day);
    let names = run(server, &format!("EXISTS {counts} {entries}")).await;
    let listed = run(server, &format!("SISMEMBER touchline:days {}", day.date)).await;
    let record = format!("touchline:k:{{{}}}", key.record.id);
    let marked = run(server, &format!("HEXISTS {record} l{}", day.date)).await;
    assert!(
        [(0, 0, 0), (2, 1, 1)].contains(&(names, listed, marked)),
        "{names} {listed} {marked}"
    );
    listed == 1
}

/// Of a gateway that trusts its clock from the start.
fn trusting(server: &RedisServer) -> RedisSettings {
    RedisSettings {
        keeping: Keeping {
            retention: Duration::from_secs(62 * 86_400),
            agreement: Duration::ZERO,
            ..Keeping::default()
        },
        ..settings(server)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_and_ledger_go_together_when_the_retention_is_over() {
    let server = RedisServer::start().await;
    let key = {
        let first: Arc<dyn Store> = gateway_with(trusting(&server)).await;
        issue(&first).await
    };
    // Of one the retention ended with the last midnight, of the other it ends with the next.
    let over = put_day(&server, &key, 63).await;
    let kept = put_day(&server, &key, 62).await;
    for days_ago in [3, 2] {
        put_day(&server, &key, days_ago).await;
    }
    let store = gateway_with(trusting(&server)).await;
    // Not the suite's day, whose date is fixed: one of those above may have it.
    let calendar = Calendar::of_zone(ZONE).unwrap();
    let day = calendar.day_at(jiff::Timestamp::now()).unwrap();
    granted(store.charge(charge(&key, day, 100, 2)).await);
    settled(&*store, &key, day).await;
    eventually("the day is gone", async || {
        let listed = run(&server, &format!("SISMEMBER touchline:days {}", over.date)).await;
        (listed == 0).then_some(())
    })
    .await;
    assert!(!is_there(&server, &key, over).await);
    assert!(is_there(&server, &key, kept).await);
    let (counts, entries) = names(&key, day);
    for name in [counts, entries] {
        let expires = run(&server, &format!("EXPIRETIME {name}")).await;
        assert_eq!(expires, -1, "{name} goes by the clock of Redis");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_two_days_charged_last_stay_in_redis_whatever_the_clock_shows() {
    let server = RedisServer::start().await;
    let key = {
        let first: Arc<dyn Store> = gateway_with(trusting(&server)).await;
        issue(&first).await
    };
    let mut days = Vec::new();
    for days_ago in [500, 400, 399] {
        days.push(put_day(&server, &key, days_ago).await);
    }
    let log = log_lines();
    let store = gateway_with(trusting(&server)).await;
    eventually("the oldest is gone", async || {
        let listed = run(
            &server,
            &format!("SISMEMBER touchline:days {}", days[0].date),
        )
        .await;
        (listed == 0).then_some(())
    })
    .await;
    assert!(!is_there(&server, &key, days[0]).await);
    eventually("it has its line", async || {
        let date = days[0].date.to_string();
        (log.with(&["was dropped", &date]) == 1).then_some(())
    })
    .await;
    for day in &days[1..] {
        assert!(is_there(&server, &key, *day).await, "{}", day.date);
    }
    assert_eq!(store.last_dropped().await.unwrap(), Some(days[0].date));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_whose_clocks_disagree_drops_nothing_from_redis() {
    let server = RedisServer::start().await;
    let key = issue(&gateway(&server).await).await;
    let mut days = Vec::new();
    for days_ago in [800, 700, 600] {
        days.push(put_day(&server, &key, days_ago).await);
    }
    let boot = Arc::new(AtomicU64::new(500));
    let hands = boot.clone();
    let clock = Clock::system().beside(move || Duration::from_secs(hands.load(Ordering::SeqCst)));
    let role = Role::Gateway(NodeName("b".into()));
    let keeping = Keeping {
        agreement: Duration::from_secs(30),
        ..Keeping::default()
    };
    let careful = RedisSettings {
        keeping,
        ..settings(&server)
    };
    let store = open(careful, role, ZONE, clock).await.unwrap();
    // Several looks at the clock, which are several turns at dropping days.
    let mut leaps = Vec::new();
    while leaps.len() < 4 {
        let leap = eventually("the clocks disagree", async || {
            // More than the tolerance: every look finds a leap, whenever it comes.
            boot.fetch_add(100, Ordering::SeqCst);
            let leap = store.health().clock_leap?;
            (!leaps.contains(&leap)).then_some(leap)
        })
        .await;
        assert!(leap.by.as_secs() < -60, "{leap}");
        leaps.push(leap);
    }
    for day in &days {
        assert!(is_there(&server, &key, *day).await, "{}", day.date);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_whose_clock_is_set_by_years_writes_the_ledger_of_the_day() {
    let server = RedisServer::start().await;
    let ahead = Arc::new(AtomicU64::new(0));
    let hands = ahead.clone();
    let wall = move || Timestamp::now() + Duration::from_secs(hands.load(Ordering::SeqCst));
    let started = Instant::now();
    let clock = Clock::from_fn(wall).beside(move || started.elapsed());
    let role = Role::Gateway(NodeName("a".into()));
    let store = open(settings(&server), role, ZONE, clock).await.unwrap();
    let store: Arc<dyn Store> = store;
    let (key, day) = (issue(&store).await, today());
    for years in 1..=5 {
        granted(store.charge(charge(&key, day, 100, 1)).await);
        // Redis' clock stays. Until its next reply, the gateway's estimate of it is wrong.
        ahead.store(years * 365 * 86_400, Ordering::SeqCst);
        settled(&*store, &key, day).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_courier_that_a_clock_which_was_ahead_gave_hours_is_succeeded() {
    let server = RedisServer::start().await;
    let store = gateway(&server).await;
    let next = NodeName("next".into());
    // The lease of a gateway that died, as Redis has it after its clock was set back.
    for (name, left, is_succeeded) in [("dead", 7_200_000, true), ("alive", 60_000, false)] {
        let mut take = redis::cmd("SET");
        take.arg(("touchline:{events}:courier", name, "PX", left));
        let () = take.query_async(&mut server.connect().await).await.unwrap();
        let events = store.undelivered(&next, Duration::from_secs(15), 0).await;
        assert_eq!(events.unwrap().is_some(), is_succeeded, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_claims_of_a_day_expire_two_days_after_it() {
    let server = RedisServer::start().await;
    let store = gateway(&server).await;
    let node = NodeName("a".into());
    for (event, delivery) in [
        (threshold_event(80, 0), Delivery::Wanted),
        (threshold_event(90, 0), Delivery::Unwanted),
    ] {
        let claimed = store.claim(&event, &node, delivery).await;
        assert_eq!(claimed.unwrap(), Claim::Made);
        let day = event.quota_status.day;
        let claims = format!("touchline:{{events}}:claimed:{}", day.date);
        let expiry = run(&server, &format!("EXPIRETIME {claims}")).await;
        assert_eq!(expiry, day.end + 2 * 86_400);
        run(&server, &format!("PERSIST {claims}")).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_that_waits_has_no_expiry_and_goes_after_a_week_of_a_clock_that_is_trusted() {
    let server = RedisServer::start().await;
    let store = gateway_with(settings(&server)).await;
    let node = NodeName("a".into());
    let claimed = store
        .claim(&threshold_event(80, 0), &node, Delivery::Wanted)
        .await;
    assert_eq!(claimed.unwrap(), Claim::Made);
    let waiting = "touchline:{events}:pending";
    let now = jiff::Timestamp::now().as_millisecond();
    let week = 7 * 86_400_000;
    // A minute more than a week ago, and a minute less.
    for (since, name) in [(now - week - 60_000, "over"), (now - week + 60_000, "kept")] {
        run(&server, &format!("ZADD {waiting} {since} {name}")).await;
    }
    assert_eq!(run(&server, &format!("EXPIRETIME {waiting}")).await, -1);
    let _trusting = gateway_with(trusting(&server)).await;
    eventually("the old one is gone", async || {
        (run(&server, &format!("ZCARD {waiting}")).await == 2).then_some(())
    })
    .await;
    let left = format!("ZCOUNT {waiting} {} +inf", now - week + 60_000);
    assert_eq!(run(&server, &left).await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_older_version_wrote_beside_is_counted_without_its_tier() {
    let server = RedisServer::start().await;
    let store = gateway(&server).await;
    let (key, day) = (issue(&store).await, today());
    granted(store.charge(charge(&key, day, 100, 2)).await);
    settled(&*store, &key, day).await;
    let (counts, entries) = names(&key, day);
    // Three units of another process, which wrote five numbers in its entry.
    run(&server, &format!("HINCRBY {counts} {} 3", used_field(day))).await;
    run(&server, &format!("HSET {counts} gold.1 3")).await;
    let mut connection = server.connect().await;
    let _: i64 = redis::cmd("HSET")
        .arg((entries, "old.2|markets", "1 3 0 0 0"))
        .query_async(&mut connection)
        .await
        .unwrap();
    let proof = proof_of(&*store, &key, day).await;
    assert_eq!(proof.faults, [""; 0]);
    let usage = proof.usage;
    assert_eq!((usage.used, usage.unattributed), (5, 0));
    assert_eq!(usage.endpoints["markets"].charged, 5);
    assert_eq!(
        (usage.tiers["pro"].charged, usage.tiers["?"].charged),
        (2, 3)
    );
    assert_eq!(granted(store.charge(charge(&key, day, 100, 1)).await).0, 6);
}

/// By the script alone: a gateway that merges a journal has mostly read into it before what Redis has.
#[tokio::test]
async fn a_journal_that_is_older_than_redis_lowers_no_number_of_the_ledger() {
    let server = RedisServer::start().await;
    let mut connection = server.connect().await;
    let script = include_str!("../../src/store/redis/merge_totals.lua");
    let mut merged = Vec::new();
    for journaled in ["3 1 0 pro", "2 4 0 pro", "2 3 1 pro"] {
        let mut merge = redis::cmd("EVAL");
        merge.arg((script, 1, "ledger", "one.1|/a", journaled));
        let _: i64 = merge.query_async(&mut connection).await.unwrap();
        let read = redis::cmd("HGET").arg(("ledger", "one.1|/a")).take();
        merged.push(read.query_async::<String>(&mut connection).await.unwrap());
    }
    assert_eq!(merged, ["3 1 0 pro", "3 4 0 pro", "3 4 1 pro"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_import_that_is_refused_leaves_no_day_that_it_wrote_unlisted() {
    let server = RedisServer::start().await;
    let store = gateway(&server).await;
    let day = |date: &str| KeyDay {
        key: new_record("pro").id,
        date: date.parse().unwrap(),
        start: 0,
        end: 100_000,
        accounts: vec![ProducerAccount {
            producer: "a.1".into(),
            granted: 2,
            returned: 0,
        }],
        sheets: Vec::new(),
        late: Vec::new(),
    };
    let import = async |days: Vec<KeyDay>| {
        let days = days.into_iter().map(|day| Exported::KeyDay(Box::new(day)));
        store
            .import_exported(days.collect(), ImportMode::Write)
            .await
    };
    let held = day("2026-11-01");
    import(vec![held.clone()]).await.unwrap();
    let other = KeyDay { start: 1, ..held };
    let refused = import(vec![day("2026-11-02"), other]).await;
    assert!(matches!(refused, Err(StoreError::OtherCalendar(_))));
    assert_eq!(run(&server, "SISMEMBER touchline:days 2026-11-02").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_of_an_older_shape_are_refused_and_never_misread() {
    let server = RedisServer::start().await;
    let store = gateway(&server).await;
    let (key, day) = (issue(&store).await, today());
    let (counts, _) = names(&key, day);
    let (start, end) = (day.start, day.end);
    run(
        &server,
        &format!("HSET {counts} t 2 ga.1 2 s {start} e {end}"),
    )
    .await;
    run(&server, &format!("SADD touchline:days {}", day.date)).await;
    let refused = store.charge(charge(&key, day, 100, 1)).await;
    assert!(
        matches!(refused, Err(StoreError::OtherCalendar(_))),
        "{refused:?}"
    );
    let proof = proof_of(&*store, &key, day).await;
    assert!(
        proof
            .faults
            .iter()
            .any(|fault| fault.contains("a field t = 2")),
        "{proof:?}"
    );
    let mut held = fields(&server, &counts).await;
    held.sort();
    assert_eq!(held, ["e", "ga.1", "s", "t"]);
}
