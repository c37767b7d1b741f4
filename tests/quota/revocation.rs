//! Revocation holds from the next request, on every gateway.

use harness::{Call, IssuedKey, Protocol, Scene, Store, eventually};

use super::{MARKETS, TOUCHLINE};

/// One charged answer and two free ones.
const TARGETS: [(&str, u16); 3] = [
    (MARKETS, 200),
    ("/api/v1/data/rankings", 403),
    ("/none", 404),
];

async fn assert_all_gateways_state(scene: &Scene, key: &IssuedKey, refused: bool) {
    for gateway in 0..scene.gateways.len() {
        let client = scene.client_of(gateway, Protocol::Http1);
        for (target, served) in TARGETS {
            let answer = client.call(Call::get(target).key(key)).await;
            let expected = if refused { 401 } else { served };
            assert_eq!(answer.status, expected, "{target} of gateway {gateway}");
        }
    }
}

async fn revocation_holds_from_the_next_request(store: Store) {
    let mut scene = Scene::builder(TOUCHLINE)
        .store(store)
        .gateways(2)
        .start()
        .await;
    // Several keys, so that a change seen by luck of timing does not pass.
    for _ in 0..5 {
        let key = scene.issue("starter").await;
        assert_all_gateways_state(&scene, &key, false).await;
        scene.cli(&["keys", "revoke", &key.id, "--yes"]).await;
        assert_all_gateways_state(&scene, &key, true).await;
    }
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn a_revoked_key_is_refused_from_the_next_request_on_the_embedded_store() {
    revocation_holds_from_the_next_request(Store::Embedded).await;
}

#[tokio::test]
async fn a_revoked_key_is_refused_from_the_next_request_on_redis() {
    revocation_holds_from_the_next_request(Store::Redis).await;
}

#[tokio::test]
async fn a_key_is_served_from_the_next_request_after_it_was_issued() {
    for store in [Store::Embedded, Store::Redis] {
        let mut scene = Scene::builder(TOUCHLINE)
            .store(store)
            .gateways(2)
            .start()
            .await;
        for _ in 0..5 {
            let key = scene.issue("starter").await;
            assert_all_gateways_state(&scene, &key, false).await;
        }
        scene.assert_ledgers_agree().await;
    }
}

#[tokio::test]
async fn a_gateway_that_pauses_is_named_by_a_command_that_it_has_not_applied() {
    for store in [Store::Embedded, Store::Redis] {
        let mut scene = Scene::builder(TOUCHLINE)
            .store(store)
            .gateways(2)
            .start()
            .await;
        let key = scene.issue("starter").await;
        let pids = [0, 1].map(|gateway| format!("-{}-", scene.gateways[gateway].process().pid()));
        // On a busy machine the command may last longer than a gateway that pauses counts as alive.
        eventually("it is named", async || {
            scene.cli(&["keys", "resume", &key.id]).await;
            scene.gateways[1].process().stop();
            let output = scene.gateways[0]
                .cli(&["keys", "suspend", &key.id, "--yes"])
                .await;
            scene.gateways[1].process().resume();
            let message = String::from_utf8_lossy(&output.stderr);
            let named = pids.each_ref().map(|pid| message.contains(pid));
            (!output.status.success() && named == [false, true]).then_some(())
        })
        .await;
        scene.assert_ledgers_agree().await;
    }
}
