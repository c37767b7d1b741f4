//! The forms of attack, as bytes.

use super::MARKETS;
use super::frames::{
    END_HEADERS, END_STREAM, Frame, HEADERS, PING, SETTINGS, WINDOW_UPDATE, block,
};

const INITIAL_WINDOW_SIZE: u16 = 4;
const STREAMS: u32 = 100;
const WINDOW_MAX: u32 = 0x7fff_ffff;
/// As many fields as a list of the gateway's bound for the library may have.
const FIELDS: usize = 850;
/// Where HPACK's dynamic table begins, as an indexed field: 62 with the high bit.
const NEWEST: u8 = 0x80 | 62;

/// One way to attack.
pub struct Form {
    pub name: &'static str,
    pub settings: &'static [(u16, u32)],
    /// Everything sent behind the settings, with a valid key.
    pub attack: fn(&str) -> Vec<u8>,
    /// The upstream's answers.
    pub answer_bytes: usize,
    /// Body bytes sent on every stream after that.
    pub upload_bytes: usize,
}

pub fn streams() -> impl Iterator<Item = u32> {
    (0..STREAMS).map(|number| 2 * number + 1)
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

/// A field that goes into the dynamic table.
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

/// As many fields as a list may have, of one byte each on the wire.
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

fn uploads(key: &str) -> Vec<u8> {
    streams()
        .flat_map(|stream| open(stream, 0, block(&request("POST", key))))
        .collect()
}
