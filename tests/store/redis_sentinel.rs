//! Redis behind Sentinel: the shared suite, and what happens when the master changes.

use std::sync::Arc;
use std::time::Duration;

use harness::{PATIENCE, SLACK};
use tokio::sync::OnceCell;
use tokio::time::Instant;
use touchline::clock::Clock;
use touchline::store::redis::{RedisSettings, RedisStore, Servers, open};
use touchline::store::{Decision, KeyEntry, Role, Store, StoreError};

use crate::log_lines::log_lines;
use crate::redis_nodes::{Node, SentinelSet, deafen, settled};
use crate::suite::{ZONE, charge, eventually, exhausted, granted, issue, today, used_field};
use crate::tcp_proxy::{TcpProxy, Wire};
use crate::topologies::{SharedServers, gateway, patient};

fn place(set: &SentinelSet) -> Servers {
    Servers::Sentinels {
        sentinels: set.addresses(),
        master: "mymaster".into(),
    }
}

async fn shared() -> &'static SentinelSet {
    static SET: OnceCell<SentinelSet> = OnceCell::const_new();
    SET.get_or_init(SentinelSet::start).await
}

store_suite!(SharedServers::with(patient(place(shared().await))));

const LIMIT: u64 = 1_000;

/// A set of the test's own, a gateway on it and a key that has used 5 units, which the replica knows.
async fn begun() -> (SentinelSet, Arc<RedisStore>, Arc<KeyEntry>) {
    let set = SentinelSet::start().await;
    let command = open(patient(place(&set)), Role::Command, ZONE, Clock::system());
    let command: Arc<dyn Store> = command.await.unwrap();
    let key = issue(&command).await;
    let store = gateway(place(&set)).await;
    eventually("the key is in the table", async || {
        store.keys().get(key.record.id)
    })
    .await;
    for used in 1..=5 {
        assert_eq!(
            granted(store.charge(charge(&key, today(), LIMIT, 1)).await).0,
            used
        );
    }
    (set, store, key)
}

