//! Step 9, the way there: the request is rebuilt, not relayed.

use harness::upstream::{Recorded, Script};
use harness::{Behaviour, Call, Protocol, Scene};

use super::{MARKETS, TOUCHLINE, assert_problem};

async fn forwarded(scene: &Scene, protocol: Protocol, call: Call) -> Recorded {
    let answer = scene.client(protocol).call(call).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let id = answer.header("x-request-id").unwrap();
    scene.upstream.recorded_as(id).pop().unwrap()
}

#[tokio::test]
async fn the_upstream_learns_who_asks_and_never_by_which_key() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    for protocol in Protocol::ALL {
        for tier in ["starter", "pro", "enterprise"] {
            let key = scene.issue(tier).await;
            let call = Call::get(MARKETS)
                .key(&key)
                .header("x-consumer-id", "forged")
                .header("x-consumer-tier", "forged")
                .header("x-consumer-name", "forged")
                .header("x_consumer_id", "forged")
                .header("x.consumer.id", "forged")
                .header("x!consumer~tier", "forged")
                .header("x.api.key", "forged");
            let request = forwarded(&scene, protocol, call).await;
            assert_eq!(request.values("x-consumer-id"), [key.id.as_str()]);
            assert_eq!(request.values("x-consumer-tier"), [tier]);
            assert!(request.values("x-api-key").is_empty());
            assert!(!request.text().contains("forged"), "{}", request.text());
        }
    }
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn forwarding_headers_show_what_the_gateway_saw_and_not_what_the_client_claims() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    for protocol in Protocol::ALL {
        let call = Call::get(MARKETS)
            .key(&key)
            .header("x-forwarded-for", "203.0.113.7")
            .header("x-forwarded-proto", "gopher")
            .header("x-forwarded-host", "forged.example")
            .header("x.forwarded.host", "forged.example")
            .header("x-forwarded-port", "7")
            .header("x-real-ip", "203.0.113.7")
            .header("forwarded", "for=203.0.113.7");
        let request = forwarded(&scene, protocol, call).await;
        assert_eq!(request.values("x-forwarded-for"), ["127.0.0.1"]);
        let scheme = if protocol.is_tls() { "https" } else { "http" };
        assert_eq!(request.values("x-forwarded-proto"), [scheme]);
        let host = request.values("x-forwarded-host");
        assert!(
            host.len() == 1 && host[0].starts_with("localhost"),
            "{host:?}"
        );
        assert_eq!(request.values("host").len(), 1);
        let trace = request.values("traceparent");
        assert!(trace.len() == 1 && trace[0].len() == 55, "{trace:?}");
        for text in ["203.0.113.7", "gopher", "forged"] {
            assert!(!request.text().contains(text), "{}", request.text());
        }
    }
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn hop_by_hop_headers_stay_and_end_to_end_headers_pass() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    for protocol in Protocol::ALL {
        let call = Call::get(MARKETS)
            .key(&key)
            .header("accept", "application/json")
            .header("accept-encoding", "br")
            .header("if-none-match", "\"abc\"")
            .header("x-own", "one")
            .header("x-own", "two")
            .header("content_length", "7")
            .header("content.length", "7")
            .header("x.own", "three")
            .header("transfer_encoding", "chunked")
            .header("proxy-authorization", "Basic x");
        let request = forwarded(&scene, protocol, call).await;
        assert_eq!(request.values("accept"), ["application/json"]);
        assert_eq!(request.values("if-none-match"), ["\"abc\""]);
        assert_eq!(request.values("x-own"), ["one", "two"]);
        assert_eq!(request.values("x.own"), ["three"]);
        for gone in [
            "proxy-authorization",
            "content_length",
            "content.length",
            "transfer_encoding",
        ] {
            assert!(request.values(gone).is_empty(), "{}", request.text());
        }
    }
    for protocol in [Protocol::Http1, Protocol::Http1Tls] {
        let call = Call::get(MARKETS)
            .key(&key)
            .header("connection", "keep-alive, x-nominated")
            .header("x-nominated", "1")
            .header("keep-alive", "timeout=7")
            .header("proxy-connection", "keep-alive")
            .header("te", "trailers")
            .header("trailer", "x-late")
            .header("upgrade", "websocket");
        let request = forwarded(&scene, protocol, call).await;
        for gone in [
            "x-nominated",
            "keep-alive",
            "proxy-connection",
            "te",
            "trailer",
            "upgrade",
        ] {
            assert!(
                request.values(gone).is_empty(),
                "{gone}: {}",
                request.text()
            );
        }
    }
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn nominating_our_own_headers_removes_none_of_them() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    let ours = [
        "x-consumer-id",
        "x-consumer-tier",
        "x-forwarded-for",
        "x-request-id",
    ];
    for nominated in ours.iter().chain(&["x-api-key"]) {
        let call = Call::get(MARKETS).key(&key);
        let answer = client.call(call.header("connection", nominated)).await;
        assert_problem(&answer, 400, "BAD_REQUEST");
    }
    assert_eq!(scene.upstream.count(), 0);
    let call = Call::get(MARKETS)
        .key(&key)
        .header("connection", "x-own")
        .header("x-own", "1");
    let request = forwarded(&scene, Protocol::Http1, call).await;
    assert!(request.values("x-own").is_empty(), "{}", request.text());
    for ours in ours {
        assert_eq!(request.values(ours).len(), 1, "{ours}: {}", request.text());
    }
    scene.assert_ledgers_agree().await;
}

