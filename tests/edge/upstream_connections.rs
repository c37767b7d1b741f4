//! Connections to upstreams: those over HTTP/1 are kept for another request only when both messages were passed on to their last byte.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use harness::{Behaviour, Call, Client, IssuedKey, Protocol, Scene, eventually};
use socket2::{Domain, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::{MARKETS, TOUCHLINE, assert_problem};

/// The bytes that came on each connection, and whether the gateway has closed it.
type Connections = Arc<Mutex<Vec<(Vec<u8>, bool)>>>;

/// An upstream that gives each of its connections one answer after the other and closes none.
struct Answering {
    address: SocketAddr,
    connections: Connections,
}

/// Answers when `is_asked` reports that enough of a request has arrived. The first answer is `first`; all others are whole.
async fn answering(first: &'static str, is_asked: fn(&[u8]) -> bool) -> Answering {
    answering_late(first, "", is_asked).await
}

/// Sends `late` a moment after the first answer.
async fn answering_late(
    first: &'static str,
    late: &'static str,
    is_asked: fn(&[u8]) -> bool,
) -> Answering {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let connections = Connections::default();
    let all = connections.clone();
    tokio::spawn(async move {
        let mut first = Some(first);
        while let Ok((mut socket, _)) = listener.accept().await {
            let number = all.lock().unwrap().len();
            all.lock().unwrap().push((Vec::new(), false));
            let (all, mut first) = (all.clone(), first.take());
            tokio::spawn(async move {
                let mut answered = 0;
                loop {
                    let mut bytes = Vec::new();
                    if socket.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
                        all.lock().unwrap()[number].1 = true;
                        return;
                    }
                    let asked = {
                        let mut all = all.lock().unwrap();
                        all[number].0.extend(bytes);
                        is_asked(&all[number].0[answered..]).then(|| all[number].0.len())
                    };
                    if let Some(asked) = asked {
                        answered = asked;
                        let whole = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nown";
                        let late = first.map_or("", |_| late);
                        let answer = first.take().unwrap_or(whole);
                        let _ = socket.write_all(answer.as_bytes()).await;
                        if !late.is_empty() {
                            tokio::time::sleep(Duration::from_millis(50)).await;
                            let _ = socket.write_all(late.as_bytes()).await;
                        }
                    }
                }
            });
        }
    });
    Answering {
        address,
        connections,
    }
}

impl Answering {
    /// A gateway in front of it, and a key.
    async fn scene(&self) -> (Scene, IssuedKey, Client) {
        let upstream = self.address;
        let scene = Scene::builder(TOUCHLINE)
            .spec(move |spec| {
                spec.upstream = upstream;
                spec.endpoints[0].methods.push("POST".into());
            })
            .start()
            .await;
        let key = scene.issue("starter").await;
        let client = scene.client(Protocol::Http1);
        (scene, key, client)
    }

    /// Waits until the gateway has closed the first connection, on which exactly one request has come.
    async fn expect_first_closed(&self) {
        eventually("the first connection is closed", async || {
            self.connections.lock().unwrap()[0].1.then_some(())
        })
        .await;
        let connections = self.connections.lock().unwrap();
        let text = String::from_utf8_lossy(&connections[0].0).into_owned();
        assert_eq!(text.matches(" HTTP/1.1\r\n").count(), 1, "{text}");
    }

    fn count(&self) -> usize {
        self.connections.lock().unwrap().len()
    }
}

fn has_head(bytes: &[u8]) -> bool {
    bytes.ends_with(b"\r\n\r\n")
}

/// Answers that are followed by bytes that no request asked for.
const FOLLOWED: [&str; 3] = [
    "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nownHTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nforeign",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nown\r\n0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nforeign",
    "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nown\r\n",
];

#[tokio::test]
async fn what_follows_an_answer_belongs_to_no_request_and_its_connection_is_closed() {
    for followed in FOLLOWED {
        let upstream = answering(followed, has_head).await;
        let (scene, key, client) = upstream.scene().await;
        for _ in 0..3 {
            let answer = client.get(&key, MARKETS).await;
            assert_eq!((answer.status, &answer.body[..]), (200, &b"own"[..]));
        }
        upstream.expect_first_closed().await;
        assert_eq!(upstream.count(), 2);
        scene.expect_used(&key, 3).await;
    }
}

