//! The bytes of a fixed set of requests on both sides of the gateway, beside a record of them.
//!
//! `recorded.txt` has for each exchange what the client sent, what the upstream received and answered, and what the client
//! received. A change of any byte on either side fails and shows the difference. `KEEP=yes` writes the record anew; `BINARY` names
//! another gateway to compare with it, such as an older version.

use std::fmt::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use harness::client::Until;
use harness::{Call, IssuedKey, Protocol, Scene};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::TOUCHLINE;

/// Where the record is.
const RECORD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/edge/recorded.txt");

/// The answer of the upstream unless an exchange has another one.
const ANSWER: &str =
    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";

/// Fields whose values differ from run to run.
const VOLATILE: [&str; 5] = [
    "date",
    "ratelimit",
    "retry-after",
    "traceparent",
    "x-ratelimit-reset",
];

/// One exchange over HTTP/1: its name, what the client sends (`KEY` is an API key; the connection must end with it), and the
/// upstream's answer.
type Exchange = (&'static str, &'static str, &'static str);

/// All exchanges over HTTP/1, in their order.
const EXCHANGES: &[Exchange] = &[
    (
        "a plain request",
        "GET /api/v1/data/markets HTTP/1.1\r\nHost: localhost\r\nX-API-Key: KEY\r\nConnection: close\r\n\r\n",
        ANSWER,
    ),
    (
        "a target with escapes and a query",
        "GET /api/v1/data/predictions/a%2Db?from=1&to=%2F&&x=%zz HTTP/1.1\r\nHost: localhost\r\nX-API-Key: KEY\r\nConnection: close\r\n\r\n",
        ANSWER,
    ),
    (
        "an absolute target beside another Host",
        "GET http://localhost/api/v1/data/markets HTTP/1.1\r\nHost: other.example\r\nX-API-Key: KEY\r\nConnection: close\r\n\r\n",
        ANSWER,
    ),
    (
        "HEAD",
        "HEAD /api/v1/data/markets HTTP/1.1\r\nHost: localhost\r\nX-API-Key: KEY\r\nConnection: close\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n",
    ),
    (
        "three requests at once on a connection",
        "GET /api/v1/data/markets HTTP/1.1\r\nHost: localhost\r\nX-API-Key: KEY\r\n\r\nGET /api/v1/data/predictions HTTP/1.1\r\nHost: localhost\r\nX-API-Key: KEY\r\n\r\nGET /api/v1/data/insights HTTP/1.1\r\nHost: localhost\r\nX-API-Key: KEY\r\nConnection: close\r\n\r\n",
        ANSWER,
    ),
    (
        "a body with a length",
        "POST /api/v1/data/markets HTTP/1.1\r\nHost: localhost\r\nX-API-Key: KEY\r\nContent-Type: text/plain\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello",
        ANSWER,
    ),
    (
        "an empty body with a length",
        "POST /api/v1/data/markets HTTP/1.1\r\nHost: localhost\r\nX-API-Key: KEY\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        ANSWER,
    ),
    (
        "no body where one is permitted",
        "POST /api/v1/data/markets HTTP/1.1\r\nHost: localhost\r\nX-API-Key: KEY\r\nConnection: close\r\n\r\n",
        ANSWER,
    ),
    (
        "a body in chunks",
        "POST /api/v1/data/markets HTTP/1.1\r\nHost: localhost\r\nX-API-Key: KEY\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n0005;name=value\r\nhello\r\n0\r\n\r\n",
        ANSWER,
    ),
    (
        "an empty body in chunks",
        "POST /api/v1/data/markets HTTP/1.1\r\nHost: localhost\r\nX-API-Key: KEY\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n0\r\n\r\n",
        ANSWER,
    ),
    (
        "a body in chunks with a trailer",
        "POST /api/v1/data/markets HTTP/1.1\r\nHost: localhost\r\nX-API-Key: KEY\r\nTransfer-Encoding: chunked\r\nTrailer: x-late\r\nConnection: close\r\n\r\n5\r\nhello\r\n0\r\nX-Late: yes\r\n\r\n",
        ANSWER,
    ),
    (
        "a body that waits for 100 (Continue)",
        "POST /api/v1/data/markets HTTP/1.1\r\nHost: localhost\r\nX-API-Key: KEY\r\nExpect: 100-continue\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello",
        ANSWER,
    ),
    (
        "fields of one connection",
        "GET /api/v1/data/markets HTTP/1.1\r\nHost: localhost\r\nX-API-Key: KEY\r\nConnection: close, x-own\r\nX-Own: 1\r\nKeep-Alive: timeout=7\r\nProxy-Connection: close\r\nTE: trailers\r\nTrailer: x-late\r\nUpgrade: websocket\r\nProxy-Authorization: Basic x\r\n\r\n",
        ANSWER,
    ),
    (
        "forged fields of a proxy",
        "GET /api/v1/data/markets HTTP/1.1\r\nHost: localhost\r\nX-API-Key: KEY\r\nX-Forwarded-For: 203.0.113.7\r\nX-Forwarded-Host: forged\r\nX-Forwarded-Proto: gopher\r\nForwarded: for=203.0.113.7\r\nX-Real-IP: 203.0.113.7\r\nX-Consumer-Id: forged\r\nX_Consumer_Id: forged\r\nConnection: close\r\n\r\n",
        ANSWER,
    ),
    (
        "fields that pass, one of them twice",
        "GET /api/v1/data/markets HTTP/1.1\r\nHost: localhost\r\nX-API-Key: KEY\r\nAccept: application/json\r\nUser-Agent: client/1\r\nX-One:  a \r\nX-One: b\r\nX-Empty:\r\nCookie: a=1\r\nCookie: b=2\r\nAuthorization: Bearer x\r\nIf-None-Match: \"e\"\r\nRange: bytes=0-1\r\nConnection: close\r\n\r\n",
        ANSWER,
    ),
    (
        "no codings that an upstream may use but the client's",
        "GET /api/v1/data/markets HTTP/1.1\r\nHost: localhost\r\nX-API-Key: KEY\r\nAccept-Encoding: br\r\nConnection: close\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Encoding: br\r\nContent-Length: 2\r\n\r\nxx",
    ),
    (
        "HTTP/1.0",
        "GET /api/v1/data/markets HTTP/1.0\r\nX-API-Key: KEY\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    ),
    (
        "an answer in chunks with a trailer",
        "GET /api/v1/data/markets HTTP/1.1\r\nHost: localhost\r\nX-API-Key: KEY\r\nConnection: close\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\nTrailer: x-late\r\n\r\n5\r\nhello\r\n0\r\nX-Late: yes\r\n\r\n",
    ),
    (
        "an answer that ends with its connection",
        "GET /api/v1/data/markets HTTP/1.1\r\nHost: localhost\r\nX-API-Key: KEY\r\nConnection: close\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\nhello",
    ),
    (
        "an answer of HTTP/1.0",
        "GET /api/v1/data/markets HTTP/1.1\r\nHost: localhost\r\nX-API-Key: KEY\r\nConnection: close\r\n\r\n",
        "HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello",
    ),
    (
        "an answer with fields of a connection and of this gateway",
        "GET /api/v1/data/markets HTTP/1.1\r\nHost: localhost\r\nX-API-Key: KEY\r\nConnection: close\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: keep-alive, x-own\r\nX-Own: 1\r\nKeep-Alive: timeout=5\r\nServer: upstream/1\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nX-RateLimit-Limit: 7\r\nX-Request-Id: forged\r\nETag: \"e\"\r\nContent-Length: 5\r\n\r\nhello",
    ),
    (
        "204 (No Content)",
        "GET /api/v1/data/markets HTTP/1.1\r\nHost: localhost\r\nX-API-Key: KEY\r\nConnection: close\r\n\r\n",
        "HTTP/1.1 204 No Content\r\n\r\n",
    ),
    (
        "304 (Not Modified) with a length",
        "GET /api/v1/data/markets HTTP/1.1\r\nHost: localhost\r\nX-API-Key: KEY\r\nConnection: close\r\n\r\n",
        "HTTP/1.1 304 Not Modified\r\nETag: \"e\"\r\nContent-Length: 2\r\n\r\n",
    ),
    (
        "interim answers before the final one",
        "GET /api/v1/data/markets HTTP/1.1\r\nHost: localhost\r\nX-API-Key: KEY\r\nConnection: close\r\n\r\n",
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\nHTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
    ),
    (
        "404 of the upstream",
        "GET /api/v1/data/markets HTTP/1.1\r\nHost: localhost\r\nX-API-Key: KEY\r\nConnection: close\r\n\r\n",
        "HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\nContent-Length: 4\r\n\r\nnone",
    ),
    (
        "500 of the upstream",
        "GET /api/v1/data/markets HTTP/1.1\r\nHost: localhost\r\nX-API-Key: KEY\r\nConnection: close\r\n\r\n",
        "HTTP/1.1 500 Internal Server Error\r\nContent-Type: text/plain\r\nContent-Length: 6\r\n\r\nsecret",
    ),
    (
        "an answer with two framings",
        "GET /api/v1/data/markets HTTP/1.1\r\nHost: localhost\r\nX-API-Key: KEY\r\nConnection: close\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    ),
    (
        "an answer with two lengths",
        "GET /api/v1/data/markets HTTP/1.1\r\nHost: localhost\r\nX-API-Key: KEY\r\nConnection: close\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    ),
    (
        "401",
        "GET /api/v1/data/markets HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        "",
    ),
    (
        "403",
        "GET /api/v1/data/rankings HTTP/1.1\r\nHost: localhost\r\nX-API-Key: KEY\r\nConnection: close\r\n\r\n",
        "",
    ),
    (
        "404",
        "GET /api/v1/data/nothing HTTP/1.1\r\nHost: localhost\r\nX-API-Key: KEY\r\nConnection: close\r\n\r\n",
        "",
    ),
    (
        "405",
        "PUT /api/v1/data/markets HTTP/1.1\r\nHost: localhost\r\nX-API-Key: KEY\r\nConnection: close\r\n\r\n",
        "",
    ),
    (
        "a request with two framings",
        "POST /api/v1/data/markets HTTP/1.1\r\nHost: localhost\r\nX-API-Key: KEY\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        "",
    ),
    (
        "a field in two lines",
        "GET /api/v1/data/markets HTTP/1.1\r\nHost: localhost\r\nX-API-Key: KEY\r\nX-One: a\r\n b\r\n\r\n",
        "",
    ),
];

/// An upstream that keeps every byte that it receives, and gives the answer that is set.
#[derive(Clone, Default)]
struct Tape {
    received: Arc<Mutex<Vec<u8>>>,
    answer: Arc<Mutex<&'static str>>,
}

impl Tape {
    async fn listen(&self) -> std::net::SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let tape = self.clone();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(tape.clone().converse(socket));
            }
        });
        address
    }

    async fn converse(self, mut socket: TcpStream) {
        let mut request = Vec::new();
        let mut part = [0; 4096];
        while let Ok(length @ 1..) = socket.read(&mut part).await {
            request.extend_from_slice(&part[..length]);
            self.received
                .lock()
                .unwrap()
                .extend_from_slice(&part[..length]);
            if is_whole(&request) {
                request.clear();
                let answer = *self.answer.lock().unwrap();
                if socket.write_all(answer.as_bytes()).await.is_err()
                    || answer.contains("Connection: close")
                {
                    return;
                }
            }
        }
    }
}

