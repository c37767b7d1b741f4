//! Keys near their limits: each share of a key and day is reported once, by all gateways together, and delivered at least once.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use harness::upstream::Recorded;
use harness::{
    Allowances, Behaviour, Call, Client, Gateway, IssuedKey, Protocol, RecordingUpstream, Scene,
    SceneBuilder, Store, eventually,
};
use serde_json::Value;
use standardwebhooks::Webhook;
use tokio::task::JoinSet;

use super::{MARKETS, TOUCHLINE};

const STORES: [Store; 2] = [Store::Embedded, Store::Redis];
const LIMIT: u64 = 40;
/// The example of the Standard Webhooks specification.
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

fn builder(store: Store) -> SceneBuilder {
    Scene::builder(TOUCHLINE)
        .store(store)
        .daily("starter", LIMIT)
}

/// With a webhook at `receiver`.
fn telling(store: Store, receiver: &RecordingUpstream) -> SceneBuilder {
    telling_with(store, receiver.address(), "timeout: 2s")
}

/// With a webhook at `receiver` that has these settings.
fn telling_with(store: Store, receiver: SocketAddr, settings: &'static str) -> SceneBuilder {
    let url = format!("http://{receiver}/hooks/quota?token=s3cr3t");
    builder(store).spec(move |spec| {
        spec.extra_yaml = format!(
            "events: {{ webhook: {{ url: \"{url}\", secret: \"{SECRET}\", {settings} }} }}"
        );
    })
}

/// So many calls at the same time, spread over the gateways; how many were served.
async fn calls(scene: &Scene, key: &IssuedKey, count: usize) -> usize {
    let mut tasks = JoinSet::new();
    for call in 0..count {
        let client = scene.client_of(call % scene.gateways.len(), Protocol::Http1);
        let key = key.clone();
        tasks.spawn(async move { client.get(&key, MARKETS).await.status });
    }
    let answers = tasks.join_all().await;
    assert!(
        answers.iter().all(|status| [200, 429].contains(status)),
        "{answers:?}"
    );
    answers.iter().filter(|status| **status == 200).count()
}

/// What the metric of each gateway counts, summed by share.
async fn counted(scene: &Scene) -> BTreeMap<u64, u64> {
    let mut counted = BTreeMap::new();
    for gateway in 0..scene.gateways.len() {
        let (_, text) = scene.admin(gateway, "/metrics").await;
        for line in text.lines() {
            let Some(rest) = line.strip_prefix("touchline_quota_crossings_total{share=\"") else {
                continue;
            };
            let (share, rest) = rest.split_once('"').unwrap();
            let value: u64 = rest.rsplit(' ').next().unwrap().parse().unwrap();
            if value == 0 {
                continue;
            }
            assert!(rest.contains("tier=\"starter\""), "{line}");
            *counted.entry(share.parse().unwrap()).or_default() += value;
        }
    }
    counted
}

/// The events in the logs of all gateways.
fn logged(scene: &Scene) -> Vec<String> {
    let mut events = Vec::new();
    for gateway in &scene.gateways {
        for line in gateway.output().lines() {
            if !line.contains("a key reached a share of its limit") {
                continue;
            }
            let line: Value = serde_json::from_str(line).unwrap();
            events.push(find(&line, "event").unwrap());
        }
    }
    events.sort();
    events
}

/// The same, once there are as many: the diagnostic log is written after what it reports.
async fn logged_all(scene: &Scene, count: usize) -> Vec<String> {
    eventually("the events are logged", async || {
        let events = logged(scene);
        (events.len() >= count).then_some(events)
    })
    .await
}

/// Waits for the first line of the first gateway's log that contains this text.
async fn logged_line(scene: &Scene, text: &str) -> Value {
    eventually(&format!("{text:?} is logged"), async || {
        let output = scene.gateways[0].output();
        let line = output.lines().find(|line| line.contains(text))?;
        serde_json::from_str(line).ok()
    })
    .await
}

