//! All contenders, started once on the first core and left running: a contender without requests sleeps.

use std::path::Path;
use std::sync::Arc;

use harness::process::Process;
use harness::{Call, Client, Gateway, eventually};
use touchline::policy::api_key::{ApiKey, KeyPrefix, os_entropy};

use super::calls::Calls;
use super::kind::{Kind, PATH};
use super::machine::{FIRST_CORE, TOUCHLINE, example, free_port, loopback, on_cores, optimised};
use super::stage::{BODY_BYTES, Stage, filled, issue, nginx, spawn};

/// Keys in turn.
const KEYS: usize = 100;

/// A program that is measured.
pub struct Contender {
    /// The kind of contender.
    pub kind: Kind,
    /// The requests to it.
    pub calls: Arc<Calls>,
    /// One of the keys in its requests.
    pub key: String,
    /// The process whose time and memory count.
    pub pid: u32,
}

/// All contenders, running.
pub struct Cast {
    contenders: Vec<Contender>,
    running: Vec<Running>,
}

enum Running {
    #[expect(dead_code, reason = "it ends when it is dropped")]
    Peer(Process),
    Gateway(Box<Gateway>),
}

impl Cast {
    /// Starts all contenders and checks each: the right status for its keys, and 401 without a key if it has keys.
    pub async fn start(stage: &Stage) -> Cast {
        let mut cast = Cast {
            contenders: Vec::new(),
            running: Vec::new(),
        };
        let made_up = made_up_keys();
        cast.add(
            Kind::Direct,
            stage.upstream_port,
            &made_up,
            stage.upstream_pid(),
        );
        cast.haproxy(stage, &made_up).await;
        cast.nginx(stage, &made_up).await;
        cast.pingora(stage, &made_up).await;
        cast.nginx_lua(stage, &made_up).await;
        let touchline = Path::new(TOUCHLINE);
        cast.on_either_store(stage, touchline, [Kind::Embedded, Kind::Redis])
            .await;
        cast.permitted(stage).await;
        cast.refusing(stage, touchline, &made_up).await;
        match optimised() {
            Some(binary) => {
                cast.on_either_store(stage, &binary, [Kind::EmbeddedPgo, Kind::RedisPgo])
                    .await;
            }
            None => eprintln!("without a build by profile: make pgo makes one"),
        }
        cast.assert_answers().await;
        cast
    }

    /// Touchline alone, of this build, in all its roles.
    pub async fn of_build(stage: &Stage, binary: &Path) -> Cast {
        let mut cast = Cast {
            contenders: Vec::new(),
            running: Vec::new(),
        };
        cast.on_either_store(stage, binary, [Kind::Embedded, Kind::Redis])
            .await;
        cast.refusing(stage, binary, &made_up_keys()).await;
        cast.assert_answers().await;
        cast
    }

    async fn assert_answers(&self) {
        for contender in &self.contenders {
            contender.assert_answers().await;
        }
    }

    /// Those of these kinds that take part.
    pub fn those(&self, kinds: &[Kind]) -> Vec<&Contender> {
        let of = |kind: &Kind| self.contenders.iter().find(|one| one.kind == *kind);
        kinds.iter().filter_map(of).collect()
    }

    /// Asks the gateways to end; they write their pending data first.
    pub fn end(self) {
        for running in self.running {
            if let Running::Gateway(mut gateway) = running {
                let status = gateway.terminate();
                assert!(status.success(), "{status:?}: {}", gateway.output());
            }
        }
    }

    fn add(&mut self, kind: Kind, port: u16, keys: &[String], pid: u32) {
        let calls = Calls::new(
            loopback(port),
            kind.status(),
            keys,
            &[kind.path().to_owned()],
        );
        self.contenders.push(Contender {
            kind,
            calls: Arc::new(calls),
            key: keys[0].clone(),
            pid,
        });
    }

