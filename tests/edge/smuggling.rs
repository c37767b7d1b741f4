//! Request smuggling in all its families: whatever a front or a back server might take for a second request, the upstream
//! sees only requests that were answered to their sender.

use harness::client::{HOST, Until};
use harness::{Behaviour, Protocol, Scene};

use super::{MARKETS, TOUCHLINE, assert_problem};

/// What an attacker wants the upstream to see.
const SMUGGLED: &str =
    "GET /api/v1/data/rankings HTTP/1.1\r\nHost: localhost\r\nX-Smuggled: yes\r\n\r\n";
/// The last request of a connection.
const LAST: &str =
    "GET /none HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: last\r\nConnection: close\r\n\r\n";

/// A scene whose markets take POST.
async fn scene_with_post() -> Scene {
    Scene::builder(TOUCHLINE)
        .spec(|spec| spec.endpoints[0].methods.push("POST".into()))
        .start()
        .await
}

fn post(key: &str, framing: &str, body: &str) -> String {
    format!("POST {MARKETS} HTTP/1.1\r\nHost: {HOST}\r\nX-API-Key: {key}\r\n{framing}\r\n{body}")
}

fn assert_nothing_smuggled(scene: &Scene) {
    for recorded in scene.upstream.recorded() {
        assert!(recorded.values("x-smuggled").is_empty(), "{recorded:?}");
        assert!(recorded.target_text().starts_with(MARKETS), "{recorded:?}");
    }
}

