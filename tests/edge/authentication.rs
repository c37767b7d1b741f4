//! Keys that are tried out: the same answer for each, no key locked out, nothing asked of the store.

use std::time::Instant;

use harness::client::{HOST, Until};
use harness::{Call, Protocol, Scene, Store, eventually};

use super::{MARKETS, TOUCHLINE, assert_problem, limit_hits};

/// More than a flood from one address may send before its connections are closed.
const MANY: usize = 40;

/// A scene that counts loopback addresses as it counts others.
async fn counting(limits: &str) -> Scene {
    let yaml = format!("limits: {{ exempt_addresses: [], {limits} }}");
    Scene::builder(TOUCHLINE)
        .spec(move |spec| spec.extra_yaml = yaml)
        .start()
        .await
}

fn requests(key: &str, number: usize) -> String {
    format!("GET {MARKETS} HTTP/1.1\r\nHost: {HOST}\r\nX-API-Key: {key}\r\n\r\n").repeat(number)
}

#[tokio::test]
async fn a_client_that_tries_out_keys_gets_the_same_401_and_loses_the_connection() {
    let mut scene = counting("failed_authentications: 2").await;
    let key = scene.issue("starter").await;
    let unknown = "made-elsewhere-and-never-imported-0123456789";
    // Ten at once, then two a second.
    let exchange = scene
        .client(Protocol::Http1)
        .raw(requests(unknown, MANY), Until::Closed)
        .await;
    assert!(exchange.closed);
    let answers = exchange.answers.len();
    assert!((11..MANY).contains(&answers), "{answers} answers");
    let (last, others) = exchange.answers.split_last().unwrap();
    for answer in &exchange.answers {
        assert_problem(answer, 401, "INVALID_API_KEY");
        let mut body = answer.json();
        body["request_id"] = others[0].json()["request_id"].clone();
        assert_eq!(body, others[0].json());
    }
    assert_eq!(last.header("connection"), Some("close"));
    assert!(
        others
            .iter()
            .all(|one| one.header("connection") != Some("close"))
    );
    assert!(limit_hits(&scene, "failed_authentications").await >= 1.0);
    for protocol in Protocol::ALL {
        // The next one without a key, or with a malformed or a mistyped one, gets its 401, and is the last of its connection.
        let mistyped = format!("{}x", key.key);
        for call in [
            Call::get(MARKETS),
            Call::get(MARKETS).key("short"),
            Call::get(MARKETS).key(&mistyped),
        ] {
            let client = scene.client(protocol);
            assert_eq!(client.call(call).await.status, 401);
        }
        // A valid key is served all the same, also on a connection of its own that stays.
        let client = scene.client(protocol);
        for _ in 0..3 {
            let answer = client.get(&key, MARKETS).await;
            assert_eq!(answer.status, 200, "{protocol:?}");
            assert_ne!(answer.header("connection"), Some("close"));
        }
    }
    scene.expect_used(&key, 9).await;
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn over_http2_the_connection_ends_with_the_requests_under_way() {
    let scene = counting("failed_authentications: 1").await;
    let key = scene.issue("starter").await;
    let mut wire = super::frames::Wire::open(&scene).await;
    let mut stream = 1;
    // Far more than may come, and one of a valid key among them.
    for number in 0..MANY {
        let presented = if number == 3 {
            key.key.as_str()
        } else {
            "none"
        };
        wire.get(stream, MARKETS, presented).await;
        stream += 2;
    }
    let (mut goaway, mut answered) = (None, 0);
    while let Some(frame) = wire.next().await {
        goaway = frame.goaway_code().or(goaway);
        answered += usize::from(frame.stream > 0 && frame.flags & 1 != 0);
    }
    assert_eq!(goaway, Some(0), "no error: the client may connect again");
    assert!(answered > 5, "{answered} answers");
    scene.expect_used(&key, 1).await;
    let client = scene.client(Protocol::Http2Tls);
    assert_eq!(client.get(&key, MARKETS).await.status, 200);
}

#[tokio::test]
async fn connections_of_one_address_are_counted() {
    let scene = counting("connections_per_address: 3").await;
    let key = scene.issue("starter").await;
    let mut held = Vec::new();
    for _ in 0..3 {
        let client = scene.client(Protocol::Http1);
        assert_eq!(client.get(&key, MARKETS).await.status, 200);
        held.push(client);
    }
    let fourth = scene.client(Protocol::Http1);
    assert!(fourth.try_call(Call::get(MARKETS).key(&key)).await.is_err());
    assert!(limit_hits(&scene, "connections_per_address").await >= 1.0);
    held.pop();
    eventually("there is room again", async || {
        let client = scene.client(Protocol::Http1);
        client.try_call(Call::get(MARKETS).key(&key)).await.ok()
    })
    .await;
}

/// Commands that a Redis has run so far.
async fn commands(scene: &Scene) -> u64 {
    let redis = scene.redis.as_ref().unwrap();
    let stats = redis.command(&["INFO", "stats"]).await.unwrap();
    let line = stats
        .lines()
        .find_map(|line| line.strip_prefix("total_commands_processed:"));
    line.unwrap().trim().parse().unwrap()
}

#[tokio::test]
async fn a_flood_of_unknown_keys_asks_redis_for_nothing() {
    const FLOOD: usize = 5_000;
    let scene = Scene::builder(TOUCHLINE).store(Store::Redis).start().await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    assert_eq!(client.get(&key, MARKETS).await.status, 200);
    let (before, since) = (commands(&scene).await, Instant::now());
    let redis = scene.redis.as_ref().unwrap();
    redis.record_commands().await;
    let mut refused = 0;
    for batch in 0..FLOOD / 100 {
        let unknown: String = (0..100)
            .map(|number| requests(&format!("unknown-key-of-nobody-{batch}-{number}"), 1))
            .collect();
        let exchange = client.raw(unknown, Until::Answers(100)).await;
        refused += exchange
            .answers
            .iter()
            .filter(|one| one.status == 401)
            .count();
    }
    assert_eq!(refused, FLOOD);
    let ran = redis.recorded_commands().await;
    assert!(!ran.contains("touchline:k:"), "a record is read: {ran}");
    assert!(!ran.contains("touchline:d:"), "a digest is read: {ran}");
    // Heartbeats and the feed go on meanwhile, a few a second.
    let more = commands(&scene).await - before;
    let allowed = FLOOD as u64 / 10 + 10 * since.elapsed().as_secs();
    assert!(allowed < FLOOD as u64, "too slow to be of use");
    assert!(more < allowed, "{more} commands for {FLOOD} keys");
}
