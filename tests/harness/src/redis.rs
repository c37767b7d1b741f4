//! A real `redis-server` of a test's own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::{Faketime, eventually, process::Process};

/// How long one command may take: a stopped server accepts and never answers.
const COMMAND_DEADLINE: Duration = Duration::from_secs(2);
/// Attempts to find a port that no other process took in between.
const PORT_ATTEMPTS: usize = 5;

/// A running server; dropping it kills it.
#[derive(Debug)]
pub struct RedisServer {
    process: Process,
    directory: PathBuf,
    port: u16,
    appendonly: bool,
    clock: Option<Faketime>,
}

impl RedisServer {
    /// Starts a server with its files in `directory`.
    ///
    /// # Panics
    /// If `redis-server` is not installed or does not start.
    pub async fn start(directory: &Path, appendonly: bool, clock: Option<Faketime>) -> RedisServer {
        for _ in 0..PORT_ATTEMPTS {
            // The port is free again when the probe is dropped; a server that loses the race for it ends at once.
            let port = std::net::TcpListener::bind("127.0.0.1:0")
                .and_then(|probe| probe.local_addr())
                .expect("a free port")
                .port();
            let process = spawn(directory, port, appendonly, clock.as_ref());
            let mut server = RedisServer {
                process,
                directory: directory.to_owned(),
                port,
                appendonly,
                clock: clock.clone(),
            };
            if server.answers_or_ends().await {
                return server;
            }
        }
        panic!("redis-server found no free port in {PORT_ATTEMPTS} attempts");
    }

    /// `redis://127.0.0.1:PORT/0`.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Stops it (`SIGSTOP`): it accepts and never answers.
    pub fn stop(&self) {
        self.process.stop();
    }

    /// Lets it run again.
    pub fn resume(&self) {
        self.process.resume();
    }

    /// Ends it without warning.
    pub fn kill9(&mut self) {
        self.process.kill9();
    }

    /// Starts it again on the same port and files.
    pub async fn restart(&mut self) {
        self.process.kill9();
        self.process = spawn(
            &self.directory,
            self.port,
            self.appendonly,
            self.clock.as_ref(),
        );
        assert!(self.answers_or_ends().await, "{}", self.process.output());
    }

    /// Sends one command and returns the raw reply.
    pub async fn command(&self, words: &[&str]) -> std::io::Result<String> {
        let exchange = self.exchange(words);
        match tokio::time::timeout(COMMAND_DEADLINE, exchange).await {
            Ok(reply) => reply,
            Err(_) => Err(std::io::ErrorKind::TimedOut.into()),
        }
    }

    /// Begins to record the commands that it runs, with their arguments.
    pub async fn record_commands(&self) {
        for words in [
            &["CONFIG", "SET", "slowlog-max-len", "10000"][..],
            &["CONFIG", "SET", "slowlog-log-slower-than", "0"],
            &["SLOWLOG", "RESET"],
        ] {
            assert_eq!(self.command(words).await.unwrap(), "+OK\r\n", "{words:?}");
        }
    }

    /// The commands since then, the last ones first.
    pub async fn recorded_commands(&self) -> String {
        let port = self.port.to_string();
        let mut command = tokio::process::Command::new("redis-cli");
        let command = command.args(["-p", &port, "SLOWLOG", "GET", "10000"]);
        let recorded = command.output().await.unwrap().stdout;
        let recorded = String::from_utf8(recorded).unwrap();
        assert!(
            recorded.contains("SLOWLOG"),
            "not even the reset: {recorded}"
        );
        recorded
    }

    async fn exchange(&self, words: &[&str]) -> std::io::Result<String> {
        let mut socket = TcpStream::connect(("127.0.0.1", self.port)).await?;
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        socket.write_all(request.as_bytes()).await?;
        let mut reply = vec![0; 64 * 1024];
        let read = socket.read(&mut reply).await?;
        reply.truncate(read);
        Ok(String::from_utf8_lossy(&reply).into_owned())
    }

    async fn answers_or_ends(&mut self) -> bool {
        eventually("redis-server answers PING", async || {
            if self.process.ended().is_some() {
                return Some(false);
            }
            // Only our own server counts: its working directory names it.
            let reply = self.command(&["CONFIG", "GET", "dir"]).await.ok()?;
            let directory = self.directory.canonicalize().ok()?;
            let ours = reply.contains(directory.to_str()?);
            // While it reads its data it answers every other command with an error.
            let loaded = self.command(&["PING"]).await.ok()? == "+PONG\r\n";
            (ours && loaded).then_some(true)
        })
        .await
    }
}

fn spawn(directory: &Path, port: u16, appendonly: bool, clock: Option<&Faketime>) -> Process {
    let mut command = Command::new("redis-server");
    command
        .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
        .args(["--save", "", "--maxmemory-policy", "noeviction", "--dir"])
        .arg(directory)
        .args(["--appendonly", if appendonly { "yes" } else { "no" }])
        .args(["--appendfsync", "always"]);
    if let Some(clock) = clock {
        clock.wrap(&mut command);
    }
    match Process::spawn(&mut command, directory, "redis") {
        Ok(process) => process,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            panic!("redis-server is missing: apt-get install redis-server")
        }
        Err(error) => panic!("redis-server: {error}"),
    }
}
