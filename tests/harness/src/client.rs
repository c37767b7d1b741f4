//! Clients that record their calls: HTTP/1.1 clear and over TLS, HTTP/2 over TLS and with prior knowledge, and bytes
//! written by hand.
//!
//! Every call carries an `X-Request-Id` of its own and leaves one [`Entry`] in the client ledger, whatever its outcome.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, Version};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;

use http2::Sent as Http2Sent;

mod http2;

/// The longest a call may take before the test fails.
const CALL_DEADLINE: Duration = Duration::from_secs(60);
/// The longest that a hand-written request waits for its answers.
const RAW_DEADLINE: Duration = Duration::from_secs(15);
/// The name in `Host`, `:authority` and SNI.
pub const HOST: &str = "localhost";

/// The protocol of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1 without TLS.
    Http1,
    /// HTTP/1.1 over TLS.
    Http1Tls,
    /// HTTP/2 over TLS, by ALPN.
    Http2Tls,
    /// HTTP/2 without TLS, with prior knowledge.
    Http2Clear,
}

impl Protocol {
    /// The three that every gateway offers.
    pub const ALL: [Protocol; 3] = [Protocol::Http1, Protocol::Http1Tls, Protocol::Http2Tls];

    /// Whether the protocol uses the TLS listener.
    pub fn is_tls(self) -> bool {
        matches!(self, Protocol::Http1Tls | Protocol::Http2Tls)
    }

    /// Whether the protocol is HTTP/2.
    pub fn is_http2(self) -> bool {
        matches!(self, Protocol::Http2Tls | Protocol::Http2Clear)
    }
}

/// How a call ended for the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// An answer to its last byte.
    Whole,
    /// A header, then visibly broken off.
    Cut,
    /// The client hung up first.
    HungUp,
    /// No answer: the connection failed.
    Failed,
}

/// One call in the client ledger.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The request id of the answer, otherwise the one that was sent; empty if neither is known.
    pub id: String,
    /// The value of `X-API-Key`, if exactly one was sent.
    pub key: Option<String>,
    /// The method; empty if a hand-written request has no plain one.
    pub method: String,
    /// The target as sent; empty if a hand-written request has no plain one.
    pub target: String,
    /// The status, if a header arrived.
    pub status: Option<u16>,
    /// `code` of a problem body, if the answer has one.
    pub code: Option<String>,
    /// Whether the answer is a problem body, which an answer to HEAD shows by its type only.
    pub is_problem: bool,
    /// `X-RateLimit-Limit`.
    pub limit: Option<u64>,
    /// `X-RateLimit-Remaining`.
    pub remaining: Option<u64>,
    /// `X-RateLimit-Reset`.
    pub reset: Option<u64>,
    /// How the call ended.
    pub ending: Ending,
    /// Header and body of the answer as searchable text.
    pub answer_text: String,
}

/// The calls of all clients of a test.
#[derive(Debug, Default)]
pub struct ClientLedger {
    entries: Mutex<Vec<Entry>>,
}

static CALLS: AtomicU64 = AtomicU64::new(0);

/// A request id that no other call of this process has.
pub fn next_request_id() -> String {
    format!(
        "call-{}-{}",
        std::process::id(),
        CALLS.fetch_add(1, Ordering::Relaxed)
    )
}

impl ClientLedger {
    /// A copy of all entries.
    pub fn entries(&self) -> Vec<Entry> {
        self.lock().clone()
    }