    async fn haproxy(&mut self, stage: &Stage, keys: &[String]) {
        let (directory, port) = (stage.directory("haproxy"), free_port());
        let map: String = keys.iter().map(|key| format!("{key} 1\n")).collect();
        std::fs::write(directory.join("keys.map"), map).unwrap();
        let text = include_str!("haproxy.cfg");
        let config = filled(text, &directory, &words(stage, port, 0), "haproxy.cfg");
        let mut command = on_cores(FIRST_CORE, "haproxy");
        command.args(["-db", "-f"]).arg(config);
        let pid = self.peer(spawn(command, &directory, "haproxy"), port).await;
        self.add(Kind::Haproxy, port, keys, pid);
    }

    async fn nginx(&mut self, stage: &Stage, keys: &[String]) {
        let directory = stage.directory("nginx");
        let (port, tls_port) = (free_port(), free_port());
        let certified = rcgen::generate_simple_self_signed(vec!["127.0.0.1".into()]).unwrap();
        std::fs::write(directory.join("tls.pem"), certified.cert.pem()).unwrap();
        let private = certified.signing_key.serialize_pem();
        std::fs::write(directory.join("tls.key"), private).unwrap();
        let text = include_str!("nginx.conf");
        let config = filled(
            text,
            &directory,
            &words(stage, port, tls_port),
            "nginx.conf",
        );
        let process = nginx(&config, &directory, "nginx", FIRST_CORE);
        let pid = self.peer(process, port).await;
        self.add(Kind::Nginx, port, keys, pid);
        self.add(Kind::NginxTls, tls_port, keys, pid);
        self.add(Kind::NginxTls2, tls_port, keys, pid);
    }

    async fn pingora(&mut self, stage: &Stage, keys: &[String]) {
        let port = free_port();
        let mut command = on_cores(FIRST_CORE, example("bare_pingora"));
        command.arg(format!("127.0.0.1:{port}"));
        command.arg(format!("127.0.0.1:{}", stage.upstream_port));
        let process = spawn(command, &stage.directory("pingora"), "pingora");
        let pid = self.peer(process, port).await;
        self.add(Kind::Pingora, port, keys, pid);
    }

    async fn nginx_lua(&mut self, stage: &Stage, keys: &[String]) {
        let (directory, port) = (stage.directory("nginx-lua"), free_port());
        std::fs::write(directory.join("charge.lua"), include_str!("charge.lua")).unwrap();
        for (number, key) in keys.iter().enumerate() {
            let (name, id) = (format!("key:{key}"), format!("k{number}"));
            let words = ["HSET", &name, "id", &id, "tier", "enterprise"];
            let words = [&words[..], &["state", "active"]].concat();
            stage.redis.command(&words).await.unwrap();
        }
        let text = include_str!("nginx_lua.conf");
        let config = filled(text, &directory, &words(stage, port, 0), "lua.conf");
        let process = nginx(&config, &directory, "nginx-lua", FIRST_CORE);
        let pid = self.peer(process, port).await;
        self.add(Kind::NginxLua, port, keys, pid);
    }

    /// Touchline on SQLite and on Redis.
    async fn on_either_store(&mut self, stage: &Stage, binary: &Path, kinds: [Kind; 2]) {
        let [embedded, redis] = kinds;
        for (kind, store) in [
            (embedded, stage.embedded_store(&format!("{embedded:?}"))),
            (redis, stage.redis_store(&format!("{redis:?}"))),
        ] {
            let name = format!("{kind:?}");
            let gateway = stage.gateway_of(binary, &name, &stage.spec(store)).await;
            let keys = issued(&gateway, "enterprise").await;
            self.gateway(gateway, |cast, gateway, pid| {
                cast.add(kind, gateway.http.port(), &keys, pid);
            });
        }
    }

    /// Touchline with a store that grants each charge at once.
    async fn permitted(&mut self, stage: &Stage) {
        let spec = stage.spec(stage.embedded_store("permitted"));
        let binary = example("permitted");
        let gateway = stage.gateway_of(&binary, "permitted", &spec).await;
        let keys = issued(&gateway, "enterprise").await;
        self.gateway(gateway, |cast, gateway, pid| {
            cast.add(Kind::Permitted, gateway.http.port(), &keys, pid);
        });
    }

