//! Sections 6.5 to 6.10: SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION.

use super::*;

#[tokio::test]
async fn connection_frames_are_held_to_sections_6_5_to_6_10() {
    use Expected::{Answer, Connection, Nothing, Stream};
    let stage = Stage::new().await;
    let fields = stage.fields("GET", &[]);
    let ended = Frame::new(CONTINUATION, END_HEADERS, 1, []);
    stage
        .judge(vec![
            (
                "6.5",
                "an acknowledgement with a payload",
                vec![Frame::new(SETTINGS, ACK, 0, [0; 6])],
                Connection(SIZE),
            ),
            (
                "6.5",
                "SETTINGS on a stream",
                vec![Frame::new(SETTINGS, 0, 1, [])],
                Connection(PROTOCOL),
            ),
            (
                "6.5",
                "SETTINGS of 5 bytes",
                vec![Frame::new(SETTINGS, 0, 0, [0; 5])],
                Connection(SIZE),
            ),
            (
                "6.5.2",
                "ENABLE_PUSH 2",
                vec![setting(2, 2)],
                Connection(PROTOCOL),
            ),
            (
                "6.5.2",
                "INITIAL_WINDOW_SIZE 2^31",
                vec![setting(4, 1 << 31)],
                Connection(FLOW),
            ),
            (
                "6.5.2",
                "MAX_FRAME_SIZE 16383",
                vec![setting(5, 16_383)],
                Connection(PROTOCOL),
            ),
            (
                "6.5.2",
                "MAX_FRAME_SIZE 2^24",
                vec![setting(5, 1 << 24)],
                Connection(PROTOCOL),
            ),
            (
                "6.5.2",
                "an unknown setting",
                vec![setting(0xff, 7), stage.get(1)],
                Answer("200"),
            ),
            (
                "6.6",
                "PUSH_PROMISE of a client",
                vec![Frame::new(
                    PUSH_PROMISE,
                    END_HEADERS,
                    1,
                    [&[0, 0, 0, 2][..], &fields].concat(),
                )],
                Connection(PROTOCOL),
            ),
            (
                "6.7",
                "PING on a stream",
                vec![Frame::new(PING, 0, 1, [0; 8])],
                Connection(PROTOCOL),
            ),
            (
                "6.7",
                "PING of 6 bytes",
                vec![Frame::new(PING, 0, 0, [0; 6])],
                Connection(SIZE),
            ),
            (
                "6.7",
                "an acknowledgement that nobody waits for",
                vec![Frame::new(PING, ACK, 0, [1; 8])],
                Nothing,
            ),
            (
                "6.8",
                "GOAWAY on a stream",
                vec![Frame::new(GOAWAY, 0, 1, [0; 8])],
                Connection(PROTOCOL),
            ),
            (
                "6.8",
                "GOAWAY with a request under way",
                vec![stage.get(1), Frame::new(GOAWAY, 0, 0, [0; 8])],
                Answer("200"),
            ),
            (
                "6.9",
                "WINDOW_UPDATE of 0 on the connection",
                vec![update(0, 0)],
                Connection(PROTOCOL),
            ),
            (
                "6.9",
                "WINDOW_UPDATE of 0 on a stream",
                vec![stage.post(1, &[]), update(1, 0)],
                Stream(PROTOCOL),
            ),
            (
                "6.9",
                "WINDOW_UPDATE of 3 bytes",
                vec![Frame::new(WINDOW_UPDATE, 0, 0, [0, 0, 1])],
                Connection(SIZE),
            ),
            (
                "6.9.1",
                "a window of the connection beyond 2^31 - 1",
                vec![update(0, 0x7fff_ffff)],
                Connection(FLOW),
            ),
            (
                "6.9.1",
                "a window of a stream beyond 2^31 - 1",
                vec![stage.post(1, &[]), update(1, 0x7fff_ffff)],
                Stream(FLOW),
            ),
            (
                "6.9.2",
                "INITIAL_WINDOW_SIZE that takes a window beyond 2^31 - 1",
                vec![
                    stage.post(1, &[]),
                    update(1, 0x7000_0000),
                    setting(4, 0x7fff_ffff),
                ],
                Stream(FLOW),
            ),
            (
                "6.10",
                "CONTINUATION on stream 0",
                vec![
                    Frame::new(HEADERS, END_STREAM, 1, fields.clone()),
                    Frame::new(CONTINUATION, END_HEADERS, 0, []),
                ],
                Connection(PROTOCOL),
            ),
            (
                "6.10",
                "CONTINUATION of another stream",
                vec![
                    Frame::new(HEADERS, END_STREAM, 1, fields.clone()),
                    Frame::new(CONTINUATION, END_HEADERS, 3, []),
                ],
                Connection(PROTOCOL),
            ),
            (
                "6.10",
                "CONTINUATION behind the end of a block",
                vec![stage.post(1, &[]), ended.clone()],
                Connection(PROTOCOL),
            ),
            (
                "6.10",
                "CONTINUATION behind DATA",
                vec![stage.post(1, &[]), Frame::new(DATA, 0, 1, *b"x"), ended],
                Connection(PROTOCOL),
            ),
        ])
        .await;
}
