//! A key's life after its issue, beside two running gateways on both stores: every change holds from the next request on
//! each of them and keeps what was used.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use harness::{Allowances, Answer, IssuedKey, Protocol, Scene, SceneBuilder, Store, eventually};
use serde_json::Value;
use tokio::task::JoinSet;

use super::{MARKETS, RANKINGS, STORES, TOUCHLINE, run_beside};

const INSIGHTS: &str = "/api/v1/data/insights";

fn builder(store: Store) -> SceneBuilder {
    Scene::builder(TOUCHLINE).store(store).gateways(2)
}

async fn call(scene: &Scene, gateway: usize, key: &IssuedKey, target: &str) -> Answer {
    let client = scene.client_of(gateway, Protocol::Http1);
    client.get(key, target).await
}

/// Asserts one call's status on each gateway.
async fn assert_everywhere(scene: &Scene, key: &IssuedKey, target: &str, status: u16) {
    for gateway in 0..scene.gateways.len() {
        let answer = call(scene, gateway, key, target).await;
        assert_eq!(answer.status, status, "{target} of gateway {gateway}");
    }
}

/// Runs a `keys` command and reads its JSON.
async fn change(scene: &Scene, arguments: &[&str]) -> Value {
    let words = [&["keys"], arguments, &["--output", "json"]].concat();
    let text = scene.cli(&words).await;
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"))
}

async fn shown(scene: &Scene, key: &IssuedKey) -> Value {
    change(scene, &["show", &key.id]).await
}

fn limits(key: &IssuedKey, units: u64) -> Allowances {
    Allowances {
        limits: BTreeMap::from([(key.id.clone(), units)]),
        ..Allowances::default()
    }
}

#[tokio::test]
async fn a_rotation_with_overlap_keeps_both_secrets_one_id_and_one_count() {
    for store in STORES {
        let mut scene = builder(store).start().await;
        let old = scene.issue("starter").await;
        assert_everywhere(&scene, &old, MARKETS, 200).await;
        let new = scene.rotate(&old, &["--overlap", "24h"]).await;
        assert_eq!(new.id, old.id);
        assert_ne!(new.key, old.key);
        assert_everywhere(&scene, &new, MARKETS, 200).await;
        assert_everywhere(&scene, &old, MARKETS, 200).await;
        let record = shown(&scene, &old).await;
        assert_eq!(record["today"]["used"], 6);
        assert!(record["previous_until"].is_string(), "{record}");
        // The secret before ends with the next rotation, which therefore asks.
        let again = ["keys", "rotate", &old.id, "--overlap", "24h"];
        let message = run_beside(&scene.gateways[0], &again).await.failed(2);
        assert!(message.contains("--yes"), "{message}");
        let newest = scene.rotate(&new, &["--overlap", "24h", "--yes"]).await;
        for (key, status) in [(&old, 401), (&new, 200), (&newest, 200)] {
            assert_everywhere(&scene, key, MARKETS, status).await;
        }
        assert_eq!(scene.used(&old).await, 10);
        scene.assert_ledgers_agree().await;
    }
}

#[tokio::test]
async fn a_rotation_without_overlap_ends_the_old_secret_at_once() {
    for store in STORES {
        let mut scene = builder(store).start().await;
        let old = scene.issue("starter").await;
        assert_everywhere(&scene, &old, MARKETS, 200).await;
        let new = scene.rotate(&old, &["--overlap", "0s", "--yes"]).await;
        assert_everywhere(&scene, &old, MARKETS, 401).await;
        assert_everywhere(&scene, &new, MARKETS, 200).await;
        assert_eq!(shown(&scene, &new).await["previous_until"], Value::Null);
        assert_eq!(scene.used(&new).await, 4);
        scene.assert_ledgers_agree().await;
    }
}