    /// The second gateway on Redis: refused requests, and TLS.
    async fn refusing(&mut self, stage: &Stage, binary: &Path, made_up: &[String]) {
        let mut spec = stage.spec(stage.redis_store("refusing"));
        let starter = spec.tiers.iter_mut().find(|tier| tier.name == "starter");
        starter.unwrap().daily = 1;
        let gateway = stage.gateway_of(binary, "refusing", &spec).await;
        let keys = issued(&gateway, "enterprise").await;
        let low = issued(&gateway, "starter").await;
        let client = Client::new(Kind::Redis.protocol(), gateway.http, Arc::default());
        for key in &low {
            let answer = client.call(Call::get(PATH).header("x-api-key", key)).await;
            assert_eq!(answer.status, 200, "the day's only call: {answer:?}");
        }
        self.gateway(gateway, |cast, gateway, pid| {
            let (clear, tls) = (gateway.http.port(), gateway.https.port());
            cast.add(Kind::Unknown, clear, made_up, pid);
            cast.add(Kind::Forbidden, clear, &low, pid);
            cast.add(Kind::Exhausted, clear, &low, pid);
            cast.add(Kind::RedisTls, tls, &keys, pid);
            cast.add(Kind::RedisTls2, tls, &keys, pid);
        });
    }

    fn gateway(&mut self, mut gateway: Gateway, add: impl FnOnce(&mut Cast, &Gateway, u32)) {
        let pid = gateway.process().pid();
        add(self, &gateway, pid);
        self.running.push(Running::Gateway(Box::new(gateway)));
    }

    /// Adds a peer once it listens.
    async fn peer(&mut self, mut process: Process, port: u16) -> u32 {
        eventually("the contender listens", async || {
            assert!(process.ended().is_none(), "{}", process.output());
            tokio::net::TcpStream::connect(loopback(port)).await.ok()
        })
        .await;
        let pid = process.pid();
        self.running.push(Running::Peer(process));
        pid
    }
}

impl Contender {
    async fn assert_answers(&self) {
        let client = Client::new(self.kind.protocol(), self.calls.address, Arc::default());
        let call = Call::get(self.kind.path()).header("x-api-key", &self.key);
        let answer = client.call(call).await;
        assert_eq!(answer.status, self.kind.status(), "{:?}", self.kind);
        if self.kind.status() == 200 {
            assert_eq!(answer.body.len(), BODY_BYTES);
        }
        if self.kind.admits() {
            let limit = answer.header("x-ratelimit-limit");
            assert!(limit.is_some(), "{:?}: {answer:?}", self.kind);
            let answer = client.call(Call::get(PATH)).await;
            assert_eq!(answer.status, 401, "{:?} without a key", self.kind);
        }
    }
}

async fn issued(gateway: &Gateway, tier: &str) -> Vec<String> {
    let mut keys = Vec::with_capacity(KEYS);
    for _ in 0..KEYS {
        keys.push(issue(gateway, tier).await);
    }
    keys
}

/// Keys with a valid checksum that were never issued.
pub fn made_up_keys() -> Vec<String> {
    let prefix = KeyPrefix::default();
    let key = |_| {
        let key = ApiKey::generate(&prefix, &mut os_entropy);
        key.reveal().to_owned()
    };
    (0..KEYS).map(key).collect()
}

/// The words to replace in the templates. A longer word precedes the word with which it ends.
fn words(stage: &Stage, port: u16, tls_port: u16) -> [(&'static str, String); 4] {
    [
        ("UPSTREAM", stage.upstream_port.to_string()),
        ("REDIS", stage.redis.port().to_string()),
        ("TLS_PORT", tls_port.to_string()),
        ("PORT", port.to_string()),
    ]
}
