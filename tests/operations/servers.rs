//! An upstream with several servers: chosen, checked, left out, asked again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use harness::upstream::Release;
use harness::{
    Allowances, Behaviour, Call, Client, IssuedKey, Protocol, RecordingUpstream, Scene,
    SceneBuilder, Store, eventually,
};
use tokio::task::JoinSet;

use super::{MARKETS, STORES, TOUCHLINE};

/// A request may be sent again: where a connection kept from before died under it, and where a server broke it off or was away.
fn retries() -> Allowances {
    Allowances {
        retries: true,
        other_servers: true,
        ..Allowances::default()
    }
}

/// Three servers, with more entries of the upstream, such as `choice: by_key`.
fn three(more: &'static str) -> SceneBuilder {
    Scene::builder(TOUCHLINE)
        .more_servers(2)
        .spec(move |spec| spec.upstream_extra = more.into())
}

/// What each server has got so far.
fn counts(scene: &Scene) -> Vec<usize> {
    let more = scene.more_upstreams.iter().map(RecordingUpstream::count);
    std::iter::once(scene.upstream.count())
        .chain(more)
        .collect()
}

/// Whether the gateway shows the server as one that is asked; `None`: not at all.
pub(super) async fn is_up(scene: &Scene, server: &RecordingUpstream) -> Option<bool> {
    let (_, metrics) = scene.admin(0, "/metrics").await;
    let address = format!("server=\"{}\"", server.address());
    let line = metrics
        .lines()
        .find(|line| line.starts_with("touchline_upstream_server_up") && line.contains(&address))?;
    Some(line.ends_with(" 1"))
}

async fn metric(scene: &Scene, series: &str) -> u64 {
    eventually(&format!("{series} is shown"), async || {
        let (_, metrics) = scene.admin(0, "/metrics").await;
        let line = metrics.lines().find_map(|line| line.strip_prefix(series));
        line.map(|value| value.trim().parse().unwrap())
    })
    .await
}

#[tokio::test]
async fn servers_are_taken_in_turn_and_one_that_is_down_costs_no_client_anything() {
    for store in STORES {
        let mut scene = three("").store(store).start().await;
        let key = scene.issue("starter").await;
        let client = scene.client(Protocol::Http1);
        for _ in 0..6 {
            assert_eq!(client.get(&key, MARKETS).await.status, 200);
        }
        assert_eq!(counts(&scene), [2, 2, 2]);
        scene.more_upstreams[0].stop().await;
        for _ in 0..9 {
            let answer = client.get(&key, MARKETS).await;
            assert_eq!(answer.status, 200, "{answer:?}");
        }
        let counts = counts(&scene);
        assert_eq!(counts[1], 2);
        assert_eq!(counts[0] + counts[2], 4 + 9);
        assert_eq!(scene.used(&key).await, 15);
        scene.more_upstreams[0].restart().await;
        for _ in 0..3 {
            assert_eq!(client.get(&key, MARKETS).await.status, 200);
        }
        assert!(scene.more_upstreams[0].count() > 2, "taken again");
        scene.expect_used(&key, 18).await;
        scene.assert_ledgers_agree_with(&retries()).await;
    }
}

