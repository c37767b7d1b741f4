//! The Redis store: the shared suite, and what happens to it when Redis fails.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use harness::SLACK;
use tokio::time::Instant;
use touchline::clock::Clock;
use touchline::policy::api_key::KeyId;
use touchline::policy::key_record::KeyState;
use touchline::store::redis::{RedisSettings, RedisStore, open};
use touchline::store::{
    ChangeError, Decision, Keeping, KeyEntry, NodeName, Role, Store, StoreError,
};

use crate::log_lines::lines_of_this_thread;
use crate::redis_server::RedisServer;
use crate::suite::{
    Fixture, PATIENCE, WholeLedger, ZONE, charge, eventually, eventually_used, exhausted, granted,
    issue, ledger, new_record, today, used_field,
};
use crate::tcp_proxy::{TcpProxy, Wire};

struct RedisFixture {
    server: RedisServer,
}

impl RedisFixture {
    async fn new() -> RedisFixture {
        RedisFixture {
            server: RedisServer::start().await,
        }
    }
}

/// Tests share two cores with their servers; production's 100 ms would now and then be too short here.
fn settings(url: String) -> RedisSettings {
    RedisSettings {
        timeout: Duration::from_secs(5),
        ..RedisSettings::of_url(url)
    }
}

#[async_trait]
impl Fixture for RedisFixture {
    async fn try_open(
        &self,
        role: Role,
        zone: &str,
        keeping: Keeping,
    ) -> Result<Arc<dyn Store>, StoreError> {
        let settings = RedisSettings {
            keeping,
            ..settings(self.server.url())
        };
        Ok(open(settings, role, zone, Clock::system()).await?)
    }
}

store_suite!(RedisFixture::new().await);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_charge_is_one_round_trip_and_one_that_is_known_to_be_refused_is_none() {
    let fixture = RedisFixture::new().await;
    let store = fixture.gateway("one").await;
    let key = issue(&fixture.command().await).await;
    // Beside the charges, the last count of an account is reported: with one key, at most once in 200 ms.
    let told_beside = |began: Instant| began.elapsed().as_millis() as u64 / 200 + 2;
    let (before, began) = (fixture.server.scripts_run().await, Instant::now());
    for used in 1..=200 {
        let charged = store.charge(charge(&key, today(), 200, 1)).await;
        assert_eq!(granted(charged).0, used);
    }
    let granting = fixture.server.scripts_run().await - before;
    let most = 200 + told_beside(began);
    assert!((200..=most).contains(&granting), "{granting}, not {most}");
    let (before, began) = (fixture.server.scripts_run().await, Instant::now());
    for _ in 0..200 {
        let refused = store.charge(charge(&key, today(), 200, 1)).await;
        assert_eq!(exhausted(refused), 200);
    }
    let refusing = fixture.server.scripts_run().await - before;
    // It is asked again once a second.
    let most = 1 + began.elapsed().as_secs() + told_beside(began);
    assert!(refusing <= most, "{refusing}, not {most}");
}

const TIMEOUT: Duration = Duration::from_millis(200);

/// A gateway's handle with a short timeout.
async fn gateway_at(url: String) -> Arc<RedisStore> {
    let settings = RedisSettings {
        timeout: TIMEOUT,
        ..RedisSettings::of_url(url)
    };
    let role = Role::Gateway(NodeName("impatient".into()));
    open(settings, role, ZONE, Clock::system()).await.unwrap()
}

async fn issued(server: &RedisServer) -> Arc<KeyEntry> {
    let command: Arc<dyn Store> =
        open(settings(server.url()), Role::Command, ZONE, Clock::system())
            .await
            .unwrap();
    issue(&command).await
}

/// What Redis itself counts.
async fn counted(server: &RedisServer, id: KeyId) -> u64 {
    let name = format!("touchline:q:{{{id}}}:{}", today().date);
    let used: Option<u64> = redis::cmd("HGET")
        .arg(name)
        .arg(used_field(today()))
        .query_async(&mut server.connect().await)
        .await
        .unwrap();
    used.unwrap_or(0)
}

