//! The ends of a request's body over HTTP/2, in every form that the protocol allows: each connection to an upstream holds whole
//! requests and nothing else, and the next callers on it get their own answers.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock};

use harness::client::next_request_id;
use harness::{Call, Protocol, Scene};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::frames::{DATA, END_HEADERS, END_STREAM, Frame, HEADERS, RST_STREAM, Wire, block};
use super::{MARKETS, TOUCHLINE};

const METHODS: [&str; 5] = ["GET", "HEAD", "DELETE", "OPTIONS", "POST"];

/// Values of `content-length`; the body has 5 bytes where it has any.
const LENGTHS: [Option<&str>; 4] = [None, Some("0"), Some("5"), Some("7")];

/// How a request ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    OnHeaders,
    OnEmptyData,
    OnEmptyDataLate,
    OnSecondEmptyData,
    OnData,
    OnEmptyDataAfterData,
    OnTrailers,
    OnTrailersAfterData,
    Reset,
    ResetAfterData,
}

const ENDS: [End; 10] = [
    End::OnHeaders,
    End::OnEmptyData,
    End::OnEmptyDataLate,
    End::OnSecondEmptyData,
    End::OnData,
    End::OnEmptyDataAfterData,
    End::OnTrailers,
    End::OnTrailersAfterData,
    End::Reset,
    End::ResetAfterData,
];

impl End {
    fn has_data(self) -> bool {
        matches!(
            self,
            End::OnData
                | End::OnEmptyDataAfterData
                | End::OnTrailersAfterData
                | End::ResetAfterData
        )
    }

    fn is_reset(self) -> bool {
        matches!(self, End::Reset | End::ResetAfterData)
    }

    /// What follows the header block; `None` is a wait until the gateway has read what came before.
    fn frames(self, stream: u32) -> Vec<Option<Frame>> {
        let data = |flags, text: &str| Some(Frame::new(DATA, flags, stream, text));
        let trailers = Some(Frame::new(
            HEADERS,
            END_STREAM | END_HEADERS,
            stream,
            block(&[("x-trailer", "yes")]),
        ));
        let reset = Some(Frame::new(RST_STREAM, 0, stream, 8u32.to_be_bytes()));
        match self {
            End::OnHeaders => vec![],
            End::OnEmptyData => vec![data(END_STREAM, "")],
            End::OnEmptyDataLate => vec![None, data(END_STREAM, "")],
            End::OnSecondEmptyData => vec![data(0, ""), None, data(END_STREAM, "")],
            End::OnData => vec![data(END_STREAM, "01234")],
            End::OnEmptyDataAfterData => vec![data(0, "01234"), None, data(END_STREAM, "")],
            End::OnTrailers => vec![None, trailers],
            End::OnTrailersAfterData => vec![data(0, "01234"), trailers],
            End::Reset => vec![None, reset],
            End::ResetAfterData => vec![data(0, "01234"), None, reset],
        }
    }
}

/// One request of the matrix.
#[derive(Debug, Clone, Copy)]
struct Case {
    method: &'static str,
    length: Option<&'static str>,
    end: End,
}

impl Case {
    /// Whether the frames have the length that the header announces (RFC 9113 section 8.1.1).
    fn is_consistent(self) -> bool {
        let sent = if self.end.has_data() { "5" } else { "0" };
        self.length.is_none_or(|length| length == sent)
    }

    /// The status of the answer; `None` where the stream is reset by either side.
    fn status(self) -> Option<u16> {
        let takes_body = self.method == "POST";
        if self.end.is_reset() || !self.is_consistent() {
            return None;
        }
        if !takes_body && self.length.is_some_and(|length| length != "0") {
            return Some(400);
        }
        let refused = self.end.has_data() && !takes_body;
        Some(if refused { 400 } else { 200 })
    }
}

