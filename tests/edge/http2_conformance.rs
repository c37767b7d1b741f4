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

mod connection_frames;
mod header_blocks;
mod requests;
mod stream_frames;
mod streams;

use harness::{IssuedKey, PATIENCE, Scene};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

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

// The codes that are right. Where a more precise one belongs to a connection error, h2 sends PROTOCOL_ERROR; the connection ends all
// the same, so that passes, too.
const PROTOCOL: &[u32] = &[1];
const FLOW: &[u32] = &[3, 1];
const CLOSED: &[u32] = &[5, 1];
const SIZE: &[u32] = &[6, 1];
const REFUSED: &[u32] = &[7];
const COMPRESSION: &[u32] = &[9, 1];

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
    /// Nothing where something was expected.
    Silence,
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
    key: IssuedKey,
}

impl Stage {
    async fn new() -> Stage {
        let scene = Scene::builder(TOUCHLINE)
            .spec(|spec| spec.endpoints[0].methods.push("POST".into()))
            .start()
            .await;
        let key = scene.issue("enterprise").await;
        Stage { scene, key }
    }

    /// The fields of a request, with others before and after.
    fn fields(&self, method: &str, more: &[(&str, &str)]) -> Vec<u8> {
        let mut fields = block(&[
            (":method", method),
            (":scheme", "http"),
            (":authority", "localhost"),
            (":path", MARKETS),
            ("x-api-key", &self.key.key),
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

    /// Tries each case on a connection of its own, and reports all that were not as expected.
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
        super::charged_were_sent(&self.scene, &self.key.id).await;
    }

    async fn outcome(&self, sent: &[Frame], expected: Expected) -> Outcome {
        const MARK: [u8; 8] = *b"conforms";
        let mut wire = Wire::open(&self.scene).await;
        for frame in sent {
            wire.send(frame).await;
        }
        wire.send(&Frame::new(PING, 0, 0, MARK)).await;
        let mut reset = None;
        loop {
            let Ok(next) = timeout(PATIENCE / 3, wire.next()).await else {
                return Outcome::Silence;
            };
            let Some(frame) = next else { break };
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
