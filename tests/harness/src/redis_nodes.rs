//! Redis processes of every kind: servers with TLS and ACL, sentinels, clusters. Each ends with its guard or with the test
//! process, however that ends, so that tests may share some in a static.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use redis::FromRedisValue;
use redis::aio::MultiplexedConnection;
use tempfile::TempDir;
use tokio::time::sleep;

use crate::eventually;

const START_PATIENCE: Duration = Duration::from_secs(30);
const PORTS_TRIED_MAX: u32 = 50;
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Prints the pid of its child process, and kills that at a line of its own standard input; at its end, which is that of the test
/// process, the directory in the first argument is removed as well.
const GUARD: &str = r#"own=$1; shift; "$@" >/dev/null 2>&1 & echo $!
read -r _; ended=$?; kill -9 $!; wait; [ $ended = 0 ] || rm -rf "$own""#;

/// A process that ends with this value or with the test process.
pub struct Guarded {
    pid: u32,
    shell: Child,
    stdin: Option<ChildStdin>,
}

impl Guarded {
    fn spawn(directory: &Path, program: &str, arguments: &[String]) -> Guarded {
        let mut shell = Command::new("sh")
            .args(["-c", GUARD, "sh"])
            .arg(directory)
            .arg(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = shell.stdin.take();
        let mut line = String::new();
        let mut stdout = BufReader::new(shell.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        Guarded {
            pid: line.trim().parse().unwrap(),
            shell,
            stdin,
        }
    }

    fn is_running(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid));
        stat.is_ok_and(|stat| !stat.contains(") Z "))
    }

    /// Sends it a signal such as `-STOP`.
    pub fn signal(&self, signal: &str) {
        let pid = self.pid.to_string();
        let done = Command::new("kill").args([signal, &pid]).status().unwrap();
        assert!(done.success());
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        if let Some(mut stdin) = self.stdin.take() {
            let _ = stdin.write_all(b"\n");
        }
        let _ = self.shell.wait();
    }
}

/// A redis-server without persistence.
pub struct Node {
    /// Its port on 127.0.0.1.
    pub port: u16,
    process: Option<Guarded>,
    directory: TempDir,
    login: String,
    arguments: Vec<String>,
}

impl Node {
    /// A server with these further arguments, made from its port.
    pub async fn start(arguments: impl Fn(u16) -> Vec<String>) -> Node {
        Node::start_for("", arguments).await
    }

    /// The same, if tests must log in, with `user=…&pass=…`.
    pub async fn start_for(login: &str, arguments: impl Fn(u16) -> Vec<String>) -> Node {
        assert_installed();
        for _ in 0..PORTS_TRIED_MAX {
            let mut node = Node {
                port: random_port(),
                process: None,
                directory: tempfile::tempdir().unwrap(),
                login: login.into(),
                arguments: Vec::new(),
            };
            node.arguments = arguments(node.port);
            if node.run().await {
                return node;
            }
        }
        panic!("no free port for redis-server after {PORTS_TRIED_MAX} attempts");
    }

    async fn run(&mut self) -> bool {
        let more = &self.arguments;
        let mut arguments = words("--bind 127.0.0.1 --appendonly no --save");
        arguments.push(String::new());
        arguments.extend(["--dir".into(), self.directory.path().display().to_string()]);
        arguments.extend(["--unixsocket".into(), self.socket()]);
        if !more.iter().any(|argument| argument == "--port") {
            arguments.extend(["--port".into(), self.port.to_string()]);
        }
        arguments.extend_from_slice(more);
        let process = Guarded::spawn(self.directory.path(), "redis-server", &arguments);
        let deadline = Instant::now() + START_PATIENCE;
        while process.is_running() {
            if self.try_connect().await.is_ok() {
                self.process = Some(process);
                return true;
            }
            assert!(Instant::now() < deadline, "redis-server does not start");
            sleep(LOOK_EVERY).await;
        }
        false
    }

