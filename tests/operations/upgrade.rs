//! `touchline serve --upgrade`: another process takes the place of the one that runs, and nobody notices.

use harness::{Protocol, Scene, SceneBuilder, Store, eventually};

use super::{MARKETS, TOUCHLINE, run_on};

fn upgradable(store: Store) -> SceneBuilder {
    // Relative to the directory of each gateway.
    Scene::builder(TOUCHLINE)
        .store(store)
        .spec(|spec| spec.upgrade = Some("upgrade.sock".into()))
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
