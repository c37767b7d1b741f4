//! Sections 6.1 to 6.4: DATA, HEADERS, PRIORITY, RST_STREAM.

use super::*;

#[tokio::test]
async fn data_headers_priority_and_resets_are_held_to_sections_6_1_to_6_4() {
    use Expected::{Answer, Connection, Stream};
    let stage = Stage::new().await;
    let fields = stage.fields("GET", &[]);
    let ends = END_HEADERS | END_STREAM;
    stage
        .judge(vec![
            (
                "6.1",
                "DATA on stream 0",
                vec![Frame::new(DATA, 0, 0, *b"x")],
                Connection(PROTOCOL),
            ),
            (
                "6.1",
                "DATA with padding",
                vec![stage.post(1, &[]), padded(DATA, END_STREAM, 3, b"x", 3)],
                Answer("200"),
            ),
            (
                "6.1",
                "DATA that is less than its padding",
                vec![stage.post(1, &[]), padded(DATA, END_STREAM, 9, b"x", 3)],
                Connection(PROTOCOL),
            ),
            (
                "6.2",
                "HEADERS on stream 0",
                vec![Frame::new(HEADERS, ends, 0, fields.clone())],
                Connection(PROTOCOL),
            ),
            (
                "6.2",
                "HEADERS with padding",
                vec![padded(HEADERS, ends, 3, &fields, 3)],
                Answer("200"),
            ),
            (
                "6.2",
                "HEADERS that are less than their padding",
                vec![padded(HEADERS, ends, 255, b"x", 3)],
                Connection(PROTOCOL),
            ),
            (
                "6.2",
                "HEADERS with a priority",
                vec![Frame::new(
                    HEADERS,
                    ends | PRIORITIZED,
                    1,
                    [&[0, 0, 0, 0, 15][..], &fields].concat(),
                )],
                Answer("200"),
            ),
            (
                "6.3",
                "PRIORITY on stream 0",
                vec![Frame::new(PRIORITY, 0, 0, [0, 0, 0, 3, 1])],
                Connection(PROTOCOL),
            ),
            (
                "6.3",
                "PRIORITY of 4 bytes",
                vec![Frame::new(PRIORITY, 0, 1, [0, 0, 0, 3])],
                Stream(SIZE),
            ),
            (
                "6.4",
                "RST_STREAM on stream 0",
                vec![reset(0)],
                Connection(PROTOCOL),
            ),
            (
                "6.4",
                "RST_STREAM of 3 bytes",
                vec![stage.post(1, &[]), Frame::new(RST_STREAM, 0, 1, [0, 0, 8])],
                Connection(SIZE),
            ),
        ])
        .await;
}
