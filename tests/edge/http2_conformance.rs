//! HTTP/2 frame by frame against RFC 9113: what a client sends that the section named forbids or allows, and what becomes of it.
//!
//! | Section | What is tried |
//! |---|---|
//! | 3.4, 4 | prefaces, frame sizes, unknown types and flags, broken and interrupted header blocks |
//! | 5.1, 5.5 | frames on idle, half-closed and closed streams, stream ids, streams above the limit, extensions |
//! | 6.1 to 6.4 | DATA, HEADERS, PRIORITY, RST_STREAM: streams, padding, sizes |
//! | 6.5 to 6.10 | SETTINGS and its values, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE and windows, CONTINUATION |
//! | 8.1 to 8.3 | trailers, content-length, field names, connection-specific fields, pseudo-header fields |
//! | RFC 7541 | indices, table sizes, Huffman codes |
//!
//! A stream error may be treated as a connection error (section 5.4.2); so where one code is right, a GOAWAY with it is, too.

use harness::Scene;

use super::frames::{
    DATA, END_HEADERS, END_STREAM, Frame, GOAWAY, HEADERS, PING, PRIORITY, RST_STREAM, SETTINGS,
    WINDOW_UPDATE, Wire, block,
};
use super::{MARKETS, TOUCHLINE};

const PUSH_PROMISE: u8 = 5;
const CONTINUATION: u8 = 9;
const PADDED: u8 = 8;
const PRIORITIZED: u8 = 0x20;
const ACK: u8 = 1;

const PROTOCOL_ERROR: u32 = 1;
const FLOW_CONTROL_ERROR: u32 = 3;
const STREAM_CLOSED: u32 = 5;
const FRAME_SIZE_ERROR: u32 = 6;
const REFUSED_STREAM: u32 = 7;
const COMPRESSION_ERROR: u32 = 9;

/// What becomes of what was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Outcome {
    /// GOAWAY with this code, and the end.
    Connection(u32),
    /// The end without a word.
    Closed,
    /// RST_STREAM with this code.
    Stream(u32),
    /// An answer: `200`, or the code of a problem.
    Answer(String),
    /// Nothing: the connection goes on.
    Nothing,
}