#[tokio::test]
async fn the_old_secret_ends_with_its_overlap() {
    for store in STORES {
        let mut scene = builder(store).start().await;
        let old = scene.issue("starter").await;
        let new = scene.rotate(&old, &["--overlap", "2s"]).await;
        eventually("the overlap is over", async || {
            let answer = call(&scene, 0, &old, MARKETS).await;
            (answer.status == 401).then_some(())
        })
        .await;
        eventually("it is on the other gateway", async || {
            let answer = call(&scene, 1, &old, MARKETS).await;
            (answer.status == 401).then_some(())
        })
        .await;
        assert_everywhere(&scene, &new, MARKETS, 200).await;
        assert_eq!(shown(&scene, &new).await["previous_until"], Value::Null);
        scene.assert_ledgers_agree().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rotation_under_load_refuses_no_request_and_counts_everything_once() {
    for store in STORES {
        let mut scene = builder(store).daily("starter", 1_000_000).start().await;
        let old = scene.issue("starter").await;
        let served = Arc::new(AtomicU64::new(0));
        let (report, reported) = tokio::sync::watch::channel(None::<IssuedKey>);
        let mut clients = JoinSet::new();
        for number in 0..4 {
            let client = scene.client_of(number % 2, Protocol::Http1);
            let (old, served, reported) = (old.clone(), Arc::clone(&served), reported.clone());
            clients.spawn(async move {
                // Goes over to the new secret as soon as it is known; every other client keeps the old one.
                let mut with_new = 0;
                while with_new < 50 {
                    let new = reported.borrow().clone();
                    with_new += u64::from(new.is_some());
                    let key = new.filter(|_| number < 2).unwrap_or_else(|| old.clone());
                    let answer = client.get(&key, MARKETS).await;
                    assert_eq!(answer.status, 200, "client {number}, new {with_new}");
                    served.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        eventually("the load runs", async || {
            (served.load(Ordering::Relaxed) > 50).then_some(())
        })
        .await;
        let new = scene.rotate(&old, &["--overlap", "1h"]).await;
        report.send(Some(new.clone())).unwrap();
        clients.join_all().await;
        assert_eq!(scene.used(&new).await, served.load(Ordering::Relaxed));
        scene.assert_ledgers_agree().await;
    }
}

#[tokio::test]
async fn a_suspended_key_is_refused_until_it_is_resumed() {
    for store in STORES {
        let mut scene = builder(store).start().await;
        let key = scene.issue("starter").await;
        assert_everywhere(&scene, &key, MARKETS, 200).await;
        let suspended = change(&scene, &["suspend", &key.id, "--yes"]).await;
        assert_eq!(suspended["state"], "suspended");
        assert_eq!(suspended["changed"], true);
        assert_everywhere(&scene, &key, MARKETS, 401).await;
        let twice = ["keys", "suspend", &key.id];
        let message = run_beside(&scene.gateways[0], &twice).await.done();
        assert_eq!(message, format!("{} is suspended already\n", key.id));
        assert_eq!(
            change(&scene, &["resume", &key.id]).await["state"],
            "active"
        );
        assert_everywhere(&scene, &key, MARKETS, 200).await;
        assert_eq!(change(&scene, &["resume", &key.id]).await["changed"], false);
        assert_eq!(scene.used(&key).await, 4);
        scene.assert_ledgers_agree().await;
    }
}

#[tokio::test]
async fn a_revoked_key_cannot_be_resumed_nor_changed() {
    for store in STORES {
        let mut scene = builder(store).start().await;
        let key = scene.issue("starter").await;
        scene.revoke(&key).await;
        let before = shown(&scene, &key).await;
        for arguments in [
            ["keys", "resume", &key.id].as_slice(),
            &["keys", "suspend", &key.id, "--yes"],
            &["keys", "rotate", &key.id, "--overlap", "1h"],
            &["keys", "set-tier", &key.id, "pro"],
            &["keys", "set-expiry", &key.id, "never"],
            &["keys", "grant", &key.id, "--extra", "5", "--reason", "x"],
        ] {
            let message = run_beside(&scene.gateways[0], arguments).await.failed(1);
            let next = "revoked, which is final: issue another with `touchline keys issue`";
            assert!(message.contains(next), "{arguments:?}: {message}");
        }
        assert_eq!(shown(&scene, &key).await, before);
        assert_everywhere(&scene, &key, MARKETS, 401).await;
        scene.assert_ledgers_agree().await;
    }
}

#[tokio::test]
async fn an_upgrade_in_the_middle_of_an_exhausted_day_lets_the_next_call_through() {
    for store in STORES {
        let mut scene = builder(store)
            .daily("starter", 4)
            .daily("enterprise", 9)
            .start()
            .await;
        let key = scene.issue("starter").await;
        assert_everywhere(&scene, &key, MARKETS, 200).await;
        assert_everywhere(&scene, &key, MARKETS, 200).await;
        assert_everywhere(&scene, &key, MARKETS, 429).await;
        assert_everywhere(&scene, &key, RANKINGS, 403).await;
        let upgraded = change(&scene, &["set-tier", &key.id, "enterprise"]).await;
        assert_eq!(upgraded["tier"], "enterprise");
        for (gateway, remaining) in [(0, 4), (1, 3)] {
            let answer = call(&scene, gateway, &key, RANKINGS).await;
            assert_eq!(answer.status, 200);
            assert_eq!(answer.number("x-ratelimit-limit"), Some(9));
            assert_eq!(answer.number("x-ratelimit-remaining"), Some(remaining));
        }
        scene.assert_ledgers_agree_with(&limits(&key, 9)).await;
    }
}

#[tokio::test]
async fn a_downgrade_below_what_was_used_refuses_until_the_next_day() {
    for store in STORES {
        let mut scene = builder(store)
            .daily("starter", 2)
            .daily("pro", 9)
            .faketime()
            .start()
            .await;
        let key = scene.issue("pro").await;
        assert_everywhere(&scene, &key, INSIGHTS, 200).await;
        assert_everywhere(&scene, &key, MARKETS, 200).await;
        let asked = ["keys", "set-tier", &key.id, "starter"];
        let message = run_beside(&scene.gateways[0], &asked).await.failed(2);
        assert!(message.contains("falls from 9 to 2"), "{message}");
        assert!(message.contains(INSIGHTS), "{message}");
        change(&scene, &["set-tier", &key.id, "starter", "--yes"]).await;
        for (target, status) in [(MARKETS, 429), (INSIGHTS, 403)] {
            for gateway in 0..2 {
                let answer = call(&scene, gateway, &key, target).await;
                assert_eq!(answer.status, status);
                assert_eq!(answer.number("x-ratelimit-limit"), Some(2));
                assert_eq!(answer.number("x-ratelimit-remaining"), Some(0));
            }
        }
        let today = shown(&scene, &key).await["today"].clone();
        assert_eq!(
            (&today["used"], &today["remaining"]),
            (&4.into(), &0.into())
        );
        scene.clock().set_before_midnight(Duration::ZERO);
        eventually("the next day has begun", async || {
            let answer = call(&scene, 0, &key, MARKETS).await;
            (answer.status == 200).then_some(())
        })
        .await;
        let answer = call(&scene, 1, &key, MARKETS).await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.number("x-ratelimit-remaining"), Some(0));
        scene.assert_ledgers_agree_with(&limits(&key, 9)).await;
    }
}

#[tokio::test]
async fn a_grant_raises_the_limit_at_once_and_only_for_its_day() {
    for store in STORES {
        let mut scene = builder(store).daily("starter", 2).faketime().start().await;
        let key = scene.issue("starter").await;
        assert_everywhere(&scene, &key, MARKETS, 200).await;
        assert_everywhere(&scene, &key, MARKETS, 429).await;
        let grant = ["grant", &key.id, "--extra", "3", "--reason", "Cup final"];
        let granted = change(&scene, &grant).await;
        assert_eq!(granted["grant"]["extra"], 3);
        assert_eq!(granted["grant"]["reason"], "Cup final");
        let today = granted["grant"]["date"].as_str().unwrap().to_owned();
        assert_eq!(granted["grants"][&today], 3);
        for (gateway, remaining) in [(0, 2), (1, 1)] {
            let answer = call(&scene, gateway, &key, MARKETS).await;
            assert_eq!(answer.status, 200);
            assert_eq!(answer.number("x-ratelimit-limit"), Some(5));
            assert_eq!(answer.number("x-ratelimit-remaining"), Some(remaining));
        }
        let later = ["grant", &key.id, "--extra", "9", "--reason", "x", "--day"];
        let date: jiff::civil::Date = today.parse().unwrap();
        let in_two_days = date.tomorrow().unwrap().tomorrow().unwrap().to_string();
        let granted = change(&scene, &[&later, [&*in_two_days].as_slice()].concat()).await;
        assert_eq!(
            (&granted["grants"][&today], &granted["grants"][&in_two_days]),
            (&3.into(), &9.into())
        );
        let answer = call(&scene, 0, &key, MARKETS).await;
        assert_eq!(answer.number("x-ratelimit-limit"), Some(5));

        scene.clock().set_before_midnight(Duration::ZERO);
        let answer = eventually("the next day has begun", async || {
            let answer = call(&scene, 0, &key, MARKETS).await;
            (answer.number("x-ratelimit-limit") == Some(2)).then_some(answer)
        })
        .await;
        assert_eq!(
            (answer.status, answer.number("x-ratelimit-remaining")),
            (200, Some(1))
        );
        let past = [&["keys"], later.as_slice(), &[&*today]].concat();
        let message = run_beside(&scene.gateways[0], &past).await.failed(1);
        assert!(
            message.contains(&format!("{today} is over: grant units for")),
            "{message}"
        );
        scene.assert_ledgers_agree_with(&limits(&key, 5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_at_the_same_time_are_each_made_once() {
    for store in STORES {
        let mut scene = builder(store).start().await;
        let key = scene.issue("starter").await;
        let grant = async |extra: &str, gateway: usize| {
            let words = ["keys", "grant", &key.id, "--extra", extra, "--reason", "x"];
            run_beside(&scene.gateways[gateway], &words).await.done()
        };
        tokio::join!(grant("1", 0), grant("20", 1), grant("300", 0));
        let record = shown(&scene, &key).await;
        assert_eq!(record["today"]["limit"], 1_321, "{record}");
        let answer = call(&scene, 1, &key, MARKETS).await;
        assert_eq!(answer.number("x-ratelimit-limit"), Some(1_321));
        scene.assert_ledgers_agree_with(&limits(&key, 1_321)).await;
    }
}

#[tokio::test]
async fn a_subscription_that_is_over_is_refused_and_renewed() {
    for store in STORES {
        let mut scene = builder(store).start().await;
        let key = scene.issue("starter").await;
        let renewed = change(&scene, &["set-expiry", &key.id, "2099-12-31"]).await;
        assert_eq!(renewed["expires"], "2100-01-01T00:00:00Z");
        assert_everywhere(&scene, &key, MARKETS, 200).await;
        let ended = change(&scene, &["set-expiry", &key.id, "2020-01-31", "--yes"]).await;
        assert_eq!(
            (&ended["expires"], &ended["expired"]),
            (&"2020-02-01T00:00:00Z".into(), &true.into())
        );
        assert_everywhere(&scene, &key, MARKETS, 401).await;
        let renewed = change(&scene, &["set-expiry", &key.id, "never"]).await;
        assert_eq!(renewed["expires"], Value::Null);
        assert_everywhere(&scene, &key, MARKETS, 200).await;
        scene.assert_ledgers_agree().await;
    }
}

#[tokio::test]
async fn a_key_that_would_be_cut_off_is_not_without_a_yes() {
    for store in STORES {
        let mut scene = builder(store).start().await;
        let key = scene.issue("pro").await;
        let before = shown(&scene, &key).await;
        for arguments in [
            ["keys", "suspend", &key.id].as_slice(),
            &["keys", "revoke", &key.id],
            &["keys", "rotate", &key.id, "--overlap", "0s"],
            &["keys", "set-tier", &key.id, "starter"],
            &["keys", "set-expiry", &key.id, "2020-01-31"],
        ] {
            let message = run_beside(&scene.gateways[0], arguments).await.failed(2);
            assert!(
                message.contains("nothing was changed") && message.contains("--yes"),
                "{message}"
            );
        }
        assert_eq!(shown(&scene, &key).await, before);
        assert_everywhere(&scene, &key, INSIGHTS, 200).await;
        scene.assert_ledgers_agree().await;
    }
}

#[tokio::test]
async fn keys_are_renamed_and_found_by_what_is_known_of_them() {
    for store in STORES {
        let scene = Scene::builder(TOUCHLINE).store(store).start().await;
        let one = scene.issue_with("starter", &["--label", "Live site"]).await;
        let two = scene.issue("pro").await;
        let three = scene.issue("pro").await;
        let set = async |words: &[&str]| change(&scene, words).await;
        assert_eq!(
            set(&["set-customer", &two.id, "Söhne & Co"]).await["customer"],
            "Söhne & Co"
        );
        assert_eq!(
            set(&["set-label", &two.id, "site test"]).await["label"],
            "site test"
        );
        assert_eq!(
            set(&["set-label", &two.id, "site test"]).await["changed"],
            false
        );
        set(&["set-expiry", &three.id, "2020-01-31", "--yes"]).await;
        for (filter, expected) in [
            (["--customer", "Acme"].as_slice(), vec![&one, &three]),
            (&["--tier", "pro"], vec![&two, &three]),
            (&["--state", "active"], vec![&one, &two]),
            (&["--state", "expired"], vec![&three]),
            (&["--search", "SITE"], vec![&one, &two]),
            (&["--search", "sÖHNE"], vec![&two]),
            (&["--search", &three.id[2..10]], vec![&three]),
            (&["--tier", "pro", "--customer", "Acme"], vec![&three]),
            (&["--customer", "Nobody"], vec![]),
            (&[], vec![&one, &two, &three]),
        ] {
            let list = change(&scene, &[&["list"], filter].concat()).await;
            let found: Vec<&str> = list
                .as_array()
                .unwrap()
                .iter()
                .map(|key| key["id"].as_str().unwrap())
                .collect();
            let expected: Vec<&str> = expected.iter().map(|key| &*key.id).collect();
            assert_eq!(found, expected, "{store:?}: {filter:?}");
        }
        assert_eq!(
            set(&["set-label", &one.id, "--none"]).await["label"],
            Value::Null
        );
    }
}

#[tokio::test]
async fn each_change_states_in_one_sentence_what_it_made() {
    let scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    let id = &*key.id;
    for (arguments, message) in [
        (
            ["set-tier", id, "pro"].as_slice(),
            "is in tier pro, was in starter",
        ),
        (&["set-tier", id, "pro"], "is in tier pro already"),
        (
            &["set-expiry", id, "2099-12-31"],
            "expires after 2099-12-31, was never",
        ),
        (
            &["set-expiry", id, "never"],
            "never expires, was after 2099-12-31",
        ),
        (&["set-expiry", id, "never"], "already never expires"),
        (&["set-label", id, "live"], "is labelled live"),
        (&["set-label", id, "--none"], "is without a label"),
        (&["set-customer", id, "Umbra"], "is of Umbra"),
        (&["suspend", id, "--yes"], "is suspended"),
        (&["resume", id], "is active"),
        (&["resume", id], "is active already"),
    ] {
        let text = scene.cli(&[&["keys"], arguments].concat()).await;
        assert_eq!(text, format!("{id} {message}\n"));
    }
    let mut grant = ["keys", "grant", id, "--extra", "0", "--reason", "Cup final"];
    for wrong in ["1e3", "0", "-5", "99999999999999999999"] {
        grant[4] = wrong;
        let refused = run_beside(&scene.gateways[0], &grant).await.failed(2);
        assert!(refused.contains("at least 1, digits only"), "{refused}");
    }
    let rotate = ["keys", "rotate", id, "--overlap", "-1h"];
    let refused = run_beside(&scene.gateways[0], &rotate).await.failed(2);
    assert!(refused.contains("such as 24h"), "{refused}");
    grant[4] = "5";
    let text = scene.cli(&grant).await;
    assert!(
        text.starts_with(&format!("{id} has 5 extra units on ")),
        "{text}"
    );
    assert!(
        text.ends_with(" (Cup final): its limit is 3005 that day\n"),
        "{text}"
    );
    let rotate = ["keys", "rotate", id, "--overlap", "24h"];
    let ran = run_beside(&scene.gateways[0], &rotate).await;
    assert!(
        ran.stderr.contains("The old key is valid until "),
        "{ran:?}"
    );
    let table = ran.done();
    let new = table
        .split_whitespace()
        .find(|word| word.starts_with("fpd_"));
    let answer = scene
        .client(Protocol::Http1)
        .get(new.unwrap(), MARKETS)
        .await;
    assert_eq!(answer.status, 200);
}
