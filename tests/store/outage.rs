//! What a gateway serves while Redis is unavailable, and that it is settled exactly once.

use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use harness::SLACK;
use jiff::Timestamp;
use redis::AsyncCommands;
use tokio::time::Instant;
use touchline::clock::Clock;
use touchline::policy::api_key::KeyId;
use touchline::policy::calendar::Day;
use touchline::store::redis::{
    OutagePolicy, OutageSettings, RedisSettings, RedisStore, journal_facts, open,
};
use touchline::store::{Decision, KeyEntry, NodeName, Role, Store, StoreError, WithoutStore};

use crate::log_lines::log_lines;
use crate::redis_server::RedisServer;
use crate::suite::{
    WholeLedger, ZONE, charge, day_around_now, eventually, granted, issue, new_record, today,
    used_field,
};
use crate::tcp_proxy::{TcpProxy, Wire};

const TIMEOUT: Duration = Duration::from_millis(300);
/// The usual interval of the journal.
const OFTEN: Duration = Duration::from_millis(50);

/// A gateway with its journal in `directory`.
async fn gateway(
    url: String,
    directory: &Path,
    change: impl FnOnce(&mut OutageSettings),
) -> Arc<RedisStore> {
    let mut outage = OutageSettings {
        journal_interval: OFTEN,
        ..OutageSettings::of_journal(directory.join("journal.db"))
    };
    change(&mut outage);
    let settings = RedisSettings {
        timeout: TIMEOUT,
        outage: Some(outage),
        ..RedisSettings::of_url(url)
    };
    gateway_of(settings, directory).await
}

async fn gateway_of(settings: RedisSettings, directory: &Path) -> Arc<RedisStore> {
    let role = Role::Gateway(NodeName(format!("{}", directory.display())));
    open(settings, role, ZONE, Clock::system()).await.unwrap()
}

/// A wall clock that is ahead by this many seconds, and a boot-time clock that is not.
fn settable(ahead: &Arc<AtomicU64>) -> Clock {
    let (ahead, started) = (ahead.clone(), Instant::now());
    let wall = move || Timestamp::now() + Duration::from_secs(ahead.load(Ordering::SeqCst));
    Clock::from_fn(wall).beside(move || started.elapsed())
}

async fn issued(server: &RedisServer) -> Arc<KeyEntry> {
    let settings = RedisSettings {
        timeout: Duration::from_secs(5),
        ..RedisSettings::of_url(server.url())
    };
    let command: Arc<dyn Store> = open(settings, Role::Command, ZONE, Clock::system())
        .await
        .unwrap();
    issue(&command).await
}

async fn counted(server: &RedisServer, id: KeyId, day: Day) -> u64 {
    let used: Option<u64> = redis::cmd("HGET")
        .arg(format!("touchline:q:{{{id}}}:{}", day.date))
        .arg(used_field(day))
        .query_async(&mut server.connect().await)
        .await
        .unwrap();
    used.unwrap_or(0)
}

async fn eventually_counted(server: &RedisServer, key: &KeyEntry, day: Day, units: u64) {
    eventually(&format!("Redis counts {units}"), async || {
        (counted(server, key.record.id, day).await == units).then_some(())
    })
    .await;
}

/// Charges one unit at a time until none is given; how many were.
async fn served_until_refused(
    store: &RedisStore,
    key: &Arc<KeyEntry>,
    day: Day,
    limit: u64,
) -> u64 {
    let mut served = 0;
    loop {
        match store.charge(charge(key, day, limit, 1)).await {
            Ok(Decision::Granted { used, .. }) => {
                assert!(used <= limit, "{used} of {limit}");
                served += 1;
            }
            Err(StoreError::Unavailable(_)) => return served,
            other => panic!("{other:?}"),
        }
        assert!(served <= 10 * limit, "no end");
    }
}

async fn away(store: &RedisStore) {
    eventually("the breaker is open", async || {
        (!store.health().up).then_some(())
    })
    .await;
}

async fn back(store: &RedisStore) {
    eventually("the breaker is closed", async || {
        store.health().up.then_some(())
    })
    .await;
}

