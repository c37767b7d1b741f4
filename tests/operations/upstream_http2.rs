//! HTTP/2 to upstreams as operators meet it: what is agreed on, connections shared and ended, health checks.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use harness::upstream::{Release, Script, Speaks};
use harness::{Allowances, Behaviour, Call, IssuedKey, Protocol, Scene, SceneBuilder, eventually};
use http::Version;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::servers::is_up;
use super::upstream_tls::{Authority, Stage, tls_with_alpn};
use super::{MARKETS, STORES, TOUCHLINE};

const HTTP_1_1_REQUIRED: u32 = 13;
/// More than stream windows and buffers between upstream and client hold.
const LARGE_BODY_BYTES: usize = 4 * 1024 * 1024;

fn over_http2() -> SceneBuilder {
    Scene::builder(TOUCHLINE).spec(|spec| {
        spec.upstream_extra =
            "protocol: http2, health: { path: /healthz, interval: 100ms, timeout: 30s }".into();
        spec.endpoints[0].methods.push("POST".into());
    })
}

async fn metric(scene: &Scene, series: &str) -> u64 {
    let series = format!("{series},upstream=\"prediction-data\"}}");
    scene.metric(&series).await as u64
}

/// A request that a connection died under, or that a server had not looked at, may have been sent again.
fn sent_again() -> Allowances {
    Allowances {
        retries: true,
        ..Allowances::default()
    }
}

#[tokio::test]
async fn requests_share_a_connection_until_it_is_full() {
    // All of them at once, over one connection of a client.
    let scene = over_http2()
        .timeout("read", "60s")
        .spec(|spec| spec.extra_yaml = "limits: { h2_memory: 64MiB }".into())
        .start()
        .await;
    let key = scene.issue("enterprise").await;
    let client = Arc::new(scene.client(Protocol::Http2Tls));
    assert_eq!(client.get(&key, MARKETS).await.status, 200);
    scene.upstream.behave(|_| Behaviour::Stall);
    let mut calls = JoinSet::new();
    let mut ask = async |times: usize, all: usize| {
        for _ in 0..times {
            let (client, key) = (client.clone(), key.clone());
            calls.spawn(async move { client.call(Call::get(MARKETS).key(&key)).await.status });
        }
        eventually("they are under way", async || {
            (scene.upstream.count() == all).then_some(())
        })
        .await;
        let asked = scene.upstream.recorded();
        let connections: std::collections::BTreeSet<u64> =
            asked.iter().map(|one| one.connection).collect();
        connections.len()
    };
    assert_eq!(ask(32, 33).await, 1);
    assert!(ask(1, 34).await > 1);
    let kinds = ["new", "reused"]
        .map(|kind| format!("touchline_upstream_connections_total{{kind=\"{kind}\""));
    assert_eq!(metric(&scene, &kinds[0]).await, 2);
    assert_eq!(metric(&scene, &kinds[1]).await, 32);
    calls.abort_all();
    while calls.join_next().await.is_some() {}
    scene.upstream.always(Behaviour::Echo);
    assert_eq!(
        client.get(&key, MARKETS).await.status,
        200,
        "the connection outlives them"
    );
    scene.expect_used(&key, 35).await;
}

/// A request that waits, while another one is served.
struct WhileWaiting {
    scene: Scene,
    key: IssuedKey,
}

impl WhileWaiting {
    async fn new() -> WhileWaiting {
        let scene = over_http2().start().await;
        let key = scene.issue("starter").await;
        WhileWaiting { scene, key }
    }

    /// The status of a call and the server's connection that it had; none if the server never had it.
    async fn call(&self, call: Call) -> (u16, Option<u64>) {
        let client = self.scene.client(Protocol::Http2Tls);
        let answer = client.call(call.key(&self.key)).await;
        let id = answer.header("x-request-id").unwrap();
        let asked = self.scene.upstream.recorded_as(id).pop();
        (answer.status, asked.map(|asked| asked.connection))
    }

