use http::header::{ACCEPT, CONNECTION, CONTENT_LENGTH, EXPECT, HOST, LINK, TRANSFER_ENCODING};

use super::super::framing::Framing;
use super::*;
use crate::policy::http1::fields::NoField;

const HOST_VALUE: HeaderValue = HeaderValue::from_static("u:80");

fn request(
    fill: impl FnOnce(&mut HeadWriter<'_>),
    framing: Framing,
    connection: ConnectionFate,
) -> (String, BodyWriter) {
    let mut out = Vec::new();
    let target = Target::parse(b"/a?b").unwrap();
    let mut head = HeadWriter::request(&mut out, &Method::POST, target, &HOST_VALUE);
    fill(&mut head);
    let body = head.end(framing, connection);
    (String::from_utf8(out).unwrap(), body)
}

fn answer(status: u16, framing: AnswerFraming, connection: ConnectionFate) -> (String, BodyWriter) {
    let mut out = Vec::new();
    let mut head = HeadWriter::answer(&mut out, StatusCode::from_u16(status).unwrap());
    head.add(&LINK, &HeaderValue::from_static("a"));
    let body = head.end(framing, connection);
    (String::from_utf8(out).unwrap(), body)
}

#[test]
fn a_request_has_one_host_one_framing_and_one_end() {
    let line = "POST /a?b HTTP/1.1\r\nhost: u:80\r\n";
    for (framing, connection, rest) in [
        (Framing::Empty, ConnectionFate::Implied, "\r\n"),
        (
            Framing::Empty,
            ConnectionFate::Close,
            "connection: close\r\n\r\n",
        ),
        (
            Framing::Length(0),
            ConnectionFate::Implied,
            "content-length: 0\r\n\r\n",
        ),
        (
            Framing::Length(u64::MAX),
            ConnectionFate::Implied,
            "content-length: 18446744073709551615\r\n\r\n",
        ),
        (
            Framing::Chunked,
            ConnectionFate::KeepAlive,
            "transfer-encoding: chunked\r\nconnection: keep-alive\r\n\r\n",
        ),
    ] {
        let forged = |head: &mut HeadWriter<'_>| {
            for name in [HOST, CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING] {
                let value = HeaderValue::from_static("7");
                head.add(&name, &value);
                if let Some(field) = EndToEnd::of(&name, &value) {
                    head.pass(field);
                }
            }
        };
        let (text, body) = request(forged, framing, connection);
        assert_eq!(text, format!("{line}{rest}"));
        assert_eq!(body.is_done(), framing.is_empty());
    }
}

#[test]
fn fields_are_written_as_they_are_and_no_text_ends_a_line() {
    let fill = |head: &mut HeadWriter<'_>| {
        head.add(&ACCEPT, &HeaderValue::from_static("a/b"));
        head.pass(EndToEnd::of_text(&LINK, b"a b\t").unwrap());
        for bad in ["a\r\nb: c", "\n", "\r", "\0", "\u{7f}"] {
            let made = EndToEnd::of_text(&LINK, bad.as_bytes());
            assert_eq!(made, Err(NoField), "{bad:?}");
        }
        for name in [CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING] {
            assert_eq!(EndToEnd::of_text(&name, b"1"), Err(NoField), "{name}");
        }
        let (name, value) = (
            HeaderName::from_static("x-a"),
            HeaderValue::from_static("1"),
        );
        head.pass(EndToEnd::of(&name, &value).unwrap());
        assert!(EndToEnd::of(&http::header::TE, &value).is_none());
        head.add(&EXPECT, &HeaderValue::from_static("100-continue"));
    };
    let (text, _) = request(fill, Framing::Empty, ConnectionFate::Implied);
    let fields = "accept: a/b\r\nlink: a b\t\r\nx-a: 1\r\nexpect: 100-continue\r\n\r\n";
    assert_eq!(
        text,
        format!("POST /a?b HTTP/1.1\r\nhost: u:80\r\n{fields}")
    );
}