/// What the RFC lets become of it.
#[derive(Debug, Clone, Copy)]
enum Expected {
    /// A connection error with one of these codes, or the end of the connection.
    Connection(&'static [u32]),
    /// A stream error with one of these codes, or a connection error with it.
    Stream(&'static [u32]),
    /// An answer on stream 1.
    Answer(&'static str),
    /// Nothing.
    Nothing,
}

impl Expected {
    fn allows(self, outcome: &Outcome) -> bool {
        match (self, outcome) {
            (Expected::Connection(codes), Outcome::Connection(code)) => codes.contains(code),
            (Expected::Connection(_), Outcome::Closed) => true,
            (Expected::Stream(codes), Outcome::Stream(code) | Outcome::Connection(code)) => {
                codes.contains(code)
            }
            (Expected::Answer(expected), Outcome::Answer(answer)) => expected == answer,
            (Expected::Nothing, Outcome::Nothing) => true,
            _ => false,
        }
    }
}

/// A section, what is tried, the frames, what is expected.
type Case = (&'static str, &'static str, Vec<Frame>, Expected);

struct Stage {
    scene: Scene,
    key: String,
}

impl Stage {
    async fn new() -> Stage {
        let scene = Scene::builder(TOUCHLINE)
            .spec(|spec| spec.endpoints[0].methods.push("POST".into()))
            .start()
            .await;
        let key = scene.issue("enterprise").await.key;
        Stage { scene, key }
    }

    /// The fields of a request, with others before and after.
    fn fields(&self, method: &str, more: &[(&str, &str)]) -> Vec<u8> {
        let mut fields = block(&[
            (":method", method),
            (":scheme", "http"),
            (":authority", "localhost"),
            (":path", MARKETS),
            ("x-api-key", &self.key),
        ]);
        fields.extend(block(more));
        fields
    }

    fn get(&self, stream: u32) -> Frame {
        let flags = END_HEADERS | END_STREAM;
        Frame::new(HEADERS, flags, stream, self.fields("GET", &[]))
    }

    /// The head of a POST whose body follows.
    fn post(&self, stream: u32, more: &[(&str, &str)]) -> Frame {
        Frame::new(HEADERS, END_HEADERS, stream, self.fields("POST", more))
    }

    /// Tries each case on a connection of its own, and says all that were not as expected.
    async fn judge(&self, cases: Vec<Case>) {
        let mut wrong = Vec::new();
        for (section, what, sent, expected) in cases {
            let outcome = self.outcome(&sent, expected).await;
            if !expected.allows(&outcome) {
                wrong.push(format!("{section}: {what}: {outcome:?}, not {expected:?}"));
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
        // And others are served.
        let mut wire = Wire::open(&self.scene).await;
        wire.send(&self.get(1)).await;
        assert!(!wire.body(1).await.is_empty());
    }

    async fn outcome(&self, sent: &[Frame], expected: Expected) -> Outcome {
        const MARK: [u8; 8] = *b"conforms";
        let mut wire = Wire::open(&self.scene).await;
        for frame in sent {
            wire.send(frame).await;
        }
        wire.send(&Frame::new(PING, 0, 0, MARK)).await;
        let mut reset = None;
        while let Some(frame) = wire.next().await {
            match frame.kind {
                GOAWAY => return Outcome::Connection(frame.goaway_code().unwrap()),
                // Others follow where the connection ends, too.
                RST_STREAM => {
                    let code = u32::from_be_bytes(frame.payload[..4].try_into().unwrap());
                    reset = Some(code);
                    if matches!(expected, Expected::Stream(_) | Expected::Answer(_)) {
                        return Outcome::Stream(code);
                    }
                }
                HEADERS if frame.stream == 1 && matches!(expected, Expected::Answer(_)) => {
                    if frame.payload[0] == 0x88 {
                        return Outcome::Answer("200".into());
                    }
                    let problem = wire.problem(1).await;
                    return Outcome::Answer(problem["code"].as_str().unwrap().to_owned());
                }
                PING if frame.payload == MARK && matches!(expected, Expected::Nothing) => {
                    return reset.map_or(Outcome::Nothing, Outcome::Stream);
                }
                _ => {}
            }
        }
        reset.map_or(Outcome::Closed, Outcome::Stream)
    }
}

/// A frame with padding: how much it claims, what stands in it, how much there is.
fn padded(kind: u8, flags: u8, claimed: u8, payload: &[u8], padding: usize) -> Frame {
    let mut padded = vec![claimed];
    padded.extend(payload);
    padded.extend(vec![0; padding]);
    Frame::new(kind, flags | PADDED, 1, padded)
}

fn setting(name: u16, value: u32) -> Frame {
    let mut payload = name.to_be_bytes().to_vec();
    payload.extend(value.to_be_bytes());
    Frame::new(SETTINGS, 0, 0, payload)
}

fn update(stream: u32, increment: u32) -> Frame {
    Frame::new(WINDOW_UPDATE, 0, stream, increment.to_be_bytes())
}

fn reset(stream: u32) -> Frame {
    Frame::new(RST_STREAM, 0, stream, 8u32.to_be_bytes())
}

#[tokio::test]
async fn frames_and_header_blocks_have_the_form_of_section_4() {
    use Expected::{Answer, Connection, Nothing, Stream};
    let stage = Stage::new().await;
    let fields = stage.fields("GET", &[]);
    let (first, rest) = fields.split_at(20);
    let open = Frame::new(HEADERS, END_STREAM, 1, first);
    let last = Frame::new(CONTINUATION, END_HEADERS, 1, rest);
    let mut reserved = stage.get(1);
    reserved.stream |= 1 << 31;
    let sizes: &[u32] = &[FRAME_SIZE_ERROR];
    let broken: &[u32] = &[PROTOCOL_ERROR];
    let undecodable = |bytes: &[u8]| {
        let whole = [&stage.fields("GET", &[]), bytes].concat();
        vec![Frame::new(HEADERS, END_HEADERS | END_STREAM, 1, whole)]
    };
    let compression: &[u32] = &[COMPRESSION_ERROR];
    stage
        .judge(vec![
            (
                "4.1",
                "an unknown type",
                vec![Frame::new(0x16, 0xff, 0, [0; 8]), stage.get(1)],
                Answer("200"),
            ),
            (
                "4.1",
                "unknown flags",
                vec![Frame::new(PING, 0x16, 0, [0; 8]), stage.get(1)],
                Answer("200"),
            ),
            ("4.1", "the reserved bit", vec![reserved], Answer("200")),
            (
                "4.2",
                "DATA over the largest size",
                vec![
                    stage.post(1, &[]),
                    Frame::new(DATA, END_STREAM, 1, [0; 16_385]),
                ],
                Stream(sizes),
            ),
            (
                "4.2",
                "HEADERS over the largest size",
                vec![Frame::new(
                    HEADERS,
                    END_HEADERS | END_STREAM,
                    1,
                    [0; 16_385],
                )],
                Connection(sizes),
            ),
            (
                "4.3",
                "a block in two frames",
                vec![open.clone(), last.clone()],
                Answer("200"),
            ),
            (
                "4.3",
                "PRIORITY within a block",
                vec![
                    open.clone(),
                    Frame::new(PRIORITY, 0, 1, [0, 0, 0, 0, 1]),
                    last.clone(),
                ],
                Connection(broken),
            ),
            (
                "4.3",
                "HEADERS of another stream within a block",
                vec![open.clone(), stage.get(3), last.clone()],
                Connection(broken),
            ),
            (
                "5.5",
                "an unknown type within a block",
                vec![open, Frame::new(0x16, 0, 0, [0; 8]), last],
                Connection(broken),
            ),
            (
                "7541 6.1",
                "index 0",
                undecodable(&[0x80]),
                Connection(compression),
            ),
            (
                "7541 2.3.3",
                "an index beyond both tables",
                undecodable(&[0xff, 0x7f]),
                Connection(compression),
            ),
            (
                "7541 6.3",
                "a table larger than the settings say",
                undecodable(&[0x3f, 0xe1, 0xff, 0x03]),
                Connection(compression),
            ),
            (
                "7541 4.2",
                "a change of the table's size behind a field",
                undecodable(&[0x20]),
                Connection(compression),
            ),
            (
                "7541 5.2",
                "a Huffman code of more than 7 bits of padding",
                undecodable(&[
                    0x00, 0x85, 0xf2, 0xb2, 0x4a, 0x84, 0xff, 0x84, 0x49, 0x50, 0x9f, 0xff,
                ]),
                Connection(compression),
            ),
            (
                "7541 5.2",
                "a Huffman code that holds the end of string",
                undecodable(&[
                    0x00, 0x85, 0xf2, 0xb2, 0x4a, 0x87, 0xff, 0xff, 0xff, 0xff, 0xfa, 0x84, 0x9f,
                ]),
                Connection(compression),
            ),
            ("4.1", "nothing at all", vec![], Nothing),
        ])
        .await;
}

#[tokio::test]
async fn frames_fit_the_state_of_their_stream_as_section_5_says() {
    use Expected::{Answer, Connection, Nothing, Stream};
    let stage = Stage::new().await;
    let broken: &[u32] = &[PROTOCOL_ERROR];
    let closed: &[u32] = &[STREAM_CLOSED];
    let either: &[u32] = &[STREAM_CLOSED, PROTOCOL_ERROR];
    let data = |stream| Frame::new(DATA, END_STREAM, stream, *b"x");
    let itself = [&[0, 0, 0, 1, 15][..], &stage.fields("GET", &[])].concat();
    stage
        .judge(vec![
            (
                "5.1",
                "DATA on an idle stream",
                vec![data(1)],
                Connection(broken),
            ),
            (
                "5.1",
                "RST_STREAM on an idle stream",
                vec![reset(1)],
                Connection(broken),
            ),
            (
                "5.1",
                "WINDOW_UPDATE on an idle stream",
                vec![update(1, 1)],
                Connection(broken),
            ),
            (
                "5.1",
                "CONTINUATION on an idle stream",
                vec![Frame::new(CONTINUATION, END_HEADERS, 1, [])],
                Connection(broken),
            ),
            (
                "5.1",
                "PRIORITY on an idle stream",
                vec![Frame::new(PRIORITY, 0, 1, [0, 0, 0, 0, 1])],
                Nothing,
            ),
            (
                "5.1",
                "DATA after END_STREAM",
                vec![stage.get(1), data(1)],
                Stream(closed),
            ),
            (
                "5.1",
                "HEADERS after END_STREAM",
                vec![stage.get(1), stage.get(1)],
                Stream(either),
            ),
            (
                "5.1",
                "CONTINUATION after END_STREAM",
                vec![
                    stage.get(1),
                    Frame::new(CONTINUATION, END_HEADERS, 1, stage.fields("GET", &[])),
                ],
                Connection(either),
            ),
            (
                "5.1",
                "WINDOW_UPDATE after END_STREAM",
                vec![stage.get(1), update(1, 1)],
                Answer("200"),
            ),
            (
                "5.1",
                "DATA after RST_STREAM",
                vec![stage.post(1, &[]), reset(1), data(1)],
                Stream(closed),
            ),
            (
                "5.1",
                "HEADERS after RST_STREAM",
                vec![stage.post(1, &[]), reset(1), stage.get(1)],
                Stream(either),
            ),
            (
                "5.1",
                "WINDOW_UPDATE after RST_STREAM",
                vec![stage.post(1, &[]), reset(1), update(1, 1)],
                Nothing,
            ),
            (
                "5.1.1",
                "an even id",
                vec![stage.get(2)],
                Connection(broken),
            ),
            (
                "5.1.1",
                "an id below the last",
                vec![stage.get(5), stage.get(3)],
                Connection(broken),
            ),
            (
                "5.3",
                "a stream that depends on itself",
                vec![Frame::new(
                    HEADERS,
                    END_HEADERS | END_STREAM | PRIORITIZED,
                    1,
                    itself,
                )],
                Stream(broken),
            ),
            (
                "5.3",
                "PRIORITY that depends on itself",
                vec![Frame::new(PRIORITY, 0, 1, [0, 0, 0, 1, 15])],
                Stream(broken),
            ),
        ])
        .await;
    // 5.1.2: the limit of the shipped configuration is 100.
    let more: Vec<Frame> = (0..101)
        .map(|number| stage.post(number * 2 + 1, &[]))
        .collect();
    let refused: &[u32] = &[REFUSED_STREAM, PROTOCOL_ERROR];
    stage
        .judge(vec![(
            "5.1.2",
            "a stream above the limit",
            more,
            Stream(refused),
        )])
        .await;
}

#[tokio::test]
async fn data_headers_priority_and_resets_are_held_to_sections_6_1_to_6_4() {
    use Expected::{Answer, Connection, Stream};
    let stage = Stage::new().await;
    let broken: &[u32] = &[PROTOCOL_ERROR];
    let sizes: &[u32] = &[FRAME_SIZE_ERROR];
    let fields = stage.fields("GET", &[]);
    let ends = END_HEADERS | END_STREAM;
    stage
        .judge(vec![
            (
                "6.1",
                "DATA on stream 0",
                vec![Frame::new(DATA, 0, 0, *b"x")],
                Connection(broken),
            ),
            (
                "6.1",
                "DATA with padding",
                vec![stage.post(1, &[]), padded(DATA, END_STREAM, 3, b"x", 3)],
                Answer("200"),
            ),
            (
                "6.1",
                "DATA that is less than its padding",
                vec![stage.post(1, &[]), padded(DATA, END_STREAM, 9, b"x", 3)],
                Connection(broken),
            ),
            (
                "6.2",
                "HEADERS on stream 0",
                vec![Frame::new(HEADERS, ends, 0, fields.clone())],
                Connection(broken),
            ),
            (
                "6.2",
                "HEADERS with padding",
                vec![padded(HEADERS, ends, 3, &fields, 3)],
                Answer("200"),
            ),
            (
                "6.2",
                "HEADERS that are less than their padding",
                vec![padded(HEADERS, ends, 255, b"x", 3)],
                Connection(broken),
            ),
            (
                "6.2",
                "HEADERS with a priority",
                vec![Frame::new(
                    HEADERS,
                    ends | PRIORITIZED,
                    1,
                    [&[0, 0, 0, 0, 15][..], &fields].concat(),
                )],
                Answer("200"),
            ),
            (
                "6.3",
                "PRIORITY on stream 0",
                vec![Frame::new(PRIORITY, 0, 0, [0, 0, 0, 3, 1])],
                Connection(broken),
            ),
            (
                "6.3",
                "PRIORITY of 4 bytes",
                vec![Frame::new(PRIORITY, 0, 1, [0, 0, 0, 3])],
                Stream(sizes),
            ),
            (
                "6.4",
                "RST_STREAM on stream 0",
                vec![reset(0)],
                Connection(broken),
            ),
            (
                "6.4",
                "RST_STREAM of 3 bytes",
                vec![stage.post(1, &[]), Frame::new(RST_STREAM, 0, 1, [0, 0, 8])],
                Connection(sizes),
            ),
        ])
        .await;
}

#[tokio::test]
async fn connection_frames_are_held_to_sections_6_5_to_6_10() {
    use Expected::{Answer, Connection, Nothing, Stream};
    let stage = Stage::new().await;
    let broken: &[u32] = &[PROTOCOL_ERROR];
    let sizes: &[u32] = &[FRAME_SIZE_ERROR];
    let flow: &[u32] = &[FLOW_CONTROL_ERROR];
    let fields = stage.fields("GET", &[]);
    let ended = Frame::new(CONTINUATION, END_HEADERS, 1, []);
    stage
        .judge(vec![
            (
                "6.5",
                "an acknowledgement with a payload",
                vec![Frame::new(SETTINGS, ACK, 0, [0; 6])],
                Connection(sizes),
            ),
            (
                "6.5",
                "SETTINGS on a stream",
                vec![Frame::new(SETTINGS, 0, 1, [])],
                Connection(broken),
            ),
            (
                "6.5",
                "SETTINGS of 5 bytes",
                vec![Frame::new(SETTINGS, 0, 0, [0; 5])],
                Connection(sizes),
            ),
            (
                "6.5.2",
                "ENABLE_PUSH 2",
                vec![setting(2, 2)],
                Connection(broken),
            ),
            (
                "6.5.2",
                "INITIAL_WINDOW_SIZE 2^31",
                vec![setting(4, 1 << 31)],
                Connection(flow),
            ),
            (
                "6.5.2",
                "MAX_FRAME_SIZE 16383",
                vec![setting(5, 16_383)],
                Connection(broken),
            ),
            (
                "6.5.2",
                "MAX_FRAME_SIZE 2^24",
                vec![setting(5, 1 << 24)],
                Connection(broken),
            ),
            (
                "6.5.2",
                "an unknown setting",
                vec![setting(0xff, 7), stage.get(1)],
                Answer("200"),
            ),
            (
                "6.6",
                "PUSH_PROMISE of a client",
                vec![Frame::new(
                    PUSH_PROMISE,
                    END_HEADERS,
                    1,
                    [&[0, 0, 0, 2][..], &fields].concat(),
                )],
                Connection(broken),
            ),
            (
                "6.7",
                "PING on a stream",
                vec![Frame::new(PING, 0, 1, [0; 8])],
                Connection(broken),
            ),
            (
                "6.7",
                "PING of 6 bytes",
                vec![Frame::new(PING, 0, 0, [0; 6])],
                Connection(sizes),
            ),
            (
                "6.7",
                "an acknowledgement that nobody waits for",
                vec![Frame::new(PING, ACK, 0, [1; 8])],
                Nothing,
            ),
            (
                "6.8",
                "GOAWAY on a stream",
                vec![Frame::new(GOAWAY, 0, 1, [0; 8])],
                Connection(broken),
            ),
            (
                "6.8",
                "GOAWAY with a request under way",
                vec![stage.get(1), Frame::new(GOAWAY, 0, 0, [0; 8])],
                Answer("200"),
            ),
            (
                "6.9",
                "WINDOW_UPDATE of 0 on the connection",
                vec![update(0, 0)],
                Connection(broken),
            ),
            (
                "6.9",
                "WINDOW_UPDATE of 0 on a stream",
                vec![stage.post(1, &[]), update(1, 0)],
                Stream(broken),
            ),
            (
                "6.9",
                "WINDOW_UPDATE of 3 bytes",
                vec![Frame::new(WINDOW_UPDATE, 0, 0, [0, 0, 1])],
                Connection(sizes),
            ),
            (
                "6.9.1",
                "a window of the connection beyond 2^31 - 1",
                vec![update(0, 0x7fff_ffff)],
                Connection(flow),
            ),
            (
                "6.9.1",
                "a window of a stream beyond 2^31 - 1",
                vec![stage.post(1, &[]), update(1, 0x7fff_ffff)],
                Stream(flow),
            ),
            (
                "6.9.2",
                "INITIAL_WINDOW_SIZE that takes a window beyond 2^31 - 1",
                vec![
                    stage.post(1, &[]),
                    update(1, 0x7000_0000),
                    setting(4, 0x7fff_ffff),
                ],
                Stream(flow),
            ),
            (
                "6.10",
                "CONTINUATION on stream 0",
                vec![
                    Frame::new(HEADERS, END_STREAM, 1, fields.clone()),
                    Frame::new(CONTINUATION, END_HEADERS, 0, []),
                ],
                Connection(broken),
            ),
            (
                "6.10",
                "CONTINUATION of another stream",
                vec![
                    Frame::new(HEADERS, END_STREAM, 1, fields.clone()),
                    Frame::new(CONTINUATION, END_HEADERS, 3, []),
                ],
                Connection(broken),
            ),
            (
                "6.10",
                "CONTINUATION behind the end of a block",
                vec![stage.post(1, &[]), ended.clone()],
                Connection(broken),
            ),
            (
                "6.10",
                "CONTINUATION behind DATA",
                vec![stage.post(1, &[]), Frame::new(DATA, 0, 1, *b"x"), ended],
                Connection(broken),
            ),
        ])
        .await;
}

#[tokio::test]
async fn malformed_requests_end_their_stream_as_section_8_says() {
    use Expected::{Answer, Stream};
    let stage = Stage::new().await;
    let broken: &[u32] = &[PROTOCOL_ERROR];
    let ends = END_HEADERS | END_STREAM;
    let with =
        |more: &[(&str, &str)]| vec![Frame::new(HEADERS, ends, 1, stage.fields("GET", more))];
    let only = |fields: &[(&str, &str)]| vec![Frame::new(HEADERS, ends, 1, block(fields))];
    let body = |length: &'static str, body: &[u8]| {
        let frame = Frame::new(DATA, END_STREAM, 1, body);
        vec![stage.post(1, &[("content-length", length)]), frame]
    };
    let trailers = |fields: &[(&str, &str)], flags| {
        let frame = Frame::new(HEADERS, flags, 1, block(fields));
        vec![stage.post(1, &[]), Frame::new(DATA, 0, 1, *b"x"), frame]
    };
    let (method, scheme, authority, path) = (
        (":method", "GET"),
        (":scheme", "http"),
        (":authority", "localhost"),
        (":path", MARKETS),
    );
    stage
        .judge(vec![
            (
                "8.1",
                "trailers",
                trailers(&[("x-trailer", "a")], ends),
                Answer("200"),
            ),
            (
                "8.1",
                "trailers without the end of the stream",
                trailers(&[("x-trailer", "a")], END_HEADERS),
                Stream(broken),
            ),
            (
                "8.1",
                "pseudo-header fields in trailers",
                trailers(&[(":method", "GET")], ends),
                Stream(broken),
            ),
            (
                "8.1.1",
                "content-length as it is",
                body("3", b"abc"),
                Answer("200"),
            ),
            (
                "8.1.1",
                "content-length above the body",
                body("4", b"abc"),
                Stream(broken),
            ),
            (
                "8.1.1",
                "content-length below the body",
                body("2", b"abc"),
                Stream(broken),
            ),
            (
                "8.2.1",
                "upper case in a name",
                with(&[("X-Upper", "a")]),
                Stream(broken),
            ),
            (
                "8.2.1",
                "a line break in a value",
                with(&[("x-a", "a\r\nb: c")]),
                Stream(broken),
            ),
            (
                "8.2.2",
                "connection",
                with(&[("connection", "keep-alive")]),
                Stream(broken),
            ),
            (
                "8.2.2",
                "keep-alive",
                with(&[("keep-alive", "timeout=5")]),
                Stream(broken),
            ),
            (
                "8.2.2",
                "proxy-connection",
                with(&[("proxy-connection", "close")]),
                Stream(broken),
            ),
            (
                "8.2.2",
                "transfer-encoding",
                with(&[("transfer-encoding", "chunked")]),
                Stream(broken),
            ),
            (
                "8.2.2",
                "upgrade",
                with(&[("upgrade", "h2c")]),
                Stream(broken),
            ),
            (
                "8.2.2",
                "te with another value",
                with(&[("te", "trailers, deflate")]),
                Stream(broken),
            ),
            (
                "8.2.2",
                "te with trailers",
                with(&[("te", "trailers")]),
                Answer("200"),
            ),
            (
                "8.3",
                "an unknown pseudo-header field",
                only(&[method, scheme, authority, path, (":test", "a")]),
                Stream(broken),
            ),
            (
                "8.3",
                "one of answers",
                only(&[method, scheme, authority, path, (":status", "200")]),
                Stream(broken),
            ),
            (
                "8.3",
                "one behind a field",
                only(&[method, scheme, authority, ("x-a", "b"), path]),
                Stream(broken),
            ),
            (
                "8.3.1",
                "no method",
                only(&[scheme, authority, path]),
                Stream(broken),
            ),
            (
                "8.3.1",
                "no scheme",
                only(&[method, authority, path]),
                Stream(broken),
            ),
            (
                "8.3.1",
                "no path",
                only(&[method, scheme, authority]),
                Stream(broken),
            ),
            (
                "8.3.1",
                "an empty path",
                only(&[method, scheme, authority, (":path", "")]),
                Stream(broken),
            ),
            (
                "8.3.1",
                "two methods",
                only(&[method, method, scheme, authority, path]),
                Stream(broken),
            ),
            (
                "8.3.1",
                "two schemes",
                only(&[method, scheme, scheme, authority, path]),
                Stream(broken),
            ),
            (
                "8.3.1",
                "two paths",
                only(&[method, scheme, authority, path, path]),
                Stream(broken),
            ),
        ])
        .await;
    assert!(stage.scene.upstream.count() >= 4);
}
