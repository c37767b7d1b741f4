//! The recording upstream over HTTP/2: the same behaviours, and those of streams alone.
//!
//! Streams are served beside each other. What concerns a whole connection (its reset, its end, a GOAWAY) streams ask of the one task
//! that drives it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, Version};
use socket2::SockRef;
use tokio::net::TcpStream;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use super::{
    BREAK_OFF_DELAY, Behaviour, FLOOD_CHUNK_BYTES, FLOOD_CHUNKS_MAX, Framing, Outcome,
    PROMISED_BYTES, Recorded, Script, Shared, answered, is_allowed, is_check, lock,
};

/// The preface of an HTTP/2 connection (RFC 9113 section 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The most requests that may be reset before they are processed.
const RESETS_MAX: usize = 100_000;
/// The pause between two reads of a beginning that may be a preface.
const LOOK_PAUSE: Duration = Duration::from_millis(1);

// Types of frames, a flag of HEADERS (RFC 9113 section 6), and `:status: 200` (RFC 7541 appendix A).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const END_HEADERS: u8 = 4;
const STATUS_200: u8 = 0x88;

/// What the upstream explains in its GOAWAY, as some servers do.
pub const GOAWAY_DATA: &str = "no more of x-api-key: secret";

/// A request of a stream to its connection.
enum Wish {
    Reset,
    Close,
    /// Write these frames past the library.
    Frames(Vec<u8>),
    /// Record the request at this place as answered, once the answer is written.
    Answered(usize, Outcome),
}

/// Whether a connection begins with the preface of HTTP/2. Consumes nothing of it.
pub(super) async fn begins(socket: &TcpStream) -> io::Result<bool> {
    let mut start = [0; PREFACE.len()];
    loop {
        let there = socket.peek(&mut start).await?;
        let same = PREFACE.starts_with(start.get(..there).unwrap_or_default());
        if there == 0 || !same || there == PREFACE.len() {
            return Ok(there > 0 && same);
        }
        tokio::time::sleep(LOOK_PAUSE).await;
    }
}

