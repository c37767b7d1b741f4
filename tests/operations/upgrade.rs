//! `touchline serve --upgrade`: another process takes the place of the one that runs, and nobody notices.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use harness::{Client, IssuedKey, Protocol, Scene, SceneBuilder, Store, eventually};
use tokio::task::JoinSet;

use super::{MARKETS, STORES, TOUCHLINE, run_on};

/// One after another, on each store.
const UPGRADES: u32 = 5;

fn upgradable(store: Store) -> SceneBuilder {
    // Relative to the directory of each gateway.
    Scene::builder(TOUCHLINE)
        .store(store)
        .spec(|spec| spec.upgrade = Some("upgrade.sock".into()))
}

/// Calls until told to stop; how often.
async fn call_on(client: Arc<Client>, key: IssuedKey, stop: Arc<AtomicBool>) -> u64 {
    let mut calls = 0;
    while !stop.load(Ordering::Relaxed) {
        let answer = client.get(&key, MARKETS).await;
        assert!(answer.status == 200 && answer.complete, "{answer:?}");
        calls += 1;
    }
    calls
}

#[tokio::test]
async fn upgrades_under_load_fail_no_request_and_lose_no_count() {
    for store in STORES {
        let mut scene = upgradable(store)
            .daily("enterprise", 10_000_000)
            .start()
            .await;
        let stop = Arc::new(AtomicBool::new(false));
        let mut callers = JoinSet::new();
        for protocol in Protocol::ALL {
            let key = scene.issue("enterprise").await;
            for _ in 0..2 {
                let client = Arc::new(scene.client(protocol));
                callers.spawn(call_on(client, key.clone(), stop.clone()));
            }
        }
        let listeners = |scene: &Scene| {
            let gateway = &scene.gateways[0];
            (gateway.http, gateway.https, gateway.admin)
        };
        let before = listeners(&scene);
        for _ in 0..UPGRADES {
            let old = scene.gateways[0].process().pid();
            scene.gateways[0].upgrade().await;
            assert_ne!(scene.gateways[0].process().pid(), old);
            assert_eq!(listeners(&scene), before);
            let (status, body) = scene.admin(0, "/readyz").await;
            assert_eq!(status, 200, "{body}");
        }
        stop.store(true, Ordering::Relaxed);
        let calls: u64 = callers.join_all().await.into_iter().sum();
        assert!(calls > 100, "{calls} calls are no load");
        scene.assert_ledgers_agree().await;
    }
}

#[tokio::test]
async fn a_successor_that_does_not_come_up_leaves_the_gateway_as_it_was() {
    let mut scene = upgradable(Store::Embedded).start().await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    let good = std::fs::read_to_string(&scene.gateways[0].config).unwrap();
    let socket = scene.gateways[0].config.with_file_name("upgrade.sock");
    let next = scene.directory().join("next.yaml");
    let at_socket = |text: &str| text.replace("upgrade.sock", socket.to_str().unwrap());
    // Another zone is found out after the listeners were handed over.
    for (text, code, word) in [
        (good.replace("daily", "dayly"), 78, "dayly"),
        (
            good.replace("timezone: UTC", "timezone: Asia/Tokyo"),
            1,
            "Asia/Tokyo",
        ),
    ] {
        std::fs::write(&next, at_socket(&text)).unwrap();
        let said = run_on(&next, &["serve", "--upgrade"]).await.failed(code);
        assert!(said.contains(word), "{said}");
        assert_eq!(client.get(&key, MARKETS).await.status, 200);
        assert_eq!(scene.gateways[0].process().ended(), None);
    }
    eventually("the gateway says so", async || {
        scene.gateways[0]
            .output()
            .contains("going on as before")
            .then_some(())
    })
    .await;
    scene.gateways[0].upgrade().await;
    assert_eq!(client.get(&key, MARKETS).await.status, 200);
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn an_upgrade_of_nothing_is_refused() {
    let mut scene = upgradable(Store::Embedded).start().await;
    let config = scene.gateways[0].config.clone();
    let socket = config.with_file_name("upgrade.sock");
    let good = std::fs::read_to_string(&config).unwrap();
    scene.gateways[0].terminate();
    let next = scene.directory().join("next.yaml");
    std::fs::write(
        &next,
        good.replace("upgrade.sock", socket.to_str().unwrap()),
    )
    .unwrap();
    let said = run_on(&next, &["serve", "--upgrade"]).await.failed(1);
    assert!(said.contains(socket.to_str().unwrap()), "{said}");
    let without = good.replace("  upgrade: upgrade.sock\n", "");
    std::fs::write(&next, &without).unwrap();
    let said = run_on(&next, &["serve", "--upgrade"]).await.failed(2);
    assert!(said.contains("listen.upgrade"), "{said}");
}
