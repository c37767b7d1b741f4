//! Where keys and counts live: one trait, two stores.
//!
//! A store decides a charge atomically where the counter lives, so any number of gateways share one quota. It owns the
//! key table, the day counts, and the ledger that says which endpoint each unit went to. It does not know tiers,
//! endpoints or calendars: limits, costs and the boundaries of the day are the caller's.
//!
//! Invariants, kept by every store and shown by the shared suite in `tests/store`:
//! - the units granted minus those refunded for a key and day never exceed the largest limit a charge was made with;
//! - a charge is all or nothing, and one whose outcome the caller never learnt is not counted twice;
//! - a refund is counted at most once, on the day of its charge;
//! - a charge whose key record is older than the store's is never granted;
//! - a key is changed together with the entry of the change in the audit trail, or neither is.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use jiff::civil::Date;
use serde::Serialize;

use crate::policy::api_key::KeyId;
use crate::policy::audit::{self, Author, Wanted};
use crate::policy::calendar::Day;
use crate::policy::clock_trust::Leap;
use crate::policy::crossing::{Crossing, Event};
use crate::policy::key_record::{KeyRecord, TierName};

pub mod backup;
pub mod carried;
pub mod chain;
mod clock_watch;
pub mod embedded;
mod held_file;
pub mod key_table;
pub mod ledger;
pub mod redis;
pub mod status;

pub use key_table::{KeyEntry, KeyTable};
pub use ledger::{Adjustment, DayUsage, Keeping, Proof, Refusal, Totals};
use status::{Replicas, StoreStatus};

/// The limit of a charge that only counts.
pub const UNBOUNDED: u64 = u64::MAX;

/// A request for units.
#[derive(Debug, Clone)]
pub struct Charge {
    /// The key, as the caller checked it; its version must not be older than the store's.
    pub key: Arc<KeyEntry>,
    /// The quota day that the caller believes it is.
    pub day: Day,
    /// The units the key may use on that day: tier plus grants. [`UNBOUNDED`] is counted and never refused for lack of
    /// units, without the store neither, whatever its policy for that; only where it could not be written down.
    pub limit: u64,
    /// The units asked for, at least 1.
    pub cost: u32,
    /// The endpoint the units are for, as the ledger names it.
    pub endpoint: Arc<str>,
}

/// What became of a charge.
#[derive(Debug)]
pub enum Decision {
    /// The units are the caller's; `used` counts them.
    Granted {
        /// Units used on the day with these included; differs for every grant of a day while nothing is refunded.
        used: u64,
        /// Proof of the charge, to be refunded or dropped.
        receipt: Receipt,
    },
    /// The day has no room for the cost; nothing was taken.
    Exhausted {
        /// Units used on the day.
        used: u64,
    },
    /// The store has a newer record; [`Store::keys`] holds it already. Check the key again and ask once more.
    KeyChanged,
    /// The store's clock is outside the caller's day. Ask again with the day of this instant.
    OtherDay {
        /// The store's time.
        now: Timestamp,
    },
}

/// Proof that units were charged: consumed by [`Store::refund`] or [`Store::give_back`], or dropped when the request was
/// served. Not `Clone`, so that nothing is refunded twice.
#[derive(Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The key that was charged.
    pub key: KeyId,
    /// The tier it had.
    pub tier: TierName,
    /// The day it was charged on.
    pub day: Day,
    /// The endpoint the units were for.
    pub endpoint: Arc<str>,
    /// The units.
    pub units: u32,
}

/// The place of a change of the key table in the store's order of changes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChangeMark(pub u128);

/// The name of a gateway process, unique by process start.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct NodeName(pub String);

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// A gateway that has not confirmed a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unconfirmed {
    /// Its name.
    pub name: NodeName,
    /// Since when it has not been heard of, although it did not sign off; `None` of one that lives and has not applied the change.
    pub silent_since: Option<Timestamp>,
}

/// What became of the order to strike a gateway off the register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forgotten {
    /// It is off.
    Struck {
        /// When it was last heard of.
        heard: Timestamp,
    },
    /// It was heard of just now, so it stays.
    Lives,
    /// There is none of this name that did not sign off.
    Unknown,
}

/// What a store was opened for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// A gateway: it follows the changes of the key table and says that it lives.
    Gateway(NodeName),
    /// A command: it reads and writes the key table and then goes.
    Command,
}

