//! A TCP proxy that delivers requests and, when told to, swallows the replies.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A proxy in front of a local port; ends with the test's runtime.
pub struct TcpProxy {
    port: u16,
    swallows: Arc<AtomicBool>,
}

impl TcpProxy {
    /// A proxy that passes everything on.
    pub async fn before(port: u16) -> TcpProxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = TcpProxy {
            port: listener.local_addr().unwrap().port(),
            swallows: Arc::default(),
        };
        let swallows = proxy.swallows.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await {
                    relay(client, server, swallows.clone());
                }
            }
        });
        proxy
    }

    /// Its address as settings want it.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    /// From now on every connection loses its replies; one that lost some never gets any again.
    pub fn swallow_replies(&self) {
        self.swallows.store(true, Ordering::SeqCst);
    }

    /// From now on new connections are passed on whole.
    pub fn pass_replies(&self) {
        self.swallows.store(false, Ordering::SeqCst);
    }
}

fn relay(client: TcpStream, server: TcpStream, swallows: Arc<AtomicBool>) {
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    let (mut client_reads, mut client_writes) = client.into_split();
    let (mut server_reads, mut server_writes) = server.into_split();
    tokio::spawn(async move {
        let _ = tokio::io::copy(&mut client_reads, &mut server_writes).await;
        let _ = server_writes.shutdown().await;
    });
    tokio::spawn(async move {
        let (mut bytes, mut lost) = ([0; 16_384], false);
        while let Ok(count @ 1..) = server_reads.read(&mut bytes).await {
            lost |= swallows.load(Ordering::SeqCst);
            if !lost && client_writes.write_all(&bytes[..count]).await.is_err() {
                break;
            }
        }
        let _ = client_writes.shutdown().await;
    });
}
