//! The connection to Redis in any topology: up or down, never waited for.
//!
//! One server, or the master behind Sentinel, is one [`ServerLine`]; a cluster is a line to each of its masters
//! ([`Cluster`]). For callers, a request has its result by its deadline or fails; without a connection it fails at
//! once. Invariant: a request is never resent without the caller's knowledge, unless a node of a cluster replied that it did not
//! run it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use redis::{Cmd, FromRedisValue, InfoDict, Pipeline, ToRedisArgs, Value};
use tokio::time::Instant;

use super::cluster::view::ClusterView;
use super::cluster::{ApartConnection, Cluster};
use super::line::{LinePreparation, ServerLine};
use super::preparation::Preparation;
use super::remedies::unconnected;
use super::request::{LinkError, parsed, pipeline, read_time};
use super::script::Script;
use super::slots::slot;
use super::topology::{Address, Topology};
use super::zone::{self, EmptyStore, ZoneCheck, zone_names};
use crate::store::StoreError;
use crate::store::redis::names::Names;

/// A server that accepts writes.
#[derive(Debug, Clone)]
pub struct Master {
    /// Its address, for operators.
    pub shown: String,
    /// Where it is, in a cluster.
    node: Option<Address>,
}

/// The progress of a scan over all names.
#[derive(Debug, Clone, Default)]
pub struct ScanPlace {
    at: u64,
    /// In a cluster: the nodes as they were when the scan began, and how many of them are done.
    view: Option<Arc<ClusterView>>,
    nodes_done: usize,
    again: bool,
}

enum Way {
    Server(ServerLine),
    Cluster(Cluster),
}

/// The connection to Redis, and what the store is called there.
pub struct RedisLink {
    /// The names of the store.
    pub names: Names,
    /// The topology it leads to.
    pub topology: Topology,
    response_timeout: Duration,
    made: Arc<AtomicU64>,
    way: Way,
}

impl RedisLink {
    /// A link without a connection; [`RedisLink::keep`] connects it.
    pub fn new(
        topology: Topology,
        preparation: Arc<Preparation>,
        response_timeout: Duration,
    ) -> RedisLink {
        let made = Arc::new(AtomicU64::new(0));
        let way = match topology.seeds() {
            None => Way::Server(ServerLine::new(
                topology.clone(),
                LinePreparation::Whole(preparation.clone()),
                response_timeout,
                made.clone(),
            )),
            Some(_) => Way::Cluster(Cluster::new(
                topology.clone(),
                preparation.clone(),
                response_timeout,
                made.clone(),
            )),
        };
        RedisLink {
            names: preparation.names.clone(),
            topology,
            response_timeout,
            made,
            way,
        }
    }

    /// Whether there is a connection; of a cluster, to any of its masters.
    pub fn is_up(&self) -> bool {
        match &self.way {
            Way::Server(line) => line.is_up(),
            Way::Cluster(cluster) => cluster.is_up(),
        }
    }

    /// Whether Redis is expected to serve every command: in a cluster, those of all slots.
    pub fn is_whole(&self) -> bool {
        match &self.way {
            Way::Server(line) => line.is_up(),
            Way::Cluster(cluster) => cluster.is_whole(),
        }
    }

    /// Whether Redis is expected to serve the commands of some slots of a cluster.
    pub fn is_partly_up(&self) -> bool {
        self.cluster().is_some_and(Cluster::is_partly_up)
    }

    /// How many connections were made so far, and how often another node of a cluster got slots: a new number means that a server may have
    /// changed.
    pub fn made(&self) -> u64 {
        self.made.load(Ordering::Acquire)
    }

    /// Why there is no connection, or `None` if there is one.
    pub fn trouble(&self) -> Option<Arc<StoreError>> {
        match &self.way {
            Way::Server(line) => line.trouble(),
            Way::Cluster(cluster) => cluster.trouble(),
        }
    }

    /// Why masters of a cluster do not serve, or `None` if all do; always `None` without a cluster.
    pub fn absences(&self) -> Option<String> {
        self.cluster()?.absences()
    }

    /// Fails at once if there is no connection.
    pub fn require(&self) -> Result<(), LinkError> {
        match &self.way {
            Way::Server(line) => line.require(),
            Way::Cluster(cluster) => cluster.require(),
        }
    }

    /// Sends a command and waits for its result until `deadline`.
    pub async fn query(&self, command: &Cmd, deadline: Instant) -> Result<Value, LinkError> {
        let result = match &self.way {
            Way::Server(line) => line.query(command, deadline).await,
            Way::Cluster(cluster) => cluster.query(command, deadline).await,
        };
        result.map_err(lost_in_transit)
    }

    /// As [`RedisLink::query`], with the link's own timeout from now.
    pub async fn ask(&self, command: &Cmd) -> Result<Value, LinkError> {
        self.query(command, self.deadline()).await
    }

    /// The server's time.
    pub async fn time(&self) -> Result<Timestamp, StoreError> {
        read_time(self.ask(&redis::cmd("TIME")).await?)
    }

