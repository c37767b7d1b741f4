//! Step 9, the way back: what the upstream states of itself passes, what states that the gateway failed becomes its own 500.

use std::time::Duration;

use harness::client::Until;
use harness::upstream::{Release, Script};
use harness::{Behaviour, IssuedKey, PATIENCE, Protocol, Scene, Store};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{MARKETS, TOUCHLINE, assert_problem, assert_quota_status};

#[tokio::test]
async fn an_upstreams_failure_becomes_our_500_and_is_refunded() {
    for store in [Store::Embedded, Store::Redis] {
        let mut scene = Scene::builder(TOUCHLINE).store(store).start().await;
        let key = scene.issue("starter").await;
        for protocol in Protocol::ALL {
            let client = scene.client(protocol);
            for status in [
                500, 501, 502, 503, 504, 599, 600, 999, 401, 403, 407, 408, 421, 429,
            ] {
                let script = Script::json(status, "{\"private\":\"upstream-words\"}")
                    .header("WWW-Authenticate", "Basic upstream-words")
                    .header("Retry-After", "77");
                scene.upstream.always(Behaviour::Answer(script));
                let answer = client.get(&key, MARKETS).await;
                assert_problem(&answer, 500, "INTERNAL_ERROR");
                assert_quota_status(&answer, 1_000, 1_000);
                assert!(
                    !format!("{answer:?}").contains("upstream-words"),
                    "{answer:?}"
                );
            }
        }
        scene.expect_used(&key, 0).await;
        scene.assert_ledgers_agree().await;
    }
}

#[tokio::test]
async fn an_upstreams_other_answers_pass_and_count() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    let mut left = 1_000;
    for protocol in Protocol::ALL {
        let client = scene.client(protocol);
        for status in [200, 201, 204, 206, 301, 304, 400, 404, 409, 410, 422] {
            scene.upstream.always(Behaviour::Status(status));
            let answer = client.get(&key, MARKETS).await;
            left -= 1;
            assert_eq!(answer.status, status);
            assert_quota_status(&answer, 1_000, left);
            let body = String::from_utf8_lossy(&answer.body).into_owned();
            if ![204, 304].contains(&status) {
                assert_eq!(body, format!("{{\"upstream_status\":{status}}}"));
            }
        }
    }
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn a_body_passes_whole_with_a_length_and_in_chunks_and_after_an_interim_answer() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    let text = "0123456789".repeat(30_000);
    for protocol in Protocol::ALL {
        let client = scene.client(protocol);
        for behaviour in [
            Behaviour::Answer(Script::json(200, &text)),
            Behaviour::Answer(Script::json(200, &text).chunked()),
            Behaviour::Informational(103, Box::new(Behaviour::Answer(Script::json(200, &text)))),
        ] {
            scene.upstream.always(behaviour);
            let answer = client.get(&key, MARKETS).await;
            assert!(answer.status == 200 && answer.complete);
            assert!(answer.body == text, "{} bytes", answer.body.len());
        }
    }
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn an_answer_without_content_shows_nothing_of_its_length() {
    let scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    for framing in [
        "Content-Length: 5\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n",
    ] {
        let bytes = format!("HTTP/1.1 204 No Content\r\n{framing}").into_bytes();
        scene.upstream.always(Behaviour::Raw(bytes));
        for protocol in Protocol::ALL {
            let answer = scene.client(protocol).get(&key, MARKETS).await;
            assert_eq!(answer.status, 204);
            assert_eq!(answer.header("content-length"), None, "{answer:?}");
            assert_eq!(answer.header("transfer-encoding"), None, "{answer:?}");
        }
    }
}

#[tokio::test]
async fn an_upstream_that_takes_longer_than_the_total_before_its_header_has_failed() {
    let scene = Scene::builder(TOUCHLINE)
        .timeout("total", "500ms")
        .spec(|spec| spec.upstream_extra = "ejection: { failures: 2 }".into())
        .start()
        .await;
    let key = scene.issue("starter").await;
    let pause = |then| Behaviour::Delay(Duration::from_millis(400), Box::new(then));
    let hint = |then| Behaviour::Informational(103, Box::new(then));
    for slow in [
        pause(pause(Behaviour::Echo)),
        hint(pause(hint(pause(Behaviour::Echo)))),
    ] {
        scene.upstream.always(slow);
        let answer = scene.client(Protocol::Http1).get(&key, MARKETS).await;
        assert_problem(&answer, 500, "INTERNAL_ERROR");
    }
    scene.expect_used(&key, 0).await;
    let ejections = "touchline_upstream_ejections_total{upstream=\"prediction-data\"}";
    assert_eq!(scene.metric(ejections).await, 1.0, "the server is blamed");
}

