//! Laws of the codec: bytes that arrive in pieces are read like those that arrive at once, and what is written is read back
//! unchanged.

use http::{HeaderName, HeaderValue, Method, StatusCode};
use proptest::collection::vec;
use proptest::prelude::*;

use super::super::answer::{AnswerBounds, AnswerFault, AnswerHead, AnswerReader};
use super::super::body::{BodyFault, BodyReader, ChunkLimits};
use super::super::fields::{EndToEnd, FieldBounds};
use super::super::framing::{AnswerFraming, Framing};
use super::super::request::{RequestHead, RequestReader};
use super::super::writer::{BodyWriter, ConnectionFate, HeadWriter};
use super::*;
use crate::policy::rejection::Rejection;
use crate::policy::target::Target;

/// Wide enough for most of the generated fields, and exceeded by some.
const FIELDS: FieldBounds = FieldBounds {
    bytes_max: 256,
    count_max: 12,
};
pub(super) const REQUEST: HeadBounds = HeadBounds {
    target_bytes_max: 64,
    header_bytes_max: FIELDS.bytes_max,
    header_count_max: FIELDS.count_max,
};
pub(super) const ANSWER: AnswerBounds = AnswerBounds {
    reason_bytes_max: 32,
    fields: FIELDS,
};

/// A head taken from bytes that arrive in pieces, and the remaining bytes.
fn in_pieces<H, F>(
    bytes: &[u8],
    cuts: &[usize],
    mut take: impl FnMut(&mut BytesMut) -> Result<Option<H>, F>,
) -> Result<Option<(H, Vec<u8>)>, F> {
    let (mut buffer, mut at, mut cuts) = (BytesMut::new(), 0, cuts.iter().cycle());
    loop {
        let end = (at + cuts.next().copied().unwrap_or(bytes.len())).min(bytes.len());
        buffer.extend_from_slice(&bytes[at..end]);
        at = end;
        if let Some(head) = take(&mut buffer)? {
            return Ok(Some((head, [&buffer[..], &bytes[at..]].concat())));
        }
        if at == bytes.len() {
            return Ok(None);
        }
    }
}

fn request(bytes: &[u8], cuts: &[usize]) -> Result<Option<(RequestHead, Vec<u8>)>, Rejection> {
    let mut reader = RequestReader::default();
    in_pieces(bytes, cuts, |buffer| reader.take(buffer, &REQUEST))
}

fn answer(
    method: &Method,
    bytes: &[u8],
    cuts: &[usize],
) -> Result<Option<(AnswerHead, Vec<u8>)>, AnswerFault> {
    let mut reader = AnswerReader::new(method);
    in_pieces(bytes, cuts, |buffer| reader.take(buffer, &ANSWER))
}

/// A body as read: its data, whether it has ended, and the remaining bytes.
type Body = (Vec<u8>, bool, Vec<u8>);

fn body(mut body: BodyReader, bytes: &[u8], cuts: &[usize]) -> Result<Body, BodyFault> {
    let (mut buffer, mut at, mut cuts) = (BytesMut::new(), 0, cuts.iter().cycle());
    let mut data = Vec::new();
    loop {
        let taken = body.read(&buffer)?;
        data.extend_from_slice(&buffer[taken.clone()]);
        let _ = buffer.split_to(taken.end);
        if body.is_done() || (taken.is_empty() && at == bytes.len()) {
            let left = [&buffer[..], &bytes[at..]].concat();
            return Ok((data, body.is_done(), left));
        }
        let end = (at + cuts.next().copied().unwrap_or(bytes.len())).min(bytes.len());
        buffer.extend_from_slice(&bytes[at..end]);
        at = end;
    }
}

/// Fields as valid types, except those that are not written as given.
fn fields() -> impl Strategy<Value = Vec<(HeaderName, HeaderValue)>> {
    let value = "([!-~\u{80}-\u{ff}]([ -~\t]{0,10}[!-~])?)?".prop_map(|text| {
        let bytes: Vec<u8> = text.chars().map(|one| one as u8).collect();
        HeaderValue::from_bytes(&bytes).unwrap()
    });
    let name = "x[a-z0-9!#$%&'*+.^_`|~-]{0,8}|accept|link"
        .prop_map(|name| HeaderName::try_from(name).unwrap());
    vec((name, value), 0..8)
}

fn write_fields(head: &mut HeadWriter<'_>, fields: &[(HeaderName, HeaderValue)]) {
    for (at, (name, value)) in fields.iter().enumerate() {
        // Both ways must agree.
        match EndToEnd::of(name, value) {
            Some(field) if at % 2 == 0 => head.pass(field),
            Some(_) | None => head.add(name, value),
        }
    }
}

