//! A Redis Cluster: a line to each of its masters, and the master of each slot.
//!
//! The client library's own cluster connection is not used: it waits for nodes that are down and resends commands
//! that may have run (docs/decisions/redis-link.md). Here a command is sent to the node of its key's slot, and fails at once if that one
//! is unavailable; keys of other nodes are unaffected. `MOVED`, `ASK` and `TRYAGAIN` state that a node did not run a command;
//! only these are followed, within the call's deadline. The map is read again every second, and at once after a
//! redirection or a failure; of the nodes' maps, a healthy one of the latest epoch is used.
//!
//! While a slot is being moved, a script on two names of which one does not exist yet (a key's first charge of a day) gets
//! `TRYAGAIN` until the slot is moved: the charge may time out, and is then settled like any other. Such slots are reported, because a
//! move that was interrupted never ends by itself, and further calls do not wait for them.
//!
//! A map is used only if it is of the cluster that is in use: an address may by now belong to another one ([`ClusterView::usable`]).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use futures_util::future::join_all;
use parking_lot::Mutex;
use redis::{Cmd, ErrorKind, Pipeline, ServerErrorKind, Value};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use self::node::ClusterNode;
use self::view::{ClusterView, UNKNOWN_HOST};
use super::connection::RedisConnection;
use super::line::{LinePreparation, ServerLine};
use super::preparation::Preparation;
use super::remedies::unconnected;
use super::request::{LinkError, jittered, pipeline};
use super::slots::{slot, slot_of};
use super::topology::{Address, Dialled, Topology};
use super::zone::EmptyStore;
use crate::policy::failure_log::LoggedReasons;
use crate::store::StoreError;

mod map;
mod node;
mod preparing;
pub mod view;

/// How often the map is asked for although nothing seems to have changed.
const REFRESH_EVERY: Duration = Duration::from_secs(1);
/// How long after one refresh the next begins, however many calls fail meanwhile.
const REFRESH_PAUSE: Duration = Duration::from_millis(50);
/// How long a node may take to return the map, and new lines to come up before the map is used without them. A connected node has the
/// timeout of its line, if that is shorter.
const MAP_TIMEOUT: Duration = Duration::from_secs(1);
/// How long preparing the cluster may take, with short timeouts; at least two of a call.
const PREPARE_TIMEOUT_MIN: Duration = Duration::from_secs(2);
/// The shortest and the longest wait between attempts to find the cluster, before jitter.
const RECONNECT_MIN: Duration = Duration::from_millis(50);
const RECONNECT_MAX: Duration = Duration::from_secs(1);
/// Redirections followed at once; further ones, and every `TRYAGAIN`, wait [`REDIRECT_PAUSE`].
const REDIRECTS_AT_ONCE: u32 = 3;
const REDIRECT_PAUSE: Duration = Duration::from_millis(5);
/// How long a slot is reported after the last call that waited for its move in vain.
const OPEN_SLOT_SHOWN: Duration = Duration::from_secs(10);

/// A connection to where a stream is kept.
pub struct ApartConnection {
    /// The connection.
    pub connection: RedisConnection,
    /// Whether each command with the stream's name must follow `ASKING`, because its slot is being moved.
    pub asks: bool,
    /// The node that served the slot; `None` without a cluster.
    pub owner: Option<Address>,
}

/// The cluster.
pub struct Cluster {
    topology: Topology,
    preparation: Arc<Preparation>,
    response_timeout: Duration,
    /// How many connections were made, and how often slots passed to another node.
    made: Arc<AtomicU64>,
    /// The latter alone.
    replaced: AtomicU64,
    table: ArcSwap<Table>,
    /// Held while the table is replaced.
    replacing: Mutex<()>,
    /// Whether it was prepared: before that only [`Preparation`] uses it.
    shown: AtomicBool,
    /// Whether its zone was read.
    zone_known: AtomicBool,
    trouble: ArcSwapOption<StoreError>,
    /// Why the maps that the last look found may not be used.
    other_cluster: ArcSwapOption<StoreError>,
    /// When a call last waited in vain for the move of a slot.
    open_slots: Mutex<BTreeMap<u16, Instant>>,
    /// Notified when the map may be out of date.
    stale: Notify,
}