    fn socket(&self) -> String {
        self.directory.path().join("s").display().to_string()
    }

    async fn try_connect(&self) -> redis::RedisResult<MultiplexedConnection> {
        let url = format!("unix://{}?{}", self.socket(), self.login);
        let client = redis::Client::open(url)?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        redis::cmd("PING").exec_async(&mut connection).await?;
        Ok(connection)
    }

    /// `127.0.0.1:port`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The result of a command, over a connection that is independent of the topology.
    pub async fn ask<T: FromRedisValue>(&self, command: &str) -> T {
        self.try_ask(command).await.unwrap()
    }

    /// The same, if it may fail.
    pub async fn try_ask<T: FromRedisValue>(&self, command: &str) -> redis::RedisResult<T> {
        let mut words = command.split(' ');
        let mut asked = redis::cmd(words.next().unwrap());
        for word in words {
            asked.arg(word.trim_matches('"'));
        }
        asked.query_async(&mut self.try_connect().await?).await
    }

    /// Hangs it.
    pub fn hang(&self) {
        self.process.as_ref().unwrap().signal("-STOP");
    }

    /// Lets it continue.
    pub fn resume(&self) {
        self.process.as_ref().unwrap().signal("-CONT");
    }

    /// Kills it with everything it holds.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Starts it again on its port, empty; a node of a cluster knows its place in it.
    pub async fn restart(&mut self) {
        self.kill();
        let deadline = Instant::now() + START_PATIENCE;
        while !self.run().await {
            assert!(Instant::now() < deadline, "redis-server does not come back");
        }
    }
}

/// From now on a replica receives nothing from its master, data in transit included: it hangs, and their connection is cut.
pub async fn deafen(replica: &Node, master: &Node) {
    replica.hang();
    let _cut: u64 = master.ask("CLIENT KILL TYPE replica").await;
}

/// Waits until `ask` returns true.
pub async fn settled(what: &str, ask: impl AsyncFn() -> bool) {
    let deadline = Instant::now() + START_PATIENCE;
    while !ask().await {
        assert!(
            Instant::now() < deadline,
            "in {START_PATIENCE:?} not: {what}"
        );
        sleep(LOOK_EVERY).await;
    }
}

/// Arguments, split at spaces.
pub fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

/// A port that no other test of this process is given: one that is killed is still asked by the rest of its cluster.
fn random_port() -> u16 {
    static GIVEN: Mutex<Option<HashSet<u16>>> = Mutex::new(None);
    let mut given = GIVEN.lock().unwrap();
    loop {
        // Below the range from which the kernel takes the ports of outgoing connections; even, so that a cluster's bus has the next one.
        let port = 15_000 + fastrand::u16(..7_500) * 2;
        if given.get_or_insert_default().insert(port) {
            return port;
        }
    }
}

fn assert_installed() {
    let found = Command::new("redis-server").arg("--version").output();
    assert!(found.is_ok(), "apt-get install redis-server");
}

/// A prefix that no other test has.
pub fn own_prefix() -> String {
    format!("t{:016x}", fastrand::u64(..))
}

/// A master, a replica and three sentinels.
pub struct SentinelSet {
    /// The first master and its replica.
    pub servers: [Node; 2],
    /// The ports that tests ask; with TLS the next one is for clients.
    sentinels: Vec<(u16, Guarded, TempDir)>,
    encrypted: bool,
}

impl SentinelSet {
    /// Starts them and waits until the sentinels know each other and the replica.
    pub async fn start() -> SentinelSet {
        SentinelSet::start_as(None).await
    }

    /// The same with TLS among all of them and to clients, which must show a certificate.
    pub async fn start_with(certificates: &Certificates) -> SentinelSet {
        SentinelSet::start_as(Some(certificates)).await
    }

