//! An upstream that records every request byte for byte and misbehaves on demand.
//!
//! HTTP/1.1 is written by hand, so that a test can break the protocol; HTTP/2, by the `h2` crate, is for connections that
//! begin with its preface. Its record is the fourth ledger: the requests that the gateway forwarded, with the very bytes of their
//! target.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use http::Version;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Semaphore, broadcast, watch};
use tokio::task::JoinSet;

mod http2;

pub use http2::GOAWAY_DATA;

/// Longest request head and body that is read; beyond, the connection is closed.
const REQUEST_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Time for a gateway to pass on what it has before the rest is broken off: a reset overtakes bytes not yet read.
const BREAK_OFF_DELAY: Duration = Duration::from_millis(400);
/// The length that a broken-off answer had promised.
const PROMISED_BYTES: usize = 1024 * 1024;
/// A chunk of an answer without end, and how many of them are written at most.
const FLOOD_CHUNK_BYTES: usize = 64 * 1024;
const FLOOD_CHUNKS_MAX: usize = 1_024;

/// How an exchange ended, as far as the upstream knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Still being answered, or held for ever.
    Unanswered,
    /// Written to the last byte.
    Answered,
    /// The same, with a status that this server is unavailable: 502, 503 or 504.
    Away,
    /// A header and a part of the body, then broken off.
    Cut,
    /// Broken off before the header.
    Reset,
    /// Reported as not processed, over HTTP/2.
    Refused,
}

/// The protocols that the upstream accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speaks {
    /// HTTP/2 on connections that begin with it, otherwise HTTP/1.1.
    Both,
    /// HTTP/1.1 only: HTTP/2 is answered with a 400.
    Http1,
    /// HTTP/2 only: other connections are closed.
    Http2,
}

/// One request as it arrived.
#[derive(Debug, Clone)]
pub struct Recorded {
    /// `X-Request-Id`, empty if there was none.
    pub id: String,
    /// The method.
    pub method: String,
    /// The target between method and version, byte for byte.
    pub target: Vec<u8>,
    /// HTTP/1.1 or HTTP/2.
    pub version: Version,
    /// All headers in their order, names as sent; those of HTTP/2 begin with `:scheme` and `:authority`.
    pub headers: Vec<(String, Vec<u8>)>,
    /// The body without its framing.
    pub body: Vec<u8>,
    /// When its last byte was read.
    pub at: Instant,
    /// The number of its connection, counted from 1.
    pub connection: u64,
    /// Its place on that connection, counted from 1.
    pub place: u32,
    /// How it was answered.
    pub outcome: Outcome,
}

impl Recorded {
    /// All values of a header, whatever the case of its name.
    pub fn values(&self, name: &str) -> Vec<String> {
        self.headers
            .iter()
            .filter(|(one, _)| one.eq_ignore_ascii_case(name))
            .map(|(_, value)| String::from_utf8_lossy(value).into_owned())
            .collect()
    }

    /// The target as text.
    pub fn target_text(&self) -> String {
        String::from_utf8_lossy(&self.target).into_owned()
    }

    /// Everything as one searchable text.
    pub fn text(&self) -> String {
        let mut text = format!("{} {}\n", self.method, self.target_text());
        for (name, value) in &self.headers {
            text.push_str(&format!("{name}: {}\n", String::from_utf8_lossy(value)));
        }
        text.push_str(&String::from_utf8_lossy(&self.body));
        text
    }
}

/// How a body is delimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// `Content-Length`.
    Length,
    /// `Transfer-Encoding: chunked`.
    Chunked,
}

/// A whole answer.
#[derive(Debug, Clone)]
pub struct Script {
    /// The status.
    pub status: u16,
    /// Headers beside the framing.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
    /// How the body is delimited.
    pub framing: Framing,
    /// Fields behind the body, where that has no length.
    pub trailers: Vec<(String, String)>,
}

impl Script {
    /// An answer with a JSON body.
    pub fn json(status: u16, body: &str) -> Script {
        Script {
            status,
            headers: vec![("Content-Type".into(), "application/json".into())],
            body: body.into(),
            framing: Framing::Length,
            trailers: Vec::new(),
        }
    }

