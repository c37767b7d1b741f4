//! What stands on every answer.

use harness::upstream::Script;
use harness::{Behaviour, Call, Protocol, Scene, Store};

use super::{MARKETS, RANKINGS, TOUCHLINE, assert_quota_status};

#[tokio::test]
async fn every_answer_to_an_authenticated_request_reports_the_quota_status() {
    for store in [Store::Embedded, Store::Redis] {
        let mut scene = Scene::builder(TOUCHLINE)
            .store(store)
            .daily("starter", 2)
            .start()
            .await;
        for protocol in Protocol::ALL {
            let key = scene.issue("starter").await;
            let client = scene.client(protocol);
            for (call, upstream, status, left) in [
                (Call::get("/none"), 200, 404, 2),
                (Call::get(MARKETS), 200, 200, 1),
                (Call::get(RANKINGS), 200, 403, 1),
                (Call::new("DELETE", MARKETS), 200, 405, 1),
                (Call::get(MARKETS), 503, 500, 1),
                (Call::get(MARKETS), 200, 200, 0),
                (Call::get(MARKETS), 200, 429, 0),
                (Call::get("/none"), 200, 404, 0),
            ] {
                scene.upstream.always(Behaviour::Status(upstream));
                let answer = client.call(call.key(&key)).await;
                assert_eq!(answer.status, status, "{answer:?}");
                assert_quota_status(&answer, 2, left);
            }
        }
        scene.assert_ledgers_agree().await;
    }
}

#[tokio::test]
async fn a_harmless_request_id_is_kept_and_any_other_replaced() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    for protocol in Protocol::ALL {
        let client = scene.client(protocol);
        let own = harness::client::next_request_id();
        let longest = format!("{own}.{}", "x".repeat(127 - own.len()));
        for id in [format!("{own}_A.z"), longest] {
            let answer = client
                .call(Call::get(MARKETS).key(&key).header("x-request-id", &id))
                .await;
            assert_eq!(answer.header("x-request-id"), Some(id.as_str()));
            assert_eq!(scene.upstream.recorded_as(&id).len(), 1);
        }
        for id in ["a b", "a/b", "a\"b", &"x".repeat(129), "\u{e9}"] {
            for call in [Call::get(MARKETS).key(&key), Call::get(MARKETS)] {
                let answer = client.call(call.header("x-request-id", id)).await;
                let new = answer.header("x-request-id").unwrap();
                assert!(new != id && !new.is_empty(), "{answer:?}");
            }
        }
    }
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn the_upstreams_own_headers_pass_but_not_those_that_are_ours_or_hop_by_hop() {
    let mut scene = Scene::builder(TOUCHLINE).daily("starter", 9).start().await;
    let key = scene.issue("starter").await;
    let script = Script::json(200, "{}")
        .header("X-RateLimit-Limit", "77")
        .header("X-RateLimit-Remaining", "77")
        .header("X-RateLimit-Reset", "77")
        .header("RateLimit", "\"theirs\";r=77;t=7")
        .header("RateLimit-Policy", "\"theirs\";q=77;w=7")
        .header("Retry-After", "77")
        .header("X-Request-Id", "theirs")
        .header("Server", "theirs/1.0")
        .header("Keep-Alive", "timeout=77")
        .header("Proxy-Authenticate", "Basic")
        .header("Trailer", "X-Late")
        .header("Connection", "X-Nominated")
        .header("X-Nominated", "77")
        .header("ETag", "\"abc\"")
        .header("Date", "Thu, 01 Jan 2026 00:00:00 GMT")
        .header("Cache-Control", "max-age=5")
        .header("X-Own", "one")
        .header("X-Own", "two");
    scene.upstream.always(Behaviour::Answer(script));
    for (protocol, left) in Protocol::ALL.into_iter().zip([8, 7, 6]) {
        let answer = scene.client(protocol).get(&key, MARKETS).await;
        assert_eq!(answer.status, 200);
        assert_quota_status(&answer, 9, left);
        for gone in [
            "server",
            "keep-alive",
            "proxy-authenticate",
            "trailer",
            "x-nominated",
            "retry-after",
        ] {
            assert!(!answer.headers.contains_key(gone), "{gone} in {answer:?}");
        }
        assert_ne!(answer.header("x-request-id"), Some("theirs"));
        assert_eq!(answer.header("etag"), Some("\"abc\""));
        assert_eq!(answer.header("cache-control"), Some("private, max-age=5"));
        assert_eq!(answer.headers.get_all("x-own").iter().count(), 2);
        let dates: Vec<_> = answer.headers.get_all("date").iter().collect();
        assert!(
            dates.len() == 1 && dates[0] != "Thu, 01 Jan 2026 00:00:00 GMT",
            "{dates:?}"
        );
    }
    scene.assert_ledgers_agree().await;
}