    async fn start_as(certificates: Option<&Certificates>) -> SentinelSet {
        let eager = "--repl-diskless-sync-delay 0 --repl-ping-replica-period 1";
        let arguments = |port, more: &str| {
            let mut arguments = words(more);
            if let Some(certificates) = certificates {
                arguments.extend(certificates.arguments(port));
                arguments.extend(words("--tls-replication yes"));
            }
            arguments
        };
        let master = Node::start(|port| arguments(port, eager)).await;
        let of_master = format!("{eager} --replicaof 127.0.0.1 {}", master.port);
        let replica = Node::start(|port| arguments(port, &of_master)).await;
        settled("the replica follows", async || {
            let info: String = replica.ask("INFO replication").await;
            info.contains("master_link_status:up")
        })
        .await;
        let mut set = SentinelSet {
            encrypted: certificates.is_some(),
            sentinels: Vec::new(),
            servers: [master, replica],
        };
        for _ in 0..3 {
            let started = set.start_sentinel(certificates).await;
            ask_often(started.0).await.unwrap();
            set.sentinels.push(started);
        }
        settled("the sentinels know all", async || {
            let mut known = true;
            for (port, ..) in &set.sentinels {
                let info = sentinel_info(*port).await.unwrap_or_default();
                known &= info.contains("slaves=1,sentinels=3");
            }
            known
        })
        .await;
        set
    }

    async fn start_sentinel(&self, certificates: Option<&Certificates>) -> (u16, Guarded, TempDir) {
        for _ in 0..PORTS_TRIED_MAX {
            let (port, directory) = (random_port(), tempfile::tempdir().unwrap());
            let file = directory.path().join("sentinel.conf");
            let mut text = format!(
                "port {port}\nbind 127.0.0.1\ndir {}\nsentinel monitor mymaster 127.0.0.1 {} 2\n\
                 sentinel down-after-milliseconds mymaster 700\nsentinel failover-timeout mymaster 3000\n",
                directory.path().display(),
                self.servers[0].port
            );
            if let Some(certificates) = certificates {
                text.push_str("tls-replication yes\n");
                let lines = certificates.arguments(port + 1);
                for pair in lines.chunks(2).filter(|pair| pair[0] != "--port") {
                    text.push_str(&format!(
                        "{} {}\n",
                        pair[0].trim_start_matches('-'),
                        pair[1]
                    ));
                }
            }
            std::fs::write(&file, text).unwrap();
            let arguments = [file.display().to_string(), "--sentinel".into()];
            let process = Guarded::spawn(directory.path(), "redis-server", &arguments);
            let ours = format!("process_id:{}\r\n", process.pid);
            while process.is_running() {
                if sentinel_info(port)
                    .await
                    .is_ok_and(|info| info.contains(&ours))
                {
                    return (port, process, directory);
                }
                sleep(LOOK_EVERY).await;
            }
        }
        panic!("no free port for a sentinel after {PORTS_TRIED_MAX} attempts");
    }

    /// The sentinels' addresses, after one on which nothing listens.
    pub fn addresses(&self) -> Vec<String> {
        let ports = [1].into_iter().chain(
            self.sentinels
                .iter()
                .map(|(port, ..)| *port + u16::from(self.encrypted)),
        );
        ports.map(|port| format!("127.0.0.1:{port}")).collect()
    }

    /// The places of the master that the sentinels name, and of the other server.
    pub async fn roles(&self) -> (usize, usize) {
        let mut connection = connect(self.sentinels[0].0).await.unwrap();
        let (_, port): (String, u16) = redis::cmd("SENTINEL")
            .arg("GET-MASTER-ADDR-BY-NAME")
            .arg("mymaster")
            .query_async(&mut connection)
            .await
            .unwrap();
        let place = usize::from(self.servers[0].port != port);
        (place, 1 - place)
    }

