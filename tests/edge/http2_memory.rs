//! HTTP/2 clients that ask for much and take nothing: what they cost is bounded, others do not notice, and a client that
//! takes its answers gets all of them.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use harness::upstream::{Release, Script};
use harness::{Behaviour, Call, EndpointSpec, IssuedKey, PATIENCE, Protocol, Scene, eventually};
use socket2::SockRef;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use super::frames::{
    DATA, END_HEADERS, END_STREAM, Frame, HEADERS, RST_STREAM, SETTINGS, WINDOW_UPDATE, Wire,
};
use super::upstream_connections::narrow_listener;
use super::{MARKETS, TOUCHLINE, limit_hits};

/// SETTINGS_INITIAL_WINDOW_SIZE.
const INITIAL_WINDOW_SIZE: u16 = 4;
const CLOSED: &[(u16, u32)] = &[(INITIAL_WINDOW_SIZE, 0)];
const MIB: usize = 1024 * 1024;
/// As many streams as may be open.
const STREAMS: u32 = 100;
/// What a connection may cost; measured are less than two.
const COST_BYTES_MAX: usize = 4 * MIB;

async fn scene_with(limits: &str, answer_bytes: usize) -> (Scene, IssuedKey) {
    scene_over("http1", limits, answer_bytes).await
}

/// The same with an upstream that is spoken to in this version of HTTP; more entries of it may follow.
async fn scene_over(
    protocol: &'static str,
    limits: &str,
    answer_bytes: usize,
) -> (Scene, IssuedKey) {
    let yaml = format!("limits: {{ {limits} }}");
    let scene = Scene::builder(TOUCHLINE)
        // Clients that do not read are to blame, however long the upstream has been silent for them.
        .timeout("slow", "300ms")
        .spec(move |spec| {
            spec.extra_yaml = yaml;
            spec.upstream_extra = format!("protocol: {protocol}");
            spec.endpoints[0].methods.push("POST".into());
            let all = ["starter", "pro", "enterprise"];
            let mut small = EndpointSpec::get("/api/v1/data/small", &all);
            small.methods.push("POST".into());
            spec.endpoints.push(small);
        })
        .start()
        .await;
    let key = scene.issue("enterprise").await;
    let large = Behaviour::Answer(Script::json(200, &"x".repeat(answer_bytes)));
    scene
        .upstream
        .behave(move |asked| match asked.target_text() {
            target if target == MARKETS => large.clone(),
            _ => Behaviour::Echo,
        });
    (scene, key)
}

/// Asks for an answer on every stream.
async fn ask(wire: &mut Wire, key: &IssuedKey) {
    let fields = [
        (":method", "GET"),
        (":scheme", "http"),
        (":authority", "localhost"),
        (":path", MARKETS),
        ("x-api-key", &key.key),
        ("accept-encoding", "gzip"),
    ];
    for number in 0..STREAMS {
        assert!(wire.headers(2 * number + 1, &fields, true).await);
    }
}

#[tokio::test]
async fn a_client_that_takes_no_answer_costs_little_and_others_do_not_notice() {
    for protocol in ["http1", "http2", "http1, compression: {}"] {
        costs_little(protocol).await;
    }
}

async fn costs_little(protocol: &'static str) {
    let (mut scene, key) = scene_over(protocol, "response_write: 60s", MIB).await;
    let honest = scene.client(Protocol::Http2Tls);
    let small = "/api/v1/data/small";
    assert_eq!(honest.call(Call::get(small).key(&key)).await.status, 200);
    let before = scene.gateways[0].process().anonymous_bytes();
    let mut wires = Vec::new();
    for _ in 0..4 {
        let mut wire = Wire::with_settings(&scene, CLOSED).await;
        ask(&mut wire, &key).await;
        wires.push(wire);
    }
    let all = f64::from(STREAMS) * 4.0;
    eventually("streams wait", async || {
        (limit_hits(&scene, "h2_memory").await > all * 0.8).then_some(())
    })
    .await;
    for _ in 0..50 {
        let answer = honest.call(Call::get(small).key(&key)).await;
        assert_eq!(answer.status, 200);
        let cost = scene.gateways[0].process().anonymous_bytes() - before;
        assert!(
            cost < 4 * COST_BYTES_MAX,
            "{cost} bytes for four connections"
        );
    }
    // The rest of them waits for its turn: 47 of a connection are served at most.
    let forwarded = scene.upstream.count();
    assert!(forwarded <= 4 * 47 + 51, "{forwarded}");
}