/// A member of a log line, wherever its format puts it.
fn find(value: &Value, name: &str) -> Option<String> {
    let members = value.as_object()?;
    match members.get(name).and_then(Value::as_str) {
        Some(text) => Some(text.to_owned()),
        None => members.values().find_map(|inner| find(inner, name)),
    }
}

/// The ids that the shares of a key's day have; the day is that of the events.
fn ids(events: &[String], key: &IssuedKey) -> Vec<String> {
    let day = events[0].split('_').nth(1).unwrap();
    let mut ids: Vec<String> = ["80", "95", "100"]
        .map(|share| format!("quota_{day}_{}_{share}", key.id))
        .into();
    ids.sort();
    ids
}

async fn expect_counted(scene: &Scene, expected: &[(u64, u64)]) {
    let expected: BTreeMap<u64, u64> = expected.iter().copied().collect();
    eventually("every share is counted", async || {
        (counted(scene).await == expected).then_some(())
    })
    .await;
}

/// Verified by the standard's own library, which refuses other bodies, ids, secrets and times.
fn verified(delivery: &Recorded) -> (String, Value) {
    let headers: http::HeaderMap = ["webhook-id", "webhook-timestamp", "webhook-signature"]
        .into_iter()
        .map(|name| {
            let values = delivery.values(name);
            assert_eq!(values.len(), 1, "{name} of {}", delivery.text());
            let name: http::HeaderName = name.parse().unwrap();
            (name, values[0].parse::<http::HeaderValue>().unwrap())
        })
        .collect();
    let webhook = Webhook::new(SECRET).unwrap();
    webhook.verify(&delivery.body, &headers).unwrap();
    let other = Webhook::new("whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA").unwrap();
    assert!(other.verify(&delivery.body, &headers).is_err());
    let mut tampered = delivery.body.clone();
    tampered.push(b' ');
    assert!(webhook.verify(&tampered, &headers).is_err());
    assert_eq!(delivery.method, "POST");
    assert_eq!(delivery.target_text(), "/hooks/quota?token=s3cr3t");
    let body: Value = serde_json::from_slice(&delivery.body).unwrap();
    assert_eq!(body["type"], "quota.share_reached");
    (delivery.values("webhook-id")[0].clone(), body)
}

#[tokio::test]
async fn each_share_is_reported_once_by_three_gateways_together() {
    for store in STORES {
        let mut scene = builder(store).gateways(3).start().await;
        let key = scene.issue("starter").await;
        let other = scene.issue("starter").await;
        assert_eq!(calls(&scene, &key, 31).await, 31);
        assert_eq!(calls(&scene, &other, 3).await, 3);
        scene.expect_used(&key, 31).await;
        assert_eq!(
            counted(&scene).await,
            BTreeMap::new(),
            "31 of 40 is below 80 %"
        );
        assert_eq!(calls(&scene, &key, 1).await, 1);
        expect_counted(&scene, &[(80, 1)]).await;
        // Past all that is left, and on: every gateway sees an exhausted key again and again.
        assert_eq!(calls(&scene, &key, 30).await, 8);
        assert_eq!(calls(&scene, &key, 30).await, 0);
        expect_counted(&scene, &[(80, 1), (95, 1), (100, 1)]).await;
        let events = logged_all(&scene, 3).await;
        assert_eq!(events, ids(&events, &key));
        scene.assert_ledgers_agree().await;
    }
}

#[tokio::test]
async fn a_clock_that_is_a_day_ahead_for_a_moment_reports_no_share_twice() {
    const DAY_SECONDS: f64 = 86_400.0;
    for store in STORES {
        let scene = builder(store).faketime().start().await;
        let key = scene.issue("starter").await;
        assert_eq!(calls(&scene, &key, 32).await, 32);
        expect_counted(&scene, &[(80, 1)]).await;
        scene.clock().set_offset(DAY_SECONDS);
        assert_eq!(calls(&scene, &key, 32).await, 32);
        expect_counted(&scene, &[(80, 2)]).await;
        scene.clock().set_offset(0.0);
        // Both shares are noticed, and claimed in their order.
        assert_eq!(calls(&scene, &key, 6).await, 6);
        expect_counted(&scene, &[(80, 2), (95, 1)]).await;
        assert_eq!(logged_all(&scene, 3).await.len(), 3);
    }
}

