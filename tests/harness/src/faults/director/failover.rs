//! Faults of several servers: failovers and moving slots.

use std::collections::BTreeSet;

use super::*;
use crate::faults::schedule::Loss;
use crate::redis_nodes::{ClusterSet, Node, SentinelSet, deafen, settled};

/// How long replication may be behind what a master has answered.
const REPLICATION_LAG: Duration = Duration::from_secs(1);
/// How long a master continues while its replica receives nothing.
const ALONE: Duration = Duration::from_millis(800);

impl Director<'_> {
    pub(super) async fn fail_over(&mut self, loss: Loss) {
        match self.stage.servers {
            Servers::Single(_) => panic!("one server has nobody to fail over to"),
            Servers::Sentinel(_) => self.fail_over_by_sentinels(loss).await,
            Servers::Cluster(_) => self.fail_over_in_the_cluster().await,
        }
    }

    fn sentinels(&self) -> &SentinelSet {
        match &self.stage.servers {
            Servers::Sentinel(set) => set,
            Servers::Single(_) | Servers::Cluster(_) => panic!("no sentinels here"),
        }
    }

    fn cluster(&self) -> &ClusterSet {
        match &self.stage.servers {
            Servers::Cluster(set) => set,
            Servers::Single(_) | Servers::Sentinel(_) => panic!("no cluster here"),
        }
    }

    async fn fail_over_by_sentinels(&mut self, loss: Loss) {
        let set = self.sentinels();
        let (master, replica) = set.roles().await;
        let servers = [&set.servers[master], &set.servers[replica]];
        follows(servers[1], servers[0]).await;
        let began = Instant::now();
        match loss {
            Loss::Hangs => servers[0].hang(),
            Loss::HangsAlone => {
                deafen(servers[1], servers[0]).await;
                sleep(ALONE).await;
                servers[0].hang();
                servers[1].resume();
            }
            Loss::ByHand => set.fail_over().await,
        }
        settled("another server is master", async || {
            is_master(servers[1]).await
        })
        .await;
        if loss != Loss::ByHand {
            servers[0].resume();
        }
        settled("the sentinels name it", async || {
            set.roles().await.0 == replica
        })
        .await;
        // The later counts of the old master are lost.
        settled("the gateways have left the old one", async || {
            is_left(servers[0]).await
        })
        .await;
        self.whole().await;
        let from = began.checked_sub(REPLICATION_LAG);
        self.lost(from);
        self.away(all(), began).await;
    }

    async fn fail_over_in_the_cluster(&mut self) {
        let set = self.cluster();
        let nodes = [&set.nodes[0], set.nodes.last().expect("a replica")];
        let (master, replica) = match is_master(nodes[0]).await {
            true => (nodes[0], nodes[1]),
            false => (nodes[1], nodes[0]),
        };
        follows(replica, master).await;
        let place = set.nodes.iter().position(|node| node.port == master.port);
        let mut keys = BTreeSet::new();
        for (number, key) in self.facts.keys.iter().enumerate() {
            if Some(set.owner(&format!("{{{}}}", key.id)).await) == place {
                keys.insert(number);
            }
        }
        let began = Instant::now();
        master.hang();
        settled("the replica is master", async || is_master(replica).await).await;
        master.resume();
        follows(master, replica).await;
        self.whole().await;
        let until = Instant::now();
        let from = began.checked_sub(REPLICATION_LAG);
        let gateways = all();
        let away = Cost::Away {
            gateways,
            from: began,
            until,
        };
        for cost in [Cost::Lost { from, until }, away] {
            let keys = Some(keys.clone());
            self.facts.effects.push(Effect { keys, cost });
        }
    }

    /// Moves the slot of each key to another master, which costs nothing.
    pub(super) async fn move_slots(&mut self) {
        let set = self.cluster();
        let masters = set.masters().await;
        for key in &self.facts.keys {
            let name = format!("{{{}}}", key.id);
            let from = set.owner(&name).await;
            let to = masters.iter().find(|place| **place != from);
            set.move_slot(&name, from, *to.expect("another master"))
                .await;
        }
        self.whole().await;
    }
}

async fn is_master(node: &Node) -> bool {
    // A server drops its connections when its role changes.
    let info: Result<String, _> = node.try_ask("INFO replication").await;
    info.is_ok_and(|info| info.contains("role:master"))
}

/// Whether only sentinels, replicas and this query are connected.
async fn is_left(node: &Node) -> bool {
    let clients: Result<String, _> = node.try_ask("CLIENT LIST TYPE normal").await;
    let is_gateways =
        |client: &str| !client.contains(" name=sentinel-") && !client.contains(" cmd=client|list ");
    clients.is_ok_and(|clients| !clients.lines().any(is_gateways))
}

async fn follows(replica: &Node, master: &Node) {
    settled("the replica follows its master", async || {
        let info: Result<String, _> = replica.try_ask("INFO replication").await;
        let port = format!("master_port:{}\r\n", master.port);
        info.is_ok_and(|info| info.contains(&port) && info.contains("master_link_status:up"))
    })
    .await;
}
