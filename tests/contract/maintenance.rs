//! `endpoints[].maintenance`: answered by the gateway, and never charged.

use harness::{Call, Protocol, Scene, Store, eventually};

use super::{MARKETS, TOUCHLINE};

const SENTENCE: &str = "Markets are back soon.";
const PREDICTIONS: &str = "/api/v1/data/predictions";

#[tokio::test]
async fn an_endpoint_under_maintenance_reports_it_and_costs_nothing() {
    for store in [Store::Embedded, Store::Redis] {
        let extra = format!("maintenance: {{ until: 2036-01-01, message: \"{SENTENCE}\" }}");
        let mut scene = Scene::builder(TOUCHLINE)
            .store(store)
            .spec(|spec| {
                spec.endpoint_extra.insert(MARKETS.into(), extra);
                let open = "maintenance: {}".to_owned();
                spec.endpoint_extra.insert(PREDICTIONS.into(), open);
            })
            .start()
            .await;
        let key = scene.issue("starter").await;
        for protocol in Protocol::ALL {
            let client = scene.client(protocol);
            for (path, seconds) in [(MARKETS, 3_600), (PREDICTIONS, 60)] {
                let answer = client.get(&key, path).await;
                assert_eq!(answer.status, 500, "{answer:?}");
                assert_eq!(answer.code().as_deref(), Some("INTERNAL_ERROR"));
                assert_eq!(answer.number("retry-after"), Some(seconds));
                assert_eq!(answer.number("x-ratelimit-remaining"), Some(1_000));
                let detail = answer.json()["detail"].as_str().unwrap().to_owned();
                assert_eq!(detail == SENTENCE, path == MARKETS, "{detail}");
            }
            // Refused for what it is before that.
            let other = client.call(Call::new("POST", MARKETS).key(&key)).await;
            assert_eq!(other.status, 405);
            let nobody = client.call(Call::get(MARKETS)).await;
            assert_eq!(nobody.status, 401);
        }
        assert_eq!(scene.upstream.count(), 0);
        // To operators, it is not a failure.
        let line = scene.gateways[0].logged_where(|line| line["status"] == 500);
        let line = line.await;
        assert_eq!(line["outcome"], "maintenance");
        assert_eq!(line["cause"], "the endpoint is under maintenance");
        for (outcome, count) in [("maintenance", 3.0), ("INTERNAL_ERROR", 0.0)] {
            let series = format!(
                "touchline_requests_total{{endpoint=\"{MARKETS}\",outcome=\"{outcome}\",tier=\"starter\"}}"
            );
            assert_eq!(scene.metric(&series).await, count, "{outcome}");
        }
        let explained = scene
            .cli(&[
                "explain", "--key-id", &key.id, "--method", "GET", "--path", MARKETS,
            ])
            .await;
        assert!(
            explained.contains("endpoints[0].maintenance"),
            "{explained}"
        );
        assert!(explained.contains("under maintenance"), "{explained}");
        scene.expect_used(&key, 0).await;
        scene.assert_ledgers_agree().await;
    }
}

#[tokio::test]
async fn maintenance_ends_at_its_instant_and_with_an_edit() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    let good = scene.spec.clone();
    let until = "2036-01-01T06:00:00Z";
    let mut spec = good.clone();
    let extra = format!("maintenance: {{ until: {until} }}");
    spec.endpoint_extra.insert(MARKETS.into(), extra);
    for (spec, status) in [(&spec, 500), (&good, 200)] {
        scene.gateways[0].configure(spec);
        scene.gateways[0].process().hang_up();
        eventually("the edit holds", async || {
            (client.get(&key, MARKETS).await.status == status).then_some(())
        })
        .await;
    }
    scene.gateways[0].configure(&spec);
    for (at, word) in [("2036-01-01T05:59:59Z", "refused"), (until, "forwarded")] {
        let question = [
            "explain", "--key-id", &key.id, "--method", "GET", "--path", MARKETS,
        ];
        let more = ["--at", at, "--output", "json"];
        let reported = scene.cli(&[&question[..], &more].concat()).await;
        let reported: serde_json::Value = serde_json::from_str(&reported).unwrap();
        assert_eq!(reported["result"], word, "{reported}");
    }
    scene.assert_ledgers_agree().await;
}
