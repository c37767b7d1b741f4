//! The forms of attack, as bytes.

use super::MARKETS;
use super::frames::{
    DATA, END_HEADERS, END_STREAM, Frame, HEADERS, PING, SETTINGS, WINDOW_UPDATE, block,
};

const INITIAL_WINDOW_SIZE: u16 = 4;
const STREAMS: u32 = 100;
const WINDOW_MAX: u32 = 0x7fff_ffff;
/// Streams that the gateway is made to reset: the library by itself ends a connection after 1,024 of them.
const RESET_STREAMS: u32 = 1_020;
/// Frames for streams that are closed, far more than any budget.
const STRAY_FRAMES: u32 = 20_000;
/// The most fields of a header list within the bound that the gateway sets for the library.
const FIELDS: usize = 850;
/// The first index of HPACK's dynamic table, as an indexed field: 62 with the high bit.
const NEWEST: u8 = 0x80 | 62;

/// One way to attack.
pub struct Form {
    pub name: &'static str,
    pub settings: &'static [(u16, u32)],
    /// All frames after the settings, with a valid key.
    pub attack: fn(&str) -> Vec<u8>,
    /// The upstream's answers; 0 for none.
    pub answer_bytes: usize,
    /// Body bytes sent on every stream after that.
    pub upload_bytes: usize,
}

pub fn streams() -> impl Iterator<Item = u32> + Clone {
    first(STREAMS)
}

/// The first streams of a connection.
fn first(streams: u32) -> impl Iterator<Item = u32> + Clone {
    (0..streams).map(|number| 2 * number + 1)
}

pub fn all() -> Vec<Form> {
    let form = |name, settings, attack| Form {
        name,
        settings,
        attack,
        answer_bytes: 1024 * 1024,
        upload_bytes: 0,
    };
    let closed: &[(u16, u32)] = &[(INITIAL_WINDOW_SIZE, 0)];
    vec![
        form("100 answers of 1 MiB, windows of 0", closed, answers),
        Form {
            answer_bytes: 2_000,
            ..form("100 answers of 2 kB, windows of 0", closed, answers)
        },
        form(
            "100 answers of 1 MiB, the connection's window spent",
            &[],
            answers,
        ),
        form(
            "100 answers of 1 MiB, open windows, nothing read",
            &[(INITIAL_WINDOW_SIZE, WINDOW_MAX)],
            unread_answers,
        ),
        Form {
            answer_bytes: 40_000,
            ..form(
                "100 answers of 40 kB, open windows, nothing read",
                &[(INITIAL_WINDOW_SIZE, WINDOW_MAX)],
                unread_answers,
            )
        },
        form(
            "100 answers of 1 MiB, windows of 0, the longest heads",
            closed,
            long_heads,
        ),
        form(
            "100 refused heads of many fields, windows of 0",
            closed,
            header_bomb,
        ),
        form(
            "100 answers of 1 MiB, windows of 0, SETTINGS, PING",
            closed,
            with_control_frames,
        ),
        // The upstream answers none of these, so the memory held for dead streams shows.
        form(
            "1,020 streams, each reset for a window's overflow",
            &[],
            overflowing_windows,
        ),
        form(
            "1,020 streams, each reset for a wrong length",
            &[],
            wrong_lengths,
        ),
        form(
            "20,000 DATA frames for streams that are reset",
            &[],
            data_on_closed_streams,
        ),
        Form {
            answer_bytes: 0,
            ..form(
                "100 requests that the upstream does not answer",
                &[],
                answers,
            )
        },
        Form {
            upload_bytes: 60 * 1024,
            ..form("100 uploads of 60 KiB that stall", closed, uploads)
        },
    ]
}

fn request<'a>(method: &'a str, key: &'a str) -> [(&'a str, &'a str); 5] {
    [
        (":method", method),
        (":scheme", "http"),
        (":authority", "localhost"),
        (":path", MARKETS),
        ("x-api-key", key),
    ]
}

fn open(stream: u32, flags: u8, block: Vec<u8>) -> Vec<u8> {
    Frame::new(HEADERS, END_HEADERS | flags, stream, block).bytes()
}

fn answers(key: &str) -> Vec<u8> {
    streams()
        .flat_map(|stream| open(stream, END_STREAM, block(&request("GET", key))))
        .collect()
}

fn unread_answers(key: &str) -> Vec<u8> {
    let more = WINDOW_MAX - 65_535;
    let mut bytes = Frame::new(WINDOW_UPDATE, 0, 0, more.to_be_bytes()).bytes();
    bytes.extend(answers(key));
    bytes
}

/// A field that is added to the dynamic table.
fn remembered(name: &str, value: &str) -> Vec<u8> {
    let mut field = block(&[(name, value)]);
    field[0] = 0x40;
    field
}

/// Fifteen KiB of fields in a handful of bytes.
fn long_heads(key: &str) -> Vec<u8> {
    let value = "v".repeat(3_800);
    let mut bytes = Vec::new();
    for (number, stream) in streams().enumerate() {
        let mut fields = block(&request("GET", key));
        match number {
            0 => fields.extend(remembered("x-long", &value)),
            _ => fields.extend([NEWEST; 4]),
        }
        bytes.extend(open(stream, END_STREAM, fields));
    }
    bytes
}

/// The most fields that a list may have, of one byte each on the wire.
fn header_bomb(key: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (number, stream) in streams().enumerate() {
        let mut fields = block(&request("GET", key));
        match number {
            0 => fields.extend(remembered("a", "")),
            _ => fields.extend(vec![NEWEST; FIELDS]),
        }
        bytes.extend(open(stream, END_STREAM, fields));
    }
    bytes
}

fn with_control_frames(key: &str) -> Vec<u8> {
    let mut bytes = answers(key);
    for _ in 0..80 {
        bytes.extend(Frame::new(PING, 0, 0, [0; 8]).bytes());
        bytes.extend(Frame::new(SETTINGS, 0, 0, [0, 1, 0, 0, 16, 0]).bytes());
    }
    bytes
}

/// A stream's window above 2^31-1, which is an error of that stream (RFC 9113 section 6.9.1): the gateway resets it.
fn overflowing_windows(key: &str) -> Vec<u8> {
    overflows(key, first(RESET_STREAMS))
}

fn overflows(key: &str, streams: impl Iterator<Item = u32>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for stream in streams {
        bytes.extend(open(stream, END_STREAM, block(&request("POST", key))));
        let overflow = WINDOW_MAX.to_be_bytes();
        bytes.extend(Frame::new(WINDOW_UPDATE, 0, stream, overflow).bytes());
    }
    bytes
}

/// Bodies shorter than their `content-length`, which is an error of their streams too (section 8.1.1).
fn wrong_lengths(key: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for stream in first(RESET_STREAMS) {
        let mut fields = block(&request("POST", key));
        fields.extend(block(&[("content-length", "5")]));
        bytes.extend(open(stream, 0, fields));
        bytes.extend(Frame::new(DATA, END_STREAM, stream, *b"abc").bytes());
    }
    bytes
}

/// DATA for streams that the gateway has reset, each of which it may answer with RST_STREAM (section 5.1).
fn data_on_closed_streams(key: &str) -> Vec<u8> {
    let mut bytes = overflows(key, streams());
    for (stream, _) in streams().cycle().zip(0..STRAY_FRAMES) {
        bytes.extend(Frame::new(DATA, 0, stream, [b'x']).bytes());
    }
    bytes
}

fn uploads(key: &str) -> Vec<u8> {
    streams()
        .flat_map(|stream| open(stream, 0, block(&request("POST", key))))
        .collect()
}
