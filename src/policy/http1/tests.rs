use bytes::BytesMut;
use http::header::COOKIE;
use http::{HeaderMap, HeaderValue};

use super::fields::FieldList;
use super::framing::Framing;
use super::request::{RequestHead, RequestReader};
use super::*;

mod laws;
mod oracle;

const BOUNDS: HeadBounds = HeadBounds {
    target_bytes_max: 64,
    header_bytes_max: 256,
    header_count_max: 4,
};

fn outcome(head: &[u8]) -> Result<Option<usize>, &'static str> {
    let mut buffer = BytesMut::from(head);
    match RequestReader::default().take(&mut buffer, &BOUNDS) {
        Ok(read) => Ok(read.map(|_| head.len() - buffer.len())),
        Err(rejection) => Err(rejection.code()),
    }
}

fn head(text: &str) -> RequestHead {
    let mut buffer = BytesMut::from(text);
    let head = RequestReader::default().take(&mut buffer, &BOUNDS);
    head.unwrap().expect("a whole head")
}

#[test]
fn a_plain_head_is_found_to_its_end_and_no_further() {
    let head = b"GET /a?b HTTP/1.1\r\nHost: h\r\nX: \xe9\t\r\n\r\n";
    assert_eq!(outcome(head), Ok(Some(head.len())));
    let mut more = b"\r\n".to_vec();
    more.extend(head);
    more.extend(b"GET /x HTTP/1.1\r\n");
    assert_eq!(outcome(&more), Ok(Some(head.len() + 2)));
    let read = RequestReader::default().take(&mut BytesMut::from(&more[..]), &BOUNDS);
    let read = read.unwrap().expect("a whole head");
    assert_eq!(read.path(), "/a");
    assert_eq!(read.framing, Framing::Empty);
    for end in 0..head.len() {
        assert_eq!(outcome(&head[..end]), Ok(None), "{end}");
    }
    assert_eq!(outcome(b"GET / HTTP/1.0\r\n\r\n"), Ok(Some(18)));
}

#[test]
fn what_servers_read_in_different_ways_is_refused() {
    let line = |line: &[u8]| [line, b"\r\nHost: h\r\n\r\n"].concat();
    for bad in [
        &b"GET /a b HTTP/1.1"[..],
        b"GET  / HTTP/1.1",
        b"GET / HTTP/1.1 ",
        b" GET / HTTP/1.1",
        b"GET\t/\tHTTP/1.1",
        b"GET / HTTP/1.",
        b"GET / HTTP/1.10",
        b"GET / HTTP/1.01",
        b"GET / HTTP/0.9",
        b"GET / HTTP/2.0",
        b"GET / http/1.1",
        b"GET / HTTP/1.1x",
        b"GET /",
        b"GET",
        b"G(T / HTTP/1.1",
        b"GET http://u@h/ HTTP/1.1",
        b"GET http:/// HTTP/1.1",
        b"GET http://h// HTTP/1.1",
        b"GET http://h/%2e HTTP/1.1",
        b"GET http://h#a HTTP/1.1",
        b"OPTIONS http://h HTTP/1.1",
        b"GET ws://h/ HTTP/1.1",
        b"GET h:80 HTTP/1.1",
        b"OPTIONS * HTTP/1.1",
        b"GET /a\x00 HTTP/1.1",
        b"GET /a\xff HTTP/1.1",
        b"GET /a#b HTTP/1.1",
        b"GET /a\r HTTP/1.1",
        b"PRI * HTTP/2.0",
    ] {
        assert_eq!(
            outcome(&line(bad)),
            Err("BAD_REQUEST"),
            "{}",
            bad.escape_ascii()
        );
    }
    let field = |field: &[u8]| [b"POST / HTTP/1.1\r\nHost: h\r\n", field, b"\r\n\r\n"].concat();
    for bad in [
        &b"A: b\r\n folded"[..],
        b"A: b\r\n\tfolded",
        b"A : b",
        b" A: b",
        b": b",
        b"A",
        b"A\x00: b",
        b"A: \x00",
        b"A: a\rb",
        b"A: b\nC: d",
        b"A: \x7f",
        b"Host: h",
        b"Host: other",
        b"Content-Length: 5, 5",
        b"Content-Length: +5",
        b"Content-Length: 0x5",
        b"Content-Length: ",
        b"Content-Length: 5\r\nContent-Length: 5",
        b"Content-Length: 99999999999999999999",
        b"Transfer-Encoding: chunked\r\nContent-Length: 5",
        b"Transfer-Encoding: xchunked",
        b"Transfer-Encoding: \x0bchunked",
        b"Transfer-Encoding: \x0cchunked",
        b"Content-Length: 5\x0c",
        b"Transfer-Encoding: chunked, identity",
        b"Transfer-Encoding: identity, chunked",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        b"Transfer-Encoding : chunked",
        b"transfer-encoding\x0b: chunked",
    ] {
        assert_eq!(
            outcome(&field(bad)),
            Err("BAD_REQUEST"),
            "{}",
            bad.escape_ascii()
        );
    }
    for bad in [
        &b"GET / HTTP/1.1\nHost: h\r\n\r\n"[..],
        b"GET / HTTP/1.1\r\nHost: h\n\n",
        b"GET / HTTP/1.1\r\nHost: h\r\n\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: u@h\r\n\r\n",
        b"GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"\nGET / HTTP/1.1\r\n",
        b"\r\n\r\n\r\nGET / HTTP/1.1\r\n",
        b"\x16\x03\x01",
        b"GET /\r\n",
    ] {
        assert_eq!(outcome(bad), Err("BAD_REQUEST"), "{}", bad.escape_ascii());
    }
    assert_eq!(
        outcome(b"CONNECT h:80 HTTP/1.1\r\n"),
        Err("METHOD_NOT_ALLOWED")
    );
}

