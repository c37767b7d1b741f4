//! The public contract (docs/calling-the-api.md), row by row, against the real binary.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)] // Clippy's exception for tests does not reach their functions.

mod answers;
mod compression;
mod head;
mod keys;
mod leaks;
mod maintenance;
mod malformed;
mod order;
mod own_paths;
mod quota;
mod rates;
mod retirement;
mod targets;
mod tiers;
mod upstream_answers;
mod upstream_http2;
mod upstream_requests;

use std::time::Duration;

use harness::client::{HOST, RawExchange, Until};
use harness::problem::assert_problem;
use harness::{Answer, Client, IssuedKey, Scene};
use touchline::clock::Clock;
use touchline::config::Config;
use touchline::policy::key_record::KeyRecord;
use touchline::server::open_store;
use touchline::store::Role;

/// The binary under test.
const TOUCHLINE: &str = env!("CARGO_BIN_EXE_touchline");
/// An endpoint of every tier.
const MARKETS: &str = "/api/v1/data/markets";
/// An endpoint of the enterprise tier only.
const RANKINGS: &str = "/api/v1/data/rankings";
/// Seconds of a day without a change of its zone's offset.
const DAY_SECONDS: u64 = 86_400;
/// Longer than an answer takes on a slow machine.
const SLOW_SECONDS: u64 = 60;

/// The headers of every answer to an authenticated request.
#[track_caller]
fn assert_quota_status(answer: &Answer, limit: u64, remaining: u64) {
    let what = format!("{answer:?}");
    assert_eq!(answer.number("x-ratelimit-limit"), Some(limit), "{what}");
    assert_eq!(
        answer.number("x-ratelimit-remaining"),
        Some(remaining),
        "{what}"
    );
    let reset = answer.number("x-ratelimit-reset").expect(&what);
    assert_eq!(reset % DAY_SECONDS, 0, "midnight of UTC: {what}");
    let policy = format!("\"daily\";q={limit};w={DAY_SECONDS}");
    assert_eq!(answer.header("ratelimit-policy"), Some(policy.as_str()));
    let state = answer.header("ratelimit").expect(&what);
    let left = state.strip_prefix(&format!("\"daily\";r={remaining};t="));
    let left: u64 = left.expect(&what).parse().expect(&what);
    let now = Clock::system().now().as_second() as u64;
    assert!(
        left.abs_diff(reset.saturating_sub(now)) <= SLOW_SECONDS,
        "{what}"
    );
    assert!(answer.header("x-request-id").is_some());
    if let Some(pause) = answer.number("retry-after") {
        assert!([429, 500].contains(&answer.status) && (1..=DAY_SECONDS).contains(&pause));
        let body = String::from_utf8_lossy(&answer.body);
        if body.contains(r#""violated-policies":["daily"]"#) {
            assert!(pause.abs_diff(left) <= 1, "{what}");
        }
    } else {
        assert!(![429, 500].contains(&answer.status), "{what}");
    }
}

/// Sends a hand-written GET with that request line and more header lines.
async fn raw_get(client: &Client, target: &[u8], key: &str, more: &str) -> RawExchange {
    let mut request = b"GET ".to_vec();
    request.extend(target);
    request.extend(format!(" HTTP/1.1\r\nHost: {HOST}\r\nX-API-Key: {key}\r\n{more}\r\n").bytes());
    client.raw(request, Until::Answers(1)).await
}

/// Changes a key's record in the scene's store, as a command would, and waits until the gateways have applied it.
async fn edit_record(scene: &Scene, key: &IssuedKey, edit: impl FnOnce(&mut KeyRecord)) {
    let config = Config::load(&scene.gateways[0].config).unwrap();
    let store = open_store(&config, Role::Command, Clock::system())
        .await
        .unwrap();
    let mut record = store.key(key.id.parse().unwrap()).await.unwrap().unwrap();
    edit(&mut record);
    let (_, mark) = store.update_key(record).await.unwrap();
    let late = store.await_applied(&mark, Duration::from_secs(10)).await;
    assert_eq!(late.unwrap(), []);
    store.close(Duration::from_secs(2)).await;
}