/// How a store is doing, for `/readyz` and metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// Whether a charge made now is expected to be decided.
    pub up: bool,
    /// The replica of the key table.
    pub keys: Freshness,
    /// How charges are decided while [`Health::up`] is false.
    pub without_store: WithoutStore,
    /// Units served without the store that it has not been told of.
    pub pending_units: u64,
    /// Other gateways that did not sign off and are not heard of any more, as this one last read; see [`Store::await_applied`].
    pub silent_gateways: u64,
    /// The last leap of the clock that days are counted by, until that can be relied on again.
    pub clock_leap: Option<Leap>,
    /// Why a file that the store needs cannot be used, with what to do; for operators.
    pub file_trouble: Option<String>,
}

/// How far the replica of the key table can be relied on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Freshness {
    /// Whether it has been loaded whole.
    pub loaded: bool,
    /// How long ago it was known to be current; [`Duration::MAX`]: never.
    pub age: Duration,
    /// Whether that is recent enough to serve known keys by it; a store that is the authority itself always says yes.
    pub usable: bool,
}

impl Freshness {
    /// How long ago it was known to be current; `None`: never.
    pub fn known_age(&self) -> Option<Duration> {
        (self.age < Duration::MAX).then_some(self.age)
    }
}

/// What a gateway does while its store is away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WithoutStore {
    /// Serves and writes down what it serves.
    Serves,
    /// Refuses, as it was told to.
    Denies,
    /// Refuses, because it cannot write down what it would serve.
    JournalFailed,
    /// Refuses, because it knows no key: the key table is not loaded, or too old to be relied on.
    NoKeys,
}

/// A failure of the store. Never told to clients; `Display` names hosts and files and is for logs and operators.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Not reachable now, or not answering in time: the outcome of a charge is unknown and the store has seen to it that
    /// it is not lost. Worth trying again.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// It answered that it cannot do this, now or later: wrong type, corrupted, read-only, disk full, no permission.
    #[error("the store failed: {0}")]
    Failed(String),
    /// It was used with another time zone, or knows a day by other boundaries.
    #[error("{0}")]
    OtherCalendar(String),
}

impl StoreError {
    /// Whether the same call may succeed later without anybody's help.
    pub fn is_transient(&self) -> bool {
        match self {
            StoreError::Unavailable(_) => true,
            StoreError::Failed(_) | StoreError::OtherCalendar(_) => false,
        }
    }
}

/// Why a change of the key table was not made.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// There is no key with this id.
    #[error("there is no key {0}")]
    UnknownKey(KeyId),
    /// Somebody changed the record since it was read: read it again and decide anew.
    #[error("the key {0} was changed at the same time by another request")]
    Conflict(KeyId),
    /// The id or a digest is in use already.
    #[error("the key {0} exists already")]
    Exists(KeyId),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What became of one key of an import.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Imported {
    /// It was added.
    Added,
    /// The key with this id has its secret already: nothing was written.
    Held(KeyId),
    /// Another key has its id: nothing was written.
    IdTaken,
    /// A command that has not written its key, because it died or is about to, has claimed the secret for this id: nothing was
    /// written. The key can be added under that id at once, and under another after half a minute.
    Claimed(KeyId),
}

/// Whether an event is to be delivered to somebody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// It is kept until [`Store::delivered`], for a week at most.
    Wanted,
    /// It is told here only.
    Unwanted,
}

/// What became of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// It is this node's, now or since an earlier call of the same.
    Made,
    /// It is this node's, but the event is not kept: [`EVENTS_MAX`] wait to be delivered.
    Undeliverable,
    /// Another node made it.
    Held,
}

/// Events that are kept to be delivered.
pub const EVENTS_MAX: u64 = 10_000;
/// Events that are told of at once to whoever delivers them.
pub const EVENTS_TOLD_MAX: u64 = 1_000;
/// How long claims are kept after their day.
pub const CLAIMS_KEPT_SECONDS: i64 = 2 * 86_400;
/// How long events are kept that nobody delivers.
pub const EVENTS_KEPT_SECONDS: i64 = 7 * 86_400;

/// Keys of which a day is read at once: in Redis 128 small hashes, some 0.2 ms of its time.
pub const DAY_OF_KEYS_MAX: usize = 64;

