//! The user of Redis: with the permissions that the documents name, everything works; without one of them, an operator learns why.

use std::collections::HashMap;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use harness::redis_nodes::{ClusterSet, Node};
use harness::{Behaviour, Protocol, Scene, StoreSpec, eventually};
use tempfile::TempDir;

use super::{MARKETS, TOUCHLINE, run_beside};

const DOCUMENT: &str = include_str!("../../docs/redis-and-outages.md");
/// What `touchline store status` also asks for, and goes without.
const OPTIONAL: &str = "config|get";
const DAILY: u64 = 4;

/// The command of the documents that makes the user.
fn documented() -> &'static str {
    let lines = DOCUMENT.lines();
    let mut found = lines.filter(|line| line.starts_with("ACL SETUSER touchline "));
    found.next().unwrap()
}

fn of(node: &Node) -> StoreSpec {
    StoreSpec::Redis {
        url: format!("redis://{}/0", node.address()),
        key_prefix: "touchline".into(),
    }
}

/// A gateway on these servers, as their user, whose password is in the directory.
async fn scene(store: StoreSpec) -> (Scene, TempDir) {
    let secrets = TempDir::new().unwrap();
    let file = secrets.path().join("redis");
    std::fs::write(&file, "PASSWORD").unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
    let login = format!("username: touchline, password_file: \"{}\"", file.display());
    let builder = Scene::builder(TOUCHLINE).daily("starter", DAILY);
    let builder = builder.spec(move |spec| {
        spec.store = store;
        spec.redis_extra = format!("timeout: 2s, {login}");
    });
    (builder.start().await, secrets)
}

/// The commands that a server refused to the user.
async fn refused(node: &Node) -> Vec<String> {
    let entries: Vec<HashMap<String, redis::Value>> = node.ask("ACL LOG").await;
    let objects = entries.iter().filter_map(|entry| entry.get("object"));
    objects
        .map(|object| redis::from_redis_value_ref(object).unwrap())
        .filter(|object: &String| object != OPTIONAL)
        .collect()
}