/// The version of a key's record in Redis.
async fn version_held(server: &RedisServer, id: KeyId) -> Option<u64> {
    redis::cmd("HGET")
        .arg((format!("touchline:k:{{{id}}}"), "ver"))
        .query_async(&mut server.connect().await)
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_redis_loses_alone_is_there_again_after_the_next_charge() {
    let server = RedisServer::start().await;
    let key = issued(&server).await;
    let (id, version) = (key.record.id, key.record.version);
    let role = Role::Gateway(NodeName("mending".into()));
    let opened = open(settings(server.url()), role, ZONE, Clock::system()).await;
    let store: Arc<dyn Store> = opened.unwrap();
    // Not only in the first call of the account, which takes the record with it.
    for used in 1..=3 {
        let (counted, _) = granted(store.charge(charge(&key, today(), 10, 1)).await);
        assert_eq!(counted, used);
        assert_eq!(version_held(&server, id).await, Some(version));
    }
    let lost: i64 = redis::cmd("DEL")
        .arg(format!("touchline:k:{{{id}}}"))
        .query_async(&mut server.connect().await)
        .await
        .unwrap();
    assert_eq!(lost, 1);
    let (counted, _) = granted(store.charge(charge(&key, today(), 10, 1)).await);
    assert_eq!(counted, 4);
    eventually("the record is in Redis again", async || {
        (version_held(&server, id).await == Some(version)).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_charge_whose_reply_is_lost_is_given_back() {
    let server = RedisServer::start().await;
    let key = issued(&server).await;
    let proxy = TcpProxy::before(server.port()).await;
    let store = gateway_at(proxy.url()).await;
    let (id, day) = (key.record.id, today());
    granted(store.charge(charge(&key, day, 10, 1)).await);

    proxy.swallow_replies();
    let lost = store.charge(charge(&key, day, 10, 4)).await;
    assert!(matches!(lost, Err(StoreError::Unavailable(_))), "{lost:?}");
    assert_eq!(
        counted(&server, id).await,
        5,
        "it was delivered and counted once"
    );

    proxy.pass_replies();
    eventually("the lost units are back", async || {
        (counted(&server, id).await == 1).then_some(())
    })
    .await;
    let mut granted_units = 1;
    loop {
        match store.charge(charge(&key, day, 10, 1)).await.unwrap() {
            Decision::Granted { .. } => granted_units += 1,
            Decision::Exhausted { used } => {
                assert_eq!(used, 10);
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(granted_units, 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_redis_costs_a_charge_its_timeout_and_later_ones_nothing() {
    let server = RedisServer::start().await;
    let key = issued(&server).await;
    let store = gateway_at(server.url()).await;
    let day = today();
    granted(store.charge(charge(&key, day, 10, 1)).await);

    server.hang();
    let asked = Instant::now();
    let failed = store.charge(charge(&key, day, 10, 1)).await;
    assert!(
        matches!(failed, Err(StoreError::Unavailable(_))),
        "{failed:?}"
    );
    assert!(asked.elapsed() < TIMEOUT + SLACK);
    eventually("the link is given up", async || {
        let _ = store.charge(charge(&key, day, 10, 1)).await;
        (!store.health().up).then_some(())
    })
    .await;
    let asked = Instant::now();
    for _ in 0..100 {
        let failed = store.charge(charge(&key, day, 10, 1)).await;
        assert!(
            matches!(failed, Err(StoreError::Unavailable(_))),
            "{failed:?}"
        );
    }
    assert!(asked.elapsed() < TIMEOUT * 100 / 2, "they did not wait");

    server.resume();
    eventually(
        "what the hung Redis granted late is given back",
        async || {
            let up = store.health().up;
            (up && counted(&server, key.record.id).await == 1).then_some(())
        },
    )
    .await;
    assert_eq!(granted(store.charge(charge(&key, day, 10, 9)).await).0, 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_died_with_its_data_is_filled_again_by_the_gateways() {
    let mut server = RedisServer::start().await;
    let key = issued(&server).await;
    let store = gateway_at(server.url()).await;
    let day = today();
    eventually("the key is in the table", async || {
        store.keys().get(key.record.id)
    })
    .await;
    for used in 1..=5 {
        assert_eq!(
            granted(store.charge(charge(&key, day, 10, 1)).await).0,
            used
        );
    }
    server.kill();
    eventually("the link is down", async || {
        let failed = store.charge(charge(&key, day, 10, 1)).await;
        assert!(
            matches!(failed, Err(StoreError::Unavailable(_))),
            "{failed:?}"
        );
        (!store.health().up).then_some(())
    })
    .await;
    server.restart().await;
    let used = eventually("charges are granted again", async || {
        match store.charge(charge(&key, day, 10, 1)).await {
            Ok(Decision::Granted { used, .. }) => Some(used),
            Err(StoreError::Unavailable(_)) => None,
            other => panic!("{other:?}"),
        }
    })
    .await;
    assert_eq!(used, 6);
    assert_eq!(granted(store.charge(charge(&key, day, 10, 4)).await).0, 10);
    assert_eq!(exhausted(store.charge(charge(&key, day, 10, 1)).await), 10);
    eventually("records and ledger are written back", async || {
        let record = store.key(key.record.id).await.ok()??;
        let rows = store.usage(day.date, day.date, None).await.ok()?;
        let requests = rows.first()?.endpoints.get("markets")?.requests;
        (record == key.record && requests == 7).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emptied_redis_is_filled_again_without_a_reconnection() {
    let server = RedisServer::start().await;
    let key = issued(&server).await;
    let store: Arc<dyn Store> = gateway_at(server.url()).await;
    let day = today();
    granted(store.charge(charge(&key, day, 10, 3)).await);
    redis::cmd("FLUSHALL")
        .exec_async(&mut server.connect().await)
        .await
        .unwrap();
    eventually("record and count are back", async || {
        let record = store.key(key.record.id).await.unwrap()?;
        (record == key.record && counted(&server, record.id).await == 3).then_some(())
    })
    .await;
    eventually_used(&store, &key, day, 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_forgot_its_scripts_gets_them_again() {
    let server = RedisServer::start().await;
    let key = issued(&server).await;
    let store: Arc<dyn Store> = gateway_at(server.url()).await;
    for used in 1..=3 {
        redis::cmd("SCRIPT")
            .arg("FLUSH")
            .exec_async(&mut server.connect().await)
            .await
            .unwrap();
        let decision = store.charge(charge(&key, today(), 10, 1)).await;
        assert_eq!(granted(decision).0, used);
    }
    redis::cmd("SCRIPT")
        .arg("FLUSH")
        .exec_async(&mut server.connect().await)
        .await
        .unwrap();
    issue(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_opens_without_redis_and_recovers_by_itself() {
    let mut server = RedisServer::start().await;
    server.kill();
    let store: Arc<dyn Store> = gateway_at(server.url()).await;
    let health = store.health();
    assert!(!health.up && !health.keys.loaded);
    let key = KeyEntry::new(new_record("pro"));
    let asked = Instant::now();
    for _ in 0..100 {
        let failed = store.charge(charge(&key, today(), 10, 1)).await;
        assert!(
            matches!(failed, Err(StoreError::Unavailable(_))),
            "{failed:?}"
        );
        assert!(store.used(key.record.id, today(), 100).await.is_err());
    }
    assert!(asked.elapsed() < TIMEOUT * 100 / 2, "nobody waits");

    server.restart().await;
    eventually("the store is up with its keys", async || {
        let health = store.health();
        (health.up && health.keys.loaded).then_some(())
    })
    .await;
    let key = eventually("a key can be issued", async || {
        store.create_key(new_record("pro")).await.ok()
    })
    .await;
    let key = KeyEntry::new(key.0);
    granted(store.charge(charge(&key, today(), 10, 1)).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_without_redis_reports_where_it_looked_and_what_to_do() {
    let mut server = RedisServer::start().await;
    server.kill();
    let url = format!("redis://user:s3cret@127.0.0.1:{}/0", server.port());
    let refused = open(
        RedisSettings::of_url(url),
        Role::Command,
        ZONE,
        Clock::system(),
    )
    .await;
    let Err(StoreError::Unavailable(message)) = refused else {
        panic!("it opened");
    };
    assert!(
        message.contains(&format!("127.0.0.1:{}", server.port())),
        "{message}"
    );
    assert!(message.contains("store.redis"), "{message}");
    assert!(!message.contains("s3cret"), "{message}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_of_another_zone_stays_unused_when_it_can_be_reached_later() {
    let server = RedisServer::start().await;
    let proxy = TcpProxy::before(server.port()).await;
    proxy.swallow_replies();
    let store = gateway_at(proxy.url()).await;
    // What the gateway sent into the void must not have claimed the store for its zone.
    redis::cmd("SET")
        .arg("touchline:zone")
        .arg("Europe/London")
        .exec_async(&mut server.connect().await)
        .await
        .unwrap();
    proxy.pass_replies();
    let key = KeyEntry::new(new_record("pro"));
    eventually("the reason is reported", async || {
        assert!(!store.health().up);
        match store.charge(charge(&key, today(), 10, 1)).await {
            Err(StoreError::Unavailable(why)) => why.contains("Europe/London").then_some(()),
            other => panic!("{other:?}"),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_reads_writes_nothing_and_one_that_writes_sets_the_zone() {
    let server = RedisServer::start().await;
    let command = async |zone| {
        let settings = settings(server.url());
        let opened = open(settings, Role::Command, zone, Clock::system()).await;
        opened.map(|store| store as Arc<dyn Store>)
    };
    let store = command(ZONE).await.unwrap();
    assert_eq!(store.all_keys().await.unwrap(), []);
    assert_eq!(ledger(&store).await.len(), 0);
    store.status().await.unwrap();
    let names: u64 = redis::cmd("DBSIZE")
        .query_async(&mut server.connect().await)
        .await
        .unwrap();
    assert_eq!(names, 0);
    let other = command("Europe/London").await.unwrap();
    issue(&store).await;
    let late = other.create_key(new_record("pro")).await.unwrap_err();
    assert!(late.to_string().contains("Europe/London"), "{late}");
    let opened = command("Europe/London").await.map(drop).unwrap_err();
    assert!(opened.to_string().contains("Europe/London"), "{opened}");
    assert_eq!(store.all_keys().await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_a_replica_refuses_is_known_not_to_be_made() {
    let fixture = RedisFixture::new().await;
    let (one, other) = (fixture.command().await, fixture.command().await);
    let key = issue(&one).await;
    let _: () = redis::cmd("REPLICAOF")
        .arg(("127.0.0.1", 1))
        .query_async(&mut fixture.server.connect().await)
        .await
        .unwrap();
    for refused in [
        one.update_key(key.record.clone()).await.unwrap_err(),
        other.create_key(new_record("pro")).await.unwrap_err(),
    ] {
        assert!(matches!(refused, ChangeError::Unwritten(_)), "{refused:?}");
        assert!(refused.to_string().contains("READONLY"), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revocation_holds_from_the_next_charge_of_a_gateway_without_a_feed() {
    let server = RedisServer::start().await;
    let old = issued(&server).await;
    let day = today();
    // A command's handle follows no feed.
    let role = Role::Command;
    let deaf = open(settings(server.url()), role.clone(), ZONE, Clock::system())
        .await
        .unwrap();
    let other = open(settings(server.url()), role, ZONE, Clock::system())
        .await
        .unwrap();
    granted(deaf.charge(charge(&old, day, 10, 1)).await);
    let mut record = old.record.clone();
    record.state = KeyState::Revoked;
    other.update_key(record).await.unwrap();
    let decision = deaf.charge(charge(&old, day, 10, 1)).await.unwrap();
    assert!(matches!(decision, Decision::KeyChanged), "{decision:?}");
    let held = deaf.keys().get(old.record.id).unwrap();
    assert_eq!(held.record.state, KeyState::Revoked);

    let mut record = held.record.clone();
    record.label = Some("renamed".into());
    other.update_key(record).await.unwrap();
    eventually("a free answer learns a change too", async || {
        deaf.used(old.record.id, day, 100).await.unwrap();
        let held = deaf.keys().get(old.record.id).unwrap();
        (held.record.label.as_deref() == Some("renamed")).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_whose_clock_is_two_days_ahead_charges_the_stores_day() {
    let server = RedisServer::start().await;
    let key = issued(&server).await;
    let ahead = Clock::from_fn(|| jiff::Timestamp::now() + Duration::from_secs(172_800));
    let role = Role::Gateway(NodeName("ahead".into()));
    let store = open(settings(server.url()), role, ZONE, ahead)
        .await
        .unwrap();
    assert!(today().contains(store.now()));
    granted(store.charge(charge(&key, today(), 10, 1)).await);
    store.close(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_gateways_on_a_network_that_loses_replies_stay_exact() {
    const LIMIT: u64 = 1_500;
    let server = RedisServer::start().await;
    let key = issued(&server).await;
    let day = today();
    let (mut proxies, mut running) = (Vec::new(), Vec::new());
    let until = Instant::now() + Duration::from_secs(4);
    let mut stores = Vec::new();
    for _ in 0..2 {
        let proxy = TcpProxy::before(server.port()).await;
        let store = gateway_at(proxy.url()).await;
        for task in 0..4_u32 {
            let (store, key) = (store.clone(), key.clone());
            running.push(tokio::spawn(async move {
                let (mut kept, mut failed) = (0, 0);
                for turn in task.. {
                    if Instant::now() > until {
                        break;
                    }
                    let cost = 1 + turn % 3;
                    match store.charge(charge(&key, day, LIMIT, cost)).await {
                        Ok(Decision::Granted { used, receipt, .. }) => {
                            assert!(used <= LIMIT);
                            if turn % 4 == 0 {
                                store.refund(receipt).await;
                            } else {
                                kept += u64::from(cost);
                            }
                        }
                        Ok(Decision::Exhausted { .. }) => {}
                        Err(StoreError::Unavailable(_)) => failed += 1,
                        other => panic!("{other:?}"),
                    }
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                (kept, failed)
            }));
        }
        proxies.push(proxy);
        stores.push(store);
    }
    for turn in 0.. {
        if Instant::now() > until {
            break;
        }
        let proxy = &proxies[turn % 2];
        proxy.swallow_replies();
        tokio::time::sleep(Duration::from_millis(150)).await;
        proxy.pass_replies();
        tokio::time::sleep(Duration::from_millis(350)).await;
    }
    let (mut kept, mut failed) = (0, 0);
    for task in running {
        let (task_kept, task_failed) = task.await.unwrap();
        kept += task_kept;
        failed += task_failed;
    }
    assert!(failed > 0, "the network lost something");
    assert!(kept <= LIMIT, "{kept} units of {LIMIT}");
    eventually("the count is what was served", async || {
        (counted(&server, key.record.id).await == kept).then_some(())
    })
    .await;
    for store in &stores {
        store.close(PATIENCE).await;
    }
    assert_eq!(counted(&server, key.record.id).await, kept);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_in_the_middle_of_a_charge_does_not_block_its_key() {
    let server = RedisServer::start().await;
    let panics = Arc::new(AtomicBool::new(false));
    let clock = {
        let panics = panics.clone();
        Clock::from_fn(move || {
            assert!(!panics.swap(false, Ordering::SeqCst), "wanted");
            jiff::Timestamp::now()
        })
    };
    // A command's handle: nothing but charges reads its clock meanwhile.
    let store = open(settings(server.url()), Role::Command, ZONE, clock);
    let store: Arc<dyn Store> = store.await.unwrap();
    let (key, day) = (issue(&store).await, today());
    granted(store.charge(charge(&key, day, 10, 1)).await);
    panics.store(true, Ordering::SeqCst);
    let asked = Instant::now();
    let broken_off = store.charge(charge(&key, day, 10, 1)).await;
    assert!(
        matches!(broken_off, Err(StoreError::Unavailable(_))),
        "{broken_off:?}"
    );
    assert!(!panics.load(Ordering::SeqCst), "it was the charge");
    assert!(asked.elapsed() < SLACK, "nobody waits for it");
    assert_eq!(granted(store.charge(charge(&key, day, 10, 1)).await).0, 2);
    store.close(PATIENCE).await;
    eventually_used(&store, &key, day, 2).await;
}

#[tokio::test]
async fn background_tasks_that_panicked_go_on() {
    let (log, _guard) = lines_of_this_thread();
    let server = RedisServer::start().await;
    let panicking = Arc::new(AtomicBool::new(false));
    let clock = {
        let (panicking, panicked) = (panicking.clone(), Mutex::new(HashSet::new()));
        Clock::from_fn(move || {
            // Each task once; the test itself is none.
            if panicking.load(Ordering::SeqCst)
                && let Some(task) = tokio::task::try_id()
            {
                let is_first = panicked.lock().unwrap().insert(task);
                assert!(!is_first, "wanted");
            }
            jiff::Timestamp::now()
        })
    };
    let role = Role::Gateway(NodeName("a".into()));
    let gateway = open(settings(server.url()), role, ZONE, clock);
    let gateway = gateway.await.unwrap();
    panicking.store(true, Ordering::SeqCst);
    for task in ["flush", "save", "retention"] {
        eventually("the panic of a background task is logged", async || {
            let line = format!("background work panicked: it is begun again task=\"{task}\"");
            (log.with(&["ERROR", &line]) > 0).then_some(())
        })
        .await;
    }
    panicking.store(false, Ordering::SeqCst);
    let command = open(settings(server.url()), Role::Command, ZONE, Clock::system());
    let command: Arc<dyn Store> = command.await.unwrap();
    let (key, day) = (issue(&command).await, today());
    eventually("the gateway has the key", async || {
        gateway.keys().get(key.record.id)
    })
    .await;
    let (_, receipt) = granted(gateway.charge(charge(&key, day, 10, 1)).await);
    gateway.refund(receipt).await;
    eventually_used(&command, &key, day, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_being_written_when_a_background_task_panicked_is_written() {
    let server = RedisServer::start().await;
    let (panicking, panics) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let clock = {
        let (panicking, panics) = (panicking.clone(), panics.clone());
        Clock::from_fn(move || {
            if panicking.load(Ordering::SeqCst) {
                panics.fetch_add(1, Ordering::SeqCst);
                panic!("wanted");
            }
            jiff::Timestamp::now()
        })
    };
    let (key, day) = (issued(&server).await, today());
    let role = Role::Gateway(NodeName("a".into()));
    let gateway = open(settings(server.url()), role, ZONE, clock);
    let gateway = gateway.await.unwrap();
    granted(gateway.charge(charge(&key, day, 10, 1)).await);
    panicking.store(true, Ordering::SeqCst);
    // Each task panics once a second at most, and the ledger is written within one.
    eventually("the ledger's task has panicked", async || {
        (panics.load(Ordering::SeqCst) >= 8).then_some(())
    })
    .await;
    panicking.store(false, Ordering::SeqCst);
    let command = open(settings(server.url()), Role::Command, ZONE, Clock::system());
    let command: Arc<dyn Store> = command.await.unwrap();
    eventually("the ledger has the request", async || {
        let rows = command.usage(day.date, day.date, None).await.ok()?;
        (rows.first()?.endpoints.get("markets")?.requests == 1).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_300_ms_from_redis_follows_it_within_seconds() {
    let server = RedisServer::start().await;
    let far = TcpProxy::before(server.port()).await;
    far.set(Wire::Delays(Duration::from_millis(150)));
    let settings = RedisSettings {
        timeout: Duration::from_secs(2),
        ..RedisSettings::of_url(far.url())
    };
    let role = Role::Gateway(NodeName("far".into()));
    let began = Instant::now();
    let gateway = open(settings, role, ZONE, Clock::system()).await.unwrap();
    assert!(gateway.health().up, "{:?}", gateway.health().trouble);
    eventually("the key table is loaded", async || {
        gateway.freshness().usable.then_some(())
    })
    .await;
    // If each set of ids took two round trips, that would be ten seconds.
    assert!(began.elapsed() < Duration::from_secs(8));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn charges_of_different_keys_do_not_wait_for_the_round_trips_of_others() {
    const KEYS: u64 = 20;
    let fixture = RedisFixture::new().await;
    let gateway = fixture.gateway("one").await;
    let command = fixture.command().await;
    let mut keys = Vec::new();
    for _ in 0..KEYS {
        keys.push(issue(&command).await);
    }
    let before = fixture.server.scripts_run().await;
    fixture.server.hang();
    // Longer than the time for which a call waits for others to share it.
    let mut arrivals = tokio::time::interval(Duration::from_millis(20));
    let mut charges = Vec::new();
    for key in keys {
        arrivals.tick().await;
        let gateway = gateway.clone();
        charges.push(tokio::spawn(async move {
            granted(gateway.charge(charge(&key, today(), 10, 1)).await)
        }));
    }
    fixture.server.resume();
    for charge in charges {
        assert_eq!(charge.await.unwrap().0, 1);
    }
    // If they waited, the third call would be for all the rest.
    let calls = fixture.server.scripts_run().await - before;
    assert!(calls > KEYS / 2, "only {calls} calls");
}
