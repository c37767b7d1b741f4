//! Sections 3.4, 4 and 5.5, and RFC 7541: the preface, the form of frames and of header blocks.

use super::*;

#[tokio::test]
async fn frames_and_header_blocks_have_the_form_of_section_4() {
    use Expected::{Answer, Connection, Nothing, Stream};
    let stage = Stage::new().await;
    let fields = stage.fields("GET", &[]);
    let (first, rest) = fields.split_at(20);
    let open = Frame::new(HEADERS, END_STREAM, 1, first);
    let last = Frame::new(CONTINUATION, END_HEADERS, 1, rest);
    let mut reserved = stage.get(1);
    reserved.stream |= 1 << 31;
    let undecodable = |bytes: &[u8]| {
        let whole = [&stage.fields("GET", &[]), bytes].concat();
        vec![Frame::new(HEADERS, END_HEADERS | END_STREAM, 1, whole)]
    };
    stage
        .judge(vec![
            (
                "4.1",
                "an unknown type",
                vec![Frame::new(0x16, 0xff, 0, [0; 8]), stage.get(1)],
                Answer("200"),
            ),
            (
                "4.1",
                "unknown flags",
                vec![Frame::new(PING, 0x16, 0, [0; 8]), stage.get(1)],
                Answer("200"),
            ),
            ("4.1", "the reserved bit", vec![reserved], Answer("200")),
            (
                "4.2",
                "DATA over the largest size",
                vec![
                    stage.post(1, &[]),
                    Frame::new(DATA, END_STREAM, 1, [0; 16_385]),
                ],
                Stream(SIZE),
            ),
            (
                "4.2",
                "HEADERS over the largest size",
                vec![Frame::new(
                    HEADERS,
                    END_HEADERS | END_STREAM,
                    1,
                    [0; 16_385],
                )],
                Connection(SIZE),
            ),
            (
                "4.3",
                "a block in two frames",
                vec![open.clone(), last.clone()],
                Answer("200"),
            ),
            (
                "4.3",
                "PRIORITY within a block",
                vec![
                    open.clone(),
                    Frame::new(PRIORITY, 0, 1, [0, 0, 0, 0, 1]),
                    last.clone(),
                ],
                Connection(PROTOCOL),
            ),
            (
                "4.3",
                "HEADERS of another stream within a block",
                vec![open.clone(), stage.get(3), last.clone()],
                Connection(PROTOCOL),
            ),
            (
                "5.5",
                "an unknown type within a block",
                vec![open, Frame::new(0x16, 0, 0, [0; 8]), last],
                Connection(PROTOCOL),
            ),
            (
                "7541 6.1",
                "index 0",
                undecodable(&[0x80]),
                Connection(COMPRESSION),
            ),
            (
                "7541 2.3.3",
                "an index beyond both tables",
                undecodable(&[0xff, 0x7f]),
                Connection(COMPRESSION),
            ),
            (
                "7541 6.3",
                "a table larger than the settings say",
                undecodable(&[0x3f, 0xe1, 0xff, 0x03]),
                Connection(COMPRESSION),
            ),
            (
                "7541 4.2",
                "a change of the table's size behind a field",
                undecodable(&[0x20]),
                Connection(COMPRESSION),
            ),
            (
                "7541 5.2",
                "a Huffman code of more than 7 bits of padding",
                undecodable(&[
                    0x00, 0x85, 0xf2, 0xb2, 0x4a, 0x84, 0xff, 0x84, 0x49, 0x50, 0x9f, 0xff,
                ]),
                Connection(COMPRESSION),
            ),
            (
                "7541 5.2",
                "a Huffman code that holds the end of string",
                undecodable(&[
                    0x00, 0x85, 0xf2, 0xb2, 0x4a, 0x87, 0xff, 0xff, 0xff, 0xff, 0xfa, 0x84, 0x9f,
                ]),
                Connection(COMPRESSION),
            ),
            ("4.1", "nothing at all", vec![], Nothing),
        ])
        .await;
}

#[tokio::test]
async fn a_connection_begins_with_the_preface_of_section_3_4() {
    let stage = Stage::new().await;
    let hello = |end: &[u8]| [b"PRI * HTTP/2.0\r\n\r\n".as_slice(), end].concat();
    for bytes in [hello(b"XX\r\n\r\n"), hello(b"SM\r\n\nX")] {
        let mut wire = Wire::silent(&stage.scene).await;
        wire.socket.write_all(&bytes).await.unwrap();
        wire.socket
            .write_all(&stage.get(1).bytes())
            .await
            .unwrap_or(());
        // Bytes that are no frames may come, such as a 400.
        let mut answer = Vec::new();
        let ended = timeout(PATIENCE, wire.socket.read_to_end(&mut answer)).await;
        assert!(ended.is_ok(), "{bytes:?}: it stays open");
    }
    stage.judge(vec![]).await;
    assert_eq!(stage.scene.upstream.count(), 1);
}
