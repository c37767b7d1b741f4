//! The ledger in Redis: proofs that fail, gateways that die, journals that come late, names that expire, and what older
//! versions wrote.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use touchline::clock::Clock;
use touchline::policy::calendar::Day;
use touchline::store::redis::{OutagePolicy, OutageSettings, RedisStore, Settings, open};
use touchline::store::{Keeping, KeyEntry, NodeName, Proof, Role, Store};

use crate::redis_server::RedisServer;
use crate::suite::{ZONE, charge, eventually, granted, issue, today};

const WINDOW: Duration = Duration::from_secs(1);

fn settings(server: &RedisServer) -> Settings {
    Settings {
        timeout: Duration::from_secs(5),
        ..Settings::of_url(server.url())
    }
}

async fn gateway_with(settings: Settings) -> Arc<RedisStore> {
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
    run(&server, &format!("HINCRBY {counts} t 5")).await;
    let lifted = proof_of(&*command, &key, day).await;
    assert!(lifted.faults[0].contains("the count is 7"), "{lifted:?}");
    run(&server, &format!("HINCRBY {counts} t -5")).await;

    run(&server, &format!("HINCRBY {counts} {granted_field} -1")).await;
    let lowered = proof_of(&*command, &key, day).await;
    assert!(lowered.faults.len() >= 2, "{lowered:?}");
    run(&server, &format!("HINCRBY {counts} {granted_field} 1")).await;

    for (value, fault) in [
        (more.as_str(), "was granted 6 units and wrote 7"),
        (
            &given_back,
            "6 units are charged in the ledger and 7 given back",
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

fn journaled(server: &RedisServer, directory: &Path, keeping: Keeping) -> Settings {
    Settings {
        timeout: Duration::from_millis(300),
        keeping,
        outage: Some(OutageSettings {
            policy: OutagePolicy::Open,
            journal_interval: Duration::from_millis(50),
            ..OutageSettings::of_journal(directory.join("journal.db"))
        }),
        ..Settings::of_url(server.url())
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
        (next.used(key.record.id, day).await.ok()? == 15).then_some(())
    })
    .await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_and_ledger_go_together_when_the_retention_is_over() {
    let server = RedisServer::start().await;
    let keeping = Keeping {
        retention: Duration::from_secs(62 * 86_400),
        ..Keeping::default()
    };
    let store = gateway_with(Settings {
        keeping,
        ..settings(&server)
    })
    .await;
    let commands: Arc<dyn Store> = store.clone();
    let (key, day) = (issue(&commands).await, today());
    granted(store.charge(charge(&key, day, 100, 2)).await);
    settled(&*store, &key, day).await;
    let (counts, entries) = names(&key, day);
    let kept_until = day.end + 62 * 86_400;
    for name in [counts, entries] {
        let expires = run(&server, &format!("EXPIRETIME {name}")).await;
        assert!(
            (kept_until..kept_until + 3_600).contains(&expires),
            "{name}: {expires}, kept until {kept_until}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_older_version_wrote_beside_is_counted_without_its_tier() {
    let server = RedisServer::start().await;
    let store = gateway(&server).await;
    let (key, day) = (issue(&store).await, today());
    granted(store.charge(charge(&key, day, 100, 2)).await);
    settled(&*store, &key, day).await;
    let (counts, entries) = names(&key, day);
    // As the first version charged and wrote: no settle window in the call, five numbers in the entry.
    let old_script = touchline::store::redis::CHARGE_SCRIPT
        .replace("tonumber(ARGV[at + 11])", "error('asked for')");
    let id = key.record.id;
    let mut connection = server.connect().await;
    let (_, answer): (i64, String) = redis::cmd("EVAL")
        .arg((old_script, 2, format!("touchline:k:{{{id}}}"), &counts))
        .arg(("old.1", 0, 0, 3, 100, key.record.version, ""))
        .arg((day.start, day.end, day.end + 3_024_000))
        .query_async(&mut connection)
        .await
        .unwrap();
    assert!(answer.starts_with("0 3 5 "), "{answer}");
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

#[tokio::test]
async fn dates_whose_counts_are_gone_leave_the_list_of_days_and_others_stay() {
    let server = RedisServer::start().await;
    let today = today().date;
    let kept = [0, 1, 395].map(|days| today - jiff::Span::new().days(days));
    let gone = [400, 4_000].map(|days| today - jiff::Span::new().days(days));
    for date in kept.iter().chain(&gone) {
        run(&server, &format!("SADD touchline:days {date}")).await;
    }
    let _store = gateway_with(settings(&server)).await;
    eventually("the list is tidied", async || {
        (run(&server, "SCARD touchline:days").await == 3).then_some(())
    })
    .await;
    for date in kept {
        let is_there = run(&server, &format!("SISMEMBER touchline:days {date}")).await;
        assert_eq!(is_there, 1, "{date}");
    }
}
