//! Clients without pause: each has a connection of its own to one gateway, opens it again when it breaks, and records
//! every call for the oracle.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::oracle::{Seen, SeenAnswer};

/// The longest a call may take; beyond, its connection counts as broken.
const CALL_DEADLINE: Duration = Duration::from_secs(30);
/// Before a client tries again to connect.
const RECONNECT_PAUSE: Duration = Duration::from_millis(10);
/// The longest answer that is read.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// Where the gateways listen; a restarted one listens elsewhere.
pub type Addresses = Arc<Vec<Mutex<SocketAddr>>>;

/// How a swarm calls.
#[derive(Debug, Clone)]
pub struct Calls {
    /// Secrets of the keys, by their places.
    pub keys: Vec<String>,
    /// The target.
    pub target: String,
    /// Clients of each gateway.
    pub clients: usize,
    /// Between two calls of a client.
    pub pause: Duration,
    /// Which keys are called, in this order again and again by each client from a place of its own.
    pub order: Vec<usize>,
}

/// A running swarm.
pub struct Swarm {
    stop: Arc<AtomicBool>,
    made: Arc<AtomicU64>,
    clients: JoinSet<Vec<Seen>>,
}

/// The next id; ids are unique in this process.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// An id as it is sent in `X-Request-Id`.
pub fn request_id(id: u64) -> String {
    format!("f-{}-{id}", std::process::id())
}

/// The id in an `X-Request-Id` of this process.
pub fn id_of(request_id: &str) -> Option<u64> {
    let (process, id) = request_id.strip_prefix("f-")?.split_once('-')?;
    (process.parse() == Ok(std::process::id())).then_some(())?;
    id.parse().ok()
}

impl Swarm {
    /// Begins to call.
    pub fn start(addresses: &Addresses, calls: &Calls) -> Swarm {
        let (stop, made) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let mut clients = JoinSet::new();
        for number in 0..calls.clients * addresses.len() {
            let client = OneClient {
                gateway: number % addresses.len(),
                addresses: addresses.clone(),
                calls: calls.clone(),
                turn: number,
                stop: stop.clone(),
                made: made.clone(),
            };
            clients.spawn(client.run());
        }
        Swarm {
            stop,
            made,
            clients,
        }
    }

    /// Calls made so far.
    pub fn made(&self) -> u64 {
        self.made.load(Ordering::Relaxed)
    }

    /// Ends the swarm when every client has its last answer; returns their calls.
    pub async fn stop(self) -> Vec<Seen> {
        self.stop.store(true, Ordering::Relaxed);
        self.clients.join_all().await.concat()
    }
}

struct OneClient {
    gateway: usize,
    addresses: Addresses,
    calls: Calls,
    turn: usize,
    stop: Arc<AtomicBool>,
    made: Arc<AtomicU64>,
}

impl OneClient {
    async fn run(mut self) -> Vec<Seen> {
        let (mut seen, mut connection) = (Vec::new(), None);
        while !self.stop.load(Ordering::Relaxed) {
            let Some(mut socket) = self.connected(connection.take()).await else {
                continue;
            };
            self.turn += 1;
            let Some(key) = self
                .calls
                .order
                .get(self.turn % self.calls.order.len())
                .copied()
            else {
                break;
            };
            let id = NEXT.fetch_add(1, Ordering::Relaxed);
            let request = format!(
                "GET {} HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {}\r\nX-Request-Id: {}\r\n\r\n",
                self.calls.target,
                self.calls.keys.get(key).map_or("", String::as_str),
                request_id(id)
            );
            let began = Instant::now();
            let exchange = exchange(&mut socket, request.as_bytes());
            let answer = tokio::time::timeout(CALL_DEADLINE, exchange)
                .await
                .ok()
                .flatten();
            seen.push(Seen {
                id,
                key,
                gateway: self.gateway,
                began,
                ended: Instant::now(),
                output: answer.map(|(output, _)| output),
            });
            self.made.fetch_add(1, Ordering::Relaxed);
            connection = answer.and_then(|(_, kept)| kept.then_some(socket));
            if !self.calls.pause.is_zero() {
                tokio::time::sleep(self.calls.pause).await;
            }
        }
        seen
    }

    async fn connected(&self, kept: Option<TcpStream>) -> Option<TcpStream> {
        if kept.is_some() {
            return kept;
        }
        let address = self
            .addresses
            .get(self.gateway)
            .map(|address| *lock(address))?;
        if let Ok(socket) = TcpStream::connect(address).await {
            let _ = socket.set_nodelay(true);
            return Some(socket);
        }
        tokio::time::sleep(RECONNECT_PAUSE).await;
        None
    }
}

/// Sends a request and reads the answer to its end; returns whether the connection continues, or `None` if it broke.
async fn exchange(socket: &mut TcpStream, request: &[u8]) -> Option<(SeenAnswer, bool)> {
    socket.write_all(request).await.ok()?;
    let mut bytes = Vec::with_capacity(2_048);
    loop {
        if let Some(answer) = read_answer(&bytes) {
            return Some(answer);
        }
        let more = socket.read_buf(&mut bytes).await.ok()?;
        if more == 0 || bytes.len() > ANSWER_BYTES_MAX {
            return None;
        }
    }
}

/// The answer in these bytes, once they are all there. Its body has a length, as all that the swarm asks for.
fn read_answer(bytes: &[u8]) -> Option<(SeenAnswer, bool)> {
    let head_end = bytes.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let head = std::str::from_utf8(bytes.get(..head_end)?).ok()?;
    let mut lines = head.split("\r\n");
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let (mut output, mut length, mut kept) = (
        SeenAnswer {
            status,
            remaining: None,
            reset: None,
        },
        0,
        true,
    );
    for line in lines {
        let Some((name, value)) = line.split_once(':') else {
            continue;
        };
        let value = value.trim();
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.parse().ok()?,
            "x-ratelimit-remaining" => output.remaining = value.parse().ok(),
            "x-ratelimit-reset" => output.reset = value.parse().ok(),
            "connection" => kept = !value.eq_ignore_ascii_case("close"),
            _ => {}
        }
    }
    (bytes.len() >= head_end + length).then_some((output, kept))
}

/// A lock that a panic elsewhere does not close.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_once_its_whole_body_is_there() {
        let text = b"HTTP/1.1 429 Too Many\r\nContent-Length: 2\r\nX-RateLimit-Remaining: 0\r\nX-RateLimit-Reset: 7\r\n\r\n{}";
        assert_eq!(read_answer(&text[..text.len() - 1]), None);
        let output = SeenAnswer {
            status: 429,
            remaining: Some(0),
            reset: Some(7),
        };
        assert_eq!(read_answer(text), Some((output, true)));
        let closed = b"HTTP/1.1 500 E\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
        assert!(!read_answer(closed).unwrap().1);
    }

    #[test]
    fn an_id_is_read_back_and_no_other() {
        assert_eq!(id_of(&request_id(12)), Some(12));
        assert_eq!(id_of("f-1-12"), None);
        assert_eq!(id_of("call-1-12"), None);
    }
}