    fn add(&self, entry: Entry) {
        self.lock().push(entry);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Entry>> {
        self.entries
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// A request to be sent.
#[derive(Debug, Clone)]
pub struct Call {
    /// The method.
    pub method: Method,
    /// Path and query.
    pub target: String,
    /// Headers beside `Host` and, unless one is given here, `X-Request-Id`.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The body.
    pub body: Bytes,
}

impl Call {
    /// A request with any method.
    pub fn new(method: &str, target: &str) -> Call {
        Call {
            method: Method::from_bytes(method.as_bytes()).expect("a method"),
            target: target.to_owned(),
            headers: Vec::new(),
            body: Bytes::new(),
        }
    }

    /// A GET.
    pub fn get(target: &str) -> Call {
        Call::new("GET", target)
    }

    /// The same with that `X-API-Key`.
    pub fn key(self, key: impl AsRef<str>) -> Call {
        self.header("x-api-key", key.as_ref())
    }

    /// The same with one more header; its name is sent in lower case.
    pub fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Call {
        self.headers.push((
            HeaderName::from_bytes(name.as_bytes()).expect("a header name"),
            HeaderValue::from_bytes(value.as_ref()).expect("a header value"),
        ));
        self
    }

    /// The same with a body.
    pub fn body(mut self, body: impl Into<Bytes>) -> Call {
        self.body = body.into();
        self
    }

    fn presented_key(&self) -> Option<String> {
        let mut keys = self.headers.iter().filter(|(name, _)| name == "x-api-key");
        match (keys.next(), keys.next()) {
            (Some((_, value)), None) => {
                Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
            }
            _ => None,
        }
    }
}

/// The answer to a request.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The body, as far as it arrived.
    pub body: Bytes,
    /// The trailer fields; not read for hand-written requests.
    pub trailers: HeaderMap,
    /// Whether the answer is complete; false if it was visibly broken off.
    pub complete: bool,
    /// The protocol of the answer.
    pub version: Version,
}

impl Answer {
    /// The only value of a header; panics if there are several.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.get_all(name).iter();
        let value = values.next()?;
        assert!(values.next().is_none(), "several {name}: {self:?}");
        value.to_str().ok()
    }

    /// A header that is a number.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.header(name)?.parse().ok()
    }

    /// The body as JSON, or null if it is not JSON.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// `code` of a problem body.
    pub fn code(&self) -> Option<String> {
        if !self.is_problem() {
            return None;
        }
        Some(self.json().get("code")?.as_str()?.to_owned())
    }

    /// Whether the body is an error body of the gateway.
    pub fn is_problem(&self) -> bool {
        self.headers
            .get("content-type")
            .is_some_and(|value| value.as_bytes().starts_with(b"application/problem+json"))
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for (name, value) in &self.headers {
            text.push_str(&format!(
                "{name}: {}\n",
                String::from_utf8_lossy(value.as_bytes())
            ));
        }
        text.push_str(&String::from_utf8_lossy(&self.body));
        text
    }

    fn entry(&self, call: &Sent) -> Entry {
        let id = self.headers.get("x-request-id");
        let number = |name| self.headers.get(name)?.to_str().ok()?.parse().ok();
        Entry {
            id: match id.and_then(|value| value.to_str().ok()) {
                Some(id) => id.to_owned(),
                None => call.id.clone(),
            },
            key: call.key.clone(),
            method: call.method.clone(),
            target: call.target.clone(),
            status: Some(self.status),
            code: self.code(),
            is_problem: self.is_problem(),
            limit: number("x-ratelimit-limit"),
            remaining: number("x-ratelimit-remaining"),
            reset: number("x-ratelimit-reset"),
            ending: if self.complete {
                Ending::Whole
            } else {
                Ending::Cut
            },
            answer_text: self.text(),
        }
    }
}

/// The parts of a request that the ledger records.
struct Sent {
    id: String,
    key: Option<String>,
    method: String,
    target: String,
}

impl Sent {
    fn unanswered(&self, ending: Ending) -> Entry {
        Entry {
            id: self.id.clone(),
            key: self.key.clone(),
            method: self.method.clone(),
            target: self.target.clone(),
            status: None,
            code: None,
            is_problem: false,
            limit: None,
            remaining: None,
            reset: None,
            ending,
            answer_text: String::new(),
        }
    }
}

/// When to stop reading the answers to hand-written bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// After this number of final answers (or when the gateway closes, or after the deadline).
    Answers(usize),
    /// When the gateway closes (or after the deadline).
    Closed,
}

/// The answers to hand-written bytes.
#[derive(Debug)]
pub struct RawExchange {
    /// Every byte received.
    pub bytes: Vec<u8>,
    /// The final answers in them.
    pub answers: Vec<Answer>,
    /// Whether the gateway closed the connection.
    pub closed: bool,
}

type Http1Sender = http1::SendRequest<Full<Bytes>>;

/// One client with one kept-alive connection, opened when first needed and again after it has ended.
pub struct Client {
    protocol: Protocol,
    address: SocketAddr,
    ledger: Arc<ClientLedger>,
    http1: tokio::sync::Mutex<Option<(Http1Sender, JoinHandle<()>)>>,
    http2: tokio::sync::Mutex<Option<http2::Sender>>,
}

