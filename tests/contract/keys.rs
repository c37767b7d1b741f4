//! Steps 2 and 3: who may come in.

use std::time::Duration;

use harness::ledger::date_of;
use harness::{Answer, Call, Protocol, Scene, Store, eventually};

use touchline::clock::Clock;
use touchline::policy::key_record::KeyState;

use super::{MARKETS, TOUCHLINE, assert_problem, edit_record};

/// A 401's body without what differs between requests.
fn anonymous(answer: &Answer) -> serde_json::Value {
    let mut body = answer.json();
    body["request_id"].take();
    body
}

fn assert_challenges(answer: &Answer, code: &str) {
    assert_problem(answer, 401, code);
    let challenge = answer.header("www-authenticate").unwrap_or_default();
    assert!(challenge.starts_with("ApiKey realm=\""), "{answer:?}");
    assert_eq!(answer.header("x-ratelimit-limit"), None, "of whom?");
}

#[tokio::test]
async fn a_request_without_a_key_or_with_an_empty_one_is_missing_its_key() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    for protocol in Protocol::ALL {
        let client = scene.client(protocol);
        assert_challenges(&client.call(Call::get(MARKETS)).await, "MISSING_API_KEY");
        // White space around a key is not part of it.
        for empty in ["", " ", "\t"] {
            let answer = client.call(Call::get(MARKETS).key(empty)).await;
            assert_challenges(&answer, "MISSING_API_KEY");
        }
    }
    assert_eq!(scene.upstream.count(), 0);
    scene.assert_ledgers_agree().await;
    // The ledgers compare keys as sent.
    let key = scene.issue("starter").await;
    for protocol in Protocol::ALL {
        let copied = Call::get(MARKETS).key(format!(" {}\t", key.key));
        assert_eq!(scene.client(protocol).call(copied).await.status, 200);
    }
}

/// Every kind of key that is not valid gets one and the same answer.
async fn no_invalid_key_can_be_distinguished_from_another(store: Store) {
    let mut scene = Scene::builder(TOUCHLINE).store(store).start().await;
    let good = scene.issue("starter").await;
    let revoked = scene.issue("starter").await;
    let suspended = scene.issue("starter").await;
    let expired = scene.issue("starter").await;
    scene.revoke(&revoked).await;
    edit_record(&scene, &suspended, |record| {
        record.state = KeyState::Suspended
    })
    .await;
    edit_record(&scene, &expired, |record| {
        record.expires = Some(record.created)
    })
    .await;
    let mut mistyped = good.key.clone();
    let last = mistyped.pop().unwrap();
    mistyped.push(if last == 'a' { 'b' } else { 'a' });
    let unknown = "made-elsewhere-and-never-imported-0123456789";
    for protocol in Protocol::ALL {
        let client = scene.client(protocol);
        let mut bodies = Vec::new();
        for call in [
            Call::get(MARKETS).key(&revoked),
            Call::get(MARKETS).key(&suspended),
            Call::get(MARKETS).key(&expired),
            Call::get(MARKETS).key(&mistyped),
            Call::get(MARKETS).key(unknown),
            Call::get(MARKETS).key("short"),
            Call::get(MARKETS).key("x".repeat(257)),
            Call::get(MARKETS).key(format!("{0}, {0}", good.key)),
            Call::get(MARKETS).key(good.key.to_lowercase()),
            Call::get(MARKETS).header("x-api-key", b"\xff\xfe\xfd and more than 24 characters"),
            Call::get(MARKETS).key(&good).key(&good),
            Call::get(MARKETS).key(&good).key(unknown),
            Call::get(MARKETS).key("").key(&good),
        ] {
            let what = format!("{call:?} over {protocol:?}");
            let answer = client.call(call).await;
            assert_eq!(answer.status, 401, "{what}");
            assert_challenges(&answer, "INVALID_API_KEY");
            bodies.push(anonymous(&answer));
        }
        bodies.dedup();
        assert_eq!(bodies.len(), 1, "{bodies:#?}");
        assert_eq!(client.get(&good, MARKETS).await.status, 200);
    }
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn no_invalid_key_can_be_distinguished_from_another_on_the_embedded_store() {
    no_invalid_key_can_be_distinguished_from_another(Store::Embedded).await;
}

#[tokio::test]
async fn no_invalid_key_can_be_distinguished_from_another_on_redis() {
    no_invalid_key_can_be_distinguished_from_another(Store::Redis).await;
}

#[tokio::test]
async fn a_key_counts_in_its_header_only_whose_name_has_any_case() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    for call in [
        Call::get(MARKETS).header("authorization", format!("Bearer {key}", key = key.key)),
        Call::get(MARKETS).header("x_api_key", &key.key),
        Call::get(MARKETS).header("cookie", format!("X-API-Key={}", key.key)),
    ] {
        assert_problem(&client.call(call).await, 401, "MISSING_API_KEY");
    }
    for name in ["X-API-KEY", "x-api-key", "X-Api-Key"] {
        let request = format!(
            "GET {MARKETS} HTTP/1.1\r\nHost: a\r\n{name}:  {} \r\n\r\n",
            key.key
        );
        let exchange = client
            .raw(request, harness::client::Until::Answers(1))
            .await;
        assert_eq!(exchange.answers[0].status, 200, "{name}");
    }
    scene.assert_ledgers_agree().await;
}

