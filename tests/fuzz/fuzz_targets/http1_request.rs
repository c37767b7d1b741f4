//! Heads of requests and the bodies behind them. Laws: however the bytes are split, they are read the same; and what was read, written
//! to an upstream, is read the same there, with nothing behind it.
#![no_main]

mod split;

use bytes::BytesMut;
use http::HeaderValue;
use libfuzzer_sys::fuzz_target;
use touchline::policy::http1::HeadBounds;
use touchline::policy::http1::body::ChunkLimits;
use touchline::policy::http1::fields::FieldBounds;
use touchline::policy::http1::framing::Framing;
use touchline::policy::http1::request::{RequestHead, RequestReader};
use touchline::policy::http1::writer::{ConnectionFate, HeadWriter};

const BOUNDS: HeadBounds = HeadBounds {
    target_bytes_max: 64,
    header_bytes_max: 512,
    header_count_max: 16,
};
const LIMITS: ChunkLimits = ChunkLimits {
    extension_bytes_max: 16,
    trailers: FieldBounds {
        bytes_max: 64,
        count_max: 4,
    },
};

/// Reads what would be forwarded of a head and a body that were read.
fn forward(head: &RequestHead, data: &[u8]) {
    let host = HeaderValue::from_static("upstream:80");
    let mut out = Vec::new();
    let mut writer = HeadWriter::request(&mut out, &head.method, head.target().unwrap(), &host);
    for field in head.fields.end_to_end() {
        writer.pass(field);
    }
    let mut body = writer.end(head.framing, ConnectionFate::Implied);
    body.write(data, &mut out).unwrap();
    body.end(&mut out).unwrap();
    assert!(body.is_done());

    let mut buffer = BytesMut::from(&out[..]);
    let wider = HeadBounds {
        header_bytes_max: 2 * BOUNDS.header_bytes_max,
        header_count_max: 2 * BOUNDS.header_count_max,
        ..BOUNDS
    };
    let read = RequestReader::default().take(&mut buffer, &wider);
    let read = read.unwrap().unwrap();
    assert_eq!(&read.method, &head.method);
    assert_eq!(read.target(), head.target());
    assert_eq!(read.host(), Some(host.as_bytes()));
    assert_eq!(read.framing, head.framing);
    assert!(read.keeps_open && read.fields.nominated().count() == 0);
    let is_host = |name: &[u8]| name.eq_ignore_ascii_case(b"host");
    let passed = head.fields.end_to_end().map(|field| (field.name(), field.value()));
    let passed: Vec<_> = passed.filter(|(name, _)| !is_host(name)).collect();
    let got = read.fields.end_to_end().map(|field| (field.name(), field.value()));
    let got: Vec<_> = got.filter(|(name, _)| !is_host(name)).collect();
    assert_eq!(got, passed);
    let framings = read.fields.iter().filter(|field| {
        [&b"content-length"[..], b"transfer-encoding"]
            .iter()
            .any(|name| field.name.eq_ignore_ascii_case(name))
    });
    assert_eq!(framings.count(), usize::from(read.framing != Framing::Empty));
    let body = split::body(read.body(&LIMITS), &buffer, usize::MAX).unwrap();
    assert_eq!((&body.data[..], body.done), (data, true));
    assert!(body.left.is_empty());
}

fuzz_target!(|input: &[u8]| {
    let Some((piece, bytes)) = input.split_first() else {
        return;
    };
    let piece = usize::from(*piece) + 1;
    let read = |piece| {
        let mut reader = RequestReader::default();
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
        && body.done
    {
        forward(&head, &body.data);
    }
});