impl Client {
    /// A client for the listener at `address` that writes to `ledger`.
    pub fn new(protocol: Protocol, address: SocketAddr, ledger: Arc<ClientLedger>) -> Client {
        Client {
            protocol,
            address,
            ledger,
            http1: tokio::sync::Mutex::new(None),
            http2: tokio::sync::Mutex::new(None),
        }
    }

    /// The protocol of the client.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// A GET with this key.
    pub async fn get(&self, key: impl AsRef<str>, target: &str) -> Answer {
        self.call(Call::get(target).key(key)).await
    }

    /// Sends a request; panics if no answer comes.
    pub async fn call(&self, call: Call) -> Answer {
        let what = format!("{} {} over {:?}", call.method, call.target, self.protocol);
        match self.try_call(call).await {
            Ok(answer) => answer,
            Err(error) => panic!("no answer to {what}: {error}"),
        }
    }

    /// Sends a request; an error if no answer comes.
    pub async fn try_call(&self, call: Call) -> Result<Answer, String> {
        let (sent, request) = self.request(call);
        let result = match tokio::time::timeout(CALL_DEADLINE, self.exchange(request)).await {
            Ok(result) => result,
            Err(_) => Err(format!("nothing within {CALL_DEADLINE:?}")),
        };
        self.ledger.add(match &result {
            Ok(answer) => answer.entry(&sent),
            Err(_) => sent.unanswered(Ending::Failed),
        });
        result
    }

    /// Sends a request and hangs up as soon as `when` is done, without waiting for the answer.
    ///
    /// Over HTTP/1.1 the connection is closed, over HTTP/2 the stream is reset. Returns the request id.
    pub async fn call_and_hang_up(&self, call: Call, when: impl Future<Output = ()>) -> String {
        let (sent, request) = self.request(call);
        let early = tokio::select! {
            early = self.exchange(request) => Some(early),
            () = when => None,
        };
        if let Some(early) = early {
            panic!("an answer came before the client hung up: {early:?}");
        }
        if let Some((_, connection)) = self.http1.lock().await.take() {
            connection.abort();
        }
        self.ledger.add(sent.unanswered(Ending::HungUp));
        sent.id
    }

    /// Writes these bytes on a connection of their own and reads the answers.
    ///
    /// # Panics
    /// If the client speaks HTTP/2.
    pub async fn raw(&self, request: impl AsRef<[u8]>, until: Until) -> RawExchange {
        assert!(!self.protocol.is_http2(), "raw bytes are HTTP/1.1");
        let request = request.as_ref();
        let socket = TcpStream::connect(self.address)
            .await
            .expect("a connection");
        let mut exchange = if self.protocol.is_tls() {
            let socket = tls(socket, self.protocol).await.expect("a TLS connection");
            raw_exchange(socket, request, until).await
        } else {
            raw_exchange(socket, request, until).await
        };
        let sent = read_sent(request);
        exchange.answers = parse_answers(&exchange.bytes, sent.method == "HEAD");
        for answer in &exchange.answers {
            self.ledger.add(answer.entry(&sent));
        }
        exchange
    }

    /// Writes a hand-written request, reads nothing until `when` is done, then everything until the gateway closes.
    ///
    /// # Panics
    /// If the client speaks anything but clear HTTP/1.1.
    pub async fn read_late(
        &self,
        request: impl AsRef<[u8]>,
        when: impl Future<Output = ()>,
    ) -> RawExchange {
        assert_eq!(self.protocol, Protocol::Http1, "raw bytes without TLS");
        let request = request.as_ref();
        let mut socket = TcpStream::connect(self.address)
            .await
            .expect("a connection");
        socket.write_all(request).await.expect("a request sent");
        when.await;
        let mut exchange = raw_exchange(socket, b"", Until::Closed).await;
        let sent = read_sent(request);
        exchange.answers = parse_answers(&exchange.bytes, sent.method == "HEAD");
        for answer in &exchange.answers {
            self.ledger.add(answer.entry(&sent));
        }
        exchange
    }

