//! Section 8: what makes a request malformed.

use super::*;

#[tokio::test]
async fn malformed_requests_end_their_stream_as_section_8_requires() {
    use Expected::{Answer, Stream};
    let stage = Stage::new().await;
    let ends = END_HEADERS | END_STREAM;
    let with =
        |more: &[(&str, &str)]| vec![Frame::new(HEADERS, ends, 1, stage.fields("GET", more))];
    let only = |fields: &[(&str, &str)]| vec![Frame::new(HEADERS, ends, 1, block(fields))];
    let body = |length: &'static str, body: &[u8]| {
        let frame = Frame::new(DATA, END_STREAM, 1, body);
        vec![stage.post(1, &[("content-length", length)]), frame]
    };
    let trailers = |fields: &[(&str, &str)], flags| {
        let frame = Frame::new(HEADERS, flags, 1, block(fields));
        vec![stage.post(1, &[]), Frame::new(DATA, 0, 1, *b"x"), frame]
    };
    let (method, scheme, authority, path) = (
        (":method", "GET"),
        (":scheme", "http"),
        (":authority", "localhost"),
        (":path", MARKETS),
    );
    stage
        .judge(vec![
            (
                "8.1",
                "trailers",
                trailers(&[("x-trailer", "a")], ends),
                Answer("200"),
            ),
            (
                "8.1",
                "trailers without the end of the stream",
                trailers(&[("x-trailer", "a")], END_HEADERS),
                Stream(PROTOCOL),
            ),
            // A departure of h2: it leaves them out and does not refuse them. Trailers never reach an upstream.
            (
                "8.1",
                "pseudo-header fields in trailers",
                trailers(&[(":method", "GET")], ends),
                Answer("200"),
            ),
            (
                "8.1.1",
                "content-length as it is",
                body("3", b"abc"),
                Answer("200"),
            ),
            (
                "8.1.1",
                "content-length above the body",
                body("4", b"abc"),
                Stream(PROTOCOL),
            ),
            (
                "8.1.1",
                "content-length below the body",
                body("2", b"abc"),
                Stream(PROTOCOL),
            ),
            (
                "8.2.1",
                "upper case in a name",
                with(&[("X-Upper", "a")]),
                Stream(PROTOCOL),
            ),
            (
                "8.2.1",
                "a line break in a value",
                with(&[("x-a", "a\r\nb: c")]),
                Stream(PROTOCOL),
            ),
            (
                "8.2.2",
                "connection",
                with(&[("connection", "keep-alive")]),
                Stream(PROTOCOL),
            ),
            (
                "8.2.2",
                "keep-alive",
                with(&[("keep-alive", "timeout=5")]),
                Stream(PROTOCOL),
            ),
            (
                "8.2.2",
                "proxy-connection",
                with(&[("proxy-connection", "close")]),
                Stream(PROTOCOL),
            ),
            (
                "8.2.2",
                "transfer-encoding",
                with(&[("transfer-encoding", "chunked")]),
                Stream(PROTOCOL),
            ),
            (
                "8.2.2",
                "upgrade",
                with(&[("upgrade", "h2c")]),
                Stream(PROTOCOL),
            ),
            (
                "8.2.2",
                "te with another value",
                with(&[("te", "trailers, deflate")]),
                Stream(PROTOCOL),
            ),
            (
                "8.2.2",
                "te with trailers",
                with(&[("te", "trailers")]),
                Answer("200"),
            ),
            (
                "8.3",
                "an unknown pseudo-header field",
                only(&[method, scheme, authority, path, (":test", "a")]),
                Stream(PROTOCOL),
            ),
            (
                "8.3",
                "one of answers",
                only(&[method, scheme, authority, path, (":status", "200")]),
                Stream(PROTOCOL),
            ),
            (
                "8.3",
                "one behind a field",
                only(&[method, scheme, authority, ("x-a", "b"), path]),
                Stream(PROTOCOL),
            ),
            (
                "8.3.1",
                "no method",
                only(&[scheme, authority, path]),
                Stream(PROTOCOL),
            ),
            (
                "8.3.1",
                "no scheme",
                only(&[method, authority, path]),
                Stream(PROTOCOL),
            ),
            (
                "8.3.1",
                "no path",
                only(&[method, scheme, authority]),
                Stream(PROTOCOL),
            ),
            (
                "8.3.1",
                "an empty path",
                only(&[method, scheme, authority, (":path", "")]),
                Stream(PROTOCOL),
            ),
            (
                "8.3.1",
                "two methods",
                only(&[method, method, scheme, authority, path]),
                Stream(PROTOCOL),
            ),
            (
                "8.3.1",
                "two schemes",
                only(&[method, scheme, scheme, authority, path]),
                Stream(PROTOCOL),
            ),
            (
                "8.3.1",
                "two paths",
                only(&[method, scheme, authority, path, path]),
                Stream(PROTOCOL),
            ),
        ])
        .await;
    assert!(stage.scene.upstream.count() >= 4);
}