#[test]
fn an_answer_has_the_framing_that_its_status_allows() {
    use AnswerFraming::{Bodiless, ByClose, Chunked, Length};
    for (status, framing, rest, done) in [
        (200, Length(5), "content-length: 5\r\n\r\n", false),
        (200, Length(0), "content-length: 0\r\n\r\n", true),
        (200, Bodiless(Some(5)), "content-length: 5\r\n\r\n", true),
        (200, Bodiless(None), "\r\n", true),
        (200, Chunked, "transfer-encoding: chunked\r\n\r\n", false),
        (200, ByClose, "connection: close\r\n\r\n", false),
        (204, Length(5), "\r\n", true),
        (204, Chunked, "\r\n", true),
        (204, ByClose, "\r\n", true),
        (103, Bodiless(Some(5)), "\r\n", true),
        (304, Length(5), "content-length: 5\r\n\r\n", true),
        (304, Bodiless(Some(5)), "content-length: 5\r\n\r\n", true),
        (304, Chunked, "\r\n", true),
    ] {
        let (text, body) = answer(status, framing, ConnectionFate::Implied);
        let line = text.split_once("\r\n").unwrap().0;
        assert!(line.starts_with(&format!("HTTP/1.1 {status} ")), "{line}");
        assert_eq!(
            text,
            format!("{line}\r\nlink: a\r\n{rest}"),
            "{status} {framing:?}"
        );
        assert_eq!(body.is_done(), done, "{status} {framing:?}");
    }
    let (text, _) = answer(999, Length(0), ConnectionFate::Close);
    assert_eq!(
        text,
        "HTTP/1.1 999 \r\nlink: a\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    );
}

#[test]
fn a_client_of_http_1_0_gets_no_chunks() {
    use crate::policy::http1::Version::{Http10, Http11};
    use AnswerFraming::{Bodiless, ByClose, Chunked, Length};
    for (framing, old, new) in [
        (Chunked, ByClose, Chunked),
        (ByClose, ByClose, Chunked),
        (Length(5), Length(5), Length(5)),
        (Bodiless(None), Bodiless(None), Bodiless(None)),
    ] {
        assert_eq!(
            (framing.towards(Http10), framing.towards(Http11)),
            (old, new)
        );
    }
}

fn body(framing: Framing) -> BodyWriter {
    request(|_| (), framing, ConnectionFate::Implied).1
}

#[test]
fn a_body_of_a_length_has_exactly_that() {
    let mut out = Vec::new();
    let mut five = body(Framing::Length(5));
    five.write(b"abc", &mut out).unwrap();
    assert_eq!(five.end(&mut out), Err(WrongLength));
    assert_eq!(five.write(b"def", &mut out), Err(WrongLength));
    five.write(b"de", &mut out).unwrap();
    assert!(five.is_done());
    assert_eq!(five.end(&mut out), Ok(()));
    assert_eq!(five.write(b"", &mut out), Ok(()));
    assert_eq!(five.write(b"f", &mut out), Err(WrongLength));
    assert_eq!(out, b"abcde");
}

#[test]
fn chunks_have_exactly_one_end_and_an_empty_part_is_none() {
    let mut out = Vec::new();
    let mut chunks = body(Framing::Chunked);
    chunks.write(b"", &mut out).unwrap();
    chunks.write(b"hello", &mut out).unwrap();
    chunks.write(b"", &mut out).unwrap();
    chunks.write(&[b'x'; 0x1a], &mut out).unwrap();
    assert!(!chunks.is_done());
    chunks.end(&mut out).unwrap();
    assert!(chunks.is_done());
    // A known hole in `pingora-proxy`: an end that is written twice is read as a request.
    chunks.end(&mut out).unwrap();
    assert_eq!(chunks.write(b"x", &mut out), Err(WrongLength));
    let expected = format!("5\r\nhello\r\n1a\r\n{}\r\n0\r\n\r\n", "x".repeat(0x1a));
    assert_eq!(String::from_utf8(out).unwrap(), expected);
}

#[test]
fn the_size_of_a_chunk_is_written_whatever_it_is() {
    for bytes in [1, 9, 10, 15, 16, 255, 256, 16_384, usize::MAX] {
        let wrapping = body(Framing::Chunked).part(bytes).unwrap();
        assert_eq!(wrapping.before(), format!("{bytes:x}\r\n").as_bytes());
        assert_eq!(wrapping.after, b"\r\n");
    }
}

#[test]
fn a_body_that_ends_with_the_connection_is_never_done() {
    let mut out = Vec::new();
    let (_, mut body) = answer(200, AnswerFraming::ByClose, ConnectionFate::KeepAlive);
    body.write(b"abc", &mut out).unwrap();
    body.end(&mut out).unwrap();
    assert!(!body.is_done());
    assert_eq!(out, b"abc");
}
