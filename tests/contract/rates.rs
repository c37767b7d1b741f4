//! Step 7: a tier's `burst` and `concurrent`. What they refuse costs nothing and reaches no upstream.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use harness::client::Entry;
use harness::upstream::{Release, Script};
use harness::{Answer, Behaviour, Call, IssuedKey, Protocol, Scene, eventually};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::{MARKETS, RANKINGS, TOUCHLINE, assert_problem, assert_quota_status};

/// A 429 of `policy`, which shows where the key stands and used nothing.
#[track_caller]
fn assert_rate(answer: &Answer, policy: &str, limit: u64, remaining: u64) {
    assert_problem(answer, 429, "RATE_LIMIT_EXCEEDED");
    assert_quota_status(answer, limit, remaining);
    let body = answer.json();
    assert_eq!(body["violated-policies"], json!([policy]), "{body}");
    assert_eq!(body["limit"], limit, "{body}");
    assert_eq!(body["used"], limit - remaining, "{body}");
    assert!(
        body["reset"]
            .as_str()
            .is_some_and(|reset| reset.ends_with('Z'))
    );
}

/// A key's calls that were refused because of `policy`.
fn refused(entries: &[Entry], policy: &str) -> usize {
    let word = format!("[\"{policy}\"]");
    let refused = |entry: &&Entry| entry.answer_text.contains(&word);
    entries.iter().filter(refused).count()
}

