//! Calls for several accounts at once: what goes together, and what one account cannot do to others.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use touchline::clock::Clock;
use touchline::policy::calendar::Day;
use touchline::store::redis::{RedisSettings, open};
use touchline::store::{Decision, KeyEntry, NodeName, Role, Store, StoreError};

use crate::redis_nodes::{Node, own_prefix, settled, words};
use crate::redis_server::RedisServer;
use crate::suite::{ZONE, charge, eventually_used, granted, issue, today};

/// Charges of each key, at the same time.
const CHARGES: u64 = 20;

async fn store(url: String, role: Role, key_prefix: &str) -> Arc<dyn Store> {
    let settings = RedisSettings {
        timeout: Duration::from_secs(5),
        key_prefix: key_prefix.to_owned(),
        ..RedisSettings::of_url(url)
    };
    open(settings, role, ZONE, Clock::system()).await.unwrap()
}

/// A gateway's handle and so many keys.
async fn scene(url: String, keys: usize) -> (Arc<dyn Store>, Vec<Arc<KeyEntry>>) {
    let prefix = own_prefix();
    let command = store(url.clone(), Role::Command, &prefix).await;
    let mut issued = Vec::new();
    for _ in 0..keys {
        issued.push(issue(&command).await);
    }
    let role = Role::Gateway(NodeName("together".into()));
    (store(url, role, &prefix).await, issued)
}

/// What [`CHARGES`] charges of each key, all at the same time, were answered.
async fn charged(
    store: &Arc<dyn Store>,
    keys: &[Arc<KeyEntry>],
    day: Day,
    limit: u64,
) -> Vec<(usize, Result<Decision, StoreError>)> {
    let mut running = JoinSet::new();
    for _ in 0..CHARGES {
        for (place, key) in keys.iter().enumerate() {
            let (store, charge) = (store.clone(), charge(key, day, limit, 1));
            running.spawn(async move { (place, store.charge(charge).await) });
        }
    }
    running.join_all().await
}

/// How often a server has run a script by its name, and how often it refused.
fn scripts(info: &str) -> (u64, u64) {
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_evalsha:"));
    let number = |name: &str| {
        let found = line?.split(',').find_map(|part| part.strip_prefix(name))?;
        found.strip_prefix('=')?.trim().parse().ok()
    };
    (
        number("calls").unwrap_or(0),
        number("failed_calls").unwrap_or(0) + number("rejected_calls").unwrap_or(0),
    )
}

async fn scripts_of(server: &RedisServer) -> (u64, u64) {
    let info: String = redis::cmd("INFO")
        .arg("commandstats")
        .query_async(&mut server.connect().await)
        .await
        .unwrap();
    scripts(&info)
}

#[tokio::test]
async fn keys_that_are_called_at_the_same_time_share_script_calls() {
    let server = RedisServer::start().await;
    let (store, keys) = scene(server.url(), 50).await;
    let day = today();
    let (before, _) = scripts_of(&server).await;
    for (_, decision) in charged(&store, &keys, day, CHARGES).await {
        granted(decision);
    }
    let (after, refused) = scripts_of(&server).await;
    // A call for each key alone would be 50, with all its waiters; 64 keys go in one.
    let calls = after - before;
    assert!(calls < 25, "{calls} script calls");
    assert_eq!(refused, 0);
    for key in &keys {
        eventually_used(&store, key, day, CHARGES).await;
    }
}

/// The one name in Redis that has this form.
async fn name_like(connection: &mut redis::aio::MultiplexedConnection, pattern: &str) -> String {
    let names: Vec<String> = redis::cmd("KEYS")
        .arg(pattern)
        .query_async(connection)
        .await
        .unwrap();
    let [name] = names.as_slice() else {
        panic!("{names:?}")
    };
    name.clone()
}

/// Asserts that charges of the first key fail and all others are granted and counted, three times over.
async fn the_first_alone_fails(store: &Arc<dyn Store>, keys: &[Arc<KeyEntry>], day: Day) {
    for round in 1..=3 {
        for (place, decision) in charged(store, keys, day, 1_000).await {
            match place {
                0 => assert!(
                    matches!(decision, Err(StoreError::Failed(_))),
                    "{decision:?}"
                ),
                _ => {
                    granted(decision);
                }
            }
        }
        for key in &keys[1..] {
            eventually_used(store, key, day, round * CHARGES).await;
        }
    }
}

#[tokio::test]
async fn a_key_that_redis_cannot_count_for_harms_no_other() {
    let server = RedisServer::start().await;
    let (store, keys) = scene(server.url(), 20).await;
    let day = today();
    granted(store.charge(charge(&keys[0], day, 1_000, 1)).await);
    let mut connection = server.connect().await;
    let pattern = format!("*:q:*{}*:{}", keys[0].record.id, day.date);
    let name = name_like(&mut connection, &pattern).await;
    // Its counts were overwritten.
    let () = redis::cmd("SET")
        .arg((&name, "spoilt"))
        .query_async(&mut connection)
        .await
        .unwrap();
    the_first_alone_fails(&store, &keys, day).await;
    // Once it is mended, it learns what it had been charged, and is sent with the others again.
    let () = redis::cmd("DEL")
        .arg(&name)
        .query_async(&mut connection)
        .await
        .unwrap();
    let (used, _) = granted(store.charge(charge(&keys[0], day, 1_000, 1)).await);
    assert_eq!(used, 2);
}

#[tokio::test]
async fn a_key_whose_record_cannot_be_read_harms_no_other() {
    let server = RedisServer::start().await;
    let (store, keys) = scene(server.url(), 20).await;
    let mut connection = server.connect().await;
    let pattern = format!("*:k:*{}*", keys[0].record.id);
    let name = name_like(&mut connection, &pattern).await;
    // A newer record, so that the answer has it in it, which is no text.
    let () = redis::cmd("HSET")
        .arg((&name, "ver", keys[0].record.version + 1, "rec", b"\xff"))
        .query_async(&mut connection)
        .await
        .unwrap();
    the_first_alone_fails(&store, &keys, today()).await;
}

#[tokio::test]
async fn a_server_that_takes_one_slot_at_a_time_is_asked_for_each_key_alone() {
    let alone = |port: u16| {
        words(&format!(
            "--cluster-enabled yes --cluster-port {}",
            port + 1
        ))
    };
    let node = Node::start(alone).await;
    let () = node.ask("CLUSTER ADDSLOTSRANGE 0 16383").await;
    settled("it serves", async || {
        let info: String = node.ask("CLUSTER INFO").await;
        info.contains("cluster_state:ok")
    })
    .await;
    let (store, keys) = scene(format!("redis://{}", node.address()), 20).await;
    let day = today();
    for round in 1..=3 {
        for (_, decision) in charged(&store, &keys, day, 1_000).await {
            granted(decision);
        }
        for key in &keys {
            eventually_used(&store, key, day, round * CHARGES).await;
        }
    }
    let info: String = node.ask("INFO commandstats").await;
    let (_, refused) = scripts(&info);
    // Those that were under way when the first was refused.
    assert!((1..=4).contains(&refused), "{refused} refused calls");
}
