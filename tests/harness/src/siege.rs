//! Attackers that continue until they are stopped, each from other addresses of loopback than honest clients, and honest
//! clients that count their failures meanwhile.
//!
//! Attackers keep no ledger: they send keys that were never issued, or no whole request, so every line that the gateway
//! logs for them is a refusal ([`Allowances::strangers`](crate::Allowances)).

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;

use crate::client::{self, Protocol};
use crate::{Call, IssuedKey, Scene};

/// Connections of one address, below the gateway's own bound of them.
const CONNECTIONS_PER_ADDRESS: usize = 900;
/// TLS handshakes at a time.
const HANDSHAKES: usize = 64;
/// How often a slow client sends a byte.
const SLOW_BYTE: Duration = Duration::from_secs(1);
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// Requests and resets that one HTTP/2 connection sends at once.
const RESETS: u32 = 200;

/// How many of each kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Forces {
    /// TLS connections that send nothing but HTTP/2's preface.
    pub idle: usize,
    /// Connections that send a head byte by byte.
    pub slow: usize,
    /// Clients that try out keys as fast as they are answered.
    pub guessing: usize,
    /// Clients that open and reset HTTP/2 streams as fast as they can.
    pub resetting: usize,
}

impl Forces {
    /// As many of each kind as either has.
    pub fn with(self, other: Forces) -> Forces {
        Forces {
            idle: self.idle.max(other.idle),
            slow: self.slow.max(other.slow),
            guessing: self.guessing.max(other.guessing),
            resetting: self.resetting.max(other.resetting),
        }
    }
}

/// A running attack; dropping it ends it.
pub struct Siege {
    attackers: JoinSet<()>,
    stop: Arc<AtomicBool>,
    /// The attackers' counts so far: connections held, heads begun, keys tried, streams reset.
    pub blows: Arc<AtomicU64>,
}

/// The gateway's addresses, and those of the attackers.
#[derive(Clone)]
struct Field {
    http: SocketAddr,
    https: SocketAddr,
    stop: Arc<AtomicBool>,
    blows: Arc<AtomicU64>,
}

impl Siege {
    /// Lets these forces attack the scene's first gateway. Returns when the idle connections are open.
    pub async fn lay(scene: &Scene, forces: Forces) -> Siege {
        let field = Field {
            http: scene.gateways[0].http,
            https: scene.gateways[0].https,
            stop: Arc::default(),
            blows: Arc::default(),
        };
        let mut siege = Siege {
            attackers: JoinSet::new(),
            stop: field.stop.clone(),
            blows: field.blows.clone(),
        };
        siege.stand_idle(&field, forces.idle).await;
        for number in 0..forces.slow {
            siege
                .attackers
                .spawn(dribble(field.clone(), address(20, number)));
        }
        for number in 0..forces.guessing {
            siege
                .attackers
                .spawn(guess(field.clone(), address(40, number)));
        }
        for number in 0..forces.resetting {
            siege
                .attackers
                .spawn(reset(field.clone(), address(60, number)));
        }
        siege
    }

    async fn stand_idle(&mut self, field: &Field, idle: usize) {
        let mut arriving = JoinSet::new();
        for number in 0..idle {
            if arriving.len() >= HANDSHAKES {
                arriving.join_next().await;
            }
            let (field, (done, arrived)) = (field.clone(), tokio::sync::oneshot::channel());
            self.attackers.spawn(async move {
                let source = address(100, number / CONNECTIONS_PER_ADDRESS);
                let Ok(socket) = connect(source, field.https).await else {
                    return;
                };
                let Ok(mut stream) = client::tls(socket, Protocol::Http2Tls).await else {
                    return;
                };
                if stream.write_all(PREFACE).await.is_ok() {
                    field.blows.fetch_add(1, Ordering::Relaxed);
                }
                let _ = done.send(());
                let mut message = [0; 256];
                while let Ok(1..) = stream.read(&mut message).await {}
            });
            arriving.spawn(async move {
                let _ = arrived.await;
            });
        }
        while arriving.join_next().await.is_some() {}
    }

    /// Stops all attackers.
    pub async fn lift(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.attackers.shutdown().await;
    }
}

/// An address of loopback that is no honest client's.
fn address(group: u8, number: usize) -> IpAddr {
    let [.., high, low] = (number % 50_000 + 1).to_be_bytes();
    IpAddr::V4(Ipv4Addr::new(127, group, high, low))
}

async fn connect(source: IpAddr, to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::new(source, 0))?;
    socket.connect(to).await
}

