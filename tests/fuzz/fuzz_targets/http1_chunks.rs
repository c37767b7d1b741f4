//! Chunked bodies. Laws: however the bytes are split, they are read the same; no byte behind the end is taken; and the data, written
//! in chunks of any size, are read the same.
#![no_main]

mod split;

use http::StatusCode;
use libfuzzer_sys::fuzz_target;
use touchline::policy::http1::body::{BodyReader, ChunkLimits};
use touchline::policy::http1::fields::FieldBounds;
use touchline::policy::http1::framing::{AnswerFraming, Framing};
use touchline::policy::http1::writer::{ConnectionFate, HeadWriter};

const LIMITS: ChunkLimits = ChunkLimits {
    extension_bytes_max: 16,
    trailers: FieldBounds {
        bytes_max: 64,
        count_max: 4,
    },
};

fuzz_target!(|input: &[u8]| {
    let Some((piece, bytes)) = input.split_first() else {
        return;
    };
    let piece = usize::from(*piece) + 1;
    let reader = || BodyReader::new(Framing::Chunked, &LIMITS);
    let whole = split::body(reader(), bytes, usize::MAX);
    assert_eq!(split::body(reader(), bytes, piece), whole);
    assert_eq!(split::body(reader(), bytes, 1), whole);
    let Ok(body) = whole else {
        return;
    };
    assert!(bytes.ends_with(&body.left));
    if body.done {
        // The end does not depend on what is behind it.
        let own = &bytes[..bytes.len() - body.left.len()];
        let alone = split::body(reader(), own, usize::MAX).unwrap();
        assert!(alone.done && alone.left.is_empty() && alone.data == body.data);
    }
    let mut out = Vec::new();
    let head = HeadWriter::answer(&mut out, StatusCode::OK);
    let mut writer = head.end(AnswerFraming::Chunked, ConnectionFate::Implied);
    out.clear();
    for part in body.data.chunks(piece) {
        writer.write(part, &mut out).unwrap();
    }
    writer.end(&mut out).unwrap();
    let again = split::body(reader(), &out, usize::MAX).unwrap();
    assert!(again.done && again.left.is_empty() && again.data == body.data);
});
