//! What a killed gateway had counted last, and no journal knew, is read by its successor before Redis loses it.
//!
//! Most gateways here journal once an hour, so that all they count is of the last interval.

use std::path::Path;
use std::sync::Arc;
use std::sync::LazyLock;
use std::time::Duration;

use jiff::Zoned;
use jiff::tz::TimeZone;
use touchline::clock::Clock;
use touchline::policy::calendar::Day;
use touchline::store::redis::{
    OutagePolicy, OutageSettings, RedisSettings, RedisStore, Servers, journal_facts, open,
};
use touchline::store::{KeyEntry, NodeName, Role, Store};

use crate::redis_nodes::{ClusterSet, Node, SentinelSet, deafen};
use crate::redis_server::RedisServer;
use crate::suite::{
    WholeLedger, ZONE, charge, charge_for, day_around_now, eventually, granted, issue, used_field,
};
use crate::tcp_proxy::{TcpProxy, Wire};
use crate::topologies::patient;

const LIMIT: u64 = 1_000;
const HOUR: Duration = Duration::from_secs(3_600);
const OFTEN: Duration = Duration::from_millis(50);
const JOURNAL: &str = "journal.db";

/// A day around now with today's date: only days on which a process may have counted are read.
fn this_day() -> Day {
    static DATE: LazyLock<String> = LazyLock::new(|| {
        Zoned::now()
            .with_time_zone(TimeZone::UTC)
            .date()
            .to_string()
    });
    day_around_now(&DATE)
}

/// A gateway with its journal in `directory`.
async fn gateway(place: Servers, directory: &Path) -> Arc<RedisStore> {
    gateway_every(HOUR, place, directory).await
}

/// One that journals at this interval.
async fn gateway_every(interval: Duration, place: Servers, directory: &Path) -> Arc<RedisStore> {
    let outage = OutageSettings {
        journal_interval: interval,
        ..OutageSettings::of_journal(directory.join(JOURNAL))
    };
    let settings = RedisSettings {
        outage: Some(outage),
        ..patient(place)
    };
    let role = Role::Gateway(NodeName("heir".into()));
    open(settings, role, ZONE, Clock::system()).await.unwrap()
}

/// One that serves nothing without Redis, for which it does not wait long.
async fn denying_gateway(place: Servers, directory: &Path) -> Arc<RedisStore> {
    let outage = OutageSettings {
        policy: OutagePolicy::Deny,
        ..OutageSettings::of_journal(directory.join(JOURNAL))
    };
    let settings = RedisSettings {
        outage: Some(outage),
        timeout: Duration::from_millis(300),
        ..RedisSettings::of(place)
    };
    let role = Role::Gateway(NodeName("heir".into()));
    open(settings, role, ZONE, Clock::system()).await.unwrap()
}

async fn issued(place: Servers) -> Arc<KeyEntry> {
    let command: Arc<dyn Store> = open(patient(place), Role::Command, ZONE, Clock::system())
        .await
        .unwrap();
    issue(&command).await
}

/// Charges 40 units on two endpoints, gives 15 back, and waits until ledger and refund are written.
async fn count_25(store: &RedisStore, key: &Arc<KeyEntry>) {
    granted(store.charge(charge(key, this_day(), LIMIT, 25)).await);
    let other = charge_for(key, this_day(), LIMIT, 15, "insights");
    let (_, receipt) = granted(store.charge(other).await);
    store.refund(receipt).await;
    ledger_agrees(store, key).await;
}

/// Waits until the store reports all of what [`count_25`] did.
async fn ledger_agrees(store: &RedisStore, key: &KeyEntry) {
    eventually("count and ledger are sent", async || {
        let (date, id) = (this_day().date, key.record.id);
        let rows = store.usage(date, date, Some(id)).await.ok()?;
        let day = rows.first()?;
        let (markets, insights) = (
            day.endpoints.get("markets")?,
            day.endpoints.get("insights")?,
        );
        let output = (
            day.used,
            markets.charged,
            insights.charged,
            insights.refunded,
        );
        (output == (25, 25, 15, 15)).then_some(())
    })
    .await;
}

async fn counted(node: &Node, key: &KeyEntry) -> Option<u64> {
    let name = counts_of(key);
    node.try_ask(&format!("HGET {name} {}", used_field(this_day())))
        .await
        .ok()?
}

