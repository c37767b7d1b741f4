//! The map of a cluster as one of its nodes reports it, and which of several reports may be used.
//!
//! Pure: the replies of the nodes are arguments.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::RangeInclusive;

use redis::{FromRedisValue, Pipeline, Value};

use crate::store::StoreError;
use crate::store::redis::wire::slots::SLOTS;
use crate::store::redis::wire::topology::Address;

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

impl SlotRange {
    /// How many slots two ranges of one master have in common.
    fn common(&self, other: &SlotRange) -> u32 {
        let (first, last) = (self.first.max(other.first), self.last.min(other.last));
        let common = (u32::from(last) + 1).saturating_sub(first.into());
        if self.id == other.id { common } else { 0 }
    }
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

    fn shared(&self, other: &ClusterView) -> usize {
        self.members.intersection(&other.members).count()
    }

    /// Whether two maps of one moment are of one cluster: more than half of the members of the smaller one are in the other too. Addresses
    /// do not show it, for a node may have left for another cluster; nor does a single member, for that node keeps its id.
    fn is_of_cluster(&self, other: &ClusterView) -> bool {
        2 * self.shared(other) > self.members.len().min(other.members.len())
    }

    /// The number of slots that have the same master in both. Cost: one step a range, of which a cluster may have thousands.
    fn kept_slots(&self, known: &ClusterView) -> u32 {
        let mut own = self.ranges.iter().peekable();
        let mut others = known.ranges.iter().peekable();
        let mut kept = 0;
        while let (Some(one), Some(other)) = (own.peek(), others.peek()) {
            kept += one.common(other);
            match one.last <= other.last {
                true => own.next(),
                false => others.next(),
            };
        }
        kept
    }