/// Request headers that servers and frameworks take for the method, the target, the host or the caller.
const BELIEVED: [&str; 20] = [
    "Cookie",
    "Authorization",
    "X-HTTP-Method",
    "X-HTTP-Method-Override",
    "X-Method-Override",
    "Proxy",
    "X-Original-URI",
    "X-Original-URL",
    "X-Rewrite-URL",
    "X-Host",
    "X-Real-IP",
    "True-Client-IP",
    "X-Client-IP",
    "CF-Connecting-IP",
    "X-Remote-User",
    "X-Auth-Request-User",
    "X-Auth-Request-Email",
    "X-Auth-Request-",
    "X-Forwarded-User",
    "Forwarded",
];

#[tokio::test]
async fn headers_that_servers_take_for_the_method_the_target_or_the_caller_never_reach_the_upstream()
 {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    for protocol in Protocol::ALL {
        let mut call = Call::get(MARKETS).key(&key).header("x-auth-requested", "1");
        for name in BELIEVED {
            call = call
                .header(&name.to_ascii_lowercase(), "forged")
                .header(&name.to_ascii_lowercase().replace('-', "_"), "forged")
                .header(&name.to_ascii_lowercase().replace('-', "."), "forged");
        }
        let request = forwarded(&scene, protocol, call).await;
        assert!(!request.text().contains("forged"), "{}", request.text());
        assert_eq!(request.values("x-auth-requested"), ["1"]);
    }
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn operators_choose_which_headers_pass_in_both_directions() {
    let mut scene = Scene::builder(TOUCHLINE)
        .spec(|spec| {
            spec.extra_yaml = "forward: { headers_denied: [x-own-*, x_single], \
                               answer_headers_denied: [X-Internal-*, server-timing] }"
                .into();
        })
        .start()
        .await;
    let key = scene.issue("starter").await;
    let script = Script::json(200, "{}")
        .header("X-Internal-Node", "7")
        .header("X_Internal_Node", "7")
        .header("Server-Timing", "db;dur=7")
        .header("X-Powered-By", "shown")
        .header("X-Internals", "shown");
    scene.upstream.always(Behaviour::Answer(script));
    for protocol in Protocol::ALL {
        let call = Call::get(MARKETS)
            .key(&key)
            .header("x-own-a", "1")
            .header("x_own_b", "1")
            .header("x-single", "1")
            .header("x_single", "1")
            .header("cookie", "a=b")
            .header("x-owner", "1");
        let answer = scene.client(protocol).call(call).await;
        let id = answer.header("x-request-id").unwrap();
        let request = scene.upstream.recorded_as(id).pop().unwrap();
        for gone in ["x-own-a", "x_own_b", "x-single", "x_single"] {
            assert!(request.values(gone).is_empty(), "{}", request.text());
        }
        assert_eq!(request.values("x-owner"), ["1"]);
        assert_eq!(request.values("cookie"), ["a=b"]);
        for gone in ["x-internal-node", "x_internal_node", "server-timing"] {
            assert_eq!(answer.header(gone), None, "{answer:?}");
        }
        for kept in ["x-powered-by", "x-internals"] {
            assert_eq!(answer.header(kept), Some("shown"), "{answer:?}");
        }
    }
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn cookies_that_a_client_sends_in_several_fields_over_http2_are_one_upstream() {
    let mut scene = Scene::builder(TOUCHLINE)
        .spec(|spec| spec.extra_yaml = "forward: { headers_denied: [] }".into())
        .start()
        .await;
    let key = scene.issue("starter").await;
    for protocol in [Protocol::Http2Clear, Protocol::Http2Tls] {
        let call = Call::get(MARKETS)
            .key(&key)
            .header("cookie", "a=1")
            .header("accept", "*/*")
            .header("cookie", "b=2; c=3")
            .header("cookie", "d=4");
        let answer = scene.client(protocol).call(call).await;
        let id = answer.header("x-request-id").unwrap();
        let request = scene.upstream.recorded_as(id).pop().unwrap();
        assert_eq!(request.values("cookie"), ["a=1; b=2; c=3; d=4"]);
        assert_eq!(request.values("accept"), ["*/*"]);
    }
    scene.assert_ledgers_agree().await;
}
