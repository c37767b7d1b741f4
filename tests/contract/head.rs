//! `HEAD` wherever `GET`: the same header, no body.

use harness::client::{HOST, Until};
use harness::{Call, Protocol, Scene};

use super::{MARKETS, RANKINGS, TOUCHLINE};

/// Targets, whether with the key, and the status.
const CASES: [(&str, bool, u16); 5] = [
    (MARKETS, true, 200),
    (MARKETS, false, 401),
    (RANKINGS, true, 403),
    ("/none", true, 404),
    ("/a//b", true, 400),
];

#[tokio::test]
async fn head_is_answered_like_get_without_the_body() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    for protocol in Protocol::ALL {
        let client = scene.client(protocol);
        for (target, with_key, status) in CASES {
            let call = |method| {
                let call = Call::new(method, target);
                if with_key { call.key(&key) } else { call }
            };
            let head = client.call(call("HEAD")).await;
            assert_eq!(head.status, status, "{protocol:?} {target}: {head:?}");
            assert!(head.body.is_empty() && head.complete);
            let get = client.call(call("GET")).await;
            assert_eq!(get.status, status);
            assert_eq!(head.header("content-type"), get.header("content-type"));
            // Request ids of both calls may differ in length by a digit; the header must be there and plausible.
            let length = head
                .number("content-length")
                .expect("the length of GET's body");
            assert!(
                length.abs_diff(get.body.len() as u64) <= 2,
                "{head:?} {get:?}"
            );
        }
    }
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn no_byte_follows_the_header_of_an_answer_to_head() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    for protocol in [Protocol::Http1, Protocol::Http1Tls] {
        let client = scene.client(protocol);
        for (target, with_key, status) in CASES {
            let key = if with_key { key.key.as_str() } else { "" };
            let request = format!(
                "HEAD {target} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\nX-API-Key: {key}\r\n\r\n"
            );
            let exchange = client.raw(request, Until::Closed).await;
            assert!(exchange.closed, "{target}");
            assert_eq!(exchange.answers.len(), 1, "{target}");
            assert_eq!(exchange.answers[0].status, status);
            assert!(exchange.bytes.ends_with(b"\r\n\r\n"), "{target}");
        }
    }
    scene.assert_ledgers_agree().await;
}