/// Sends one request; the status of its answer, if one came before the stream's end.
async fn send(
    wire: &mut Wire<Box<dyn super::frames::Stream>>,
    case: Case,
    stream: u32,
    key: &str,
) -> Option<u16> {
    let id = next_request_id();
    let mut fields = vec![
        (":method", case.method),
        (":scheme", "https"),
        (":authority", "localhost"),
        (":path", MARKETS),
        ("x-api-key", key),
        ("x-request-id", &id),
    ];
    fields.extend(case.length.map(|length| ("content-length", length)));
    wire.headers(stream, &fields, case.end == End::OnHeaders)
        .await;
    for frame in case.end.frames(stream) {
        match frame {
            Some(frame) => assert!(wire.send(&frame).await, "{case:?}"),
            None => wire.settle().await,
        }
    }
    if case.status().is_none() {
        wire.settle().await;
        return None;
    }
    let mut status = None;
    loop {
        let frame = wire.next().await.expect("an answer");
        if frame.stream != stream {
            continue;
        }
        assert_ne!(frame.kind, RST_STREAM, "{case:?}: {frame:?}");
        if frame.kind == HEADERS {
            status = status.or(Some(indexed_status(&frame.payload)));
        }
        if frame.flags & END_STREAM != 0 {
            return status;
        }
    }
}

/// The status of an answer's header block: its first field, from the static table or with a name from there (RFC 7541 appendix A).
fn indexed_status(block: &[u8]) -> u16 {
    // A change of the dynamic table's size may come first.
    let block = match block[0] >> 5 {
        1 => &block[1..],
        _ => block,
    };
    match block[0] {
        0x88 => 200,
        0x8c => 400,
        0x8d => 404,
        0x8e => 500,
        other => panic!("a status other than 200, 400, 404 and 500: {other:#x}"),
    }
}

/// Everything that was sent on each connection to the upstream.
type Tapes = Arc<Mutex<Vec<Vec<u8>>>>;

/// Passes connections on to `upstream` and keeps every byte of the gateway's.
async fn record(listener: TcpListener, upstream: Arc<OnceLock<SocketAddr>>, tapes: Tapes) {
    while let Ok((gateway, _)) = listener.accept().await {
        let upstream = *upstream.get().expect("set before the gateway starts");
        let number = {
            let mut tapes = tapes.lock().unwrap();
            tapes.push(Vec::new());
            tapes.len() - 1
        };
        let tapes = tapes.clone();
        tokio::spawn(async move {
            let upstream = TcpStream::connect(upstream).await.unwrap();
            let (mut from_gateway, mut to_gateway) = gateway.into_split();
            let (mut from_upstream, mut to_upstream) = upstream.into_split();
            let answers = tokio::spawn(async move {
                let _ = tokio::io::copy(&mut from_upstream, &mut to_gateway).await;
            });
            let mut bytes = [0; 4_096];
            while let Ok(count @ 1..) = from_gateway.read(&mut bytes).await {
                tapes.lock().unwrap()[number].extend(&bytes[..count]);
                if to_upstream.write_all(&bytes[..count]).await.is_err() {
                    break;
                }
            }
            answers.abort();
        });
    }
}

/// The rest of a connection's bytes behind its first whole request; `None` where that is cut short.
///
/// # Panics
/// Where the bytes do not begin with a request.
fn behind_request(tape: &[u8]) -> Option<&[u8]> {
    let mut fields = [httparse::EMPTY_HEADER; 64];
    let mut request = httparse::Request::new(&mut fields);
    let parsed = request.parse(tape);
    let parsed =
        parsed.unwrap_or_else(|error| panic!("{error}: {:?}", String::from_utf8_lossy(tape)));
    let httparse::Status::Complete(head_bytes) = parsed else {
        return None;
    };
    assert!(request.path.unwrap().starts_with('/'));
    let value = |name: &str| {
        let mut fields = request.headers.iter();
        let field = fields.find(|field| field.name.eq_ignore_ascii_case(name));
        field.map(|field| std::str::from_utf8(field.value).unwrap())
    };
    let body = &tape[head_bytes..];
    match (value("content-length"), value("transfer-encoding")) {
        (None, None) => Some(body),
        (Some(length), None) => body.get(length.parse().unwrap()..),
        (None, Some("chunked")) => behind_chunks(body),
        both => panic!("framed by {both:?}"),
    }
}