async fn a_key_is_valid_through_the_day_it_expires(store: Store) {
    let builder = Scene::builder(TOUCHLINE).store(store).faketime();
    let mut scene = builder.start().await;
    // Before the clock leaps: a gateway then seems silent, and the command does not wait for it.
    let today = date_of(Clock::system().now().as_second() as u64);
    let key = scene.issue_with("pro", &["--expires", &today]).await;
    let client = scene.client(Protocol::Http1);
    let midnight = scene.clock().set_before_midnight(Duration::from_secs(10));
    let answer = client.get(&key, MARKETS).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.number("x-ratelimit-reset"), Some(midnight));
    scene.clock().set_before_midnight(Duration::ZERO);
    let answer = client.get(&key, MARKETS).await;
    assert_problem(&answer, 401, "INVALID_API_KEY");
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn a_key_is_valid_through_the_day_it_expires_on_the_embedded_store() {
    a_key_is_valid_through_the_day_it_expires(Store::Embedded).await;
}

#[tokio::test]
async fn a_key_is_valid_through_the_day_it_expires_on_redis() {
    a_key_is_valid_through_the_day_it_expires(Store::Redis).await;
}

#[tokio::test]
async fn a_key_in_the_path_or_the_request_id_reaches_no_log() {
    let scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("pro").await;
    let client = scene.client(Protocol::Http1);
    let request = format!(
        "GET /api/{0} HTTP/1.1\r\nHost: a\r\nX-API-Key: {0}\r\nX-Request-Id: {0}\r\n\r\n",
        key.key
    );
    let exchange = client
        .raw(request.clone(), harness::client::Until::Answers(1))
        .await;
    let answer = &exchange.answers[0];
    assert_problem(answer, 404, "NOT_FOUND");
    assert_ne!(answer.header("x-request-id"), Some(key.key.as_str()));
    let lines = scene.gateways[0].logged(1).await;
    let line = lines.last().unwrap();
    assert_eq!(line["path"], format!("/api/fpd_{}_REDACTED", key.id));
    assert!(!line.to_string().contains(&key.key[17..]));

    // The key stays valid after the prefix of new keys is changed.
    let file = std::fs::read_to_string(&scene.gateways[0].config).unwrap();
    scene.gateways[0].put_file(&format!("{file}\nkeys: {{ prefix: live }}\n"));
    eventually("the prefix is applied", async || {
        let issued = scene.admin(0, "/config").await.1;
        issued.contains("\"live\"").then_some(())
    })
    .await;
    let exchange = client
        .raw(request, harness::client::Until::Answers(1))
        .await;
    let answer = &exchange.answers[0];
    assert_problem(answer, 404, "NOT_FOUND");
    assert_ne!(answer.header("x-request-id"), Some(key.key.as_str()));
    let lines = scene.gateways[0].logged(2).await;
    let line = lines.last().unwrap();
    assert_eq!(line["path"], format!("/api/fpd_{}_REDACTED", key.id));
    assert!(!line.to_string().contains(&key.key[17..]));
}

#[tokio::test]
async fn a_key_made_elsewhere_in_the_path_or_the_request_id_is_written_down_nowhere() {
    let scene = Scene::builder(TOUCHLINE).start().await;
    let issued = scene.issue("starter").await;
    let elsewhere = "legacy-0123456789-ABCDEFGHIJ";
    let secret = &issued.key[17..];
    let encoded = elsewhere.replace('-', "%2d");
    for protocol in Protocol::ALL {
        let client = scene.client(protocol);
        for (key, shown) in [
            (elsewhere, elsewhere),
            (elsewhere, &encoded),
            (&issued.key, &issued.key[4..]),
            (&issued.key, secret),
        ] {
            let path = format!("/api/{shown}");
            let id = format!("a.{shown}");
            let call = Call::get(&path).key(key).header("x-request-id", &id);
            // Its key may be gone from a head that is too large.
            let large = call.clone().header("x-pad", "a".repeat(20 * 1024));
            for (call, statuses) in [(call, [400, 401, 404]), (large, [400, 431, 431])] {
                let answer = client.call(call).await;
                assert!(statuses.contains(&answer.status), "{answer:?}");
                let kept = answer.header("x-request-id").unwrap_or_default();
                assert!(!kept.contains(shown), "{answer:?}");
            }
        }
    }
    scene.gateways[0].logged(8 * Protocol::ALL.len()).await;
    let log = std::fs::read_to_string(&scene.gateways[0].access_log).unwrap();
    for hidden in [elsewhere, &encoded, secret] {
        assert!(!log.contains(hidden), "{log}");
    }
    assert!(log.contains("\"/api/REDACTED\""), "{log}");
}
