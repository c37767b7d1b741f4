//! HTTP/2 by hand: frames as bytes, so that they can be wrong.

use std::collections::VecDeque;

use harness::{PATIENCE, Protocol, Scene};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const PRIORITY: u8 = 2;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;
const ACK: u8 = 1;
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

impl Frame {
    pub fn new(kind: u8, flags: u8, stream: u32, payload: impl Into<Vec<u8>>) -> Frame {
        Frame {
            kind,
            flags,
            stream,
            payload: payload.into(),
        }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let length = u32::try_from(self.payload.len()).unwrap().to_be_bytes();
        let mut bytes = length[1..].to_vec();
        bytes.extend([self.kind, self.flags]);
        bytes.extend(self.stream.to_be_bytes());
        bytes.extend(&self.payload);
        bytes
    }

    /// The error code of a GOAWAY.
    pub fn goaway_code(&self) -> Option<u32> {
        (self.kind == GOAWAY).then(|| u32::from_be_bytes(self.payload[4..8].try_into().unwrap()))
    }
}

/// A header block without compression: literal fields, never indexed.
pub fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    let text = |text: &str, block: &mut Vec<u8>| {
        match u8::try_from(text.len()) {
            Ok(length @ 0..127) => block.push(length),
            _ => {
                block.push(127);
                let mut rest = text.len() - 127;
                while rest >= 128 {
                    block.push((rest % 128) as u8 | 128);
                    rest /= 128;
                }
                block.push(rest as u8);
            }
        }
        block.extend(text.bytes());
    };
    for (name, value) in fields {
        block.push(0x10);
        text(name, &mut block);
        text(value, &mut block);
    }
    block
}

/// A connection, over clear TCP with prior knowledge unless another stream is given.
pub struct Wire<S = TcpStream> {
    pub socket: S,
    received: Vec<u8>,
    /// Frames that came while another one was waited for.
    kept: VecDeque<Frame>,
    pub acknowledges_pings: bool,
}

/// A stream in clear or over TLS.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

impl Wire {
    /// A connection that has sent nothing.
    pub async fn silent(scene: &Scene) -> Wire {
        let socket = TcpStream::connect(scene.gateways[0].http).await.unwrap();
        socket.set_nodelay(true).unwrap();
        Wire {
            socket,
            received: Vec::new(),
            kept: VecDeque::new(),
            acknowledges_pings: true,
        }
    }

    /// A connection whose settings were exchanged.
    pub async fn open(scene: &Scene) -> Wire {
        Wire::with_settings(scene, &[]).await
    }

    /// The same with settings of the client's.
    pub async fn with_settings(scene: &Scene, settings: &[(u16, u32)]) -> Wire {
        Wire::silent(scene).await.greet(settings).await
    }
}

impl Wire<Box<dyn Stream>> {
    /// A connection in this version of HTTP/2 whose settings were exchanged.
    pub async fn over(protocol: Protocol, scene: &Scene) -> Wire<Box<dyn Stream>> {
        let socket: Box<dyn Stream> = if protocol.is_tls() {
            Box::new(scene.client(protocol).tls_stream().await)
        } else {
            Box::new(Wire::silent(scene).await.socket)
        };
        let silent = Wire {
            socket,
            received: Vec::new(),
            kept: VecDeque::new(),
            acknowledges_pings: true,
        };
        silent.greet(&[]).await
    }
}

impl<S: Stream> Wire<S> {
    /// Exchanges settings with the gateway.
    async fn greet(mut self, settings: &[(u16, u32)]) -> Wire<S> {
        let mut payload = Vec::new();
        for (name, value) in settings {
            payload.extend(name.to_be_bytes());
            payload.extend(value.to_be_bytes());
        }
        let mut hello = PREFACE.to_vec();
        hello.extend(Frame::new(SETTINGS, 0, 0, payload).bytes());
        self.socket.write_all(&hello).await.unwrap();
        self.socket.flush().await.unwrap();
        loop {
            let frame = self.next().await.expect("the server's settings");
            if frame.kind == SETTINGS && frame.flags & ACK != 0 {
                return self;
            }
        }
    }

    /// Returns when the gateway has read everything that was sent before, or has closed.
    pub async fn settle(&mut self) {
        self.send(&Frame::new(PING, 0, 0, *b"settling")).await;
        let mut kept = VecDeque::new();
        while let Some(frame) = self.next().await {
            if frame.kind == PING && frame.flags & ACK != 0 {
                break;
            }
            kept.push_back(frame);
        }
        self.kept = kept;
    }

