//! A gateway that cannot reach the store cannot learn of a revocation: every change names it until it signs in again.

use std::path::Path;

use harness::{Gateway, IssuedKey, Protocol, Scene, Store, StoreSpec, TcpProxy, Wire, eventually};
use serde_json::Value;

use super::{MARKETS, TOUCHLINE};

/// What a command returned.
#[derive(Debug)]
struct Ran {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

/// Runs a command on the configuration of the first gateway.
async fn run(scene: &Scene, arguments: &[&str]) -> Ran {
    let output = scene.gateways[0].cli(arguments).await;
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran {
        code: output.status.code(),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    }
}

async fn revoke(scene: &Scene, key: &IssuedKey) -> Ran {
    run(scene, &["keys", "revoke", &key.id, "--yes"]).await
}

async fn status(scene: &Scene) -> Value {
    let text = scene.cli(&["store", "status", "--output", "json"]).await;
    serde_json::from_str(&text).unwrap()
}

/// The names under a member of the status.
async fn names(scene: &Scene, member: &str) -> Vec<String> {
    let status = status(scene).await;
    let all = status[member].as_array().unwrap().iter();
    all.map(|one| one["name"].as_str().unwrap().to_owned())
        .collect()
}

/// A gateway that reaches Redis, and another one through a wire of its own.
async fn scene_with_a_wire() -> (Scene, TcpProxy) {
    let mut scene = Scene::builder(TOUCHLINE)
        .store(Store::Redis)
        .spec(|spec| spec.redis_extra = "timeout: 300ms".into())
        .start()
        .await;
    let wire = TcpProxy::before(scene.redis.as_ref().unwrap().port()).await;
    let mut spec = scene.spec.clone();
    spec.store = StoreSpec::Redis {
        url: wire.url(),
        key_prefix: "touchline".into(),
    };
    let directory = scene.directory().join("far");
    std::fs::create_dir(&directory).unwrap();
    let far = Gateway::start(Path::new(TOUCHLINE), &directory, "far", &spec).await;
    scene.gateways.push(far);
    (scene, wire)
}

/// The name that the second gateway has in the store.
async fn name_of_far(scene: &mut Scene) -> String {
    let process = format!("-{}-", scene.gateways[1].process().pid());
    let names = names(scene, "gateways").await;
    let mut own = names.into_iter().filter(|name| name.contains(&process));
    own.next().unwrap()
}

async fn is_silent(scene: &Scene, name: &str) {
    eventually(
        "the gateway's last sign of life no longer holds",
        async || {
            let live = names(scene, "gateways").await;
            (!live.iter().any(|one| one == name)).then_some(())
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_cut_off_from_redis_is_named_by_every_change_until_it_is_heard_again() {
    let (mut scene, wire) = scene_with_a_wire().await;
    let (first, second) = (scene.issue("starter").await, scene.issue("starter").await);
    let far = name_of_far(&mut scene).await;
    let client = scene.client_of(1, Protocol::Http1);
    assert_eq!(client.get(&first, MARKETS).await.status, 200);
    let before = jiff::Timestamp::now();
    wire.set(Wire::Refuses);
    is_silent(&scene, &far).await;

    let ran = revoke(&scene, &first).await;
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(ran.stdout.contains("is revoked"), "{ran:?}");
    assert!(ran.stderr.contains("the change is stored"), "{ran:?}");
    let (_, since) = ran
        .stderr
        .split_once(&format!("{far} (silent since "))
        .unwrap_or_else(|| panic!("{ran:?}"));
    let since: jiff::Timestamp = since.split_once(')').unwrap().0.parse().unwrap();
    let (slack, now) = (jiff::SignedDuration::from_secs(2), jiff::Timestamp::now());
    assert!(since > before - slack && since < now, "{since} {before}");
    // This is why it has to be named.
    assert_eq!(client.get(&first, MARKETS).await.status, 200);
    for change in [
        ["keys", "suspend", &second.id, "--yes"].as_slice(),
        &["keys", "set-label", &second.id, "live site"],
        // What changes nothing confirms nothing either.
        &["keys", "revoke", &first.id, "--yes"],
    ] {
        let ran = run(&scene, change).await;
        assert_eq!(ran.code, Some(3), "{change:?}: {ran:?}");
        assert!(ran.stderr.contains(&far), "{change:?}: {ran:?}");
    }

    wire.set(Wire::Passes);
    eventually("the gateway refuses the key", async || {
        (client.get(&first, MARKETS).await.status == 401).then_some(())
    })
    .await;
    let last = eventually("a change is confirmed everywhere", async || {
        let ran = run(&scene, &["keys", "resume", &second.id]).await;
        (ran.code == Some(0)).then_some(ran)
    })
    .await;
    assert_eq!(last.stderr, "");
    assert_eq!(client.get(&second, MARKETS).await.status, 200);
    scene.assert_ledgers_agree().await;
}

/// Waits until the gateway in this directory has saved a key.
async fn has_saved(directory: &Path, key: &IssuedKey) {
    let replica = directory.join("var/keys.db");
    eventually("the key is saved", async || {
        let saved = rusqlite::Connection::open(&replica).ok()?;
        let count = "SELECT count(*) FROM records WHERE id = ?1";
        let held: i64 = saved.query_row(count, [&key.id], |row| row.get(0)).ok()?;
        (held == 1).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_killed_before_a_revocation_is_named_until_its_successor_has_heard_of_it() {
    let (mut scene, wire) = scene_with_a_wire().await;
    let (key, other) = (scene.issue("starter").await, scene.issue("starter").await);
    let killed = name_of_far(&mut scene).await;
    has_saved(&scene.directory().join("far"), &key).await;
    scene.gateways[1].kill9();
    let ran = revoke(&scene, &key).await;
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(ran.stderr.contains(&killed), "{ran:?}");

    // Its successor starts from what it had saved.
    wire.set(Wire::Refuses);
    scene.gateways[1].restart().await;
    let client = scene.client_of(1, Protocol::Http1);
    assert_eq!(client.get(&key, MARKETS).await.status, 200);
    is_silent(&scene, &killed).await;
    let label = ["keys", "set-label", &other.id, "one"];
    let ran = run(&scene, &label).await;
    assert_eq!(ran.code, Some(3), "{ran:?}");
    let named = format!("{killed} (silent since ");
    assert!(ran.stderr.contains(&named), "{ran:?}");

    wire.set(Wire::Passes);
    eventually("the successor refuses the key", async || {
        (client.get(&key, MARKETS).await.status == 401).then_some(())
    })
    .await;
    eventually("a change is confirmed everywhere", async || {
        let ran = run(&scene, &["keys", "set-label", &other.id, "two"]).await;
        (ran.code == Some(0)).then_some(())
    })
    .await;
    // Its successor has its place.
    assert_eq!(names(&scene, "silent").await, [""; 0]);
    assert_eq!(names(&scene, "gateways").await.len(), 2);
    scene.assert_ledgers_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_ended_in_order_is_named_by_no_change_and_one_that_could_not_sign_off_is() {
    let (mut scene, wire) = scene_with_a_wire().await;
    let key = scene.issue("starter").await;
    assert!(scene.gateways[1].terminate().success());
    let ran = run(&scene, &["keys", "set-label", &key.id, "one"]).await;
    assert_eq!((ran.code, &*ran.stderr), (Some(0), ""));
    assert_eq!(names(&scene, "gateways").await.len(), 1);
    assert_eq!(names(&scene, "silent").await, [""; 0]);

    scene.gateways[1].restart().await;
    let far = name_of_far(&mut scene).await;
    wire.set(Wire::Refuses);
    assert!(scene.gateways[1].terminate().success());
    let ran = revoke(&scene, &key).await;
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(ran.stderr.contains(&far), "{ran:?}");
    let message = scene.gateways[1].output();
    assert!(message.contains("closed without signing off"), "{message}");
    scene.assert_ledgers_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_gateway_is_struck_off_by_an_operator_which_is_in_the_audit_trail() {
    let (mut scene, wire) = scene_with_a_wire().await;
    let key = scene.issue("starter").await;
    let far = name_of_far(&mut scene).await;
    let order = [
        "store",
        "forget",
        &far,
        "--by",
        "ann",
        "--reason",
        "its machine is gone",
    ];
    let refused = run(&scene, &order).await;
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("is running"), "{refused:?}");
    let unknown = run(&scene, &["store", "forget", "web-1-7"]).await;
    assert_eq!(unknown.code, Some(1), "{unknown:?}");

    wire.set(Wire::Refuses);
    is_silent(&scene, &far).await;
    let reported = status(&scene).await;
    assert_eq!(reported["silent"][0]["name"], far.as_str(), "{reported}");
    let since: jiff::Timestamp = reported["silent"][0]["since"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    assert!(since < jiff::Timestamp::now());
    let warnings = reported["warnings"].as_array().unwrap();
    let remedy = format!("touchline store forget {far}");
    assert!(
        warnings
            .iter()
            .any(|one| one.as_str().unwrap().contains(&remedy)),
        "{reported}"
    );
    let table = scene.cli(&["store", "status"]).await;
    assert!(table.contains("SILENT SINCE"), "{table}");
    eventually("the metric counts it", async || {
        (scene.metric("touchline_gateways_silent").await == 1.0).then_some(())
    })
    .await;

    let struck = run(&scene, &order).await;
    assert_eq!((struck.code, &*struck.stderr), (Some(0), ""), "{struck:?}");
    assert!(
        struck.stdout.contains("is removed from the register"),
        "{struck:?}"
    );
    let ran = run(&scene, &["keys", "set-label", &key.id, "one"]).await;
    assert_eq!((ran.code, &*ran.stderr), (Some(0), ""), "{ran:?}");
    eventually("the metric counts it no more", async || {
        (scene.metric("touchline_gateways_silent").await == 0.0).then_some(())
    })
    .await;
    let trail = ["audit", "--what", "forget-gateway", "--output", "json"];
    let trail: Value = serde_json::from_str(&scene.cli(&trail).await).unwrap();
    let [entry] = trail.as_array().unwrap().as_slice() else {
        panic!("{trail}")
    };
    assert_eq!(entry["who"], "ann");
    assert_eq!(entry["reason"], "its machine is gone");
    assert_eq!(entry["key"], Value::Null);
    assert_eq!(entry["before"]["gateway"], far.as_str());
    assert_eq!(entry["before"]["heard"], since.to_string());
    assert_eq!(entry["after"]["gateway"], Value::Null);
    let all = scene.cli(&["audit"]).await;
    assert!(
        all.contains("forget-gateway") && all.contains(&far),
        "{all}"
    );

    // It was cut off, not gone: a gateway that is heard of is on the register.
    wire.set(Wire::Passes);
    eventually("the gateway is on the register again", async || {
        let live = names(&scene, "gateways").await;
        live.contains(&far).then_some(())
    })
    .await;
    scene.assert_ledgers_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgrade_leaves_its_predecessor_on_no_register() {
    let mut scene = Scene::builder(TOUCHLINE)
        .store(Store::Redis)
        .spec(|spec| spec.upgrade = Some("var/upgrade.sock".into()))
        .start()
        .await;
    let key = scene.issue("starter").await;
    for label in ["one", "two"] {
        scene.gateways[0].upgrade().await;
        let ran = run(&scene, &["keys", "set-label", &key.id, label]).await;
        assert_eq!((ran.code, &*ran.stderr), (Some(0), ""), "{ran:?}");
        assert_eq!(names(&scene, "gateways").await.len(), 1);
        assert_eq!(names(&scene, "silent").await, [""; 0]);
    }
    scene.assert_ledgers_agree().await;
}