    /// A connection over TLS on which nothing has been sent yet.
    ///
    /// # Panics
    /// If the client does not speak TLS.
    pub async fn tls_stream(&self) -> tokio_rustls::client::TlsStream<TcpStream> {
        assert!(self.protocol.is_tls(), "a client without TLS");
        let socket = TcpStream::connect(self.address)
            .await
            .expect("a connection");
        tls(socket, self.protocol).await.expect("a TLS connection")
    }

    /// The certificate that the listener presents, in DER.
    ///
    /// # Panics
    /// If the client does not speak TLS.
    pub async fn presented_certificate(&self) -> Vec<u8> {
        let stream = self.tls_stream().await;
        let chain = stream.get_ref().1.peer_certificates();
        let leaf = chain.and_then(<[_]>::first).expect("a certificate");
        leaf.as_ref().to_vec()
    }

    fn request(&self, call: Call) -> (Sent, Request<Bytes>) {
        let mut headers = HeaderMap::new();
        for (name, value) in &call.headers {
            headers.append(name, value.clone());
        }
        if !headers.contains_key("x-request-id") {
            let id = HeaderValue::from_str(&next_request_id()).expect("a plain id");
            headers.insert("x-request-id", id);
        }
        let sent = Sent {
            id: String::from_utf8_lossy(headers["x-request-id"].as_bytes()).into_owned(),
            key: call.presented_key(),
            method: call.method.to_string(),
            target: call.target.clone(),
        };
        let path = PathAndQuery::try_from(call.target.as_str()).expect("a target; else use raw");
        let mut uri = http::uri::Parts::default();
        uri.path_and_query = Some(path);
        if self.protocol.is_http2() {
            let scheme = if self.protocol.is_tls() {
                "https"
            } else {
                "http"
            };
            uri.scheme = scheme.parse().ok();
            let authority = format!("{HOST}:{}", self.address.port());
            uri.authority = authority.parse().ok();
        } else if !headers.contains_key("host") {
            headers.insert("host", HeaderValue::from_static(HOST));
        }
        let mut request = Request::new(call.body);
        *request.method_mut() = call.method;
        *request.uri_mut() = Uri::from_parts(uri).expect("a target; else use raw");
        *request.headers_mut() = headers;
        (sent, request)
    }

    /// Sends a request, and again on another connection if the first ended before the gateway took the request, as clients do; a
    /// request that the gateway may have taken is never sent again.
    async fn exchange(&self, request: Request<Bytes>) -> Result<Answer, String> {
        if self.protocol.is_http2() {
            return self.exchange_http2(request).await;
        }
        let mut unsent = request.map(Full::new);
        let response = loop {
            let mut held = self.http1.lock().await;
            let open = match held.as_mut() {
                Some((sender, _)) => sender.ready().await.is_ok(),
                None => false,
            };
            if !open {
                *held = Some(self.connect_http1().await?);
            }
            let Some((sender, _)) = held.as_mut() else {
                return Err("no connection".into());
            };
            let sending = sender.try_send_request(unsent);
            drop(held);
            match sending.await {
                Ok(response) => break response,
                Err(mut failed) => match failed.take_message() {
                    Some(request) => unsent = request,
                    None => return Err(chain(failed.error())),
                },
            }
        };
        let (head, mut body) = response.into_parts();
        let mut received = Vec::new();
        let (mut complete, mut trailers) = (true, HeaderMap::new());
        while let Some(frame) = body.frame().await {
            match frame {
                Ok(frame) => {
                    if let Some(data) = frame.data_ref() {
                        received.extend_from_slice(data);
                    }
                    if let Ok(fields) = frame.into_trailers() {
                        trailers = fields;
                    }
                }
                Err(_) => {
                    complete = false;
                    break;
                }
            }
        }
        Ok(Answer {
            status: head.status.as_u16(),
            headers: head.headers,
            body: received.into(),
            trailers,
            complete,
            version: head.version,
        })
    }

    async fn exchange_http2(&self, request: Request<Bytes>) -> Result<Answer, String> {
        let (head, body) = loop {
            let mut sender = self.http2_sender().await?;
            match sender.send(request.clone()).await? {
                Http2Sent::Answered(answer) => break answer.into_parts(),
                Http2Sent::NotTaken => {}
            }
        };
        let (received, trailers) = http2::read(body).await;
        Ok(Answer {
            status: head.status.as_u16(),
            headers: head.headers,
            body: received.into(),
            complete: trailers.is_some(),
            trailers: trailers.unwrap_or_default(),
            version: head.version,
        })
    }