#[test]
fn absolute_targets_and_later_minor_versions_are_read_as_their_origin_form_and_1_1() {
    for (sent, read) in [
        (
            "GET http://h:80/a?b HTTP/1.1\r\nA: 1\r\nhOST : no\r\n\r\n",
            None,
        ),
        (
            "GET http://h:80/a?b HTTP/1.1\r\nA: 1\r\nhOST: other\r\nHosts: b\r\n\r\n",
            Some(("/a?b", "h:80", Version::Http11)),
        ),
        (
            "GET http://h HTTP/1.0\r\n\r\n",
            Some(("/", "h", Version::Http10)),
        ),
        (
            "OPTIONS https://h/?a HTTP/1.7\r\nHost: h\r\n\r\n",
            Some(("/?a", "h", Version::Http11)),
        ),
        (
            "GET /a HTTP/1.2\r\nHost: h\r\nA: b\r\n\r\n",
            Some(("/a", "h", Version::Http11)),
        ),
    ] {
        let more = format!("\r\n{sent}GET");
        let mut buffer = BytesMut::from(&*more);
        match RequestReader::default().take(&mut buffer, &BOUNDS) {
            Ok(Some(head)) => {
                assert_eq!(&buffer[..], b"GET", "{sent}");
                let target = String::from_utf8_lossy(head.raw_target());
                let host = String::from_utf8_lossy(head.host().unwrap());
                let version = head.version;
                assert_eq!(Some((&*target, &*host, version)), read, "{sent}");
            }
            other => assert!(read.is_none(), "{sent}: {other:?}"),
        }
    }
}

#[test]
fn a_length_is_a_number_and_equal_ones_of_an_answer_are_one() {
    for (text, bytes) in [
        ("0", Some(0)),
        ("005", Some(5)),
        ("9".repeat(19).as_str(), Some(9_999_999_999_999_999_999)),
    ] {
        assert_eq!(length(text.as_bytes()), bytes, "{text}");
    }
    for none in [
        "",
        " 5",
        "+5",
        "-5",
        "5,5",
        "0x5",
        "5 5",
        "٥",
        &"0".repeat(20),
    ] {
        assert_eq!(length(none.as_bytes()), None, "{none}");
    }
    let agreed = |values: &[&str]| agreed_length(values.iter().map(|value| value.as_bytes()));
    for one in [
        &["2"][..],
        &["2, 2"],
        &["002,\t2 ,2"],
        &["2", "2"],
        &["2, 2", "02"],
    ] {
        assert_eq!(agreed(one), Some(2), "{one:?}");
    }
    for none in [
        &[][..],
        &[""],
        &["2,"],
        &["2, 3"],
        &["2", "3"],
        &["2, x"],
        &["2 2"],
    ] {
        assert_eq!(agreed(none), None, "{none:?}");
    }
}