/// Keys that a command reads at once with some weeks of their ledger: some tens of thousands of rows at most, far below the
/// store's timeout.
pub const KEYS_AT_ONCE_MAX: usize = 256;

/// A store of keys, counts and ledger.
///
/// The first part is for gateways and is called for requests; every future ends within the store's timeout. The second
/// part is for commands. Implementations are used from any number of tasks at once.
#[async_trait]
pub trait Store: carried::Carrying + Send + Sync + 'static {
    /// The replica of the key table, current within the time that [`Store::freshness`] tells. Never waits.
    fn keys(&self) -> &KeyTable;

    /// How far that replica can be relied on. Asked for every request: takes no lock.
    fn freshness(&self) -> Freshness;

    /// The store's time as far as it is known without asking: the local clock corrected by what its last reply said.
    fn now(&self) -> Timestamp;

    /// Decides one charge atomically. One round trip at most; none for a key that is known to be exhausted. Dropping the
    /// future does not lose units: what was granted meanwhile is given back.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] without a connection (at once) or after the timeout; [`StoreError::OtherCalendar`]
    /// where the day is stored with other boundaries.
    async fn charge(&self, charge: Charge) -> Result<Decision, StoreError>;

    /// Gives the units of a receipt back on the day they were charged. Answers the units used afterwards as far as they
    /// are known; the refund itself is never lost while this process lives, and is stored within a second of the store
    /// being reachable. Does not wait longer than the store's timeout.
    async fn refund(&self, receipt: Receipt) -> Option<u64>;

    /// Refunds a receipt as [`Store::refund`] does, for a request that is dropped. Never waits.
    fn give_back(&self, receipt: Receipt);

    /// Units used by a key on a day, for an answer that costs nothing: what was learnt in the last second, else read
    /// once for all who ask at the same time.
    ///
    /// # Errors
    /// As [`Store::charge`].
    async fn used(&self, key: KeyId, day: Day) -> Result<u64, StoreError>;

    /// Counts a refused request in the ledger, within a second. Never waits.
    fn refused(&self, key: &KeyEntry, day: Day, endpoint: &Arc<str>, refusal: Refusal);

    /// How the store is doing, without asking it.
    fn health(&self) -> Health;

    /// How often the store was found to have lost what it was told, or may have: whoever must have it known tells it again.
    fn losses(&self) -> u64;

    /// Claims the right to tell that a key came to a share of its limit, once for all nodes; in the same atomic step the event
    /// is kept, where it is to be delivered. A repeated call is answered as the first. Not for requests: waits.
    async fn claim(
        &self,
        crossing: &Crossing,
        node: &NodeName,
        delivery: Delivery,
    ) -> Result<Claim, StoreError>;

    /// The oldest events that are to be delivered, [`EVENTS_TOLD_MAX`] at most, if it is `courier` who delivers them: one node
    /// at a time, until `lease` has passed without a call of it. `None`: another does.
    async fn undelivered(
        &self,
        courier: &NodeName,
        lease: Duration,
    ) -> Result<Option<Vec<Event>>, StoreError>;

    /// The event need not be kept any longer.
    async fn delivered(&self, event: &Event) -> Result<(), StoreError>;

    /// Gives up the delivery of events, where it is `courier` who does it, so that another node can begin at once.
    async fn resign(&self, courier: &NodeName) -> Result<(), StoreError>;

    /// Writes what is still to be written (refunds, ledger), for at most `deadline`, and says goodbye as a node.
    async fn close(&self, deadline: Duration);

    /// The store's time, asked for.
    async fn server_time(&self) -> Result<Timestamp, StoreError>;

    /// Adds a key. The caller's `version`, `created` and `updated` are replaced by the store's time. In the same atomic step, here
    /// and in [`Store::update_key`], the audit trail gets the entry that the record's `last_change` makes.
    async fn create_key(&self, record: KeyRecord) -> Result<(KeyRecord, ChangeMark), ChangeError>;

    /// Replaces the record with this id if its version is still `record.version`; the new version and `updated` are the
    /// store's.
    async fn update_key(&self, record: KeyRecord) -> Result<(KeyRecord, ChangeMark), ChangeError>;

    /// Adds the keys that nobody has, as [`Store::create_key`] does but with the `created` that they bear; answers what became of
    /// each, in their order, and the place of the last change. Charges pass between two calls, so a call brings some hundred
    /// keys at most. Repeating one of which nothing more is known, because its process died or its reply was lost, completes it.
    /// The embedded store writes all keys of a call or none; Redis, whose keys may lie on several servers, each by itself.
    ///
    /// # Errors
    /// Where the outcome of some of the keys is unknown.
    async fn import_keys(
        &self,
        records: Vec<KeyRecord>,
    ) -> Result<(Vec<Imported>, Option<ChangeMark>), StoreError>;

    /// The entries of the audit trail that meet the filter, in the order of the changes, asked for.
    async fn audit(&self, wanted: Wanted) -> Result<Vec<audit::Entry>, StoreError>;

    /// The record of one key, asked for.
    async fn key(&self, id: KeyId) -> Result<Option<KeyRecord>, StoreError>;

    /// All records in the order of their creation, asked for.
    async fn all_keys(&self) -> Result<Vec<KeyRecord>, StoreError>;

    /// All keys in the order of their ids, each with its customer: some 30 bytes a key and each name once, where a record has
    /// some hundreds.
    async fn holders(&self) -> Result<Vec<(KeyId, Arc<str>)>, StoreError>;

    /// The records of some keys, [`KEYS_AT_ONCE_MAX`] at most; a key without one is left out.
    async fn records_of(&self, ids: &[KeyId]) -> Result<Vec<KeyRecord>, StoreError>;

    /// The gateways that have not confirmed the change after up to `patience`: those that live, and those that did not sign off and
    /// are not heard of any more, which may be serving the keys that they knew. The embedded store has none of the latter: its
    /// gateways read it for every charge, and one that cannot read it serves no request.
    async fn await_applied(
        &self,
        mark: &ChangeMark,
        patience: Duration,
    ) -> Result<Vec<Unconfirmed>, StoreError>;

    /// The place of the last change of the key table, asked for.
    async fn last_change(&self) -> Result<ChangeMark, StoreError>;

    /// Strikes a gateway off that did not sign off and is not heard of any more, with an entry in the audit trail in the same atomic
    /// step. If it lives all the same, it signs in again when it reaches the store.
    async fn forget_gateway(
        &self,
        node: &NodeName,
        author: &Author,
    ) -> Result<Forgotten, StoreError>;

    /// How many replicas of the server have confirmed the last change that this handle made, after waiting up to
    /// `patience` for one. Waits for nobody where there are none.
    async fn await_replicas(&self, patience: Duration) -> Result<Replicas, StoreError>;

    /// What the store says of itself, asked for.
    async fn status(&self) -> Result<StoreStatus, StoreError>;

    /// The ledger from `from` through `to`, one key only if asked, in the order of date and key.
    async fn usage(
        &self,
        from: Date,
        to: Date,
        key: Option<KeyId>,
    ) -> Result<Vec<DayUsage>, StoreError>;

    /// The same for some keys, [`KEYS_AT_ONCE_MAX`] at most: for a command that walks over all keys and keeps little of each.
    /// Keys that are next to each other in the order of their ids cost least.
    async fn usage_of(
        &self,
        from: Date,
        to: Date,
        keys: &[KeyId],
    ) -> Result<Vec<DayUsage>, StoreError>;

    /// The ledger of one day for some keys, [`DAY_OF_KEYS_MAX`] at most, in the order of the keys. For a gateway that walks over all
    /// keys beside its requests: one round trip, and no more at a time than a request may wait for.
    async fn day_of(&self, date: Date, keys: &[KeyId]) -> Result<Vec<DayUsage>, StoreError>;

    /// The same days, each held against everything that the store knows of them: what is told of no fault reconciles.
    /// A gateway that charges meanwhile may be caught between a count and its entry in the ledger; ask again.
    async fn prove(
        &self,
        from: Date,
        to: Date,
        key: Option<KeyId>,
    ) -> Result<Vec<Proof>, StoreError>;

    /// The chain of closed days, where the store keeps one.
    fn chained(&self) -> Option<&dyn chain::Chained> {
        None
    }
}

impl Receipt {
    /// The receipt of a granted charge.
    pub fn of(charge: &Charge) -> Receipt {
        let record = &charge.key.record;
        Receipt {
            key: record.id,
            tier: record.tier.clone(),
            day: charge.day,
            endpoint: charge.endpoint.clone(),
            units: charge.cost,
        }
    }
}