#[tokio::test]
async fn a_body_that_an_answer_must_not_have_is_no_answer_to_the_next_request() {
    let foreign = "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nforeign";
    for (method, first) in [
        ("HEAD", "HTTP/1.1 200 OK\r\n\r\n"),
        ("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n"),
        (
            "HEAD",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        ),
        ("GET", "HTTP/1.1 304 x\r\nContent-Length: 7\r\n\r\n"),
        ("GET", "HTTP/1.1 204 x\r\n\r\n"),
    ] {
        let upstream = answering_late(first, foreign, has_head).await;
        let (_scene, key, client) = upstream.scene().await;
        client.call(Call::new(method, MARKETS).key(&key)).await;
        for _ in 0..3 {
            let answer = client.get(&key, MARKETS).await;
            assert_eq!((answer.status, &answer.body[..]), (200, &b"own"[..]));
        }
        upstream.expect_first_closed().await;
        assert_eq!(upstream.count(), 2);
    }
}

/// Linux lists each connection with its addresses (`ip:port`, octets and digits in the machine's order), its state, the lengths of its
/// queues, and its timer: 02 is that of the keepalive probes.
#[tokio::test]
async fn tcp_probes_whether_the_other_end_of_a_kept_connection_exists() {
    let upstream = answering("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nown", has_head).await;
    let (_scene, key, client) = upstream.scene().await;
    client.get(&key, MARKETS).await;
    let other_end = format!("0100007F:{:04X} 01 ", upstream.address.port());
    eventually("a timer of probes", async || {
        let connections = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let line = connections.lines().find(|line| line.contains(&other_end))?;
        let timer = line.split_whitespace().nth(5)?;
        timer.starts_with("02:").then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_kept_connection_is_closed_after_timeouts_idle() {
    for protocol in ["http1", "http2"] {
        let scene = Scene::builder(TOUCHLINE)
            .timeout("idle", "3s")
            .spec(move |spec| spec.upstream_extra = format!("protocol: {protocol}"))
            .start()
            .await;
        let key = scene.issue("starter").await;
        let client = scene.client(Protocol::Http1);
        let other_end = format!("0100007F:{:04X} 01 ", scene.upstream.address().port());
        let is_open = || {
            let connections = std::fs::read_to_string("/proc/net/tcp").unwrap();
            connections.lines().any(|line| line.contains(&other_end))
        };
        for _ in 0..3 {
            assert_eq!(client.get(&key, MARKETS).await.status, 200);
            assert!(is_open());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(scene.upstream.connections(), 1);
        eventually("the end of the connection", async || {
            (!is_open()).then_some(())
        })
        .await;
        assert_eq!(client.get(&key, MARKETS).await.status, 200);
        assert_eq!(scene.upstream.connections(), 2);
    }
}

#[tokio::test]
async fn connections_over_http2_whose_server_accepts_no_request_do_not_accumulate() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = listener.local_addr().unwrap();
    let open = Arc::new(Mutex::new(0));
    let all = open.clone();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            *all.lock().unwrap() += 1;
            let all = all.clone();
            tokio::spawn(async move {
                let mut server = h2::server::Builder::new();
                let begun = server
                    .max_concurrent_streams(0)
                    .handshake::<_, Bytes>(socket);
                let mut wire = begun.await.unwrap();
                while let Some(Ok(_)) = wire.accept().await {}
                *all.lock().unwrap() -= 1;
            });
        }
    });
    let scene = Scene::builder(TOUCHLINE)
        .timeout("idle", "5m")
        .timeout("read", "200ms")
        .spec(move |spec| {
            spec.upstream = upstream;
            spec.upstream_extra = "protocol: http2, ejection: { failures: 0 }".into();
        })
        .start()
        .await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    for _ in 0..10 {
        let answer = client.get(&key, MARKETS).await;
        assert_problem(&answer, 500, "INTERNAL_ERROR");
    }
    // Those of the last request, whose retry has its own, are still kept.
    eventually("the other connections are closed", async || {
        (*open.lock().unwrap() <= 2).then_some(())
    })
    .await;
    scene.expect_used(&key, 0).await;
}

