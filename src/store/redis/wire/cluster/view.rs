//! The map of a cluster as one of its nodes reports it; `view/choice.rs` has which of several maps may be used.
//!
//! Pure: the replies of the nodes are arguments.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::RangeInclusive;

use redis::{FromRedisValue, Pipeline, Value};

use crate::store::StoreError;
use crate::store::redis::wire::slots::SLOTS;
use crate::store::redis::wire::topology::Address;

mod choice;

/// The host of a node that has no name in a cluster that calls its nodes by names.
pub const UNKNOWN_HOST: &str = "?";

/// The IP address and the port of a node, by the reply to `CLUSTER NODES`.
fn ip_of(nodes: &str, id: &str) -> Option<Address> {
    let mut lines = nodes.lines().map(str::split_ascii_whitespace);
    let mut of_node = lines.find_map(|mut fields| (fields.next()? == id).then_some(fields))?;
    let (address, _) = of_node.next()?.split_once('@')?;
    Address::parse(address)
}

/// Slots that one master serves.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SlotRange {
    first: u16,
    last: u16,
    /// The id of the master, which it keeps at any address and under any name.
    id: String,
}

/// The move of a slot. One that the slot's present owner reports comes after one that only a target reports, perhaps since a move that was
/// interrupted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SlotMove {
    is_of_owner: bool,
    /// The id of the node to which it moves.
    to: String,
}

/// The map of a cluster, as one node reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterView {
    /// In the order of the slots.
    ranges: Vec<SlotRange>,
    /// All masters by their ids, including those without slots: a slot may be moving to one.
    masters: BTreeMap<String, Address>,
    /// The ids of those without a reported host, which is taken to be that of the node that was asked.
    guessed: BTreeSet<String>,
    /// Whether the node reports that the cluster serves.
    ok: bool,
    /// The slots that are moving.
    moving: BTreeMap<u16, SlotMove>,
    epoch: u64,
    /// The configuration epoch of each master, which rises when it is promoted.
    promotions: BTreeMap<String, u64>,
    /// The ids of all nodes that the node knows, replicas too.
    members: BTreeSet<String>,
    /// How many of them have failed, or have no address any more.
    failed: usize,
    /// The node that was asked for it, and its id.
    asked: Option<Address>,
    own_id: String,
}

impl ClusterView {
    /// The commands that ask a node for its map.
    pub fn questions() -> Pipeline {
        let mut pipeline = Pipeline::with_capacity(3);
        for question in ["SLOTS", "NODES", "INFO"] {
            pipeline.cmd("CLUSTER").arg(question);
        }
        pipeline
    }

    /// Parses the replies of the node at `asked`.
    pub fn read(asked: &Address, answers: Vec<Value>) -> Result<ClusterView, StoreError> {
        let no_map = |why: &dyn fmt::Display| {
            StoreError::Unavailable(format!("{asked} returned no cluster map: {why}"))
        };
        let unreadable = |error: redis::ParsingError| no_map(&error);
        let answers = answers.into_iter().map(Value::extract_error);
        let answers = answers.collect::<redis::RedisResult<_>>();
        let answers = Value::Array(answers.map_err(|error| no_map(&error))?);
        let (slots, nodes, info): (Vec<Value>, String, String) =
            FromRedisValue::from_redis_value(answers).map_err(unreadable)?;
        let mut view = ClusterView {
            ok: info.contains("cluster_state:ok"),
            epoch: info
                .lines()
                .find_map(|line| line.strip_prefix("cluster_current_epoch:"))
                .and_then(|epoch| epoch.trim().parse().ok())
                .unwrap_or(0),
            asked: Some(asked.clone()),
            ..ClusterView::default()
        };
        for range in slots {
            let range = Vec::<Value>::from_redis_value(range).map_err(unreadable)?;
            let [first, last, master, ..] = range.as_slice() else {
                continue;
            };
            let first = u16::from_redis_value_ref(first).map_err(unreadable)?;
            let last = u16::from_redis_value_ref(last).map_err(unreadable)?;
            let master = Vec::<Value>::from_redis_value_ref(master).map_err(unreadable)?;
            let [host, port, id, ..] = master.as_slice() else {
                continue;
            };
            let id = String::from_redis_value_ref(id).map_err(unreadable)?;
            let host = Option::<String>::from_redis_value_ref(host).map_err(unreadable)?;
            let port = u16::from_redis_value_ref(port).map_err(unreadable)?;
            let host = match host.as_deref() {
                Some(UNKNOWN_HOST) => {
                    ip_of(&nodes, &id).map_or_else(String::new, |address| address.host)
                }
                _ => host.unwrap_or_default(),
            };
            // The address of a node that is gone is not known.
            if port != 0 {
                view.add(id.clone(), Address { host, port }, asked);
                view.ranges.push(SlotRange { first, last, id });
            }
        }
        view.ranges.sort_unstable();
        view.read_nodes(asked, &nodes);
        Ok(view)
    }