fn expected(fields: &[(HeaderName, HeaderValue)]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let fields = fields.iter();
    fields
        .map(|(name, value)| (name.as_str().as_bytes().to_vec(), value.as_bytes().to_vec()))
        .collect()
}

fn framing() -> impl Strategy<Value = Framing> {
    prop_oneof![
        Just(Framing::Empty),
        Just(Framing::Chunked),
        (0u64..40).prop_map(Framing::Length),
    ]
}

fn cuts() -> impl Strategy<Value = Vec<usize>> {
    vec(1usize..9, 1..6)
}

/// Writes a body of these parts and the first bytes of a next message; returns the body's data.
fn write_body(
    writer: &mut BodyWriter,
    framing: Framing,
    parts: &[Vec<u8>],
    out: &mut Vec<u8>,
) -> Vec<u8> {
    let mut data = parts.concat();
    match framing {
        Framing::Empty => data.clear(),
        Framing::Length(bytes) => data.resize(bytes as usize, b'z'),
        Framing::Chunked => {}
    }
    let mut left = &data[..];
    for part in parts {
        let (part, rest) = left.split_at(part.len().min(left.len()));
        writer.write(part, out).unwrap();
        left = rest;
    }
    writer.write(left, out).unwrap();
    writer.end(out).unwrap();
    assert!(writer.is_done());
    data
}

const NEXT: &[u8] = b"0\r\n\r\nGET";