/// Whether the bytes are a whole request with a length, chunks or no body.
fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request).to_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    if head.contains("\r\ntransfer-encoding:") {
        return format!("\r\n{body}").contains("\r\n0\r\n") && body.ends_with("\r\n\r\n");
    }
    let length = head.split_once("\r\ncontent-length: ");
    let length = length.map_or("0", |(_, rest)| rest.lines().next().unwrap());
    body.len() >= length.parse().unwrap()
}

/// Everything that differs from run to run replaced by its name.
fn steady(bytes: &[u8], scene: &Scene, key: &IssuedKey) -> String {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let ports = [scene.gateways[0].http, scene.gateways[0].https].map(|one| one.port().to_string());
    let upstream = scene.spec.upstream.to_string();
    let mut values = vec![
        (key.key.clone(), "KEY"),
        (key.id.clone(), "KEY-ID"),
        (upstream, "UPSTREAM"),
        (format!("localhost:{}", ports[0]), "localhost:PORT"),
        (format!("localhost:{}", ports[1]), "localhost:PORT"),
    ];
    let lines = text.split_inclusive("\r\n").map(|line| {
        let Some((name, value)) = line.trim_end().split_once(": ") else {
            return line.to_owned();
        };
        match name.to_lowercase().as_str() {
            "x-request-id" => values.push((value.to_owned(), "REQUEST-ID")),
            volatile if VOLATILE.contains(&volatile) => {
                return format!("{name}: {}\r\n", volatile.to_uppercase());
            }
            _ => {}
        }
        line.to_owned()
    });
    let mut steady: String = lines.collect();
    for (value, name) in values {
        steady = steady.replace(&value, name);
    }
    steady
}