    /// Whether the connection of a call that waits is shared by another one.
    async fn shares(&self, waiting: Call) -> bool {
        let release = Release::default();
        let waits = Behaviour::Until(release.clone(), Box::new(Behaviour::Echo));
        let before = self.scene.upstream.count();
        self.scene
            .upstream
            .behave(move |asked| match asked.values("x-waits").is_empty() {
                true => Behaviour::Echo,
                false => waits.clone(),
            });
        let other = async {
            eventually("it is under way", async || {
                (self.scene.upstream.count() == before + 1).then_some(())
            })
            .await;
            let other = self.call(Call::get(MARKETS)).await;
            release.give();
            other
        };
        let (waited, other) = tokio::join!(self.call(waiting.header("x-waits", "1")), other);
        assert_eq!((waited.0, other.0), (200, 200));
        waited.1 == other.1
    }
}

#[tokio::test]
async fn a_request_that_may_harm_others_has_a_connection_alone() {
    let pair = WhileWaiting::new().await;
    let post = |bytes: usize| Call::new("POST", MARKETS).body("x".repeat(bytes));
    let get = |bytes: usize| Call::get(MARKETS).header("x-long", "x".repeat(bytes));
    assert!(pair.shares(get(3_000)).await);
    assert!(!pair.shares(get(5_000)).await);
    assert!(!pair.shares(post(1)).await);
    assert!(pair.shares(get(1)).await);
    pair.scene.expect_used(&pair.key, 8).await;
}

#[tokio::test]
async fn requests_to_a_server_that_ends_connections_for_errors_share_none() {
    let pair = WhileWaiting::new().await;
    let release = Release::default();
    let waits = Behaviour::Until(release.clone(), Box::new(Behaviour::Echo));
    let breaking = Call::get(MARKETS).header("x-breaks", "1");
    let behave = || {
        let waits = waits.clone();
        pair.scene
            .upstream
            .behave(move |asked| match asked.values("x-breaks").is_empty() {
                true => waits.clone(),
                false => Behaviour::InvalidFrame,
            });
    };
    // One that has it alone harms no other.
    behave();
    assert_eq!(pair.call(breaking.clone()).await.0, 500);
    assert!(pair.shares(Call::get(MARKETS)).await);
    behave();
    let before = pair.scene.upstream.count();
    let other = async {
        eventually("another is under way", async || {
            (pair.scene.upstream.count() == before + 1).then_some(())
        })
        .await;
        assert_eq!(pair.call(breaking).await.0, 500);
        release.give();
    };
    // It is sent again.
    let (waited, ()) = tokio::join!(pair.call(Call::get(MARKETS)), other);
    assert_eq!(waited.0, 200);
    for _ in 0..3 {
        assert!(!pair.shares(Call::get(MARKETS)).await);
    }
    pair.scene.expect_used(&pair.key, 9).await;
}

#[tokio::test]
async fn a_client_that_takes_nothing_of_its_answer_holds_up_no_other_on_the_same_connection() {
    let scene = over_http2().start().await;
    let key = scene.issue("starter").await;
    let large = Script::json(200, &"x".repeat(LARGE_BODY_BYTES));
    scene
        .upstream
        .behave(move |asked| match asked.values("x-large").is_empty() {
            true => Behaviour::Echo,
            false => Behaviour::Answer(large.clone()),
        });
    let client = scene.client(Protocol::Http1);
    assert_eq!(client.get(&key, MARKETS).await.status, 200);
    let mut stuck = Vec::new();
    for number in 0..20 {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(16 * 1024).unwrap();
        let mut socket = socket.connect(scene.gateways[0].http).await.unwrap();
        let request = format!(
            "GET {MARKETS} HTTP/1.1\r\nHost: a\r\nX-API-Key: {}\r\nX-Large: 1\r\nX-Request-Id: stuck-{number}\r\n\r\n",
            key.key
        );
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut first = [0; 12];
        socket.read_exact(&mut first).await.unwrap();
        assert_eq!(&first, b"HTTP/1.1 200");
        stuck.push(socket);
    }
    for _ in 0..10 {
        assert_eq!(client.get(&key, MARKETS).await.status, 200);
    }
    let asked = scene.upstream.recorded();
    assert!(
        asked
            .iter()
            .all(|one| one.connection == asked[0].connection)
    );
    // They get the rest when they read on.
    for mut socket in stuck {
        let mut left = LARGE_BODY_BYTES;
        let mut part = vec![0; 256 * 1024];
        while left > 0 {
            let read = socket.read(&mut part).await.unwrap();
            assert!(read > 0, "{left} left");
            left = left.saturating_sub(read);
        }
    }
    scene.expect_used(&key, 31).await;
}

