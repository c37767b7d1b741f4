//! The map of a cluster: asked for, accepted if it is of the cluster in use, and followed.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep, timeout};

use super::node::{AWAIT_LINES_EVERY, ClusterNode};
use super::view::ClusterView;
use super::{Cluster, MAP_TIMEOUT, Table};
use crate::store::StoreError;
use crate::store::redis::wire::topology::Address;

/// How long a node that only redirections named is kept without another one.
const REDIRECTED_KEPT: Duration = Duration::from_secs(60);

impl Cluster {
    /// Asks for the map and uses it.
    pub(super) async fn refresh(&self) -> Result<Arc<ClusterView>, StoreError> {
        let table = self.table.load_full();
        let asked = table.nodes.iter().filter(|node| node.line.is_up());
        let asked = asked.map(async |node| {
            let deadline = Instant::now() + MAP_TIMEOUT;
            let answers = node.line.each(&ClusterView::questions(), deadline).await;
            let answers = answers.into_iter().collect::<Result<_, _>>();
            let view = ClusterView::read(&node.address, answers.map_err(StoreError::from)?);
            view.inspect(|view| node.note_cluster(view.serves()))
        });
        let mut opinions = join_all(asked).await;
        // One that could not be prepared is not in use.
        let none = Arc::default();
        let known = match self.zone_known.load(Ordering::Relaxed) {
            true => &table.view,
            false => &none,
        };
        let mut all = false;
        if !opinions.iter().flatten().any(|view| view.may_follow(known)) {
            let seeds = self.topology.seeds().unwrap_or_default();
            let others = table.nodes.iter().map(|node| &node.address);
            let others = others.filter(|address| !seeds.contains(address));
            opinions = join_all(seeds.iter().chain(others).map(|seed| self.ask_seed(seed))).await;
            all = opinions.iter().take(seeds.len()).all(Result::is_ok);
        }
        let mut troubles = Vec::new();
        let mut views = Vec::new();
        for opinion in opinions {
            match opinion {
                Ok(view) => views.push(view),
                Err(error) => troubles.push(error.reason().to_owned()),
            }
        }
        let usable = ClusterView::usable(known, views, all).map_err(|error| {
            let others = troubles.iter().map(|trouble| format!("; {trouble}"));
            StoreError::Unavailable(format!("{}{}", error.reason(), String::from_iter(others)))
        });
        let refused = usable.as_ref().err().map(|error| Arc::new(error.clone()));
        self.other_cluster.store(refused);
        let view = ClusterView::latest(&usable?).ok_or_else(|| {
            StoreError::Unavailable(format!(
                "no node of the cluster returned the map: {}",
                troubles.join("; ")
            ))
        })?;
        Ok(self.follow(view).await)
    }

    async fn ask_seed(&self, address: &Address) -> Result<ClusterView, StoreError> {
        let node = self.topology.node(address.clone());
        let connection = node.dial().await?.connection;
        let unavailable =
            |why: &dyn std::fmt::Display| StoreError::Unavailable(format!("{address}: {why}"));
        let answers = timeout(MAP_TIMEOUT, connection.ask_each(&ClusterView::questions())).await;
        let answers = answers.map_err(|_| unavailable(&"no answer in time"))?;
        let answers = answers.map_err(|error| unavailable(&error))?;
        ClusterView::read(address, answers)
    }

    /// Makes lines to new masters, gives them time to come up, and then uses the map.
    async fn follow(&self, view: ClusterView) -> Arc<ClusterView> {
        let mut view = Arc::new(view);
        let table = self.table.load_full();
        let fresh: Vec<Arc<ClusterNode>> = view
            .nodes()
            .into_iter()
            .filter(|address| table.node(address).is_none())
            .map(|address| self.new_node(address.clone()))
            .collect();
        let _ = timeout(MAP_TIMEOUT, async {
            while !fresh.iter().all(|node| node.line.is_tried()) {
                sleep(AWAIT_LINES_EVERY).await;
            }
        })
        .await;
        let _replacing = self.replacing.lock();
        let table = self.table.load();
        Arc::make_mut(&mut view).keep_promotions(&table.view);
        let kept = table.nodes.iter().filter(|node| {
            view.nodes().contains(&node.address)
                || node.redirected_to.lock().elapsed() < REDIRECTED_KEPT
        });
        let mut nodes: Vec<Arc<ClusterNode>> = kept.cloned().collect();
        for address in view.nodes() {
            if !nodes.iter().any(|node| node.address == *address) {
                let tried = fresh.iter().find(|node| node.address == *address);
                // None if another map, followed meanwhile, was without this node.
                nodes.push(match tried {
                    Some(node) => node.clone(),
                    None => self.new_node(address.clone()),
                });
            }
        }
        if table.view.is_healthy() != view.is_healthy() {
            tracing::info!(server = %self.topology, healthy = view.is_healthy(), "state of the Redis cluster");
        }
        let now = std::time::Instant::now();
        let failing_since = match view.serves() {
            true => None,
            false => table.failing_since.or(Some(now)),
        };
        let unserved_since = |slots: &RangeInclusive<u16>| {
            let since = slots
                .clone()
                .map(|slot| table.away_since(slot).unwrap_or(now));
            since.max().unwrap_or(now)
        };
        let gaps = view.gaps().into_iter();
        let unserved = gaps.map(|slots| (slots.clone(), unserved_since(&slots)));
        let unserved = unserved.collect();
        let is_replaced = view.has_other_owners(&table.view);
        self.table.store(Arc::new(Table {
            view: view.clone(),
            nodes,
            failing_since,
            unserved,
        }));
        if is_replaced {
            // It may lack what its predecessor had, also if the connection to it is an earlier one.
            self.replaced.fetch_add(1, Ordering::AcqRel);
            self.made.fetch_add(1, Ordering::AcqRel);
        }
        view
    }
}
