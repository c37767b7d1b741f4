//! The stage of schedules of faults: Redis of one topology, three gateways with directories of their own, a proxy before each
//! of them if Redis is one server, and an upstream that records the requests it served.

use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tempfile::TempDir;

use super::oracle::Logged;
use super::schedule::{GATEWAYS, Topology};
use super::swarm::{Addresses, id_of, lock};
use crate::client::{Call, Client, Protocol};
use crate::ledger::{UsageRow, date_of, read_usage};
use crate::redis_nodes::{ClusterSet, SentinelSet};
use crate::scene::pass_midnight;
use crate::upstream::Behaviour;
use crate::{
    Faketime, Gateway, GatewaySpec, IssuedKey, PATIENCE, RecordingUpstream, RedisServer, StoreSpec,
    TcpProxy, eventually,
};

/// The upstream fails one call in this number, which is then refunded.
const FAILED_ONE_IN: u64 = 40;
const LOOK_PAUSE: Duration = Duration::from_millis(20);
/// The log line of a gateway that has read the last counts of a killed predecessor.
const INHERITED: &str = "the last counts of this journal's other processes are read from Redis";
/// Days around today that are read from the store.
const USAGE_DAYS: u64 = 2;

/// The clocks of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clocks {
    /// The machine's.
    Real,
    /// One that tests set, for all processes.
    Shared,
    /// One that tests set, for the first gateway alone.
    Apart,
}

/// A stage to be.
#[derive(Debug, Clone)]
pub struct StageSpec {
    /// The binary under test.
    pub binary: PathBuf,
    /// The kind of store.
    pub topology: Topology,
    /// Units a day of keys that are to be used up.
    pub scarce: u64,
    /// `store.redis.timeout`.
    pub timeout: Duration,
    /// The clocks.
    pub clocks: Clocks,
}

impl StageSpec {
    /// Units a day of a tier, as all gateways have them.
    pub fn limit(&self, tier: &str) -> u64 {
        match tier {
            "starter" => self.scarce,
            "pro" => self.scarce * 2,
            _ => 1_000_000_000,
        }
    }
}

/// The store of a stage.
pub enum Servers {
    /// One server.
    Single(RedisServer),
    /// A master, a replica, sentinels.
    Sentinel(SentinelSet),
    /// A cluster.
    Cluster(ClusterSet),
}

/// A stage with all its processes running.
pub struct Stage {
    /// The specification of the stage.
    pub spec: StageSpec,
    /// The store.
    pub servers: Servers,
    /// A proxy before the store for each gateway, if the store is one server.
    pub proxies: Vec<TcpProxy>,
    /// The gateways.
    pub gateways: Vec<Gateway>,
    /// Where they listen.
    pub addresses: Addresses,
    /// The upstream behind them.
    pub upstream: RecordingUpstream,
    /// The clock that tests set, if there is one.
    pub clock: Option<Faketime>,
    /// How far each access log was read.
    logs_read: Vec<u64>,
    /// How often each gateway must have logged that it read the counts of its killed predecessors.
    inherited: Vec<usize>,
    // Dropped last: the processes above write to it.
    directory: TempDir,
}

/// Whether the upstream fails a call.
pub fn is_failed(id: u64) -> bool {
    id.is_multiple_of(FAILED_ONE_IN)
}

