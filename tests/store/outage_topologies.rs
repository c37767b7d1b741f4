//! Service without Redis behind Sentinel and in a cluster, and both over TLS.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use harness::{PATIENCE, SLACK};
use tempfile::TempDir;
use tokio::time::Instant;
use touchline::clock::Clock;
use touchline::store::redis::{OutageSettings, RedisSettings, RedisStore, RedisTls, Servers, open};
use touchline::store::{Decision, KeyEntry, NodeName, Role, Store};

use crate::redis_nodes::{Certificates, ClusterSet, Node, SentinelSet};
use crate::suite::{WholeLedger, ZONE, charge, eventually, granted, issue, today, used_field};
use crate::topologies::patient;

const LIMIT: u64 = 1_000;
const TIMEOUT: Duration = Duration::from_millis(300);

fn sentinels(set: &SentinelSet) -> RedisSettings {
    RedisSettings::of(Servers::Sentinels {
        sentinels: set.addresses(),
        master: "mymaster".into(),
    })
}

fn cluster(set: &ClusterSet) -> RedisSettings {
    RedisSettings::of(Servers::Cluster(set.addresses()))
}

fn encrypted(settings: RedisSettings, certificates: &Certificates) -> RedisSettings {
    let file = |name| certificates.file(name);
    RedisSettings {
        tls: Some(RedisTls {
            ca_file: Some(file("ca.pem")),
            identity: Some((file("client.pem"), file("client.key"))),
        }),
        ..settings
    }
}

async fn command(settings: RedisSettings) -> Arc<dyn Store> {
    let settings = RedisSettings {
        tls: settings.tls.clone(),
        ..patient(settings.servers)
    };
    let opened = open(settings, Role::Command, ZONE, Clock::system());
    opened.await.unwrap()
}

/// A gateway with its journal in `directory`.
async fn gateway(settings: RedisSettings, directory: &Path) -> Arc<RedisStore> {
    let outage = OutageSettings::of_journal(directory.join("journal.db"));
    gateway_with(settings, outage).await
}

async fn gateway_with(settings: RedisSettings, outage: OutageSettings) -> Arc<RedisStore> {
    let settings = RedisSettings {
        timeout: TIMEOUT,
        outage: Some(outage),
        ..settings
    };
    let role = Role::Gateway(NodeName("journaling".into()));
    open(settings, role, ZONE, Clock::system()).await.unwrap()
}

async fn counted(node: &Node, key: &KeyEntry) -> Option<u64> {
    let name = format!("touchline:q:{{{}}}:{}", key.record.id, today().date);
    node.try_ask(&format!("HGET {name} {}", used_field(today())))
        .await
        .ok()?
}

/// Waits until the server has these units of a key.
async fn has_counted(node: &Node, key: &KeyEntry, units: u64) {
    eventually("the server has the units", async || {
        (counted(node, key).await == Some(units)).then_some(())
    })
    .await;
}

/// Charges one unit, which must be granted, and soon.
async fn served(store: &RedisStore, key: &Arc<KeyEntry>) {
    let asked = Instant::now();
    granted(store.charge(charge(key, today(), LIMIT, 1)).await);
    assert!(asked.elapsed() < SLACK, "{:?}", asked.elapsed());
}