/// Charges until one is granted; answers the units used then.
async fn granted_again(store: &RedisStore, key: &Arc<KeyEntry>) -> u64 {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match store.charge(charge(key, today(), LIMIT, 1)).await {
            Ok(Decision::Granted { used, .. }) => return used,
            Err(StoreError::Unavailable(why)) => {
                assert!(Instant::now() < deadline, "no master in time: {why}");
            }
            other => panic!("{other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn counted(node: &Node, key: &Arc<KeyEntry>) -> Option<u64> {
    let name = format!("touchline:q:{{{}}}:{}", key.record.id, today().date);
    // No server answers for a moment where the server changes its role.
    let output = node
        .try_ask(&format!("HGET {name} {}", used_field(today())))
        .await;
    output.unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_the_master_dies_charging_goes_on_against_the_promoted_replica() {
    let (mut set, store, key) = begun().await;
    set.servers[0].kill();
    let used = granted_again(&store, &key).await;
    // What timed out meanwhile is given back; what was granted before is counted.
    eventually("the count is what was granted", async || {
        (counted(&set.servers[1], &key).await == Some(6)).then_some(())
    })
    .await;
    assert!((6..=LIMIT).contains(&used), "{used}");
    let rest = (LIMIT - 6).try_into().unwrap();
    assert_eq!(
        granted(store.charge(charge(&key, today(), LIMIT, rest)).await).0,
        LIMIT
    );
    assert_eq!(
        exhausted(store.charge(charge(&key, today(), LIMIT, 1)).await),
        LIMIT
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_the_master_hangs_and_comes_back_as_a_replica_nothing_is_counted_twice() {
    let (set, store, key) = begun().await;
    set.servers[0].hang();
    granted_again(&store, &key).await;
    set.servers[0].resume();
    // The sentinels let a master that comes back be one for ten seconds before they make it follow.
    settled("the old master follows the new one", async || {
        // A server drops its connections when its role changes.
        let info: redis::RedisResult<String> = set.servers[0].try_ask("INFO replication").await;
        info.is_ok_and(|info| info.contains("master_link_status:up"))
    })
    .await;
    for node in &set.servers {
        eventually("both count what was granted", async || {
            (counted(node, &key).await == Some(6)).then_some(())
        })
        .await;
    }
    assert!(store.health().up);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_that_a_failover_lost_are_claimed_again() {
    let (mut set, store, key) = begun().await;
    deafen(&set.servers[1], &set.servers[0]).await;
    for used in 6..=25 {
        assert_eq!(
            granted(store.charge(charge(&key, today(), LIMIT, 1)).await).0,
            used
        );
    }
    set.servers[0].kill();
    set.servers[1].resume();
    granted_again(&store, &key).await;
    eventually("all that was granted is counted", async || {
        (counted(&set.servers[1], &key).await == Some(26)).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_by_hand_moves_the_gateway_and_loses_nothing() {
    let (set, store, key) = begun().await;
    set.fail_over().await;
    eventually("the replica is promoted", async || {
        // A server drops its connections when its role changes.
        let info: String = set.servers[1].try_ask("INFO replication").await.ok()?;
        info.contains("role:master").then_some(())
    })
    .await;
    granted_again(&store, &key).await;
    eventually(
        "the count is what was granted, where it is now",
        async || (counted(&set.servers[1], &key).await == Some(6)).then_some(()),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_became_read_only_is_left_for_the_one_that_the_sentinels_name() {
    let (set, store, key) = begun().await;
    // The connections stay open, as they do where a demotion is none of the sentinels' doing.
    let [master, replica] = &set.servers;
    let () = replica.ask("REPLICAOF NO ONE").await;
    let () = master
        .ask(&format!("REPLICAOF 127.0.0.1 {}", replica.port))
        .await;
    let asked = Instant::now();
    let refused = store.charge(charge(&key, today(), LIMIT, 1)).await;
    assert!(
        matches!(refused, Err(StoreError::Unavailable(_))),
        "{refused:?}"
    );
    assert!(asked.elapsed() < SLACK);
    granted_again(&store, &key).await;
    eventually("a master counts what was granted", async || {
        for node in &set.servers {
            let info: String = node.ask("INFO replication").await;
            if info.contains("role:master") && counted(node, &key).await == Some(6) {
                return Some(());
            }
        }
        None
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sentinel_as_far_away_as_the_timeout_allows_names_the_master() {
    let sentinels = shared().await.addresses();
    let (_, port) = sentinels[1].rsplit_once(':').unwrap();
    let far = TcpProxy::before(port.parse().unwrap()).await;
    far.set(Wire::Delays(Duration::from_millis(100)));
    let settings = RedisSettings {
        timeout: Duration::from_secs(2),
        ..patient(Servers::Sentinels {
            sentinels: vec![far.url().replace("redis://", "").replace("/0", "")],
            master: "mymaster".into(),
        })
    };
    let store = open(settings, Role::Command, ZONE, Clock::system());
    store.await.unwrap().close(PATIENCE).await;
}

#[tokio::test]
async fn a_sentinel_that_names_no_master_is_logged_while_the_others_name_it() {
    let lines = log_lines();
    // No other test has this address.
    let silent = "127.0.0.98:1".to_owned();
    let line = [&*silent, "a sentinel does not name the master"];
    let mut sentinels = shared().await.addresses();
    sentinels.push(silent.clone());
    let store = gateway(Servers::Sentinels {
        sentinels,
        master: "mymaster".into(),
    });
    let store = store.await;
    let connections = 2;
    eventually("the silent sentinel is logged", async || {
        (lines.with(&line) >= connections).then_some(())
    })
    .await;
    // They are asked each second.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    assert_eq!(lines.with(&line), connections);
    store.close(PATIENCE).await;
}
