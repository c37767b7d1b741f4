//! Proxies in front of the gateway: believed where they are trusted, and no other peer.

use std::sync::Arc;

use harness::client::HOST;
use harness::{Call, IssuedKey, Protocol, Scene, eventually};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{MARKETS, TOUCHLINE, limit_hits};

/// The client of the last request, by the upstream and by the access log.
async fn output(scene: &Scene, number: usize) -> (String, String) {
    let recorded = scene.upstream.recorded().pop().unwrap();
    let lines = scene.gateways[0].logged(number).await;
    let client = lines.last().unwrap()["client"].as_str().unwrap().to_owned();
    (recorded.values("x-forwarded-for").join("|"), client)
}

#[tokio::test]
async fn x_forwarded_for_is_believed_from_trusted_proxies_only() {
    for (trusted, from, client) in [
        ("[127.0.0.0/8]", "198.51.100.1", "198.51.100.1"),
        (
            "[127.0.0.0/8, 198.51.100.0/24]",
            "203.0.113.7",
            "203.0.113.7",
        ),
        ("[10.0.0.0/8]", "127.0.0.1", "127.0.0.1:"),
        ("[]", "127.0.0.1", "127.0.0.1:"),
    ] {
        let mut scene = Scene::builder(TOUCHLINE)
            .spec(move |spec| spec.listen_extra = format!("trusted_proxies: {trusted}"))
            .start()
            .await;
        let key = scene.issue("starter").await;
        for (number, protocol) in Protocol::ALL.into_iter().enumerate() {
            let call = Call::get(MARKETS)
                .key(&key)
                .header("x-forwarded-for", "192.0.2.66, 203.0.113.7")
                .header("x-forwarded-for", "198.51.100.1")
                .header("x-forwarded-proto", "https")
                .header("x-forwarded-host", "api.example");
            let answer = scene.client(protocol).call(call).await;
            assert_eq!(answer.status, 200);
            let (forwarded, logged) = output(&scene, number + 1).await;
            assert_eq!(forwarded, from, "{trusted} {protocol:?}");
            assert!(logged.starts_with(client), "{logged}");
            let recorded = scene.upstream.recorded().pop().unwrap();
            let believed = trusted.contains("127.");
            let scheme = if believed || protocol.is_tls() {
                "https"
            } else {
                "http"
            };
            assert_eq!(recorded.values("x-forwarded-proto"), [scheme]);
            let host = recorded.values("x-forwarded-host").join("|");
            assert_eq!(host == "api.example", believed, "{host}");
        }
        scene.assert_ledgers_agree().await;
    }
}

#[tokio::test]
async fn failed_authentications_behind_a_proxy_count_for_the_client_and_leave_the_proxys_connection()
 {
    let scene = Scene::builder(TOUCHLINE)
        .spec(|spec| {
            spec.listen_extra = "trusted_proxies: [127.0.0.0/8]".into();
            spec.extra_yaml = "limits: { failed_authentications: 1 }".into();
        })
        .start()
        .await;
    let key = scene.issue("starter").await;
    let proxy = scene.client(Protocol::Http1);
    let call = |client: &str| Call::get(MARKETS).header("x-forwarded-for", client);
    for _ in 0..20 {
        let answer = proxy.call(call("192.0.2.1").key("none")).await;
        assert_eq!(answer.status, 401);
        assert_ne!(answer.header("connection"), Some("close"));
    }
    let hits = limit_hits(&scene, "failed_authentications").await;
    assert!(hits >= 10.0, "{hits}");
    // Another client of the same proxy has its own account.
    let answer = proxy.call(call("192.0.2.2").key("none")).await;
    assert_eq!(answer.status, 401);
    assert_eq!(limit_hits(&scene, "failed_authentications").await, hits);
    assert_eq!(proxy.call(call("192.0.2.1").key(&key)).await.status, 200);
}