#[tokio::test]
async fn goodbyes_under_load_fail_nothing_that_may_be_sent_again_and_charge_nothing_twice() {
    for store in STORES {
        let mut scene = over_http2()
            .store(store)
            .daily("enterprise", 100_000_000)
            .start()
            .await;
        let (stop, served) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let mut callers = JoinSet::new();
        for protocol in Protocol::ALL {
            let key = scene.issue("enterprise").await;
            let (client, stop, served) = (scene.client(protocol), stop.clone(), served.clone());
            callers.spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    for (method, body) in [("GET", ""), ("POST", "{}")] {
                        let call = Call::new(method, MARKETS).key(&key).body(body);
                        let answer = client.call(call).await;
                        // A POST that was on its way when the connection ended may have been acted on.
                        let lost = method == "POST" && answer.status == 500;
                        assert!(answer.complete, "{answer:?}");
                        assert!(answer.status == 200 || lost, "{answer:?}");
                        served.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        for _ in 0..20 {
            let before = served.load(Ordering::Relaxed);
            eventually("requests are served", async || {
                (served.load(Ordering::Relaxed) >= before + 10).then_some(())
            })
            .await;
            scene.upstream.go_away();
        }
        stop.store(true, Ordering::Relaxed);
        callers.join_all().await;
        let asked = scene.upstream.recorded();
        let connections: std::collections::BTreeSet<u64> =
            asked.iter().map(|one| one.connection).collect();
        assert!(connections.len() > 10, "{} connections", connections.len());
        scene.assert_ledgers_agree_with(&sent_again()).await;
    }
}

#[tokio::test]
async fn what_is_spoken_over_tls_is_agreed_on_by_alpn() {
    let mut stage = Stage::new().await;
    let ours = Authority::new();
    let ca = ours.write(&stage.scene.outside().join("ca.pem"));
    let other = Authority::new().write(&stage.scene.outside().join("other.pem"));
    let (server, own) = (stage.scene.upstream.address(), ours.sign("127.0.0.1"));
    let both = tls_with_alpn(server, &own, None, &["h2", "http/1.1"]).await;
    let h1_only = tls_with_alpn(server, &own, None, &["http/1.1"]).await;
    let h2_only = tls_with_alpn(server, &own, None, &["h2"]).await;
    let silent = tls_with_alpn(server, &own, None, &[]).await;
    let (one, two) = (Some(Version::HTTP_11), Some(Version::HTTP_2));
    for (server, protocol, version) in [
        (both, "auto", two),
        // Not on the connection that was agreed on for another version.
        (both, "http1", one),
        (both, "http2", two),
        (both, "auto", two),
        (h1_only, "auto", one),
        (h1_only, "http2", None),
        (h1_only, "http1", one),
        (h2_only, "auto", two),
        (h2_only, "http2", two),
        (h2_only, "http1", None),
        (silent, "auto", one),
        (silent, "http2", None),
        (silent, "http1", one),
    ] {
        let more = format!("tls: {{ ca_file: {ca} }}, protocol: {protocol}");
        stage.forward_to(server.to_string(), &more).await;
        stage.scene.upstream.take();
        let what = format!("{server} {protocol}");
        let status = stage.status().await;
        assert_eq!(status, if version.is_some() { 200 } else { 500 }, "{what}");
        let asked = stage.scene.upstream.recorded();
        assert_eq!(asked.first().map(|one| one.version), version, "{what}");
        if version == two {
            assert_eq!(asked[0].values(":scheme"), ["https"]);
        }
    }
    // Whatever is spoken, the certificate is verified.
    for protocol in ["auto", "http2"] {
        let more = format!("tls: {{ ca_file: {other} }}, protocol: {protocol}");
        stage.forward_to(both.to_string(), &more).await;
        stage.scene.upstream.take();
        assert_eq!(stage.status().await, 500);
        assert_eq!(stage.scene.upstream.count(), 0);
    }
    let lines = stage.scene.gateways[0].logged(15).await;
    let causes = lines.iter().filter_map(|line| line["cause"].as_str());
    let causes = causes.collect::<Vec<_>>().join("\n");
    for output in ["NoApplicationProtocol", "did not agree to it by ALPN"] {
        assert!(causes.contains(output), "{causes}");
    }
    stage.scene.expect_used(&stage.key, 10).await;
}

#[tokio::test]
async fn a_kept_connection_over_tls_that_ends_without_close_notify_is_replaced() {
    let mut stage = Stage::new().await;
    let ours = Authority::new();
    let ca = ours.write(&stage.scene.outside().join("ca.pem"));
    let upstream = stage.scene.upstream.address();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (server, own) = (listener.local_addr().unwrap(), ours.sign("127.0.0.1"));
    let asked_again = Arc::new(Notify::new());
    let ends = asked_again.clone();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let mut server = TcpStream::connect(upstream).await.unwrap();
            tokio::select! {
                _ = tokio::io::copy_bidirectional(&mut socket, &mut server) => {}
                // The reset keeps the TLS in front of this from ending the connection properly.
                () = ends.notified() => socket.set_zero_linger().unwrap(),
            }
        }
    });
    let server = tls_with_alpn(server, &own, None, &["h2"]).await;
    let more = format!("tls: {{ ca_file: {ca} }}, protocol: http2");
    stage.forward_to(server.to_string(), &more).await;
    stage.scene.upstream.behave(move |asked| {
        if (asked.connection, asked.place) == (1, 2) {
            asked_again.notify_one();
            return Behaviour::Stall;
        }
        Behaviour::Echo
    });
    for _ in 0..2 {
        assert_eq!(stage.status().await, 200);
    }
    assert_eq!(stage.scene.upstream.connections(), 2);
    stage.scene.expect_used(&stage.key, 2).await;
}

