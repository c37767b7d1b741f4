//! A gateway killed under load has lost nothing that it had answered.

use harness::client::Ending;
use harness::{Allowances, Call, IssuedKey, Protocol, Scene, eventually};
use tokio::task::JoinSet;

use super::{MARKETS, TOUCHLINE};

const ROUNDS: usize = 20;
const CLIENTS: usize = 8;
/// Answers of a round before the kill.
const ANSWERS: usize = 60;
/// No client sends more than this, should the kill not come.
const CALLS_MAX: usize = 400;

async fn round(scene: &mut Scene, key: &IssuedKey) {
    let before = scene.client_ledger().entries().len();
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let client = scene.client(Protocol::Http1);
        let key = key.clone();
        clients.spawn(async move {
            for _ in 0..CALLS_MAX {
                if client.try_call(Call::get(MARKETS).key(&key)).await.is_err() {
                    return;
                }
            }
        });
    }
    eventually("the gateway is under load", async || {
        (scene.client_ledger().entries().len() >= before + ANSWERS).then_some(())
    })
    .await;
    scene.gateways[0].kill9();
    clients.join_all().await;
    scene.gateways[0].restart().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_9_under_load_loses_no_answered_call_and_invents_none() {
    let mut scene = Scene::builder(TOUCHLINE)
        .daily("enterprise", 1_000_000)
        .start()
        .await;
    let key = scene.issue("enterprise").await;
    let (mut begun, mut before) = (0, 0);
    for number in 0..ROUNDS {
        round(&mut scene, &key).await;
        let entries = scene.client_ledger().entries().split_off(begun);
        begun += entries.len();
        let count = |ending| {
            entries
                .iter()
                .filter(|entry| entry.ending == ending)
                .count() as u64
        };
        assert!(
            entries
                .iter()
                .all(|entry| matches!(entry.status, None | Some(200)))
        );
        let (answered, in_flight) = (
            count(Ending::Whole),
            count(Ending::Failed) + count(Ending::Cut),
        );
        let used = scene.used(&key).await;
        // By rounds, because what was in flight and charged would hide what a later round lost.
        let charged = used.checked_sub(before).expect("no count goes back");
        assert!(
            (answered..=answered + in_flight).contains(&charged),
            "round {number}: {charged} charged, {answered} answered, {in_flight} in flight"
        );
        before = used;
    }
    let killed = Allowances {
        gateway_killed: true,
        ..Allowances::default()
    };
    scene.assert_ledgers_agree_with(&killed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_is_asked_to_end_writes_everything_down_first() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    for _ in 0..20 {
        assert_eq!(
            scene
                .client(Protocol::Http1)
                .get(&key, MARKETS)
                .await
                .status,
            200
        );
    }
    assert!(scene.gateways[0].terminate().success());
    assert_eq!(scene.used(&key).await, 20);
    scene.assert_ledgers_agree().await;
}