/// A header of version 2 for an IPv4 client.
fn version_2(client: [u8; 4], port: u16, command: u8) -> Vec<u8> {
    let mut header = b"\r\n\r\n\0\r\nQUIT\n".to_vec();
    header.extend([0x20 | command, 0x11, 0, 15]);
    header.extend(client);
    header.extend([10, 0, 0, 1]);
    header.extend(port.to_be_bytes());
    header.extend(443u16.to_be_bytes());
    // An extension without a meaning.
    header.extend([4, 0, 0]);
    header
}

fn request(key: &IssuedKey) -> String {
    format!(
        "GET {MARKETS} HTTP/1.1\r\nHost: {HOST}\r\nX-API-Key: {}\r\nConnection: close\r\n\r\n",
        key.key
    )
}

/// Sends a request and reads all there is.
async fn exchanged(mut stream: impl AsyncRead + AsyncWrite + Unpin, request: &str) -> String {
    let _ = stream.write_all(request.as_bytes()).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

async fn speaking(trusted: &'static str) -> Scene {
    Scene::builder(TOUCHLINE)
        .spec(move |spec| {
            spec.listen_extra = format!(
                "trusted_proxies: {trusted}\n  \
                 redirect: {{ address: \"127.0.0.1:0\", proxy_protocol: true }}"
            );
            spec.http_extra = "proxy_protocol: true".into();
            spec.https_extra = "proxy_protocol: true".into();
            spec.extra_yaml = "limits: { connections_per_address: 2, request_head: 2s }".into();
        })
        .start()
        .await
}

/// TLS on a connection whose header has been sent.
async fn over_tls(socket: TcpStream) -> tokio_rustls::client::TlsStream<TcpStream> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(harness::client::any_certificate())
        .with_no_client_auth();
    tokio_rustls::TlsConnector::from(Arc::new(config))
        .connect(ServerName::try_from(HOST).unwrap(), socket)
        .await
        .unwrap()
}

#[tokio::test]
async fn the_proxy_protocol_names_the_client_before_the_first_byte() {
    let scene = speaking("[127.0.0.0/8]").await;
    let key = scene.issue("starter").await;
    let request = request(&key);
    let mut number = 0;
    for (header, expected) in [
        (
            b"PROXY TCP4 192.0.2.1 10.0.0.1 4711 443\r\n".to_vec(),
            "192.0.2.1:4711",
        ),
        (
            b"PROXY TCP6 2001:db8::1 2001:db8::2 4711 443\r\n".to_vec(),
            "[2001:db8::1]:4711",
        ),
        (version_2([192, 0, 2, 2], 4712, 1), "192.0.2.2:4712"),
        // The proxy speaks for itself.
        (b"PROXY UNKNOWN\r\n".to_vec(), "127.0.0.1:"),
        (version_2([192, 0, 2, 3], 4713, 0), "127.0.0.1:"),
    ] {
        let gateway = &scene.gateways[0];
        for tls in [false, true] {
            let address = if tls { gateway.https } else { gateway.http };
            let mut socket = TcpStream::connect(address).await.unwrap();
            // In pieces, as a network may deliver it.
            for piece in header.chunks(7) {
                socket.write_all(piece).await.unwrap();
                socket.flush().await.unwrap();
                tokio::task::yield_now().await;
            }
            let answer = if tls {
                exchanged(over_tls(socket).await, &request).await
            } else {
                exchanged(socket, &request).await
            };
            assert!(answer.starts_with("HTTP/1.1 200 "), "{expected}: {answer}");
            number += 1;
            let (forwarded, logged) = output(&scene, number).await;
            assert!(logged.starts_with(expected), "{logged}");
            let ip = expected.rsplit_once(':').unwrap().0;
            assert_eq!(forwarded, ip.trim_matches(['[', ']']));
        }
    }
    // In one write with what follows, of which nothing may be lost.
    let mut socket = TcpStream::connect(scene.gateways[0].http).await.unwrap();
    let whole = format!("PROXY TCP4 192.0.2.9 10.0.0.1 1 443\r\n{request}");
    let answer = exchanged(&mut socket, &whole).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let address = scene.gateways[0].redirect.unwrap();
    let socket = TcpStream::connect(address).await.unwrap();
    let whole = "PROXY TCP4 192.0.2.9 10.0.0.1 1 80\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let answer = exchanged(socket, whole).await;
    assert!(answer.starts_with("HTTP/1.1 308 "), "{answer}");
    let line = scene.gateways[0]
        .logged_where(|line| line["status"] == 308)
        .await;
    assert_eq!(line["client"], "192.0.2.9:1");
}

