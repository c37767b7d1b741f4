//! The listener that leads to HTTPS: a redirect for what may be redirected, the contract's 400 for what may not, nothing else.

use harness::problem::assert_problem;
use harness::{Call, Client, Protocol, Scene, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{MARKETS, TOUCHLINE, limit_hits};

/// A scene with that listener, and more of its YAML.
async fn redirecting(extra: &'static str) -> Scene {
    Scene::builder(TOUCHLINE)
        .spec(move |spec| {
            spec.listen_extra = format!(
                "trusted_proxies: [127.0.0.1]\n  redirect: {{ address: \"127.0.0.1:0\", {extra} }}"
            );
        })
        .start()
        .await
}

/// A client of that listener; what it sees is in no ledger, because nothing of it may come further.
fn client(scene: &Scene) -> Client {
    let address = scene.gateways[0].redirect.expect("it listens");
    Client::new(Protocol::Http1, address, Default::default())
}

/// All that is answered to bytes.
async fn answered(scene: &Scene, request: &[u8]) -> String {
    let address = scene.gateways[0].redirect.expect("it listens");
    let mut socket = TcpStream::connect(address).await.unwrap();
    socket.write_all(request).await.unwrap();
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer).await;
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn a_request_without_tls_is_led_to_the_same_place_with_tls() {
    let scene = redirecting("port: 8443").await;
    for (method, target) in [
        ("GET", "/api/v1/data/markets?per_page=1&x=%C3%A9"),
        ("HEAD", "/"),
        ("POST", "/api/v1/data/markets"),
        ("OPTIONS", "/openapi.json"),
    ] {
        let answer = client(&scene)
            .call(
                Call::new(method, target)
                    .header("host", "API.example:80")
                    .header("x-request-id", "mine"),
            )
            .await;
        assert_eq!(answer.status, 308, "{answer:?}");
        let location = format!("https://api.example:8443{target}");
        assert_eq!(answer.header("location"), Some(location.as_str()));
        assert_eq!(answer.header("connection"), Some("close"));
        assert_eq!(answer.header("x-request-id"), Some("mine"));
        assert_eq!(answer.header("server"), None);
        // RFC 6797 section 7.2: never without TLS.
        assert_eq!(answer.header("strict-transport-security"), None);
        assert!(answer.body.is_empty());
    }
    let absolute = b"GET http://API.example:80/a?b HTTP/1.2\r\nHost: other\r\n\r\n";
    let answer = answered(&scene, absolute).await;
    let location = "\r\nlocation: https://api.example:8443/a?b\r\n";
    assert!(answer.contains(location), "{answer}");
    let line = scene.gateways[0]
        .logged_where(|line| line["method"] == "POST")
        .await;
    assert_eq!(line["status"], 308);
    assert_eq!(line["outcome"], "redirected");
    assert_eq!(line["path"], "/api/v1/data/markets");
    let redirected =
        "touchline_requests_total{endpoint=\"none\",outcome=\"redirected\",tier=\"none\"}";
    assert_eq!(scene.metric(redirected).await, 5.0);
    assert_eq!(limit_hits(&scene, "cleartext_key").await, 0.0);
    assert!(scene.upstream.recorded().is_empty());
}

#[tokio::test]
async fn a_key_in_clear_text_is_redirected_unseen_and_counted() {
    let scene = redirecting("hosts: [api.example]").await;
    let key = scene.issue("starter").await;
    let call = Call::get(MARKETS).key(&key).header("host", "api.example");
    let call = call.header("x-forwarded-for", "198.51.100.7");
    let answer = client(&scene).call(call).await;
    assert_eq!(answer.status, 308);
    let location = format!("https://api.example{MARKETS}");
    assert_eq!(answer.header("location"), Some(location.as_str()));
    assert_eq!(answer.header("x-ratelimit-limit"), None);
    let line = scene.gateways[0]
        .logged_where(|line| line["outcome"] == "redirected")
        .await;
    assert_eq!(line["key_id"], serde_json::Value::Null);
    assert_eq!(line["cause"], "an API key was sent in clear text");
    assert_eq!(line["client"], "198.51.100.7");
    assert_eq!(limit_hits(&scene, "cleartext_key").await, 1.0);
    assert!(scene.upstream.recorded().is_empty());
    scene.expect_used(&key, 0).await;
    for output in [scene.gateways[0].output(), line.to_string()] {
        assert!(!output.contains(&key.key));
    }
}

#[tokio::test]
async fn no_client_is_led_to_another_host_or_by_an_ambiguous_request() {
    let scene = redirecting("hosts: [api.example]").await;
    let refused = [
        "GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: api.example@evil.example\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: api.example\r\nHost: evil.example\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.0\r\n\r\n",
        "GET http://evil.example/ HTTP/1.1\r\nHost: api.example\r\n\r\n",
        "GET http://api.example@evil.example/ HTTP/1.1\r\nHost: api.example\r\n\r\n",
        "GET //evil.example HTTP/1.1\r\nHost: api.example\r\n\r\n",
        "GET /\\evil.example HTTP/1.1\r\nHost: api.example\r\n\r\n",
        "GET /a/../b HTTP/1.1\r\nHost: api.example\r\n\r\n",
        "GET / HTTP/1.1\nHost: api.example\n\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "\u{16}\u{3}\u{1}",
    ];
    for request in refused {
        let answer = answered(&scene, request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{request:?}: {answer}");
        assert!(answer.contains("\"code\":\"BAD_REQUEST\""), "{answer}");
        assert!(
            !answer.to_ascii_lowercase().contains("location:"),
            "{answer}"
        );
    }
    let lines = scene.gateways[0].logged(refused.len()).await;
    assert!(lines.iter().all(|line| line["outcome"] == "BAD_REQUEST"));
    let old = lines.iter().filter(|line| line["protocol"] == "HTTP/1.0");
    assert_eq!(old.count(), 1);
    // What follows a request on the connection is never answered.
    let two = "GET / HTTP/1.1\r\nHost: api.example\r\n\r\n".repeat(2);
    let answer = answered(&scene, two.as_bytes()).await;
    assert_eq!(answer.matches("HTTP/1.1").count(), 1, "{answer}");
}

#[tokio::test]
async fn a_head_that_does_not_come_in_time_or_is_too_large_is_refused_there_too() {
    let scene = Scene::builder(TOUCHLINE)
        .spec(|spec| {
            spec.listen_extra = "redirect: { address: \"127.0.0.1:0\" }".into();
            spec.extra_yaml = "limits: { request_head: 300ms }".into();
        })
        .start()
        .await;
    let answer = answered(&scene, b"GET / HTTP/1.1\r\nHost: a").await;
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert_eq!(answered(&scene, b"").await, "");
    eventually("both are counted", async || {
        (limit_hits(&scene, "request_head").await == 2.0).then_some(())
    })
    .await;
    let long = format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "a".repeat(9_000));
    let answer = answered(&scene, long.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 414 "), "{answer}");
}

#[tokio::test]
async fn connections_there_take_places_like_all_others() {
    let scene = Scene::builder(TOUCHLINE)
        .spec(|spec| {
            spec.listen_extra = "redirect: { address: \"127.0.0.1:0\" }".into();
            spec.extra_yaml = "limits: { connections: 1, request_head: 1m }".into();
        })
        .start()
        .await;
    let address = scene.gateways[0].redirect.unwrap();
    let _first = TcpStream::connect(address).await.unwrap();
    eventually("the first has its place", async || {
        (scene.metric("touchline_connections").await == 1.0).then_some(())
    })
    .await;
    let answer = answered(&scene, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert_eq!(answer, "");
    eventually("it is counted", async || {
        (limit_hits(&scene, "connections").await == 1.0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn refused_requests_have_the_contracts_body() {
    let scene = redirecting("").await;
    let call = Call::get("/a;b").header("host", "a");
    let answer = client(&scene).call(call).await;
    assert_problem(&answer, 400, "BAD_REQUEST");
}