    /// Asks like [`RedisLink::ask`], and reads the reply.
    pub async fn read<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, StoreError> {
        Ok(parsed(self.ask(command).await?)?)
    }

    /// The replies to commands that are sent in one write, which is not a transaction; the first error is that of all.
    pub async fn replies<T: FromRedisValue>(
        &self,
        commands: impl IntoIterator<Item = Cmd>,
    ) -> Result<T, StoreError> {
        let commands = pipeline(commands);
        let results = self.ask_each(&commands).await.into_iter();
        let values = results.collect::<Result<_, _>>().map_err(lost_in_transit)?;
        Ok(parsed(Value::Array(values))?)
    }

    /// Sends commands in one write; their replies do not matter.
    pub async fn send(&self, commands: impl IntoIterator<Item = Cmd>) -> Result<(), StoreError> {
        let commands = pipeline(commands);
        let mut results = self.ask_each(&commands).await.into_iter();
        let failed = results.find_map(Result::err).map(lost_in_transit);
        failed.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Sends commands and returns the result of each, in their order. The error of one, or of one master, does not affect the
    /// others.
    pub async fn ask_each(&self, pipeline: &Pipeline) -> Vec<Result<Value, LinkError>> {
        if let Err(error) = self.require() {
            return vec![Err(error); pipeline.len()];
        }
        if pipeline.is_empty() {
            return Vec::new();
        }
        let deadline = self.deadline();
        match &self.way {
            Way::Server(line) => line.each(pipeline, deadline).await,
            Way::Cluster(cluster) => cluster.each(pipeline, deadline).await,
        }
    }

    /// Whether there is a connection to the server that keeps `name`, and it is not known to refuse writes.
    pub fn serves(&self, name: &str) -> bool {
        self.serves_slot(slot(name.as_bytes()))
    }

    /// As [`RedisLink::serves`], for the names of a hash slot.
    pub fn serves_slot(&self, slot: u16) -> bool {
        match &self.way {
            Way::Server(line) => line.is_up(),
            Way::Cluster(cluster) => cluster.serves(slot),
        }
    }

    /// Fails if the node of a cluster that keeps the names of a hash slot is known to refuse writes.
    pub fn require_writes(&self, slot: u16) -> Result<(), LinkError> {
        let cluster = self.cluster();
        cluster.map_or(Ok(()), |cluster| cluster.require_writes(slot))
    }

    /// Since when the server that keeps `name` cannot be used, or `None` if it can.
    pub fn away_since(&self, name: &str) -> Option<std::time::Instant> {
        match &self.way {
            Way::Server(line) => line.down_since(),
            Way::Cluster(cluster) => cluster.away_since(slot(name.as_bytes())),
        }
    }

    /// When a request that is sent now has timed out.
    pub fn deadline(&self) -> Instant {
        Instant::now() + self.response_timeout
    }

    /// Whether it is a cluster.
    pub fn is_cluster(&self) -> bool {
        self.cluster().is_some()
    }

    fn cluster(&self) -> Option<&Cluster> {
        match &self.way {
            Way::Server(_) => None,
            Way::Cluster(cluster) => Some(cluster),
        }
    }

    /// The servers that accept writes now.
    pub fn masters(&self) -> Vec<Master> {
        match &self.way {
            Way::Server(line) => vec![Master {
                shown: line.shown(),
                node: None,
            }],
            Way::Cluster(cluster) => {
                let masters = cluster.masters().into_iter().map(|address| Master {
                    shown: address.to_string(),
                    node: Some(address),
                });
                masters.collect()
            }
        }
    }

    /// Whether a master keeps `name`.
    pub fn keeps(&self, master: &Master, name: &str) -> bool {
        let node = self.cluster().zip(master.node.as_ref());
        node.is_none_or(|(cluster, node)| {
            cluster.owner(slot(name.as_bytes())).as_ref() == Some(node)
        })
    }

    /// Sends a command to one master, whatever its key, and reads the reply.
    pub async fn ask_master<T: FromRedisValue>(
        &self,
        master: &Master,
        command: &Cmd,
        deadline: Instant,
    ) -> Result<T, LinkError> {
        parsed(match self.cluster().zip(master.node.as_ref()) {
            Some((cluster, node)) => cluster.ask_node(node, command, deadline).await?,
            None => self.query(command, deadline).await?,
        })
    }

    /// The processes of the masters of a cluster that serve slots and can be reached, by their names for themselves; none of another
    /// topology, whose one server is asked on the connection in question.
    pub async fn run_ids(&self) -> BTreeSet<String> {
        let mut run_ids = BTreeSet::new();
        let Some(cluster) = self.cluster() else {
            return run_ids;
        };
        let ask = redis::cmd("INFO").arg("server").to_owned();
        // Without those that serve none: a former master is one for some seconds, and what it lacks when it returns is to be noticed.
        for master in cluster.owners() {
            let reply = cluster.ask_node(&master, &ask, self.deadline()).await;
            let info = reply.ok().and_then(|reply| parsed::<InfoDict>(reply).ok());
            run_ids.extend(info.and_then(|info| info.get("run_id")));
        }
        run_ids
    }

    /// A connection of its own to where the stream `name` is kept, for blocking commands. Its calls have no timeout but the caller's.
    pub async fn connect_apart(&self, name: &str) -> Result<ApartConnection, StoreError> {
        match &self.way {
            Way::Server(_) => {
                let dialled = self.topology.dial().await.map_err(unconnected)?;
                Ok(ApartConnection {
                    connection: dialled.connection,
                    asks: false,
                    owner: None,
                })
            }
            Way::Cluster(cluster) => cluster.connect_apart(name).await.map_err(unconnected),
        }
    }

    /// How often slots of a cluster passed to another node, which may lack what its predecessor had.
    pub fn replaced(&self) -> u64 {
        self.cluster().map_or(0, Cluster::replaced)
    }

    /// The node of a cluster that serves a name, by the map as it is known; `None` without a cluster.
    pub fn owner(&self, name: &str) -> Option<Address> {
        self.cluster()?.owner(slot(name.as_bytes()))
    }

    /// One step of a scan over all names of all servers: where to continue, and the matching names. A name may be found twice.
    pub async fn scan(
        &self,
        place: ScanPlace,
        pattern: &str,
        count: u32,
    ) -> Result<(Option<ScanPlace>, Vec<String>), StoreError> {
        let mut step = redis::cmd("SCAN");
        step.arg((place.at, "MATCH", pattern, "COUNT", count));
        let deadline = self.deadline();
        match &self.way {
            Way::Server(_) => {
                let (at, found) = self.read(&step).await?;
                let next = (at != 0).then_some(ScanPlace { at, ..place });
                Ok((next, found))
            }
            Way::Cluster(cluster) => {
                let view = match &place.view {
                    Some(view) => view.clone(),
                    None => cluster.view().await?,
                };
                let Some(node) = view.nodes().into_iter().nth(place.nodes_done) else {
                    return Ok((None, Vec::new()));
                };
                let (at, found) = parsed(cluster.ask_node(node, &step, deadline).await?)?;
                let mut next = ScanPlace {
                    at,
                    view: Some(view.clone()),
                    ..place
                };
                if at == 0 {
                    next.nodes_done += 1;
                }
                if next.nodes_done < view.nodes().len() {
                    return Ok((Some(next), found));
                }
                // A name that moved from a node not yet scanned to one that was is found by a second round: a name that
                // moves twice meanwhile is not reckoned with.
                let moving = !next.again && !cluster.is_still(&view).await?;
                let again = moving.then(|| ScanPlace {
                    again: true,
                    ..ScanPlace::default()
                });
                Ok((again, found))
            }
        }
    }

    /// The reply of a script, which is run by its name, and once by its text if the server has forgotten it.
    ///
    /// # Errors
    /// [`LinkError`] if there is no reply by the deadline.
    pub async fn run<T: FromRedisValue>(
        &self,
        script: &Script,
        keys: &[impl AsRef<str> + Sync],
        arguments: &(impl ToRedisArgs + Sync),
        deadline: Instant,
    ) -> Result<T, LinkError> {
        if let Some(by_name) = script.by_name(keys, arguments) {
            match self.query(&by_name, deadline).await {
                Err(LinkError::Refused(refusal)) if is_unknown_script(&refusal.error) => {}
                other => return parsed(other?),
            }
        }
        let by_text = script.by_text(keys, arguments);
        parsed(self.query(&by_text, deadline).await?)
    }

    /// Checks that the store has this zone of the quota days; see [`zone::check`].
    pub async fn check_zone(&self, zone: &str, empty: EmptyStore) -> Result<ZoneCheck, StoreError> {
        let names = zone_names(&self.names, self.is_cluster());
        let send = |commands| async move { self.ask_each(&commands).await };
        zone::check(&names, zone, empty, send).await
    }

    /// Tries once to make and prepare a connection and to publish it to callers.
    pub async fn connect(&self) -> Result<(), StoreError> {
        match &self.way {
            Way::Server(line) => line.connect().await,
            Way::Cluster(cluster) => cluster.connect().await,
        }
    }

    /// Keeps a connection, as the link's one task. Logs every new reason for having none, once. Never returns.
    pub async fn keep(self: Arc<Self>) {
        match &self.way {
            Way::Server(line) => line.keep().await,
            Way::Cluster(cluster) => cluster.keep().await,
        }
    }
}

/// The error of a command; those of a cluster that moves its slots are transient.
fn lost_in_transit(error: LinkError) -> LinkError {
    match error {
        LinkError::Refused(refusal) if refusal.error.is_cluster_error() => {
            LinkError::Lost(refusal.to_string())
        }
        other => other,
    }
}

fn is_unknown_script(error: &redis::RedisError) -> bool {
    error.kind() == redis::ErrorKind::Server(redis::ServerErrorKind::NoScript)
}