    /// The same with one more header.
    pub fn header(mut self, name: &str, value: &str) -> Script {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// The same in chunks, with one more field behind them.
    pub fn trailer(mut self, name: &str, value: &str) -> Script {
        self.trailers.push((name.into(), value.into()));
        self.chunked()
    }

    /// The same in chunks.
    pub fn chunked(mut self) -> Script {
        self.framing = Framing::Chunked;
        self
    }
}

/// Holds answers back until it is given. Clones are the same one.
#[derive(Debug, Clone, Default)]
pub struct Release(Arc<watch::Sender<bool>>);

impl Release {
    /// Lets everything go, now and later.
    pub fn give(&self) {
        self.0.send_replace(true);
    }

    async fn given(&self) {
        // It lives as long as we do.
        let _ = self.0.subscribe().wait_for(|given| *given).await;
    }
}

/// The behaviour for a request.
#[derive(Debug, Clone)]
pub enum Behaviour {
    /// 200 with a JSON body that echoes the request id.
    Echo,
    /// This answer.
    Answer(Script),
    /// A short JSON answer with this status.
    Status(u16),
    /// Wait, then do the other.
    Delay(Duration, Box<Behaviour>),
    /// Wait for the release, then do the other.
    Until(Release, Box<Behaviour>),
    /// Reset the connection without a byte of answer.
    ResetBeforeHeader,
    /// A header that promises a length, this number of bytes of body, then a reset.
    ResetMidBody {
        /// Bytes of body sent.
        after: usize,
    },
    /// The same as [`Behaviour::ResetMidBody`], ended by a plain close instead.
    CloseMidBody {
        /// Bytes of body sent.
        after: usize,
    },
    /// A header and an endless body, until the gateway takes no more of it for a while; then a reset.
    ResetWhenStuck,
    /// A header and nothing more, until the gateway gives up.
    StallAfterHeader,
    /// Nothing at all, until the gateway gives up.
    Stall,
    /// This interim answer, then the other.
    Informational(u16, Box<Behaviour>),
    /// These bytes, then close.
    Raw(Vec<u8>),
    /// A 200 of this type in chunks; each part is written when the semaphore has a permit for it, which is then gone.
    Parts {
        /// `Content-Type`.
        kind: &'static str,
        /// One part.
        parts: Vec<&'static str>,
        /// Lets parts go.
        allowed: Arc<Semaphore>,
    },
    /// Do the other, then close the connection without announcing it.
    ThenClose(Box<Behaviour>),
    /// Over HTTP/2: reset the stream with this code, before any header. 7 is REFUSED_STREAM. Over HTTP/1.1 the connection.
    ResetStream(u32),
    /// The same as [`Behaviour::ResetMidBody`], ended over HTTP/2 by a reset of the stream with this code.
    ResetStreamMidBody {
        /// Bytes of body sent.
        after: usize,
        /// The code.
        code: u32,
    },
    /// Over HTTP/2: a 200 of no announced length with this body, and a reset of the stream with this code, in one packet. Over HTTP/1.1,
    /// reset the connection.
    ResetStreamAtEnd {
        /// The body.
        body: &'static str,
        /// The code.
        code: u32,
    },
    /// Over HTTP/2: a GOAWAY with this code that leaves the request out, and nothing more of it. Over HTTP/1.1, reset the connection.
    GoAway(u32),
    /// Over HTTP/2: an invalid frame of the connection, and nothing of the answer. Over HTTP/1.1, reset the connection.
    InvalidFrame,
}

type Decide = Arc<dyn Fn(&Recorded) -> Behaviour + Send + Sync>;

struct Shared {
    recorded: Mutex<Vec<Recorded>>,
    by_id: Mutex<BTreeMap<String, Behaviour>>,
    decide: Mutex<Decide>,
    speaks: Mutex<Speaks>,
    /// Makes HTTP/2 connections end after their requests.
    farewells: broadcast::Sender<()>,
    connections: AtomicU64,
    /// The refusal of the next request over HTTP/2, after this number of bytes of its body.
    early: Mutex<Option<(usize, Behaviour)>>,
    /// Requests over HTTP/2 whose head has arrived.
    heads: AtomicU64,
    /// The ids of all requests whose head has arrived, complete or not.
    begun: Mutex<Vec<String>>,
}

impl Shared {
    /// What to do with a request, and its place among those recorded.
    fn record(&self, request: &Recorded) -> (Behaviour, usize) {
        let scripted = lock(&self.by_id).get(&request.id).cloned();
        let decide = Arc::clone(&lock(&self.decide));
        let behaviour = scripted.unwrap_or_else(|| decide(request));
        let mut recorded = lock(&self.recorded);
        recorded.push(request.clone());
        (behaviour, recorded.len() - 1)
    }