/// The map in use.
#[derive(Clone, Default)]
struct Table {
    view: Arc<ClusterView>,
    nodes: Vec<Arc<ClusterNode>>,
    /// Since when the cluster reports that it does not serve, or `None` if it does.
    failing_since: Option<std::time::Instant>,
    /// The slots without a master, and since when they are not served.
    unserved: Vec<(RangeInclusive<u16>, std::time::Instant)>,
}

impl Table {
    fn node(&self, address: &Address) -> Option<&Arc<ClusterNode>> {
        self.nodes.iter().find(|node| node.address == *address)
    }

    fn is_connected(&self, address: &Address) -> bool {
        self.node(address).is_some_and(|node| node.line.is_up())
    }

    fn serves(&self, address: &Address) -> bool {
        self.node(address).is_some_and(|node| node.serves())
    }

    fn denies(&self, address: &Address) -> bool {
        self.node(address)
            .is_some_and(|node| node.denial().is_some())
    }

    /// The node that serves a slot.
    fn node_of(&self, slot: u16) -> Option<&Arc<ClusterNode>> {
        self.node(self.view.owner(slot)?)
    }

    /// Since when a slot is not served, or `None` if it is.
    fn away_since(&self, slot: u16) -> Option<std::time::Instant> {
        let since = match self.node_of(slot) {
            Some(node) => node.away_since(),
            None => {
                let mut unserved = self.unserved.iter();
                let gap = unserved.find(|(slots, _)| slots.contains(&slot));
                gap.map(|(_, since)| *since)
            }
        };
        since.into_iter().chain(self.failing_since).min()
    }
}

impl Cluster {
    /// A cluster that is not connected; [`Cluster::keep`] connects it.
    pub fn new(
        topology: Topology,
        preparation: Arc<Preparation>,
        response_timeout: Duration,
        made: Arc<AtomicU64>,
    ) -> Cluster {
        Cluster {
            topology,
            preparation,
            response_timeout,
            made,
            replaced: AtomicU64::new(0),
            table: ArcSwap::default(),
            replacing: Mutex::new(()),
            shown: AtomicBool::new(false),
            zone_known: AtomicBool::new(false),
            trouble: ArcSwapOption::empty(),
            other_cluster: ArcSwapOption::empty(),
            open_slots: Mutex::default(),
            stale: Notify::new(),
        }
    }

    fn any_line_up(&self) -> bool {
        let table = self.table.load();
        table.nodes.iter().any(|node| node.line.is_up())
    }

    /// Whether a node of the prepared cluster can be reached.
    pub fn is_up(&self) -> bool {
        let is_own = self.other_cluster.load().is_none();
        self.shown.load(Ordering::Acquire) && is_own && self.any_line_up()
    }

    /// The slots for whose move calls wait in vain.
    fn open_slots(&self) -> Vec<u16> {
        let mut open = self.open_slots.lock();
        open.retain(|_, waited| waited.elapsed() < OPEN_SLOT_SHOWN);
        open.keys().copied().collect()
    }

    fn note_open(&self, slot: u16) {
        if self
            .open_slots
            .lock()
            .insert(slot, Instant::now())
            .is_none()
        {
            tracing::warn!(server = %self.topology, slot, "calls wait in vain for the move of a slot");
        }
    }