#[test]
fn both_sides_of_each_bound_also_before_the_head_is_whole() {
    let target = |length: usize| {
        format!(
            "GET /{} HTTP/1.1\r\nHost: h\r\n\r\n",
            "a".repeat(length - 1)
        )
    };
    assert!(outcome(target(64).as_bytes()).is_ok());
    assert_eq!(outcome(target(65).as_bytes()), Err("URI_TOO_LONG"));
    let endless = format!("GET /{}", "a".repeat(200));
    assert_eq!(outcome(endless.as_bytes()), Err("URI_TOO_LONG"));
    assert_eq!(outcome("A".repeat(200).as_bytes()), Err("BAD_REQUEST"));
    let value = |length: usize| {
        format!(
            "GET / HTTP/1.1\r\nHost: h\r\nA: {}\r\n\r\n",
            "v".repeat(length)
        )
    };
    assert!(outcome(value(242).as_bytes()).is_ok());
    assert_eq!(outcome(value(243).as_bytes()), Err("HEADERS_TOO_LARGE"));
    let endless = format!("GET / HTTP/1.1\r\nA: {}", "v".repeat(2_000));
    assert_eq!(outcome(endless.as_bytes()), Err("HEADERS_TOO_LARGE"));
    let many = |count: usize| {
        format!(
            "GET / HTTP/1.1\r\nHost: h\r\n{}\r\n",
            "a:\r\n".repeat(count - 1)
        )
    };
    assert!(outcome(many(4).as_bytes()).is_ok());
    assert_eq!(outcome(many(5).as_bytes()), Err("HEADERS_TOO_LARGE"));
}

#[test]
fn only_exactly_one_valid_host_is_accepted() {
    for good in [
        "h",
        "a-b.example:8443",
        "127.0.0.1:80",
        "[::1]:8080",
        "[::1]",
        "h:",
    ] {
        assert!(is_host(good.as_bytes()), "{good}");
    }
    for bad in [
        "", "a b", "a,b", "a/b", "u@h", "h:x", "h:123456", "[::1", "::1", "[x]", "h:1:2",
    ] {
        assert!(!is_host(bad.as_bytes()), "{bad}");
    }
}

#[test]
fn a_head_returns_what_was_read() {
    let read = head(
        "\r\nPOST /a?b=c HTTP/1.1\r\nhOST: h:1\r\nA: \t b c \r\na:\r\nContent-Length: 005\r\n\r\n",
    );
    assert_eq!(&read.method, http::Method::POST);
    let target = read.target().unwrap();
    assert_eq!((target.path, target.query), ("/a", Some("b=c")));
    assert_eq!(read.host(), Some(&b"h:1"[..]));
    assert_eq!(read.version, Version::Http11);
    assert_eq!(read.framing, Framing::Length(5));
    let name = http::HeaderName::from_static("a");
    assert_eq!(
        read.fields.all(&name).collect::<Vec<_>>(),
        [&b"b c"[..], b""]
    );
    assert_eq!(read.fields.first(&http::header::ACCEPT), None);
    assert_eq!(read.fields.count(), 4);
    let chunked = head("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: Chunked\r\n\r\n");
    assert_eq!(chunked.framing, Framing::Chunked);
    let absolute = head("GET http://u:80?q HTTP/1.1\r\nHost: h\r\n\r\n");
    let target = absolute.target().unwrap();
    assert_eq!((target.path, target.query), ("/", Some("q")));
    assert_eq!(absolute.host(), Some(&b"u:80"[..]));
    assert_eq!(head("GET / HTTP/1.0\r\n\r\n").host(), None);
}

#[test]
fn connections_stay_open_as_their_version_and_options_state() {
    for (version, connection, open) in [
        ("1.1", "", true),
        ("1.1", "Connection: close\r\n", false),
        ("1.1", "Connection: x, CLOSE ,\r\n", false),
        ("1.1", "Connection: closed\r\n", true),
        (
            "1.1",
            "Connection: keep-alive\r\nConnection: close\r\n",
            false,
        ),
        ("1.0", "", false),
        ("1.0", "Connection: Keep-Alive\r\n", true),
        ("1.0", "Connection: keep-alive, close\r\n", false),
        ("1.7", "", true),
    ] {
        let text = format!("GET / HTTP/{version}\r\nHost: h\r\n{connection}\r\n");
        assert_eq!(head(&text).keeps_open, open, "{text:?}");
    }
}

#[test]
fn only_a_client_of_http_1_1_with_100_continue_first_waits_before_its_body() {
    for (version, fields, waits) in [
        ("1.1", "", false),
        ("1.1", "Expect: 100-Continue\r\n", true),
        ("1.1", "Expect: other\r\nExpect: 100-continue\r\n", false),
        ("1.1", "Expect: 100-continue\r\nExpect: other\r\n", true),
        ("1.0", "Expect: 100-continue\r\n", false),
    ] {
        let text = format!("POST / HTTP/{version}\r\nHost: h\r\n{fields}\r\n");
        assert_eq!(head(&text).expects_continue, waits, "{text:?}");
    }
}

