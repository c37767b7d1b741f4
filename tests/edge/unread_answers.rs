//! How much of a large answer the gateway takes in while its client reads nothing: a few parts, whatever the answer's size.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use harness::{Scene, eventually};
use http::Response;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use super::{MARKETS, TOUCHLINE};

/// The most that the gateway may hold of an answer: four parts of 16 KiB that are being written, the one that is read next, and the buffer of
/// gathered writes; over HTTP/2 also a stream's window of 32 KiB.
const HELD_BYTES_MAX: u64 = 128 * 1024;
/// The size of the buffers of both ends.
const BUFFER_BYTES: u32 = 16 * 1024;
/// Bytes of the answer, far more than all buffers.
const ANSWER_BYTES: usize = 64 * 1024 * 1024;
/// The time for which no byte passes once all buffers are full.
const STILL: Duration = Duration::from_secs(1);

/// A socket that counts the bytes it takes.
struct Counted(TcpStream, Arc<AtomicU64>);

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.0).poll_write(context, bytes);
        if let Poll::Ready(Ok(bytes)) = written {
            self.1.fetch_add(bytes as u64, Ordering::Relaxed);
        }
        written
    }

    fn poll_flush(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

/// Answers one request over HTTP/1.
async fn answer_over_http1(mut socket: Counted) {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        socket.read_buf(&mut request).await.unwrap();
    }
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {ANSWER_BYTES}\r\n\r\n");
    socket.write_all(head.as_bytes()).await.unwrap();
    let _ = socket.write_all(&vec![b'x'; ANSWER_BYTES]).await;
}

/// Answers each request over HTTP/2.
async fn answer_over_http2(socket: Counted) {
    let mut server = h2::server::handshake(socket).await.unwrap();
    while let Some(Ok((_, mut respond))) = server.accept().await {
        let mut body = respond.send_response(Response::new(()), false).unwrap();
        body.send_data(Bytes::from(vec![b'x'; ANSWER_BYTES]), true)
            .unwrap();
    }
}

/// The bytes in the queues of all connections of this machine with one of these ports at either end: those that were written and not
/// acknowledged, and those that were received and not read. Linux lists them in `/proc/net/tcp`, as `tx_queue:rx_queue`.
fn queued_bytes(ports: [u16; 2]) -> u64 {
    let connections = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let hex = |text: &str| u64::from_str_radix(text, 16).unwrap();
    let of_line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let port = |end: &str| hex(end.split_once(':').unwrap().1);
        let is_ours = ports.map(u64::from).contains(&port(words[1]))
            || ports.map(u64::from).contains(&port(words[2]));
        let (sent, received) = words[4].split_once(':').unwrap();
        is_ours.then(|| hex(sent) + hex(received))
    };
    connections.lines().skip(1).filter_map(of_line).sum()
}

async fn no_more_is_taken_in_than_a_few_parts(protocol: &'static str) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_send_buffer_size(BUFFER_BYTES).unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener: TcpListener = socket.listen(8).unwrap();
    let upstream = listener.local_addr().unwrap();
    let written = Arc::new(AtomicU64::new(0));
    let counted = written.clone();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let socket = Counted(socket, counted.clone());
            match protocol {
                "http1" => tokio::spawn(answer_over_http1(socket)),
                _ => tokio::spawn(answer_over_http2(socket)),
            };
        }
    });
    let scene = Scene::builder(TOUCHLINE)
        .spec(move |spec| {
            spec.upstream = upstream;
            spec.upstream_extra = format!("protocol: {protocol}");
        })
        .start()
        .await;
    let key = scene.issue("starter").await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(BUFFER_BYTES).unwrap();
    let mut client = socket.connect(scene.gateways[0].http).await.unwrap();
    let ports = [upstream.port(), client.local_addr().unwrap().port()];
    let request = format!(
        "GET {MARKETS} HTTP/1.1\r\nHost: a\r\nX-API-Key: {}\r\n\r\n",
        key.key
    );
    client.write_all(request.as_bytes()).await.unwrap();
    let passed = || written.load(Ordering::Relaxed);
    eventually("all buffers are full", async || {
        let before = passed();
        tokio::time::sleep(STILL).await;
        (before > 0 && passed() == before).then_some(())
    })
    .await;
    let (passed, queued) = (passed(), queued_bytes(ports));
    assert!(passed < ANSWER_BYTES as u64 / 4, "{passed} bytes");
    let held = passed.saturating_sub(queued);
    assert!(held <= HELD_BYTES_MAX, "{held} of {passed} bytes");
    // It goes on where the client reads.
    let mut read = vec![0; passed as usize + 1];
    client.read_exact(&mut read).await.unwrap();
}

#[tokio::test]
async fn of_an_answer_over_http1_that_is_not_read_only_a_few_parts_are_taken_in() {
    no_more_is_taken_in_than_a_few_parts("http1").await;
}

#[tokio::test]
async fn of_an_answer_over_http2_that_is_not_read_only_a_few_parts_are_taken_in() {
    no_more_is_taken_in_than_a_few_parts("http2").await;
}