fn behind_chunks(mut body: &[u8]) -> Option<&[u8]> {
    loop {
        let end = body.windows(2).position(|two| two == b"\r\n")?;
        let size = usize::from_str_radix(std::str::from_utf8(&body[..end]).unwrap(), 16).unwrap();
        let chunk_end = end + 2 + size;
        assert_eq!(body.get(chunk_end..chunk_end + 2)?, b"\r\n");
        body = &body[chunk_end + 2..];
        if size == 0 {
            return Some(body);
        }
    }
}

async fn every_end_leaves_upstream_connections_whole(client: Protocol, upstream: &'static str) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (target, tapes) = (Arc::new(OnceLock::new()), Tapes::default());
    tokio::spawn(record(listener, target.clone(), tapes.clone()));
    let scene = Scene::builder(TOUCHLINE)
        .daily("starter", 100_000)
        .spec(move |spec| {
            target.set(spec.upstream).unwrap();
            spec.upstream = address;
            spec.upstream_extra = format!("protocol: {upstream}, ejection: {{ failures: 0 }}");
            spec.endpoints[0].methods = METHODS
                .iter()
                .filter(|method| **method != "HEAD")
                .map(|method| (*method).into())
                .collect();
        })
        .start()
        .await;
    let key = scene.issue("starter").await;
    let victim = scene.client(Protocol::Http1);
    let mut wire = Wire::over(client, &scene).await;
    let mut stream = 1;
    for method in METHODS {
        for length in LENGTHS {
            for end in ENDS {
                let case = Case {
                    method,
                    length,
                    end,
                };
                let status = send(&mut wire, case, stream, &key.key).await;
                assert_eq!(status, case.status(), "{case:?}");
                stream += 2;
                let id = next_request_id();
                let call = Call::get(MARKETS).key(&key).header("x-request-id", &id);
                let answer = victim.call(call).await;
                assert_eq!(answer.status, 200, "after {case:?}: {answer:?}");
                assert_eq!(answer.json()["request_id"], id, "after {case:?}");
                // Resets are counted: a client has only so many of them a connection.
                if case.status().is_none() {
                    wire = Wire::over(client, &scene).await;
                    stream = 1;
                }
            }
        }
    }
    for request in scene.upstream.recorded() {
        assert!(METHODS.contains(&&*request.method), "{}", request.text());
        assert_eq!(request.target_text(), MARKETS);
        assert!(
            request.method == "POST" || request.body.is_empty(),
            "{}",
            request.text()
        );
    }
    if upstream == "http1" {
        for tape in tapes.lock().unwrap().iter() {
            let mut rest = &tape[..];
            while !rest.is_empty() {
                // What a client broke off is cut short, and the last of its connection.
                rest = behind_request(rest).unwrap_or_default();
            }
        }
    }
}

#[tokio::test]
async fn every_end_of_a_body_over_tls_leaves_http1_upstream_connections_whole() {
    every_end_leaves_upstream_connections_whole(Protocol::Http2Tls, "http1").await;
}

#[tokio::test]
async fn every_end_of_a_body_in_clear_leaves_http1_upstream_connections_whole() {
    every_end_leaves_upstream_connections_whole(Protocol::Http2Clear, "http1").await;
}

#[tokio::test]
async fn every_end_of_a_body_over_tls_leaves_http2_upstream_connections_whole() {
    every_end_leaves_upstream_connections_whole(Protocol::Http2Tls, "http2").await;
}

#[tokio::test]
async fn every_end_of_a_body_in_clear_leaves_http2_upstream_connections_whole() {
    every_end_leaves_upstream_connections_whole(Protocol::Http2Clear, "http2").await;
}