/// Waits until Redis has everything, and no request is refused meanwhile; returns the units charged for it.
async fn served_until_settled(store: &RedisStore, key: &Arc<KeyEntry>) -> u64 {
    let mut units = 0;
    let deadline = Instant::now() + PATIENCE;
    loop {
        served(store, key).await;
        units += 1;
        let health = store.health();
        if health.up && health.pending_units == 0 {
            return units;
        }
        assert!(Instant::now() < deadline, "{health:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn charged_by_the_ledger(store: &RedisStore, key: &KeyEntry, units: u64) {
    eventually("the ledger agrees", async || {
        let today = today().date;
        let rows = store.usage(today, today, Some(key.record.id)).await.ok()?;
        (rows.first()?.endpoints.get("markets")?.charged == units).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sentinel_failover_goes_unnoticed_within_the_share_and_is_settled_exactly() {
    let (mut set, directory) = (SentinelSet::start().await, tempfile::tempdir().unwrap());
    let key = issue(&command(sentinels(&set)).await).await;
    let store = gateway(sentinels(&set), directory.path()).await;
    for _ in 0..20 {
        served(&store, &key).await;
    }
    has_counted(&set.servers[1], &key, 20).await;
    set.servers[0].kill();
    let meanwhile = served_until_settled(&store, &key).await;
    assert!(meanwhile > 2, "{meanwhile}");
    let total = 20 + meanwhile;
    has_counted(&set.servers[1], &key, total).await;
    charged_by_the_ledger(&store, &key, total).await;
    // The share was what was left: the two together end at the limit.
    let rest = (LIMIT - total).try_into().unwrap();
    let decision = store.charge(charge(&key, today(), LIMIT, rest)).await;
    assert_eq!(granted(decision).0, LIMIT);
}

/// Keys of masters 1 and 2, which have used 5 units each.
async fn two_keys(set: &ClusterSet, store: &Arc<dyn Store>) -> [Arc<KeyEntry>; 2] {
    let mut keys = Vec::new();
    for master in [1, 2] {
        loop {
            let key = issue(store).await;
            if set.owner(key.record.id.as_str()).await == master {
                keys.push(key);
                break;
            }
        }
    }
    keys.try_into().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_master_of_a_cluster_leaves_its_keys_their_share_and_the_others_theirs_in_redis() {
    let (mut set, directory) = (ClusterSet::start(0).await, tempfile::tempdir().unwrap());
    let [here, there] = two_keys(&set, &command(cluster(&set)).await).await;
    let store = gateway(cluster(&set), directory.path()).await;
    for _ in 0..5 {
        served(&store, &here).await;
        served(&store, &there).await;
    }
    set.nodes[2].kill();
    for _ in 0..30 {
        served(&store, &there).await;
    }
    assert!(!store.health().up);
    assert_eq!(store.health().pending_units, 30);
    for used in 6..=20 {
        served(&store, &here).await;
        assert_eq!(counted(&set.nodes[1], &here).await, Some(used));
    }
    assert_eq!(
        store.health().pending_units,
        30,
        "the others' were not journaled"
    );
    let rest = (LIMIT - 35).try_into().unwrap();
    granted(store.charge(charge(&there, today(), LIMIT, rest)).await);
    let beyond = store.charge(charge(&there, today(), LIMIT, 1)).await;
    assert!(beyond.is_err(), "the share is used up: {beyond:?}");

    set.nodes[2].restart().await;
    eventually(
        "it receives what was served, and what it had lost",
        async || (counted(&set.nodes[2], &there).await == Some(LIMIT)).then_some(()),
    )
    .await;
    eventually("all is well again", async || {
        let health = store.health();
        (health.up && health.pending_units == 0).then_some(())
    })
    .await;
    charged_by_the_ledger(&store, &there, LIMIT).await;
    let over = store.charge(charge(&there, today(), LIMIT, 1)).await;
    assert!(
        matches!(over, Ok(Decision::Exhausted { used: LIMIT })),
        "{over:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refund_while_a_master_is_away_leaves_what_the_share_leaves() {
    let (mut set, directory) = (ClusterSet::start(0).await, tempfile::tempdir().unwrap());
    let [_, there] = two_keys(&set, &command(cluster(&set)).await).await;
    let outage = OutageSettings {
        min_nodes: 2.try_into().unwrap(),
        ..OutageSettings::of_journal(directory.path().join("journal.db"))
    };
    let store = gateway_with(cluster(&set), outage).await;
    let unit = async || store.charge(charge(&there, today(), LIMIT, 1)).await;
    for _ in 0..10 {
        granted(unit().await);
    }
    set.nodes[2].kill();
    let mut last = None;
    for _ in 0..4 {
        last = Some(granted(unit().await));
    }
    let (used, receipt) = last.unwrap();
    // Half of the 990 that were left is this gateway's share.
    assert_eq!(used, LIMIT - (990 / 2 - 4));
    // A read of a count that is older than a second asks Redis, without a limit.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let read = store.used(there.record.id, today(), LIMIT).await;
    assert_eq!(read.unwrap(), used);
    assert_eq!(store.refund(receipt).await, Some(used - 1));
    assert_eq!(granted(unit().await).0, used);
    set.nodes[2].restart().await;
    eventually("all is settled", async || {
        (counted(&set.nodes[2], &there).await == Some(14)).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_dead_gateway_served_without_redis_is_settled_at_the_masters_that_are_there() {
    let (mut set, directory) = (ClusterSet::start(0).await, tempfile::tempdir().unwrap());
    let [here, there] = two_keys(&set, &command(cluster(&set)).await).await;
    let store = gateway(cluster(&set), directory.path()).await;
    for key in [&here, &there] {
        served(&store, key).await;
    }
    for master in [1, 2] {
        set.nodes[master].kill();
    }
    for _ in 0..3 {
        served(&store, &here).await;
        served(&store, &there).await;
    }
    assert_eq!(store.health().pending_units, 6);
    drop(store);
    set.nodes[1].restart().await;
    let next = gateway(cluster(&set), directory.path()).await;
    eventually("only the other master's units are pending", async || {
        (next.health().pending_units == 3).then_some(())
    })
    .await;
    assert_eq!(counted(&set.nodes[1], &here).await, Some(4));
    charged_by_the_ledger(&next, &here, 4).await;
    set.nodes[2].restart().await;
    eventually("nothing is pending", async || {
        (next.health().pending_units == 0).then_some(())
    })
    .await;
    assert_eq!(counted(&set.nodes[2], &there).await, Some(4));
    charged_by_the_ledger(&next, &there, 4).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_stops_as_a_whole_leaves_every_key_its_share() {
    let (mut set, directory) = (ClusterSet::start(0).await, tempfile::tempdir().unwrap());
    for node in &set.nodes {
        // Redis's default: where a slot has no master, no slot is served.
        let () = node
            .ask("CONFIG SET cluster-require-full-coverage yes")
            .await;
    }
    let keys = two_keys(&set, &command(cluster(&set)).await).await;
    let store = gateway(cluster(&set), directory.path()).await;
    for key in &keys {
        served(&store, key).await;
    }
    set.nodes[2].kill();
    eventually("the cluster is down", async || {
        let info: String = set.nodes[1].ask("CLUSTER INFO").await;
        info.contains("cluster_state:fail").then_some(())
    })
    .await;
    for _ in 0..20 {
        for key in &keys {
            served(&store, key).await;
        }
    }
    set.nodes[2].restart().await;
    for (key, node) in keys.iter().zip([1, 2]) {
        let total = 21 + served_until_settled(&store, key).await;
        has_counted(&set.nodes[node], key, total).await;
    }
}

/// A count that was older than this when an outage began is unknown: the nodes of a cluster take a few seconds to notice that one is gone.
const STALENESS: Duration = Duration::from_secs(6);

/// A cluster, and a gateway that has learnt the counts of a key of master 1 and of one of master 2.
async fn counts_of_two_keys() -> (ClusterSet, TempDir, [Arc<KeyEntry>; 2], Arc<RedisStore>) {
    let (set, directory) = (ClusterSet::start(0).await, tempfile::tempdir().unwrap());
    let keys = two_keys(&set, &command(cluster(&set)).await).await;
    let outage = OutageSettings {
        count_staleness: STALENESS,
        ..OutageSettings::of_journal(directory.path().join("journal.db"))
    };
    let store = gateway_with(cluster(&set), outage).await;
    for key in &keys {
        served(&store, key).await;
    }
    (set, directory, keys, store)
}

/// How masters become unavailable.
enum Away {
    Killed,
    /// They refuse each write.
    Refusing,
}

/// Makes some masters of a cluster unavailable, and serves keys of masters 1 and 2 more than the cold part of their limit, long
/// afterwards.
async fn the_count_remains_known(full_coverage: &str, away: Away, masters: &[usize]) {
    let (mut set, _directory, keys, store) = counts_of_two_keys().await;
    for node in &set.nodes {
        let setting = format!("CONFIG SET cluster-require-full-coverage {full_coverage}");
        let () = node.ask(&setting).await;
    }
    for master in masters {
        match away {
            Away::Killed => set.nodes[*master].kill(),
            Away::Refusing => {
                let refuse = "CONFIG SET min-replicas-to-write 1";
                let () = set.nodes[*master].ask(refuse).await;
            }
        }
    }
    let mut served_before = 0;
    if let Away::Refusing = away {
        // It is noticed by the first charge.
        for key in &keys {
            served(&store, key).await;
        }
        served_before = 1;
    }
    tokio::time::sleep(STALENESS + Duration::from_secs(2)).await;
    let health = store.health();
    assert_eq!(health.pending_units, 2 * served_before);
    assert!(!health.up && health.trouble.is_some(), "{health:?}");
    if let Away::Refusing = away {
        let trouble = health.trouble.as_deref();
        assert!(trouble.is_some_and(|why| why.contains("refuses writes")));
        // One master is left, to which no call went that the others refuse.
        assert!(health.partly_up, "{health:?}");
        let before = script_calls(&set.nodes[1]).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(script_calls(&set.nodes[1]).await, before);
    }
    let rest = (LIMIT - 1 - served_before).try_into().unwrap();
    for key in &keys {
        granted(store.charge(charge(key, today(), LIMIT, rest)).await);
    }
    let pending = 2 * (served_before + u64::from(rest));
    assert_eq!(store.health().pending_units, pending);
    if let Away::Refusing = away {
        for master in masters {
            let accept = "CONFIG SET min-replicas-to-write 0";
            let () = set.nodes[*master].ask(accept).await;
        }
        eventually("the counts are settled", async || {
            let health = store.health();
            (health.up && health.pending_units == 0).then_some(())
        })
        .await;
        for (key, node) in keys.iter().zip([1, 2]) {
            assert_eq!(counted(&set.nodes[node], key).await, Some(LIMIT));
        }
    }
}

/// How often a server was asked to run the script of charges.
async fn script_calls(node: &Node) -> u64 {
    let statistics: String = node.ask("INFO commandstats").await;
    let mut lines = statistics.lines();
    let calls = lines.find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    calls.map_or(0, |calls| calls.split(',').next().unwrap().parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_count_grows_no_older_while_its_master_of_a_cluster_is_away() {
    the_count_remains_known("no", Away::Killed, &[1, 2]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_count_grows_no_older_while_its_master_of_a_cluster_refuses_writes() {
    the_count_remains_known("no", Away::Refusing, &[1, 2]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_count_grows_no_older_while_its_master_of_a_cluster_denies_the_charges() {
    let (set, _directory, [key, _], store) = counts_of_two_keys().await;
    // It is not away: it answers all else.
    let () = set.nodes[1].ask("ACL SETUSER default -eval -evalsha").await;
    served(&store, &key).await;
    assert_eq!(store.health().pending_units, 1);
    tokio::time::sleep(STALENESS + Duration::from_secs(2)).await;
    let rest = (LIMIT - 2).try_into().unwrap();
    granted(store.charge(charge(&key, today(), LIMIT, rest)).await);
    assert_eq!(store.health().pending_units, LIMIT - 1);
    let () = set.nodes[1].ask("ACL SETUSER default +eval +evalsha").await;
    eventually("the count is settled", async || {
        (counted(&set.nodes[1], &key).await == Some(LIMIT)).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_count_grows_no_older_while_its_master_of_a_cluster_serves_no_slot_although_the_others_do()
 {
    let (mut set, _directory, [_, key], store) = counts_of_two_keys().await;
    // As if it did not hear the others: it reports another state than they.
    let needs_all = |needs| format!("CONFIG SET cluster-require-full-coverage {needs}");
    let () = set.nodes[2].ask(&needs_all("yes")).await;
    set.nodes[0].kill();
    tokio::time::sleep(STALENESS + Duration::from_secs(2)).await;
    let health = store.health();
    assert!(!health.up && health.partly_up, "{health:?}");
    let reported = format!(
        "{}: it reports that its cluster does not serve",
        set.nodes[2].address()
    );
    assert!(health.trouble.is_some_and(|why| why.contains(&reported)));
    let rest = (LIMIT - 1).try_into().unwrap();
    granted(store.charge(charge(&key, today(), LIMIT, rest)).await);
    assert_eq!(store.health().pending_units, u64::from(rest));
    let () = set.nodes[2].ask(&needs_all("no")).await;
    eventually("the count is settled", async || {
        (counted(&set.nodes[2], &key).await == Some(LIMIT)).then_some(())
    })
    .await;
    eventually("nothing is pending", async || {
        (store.health().pending_units == 0).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_count_remains_known_if_another_node_takes_the_address_of_its_master() {
    let (mut set, _directory, keys, store) = counts_of_two_keys().await;
    set.replace(2).await;
    eventually("the cluster knows no address of it", async || {
        let nodes: String = set.nodes[0].ask("CLUSTER NODES").await;
        nodes.contains("noaddr").then_some(())
    })
    .await;
    tokio::time::sleep(STALENESS + Duration::from_secs(2)).await;
    let rest = (LIMIT - 1).try_into().unwrap();
    granted(store.charge(charge(&keys[1], today(), LIMIT, rest)).await);
    assert_eq!(store.health().pending_units, u64::from(rest));
    let other: u64 = set.nodes[2].ask("DBSIZE").await;
    assert_eq!(other, 0, "units went to a node of no cluster");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateways_that_cannot_report_themselves_still_share_what_was_left() {
    // Longer than a heartbeat holds and the largest of the last counts of gateways is used.
    const LONG: Duration = Duration::from_secs(22);
    let (set, directories) = (
        ClusterSet::start(0).await,
        [(); 2].map(|()| tempfile::tempdir()),
    );
    assert_eq!(set.owner("gateways").await, 2, "it holds the register");
    let [_, key] = two_keys(&set, &command(cluster(&set)).await).await;
    let mut stores = Vec::new();
    for directory in &directories {
        let directory = directory.as_ref().unwrap();
        stores.push(gateway(cluster(&set), directory.path()).await);
    }
    for store in &stores {
        eventually("both are counted", async || {
            let status = store.status().await.ok()?;
            (status.gateways.len() == 2).then_some(())
        })
        .await;
    }
    // Each counts them every second.
    tokio::time::sleep(Duration::from_secs(2)).await;
    for store in &stores {
        served(store, &key).await;
    }
    let () = set.nodes[2].ask("CONFIG SET min-replicas-to-write 1").await;
    for store in &stores {
        served(store, &key).await;
    }
    tokio::time::sleep(LONG).await;
    let nearly_half = (LIMIT / 2 - 10).try_into().unwrap();
    for store in &stores {
        granted(
            store
                .charge(charge(&key, today(), LIMIT, nearly_half))
                .await,
        );
        let more = store.charge(charge(&key, today(), LIMIT, 100)).await;
        assert!(more.is_err(), "{more:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_count_grows_no_older_while_a_cluster_does_not_serve() {
    the_count_remains_known("yes", Away::Killed, &[2]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_encrypted_sentinels_charging_goes_on_at_the_promoted_replica() {
    let certificates = Certificates::make();
    let mut set = SentinelSet::start_with(&certificates).await;
    let directory = tempfile::tempdir().unwrap();
    let settings = encrypted(sentinels(&set), &certificates);
    let key = issue(&command(settings.clone()).await).await;
    let store = gateway(settings, directory.path()).await;
    eventually("the key comes through the feed", async || {
        store.keys().get(key.record.id)
    })
    .await;
    let before = served_until_settled(&store, &key).await;
    assert_eq!(counted(&set.servers[0], &key).await, Some(before));
    set.servers[0].kill();
    let total = before + served_until_settled(&store, &key).await;
    has_counted(&set.servers[1], &key, total).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_an_encrypted_cluster_every_masters_keys_are_charged_and_followed() {
    let certificates = Certificates::make();
    let set = ClusterSet::start_with(&certificates).await;
    let directory = tempfile::tempdir().unwrap();
    let settings = encrypted(cluster(&set), &certificates);
    let command = command(settings.clone()).await;
    let store = gateway(settings, directory.path()).await;
    let keys = two_keys(&set, &command).await;
    for (key, node) in keys.iter().zip([1, 2]) {
        eventually("the key comes through the feed", async || {
            store.keys().get(key.record.id)
        })
        .await;
        // More than one only if Redis replied too late; the last one Redis itself was charged.
        let units = served_until_settled(&store, key).await;
        assert_eq!(counted(&set.nodes[node], key).await, Some(units));
    }
    assert!(store.health().up);
    assert_eq!(store.health().pending_units, 0, "Redis itself was charged");
}
