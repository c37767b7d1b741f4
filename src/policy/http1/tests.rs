use proptest::prelude::*;

use super::*;

const BOUNDS: HeadBounds = HeadBounds {
    target_bytes_max: 64,
    header_bytes_max: 256,
    header_count_max: 4,
};

fn outcome(head: &[u8]) -> Result<Option<usize>, &'static str> {
    match scan(head, 0, &BOUNDS) {
        Scan::Partial => Ok(None),
        Scan::Whole { end, .. } => Ok(Some(end)),
        Scan::Refused(rejection) => Err(rejection.code()),
    }
}

#[test]
fn a_plain_head_is_found_to_its_end_and_no_further() {
    let head = b"GET /a?b HTTP/1.1\r\nHost: h\r\nX: \xe9\t\r\n\r\n";
    assert_eq!(outcome(head), Ok(Some(head.len())));
    let mut more = b"\r\n".to_vec();
    more.extend(head);
    more.extend(b"GET /x HTTP/1.1\r\n");
    let Scan::Whole {
        skipped_bytes,
        end,
        body,
        rewritten,
    } = scan(&more, 0, &BOUNDS)
    else {
        panic!("a head");
    };
    assert_eq!((skipped_bytes, end), (2, head.len() + 2));
    assert_eq!(rewritten, None);
    assert!(body.is_done());
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
fn absolute_targets_and_later_minor_versions_are_written_anew() {
    for (sent, read) in [
        (
            "GET http://h:80/a?b HTTP/1.1\r\nA: 1\r\nhOST : no\r\n\r\n",
            None,
        ),
        (
            "GET http://h:80/a?b HTTP/1.1\r\nA: 1\r\nhOST: other\r\nHosts: b\r\n\r\n",
            Some("GET /a?b HTTP/1.1\r\nhost: h:80\r\nA: 1\r\nHosts: b\r\n\r\n"),
        ),
        (
            "GET http://h HTTP/1.0\r\n\r\n",
            Some("GET / HTTP/1.0\r\nhost: h\r\n\r\n"),
        ),
        (
            "OPTIONS https://h/?a HTTP/1.7\r\nHost: h\r\n\r\n",
            Some("OPTIONS /?a HTTP/1.1\r\nhost: h\r\n\r\n"),
        ),
        (
            "GET /a HTTP/1.2\r\nHost: h\r\nA: b\r\n\r\n",
            Some("GET /a HTTP/1.1\r\nHost: h\r\nA: b\r\n\r\n"),
        ),
    ] {
        let more = format!("\r\n{sent}GET");
        match scan(more.as_bytes(), 0, &BOUNDS) {
            Scan::Whole { end, rewritten, .. } => {
                assert_eq!(end, sent.len() + 2, "{sent}");
                let rewritten = rewritten.map(|head| String::from_utf8(head).unwrap());
                assert_eq!(rewritten.as_deref(), read, "{sent}");
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
fn exactly_one_valid_host_is_told_from_others() {
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
fn a_refused_head_is_told_apart_as_far_as_it_can_be() {
    assert_eq!(
        told_apart(b"\r\nGET /a?b#c HTTP/1.1\r\n"),
        ("GET".into(), "/a".into())
    );
    assert_eq!(
        told_apart(b"GET http://u@h/a?b HTTP/1.1\r\n"),
        ("GET".into(), "/a".into())
    );
    assert_eq!(
        told_apart(b"\x16\x03"),
        ("\u{16}\u{3}".into(), String::new())
    );
    assert_eq!(told_apart(b""), (String::new(), String::new()));
}

proptest! {
    #[test]
    fn bytes_that_come_in_pieces_are_judged_as_those_that_come_at_once(
        head in "(GET|POST|G T|) (/|/a|a|http://h/a|http://)? HTTP/1.[012]\r?\n(Host: h\r\n|A: b\r?\n| x\r\n|Content-Length: 3\r\n){0,3}\r?\n?",
        piece in 1usize..9,
    ) {
        let bytes = head.as_bytes();
        let mut seen = 0;
        let pieces = loop {
            let end = (seen + piece).min(bytes.len());
            let found = scan(&bytes[..end], seen, &BOUNDS);
            seen = end;
            if found != Scan::Partial || end == bytes.len() {
                break found;
            }
        };
        // A refusal may come early, before all bytes are there; an acceptance never differs.
        let whole = scan(bytes, 0, &BOUNDS);
        match (&pieces, &whole) {
            (Scan::Refused(one), Scan::Refused(other)) => prop_assert_eq!(one.code(), other.code()),
            (one, other) => prop_assert_eq!(one, other),
        }
    }
}

#[test]
fn the_request_id_of_a_refused_head_is_found_where_its_line_is_whole() {
    let found = |head: &str| request_id(head.as_bytes()).map(|id| id.to_vec());
    let one = |id: &str| Some(id.as_bytes().to_vec());
    assert_eq!(
        found("GET / HTTP/1.1\r\nHost: h\r\nx-ReQuest-ID: \t a-1 \r\n\r\n"),
        one("a-1")
    );
    assert_eq!(
        found("GET /\nX-Request-Id:a-1\nX-Request-Id: b\n"),
        one("a-1")
    );
    assert_eq!(
        found("\r\nGET / HTTP/1.1\r\nX-Request-Id: a\r\n folded: x\r\n"),
        one("a")
    );
    for none in [
        "",
        "X-Request-Id: a",
        "X-Request-Id: a\r\n",
        "GET / HTTP/1.1\r\nX-Request-Id: cut",
        "GET / HTTP/1.1\r\nX-Request-Id : a\r\n",
        "GET / HTTP/1.1\r\nX-Request-Ids: a\r\n",
        "GET / HTTP/1.1\r\n\r\nX-Request-Id: body\r\n",
    ] {
        assert_eq!(found(none), None, "{none:?}");
    }
}
