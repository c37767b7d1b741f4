//! What the oracle is told, and what it counts.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

/// An answer as a client saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Told {
    /// The status.
    pub status: u16,
    /// `X-RateLimit-Remaining`.
    pub remaining: Option<u64>,
    /// `X-RateLimit-Reset`.
    pub reset: Option<u64>,
}

/// A call as its client saw it; each costs one unit.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Its id.
    pub id: u64,
    /// Its key, by its place in [`Facts::keys`].
    pub key: usize,
    /// The gateway, by its place.
    pub gateway: usize,
    /// When it was sent.
    pub began: Instant,
    /// When its answer was there, or the connection gone.
    pub ended: Instant,
    /// The answer; `None` where the connection broke.
    pub told: Option<Told>,
}

/// A key of the schedule.
#[derive(Debug, Clone)]
pub struct KeyFacts {
    /// Its id.
    pub id: String,
    /// Its units a day.
    pub limit: u64,
}

/// What a fault may cost, and whom.
#[derive(Debug, Clone)]
pub struct Effect {
    /// The keys concerned, by their places; `None` for all.
    pub keys: Option<BTreeSet<usize>>,
    /// What it may cost each.
    pub cost: Cost,
}

/// What a fault may cost a key.
#[derive(Debug, Clone)]
pub enum Cost {
    /// These gateways were without the store from then on, once: each may have served its share.
    Away {
        /// Their places.
        gateways: Vec<usize>,
        /// When it began.
        from: Instant,
        /// When they were whole again.
        until: Instant,
    },
    /// Calls of these gateways were lost now and then: each may have served what was left when it began.
    Flapping {
        /// Their places.
        gateways: Vec<usize>,
        /// When it began.
        from: Instant,
        /// When they were whole again.
        until: Instant,
    },
    /// The store lost what it had counted between these: all of it may have been granted again.
    Lost {
        /// From when on; `None` from the beginning.
        from: Option<Instant>,
        /// Until when.
        until: Instant,
    },
    /// A gateway began without the store, hence without a count: it may have served the cold part.
    ColdStart,
}

/// A gateway that was killed.
#[derive(Debug, Clone, Copy)]
pub struct Kill {
    /// Its place.
    pub gateway: usize,
    /// Just before.
    pub from: Instant,
    /// Just after.
    pub at: Instant,
    /// When it listened again; until then a client may have sent on a connection that was dead.
    pub back: Instant,
    /// Since when the store may hold units for it that it had not given back: before the last second, where it was
    /// without the store.
    pub owing_since: Instant,
    /// Whether the store lost all its counts before the successor could read what the gateway had not journaled.
    pub forgets: bool,
}

/// What an access log says of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Logged {
    /// The id.
    pub id: u64,
    /// The status.
    pub status: u16,
    /// Units charged and not refunded.
    pub units: u64,
    /// How long it waited for the store.
    pub store_wait: Duration,
}

/// Everything that is judged.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// The keys.
    pub keys: Vec<KeyFacts>,
    /// The gateways that share, at least.
    pub gateways: u64,
    /// The cold part of a limit, in hundredths.
    pub cold_percent: u64,
    /// The store's timeout: a call that waited for so long was lost, and served from the share, whatever the reason.
    pub timeout: Duration,
    /// The longest that one charge may wait for the store and, without it, for the journal.
    pub patience: Duration,
    /// What clients saw.
    pub seen: Vec<Seen>,
    /// How often each id reached the upstream.
    pub forwarded: HashMap<u64, u32>,
    /// The ids that the upstream failed: 500, refunded.
    pub failed: BTreeSet<u64>,
    /// What the access logs say; gateways without one are in `unlogged`.
    pub logged: Vec<Logged>,
    /// Gateways whose access log is not complete.
    pub unlogged: BTreeSet<usize>,
    /// What the faults may cost.
    pub effects: Vec<Effect>,
    /// Gateways killed.
    pub kills: Vec<Kill>,
    /// What the store counts, by key and date.
    pub counts: BTreeMap<(usize, String), u64>,
}

/// What a schedule came to.
#[derive(Debug, Clone, Default)]
pub struct Figures {
    /// Calls made.
    pub calls: u64,
    /// Calls served.
    pub served: u64,
    /// Calls refused with 429.
    pub exhausted: u64,
    /// Calls answered with 500 because the upstream failed.
    pub upstream_failed: u64,
    /// Calls answered with 500 for another reason.
    pub unserved: u64,
    /// Calls without an answer, for a gateway was killed.
    pub unanswered: u64,
    /// Gateways killed.
    pub kills: u64,
    /// Faults with a bound above 0.
    pub costly_faults: u64,
    /// Calls that the store did not answer in time although no fault befell it: the machine was too busy.
    pub stalls: u64,
    /// Units served above limits.
    pub above: u64,
    /// Units that the bounds allowed above limits, of the keys that were used up.
    pub allowed_above: u64,
    /// Units that the store counts and nobody was served, of killed gateways.
    pub counted_more: u64,
    /// Units served and not counted.
    pub lost: u64,
    /// The longest wait for the store.
    pub longest_wait: Duration,
    /// Waits for the store, in milliseconds, for their quantiles.
    pub waits: BTreeMap<u64, u64>,
}

impl Figures {
    /// Adds another schedule's.
    pub fn add(&mut self, other: &Figures) {
        self.calls += other.calls;
        self.served += other.served;
        self.exhausted += other.exhausted;
        self.upstream_failed += other.upstream_failed;
        self.unserved += other.unserved;
        self.unanswered += other.unanswered;
        self.kills += other.kills;
        self.costly_faults += other.costly_faults;
        self.stalls += other.stalls;
        self.above += other.above;
        self.allowed_above += other.allowed_above;
        self.counted_more += other.counted_more;
        self.lost += other.lost;
        self.longest_wait = self.longest_wait.max(other.longest_wait);
        for (wait, count) in &other.waits {
            *self.waits.entry(*wait).or_default() += count;
        }
    }

    /// The wait (whole milliseconds, rounded down) that so many thousandths of the calls did not pass.
    pub fn wait_at(&self, thousandths: u64) -> u64 {
        let total: u64 = self.waits.values().sum();
        let mut left = total * thousandths / 1_000;
        for (wait, count) in &self.waits {
            if *count >= left {
                return *wait;
            }
            left -= count;
        }
        0
    }
}