#[tokio::test]
async fn an_answer_that_ends_its_connection_leaves_none_behind() {
    let close = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 3\r\n\r\nown";
    let old = "HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nown";
    for last in [close, old] {
        let upstream = answering(last, has_head).await;
        let (_scene, key, client) = upstream.scene().await;
        for _ in 0..2 {
            let answer = client.get(&key, MARKETS).await;
            assert_eq!((answer.status, &answer.body[..]), (200, &b"own"[..]));
        }
        upstream.expect_first_closed().await;
    }
}

#[tokio::test]
async fn an_answer_before_the_end_of_the_body_ends_the_upload_and_its_connection() {
    fn has_begun(bytes: &[u8]) -> bool {
        bytes.windows(5).any(|part| part == b"first") || bytes.ends_with(b"\r\n\r\n")
    }
    let early = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nown";
    let upstream = answering(early, has_begun).await;
    let (scene, key, client) = upstream.scene().await;
    let mut socket = tokio::net::TcpStream::connect(scene.gateways[0].http)
        .await
        .unwrap();
    let head = format!(
        "POST {MARKETS} HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {}\r\nContent-Length: 1000000\r\n\r\nfirst",
        key.key
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"own") {
        assert!(socket.read_buf(&mut answer).await.unwrap() > 0);
    }
    // The rest belongs to no request.
    let _ = socket.write_all(&[b'x'; 100_000]).await;
    upstream.expect_first_closed().await;
    let answer = client.get(&key, MARKETS).await;
    assert_eq!((answer.status, &answer.body[..]), (200, &b"own"[..]));
    assert_eq!(upstream.count(), 2);
    scene.expect_used(&key, 2).await;
}

/// A listener whose connections buffer little.
pub fn narrow_listener() -> (TcpListener, SocketAddr) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let address: SocketAddr = "127.0.0.1:0".parse().unwrap();
    socket.bind(&address.into()).unwrap();
    // The gateway's buffer grows with the segments.
    socket.set_recv_buffer_size(2048).unwrap();
    socket.set_tcp_mss(600).unwrap();
    socket.listen(8).unwrap();
    socket.set_nonblocking(true).unwrap();
    let listener = TcpListener::from_std(socket.into()).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// The server reads nothing of a body until it has answered. Of some of these sizes, a piece of the last part is unwritten at that
/// moment, because the buffers on the way hold no more.
#[tokio::test]
async fn no_request_follows_a_body_whose_end_is_unwritten() {
    let (listener, upstream) = narrow_listener();
    let scene = Scene::builder(TOUCHLINE)
        .spec(move |spec| {
            spec.upstream = upstream;
            spec.upstream_extra = "protocol: http1".into();
            spec.endpoints[0].methods.push("POST".into());
        })
        .start()
        .await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut head = Vec::new();
                while let Ok(byte) = socket.read_u8().await {
                    head.push(byte);
                    if !head.ends_with(b"\r\n\r\n") {
                        continue;
                    }
                    let text = String::from_utf8(std::mem::take(&mut head)).unwrap();
                    let length = text
                        .lines()
                        .find_map(|line| line.strip_prefix("content-length: "));
                    let length: u64 = length.map_or(0, |length| length.parse().unwrap());
                    // Connections that have sent much have larger buffers.
                    let mut fate = "close";
                    if length > 0 {
                        fate = "keep-alive";
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                    let answer = format!(
                        "HTTP/1.1 200 OK\r\nConnection: {fate}\r\nContent-Length: 3\r\n\r\nown"
                    );
                    socket.write_all(answer.as_bytes()).await.unwrap();
                    let mut body = (&mut socket).take(length);
                    let _ = tokio::io::copy(&mut body, &mut tokio::io::sink()).await;
                }
            });
        }
    });
    for bytes in (30_000..34_000).step_by(100) {
        let upload = Call::new("POST", MARKETS).body(vec![b'x'; bytes]);
        for call in [upload, Call::get(MARKETS)] {
            let answer = client.call(call.key(&key)).await;
            assert_eq!((answer.status, &answer.body[..]), (200, &b"own"[..]));
        }
    }
}

