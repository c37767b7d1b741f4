//! Answers that are compressed on their way, read by real decoders: their content, when their parts arrive, and how they end.

use std::io::Read;
use std::net::SocketAddr;
use std::sync::Arc;

use futures_util::future::join_all;
use harness::client::{HOST, Until};
use harness::upstream::Script;
use harness::{
    Allowances, Answer, Behaviour, Call, Client, IssuedKey, PATIENCE, Protocol, Scene,
    SceneBuilder, eventually,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use super::{MARKETS, TOUCHLINE, assert_quota_status};

const CODINGS: [&str; 2] = ["gzip", "zstd"];
/// How the upstream is spoken to.
const UPSTREAMS: [&str; 2] = ["http1", "http2"];

fn compressing(protocol: &'static str) -> SceneBuilder {
    Scene::builder(TOUCHLINE).spec(move |spec| {
        spec.upstream_extra =
            format!("protocol: {protocol}, compression: {{}}, ejection: {{ failures: 0 }}");
    })
}

/// A body of several reads.
fn league() -> String {
    let row = |n| format!("{{\"fixture\":{n},\"home\":\"Leeds United\",\"away\":\"Everton\"}},");
    (0..4_000).map(row).collect()
}

/// What a decoder makes of what came, and whether that was all of it.
fn decoded(coding: &str, coded: &[u8]) -> (String, bool) {
    let mut body = Vec::new();
    let ended = match coding {
        "gzip" => flate2::read::GzDecoder::new(coded).read_to_end(&mut body),
        "zstd" => zstd::stream::read::Decoder::new(coded)
            .unwrap()
            .read_to_end(&mut body),
        other => panic!("no decoder for {other}"),
    };
    (String::from_utf8(body).unwrap(), ended.is_ok())
}

fn asking(key: &IssuedKey, coding: &str) -> Call {
    Call::get(MARKETS)
        .key(key)
        .header("accept-encoding", coding)
}

#[track_caller]
fn assert_coded(answer: &Answer, coding: &str, body: &str) {
    assert!(answer.complete, "{:?}", answer.headers);
    assert_eq!(answer.header("content-encoding"), Some(coding));
    assert_eq!(answer.header("content-length"), None);
    assert_eq!(answer.header("vary"), Some("x-api-key, accept-encoding"));
    let (read, ended) = decoded(coding, &answer.body);
    assert!(ended && read == body, "{} bytes", answer.body.len());
    assert!(answer.body.len() < body.len());
}

#[tokio::test]
async fn a_client_that_takes_a_coding_gets_the_whole_answer_in_it() {
    for upstream in UPSTREAMS {
        let mut scene = compressing(upstream).start().await;
        let key = scene.issue("starter").await;
        let text = league();
        let script = Script::json(200, &text)
            .header("ETag", "\"a\"")
            .header("Accept-Ranges", "bytes");
        let rows = [
            Behaviour::Answer(script.clone()),
            Behaviour::Answer(script.clone().chunked()),
            Behaviour::Answer(script.clone().trailer("x-trailer", "1")),
            Behaviour::Informational(103, Box::new(Behaviour::Answer(script))),
        ];
        let (mut left, mut sent) = (1_000, Vec::new());
        for protocol in Protocol::ALL {
            let client = scene.client(protocol);
            for behaviour in &rows {
                scene.upstream.always(behaviour.clone());
                for coding in CODINGS {
                    let answer = client.call(asking(&key, coding)).await;
                    left -= 1;
                    assert_quota_status(&answer, 1_000, left);
                    assert_coded(&answer, coding, &text);
                    assert_eq!(answer.header("etag"), Some("W/\"a\""));
                    assert_eq!(answer.header("accept-ranges"), None);
                    let id = answer.header("x-request-id").unwrap().to_owned();
                    let asked = scene.upstream.recorded_as(&id).pop().unwrap();
                    assert_eq!(asked.values("accept-encoding"), [coding]);
                    sent.push((id, answer.body.len()));
                }
            }
        }
        // What left the gateway, not what it was made of.
        for line in scene.gateways[0].logged(sent.len()).await {
            let (_, bytes) = sent
                .iter()
                .find(|(id, _)| line["request_id"] == id.as_str())
                .unwrap();
            assert_eq!(line["bytes_sent"], *bytes, "{line}");
        }
        scene.assert_ledgers_agree().await;
    }
}

#[tokio::test]
async fn a_client_that_takes_none_gets_the_answer_as_it_is_and_caches_are_informed_that_others_may_not()
 {
    let mut scene = compressing("http1").start().await;
    let key = scene.issue("starter").await;
    let text = league();
    let script = Script::json(200, &text).header("ETag", "\"a\"");
    scene.upstream.always(Behaviour::Answer(script));
    for protocol in Protocol::ALL {
        let client = scene.client(protocol);
        for call in [
            Call::get(MARKETS).key(&key),
            asking(&key, "identity"),
            asking(&key, "gzip;q=0, br"),
            asking(&key, "zstd;q=none"),
        ] {
            let answer = client.call(call).await;
            assert!(answer.complete && answer.body == text);
            assert_eq!(answer.header("content-encoding"), None);
            assert_eq!(answer.number("content-length"), Some(text.len() as u64));
            assert_eq!(answer.header("vary"), Some("x-api-key, accept-encoding"));
            assert_eq!(answer.header("etag"), Some("\"a\""));
        }
    }
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn answers_that_are_coded_sealed_short_or_of_no_such_type_pass_untouched() {
    for upstream in UPSTREAMS {
        let mut scene = compressing(upstream).start().await;
        let key = scene.issue("starter").await;
        let text = league();
        let json = |status| Script::json(status, &text);
        let mut picture = json(200);
        picture.headers = vec![("Content-Type".into(), "image/png".into())];
        for script in [
            json(200).header("Content-Encoding", "gzip"),
            json(200).header("Content-Encoding", "br").chunked(),
            json(200).header("Cache-Control", "no-transform"),
            json(200).header("Content-Digest", "sha-256=:AA==:"),
            json(206).header("Content-Range", "bytes 0-9/10"),
            Script::json(200, &text[..1_023]),
            picture,
        ] {
            scene.upstream.always(Behaviour::Answer(script.clone()));
            for protocol in Protocol::ALL {
                let client = scene.client(protocol);
                let answer = client.call(asking(&key, "gzip, zstd")).await;
                assert_eq!(answer.status, script.status);
                assert!(answer.complete && answer.body == script.body, "{script:?}");
                let coding = script
                    .headers
                    .iter()
                    .find(|(name, _)| name == "Content-Encoding");
                let coding = coding.map(|(_, value)| value.as_str());
                assert_eq!(answer.header("content-encoding"), coding);
                assert_eq!(answer.header("vary"), Some("x-api-key"));
            }
        }
        scene.assert_ledgers_agree().await;
    }
}

#[tokio::test]
async fn an_upstream_whose_answers_are_not_to_be_compressed_is_left_alone() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    let text = league();
    scene
        .upstream
        .always(Behaviour::Answer(Script::json(200, &text)));
    for protocol in Protocol::ALL {
        let answer = scene.client(protocol).call(asking(&key, "gzip")).await;
        assert!(answer.complete && answer.body == text);
        assert_eq!(answer.header("vary"), Some("x-api-key"));
    }
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn answers_without_a_body_show_what_they_would_with_one_and_have_none() {
    for upstream in UPSTREAMS {
        let mut scene = compressing(upstream).start().await;
        let key = scene.issue("starter").await;
        let text = league();
        for protocol in Protocol::ALL {
            let client = scene.client(protocol);
            let script = Script::json(200, &text).header("ETag", "\"a\"");
            scene.upstream.always(Behaviour::Answer(script));
            let head = Call::new("HEAD", MARKETS).key(&key);
            let answer = client.call(head.header("accept-encoding", "gzip")).await;
            assert!(answer.complete && answer.body.is_empty(), "{answer:?}");
            assert_eq!(answer.header("content-encoding"), Some("gzip"));
            assert_eq!(answer.header("content-length"), None);
            assert_eq!(answer.header("etag"), Some("W/\"a\""));

            let script = Script::json(304, "").header("ETag", "\"a\"");
            scene.upstream.always(Behaviour::Answer(script));
            let held = asking(&key, "gzip").header("if-none-match", "W/\"a\"");
            let answer = client.call(held).await;
            assert!(answer.status == 304 && answer.complete && answer.body.is_empty());
            assert_eq!(answer.header("etag"), Some("W/\"a\""));
            assert_eq!(answer.header("content-encoding"), None);

            scene.upstream.always(Behaviour::Status(204));
            let answer = client.call(asking(&key, "gzip")).await;
            assert!(answer.status == 204 && answer.complete && answer.body.is_empty());
            assert_eq!(answer.header("content-encoding"), None);

            let nothing = Script::json(200, "").chunked();
            scene.upstream.always(Behaviour::Answer(nothing));
            let answer = client.call(asking(&key, "gzip")).await;
            assert!(answer.status == 200 && answer.complete);
            if upstream == "http1" {
                assert_eq!(answer.header("content-encoding"), Some("gzip"));
                assert_eq!(decoded("gzip", &answer.body), (String::new(), true));
            } else {
                // There the header itself states that nothing follows.
                assert_eq!(answer.header("content-encoding"), None);
                assert!(answer.body.is_empty());
            }
        }
        scene.assert_ledgers_agree().await;
    }
}

/// Reads the chunks of a body so far.
fn unchunked(mut bytes: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(end) = bytes.windows(2).position(|two| two == b"\r\n") {
        let size = std::str::from_utf8(&bytes[..end]).unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        let Some(chunk) = bytes.get(end + 2..end + 2 + size) else {
            break;
        };
        body.extend(chunk);
        bytes = bytes.get(end + 4 + size..).unwrap_or_default();
    }
    body
}

/// Reads more and more of an answer.
enum Reading {
    Http1(TcpStream, Vec<u8>),
    Http2(h2::RecvStream, Vec<u8>),
}

impl Reading {
    async fn begin(client: &Client, address: SocketAddr, key: &IssuedKey, coding: &str) -> Reading {
        if !client.protocol().is_http2() {
            let mut socket = TcpStream::connect(address).await.unwrap();
            let request = format!(
                "GET {MARKETS} HTTP/1.1\r\nHost: {HOST}\r\nX-API-Key: {}\r\nAccept-Encoding: {coding}\r\n\r\n",
                key.key
            );
            socket.write_all(request.as_bytes()).await.unwrap();
            return Reading::Http1(socket, Vec::new());
        }
        let stream = client.tls_stream().await;
        let (mut sender, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(async move {
            let _ = connection.await;
        });
        let request = http::Request::get(format!("https://{HOST}{MARKETS}"))
            .header("x-api-key", &key.key)
            .header("accept-encoding", coding)
            .body(())
            .unwrap();
        let (answer, _) = sender.send_request(request, true).unwrap();
        Reading::Http2(answer.await.unwrap().into_body(), Vec::new())
    }

    /// Reads on until `is_enough` of the coded body so far; what that is.
    async fn until(&mut self, is_enough: impl Fn(&[u8]) -> bool) -> Vec<u8> {
        let read = async {
            loop {
                let body = match self {
                    Reading::Http1(_, bytes) => {
                        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
                        end.map_or_else(Vec::new, |end| unchunked(&bytes[end + 4..]))
                    }
                    Reading::Http2(_, body) => body.clone(),
                };
                if is_enough(&body) {
                    return body;
                }
                match self {
                    Reading::Http1(socket, bytes) => {
                        assert_ne!(socket.read_buf(bytes).await.unwrap(), 0);
                    }
                    Reading::Http2(stream, body) => {
                        let part = stream.data().await.unwrap().unwrap();
                        let flow = stream.flow_control();
                        flow.release_capacity(part.len()).unwrap();
                        body.extend(part);
                    }
                }
            }
        };
        tokio::time::timeout(PATIENCE, read)
            .await
            .expect("it comes")
    }
}

#[tokio::test]
async fn each_event_of_a_compressed_stream_comes_before_the_next_one_is_sent() {
    let events = vec![
        "data: kick-off\n\n",
        "data: goal\n\n",
        "data: full time\n\n",
    ];
    for upstream in UPSTREAMS {
        let scene = compressing(upstream).start().await;
        let key = scene.issue("starter").await;
        for protocol in [Protocol::Http1, Protocol::Http2Tls] {
            let client = scene.client(protocol);
            for coding in CODINGS {
                let allowed = Arc::new(Semaphore::new(0));
                scene.upstream.always(Behaviour::Parts {
                    kind: "text/event-stream",
                    parts: events.clone(),
                    allowed: allowed.clone(),
                });
                let http = scene.gateways[0].http;
                let mut answer = Reading::begin(&client, http, &key, coding).await;
                let mut sent = String::new();
                for event in &events {
                    allowed.add_permits(1);
                    sent.push_str(event);
                    answer
                        .until(|coded| !coded.is_empty() && decoded(coding, coded).0 == sent)
                        .await;
                }
                let whole = (sent, true);
                answer
                    .until(|coded| !coded.is_empty() && decoded(coding, coded) == whole)
                    .await;
            }
        }
        scene.expect_used(&key, 4).await;
    }
}

#[tokio::test]
async fn requests_beside_a_compressed_stream_of_events_are_served() {
    // There is room for both in the second only.
    for limits in ["", "limits: { h2_memory: 32MiB }"] {
        are_served_beside_a_compressed_stream_of_events(limits).await;
    }
}

async fn are_served_beside_a_compressed_stream_of_events(limits: &'static str) {
    let scene = compressing("http1")
        .timeout("read", "60s")
        .spec(|spec| spec.extra_yaml = limits.into())
        .start()
        .await;
    let key = scene.issue("starter").await;
    let stream = scene.client(Protocol::Http2Tls).tls_stream().await;
    let (sender, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(async move {
        let _ = connection.await;
    });
    let ask = async |id: &str| {
        let request = http::Request::get(format!("https://{HOST}{MARKETS}"))
            .header("x-api-key", &key.key)
            .header("x-request-id", id)
            .header("accept-encoding", "gzip")
            .body(())
            .unwrap();
        let mut sender = sender.clone().ready().await.unwrap();
        let (answer, _) = sender.send_request(request, true).unwrap();
        let answer = answer.await.unwrap();
        assert_eq!(answer.status(), 200);
        answer.into_body()
    };
    let allowed = Arc::new(Semaphore::new(1));
    let events = Behaviour::Parts {
        kind: "text/event-stream",
        parts: vec!["data: kick-off\n\n", "data: goal\n\n"],
        allowed: allowed.clone(),
    };
    scene.upstream.behave_for("events", events);
    let mut events = ask("events").await;
    assert!(!events.data().await.unwrap().unwrap().is_empty());
    // The client reads: that this answer waited for the encoder of the other is no reason to charge it.
    let broken = Behaviour::ResetMidBody { after: 4 };
    scene.upstream.behave_for("broken", broken);
    let mut broken = ask("broken").await;
    while let Some(Ok(_)) = broken.data().await {}
    scene.expect_used(&key, 1).await;
    for _ in 0..20 {
        let mut answer = ask("other").await;
        while let Some(part) = answer.data().await {
            part.unwrap();
        }
    }
    // The stream has waited for all of them.
    allowed.add_permits(1);
    while let Some(part) = events.data().await {
        part.unwrap();
    }
    scene.expect_used(&key, 21).await;
}

#[tokio::test]
async fn a_hundred_compressed_answers_at_once_on_one_connection_are_all_whole() {
    for upstream in UPSTREAMS {
        let mut scene = compressing(upstream).start().await;
        let key = scene.issue("starter").await;
        let text = league();
        scene
            .upstream
            .always(Behaviour::Answer(Script::json(200, &text).chunked()));
        let client = scene.client(Protocol::Http2Tls);
        let calls = (0..100).map(|n| client.call(asking(&key, CODINGS[n % 2])));
        let mut coded = 0;
        for (n, answer) in join_all(calls).await.into_iter().enumerate() {
            if answer.header("content-encoding").is_some() {
                assert_coded(&answer, CODINGS[n % 2], &text);
                coded += 1;
            } else {
                // On a slow machine: an answer that has waited a second for the encoders of others is sent uncompressed.
                assert!(answer.complete && answer.body == text.as_bytes());
            }
        }
        assert!(coded > 0);
        scene.expect_used(&key, 100).await;
        scene.assert_ledgers_agree().await;
    }
}

#[tokio::test]
async fn a_compressed_answer_that_the_upstream_breaks_off_is_cut_for_its_decoder_too_and_refunded()
{
    for upstream in UPSTREAMS {
        let mut scene = compressing(upstream).start().await;
        let key = scene.issue("starter").await;
        let after = 200_000;
        for protocol in Protocol::ALL {
            let client = scene.client(protocol);
            for broken in [
                Behaviour::ResetMidBody { after },
                Behaviour::CloseMidBody { after },
                Behaviour::ResetStreamMidBody { after, code: 2 },
            ] {
                scene.upstream.always(broken);
                for coding in CODINGS {
                    let answer = client.call(asking(&key, coding)).await;
                    assert_eq!(answer.status, 200);
                    assert_eq!(answer.header("content-encoding"), Some(coding));
                    assert!(!answer.complete, "{upstream} {protocol:?} {coding}");
                    let (read, ended) = decoded(coding, &answer.body);
                    assert!(!ended && read.len() <= after, "{} bytes", read.len());
                }
            }
        }
        scene.expect_used(&key, 0).await;
        let allowed = Allowances {
            retries: true,
            ..Allowances::default()
        };
        scene.assert_ledgers_agree_with(&allowed).await;
    }
}

#[tokio::test]
async fn an_http_1_0_client_gets_no_chunks_whatever_its_upstream_speaks() {
    for upstream in UPSTREAMS {
        let mut scene = compressing(upstream).start().await;
        let key = scene.issue("starter").await;
        let client = scene.client(Protocol::Http1);
        let text = league();
        for framed in [Script::json(200, &text), Script::json(200, &text).chunked()] {
            scene.upstream.always(Behaviour::Answer(framed));
            for coding in ["", "gzip", "zstd"] {
                let request = format!(
                    "GET {MARKETS} HTTP/1.0\r\nX-API-Key: {}\r\nAccept-Encoding: {coding}\r\n\r\n",
                    key.key
                );
                let exchange = client.raw(request, Until::Closed).await;
                assert!(exchange.closed);
                let end = exchange
                    .bytes
                    .windows(4)
                    .position(|four| four == b"\r\n\r\n");
                let (head, body) = exchange.bytes.split_at(end.unwrap() + 4);
                let head = String::from_utf8_lossy(head).to_ascii_lowercase();
                assert!(head.starts_with("http/1.1 200 "), "{head}");
                assert!(!head.contains("transfer-encoding"), "{head}");
                assert!(head.contains("connection: close"), "{head}");
                let is_coded = head.contains(&format!("content-encoding: {coding}\r\n"));
                if coding.is_empty() {
                    assert!(!is_coded && body == text.as_bytes(), "{head}");
                } else {
                    assert!(is_coded, "{head}");
                    assert_eq!(decoded(coding, body), (text.clone(), true));
                }
            }
        }
        scene.assert_ledgers_agree().await;
    }
}

#[tokio::test]
async fn the_answer_of_an_http_1_0_upstream_goes_out_in_the_gateways_own_version() {
    let mut scene = compressing("http1").start().await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    let text = league();
    let answer = format!(
        "HTTP/1.0 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{text}",
        text.len()
    );
    scene.upstream.always(Behaviour::Raw(answer.into_bytes()));
    for coding in CODINGS {
        assert_coded(&client.call(asking(&key, coding)).await, coding, &text);
    }
    for coding in ["identity", "gzip", "zstd"] {
        let request = format!(
            "GET {MARKETS} HTTP/1.1\r\nHost: a\r\nX-API-Key: {}\r\nAccept-Encoding: {coding}\r\nConnection: close\r\n\r\n",
            key.key
        );
        let exchange = client.raw(request, Until::Closed).await;
        assert!(exchange.bytes.starts_with(b"HTTP/1.1 200 "), "{coding}");
    }
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn an_http_1_0_client_whose_answer_was_broken_off_finds_its_connection_reset() {
    for upstream in UPSTREAMS {
        let scene = compressing(upstream).start().await;
        let key = scene.issue("starter").await;
        scene
            .upstream
            .always(Behaviour::CloseMidBody { after: 200_000 });
        for coding in CODINGS {
            let http = scene.gateways[0].http;
            let mut socket = TcpStream::connect(http).await.unwrap();
            let request = format!(
                "GET {MARKETS} HTTP/1.0\r\nX-API-Key: {}\r\nAccept-Encoding: {coding}\r\n\r\n",
                key.key
            );
            socket.write_all(request.as_bytes()).await.unwrap();
            let mut bytes = Vec::new();
            let read = tokio::time::timeout(PATIENCE, socket.read_to_end(&mut bytes));
            let ended = read.await.expect("it ends").unwrap_err();
            assert_eq!(ended.kind(), std::io::ErrorKind::ConnectionReset);
            assert!(bytes.starts_with(b"HTTP/1.1 200 "), "{} bytes", bytes.len());
        }
        scene.expect_used(&key, 0).await;
    }
}

#[tokio::test]
async fn compression_begins_and_ends_with_a_reload() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    let text = league();
    scene
        .upstream
        .always(Behaviour::Answer(Script::json(200, &text)));
    for (extra, coding) in [
        ("", None),
        ("compression: {}", Some("zstd")),
        ("compression: { codings: [gzip, zstd] }", Some("gzip")),
        ("compression: { min_bytes: 1MiB }", None),
        ("compression: { codings: [gzip] }", Some("gzip")),
        ("", None),
    ] {
        let mut spec = scene.spec.clone();
        spec.upstream_extra = extra.into();
        scene.gateways[0].configure(&spec);
        eventually("the file is applied", async || {
            let answer = client.call(asking(&key, "gzip, zstd")).await;
            (answer.header("content-encoding") == coding).then_some(())
        })
        .await;
    }
    scene.assert_ledgers_agree().await;
}