/// A line for each line of HTTP; `⏎` marks one that does not end with CR LF.
fn show(record: &mut String, side: &str, text: &str) {
    if text.is_empty() {
        writeln!(record, "{side} nothing").unwrap();
    }
    for line in text.split_inclusive("\r\n") {
        let (line, mark) = match line.strip_suffix("\r\n") {
            Some(line) => (line, ""),
            None => (line, "⏎"),
        };
        let line = line.escape_default().to_string().replace("\\\"", "\"");
        writeln!(record, "{}", format!("{side} {line}{mark}").trim_end()).unwrap();
    }
}

/// The requests of HTTP/2 clients.
fn http2_calls(key: &IssuedKey) -> [(&'static str, Call); 4] {
    let path = "/api/v1/data/markets?a=1";
    [
        ("a plain request", Call::get(path).key(key)),
        ("HEAD", Call::new("HEAD", path).key(key)),
        (
            "a body without a length",
            Call::new("POST", path).key(key).body("hello"),
        ),
        (
            "a body with a length and fields of its own",
            Call::new("POST", path)
                .key(key)
                .header("content-length", "5")
                .header("te", "trailers")
                .header("cookie", "a=1")
                .header("cookie", "b=2")
                .header("x-forwarded-for", "203.0.113.7")
                .body("hello"),
        ),
    ]
}

#[tokio::test]
async fn a_fixed_set_of_requests_leaves_the_recorded_bytes_on_both_sides() {
    let binary = std::env::var_os("BINARY").map_or(PathBuf::from(TOUCHLINE), PathBuf::from);
    let tape = Tape::default();
    let upstream = tape.listen().await;
    let scene = Scene::builder(binary)
        .spec(move |spec| {
            spec.upstream = upstream;
            spec.upstream_extra = "protocol: http1".into();
            spec.endpoints[0]
                .methods
                .extend(["HEAD".into(), "POST".into()]);
        })
        .start()
        .await;
    let key = scene.issue("pro").await;
    let mut record = String::new();
    for (name, request, answer) in EXCHANGES {
        *tape.answer.lock().unwrap() = answer;
        let sent = request.replace("KEY", &key.key);
        let exchange = scene.client(Protocol::Http1).raw(sent, Until::Closed).await;
        assert!(exchange.closed, "{name}");
        writeln!(record, "# HTTP/1: {name}").unwrap();
        show(&mut record, "client sent      ", request);
        let received = std::mem::take(&mut *tape.received.lock().unwrap());
        show(
            &mut record,
            "upstream received",
            &steady(&received, &scene, &key),
        );
        if *answer != ANSWER && !answer.is_empty() {
            show(&mut record, "upstream sent    ", answer);
        }
        show(
            &mut record,
            "client received  ",
            &steady(&exchange.bytes, &scene, &key),
        );
        record.push('\n');
    }
    *tape.answer.lock().unwrap() = ANSWER;
    let client = scene.client(Protocol::Http2Tls);
    for (name, call) in http2_calls(&key) {
        let answer = client.call(call).await;
        writeln!(record, "# HTTP/2: {name}").unwrap();
        let received = std::mem::take(&mut *tape.received.lock().unwrap());
        show(
            &mut record,
            "upstream received",
            &steady(&received, &scene, &key),
        );
        let mut fields = format!(":status: {}\r\n", answer.status);
        for (name, value) in &answer.headers {
            write!(fields, "{name}: {}\r\n", value.to_str().unwrap()).unwrap();
        }
        fields.push_str(&String::from_utf8_lossy(&answer.body));
        show(
            &mut record,
            "client received  ",
            &steady(fields.as_bytes(), &scene, &key),
        );
        record.push('\n');
    }
    if std::env::var_os("KEEP").is_some() {
        std::fs::write(RECORD, &record).unwrap();
    }
    let kept = std::fs::read_to_string(RECORD).unwrap();
    for (number, (kept, now)) in kept.lines().zip(record.lines()).enumerate() {
        assert_eq!(kept, now, "line {} of {RECORD}", number + 1);
    }
    assert_eq!(kept.lines().count(), record.lines().count());
}
