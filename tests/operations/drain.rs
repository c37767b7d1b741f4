//! SIGTERM: what is in flight is finished, nothing new is begun.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use harness::client::HOST;
use harness::collector::{Collecting, Collector};
use harness::upstream::{Release, Script};
use harness::{Behaviour, Call, Client, PATIENCE, Protocol, Scene, eventually};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::{MARKETS, STORES, TOUCHLINE};

/// Well below `limits.shutdown_grace` of 20 s.
const AT_ONCE: Duration = Duration::from_secs(5);
/// More than the buffers between upstream and client hold.
const LARGE_BODY_BYTES: usize = 16 * 1024 * 1024;

async fn refuses_connections(scene: &Scene) {
    let gateway = &scene.gateways[0];
    for address in [gateway.http, gateway.https] {
        eventually("new connections are refused", async || {
            TcpStream::connect(address).await.err()
        })
        .await;
    }
}

async fn arrived(scene: &Scene, requests: usize) {
    eventually("the requests are at the upstream", async || {
        (scene.upstream.count() == requests).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_gateway_asked_to_stop_finishes_what_is_in_flight_and_takes_nothing_new() {
    for store in STORES {
        let mut scene = Scene::builder(TOUCHLINE).store(store).start().await;
        let key = scene.issue("starter").await;
        let slow = Behaviour::Delay(Duration::from_secs(2), Box::new(Behaviour::Echo));
        scene.upstream.always(slow);
        let mut in_flight = JoinSet::new();
        for protocol in Protocol::ALL {
            let client = Arc::new(scene.client(protocol));
            let call = Call::get(MARKETS).key(&key);
            in_flight.spawn(async move { client.call(call).await });
        }
        arrived(&scene, Protocol::ALL.len()).await;
        scene.gateways[0].process().ask_to_end();
        refuses_connections(&scene).await;
        assert_eq!(scene.gateways[0].process().ended(), None);
        let (status, body) = scene.admin(0, "/readyz").await;
        assert_eq!(status, 503, "{body}");
        assert!(body.contains("\"draining\":true"), "{body}");
        let (_, metrics) = scene.admin(0, "/metrics").await;
        assert!(
            metrics.contains("touchline_in_flight_requests 3"),
            "{metrics}"
        );
        for answer in in_flight.join_all().await {
            assert!(answer.status == 200 && answer.complete, "{answer:?}");
        }
        let status = scene.gateways[0].process().wait_for_end(PATIENCE);
        assert_eq!(status.unwrap().code(), Some(0));
        scene.assert_ledgers_agree().await;
    }
}

#[tokio::test]
async fn idle_connections_are_closed_and_busy_ones_after_their_answer() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let request = "GET /none HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let address = scene.gateways[0].http;
    let mut idle = TcpStream::connect(address).await.unwrap();
    idle.write_all(request.as_bytes()).await.unwrap();
    let mut first = vec![0; 4_096];
    assert!(idle.read(&mut first).await.unwrap() > 0);

    let key = scene.issue("starter").await;
    let slow = Behaviour::Delay(Duration::from_secs(1), Box::new(Behaviour::Echo));
    scene.upstream.always(slow);
    let mut busy = TcpStream::connect(address).await.unwrap();
    let request = format!(
        "GET {MARKETS} HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {}\r\n\r\n",
        key.key
    );
    busy.write_all(request.as_bytes()).await.unwrap();
    arrived(&scene, 1).await;
    let began = Instant::now();
    scene.gateways[0].process().ask_to_end();
    let mut rest = Vec::new();
    idle.read_to_end(&mut rest).await.unwrap();
    assert!(began.elapsed() < AT_ONCE, "not when its idle time is over");
    let answer = last_answer(&mut busy).await;
    assert!(answer.starts_with("http/1.1 200 "), "{answer}");
    assert!(answer.contains("\r\nconnection: close\r\n"), "{answer}");
    let status = scene.gateways[0].process().wait_for_end(PATIENCE);
    assert_eq!(status.unwrap().code(), Some(0));
}

#[tokio::test]
async fn an_answer_that_begins_as_soon_as_a_gateway_drains_announces_the_end_of_its_connection() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    let release = Release::default();
    let held = Behaviour::Until(release.clone(), Box::new(Behaviour::Echo));
    scene.upstream.always(held);
    let mut socket = TcpStream::connect(scene.gateways[0].http).await.unwrap();
    let head = format!(
        "GET {MARKETS} HTTP/1.1\r\nHost: {HOST}\r\nX-API-Key: {}\r\n\r\n",
        key.key
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    arrived(&scene, 1).await;
    scene.gateways[0].process().ask_to_end();
    // Connections are ended half a second later.
    eventually("the gateway drains", async || {
        let (_, body) = scene.admin(0, "/readyz").await;
        body.contains("\"draining\":true").then_some(())
    })
    .await;
    release.give();
    let answer = last_answer(&mut socket).await;
    assert!(answer.starts_with("http/1.1 200 "), "{answer}");
    assert!(answer.contains("\r\nconnection: close\r\n"), "{answer}");
    let status = scene.gateways[0].process().wait_for_end(PATIENCE);
    assert_eq!(status.unwrap().code(), Some(0));
    scene.expect_used(&key, 1).await;
}

/// A connection's last answer, read to its end.
async fn last_answer(socket: &mut (impl AsyncRead + Unpin)) -> String {
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).await.unwrap();
    String::from_utf8(answer).unwrap().to_lowercase()
}

#[tokio::test]
async fn a_request_that_arrived_before_its_idle_connection_was_closed_is_answered() {
    // On a busy machine the gateway may close the connections before it can be stopped.
    for _ in 0..10 {
        let Some(answers) = answers_after_a_stop().await else {
            continue;
        };
        for answer in answers {
            assert!(answer.starts_with("http/1.1 401 "), "{answer}");
            assert!(answer.contains("\r\nconnection: close\r\n"), "{answer}");
        }
        return;
    }
    panic!("the gateway was never stopped in time");
}

/// The answers to requests, in clear and over TLS, that come while a draining gateway is stopped, if it was stopped before it closed
/// the idle connections.
async fn answers_after_a_stop() -> Option<[String; 2]> {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let request = "GET /none HTTP/1.1\r\nHost: localhost\r\n\r\n".as_bytes();
    let address = scene.gateways[0].http;
    let mut clear = TcpStream::connect(address).await.unwrap();
    let mut encrypted = scene.client(Protocol::Http1Tls).tls_stream().await;
    let mut first = vec![0; 4_096];
    clear.write_all(request).await.unwrap();
    assert!(clear.read(&mut first).await.unwrap() > 0);
    encrypted.write_all(request).await.unwrap();
    encrypted.flush().await.unwrap();
    assert!(encrypted.read(&mut first).await.unwrap() > 0);
    let gateway = scene.gateways[0].process();
    // It closes idle connections after half a second, and finds the requests when that is over.
    let asked = Instant::now();
    gateway.ask_to_end();
    tokio::time::sleep(Duration::from_millis(100)).await;
    gateway.stop();
    if asked.elapsed() > Duration::from_millis(450) {
        return None;
    }
    clear.write_all(request).await.unwrap();
    encrypted.write_all(request).await.unwrap();
    encrypted.flush().await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    gateway.resume();
    let answers = [
        last_answer(&mut clear).await,
        last_answer(&mut encrypted).await,
    ];
    let status = gateway.wait_for_end(PATIENCE);
    assert_eq!(status.unwrap().code(), Some(0));
    Some(answers)
}

/// Longer than a stopping gateway waits for clients that send nothing.
const LONG: Duration = Duration::from_millis(1_500);

/// Waits until the first gateway has accepted this number of connections that are still open.
async fn connected(scene: &Scene, connections: f64) {
    eventually("the clients are connected", async || {
        let open = scene.metric("touchline_connections").await;
        (open >= connections).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_head_and_a_proxy_header_that_have_begun_are_waited_for_and_answered() {
    const HEAD: &str = "GET /none HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut scene = Scene::builder(TOUCHLINE)
        .spec(|spec| {
            spec.listen_extra = "redirect: { address: \"127.0.0.1:0\", port: 443, \
                 proxy_protocol: true }\n  trusted_proxies: [127.0.0.0/8]"
                .into();
        })
        .start()
        .await;
    let (http, redirect) = (scene.gateways[0].http, scene.gateways[0].redirect.unwrap());
    let proxied = format!("PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n{HEAD}");
    let in_head = proxied.len() - 10;
    let mut clients = Vec::new();
    for (address, text, first, status) in [
        (http, HEAD, 10, "401"),
        (redirect, &proxied, 10, "308"),
        (redirect, &proxied, in_head, "308"),
    ] {
        let mut socket = TcpStream::connect(address).await.unwrap();
        socket.write_all(&text.as_bytes()[..first]).await.unwrap();
        clients.push((socket, &text.as_bytes()[first..], status));
    }
    // A later head of a connection.
    let mut socket = TcpStream::connect(http).await.unwrap();
    socket.write_all(HEAD.as_bytes()).await.unwrap();
    assert!(socket.read(&mut [0; 4_096]).await.unwrap() > 0);
    socket.write_all(&HEAD.as_bytes()[..10]).await.unwrap();
    clients.push((socket, &HEAD.as_bytes()[10..], "401"));
    connected(&scene, clients.len() as f64).await;
    scene.gateways[0].process().ask_to_end();
    refuses_connections(&scene).await;
    tokio::time::sleep(LONG).await;
    assert_eq!(scene.gateways[0].process().ended(), None);
    for (socket, rest, _) in &mut clients {
        socket.write_all(rest).await.unwrap();
    }
    for (mut socket, _, status) in clients {
        let answer = last_answer(&mut socket).await;
        let expected = format!("http/1.1 {status} ");
        assert!(answer.starts_with(&expected), "{status}: {answer}");
        assert!(answer.contains("\r\nconnection: close\r\n"), "{answer}");
    }
    let status = scene.gateways[0].process().wait_for_end(PATIENCE);
    assert_eq!(status.unwrap().code(), Some(0));
}

/// An address whose connections reach `target`: their first bytes at once, the others at `release`.
async fn held_back(
    target: SocketAddr,
    bytes: usize,
    mut release: watch::Receiver<bool>,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut server = TcpStream::connect(target).await.unwrap();
        let mut first = vec![0; bytes];
        client.read_exact(&mut first).await.unwrap();
        server.write_all(&first).await.unwrap();
        release.wait_for(|released| *released).await.unwrap();
        let _ = copy_bidirectional(&mut client, &mut server).await;
    });
    address
}

#[tokio::test]
async fn a_tls_handshake_that_has_begun_is_waited_for_and_its_first_request_answered() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let (release, released) = watch::channel(false);
    let address = held_back(scene.gateways[0].https, 10, released).await;
    let client = Client::new(Protocol::Http1Tls, address, Arc::default());
    let shaking_hands = tokio::spawn(async move { client.tls_stream().await });
    connected(&scene, 1.0).await;
    scene.gateways[0].process().ask_to_end();
    refuses_connections(&scene).await;
    tokio::time::sleep(LONG).await;
    assert_eq!(scene.gateways[0].process().ended(), None);
    release.send(true).unwrap();
    let mut encrypted = shaking_hands.await.unwrap();
    // As a client that is a fifth of a second away.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let request = "GET /none HTTP/1.1\r\nHost: localhost\r\n\r\n".as_bytes();
    encrypted.write_all(request).await.unwrap();
    encrypted.flush().await.unwrap();
    let answer = last_answer(&mut encrypted).await;
    assert!(answer.starts_with("http/1.1 401 "), "{answer}");
    assert!(answer.contains("\r\nconnection: close\r\n"), "{answer}");
    let status = scene.gateways[0].process().wait_for_end(PATIENCE);
    assert_eq!(status.unwrap().code(), Some(0));
}

#[tokio::test]
async fn clients_that_have_sent_nothing_do_not_delay_a_stop() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let mut silent = Vec::new();
    for address in [scene.gateways[0].http, scene.gateways[0].https] {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    connected(&scene, silent.len() as f64).await;
    let began = Instant::now();
    assert_eq!(scene.gateways[0].terminate().code(), Some(0));
    assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
}

#[tokio::test]
async fn an_idle_gateway_stops_at_once() {
    for store in STORES {
        let mut scene = Scene::builder(TOUCHLINE).store(store).start().await;
        let key = scene.issue("starter").await;
        for protocol in Protocol::ALL {
            let answer = scene.client(protocol).get(&key, MARKETS).await;
            assert_eq!(answer.status, 200);
        }
        let began = Instant::now();
        assert_eq!(scene.gateways[0].terminate().code(), Some(0));
        assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
        scene.assert_ledgers_agree().await;
    }
}

#[tokio::test]
async fn a_second_signal_ends_the_gateway_at_once() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    scene.upstream.always(Behaviour::Stall);
    let client = scene.client(Protocol::Http1);
    let call = Call::get(MARKETS).key(&key);
    let in_flight = tokio::spawn(async move { client.try_call(call).await });
    arrived(&scene, 1).await;
    scene.gateways[0].process().ask_to_end();
    refuses_connections(&scene).await;
    let began = Instant::now();
    scene.gateways[0].process().ask_to_end();
    let status = scene.gateways[0].process().wait_for_end(PATIENCE);
    assert_eq!(status.unwrap().code(), Some(0));
    assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
    let output = scene.gateways[0].output();
    let cause = "requests were cut because of the second signal";
    assert!(output.contains(cause), "{output}");
    assert!(in_flight.await.unwrap().is_err());
    scene.expect_used(&key, 0).await;
}