    /// Adds a master with the address that the node at `asked` reports.
    fn add(&mut self, id: String, reported: Address, asked: &Address) {
        if reported.host.is_empty() {
            self.guessed.insert(id.clone());
        }
        self.masters.insert(id, reported.or_host(&asked.host));
    }

    /// Adds the parts that only `CLUSTER NODES` reports: all members, masters without slots, and moving slots.
    fn read_nodes(&mut self, asked: &Address, nodes: &str) {
        // After its address, a node may have a name, which its certificate is for; used if the owners of slots are called by theirs.
        let name = |place: &str| place.split(',').nth(1).unwrap_or_default().to_owned();
        let mut places = nodes
            .lines()
            .filter_map(|line| line.split_ascii_whitespace().nth(1));
        let has_names =
            places.any(|place| self.masters.values().any(|node| node.host == name(place)));
        for line in nodes.lines() {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            let [id, place, flags, _, _, _, epoch, _, slots @ ..] = fields.as_slice() else {
                continue;
            };
            let has = |wanted: &str| flags.split(',').any(|flag| flag == wanted);
            // In a handshake it has another id for a while.
            if !has("handshake") {
                self.members.insert((*id).to_owned());
                self.failed += usize::from(has("fail") || has("noaddr"));
            }
            if has("myself") {
                self.own_id = (*id).to_owned();
            }
            // Only the line of the node that was asked has marks: `[slot->-to]` and `[slot-<-from]`.
            self.moving.extend(slots.iter().filter_map(|mark| {
                let mark = mark.strip_prefix('[')?.strip_suffix(']')?;
                let (slot, other) = mark.split_once('-')?;
                let target = other.strip_prefix(">-");
                let to = target.unwrap_or(id).to_owned();
                let is_of_owner = target.is_some();
                Some((slot.parse().ok()?, SlotMove { is_of_owner, to }))
            }));
            let serves = has("master") && !["fail", "noaddr", "handshake"].into_iter().any(has);
            if has("master")
                && let Ok(epoch) = epoch.parse()
            {
                self.promotions.insert((*id).to_owned(), epoch);
            }
            if !serves || self.masters.contains_key(*id) {
                continue;
            }
            let address = place
                .split_once('@')
                .and_then(|(address, _)| Address::parse(address))
                .map(|address| match name(place) {
                    host if has_names && !host.is_empty() => Address { host, ..address },
                    _ => address,
                });
            if let Some(address) = address {
                self.add((*id).to_owned(), address, asked);
            }
        }
    }