#[test]
fn what_belongs_to_one_connection_or_frames_a_message_is_not_passed_on() {
    let bounds = HeadBounds {
        header_bytes_max: 4096,
        header_count_max: 64,
        ..BOUNDS
    };
    let text = "POST / HTTP/1.1\r\nHost: h\r\nConnection: X-Hop, close,  x-other\t\r\nx-HOP: 1\r\nX-Other: 2\r\nX-Kept: 3\r\n\
                Te: trailers\r\nTrailer: a\r\nUpgrade: b\r\nKeep-Alive: c\r\nHTTP2-Settings: d\r\nContent-Length: 1\r\n\
                Proxy-Connection: e\r\nProxy-Authenticate: f\r\nAccept: */*\r\n\r\n";
    let mut buffer = BytesMut::from(text);
    let read = RequestReader::default().take(&mut buffer, &bounds);
    let read = read.unwrap().unwrap();
    let nominated: Vec<&[u8]> = read.fields.nominated().collect();
    assert_eq!(nominated, [&b"X-Hop"[..], b"x-other"]);
    let kept: Vec<&[u8]> = read.fields.end_to_end().map(|field| field.name()).collect();
    assert_eq!(kept, [&b"Host"[..], b"X-Kept", b"Accept"]);
    let many = |count: usize| {
        let text = format!(
            "GET / HTTP/1.1\r\nHost: h\r\nConnection: {}\r\n\r\n",
            "a,".repeat(count)
        );
        outcome(text.as_bytes()).map(|end| end.is_some())
    };
    assert_eq!(many(16), Ok(true));
    assert_eq!(many(17), Err("BAD_REQUEST"));
}

#[test]
fn white_space_around_values_is_bounded_too() {
    let padded = |bytes: usize| {
        let text = format!(
            "GET / HTTP/1.1\r\nHost: h\r\nA:{}\r\n\r\n",
            " ".repeat(bytes)
        );
        outcome(text.as_bytes()).map(|end| end.is_some())
    };
    // Besides the 13 other bytes of the two fields.
    assert_eq!(padded(256 + 1024 - 15), Ok(true));
    assert_eq!(padded(256 + 1024 - 12), Err("HEADERS_TOO_LARGE"));
}

#[test]
fn heads_of_one_connection_are_read_one_after_the_other() {
    let mut reader = RequestReader::default();
    let mut buffer = BytesMut::from("GET /a HTTP/1.1\r\nHost: h\r\n\r\nGET /b HTTP/1.1\r\nHost");
    let first = reader.take(&mut buffer, &BOUNDS).unwrap().unwrap();
    assert_eq!(first.path(), "/a");
    assert_eq!(reader.take(&mut buffer, &BOUNDS).unwrap(), None);
    buffer.extend_from_slice(b": i\r\n\r\n");
    let second = reader.take(&mut buffer, &BOUNDS).unwrap().unwrap();
    assert_eq!((second.path(), second.host()), ("/b", Some(&b"i"[..])));
    assert!(buffer.is_empty());
    assert_eq!(first.host(), Some(&b"h"[..]));
}

/// The HTTP/2 library keeps values for as long as a connection lasts.
#[test]
fn fields_for_a_library_do_not_keep_what_they_were_read_from() {
    let mut buffer = BytesMut::from("GET / HTTP/1.1\r\nHost: h\r\nX-Shard: b\r\n\r\nand more");
    let head = RequestReader::default().take(&mut buffer, &BOUNDS);
    let map = head.unwrap().unwrap().fields.into_map();
    assert_eq!(
        (&map["host"], &map["x-shard"]),
        (&"h".parse().unwrap(), &"b".parse().unwrap())
    );
    assert!(buffer.freeze().is_unique(), "a value refers to the buffer");
}

#[test]
fn white_space_around_the_values_of_a_field_over_http2_is_not_part_of_them() {
    let mut map = HeaderMap::new();
    for (sent, read) in [(" a\t", "a"), ("b c", "b c"), (" \t ", "")] {
        map.insert(COOKIE, HeaderValue::from_static(sent));
        let fields = FieldList::from(map.clone());
        assert_eq!(fields.first(&COOKIE), Some(read.as_bytes()));
    }
}