#[tokio::test]
async fn two_framings_in_any_disguise_are_refused_and_close_the_connection() {
    let mut scene = scene_with_post().await;
    let key = scene.issue("starter").await;
    let chunked = format!("0\r\n\r\n{SMUGGLED}");
    let framings = [
        // CL.TE and TE.CL
        "Content-Length: 6\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
        "Content-Length: 6\r\ntransfer-encoding: CHUNKED\r\n",
        // TE.TE
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n",
        "Transfer-Encoding: x\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-encoding: chunked\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding: identity, chunked\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding: \x0bchunked\r\n",
        "Transfer-Encoding: \"chunked\"\r\n",
        "Transfer-Encoding: chunked;a=b\r\n",
        "Transfer-Encoding : chunked\r\n",
        "Transfer-Encoding\t: chunked\r\n",
        " Transfer-Encoding: chunked\r\n",
        "X: y\r\n Transfer-Encoding: chunked\r\n",
        "X: y\nTransfer-Encoding: chunked\r\n",
        "X: y\rTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding:\r\n chunked\r\n",
        "Transfer-Encoding:\r\n",
        // CL.CL
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: 5\r\nContent-Length: 5\r\n",
        "Content-Length: 5, 5\r\n",
        "Content-Length: 5 5\r\n",
        "Content-Length: +5\r\n",
        "Content-Length: -5\r\n",
        "Content-Length: 0x5\r\n",
        "Content-Length: 5_0\r\n",
        "Content-Length: 18446744073709551621\r\n",
        "Content-Length: \r\n",
        "Content-Length : 5\r\n",
        "Content-Length:\r\n 5\r\n",
    ];
    for protocol in [Protocol::Http1, Protocol::Http1Tls] {
        let client = scene.client(protocol);
        for framing in framings {
            let exchange = client
                .raw(post(&key.key, framing, &chunked), Until::Closed)
                .await;
            assert!(exchange.closed, "{framing:?}");
            assert_eq!(exchange.answers.len(), 1, "{framing:?}: {exchange:?}");
            assert_problem(&exchange.answers[0], 400, "BAD_REQUEST");
        }
    }
    assert_eq!(scene.upstream.count(), 0);
    assert_eq!(scene.used(&key).await, 0);
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn transfer_coding_in_http_1_0_is_refused() {
    let mut scene = scene_with_post().await;
    let key = scene.issue("starter").await;
    let request = post(
        &key.key,
        "Transfer-Encoding: chunked\r\n",
        &format!("0\r\n\r\n{SMUGGLED}"),
    );
    let request = request.replacen("HTTP/1.1", "HTTP/1.0", 1);
    let exchange = scene
        .client(Protocol::Http1)
        .raw(request, Until::Closed)
        .await;
    assert!(exchange.closed);
    assert_problem(&exchange.answers[0], 400, "BAD_REQUEST");
    assert_eq!(scene.upstream.count(), 0);
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn chunks_that_servers_read_in_different_ways_are_refused_and_refunded() {
    let scene = scene_with_post().await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    for body in [
        "5\nhello\r\n0\r\n\r\n",
        "5\r\nhello\n0\r\n\r\n",
        "5\r\nhelloo\r\n0\r\n\r\n",
        "5 \r\nhello\r\n0\r\n\r\n",
        "+5\r\nhello\r\n0\r\n\r\n",
        "0x5\r\nhello\r\n0\r\n\r\n",
        "5;a\nhello\r\n0\r\n\r\n",
        "5;a\rhello\r\n0\r\n\r\n",
        "5\r\nhello\r\n0\r\n X: folded\r\n\r\n",
        "5\r\nhello\r\n0\r\nX: y\n\r\n",
        "5\r\nhello\r\n0\n\n",
        "ffffffffffffffff5\r\nhello\r\n0\r\n\r\n",
        "\r\n5\r\nhello\r\n0\r\n\r\n",
    ] {
        let request = post(
            &key.key,
            "Transfer-Encoding: chunked\r\n",
            &format!("{body}{SMUGGLED}"),
        );
        let exchange = client.raw(request, Until::Closed).await;
        assert!(exchange.closed, "{body:?}");
        assert_eq!(exchange.answers.len(), 1, "{body:?}: {exchange:?}");
        assert_problem(&exchange.answers[0], 400, "BAD_REQUEST");
        let text = String::from_utf8_lossy(&exchange.answers[0].body);
        assert!(text.contains("The request body is not framed"), "{text}");
        assert_eq!(exchange.answers[0].header("connection"), Some("close"));
    }
    assert_nothing_smuggled(&scene);
    scene.expect_used(&key, 0).await;
}

#[tokio::test]
async fn extensions_and_trailers_of_chunks_never_reach_the_upstream() {
    let mut scene = scene_with_post().await;
    let key = scene.issue("starter").await;
    let body = "5;name=\"a;b\"\r\nhello\r\n0;last\r\nX-API-Key: other\r\nX-Smuggled: yes\r\n\r\n";
    let request = post(
        &key.key,
        "Transfer-Encoding: chunked\r\nX-Request-Id: with-trailers\r\n",
        body,
    );
    let exchange = scene
        .client(Protocol::Http1)
        .raw(request, Until::Answers(1))
        .await;
    assert_eq!(exchange.answers[0].status, 200, "{exchange:?}");
    let recorded = scene.upstream.recorded_as("with-trailers");
    assert_eq!(recorded[0].body, b"hello");
    assert_nothing_smuggled(&scene);
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn a_body_that_is_a_request_is_never_taken_for_one() {
    let scene = scene_with_post().await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    let length = format!("Content-Length: {}\r\n", SMUGGLED.len());
    // CL.0: answers that come before the body is read.
    for (line, status) in [
        (
            format!("POST {MARKETS} HTTP/1.1\r\nX-API-Key: wrong\r\n"),
            401,
        ),
        (
            format!("POST /none HTTP/1.1\r\nX-API-Key: {}\r\n", key.key),
            404,
        ),
        (
            format!(
                "POST /api/v1/data/rankings HTTP/1.1\r\nX-API-Key: {}\r\n",
                key.key
            ),
            405,
        ),
        (
            format!("GET {MARKETS} HTTP/1.1\r\nX-API-Key: {}\r\n", key.key),
            400,
        ),
        (
            format!("DELETE {MARKETS} HTTP/1.1\r\nX-API-Key: {}\r\n", key.key),
            400,
        ),
    ] {
        let request = format!("{line}Host: {HOST}\r\n{length}\r\n{SMUGGLED}{LAST}");
        let exchange = client.raw(request, Until::Closed).await;
        assert!(exchange.closed, "{line}: {exchange:?}");
        assert_eq!(exchange.answers[0].status, status, "{line}");
        // Where the connection was kept, what follows the body is the next request.
        for answer in &exchange.answers[1..] {
            assert_eq!(answer.header("x-request-id"), Some("last"), "{line}");
        }
    }
    // A body that is read is forwarded as a body.
    let request = post(
        &key.key,
        &format!("{length}X-Request-Id: whole-body\r\n"),
        SMUGGLED,
    );
    let exchange = client.raw(request, Until::Answers(1)).await;
    assert_eq!(exchange.answers[0].status, 200);
    assert_eq!(
        scene.upstream.recorded_as("whole-body")[0].body,
        SMUGGLED.as_bytes()
    );
    // One that the upstream answers without having read it closes the connection, or is read to its end.
    scene.upstream.always(Behaviour::Status(404));
    let request = post(&key.key, &length, SMUGGLED) + LAST;
    let exchange = client.raw(request, Until::Closed).await;
    assert!(exchange.closed, "{exchange:?}");
    for answer in &exchange.answers[1..] {
        assert_eq!(answer.header("x-request-id"), Some("last"), "{exchange:?}");
    }
    assert_nothing_smuggled(&scene);
    assert_eq!(scene.upstream.count(), 2);
}

#[tokio::test]
async fn an_upgrade_is_no_tunnel() {
    let scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    for upgrade in ["websocket", "h2c", "foo", "TLS/1.0"] {
        let request = format!(
            "GET {MARKETS} HTTP/1.1\r\nHost: {HOST}\r\nX-API-Key: {}\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: {upgrade}\r\n\
             HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\nSec-WebSocket-Version: 13\r\n\r\n{SMUGGLED}",
            key.key
        );
        let exchange = client.raw(request, Until::Answers(2)).await;
        let statuses: Vec<u16> = exchange.answers.iter().map(|one| one.status).collect();
        // What follows is a request of its own, and has no key.
        assert_eq!(statuses, [200, 401], "{upgrade}: {exchange:?}");
    }
    for recorded in scene.upstream.recorded() {
        assert!(recorded.values("upgrade").is_empty(), "{recorded:?}");
    }
    assert_nothing_smuggled(&scene);
    assert_eq!(scene.upstream.count(), 4);
}