    /// Whether slots have passed to another node since `before`, which may lack what its predecessor had: also if they have come back. A
    /// master that only is gone has no successor yet, and a map without slots comes before the first one.
    pub fn has_other_owners(&self, before: &ClusterView) -> bool {
        let (owners, owners_before) = (self.owner_ids(), before.owner_ids());
        // A slot that moves raises the epoch of its new master too.
        let is_promoted = |id: &&str| {
            let promoted_before = before.promotions.get(*id);
            let is_later = |known| self.promotions.get(*id) > Some(known);
            promoted_before.is_some_and(is_later) && self.slots_of(id).eq(before.slots_of(id))
        };
        let is_other = owners != owners_before || owners.iter().any(is_promoted);
        let is_other = is_other && self.served() >= before.served();
        let is_whole_again = self.is_healthy() && self.served() > before.served();
        !before.ranges.is_empty() && (is_other || is_whole_again)
    }

    /// Remembers promotions that were known `before` and that the asked node has not heard of yet.
    pub fn keep_promotions(&mut self, before: &ClusterView) {
        for (id, epoch) in &mut self.promotions {
            *epoch = before
                .promotions
                .get(id)
                .map_or(*epoch, |known| *known.max(epoch));
        }
    }

    fn slots_of(&self, id: &str) -> impl Iterator<Item = &SlotRange> {
        self.ranges.iter().filter(move |range| range.id == id)
    }

    fn owner_ids(&self) -> BTreeSet<&str> {
        self.ranges.iter().map(|range| &*range.id).collect()
    }

    /// In words, how many slots have no master, if some have one.
    pub fn unserved(&self) -> Option<String> {
        let unserved = u32::from(SLOTS) - self.served();
        (unserved > 0 && !self.ranges.is_empty()).then(|| {
            format!("{unserved} slots have no master: let it return, or assign them (redis-cli --cluster fix)")
        })
    }

    /// The slots without a master, in ranges.
    pub fn gaps(&self) -> Vec<RangeInclusive<u16>> {
        let ranges = self.ranges.iter();
        let ends = ranges.clone().map(|range| range.last.saturating_add(1));
        let begins = ranges.map(|range| range.first).chain([SLOTS]);
        let between = [0].into_iter().chain(ends).zip(begins);
        between
            .filter(|(end, begin)| end < begin)
            .map(|(end, begin)| end..=begin - 1)
            .collect()
    }

    /// The number of slots that have a master.
    fn served(&self) -> u32 {
        let ranges = self.ranges.iter();
        ranges
            .map(|range| u32::from(range.last) - u32::from(range.first) + 1)
            .sum()
    }

    /// The master of a slot.
    pub fn owner(&self, slot: u16) -> Option<&Address> {
        let after = self.ranges.partition_point(|range| range.first <= slot);
        let range = self.ranges.get(after.checked_sub(1)?)?;
        self.masters.get(&range.id).filter(|_| slot <= range.last)
    }

    /// The node to which a slot is moving.
    pub fn moves_to(&self, slot: u16) -> Option<&Address> {
        self.masters.get(&self.moving.get(&slot)?.to)
    }

    /// The masters that serve slots; a master may occur several times.
    pub fn owners(&self) -> impl Iterator<Item = &Address> {
        let masters = self.ranges.iter();
        masters.filter_map(|range| self.masters.get(&range.id))
    }

    /// All masters, each once.
    pub fn nodes(&self) -> BTreeSet<&Address> {
        self.masters.values().collect()
    }

    /// The address of the node that reported the map, if it is a master.
    pub fn own_address(&self) -> Option<&Address> {
        self.masters.get(&self.own_id)
    }

    /// Whether the node reports that the cluster serves.
    pub fn serves(&self) -> bool {
        self.ok
    }

    /// Whether the cluster serves and every slot has a master.
    pub fn is_healthy(&self) -> bool {
        self.ok && self.served() == u32::from(SLOTS)
    }

    /// Whether nothing has moved or is moving between two views.
    pub fn is_as_still_as(&self, later: &ClusterView) -> bool {
        let is_same = self.ranges == later.ranges && self.masters == later.masters;
        is_same && self.moving.is_empty() && later.moving.is_empty()
    }
}

#[cfg(test)]
mod tests;