/// Forwards to a server over TLS that offers both versions of HTTP, under `auto` and with these entries of the upstream.
async fn negotiate(stage: &mut Stage, server: SocketAddr, more: &str) {
    let ours = Authority::new();
    let ca = ours.write(&stage.scene.outside().join("ca.pem"));
    let own = ours.sign("127.0.0.1");
    let server = tls_with_alpn(server, &own, None, &["h2", "http/1.1"]).await;
    let more = format!("tls: {{ ca_file: {ca} }}, protocol: auto{more}");
    stage.forward_to(server.to_string(), &more).await;
}

#[tokio::test]
async fn a_server_that_wants_http1_after_all_gets_it_under_auto() {
    let mut stage = Stage::new().await;
    let server = stage.scene.upstream.address();
    negotiate(&mut stage, server, "").await;
    // Over a connection that is kept.
    assert_eq!(stage.status().await, 200);
    stage.scene.upstream.behave(|asked| match asked.version {
        Version::HTTP_2 => Behaviour::ResetStream(HTTP_1_1_REQUIRED),
        _ => Behaviour::Echo,
    });
    for _ in 0..3 {
        assert_eq!(stage.status().await, 200);
    }
    let asked = stage.scene.upstream.recorded();
    let versions: Vec<Version> = asked.iter().map(|one| one.version).collect();
    let (one, two) = (Version::HTTP_11, Version::HTTP_2);
    assert_eq!(versions, [two, two, one, one, one]);
    stage.scene.expect_used(&stage.key, 4).await;
}

