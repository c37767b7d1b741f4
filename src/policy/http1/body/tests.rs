use super::super::framing::Framing;
use super::*;

fn chunked() -> BodyReader {
    BodyReader::new(Framing::Chunked, &ChunkLimits::STANDARD)
}

/// The whole body at the start of `bytes`: its data, and the number of bytes taken.
fn taken(body: &mut BodyReader, bytes: &[u8]) -> Result<(Vec<u8>, usize), BodyFault> {
    let (mut data, mut at) = (Vec::new(), 0);
    loop {
        let taken = body.read(&bytes[at..])?;
        data.extend_from_slice(&bytes[at..][taken.clone()]);
        at += taken.end;
        if taken.is_empty() {
            return Ok((data, at));
        }
    }
}

fn whole(bytes: &[u8]) -> Result<(Vec<u8>, usize, bool), BodyFault> {
    let mut body = chunked();
    taken(&mut body, bytes).map(|(data, bytes)| (data, bytes, body.is_done()))
}

#[test]
fn a_body_of_a_length_takes_that_many_bytes() {
    let mut body = BodyReader::new(Framing::Length(5), &ChunkLimits::STANDARD);
    assert_eq!(body.read(b"abc"), Ok(0..3));
    assert!(!body.is_done());
    assert_eq!(body.close(), Err(BodyFault::Cut));
    assert_eq!(body.read(b"deGET"), Ok(0..2));
    assert!(body.is_done());
    assert_eq!(body.read(b"GET"), Ok(0..0));
    assert_eq!(body.close(), Ok(()));
}

#[test]
fn a_body_without_a_byte_is_done_from_the_start() {
    for framing in [Framing::Empty, Framing::Length(0)] {
        assert!(BodyReader::new(framing, &ChunkLimits::STANDARD).is_done());
    }
    for framing in [
        AnswerFraming::Bodiless(None),
        AnswerFraming::Bodiless(Some(5)),
        AnswerFraming::Length(0),
    ] {
        assert!(BodyReader::new(framing, &ChunkLimits::STANDARD).is_done());
    }
}

#[test]
fn a_body_that_ends_with_the_connection_takes_everything_until_then() {
    let mut body = BodyReader::new(AnswerFraming::ByClose, &ChunkLimits::STANDARD);
    assert_eq!(body.read(b"abc"), Ok(0..3));
    assert_eq!(body.read(b""), Ok(0..0));
    assert!(!body.is_done());
    assert_eq!(body.close(), Ok(()));
    assert!(body.is_done());
}

#[test]
fn a_chunked_body_ends_behind_its_trailers() {
    for (whole_body, data) in [
        (&b"0\r\n\r\n"[..], &b""[..]),
        (b"5\r\nhello\r\n0\r\n\r\n", b"hello"),
        (b"00005\r\nhello\r\n0;a=b\r\n\r\n", b"hello"),
        (
            b"5;x=\"a b\"\r\nhello\r\nA\r\n0123456789\r\n0\r\nX: y\r\nZ:\r\n\r\n",
            b"hello0123456789",
        ),
    ] {
        let mut more = whole_body.to_vec();
        more.extend(b"GET / HTTP/1.1\r\n");
        assert_eq!(
            whole(&more),
            Ok((data.to_vec(), whole_body.len(), true)),
            "{}",
            whole_body.escape_ascii()
        );
        for end in 0..whole_body.len() {
            let mut body = chunked();
            assert!(taken(&mut body, &whole_body[..end]).is_ok());
            assert!(!body.is_done(), "{end}");
            assert_eq!(body.close(), Err(BodyFault::Cut));
        }
    }
}

#[test]
fn what_servers_read_in_different_ways_is_broken() {
    for broken in [
        &b"5\nhello\r\n0\r\n\r\n"[..],
        b"5\r\nhello\n0\r\n\r\n",
        b"5\r\nhelloX\r\n0\r\n\r\n",
        b"5 \r\nhello\r\n",
        b" 5\r\nhello\r\n",
        b"+5\r\nhello\r\n",
        b"-5\r\nhello\r\n",
        b"0x5\r\nhello\r\n",
        b"5_0\r\n",
        b"\r\n",
        b";a\r\n",
        b"5;a\nhello\r\n0\r\n\r\n",
        b"5;a\rhello",
        b"5\r\rhello",
        b"1000000000000\r\n",
        b"0\r\n X: folded\r\n\r\n",
        b"0\r\nX: y\n\r\n",
        b"0\r\nX: \x00\r\n\r\n",
        b"0\r\nno field\r\n\r\n",
        b"0\n\n",
        b"0\r\n\n",
    ] {
        assert_eq!(
            whole(broken),
            Err(BodyFault::Malformed),
            "{}",
            broken.escape_ascii()
        );
    }
}

#[test]
fn extensions_and_trailers_are_bounded() {
    let extension =
        |length: usize| format!("1;{}\r\na\r\n0\r\n\r\n", "e".repeat(length)).into_bytes();
    assert!(whole(&extension(1_023)).is_ok());
    assert_eq!(whole(&extension(1_024)), Err(BodyFault::TooLarge));
    let spread = |chunks: usize| format!("{}0\r\n\r\n", "1;\r\na\r\n".repeat(chunks)).into_bytes();
    assert!(whole(&spread(1_024)).is_ok());
    assert_eq!(whole(&spread(1_025)), Err(BodyFault::TooLarge));
    let trailer = |length: usize| format!("0\r\nt:{}\r\n\r\n", "t".repeat(length)).into_bytes();
    assert!(whole(&trailer(4_096 - 5)).is_ok());
    assert_eq!(whole(&trailer(4_096 - 4)), Err(BodyFault::TooLarge));
    let trailers = |count: usize| format!("0\r\n{}\r\n", "t:\r\n".repeat(count)).into_bytes();
    assert!(whole(&trailers(128)).is_ok());
    assert_eq!(whole(&trailers(129)), Err(BodyFault::TooLarge));
    let endless = format!("0\r\nt: {}", "t".repeat(6_000)).into_bytes();
    assert_eq!(whole(&endless), Err(BodyFault::TooLarge));
}

#[test]
fn trailers_are_read_and_not_passed_on() {
    let bytes = b"1\r\na\r\n0\r\nX-Sum: 1 \r\nTransfer-Encoding: chunked\r\nx-sum:2\r\n\r\nrest";
    let mut body = chunked();
    let data = body.read(bytes).unwrap();
    assert_eq!(&bytes[data.clone()], b"a");
    let rest = &bytes[data.end..];
    let end = body.read(rest).unwrap();
    assert!(body.is_done() && end.is_empty());
    assert_eq!(&rest[end.end..], b"rest");
}