    /// Has a sentinel start a failover although the master works, as soon as it considers the replica suitable.
    pub async fn fail_over(&self) {
        let mut connection = connect(self.sentinels[0].0).await.unwrap();
        eventually("a sentinel starts a failover", async || {
            let mut begin = redis::cmd("SENTINEL");
            begin.arg("FAILOVER").arg("mymaster");
            begin.exec_async(&mut connection).await.ok()
        })
        .await;
    }
}

async fn connect(port: u16) -> redis::RedisResult<MultiplexedConnection> {
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}"))?;
    client.get_multiplexed_async_connection().await
}

/// Has a sentinel ask its servers for their roles every second, not every ten.
async fn ask_often(port: u16) -> redis::RedisResult<()> {
    let mut setting = redis::cmd("SENTINEL");
    setting.arg("DEBUG").arg("INFO-PERIOD").arg(1_000);
    setting.exec_async(&mut connect(port).await?).await
}

async fn sentinel_info(port: u16) -> redis::RedisResult<String> {
    let mut connection = connect(port).await?;
    redis::cmd("INFO").query_async(&mut connection).await
}

/// A cluster of three masters that share all slots, set as docs/redis-and-outages.md advises: one's absence concerns its own keys.
pub struct ClusterSet {
    /// The masters, then replicas of the first.
    pub nodes: Vec<Node>,
    /// The nodes' names in the cluster: what it reports of their ports depends on the server's version where clients use TLS.
    ids: Vec<String>,
}

const MASTERS: usize = 3;
const SLOTS: usize = 16_384;

impl ClusterSet {
    /// Starts it with this many replicas of the first master, and waits until all nodes agree.
    pub async fn start(replicas: usize) -> ClusterSet {
        ClusterSet::start_as(replicas, None).await
    }

    /// Masters alone, with TLS among them and to clients, which must show a certificate.
    pub async fn start_with(certificates: &Certificates) -> ClusterSet {
        ClusterSet::start_as(0, Some(certificates)).await
    }

    async fn start_as(replicas: usize, certificates: Option<&Certificates>) -> ClusterSet {
        let mut nodes = Vec::new();
        for _ in 0..MASTERS + replicas {
            let arguments = |port: u16| {
                let mut arguments = words(&format!(
                    "--cluster-enabled yes --cluster-node-timeout 1500 --cluster-require-full-coverage no \
                     --cluster-port {} --repl-diskless-sync-delay 0",
                    port + 1
                ));
                if let Some(certificates) = certificates {
                    arguments.extend(certificates.arguments(port));
                    arguments.extend(words("--tls-replication yes --tls-cluster yes"));
                }
                arguments
            };
            nodes.push(Node::start(arguments).await);
        }
        let ids = Vec::new();
        let mut set = ClusterSet { nodes, ids };
        set.form().await;
        set
    }

    /// Builds the cluster anew at its addresses: other ids, and empty.
    pub async fn rebuild(&mut self) {
        for place in 0..self.nodes.len() {
            self.replace(place).await;
        }
        self.form().await;
    }

    /// Ends a node for good; another one, of no cluster, takes its address.
    pub async fn replace(&mut self, place: usize) {
        let node = &mut self.nodes[place];
        node.kill();
        std::fs::remove_file(node.directory.path().join("nodes.conf")).unwrap();
        node.restart().await;
    }

    async fn form(&mut self) {
        self.ids.clear();
        for node in &self.nodes {
            self.ids.push(node.ask("CLUSTER MYID").await);
        }
        let set = &*self;
        for (place, node) in set.nodes.iter().enumerate() {
            let () = node
                .ask(&format!("CLUSTER SET-CONFIG-EPOCH {}", place + 1))
                .await;
            if place < MASTERS {
                let (first, next) = (SLOTS * place / MASTERS, SLOTS * (place + 1) / MASTERS);
                let () = node
                    .ask(&format!("CLUSTER ADDSLOTSRANGE {first} {}", next - 1))
                    .await;
            }
            let first = set.nodes[0].port;
            let () = node
                .ask(&format!("CLUSTER MEET 127.0.0.1 {first} {}", first + 1))
                .await;
        }
        set.agrees().await;
        for replica in &set.nodes[MASTERS..] {
            let () = replica
                .ask(&format!("CLUSTER REPLICATE {}", set.ids[0]))
                .await;
            settled("the replica follows", async || {
                let info: String = replica.ask("INFO replication").await;
                info.contains("master_link_status:up")
            })
            .await;
        }
        set.agrees().await;
    }