/// A Redis that was killed, and the journal's directory of a gateway that was killed after it: the key's units that it charged before, and
/// those that it served one by one without Redis.
async fn gateway_killed_without_redis(
    charged: u32,
    served: u32,
) -> (RedisServer, tempfile::TempDir, Arc<KeyEntry>, Day) {
    let (mut server, directory) = (RedisServer::start().await, tempfile::tempdir().unwrap());
    let (key, day) = (issued(&server).await, today());
    let store = gateway(server.url(), directory.path(), |_| ()).await;
    granted(store.charge(charge(&key, day, 100, charged)).await);
    server.kill();
    away(&store).await;
    for _ in 0..served {
        granted(store.charge(charge(&key, day, 100, 1)).await);
    }
    // Its death: no goodbye, nothing more is written.
    drop(store);
    (server, directory, key, day)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_redis_leaves_a_lone_gateway_exactly_what_was_left_and_settles_it_once() {
    let (mut server, directory) = (RedisServer::start().await, tempfile::tempdir().unwrap());
    let (key, day) = (issued(&server).await, today());
    let store = gateway(server.url(), directory.path(), |_| ()).await;
    for _ in 0..30 {
        granted(store.charge(charge(&key, day, 100, 1)).await);
    }
    server.kill();
    away(&store).await;
    let asked = Instant::now();
    let (used, receipt) = granted(store.charge(charge(&key, day, 100, 1)).await);
    assert_eq!(used, 31);
    assert_eq!(served_until_refused(&store, &key, day, 100).await, 69);
    let waiting = TIMEOUT * 70;
    assert!(asked.elapsed() < waiting / 2, "no request waits for Redis");
    let health = store.health();
    assert_eq!(
        (health.pending_units, health.without_store),
        (70, WithoutStore::Serves)
    );
    assert_eq!(store.used(key.record.id, day, 100).await.unwrap(), 100);
    store.refund(receipt).await;

    server.restart().await;
    let returned = Instant::now();
    back(&store).await;
    assert!(
        returned.elapsed() < Duration::from_secs(2) + SLACK,
        "{:?}",
        returned.elapsed()
    );
    eventually_counted(&server, &key, day, 99).await;
    eventually("nothing is pending", async || {
        (store.health().pending_units == 0).then_some(())
    })
    .await;
    assert_eq!(
        granted(store.charge(charge(&key, day, 100, 1)).await).0,
        100
    );
    let over = store.charge(charge(&key, day, 100, 1)).await;
    assert!(
        matches!(over, Ok(Decision::Exhausted { used: 100 })),
        "{over:?}"
    );
    eventually("the ledger agrees", async || {
        let rows = store.usage(day.date, day.date, None).await.ok()?;
        let totals = rows.first()?.endpoints.get("markets")?;
        (totals.charged == 101 && totals.refunded == 1).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_served_while_redis_counts_by_another_calendar() {
    let (mut server, directory) = (RedisServer::start().await, tempfile::tempdir().unwrap());
    let (key, day) = (issued(&server).await, today());
    let proxy = TcpProxy::before(server.port()).await;
    let store = gateway(proxy.url(), directory.path(), |_| ()).await;
    granted(store.charge(charge(&key, day, 100, 10)).await);
    proxy.set(Wire::Refuses);
    away(&store).await;
    granted(store.charge(charge(&key, day, 100, 1)).await);
    assert_eq!(store.health().pending_units, 1);
    // Another one in its place.
    server.kill();
    server.restart().await;
    let () = redis::cmd("SET")
        .arg(("touchline:zone", "Asia/Tokyo"))
        .query_async(&mut server.connect().await)
        .await
        .unwrap();
    proxy.set(Wire::Passes);
    eventually("the other calendar is noticed", async || {
        let trouble = store.health().trouble?;
        trouble.contains("Asia/Tokyo").then_some(())
    })
    .await;
    let refused = store.charge(charge(&key, day, 100, 1)).await;
    assert!(refused.is_err(), "{refused:?}");
    let health = store.health();
    assert_eq!(
        (health.pending_units, health.without_store),
        (1, WithoutStore::Denies)
    );
    store.close(Duration::from_secs(1)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_killed_in_an_outage_is_settled_by_the_next_one_which_is_not_given_the_share_again()
 {
    let (mut server, directory, key, day) = gateway_killed_without_redis(20, 50).await;
    let next = gateway(server.url(), directory.path(), |_| ()).await;
    assert_eq!(next.health().pending_units, 50);
    assert_eq!(
        served_until_refused(&next, &key, day, 100).await,
        0,
        "more was served than the cold share"
    );
    let other = KeyEntry::new(crate::suite::new_record("pro"));
    assert_eq!(
        served_until_refused(&next, &other, day, 100).await,
        2,
        "the cold share of another key"
    );
    server.restart().await;
    back(&next).await;
    // Redis came back empty: the journal of the dead gateway knows what it had granted before.
    eventually_counted(&server, &key, day, 70).await;
    eventually_counted(&server, &other, day, 2).await;
    eventually("nothing is pending", async || {
        (next.health().pending_units == 0).then_some(())
    })
    .await;
    eventually("the ledger agrees", async || {
        let rows = next
            .usage(day.date, day.date, Some(key.record.id))
            .await
            .ok()?;
        (rows.first()?.endpoints.get("markets")?.charged == 70).then_some(())
    })
    .await;
    assert_eq!(
        granted(next.charge(charge(&key, day, 100, 30)).await).0,
        100,
        "old counts give no credit"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_killed_gateway_had_served_counts_in_the_next_ones_next_outage() {
    let (mut server, directory, key, day) = gateway_killed_without_redis(20, 50).await;
    let next = gateway(server.url(), directory.path(), |_| ()).await;
    server.restart().await;
    // Often before the journaled units are sent, so that it is granted at a lower count.
    eventually("a charge is granted", async || {
        let charged = next.charge(charge(&key, day, 100, 1)).await;
        matches!(charged, Ok(Decision::Granted { .. })).then_some(())
    })
    .await;
    eventually_counted(&server, &key, day, 71).await;
    eventually("nothing is pending", async || {
        (next.health().pending_units == 0).then_some(())
    })
    .await;
    server.kill();
    away(&next).await;
    assert_eq!(served_until_refused(&next, &key, day, 100).await, 29);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_emptied_while_the_gateway_restarts_is_filled_from_the_journal() {
    let (server, directory) = (RedisServer::start().await, tempfile::tempdir().unwrap());
    let (key, damaged, day) = (issued(&server).await, issued(&server).await, today());
    let mut store = gateway(server.url(), directory.path(), |_| ()).await;
    let (_, receipt) = granted(store.charge(charge(&key, day, 100, 40)).await);
    granted(store.charge(charge(&key, day, 100, 2)).await);
    granted(store.charge(charge(&damaged, day, 100, 1)).await);
    store.refund(receipt).await;
    let name =
        |kind: &str, key: &KeyEntry| format!("touchline:{kind}:{{{}}}:{}", key.record.id, day.date);
    // Twice, because what was settled once must still be known.
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_millis(300)).await;
        drop(store);
        let mut connection = server.connect().await;
        let _: () = connection.flushall().await.unwrap();
        let _: () = connection
            .set(name("q", &damaged), "no counts")
            .await
            .unwrap();
        store = gateway(server.url(), directory.path(), |_| ()).await;
        eventually_counted(&server, &key, day, 2).await;
        let has_ledger = async |key: &KeyEntry| -> bool {
            server.connect().await.exists(name("e", key)).await.unwrap()
        };
        eventually("the ledger follows", async || {
            has_ledger(&key).await.then_some(())
        })
        .await;
        assert!(
            !has_ledger(&damaged).await,
            "a ledger of units that Redis has not counted"
        );
    }
}

/// Settings with room for one account, and this interval of the journal.
fn crowded(server: &RedisServer, directory: &Path, journal_interval: Duration) -> RedisSettings {
    RedisSettings {
        timeout: TIMEOUT,
        outage: Some(OutageSettings {
            journal_interval,
            ..OutageSettings::of_journal(directory.join("journal.db"))
        }),
        accounts_max: 1,
        ..RedisSettings::of_url(server.url())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emptied_redis_gets_the_counts_of_accounts_that_were_dropped_from_memory() {
    let (server, directory) = (RedisServer::start().await, tempfile::tempdir().unwrap());
    let settings = crowded(&server, directory.path(), OFTEN);
    let role = Role::Gateway(NodeName("crowded".into()));
    let store = open(settings, role, ZONE, Clock::system()).await.unwrap();
    let (first, second, day) = (issued(&server).await, issued(&server).await, today());
    let producers = async |key: &KeyEntry| {
        let fields: Vec<String> = redis::cmd("HKEYS")
            .arg(format!("touchline:q:{{{}}}:{}", key.record.id, day.date))
            .query_async(&mut server.connect().await)
            .await
            .unwrap();
        fields.iter().filter(|field| field.starts_with('g')).count()
    };
    let mut charged = 0;
    // The account that follows a dropped one is another producer.
    let count = eventually("an account was dropped", async || {
        // Only an idle account is dropped, all of whose units the journal has.
        tokio::time::sleep(Duration::from_millis(500)).await;
        granted(store.charge(charge(&first, day, 1_000, 1)).await);
        granted(store.charge(charge(&second, day, 1_000, 1)).await);
        charged += 1;
        let count = producers(&first).await + producers(&second).await;
        (count > 2).then_some(count)
    })
    .await;
    // Only one of the two was too many.
    assert_eq!(count, 3);
    redis::cmd("FLUSHALL")
        .exec_async(&mut server.connect().await)
        .await
        .unwrap();
    eventually_counted(&server, &first, day, charged).await;
    eventually_counted(&server, &second, day, charged).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn accounts_that_the_journal_does_not_have_yet_stay_in_memory_however_many_there_are() {
    let (server, directory) = (RedisServer::start().await, tempfile::tempdir().unwrap());
    let settings = crowded(&server, directory.path(), Duration::from_secs(3_600));
    let store = gateway_of(settings, directory.path()).await;
    let (keys, day) = ([issued(&server).await, issued(&server).await], today());
    for key in &keys {
        granted(store.charge(charge(key, day, 100, 1)).await);
    }
    // Accounts are counted every ten seconds.
    tokio::time::sleep(Duration::from_secs(11)).await;
    let emptied = redis::cmd("FLUSHALL");
    let connection = &mut server.connect().await;
    emptied.exec_async(connection).await.unwrap();
    for key in &keys {
        eventually_counted(&server, key, day, 1).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emptied_redis_gets_the_counts_of_accounts_that_a_clock_which_leapt_dropped() {
    let (mut server, directory) = (RedisServer::start().await, tempfile::tempdir().unwrap());
    let ahead = Arc::new(AtomicU64::new(0));
    let settings = crowded(&server, directory.path(), OFTEN);
    let role = Role::Gateway(NodeName("ahead".into()));
    let (first, second, day) = (issued(&server).await, issued(&server).await, today());
    let log = log_lines();
    let store = open(settings, role, ZONE, settable(&ahead)).await.unwrap();
    granted(store.charge(charge(&first, day, 10, 3)).await);
    granted(store.charge(charge(&second, day, 10, 4)).await);
    eventually("all is journaled", async || {
        let facts = journal_facts(&directory.path().join("journal.db"))?;
        (facts.counts == 2 && facts.unsettled_counts == 0).then_some(())
    })
    .await;
    // Redis is lost with its memory, and meanwhile the day looks past.
    server.kill();
    away(&store).await;
    ahead.store(3 * 86_400, Ordering::SeqCst);
    let dropped = || log.with(&["too many accounts of keys and days"]);
    let before = dropped();
    eventually("accounts are dropped", async || {
        (dropped() > before).then_some(())
    })
    .await;
    ahead.store(0, Ordering::SeqCst);
    server.restart().await;
    back(&store).await;
    eventually_counted(&server, &first, day, 3).await;
    eventually_counted(&server, &second, day, 4).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn units_of_a_day_long_over_stay_in_memory_until_redis_has_them() {
    let (mut server, directory) = (RedisServer::start().await, tempfile::tempdir().unwrap());
    let settings = crowded(&server, directory.path(), OFTEN);
    let role = Role::Gateway(NodeName("crowded".into()));
    let (keys, log) = ([issued(&server).await, issued(&server).await], log_lines());
    let store = open(settings, role, ZONE, Clock::system()).await.unwrap();
    server.kill();
    away(&store).await;
    let over = Day {
        end: Timestamp::now().as_second() - 300,
        ..day_around_now("2099-11-20")
    };
    for key in &keys {
        granted(store.charge(charge(key, over, 100, 1)).await);
    }
    let looked = || log.with(&["too many accounts of keys and days"]);
    let before = looked();
    eventually("accounts are looked through", async || {
        (looked() > before).then_some(())
    })
    .await;
    server.restart().await;
    back(&store).await;
    for key in &keys {
        eventually_counted(&server, key, over, 1).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_stay_known_after_a_clock_leapt_over_the_end_of_their_day() {
    const STALENESS: Duration = Duration::from_secs(1);
    let (mut server, directory) = (RedisServer::start().await, tempfile::tempdir().unwrap());
    let ahead = Arc::new(AtomicU64::new(0));
    let settings = RedisSettings {
        timeout: TIMEOUT,
        outage: Some(OutageSettings {
            count_staleness: STALENESS,
            ..OutageSettings::of_journal(directory.path().join("journal.db"))
        }),
        ..RedisSettings::of_url(server.url())
    };
    let role = Role::Gateway(NodeName("ahead".into()));
    let (key, day) = (issued(&server).await, today());
    let store = open(settings, role, ZONE, settable(&ahead)).await.unwrap();
    granted(store.charge(charge(&key, day, 10, 1)).await);
    // Redis' clock stays: until its next reply, the gateway's estimate of it is wrong.
    ahead.store(3 * 86_400, Ordering::SeqCst);
    eventually("the day is the present one again", async || {
        day.contains(store.now()).then_some(())
    })
    .await;
    // Its passing is the subject: nothing is called, and the count is read again.
    tokio::time::sleep(3 * STALENESS).await;
    server.kill();
    away(&store).await;
    assert_eq!(served_until_refused(&store, &key, day, 10).await, 9);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_are_journaled_while_much_is_restored() {
    const KEYS: usize = 1_000;
    let (server, directory) = (RedisServer::start().await, tempfile::tempdir().unwrap());
    let day = today();
    let journaled =
        || journal_facts(&directory.path().join("journal.db")).map(|facts| facts.counts);
    let proxy = TcpProxy::before(server.port()).await;
    let before = gateway(proxy.url(), directory.path(), |_| ()).await;
    for _ in 0..KEYS {
        let key = KeyEntry::new(new_record("pro"));
        granted(before.charge(charge(&key, day, 100, 1)).await);
    }
    eventually("all is journaled", async || {
        (journaled()? == KEYS as u64).then_some(())
    })
    .await;
    drop(before);
    redis::cmd("FLUSHALL")
        .exec_async(&mut server.connect().await)
        .await
        .unwrap();
    let key = issued(&server).await;
    proxy.set(Wire::Delays(TIMEOUT / 30));
    let store = gateway(proxy.url(), directory.path(), |_| ()).await;
    let restored = async || {
        let names: Vec<String> = redis::cmd("KEYS")
            .arg("touchline:q:*")
            .query_async(&mut server.connect().await)
            .await
            .unwrap();
        names.len()
    };
    eventually("the restoration has begun", async || {
        (restored().await > 0).then_some(())
    })
    .await;
    granted(store.charge(charge(&key, day, 100, 1)).await);
    eventually("the charge is journaled", async || {
        (journaled()? > KEYS as u64).then_some(())
    })
    .await;
    let restored = restored().await;
    assert!(restored < KEYS, "{restored} were restored before");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_charge_whose_reply_is_lost_is_served_and_charged_once() {
    let (server, directory) = (RedisServer::start().await, tempfile::tempdir().unwrap());
    let (key, day) = (issued(&server).await, today());
    let proxy = TcpProxy::before(server.port()).await;
    let store = gateway(proxy.url(), directory.path(), |_| ()).await;
    granted(store.charge(charge(&key, day, 20, 1)).await);
    let mut waited = Vec::new();
    for used in [5, 9, 13] {
        proxy.swallow_replies();
        let asked = Instant::now();
        granted(store.charge(charge(&key, day, 20, 4)).await);
        waited.push(asked.elapsed());
        assert_eq!(
            counted(&server, key.record.id, day).await,
            used,
            "it had run in Redis"
        );
        proxy.pass_replies();
        back(&store).await;
        eventually("nothing is pending", async || {
            (store.health().pending_units == 0).then_some(())
        })
        .await;
        eventually_counted(&server, &key, day, used).await;
    }
    assert!(
        waited.iter().all(|one| *one < TIMEOUT + SLACK),
        "{waited:?}"
    );
    // For the lost call alone, unless the machine stalls.
    assert!(waited.iter().any(|one| *one < 2 * TIMEOUT), "{waited:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_redis_is_bridged_and_what_it_ran_late_is_not_charged_twice() {
    let (server, directory) = (RedisServer::start().await, tempfile::tempdir().unwrap());
    let (key, day) = (issued(&server).await, today());
    let store = gateway(server.url(), directory.path(), |_| ()).await;
    granted(store.charge(charge(&key, day, 1_000, 1)).await);
    let scripts = server.scripts_run().await;
    server.hang();
    for _ in 0..20 {
        granted(store.charge(charge(&key, day, 1_000, 1)).await);
    }
    server.resume();
    eventually("the lost calls have run", async || {
        (server.scripts_run().await > scripts).then_some(())
    })
    .await;
    back(&store).await;
    granted(store.charge(charge(&key, day, 1_000, 1)).await);
    eventually("nothing is pending", async || {
        (store.health().pending_units == 0).then_some(())
    })
    .await;
    assert_eq!(counted(&server, key.record.id, day).await, 22);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_gateways_that_is_cut_off_serves_half_of_what_was_left() {
    let server = RedisServer::start().await;
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (key, day) = (issued(&server).await, today());
    let proxy = TcpProxy::before(server.port()).await;
    let connected = gateway(server.url(), one.path(), |_| ()).await;
    let cut_off = gateway(proxy.url(), two.path(), |_| ()).await;
    granted(cut_off.charge(charge(&key, day, 100, 10)).await);
    // Both have sent heartbeats, which have arrived.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    proxy.swallow_replies();
    assert_eq!(served_until_refused(&cut_off, &key, day, 100).await, 45);
    let mut elsewhere = 0;
    while let Ok(Decision::Granted { .. }) = connected.charge(charge(&key, day, 100, 1)).await {
        elsewhere += 1;
    }
    assert!(
        (88..=90).contains(&elsewhere),
        "{elsewhere}: the two charges that were lost may have run"
    );
    proxy.pass_replies();
    back(&cut_off).await;
    eventually_counted(&server, &key, day, 10 + 45 + elsewhere).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_on_one_journal_serve_one_share_together_while_redis_is_unavailable() {
    let (mut server, directory) = (RedisServer::start().await, tempfile::tempdir().unwrap());
    let (key, day) = (issued(&server).await, today());
    let two = |outage: &mut OutageSettings| outage.min_nodes = NonZeroU64::new(2).unwrap();
    let old = gateway(server.url(), directory.path(), two).await;
    let new = gateway(server.url(), directory.path(), two).await;
    granted(old.charge(charge(&key, day, 100, 10)).await);
    // The old one does not learn of these.
    granted(new.charge(charge(&key, day, 100, 70)).await);
    server.kill();
    away(&old).await;
    away(&new).await;
    granted(old.charge(charge(&key, day, 100, 1)).await);
    let (used, _) = granted(new.charge(charge(&key, day, 100, 1)).await);
    assert_eq!(used, 100 - (10 - 2), "the other's unit is of its share");
    let (by_old, by_new) = tokio::join!(
        served_until_refused(&old, &key, day, 100),
        served_until_refused(&new, &key, day, 100)
    );
    // Half of the 90 that the old one knows to be left; half of 20 is the new one's. A unit for which the journal was too slow
    // is not served.
    let served = 2 + by_old + by_new;
    assert!((40..=45).contains(&served), "{by_old} and {by_new}");
    assert!(by_new <= 10, "{by_new}");
    server.restart().await;
    back(&old).await;
    back(&new).await;
    eventually_counted(&server, &key, day, 80 + served).await;
    let over = new.charge(charge(&key, day, 100, 1)).await;
    assert!(matches!(over, Ok(Decision::Exhausted { .. })), "{over:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_redis_had_refused_stays_refused_and_what_it_had_not_is_no_429() {
    let (mut server, directory) = (RedisServer::start().await, tempfile::tempdir().unwrap());
    let (key, day) = (issued(&server).await, today());
    let store = gateway(server.url(), directory.path(), |_| ()).await;
    granted(store.charge(charge(&key, day, 5, 5)).await);
    let refused = store.charge(charge(&key, day, 5, 1)).await;
    assert!(
        matches!(refused, Ok(Decision::Exhausted { used: 5 })),
        "{refused:?}"
    );
    server.kill();
    away(&store).await;
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let refused = store.charge(charge(&key, day, 5, 1)).await;
    assert!(
        matches!(refused, Ok(Decision::Exhausted { used: 5 })),
        "{refused:?}"
    );
    assert_eq!(served_until_refused(&store, &key, day, 7).await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quota_that_redis_had_counted_as_used_up_is_exhausted_and_one_used_up_without_it_is_not()
{
    let (mut server, directory) = (RedisServer::start().await, tempfile::tempdir().unwrap());
    let (key, day) = (issued(&server).await, today());
    let store = gateway(server.url(), directory.path(), |_| ()).await;
    granted(store.charge(charge(&key, day, 5, 5)).await);
    server.kill();
    away(&store).await;
    let refused = store.charge(charge(&key, day, 5, 1)).await;
    assert!(
        matches!(refused, Ok(Decision::Exhausted { used: 5 })),
        "{refused:?}"
    );
    assert_eq!(served_until_refused(&store, &key, day, 6).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deny_serves_nothing_and_open_knows_no_bound() {
    let (mut server, directory) = (RedisServer::start().await, tempfile::tempdir().unwrap());
    let (key, day) = (issued(&server).await, today());
    let deny = gateway(server.url(), &directory.path().join("deny"), |outage| {
        outage.policy = OutagePolicy::Deny;
    })
    .await;
    let open = gateway(server.url(), &directory.path().join("open"), |outage| {
        outage.policy = OutagePolicy::Open;
    })
    .await;
    granted(open.charge(charge(&key, day, 10, 1)).await);
    let full = issued(&server).await;
    granted(open.charge(charge(&full, day, 1, 1)).await);
    let refused = open.charge(charge(&full, day, 1, 1)).await;
    assert!(matches!(refused, Ok(Decision::Exhausted { used: 1 })));
    server.kill();
    away(&deny).await;
    away(&open).await;
    assert_eq!(deny.health().without_store, WithoutStore::Denies);
    assert_eq!(served_until_refused(&deny, &key, day, 10).await, 0);
    for _ in 0..20 {
        granted(open.charge(charge(&key, day, 10, 1)).await);
    }
    // What Redis itself had refused stays refused.
    let refused = open.charge(charge(&full, day, 1, 1)).await;
    assert!(matches!(refused, Ok(Decision::Exhausted { used: 1 })));
    server.restart().await;
    back(&open).await;
    eventually_counted(&server, &key, day, 21).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_day_that_ends_in_an_outage_is_settled_on_its_own_date() {
    let (mut server, directory) = (RedisServer::start().await, tempfile::tempdir().unwrap());
    let key = issued(&server).await;
    let now = jiff::Timestamp::now().as_second();
    let ending = Day {
        end: now + 2,
        ..day_around_now("2099-11-21")
    };
    let next = Day {
        start: now + 2,
        ..day_around_now("2099-11-22")
    };
    let store = gateway(server.url(), directory.path(), |_| ()).await;
    granted(store.charge(charge(&key, ending, 100, 1)).await);
    server.kill();
    away(&store).await;
    for _ in 0..9 {
        granted(store.charge(charge(&key, ending, 100, 1)).await);
    }
    assert_eq!(
        served_until_refused(&store, &key, next, 100).await,
        2,
        "nothing is known of the next day"
    );
    while jiff::Timestamp::now().as_second() < ending.end {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    server.restart().await;
    back(&store).await;
    eventually_counted(&server, &key, ending, 10).await;
    eventually_counted(&server, &key, next, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_leaps_in_an_outage_drops_nothing_from_the_journal() {
    const LEAP_SECONDS: i64 = 800 * 86_400;
    let (mut server, directory) = (RedisServer::start().await, tempfile::tempdir().unwrap());
    let (key, day) = (issued(&server).await, today());
    let ahead = Arc::new(AtomicI64::new(0));
    let hands = ahead.clone();
    let wall =
        move || Timestamp::now() + Duration::from_secs(hands.load(Ordering::SeqCst).unsigned_abs());
    let started = Instant::now();
    let clock = Clock::from_fn(wall).beside(move || started.elapsed());
    let journal = directory.path().join("journal.db");
    let settings = RedisSettings {
        timeout: TIMEOUT,
        outage: Some(OutageSettings {
            journal_interval: OFTEN,
            ..OutageSettings::of_journal(&journal)
        }),
        ..RedisSettings::of_url(server.url())
    };
    let role = Role::Gateway(NodeName("a".into()));
    let store = open(settings, role, ZONE, clock).await.unwrap();
    granted(store.charge(charge(&key, day, 100, 1)).await);
    server.kill();
    away(&store).await;
    for _ in 0..7 {
        granted(store.charge(charge(&key, day, 100, 1)).await);
    }
    ahead.store(LEAP_SECONDS, Ordering::SeqCst);
    let file = rusqlite::Connection::open(&journal).unwrap();
    let number = |sql: &str| -> i64 { file.query_row(sql, [], |row| row.get(0)).unwrap() };
    eventually("the journal is kept at the wrong time", async || {
        let seen = number("SELECT max(seen) FROM processes");
        (seen > day.end + LEAP_SECONDS / 2).then_some(())
    })
    .await;
    assert_eq!(number("SELECT sum(untold) FROM counts"), 7);
    assert!(number("SELECT sum(charged) FROM sheets") >= 7);
    // The next process after a death settles them.
    drop(store);
    server.restart().await;
    let _next = gateway(server.url(), directory.path(), |_| ()).await;
    eventually_counted(&server, &key, day, 8).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_journal_that_cannot_be_written_denies_and_reports_it() {
    let (mut server, directory) = (RedisServer::start().await, tempfile::tempdir().unwrap());
    let (key, day) = (issued(&server).await, today());
    // A directory stands where the file should be.
    let blocked = directory.path().join("journal.db");
    std::fs::create_dir(&blocked).unwrap();
    let store = gateway(server.url(), directory.path(), |_| ()).await;
    granted(store.charge(charge(&key, day, 100, 1)).await);
    assert_eq!(store.health().without_store, WithoutStore::JournalFailed);
    server.kill();
    away(&store).await;
    assert_eq!(served_until_refused(&store, &key, day, 100).await, 0);
    std::fs::remove_dir(&blocked).unwrap();
    eventually("it serves again", async || {
        (store.health().without_store == WithoutStore::Serves).then_some(())
    })
    .await;
    granted(store.charge(charge(&key, day, 100, 1)).await);
    server.restart().await;
    back(&store).await;
    eventually_counted(&server, &key, day, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_journal_of_another_store_is_refused_and_left_alone() {
    let (mut server, directory, key, day) = gateway_killed_without_redis(1, 7).await;
    let other = RedisServer::start().await;
    for (url, key_prefix) in [(other.url(), "touchline"), (server.url(), "other")] {
        let settings = RedisSettings {
            key_prefix: key_prefix.into(),
            outage: Some(OutageSettings::of_journal(
                directory.path().join("journal.db"),
            )),
            ..RedisSettings::of_url(url.clone())
        };
        let role = Role::Gateway(NodeName("stranger".into()));
        let refused = open(settings, role, ZONE, Clock::system()).await;
        let Err(StoreError::Failed(message)) = refused else {
            panic!("it opened");
        };
        let (theirs, ours) = (format!(":{}/0", server.port()), "7 units");
        for part in [
            "journal.db",
            &theirs,
            key_prefix,
            ours,
            "store.redis.journal",
        ] {
            assert!(message.contains(part), "{part}: {message}");
        }
    }
    assert_eq!(counted(&other, key.record.id, day).await, 0);
    server.restart().await;
    let next = gateway(server.url(), directory.path(), |_| ()).await;
    eventually_counted(&server, &key, day, 8).await;
    drop(next);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_no_journal_is_refused_and_left_alone() {
    let (server, directory) = (RedisServer::start().await, tempfile::tempdir().unwrap());
    let path = directory.path().join("journal.db");
    let theirs = rusqlite::Connection::open(&path).unwrap();
    theirs
        .execute_batch("CREATE TABLE books (title TEXT)")
        .unwrap();
    drop(theirs);
    let before = std::fs::read(&path).unwrap();
    let settings = RedisSettings {
        outage: Some(OutageSettings::of_journal(&path)),
        ..RedisSettings::of_url(server.url())
    };
    let role = Role::Gateway(NodeName("stranger".into()));
    let refused = open(settings, role, ZONE, Clock::system()).await;
    let Err(StoreError::Failed(message)) = refused else {
        panic!("it opened");
    };
    for part in ["journal.db", "store.redis.journal"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_states_why_redis_counts_as_unavailable() {
    let log = log_lines();
    let (server, directory) = (RedisServer::start().await, tempfile::tempdir().unwrap());
    let (key, day) = (issued(&server).await, today());
    let user = async |rules: &[&str]| {
        let mut set = redis::cmd("ACL");
        set.arg("SETUSER").arg("without-evalsha").arg(rules);
        let () = set.query_async(&mut server.connect().await).await.unwrap();
    };
    user(&["on", ">s3cret", "~*", "&*", "+@all"]).await;
    let settings = RedisSettings {
        timeout: TIMEOUT,
        username: Some("without-evalsha".into()),
        password: Some("s3cret".into()),
        outage: Some(OutageSettings::of_journal(
            directory.path().join("journal.db"),
        )),
        ..RedisSettings::of_url(server.url())
    };
    let store = gateway_of(settings, directory.path()).await;
    user(&["-evalsha"]).await;
    let parts = ["Redis is unavailable", "'evalsha' command"];
    eventually("the refused command is named", async || {
        let _ = store.charge(charge(&key, day, 100_000, 1)).await;
        (log.with(&parts) > 0).then_some(())
    })
    .await;
}

/// How many connections a server has accepted.
async fn accepted_connections(server: &RedisServer) -> u64 {
    let mut connection = server.connect().await;
    let statistics: String = redis::cmd("INFO")
        .arg("stats")
        .query_async(&mut connection)
        .await
        .unwrap();
    let mut lines = statistics.lines();
    let number = lines.find_map(|line| line.strip_prefix("total_connections_received:"));
    number.unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_became_a_replica_is_tried_less_often_and_used_when_it_is_a_master_again() {
    let (server, directory) = (RedisServer::start().await, tempfile::tempdir().unwrap());
    let (key, day) = (issued(&server).await, today());
    let store = gateway(server.url(), directory.path(), |_| ()).await;
    granted(store.charge(charge(&key, day, 100, 1)).await);
    let role = async |host: &str, port: &str| {
        let mut set = redis::cmd("REPLICAOF");
        set.arg(host).arg(port);
        let () = set.query_async(&mut server.connect().await).await.unwrap();
    };
    // No server listens on port 1.
    role("127.0.0.1", "1").await;
    granted(store.charge(charge(&key, day, 100, 1)).await);
    away(&store).await;
    eventually("the reason is known", async || {
        let trouble = store.health().trouble?;
        let refusal = "it refuses writes, because it is a replica: name the master";
        trouble.contains(refusal).then_some(())
    })
    .await;
    // Then the waits between attempts are between half a second and a second, for each of the gateway's two connections.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let before = accepted_connections(&server).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let tried = accepted_connections(&server).await - before;
    assert!(tried <= 14, "{tried} connections in three seconds");
    assert!(!store.health().up);
    role("NO", "ONE").await;
    back(&store).await;
    eventually_counted(&server, &key, day, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emptied_redis_that_refuses_writes_is_followed_and_gets_its_keys_back_when_it_accepts_them()
 {
    let (server, directory) = (RedisServer::start().await, tempfile::tempdir().unwrap());
    let key = issued(&server).await;
    let store = gateway(server.url(), directory.path(), |_| ()).await;
    eventually("the key is known", async || {
        store.health().keys.loaded.then_some(())
    })
    .await;
    let ask = async |words: &[&str]| -> redis::Value {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        let mut connection = server.connect().await;
        command.query_async(&mut connection).await.unwrap()
    };
    ask(&["CONFIG", "SET", "maxmemory", "1"]).await;
    eventually("the refusal is noticed without a request", async || {
        (!store.health().up).then_some(())
    })
    .await;
    ask(&["FLUSHALL"]).await;
    // Older, a key table cannot be relied on for unknown keys.
    const KEYS_AGE_MAX: Duration = Duration::from_secs(5);
    tokio::time::sleep(2 * KEYS_AGE_MAX).await;
    assert!(store.health().keys.age < KEYS_AGE_MAX);
    let name = format!("touchline:k:{{{}}}", key.record.id);
    assert_eq!(ask(&["EXISTS", &name]).await, redis::Value::Int(0));
    ask(&["CONFIG", "SET", "maxmemory", "0"]).await;
    eventually("the key is written back", async || {
        (ask(&["EXISTS", &name]).await == redis::Value::Int(1)).then_some(())
    })
    .await;
}
