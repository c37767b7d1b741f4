//! The input of the oracle, and its figures.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

/// An answer as a client saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeenAnswer {
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
    /// When its answer was complete, or the connection ended.
    pub ended: Instant,
    /// The answer, or `None` if the connection broke.
    pub output: Option<SeenAnswer>,
}

/// A key of the schedule.
#[derive(Debug, Clone)]
pub struct KeyFacts {
    /// Its id.
    pub id: String,
    /// Its units a day.
    pub limit: u64,
}

/// The possible cost of a fault, and the keys concerned.
#[derive(Debug, Clone)]
pub struct Effect {
    /// The keys concerned, by their places; `None` for all.
    pub keys: Option<BTreeSet<usize>>,
    /// The possible cost for each key.
    pub cost: Cost,
}

/// The possible cost of a fault for a key.
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
    /// Calls of these gateways were lost now and then: each may have served the units left when it began.
    Flapping {
        /// Their places.
        gateways: Vec<usize>,
        /// When it began.
        from: Instant,
        /// When they were whole again.
        until: Instant,
    },
    /// The store lost its counts between these times: all of them may have been granted again.
    Lost {
        /// The start of the lost time, or `None` for the beginning.
        from: Option<Instant>,
        /// The end of the lost time.
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
    /// Since when the store may hold units that the gateway had not refunded: before the last second, if it was
    /// without the store.
    pub owing_since: Instant,
    /// Whether the store lost all its counts before the successor could read those that the gateway had not journaled.
    pub forgets: bool,
}

/// The line of an access log for a call.
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

/// The records that are judged.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// The keys.
    pub keys: Vec<KeyFacts>,
    /// The gateways that share, at least.
    pub gateways: u64,
    /// The cold part of a limit, in hundredths.
    pub cold_percent: u64,
    /// The store's timeout: a call that waited for this time was lost, and served from the share, whatever the reason.
    pub timeout: Duration,
    /// The longest that one charge may wait for the store and, without it, for the journal.
    pub patience: Duration,
    /// The calls of the clients.
    pub seen: Vec<Seen>,
    /// How often each id reached the upstream.
    pub forwarded: HashMap<u64, u32>,
    /// The ids that the upstream failed: 500, refunded.
    pub failed: BTreeSet<u64>,
    /// The lines of the access logs; gateways without a complete one are in `unlogged`.
    pub logged: Vec<Logged>,
    /// Gateways whose access log is not complete.
    pub unlogged: BTreeSet<usize>,
    /// The possible costs of the faults.
    pub effects: Vec<Effect>,
    /// Gateways killed.
    pub kills: Vec<Kill>,
    /// The counts of the store, by key and date.
    pub counts: BTreeMap<(usize, String), u64>,
}

/// The figures of a schedule.
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
    /// Calls without an answer because a gateway was killed.
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
    /// Units of killed gateways that the store counts although no client was served.
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

    /// The wait (whole milliseconds, rounded down) that this share of the calls, in thousandths, did not exceed.
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
