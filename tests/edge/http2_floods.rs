//! HTTP/2 connections that cost more than they give: closed, told so, and counted; honest ones are not.

use std::time::Duration;

use harness::{Behaviour, Call, Protocol, Scene};

use super::frames::{
    DATA, END_HEADERS, Frame, HEADERS, PING, PRIORITY, RST_STREAM, SETTINGS, WINDOW_UPDATE, Wire,
    block,
};
use super::{MARKETS, TOUCHLINE, limit_hits};

/// `ENHANCE_YOUR_CALM`.
const CALM: u32 = 0x0b;
/// Far above every budget.
const MANY: usize = 20_000;

/// Sends a frame many times over; the code of the GOAWAY that ends it.
async fn flood(wire: &mut Wire, frame: &Frame) -> Option<u32> {
    let hundred = frame.bytes().repeat(100);
    for _ in 0..MANY / 100 {
        use tokio::io::AsyncWriteExt;
        if wire.socket.write_all(&hundred).await.is_err() {
            break;
        }
    }
    wire.end().await
}

#[tokio::test]
async fn a_flood_of_frames_that_cost_nothing_ends_the_connection() {
    let scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    let honest = scene.client(Protocol::Http2Tls);
    let floods = [
        ("h2_settings", Frame::new(SETTINGS, 0, 0, [])),
        ("h2_ping", Frame::new(PING, 0, 0, [0; 8])),
        ("h2_ping", Frame::new(PING, 1, 0, [0; 8])),
        ("h2_priority", Frame::new(PRIORITY, 0, 1, [0, 0, 0, 3, 1])),
        (
            "h2_window_update",
            Frame::new(WINDOW_UPDATE, 0, 0, [0, 0, 0, 1]),
        ),
        ("h2_other_frames", Frame::new(0xbe, 0, 0, [0; 8])),
    ];
    for (number, (limit, frame)) in floods.iter().enumerate() {
        let before = limit_hits(&scene, limit).await;
        let mut wire = Wire::open(&scene).await;
        let code = flood(&mut wire, frame).await;
        assert_eq!(code, Some(CALM), "{limit}");
        assert!(
            (limit_hits(&scene, limit).await - before - 1.0).abs() < 0.5,
            "{limit}"
        );
        let answer = honest.call(Call::get(MARKETS).key(&key)).await;
        assert_eq!(answer.status, 200, "after flood {number}");
    }
    assert_eq!(scene.upstream.count(), floods.len());
}

#[tokio::test]
async fn a_flooding_client_that_reads_is_told_to_calm_down() {
    let scene = Scene::builder(TOUCHLINE).start().await;
    let mut wire = Wire::open(&scene).await;
    let ping = Frame::new(PING, 0, 0, [7; 8]);
    let mut code = None;
    for _ in 0..1_000 {
        if !wire.send(&ping).await {
            break;
        }
        match wire.next().await {
            Some(frame) => code = frame.goaway_code().or(code),
            None => break,
        }
    }
    assert_eq!(code.or(wire.end().await), Some(CALM));
}

#[tokio::test]
async fn a_flood_of_empty_data_ends_the_connection() {
    let scene = Scene::builder(TOUCHLINE)
        .spec(|spec| spec.endpoints[0].methods.push("POST".into()))
        .start()
        .await;
    let key = scene.issue("starter").await;
    let mut wire = Wire::open(&scene).await;
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", "localhost"),
        (":path", MARKETS),
        ("x-api-key", &key.key),
    ];
    wire.headers(1, &fields, false).await;
    flood(&mut wire, &Frame::new(DATA, 0, 1, [])).await;
    assert!((limit_hits(&scene, "h2_empty_frames").await - 1.0).abs() < 0.5);
}

#[tokio::test]
async fn rapid_resets_end_the_connection_and_every_forwarded_request_is_charged() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("pro").await;
    scene.upstream.always(Behaviour::Delay(
        Duration::from_secs(1),
        Box::new(Behaviour::Echo),
    ));
    let mut wire = Wire::open(&scene).await;
    for stream in (1..4_000).step_by(2) {
        let reset = Frame::new(RST_STREAM, 0, stream, 8u32.to_be_bytes());
        if !wire.get(stream, MARKETS, &key.key).await || !wire.send(&reset).await {
            break;
        }
    }
    wire.end().await;
    let forwarded = scene.upstream.count() as u64;
    assert!(
        forwarded <= 250,
        "{forwarded} requests reached the upstream"
    );
    // A request may be charged and then end before it is forwarded; never the other way round.
    assert!(scene.used(&key).await >= forwarded);
    scene.gateways[0].terminate();
}

#[tokio::test]
async fn header_blocks_without_end_and_lists_without_measure_are_refused() {
    let scene = Scene::builder(TOUCHLINE).start().await;
    let mut wire = Wire::open(&scene).await;
    wire.send(&Frame::new(HEADERS, 0, 1, block(&[(":method", "GET")])))
        .await;
    flood(&mut wire, &Frame::new(9, 0, 1, block(&[("a", "b")]))).await;
    let mut wire = Wire::open(&scene).await;
    let value = "v".repeat(12_000);
    let mut fields = block(&[
        (":method", "GET"),
        (":scheme", "http"),
        (":authority", "h"),
        (":path", "/"),
    ]);
    fields.extend(block(&[("a", &value)]));
    wire.send(&Frame::new(HEADERS, END_HEADERS | 1, 1, fields))
        .await;
    // Within the bounds: refused for the missing key only.
    assert_eq!(wire.problem(1).await["code"], "MISSING_API_KEY");
    let large = "v".repeat(8_000);
    let fields = [
        (":method", "GET"),
        (":scheme", "http"),
        (":authority", "h"),
        (":path", "/"),
        ("a", &large),
        ("b", &large),
        ("c", "d"),
    ];
    wire.headers(3, &fields[..], true).await;
    assert_eq!(wire.problem(3).await["code"], "MISSING_API_KEY");
    assert_eq!(scene.upstream.count(), 0);
}

#[tokio::test]
async fn many_requests_on_one_connection_with_all_their_updates_are_no_flood() {
    let scene = Scene::builder(TOUCHLINE).daily("pro", 5_000).start().await;
    let key = scene.issue("pro").await;
    let mut wire = Wire::open(&scene).await;
    for stream in (1..2_400).step_by(2) {
        wire.get(stream, MARKETS, &key.key).await;
        assert!(!wire.body(stream).await.is_empty());
        wire.send(&Frame::new(WINDOW_UPDATE, 0, 0, [0, 0, 1, 0]))
            .await;
        wire.send(&Frame::new(PRIORITY, 0, stream, [0, 0, 0, 0, 1]))
            .await;
    }
    assert_eq!(scene.upstream.count(), 1_200);
}
