//! A redis-server of a test's own, without persistence, with the clients that the tests of the store use.

use harness::redis_nodes::Node;

/// A running redis-server.
pub struct RedisServer(Node);

impl RedisServer {
    /// Starts a server on a free port.
    pub async fn start() -> RedisServer {
        RedisServer(Node::start(|_| Vec::new()).await)
    }

    /// Starts again, empty, on the same port.
    pub async fn restart(&mut self) {
        self.0.restart().await;
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.0.port
    }

    /// Its address as settings want it.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port())
    }

    /// A connection of the test's own.
    pub async fn connect(&self) -> redis::aio::MultiplexedConnection {
        let client = redis::Client::open(self.url()).unwrap();
        client.get_multiplexed_async_connection().await.unwrap()
    }

    /// How often it has run a script by its name.
    pub async fn scripts_run(&self) -> u64 {
        let info: String = self.0.ask("INFO commandstats").await;
        let calls = info.split_once("cmdstat_evalsha:calls=");
        let calls = calls.map_or("0", |(_, rest)| rest.split(',').next().unwrap());
        calls.parse().unwrap()
    }

    /// Hangs it: it accepts and answers nothing until [`RedisServer::resume`].
    pub fn hang(&self) {
        self.0.hang();
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.0.resume();
    }

    /// Kills it with everything it holds.
    pub fn kill(&mut self) {
        self.0.kill();
    }
}