    async fn connect_http1(&self) -> Result<(Http1Sender, JoinHandle<()>), String> {
        let socket = self.connect().await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(socket))
            .await
            .map_err(|error| chain(&error))?;
        let task = tokio::spawn(async move {
            let _ = connection.await;
        });
        sender.ready().await.map_err(|error| chain(&error))?;
        Ok((sender, task))
    }

    async fn http2_sender(&self) -> Result<http2::Sender, String> {
        let mut held = self.http2.lock().await;
        if let Some(sender) = held.as_mut()
            && sender.is_open().await
        {
            return Ok(sender.clone());
        }
        let sender = http2::Sender::begin(self.connect().await?).await?;
        *held = Some(sender.clone());
        Ok(sender)
    }

    async fn connect(&self) -> Result<Box<dyn Socket>, String> {
        let socket = TcpStream::connect(self.address)
            .await
            .map_err(|error| error.to_string())?;
        let _ = socket.set_nodelay(true);
        if self.protocol.is_tls() {
            Ok(Box::new(tls(socket, self.protocol).await?))
        } else {
            Ok(Box::new(socket))
        }
    }
}

/// Any stream of bytes.
trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Socket for T {}

async fn raw_exchange(mut socket: impl Socket, request: &[u8], until: Until) -> RawExchange {
    let headless = read_sent(request).method == "HEAD";
    let mut bytes = Vec::new();
    let reading = async {
        // A gateway may answer and close while the client still writes; its answer counts.
        let _ = socket.write_all(request).await;
        let _ = socket.flush().await;
        loop {
            if let Until::Answers(wanted) = until {
                let answers = parse_answers(&bytes, headless);
                if answers.iter().filter(|answer| answer.complete).count() >= wanted {
                    return false;
                }
            }
            match socket.read_buf(&mut bytes).await {
                Ok(0) | Err(_) => return true,
                Ok(_) => {}
            }
        }
    };
    let closed = tokio::time::timeout(RAW_DEADLINE, reading)
        .await
        .unwrap_or(false);
    RawExchange {
        bytes,
        answers: Vec::new(),
        closed,
    }
}

/// Method, target and key of a hand-written request, as far as they can be read.
fn read_sent(request: &[u8]) -> Sent {
    let text = String::from_utf8_lossy(request);
    let head = text.split("\r\n\r\n").next().unwrap_or_default();
    let first = head.lines().next().unwrap_or_default();
    let words: Vec<&str> = first.split(' ').collect();
    let (method, target) = match words.as_slice() {
        [method, target, version] if version.starts_with("HTTP/1.") => (*method, *target),
        _ => ("", ""),
    };
    let header = |name: &str| -> Vec<String> {
        head.lines()
            .skip(1)
            .filter_map(|line| line.split_once(':'))
            .filter(|(one, _)| one.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim().to_owned())
            .collect()
    };
    let keys = header("x-api-key");
    Sent {
        id: header("x-request-id")
            .into_iter()
            .next()
            .unwrap_or_default(),
        key: match keys.as_slice() {
            [key] => Some(key.clone()),
            _ => None,
        },
        method: method.to_owned(),
        target: target.to_owned(),
    }
}

/// The final answers in a stream of HTTP/1.1 bytes; the last may be incomplete.
fn parse_answers(mut bytes: &[u8], headless: bool) -> Vec<Answer> {
    let mut answers = Vec::new();
    while let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
        let (head, rest) = bytes.split_at(end + 4);
        let head = String::from_utf8_lossy(head);
        let mut lines = head.lines();
        let status = lines
            .next()
            .and_then(|line| line.split(' ').nth(1)?.parse::<u16>().ok())
            .unwrap_or_default();
        let mut headers = HeaderMap::new();
        for (name, value) in lines.filter_map(|line| line.split_once(':')) {
            if let (Ok(name), Ok(value)) = (
                HeaderName::from_bytes(name.as_bytes()),
                HeaderValue::from_str(value.trim()),
            ) {
                headers.append(name, value);
            }
        }
        bytes = rest;
        if (100..200).contains(&status) {
            continue;
        }
        let (body, used, complete) = if headless || matches!(status, 204 | 304) {
            (Vec::new(), 0, true)
        } else if headers.contains_key("transfer-encoding") {
            dechunk(rest)
        } else {
            let length = headers
                .get("content-length")
                .and_then(|value| value.to_str().ok()?.parse::<usize>().ok())
                .unwrap_or(0);
            let used = length.min(rest.len());
            (rest[..used].to_vec(), used, rest.len() >= length)
        };
        bytes = &rest[used..];
        answers.push(Answer {
            status,
            headers,
            body: body.into(),
            trailers: HeaderMap::new(),
            complete,
            version: Version::HTTP_11,
        });
        if !complete {
            break;
        }
    }
    answers
}