#[tokio::test]
async fn a_server_gets_requests_by_its_weight() {
    let mut scene = Scene::builder(TOUCHLINE)
        .more_servers(2)
        .spec(|spec| spec.weights = vec![3, 1, 1])
        .start()
        .await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    for _ in 0..20 {
        assert_eq!(client.get(&key, MARKETS).await.status, 200);
    }
    assert_eq!(counts(&scene), [12, 4, 4]);
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn requests_of_a_key_go_to_one_server_and_elsewhere_only_while_that_is_out() {
    let mut scene = three("choice: by_key, ejection: { failures: 1, pause: 1h, pause_max: 1h }")
        .start()
        .await;
    let client = scene.client(Protocol::Http1);
    let mut used = BTreeSet::new();
    // So many keys are never all of one server.
    for _ in 0..20 {
        let key = scene.issue("starter").await;
        let before = counts(&scene);
        for _ in 0..3 {
            assert_eq!(client.get(&key, MARKETS).await.status, 200);
        }
        let after = counts(&scene);
        let more: Vec<usize> = after
            .iter()
            .zip(&before)
            .map(|(one, other)| one - other)
            .collect();
        used.insert(more.iter().position(|more| *more == 3).unwrap());
    }
    assert!(used.len() > 1, "{used:?}");
    scene.more_upstreams[0].stop().await;
    let before = counts(&scene);
    for _ in 0..20 {
        let key = scene.issue("starter").await;
        assert_eq!(client.get(&key, MARKETS).await.status, 200);
    }
    let after = counts(&scene);
    assert_eq!(after[1], before[1]);
    assert_eq!(
        after.iter().sum::<usize>(),
        before.iter().sum::<usize>() + 20
    );
    scene.assert_ledgers_agree_with(&retries()).await;
}

#[tokio::test]
async fn the_least_loaded_server_is_asked() {
    let mut scene = Scene::builder(TOUCHLINE)
        .more_servers(1)
        .spec(|spec| spec.upstream_extra = "choice: least_loaded".into())
        .start()
        .await;
    let key = scene.issue("starter").await;
    let release = Release::default();
    let held = Behaviour::Until(release.clone(), Box::new(Behaviour::Echo));
    scene.upstream.always(held);
    let busy = scene.client(Protocol::Http1);
    let mut stuck = JoinSet::new();
    // Whichever is first asked, the first that stalls keeps its request.
    let call = Call::get(MARKETS).key(&key);
    let client = scene.client(Protocol::Http1);
    stuck.spawn(async move { client.call(call).await });
    eventually("a request is under way", async || {
        (counts(&scene).iter().sum::<usize>() == 1).then_some(())
    })
    .await;
    if scene.upstream.count() == 0 {
        let call = Call::get(MARKETS).key(&key);
        let client = scene.client(Protocol::Http1);
        stuck.spawn(async move { client.call(call).await });
        eventually("the first server has one", async || {
            (scene.upstream.count() == 1).then_some(())
        })
        .await;
    }
    for _ in 0..5 {
        assert_eq!(busy.get(&key, MARKETS).await.status, 200);
    }
    assert_eq!(scene.upstream.count(), 1);
    release.give();
    for answer in stuck.join_all().await {
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn failing_health_checks_take_a_server_out_and_passing_ones_bring_it_back() {
    let health = "health: { path: /healthz, interval: 100ms, timeout: 30s, unhealthy_after: 2, healthy_after: 2 }";
    let mut scene = three(health).start().await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    eventually("it is shown as one that is asked", async || {
        (is_up(&scene, &scene.upstream).await == Some(true)).then_some(())
    })
    .await;
    scene.more_upstreams[0].stop().await;
    eventually("it is out", async || {
        (is_up(&scene, &scene.more_upstreams[0]).await == Some(false)).then_some(())
    })
    .await;
    let before = counts(&scene);
    for _ in 0..6 {
        assert_eq!(client.get(&key, MARKETS).await.status, 200);
    }
    let after = counts(&scene);
    assert_eq!((after[0] - before[0], after[2] - before[2]), (3, 3));
    let connect =
        "touchline_upstream_retries_total{reason=\"connect\",upstream=\"prediction-data\"}";
    assert_eq!(metric(&scene, connect).await, 0, "nobody has tried it");
    scene.more_upstreams[0].restart().await;
    eventually("it is back", async || {
        (is_up(&scene, &scene.more_upstreams[0]).await == Some(true)).then_some(())
    })
    .await;
    for _ in 0..3 {
        assert_eq!(client.get(&key, MARKETS).await.status, 200);
    }
    assert_eq!(scene.more_upstreams[0].count(), before[1] + 1);
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn a_server_that_answers_health_checks_with_an_error_or_too_late_is_out_until_they_pass() {
    for protocol in ["http1", "http2"] {
        // The harness's servers answer /healthz by themselves.
        let health = format!(
            "protocol: {protocol}, health: {{ path: /alive, interval: 100ms, timeout: 200ms, unhealthy_after: 2, healthy_after: 1 }}"
        );
        let scene = Scene::builder(TOUCHLINE)
            .more_servers(1)
            .spec(move |spec| spec.upstream_extra = health)
            .start()
            .await;
        let key = scene.issue("starter").await;
        let (client, ill) = (scene.client(Protocol::Http1), &scene.more_upstreams[0]);
        let late = Behaviour::Delay(Duration::from_secs(2), Box::new(Behaviour::Status(200)));
        let announced = Behaviour::Informational(103, Box::new(Behaviour::Status(500)));
        for sick in [
            Behaviour::Status(503),
            Behaviour::Status(302),
            announced,
            late,
        ] {
            let behaviour = sick.clone();
            ill.behave(move |recorded| match &*recorded.target_text() {
                "/alive" => behaviour.clone(),
                _ => Behaviour::Echo,
            });
            eventually(
                &format!("{protocol}: it is out after {sick:?}"),
                async || (is_up(&scene, ill).await == Some(false)).then_some(()),
            )
            .await;
            for _ in 0..4 {
                assert_eq!(client.get(&key, MARKETS).await.status, 200);
            }
            ill.behave(|_| Behaviour::Informational(103, Box::new(Behaviour::Echo)));
            eventually(
                &format!("{protocol}: it is back after {sick:?}"),
                async || (is_up(&scene, ill).await == Some(true)).then_some(()),
            )
            .await;
        }
    }
}

#[tokio::test]
async fn a_gateway_stays_ready_while_all_servers_of_its_upstream_are_out() {
    let health = "health: { path: /healthz, interval: 100ms, unhealthy_after: 1 }";
    let mut scene = Scene::builder(TOUCHLINE)
        .spec(move |spec| spec.upstream_extra = health.into())
        .start()
        .await;
    scene.upstream.stop().await;
    eventually("it is out", async || {
        (is_up(&scene, &scene.upstream).await == Some(false)).then_some(())
    })
    .await;
    let (status, body) = scene.admin(0, "/readyz").await;
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &body["status"]), (200, &"ready".into()), "{body}");
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_is_logged_with_its_address_and_the_reason() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    scene.upstream.stop().await;
    let answer = scene.client(Protocol::Http1).get(&key, MARKETS).await;
    assert_eq!(answer.status, 500);
    let line = scene.gateways[0].logged(1).await.remove(0);
    let cause = line["cause"].as_str().unwrap();
    let reason = "upstream: no connection: Connection refused";
    assert!(cause.starts_with(reason), "{cause}");
    let address = scene.upstream.address().to_string();
    assert!(cause.contains(&address), "{cause}");
}

#[tokio::test]
async fn a_changed_health_check_does_not_wait_for_the_former_interval() {
    let hourly = "health: { path: /healthz, interval: 1h, timeout: 30s, unhealthy_after: 1, healthy_after: 1 }";
    let mut scene = three(hourly).start().await;
    let passed = "touchline_upstream_checks_total{outcome=\"passed\",upstream=\"prediction-data\"}";
    eventually("each server is checked once", async || {
        (metric(&scene, passed).await >= 3).then_some(())
    })
    .await;
    scene.more_upstreams[0].stop().await;
    scene.spec.upstream_extra = hourly.replace("1h", "100ms");
    scene.gateways[0].configure(&scene.spec);
    eventually("it is out", async || {
        (is_up(&scene, &scene.more_upstreams[0]).await == Some(false)).then_some(())
    })
    .await;
    eventually("the reason is logged", async || {
        let output = scene.gateways[0].output();
        let failing = output
            .lines()
            .find(|line| line.contains("health checks fail"))?;
        failing.contains("Connection refused").then_some(())
    })
    .await;
    // With the long interval again it is checked once more, and then for the next change.
    scene.spec.upstream_extra = hourly.into();
    scene.gateways[0].configure(&scene.spec);
    let applied = "touchline_config_reloads_total{outcome=\"applied\"}";
    eventually("the long interval applies", async || {
        (metric(&scene, applied).await >= 2).then_some(())
    })
    .await;
    scene.more_upstreams[0].restart().await;
    scene.spec.upstream_extra = hourly.replace("timeout: 30s", "timeout: 20s");
    scene.gateways[0].configure(&scene.spec);
    eventually("it is back", async || {
        (is_up(&scene, &scene.more_upstreams[0]).await == Some(true)).then_some(())
    })
    .await;
    eventually("that change is applied", async || {
        (metric(&scene, applied).await >= 3).then_some(())
    })
    .await;
    // The checks that it caused have ended by then.
    tokio::time::sleep(Duration::from_secs(2)).await;
    // What checks send is a part of them.
    let before = metric(&scene, passed).await;
    let header = "header: { name: X-Gateway-Secret, value: hunter2 }";
    scene.spec.upstream_extra = format!("{}, {header}", scene.spec.upstream_extra);
    scene.gateways[0].configure(&scene.spec);
    eventually("each server is checked with the header", async || {
        (metric(&scene, passed).await >= before + 3).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_server_that_fails_requests_is_left_out_and_brought_back_by_a_served_one() {
    let mut scene = three("ejection: { failures: 2, pause: 500ms, pause_max: 500ms }")
        .start()
        .await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    scene.upstream.always(Behaviour::Status(503));
    for _ in 0..9 {
        assert_eq!(
            client.get(&key, MARKETS).await.status,
            200,
            "sent again elsewhere"
        );
    }
    let ejected = "touchline_upstream_ejections_total{upstream=\"prediction-data\"}";
    assert!(metric(&scene, ejected).await >= 1);
    eventually("the reason is logged", async || {
        let output = scene.gateways[0].output();
        let ejection = output.lines().find(|line| line.contains("requests fail"))?;
        ejection.contains("upstream: answered 503").then_some(())
    })
    .await;
    let status = "touchline_upstream_retries_total{reason=\"status\",upstream=\"prediction-data\"}";
    assert!(metric(&scene, status).await >= 2);
    scene.upstream.always(Behaviour::Echo);
    eventually("it is asked again", async || {
        assert_eq!(client.get(&key, MARKETS).await.status, 200);
        (is_up(&scene, &scene.upstream).await == Some(true)).then_some(())
    })
    .await;
    scene.assert_ledgers_agree_with(&retries()).await;
}

#[tokio::test]
async fn a_server_that_breaks_off_an_answer_is_blamed_for_it_once() {
    for (failures, ejections) in [(1, 1), (2, 0)] {
        let extra = format!("ejection: {{ failures: {failures}, pause: 1h, pause_max: 1h }}");
        let mut scene = Scene::builder(TOUCHLINE)
            .spec(move |spec| spec.upstream_extra = extra)
            .start()
            .await;
        let key = scene.issue("starter").await;
        scene.upstream.always(Behaviour::CloseMidBody { after: 10 });
        let answer = scene.client(Protocol::Http1).get(&key, MARKETS).await;
        assert!(answer.status == 200 && !answer.complete, "{answer:?}");
        scene.gateways[0].logged(1).await;
        let ejected = "touchline_upstream_ejections_total{upstream=\"prediction-data\"}";
        assert_eq!(metric(&scene, ejected).await, ejections, "{failures}");
        scene.assert_ledgers_agree().await;
    }
}

#[tokio::test]
async fn a_server_that_breaks_off_each_answer_is_ejected_and_one_that_serves_between_is_not() {
    let ejection = "ejection: { failures: 2, pause: 1h, pause_max: 1h }";
    let mut scene = Scene::builder(TOUCHLINE)
        .spec(|spec| spec.upstream_extra = ejection.into())
        .start()
        .await;
    let key = scene.issue("starter").await;
    let cut = Behaviour::CloseMidBody { after: 10 };
    let ejected = "touchline_upstream_ejections_total{upstream=\"prediction-data\"}";
    for (number, behaviour, ejections) in [
        (1, cut.clone(), 0),
        (2, Behaviour::Echo, 0),
        (3, cut.clone(), 0),
        (4, cut, 1),
    ] {
        scene.upstream.always(behaviour);
        scene.client(Protocol::Http1).get(&key, MARKETS).await;
        scene.gateways[0].logged(number).await;
        assert_eq!(metric(&scene, ejected).await, ejections, "{number}");
    }
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn a_server_is_not_blamed_for_the_time_that_another_one_took() {
    let ejection = "ejection: { failures: 1, pause: 1h, pause_max: 1h }";
    let mut scene = Scene::builder(TOUCHLINE)
        .more_servers(1)
        .timeout("total", "2s")
        .spec(|spec| spec.upstream_extra = ejection.into())
        .start()
        .await;
    let key = scene.issue("starter").await;
    let late = |then| Behaviour::Delay(Duration::from_millis(1_500), Box::new(then));
    scene.upstream.always(late(Behaviour::ResetBeforeHeader));
    scene.more_upstreams[0].always(late(Behaviour::Echo));
    let client = scene.client(Protocol::Http1);
    // The first request may be the other server's.
    for _ in 0..2 {
        if client.get(&key, MARKETS).await.status == 500 {
            break;
        }
    }
    assert_eq!(counts(&scene)[0], 1);
    let ejected = "touchline_upstream_ejections_total{upstream=\"prediction-data\"}";
    assert_eq!(metric(&scene, ejected).await, 1);
    scene.assert_ledgers_agree_with(&retries()).await;
}

#[tokio::test]
async fn a_changed_ejection_applies_to_a_server_that_is_out() {
    let hour = "ejection: { failures: 1, pause: 1h, pause_max: 1h }";
    let mut scene = three(hour).daily("starter", 1_000_000).start().await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    for (number, changed) in [
        (1, hour.replace("1h", "100ms")),
        (2, hour.replace(": 1,", ": 0,")),
    ] {
        scene.upstream.always(Behaviour::Status(503));
        eventually("it is out", async || {
            assert_eq!(client.get(&key, MARKETS).await.status, 200);
            (is_up(&scene, &scene.upstream).await == Some(false)).then_some(())
        })
        .await;
        scene.upstream.always(Behaviour::Echo);
        scene.spec.upstream_extra = changed;
        scene.gateways[0].configure(&scene.spec);
        eventually("it is back", async || {
            assert_eq!(client.get(&key, MARKETS).await.status, 200);
            (is_up(&scene, &scene.upstream).await == Some(true)).then_some(())
        })
        .await;
        scene.spec.upstream_extra = hour.into();
        scene.gateways[0].configure(&scene.spec);
        let applied = "touchline_config_reloads_total{outcome=\"applied\"}";
        eventually("the long pause applies", async || {
            (metric(&scene, applied).await >= 2 * number).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn a_server_that_did_not_act_on_a_request_is_preferred_to_one_that_is_out() {
    const REFUSED_STREAM: u32 = 7;
    let health = "protocol: http2, health: { path: /healthz, interval: 100ms, timeout: 30s }";
    let mut scene = Scene::builder(TOUCHLINE)
        .more_servers(1)
        .spec(move |spec| spec.upstream_extra = health.into())
        .start()
        .await;
    let key = scene.issue("starter").await;
    scene.more_upstreams[0].stop().await;
    eventually("one server is out", async || {
        (is_up(&scene, &scene.more_upstreams[0]).await == Some(false)).then_some(())
    })
    .await;
    let refused = AtomicBool::new(false);
    scene
        .upstream
        .behave(move |_| match refused.fetch_not(Ordering::Relaxed) {
            false => Behaviour::ResetStream(REFUSED_STREAM),
            true => Behaviour::Echo,
        });
    let client = scene.client(Protocol::Http1);
    for _ in 0..4 {
        assert_eq!(client.get(&key, MARKETS).await.status, 200);
    }
    assert_eq!(scene.upstream.count(), 8);
    scene.expect_used(&key, 4).await;
}

#[tokio::test]
async fn a_request_that_a_server_did_not_act_on_goes_to_another_that_is_up() {
    const REFUSED_STREAM: u32 = 7;
    let scene = Scene::builder(TOUCHLINE)
        .more_servers(1)
        .spec(|spec| spec.upstream_extra = "protocol: http2, choice: by_key".into())
        .start()
        .await;
    let refused = Behaviour::ResetStream(REFUSED_STREAM);
    scene.upstream.always(refused);
    let client = scene.client(Protocol::Http1);
    // So many keys are never all of one server.
    for _ in 0..12 {
        let key = scene.issue("starter").await;
        assert_eq!(client.get(&key, MARKETS).await.status, 200);
    }
    assert_eq!(scene.more_upstreams[0].count(), 12);
    assert!(scene.upstream.count() > 0, "one of them was asked first");
}

#[tokio::test]
async fn a_get_that_one_server_breaks_off_is_answered_by_another_and_a_post_is_not() {
    let mut scene = Scene::builder(TOUCHLINE)
        .more_servers(1)
        .spec(|spec| {
            let methods = ["POST", "PUT"].map(String::from);
            spec.endpoints[0].methods.extend(methods);
            spec.upstream_extra = "ejection: { failures: 0 }".into();
        })
        .start()
        .await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    let failures = [502, 503, 504].map(Behaviour::Status);
    let failures = [Behaviour::ResetBeforeHeader].into_iter().chain(failures);
    for (round, failure) in failures.enumerate() {
        scene.upstream.always(failure);
        for _ in 0..4 {
            assert_eq!(client.get(&key, MARKETS).await.status, 200);
        }
        assert_eq!(counts(&scene), [4 * round + 2, 6 * round + 4]);
        let (mut served, mut failed) = (0, 0);
        for method in ["POST", "POST", "PUT", "PUT"] {
            let call = Call::new(method, MARKETS).key(&key).body("{}");
            match client.call(call).await.status {
                200 => served += 1,
                500 => failed += 1,
                other => panic!("{other}"),
            }
        }
        assert_eq!((served, failed), (2, 2));
        let once = [4 * round + 4, 6 * round + 6];
        assert_eq!(counts(&scene), once, "none of them twice");
    }
    // Charged once each, and what failed is given back.
    scene.expect_used(&key, 24).await;
    scene.assert_ledgers_agree_with(&retries()).await;
}

/// Calls until it is stopped; returns how many were served, and how many failed.
async fn call_on(
    client: Client,
    key: IssuedKey,
    stop: Arc<AtomicBool>,
    served: Arc<AtomicU64>,
) -> u64 {
    let mut failed = 0;
    while !stop.load(Ordering::Relaxed) {
        let answer = client.get(&key, MARKETS).await;
        match (answer.status, answer.complete) {
            (200, true) => {
                served.fetch_add(1, Ordering::Relaxed);
            }
            (200, false) | (500, true) => failed += 1,
            other => panic!("{other:?}: {answer:?}"),
        }
    }
    failed
}

#[tokio::test]
async fn servers_that_die_and_return_under_load_fail_no_more_than_was_in_the_middle_of_an_answer() {
    const ROUNDS: u32 = 3;
    let health = "health: { path: /healthz, interval: 200ms }";
    let over_http2 = "health: { path: /healthz, interval: 200ms }, protocol: http2";
    let ways = STORES.map(|store| (store, health));
    for (store, health) in ways.into_iter().chain([(Store::Embedded, over_http2)]) {
        let mut scene = three(health)
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
            for _ in 0..2 {
                let client = scene.client(protocol);
                callers.spawn(call_on(client, key.clone(), stop.clone(), served.clone()));
            }
        }
        let under_way = callers.len() as u64;
        for _ in 0..ROUNDS {
            for number in 0..2 {
                let more = |by: u64| {
                    let (served, before) = (served.clone(), served.load(Ordering::Relaxed));
                    async move {
                        eventually("requests are served", async || {
                            (served.load(Ordering::Relaxed) >= before + by).then_some(())
                        })
                        .await;
                    }
                };
                more(20).await;
                scene.more_upstreams[number].stop().await;
                more(40).await;
                scene.more_upstreams[number].restart().await;
                let before = scene.more_upstreams[number].count();
                eventually("it is asked again", async || {
                    (scene.more_upstreams[number].count() > before).then_some(())
                })
                .await;
            }
        }
        stop.store(true, Ordering::Relaxed);
        let failed: u64 = callers.join_all().await.into_iter().sum();
        let budget = under_way * u64::from(2 * ROUNDS);
        assert!(failed <= budget, "{failed} failed, {budget} could");
        scene.assert_ledgers_agree_with(&retries()).await;
    }
}

#[tokio::test]
async fn a_request_that_no_server_answers_is_charged_nothing() {
    let mut scene = three("").start().await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    scene.upstream.stop().await;
    for number in 0..2 {
        scene.more_upstreams[number].stop().await;
    }
    for _ in 0..8 {
        assert_eq!(client.get(&key, MARKETS).await.status, 500);
    }
    scene.expect_used(&key, 0).await;
    scene.upstream.restart().await;
    eventually("the one that returned is asked", async || {
        (client.get(&key, MARKETS).await.status == 200).then_some(())
    })
    .await;
    scene.assert_ledgers_agree().await;
}