    /// Records that the head of a request has arrived.
    fn begin(&self, id: &str) {
        lock(&self.begun).push(id.to_owned());
    }

    fn note(&self, place: usize, outcome: Outcome) {
        if let Some(one) = lock(&self.recorded).get_mut(place) {
            one.outcome = outcome;
        }
    }
}

fn bound(address: SocketAddr) -> std::io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The server. It listens until stopped or dropped.
pub struct RecordingUpstream {
    address: SocketAddr,
    shared: Arc<Shared>,
    serving: Option<tokio::task::JoinHandle<()>>,
    /// The port of a stopped one, on which nothing listens: another test's gateway could get it, and the requests of this one.
    held: Option<TcpSocket>,
}

impl RecordingUpstream {
    /// Listens on a port of loopback that the operating system chooses.
    pub async fn start() -> RecordingUpstream {
        RecordingUpstream::start_at(([127, 0, 0, 1], 0).into()).await
    }

    /// Listens there; port 0 is one that the operating system chooses.
    ///
    /// # Panics
    /// If the address is in use.
    pub async fn start_at(address: SocketAddr) -> RecordingUpstream {
        let listener = TcpListener::bind(address).await.expect("a free port");
        let address = listener
            .local_addr()
            .expect("a bound socket has an address");
        let shared = Arc::new(Shared {
            recorded: Mutex::default(),
            by_id: Mutex::default(),
            decide: Mutex::new(Arc::new(|_| Behaviour::Echo)),
            speaks: Mutex::new(Speaks::Both),
            farewells: broadcast::channel(1).0,
            connections: AtomicU64::new(0),
            early: Mutex::default(),
            heads: AtomicU64::new(0),
            begun: Mutex::default(),
        });
        let serving = Some(tokio::spawn(accept(listener, Arc::clone(&shared))));
        RecordingUpstream {
            address,
            shared,
            serving,
            held: None,
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts only these protocols on new connections.
    pub fn speak(&self, speaks: Speaks) {
        *lock(&self.shared.speaks) = speaks;
    }

    /// Sends a GOAWAY on all HTTP/2 connections: requests in flight are answered, further ones need other connections.
    pub fn go_away(&self) {
        // There may be no connection.
        let _ = self.shared.farewells.send(());
    }

    /// How many connections were made so far.
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// Decides what to do with each request from now on.
    pub fn behave(&self, decide: impl Fn(&Recorded) -> Behaviour + Send + Sync + 'static) {
        *lock(&self.shared.decide) = Arc::new(decide);
    }

    /// Does this with every request from now on.
    pub fn always(&self, behaviour: Behaviour) {
        self.behave(move |_| behaviour.clone());
    }

    /// Does this with the request of that id, independently of the others.
    pub fn behave_for(&self, id: &str, behaviour: Behaviour) {
        lock(&self.shared.by_id).insert(id.to_owned(), behaviour);
    }

    /// Refuses the next request over HTTP/2, which is not recorded, when this number of bytes of its body has arrived: by
    /// [`Behaviour::ResetStream`], [`Behaviour::GoAway`] or [`Behaviour::Answer`].
    pub fn refuse_early(&self, body_bytes: usize, refusal: Behaviour) {
        *lock(&self.shared.early) = Some((body_bytes, refusal));
    }

    /// How many heads of requests have arrived over HTTP/2, those of health checks and of refused requests too.
    pub fn http2_heads(&self) -> u64 {
        self.shared.heads.load(Ordering::Relaxed)
    }

    /// The ids of all requests whose head has arrived, in order: also of those whose body never arrived completely, which
    /// are not recorded. Health checks have an empty one.
    pub fn begun(&self) -> Vec<String> {
        lock(&self.shared.begun).clone()
    }

    /// All requests so far, in the order of their arrival.
    pub fn recorded(&self) -> Vec<Recorded> {
        lock(&self.shared.recorded).clone()
    }

    /// All requests so far, and forgets them.
    pub fn take(&self) -> Vec<Recorded> {
        std::mem::take(&mut *lock(&self.shared.recorded))
    }

    /// The requests with that id.
    pub fn recorded_as(&self, id: &str) -> Vec<Recorded> {
        let recorded = lock(&self.shared.recorded);
        recorded
            .iter()
            .filter(|one| one.id == id)
            .cloned()
            .collect()
    }

    /// How many requests arrived so far.
    pub fn count(&self) -> usize {
        lock(&self.shared.recorded).len()
    }

    /// Stops listening and breaks off every connection: connecting is refused from now on.
    pub async fn stop(&mut self) {
        if let Some(serving) = self.serving.take() {
            serving.abort();
            let _ = serving.await;
            self.held = bound(self.address).ok();
        }
    }

    /// Listens again on the same port.
    pub async fn restart(&mut self) {
        self.stop().await;
        self.held = None;
        let address = self.address;
        let listener = crate::eventually("the upstream's port is free again", async || {
            TcpListener::bind(address).await.ok()
        })
        .await;
        self.serving = Some(tokio::spawn(accept(listener, Arc::clone(&self.shared))));
    }
}

impl Drop for RecordingUpstream {
    fn drop(&mut self) {
        if let Some(serving) = self.serving.take() {
            serving.abort();
        }
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    // Aborted with this task, so that a stopped upstream has no living connection.
    let mut connections = JoinSet::new();
    while let Ok((socket, _)) = listener.accept().await {
        let connection = shared.connections.fetch_add(1, Ordering::Relaxed) + 1;
        let shared = Arc::clone(&shared);
        connections.spawn(async move {
            let _ = greet(socket, shared, connection).await;
        });
        while connections.try_join_next().is_some() {}
    }
}

/// Serves a connection in the version that it begins with, if that is spoken here.
async fn greet(mut socket: TcpStream, shared: Arc<Shared>, connection: u64) -> std::io::Result<()> {
    let _ = socket.set_nodelay(true);
    let speaks = *lock(&shared.speaks);
    match (http2::begins(&socket).await?, speaks) {
        (true, Speaks::Both | Speaks::Http2) => http2::serve(socket, shared, connection).await,
        (true, Speaks::Http1) => {
            let refusal = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
            socket.write_all(refusal).await
        }
        (false, Speaks::Http2) => Ok(()),
        (false, Speaks::Both | Speaks::Http1) => serve(socket, &shared, connection).await,
    }
}

async fn serve(mut socket: TcpStream, shared: &Shared, connection: u64) -> std::io::Result<()> {
    let mut buffer = Vec::new();
    let mut place = 0;
    while let Some(mut request) = read_request(&mut socket, &mut buffer, shared).await? {
        place += 1;
        request.connection = connection;
        request.place = place;
        if is_check(&request) {
            answer(&mut socket, &Script::json(200, "{}"), false).await?;
            continue;
        }
        let (behaviour, index) = shared.record(&request);
        let record = |outcome| shared.note(index, outcome);
        if !perform(&mut socket, &request, behaviour, &record).await? {
            return Ok(());
        }
    }
    Ok(())
}

/// A health check, which is no client's request.
fn is_check(request: &Recorded) -> bool {
    request.target == b"/healthz" && request.id.is_empty()
}

/// Carries out one behaviour; returns whether the connection continues.
async fn perform(
    socket: &mut TcpStream,
    request: &Recorded,
    mut behaviour: Behaviour,
    record: &(dyn Fn(Outcome) + Sync),
) -> std::io::Result<bool> {
    let headless = request.method == "HEAD";
    let mut close = false;
    loop {
        let script = match behaviour {
            Behaviour::Echo => Script::json(200, &format!("{{\"request_id\":\"{}\"}}", request.id)),
            Behaviour::Answer(script) => script,
            Behaviour::Status(status) => {
                Script::json(status, &format!("{{\"upstream_status\":{status}}}"))
            }
            Behaviour::Delay(time, next) => {
                // A gateway that gives up closes the connection, which ends the exchange.
                if tokio::time::timeout(time, closed(socket)).await.is_ok() {
                    return Ok(false);
                }
                behaviour = *next;
                continue;
            }
            Behaviour::Until(release, next) => {
                tokio::select! {
                    () = release.given() => {}
                    _ = closed(socket) => return Ok(false),
                }
                behaviour = *next;
                continue;
            }
            Behaviour::Informational(status, next) => {
                let interim =
                    format!("HTTP/1.1 {status} Interim\r\nLink: </style.css>; rel=preload\r\n\r\n");
                socket.write_all(interim.as_bytes()).await?;
                behaviour = *next;
                continue;
            }
            Behaviour::ThenClose(next) => {
                close = true;
                behaviour = *next;
                continue;
            }
            Behaviour::ResetBeforeHeader
            | Behaviour::ResetStream(_)
            | Behaviour::ResetStreamAtEnd { .. }
            | Behaviour::GoAway(_)
            | Behaviour::InvalidFrame => {
                record(Outcome::Reset);
                reset(socket)?;
                return Ok(false);
            }
            Behaviour::ResetMidBody { after } | Behaviour::ResetStreamMidBody { after, .. } => {
                promise(socket, after).await?;
                record(Outcome::Cut);
                tokio::time::sleep(BREAK_OFF_DELAY).await;
                reset(socket)?;
                return Ok(false);
            }
            Behaviour::CloseMidBody { after } => {
                promise(socket, after).await?;
                record(Outcome::Cut);
                tokio::time::sleep(BREAK_OFF_DELAY).await;
                return Ok(false);
            }
            Behaviour::ResetWhenStuck => {
                flood(socket).await?;
                record(Outcome::Cut);
                reset(socket)?;
                return Ok(false);
            }
            Behaviour::StallAfterHeader => {
                promise(socket, 0).await?;
                record(Outcome::Cut);
                closed(socket).await;
                return Ok(false);
            }
            Behaviour::Stall => {
                closed(socket).await;
                return Ok(false);
            }
            Behaviour::Parts {
                kind,
                parts,
                allowed,
            } => {
                let header = format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n"
                );
                socket.write_all(header.as_bytes()).await?;
                for part in parts {
                    if !is_allowed(&allowed, closed(socket)).await {
                        return Ok(false);
                    }
                    let chunk = format!("{:x}\r\n{part}\r\n", part.len());
                    socket.write_all(chunk.as_bytes()).await?;
                }
                socket.write_all(b"0\r\n\r\n").await?;
                record(Outcome::Answered);
                return Ok(!close);
            }
            Behaviour::Raw(bytes) => {
                socket.write_all(&bytes).await?;
                record(Outcome::Answered);
                socket.shutdown().await?;
                return Ok(false);
            }
        };
        answer(socket, &script, headless).await?;
        record(answered(&script));
        return Ok(!close);
    }
}

/// The outcome of a written answer.
fn answered(script: &Script) -> Outcome {
    match script.status {
        502..=504 => Outcome::Away,
        _ => Outcome::Answered,
    }
}

/// Waits for a permit, and takes it; false if the other side closes first.
async fn is_allowed(allowed: &Semaphore, gone: impl Future<Output = ()>) -> bool {
    tokio::select! {
        permit = allowed.acquire() => {
            permit.expect("nobody closes it").forget();
            true
        }
        () = gone => false,
    }
}

/// Returns when the other side has closed or reset the connection.
async fn closed(socket: &mut TcpStream) {
    let mut byte = [0];
    while matches!(socket.read(&mut byte).await, Ok(1..)) {}
}

fn reset(socket: &TcpStream) -> std::io::Result<()> {
    socket2::SockRef::from(socket).set_linger(Some(Duration::ZERO))
}

async fn promise(socket: &mut TcpStream, sent: usize) -> std::io::Result<()> {
    let mut bytes = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {PROMISED_BYTES}\r\n\r\n"
    )
    .into_bytes();
    bytes.resize(bytes.len() + sent.min(PROMISED_BYTES - 1), b'x');
    socket.write_all(&bytes).await
}

/// Writes a body without end until the other side takes nothing for [`BREAK_OFF_DELAY`].
async fn flood(socket: &mut TcpStream) -> std::io::Result<()> {
    let header =
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
    socket.write_all(header.as_bytes()).await?;
    let mut chunk = format!("{FLOOD_CHUNK_BYTES:x}\r\n").into_bytes();
    chunk.resize(chunk.len() + FLOOD_CHUNK_BYTES, b'x');
    chunk.extend(b"\r\n");
    for _ in 0..FLOOD_CHUNKS_MAX {
        match tokio::time::timeout(BREAK_OFF_DELAY, socket.write_all(&chunk)).await {
            Ok(written) => written?,
            Err(_) => return Ok(()),
        }
    }
    Err(std::io::Error::other("nobody ever stopped reading"))
}

async fn answer(socket: &mut TcpStream, script: &Script, headless: bool) -> std::io::Result<()> {
    let mut bytes = format!("HTTP/1.1 {} Scripted\r\n", script.status).into_bytes();
    for (name, value) in &script.headers {
        bytes.extend(format!("{name}: {value}\r\n").bytes());
    }
    let bodiless = matches!(script.status, 204 | 304) || script.status < 200;
    match script.framing {
        _ if bodiless => bytes.extend(b"\r\n"),
        Framing::Length => {
            bytes.extend(format!("Content-Length: {}\r\n\r\n", script.body.len()).bytes());
            if !headless {
                bytes.extend(&script.body);
            }
        }
        Framing::Chunked => {
            bytes.extend(b"Transfer-Encoding: chunked\r\n\r\n");
            if !headless {
                for chunk in script.body.chunks(1_000) {
                    bytes.extend(format!("{:x}\r\n", chunk.len()).bytes());
                    bytes.extend(chunk);
                    bytes.extend(b"\r\n");
                }
                bytes.extend(b"0\r\n");
                for (name, value) in &script.trailers {
                    bytes.extend(format!("{name}: {value}\r\n").bytes());
                }
                bytes.extend(b"\r\n");
            }
        }
    }
    socket.write_all(&bytes).await
}

async fn read_request(
    socket: &mut TcpStream,
    buffer: &mut Vec<u8>,
    shared: &Shared,
) -> std::io::Result<Option<Recorded>> {
    let Some(head) = read_until(socket, buffer, b"\r\n\r\n").await? else {
        return Ok(None);
    };
    let mut lines = split_lines(&head);
    let first = lines.next().unwrap_or_default();
    let mut words = first.splitn(2, |byte| *byte == b' ');
    let method = String::from_utf8_lossy(words.next().unwrap_or_default()).into_owned();
    let rest = words.next().unwrap_or_default();
    let target = match rest.iter().rposition(|byte| *byte == b' ') {
        Some(end) => rest.get(..end).unwrap_or_default().to_vec(),
        None => rest.to_vec(),
    };
    let headers: Vec<(String, Vec<u8>)> = lines
        .filter_map(|line| {
            let colon = line.iter().position(|byte| *byte == b':')?;
            let name = String::from_utf8_lossy(line.get(..colon)?).into_owned();
            Some((name, line.get(colon + 1..)?.trim_ascii().to_vec()))
        })
        .collect();
    let mut request = Recorded {
        id: String::new(),
        method,
        target,
        version: Version::HTTP_11,
        headers,
        body: Vec::new(),
        at: Instant::now(),
        connection: 0,
        place: 0,
        outcome: Outcome::Unanswered,
    };
    request.id = request.values("x-request-id").join(",");
    shared.begin(&request.id);
    let chunked = request
        .values("transfer-encoding")
        .iter()
        .any(|value| value.eq_ignore_ascii_case("chunked"));
    if chunked {
        loop {
            let Some(size) = read_until(socket, buffer, b"\r\n").await? else {
                return Ok(None);
            };
            let text = String::from_utf8_lossy(&size);
            let digits = text.split(';').next().unwrap_or_default().trim();
            let size = usize::from_str_radix(digits, 16).map_err(std::io::Error::other)?;
            let Some(chunk) = read_exactly(socket, buffer, size + 2).await? else {
                return Ok(None);
            };
            request.body.extend(chunk.get(..size).unwrap_or_default());
            if size == 0 {
                break;
            }
        }
    } else if let Some(length) = request.values("content-length").first() {
        let length = length.parse().map_err(std::io::Error::other)?;
        match read_exactly(socket, buffer, length).await? {
            Some(body) => request.body = body,
            None => return Ok(None),
        }
    }
    request.at = Instant::now();
    Ok(Some(request))
}

fn split_lines(head: &[u8]) -> impl Iterator<Item = &[u8]> {
    head.split(|byte| *byte == b'\n')
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line))
        .filter(|line| !line.is_empty())
}

/// Takes everything before `mark` from the connection, and `mark` away; `None` at its end.
async fn read_until(
    socket: &mut TcpStream,
    buffer: &mut Vec<u8>,
    mark: &[u8],
) -> std::io::Result<Option<Vec<u8>>> {
    loop {
        let found = buffer.windows(mark.len()).position(|window| window == mark);
        if let Some(end) = found {
            let mut taken: Vec<u8> = buffer.drain(..end + mark.len()).collect();
            taken.truncate(end);
            return Ok(Some(taken));
        }
        if buffer.len() > REQUEST_BYTES_MAX || socket.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
}

async fn read_exactly(
    socket: &mut TcpStream,
    buffer: &mut Vec<u8>,
    length: usize,
) -> std::io::Result<Option<Vec<u8>>> {
    while buffer.len() < length {
        if length > REQUEST_BYTES_MAX || socket.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
    Ok(Some(buffer.drain(..length).collect()))
}

#[cfg(test)]
mod tests;