    /// Why some slots are not served, in a sentence; `None` if all are.
    pub fn absences(&self) -> Option<String> {
        if let Some(error) = &*self.other_cluster.load() {
            return Some(error.to_string());
        }
        let table = self.table.load();
        let masters = table.view.nodes().into_iter();
        let absent = masters.filter(|address| !table.serves(address) || table.denies(address));
        let open = self.open_slots().into_iter().map(|slot| {
            format!(
                "slot {slot} is being moved: keys without counts of today are decided without Redis until it ends; redis-cli --cluster \
                 fix ends a move that was interrupted"
            )
        });
        let reasons: Vec<String> = absent
            .map(|address| {
                let why = match table.node(address) {
                    Some(node) if node.line.is_up() && node.is_failing() => {
                        "it reports that its cluster does not serve (CLUSTER INFO): slots have no master, or it does not reach most \
                         masters at their cluster ports"
                            .to_owned()
                    }
                    Some(node) if node.line.is_up() => {
                        let denial = node.denial().filter(|_| !node.refuses_writes());
                        denial.unwrap_or_else(|| "refuses writes".to_owned())
                    }
                    node => node
                        .and_then(|node| node.line.trouble())
                        .map_or_else(|| "not connected".to_owned(), |error| error.to_string()),
                };
                format!("{address}: {why}")
            })
            .chain(open)
            .chain(table.view.unserved())
            .collect();
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }

    /// Why the cluster is not used, or `None` if it is.
    pub fn trouble(&self) -> Option<Arc<StoreError>> {
        self.trouble.load_full()
    }

    /// Whether all slots are served.
    pub fn is_whole(&self) -> bool {
        let table = self.table.load();
        self.shown.load(Ordering::Acquire)
            && table.view.is_healthy()
            && table
                .view
                .owners()
                .all(|owner| table.serves(owner) && !table.denies(owner))
            && self.open_slots().is_empty()
    }

    /// Whether some slots are served.
    pub fn is_partly_up(&self) -> bool {
        let table = self.table.load();
        self.shown.load(Ordering::Acquire)
            && table.view.serves()
            && table.view.owners().any(|owner| table.serves(owner))
    }

    /// Fails at once if no node can be reached.
    pub fn require(&self) -> Result<(), LinkError> {
        if self.is_up() {
            return Ok(());
        }
        let trouble = self.trouble.load();
        Err(LinkError::no_connection(&self.topology, trouble.as_deref()))
    }

    /// Sends a command to the node of its key, and waits for the result until `deadline`.
    pub async fn query(&self, command: &Cmd, deadline: Instant) -> Result<Value, LinkError> {
        self.require()?;
        self.command(command, deadline).await
    }

    /// Whether the node that serves a slot can be reached and accepts writes.
    pub fn serves(&self, slot: u16) -> bool {
        let table = self.table.load();
        let is_served = || table.node_of(slot).is_some_and(|node| node.serves());
        self.shown.load(Ordering::Acquire) && is_served()
    }

    /// Fails if the node that serves a slot is known to refuse writes.
    pub fn require_writes(&self, slot: u16) -> Result<(), LinkError> {
        let table = self.table.load();
        match table.node_of(slot) {
            Some(node) if node.refuses_writes() => Err(LinkError::NoConnection(format!(
                "{} refuses writes; calls resume when it accepts one",
                node.address
            ))),
            Some(_) | None => Ok(()),
        }
    }

    /// Since when a slot is not served because it has no master, or that cannot be reached, refuses writes or does not serve; `None` if it
    /// is served.
    pub fn away_since(&self, slot: u16) -> Option<std::time::Instant> {
        self.table.load().away_since(slot)
    }

    /// The node that serves a slot; without a slot any one that can be reached.
    fn node_of(&self, slot: Option<u16>) -> Result<Arc<ClusterNode>, LinkError> {
        let table = self.table.load();
        let node = match slot {
            Some(slot) => table.node_of(slot),
            None => table.nodes.iter().find(|node| node.line.is_up()),
        };
        node.cloned().ok_or_else(|| {
            self.stale.notify_one();
            LinkError::NoConnection(match slot {
                Some(slot) => format!("no node of the cluster is known to serve slot {slot}"),
                None => {
                    let reasons = self.absences().unwrap_or_default();
                    format!("no node of the cluster can be reached: {reasons}")
                }
            })
        })
    }

