//! The register of gateways: whose entry a process takes over, and what a Redis that lost it gets back.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use touchline::clock::Clock;
use touchline::policy::audit::Author;
use touchline::store::redis::{RedisSettings, RedisStore, open};
use touchline::store::status::StoreStatus;
use touchline::store::{Forgotten, NodeName, Role, Store};

use crate::redis_server::RedisServer;
use crate::suite::{PATIENCE, ZONE, eventually, new_record};

const STRIKE_OFF_SCRIPT: &str = include_str!("../../src/store/redis/strike_off.lua");

async fn gateway(server: &RedisServer, name: &str, directory: &Path) -> Arc<RedisStore> {
    let settings = RedisSettings {
        timeout: Duration::from_secs(2),
        replica: Some(directory.join("keys.db")),
        ..RedisSettings::of_url(server.url())
    };
    let role = Role::Gateway(NodeName(name.into()));
    open(settings, role, ZONE, Clock::system()).await.unwrap()
}

async fn command(server: &RedisServer) -> Arc<RedisStore> {
    let settings = RedisSettings::of_url(server.url());
    open(settings, Role::Command, ZONE, Clock::system())
        .await
        .unwrap()
}

fn live(status: &StoreStatus) -> Vec<&str> {
    status.gateways.iter().map(|one| &*one.name).collect()
}

fn silent(status: &StoreStatus) -> Vec<&str> {
    status.silent.iter().map(|one| &*one.name).collect()
}

/// The gateway `lives`, which knows that the gateway `killed` is silent.
async fn gateway_beside_a_silent_one(server: &RedisServer, directory: &Path) -> Arc<RedisStore> {
    let lives = gateway(server, "lives", &directory.join("one")).await;
    let killed = gateway(server, "killed", &directory.join("two")).await;
    has(&lives, &["killed", "lives"], &[]).await;
    drop(killed);
    eventually("the other gateway knows that it is silent", async || {
        (lives.health().silent_gateways == 1).then_some(())
    })
    .await;
    lives
}

/// Waits until the register has these gateways that live and these that are silent.
async fn has(command: &Arc<RedisStore>, lives: &[&str], silents: &[&str]) {
    eventually(&format!("{lives:?} live, {silents:?} do not"), async || {
        let status = command.status().await.ok()?;
        (live(&status) == lives && silent(&status) == silents).then_some(())
    })
    .await;
}