/// Body, bytes read and whether the last chunk was there.
fn dechunk(bytes: &[u8]) -> (Vec<u8>, usize, bool) {
    let mut body = Vec::new();
    let mut at = 0;
    while let Some(line) = bytes[at..].windows(2).position(|window| window == b"\r\n") {
        let digits = String::from_utf8_lossy(&bytes[at..at + line]).into_owned();
        let Ok(size) = usize::from_str_radix(digits.trim(), 16) else {
            break;
        };
        let start = at + line + 2;
        let Some(chunk) = bytes.get(start..start + size + 2) else {
            break;
        };
        body.extend_from_slice(&chunk[..size]);
        at = start + size + 2;
        if size == 0 {
            return (body, at, true);
        }
    }
    (body, at, false)
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text.push_str(&format!(": {source}"));
        next = source.source();
    }
    text
}

pub(crate) async fn tls(
    socket: TcpStream,
    protocol: Protocol,
) -> Result<tokio_rustls::client::TlsStream<TcpStream>, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
        .with_no_client_auth();
    let alpn: &[u8] = if protocol.is_http2() {
        b"h2"
    } else {
        b"http/1.1"
    };
    config.alpn_protocols = vec![alpn.to_vec()];
    let name = rustls::pki_types::ServerName::try_from(HOST).map_err(|error| error.to_string())?;
    let stream = TlsConnector::from(Arc::new(config))
        .connect(name, socket)
        .await
        .map_err(|error| error.to_string())?;
    let agreed = stream.get_ref().1.alpn_protocol();
    if protocol.is_http2() && agreed != Some(alpn) {
        return Err(format!("the gateway did not agree on h2 but on {agreed:?}"));
    }
    Ok(stream)
}

/// A verifier that accepts every certificate, for tests on loopback only; signatures are still checked.
pub fn any_certificate() -> Arc<dyn rustls::client::danger::ServerCertVerifier> {
    let provider = rustls::crypto::ring::default_provider();
    Arc::new(AnyCertificate(Arc::new(provider)))
}

#[derive(Debug)]
struct AnyCertificate(Arc<rustls::crypto::CryptoProvider>);

impl rustls::client::danger::ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &rustls::pki_types::CertificateDer<'_>,
        _intermediates: &[rustls::pki_types::CertificateDer<'_>],
        _server_name: &rustls::pki_types::ServerName<'_>,
        _ocsp_response: &[u8],
        _now: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &rustls::pki_types::CertificateDer<'_>,
        dss: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(
            message,
            cert,
            dss,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &rustls::pki_types::CertificateDer<'_>,
        dss: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(
            message,
            cert,
            dss,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_from_bytes_with_length_and_with_chunks_and_past_interim_ones() {
        let bytes = b"HTTP/1.1 103 Early\r\nLink: a\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nabHTTP/1.1 404 No\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nxyz\r\n0\r\n\r\n";
        let answers = parse_answers(bytes, false);
        let seen: Vec<(u16, &[u8], bool)> = answers
            .iter()
            .map(|answer| (answer.status, answer.body.as_ref(), answer.complete))
            .collect();
        assert_eq!(seen, [(200, &b"ab"[..], true), (404, &b"xyz"[..], true)]);
    }

    #[test]
    fn an_answer_that_was_broken_off_is_not_complete() {
        let short = parse_answers(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab", false);
        assert!(!short[0].complete);
        let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nxyz\r\n";
        assert!(!parse_answers(chunked, false)[0].complete);
    }
}