#[tokio::test]
async fn small_parts_that_a_client_does_not_take_leave_the_connection_to_the_upstream_to_others() {
    const PARTS: usize = 20_000;
    let (scene, key) = scene_over("http2", "response_write: 60s", 0).await;
    let allowed = Arc::new(Semaphore::new(PARTS));
    let events = Behaviour::Parts {
        kind: "text/event-stream",
        parts: vec!["data: 1\n\n"; PARTS],
        allowed: allowed.clone(),
    };
    scene
        .upstream
        .behave(move |asked| match asked.target_text() {
            target if target == MARKETS => events.clone(),
            _ => Behaviour::Echo,
        });
    let mut wire = Wire::with_settings(&scene, CLOSED).await;
    assert!(wire.get(1, MARKETS, &key.key).await);
    eventually("the upstream can send no more", async || {
        let before = allowed.available_permits();
        tokio::time::sleep(Duration::from_millis(300)).await;
        (before < PARTS && allowed.available_permits() == before).then_some(())
    })
    .await;
    let honest = scene.client(Protocol::Http1);
    for _ in 0..3 {
        let answer = honest.call(Call::get("/api/v1/data/small").key(&key)).await;
        assert_eq!(answer.status, 200);
    }
    let asked = scene.upstream.recorded();
    assert!(
        asked
            .iter()
            .all(|one| one.connection == asked[0].connection)
    );
    assert!(allowed.available_permits() > 0, "all parts were taken");
}