#[tokio::test]
async fn a_key_whose_record_cannot_be_settled_gets_a_500_that_reports_its_quota_status() {
    let scene = Scene::builder(TOUCHLINE).store(Store::Redis).start().await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    assert_eq!(client.get(&key, MARKETS).await.status, 200);
    let redis = scene.redis.as_ref().unwrap();
    let record = format!("touchline:k:{{{}}}", key.id);
    // Newer than every record that the gateway can be given.
    let output = redis
        .command(&["HSET", &record, "ver", "9007199254740991"])
        .await;
    assert_eq!(output.unwrap().trim(), ":0");
    let answer = client.get(&key, MARKETS).await;
    assert_problem(&answer, 500, "INTERNAL_ERROR");
    assert_eq!(answer.number("x-ratelimit-limit"), Some(1_000));
    assert!(answer.number("x-ratelimit-reset").is_some());
}

#[tokio::test]
async fn what_an_upstream_sends_of_the_caller_and_of_itself_stays_with_the_gateway() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    let private = [
        "X-Consumer-Id",
        "X-Consumer-Username",
        "X-Powered-By",
        "Alt-Svc",
        "X-Accel-Redirect",
        "X-Accel-Buffering",
        "Strict-Transport-Security",
        "RateLimit-Remaining",
        "X-Rate-Limit-Remaining",
        "X_RateLimit_Remaining",
    ];
    let mut script = Script::json(200, "{}").header("Set-Cookie", "a=b");
    for name in private {
        script = script.header(name, "private");
    }
    scene.upstream.always(Behaviour::Answer(script));
    for protocol in Protocol::ALL {
        let answer = scene.client(protocol).get(&key, MARKETS).await;
        assert_eq!(answer.status, 200);
        for name in private {
            let name = name.to_ascii_lowercase();
            assert_eq!(answer.header(&name), None, "{answer:?}");
        }
        assert_eq!(answer.header("set-cookie"), Some("a=b"), "{answer:?}");
    }
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn a_redirect_to_the_upstreams_own_address_is_one_to_the_gateway() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    scene.upstream.behave(|request| {
        let own = request.values("host").join(",");
        let location = format!("http://{own}/api/v1/data/odds?page=2");
        Behaviour::Answer(Script::json(302, "{}").header("Location", &location))
    });
    for protocol in Protocol::ALL {
        let answer = scene.client(protocol).get(&key, MARKETS).await;
        let location = answer.header("location");
        assert_eq!(location, Some("/api/v1/data/odds?page=2"), "{answer:?}");
    }
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn a_gateways_own_transport_security_stands_in_the_place_of_an_upstreams() {
    let scene = Scene::builder(TOUCHLINE)
        .spec(|spec| spec.https_extra = "hsts: 30d".into())
        .start()
        .await;
    let key = scene.issue("starter").await;
    let script = Script::json(200, "{}").header("Strict-Transport-Security", "max-age=1");
    scene.upstream.always(Behaviour::Answer(script));
    for (protocol, expected) in [
        (Protocol::Http1, None),
        (Protocol::Http1Tls, Some("max-age=2592000")),
        (Protocol::Http2Tls, Some("max-age=2592000")),
    ] {
        let answer = scene.client(protocol).get(&key, MARKETS).await;
        assert_eq!(answer.header("strict-transport-security"), expected);
    }
}

/// A scene whose upstream is spoken to in this version of HTTP, and a key.
async fn scene_over(protocol: &'static str) -> (Scene, IssuedKey) {
    let scene = Scene::builder(TOUCHLINE)
        .spec(move |spec| spec.upstream_extra = format!("protocol: {protocol}"))
        .start()
        .await;
    let key = scene.issue("starter").await;
    (scene, key)
}

/// A connection over HTTP/1.1 on which a request was sent.
async fn asking(scene: &Scene, key: &IssuedKey) -> TcpStream {
    let mut socket = TcpStream::connect(scene.gateways[0].http).await.unwrap();
    let request = format!(
        "GET {MARKETS} HTTP/1.1\r\nHost: h\r\nX-API-Key: {}\r\nConnection: close\r\n\r\n",
        key.key
    );
    socket.write_all(request.as_bytes()).await.unwrap();
    socket
}

