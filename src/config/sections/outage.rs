//! What a gateway does while Redis is away.

use std::num::NonZeroU64;

use super::{HOUR, MINUTE, MS, SECOND};
use crate::config::check::Check;
use crate::config::outline::Path;
use crate::config::scalar::Percent;
use crate::config::text::RedisText;
use crate::config::{Outage, OutagePolicy};

const JOURNAL: &str = "var/journal.db";
const COLD_PERCENT: u64 = 2;
const NODES_MAX: u64 = 1_000;

/// The part of `store.redis` that is about its absence.
pub(super) fn outage(check: &mut Check<'_>, at: &Path, text: &RedisText) -> Outage {
    let nodes = check.bounded(&at.key("min_nodes"), &text.min_nodes, 1, 1..=NODES_MAX);
    let Percent(cold_percent) = check.bounded(
        &at.key("cold_cap"),
        &text.cold_cap,
        Percent(COLD_PERCENT),
        Percent(0)..=Percent(100),
    );
    Outage {
        policy: check.leaf_or(&at.key("outage"), &text.outage, OutagePolicy::Bounded),
        journal: check.leaf_or(&at.key("journal"), &text.journal, JOURNAL.into()),
        journal_interval: check.bounded(
            &at.key("journal_interval"),
            &text.journal_interval,
            SECOND,
            MS * 10..=MINUTE,
        ),
        min_nodes: NonZeroU64::new(nodes).unwrap_or(NonZeroU64::MIN),
        cold_percent,
        count_staleness: check.bounded(
            &at.key("count_staleness"),
            &text.count_staleness,
            5 * MINUTE,
            SECOND..=24 * HOUR,
        ),
    }
}
