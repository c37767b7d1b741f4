//! Nothing leaks: who may keep an answer, what a browser may make of it, and what is written down of a request.

use harness::client::Until;
use harness::upstream::Script;
use harness::{Answer, Behaviour, Call, Protocol, Scene};

use super::{MARKETS, RANKINGS, TOUCHLINE};

fn all_of<'a>(answer: &'a Answer, name: &str) -> Vec<&'a str> {
    let values = answer.headers.get_all(name).iter();
    values.map(|value| value.to_str().unwrap()).collect()
}

#[tokio::test]
async fn no_shared_cache_keeps_an_answer_and_stricter_rules_of_an_upstream_are_kept() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    for protocol in Protocol::ALL {
        let client = scene.client(protocol);
        for (message, output) in [
            (None, "private"),
            (
                Some("public, s-maxage=600, max-age=60"),
                "private, max-age=60",
            ),
            (Some("no-store"), "no-store"),
            (Some("private, max-age=5"), "private, max-age=5"),
        ] {
            let mut script = Script::json(200, "{}")
                .header("Vary", "Accept")
                .header("CDN-Cache-Control", "max-age=600")
                .header("Surrogate-Control", "max-age=600")
                .header("Cloudflare-CDN-Cache-Control", "max-age=600")
                .header("X-LiteSpeed-Cache-Control", "public")
                .header("Edge-Control", "max-age=600")
                .header("Server", "upstream/1.0");
            if let Some(message) = message {
                script = script.header("Cache-Control", message);
            }
            scene.upstream.always(Behaviour::Answer(script));
            let answer = client.get(&key, MARKETS).await;
            assert_eq!(all_of(&answer, "cache-control"), [output], "{answer:?}");
            assert_eq!(
                all_of(&answer, "vary").join(", ").to_lowercase(),
                "accept, x-api-key"
            );
            for gone in [
                "cdn-cache-control",
                "surrogate-control",
                "cloudflare-cdn-cache-control",
                "x-litespeed-cache-control",
                "edge-control",
                "server",
            ] {
                assert_eq!(answer.header(gone), None, "{answer:?}");
            }
        }
    }
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn every_answer_forbids_guessing_its_type_and_no_error_is_kept() {
    let mut scene = Scene::builder(TOUCHLINE).daily("starter", 2).start().await;
    let key = scene.issue("starter").await;
    let used = scene.issue("starter").await;
    scene
        .upstream
        .behave(|request| match request.values("x-fail").is_empty() {
            true => Behaviour::Echo,
            false => Behaviour::Status(503),
        });
    for _ in 0..2 {
        scene.client(Protocol::Http1).get(&used, MARKETS).await;
    }
    for protocol in Protocol::ALL {
        for (call, status) in [
            (Call::get("/a//b"), 400),
            (Call::get(MARKETS), 401),
            (Call::get(RANKINGS).key(&key), 403),
            (Call::get("/none").key(&key), 404),
            (Call::new("PUT", MARKETS).key(&key), 405),
            (Call::get(MARKETS).key(&used), 429),
            (Call::get(MARKETS).key(&key).header("X-Fail", "1"), 500),
            (Call::get("/openapi.json"), 200),
            (Call::get("/api/v1/usage").key(&key), 200),
            (Call::new("HEAD", RANKINGS).key(&key), 403),
        ] {
            let answer = scene.client(protocol).call(call).await;
            assert_eq!(answer.status, status, "{answer:?}");
            assert_eq!(
                all_of(&answer, "x-content-type-options"),
                ["nosniff"],
                "{answer:?}"
            );
            assert_eq!(answer.header("server"), None, "{answer:?}");
            if status >= 400 {
                assert_eq!(all_of(&answer, "cache-control"), ["no-store"], "{answer:?}");
            }
        }
    }
    let answer = scene.client(Protocol::Http1).get(&key, MARKETS).await;
    assert_eq!(all_of(&answer, "x-content-type-options"), ["nosniff"]);
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn a_key_in_a_query_or_a_user_agent_is_written_down_nowhere() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    let target = format!("{MARKETS}?api_key={}&n=1", key.key);
    let agent = format!("agent {}", key.key);
    let call = Call::get(&target).header("User-Agent", agent);
    assert_eq!(client.call(call).await.status, 401);
    let lines = scene.gateways[0].logged(1).await;
    assert_eq!(lines[0]["path"], MARKETS);
    // The ledgers look for it in every log, metric and answer, and in the store's files.
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn browsers_are_instructed_to_use_tls_where_that_is_configured_and_over_tls_only() {
    let mut scene = Scene::builder(TOUCHLINE)
        .spec(|spec| spec.https_extra = "hsts: 365d".into())
        .start()
        .await;
    let key = scene.issue("starter").await;
    for protocol in Protocol::ALL {
        let output = protocol.is_tls().then_some("max-age=31536000");
        for call in [
            Call::get(MARKETS).key(&key),
            Call::get(MARKETS),
            Call::get("/openapi.json"),
            Call::get("/api/v1/usage").key(&key),
        ] {
            let answer = scene.client(protocol).call(call).await;
            assert_eq!(
                answer.header("strict-transport-security"),
                output,
                "{answer:?}"
            );
        }
        if !protocol.is_http2() {
            let bare = "GET / HTTP/1.1\nHost: h\n\n";
            let client = scene.client(protocol);
            let exchange = client.raw(bare, Until::Closed).await;
            let answer = &exchange.answers[0];
            assert_eq!(
                (answer.status, answer.header("strict-transport-security")),
                (400, output)
            );
        }
    }
    scene.assert_ledgers_agree().await;
}