    /// Whether it may be a later map of the cluster of `known`, of which up to half of the nodes may have been replaced meanwhile; those that
    /// had failed do not count. More nodes may have left if the masters of more than half of the slots are the same.
    pub fn may_follow(&self, known: &ClusterView) -> bool {
        let shared = self.shared(known);
        let living = known.members.len().saturating_sub(known.failed);
        let is_of_members = shared > 0 && 2 * shared >= living;
        let is_of_slots = || 2 * self.kept_slots(known) > u32::from(SLOTS);
        !self.ranges.is_empty() && (is_of_members || is_of_slots())
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

    /// The maps that may be used after `known`, the one in use, if there is one: those of the cluster that shares most members with it. If
    /// none shares any, those of the one cluster with slots; after a `known` one only if `all` configured addresses returned one, because
    /// a cluster that does not answer is not replaced by another.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] if the maps are of several clusters, or of another one than `known`.
    pub fn usable(
        known: &ClusterView,
        mut views: Vec<ClusterView>,
        all: bool,
    ) -> Result<Vec<ClusterView>, StoreError> {
        let with_slots = |view: &ClusterView| !view.ranges.is_empty();
        let has_slots = views.iter().any(with_slots);
        if with_slots(known) && !has_slots && !views.is_empty() {
            return Err(StoreError::Unavailable(match all {
                true => "no node serves slots: assign them (redis-cli --cluster fix)".to_owned(),
                false => "only a node answers that serves no slots".to_owned(),
            }));
        }
        if has_slots {
            // A node without a cluster has none: a new one, or one that was reset.
            views.retain(with_slots);
        }
        views.sort_by_cached_key(|view| {
            let (kept, shared) = (view.kept_slots(known), view.shared(known));
            (kept, shared, view.is_healthy(), view.epoch)
        });
        let Some(best) = views.pop() else {
            return Ok(views);
        };
        let of = |view: &ClusterView| {
            let asked = view.asked.iter().map(Address::to_string);
            let masters = view.nodes().into_iter().map(Address::to_string);
            let [asked, masters] = [Vec::from_iter(asked), Vec::from_iter(masters)];
            format!("{} (masters {})", asked.concat(), masters.join(", "))
        };
        if best.may_follow(known) {
            views.retain(|view| view.is_of_cluster(&best));
            views.push(best);
            return Ok(views);
        }
        if let Some(other) = views.iter().find(|view| !view.is_of_cluster(&best)) {
            if !has_slots {
                let reason =
                    "no node serves slots: create the cluster (redis-cli --cluster create)";
                return Err(StoreError::Unavailable(reason.to_owned()));
            }
            return Err(StoreError::Unavailable(format!(
                "{} and {} belong to two clusters: leave only the addresses of the store's in store.redis.cluster",
                of(&best),
                of(other)
            )));
        }
        if with_slots(known) && !all {
            return Err(StoreError::Unavailable(format!(
                "only {} answers, which belongs to another cluster: if most nodes of the store were replaced, restart the gateway, else \
                 remove what leads there from store.redis.cluster",
                of(&best)
            )));
        }
        views.push(best);
        Ok(views)
    }

    /// Of several maps, the healthy one of the latest epoch. A slot is moving if any of them reports it, and a master has the address that
    /// most other nodes report: one that has started at another address reports its former one until it hears of the new one. What the
    /// node itself reports decides between as many, and a guessed host counts only without another.
    pub fn latest(views: &[ClusterView]) -> Option<ClusterView> {
        let latest = views
            .iter()
            .max_by_key(|view| (view.is_healthy(), view.epoch))?;
        let address_of = |id: &str, reported: &Address| {
            let mut votes = BTreeMap::<&Address, u64>::new();
            for view in views.iter().filter(|view| !view.guessed.contains(id)) {
                if let Some(address) = view.masters.get(id) {
                    *votes.entry(address).or_default() += 2 - u64::from(view.own_id == id);
                }
            }
            let most = votes.into_iter().max_by_key(|(_, votes)| *votes);
            most.map_or(reported, |(address, _)| address).clone()
        };
        let masters = latest.masters.iter();
        let mut moving = BTreeMap::<u16, &SlotMove>::new();
        for (slot, reported) in views.iter().flat_map(|view| &view.moving) {
            let known = moving.entry(*slot).or_insert(reported);
            *known = (*known).max(reported);
        }
        let moving = moving.into_iter();
        Some(ClusterView {
            masters: masters
                .map(|(id, reported)| (id.clone(), address_of(id, reported)))
                .collect(),
            moving: moving.map(|(slot, one)| (slot, one.clone())).collect(),
            ..latest.clone()
        })
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
mod tests {
    use super::*;

    /// Ranges of slots, each with the host, the port and the id of its master.
    type Slots<'a> = Vec<(u16, u16, &'a str, u16, &'a str)>;

    fn answers(slots: Slots<'_>, nodes: &str, info: &str) -> Vec<Value> {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let slots = slots.into_iter().map(|(first, last, host, port, id)| {
            let master = vec![text(host), Value::Int(port.into()), text(id)];
            Value::Array(vec![
                Value::Int(first.into()),
                Value::Int(last.into()),
                Value::Array(master),
            ])
        });
        vec![Value::Array(slots.collect()), text(nodes), text(info)]
    }

    fn address(text: &str) -> Address {
        Address::parse(text).unwrap()
    }

    #[test]
    fn a_view_knows_owners_spare_masters_and_moving_slots() {
        let nodes = "a 10.0.0.1:1@11 myself,master - 0 0 1 connected 0-99 [5->-c]\n\
                     b 10.0.0.2:2@12,name master - 0 0 2 connected 100-16383\n\
                     c 10.0.0.3:3@13 master - 0 0 3 connected\n\
                     d 10.0.0.4:4@14 slave b 0 0 2 connected\n\
                     e :0@0 master,noaddr - 0 0 0 disconnected\n";
        let info = "cluster_enabled:1\r\ncluster_state:ok\r\ncluster_current_epoch:7\r\n";
        let slots = vec![(100, 16_383, "10.0.0.2", 2, "b"), (0, 99, "", 1, "a")];
        let gone = vec![(100, 16_383, "", 0, "b"), (0, 99, "", 1, "a")];
        let partial =
            ClusterView::read(&address("10.0.0.1:1"), answers(gone, nodes, info)).unwrap();
        assert_eq!((partial.served(), partial.owner(100)), (100, None));
        assert_eq!(partial.gaps(), [100..=16_383]);
        let view = ClusterView::read(&address("10.0.0.1:1"), answers(slots, nodes, info)).unwrap();
        assert_eq!(view.owner(0), Some(&address("10.0.0.1:1")));
        assert_eq!(view.owner(99), Some(&address("10.0.0.1:1")));
        assert_eq!(view.owner(100), Some(&address("10.0.0.2:2")));
        assert_eq!(view.owner(16_383), Some(&address("10.0.0.2:2")));
        assert_eq!(view.gaps(), []);
        let is_called = |view: &ClusterView, nodes: &[&str]| {
            let nodes = Vec::from_iter(nodes.iter().map(|node| address(node)));
            assert_eq!(view.nodes(), nodes.iter().collect());
        };
        is_called(&view, &["10.0.0.1:1", "10.0.0.2:2", "10.0.0.3:3"]);
        assert!(view.is_healthy() && view.epoch == 7);
        assert_eq!(view.moves_to(5), Some(&address("10.0.0.3:3")));
        let nodes = nodes.replace(" [5->-c]", "").replace("myself,", "");
        let nodes = nodes.replace("c 10.0.0.3:3@13 master", "c :3@13 myself,master");
        let nodes = nodes.replace("3 connected", "3 connected [5-<-a]");
        let slots_of_c = vec![(100, 16_383, "10.0.0.2", 2, "b")];
        let target = ClusterView::read(&address("a:3"), answers(slots_of_c, &nodes, info)).unwrap();
        assert_eq!(target.moves_to(5), Some(&address("a:3")));
        // A mark that was left at another node.
        let mut stale = view.clone();
        let left = SlotMove {
            is_of_owner: false,
            to: "d".into(),
        };
        stale.moving.insert(5, left);
        for views in [[view.clone(), stale.clone()], [stale, view.clone()]] {
            let latest = ClusterView::latest(&views).unwrap();
            assert_eq!(latest.moves_to(5), Some(&address("10.0.0.3:3")));
        }
        assert!(!view.is_as_still_as(&view));
        // In a cluster that calls its nodes by names, one may have none.
        let slots = vec![(0, 99, "one", 6379, "a"), (100, 16_383, "?", 6379, "b")];
        let unnamed = "a 10.0.0.1:6379@1,one myself,master - 0 0 1 connected 0-99\n\
                       b 10.0.0.2:6379@1 master - 0 0 2 connected 100-16383\n";
        let view = ClusterView::read(&address("one:6379"), answers(slots, unnamed, info)).unwrap();
        is_called(&view, &["one:6379", "10.0.0.2:6379"]);
        assert_eq!(
            (view.kept_slots(&view), partial.kept_slots(&view)),
            (16_384, 100)
        );
        let mixed = vec![
            (0, 9, "h", 1, "b"),
            (50, 149, "h", 2, "a"),
            (150, 199, "h", 1, "b"),
        ];
        let mixed = ClusterView::read(&address("h:1"), answers(mixed, "", info)).unwrap();
        assert_eq!(
            (view.kept_slots(&mixed), mixed.kept_slots(&view)),
            (100, 100)
        );
        assert_eq!(mixed.gaps(), [10..=49, 200..=16_383]);
        let none = ClusterView::default();
        let all_at = |id, host| {
            let answers = answers(vec![(0, SLOTS - 1, host, 1, id)], "", info);
            ClusterView::read(&address("h:1"), answers).unwrap()
        };
        assert!(all_at("b", "h").has_other_owners(&all_at("a", "h")));
        assert!(!all_at("a", "named").has_other_owners(&all_at("a", "h")));
        assert!(view.has_other_owners(&partial));
        assert!(
            [&view, &partial]
                .iter()
                .all(|view| !view.has_other_owners(&none))
        );
        assert!(!partial.has_other_owners(&view) && !view.has_other_owners(&view));
        // A failover, and another one back.
        let at_epoch = |epoch| {
            let nodes = format!("a h:1@2 myself,master - 0 0 {epoch} connected 0-16383\n");
            let slots = vec![(0, SLOTS - 1, "h", 1, "a")];
            ClusterView::read(&address("h:1"), answers(slots, &nodes, info)).unwrap()
        };
        assert!(at_epoch(3).has_other_owners(&at_epoch(1)));
        // A slot that came from another master raises the epoch too.
        let nodes = "a h:1@2 myself,master - 0 0 1 connected 1-16383\n\
                     b h:3@4 master - 0 0 2 connected 0\n";
        let slots = vec![(0, 0, "h", 3, "b"), (1, SLOTS - 1, "h", 1, "a")];
        let moving = ClusterView::read(&address("h:1"), answers(slots, nodes, info)).unwrap();
        let slots = vec![(0, 1, "h", 3, "b"), (2, SLOTS - 1, "h", 1, "a")];
        let nodes = nodes.replace("0 0 2 connected 0", "0 0 5 connected 0-1");
        let moved = ClusterView::read(&address("h:1"), answers(slots, &nodes, info)).unwrap();
        assert!(!moved.has_other_owners(&moving));
        assert!(!at_epoch(3).has_other_owners(&at_epoch(3)));
        let mut behind = at_epoch(1);
        behind.keep_promotions(&at_epoch(3));
        assert!(!at_epoch(3).has_other_owners(&behind));
        // Called by names, a master without slots is, too.
        let named = "a 10.0.0.1:1@11,one myself,master - 0 0 1 connected 0-16383\n\
                     b 10.0.0.2:2@12,two,shard-id=x master - 0 0 2 connected\n";
        let slots = vec![(0, 16_383, "one", 1, "a")];
        let view = ClusterView::read(&address("one:1"), answers(slots, named, info)).unwrap();
        is_called(&view, &["one:1", "two:2"]);
    }

    #[test]
    fn a_healthy_opinion_of_the_latest_epoch_counts() {
        let view = |last, ok: &str, epoch: u64| {
            let info = format!("cluster_state:{ok}\r\ncluster_current_epoch:{epoch}\r\n");
            let slots = vec![(0, last, "h", 1, "a")];
            ClusterView::read(&address("h:1"), answers(slots, "", &info)).unwrap()
        };
        let all = SLOTS - 1;
        let opinions = vec![
            view(all, "ok", 1),
            view(all, "ok", 2),
            view(all, "fail", 3),
            view(all - 1, "ok", 4),
        ];
        let latest = ClusterView::latest(&opinions).unwrap();
        assert_eq!(latest.epoch, 2);
        assert_eq!(latest.owner(5), Some(&address("h:1")));
        assert_eq!(ClusterView::latest(&[]), None);
        assert_eq!(view(10, "ok", 0).owner(11), None);
    }

    #[test]
    fn a_master_has_the_address_that_most_other_nodes_report() {
        let info = "cluster_state:ok\r\ncluster_current_epoch:1\r\n";
        // The map of `own`, in which `a` serves and `b` and `c` do not.
        let view = |own: &str, a: &str, [b, c]: [&str; 2]| {
            let line = |(id, host)| {
                let myself = if id == own { "myself," } else { "" };
                format!("{id} {host}:1@11 {myself}master - 0 0 1 connected\n")
            };
            let nodes = [("a", a), ("b", b), ("c", c)].map(line).concat();
            let slots = vec![(0, SLOTS - 1, a, 1, "a")];
            ClusterView::read(&address("h:1"), answers(slots, &nodes, info)).unwrap()
        };
        let of = |views: &[ClusterView]| {
            let latest = ClusterView::latest(views).unwrap();
            let owner = latest.owner(0).unwrap().host.clone();
            let nodes = latest.nodes().into_iter().map(|node| node.host.clone());
            (owner, nodes.collect::<Vec<_>>().join(" "))
        };
        let is = |owner: &str, nodes: &str| (owner.to_owned(), nodes.to_owned());
        // Each has started at another address and reports its former one; one has not heard of all yet.
        let views = [
            view("b", "a2", ["b1", "c2"]),
            view("c", "a2", ["b2", "c1"]),
            view("d", "a1", ["b2", "c2"]),
            view("a", "a1", ["b2", "c2"]),
        ];
        assert_eq!(of(&views), is("a2", "a2 b2 c2"));
        assert_eq!(of(&views[..1]), is("a2", "a2 b1 c2"));
        assert_eq!(of(&views[3..]), is("a1", "a1 b2 c2"));
        // One reports no hosts.
        let asked = view("b", "", ["", ""]);
        assert_eq!(of(&[asked.clone(), views[2].clone()]), is("a1", "a1 b2 c2"));
        assert_eq!(of(&[asked]), is("h", "h"));
    }

    #[test]
    fn only_maps_of_the_cluster_in_use_are_used_or_of_one_other_at_all_addresses() {
        let view_with = |slots: Vec<(u16, u16)>, members: &str, ok: &str, epoch: u64| {
            let line = |id| format!("{id} {id}:1@11 master - 0 0 1 connected\n");
            let nodes: String = members.chars().map(line).collect();
            let info = format!("cluster_state:{ok}\r\ncluster_current_epoch:{epoch}\r\n");
            // The last one serves.
            let owner = &members[members.len() - 1..];
            let slots = Vec::from_iter(
                slots
                    .into_iter()
                    .map(|(first, last)| (first, last, "h", 1, owner)),
            );
            let answers = answers(slots, &nodes, &info);
            ClusterView::read(&address("h:1"), answers).unwrap()
        };
        let view = |members, ok, epoch| view_with(vec![(0, SLOTS - 1)], members, ok, epoch);
        // The epochs of those that may be used.
        let usable = |known: &ClusterView, views, all| {
            let usable = ClusterView::usable(known, views, all);
            let usable = usable.map_err(|error| error.to_string())?;
            Ok::<_, String>(Vec::from_iter(usable.iter().map(|view| view.epoch)))
        };
        let refused = |known: &ClusterView, views, all, reason: &str| {
            let refused = usable(known, views, all).unwrap_err();
            assert!(refused.contains(reason), "{refused}");
        };
        let (none, known) = (ClusterView::default(), view("abcdef", "ok", 1));
        let grown = || view("abcdefghijkl", "ok", 2);
        let partial = || view("abc", "fail", 3);
        let other = || view("fxyz", "ok", 9);
        let alone = || view_with(vec![], "q", "fail", 0);
        // In use: its own maps, whichever others there are.
        let all = vec![other(), alone(), grown(), partial()];
        assert_eq!(usable(&known, all, false), Ok(vec![3, 2]));
        // Half of its nodes were replaced, or new ones met.
        assert_eq!(
            usable(&known, vec![view("abclmn", "ok", 4)], false),
            Ok(vec![4])
        );
        refused(
            &known,
            vec![view("ablmno", "ok", 4)],
            false,
            "belongs to another cluster",
        );
        // More have left, but those that serve are the same, also if those that left are a cluster by now.
        let smaller = || view("xf", "ok", 4);
        assert_eq!(usable(&known, vec![smaller()], false), Ok(vec![4]));
        let left = view("abcdez", "ok", 9);
        assert_eq!(usable(&known, vec![smaller(), left], false), Ok(vec![4]));
        let half = view_with(vec![(0, SLOTS / 2 - 1)], "xf", "ok", 4);
        refused(&known, vec![half], false, "belongs to another cluster");
        let meets = "1 h:1@11 master,handshake - 0 0 1 connected\n";
        let slots = vec![(0, SLOTS - 1, "h", 1, "0")];
        let met = ClusterView::read(&address("h:1"), answers(slots, meets, "")).unwrap();
        assert_eq!(met.members.len(), 0);
        refused(
            &known,
            vec![view("fx", "ok", 4)],
            false,
            "belongs to another cluster",
        );
        // A node that was reset has no map of it.
        let reset = vec![view_with(vec![], "a", "ok", 9)];
        refused(&known, reset, true, "no node serves slots");
        let reset = vec![view_with(vec![], "a", "ok", 9)];
        refused(&known, reset, false, "that serves no slots");
        // Another cluster only if every address belongs to it.
        let foreign = || view("xyz", "ok", 9);
        refused(
            &known,
            vec![foreign()],
            false,
            "only h:1 (masters h:1, x:1, y:1) answers",
        );
        refused(
            &known,
            vec![view("xyz", "fail", 0)],
            false,
            "belongs to another cluster",
        );
        assert_eq!(
            usable(&known, vec![foreign(), foreign()], true),
            Ok(vec![9, 9])
        );
        // None in use: one cluster, beside nodes that serve in none.
        assert_eq!(usable(&none, vec![grown(), alone()], false), Ok(vec![2]));
        assert_eq!(usable(&none, vec![alone()], false), Ok(vec![0]));
        let empty = vec![alone(), view_with(vec![], "r", "fail", 0)];
        refused(&none, empty, true, "create the cluster");
        for (known, all) in [(&none, false), (&none, true), (&view("q", "ok", 0), true)] {
            refused(known, vec![grown(), other()], all, "two clusters");
            refused(known, vec![partial(), other()], all, "two clusters");
        }
        assert_eq!(usable(&none, Vec::new(), true), Ok(Vec::new()));
        assert_eq!(usable(&known, Vec::new(), false), Ok(Vec::new()));
    }

    #[test]
    fn a_server_that_is_no_cluster_returns_no_map() {
        assert!(ClusterView::read(&address("h:1"), vec![Value::Nil]).is_err());
    }
}