#[tokio::test]
async fn a_gateway_that_ends_with_open_connections_begins_no_request_on_them() {
    let collector = Collector::start().await;
    collector.set(Collecting::Hangs);
    let yaml = format!("tracing: {{ otlp: {{ url: \"{}\" }} }}", collector.url());
    let mut scene = Scene::builder(TOUCHLINE)
        .spec(move |spec| spec.extra_yaml = yaml)
        .start()
        .await;
    let key = scene.issue("starter").await;
    let request = format!(
        "GET {MARKETS} HTTP/1.1\r\nHost: {HOST}\r\nX-API-Key: {}\r\n\
         traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n\r\n",
        key.key
    );
    let mut idle = TcpStream::connect(scene.gateways[0].http).await.unwrap();
    idle.write_all(request.as_bytes()).await.unwrap();
    assert!(idle.read(&mut [0; 4_096]).await.unwrap() > 0);
    scene.upstream.always(Behaviour::Stall);
    scene.gateways[0].process().ask_to_end();
    refuses_connections(&scene).await;
    scene.gateways[0].process().ask_to_end();
    eventually(
        "the gateway waits for nothing but the collector",
        async || {
            let output = scene.gateways[0].output();
            output.contains("after a second signal").then_some(())
        },
    )
    .await;
    // Fails where the connection is cut already.
    let _ = idle.write_all(request.as_bytes()).await;
    let status = scene.gateways[0].process().wait_for_end(PATIENCE);
    assert_eq!(status.unwrap().code(), Some(0));
    assert_eq!(scene.upstream.count(), 1);
    scene.expect_used(&key, 1).await;
}