/// Runs requests and commands of every kind, which must all work.
async fn use_everything(scene: &mut Scene) {
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    scene.upstream.always(Behaviour::Status(503));
    assert_eq!(client.get(&key, MARKETS).await.status, 500);
    scene.upstream.always(Behaviour::Echo);
    for call in 0..=DAILY {
        let expected = if call < DAILY { 200 } else { 429 };
        assert_eq!(client.get(&key, MARKETS).await.status, expected);
    }
    scene.expect_used(&key, DAILY).await;
    let (file, backup) = (scene.outside().join("keys.csv"), scene.outside().join("b"));
    std::fs::write(
        &file,
        "key,tier,customer\nimported-0123456789abcdef,pro,Acme\n",
    )
    .unwrap();
    let (file, backup) = (file.to_str().unwrap(), backup.to_str().unwrap());
    let id = key.id.as_str();
    for words in [
        &["keys", "list", "--customer", "Acme"][..],
        &["keys", "show", id],
        &["keys", "grant", id, "--extra", "5", "--reason", "cup"],
        &["keys", "suspend", id, "--yes"],
        &["keys", "resume", id],
        &["keys", "set-tier", id, "pro"],
        &["keys", "set-expiry", id, "never"],
        &["keys", "set-label", id, "l"],
        &["keys", "rotate", id, "--overlap", "1h"],
        &["keys", "import", file],
        &["keys", "export"],
        &["keys", "revoke", id, "--yes"],
        &["usage"],
        &["usage", "verify"],
        &["usage", "invoice", "--month", "2026-10"],
        &["audit"],
        &[
            "explain", "--key-id", id, "--method", "GET", "--path", MARKETS,
        ],
        &["store", "status"],
        &["store", "backup", backup],
        &["store", "restore", backup, "--merge"],
    ] {
        run_beside(&scene.gateways[0], words).await.done();
    }
    scene.gateways[0].terminate();
    scene.gateways[0].restart().await;
    eventually("ready again", async || {
        let (status, body) = scene.admin(0, "/readyz").await;
        (status == 200 && body.contains(r#""status":"ready""#)).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documented_user_of_redis_may_do_all_that_gateways_and_commands_need() {
    let node = Node::start(|_| Vec::new()).await;
    let () = node.ask(documented()).await;
    let (mut scene, _secrets) = scene(of(&node)).await;
    use_everything(&mut scene).await;
    assert_eq!(refused(&node).await, Vec::<String>::new());
    let unchecked = "could not be checked: CONFIG GET is not permitted";
    let status = ["store", "status"];
    assert!(scene.cli(&status).await.contains(unchecked));
    let () = node.ask("ACL SETUSER touchline +config|get").await;
    assert!(!scene.cli(&status).await.contains(unchecked));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documented_user_of_a_cluster_may_do_all_that_gateways_and_commands_need() {
    let set = ClusterSet::start(0).await;
    for node in &set.nodes {
        let () = node.ask(documented()).await;
    }
    let nodes = set.addresses();
    let (mut scene, _secrets) = scene(StoreSpec::Cluster { nodes }).await;
    use_everything(&mut scene).await;
    for node in &set.nodes {
        assert_eq!(refused(node).await, Vec::<String>::new());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_permission_that_the_key_table_lacks_is_named_in_readyz() {
    let node = Node::start(|_| Vec::new()).await;
    let () = node.ask(documented()).await;
    let (scene, _secrets) = scene(of(&node)).await;
    let key = scene.issue("pro").await;
    let () = node.ask("ACL SETUSER touchline -info").await;
    let _: u64 = node.ask("CLIENT KILL USER touchline").await;
    let reason = eventually("a reason is reported", async || {
        let (_, body) = scene.admin(0, "/readyz").await;
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        let reason = body["reasons"][0].as_str()?.to_owned();
        assert_eq!(body["status"], "degraded", "{body}");
        Some(reason)
    })
    .await;
    let refusal = "no permissions to run the 'info' command";
    assert!(reason.contains(refusal), "{reason}");
    let client = scene.client(Protocol::Http1);
    assert_eq!(client.get(&key, MARKETS).await.status, 200);
    let () = node.ask("ACL SETUSER touchline +info").await;
    eventually("the reason is gone", async || {
        let (status, body) = scene.admin(0, "/readyz").await;
        (status == 200 && body.contains(r#""reasons":[]"#)).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_that_redis_refuses_is_named_in_readyz_with_the_remedy() {
    let node = Node::start(|_| Vec::new()).await;
    let () = node.ask(documented()).await;
    let (mut scene, _secrets) = scene(of(&node)).await;
    let key = scene.issue("pro").await;
    let client = scene.client(Protocol::Http1);
    let remedy = "; check the user and password of store.redis, and that the user has the permissions that docs/redis-and-outages.md names";
    for (begins, ends, refusal) in [
        (
            "ACL SETUSER touchline >other <PASSWORD",
            "ACL SETUSER touchline >PASSWORD <other",
            "WRONGPASS",
        ),
        (
            "ACL SETUSER touchline -script|load",
            "ACL SETUSER touchline +script|load",
            "no permissions to run the 'script|load' command",
        ),
        // The connection is there again, and the probe is refused.
        (
            "ACL SETUSER touchline -hset",
            "ACL SETUSER touchline +hset",
            "no permissions to run the 'hset' command",
        ),
    ] {
        let () = node.ask(begins).await;
        let _: u64 = node.ask("CLIENT KILL USER touchline").await;
        eventually("the refusal and the remedy are reported", async || {
            assert_eq!(client.get(&key, MARKETS).await.status, 200);
            let (_, body) = scene.admin(0, "/readyz").await;
            let body: serde_json::Value = serde_json::from_str(&body).unwrap();
            let trouble = body["store_trouble"].as_str()?;
            (trouble.contains(refusal) && trouble.ends_with(remedy)).then_some(())
        })
        .await;
        let () = node.ask(ends).await;
        eventually("ready again", async || {
            let (_, body) = scene.admin(0, "/readyz").await;
            body.contains(r#""status":"ready""#).then_some(())
        })
        .await;
    }
    scene.assert_ledgers_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn charges_that_redis_refuses_count_as_its_outage_until_it_accepts_them() {
    let node = Node::start(|_| Vec::new()).await;
    let () = node.ask(documented()).await;
    let (mut scene, _secrets) = scene(of(&node)).await;
    let key = scene.issue("pro").await;
    let client = scene.client(Protocol::Http1);
    for command in ["evalsha", "hmget"] {
        let () = node.ask(&format!("ACL SETUSER touchline -{command}")).await;
        eventually("it counts as unavailable", async || {
            assert_eq!(client.get(&key, MARKETS).await.status, 200);
            (scene.metric("touchline_store_up").await == 0.0).then_some(())
        })
        .await;
        // Several probes meanwhile.
        for _ in 0..30 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            assert_eq!(scene.metric("touchline_store_up").await, 0.0, "{command}");
        }
        let () = node.ask(&format!("ACL SETUSER touchline +{command}")).await;
        eventually("it is available", async || {
            (scene.metric("touchline_store_up").await == 1.0).then_some(())
        })
        .await;
    }
    scene.assert_ledgers_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_register_of_gateways_that_cannot_be_read_is_named_in_readyz_and_in_the_log() {
    let node = Node::start(|_| Vec::new()).await;
    let () = node.ask(documented()).await;
    let (scene, _secrets) = scene(of(&node)).await;
    let () = node.ask("ACL SETUSER touchline -hgetall").await;
    let reason = "the register of gateways cannot be used";
    eventually("the reason is reported", async || {
        let (status, body) = scene.admin(0, "/readyz").await;
        (status == 200 && body.contains(reason) && body.contains("degraded")).then_some(())
    })
    .await;
    // It is read several times meanwhile.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    assert_eq!(scene.gateways[0].output().matches(reason).count(), 1);
    let () = node.ask("ACL SETUSER touchline +hgetall").await;
    eventually("the reason is gone", async || {
        let (_, body) = scene.admin(0, "/readyz").await;
        body.contains(r#""reasons":[]"#).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_redis_refuses_names_the_server_and_the_remedy() {
    let node = Node::start(|_| Vec::new()).await;
    let () = node.ask(documented()).await;
    let (scene, _secrets) = scene(of(&node)).await;
    scene.issue("pro").await;
    let server = format!("the store failed: redis://{}/0: ", node.address());
    let permissions = "; check the user and password of store.redis";
    let other_program = "; another program uses names that begin with store.redis.key_prefix";
    for (begins, ends, command, refusal, remedy) in [
        (
            "ACL SETUSER touchline -hget",
            "ACL SETUSER touchline +hget",
            &["keys", "list"][..],
            "no permissions to run the 'hget' command",
            permissions,
        ),
        (
            "ACL SETUSER touchline -scard",
            "ACL SETUSER touchline +scard",
            &["store", "status"],
            "no permissions to run the 'scard' command",
            permissions,
        ),
        (
            "SET touchline:days theirs",
            "DEL touchline:days",
            &["store", "status"],
            "touchline:days: \"WRONGTYPE\": Operation against a key",
            other_program,
        ),
    ] {
        let () = node.ask(begins).await;
        let message = run_beside(&scene.gateways[0], command).await.failed(1);
        assert!(message.contains(&server), "{message}");
        assert!(message.contains(refusal), "{message}");
        assert_eq!(message.matches(remedy).count(), 1, "{message}");
        let () = node.ask(ends).await;
        run_beside(&scene.gateways[0], command).await.done();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_feed_of_another_program_is_named_in_readyz_with_the_remedy() {
    let node = Node::start(|_| Vec::new()).await;
    let () = node.ask(documented()).await;
    let (scene, _secrets) = scene(of(&node)).await;
    scene.issue("pro").await;
    let () = node.ask("RENAME touchline:feed saved").await;
    let () = node.ask("SET touchline:feed theirs").await;
    eventually("the name and the remedy are reported", async || {
        let (_, body) = scene.admin(0, "/readyz").await;
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        let reason = body["reasons"][0].as_str()?;
        assert!(reason.contains("touchline:feed: \"WRONGTYPE\""), "{reason}");
        assert!(reason.contains("; another program uses names"), "{reason}");
        Some(())
    })
    .await;
}