async fn flush(server: &RedisServer) {
    redis::cmd("FLUSHALL")
        .exec_async(&mut server.connect().await)
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_killed_gateway_counted_last_survives_an_emptied_redis_once_the_next_one_is_there() {
    let (server, directory) = (RedisServer::start().await, tempfile::tempdir().unwrap());
    let place = || Servers::Url(server.url());
    let key = issued(place()).await;
    let killed = gateway(place(), directory.path()).await;
    count_25(&killed, &key).await;
    // Its death: no goodbye, nothing more is written.
    drop(killed);
    let next = gateway(place(), directory.path()).await;
    flush(&server).await;
    ledger_agrees(&next, &key).await;
    let proofs = next.prove(this_day().date, this_day().date, None).await;
    let faults: Vec<String> = proofs
        .unwrap()
        .into_iter()
        .flat_map(|one| one.faults)
        .collect();
    assert_eq!(faults, Vec::<String>::new());
    // The ledger is back first if Redis was emptied while the gateway sent the rows at its start: the counts were sent before.
    eventually("the count is restored", async || {
        let mut ask = redis::cmd("HGET");
        ask.arg(counts_of(&key)).arg(used_field(this_day()));
        let used: Option<u64> = ask.query_async(&mut server.connect().await).await.ok()?;
        (used == Some(25)).then_some(())
    })
    .await;
    let rest = (LIMIT - 25).try_into().unwrap();
    let charged = next.charge(charge(&key, this_day(), LIMIT, rest)).await;
    assert_eq!(granted(charged).0, LIMIT, "old counts give no credit");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_day_of_a_gateway_killed_before_it_wrote_its_ledger_is_listed_by_the_next_one() {
    let (server, directory) = (RedisServer::start().await, tempfile::tempdir().unwrap());
    let place = || Servers::Url(server.url());
    let key = issued(place()).await;
    let killed = gateway(place(), directory.path()).await;
    granted(killed.charge(charge(&key, this_day(), LIMIT, 1)).await);
    drop(killed);
    // As if it had died before its first write.
    let (id, date) = (key.record.id, this_day().date.to_string());
    let mut unwritten = redis::pipe();
    unwritten
        .cmd("DEL")
        .arg(format!("touchline:e:{{{id}}}:{date}"))
        .cmd("SREM")
        .arg("touchline:days")
        .arg(&date)
        .cmd("SET")
        .arg("touchline:complete:{touchline:days}")
        .arg(1);
    let connection = &mut server.connect().await;
    unwritten.exec_async(connection).await.unwrap();
    let _next = gateway(place(), directory.path()).await;
    eventually("the day is listed", async || {
        let mut ask = redis::cmd("SISMEMBER");
        ask.arg("touchline:days").arg(&date);
        let connection = &mut server.connect().await;
        let is_listed: bool = ask.query_async(connection).await.unwrap();
        is_listed.then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_successor_that_began_without_redis_reads_what_the_killed_gateway_counted_when_it_is_back()
 {
    let (server, directory) = (RedisServer::start().await, tempfile::tempdir().unwrap());
    let place = || Servers::Url(server.url());
    let key = issued(place()).await;
    let killed = gateway(place(), directory.path()).await;
    count_25(&killed, &key).await;
    drop(killed);
    server.hang();
    let next = gateway(place(), directory.path()).await;
    assert!(!next.health().up);
    server.resume();
    inherited(directory.path(), 1).await;
    flush(&server).await;
    ledger_agrees(&next, &key).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_gateway_killed_beside_its_successor_counted_last_is_read_when_it_has_fallen_silent()
{
    let (server, directory) = (RedisServer::start().await, tempfile::tempdir().unwrap());
    let place = || Servers::Url(server.url());
    let key = issued(place()).await;
    // As in an upgrade: the old one goes on for a while.
    let old = gateway(place(), directory.path()).await;
    let next = gateway_every(OFTEN, place(), directory.path()).await;
    count_25(&old, &key).await;
    drop(old);
    inherited(directory.path(), 1).await;
    flush(&server).await;
    ledger_agrees(&next, &key).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_ended_in_order_leaves_nothing_to_be_read() {
    let (server, directory) = (RedisServer::start().await, tempfile::tempdir().unwrap());
    let place = || Servers::Url(server.url());
    let key = issued(place()).await;
    let ended = gateway(place(), directory.path()).await;
    count_25(&ended, &key).await;
    assert_eq!(processes(directory.path()), 1);
    ended.close(Duration::from_secs(60)).await;
    assert_eq!(processes(directory.path()), 0);
    drop(ended);
    flush(&server).await;
    let next = gateway(place(), directory.path()).await;
    ledger_agrees(&next, &key).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_redis_grants_to_failed_calls_of_a_gateway_that_ended_is_returned_by_the_next_one() {
    for begins_without_redis in [false, true] {
        returned_by_the_next_one(begins_without_redis).await;
    }
}

async fn returned_by_the_next_one(begins_without_redis: bool) {
    let (server, directory) = (RedisServer::start().await, tempfile::tempdir().unwrap());
    let place = || Servers::Url(server.url());
    let (key, uncounted) = (issued(place()).await, issued(place()).await);
    let denying = || denying_gateway(place(), directory.path());
    let ended = denying().await;
    count_25(&ended, &key).await;
    server.hang();
    for key in [&key, &uncounted] {
        let charge = charge(key, this_day(), LIMIT, 7);
        ended.charge(charge).await.unwrap_err();
    }
    ended.close(Duration::from_millis(100)).await;
    drop(ended);
    assert_eq!(processes(directory.path()), 1);
    let used = async || {
        let mut ask = redis::pipe();
        for key in [&key, &uncounted] {
            ask.hget(counts_of(key), used_field(this_day()));
        }
        let used: Vec<Option<u64>> = ask.query_async(&mut server.connect().await).await.unwrap();
        used
    };
    let next = if begins_without_redis {
        let next = denying().await;
        server.resume();
        next
    } else {
        server.resume();
        eventually("the calls run", async || {
            (used().await == [Some(32), Some(7)]).then_some(())
        })
        .await;
        denying().await
    };
    eventually("they are returned", async || {
        (used().await == [Some(25), Some(0)]).then_some(())
    })
    .await;
    ledger_agrees(&next, &key).await;
    let rest = (LIMIT - 25).try_into().unwrap();
    let charged = next.charge(charge(&key, this_day(), LIMIT, rest)).await;
    assert_eq!(granted(charged).0, LIMIT);
    eventually("the name is gone", async || {
        (processes(directory.path()) == 1).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_killed_gateway_counted_last_survives_a_failover_that_lost_it() {
    let (mut set, directory) = (SentinelSet::start().await, tempfile::tempdir().unwrap());
    let place = || Servers::Sentinels {
        sentinels: set.addresses(),
        master: "mymaster".into(),
    };
    let key = issued(place()).await;
    let killed = gateway(place(), directory.path()).await;
    granted(killed.charge(charge(&key, this_day(), LIMIT, 1)).await);
    eventually("the replica has key and count", async || {
        (counted(&set.servers[1], &key).await == Some(1)).then_some(())
    })
    .await;
    deafen(&set.servers[1], &set.servers[0]).await;
    for _ in 0..20 {
        granted(killed.charge(charge(&key, this_day(), LIMIT, 1)).await);
    }
    drop(killed);
    let _next = gateway(place(), directory.path()).await;
    set.servers[0].kill();
    set.servers[1].resume();
    eventually("the promoted replica counts it all", async || {
        (counted(&set.servers[1], &key).await == Some(21)).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_killed_gateway_counted_last_survives_an_emptied_master_of_a_cluster() {
    let (set, directory) = (ClusterSet::start(0).await, tempfile::tempdir().unwrap());
    let place = || Servers::Cluster(set.addresses());
    // At least one key of each master, whichever comes.
    let mut keys = Vec::new();
    let mut owners = std::collections::BTreeSet::new();
    while owners.len() < 3 {
        let key = issued(place()).await;
        owners.insert(set.owner(key.record.id.as_str()).await);
        keys.push(key);
    }
    let killed = gateway(place(), directory.path()).await;
    for key in &keys {
        count_25(&killed, key).await;
    }
    drop(killed);
    let next = gateway(place(), directory.path()).await;
    for node in &set.nodes {
        let () = node.ask("FLUSHALL").await;
    }
    for key in &keys {
        ledger_agrees(&next, key).await;
    }
}

/// Waits until the journal holds so many counts.
async fn inherited(directory: &Path, counts: u64) {
    eventually("the journal has the counts", async || {
        let facts = journal_facts(&directory.join(JOURNAL))?;
        (facts.counts == counts && facts.error.is_none()).then_some(())
    })
    .await;
}

/// The processes that the journal names.
fn processes(directory: &Path) -> u32 {
    let connection = rusqlite::Connection::open(directory.join(JOURNAL)).unwrap();
    let sql = "SELECT count(*) FROM processes";
    connection.query_row(sql, [], |row| row.get(0)).unwrap()
}

/// Makes all processes of the journal look as if they had not written for half a day.
fn age_names(directory: &Path) {
    let file = rusqlite::Connection::open(directory.join(JOURNAL)).unwrap();
    let age = "UPDATE processes SET seen = seen - 43200";
    file.execute(age, []).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_killed_gateway_counted_last_is_read_from_the_masters_that_are_there() {
    let (mut set, directory) = (ClusterSet::start(0).await, tempfile::tempdir().unwrap());
    let place = || Servers::Cluster(set.addresses());
    let mut keys = Vec::new();
    for master in [1, 2] {
        keys.push(loop {
            let key = issued(place()).await;
            if set.owner(key.record.id.as_str()).await == master {
                break key;
            }
        });
    }
    let living = gateway(place(), directory.path()).await;
    let killed = gateway(place(), directory.path()).await;
    for key in &keys {
        count_25(&killed, key).await;
    }
    set.nodes[2].kill();
    eventually("its absence is noticed", async || {
        (!living.health().up).then_some(())
    })
    .await;
    drop(killed);
    inherited(directory.path(), 0).await;
    age_names(directory.path());
    inherited(directory.path(), 1).await;
    assert_eq!(processes(directory.path()), 2, "the rest is to be read");
    set.nodes[2].restart().await;
    eventually("all is read", async || {
        (processes(directory.path()) == 1).then_some(())
    })
    .await;
}

/// The name in Redis of a key's counts.
fn counts_of(key: &KeyEntry) -> String {
    format!("touchline:q:{{{}}}:{}", key.record.id, this_day().date)
}

/// Issues a key whose counts cannot be read until they are [`remove`]d. Returns their name.
async fn unreadable(server: &RedisServer) -> String {
    let name = counts_of(&*issued(Servers::Url(server.url())).await);
    let mut damage = redis::cmd("SET");
    damage.arg(&name).arg("no counts");
    let connection = &mut server.connect().await;
    damage.exec_async(connection).await.unwrap();
    name
}

async fn remove(server: &RedisServer, name: &str) {
    let connection = &mut server.connect().await;
    let mut remove = redis::cmd("DEL");
    remove.arg(name).exec_async(connection).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_gateway_counted_after_some_of_its_counts_were_read_is_read_when_it_has_ended() {
    let (server, directory) = (RedisServer::start().await, tempfile::tempdir().unwrap());
    let place = || Servers::Url(server.url());
    let (key, damaged) = (issued(place()).await, unreadable(&server).await);
    let old = gateway(place(), directory.path()).await;
    // It has read the counts of all other keys when it is open.
    let _next = gateway(place(), directory.path()).await;
    count_25(&old, &key).await;
    drop(old);
    age_names(directory.path());
    remove(&server, &damaged).await;
    eventually("all is read", async || {
        (processes(directory.path()) == 1).then_some(())
    })
    .await;
    let facts = journal_facts(&directory.path().join(JOURNAL));
    assert_eq!(facts.unwrap().counts, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_predecessor_could_not_send_is_sent_although_not_all_its_counts_can_be_read() {
    let (server, directory) = (RedisServer::start().await, tempfile::tempdir().unwrap());
    let wire = TcpProxy::before(server.port()).await;
    let place = || Servers::Url(wire.url());
    unreadable(&server).await;
    let [key, other] = [issued(place()).await, issued(place()).await];
    let old = gateway_every(OFTEN, place(), directory.path()).await;
    let of_old = wire.part();
    granted(old.charge(charge(&other, this_day(), LIMIT, 1)).await);
    inherited(directory.path(), 1).await;
    remove(&server, &counts_of(&other)).await;
    let next = gateway(place(), directory.path()).await;
    let reads = async |key: &KeyEntry, used: u64| {
        eventually(&format!("{used} is counted"), async || {
            let found = next.used(key.record.id, this_day(), 100).await;
            (found.ok()? == used).then_some(())
        })
        .await;
    };
    // It has sent all that is in the journal so far.
    reads(&other, 1).await;
    let charged = old.charge(charge(&key, this_day(), LIMIT, 3)).await;
    let (_, receipt) = granted(charged);
    of_old.send_replace(Wire::BlackHole);
    old.refund(receipt).await;
    old.close(Duration::from_millis(100)).await;
    drop(old);
    reads(&key, 0).await;
}
