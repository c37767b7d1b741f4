use super::*;

const BOUNDS: AnswerBounds = AnswerBounds {
    reason_bytes_max: 16,
    fields: FieldBounds {
        bytes_max: 256,
        count_max: 4,
    },
};

fn read(method: &Method, text: &str) -> Result<Option<AnswerHead>, AnswerFault> {
    let mut buffer = BytesMut::from(text);
    AnswerReader::new(method).take(&mut buffer, &BOUNDS)
}

fn framing(method: &Method, head: &str) -> Result<AnswerFraming, AnswerFault> {
    read(method, &format!("{head}\r\n")).map(|head| head.expect("a whole head").framing)
}

#[test]
fn a_status_line_is_read_with_or_without_a_reason() {
    for (line, status, version) in [
        ("HTTP/1.1 200 OK", 200, Version::Http11),
        ("HTTP/1.1 200 ", 200, Version::Http11),
        ("HTTP/1.1 200", 200, Version::Http11),
        ("HTTP/1.0 404 Not \tFound\u{e9}", 404, Version::Http10),
        ("HTTP/1.4 999 x", 999, Version::Http11),
    ] {
        let head = read(&Method::GET, &format!("{line}\r\n\r\n"))
            .unwrap()
            .unwrap();
        assert_eq!(
            (head.status.as_u16(), head.version),
            (status, version),
            "{line}"
        );
    }
    for bad in [
        "HTTP/1.1 99 x",
        "HTTP/1.1 099 x",
        "HTTP/1.1 2000",
        "HTTP/1.1  200 OK",
        "HTTP/1.1 200OK",
        "HTTP/1.1\t200 OK",
        "HTTP/1.10 200 OK",
        "HTTP/2 200 OK",
        "http/1.1 200 OK",
        " HTTP/1.1 200 OK",
        "HTTP/1.1 200 O\rK",
        "HTTP/1.1 200 O\0K",
        "what?",
        "",
    ] {
        let answer = read(&Method::GET, &format!("{bad}\r\n\r\n"));
        assert_eq!(answer, Err(AnswerFault::StatusLine), "{bad:?}");
    }
    assert_eq!(
        read(&Method::GET, "HTTP/1.1 200 OK\n\n"),
        Err(AnswerFault::StatusLine)
    );
    assert_eq!(read(&Method::GET, "w"), Err(AnswerFault::StatusLine));
    assert_eq!(
        read(&Method::GET, "HTTP/1.1 101 x\r\n"),
        Err(AnswerFault::Switched)
    );
}

#[test]
fn a_body_is_framed_in_one_way_or_the_upstream_is_at_fault() {
    use AnswerFraming::{ByClose, Chunked, Length};
    for (fields, expected) in [
        ("", Ok(ByClose)),
        ("Content-Length: 005\r\n", Ok(Length(5))),
        (
            "Content-Length: 5, 5\r\ncontent-length: 5\r\n",
            Ok(Length(5)),
        ),
        ("Transfer-Encoding: chunked\r\n", Ok(Chunked)),
        ("Transfer-Encoding: CHUNKED\r\n", Ok(Chunked)),
        ("Content-Length: 5, 6\r\n", Err(AnswerFault::Framing)),
        (
            "Content-Length: 5\r\nContent-Length: 6\r\n",
            Err(AnswerFault::Framing),
        ),
        ("Content-Length: +5\r\n", Err(AnswerFault::Framing)),
        ("Content-Length:\r\n", Err(AnswerFault::Framing)),
        (
            "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
            Err(AnswerFault::Framing),
        ),
        (
            "Transfer-Encoding: gzip, chunked\r\n",
            Err(AnswerFault::Framing),
        ),
        ("Transfer-Encoding: identity\r\n", Err(AnswerFault::Framing)),
        (
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            Err(AnswerFault::Framing),
        ),
        (
            "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n",
            Err(AnswerFault::Framing),
        ),
        ("Transfer-Encoding : chunked\r\n", Err(AnswerFault::Field)),
        ("A: b\r\n folded\r\n", Err(AnswerFault::Field)),
        ("A: b\nC: d\r\n", Err(AnswerFault::Field)),
        ("A\r\n", Err(AnswerFault::Field)),
    ] {
        let head = format!("HTTP/1.1 200 OK\r\n{fields}");
        assert_eq!(framing(&Method::GET, &head), expected, "{fields:?}");
    }
    let old = "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n";
    assert_eq!(framing(&Method::GET, old), Err(AnswerFault::Framing));
}

#[test]
fn what_has_no_body_by_its_status_or_the_method_has_none_whatever_its_fields_are() {
    use AnswerFraming::Bodiless;
    for (fields, announced) in [
        ("", None),
        ("Content-Length: 5\r\n", Some(5)),
        ("Content-Length: 5, 6\r\n", None),
        ("Transfer-Encoding: chunked\r\n", None),
        ("Content-Length: 5\r\nTransfer-Encoding: gzip\r\n", None),
    ] {
        let of = |method: &Method, status: u16| {
            framing(method, &format!("HTTP/1.1 {status} X\r\n{fields}"))
        };
        for status in [100, 103, 199, 204] {
            assert_eq!(
                of(&Method::GET, status),
                Ok(Bodiless(None)),
                "{status} {fields:?}"
            );
            assert_eq!(
                of(&Method::HEAD, status),
                Ok(Bodiless(None)),
                "{status} {fields:?}"
            );
        }
        assert_eq!(of(&Method::GET, 304), Ok(Bodiless(announced)), "{fields:?}");
        assert_eq!(
            of(&Method::HEAD, 200),
            Ok(Bodiless(announced)),
            "{fields:?}"
        );
    }
}