    async fn agrees(&self) {
        for node in &self.nodes {
            settled("all nodes agree", async || {
                let info: String = node.ask("CLUSTER INFO").await;
                let known = format!("cluster_known_nodes:{}\r\n", self.nodes.len());
                info.contains("cluster_state:ok")
                    && info.contains("cluster_slots_assigned:16384\r\n")
                    && info.contains(&known)
            })
            .await;
        }
    }

    /// The addresses of all nodes but the first, after one on which nothing listens.
    pub fn addresses(&self) -> Vec<String> {
        let nodes = self.nodes.iter().skip(1).map(Node::address);
        ["127.0.0.1:1".to_owned()]
            .into_iter()
            .chain(nodes)
            .collect()
    }

    /// The place among the nodes of the master of a key, as the first living node sees it.
    pub async fn owner(&self, key: &str) -> usize {
        let slot: u16 = self.nodes[1].ask(&format!("CLUSTER KEYSLOT {key}")).await;
        let ranges: Vec<redis::Value> = self.nodes[1].ask("CLUSTER SLOTS").await;
        for range in ranges {
            let fields = Vec::<redis::Value>::from_redis_value(range).unwrap();
            let read = |place: usize| u16::from_redis_value_ref(&fields[place]).unwrap();
            if (read(0)..=read(1)).contains(&slot) {
                let master = Vec::<redis::Value>::from_redis_value_ref(&fields[2]).unwrap();
                let id = String::from_redis_value_ref(&master[2]).unwrap();
                return self.ids.iter().position(|own| *own == id).unwrap();
            }
        }
        panic!("nobody has slot {slot}");
    }

    /// The places of the nodes that are masters.
    pub async fn masters(&self) -> Vec<usize> {
        let mut masters = Vec::new();
        for (place, node) in self.nodes.iter().enumerate() {
            let info: String = node.ask("INFO replication").await;
            if info.contains("role:master") {
                masters.push(place);
            }
        }
        masters
    }

    /// From now on the master at this place and the others do not know each other, and the next one serves its slots, without its data. It
    /// takes itself for their master still.
    pub async fn depose(&self, former: usize) {
        for (place, id) in self.ids.iter().enumerate().take(MASTERS) {
            if place != former {
                let forget = format!("CLUSTER FORGET {}", self.ids[former]);
                let () = self.nodes[place].ask(&forget).await;
                let () = self.nodes[former]
                    .ask(&format!("CLUSTER FORGET {id}"))
                    .await;
            }
        }
        let (first, next) = (SLOTS * former / MASTERS, SLOTS * (former + 1) / MASTERS);
        let take = format!("CLUSTER ADDSLOTSRANGE {first} {}", next - 1);
        let () = self.nodes[(former + 1) % MASTERS].ask(&take).await;
    }

    /// Moves the slot of a key with all its keys from one master to another, key by key.
    pub async fn move_slot(&self, key: &str, from: usize, to: usize) {
        self.move_keys(key, from, to).await;
        self.end_move(key, from, to).await;
    }

