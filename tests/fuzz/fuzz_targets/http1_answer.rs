//! Heads of answers and the bodies behind them. Laws: however the bytes are split, they are read the same; and what was read, written
//! to a client, is read the same there, with nothing behind it.
#![no_main]

mod split;

use bytes::BytesMut;
use http::Method;
use libfuzzer_sys::fuzz_target;
use touchline::policy::http1::Version;
use touchline::policy::http1::answer::{AnswerBounds, AnswerHead, AnswerReader};
use touchline::policy::http1::body::ChunkLimits;
use touchline::policy::http1::fields::FieldBounds;
use touchline::policy::http1::framing::AnswerFraming;
use touchline::policy::http1::writer::{ConnectionFate, HeadWriter};

const BOUNDS: AnswerBounds = AnswerBounds {
    reason_bytes_max: 32,
    fields: FieldBounds {
        bytes_max: 512,
        count_max: 16,
    },
};
const LIMITS: ChunkLimits = ChunkLimits {
    extension_bytes_max: 16,
    trailers: FieldBounds {
        bytes_max: 64,
        count_max: 4,
    },
};

/// Reads what a client of this version would get of an answer that was read.
fn forward(method: &Method, client: Version, head: &AnswerHead, body: &split::Body) {
    let framing = head.framing.towards(client);
    let mut out = Vec::new();
    let mut writer = HeadWriter::answer(&mut out, head.status);
    for field in head.fields.end_to_end() {
        writer.pass(field);
    }
    let mut written = writer.end(framing, ConnectionFate::Implied);
    written.write(&body.data, &mut out).unwrap();
    written.end(&mut out).unwrap();
    assert_eq!(written.is_done(), framing != AnswerFraming::ByClose);

    let mut buffer = BytesMut::from(&out[..]);
    let wider = AnswerBounds {
        fields: FieldBounds {
            bytes_max: 2 * BOUNDS.fields.bytes_max,
            count_max: 2 * BOUNDS.fields.count_max,
        },
        ..BOUNDS
    };
    let read = AnswerReader::new(method).take(&mut buffer, &wider);
    let read = read.unwrap().unwrap();
    assert_eq!(read.status, head.status);
    assert_eq!(read.framing, framing);
    assert_eq!(read.keeps_open, framing != AnswerFraming::ByClose);
    let got = split::body(read.body(&LIMITS), &buffer, usize::MAX).unwrap();
    assert_eq!(got.data, body.data);
    assert_eq!(got.done, framing != AnswerFraming::ByClose);
    assert!(got.left.is_empty());
}

fuzz_target!(|input: &[u8]| {
    let [flags, piece, bytes @ ..] = input else {
        return;
    };
    let piece = usize::from(*piece) + 1;
    let method = if flags & 1 == 0 { Method::GET } else { Method::HEAD };
    let client = if flags & 2 == 0 { Version::Http11 } else { Version::Http10 };
    let read = |piece| {
        let mut reader = AnswerReader::new(&method);
        split::head(bytes, piece, |buffer| reader.take(buffer, &BOUNDS))
    };
    let whole = read(usize::MAX);
    assert_eq!(read(piece), whole);
    assert_eq!(read(1), whole);
    let Ok(Some((head, rest))) = whole else {
        return;
    };
    let body = split::body(head.body(&LIMITS), &rest, usize::MAX);
    assert_eq!(split::body(head.body(&LIMITS), &rest, piece), body);
    assert_eq!(split::body(head.body(&LIMITS), &rest, 1), body);
    if let Ok(body) = body
        && (body.done || head.framing == AnswerFraming::ByClose)
    {
        forward(&method, client, &head, &body);
    }
});