#[tokio::test]
async fn a_burst_is_let_in_at_once_and_the_rest_sent_the_time_of_the_next_attempt() {
    let mut scene = Scene::builder(TOUCHLINE)
        .tier("starter", "burst: { rate: 1, burst: 3 }")
        .start()
        .await;
    for protocol in Protocol::ALL {
        let key = scene.issue("starter").await;
        let client = scene.client(protocol);
        let mut served = 0;
        let refused = eventually("the burst is used up", async || {
            let answer = client.get(&key, MARKETS).await;
            served += u64::from(answer.status == 200);
            (answer.status != 200).then_some(answer)
        })
        .await;
        assert!(served >= 3, "{served} were let in");
        assert_rate(&refused, "burst", 1_000, 1_000 - served);
        assert_eq!(refused.number("retry-after"), Some(1));
        let detail = refused.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains("1 a second and 3 at once"), "{detail}");
        // Other keys and other tiers are not held up, nor is reading one's usage.
        let other = scene.issue("starter").await;
        assert_eq!(client.get(&other, MARKETS).await.status, 200);
        let usage = client.get(&key, "/api/v1/usage").await;
        assert_eq!((usage.status, &usage.json()["used"]), (200, &json!(served)));
        eventually("a token came", async || {
            (client.get(&key, MARKETS).await.status == 200).then_some(())
        })
        .await;
    }
    let hits = scene
        .metric("touchline_limit_hits_total{limit=\"burst\"}")
        .await;
    let output = refused(&scene.client_ledger().entries(), "burst");
    assert_eq!(hits, output as f64);
    let line = scene.gateways[0].logged_where(|line| line["status"] == 429);
    let line = line.await;
    assert_eq!(
        (&line["policy"], &line["units"]),
        (&json!("burst"), &json!(0))
    );
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn a_burst_gives_no_more_in_any_span_than_its_tokens_and_its_rate() {
    let (rate, burst) = (20.0, 5.0);
    let mut scene = Scene::builder(TOUCHLINE)
        .tier("starter", "burst: { rate: 20, burst: 5 }")
        .start()
        .await;
    let key = scene.issue("starter").await;
    let clients = [Protocol::Http1, Protocol::Http1Tls, Protocol::Http2Tls]
        .map(|protocol| scene.client(protocol));
    let begun = Instant::now();
    let mut served = 0.0;
    while begun.elapsed() < Duration::from_secs(2) {
        for client in &clients {
            served += f64::from(u8::from(client.get(&key, MARKETS).await.status == 200));
        }
    }
    let most = burst + rate * begun.elapsed().as_secs_f64();
    assert!(served <= most, "{served} of {most}");
    assert!(served >= burst, "{served}");
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn refused_steps_draw_from_the_burst_and_get_its_429_when_it_is_empty() {
    let mut scene = Scene::builder(TOUCHLINE)
        .tier("starter", "burst: { rate: 1, burst: 4 }")
        .start()
        .await;
    for (call, status) in [
        (Call::get("/none"), 404),
        (Call::new("DELETE", MARKETS), 405),
        (Call::get(RANKINGS), 403),
        (Call::new("DELETE", "/api/v1/usage"), 405),
    ] {
        let key = scene.issue("starter").await;
        let client = scene.client(Protocol::Http1);
        let mut seen = BTreeMap::new();
        let refused = eventually("the burst is used up", async || {
            let answer = client.call(call.clone().key(&key)).await;
            *seen.entry(answer.status).or_insert(0) += 1;
            (answer.status == 429).then_some(answer)
        })
        .await;
        assert_rate(&refused, "burst", 1_000, 1_000);
        assert!(seen.len() == 2 && seen[&status] >= 4, "{seen:?}");
    }
    // Without a key, or with one that is none, nothing is drawn and nothing is reported.
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    for _ in 0..10 {
        assert_eq!(client.call(Call::get(MARKETS)).await.status, 401);
        let wrong = format!("{}x", key.key);
        assert_eq!(client.get(&wrong, MARKETS).await.status, 401);
    }
    assert_eq!(client.get(&key, MARKETS).await.status, 200);
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn an_exhausted_quota_is_reported_after_the_burst() {
    let mut scene = Scene::builder(TOUCHLINE)
        .daily("starter", 1)
        .tier("starter", "burst: { rate: 1, burst: 2 }, concurrent: 1")
        .start()
        .await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    assert_eq!(client.get(&key, MARKETS).await.status, 200);
    let policies = eventually("the burst is used up", async || {
        let answer = client.get(&key, MARKETS).await;
        let policies = answer.json()["violated-policies"].clone();
        (policies == json!(["burst"])).then_some(answer)
    })
    .await;
    assert_rate(&policies, "burst", 1, 0);
    // A quota that is used up takes no place among the requests in flight.
    eventually("a token came", async || {
        let answer = client.get(&key, MARKETS).await;
        let policies = answer.json()["violated-policies"].clone();
        assert_ne!(policies, json!(["concurrent"]));
        (policies == json!(["daily"])).then_some(())
    })
    .await;
    scene.assert_ledgers_agree().await;
}

/// Has the upstream do this with every call that carries `X-Stall`, and echo the others.
fn stall(scene: &Scene, by: impl Fn() -> Behaviour + Send + Sync + 'static) {
    scene
        .upstream
        .behave(move |request| match request.values("x-stall").is_empty() {
            true => Behaviour::Echo,
            false => by(),
        });
}

/// The upstream leaves requests with `X-Stall` waiting until the release.
fn stall_until_release(scene: &Scene) -> Release {
    let release = Release::default();
    let held = Behaviour::Until(release.clone(), Box::new(Behaviour::Echo));
    stall(scene, move || held.clone());
    release
}

/// A scene in which a `starter` key may have one request under way, and the upstream leaves those with `X-Stall` waiting.
async fn one_at_a_time() -> (Scene, IssuedKey) {
    let scene = Scene::builder(TOUCHLINE)
        .tier("starter", "concurrent: 1")
        .start()
        .await;
    stall(&scene, || Behaviour::Stall);
    let key = scene.issue("starter").await;
    (scene, key)
}

fn stalled(key: &IssuedKey) -> Call {
    Call::get(MARKETS).key(key).header("X-Stall", "1")
}

/// Waits until the upstream has seen so many requests.
async fn upstream_has(scene: &Scene, requests: usize) {
    eventually("the upstream has it", async || {
        (scene.upstream.count() >= requests).then_some(())
    })
    .await;
}

/// Waits until the key may have a request again: its place was given back.
async fn place_is_free(scene: &Scene, key: &IssuedKey, what: &str) {
    let client = scene.client(Protocol::Http1);
    eventually(what, async || {
        let answer = client.get(key, MARKETS).await;
        assert!([200, 429].contains(&answer.status), "{what}: {answer:?}");
        (answer.status == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn more_requests_at_the_same_time_than_a_tier_allows_are_refused() {
    let mut scene = Scene::builder(TOUCHLINE)
        .tier("starter", "concurrent: 2")
        .start()
        .await;
    for protocol in Protocol::ALL {
        let release = stall_until_release(&scene);
        let before = scene.upstream.count();
        let key = scene.issue("starter").await;
        // Each on a connection of its own.
        let clients = [0, 1].map(|_| scene.client(protocol));
        let [one, other] = clients.each_ref().map(|client| client.call(stalled(&key)));
        let third = async {
            upstream_has(&scene, before + 2).await;
            let client = scene.client(protocol);
            let refused = client.get(&key, MARKETS).await;
            let stranger = scene.issue("starter").await;
            let unlimited = scene.issue("pro").await;
            assert_eq!(client.get(&stranger, MARKETS).await.status, 200);
            assert_eq!(client.get(&unlimited, MARKETS).await.status, 200);
            // What does not reach an upstream is not counted.
            assert_eq!(client.get(&key, RANKINGS).await.status, 403);
            release.give();
            refused
        };
        let (one, other, refused) = tokio::join!(one, other, third);
        assert_eq!((one.status, other.status), (200, 200));
        assert_rate(&refused, "concurrent", 1_000, 998);
        assert_eq!(refused.number("retry-after"), Some(1));
        let after = scene.client(protocol).get(&key, MARKETS).await;
        assert_eq!(after.status, 200);
    }
    let hits = scene
        .metric("touchline_limit_hits_total{limit=\"concurrent\"}")
        .await;
    assert_eq!(hits, 3.0);
    let line = scene.gateways[0].logged_where(|line| line["status"] == 429);
    assert_eq!(line.await["policy"], "concurrent");
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn a_client_that_reads_each_answer_whole_before_it_asks_again_is_never_refused() {
    let (mut scene, key) = one_at_a_time().await;
    let chunked = Script::json(200, "{\"a\":1}").chunked();
    scene.upstream.behave(move |request| {
        match request.values("x-kind").first().map(String::as_str) {
            Some("chunked") => Behaviour::Answer(chunked.clone()),
            Some("empty") => Behaviour::Raw(b"HTTP/1.1 204 No Content\r\n\r\n".to_vec()),
            Some("nothing") => Behaviour::Answer(Script::json(200, "")),
            Some("failing") => Behaviour::Status(503),
            Some("missing") => Behaviour::Status(404),
            _ => Behaviour::Echo,
        }
    });
    // On two connections in turn, so that no order of one connection helps.
    for protocol in Protocol::ALL {
        let clients = [scene.client(protocol), scene.client(protocol)];
        for round in 0..20 {
            for (kind, status) in [
                ("plain", 200),
                ("chunked", 200),
                ("empty", 204),
                ("nothing", 200),
                ("failing", 500),
                ("missing", 404),
            ] {
                let call = Call::get(MARKETS).key(&key).header("X-Kind", kind);
                let answer = clients[round % 2].call(call).await;
                assert_eq!(
                    answer.status, status,
                    "{kind} over {protocol:?}: {answer:?}"
                );
            }
            let head = Call::new("HEAD", MARKETS).key(&key);
            assert_eq!(clients[(round + 1) % 2].call(head).await.status, 200);
        }
    }
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn a_client_that_hangs_up_or_resets_its_stream_gives_its_place_back() {
    let (mut scene, key) = one_at_a_time().await;
    for protocol in Protocol::ALL {
        let before = scene.upstream.count();
        let client = scene.client(protocol);
        let refused = async {
            upstream_has(&scene, before + 1).await;
            let refused = scene.client(Protocol::Http1).get(&key, MARKETS).await;
            assert_eq!(refused.status, 429, "{refused:?}");
        };
        client.call_and_hang_up(stalled(&key), refused).await;
        place_is_free(&scene, &key, "a hung up client's place").await;
    }
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn a_failing_upstream_gives_the_place_back() {
    let (mut scene, key) = one_at_a_time().await;
    for (what, behaviour, status) in [
        ("reset", Behaviour::ResetBeforeHeader, 500),
        ("answers 503", Behaviour::Status(503), 500),
        ("sends nothing", Behaviour::Raw(Vec::new()), 500),
        ("is no HTTP", Behaviour::Raw(b"what?\r\n\r\n".to_vec()), 500),
    ] {
        scene.upstream.always(behaviour);
        for protocol in Protocol::ALL {
            let answer = scene.client(protocol).get(&key, MARKETS).await;
            assert_eq!(
                answer.status, status,
                "{what} over {protocol:?}: {answer:?}"
            );
        }
    }
    for behaviour in [
        Behaviour::ResetMidBody { after: 10 },
        Behaviour::CloseMidBody { after: 10 },
    ] {
        scene.upstream.always(behaviour);
        for protocol in Protocol::ALL {
            let answer = scene.client(protocol).get(&key, MARKETS).await;
            assert!(!answer.complete, "{protocol:?}: {answer:?}");
            scene.upstream.always(Behaviour::Echo);
            place_is_free(&scene, &key, "a cut answer's place").await;
            scene.upstream.always(Behaviour::CloseMidBody { after: 10 });
        }
    }
    scene.upstream.stop().await;
    for _ in 0..3 {
        let answer = scene.client(Protocol::Http1).get(&key, MARKETS).await;
        assert_eq!(answer.status, 500, "a dead upstream: {answer:?}");
    }
    scene.upstream.restart().await;
    scene.upstream.always(Behaviour::Echo);
    place_is_free(&scene, &key, "after a dead upstream").await;
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn a_request_whose_body_is_refused_gives_its_place_back() {
    let scene = Scene::builder(TOUCHLINE)
        .tier("starter", "concurrent: 1")
        .spec(|spec| {
            spec.endpoints[0].methods.push("POST".into());
            spec.extra_yaml = "limits: { body_bytes: 1KiB }".into();
        })
        .start()
        .await;
    let key = scene.issue("starter").await;
    for body in ["zz\r\n", "801\r\n"] {
        let mut socket = TcpStream::connect(scene.gateways[0].http).await.unwrap();
        let head = format!(
            "POST {MARKETS} HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {}\r\nTransfer-Encoding: chunked\r\n\r\n",
            key.key
        );
        let rest = format!("{body}{}\r\n", "x".repeat(0x801));
        socket.write_all(head.as_bytes()).await.unwrap();
        let _ = socket.write_all(rest.as_bytes()).await;
        let _ = socket.read_to_end(&mut Vec::new()).await;
        place_is_free(&scene, &key, "a refused body's place").await;
    }
}

/// Answers every request as soon as it has the first part of its body, and leaves the connection open.
async fn answers_early() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut bytes = Vec::new();
                while !bytes.ends_with(b"first\r\n") {
                    socket.read_buf(&mut bytes).await.unwrap();
                }
                let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nearly";
                socket.write_all(answer).await.unwrap();
                tokio::io::copy(&mut socket, &mut tokio::io::sink()).await
            });
        }
    });
    address
}

#[tokio::test]
async fn the_place_is_free_as_soon_as_the_answer_can_be_read_whole() {
    let upstream = answers_early().await;
    let scene = Scene::builder(TOUCHLINE)
        .tier("starter", "concurrent: 1")
        .spec(move |spec| {
            spec.upstream = upstream;
            spec.endpoints[0].methods.push("POST".into());
        })
        .start()
        .await;
    let key = scene.issue("starter").await;
    // None of them ends its body, so that all of them are still being read.
    let mut open = Vec::new();
    for _ in 0..3 {
        let mut socket = TcpStream::connect(scene.gateways[0].http).await.unwrap();
        let request = format!(
            "POST {MARKETS} HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {}\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n",
            key.key
        );
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"early") && !answer.ends_with(b"}") {
            assert!(socket.read_buf(&mut answer).await.unwrap() > 0);
        }
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        open.push(socket);
    }
}

#[tokio::test]
async fn rates_of_a_shadow_tier_refuse_nothing_and_show_what_they_would_have_refused() {
    let scene = Scene::builder(TOUCHLINE)
        .tier(
            "starter",
            "enforce: false, burst: { rate: 1, burst: 2 }, concurrent: 1",
        )
        .start()
        .await;
    let release = stall_until_release(&scene);
    let (burst, concurrent) = (scene.issue("starter").await, scene.issue("starter").await);
    let client = scene.client(Protocol::Http1);
    eventually("a burst would have been refused", async || {
        assert_eq!(client.get(&burst, MARKETS).await.status, 200);
        let series = "touchline_shadow_refusals_total{refusal=\"burst\",tier=\"starter\"}";
        (scene.metric(series).await > 0.0).then_some(())
    })
    .await;
    let before = scene.upstream.count();
    let other = scene.client(Protocol::Http1);
    let (first, second) = tokio::join!(client.call(stalled(&concurrent)), async {
        upstream_has(&scene, before + 1).await;
        let second = other.get(&concurrent, MARKETS).await;
        release.give();
        second
    });
    assert_eq!((first.status, second.status), (200, 200));
    let id = second.header("x-request-id").unwrap();
    let line = scene.gateways[0].logged_where(|line| line["request_id"] == id);
    let line = line.await;
    assert_eq!(line["would_refuse"], "concurrent", "{line}");
    assert_eq!((&line["status"], &line["units"]), (&json!(200), &json!(1)));
}