impl Stage {
    /// Starts everything. Shortly before midnight of UTC it waits until after it, unless tests set the day.
    pub async fn start(spec: StageSpec) -> Stage {
        if spec.clocks != Clocks::Shared {
            pass_midnight().await;
        }
        let directory = TempDir::new().expect("a temporary directory");
        let clock = (spec.clocks != Clocks::Real).then(|| Faketime::new(directory.path()));
        let shared = clock.clone().filter(|_| spec.clocks == Clocks::Shared);
        let servers = start_servers(spec.topology, directory.path(), shared).await;
        let mut proxies = Vec::new();
        if let Servers::Single(server) = &servers {
            for _ in 0..GATEWAYS {
                proxies.push(TcpProxy::before(server.port()).await);
            }
        }
        let upstream = RecordingUpstream::start().await;
        upstream.behave(|request| match id_of(&request.id) {
            Some(id) if is_failed(id) => Behaviour::Status(503),
            Some(_) | None => Behaviour::Echo,
        });
        let mut gateways = Vec::new();
        for number in 0..GATEWAYS {
            let mut gateway =
                GatewaySpec::new(store(&servers, proxies.get(number)), upstream.address());
            let faked = spec.clocks == Clocks::Shared || number == 0;
            gateway.clock = clock.clone().filter(|_| faked);
            gateway.redis_extra = format!(
                "timeout: {}ms, min_nodes: {GATEWAYS}",
                spec.timeout.as_millis()
            );
            for tier in &mut gateway.tiers {
                tier.daily = spec.limit(&tier.name);
            }
            let name = format!("gateway-{number}");
            let own = directory.path().join(&name);
            std::fs::create_dir(&own).expect("the gateway's directory");
            gateways.push(Gateway::start(&spec.binary, &own, &name, &gateway).await);
        }
        Stage {
            addresses: Arc::new(gateways.iter().map(|one| Mutex::new(one.http)).collect()),
            logs_read: vec![0; GATEWAYS],
            inherited: vec![0; GATEWAYS],
            spec,
            servers,
            proxies,
            gateways,
            upstream,
            clock,
            directory,
        }
    }

    /// The one server.
    ///
    /// # Panics
    /// In another topology.
    pub fn single(&mut self) -> &mut RedisServer {
        match &mut self.servers {
            Servers::Single(server) => server,
            Servers::Sentinel(_) | Servers::Cluster(_) => {
                panic!("a fault of one server, of which there are several")
            }
        }
    }

    /// Issues a key and waits until all gateways know it.
    pub async fn issue(&self, tier: &str) -> IssuedKey {
        let arguments = [
            "keys",
            "issue",
            "--tier",
            tier,
            "--customer",
            "Acme",
            "--output",
            "json",
        ];
        let key = eventually("a key is issued", async || {
            // The command does not exit with 0 if a gateway that was killed a moment ago has not applied it.
            let output = self.gateways[0].cli(&arguments).await;
            let value: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
            let member = |name: &str| Some(value.get(name)?.as_str()?.to_owned());
            Some(IssuedKey {
                id: member("id")?,
                key: member("key")?,
                tier: tier.to_owned(),
            })
        })
        .await;
        for number in 0..GATEWAYS {
            eventually("every gateway knows the key", async || {
                let call = Call::get("/api/v1/usage").key(&key);
                let answer = self.call(self.gateways[number].http, call).await?;
                (answer.status != 401).then_some(())
            })
            .await;
        }
        key
    }

    async fn call(&self, address: std::net::SocketAddr, call: Call) -> Option<crate::Answer> {
        let client = Client::new(Protocol::Http1, address, Arc::default());
        client.try_call(call).await.ok()
    }

    /// Waits until every gateway reports that it is ready, has no pending counts, and has read those of a killed
    /// predecessor; returns how long that took.
    ///
    /// # Panics
    /// With the output of the gateways, if they are not ready after a minute.
    pub async fn whole(&self) -> Duration {
        let began = Instant::now();
        for number in 0..GATEWAYS {
            while let Err(state) = self.is_whole(number).await {
                if began.elapsed() > PATIENCE {
                    panic!("gateway {number} is not whole: {state}\n{}", self.outputs());
                }
                tokio::time::sleep(LOOK_PAUSE).await;
            }
        }
        began.elapsed()
    }

    async fn is_whole(&self, number: usize) -> Result<(), String> {
        let admin = self.gateways[number].admin;
        let ask = async |path| {
            let answer = self.call(admin, Call::get(path)).await;
            answer.map_or_else(String::new, |answer| {
                String::from_utf8_lossy(&answer.body).into_owned()
            })
        };
        let (ready, metrics) = (ask("/readyz").await, ask("/metrics").await);
        // A clock that leapt leaves it degraded for an hour.
        let status = serde_json::from_str::<serde_json::Value>(&ready)
            .ok()
            .and_then(|value| {
                let is_served = value.get("status")?.as_str()? != "unready";
                Some(is_served && value.get("store_up")?.as_bool()?)
            });
        let pending = "touchline_journal_pending_units ";
        let pending = metrics.lines().find_map(|line| line.strip_prefix(pending));
        let wanted = self.inherited[number];
        if wanted > 0 && self.times_inherited(number) < wanted {
            return Err("it has not read what its predecessor had counted".into());
        }
        match (status, pending) {
            (Some(true), Some("0")) => Ok(()),
            (_, pending) => Err(format!("{ready}, units to send: {pending:?}")),
        }
    }

