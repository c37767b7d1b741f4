//! A TCP proxy with the faults of networks: delay a connection, hold it up, forget one side of it, cut it, or
//! deliver a request and lose the reply.

use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

const CHUNK_BYTES: usize = 16_384;

/// The effect of the proxy on every connection, the open ones too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    /// Everything is passed on.
    Passes,
    /// Everything is passed on with this delay, in both directions.
    Delays(Duration),
    /// Nothing is passed on, nothing is lost: it arrives when the wire passes again.
    BlackHole,
    /// The server's side is closed and the client's stays open, for ever, and silent.
    HalfOpen,
    /// This number of bytes of replies is passed on for each connection, then it is reset.
    CutsAfter(usize),
    /// Requests are delivered and replies dropped. A connection that lost some never gets any again.
    DropsReplies,
    /// Connections are reset, new ones too.
    Refuses,
}

/// A proxy in front of a local port; ends with the test's runtime.
#[derive(Debug)]
pub struct TcpProxy {
    port: u16,
    leads_to: Arc<AtomicU16>,
    wire: Arc<Mutex<watch::Sender<Wire>>>,
}

impl TcpProxy {
    /// A proxy that passes everything on.
    ///
    /// # Panics
    /// If no port is free.
    pub async fn before(port: u16) -> TcpProxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let own = listener.local_addr().expect("a bound port").port();
        let wire = Arc::new(Mutex::new(watch::Sender::new(Wire::Passes)));
        let leads_to = Arc::new(AtomicU16::new(port));
        let (of_next, server) = (wire.clone(), leads_to.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let seen = locked(&of_next).subscribe();
                tokio::spawn(relay(client, server.load(Ordering::SeqCst), seen));
            }
        });
        TcpProxy {
            port: own,
            leads_to,
            wire,
        }
    }

    /// Its address, as in settings.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    /// From now on new connections are to another local port; the open ones remain.
    pub fn lead_to(&self, port: u16) {
        self.leads_to.store(port, Ordering::SeqCst);
    }

    /// From now on the wire behaves in this way.
    pub fn set(&self, wire: Wire) {
        locked(&self.wire).send_replace(wire);
    }

    /// The wire of the connections that are open now, which [`TcpProxy::set`] no longer changes.
    #[must_use]
    pub fn part(&self) -> watch::Sender<Wire> {
        let mut wire = locked(&self.wire);
        let next = watch::Sender::new(*wire.borrow());
        std::mem::replace(&mut wire, next)
    }

    /// From now on every connection loses its replies; one that lost some never gets any again.
    pub fn swallow_replies(&self) {
        self.set(Wire::DropsReplies);
    }

    /// From now on new connections are passed on whole.
    pub fn pass_replies(&self) {
        self.set(Wire::Passes);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How one direction ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Closed,
    Reset,
    HalfOpen,
}

async fn relay(mut client: TcpStream, port: u16, mut wire: watch::Receiver<Wire>) {
    let seen = *wire.borrow();
    match seen {
        Wire::Refuses => return reset(&client),
        Wire::HalfOpen => return never_answer(&mut client).await,
        // A connecting client waits, as for an unanswered SYN.
        Wire::BlackHole => {
            let _ = wire.wait_for(|wire| *wire != Wire::BlackHole).await;
        }
        Wire::Passes | Wire::Delays(_) | Wire::CutsAfter(_) | Wire::DropsReplies => {}
    }
    let Ok(mut server) = TcpStream::connect(("127.0.0.1", port)).await else {
        return reset(&client);
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    match pass((&mut client, &mut server), wire).await {
        End::Closed => {}
        End::Reset => {
            reset(&server);
            reset(&client);
        }
        End::HalfOpen => {
            drop(server);
            never_answer(&mut client).await;
        }
    }
}

async fn pass(
    (client, server): (&mut TcpStream, &mut TcpStream),
    wire: watch::Receiver<Wire>,
) -> End {
    let (client_reads, client_writes) = client.split();
    let (server_reads, server_writes) = server.split();
    tokio::select! {
        end = pump(client_reads, server_writes, Direction::Requests, wire.clone()) => end,
        end = pump(server_reads, client_writes, Direction::Replies, wire) => end,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Requests,
    Replies,
}

async fn pump(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    direction: Direction,
    mut wire: watch::Receiver<Wire>,
) -> End {
    let (mut bytes, mut passed, mut lost) = (vec![0; CHUNK_BYTES], 0, false);
    loop {
        if let Some(end) = held_up(&mut wire).await {
            return end;
        }
        let count = tokio::select! {
            read = from.read(&mut bytes) => match read {
                Ok(count @ 1..) => count,
                Ok(0) | Err(_) => return End::Closed,
            },
            changed = wire.changed() => match changed {
                Ok(()) => {
                    passed = 0;
                    continue;
                }
                Err(_) => return End::Closed,
            },
        };
        if let Some(end) = held_up(&mut wire).await {
            return end;
        }
        let mut chunk = bytes.get(..count).unwrap_or_default();
        let seen = *wire.borrow();
        match (seen, direction) {
            (Wire::Delays(time), _) => tokio::time::sleep(time).await,
            (Wire::CutsAfter(most), Direction::Replies) => {
                chunk = chunk.get(..most - passed.min(most)).unwrap_or(chunk);
                passed += chunk.len();
                let written = to.write_all(chunk).await;
                if written.is_err() || passed >= most {
                    return End::Reset;
                }
                continue;
            }
            (Wire::DropsReplies, Direction::Replies) => lost = true,
            (Wire::CutsAfter(_) | Wire::DropsReplies, Direction::Requests) => {}
            (Wire::Passes | Wire::BlackHole | Wire::HalfOpen | Wire::Refuses, _) => {}
        }
        if !lost && to.write_all(chunk).await.is_err() {
            return End::Closed;
        }
    }
}

/// Waits while the wire is a black hole; returns how the connection ends, if it does.
async fn held_up(wire: &mut watch::Receiver<Wire>) -> Option<End> {
    loop {
        let seen = *wire.borrow_and_update();
        match seen {
            Wire::BlackHole => {
                if wire.changed().await.is_err() {
                    return Some(End::Closed);
                }
            }
            Wire::HalfOpen => return Some(End::HalfOpen),
            Wire::Refuses => return Some(End::Reset),
            Wire::Passes | Wire::Delays(_) | Wire::CutsAfter(_) | Wire::DropsReplies => {
                return None;
            }
        }
    }
}

/// Reads everything and sends nothing, until the client closes the connection.
async fn never_answer(client: &mut TcpStream) {
    let mut bytes = vec![0; CHUNK_BYTES];
    while let Ok(1..) = client.read(&mut bytes).await {}
}

fn reset(socket: &TcpStream) {
    let _ = socket2::SockRef::from(socket).set_linger(Some(Duration::ZERO));
}

#[cfg(test)]
mod tests;
