//! HTTP/2 connections that cost more than they give: closed with a GOAWAY, and counted; honest ones are not.

use std::time::Duration;

use harness::upstream::{Release, Script};
use harness::{Behaviour, Call, IssuedKey, Protocol, Scene, eventually};

use super::frames::{
    DATA, END_HEADERS, END_STREAM, Frame, GOAWAY, HEADERS, PING, PRIORITY, RST_STREAM, SETTINGS,
    WINDOW_UPDATE, Wire, block,
};
use super::{MARKETS, TOUCHLINE, charged_were_sent, limit_hits};

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
async fn a_flooding_client_that_reads_gets_enhance_your_calm() {
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
        if !wire.get(stream, MARKETS, &key.key).await {
            break;
        }
        if stream == 1 {
            eventually("the first is forwarded", async || {
                (!scene.upstream.begun().is_empty()).then_some(())
            })
            .await;
        }
        if !wire.send(&reset).await {
            break;
        }
    }
    wire.end().await;
    charged_were_sent(&scene, &key.id).await;
    let forwarded = scene.upstream.begun().len() as u64;
    assert!(
        (1..=250).contains(&forwarded),
        "{forwarded} requests reached the upstream"
    );
    assert_eq!(scene.used(&key).await, forwarded);
    scene.gateways[0].terminate();
}

#[tokio::test]
async fn resets_of_streams_whose_answers_are_whole_are_no_flood() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("pro").await;
    let mut wire = Wire::open(&scene).await;
    for stream in (1..600).step_by(2) {
        assert!(wire.get(stream, MARKETS, &key.key).await);
        assert!(!wire.body(stream).await.is_empty());
        let reset = Frame::new(RST_STREAM, 0, stream, 0u32.to_be_bytes());
        assert!(wire.send(&reset).await);
    }
    assert_eq!(limit_hits(&scene, "h2_resets").await, 0.0);
    assert_eq!(scene.used(&key).await, 300);
    scene.gateways[0].terminate();
}

/// Opens streams and has the gateway reset each of them; the code of the GOAWAY that ends it, and how many streams there were.
async fn provoke(
    scene: &Scene,
    key: &IssuedKey,
    provocation: impl Fn(u32) -> Vec<Frame>,
) -> (Option<u32>, usize) {
    let mut wire = Wire::open(scene).await;
    let mut streams = 0;
    for stream in (1..2_000).step_by(2) {
        let content_length = ("content-length", "5");
        let frames = provocation(stream);
        let sent = match frames.iter().any(|frame| frame.kind == DATA) {
            true => {
                wire.post(stream, MARKETS, &key.key, &[content_length])
                    .await
            }
            false => wire.get(stream, MARKETS, &key.key).await,
        };
        if !sent {
            break;
        }
        for frame in frames {
            wire.send(&frame).await;
        }
        streams += 1;
        // One after the other: what is counted is not what waits to be looked at.
        loop {
            match wire.next().await {
                Some(frame) if frame.kind == GOAWAY => {
                    return (frame.goaway_code(), streams);
                }
                Some(frame) if frame.kind == RST_STREAM && frame.stream == stream => break,
                Some(_) => {}
                None => return (None, streams),
            }
        }
    }
    (None, streams)
}

#[tokio::test]
async fn streams_that_a_client_has_the_gateway_reset_are_bounded_and_counted() {
    let scene = Scene::builder(TOUCHLINE)
        .daily("enterprise", 100_000)
        .spec(|spec| spec.endpoints[0].methods.push("POST".into()))
        .start()
        .await;
    let key = scene.issue("enterprise").await;
    scene.upstream.always(Behaviour::Stall);
    let overflow = 0x7fff_ffffu32.to_be_bytes();
    let data = |stream, payload: &'static [u8]| vec![Frame::new(DATA, END_STREAM, stream, payload)];
    type Provocation<'a> = (&'a str, Box<dyn Fn(u32) -> Vec<Frame> + 'a>);
    let provocations: [Provocation<'_>; 3] = [
        (
            "a window that overflows",
            Box::new(move |stream| vec![Frame::new(WINDOW_UPDATE, 0, stream, overflow)]),
        ),
        (
            "less than the length",
            Box::new(move |stream| data(stream, b"abc")),
        ),
        (
            "more than the length",
            Box::new(move |stream| data(stream, b"abcdefg")),
        ),
    ];
    for (number, (what, provocation)) in provocations.iter().enumerate() {
        let (code, streams) = provoke(&scene, &key, provocation).await;
        assert_eq!(code, Some(CALM), "{what}, {streams} streams");
        assert!(streams <= 48, "{what}: {streams} streams");
        let hits = limit_hits(&scene, "h2_resets").await;
        assert_eq!(hits, number as f64 + 1.0, "{what}");
    }
}

#[tokio::test]
async fn the_library_bounds_resets_where_the_configuration_hardly_does() {
    let scene = Scene::builder(TOUCHLINE)
        .spec(|spec| spec.extra_yaml = "limits: { h2_resets: 10000 }".into())
        .start()
        .await;
    let key = scene.issue("enterprise").await;
    scene.upstream.always(Behaviour::Stall);
    let overflow = 0x7fff_ffffu32.to_be_bytes();
    let provocation = |stream| vec![Frame::new(WINDOW_UPDATE, 0, stream, overflow)];
    let (code, streams) = provoke(&scene, &key, provocation).await;
    assert_eq!(code, Some(CALM), "{streams} streams");
    assert!(streams <= 49, "{streams} streams");
}