#[tokio::test]
async fn a_hundred_streams_of_small_parts_that_no_client_takes_cost_little() {
    const ROUNDS: usize = 800;
    let (mut scene, key) = scene_over("http1", "response_write: 60s", 0).await;
    let allowed = Arc::new(Semaphore::new(0));
    let events = Behaviour::Parts {
        kind: "text/event-stream",
        parts: vec!["data: 1\n\n"; 2 * ROUNDS],
        allowed: allowed.clone(),
    };
    scene.upstream.always(events);
    let before = scene.gateways[0].process().anonymous_bytes();
    let mut wire = Wire::with_settings(&scene, &[(INITIAL_WINDOW_SIZE, 0x7fff_ffff)]).await;
    // The system takes little of what the windows allow.
    let socket = SockRef::from(&wire.socket);
    socket.set_recv_buffer_size(4096).unwrap();
    let more = 0x7fff_0000_u32.to_be_bytes();
    assert!(wire.send(&Frame::new(WINDOW_UPDATE, 0, 0, more)).await);
    ask(&mut wire, &key).await;
    for _ in 0..ROUNDS {
        // One for each, so that it is read by itself.
        allowed.add_permits((STREAMS as usize).saturating_sub(allowed.available_permits()));
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert!(scene.upstream.count() >= 40, "{}", scene.upstream.count());
    let after = scene.gateways[0].process().anonymous_bytes();
    let cost = after.saturating_sub(before);
    assert!(after > 0 && cost < COST_BYTES_MAX, "{cost} bytes");
}

#[tokio::test]
async fn unread_bytes_of_uploads_keep_no_parts_of_others_in_memory() {
    const ROUNDS: usize = 2_000;
    const PART: &[u8] = &[b'x'; 8_000];
    let limits = "response_write: 60s, request_read: 60s, body_bytes: 64MiB";
    let (mut scene, key) = scene_with(limits, 0).await;
    let mut wire = Wire::with_settings(&scene, CLOSED).await;
    // This one is read.
    assert!(wire.post(1, "/api/v1/data/small", &key.key, &[]).await);
    // Some of these wait for their client to take a 401, others for their turn.
    for number in 1..STREAMS {
        assert!(wire.post(2 * number + 1, MARKETS, "unknown", &[]).await);
    }
    let before = scene.gateways[0].process().anonymous_bytes();
    let mut window = 16 * 1024;
    for round in 0..ROUNDS {
        let unread = 2 * (round as u32 % (STREAMS - 1)) + 3;
        assert!(wire.send(&Frame::new(DATA, 0, unread, *b"x")).await);
        while window < PART.len() {
            let frame = wire.next().await.expect("the connection stays");
            if (frame.kind, frame.stream) == (WINDOW_UPDATE, 1) {
                let more: [u8; 4] = frame.payload.try_into().unwrap();
                window += u32::from_be_bytes(more) as usize;
            }
        }
        window -= PART.len();
        assert!(wire.send(&Frame::new(DATA, 0, 1, PART)).await);
    }
    let after = scene.gateways[0].process().anonymous_bytes();
    let cost = after.saturating_sub(before);
    assert!(after > 0 && cost < COST_BYTES_MAX, "{cost} bytes");
    assert!(wire.send(&Frame::new(DATA, END_STREAM, 1, *b"x")).await);
    let whole = ROUNDS * PART.len() + 1;
    eventually("the upload arrives", async || {
        let uploads = scene.upstream.recorded();
        uploads
            .iter()
            .any(|asked| asked.body.len() == whole)
            .then_some(())
    })
    .await;
}

#[tokio::test]
async fn trailers_of_uploads_that_wait_are_not_kept() {
    /// References to a field in the table of the connection, which is empty but for its name.
    const FIELDS: usize = 900;
    let (mut scene, _) = scene_with("response_write: 60s, request_read: 60s", 0).await;
    let before = scene.gateways[0].process().anonymous_bytes();
    let mut wires = Vec::new();
    for _ in 0..4 {
        let mut wire = Wire::with_settings(&scene, CLOSED).await;
        let streams = || (0..STREAMS).map(|number| 2 * number + 1);
        for stream in streams() {
            assert!(wire.post(stream, MARKETS, "unknown", &[]).await);
        }
        let entered = b"\x40\x01b\x00".as_slice();
        for stream in streams() {
            assert!(wire.send(&Frame::new(DATA, 0, stream, *b"x")).await);
            let first = if stream == 1 { entered } else { &[] };
            let block = [first, &[0xbe; FIELDS]].concat();
            let trailers = Frame::new(HEADERS, END_HEADERS | END_STREAM, stream, block);
            assert!(wire.send(&trailers).await);
        }
        wire.settle().await;
        wires.push(wire);
    }
    let after = scene.gateways[0].process().anonymous_bytes();
    let cost = after.saturating_sub(before);
    assert!(after > 0 && cost < 4 * COST_BYTES_MAX, "{cost} bytes");
}

#[tokio::test]
async fn small_parts_of_answers_that_wait_keep_no_parts_of_others_in_memory() {
    const WAITING: u32 = 20;
    const DOWNLOADS: usize = 200;
    let (mut scene, key) = scene_over("http2", "response_write: 60s", MIB).await;
    let allowed = Arc::new(Semaphore::new(0));
    let events = Behaviour::Parts {
        kind: "text/event-stream",
        parts: vec!["data: 1\n\n"; 20_000],
        allowed: allowed.clone(),
    };
    let large = Behaviour::Answer(Script::json(200, &"x".repeat(MIB)));
    scene
        .upstream
        .behave(move |asked| match asked.target_text() {
            target if target == MARKETS => large.clone(),
            _ => events.clone(),
        });
    let honest = scene.client(Protocol::Http1);
    // Makes the connection.
    assert_eq!(honest.get(&key, MARKETS).await.status, 200);
    let mut wire = Wire::with_settings(&scene, CLOSED).await;
    for number in 0..WAITING {
        assert!(
            wire.get(2 * number + 1, "/api/v1/data/small", &key.key)
                .await
        );
    }
    eventually("they wait", async || {
        (scene.upstream.count() == WAITING as usize + 1).then_some(())
    })
    .await;
    let before = scene.gateways[0].process().anonymous_bytes();
    let ticks = async {
        loop {
            allowed.add_permits((WAITING as usize).saturating_sub(allowed.available_permits()));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let downloads = async {
        for _ in 0..DOWNLOADS {
            assert_eq!(honest.get(&key, MARKETS).await.body.len(), MIB);
        }
    };
    tokio::select! {
        () = ticks => {}
        () = downloads => {}
    }
    let asked = scene.upstream.recorded();
    assert!(
        asked
            .iter()
            .all(|one| one.connection == asked[0].connection)
    );
    let after = scene.gateways[0].process().anonymous_bytes();
    let cost = after.saturating_sub(before);
    assert!(after > 0 && cost < COST_BYTES_MAX, "{cost} bytes");
}

#[tokio::test]
async fn uploads_in_tiny_chunks_to_a_server_that_reads_nothing_cost_little() {
    const UPLOADS: usize = 8;
    let (listener, upstream) = narrow_listener();
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((mut socket, _)) = listener.accept().await {
            // Its windows allow everything.
            let settings = Frame::new(SETTINGS, 0, 0, [0, 4, 0x7f, 0xff, 0xff, 0xff]);
            let more = Frame::new(WINDOW_UPDATE, 0, 0, 0x7fff_0000_u32.to_be_bytes());
            let hello = [settings.bytes(), more.bytes()].concat();
            socket.write_all(&hello).await.unwrap();
            open.push(socket);
        }
    });
    let mut scene = Scene::builder(TOUCHLINE)
        .timeout("read", "60s")
        .timeout("total", "60s")
        .spec(move |spec| {
            spec.upstream = upstream;
            spec.upstream_extra = "protocol: http2".into();
            spec.endpoints[0].methods.push("POST".into());
        })
        .start()
        .await;
    let key = scene.issue("enterprise").await;
    let head = format!(
        "POST {MARKETS} HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {}\r\nTransfer-Encoding: chunked\r\n\r\n",
        key.key
    );
    let before = scene.gateways[0].process().anonymous_bytes();
    let uploads = (0..UPLOADS).map(async |_| {
        let mut socket = TcpStream::connect(scene.gateways[0].http).await.unwrap();
        socket.write_all(head.as_bytes()).await.unwrap();
        let chunks = b"1\r\nx\r\n".repeat(1_000);
        for _ in 0..40 {
            let sent = tokio::time::timeout(Duration::from_secs(1), socket.write_all(&chunks));
            match sent.await {
                Ok(sent) => sent.unwrap(),
                // The gateway reads no more.
                Err(_) => break,
            }
        }
        socket
    });
    let open = futures_util::future::join_all(uploads).await;
    // What the gateway reads of it is read soon.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let after = scene.gateways[0].process().anonymous_bytes();
    let cost = after.saturating_sub(before);
    assert!(after > 0 && cost < COST_BYTES_MAX, "{cost} bytes");
    drop(open);
}

#[tokio::test]
async fn fields_that_differ_from_answer_to_answer_keep_no_answer_in_memory() {
    const ANSWERS: usize = 100;
    let (mut scene, key) = scene_with("response_write: 60s", 0).await;
    let body = "x".repeat(15_000);
    scene.upstream.behave(move |asked| {
        Behaviour::Answer(Script::json(200, &body).header("X-Trace", &asked.id))
    });
    let clients: Vec<_> = (0..10).map(|_| scene.client(Protocol::Http2Tls)).collect();
    let answers = async |count: usize| {
        for _ in 0..count {
            for client in &clients {
                assert_eq!(client.get(&key, MARKETS).await.status, 200);
            }
        }
    };
    answers(2).await;
    let before = scene.gateways[0].process().anonymous_bytes();
    answers(ANSWERS).await;
    // Kept, those in the table of a connection would take a MiB.
    let after = scene.gateways[0].process().anonymous_bytes();
    let cost = after.saturating_sub(before);
    assert!(after > 0 && cost < clients.len() * MIB / 4, "{cost} bytes");
}

#[tokio::test]
async fn answers_that_no_client_takes_are_given_up_and_charged_and_those_that_follow_go_on() {
    // Over HTTP/2, requests are sent of whose answers nothing is read.
    for protocol in ["http1", "http2"] {
        let (scene, key) = scene_over(protocol, "response_write: 1s", MIB).await;
        let mut wire = Wire::with_settings(&scene, CLOSED).await;
        ask(&mut wire, &key).await;
        let mut ended = 0;
        while ended < STREAMS {
            let frame = wire.next().await.expect("the connection stays");
            if frame.kind == RST_STREAM {
                ended += 1;
            }
        }
        let forwarded = scene.upstream.count() as u64;
        // Who never had a turn is not sent on.
        assert!((1..u64::from(STREAMS)).contains(&forwarded), "{forwarded}");
        scene.expect_used(&key, forwarded).await;
        let open = Frame::new(SETTINGS, 0, 0, [0, 4, 0, 0x10, 0, 0]);
        assert!(wire.send(&open).await);
        assert!(wire.get(1_001, "/api/v1/data/small", &key.key).await);
        assert!(!wire.body(1_001).await.is_empty());
        scene.expect_used(&key, forwarded + 1).await;
    }
}

#[tokio::test]
async fn an_answer_that_waits_for_its_client_takes_no_place_of_its_key() {
    let scene = Scene::builder(TOUCHLINE)
        .tier("starter", "concurrent: 1")
        .spec(|spec| spec.extra_yaml = "limits: { response_write: 10m }".into())
        .start()
        .await;
    let key = scene.issue("starter").await;
    let mut wire = Wire::with_settings(&scene, CLOSED).await;
    assert!(wire.get(1, MARKETS, &key.key).await);
    while wire.next().await.expect("the connection stays").kind != HEADERS {}
    let client = scene.client(Protocol::Http1);
    eventually("the place is free", async || {
        (client.get(&key, MARKETS).await.status == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_request_that_is_reset_while_answers_wait_is_free_if_no_upstream_has_it() {
    let (scene, key) = scene_with("response_write: 60s", MIB).await;
    let mut wire = Wire::with_settings(&scene, CLOSED).await;
    let (mut stream, mut forwarded) = (1, 0);
    // Until the unread answers leave no room for the next one.
    loop {
        assert!(wire.get(stream, MARKETS, &key.key).await);
        scene.expect_used(&key, forwarded + 1).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        if scene.upstream.count() as u64 == forwarded {
            break;
        }
        (stream, forwarded) = (stream + 2, forwarded + 1);
    }
    assert!(forwarded > 0);
    let reset = 8_u32.to_be_bytes();
    assert!(wire.send(&Frame::new(RST_STREAM, 0, stream, reset)).await);
    scene.expect_used(&key, forwarded).await;
    assert_eq!(scene.upstream.count() as u64, forwarded);
}

#[tokio::test]
async fn a_client_that_takes_its_answers_late_gets_every_one_whole() {
    const ANSWER_BYTES: usize = 200_000;
    for protocol in ["http1", "http2"] {
        takes_them_late(protocol, ANSWER_BYTES).await;
    }
}

async fn takes_them_late(protocol: &'static str, answer_bytes: usize) {
    let (scene, key) = scene_over(protocol, "response_write: 60s", answer_bytes).await;
    let mut wire = Wire::with_settings(&scene, CLOSED).await;
    ask(&mut wire, &key).await;
    eventually("streams wait", async || {
        (limit_hits(&scene, "h2_memory").await > 80.0).then_some(())
    })
    .await;
    assert!(scene.upstream.count() < 50, "{}", scene.upstream.count());
    let more = 0x7fff_0000_u32.to_be_bytes();
    let open = [0, 4, 0x7f, 0xff, 0, 0];
    assert!(wire.send(&Frame::new(SETTINGS, 0, 0, open)).await);
    assert!(wire.send(&Frame::new(WINDOW_UPDATE, 0, 0, more)).await);
    let bytes = wire.whole_answers(STREAMS).await;
    assert_eq!(bytes, answer_bytes * STREAMS as usize);
    scene.expect_used(&key, u64::from(STREAMS)).await;
}

#[tokio::test]
async fn a_hundred_large_answers_and_uploads_at_once_on_one_connection_are_all_served() {
    for protocol in ["http1", "http2"] {
        all_are_served(protocol).await;
    }
}

async fn all_are_served(protocol: &'static str) {
    let (mut scene, key) = scene_over(protocol, "response_write: 60s", MIB).await;
    let client = scene.client(Protocol::Http2Tls);
    // Makes the connection.
    assert_eq!(client.get(&key, "/api/v1/data/small").await.status, 200);
    let upload = vec![b'x'; 200_000];
    let calls = (0..STREAMS).map(|number| {
        let call = match number % 2 {
            0 => Call::get(MARKETS),
            _ => Call::new("POST", MARKETS).body(upload.clone()),
        };
        client.call(call.key(&key))
    });
    let answers = futures_util::future::join_all(calls);
    let answers = tokio::time::timeout(2 * PATIENCE, answers)
        .await
        .expect("every answer");
    for answer in answers {
        assert_eq!((answer.status, answer.body.len()), (200, MIB));
    }
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn uploads_of_announced_length_on_a_new_connection_are_all_kept_to_be_sent_again() {
    let (scene, key) = scene_over("http2", "response_write: 60s", 0).await;
    let first_attempts = Mutex::new(HashSet::new());
    scene.upstream.behave(move |asked| {
        let is_first = first_attempts.lock().unwrap().insert(asked.id.clone());
        match is_first {
            // REFUSED_STREAM, after the whole body.
            true => Behaviour::ResetStream(7),
            false => Behaviour::Echo,
        }
    });
    let client = scene.client(Protocol::Http2Tls);
    let body = vec![b'x'; 40 * 1024];
    let calls = (0..4).map(|_| {
        let call = Call::new("POST", MARKETS).body(body.clone());
        client.call(call.key(&key))
    });
    for answer in futures_util::future::join_all(calls).await {
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    let sent = scene.upstream.recorded();
    assert_eq!(sent.len(), 8);
    assert!(sent.iter().all(|asked| asked.body == body));
    scene.expect_used(&key, 4).await;
}

#[tokio::test]
async fn uploads_of_unknown_length_on_a_new_connection_wait_for_none_that_began_before() {
    let (scene, key) = scene_of_events("response_write: 60s").await;
    let target = "/api/v1/data/small";
    let mut wire = Wire::open(&scene).await;
    let streams = [1, 3, 5];
    for stream in streams {
        assert!(wire.post(stream, target, &key.key, &[]).await);
        assert!(wire.send(&Frame::new(DATA, 0, stream, *b"for")).await);
    }
    let all_begun = async || {
        let begun = scene.upstream.begun();
        // Health checks have no identifier.
        let uploads = begun.iter().filter(|id| !id.is_empty());
        (uploads.count() == streams.len()).then_some(())
    };
    eventually("each upload reaches the upstream", all_begun).await;
    for stream in streams {
        let end = Frame::new(DATA, END_STREAM, stream, *b"ecast");
        assert!(wire.send(&end).await);
        assert!(!wire.body(stream).await.is_empty());
    }
    scene.expect_used(&key, 3).await;
}

/// A scene whose first endpoint answers with a stream of events, of which each connection gets those that are allowed.
async fn scene_of_events(limits: &str) -> (Scene, IssuedKey) {
    let (scene, key) = scene_with(limits, 0).await;
    let events = Behaviour::Parts {
        kind: "text/event-stream",
        parts: vec!["data: kick-off\n\n", "data: goal\n\n"],
        allowed: Arc::new(Semaphore::new(0)),
    };
    scene
        .upstream
        .behave(move |asked| match asked.target_text() {
            target if target == MARKETS => events.clone(),
            _ => Behaviour::Echo,
        });
    (scene, key)
}

#[tokio::test]
async fn the_requests_of_a_new_connection_do_not_wait_for_answers_of_a_slow_upstream() {
    for protocol in ["http1", "http2"] {
        // As many as are served at a time, by docs/edge-security.md.
        let requests = if protocol == "http1" { 47 } else { 26 };
        let (scene, key) = scene_over(protocol, "response_write: 60s", 0).await;
        let release = Release::default();
        let held = Behaviour::Until(release.clone(), Box::new(Behaviour::Echo));
        scene.upstream.always(held);
        let mut wire = Wire::open(&scene).await;
        for number in 0..requests {
            assert!(wire.get(2 * number + 1, MARKETS, &key.key).await);
        }
        eventually("every request reaches the upstream", async || {
            let begun = scene.upstream.begun();
            // Health checks have no identifier.
            let asked = begun.iter().filter(|id| !id.is_empty());
            (asked.count() == requests as usize).then_some(())
        })
        .await;
        release.give();
        assert!(wire.whole_answers(requests).await > 0);
        scene.expect_used(&key, u64::from(requests)).await;
    }
}

#[tokio::test]
async fn silent_streams_of_events_leave_the_connection_to_other_requests() {
    let (scene, key) = scene_of_events("response_write: 60s").await;
    let mut wire = Wire::open(&scene).await;
    for number in 0..20 {
        assert!(wire.get(2 * number + 1, MARKETS, &key.key).await);
    }
    assert!(wire.get(101, "/api/v1/data/small", &key.key).await);
    assert!(!wire.body(101).await.is_empty());
    scene.expect_used(&key, 21).await;
}

#[tokio::test]
async fn a_request_that_gets_no_turn_on_its_connection_is_answered_with_500_and_free() {
    let (scene, key) = scene_of_events("response_write: 2s, h2_memory: 1MiB").await;
    let mut wire = Wire::open(&scene).await;
    for number in 1..STREAMS {
        assert!(wire.get(2 * number + 1, MARKETS, &key.key).await);
    }
    assert!(wire.get(1_001, "/api/v1/data/small", &key.key).await);
    let problem = wire.problem(1_001).await;
    assert_eq!(problem["code"], "INTERNAL_ERROR");
    let served = scene.upstream.count() as u64;
    assert!((2..50).contains(&served), "{served}");
    scene.expect_used(&key, served).await;
    let line = scene.gateways[0]
        .logged_where(|line| line["path"] == "/api/v1/data/small")
        .await;
    let cause = line["cause"].as_str().unwrap();
    assert!(cause.contains("limits.h2_memory"), "{cause}");
    assert!(line["duration_ms"].as_f64().unwrap() >= 2_000.0, "{line}");
}

#[tokio::test]
async fn a_head_of_many_fields_is_refused_and_not_kept_while_the_client_waits_with_its_windows() {
    let (mut scene, key) = scene_with("response_write: 60s", MIB).await;
    let before = scene.gateways[0].process().anonymous_bytes();
    let mut wires = Vec::new();
    for _ in 0..4 {
        let mut wire = Wire::with_settings(&scene, CLOSED).await;
        let id = "the-clients-own";
        let mut fields = vec![
            (":method", "GET"),
            (":scheme", "http"),
            (":authority", "localhost"),
            (":path", MARKETS),
            ("x-request-id", id),
        ];
        fields.resize(700, ("a", ""));
        for number in 0..STREAMS {
            assert!(wire.headers(2 * number + 1, &fields, true).await);
        }
        wires.push(wire);
    }
    let refused = eventually("refusals", async || {
        let hits = limit_hits(&scene, "headers").await;
        (hits >= 16.0).then_some(hits)
    })
    .await;
    // How many heads the library reads at once depends on the machine; kept, these would take 50 MiB.
    let cost = scene.gateways[0].process().anonymous_bytes() - before;
    assert!(
        cost < 8 * COST_BYTES_MAX,
        "{cost} bytes after {refused} refusals"
    );
    let open = Frame::new(SETTINGS, 0, 0, [0, 4, 0, 0, 0xff, 0xff]);
    assert!(wires[0].send(&open).await);
    let problem = wires[0].problem(1).await;
    assert_eq!(problem["code"], "HEADERS_TOO_LARGE");
    assert_eq!(problem["request_id"], "the-clients-own");
    assert_eq!(scene.upstream.count(), 0);
    scene.expect_used(&key, 0).await;
}
