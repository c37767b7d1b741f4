use super::*;
use crate::PATIENCE;
use crate::eventually;

/// A server that sends back what it gets, and counts it.
async fn echo() -> (u16, watch::Receiver<usize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (count, counted) = watch::channel(0);
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let count = count.clone();
            tokio::spawn(async move {
                let mut bytes = [0; 64];
                while let Ok(read @ 1..) = socket.read(&mut bytes).await {
                    count.send_modify(|count| *count += read);
                    let _ = socket.write_all(&bytes[..read]).await;
                }
            });
        }
    });
    (port, counted)
}

async fn dial(proxy: &TcpProxy) -> TcpStream {
    TcpStream::connect(("127.0.0.1", proxy.port)).await.unwrap()
}

/// The reply to four bytes; an error if the connection ends, `None` for silence.
async fn ping(socket: &mut TcpStream, patience: Duration) -> Option<std::io::Result<[u8; 4]>> {
    socket.write_all(b"ping").await.ok()?;
    let mut reply = [0; 4];
    let read = socket.read_exact(&mut reply);
    let read = tokio::time::timeout(patience, read).await.ok()?;
    Some(read.map(|_| reply))
}

#[tokio::test]
async fn a_wire_that_passes_or_delays_brings_everything() {
    let proxy = TcpProxy::before(echo().await.0).await;
    let mut socket = dial(&proxy).await;
    assert_eq!(
        &ping(&mut socket, PATIENCE).await.unwrap().unwrap(),
        b"ping"
    );
    proxy.set(Wire::Delays(Duration::from_millis(50)));
    let began = std::time::Instant::now();
    assert_eq!(
        &ping(&mut socket, PATIENCE).await.unwrap().unwrap(),
        b"ping"
    );
    assert!(began.elapsed() >= Duration::from_millis(100), "both ways");
}

#[tokio::test]
async fn a_black_hole_brings_everything_later_also_on_new_connections() {
    let (port, mut counted) = echo().await;
    let proxy = TcpProxy::before(port).await;
    let mut open = dial(&proxy).await;
    assert!(ping(&mut open, PATIENCE).await.is_some());
    proxy.set(Wire::BlackHole);
    let mut new = dial(&proxy).await;
    for socket in [&mut open, &mut new] {
        assert!(ping(socket, Duration::from_millis(50)).await.is_none());
    }
    assert_eq!(*counted.borrow_and_update(), 4, "nothing was delivered");
    proxy.set(Wire::Passes);
    for socket in [&mut open, &mut new] {
        let mut late = [0; 4];
        socket.read_exact(&mut late).await.unwrap();
        assert_eq!(&late, b"ping");
    }
}

#[tokio::test]
async fn dropped_replies_were_delivered_as_requests() {
    let (port, mut counted) = echo().await;
    let proxy = TcpProxy::before(port).await;
    let mut socket = dial(&proxy).await;
    assert!(ping(&mut socket, PATIENCE).await.is_some());
    proxy.set(Wire::DropsReplies);
    assert!(ping(&mut socket, Duration::from_millis(50)).await.is_none());
    counted.wait_for(|count| *count == 8).await.unwrap();
    proxy.set(Wire::Passes);
    assert!(ping(&mut dial(&proxy).await, PATIENCE).await.is_some());
}

#[tokio::test]
async fn a_half_open_connection_stays_open_and_silent_for_ever() {
    let proxy = TcpProxy::before(echo().await.0).await;
    let mut open = dial(&proxy).await;
    assert!(ping(&mut open, PATIENCE).await.is_some());
    proxy.set(Wire::HalfOpen);
    assert!(ping(&mut open, Duration::from_millis(50)).await.is_none());
    proxy.set(Wire::Passes);
    assert!(ping(&mut open, Duration::from_millis(50)).await.is_none());
    assert!(ping(&mut dial(&proxy).await, PATIENCE).await.is_some());
}

#[tokio::test]
async fn a_wire_that_cuts_brings_the_first_bytes_and_resets() {
    let proxy = TcpProxy::before(echo().await.0).await;
    let mut socket = dial(&proxy).await;
    assert!(ping(&mut socket, PATIENCE).await.is_some());
    proxy.set(Wire::CutsAfter(6));
    assert!(ping(&mut socket, PATIENCE).await.unwrap().is_ok());
    let cut = ping(&mut socket, PATIENCE).await.unwrap();
    assert!(cut.is_err(), "two bytes and a reset: {cut:?}");
}

#[tokio::test]
async fn a_wire_that_refuses_resets_open_and_new_connections() {
    let proxy = TcpProxy::before(echo().await.0).await;
    let mut open = dial(&proxy).await;
    assert!(ping(&mut open, PATIENCE).await.is_some());
    proxy.set(Wire::Refuses);
    eventually("the open one is reset", async || {
        let ended = ping(&mut open, Duration::from_millis(50)).await;
        ended.is_none_or(|read| read.is_err()).then_some(())
    })
    .await;
    let mut new = dial(&proxy).await;
    assert!(!matches!(ping(&mut new, PATIENCE).await, Some(Ok(_))));
}