proptest! {
    #[test]
    fn a_request_in_pieces_is_read_as_the_one_that_comes_at_once(
        head in "(\r\n){0,3}(GET|POST|OPTIONS|G T|CONNECT|) (/|/a|a|http://h/a|http://|/%41?)? HTTP/1\\.[0127]\r?\n((Host|A|a b|Content-Length|Transfer-Encoding|Connection|): {0,2}(h|3|chunked|close|x,y|)\r?\n| x\r\n){0,4}\r?\n?.{0,4}",
        cuts in cuts(),
    ) {
        let bytes = head.as_bytes();
        prop_assert_eq!(request(bytes, &cuts), request(bytes, &[]));
    }

    #[test]
    fn an_answer_in_pieces_is_read_as_the_one_that_comes_at_once(
        head in "HTTP/1\\.[0127] (100|101|200|204|304|20)( OK|)\r?\n((A|a b|Content-Length|Transfer-Encoding|Connection|): {0,2}(3|4|3, 3|chunked|close|x,y|)\r?\n| x\r\n){0,4}\r?\n?.{0,4}",
        head_asked: bool,
        cuts in cuts(),
    ) {
        let bytes = head.as_bytes();
        let method = if head_asked { Method::HEAD } else { Method::GET };
        prop_assert_eq!(answer(&method, bytes, &cuts), answer(&method, bytes, &[]));
    }

    #[test]
    fn limits_do_not_depend_on_how_bytes_are_split(
        target in 0usize..80, spaces in 0usize..1_400, value in 0usize..300, fields in 0usize..14, cut in 1usize..400,
    ) {
        let text = format!(
            "GET /{} HTTP/1.1\r\nHost: h\r\n{}A:{}{}\r\n\r\n",
            "a".repeat(target), "b:\r\n".repeat(fields), " ".repeat(spaces), "v".repeat(value),
        );
        prop_assert_eq!(request(text.as_bytes(), &[cut]), request(text.as_bytes(), &[]));
        let text = text.replacen(&format!("GET /{} HTTP/1.1", "a".repeat(target)), &format!("HTTP/1.1 200 {}", "r".repeat(target)), 1);
        let get = &Method::GET;
        prop_assert_eq!(answer(get, text.as_bytes(), &[cut]), answer(get, text.as_bytes(), &[]));
    }

    #[test]
    fn a_body_in_pieces_is_read_as_the_one_that_comes_at_once(
        text in "([0-3a]{1,2}(;[a-z\"]{0,3})?\r\n[x\r\n]{0,4}\r\n){0,3}(0\r\n(A: b\r\n){0,2}\r\n|[0-3a\r\n;:X]{0,8}).{0,4}",
        cuts in cuts(),
        length in 0u64..40,
    ) {
        let bytes = text.as_bytes();
        let limits = &ChunkLimits::STANDARD;
        for framing in [AnswerFraming::Chunked, AnswerFraming::Length(length), AnswerFraming::ByClose, AnswerFraming::Bodiless(None)] {
            let reader = BodyReader::new(framing, limits);
            prop_assert_eq!(body(reader.clone(), bytes, &cuts), body(reader, bytes, &[]));
        }
    }

    #[test]
    fn a_request_that_is_written_is_read_the_same(
        method in "GET|POST|[A-Z!#*~]{1,10}X",
        target in "/[a-z0-9]{0,8}(\\?[a-z0-9=&/?]{0,8})?",
        fields in fields(),
        framing in framing(),
        closes: bool,
        parts in vec(vec(any::<u8>(), 0..20), 0..5),
        cuts in cuts(),
    ) {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let checked = Target::parse(target.as_bytes()).unwrap();
        let mut out = Vec::new();
        let mut head = HeadWriter::request(&mut out, &method, checked, &HeaderValue::from_static("h:1"));
        write_fields(&mut head, &fields);
        let connection = if closes { ConnectionFate::Close } else { ConnectionFate::Implied };
        let mut writer = head.end(framing, connection);
        let data = write_body(&mut writer, framing, &parts, &mut out);
        out.extend_from_slice(NEXT);

        let (read, rest) = request(&out, &cuts).unwrap().unwrap();
        prop_assert_eq!(&read.method, &method);
        prop_assert_eq!(read.target().unwrap(), checked);
        prop_assert_eq!(read.host(), Some(&b"h:1"[..]));
        prop_assert_eq!(read.framing, framing);
        prop_assert_eq!(read.keeps_open, !closes);
        let kept: Vec<_> = read.fields.end_to_end().skip(1).map(|field| (field.name().to_vec(), field.value().to_vec())).collect();
        prop_assert_eq!(kept, expected(&fields));
        let read = body(read.body(&ChunkLimits::STANDARD), &rest, &cuts).unwrap();
        prop_assert_eq!(read, (data, true, NEXT.to_vec()));
    }

    #[test]
    fn an_answer_that_is_written_is_read_the_same(
        status in 102u16..1000,
        head_asked: bool,
        fields in fields(),
        framing in framing(),
        by_close: bool,
        parts in vec(vec(any::<u8>(), 0..20), 0..5),
        trailers in fields(),
        cuts in cuts(),
    ) {
        let status = StatusCode::from_u16(status).unwrap();
        let method = if head_asked { Method::HEAD } else { Method::GET };
        let bodiless = head_asked || status.is_informational() || [204, 304].contains(&status.as_u16());
        let asked = match framing {
            Framing::Length(bytes) if bodiless => AnswerFraming::Bodiless(Some(bytes)),
            _ if bodiless => AnswerFraming::Bodiless(None),
            _ if by_close => AnswerFraming::ByClose,
            Framing::Length(bytes) => AnswerFraming::Length(bytes),
            Framing::Empty | Framing::Chunked => AnswerFraming::Chunked,
        };
        let mut out = Vec::new();
        let mut head = HeadWriter::answer(&mut out, status);
        write_fields(&mut head, &fields);
        let mut writer = head.end(asked, ConnectionFate::Implied);
        let mut data = parts.concat();
        if let AnswerFraming::Length(bytes) = asked {
            data.resize(bytes as usize, b'z');
        }
        if bodiless {
            data.clear();
        } else {
            writer.write(&data, &mut out).unwrap();
        }
        writer.end(&mut out).unwrap();
        if asked == AnswerFraming::Chunked {
            // Trailers are read and not passed on.
            out.truncate(out.len() - 2);
            for (name, value) in expected(&trailers) {
                out.extend([&name[..], b": ", &value, b"\r\n"].concat());
            }
            out.extend(b"\r\n");
        }
        let ends_open = asked == AnswerFraming::ByClose;
        if !ends_open {
            prop_assert!(writer.is_done());
            out.extend_from_slice(NEXT);
        }

        let (read, rest) = answer(&method, &out, &cuts).unwrap().unwrap();
        prop_assert_eq!(read.status, status);
        let lengthless = status.is_informational() || status == StatusCode::NO_CONTENT;
        let framing = if lengthless { AnswerFraming::Bodiless(None) } else { asked };
        prop_assert_eq!(read.framing, framing);
        prop_assert_eq!(read.keeps_open, !ends_open);
        let kept: Vec<_> = read.fields.end_to_end().map(|field| (field.name().to_vec(), field.value().to_vec())).collect();
        prop_assert_eq!(kept, expected(&fields));
        let left = if ends_open { vec![] } else { NEXT.to_vec() };
        let read = body(read.body(&ChunkLimits::STANDARD), &rest, &cuts).unwrap();
        prop_assert_eq!(read, (data, !ends_open, left));
    }
}