#[tokio::test]
async fn what_is_no_header_of_a_trusted_proxy_is_closed_unanswered() {
    let scene = speaking("[127.0.0.0/8]").await;
    let key = scene.issue("starter").await;
    let request = request(&key);
    let refused = [
        request.clone(),
        format!("PROXY TCP4 192.0.2.1 10.0.0.1 1 443\n{request}"),
        format!("PROXY TCP4 192.0.2.300 10.0.0.1 1 443\r\n{request}"),
        format!("PROXY {}\r\n{request}", "x".repeat(200)),
        "PROXY TCP4 192.0.2.1".to_owned(),
    ];
    for (number, sent) in refused.iter().enumerate() {
        let socket = TcpStream::connect(scene.gateways[0].http).await.unwrap();
        assert_eq!(exchanged(socket, sent).await, "", "{sent:?}");
        eventually("it is counted", async || {
            let hits = limit_hits(&scene, "proxy_protocol").await;
            (hits == (number + 1) as f64).then_some(())
        })
        .await;
    }
    let strangers = speaking("[10.0.0.0/8]").await;
    let key = strangers.issue("starter").await;
    let whole = format!(
        "PROXY TCP4 192.0.2.1 10.0.0.1 1 443\r\n{}",
        self::request(&key)
    );
    let socket = TcpStream::connect(strangers.gateways[0].http)
        .await
        .unwrap();
    assert_eq!(exchanged(socket, &whole).await, "");
    eventually("it is counted", async || {
        (limit_hits(&strangers, "proxy_protocol").await == 1.0).then_some(())
    })
    .await;
    assert!(strangers.upstream.recorded().is_empty());
    // Where it is not spoken it is no HTTP.
    let plain = Scene::builder(TOUCHLINE).start().await;
    let socket = TcpStream::connect(plain.gateways[0].http).await.unwrap();
    let answer = exchanged(socket, &whole).await;
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert!(plain.upstream.recorded().is_empty());
}

#[tokio::test]
async fn connections_are_counted_for_the_client_that_the_proxy_names() {
    let scene = speaking("[127.0.0.0/8, 203.0.113.9]").await;
    let key = scene.issue("starter").await;
    let served = async |client: &str| {
        let mut socket = TcpStream::connect(scene.gateways[0].http).await.unwrap();
        let keepalive = request(&key).replace("Connection: close\r\n", "");
        let whole = format!("PROXY TCP4 {client} 10.0.0.1 1 443\r\n{keepalive}");
        socket.write_all(whole.as_bytes()).await.unwrap();
        let mut first = [0; 12];
        let read = socket.read_exact(&mut first).await;
        (read.is_ok() && &first == b"HTTP/1.1 200").then_some(socket)
    };
    let mut held = Vec::new();
    for client in [
        "192.0.2.1",
        "192.0.2.1",
        "192.0.2.2",
        "192.0.2.2",
        "192.0.2.3",
    ] {
        held.push(served(client).await.expect("there is room"));
    }
    assert!(served("192.0.2.1").await.is_none());
    eventually("it is counted", async || {
        (limit_hits(&scene, "connections_per_address").await == 1.0).then_some(())
    })
    .await;
    // A trusted proxy behind the first one has connections of many clients.
    for _ in 0..4 {
        held.push(served("203.0.113.9").await.expect("it is not counted"));
    }
    held.clear();
    eventually("there is room again", async || {
        served("192.0.2.1").await.map(drop)
    })
    .await;
}