#[tokio::test]
async fn an_interim_answer_reaches_clients_over_http1_before_the_final_one() {
    for protocol in ["http1", "http2"] {
        let (scene, key) = scene_over(protocol).await;
        let release = Release::default();
        let held = Behaviour::Until(release.clone(), Box::new(Behaviour::Echo));
        let hinted = Behaviour::Informational(103, Box::new(held));
        scene
            .upstream
            .always(Behaviour::Informational(102, Box::new(hinted)));
        let mut socket = asking(&scene, &key).await;
        let mut text = String::new();
        while !text.contains("103 Early Hints\r\nlink: </style.css>; rel=preload\r\n") {
            let mut bytes = [0; 1024];
            let read = tokio::time::timeout(PATIENCE, socket.read(&mut bytes));
            let read = read.await.expect("interim answers").unwrap();
            assert_ne!(read, 0, "{text}");
            text += &String::from_utf8_lossy(&bytes[..read]).replace("Link:", "link:");
        }
        assert!(text.starts_with("HTTP/1.1 102 "), "{text}");
        assert!(!text.contains("200"), "{text}");
        release.give();
        socket.read_to_string(&mut text).await.unwrap();
        assert!(text.contains("HTTP/1.1 200 OK"), "{text}");
        scene.expect_used(&key, 1).await;
    }
}

/// What a client over HTTP/1 receives from an upstream over HTTP/2 that sends this number of interim answers first.
async fn flooded(scene: &Scene, key: &IssuedKey, interim: usize) -> String {
    let mut flood = Behaviour::Echo;
    for _ in 0..interim {
        flood = Behaviour::Informational(103, Box::new(flood));
    }
    scene.upstream.always(flood);
    let mut socket = asking(scene, key).await;
    let mut text = String::new();
    let read = tokio::time::timeout(PATIENCE, socket.read_to_string(&mut text));
    read.await.expect("the answer").unwrap();
    text
}

#[tokio::test]
async fn a_flood_of_interim_answers_over_http2_is_cut_short_before_the_final_one() {
    let (scene, key) = scene_over("http2").await;
    let text = flooded(&scene, &key, 1_000).await;
    let interim = text.matches("HTTP/1.1 103 ").count();
    assert!((100..300).contains(&interim), "{interim}");
    assert!(text.contains("HTTP/1.1 200 OK"), "{text}");
    scene.expect_used(&key, 1).await;
}

#[tokio::test]
async fn an_upstream_over_http2_that_does_not_stop_sending_interim_answers_is_not_waited_for() {
    let (scene, key) = scene_over("http2").await;
    let text = flooded(&scene, &key, 1_500).await;
    assert!(text.contains("HTTP/1.1 500 "), "{text}");
    let line = scene.gateways[0].logged(1).await.pop().unwrap();
    let cause = line["cause"].as_str().unwrap();
    assert!(cause.contains("sent too many interim answers"), "{cause}");
    scene.expect_used(&key, 0).await;
}

#[tokio::test]
async fn a_switch_of_protocols_reaches_no_client_and_costs_nothing() {
    for protocol in ["http1", "http2"] {
        let (scene, key) = scene_over(protocol).await;
        let switched = Behaviour::Informational(101, Box::new(Behaviour::Echo));
        scene.upstream.always(switched);
        for client in Protocol::ALL {
            let answer = scene.client(client).get(&key, MARKETS).await;
            assert_problem(&answer, 500, "INTERNAL_ERROR");
        }
        scene.expect_used(&key, 0).await;
    }
}

#[tokio::test]
async fn an_interim_answer_sets_no_cookie() {
    let scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    let hint = "HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\nSet-Cookie: interim=1\r\nX-Powered-By: x\r\n\r\n";
    let answer = "HTTP/1.1 200 OK\r\nSet-Cookie: final=1\r\nContent-Length: 2\r\n\r\n{}";
    let bytes = format!("{hint}{answer}").into_bytes();
    scene.upstream.always(Behaviour::Raw(bytes));
    let request = format!(
        "GET {MARKETS} HTTP/1.1\r\nHost: h\r\nX-API-Key: {}\r\nConnection: close\r\n\r\n",
        key.key
    );
    let client = scene.client(Protocol::Http1);
    let exchange = client.raw(request, Until::Closed).await;
    let text = String::from_utf8_lossy(&exchange.bytes).to_ascii_lowercase();
    assert!(text.contains("http/1.1 103"), "{text}");
    assert!(text.contains("</a>; rel=preload"), "{text}");
    assert!(!text.contains("interim=1"), "{text}");
    assert!(!text.contains("x-powered-by"), "{text}");
    assert!(text.contains("set-cookie: final=1"), "{text}");
}