/// A head that is sent byte by byte; when the gateway closes the connection, another one begins.
async fn dribble(field: Field, source: IpAddr) {
    while !field.stop.load(Ordering::Relaxed) {
        let Ok(mut socket) = connect(source, field.http).await else {
            tokio::time::sleep(SLOW_BYTE).await;
            continue;
        };
        field.blows.fetch_add(1, Ordering::Relaxed);
        let head = b"GET /api/v1/data/markets HTTP/1.1\r\nHost: localhost\r\nX-A: ";
        if socket.write_all(head).await.is_err() {
            continue;
        }
        let mut message = [0; 1024];
        loop {
            match tokio::time::timeout(SLOW_BYTE, socket.read(&mut message)).await {
                Ok(Ok(0) | Err(_)) => break,
                Ok(Ok(_)) => {}
                Err(_) => {
                    if socket.write_all(b"a").await.is_err() {
                        break;
                    }
                }
            }
        }
    }
}

/// Keys in the right form that were never issued, one after the other.
async fn guess(field: Field, source: IpAddr) {
    while !field.stop.load(Ordering::Relaxed) {
        let Ok(mut socket) = connect(source, field.http).await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let mut message = vec![0; 4096];
        loop {
            let secret = format!("{:022x}{:022x}", fastrand::u64(..), fastrand::u64(..));
            let request = format!(
                "GET /api/v1/data/markets HTTP/1.1\r\nHost: localhost\r\nX-API-Key: fpd_{}_{}\r\n\r\n",
                &secret[..12],
                &secret[..38]
            );
            let sent = socket.write_all(request.as_bytes()).await;
            if sent.is_err() || !matches!(socket.read(&mut message).await, Ok(1..)) {
                break;
            }
            field.blows.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Streams that are opened and reset at once.
async fn reset(field: Field, source: IpAddr) {
    let mut bytes = PREFACE.to_vec();
    for number in 0..RESETS {
        let stream = (2 * number + 1).to_be_bytes();
        // `:method GET`, `:scheme https`, `:path /`, `:authority a`.
        let head = [0x82, 0x87, 0x84, 0x01, 1, b'a'];
        bytes.extend([0, 0, 6, 1, 5]);
        bytes.extend(stream);
        bytes.extend(head);
        bytes.extend([0, 0, 4, 3, 0]);
        bytes.extend(stream);
        bytes.extend(8_u32.to_be_bytes());
    }
    while !field.stop.load(Ordering::Relaxed) {
        let Ok(mut socket) = connect(source, field.http).await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        if socket.write_all(&bytes).await.is_ok() {
            field.blows.fetch_add(u64::from(RESETS), Ordering::Relaxed);
        }
        let mut message = [0; 4096];
        while let Ok(1..) = socket.read(&mut message).await {}
    }
}

/// The results of honest clients.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// The duration of each answer.
    pub times: Vec<Duration>,
    /// The failure of each call without an expected answer.
    pub errors: Vec<String>,
}

impl Report {
    /// The time within which this part of the answers arrived; zero without any.
    pub fn quantile(&mut self, part: f64) -> Duration {
        self.times.sort_unstable();
        let last = self.times.len().saturating_sub(1);
        let place = (last as f64 * part).round() as usize;
        self.times.get(place).copied().unwrap_or_default()
    }
}

/// Lets honest clients call, over all protocols in turn, each with a connection of its own, a number of calls each and a
/// pause after each call.
pub async fn honest(
    scene: &Scene,
    key: &IssuedKey,
    clients: usize,
    calls: usize,
    pause: Duration,
) -> Report {
    let target = "/api/v1/data/markets";
    let mut all = JoinSet::new();
    for number in 0..clients {
        let client = scene.client(Protocol::ALL[number % Protocol::ALL.len()]);
        let key = key.key.clone();
        all.spawn(async move {
            let mut report = Report::default();
            for _ in 0..calls {
                let asked = Instant::now();
                match client.try_call(Call::get(target).key(&key)).await {
                    Ok(answer) if answer.status == 200 && answer.complete => {
                        report.times.push(asked.elapsed());
                    }
                    Ok(answer) => report.errors.push(format!("status {}", answer.status)),
                    Err(error) => report.errors.push(error),
                }
                tokio::time::sleep(pause).await;
            }
            report
        });
    }
    let mut whole = Report::default();
    while let Some(report) = all.join_next().await {
        let report = report.expect("an honest client");
        whole.times.extend(report.times);
        whole.errors.extend(report.errors);
    }
    whole
}
