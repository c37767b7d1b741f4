//! A redis-server of a test's own, on a free port, ended with the test.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

const START_PATIENCE: Duration = Duration::from_secs(10);
const PORTS_TRIED_MAX: u32 = 50;

/// A running redis-server without persistence.
pub struct RedisServer {
    port: u16,
    child: Option<Child>,
    directory: TempDir,
}

impl RedisServer {
    /// Starts a server on a free port.
    pub async fn start() -> RedisServer {
        let mut server = RedisServer {
            port: 0,
            child: None,
            directory: tempfile::tempdir().unwrap(),
        };
        for _ in 0..PORTS_TRIED_MAX {
            let mut random = [0; 2];
            touchline::policy::api_key::os_entropy(&mut random);
            // Below the range from which the kernel takes the ports of outgoing connections.
            server.port = 15_000 + u16::from_ne_bytes(random) % 15_000;
            if server.try_run().await {
                return server;
            }
        }
        panic!("no free port for redis-server after {PORTS_TRIED_MAX} attempts");
    }

    /// Starts again, empty, on the same port.
    pub async fn restart(&mut self) {
        self.kill();
        let deadline = Instant::now() + START_PATIENCE;
        while !self.try_run().await {
            assert!(Instant::now() < deadline, "redis-server does not come back");
        }
    }

    /// Whether a server could be started on the port and is ours.
    async fn try_run(&mut self) -> bool {
        let child = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .args(["--port", &self.port.to_string()])
            .arg("--dir")
            .arg(self.directory.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let mut child = match child {
            Ok(child) => child,
            Err(error) => panic!("redis-server: {error}; apt-get install redis-server"),
        };
        let deadline = Instant::now() + START_PATIENCE;
        while child.try_wait().unwrap().is_none() {
            if self.answers_as(child.id()).await {
                self.child = Some(child);
                return true;
            }
            assert!(Instant::now() < deadline, "redis-server does not start");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        false
    }

    async fn answers_as(&self, pid: u32) -> bool {
        let client = redis::Client::open(self.url()).unwrap();
        let Ok(mut connection) = client.get_multiplexed_async_connection().await else {
            return false;
        };
        let info: Result<String, _> = redis::cmd("INFO")
            .arg("server")
            .query_async(&mut connection)
            .await;
        info.is_ok_and(|info| info.contains(&format!("process_id:{pid}\r\n")))
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its address as settings want it.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    /// A connection of the test's own.
    pub async fn connect(&self) -> redis::aio::MultiplexedConnection {
        let client = redis::Client::open(self.url()).unwrap();
        client.get_multiplexed_async_connection().await.unwrap()
    }

    /// Hangs it: it accepts and answers nothing until [`RedisServer::resume`].
    pub fn hang(&self) {
        self.signal("-STOP");
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.as_ref().unwrap().id().to_string();
        let done = Command::new("kill").args([signal, &pid]).status().unwrap();
        assert!(done.success());
    }

    /// Kills it with everything it holds.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}