#[tokio::test]
async fn requests_that_outlast_the_grace_are_cut_off_and_the_gateway_ends_with_0() {
    for store in STORES {
        let mut scene = Scene::builder(TOUCHLINE)
            .store(store)
            .spec(|spec| {
                spec.extra_yaml = "limits: { shutdown_grace: 1s }".into();
                // A client that hangs up then is refunded.
                spec.timeouts.insert("slow".into(), "100ms".into());
            })
            .start()
            .await;
        let key = scene.issue("starter").await;
        let client = scene.client(Protocol::Http1);
        assert_eq!(client.get(&key, MARKETS).await.status, 200);
        scene.upstream.always(Behaviour::Stall);
        let call = Call::get(MARKETS).key(&key);
        let in_flight = tokio::spawn(async move { client.try_call(call).await });
        let (http2, call) = (
            scene.client(Protocol::Http2Tls),
            Call::get(MARKETS).key(&key),
        );
        let over_http2 = tokio::spawn(async move { http2.try_call(call).await });
        arrived(&scene, 3).await;
        let began = Instant::now();
        scene.gateways[0].process().ask_to_end();
        let status = scene.gateways[0].process().wait_for_end(PATIENCE);
        assert_eq!(status.unwrap().code(), Some(0));
        let took = began.elapsed();
        assert!(
            Duration::from_secs(1) <= took,
            "{took:?}: not before its time"
        );
        assert!(in_flight.await.unwrap().is_err());
        assert!(over_http2.await.unwrap().is_err());
        let message = scene.gateways[0].output();
        assert!(
            message.contains("were cut because limits.shutdown_grace ended"),
            "{message}"
        );
        let lines = scene.gateways[0].access_lines();
        let outcomes: Vec<_> = lines.iter().map(|line| &line["outcome"]).collect();
        assert_eq!(
            outcomes,
            ["served", "cut", "cut"],
            "written to the end: {lines:?}"
        );
        for line in &lines[1..] {
            assert_eq!(
                line["cause"],
                "gateway: it stopped before the request ended"
            );
            assert_eq!(line["refunded"], true, "{line}");
        }
        scene.expect_used(&key, 1).await;
    }
}