    async fn command(&self, command: &Cmd, deadline: Instant) -> Result<Value, LinkError> {
        let node = self.node_of(slot_of(command))?;
        let result = node.line.query(command, deadline).await;
        self.followed(node, result, command, deadline).await
    }

    /// The result of a command after the redirections that its first one, of `node`, asks for, if there is time for them.
    async fn followed(
        &self,
        mut node: Arc<ClusterNode>,
        mut result: Result<Value, LinkError>,
        command: &Cmd,
        deadline: Instant,
    ) -> Result<Value, LinkError> {
        let mut waited = false;
        for redirections in 1.. {
            if let Err(error) = &result {
                node.note(error, command);
            }
            let refusal = match result {
                Err(LinkError::Refused(refusal)) if refusal.error.is_cluster_error() => refusal,
                Err(error @ (LinkError::NoConnection(_) | LinkError::Lost(_))) => {
                    self.stale.notify_one();
                    return Err(error);
                }
                other => return other,
            };
            let error = &refusal.error;
            let in_transit = error.kind() == ErrorKind::Server(ServerErrorKind::TryAgain);
            waited |= in_transit;
            let waits_for = slot_of(command).filter(|_| waited);
            let is_in_vain = |slot| in_transit && self.open_slots().contains(&slot);
            let pause = match in_transit || redirections > REDIRECTS_AT_ONCE {
                true => REDIRECT_PAUSE,
                false => Duration::ZERO,
            };
            if waits_for.is_some_and(is_in_vain) || Instant::now() + 2 * pause >= deadline {
                self.stale.notify_one();
                if let Some(slot) = waits_for {
                    self.note_open(slot);
                }
                return Err(LinkError::Lost(refusal.to_string()));
            }
            if !pause.is_zero() {
                sleep(pause).await;
            }
            result = match error.kind() {
                ErrorKind::Server(ServerErrorKind::Moved) => {
                    self.stale.notify_one();
                    node = self.redirected(error, &node)?;
                    node.tried(deadline).await;
                    node.line.query(command, deadline).await
                }
                ErrorKind::Server(ServerErrorKind::Ask) => {
                    node = self.redirected(error, &node)?;
                    node.tried(deadline).await;
                    let asking = pipeline([redis::cmd("ASKING"), command.clone()]);
                    let mut both = node.line.each(&asking, deadline).await;
                    both.pop().unwrap_or(Ok(Value::Nil))
                }
                ErrorKind::Server(ServerErrorKind::TryAgain) => {
                    node = self.node_of(slot_of(command))?;
                    node.line.query(command, deadline).await
                }
                // The cluster as a whole does not serve.
                _ => {
                    self.stale.notify_one();
                    return Err(LinkError::Lost(refusal.to_string()));
                }
            };
        }
        Err(LinkError::Lost("redirected too often".into()))
    }

    /// The node that a redirection names; one that was not known is connected to, and serves later calls.
    fn redirected(
        &self,
        error: &redis::RedisError,
        from: &ClusterNode,
    ) -> Result<Arc<ClusterNode>, LinkError> {
        let named = error
            .redirect_node()
            .and_then(|(address, slot)| Some((Address::parse(address)?, slot)));
        let address = match named {
            Some((address, slot)) if address.host == UNKNOWN_HOST => {
                let view = &self.table.load().view;
                let node = match error.kind() == ErrorKind::Server(ServerErrorKind::Moved) {
                    true => view.owner(slot),
                    false => view.moves_to(slot),
                };
                let node = node.cloned().ok_or_else(|| {
                    self.stale.notify_one();
                    LinkError::NoConnection(format!(
                        "slot {slot} is at a node of which neither name nor address is known yet"
                    ))
                });
                Some(node?)
            }
            named => named.map(|(address, _)| address.or_host(&from.address.host)),
        };
        let Some(address) = address else {
            return Err(LinkError::Unreadable(error.to_string()));
        };
        let known = self.table.load().node(&address).cloned();
        let node = known.unwrap_or_else(|| self.add(address));
        *node.redirected_to.lock() = Instant::now();
        Ok(node)
    }