/// Serves a connection to its end.
pub(super) async fn serve(
    socket: TcpStream,
    shared: Arc<Shared>,
    connection: u64,
) -> io::Result<()> {
    let handle = SockRef::from(&socket).try_clone()?;
    let mut farewells = shared.farewells.subscribe();
    let (wish, mut wishes) = unbounded_channel();
    let mut wire = h2::server::Builder::new()
        // An upstream that counts requests must not close a connection that resets many of them.
        .max_pending_accept_reset_streams(RESETS_MAX)
        .handshake(socket)
        .await
        .map_err(io::Error::other)?;
    // Aborted with the connection.
    let mut streams = JoinSet::new();
    let mut place = 0;
    loop {
        tokio::select! {
            // Pending data of the streams is written before their requests are carried out.
            biased;
            accepted = wire.accept() => {
                let Some(Ok((request, respond))) = accepted else { break };
                place += 1;
                let stream = Stream { shared: shared.clone(), wish: wish.clone(), respond };
                streams.spawn(async move {
                    let _ = stream.serve(request, connection, place).await;
                });
            }
            wished = wishes.recv() => match wished {
                Some(Wish::Reset) => return handle.set_linger(Some(Duration::ZERO)),
                Some(Wish::Close) | None => return Ok(()),
                Some(Wish::Frames(frames)) => handle.send(&frames).map(drop)?,
                Some(Wish::Answered(index, outcome)) => shared.note(index, outcome),
            },
            Ok(()) = farewells.recv() => wire.graceful_shutdown(),
        }
    }
    // The other side has ended it, after it had these.
    while let Ok(Wish::Answered(index, outcome)) = wishes.try_recv() {
        shared.note(index, outcome);
    }
    Ok(())
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// One request's stream.
struct Stream {
    shared: Arc<Shared>,
    wish: UnboundedSender<Wish>,
    respond: SendResponse<Bytes>,
}

impl Stream {
    async fn serve(
        mut self,
        request: Request<RecvStream>,
        connection: u64,
        place: u32,
    ) -> Result<(), h2::Error> {
        self.shared.heads.fetch_add(1, Ordering::Relaxed);
        let id = request.headers().get("x-request-id");
        self.shared
            .begin(id.and_then(|id| id.to_str().ok()).unwrap_or_default());
        let early = lock(&self.shared.early).take();
        if let Some((body_bytes, refusal)) = early {
            return self.refuse(request.into_body(), body_bytes, refusal).await;
        }
        let mut request = read(request).await?;
        request.connection = connection;
        request.place = place;
        if is_check(&request) {
            return self.answer(&Script::json(200, "{}"), false).await;
        }
        let (behaviour, index) = self.shared.record(&request);
        self.perform(&request, behaviour, index).await
    }

    /// Refuses a request when this number of bytes of its body has arrived, and opens no window for more of it.
    async fn refuse(
        &mut self,
        mut body: RecvStream,
        body_bytes: usize,
        refusal: Behaviour,
    ) -> Result<(), h2::Error> {
        let mut come = 0;
        while come < body_bytes {
            let Some(part) = body.data().await else { break };
            come += part?.len();
        }
        match refusal {
            Behaviour::ResetStream(code) => self.respond.send_reset(Reason::from(code)),
            Behaviour::GoAway(code) => {
                self.ask(self.leave_out(code))?;
                self.given_up().await;
            }
            Behaviour::Answer(script) => self.answer(&script, false).await?,
            other => panic!("{other:?} is no refusal"),
        }
        Ok(())
    }

    /// A GOAWAY that leaves this request out, as the library would never do with a request that it has read.
    fn leave_out(&self, code: u32) -> Wish {
        let last = self.respond.stream_id().as_u32().saturating_sub(2);
        let mut payload = [last.to_be_bytes(), code.to_be_bytes()].concat();
        payload.extend(GOAWAY_DATA.bytes());
        Wish::Frames(frame(GOAWAY, 0, 0, &payload))
    }

    async fn perform(
        &mut self,
        request: &Recorded,
        mut behaviour: Behaviour,
        index: usize,
    ) -> Result<(), h2::Error> {
        let shared = self.shared.clone();
        let record = |outcome| shared.note(index, outcome);
        let mut close = false;
        loop {
            let script = match behaviour {
                Behaviour::Echo => {
                    Script::json(200, &format!("{{\"request_id\":\"{}\"}}", request.id))
                }
                Behaviour::Answer(script) => script,
                Behaviour::Status(status) => {
                    Script::json(status, &format!("{{\"upstream_status\":{status}}}"))
                }
                Behaviour::Delay(time, next) => {
                    // A gateway that gives up resets the stream, which ends the exchange.
                    if tokio::time::timeout(time, self.given_up()).await.is_ok() {
                        return Ok(());
                    }
                    behaviour = *next;
                    continue;
                }
                Behaviour::Until(release, next) => {
                    tokio::select! {
                        () = release.given() => {}
                        () = self.given_up() => return Ok(()),
                    }
                    behaviour = *next;
                    continue;
                }
                Behaviour::Informational(status, next) => {
                    let interim = Response::builder()
                        .status(status)
                        .header("link", "</style.css>; rel=preload")
                        .body(());
                    self.respond
                        .send_informational(interim.unwrap_or_default())?;
                    behaviour = *next;
                    continue;
                }
                Behaviour::ThenClose(next) => {
                    close = true;
                    behaviour = *next;
                    continue;
                }
                Behaviour::ResetBeforeHeader | Behaviour::Raw(_) => {
                    record(Outcome::Reset);
                    return self.ask(Wish::Reset);
                }
                Behaviour::ResetStream(code) => {
                    let reason = Reason::from(code);
                    record(match reason {
                        Reason::REFUSED_STREAM => Outcome::Refused,
                        _ => Outcome::Reset,
                    });
                    self.respond.send_reset(reason);
                    return Ok(());
                }
                Behaviour::GoAway(code) => {
                    record(Outcome::Refused);
                    self.ask(self.leave_out(code))?;
                    self.given_up().await;
                    return Ok(());
                }
                Behaviour::InvalidFrame => {
                    record(Outcome::Reset);
                    // An update of nothing, a connection error (RFC 9113 section 6.9).
                    self.ask(Wish::Frames(frame(WINDOW_UPDATE, 0, 0, &[0; 4])))?;
                    self.given_up().await;
                    return Ok(());
                }
                Behaviour::Parts {
                    kind,
                    parts,
                    allowed,
                } => {
                    let mut header = Response::new(());
                    let kind = HeaderValue::from_static(kind);
                    header.headers_mut().insert(CONTENT_TYPE, kind);
                    let mut body = self.respond.send_response(header, false)?;
                    for part in parts {
                        let gone = async {
                            let _ = std::future::poll_fn(|context| body.poll_reset(context)).await;
                        };
                        if !is_allowed(&allowed, gone).await {
                            return Ok(());
                        }
                        send(&mut body, Bytes::from_static(part.as_bytes())).await?;
                    }
                    body.send_data(Bytes::new(), true)?;
                    return self.ask(Wish::Answered(index, Outcome::Answered));
                }
                broken => return self.break_off(broken, &record).await,
            };
            self.answer(&script, request.method == "HEAD").await?;
            self.ask(Wish::Answered(index, answered(&script)))?;
            if close {
                tokio::time::sleep(BREAK_OFF_DELAY).await;
                return self.ask(Wish::Close);
            }
            return Ok(());
        }
    }

    /// Begins an answer that is never ended, or none.
    async fn break_off(
        &mut self,
        behaviour: Behaviour,
        record: &(dyn Fn(Outcome) + Sync),
    ) -> Result<(), h2::Error> {
        match behaviour {
            Behaviour::ResetMidBody { after } => {
                let _body = self.promise(after).await?;
                record(Outcome::Cut);
                tokio::time::sleep(BREAK_OFF_DELAY).await;
                self.ask(Wish::Reset)
            }
            Behaviour::CloseMidBody { after } => {
                let _body = self.promise(after).await?;
                record(Outcome::Cut);
                tokio::time::sleep(BREAK_OFF_DELAY).await;
                self.ask(Wish::Close)
            }
            Behaviour::ResetStreamMidBody { after, code } => {
                let mut body = self.promise(after).await?;
                record(Outcome::Cut);
                tokio::time::sleep(BREAK_OFF_DELAY).await;
                body.send_reset(Reason::from(code));
                Ok(())
            }
            Behaviour::ResetStreamAtEnd { body, code } => {
                let stream = self.respond.stream_id().as_u32();
                let mut frames = frame(HEADERS, END_HEADERS, stream, &[STATUS_200]);
                if !body.is_empty() {
                    frames.extend(frame(DATA, 0, stream, body.as_bytes()));
                }
                frames.extend(frame(RST_STREAM, 0, stream, &code.to_be_bytes()));
                record(Outcome::Cut);
                self.ask(Wish::Frames(frames))?;
                self.given_up().await;
                Ok(())
            }
            Behaviour::ResetWhenStuck => {
                self.flood().await?;
                record(Outcome::Cut);
                self.ask(Wish::Reset)
            }
            Behaviour::StallAfterHeader => {
                let mut body = self.promise(0).await?;
                record(Outcome::Cut);
                let _ = std::future::poll_fn(|context| body.poll_reset(context)).await;
                Ok(())
            }
            _ => {
                self.given_up().await;
                Ok(())
            }
        }
    }

    fn ask(&self, wish: Wish) -> Result<(), h2::Error> {
        // The connection's own end is as good.
        let _ = self.wish.send(wish);
        Ok(())
    }

    /// Returns when the other side has reset the stream or ended the connection.
    async fn given_up(&mut self) {
        let _ = std::future::poll_fn(|context| self.respond.poll_reset(context)).await;
    }

    /// A header that promises a length, and a part of the body.
    async fn promise(&mut self, sent: usize) -> Result<SendStream<Bytes>, h2::Error> {
        let mut header = Response::new(());
        header
            .headers_mut()
            .insert(CONTENT_LENGTH, HeaderValue::from(PROMISED_BYTES));
        let json = HeaderValue::from_static("application/json");
        header.headers_mut().insert(CONTENT_TYPE, json);
        let mut body = self.respond.send_response(header, false)?;
        let part = vec![b'x'; sent.min(PROMISED_BYTES - 1)];
        send(&mut body, part.into()).await?;
        Ok(body)
    }

    /// A body without end, until the other side takes nothing for [`BREAK_OFF_DELAY`].
    async fn flood(&mut self) -> Result<(), h2::Error> {
        let mut body = self.respond.send_response(Response::new(()), false)?;
        for _ in 0..FLOOD_CHUNKS_MAX {
            let chunk = Bytes::from(vec![b'x'; FLOOD_CHUNK_BYTES]);
            match tokio::time::timeout(BREAK_OFF_DELAY, send(&mut body, chunk)).await {
                Ok(sent) => sent?,
                Err(_) => return Ok(()),
            }
        }
        body.send_reset(Reason::INTERNAL_ERROR);
        Ok(())
    }

    async fn answer(&mut self, script: &Script, headless: bool) -> Result<(), h2::Error> {
        let mut header = Response::new(());
        *header.status_mut() = http::StatusCode::from_u16(script.status).unwrap_or_default();
        *header.headers_mut() = fields(&script.headers);
        let bodiless = matches!(script.status, 204 | 304);
        let has_length = script.framing == Framing::Length;
        if has_length && !bodiless {
            let length = HeaderValue::from(script.body.len());
            header.headers_mut().insert(CONTENT_LENGTH, length);
        }
        let nothing = bodiless || script.body.is_empty() && script.trailers.is_empty();
        // One in chunks has a body although its status permits none, or an empty frame that ends its stream.
        let has_frames = bodiless && !has_length;
        if headless || nothing && !has_frames {
            self.respond.send_response(header, true)?;
            return Ok(());
        }
        let mut body = self.respond.send_response(header, false)?;
        send(&mut body, script.body.clone().into()).await?;
        if script.trailers.is_empty() {
            body.send_data(Bytes::new(), true)
        } else {
            body.send_trailers(fields(&script.trailers))
        }
    }
}

fn fields(pairs: &[(String, String)]) -> HeaderMap {
    let fields = pairs.iter().filter_map(|(name, value)| {
        let name = HeaderName::try_from(name).ok()?;
        Some((name, HeaderValue::try_from(value).ok()?))
    });
    fields.collect()
}

/// Sends all of it, as the other side takes it.
async fn send(body: &mut SendStream<Bytes>, mut bytes: Bytes) -> Result<(), h2::Error> {
    while !bytes.is_empty() {
        body.reserve_capacity(bytes.len());
        let capacity = std::future::poll_fn(|context| body.poll_capacity(context)).await;
        let capacity = match capacity {
            Some(capacity) => capacity?,
            None => return Err(Reason::CANCEL.into()),
        };
        body.send_data(bytes.split_to(capacity.min(bytes.len())), false)?;
    }
    Ok(())
}

async fn read(request: Request<RecvStream>) -> Result<Recorded, h2::Error> {
    let (head, mut incoming) = request.into_parts();
    let text = |part: Option<&str>| part.unwrap_or_default().as_bytes().to_vec();
    let pseudo = [
        (":scheme", text(head.uri.scheme_str())),
        (
            ":authority",
            text(head.uri.authority().map(|one| one.as_str())),
        ),
    ];
    let pseudo = pseudo.map(|(name, value)| (name.to_owned(), value));
    let headers = head
        .headers
        .iter()
        .map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec()));
    let mut recorded = Recorded {
        id: String::new(),
        method: head.method.to_string(),
        target: text(head.uri.path_and_query().map(|target| target.as_str())),
        version: Version::HTTP_2,
        headers: pseudo.into_iter().chain(headers).collect(),
        body: Vec::new(),
        at: Instant::now(),
        connection: 0,
        place: 0,
        outcome: Outcome::Unanswered,
    };
    recorded.id = recorded.values("x-request-id").join(",");
    while let Some(part) = incoming.data().await {
        let part = part?;
        incoming.flow_control().release_capacity(part.len())?;
        recorded.body.extend(&part);
    }
    recorded.at = Instant::now();
    Ok(recorded)
}
