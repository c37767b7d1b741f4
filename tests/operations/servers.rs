//! An upstream with several servers.

use harness::{Allowances, Protocol, RecordingUpstream, Scene};

use super::{MARKETS, STORES, TOUCHLINE};

#[tokio::test]
async fn servers_are_taken_in_turn_and_one_that_is_down_costs_nobody_anything() {
    for store in STORES {
        let mut scene = Scene::builder(TOUCHLINE)
            .store(store)
            .more_servers(2)
            .start()
            .await;
        let key = scene.issue("starter").await;
        let client = scene.client(Protocol::Http1);
        for _ in 0..6 {
            assert_eq!(client.get(&key, MARKETS).await.status, 200);
        }
        let counts = |scene: &Scene| {
            let more = scene.more_upstreams.iter().map(RecordingUpstream::count);
            let mut counts = vec![scene.upstream.count()];
            counts.extend(more);
            counts
        };
        assert_eq!(counts(&scene), [2, 2, 2]);
        scene.more_upstreams[0].stop().await;
        for _ in 0..9 {
            let answer = client.get(&key, MARKETS).await;
            assert_eq!(answer.status, 200, "{answer:?}");
        }
        let counts = counts(&scene);
        assert_eq!(counts[1], 2);
        assert_eq!(counts[0] + counts[2], 4 + 9);
        assert_eq!(scene.used(&key).await, 15);
        scene.more_upstreams[0].restart().await;
        for _ in 0..3 {
            assert_eq!(client.get(&key, MARKETS).await.status, 200);
        }
        assert!(scene.more_upstreams[0].count() > 2, "taken again");
        scene.expect_used(&key, 18).await;
        // A connection kept from before may die under a request, which is then sent again.
        let retries = Allowances {
            retries: true,
            ..Allowances::default()
        };
        scene.assert_ledgers_agree_with(&retries).await;
    }
}