    /// Sends a frame; false if the gateway has closed.
    pub async fn send(&mut self, frame: &Frame) -> bool {
        self.socket.write_all(&frame.bytes()).await.is_ok() && self.socket.flush().await.is_ok()
    }

    /// Opens a stream.
    pub async fn headers(&mut self, stream: u32, fields: &[(&str, &str)], ends: bool) -> bool {
        let flags = END_HEADERS | if ends { END_STREAM } else { 0 };
        self.send(&Frame::new(HEADERS, flags, stream, block(fields)))
            .await
    }

    /// A GET.
    pub async fn get(&mut self, stream: u32, path: &str, key: &str) -> bool {
        let fields = [
            (":method", "GET"),
            (":scheme", "http"),
            (":authority", "localhost"),
            (":path", path),
            ("x-api-key", key),
        ];
        self.headers(stream, &fields, true).await
    }

    /// The head of a POST whose body follows, with more fields.
    pub async fn post(
        &mut self,
        stream: u32,
        path: &str,
        key: &str,
        more: &[(&str, &str)],
    ) -> bool {
        let fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":authority", "localhost"),
            (":path", path),
            ("x-api-key", key),
        ];
        self.headers(stream, &[&fields, more].concat(), false).await
    }

    /// The next frame; settings and pings are acknowledged. `None` when the gateway has closed.
    pub async fn next(&mut self) -> Option<Frame> {
        if let Some(frame) = self.kept.pop_front() {
            return Some(frame);
        }
        tokio::time::timeout(PATIENCE, self.read_frame())
            .await
            .expect("a frame or the end")
    }

    async fn read_frame(&mut self) -> Option<Frame> {
        while self.received.len() < 9 || self.received.len() < 9 + self.payload_length() {
            match self.socket.read_buf(&mut self.received).await {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
        let payload_length = self.payload_length();
        let head = &self.received[..9];
        let stream = u32::from_be_bytes(head[5..9].try_into().unwrap());
        let frame = Frame::new(
            head[3],
            head[4],
            stream,
            &self.received[9..9 + payload_length],
        );
        self.received.drain(..9 + payload_length);
        if frame.kind == SETTINGS && frame.flags & ACK == 0 {
            let _ = self.send(&Frame::new(SETTINGS, ACK, 0, [])).await;
        }
        if frame.kind == PING && frame.flags & ACK == 0 && self.acknowledges_pings {
            let _ = self
                .send(&Frame::new(PING, ACK, 0, frame.payload.clone()))
                .await;
        }
        Some(frame)
    }

    fn payload_length(&self) -> usize {
        usize::from(self.received[0]) << 16
            | usize::from(self.received[1]) << 8
            | usize::from(self.received[2])
    }

    /// The body of a whole answer.
    pub async fn body(&mut self, stream: u32) -> Vec<u8> {
        let mut body = Vec::new();
        loop {
            let frame = self.next().await.expect("an answer");
            if frame.stream != stream {
                continue;
            }
            assert_ne!(frame.kind, RST_STREAM, "{frame:?}");
            if frame.kind == DATA {
                body.extend(&frame.payload);
            }
            if matches!(frame.kind, DATA | HEADERS) && frame.flags & END_STREAM != 0 {
                return body;
            }
        }
    }

    /// Reads until this many answers are whole; the bytes of their bodies.
    pub async fn whole_answers(&mut self, count: u32) -> usize {
        let (mut whole, mut bytes) = (0, 0);
        while whole < count {
            let frame = self.next().await.expect("an answer");
            assert_ne!(frame.kind, RST_STREAM, "{frame:?}");
            if frame.kind == DATA {
                bytes += frame.payload.len();
                whole += u32::from(frame.flags & END_STREAM != 0);
            }
        }
        bytes
    }

    /// The problem of an answer.
    pub async fn problem(&mut self, stream: u32) -> serde_json::Value {
        serde_json::from_slice(&self.body(stream).await).unwrap()
    }

    /// Reads to the end; the code of the GOAWAY, if one came.
    pub async fn end(&mut self) -> Option<u32> {
        let mut code = None;
        while let Some(frame) = self.next().await {
            code = frame.goaway_code().or(code);
        }
        code
    }
}