#[tokio::test]
async fn a_clock_that_leaps_for_a_moment_gives_up_no_event() {
    const FOUR_DAYS: f64 = 4.0 * 86_400.0;
    for store in STORES {
        let receiver = RecordingUpstream::start().await;
        let (refused, accepts) = (
            Arc::new(AtomicUsize::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let (counter, open) = (refused.clone(), accepts.clone());
        receiver.behave(move |_| {
            if open.load(Ordering::SeqCst) {
                return Behaviour::Status(204);
            }
            counter.fetch_add(1, Ordering::SeqCst);
            Behaviour::Status(503)
        });
        let scene = telling(store, &receiver).faketime().start().await;
        let key = scene.issue("starter").await;
        assert_eq!(calls(&scene, &key, 32).await, 32);
        let refusals = |count: usize| {
            let refused = refused.clone();
            eventually("it was refused", async move || {
                (refused.load(Ordering::SeqCst) >= count).then_some(())
            })
        };
        refusals(1).await;
        // By this clock, it is older than `events.webhook.give_up`.
        scene.clock().set_offset(FOUR_DAYS);
        let before = refused.load(Ordering::SeqCst);
        refusals(before + 2).await;
        scene.clock().set_offset(0.0);
        accepts.store(true, Ordering::SeqCst);
        eventually("it is delivered", async || {
            let (_, text) = scene.admin(0, "/metrics").await;
            let delivered = "touchline_webhook_attempts_total{outcome=\"delivered\"} 1";
            text.lines().any(|line| line == delivered).then_some(())
        })
        .await;
        assert!(!scene.gateways[0].output().contains("given up"));
    }
}

#[tokio::test]
async fn an_unreachable_webhook_is_logged_without_what_its_url_may_keep_secret() {
    let receiver = RecordingUpstream::start().await;
    let gone = receiver.address();
    drop(receiver);
    let scene = telling_with(Store::Embedded, gone, "timeout: 2s")
        .start()
        .await;
    let key = scene.issue("starter").await;
    assert_eq!(calls(&scene, &key, 32).await, 32);
    let line = logged_line(&scene, "the webhook did not accept an event").await;
    let why = find(&line, "why").unwrap();
    assert!(why.contains("Connection refused"), "{why}");
    assert!(!scene.gateways[0].output().contains("s3cr3t"));
}

#[tokio::test]
async fn events_that_no_gateway_can_deliver_are_shown_with_the_reason() {
    let receiver = RecordingUpstream::start().await;
    receiver.behave(|_| Behaviour::Status(503));
    let mut scene = telling(Store::Embedded, &receiver).start().await;
    let key = scene.issue("starter").await;
    assert_eq!(calls(&scene, &key, 32).await, 32);
    eventually("it was refused", async || {
        (receiver.count() >= 1).then_some(())
    })
    .await;
    scene.gateways[0].terminate();
    // No authority: no client can be made.
    let directory = tempfile::tempdir().unwrap();
    let none = directory.path().join("none");
    std::fs::create_dir(&none).unwrap();
    let variables = format!("SSL_CERT_FILE=/dev/null SSL_CERT_DIR={}", none.display());
    let (own, spec) = (directory.path(), &scene.spec);
    let program = harness::with_variables(Path::new(TOUCHLINE), &variables, own);
    scene.gateways[0] = Gateway::start(&program, own, "without", spec).await;
    eventually("it is shown", async || {
        let pending = scene.metric("touchline_webhook_pending").await;
        let age = scene.metric("touchline_webhook_age_seconds").await;
        (pending == 1.0 && age >= 1.0).then_some(())
    })
    .await;
    let line = logged_line(&scene, "can deliver no events").await;
    assert!(find(&line, "why").unwrap().contains("CA cert"), "{line}");
}

/// Redis refuses claims, and no other call, until this is undone with `+hsetnx`.
const REFUSE_CLAIMS: [&str; 4] = ["ACL", "SETUSER", "default", "-hsetnx"];

#[tokio::test]
async fn a_share_whose_claim_was_made_by_an_attempt_that_seemed_to_fail_is_reported() {
    let scene = builder(Store::Redis).start().await;
    let key = scene.issue("starter").await;
    assert_eq!(calls(&scene, &key, 32).await, 32);
    expect_counted(&scene, &[(80, 1)]).await;
    let first = logged_all(&scene, 1).await.remove(0);
    let day = first.split('_').nth(1).unwrap();
    let redis = scene.redis.as_ref().unwrap();
    redis.command(&REFUSE_CLAIMS).await.unwrap();
    assert_eq!(calls(&scene, &key, 6).await, 6);
    logged_line(&scene, "an event could not be claimed").await;
    // As if the reply to that attempt had been lost.
    let client = redis::Client::open(redis.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let claims = format!("touchline:{{events}}:claimed:{day}");
    let node: String = redis::cmd("HGET")
        .arg((&claims, &first))
        .query_async(&mut connection)
        .await
        .unwrap();
    let second = format!("quota_{day}_{}_95", key.id);
    let made = ["HSET", &claims, &second, &node];
    redis.command(&made).await.unwrap();
    let [acl, set, user, _] = REFUSE_CLAIMS;
    redis.command(&[acl, set, user, "+hsetnx"]).await.unwrap();
    expect_counted(&scene, &[(80, 1), (95, 1)]).await;
    let mut expected = [first.clone(), second];
    expected.sort();
    assert_eq!(logged_all(&scene, 2).await, expected);
}

#[tokio::test]
async fn an_event_that_cannot_be_claimed_until_its_day_is_long_over_is_given_up() {
    const THREE_DAYS: f64 = 3.0 * 86_400.0;
    let scene = builder(Store::Redis).faketime().start().await;
    let key = scene.issue("starter").await;
    let redis = scene.redis.as_ref().unwrap();
    redis.command(&REFUSE_CLAIMS).await.unwrap();
    assert_eq!(calls(&scene, &key, 32).await, 32);
    logged_line(&scene, "an event could not be claimed").await;
    scene.clock().set_offset(THREE_DAYS);
    let line = logged_line(&scene, "its day is long over").await;
    let event = find(&line, "event").unwrap();
    assert!(event.contains(&key.id), "{line}");
    assert!(event.ends_with("_80"), "{line}");
}

#[tokio::test]
async fn an_event_that_is_older_than_give_up_is_logged_and_not_sent_again() {
    const TWO_MINUTES_MS: i64 = 120_000;
    let receiver = RecordingUpstream::start().await;
    receiver.behave(|_| Behaviour::Status(503));
    let scene = telling_with(Store::Redis, receiver.address(), "give_up: 1m")
        .start()
        .await;
    let key = scene.issue("starter").await;
    assert_eq!(calls(&scene, &key, 32).await, 32);
    eventually("it was refused", async || {
        (receiver.count() >= 1).then_some(())
    })
    .await;
    // As if it had been refused for two minutes.
    let client = redis::Client::open(scene.redis.as_ref().unwrap().url()).unwrap();
    let mut redis = client.get_multiplexed_async_connection().await.unwrap();
    let mut age = redis::cmd("ZINCRBY");
    let pending = "touchline:{events}:pending";
    let events: Vec<String> = redis::cmd("ZRANGE")
        .arg((pending, 0, -1))
        .query_async(&mut redis)
        .await
        .unwrap();
    let [event] = &*events else {
        panic!("{events:?}")
    };
    age.arg((pending, -TWO_MINUTES_MS, event));
    age.exec_async(&mut redis).await.unwrap();
    eventually("it is given up", async || {
        let (_, text) = scene.admin(0, "/metrics").await;
        let given_up = "touchline_webhook_attempts_total{outcome=\"given_up\"} 1";
        text.lines().any(|line| line == given_up).then_some(())
    })
    .await;
    let id = event.split(' ').next().unwrap();
    let line = logged_line(&scene, "was given up").await;
    assert_eq!(find(&line, "event").as_deref(), Some(id));
    assert!(find(&line, "body").unwrap().contains(&key.id), "{line}");
    let left: u64 = redis::cmd("ZCARD")
        .arg(pending)
        .query_async(&mut redis)
        .await
        .unwrap();
    assert_eq!(left, 0);
}

#[tokio::test]
async fn a_thousand_older_events_that_the_receiver_refuses_hold_up_no_other() {
    let receiver = RecordingUpstream::start().await;
    receiver.behave(
        |delivery| match delivery.values("webhook-id")[0].starts_with("old") {
            true => Behaviour::Status(400),
            false => Behaviour::Status(204),
        },
    );
    let scene = telling(Store::Redis, &receiver).start().await;
    let client = redis::Client::open(scene.redis.as_ref().unwrap().url()).unwrap();
    let mut redis = client.get_multiplexed_async_connection().await.unwrap();
    let since = jiff::Timestamp::now().as_millisecond() - 60_000;
    let mut add = redis::cmd("ZADD");
    add.arg("touchline:{events}:pending");
    for number in 0..1_000 {
        add.arg((since, format!("old-{number} {{}}")));
    }
    add.exec_async(&mut redis).await.unwrap();
    eventually("some were refused", async || {
        (receiver.count() >= 8).then_some(())
    })
    .await;
    let key = scene.issue("starter").await;
    assert_eq!(calls(&scene, &key, 32).await, 32);
    eventually("the new one is delivered", async || {
        let delivered = "touchline_webhook_attempts_total{outcome=\"delivered\"}";
        (scene.metric(delivered).await == 1.0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_gateway_that_lost_its_store_shows_no_event_that_another_may_deliver() {
    let receiver = RecordingUpstream::start().await;
    receiver.behave(|_| Behaviour::Status(503));
    let mut scene = telling_with(Store::Redis, receiver.address(), "timeout: 1s")
        .start()
        .await;
    let key = scene.issue("starter").await;
    assert_eq!(calls(&scene, &key, 32).await, 32);
    let shown = async |scene: &Scene| {
        let pending = scene.metric("touchline_webhook_pending").await;
        (pending, scene.metric("touchline_webhook_age_seconds").await)
    };
    eventually("it is pending", async || {
        let (pending, age) = shown(&scene).await;
        (pending == 1.0 && age >= 1.0).then_some(())
    })
    .await;
    scene.redis.as_mut().unwrap().kill9();
    eventually("the lease ends", async || {
        (shown(&scene).await == (0.0, 0.0)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_event_is_delivered_after_refusals_and_a_gateways_death() {
    for store in STORES {
        let receiver = RecordingUpstream::start().await;
        let refused = Arc::new(AtomicUsize::new(0));
        let counter = refused.clone();
        // Two refusals; what comes while the gateway is to be killed is refused too.
        let killed = Arc::new(AtomicUsize::new(0));
        let gone = killed.clone();
        receiver.behave(move |_| {
            if gone.load(Ordering::SeqCst) == 0 {
                counter.fetch_add(1, Ordering::SeqCst);
                return Behaviour::Status(503);
            }
            Behaviour::Status(204)
        });
        let mut scene = telling(store, &receiver).start().await;
        let key = scene.issue("starter").await;
        assert_eq!(calls(&scene, &key, 32).await, 32);
        eventually("it was refused twice", async || {
            (refused.load(Ordering::SeqCst) >= 2).then_some(())
        })
        .await;
        eventually("its age is reported", async || {
            let age = scene.metric("touchline_webhook_age_seconds").await;
            (age >= 1.0).then_some(())
        })
        .await;
        scene.gateways[0].kill9();
        killed.store(1, Ordering::SeqCst);
        let before = receiver.take();
        scene.gateways[0].restart().await;
        let delivered = eventually("it is delivered", async || {
            receiver.recorded().first().cloned()
        })
        .await;
        let (id, body) = verified(&delivered);
        let data = &body["data"];
        assert_eq!(
            (&data["key_id"], &data["share"]),
            (&key.id.as_str().into(), &80.into())
        );
        assert_eq!((&data["limit"], &data["used"]), (&LIMIT.into(), &32.into()));
        for attempt in &before {
            assert_eq!(
                verified(attempt),
                (id.clone(), body.clone()),
                "every attempt is the same event"
            );
            let key = key.key.as_bytes();
            assert!(!attempt.body.windows(key.len()).any(|window| window == key));
        }
        // It was taken: it is not sent again, and what comes next is.
        assert_eq!(calls(&scene, &key, 8).await, 8);
        eventually("the others are delivered", async || {
            (receiver.count() >= 3).then_some(())
        })
        .await;
        let mut shares: Vec<u64> = receiver
            .recorded()
            .iter()
            .map(|one| verified(one).1["data"]["share"].as_u64().unwrap())
            .collect();
        shares.sort_unstable();
        assert_eq!(shares, [80, 95, 100]);
        eventually("nothing is left", async || {
            let (_, text) = scene.admin(0, "/metrics").await;
            text.lines()
                .any(|line| line == "touchline_webhook_pending 0")
                .then_some(())
        })
        .await;
        let allowed = Allowances {
            gateway_killed: true,
            ..Allowances::default()
        };
        scene.assert_ledgers_agree_with(&allowed).await;
        assert!(
            !scene.gateways[0].output().contains("s3cr3t"),
            "the URL is a secret"
        );
    }
}

#[tokio::test]
async fn a_gateway_that_is_asked_to_end_lets_another_deliver_at_once() {
    for store in STORES {
        let receiver = RecordingUpstream::start().await;
        receiver.always(Behaviour::Status(200));
        // The right to deliver lasts ten seconds longer than the timeout, hence longer than this test has patience.
        let mut scene = telling_with(store, receiver.address(), "timeout: 60s")
            .gateways(2)
            .start()
            .await;
        let key = scene.issue("starter").await;
        let name = eventually("one delivers", async || {
            let text = scene.cli(&["store", "status", "--output", "json"]).await;
            let status: Value = serde_json::from_str(&text).unwrap();
            Some(status["events"]["courier"].as_str()?.to_owned())
        })
        .await;
        let node = format!("\"node\":\"{name}\"");
        let is_courier = |gateway: &usize| scene.gateways[*gateway].output().contains(&node);
        let couriers: Vec<usize> = (0..2).filter(is_courier).collect();
        assert_eq!(couriers.len(), 1, "{name}");
        let other = 1 - couriers[0];
        assert_eq!(scene.gateways[couriers[0]].terminate().code(), Some(0));
        let client = scene.client_of(other, Protocol::Http1);
        for _ in 0..32 {
            assert_eq!(client.get(&key, MARKETS).await.status, 200);
        }
        let delivered = eventually("the other delivers", async || {
            receiver.recorded().first().cloned()
        })
        .await;
        assert_eq!(verified(&delivered).1["data"]["share"], 80);
    }
}

#[tokio::test]
async fn three_gateways_deliver_each_event_once_where_nothing_fails() {
    for store in STORES {
        let receiver = RecordingUpstream::start().await;
        receiver.always(Behaviour::Status(200));
        let mut scene = telling(store, &receiver).gateways(3).start().await;
        let keys = [
            scene.issue("starter").await,
            scene.issue("starter").await,
            scene.issue("starter").await,
        ];
        for key in &keys {
            assert_eq!(calls(&scene, key, 50).await, 40);
        }
        eventually("all are delivered", async || {
            (receiver.count() >= 9).then_some(())
        })
        .await;
        // The store forgets a delivered event behind its delivery.
        eventually("nothing is left", async || {
            let mut pending = 0;
            for gateway in 0..3 {
                let (_, text) = scene.admin(gateway, "/metrics").await;
                let line = text
                    .lines()
                    .find_map(|line| line.strip_prefix("touchline_webhook_pending "))
                    .unwrap();
                pending += line.parse::<u64>().unwrap();
            }
            (pending == 0).then_some(())
        })
        .await;
        let mut reported: Vec<String> = receiver
            .recorded()
            .iter()
            .map(|one| verified(one).0)
            .collect();
        reported.sort();
        assert_eq!(reported, logged_all(&scene, reported.len()).await);
        assert_eq!(reported.len(), 9);
        scene.assert_ledgers_agree().await;
    }
}

#[tokio::test]
async fn an_emptied_redis_receives_the_claims_again_without_a_second_line() {
    let receiver = RecordingUpstream::start().await;
    receiver.always(Behaviour::Status(200));
    let mut scene = telling(Store::Redis, &receiver).gateways(3).start().await;
    let key = scene.issue("starter").await;
    assert_eq!(calls(&scene, &key, 40).await, 40);
    expect_counted(&scene, &[(80, 1), (95, 1), (100, 1)]).await;
    let events = logged_all(&scene, 3).await;
    eventually("all are delivered", async || {
        (receiver.count() >= 3).then_some(())
    })
    .await;
    let redis = scene.redis.as_ref().unwrap();
    redis.command(&["FLUSHALL"]).await.unwrap();
    let claims = format!(
        "touchline:{{events}}:claimed:{}",
        events[0].split('_').nth(1).unwrap()
    );
    eventually("the claims are back", async || {
        (redis.command(&["HLEN", &claims]).await.ok()? == ":3\r\n").then_some(())
    })
    .await;
    eventually("the key is exhausted again for all", async || {
        (scene.used(&key).await == LIMIT).then_some(())
    })
    .await;
    assert_eq!(counted(&scene).await.values().sum::<u64>(), 3);
    // A gateway that was not there before meets the claims.
    scene.gateways[0].kill9();
    scene.gateways[0].restart().await;
    let mut shares = counted(&scene).await;
    assert_eq!(calls(&scene, &key, 30).await, 0);
    // A second line would be written before those of later events.
    for gateway in 0..3 {
        let (client, other) = (
            scene.client_of(gateway, Protocol::Http1),
            scene.issue("starter").await,
        );
        for _ in 0..32 {
            assert_eq!(client.get(&other, MARKETS).await.status, 200);
        }
    }
    let all = logged_all(&scene, 6).await;
    let (own, others): (Vec<_>, Vec<_>) = all.iter().partition(|event| event.contains(&key.id));
    assert_eq!(
        own,
        events.iter().collect::<Vec<_>>(),
        "no line is written twice"
    );
    assert_eq!(others.len(), 3, "{others:?}");
    *shares.entry(80).or_default() += 3;
    let shares: Vec<(u64, u64)> = shares.into_iter().collect();
    expect_counted(&scene, &shares).await;
    for delivery in receiver.recorded() {
        assert!(
            all.contains(&verified(&delivery).0),
            "delivered again by the same id"
        );
    }
    let allowed = Allowances {
        gateway_killed: true,
        ..Allowances::default()
    };
    scene.assert_ledgers_agree_with(&allowed).await;
}

#[tokio::test]
async fn the_end_of_a_gateways_share_is_no_share_of_the_limit() {
    let mut scene = builder(Store::Redis)
        .durable_redis()
        .spec(|spec| spec.redis_extra = "timeout: 100ms, min_nodes: 4".into())
        .start()
        .await;
    let key = scene.issue("starter").await;
    assert_eq!(calls(&scene, &key, 4).await, 4);
    scene.redis.as_mut().unwrap().kill9();
    // A quarter of the 36 that are left.
    assert_eq!(calls(&scene, &key, 9).await, 9);
    scene.redis.as_mut().unwrap().restart().await;
    scene.expect_used(&key, 13).await;
    assert_eq!(calls(&scene, &key, 1).await, 1);
    assert_eq!(counted(&scene).await, BTreeMap::new());
    assert_eq!(calls(&scene, &key, 26).await, 26);
    expect_counted(&scene, &[(80, 1), (95, 1), (100, 1)]).await;
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn a_share_that_was_passed_without_redis_is_reported_when_it_is_back() {
    let receiver = RecordingUpstream::start().await;
    receiver.always(Behaviour::Status(200));
    let mut scene = telling(Store::Redis, &receiver)
        .durable_redis()
        .spec(|spec| spec.redis_extra = "timeout: 100ms, outage: open".into())
        .start()
        .await;
    let key = scene.issue("starter").await;
    assert_eq!(calls(&scene, &key, 10).await, 10);
    scene.redis.as_mut().unwrap().kill9();
    assert_eq!(calls(&scene, &key, 25).await, 25);
    scene.redis.as_mut().unwrap().restart().await;
    let delivered = eventually("it is delivered", async || {
        receiver.recorded().first().cloned()
    })
    .await;
    let (_, body) = verified(&delivered);
    assert_eq!(body["data"]["share"], 80);
    expect_counted(&scene, &[(80, 1)]).await;
    // Not a retry of a call that had been made.
    let client = scene.client(Protocol::Http1);
    assert_eq!(client.call(Call::get(MARKETS).key(&key)).await.status, 200);
    scene.expect_used(&key, 36).await;
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn what_a_gateway_had_claimed_that_is_gone_with_the_data_of_redis_is_reported_again() {
    let mut scene = builder(Store::Redis).gateways(2).start().await;
    let key = scene.issue("starter").await;
    let client = scene.client_of(1, Protocol::Http1);
    let uses_80_percent = async |client: &Client, key: &IssuedKey| {
        for _ in 0..32 {
            assert_eq!(client.get(key, MARKETS).await.status, 200);
        }
    };
    uses_80_percent(&client, &key).await;
    expect_counted(&scene, &[(80, 1)]).await;
    // The other gateway has seen it too, and that it was reported.
    let other = scene.client_of(0, Protocol::Http1);
    assert_eq!(other.get(&key, MARKETS).await.status, 200);
    // Its line may follow its count.
    let first = eventually("it is logged", async || {
        Some(logged(&scene)).filter(|events| !events.is_empty())
    })
    .await;
    let [of_other, later] = [scene.issue("starter").await, scene.issue("starter").await];
    uses_80_percent(&other, &of_other).await;
    expect_counted(&scene, &[(80, 2)]).await;
    scene.gateways[1].kill9();
    let redis = scene.redis.as_ref().unwrap();
    redis.command(&["FLUSHALL"]).await.unwrap();
    assert_eq!(first.len(), 1, "{first:?}");
    eventually("it is delivered again, by the same id", async || {
        other.get(&key, MARKETS).await;
        let again = logged(&scene)
            .iter()
            .filter(|event| **event == first[0])
            .count();
        (again == 2).then_some(())
    })
    .await;
    // What the gateway that is left had claimed itself it does not report again.
    assert_eq!(other.get(&of_other, MARKETS).await.status, 200);
    uses_80_percent(&other, &later).await;
    let expected = first[0].replace(&key.id, &later.id);
    eventually("what follows is logged", async || {
        logged(&scene).contains(&expected).then_some(())
    })
    .await;
    let of_other = logged(&scene)
        .iter()
        .filter(|event| event.contains(&of_other.id))
        .count();
    assert_eq!(of_other, 1);
}