#[test]
fn a_body_may_follow_where_a_faulty_upstream_would_send_one() {
    for (method, head, expected) in [
        (Method::GET, "200 x\r\nContent-Length: 2\r\n", false),
        (
            Method::GET,
            "200 x\r\nTransfer-Encoding: chunked\r\n",
            false,
        ),
        (Method::GET, "304 x\r\n", false),
        (Method::GET, "304 x\r\nContent-Length: 0\r\n", false),
        (Method::GET, "304 x\r\nContent-Length: 2\r\n", true),
        (Method::GET, "304 x\r\nContent-Length: 2, 3\r\n", true),
        (Method::GET, "304 x\r\nTransfer-Encoding: chunked\r\n", true),
        (Method::GET, "204 x\r\n", true),
        (Method::HEAD, "200 x\r\n", true),
        (Method::HEAD, "304 x\r\n", true),
    ] {
        let read = read(&method, &format!("HTTP/1.1 {head}\r\n")).unwrap();
        assert_eq!(read.unwrap().body_may_follow, expected, "{method} {head:?}");
    }
}

#[test]
fn heads_are_bounded_also_before_they_are_whole() {
    let line = |bytes: usize| format!("HTTP/1.1 200 {}\r\n\r\n", "r".repeat(bytes));
    assert!(read(&Method::GET, &line(16)).is_ok());
    assert_eq!(read(&Method::GET, &line(17)), Err(AnswerFault::TooLarge));
    assert_eq!(
        read(&Method::GET, &line(17)[..32]),
        Err(AnswerFault::TooLarge)
    );
    let many = |count: usize| format!("HTTP/1.1 200 OK\r\n{}\r\n", "a:\r\n".repeat(count));
    assert!(read(&Method::GET, &many(4)).is_ok());
    assert_eq!(read(&Method::GET, &many(5)), Err(AnswerFault::TooLarge));
    let value = |bytes: usize| format!("HTTP/1.1 200 OK\r\na: {}\r\n\r\n", "v".repeat(bytes));
    assert!(read(&Method::GET, &value(251)).is_ok());
    assert_eq!(read(&Method::GET, &value(252)), Err(AnswerFault::TooLarge));
    assert_eq!(
        read(&Method::GET, &value(2_000)[..1_500]),
        Err(AnswerFault::TooLarge)
    );
}

#[test]
fn interim_answers_come_before_the_final_one() {
    let mut reader = AnswerReader::new(&Method::GET);
    let mut buffer = BytesMut::from(
        "HTTP/1.1 103 Early\r\nLink: a\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    );
    let hint = reader.take(&mut buffer, &BOUNDS).unwrap().unwrap();
    assert!(hint.is_interim() && hint.fields.first(&http::header::LINK) == Some(b"a"));
    let last = reader.take(&mut buffer, &BOUNDS).unwrap().unwrap();
    assert!(!last.is_interim() && last.fields.first(&http::header::LINK).is_none());
    assert_eq!(&buffer[..], b"{}");
}

/// Whether a connection can be reused after it carried `answer` to a GET without a body.
fn is_reusable(answer: &str, closed: bool) -> bool {
    let mut out = Vec::new();
    let host = http::HeaderValue::from_static("h");
    let target = crate::policy::target::Target::parse(b"/").unwrap();
    let request = super::super::writer::HeadWriter::request(&mut out, &Method::GET, target, &host);
    let request = request.end(
        super::super::framing::Framing::Empty,
        super::super::writer::ConnectionFate::Implied,
    );
    let mut buffer = BytesMut::from(answer);
    let head = AnswerReader::new(&Method::GET).take(&mut buffer, &BOUNDS);
    let head = head.unwrap().unwrap();
    let mut body = head.body(&ChunkLimits::STANDARD);
    let taken = body.read(&buffer).unwrap();
    let _ = buffer.split_to(taken.end);
    if closed {
        let _ = body.close();
    }
    !head.is_interim() && is_between_requests(&request, head.keeps_open, &body, &buffer)
}

#[test]
fn only_a_connection_between_two_requests_is_used_again() {
    for (answer, reusable) in [
        ("HTTP/1.1 204 x\r\n\r\n", true),
        ("HTTP/1.1 200 x\r\nContent-Length: 2\r\n\r\n{}", true),
        (
            "HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            true,
        ),
        (
            "HTTP/1.0 200 x\r\nContent-Length: 2\r\nConnection: keep-alive\r\n\r\n{}",
            true,
        ),
        // Not read completely.
        ("HTTP/1.1 200 x\r\nContent-Length: 2\r\n\r\n{", false),
        (
            "HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
            false,
        ),
        // More than an answer.
        ("HTTP/1.1 204 x\r\n\r\n{}", false),
        ("HTTP/1.1 200 x\r\nContent-Length: 1\r\n\r\n{}", false),
        (
            "HTTP/1.1 200 x\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 x\r\n\r\n",
            false,
        ),
        // Announced to be closed.
        ("HTTP/1.1 204 x\r\nConnection: close\r\n\r\n", false),
        ("HTTP/1.0 200 x\r\nContent-Length: 2\r\n\r\n{}", false),
        ("HTTP/1.1 200 x\r\n\r\n{}", false),
        ("HTTP/1.1 100 x\r\n\r\n", false),
    ] {
        assert_eq!(is_reusable(answer, false), reusable, "{answer:?}");
    }
    let by_close = "HTTP/1.0 200 x\r\nConnection: keep-alive\r\n\r\n{}";
    assert!(!is_reusable(by_close, true));
}