#[tokio::test]
async fn a_health_check_gets_http1_from_a_server_that_wants_it_under_auto() {
    let mut stage = Stage::new().await;
    stage.scene.upstream.behave(|asked| match asked.version {
        Version::HTTP_2 => Behaviour::ResetStream(HTTP_1_1_REQUIRED),
        _ => Behaviour::Echo,
    });
    // The harness's servers answer /healthz by themselves.
    let health = ", health: { path: /alive, interval: 1h }";
    let server = stage.scene.upstream.address();
    negotiate(&mut stage, server, health).await;
    eventually("the first check passes", async || {
        let checks = "touchline_upstream_checks_total";
        let passed = format!("{checks}{{outcome=\"passed\",upstream=\"prediction-data\"}}");
        (stage.scene.metric(&passed).await == 1.0).then_some(())
    })
    .await;
    let asked = stage.scene.upstream.recorded();
    let versions: Vec<Version> = asked.iter().map(|one| one.version).collect();
    assert_eq!(versions, [Version::HTTP_2, Version::HTTP_11]);
}

#[tokio::test]
async fn a_server_that_agrees_to_http2_and_does_not_speak_it_gets_http1_under_auto() {
    let mut stage = Stage::new().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(socket.read_u8().await?);
                }
                let status = match head.starts_with(b"PRI ") {
                    true => "400 Bad Request",
                    false => "200 OK",
                };
                let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\n{{}}");
                socket.write_all(answer.as_bytes()).await?;
                socket.read_u8().await
            });
        }
    });
    negotiate(&mut stage, server, "").await;
    for _ in 0..3 {
        assert_eq!(stage.status().await, 200);
    }
    stage.scene.expect_used(&stage.key, 3).await;
}

#[tokio::test]
async fn a_server_that_demands_http1_where_only_http2_is_configured_is_ejected() {
    for behaviour in [Behaviour::ResetStream, Behaviour::GoAway] {
        let ejection = ", ejection: { pause: 1h, pause_max: 1h }";
        let builder = over_http2().spec(|spec| spec.upstream_extra.push_str(ejection));
        let scene = builder.more_servers(1).start().await;
        let key = scene.issue("starter").await;
        scene.upstream.speak(Speaks::Http2);
        scene.more_upstreams[0].speak(Speaks::Http2);
        scene.more_upstreams[0].behave(move |_| behaviour(HTTP_1_1_REQUIRED));
        let client = scene.client(Protocol::Http1);
        for _ in 0..20 {
            assert_eq!(client.get(&key, MARKETS).await.status, 200);
        }
        let ejections = "touchline_upstream_ejections_total{upstream=\"prediction-data\"}";
        assert_eq!(scene.metric(ejections).await, 1.0);
        scene.expect_used(&key, 20).await;
    }
}

#[tokio::test]
async fn a_post_that_a_goaway_for_http1_excludes_is_sent_to_another_server() {
    let scene = over_http2().more_servers(1).start().await;
    let key = scene.issue("starter").await;
    scene.upstream.speak(Speaks::Http2);
    scene.more_upstreams[0].speak(Speaks::Http2);
    scene.more_upstreams[0].behave(|_| Behaviour::GoAway(HTTP_1_1_REQUIRED));
    let client = scene.client(Protocol::Http1);
    for _ in 0..8 {
        let post = Call::new("POST", MARKETS).key(&key).body("{}");
        assert_eq!(client.call(post).await.status, 200);
    }
    scene.expect_used(&key, 8).await;
}

#[tokio::test]
async fn an_invalid_frame_after_the_settings_of_a_new_connection_is_no_sign_that_a_server_wants_http1()
 {
    let mut stage = Stage::new().await;
    let server = stage.scene.upstream.address();
    negotiate(&mut stage, server, "").await;
    let broken = Arc::new(AtomicBool::new(false));
    stage
        .scene
        .upstream
        .behave(move |_| match broken.swap(true, Ordering::SeqCst) {
            false => Behaviour::InvalidFrame,
            true => Behaviour::Echo,
        });
    // It may have been processed, so it is not sent again to this server.
    assert_eq!(stage.status().await, 500);
    assert_eq!(stage.status().await, 200);
    let asked = stage.scene.upstream.recorded();
    let versions: Vec<Version> = asked.iter().map(|one| one.version).collect();
    assert_eq!(versions, [Version::HTTP_2; 2]);
    stage.scene.expect_used(&stage.key, 1).await;
}