/// The server reads nothing of a body that is larger than the buffers on its way, and closes, which resets the connection.
#[tokio::test]
async fn a_put_is_not_sent_again_after_a_part_of_an_answer() {
    let (listener, upstream) = narrow_listener();
    let scene = Scene::builder(TOUCHLINE)
        .spec(move |spec| {
            spec.upstream = upstream;
            spec.upstream_extra = "protocol: http1, ejection: { failures: 0 }".into();
            spec.endpoints[0].methods.push("PUT".into());
        })
        .start()
        .await;
    let key = scene.issue("starter").await;
    let client = scene.client(Protocol::Http1);
    for round in 1..=5 {
        let serve = async {
            let (mut socket, _) = listener.accept().await.unwrap();
            for answer in [
                "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nown",
                "HTTP/1.1 200 OK\r\nX-Done: 1\r\nConte",
            ] {
                let mut head = Vec::new();
                while !head.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
                    assert!(socket.read_buf(&mut head).await.unwrap() > 0);
                }
                socket.write_all(answer.as_bytes()).await.unwrap();
            }
        };
        let call = async {
            assert_eq!(client.get(&key, MARKETS).await.status, 200);
            let upload = Call::new("PUT", MARKETS).body(vec![b'x'; 60_000]);
            assert_problem(&client.call(upload.key(&key)).await, 500, "INTERNAL_ERROR");
        };
        tokio::join!(serve, call);
        let again = tokio::time::timeout(Duration::ZERO, listener.accept()).await;
        assert!(again.is_err(), "sent again");
        scene.expect_used(&key, round).await;
    }
}

/// Answers that two readers could take for different ones.
const AMBIGUOUS: [&str; 9] = [
    "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "Content-Length: 2, 3\r\n\r\n{}",
    "Content-Length: +2\r\n\r\n{}",
    "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "Content-Length: 2\r\n folded: x\r\n\r\n{}",
    "Content-Length : 2\r\n\r\n{}",
    "Content-Length: 2\n\r\n{}",
];

#[tokio::test]
async fn an_ambiguous_answer_is_a_500_and_refunded() {
    let mut scene = Scene::builder(TOUCHLINE).start().await;
    let key = scene.issue("starter").await;
    for ambiguous in AMBIGUOUS {
        let bytes = format!("HTTP/1.1 200 OK\r\n{ambiguous}");
        scene.upstream.always(Behaviour::Raw(bytes.into_bytes()));
        for protocol in Protocol::ALL {
            let answer = scene.client(protocol).get(&key, MARKETS).await;
            assert_problem(&answer, 500, "INTERNAL_ERROR");
        }
    }
    scene.expect_used(&key, 0).await;
    scene.assert_ledgers_agree().await;
}

#[tokio::test]
async fn no_thread_of_timers_runs_once_upstreams_were_connected_to() {
    for protocol in ["http1", "http2"] {
        let mut scene = Scene::builder(TOUCHLINE)
            .spec(move |spec| {
                let health = "health: { path: /checked, interval: 100ms, timeout: 90ms }";
                spec.upstream_extra = format!("protocol: {protocol}, {health}");
            })
            .start()
            .await;
        let key = scene.issue("starter").await;
        let answer = scene.client(Protocol::Http1).get(&key, MARKETS).await;
        assert_eq!(answer.status, 200);
        eventually("health checks", async || {
            let asked = scene.upstream.recorded();
            let checks = asked.iter().filter(|one| one.target_text() == "/checked");
            (checks.count() > 2).then_some(())
        })
        .await;
        assert_eq!(scene.admin(0, "/metrics").await.0, 200);
        let threads = format!("/proc/{}/task", scene.gateways[0].process().pid());
        let names: Vec<String> = std::fs::read_dir(threads)
            .unwrap()
            .filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("comm")).ok())
            .collect();
        // pingora's wakes a hundred times a second.
        let timers = names.iter().filter(|name| name.starts_with("Timer thread"));
        assert_eq!(timers.count(), 0, "{names:?}");
        assert!(names.len() > 2, "{names:?}");
    }
}