#[tokio::test]
async fn data_on_closed_streams_is_bounded_and_counted() {
    let scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("pro").await;
    let mut wire = Wire::open(&scene).await;
    let (mut stream, mut code) = (1, None);
    while code.is_none() && stream < 2_000 {
        wire.get(stream, MARKETS, &key.key).await;
        // Its end, and its reset, which only DATA on it brings about.
        while let Some(frame) = wire.next().await {
            code = code.or(frame.goaway_code());
            if frame.kind == RST_STREAM {
                break;
            }
            if frame.kind == DATA && frame.flags & END_STREAM != 0 {
                wire.send(&Frame::new(DATA, END_STREAM, stream, *b"x"))
                    .await;
            }
        }
        stream += 2;
    }
    assert_eq!(code, Some(CALM));
    assert!(stream <= 97, "{stream}");
    assert_eq!(limit_hits(&scene, "h2_resets").await, 1.0);
}

#[tokio::test]
async fn uploads_that_are_refused_unread_are_no_flood() {
    let scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("pro").await;
    let mut wire = Wire::open(&scene).await;
    let (mut answers, mut resets) = (0, 0);
    for first in (1..400).step_by(100) {
        for stream in (first..first + 100).step_by(2) {
            wire.post(stream, MARKETS, &key.key, &[("content-length", "100000")])
                .await;
        }
        // The rest of each body is waited for after its answer.
        while resets < first.div_ceil(2) + 49 {
            let frame = wire.next().await.expect("no end");
            let text = frame.payload.escape_ascii().to_string();
            answers += u32::from(text.contains("METHOD_NOT_ALLOWED"));
            resets += u32::from(frame.kind == RST_STREAM);
        }
    }
    assert_eq!(answers, 200);
    assert_eq!(resets, 200);
    assert_eq!(limit_hits(&scene, "h2_resets").await, 0.0);
}

#[tokio::test]
async fn answers_that_are_cut_are_no_flood() {
    let scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("pro").await;
    scene.upstream.always(Behaviour::CloseMidBody { after: 3 });
    let mut wire = Wire::open(&scene).await;
    for first in (1..80).step_by(20) {
        for stream in (first..first + 20).step_by(2) {
            wire.get(stream, MARKETS, &key.key).await;
        }
        let mut resets = 0;
        while resets < 10 {
            let frame = wire.next().await.expect("no end");
            assert_ne!(frame.kind, GOAWAY, "{frame:?}");
            resets += u32::from(frame.kind == RST_STREAM);
        }
    }
    assert_eq!(limit_hits(&scene, "h2_resets").await, 0.0);
}

#[tokio::test]
async fn a_client_that_does_not_know_the_settings_yet_may_open_more_streams_than_they_allow() {
    let scene = Scene::builder(TOUCHLINE)
        .spec(|spec| spec.extra_yaml = "limits: { h2_streams: 10 }".into())
        .start()
        .await;
    let key = scene.issue("pro").await;
    let release = Release::default();
    scene
        .upstream
        .always(Behaviour::Until(release.clone(), Box::new(Behaviour::Echo)));
    let mut wire = Wire::open(&scene).await;
    // As many as clients assume before they know (RFC 9113 section 6.5.2).
    for stream in (1..200).step_by(2) {
        wire.get(stream, MARKETS, &key.key).await;
    }
    let mut refused = 0;
    while refused < 90 {
        let frame = wire.next().await.expect("no end");
        assert_ne!(frame.kind, GOAWAY, "{frame:?}");
        refused += u32::from(frame.kind == RST_STREAM);
    }
    release.give();
    assert!(!wire.body(19).await.is_empty());
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
    // Beyond them, by all fields together.
    let last = block(&[("e", &large)]);
    wire.send(&Frame::new(HEADERS, END_STREAM, 5, block(&fields)))
        .await;
    wire.send(&Frame::new(9, END_HEADERS, 5, last)).await;
    assert_eq!(wire.problem(5).await["code"], "HEADERS_TOO_LARGE");
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

#[tokio::test]
async fn a_client_that_acknowledges_every_4_kib_twice_gets_a_large_answer() {
    const STEP_BYTES: u32 = 4_096;
    for memory in ["4MiB", "64MiB"] {
        let scene = Scene::builder(TOUCHLINE)
            .spec(move |spec| spec.extra_yaml = format!("limits: {{ h2_memory: {memory} }}"))
            .start()
            .await;
        let key = scene.issue("starter").await;
        let answer = "x".repeat(4 * 1024 * 1024);
        scene
            .upstream
            .always(Behaviour::Answer(Script::json(200, &answer)));
        let mut wire = Wire::open(&scene).await;
        wire.get(1, MARKETS, &key.key).await;
        let (mut read, mut unacknowledged) = (0, 0);
        while read < answer.len() {
            let frame = wire.next().await.expect("the connection stays");
            assert_ne!(frame.kind, GOAWAY, "{memory}: after {read} bytes");
            if frame.kind == DATA {
                read += frame.payload.len();
                unacknowledged += frame.payload.len() as u32;
            }
            // As Go's client does, as often as its program reads so much.
            while unacknowledged >= STEP_BYTES {
                unacknowledged -= STEP_BYTES;
                for stream in [1, 0] {
                    let more = Frame::new(WINDOW_UPDATE, 0, stream, STEP_BYTES.to_be_bytes());
                    wire.send(&more).await;
                }
            }
        }
        scene.expect_used(&key, 1).await;
    }
}