    fn add(&self, address: Address) -> Arc<ClusterNode> {
        let _replacing = self.replacing.lock();
        let table = self.table.load();
        if let Some(node) = table.node(&address) {
            return node.clone();
        }
        let node = self.new_node(address);
        let nodes = table.nodes.iter().chain([&node]).cloned().collect();
        self.table.store(Arc::new(Table {
            nodes,
            ..Table::clone(&table)
        }));
        node
    }

    fn new_node(&self, address: Address) -> Arc<ClusterNode> {
        let server = self.topology.node(address.clone());
        let writes = self.preparation.empty_store == EmptyStore::Claimed;
        let node = LinePreparation::Node { writes };
        let line = ServerLine::new(server, node, self.response_timeout, self.made.clone());
        Arc::new(ClusterNode::new(address, Arc::new(line)))
    }

    /// The result of each command, in their order; those for one node are sent in one write, in their order too. An error of a
    /// node or of a command does not affect the others.
    pub async fn each(
        &self,
        pipeline: &Pipeline,
        deadline: Instant,
    ) -> Vec<Result<Value, LinkError>> {
        let mut results = Vec::with_capacity(pipeline.len());
        let mut shares: Vec<(Arc<ClusterNode>, Pipeline, Vec<usize>)> = Vec::new();
        for (place, command) in pipeline.cmd_iter().enumerate() {
            let node = match self.node_of(slot_of(command)) {
                Ok(node) => node,
                Err(error) => {
                    results.push((place, None, Err(error)));
                    continue;
                }
            };
            let known = shares
                .iter_mut()
                .find(|(other, ..)| Arc::ptr_eq(other, &node));
            if let Some((_, share, places)) = known {
                share.add_command(command.clone());
                places.push(place);
            } else {
                let mut share = Pipeline::new();
                share.add_command(command.clone());
                shares.push((node, share, vec![place]));
            }
        }
        let sent = shares
            .iter()
            .map(|(node, share, _)| node.line.each(share, deadline));
        for (answers, (node, _, places)) in join_all(sent).await.into_iter().zip(&shares) {
            let answers = places.iter().zip(answers);
            results.extend(answers.map(|(place, answer)| (*place, Some(node.clone()), answer)));
        }
        results.sort_unstable_by_key(|(place, ..)| *place);
        let mut followed = Vec::with_capacity(results.len());
        for ((_, node, result), command) in results.into_iter().zip(pipeline.cmd_iter()) {
            followed.push(match node {
                Some(node) => self.followed(node, result, command, deadline).await,
                None => result,
            });
        }
        followed
    }

    /// A connection of its own to the node that keeps the stream `name`.
    pub async fn connect_apart(&self, name: &str) -> Result<ApartConnection, StoreError> {
        self.refresh().await?;
        let owner = self.node_of(Some(slot(name.as_bytes())))?;
        let dial = async |node: &ClusterNode| self.topology.node(node.address.clone()).dial().await;
        let apart = |dialled: Dialled, asks| ApartConnection {
            connection: dialled.connection,
            asks,
            owner: Some(owner.address.clone()),
        };
        let dialled = dial(&owner).await?;
        let tried = timeout(
            MAP_TIMEOUT,
            dialled.connection.ask(&Cmd::xinfo_stream(name)),
        )
        .await;
        match tried {
            Ok(Err(error)) if error.kind() == ErrorKind::Server(ServerErrorKind::Ask) => {
                let node = self.redirected(&error, &owner)?;
                Ok(apart(dial(&node).await?, true))
            }
            // Other faults are found by what the connection is for.
            _ => Ok(apart(dialled, false)),
        }
    }

    /// The node that serves a slot, by the map as it is known.
    pub fn owner(&self, slot: u16) -> Option<Address> {
        self.table.load().view.owner(slot).cloned()
    }

