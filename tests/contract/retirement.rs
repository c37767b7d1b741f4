//! Endpoints that are going away announce it to authenticated clients.

use harness::client::next_request_id;
use harness::upstream::{Behaviour, Script};
use harness::{Answer, Call, Protocol, Scene};

use super::{MARKETS, RANKINGS, TOUCHLINE};

const INSIGHTS: &str = "/api/v1/data/insights";

fn announced(answer: &Answer) -> [Option<&str>; 2] {
    [answer.header("deprecation"), answer.header("sunset")]
}

#[tokio::test]
async fn every_answer_of_an_endpoint_that_is_going_away_reports_it_to_authenticated_clients() {
    let mut scene = Scene::builder(TOUCHLINE)
        .daily("pro", 2)
        .spec(|spec| {
            let ending = "deprecation: 2026-12-01, sunset: 2027-06-30, links: { successor_version: /api/v2/data/insights }";
            spec.endpoint_extra.insert(INSIGHTS.into(), ending.into());
        })
        .start()
        .await;
    for protocol in Protocol::ALL {
        let (pro, starter) = (scene.issue("pro").await, scene.issue("starter").await);
        let client = scene.client(protocol);
        let (fails, own_id) = (next_request_id(), next_request_id());
        let failing = Call::get(INSIGHTS).key(&pro).header("x-request-id", &fails);
        let reset = Behaviour::Answer(Script::json(503, "{}"));
        scene.upstream.behave_for(&fails, reset);
        let own = Script::json(404, "{}").header("Link", "</other>; rel=\"next\"");
        let own = own.header("Sunset", "Thu, 01 Jan 1970 00:00:00 GMT");
        scene.upstream.behave_for(&own_id, Behaviour::Answer(own));
        let with_own = Call::get(INSIGHTS)
            .key(&pro)
            .header("x-request-id", &own_id);
        let calls = [
            (200, Call::get(INSIGHTS).key(&pro)),
            (500, failing),
            (404, with_own),
            (429, Call::get(INSIGHTS).key(&pro)),
            (405, Call::new("DELETE", INSIGHTS).key(&pro)),
            (403, Call::get(INSIGHTS).key(&starter)),
        ];
        for (status, call) in calls {
            let answer = client.call(call).await;
            assert_eq!(answer.status, status, "{protocol:?}: {answer:?}");
            let expected = ["@1796083200", "Wed, 30 Jun 2027 00:00:00 GMT"];
            assert_eq!(announced(&answer), expected.map(Some), "{answer:?}");
            let links: Vec<&str> = answer
                .headers
                .iter()
                .filter(|(name, _)| *name == "link")
                .map(|(_, value)| value.to_str().unwrap())
                .collect();
            let ours = "</api/v2/data/insights>; rel=\"successor-version\"";
            let theirs = "</other>; rel=\"next\"";
            let expected = if status == 404 {
                vec![theirs, ours]
            } else {
                vec![ours]
            };
            assert_eq!(links, expected, "{answer:?}");
        }
        for (status, call) in [
            (401, Call::get(INSIGHTS)),
            (401, Call::get(INSIGHTS).key("nobody's")),
            (200, Call::get(MARKETS).key(&starter)),
            (403, Call::get(RANKINGS).key(&pro)),
        ] {
            let answer = client.call(call).await;
            assert_eq!(answer.status, status, "{answer:?}");
            assert_eq!(announced(&answer), [None, None], "{answer:?}");
        }
    }
    let client = scene.client(Protocol::Http1);
    let document = client.call(Call::get("/openapi.json")).await.json();
    assert_eq!(document["paths"][INSIGHTS]["get"]["deprecated"], true);
    assert!(document["paths"][MARKETS]["get"]["deprecated"].is_null());
    scene.assert_ledgers_agree().await;
}