    fn times_inherited(&self, number: usize) -> usize {
        self.gateways[number].output().matches(INHERITED).count()
    }

    /// Starts a gateway again that was killed.
    pub async fn restart_gateway(&mut self, number: usize) {
        self.inherited[number] = self.times_inherited(number) + 1;
        self.gateways[number].restart().await;
        *lock(&self.addresses[number]) = self.gateways[number].http;
    }

    /// The counts of the store, by key id and date.
    pub async fn counts(&self) -> BTreeMap<(String, String), u64> {
        let rows: Vec<UsageRow> = eventually("the usage is shown", async || {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs();
            let (from, to) = (
                date_of(now - USAGE_DAYS * 86_400),
                date_of(now + USAGE_DAYS * 86_400),
            );
            let arguments = ["usage", "--from", &from, "--to", &to, "--output", "json"];
            let output = self.gateways[0].cli(&arguments).await;
            read_usage(&String::from_utf8_lossy(&output.stdout)).ok()
        })
        .await;
        let counts = rows.into_iter().map(|row| ((row.key, row.date), row.used));
        counts.collect()
    }

    /// The lines of the access logs since they were last read.
    pub fn read_logs(&mut self) -> Vec<Logged> {
        let mut lines = Vec::new();
        for (gateway, read) in self.gateways.iter().zip(&mut self.logs_read) {
            let mut bytes = Vec::new();
            if let Ok(mut file) = std::fs::File::open(&gateway.access_log) {
                let _ = file.seek(SeekFrom::Start(*read));
                let _ = file.read_to_end(&mut bytes);
            }
            // The last line may still be on its way.
            let whole = bytes
                .iter()
                .rposition(|byte| *byte == b'\n')
                .map_or(0, |end| end + 1);
            *read += whole as u64;
            let text = String::from_utf8_lossy(bytes.get(..whole).unwrap_or_default());
            lines.extend(text.lines().filter_map(read_logged));
        }
        lines
    }

    /// The output of the gateways, for a failing schedule's message.
    pub fn outputs(&self) -> String {
        self.gateways.iter().map(Gateway::output).collect()
    }

    /// The directory of all files.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }
}

/// How a gateway reaches the store: through its proxy, if it has one.
fn store(servers: &Servers, proxy: Option<&TcpProxy>) -> StoreSpec {
    match servers {
        Servers::Single(server) => StoreSpec::Redis {
            url: proxy.map_or_else(|| server.url(), TcpProxy::url),
            key_prefix: "touchline".into(),
        },
        Servers::Sentinel(set) => StoreSpec::Sentinel {
            sentinels: set.addresses(),
            master: "mymaster".into(),
        },
        Servers::Cluster(set) => StoreSpec::Cluster {
            nodes: set.addresses(),
        },
    }
}

async fn start_servers(topology: Topology, directory: &Path, clock: Option<Faketime>) -> Servers {
    match topology {
        Topology::Forgetful => Servers::Single(RedisServer::start(directory, false, clock).await),
        Topology::Durable => Servers::Single(RedisServer::start(directory, true, clock).await),
        Topology::Sentinel => Servers::Sentinel(SentinelSet::start().await),
        Topology::Cluster => Servers::Cluster(ClusterSet::start(1).await),
    }
}

/// A line of a call of the swarm; a killed process may have left half a line.
fn read_logged(line: &str) -> Option<Logged> {
    let value: serde_json::Value = serde_json::from_str(line).ok()?;
    let refunded = value.get("refunded")?.as_bool()?;
    let wait = value.get("store_ms")?.as_f64()?;
    Some(Logged {
        id: id_of(value.get("request_id")?.as_str()?)?,
        status: u16::try_from(value.get("status")?.as_u64()?).ok()?,
        units: if refunded {
            0
        } else {
            value.get("units")?.as_u64()?
        },
        store_wait: Duration::from_secs_f64(wait / 1e3),
    })
}