#[tokio::test]
async fn a_request_that_is_cut_off_while_its_client_does_not_read_stays_charged() {
    let mut scene = Scene::builder(TOUCHLINE)
        .spec(|spec| spec.extra_yaml = "limits: { shutdown_grace: 1s }".into())
        .start()
        .await;
    let key = scene.issue("starter").await;
    let large = Script::json(200, &"x".repeat(LARGE_BODY_BYTES));
    scene.upstream.always(Behaviour::Answer(large));
    let mut socket = TcpStream::connect(scene.gateways[0].http).await.unwrap();
    let head = format!(
        "GET {MARKETS} HTTP/1.1\r\nHost: {HOST}\r\nX-API-Key: {}\r\n\r\n",
        key.key
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    arrived(&scene, 1).await;
    scene.gateways[0].process().ask_to_end();
    let status = scene.gateways[0].process().wait_for_end(PATIENCE);
    assert_eq!(status.unwrap().code(), Some(0));
    let lines = scene.gateways[0].access_lines();
    assert_eq!(
        (&lines[0]["outcome"], &lines[0]["refunded"]),
        (&"cut".into(), &false.into()),
        "{lines:?}"
    );
    scene.expect_used(&key, 1).await;
}

#[tokio::test]
async fn a_refusal_waits_for_no_body_and_remains_one_if_the_gateway_stops() {
    let mut scene = Scene::builder(TOUCHLINE)
        .spec(|spec| spec.extra_yaml = "limits: { shutdown_grace: 0s }".into())
        .start()
        .await;
    let mut socket = TcpStream::connect(scene.gateways[0].http).await.unwrap();
    let head = format!("POST {MARKETS} HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 5\r\n\r\n");
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    socket.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 401");
    scene.gateways[0].process().ask_to_end();
    let status = scene.gateways[0].process().wait_for_end(PATIENCE);
    assert_eq!(status.unwrap().code(), Some(0));
    let lines = scene.gateways[0].access_lines();
    assert_eq!(lines[0]["outcome"], "MISSING_API_KEY", "{lines:?}");
    assert_eq!(lines[0]["status"], 401, "{lines:?}");
}