    /// The map of this moment.
    pub async fn view(&self) -> Result<Arc<ClusterView>, StoreError> {
        self.require()?;
        self.refresh().await
    }

    /// Whether no slot has moved or is moving since a view was taken.
    pub async fn is_still(&self, before: &ClusterView) -> Result<bool, StoreError> {
        Ok(before.is_as_still_as(&*self.refresh().await?))
    }

    /// Sends a command to one node.
    pub async fn ask_node(
        &self,
        address: &Address,
        command: &Cmd,
        deadline: Instant,
    ) -> Result<Value, LinkError> {
        let node = self.table.load().node(address).cloned();
        let Some(node) = node else {
            return Err(LinkError::NoConnection(format!(
                "{address} left the cluster"
            )));
        };
        node.line.query(command, deadline).await
    }

    /// How often slots passed to another node than before.
    pub fn replaced(&self) -> u64 {
        self.replaced.load(Ordering::Acquire)
    }

    /// The masters that serve slots, each once.
    pub fn owners(&self) -> BTreeSet<Address> {
        self.table.load().view.owners().cloned().collect()
    }

    /// The masters by the map as it is known.
    pub fn masters(&self) -> Vec<Address> {
        self.table
            .load()
            .view
            .nodes()
            .into_iter()
            .cloned()
            .collect()
    }

    /// Tries once to find and prepare the cluster and to publish it to callers.
    pub async fn connect(&self) -> Result<(), StoreError> {
        let patience = PREPARE_TIMEOUT_MIN.max(2 * self.response_timeout);
        let attempt = async {
            let view = self.refresh().await?;
            let own = view.own_address();
            if own.is_some_and(|own| !self.table.load().is_connected(own)) {
                // It answered elsewhere: the other masters, which can be asked now, know where.
                self.refresh().await?;
            }
            timeout(patience, self.prepare()).await.unwrap_or_else(|_| {
                Err(StoreError::Unavailable(format!(
                    "{}: found, but no answer in time",
                    self.topology
                )))
            })
        };
        let attempt = attempt.await.map_err(unconnected);
        attempt.inspect_err(|error| {
            self.trouble.store(Some(Arc::new(error.clone())));
        })?;
        self.trouble.store(None);
        self.shown.store(true, Ordering::Release);
        Ok(())
    }

    /// Asks the masters that refuse writes whether they accept them again.
    async fn probe(&self) {
        let table = self.table.load_full();
        // A probe of a former master would break its connection.
        let masters = table.view.nodes();
        let masters = table
            .nodes
            .iter()
            .filter(|node| masters.contains(&node.address));
        let deadline = Instant::now() + self.response_timeout;
        join_all(masters.map(|node| node.probe(deadline))).await;
    }

    /// Keeps the map current; a cluster that was lost completely is prepared again. Logs every new reason, once. Never returns.
    pub async fn keep(&self) {
        let mut wait = RECONNECT_MIN;
        let mut logged = LoggedReasons::default();
        loop {
            let attempt = if self.is_up() {
                let _ = timeout(REFRESH_EVERY, self.stale.notified()).await;
                self.probe().await;
                self.refresh().await.map(drop)
            } else {
                self.shown.store(false, Ordering::Release);
                let found = self.connect().await;
                if found.is_ok() {
                    tracing::info!(server = %self.topology, "connected to the Redis cluster");
                }
                found
            };
            match attempt {
                Ok(()) => {
                    logged.ended();
                    wait = RECONNECT_MIN;
                    sleep(REFRESH_PAUSE).await;
                }
                Err(error) => {
                    let text = error.to_string();
                    if logged.is_new(&text) {
                        tracing::error!(error = %text, "the Redis cluster cannot be used; trying again");
                    }
                    sleep(jittered(wait)).await;
                    wait = (2 * wait).min(RECONNECT_MAX);
                }
            }
        }
    }
}