    /// Moves all keys of the slot of a key from one master to another, and leaves it open between them.
    pub async fn move_keys(&self, key: &str, from: usize, to: usize) {
        let (source, target) = (&self.nodes[from], &self.nodes[to]);
        let slot: u16 = source.ask(&format!("CLUSTER KEYSLOT {key}")).await;
        let (source_id, target_id) = (&self.ids[from], &self.ids[to]);
        let () = target
            .ask(&format!("CLUSTER SETSLOT {slot} IMPORTING {source_id}"))
            .await;
        let () = source
            .ask(&format!("CLUSTER SETSLOT {slot} MIGRATING {target_id}"))
            .await;
        loop {
            let names: Vec<String> = source.ask(&format!("CLUSTER GETKEYSINSLOT {slot} 1")).await;
            let Some(name) = names.first() else { break };
            let () = source
                .ask(&format!("MIGRATE 127.0.0.1 {} {name} 0 5000", target.port))
                .await;
        }
    }

    /// Gives the slot of a key, whose keys were moved, to the other master.
    pub async fn end_move(&self, key: &str, from: usize, to: usize) {
        let (source, target) = (&self.nodes[from], &self.nodes[to]);
        let slot: u16 = source.ask(&format!("CLUSTER KEYSLOT {key}")).await;
        let target_id = &self.ids[to];
        let masters = self.masters().await;
        let others = masters.iter().map(|place| &self.nodes[*place]);
        for node in [target, source].into_iter().chain(others) {
            let () = node
                .ask(&format!("CLUSTER SETSLOT {slot} NODE {target_id}"))
                .await;
        }
        // The target took an epoch of its own for this. A node that does not know it would take the same for the next slot.
        settled("the masters agree on the epoch", async || {
            let mut epochs = HashSet::new();
            for node in &self.nodes[..MASTERS] {
                let info: String = node.ask("CLUSTER INFO").await;
                let epoch = info
                    .lines()
                    .find(|line| line.starts_with("cluster_current_epoch:"));
                epochs.insert(epoch.unwrap().to_owned());
            }
            epochs.len() == 1
        })
        .await;
    }
}

/// Certificates of one authority in PEM files.
pub struct Certificates {
    directory: TempDir,
}

impl Certificates {
    /// An authority, a server for 127.0.0.1 and a client.
    pub fn make() -> Certificates {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: String| {
            std::fs::write(directory.path().join(name), text).unwrap();
        };
        let mut authority = rcgen::CertificateParams::new(Vec::new()).unwrap();
        // One name for all would make every certificate look self-signed.
        let common_name = rcgen::DnType::CommonName;
        authority
            .distinguished_name
            .push(common_name.clone(), "authority");
        authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let authority_key = rcgen::KeyPair::generate().unwrap();
        let certificate = authority.self_signed(&authority_key).unwrap();
        write("ca.pem", certificate.pem());
        let issuer = rcgen::Issuer::new(authority, authority_key);
        for (name, subject) in [("server", "127.0.0.1"), ("client", "touchline")] {
            let key = rcgen::KeyPair::generate().unwrap();
            let mut params = rcgen::CertificateParams::new(vec![subject.to_owned()]).unwrap();
            params.distinguished_name.push(common_name.clone(), name);
            let certificate = params.signed_by(&key, &issuer).unwrap();
            write(&format!("{name}.pem"), certificate.pem());
            write(&format!("{name}.key"), key.serialize_pem());
        }
        Certificates { directory }
    }

    /// One of `ca.pem`, `server.pem`, `server.key`, `client.pem`, `client.key`.
    pub fn file(&self, name: &str) -> std::path::PathBuf {
        Path::join(self.directory.path(), name)
    }

    /// A server's arguments for TLS alone, with client certificates required.
    pub fn arguments(&self, port: u16) -> Vec<String> {
        let mut arguments = words(&format!(
            "--port 0 --tls-port {port} --tls-auth-clients yes"
        ));
        for (option, name) in [
            ("--tls-ca-cert-file", "ca.pem"),
            ("--tls-cert-file", "server.pem"),
            ("--tls-key-file", "server.key"),
        ] {
            arguments.extend([option.into(), self.file(name).display().to_string()]);
        }
        arguments
    }
}