#[tokio::test]
async fn one_invalid_frame_is_no_sign_that_a_server_wants_http1() {
    let mut stage = Stage::new().await;
    let ours = Authority::new();
    let ca = ours.write(&stage.scene.outside().join("ca.pem"));
    let (server, own) = (stage.scene.upstream.address(), ours.sign("127.0.0.1"));
    let server = tls_with_alpn(server, &own, None, &["h2"]).await;
    let more = format!("tls: {{ ca_file: {ca} }}, protocol: auto");
    stage.forward_to(server.to_string(), &more).await;
    assert_eq!(stage.status().await, 200);
    let broken = Arc::new(AtomicBool::new(false));
    stage
        .scene
        .upstream
        .behave(move |_| match broken.swap(true, Ordering::SeqCst) {
            false => Behaviour::InvalidFrame,
            true => Behaviour::Echo,
        });
    for _ in 0..3 {
        assert_eq!(stage.status().await, 200);
    }
    let asked = stage.scene.upstream.recorded();
    assert_eq!(asked.len(), 5);
    assert!(asked.iter().all(|one| one.version == Version::HTTP_2));
    stage.scene.expect_used(&stage.key, 4).await;
}

#[tokio::test]
async fn a_server_that_does_not_speak_http2_is_reported_and_costs_nothing() {
    let mut scene = Scene::builder(TOUCHLINE)
        .spec(|spec| spec.upstream_extra = "protocol: http2".into())
        .start()
        .await;
    let key = scene.issue("starter").await;
    scene.upstream.speak(Speaks::Http1);
    for protocol in Protocol::ALL {
        assert_eq!(scene.client(protocol).get(&key, MARKETS).await.status, 500);
    }
    assert_eq!(scene.upstream.count(), 0);
    for line in scene.gateways[0].logged(Protocol::ALL.len()).await {
        let cause = line["cause"].as_str().unwrap_or_default();
        assert!(cause.contains("does it support HTTP/2?"), "{cause}");
    }
    scene.expect_used(&key, 0).await;
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn health_checks_speak_what_requests_speak_on_connections_that_end() {
    let mut scene = over_http2().more_servers(1).start().await;
    let key = scene.issue("starter").await;
    scene.upstream.speak(Speaks::Http2);
    scene.more_upstreams[0].speak(Speaks::Http1);
    eventually("the one that speaks HTTP/1.1 only is out", async || {
        (is_up(&scene, &scene.more_upstreams[0]).await == Some(false)).then_some(())
    })
    .await;
    assert_eq!(is_up(&scene, &scene.upstream).await, Some(true));
    for _ in 0..4 {
        assert_eq!(
            scene
                .client(Protocol::Http1)
                .get(&key, MARKETS)
                .await
                .status,
            200
        );
    }
    scene.more_upstreams[0].speak(Speaks::Both);
    eventually("it is asked again", async || {
        (is_up(&scene, &scene.more_upstreams[0]).await == Some(true)).then_some(())
    })
    .await;
    let before = scene.upstream.connections();
    eventually("each check has its own connection", async || {
        (scene.upstream.connections() > before + 5).then_some(())
    })
    .await;
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn requests_over_http2_are_finished_when_the_gateway_stops() {
    let mut scene = over_http2().start().await;
    let key = scene.issue("starter").await;
    let pause = Duration::from_secs(1);
    scene
        .upstream
        .always(Behaviour::Delay(pause, Box::new(Behaviour::Echo)));
    let mut calls = JoinSet::new();
    for protocol in Protocol::ALL {
        let (client, key) = (scene.client(protocol), key.clone());
        calls.spawn(async move { client.get(&key, MARKETS).await });
    }
    eventually("they are under way", async || {
        (scene.upstream.count() == Protocol::ALL.len()).then_some(())
    })
    .await;
    scene.gateways[0].process().ask_to_end();
    for answer in calls.join_all().await {
        assert!(answer.status == 200 && answer.complete, "{answer:?}");
    }
}
