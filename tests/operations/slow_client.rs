//! Whom a broken-off answer is charged to: the side that was waited for.

use std::collections::BTreeSet;

use harness::upstream::Outcome;
use harness::{Allowances, Behaviour, Protocol, Scene, eventually};

use super::{MARKETS, STORES, TOUCHLINE};

#[tokio::test]
async fn an_answer_cut_while_the_gateway_waited_for_the_client_is_charged() {
    for (store, upstream) in STORES.into_iter().zip(["", "protocol: http2"]) {
        let mut scene = Scene::builder(TOUCHLINE)
            .store(store)
            .spec(|spec| spec.upstream_extra = upstream.into())
            .start()
            .await;
        let key = scene.issue("starter").await;
        scene.upstream.always(Behaviour::ResetWhenStuck);
        let id = harness::client::next_request_id();
        let request = format!(
            "GET {MARKETS} HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {}\r\nX-Request-Id: {id}\r\n\r\n",
            key.key
        );
        let broken_off = eventually("the upstream has broken off", async || {
            let recorded = scene.upstream.recorded_as(&id);
            (recorded.first()?.outcome == Outcome::Cut).then_some(())
        });
        let client = scene.client(Protocol::Http1);
        let exchange = client.read_late(request, broken_off).await;
        let [answer] = exchange.answers.as_slice() else {
            panic!("{} answers", exchange.answers.len());
        };
        assert!(answer.status == 200 && !answer.complete && exchange.closed);
        scene.expect_used(&key, 1).await;
        let allowed = Allowances {
            charged_cuts: BTreeSet::from([id]),
            ..Allowances::default()
        };
        scene.assert_ledgers_agree_with(&allowed).await;
    }
}
