//! All attacks at once, small, beside honest clients; the large one is `make siege`.

use std::time::Duration;

use harness::siege::{Forces, Siege, honest};
use harness::{Allowances, Scene, eventually};

use super::{TOUCHLINE, limit_hits};

const ALL: Forces = Forces {
    idle: 40,
    slow: 40,
    guessing: 4,
    resetting: 2,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn honest_clients_miss_nothing_while_all_attack_at_once() {
    let mut scene = Scene::builder(TOUCHLINE)
        .daily("enterprise", 1_000_000)
        .spec(|spec| {
            spec.extra_yaml = "limits: { exempt_addresses: [127.0.0.1/32], request_head: 2s, \
                               failed_authentications: 1 }"
                .into();
        })
        .start()
        .await;
    let key = scene.issue("enterprise").await;
    let siege = Siege::lay(&scene, ALL).await;
    // Until each kind of attack was felt.
    let met = async {
        let mut errors = Vec::new();
        let mut served = 0;
        loop {
            let report = honest(&scene, &key, 12, 10, Duration::from_millis(5)).await;
            errors.extend(report.errors);
            served += report.times.len() as u64;
            let mut felt = true;
            for limit in ["request_head", "failed_authentications", "h2_resets"] {
                felt &= limit_hits(&scene, limit).await >= 1.0;
            }
            if felt {
                return (errors, served);
            }
        }
    };
    let (errors, served) = tokio::time::timeout(2 * harness::PATIENCE, met)
        .await
        .expect("each attack is felt");
    assert!(scene.metric("touchline_connections").await > 40.0);
    siege.lift().await;
    assert_eq!(errors, Vec::<String>::new());
    scene.expect_used(&key, served).await;
    eventually("the attackers' connections are gone", async || {
        (scene.metric("touchline_connections").await < 40.0).then_some(())
    })
    .await;
    let allowed = Allowances {
        strangers: true,
        ..Allowances::default()
    };
    scene.assert_ledgers_agree_with(&allowed).await;
}
