//! Sections 5.1 to 5.3: what fits the state of a stream.

use super::*;

#[tokio::test]
async fn frames_fit_the_state_of_their_stream_as_section_5_requires() {
    use Expected::{Answer, Connection, Nothing, Stream};
    let stage = Stage::new().await;
    let data = |stream| Frame::new(DATA, END_STREAM, stream, *b"x");
    let itself = [&[0, 0, 0, 1, 15][..], &stage.fields("GET", &[])].concat();
    stage
        .judge(vec![
            (
                "5.1",
                "DATA on an idle stream",
                vec![data(1)],
                Connection(PROTOCOL),
            ),
            (
                "5.1",
                "RST_STREAM on an idle stream",
                vec![reset(1)],
                Connection(PROTOCOL),
            ),
            (
                "5.1",
                "WINDOW_UPDATE on an idle stream",
                vec![update(1, 1)],
                Connection(PROTOCOL),
            ),
            (
                "5.1",
                "CONTINUATION on an idle stream",
                vec![Frame::new(CONTINUATION, END_HEADERS, 1, [])],
                Connection(PROTOCOL),
            ),
            (
                "5.1",
                "PRIORITY on an idle stream",
                vec![Frame::new(PRIORITY, 0, 1, [0, 0, 0, 0, 1])],
                Nothing,
            ),
            (
                "5.1",
                "DATA after END_STREAM",
                vec![stage.get(1), data(1)],
                Stream(CLOSED),
            ),
            (
                "5.1",
                "HEADERS after END_STREAM",
                vec![stage.get(1), stage.get(1)],
                Stream(CLOSED),
            ),
            (
                "5.1",
                "CONTINUATION after END_STREAM",
                vec![
                    stage.get(1),
                    Frame::new(CONTINUATION, END_HEADERS, 1, stage.fields("GET", &[])),
                ],
                Connection(CLOSED),
            ),
            (
                "5.1",
                "WINDOW_UPDATE after END_STREAM",
                vec![stage.get(1), update(1, 1)],
                Answer("200"),
            ),
            (
                "5.1",
                "DATA after RST_STREAM",
                vec![stage.post(1, &[]), reset(1), data(1)],
                Stream(CLOSED),
            ),
            (
                "5.1",
                "HEADERS after RST_STREAM",
                vec![stage.post(1, &[]), reset(1), stage.get(1)],
                Stream(CLOSED),
            ),
            (
                "5.1",
                "WINDOW_UPDATE after RST_STREAM",
                vec![stage.post(1, &[]), reset(1), update(1, 1)],
                Nothing,
            ),
            (
                "5.1.1",
                "an even id",
                vec![stage.get(2)],
                Connection(PROTOCOL),
            ),
            (
                "5.1.1",
                "an id below the last",
                vec![stage.get(5), stage.get(3)],
                Connection(PROTOCOL),
            ),
            (
                "5.3",
                "a stream that depends on itself",
                vec![Frame::new(
                    HEADERS,
                    END_HEADERS | END_STREAM | PRIORITIZED,
                    1,
                    itself,
                )],
                Stream(PROTOCOL),
            ),
            (
                "5.3",
                "PRIORITY that depends on itself",
                vec![Frame::new(PRIORITY, 0, 1, [0, 0, 0, 1, 15])],
                Stream(PROTOCOL),
            ),
        ])
        .await;
    // 5.1.2: the limit of the shipped configuration is 100.
    let more: Vec<Frame> = (0..101)
        .map(|number| stage.post(number * 2 + 1, &[]))
        .collect();
    stage
        .judge(vec![(
            "5.1.2",
            "a stream above the limit",
            more,
            Stream(REFUSED),
        )])
        .await;
}
