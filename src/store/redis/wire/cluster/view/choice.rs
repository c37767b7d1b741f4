//! Which of the maps that several nodes report may be used: those of the cluster in use.
//!
//! Pure, as the maps themselves.

use std::collections::BTreeMap;

use super::{ClusterView, SlotMove, SlotRange};
use crate::store::StoreError;
use crate::store::redis::wire::slots::SLOTS;
use crate::store::redis::wire::topology::Address;

impl SlotRange {
    /// How many slots two ranges of one master have in common.
    fn common(&self, other: &SlotRange) -> u32 {
        let (first, last) = (self.first.max(other.first), self.last.min(other.last));
        let common = (u32::from(last) + 1).saturating_sub(first.into());
        if self.id == other.id { common } else { 0 }
    }
}

impl ClusterView {
    fn shared(&self, other: &ClusterView) -> usize {
        self.members.intersection(&other.members).count()
    }

    /// Whether two maps of one moment are of one cluster: more than half of the members of the smaller one are in the other too. Addresses
    /// do not show it, for a node may have left for another cluster; nor does a single member, for that node keeps its id.
    fn is_of_cluster(&self, other: &ClusterView) -> bool {
        2 * self.shared(other) > self.members.len().min(other.members.len())
    }

    /// The number of slots that have the same master in both. Cost: one step a range, of which a cluster may have thousands.
    pub(super) fn kept_slots(&self, known: &ClusterView) -> u32 {
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
}