/// The names of the gateways that do not confirm a new change.
async fn unconfirmed(command: &Arc<RedisStore>) -> Vec<String> {
    let (_, mark) = command.create_key(new_record("pro")).await.unwrap();
    let unconfirmed = command.await_applied(&mark, PATIENCE / 30).await.unwrap();
    unconfirmed.into_iter().map(|one| one.name.0).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_gateway_is_answered_for_by_one_that_runs_on_its_replica() {
    let (server, directory) = (RedisServer::start().await, TempDir::new().unwrap());
    let command = command(&server).await;
    // As an upgrade whose old process is killed before it has ended.
    let old = gateway(&server, "old", directory.path()).await;
    let new = gateway(&server, "new", directory.path()).await;
    has(&command, &["new", "old"], &[]).await;
    drop(old);
    has(&command, &["new"], &[]).await;
    assert_eq!(unconfirmed(&command).await, [""; 0]);
    // And where both are killed, by the next one.
    let other = gateway(&server, "other", directory.path()).await;
    has(&command, &["new", "other"], &[]).await;
    drop((new, other));
    has(&command, &[], &["new", "other"]).await;
    assert_eq!(unconfirmed(&command).await, ["new", "other"]);
    let _next = gateway(&server, "next", directory.path()).await;
    has(&command, &["next"], &[]).await;
    assert_eq!(unconfirmed(&command).await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emptied_redis_receives_again_which_gateways_are_silent() {
    let (server, directory) = (RedisServer::start().await, TempDir::new().unwrap());
    let command = command(&server).await;
    let _lives = gateway_beside_a_silent_one(&server, directory.path()).await;
    let () = redis::cmd("FLUSHALL")
        .query_async(&mut server.connect().await)
        .await
        .unwrap();
    has(&command, &["lives"], &["killed"]).await;
    assert_eq!(unconfirmed(&command).await, ["killed"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emptied_redis_that_refuses_the_silent_gateways_at_first_receives_them_later() {
    let (server, directory) = (RedisServer::start().await, TempDir::new().unwrap());
    let command = command(&server).await;
    let _lives = gateway_beside_a_silent_one(&server, directory.path()).await;
    let connection = &mut server.connect().await;
    // What puts them back, and no heartbeat.
    let mut refuse = redis::pipe();
    refuse.cmd("ACL").arg(&["SETUSER", "default", "-hsetnx"]);
    refuse.cmd("FLUSHALL");
    refuse.exec_async(connection).await.unwrap();
    has(&command, &["lives"], &[]).await;
    let mut allow = redis::cmd("ACL");
    allow.arg(&["SETUSER", "default", "+hsetnx"]);
    allow.exec_async(connection).await.unwrap();
    has(&command, &["lives"], &["killed"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_register_that_is_lost_again_and_again_receives_the_silent_gateways_too() {
    let (server, directory) = (RedisServer::start().await, TempDir::new().unwrap());
    let command = command(&server).await;
    let lives = gateway_beside_a_silent_one(&server, directory.path()).await;
    let lose = async || {
        let connection = &mut server.connect().await;
        loop {
            redis::cmd("DEL")
                .arg("touchline:{gateways}:register")
                .exec_async(connection)
                .await
                .unwrap();
        }
    };
    let lost = async { tokio::join!(lose(), lose(), lose()) };
    // Some heartbeats, and as many looks at the register between them.
    let _ = tokio::time::timeout(Duration::from_secs(5), lost).await;
    has(&command, &["lives"], &["killed"]).await;
    assert_eq!(lives.health().silent_gateways, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_was_struck_off_is_not_registered_by_another_that_returns() {
    let (server, directory) = (RedisServer::start().await, TempDir::new().unwrap());
    let command = command(&server).await;
    let _lives = gateway_beside_a_silent_one(&server, directory.path()).await;
    let author = Author {
        who: "ann".into(),
        reason: None,
    };
    let killed = NodeName("killed".into());
    let struck = command.forget_gateway(&killed, &author).await.unwrap();
    assert!(matches!(struck, Forgotten::Struck { .. }), "{struck:?}");
    // The other one finds that it was struck off, too.
    let () = redis::cmd("DEL")
        .arg("touchline:{gateways}:register")
        .query_async(&mut server.connect().await)
        .await
        .unwrap();
    has(&command, &["lives"], &[]).await;
    assert_eq!(unconfirmed(&command).await, [""; 0]);
}

/// A gateway returns after an operator's command has read that it is silent.
#[tokio::test]
async fn a_gateway_whose_entry_changed_since_it_was_read_is_not_struck_off() {
    const REGISTER: &str = "touchline:{gateways}:register";
    const TRAIL: &str = "touchline:{gateways}:trail";
    let server = RedisServer::start().await;
    let connection = &mut server.connect().await;
    let mut run = async |words: &[&str]| -> redis::Value {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query_async(connection).await.unwrap()
    };
    run(&["HSET", REGISTER, "id", "returned"]).await;
    for (read, struck) in [("silent", 0), ("returned", 1)] {
        let words = [
            "EVAL",
            STRIKE_OFF_SCRIPT,
            "2",
            REGISTER,
            TRAIL,
            "id",
            read,
            "7",
            "{}",
        ];
        assert_eq!(run(&words).await, redis::Value::Int(struck), "{read}");
        let listed = run(&["HEXISTS", REGISTER, "id"]).await;
        assert_eq!(listed, redis::Value::Int(1 - struck), "{read}");
        let audited = run(&["HEXISTS", TRAIL, "7"]).await;
        assert_eq!(audited, redis::Value::Int(struck), "{read}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_machines_with_copies_of_one_replica_are_distinguished() {
    let (server, directory) = (RedisServer::start().await, TempDir::new().unwrap());
    let command = command(&server).await;
    let (here, there) = (
        directory.path().join("here"),
        directory.path().join("there"),
    );
    gateway(&server, "first", &here).await.close(PATIENCE).await;
    std::fs::create_dir(&there).unwrap();
    for file in ["keys.db", "keys.db.seat-0"] {
        std::fs::copy(here.join(file), there.join(file)).unwrap();
    }
    let one = gateway(&server, "one", &here).await;
    let two = gateway(&server, "two", &there).await;
    has(&command, &["one", "two"], &[]).await;
    drop(one);
    has(&command, &["two"], &["one"]).await;
    drop(two);
    has(&command, &[], &["one", "two"]).await;
    let _one = gateway(&server, "one-again", &here).await;
    let _two = gateway(&server, "two-again", &there).await;
    has(&command, &["one-again", "two-again"], &[]).await;
}
